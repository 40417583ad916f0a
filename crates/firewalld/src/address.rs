//! Server addresses of D-Bus, as in `DBUS_SYSTEM_BUS_ADDRESS`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A socket that a bus listens on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Address {
    /// A socket in the file system.
    Path(PathBuf),
    /// An abstract socket, whose name exists in one network namespace only; see unix(7).
    Abstract(Vec<u8>),
}

/// The addresses of a list that we can connect to, in its order: `unix:path=/run/bus,guid=0a;unix:abstract=bus`.
///
/// Addresses with other transports and malformed ones are skipped; see the D-Bus specification, "Server Addresses".
pub(crate) fn addresses(list: &str) -> Vec<Address> {
    list.split(';').filter_map(address).collect()
}

fn address(text: &str) -> Option<Address> {
    for pair in text.strip_prefix("unix:")?.split(',') {
        let Some((key, escaped)) = pair.split_once('=') else { continue };
        let Some(value) = unescaped(escaped) else { continue };
        if value.is_empty() || value.contains(&0) {
            continue;
        }
        match key {
            "path" => return Some(Address::Path(OsString::from_vec(value).into())),
            "abstract" => return Some(Address::Abstract(value)),
            _ => {}
        }
    }
    None
}

/// Decodes a value, in which all bytes except letters, digits and a few marks may be written as `%` and two hexadecimal digits.
fn unescaped(value: &str) -> Option<Vec<u8>> {
    let mut pieces = value.split('%');
    let mut bytes = pieces.next()?.as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at_checked(2)?;
        bytes.push(u8::from_str_radix(digits, 16).ok()?);
        bytes.extend(rest.as_bytes());
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(path: &str) -> Address {
        Address::Path(path.into())
    }

    #[test]
    fn supported_bus_addresses_are_parsed_in_order() {
        let name = Address::Abstract(b"a bus".to_vec());
        for (list, expected) in [
            ("unix:path=/run/bus", vec![path("/run/bus")]),
            ("unix:guid=0a,path=/run/a%20bus", vec![path("/run/a bus")]),
            ("tcp:host=localhost,port=1;unix:abstract=a%20bus,guid=0a;unix:path=/b", vec![name, path("/b")]),
            ("unix:tmpdir=/tmp;unixexec:path=ls;;unix:", vec![]),
            ("unix:path=;unix:path=/a%00;unix:path=/a%2;unix:path=/a%zz", vec![]),
            ("", vec![]),
        ] {
            assert_eq!(addresses(list), expected, "{list}");
        }
    }
}
