//! Hardware addresses of any length.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The lengths of hardware addresses in bytes: Ethernet, EUI-64, and IP over InfiniBand.
const LENGTHS: [usize; 3] = [6, 8, 20];

/// A hardware address of 6, 8 or 20 bytes; as text `aa:bb:cc:dd:ee:ff`. [`crate::Mac`] is one of six bytes, which can be set.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "lladdr")]
pub struct HardwareAddress(Vec<u8>);

impl HardwareAddress {
    /// The address with these bytes; `None` if they are all zero, or have another length.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let is_one = LENGTHS.contains(&bytes.len()) && bytes.iter().any(|byte| *byte != 0);
        is_one.then(|| Self(bytes.to_vec()))
    }
}

impl FromStr for HardwareAddress {
    type Err = String;

    /// Parses bytes of two hexadecimal digits each, separated by `:` or by `-`, or groups of four digits, separated by `.`.
    fn from_str(text: &str) -> Result<Self, String> {
        let refused = || format!("{text:?} is not a hardware address: write its bytes, such as 0a:58:0a:01:00:02");
        let (separator, digits) = if text.contains('.') {
            ('.', 4)
        } else if text.contains('-') {
            ('-', 2)
        } else {
            (':', 2)
        };
        let mut bytes = Vec::new();
        for group in text.split(separator) {
            if group.len() != digits || !group.bytes().all(|digit| digit.is_ascii_hexdigit()) {
                return Err(refused());
            }
            for at in (0..digits).step_by(2) {
                bytes.push(u8::from_str_radix(&group[at..at + 2], 16).map_err(|_| refused())?);
            }
        }
        Self::new(&bytes).ok_or_else(refused)
    }
}

impl fmt::Display for HardwareAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, byte) in self.0.iter().enumerate() {
            let separator = if place == 0 { "" } else { ":" };
            write!(f, "{separator}{byte:02x}")?;
        }
        Ok(())
    }
}

impl Serialize for HardwareAddress {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for HardwareAddress {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_every_length_are_read_as_they_are_written() {
        let long = "00:00:00:00:fe:80:00:00:00:00:00:00:02:00:5e:10:00:00:00:01";
        for (text, written) in [
            ("0A-58-00-ff-01-02", "0a:58:00:ff:01:02"),
            ("0a58.00ff.0102", "0a:58:00:ff:01:02"),
            ("02:00:5e:10:00:00:00:01", "02:00:5e:10:00:00:00:01"),
            (long, long),
        ] {
            assert_eq!(text.parse::<HardwareAddress>().map(|address| address.to_string()), Ok(written.to_owned()));
        }
    }

    #[test]
    fn a_text_that_is_not_an_address_is_refused_with_the_text() {
        for text in [
            "",
            "zz",
            "0a:58:00:ff:01",
            "00:00:00:00:00:00",
            "0a:58:00:ff:01:",
            "+a:58:00:ff:01:02",
            "äa:58:00:ff:01:02",
            "0a5.800.ff01.02",
        ] {
            let error = text.parse::<HardwareAddress>().unwrap_err();
            assert!(error.starts_with(&format!("{text:?} is not a hardware address")), "{error}");
        }
    }
}
