//! Reading a resolv.conf(5).

use cnikit::types::Dns;
use cnikit::{Error, Result};

/// The largest file that is read, in bytes.
const LIMIT: usize = 1 << 20;

/// Reads the file that the configuration names.
pub(crate) fn read(path: &str) -> Result<Dns> {
    match cnikit_store::read(path, LIMIT) {
        Ok(bytes) => Ok(parse(&String::from_utf8_lossy(&bytes))),
        Err(error) => Err(Error::from(error).hint("`resolvConf` names a file of this host; correct or remove it")),
    }
}

/// Parses the file: the first value of every `nameserver`, the last `domain`, and all values of every `search` and `options`.
/// Comments are whole lines. The values are not validated.
fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let mut words = line.split_whitespace().map(str::to_owned);
        let (Some(key), Some(first)) = (words.next(), words.next()) else { continue };
        match key.as_str() {
            "nameserver" => dns.nameservers.push(first),
            "domain" => dns.domain = first,
            "search" => {
                dns.search.push(first);
                dns.search.extend(words);
            }
            "options" => {
                dns.options.push(first);
                dns.options.extend(words);
            }
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_combined_as_by_upstream() {
        let text = "# nameserver 1.1.1.1\n ; x y\n nameserver 192.0.2.1 ignored\nnameserver 2001:db8::1\r\n\
            domain a.example\ndomain b.example\nsearch a b\nsearch c\noptions ndots:2 rotate\noptions edns0 # no comment\n\
            nameserver\nsortlist 192.0.2.0\n";
        let dns = parse(text);
        assert_eq!(dns.nameservers, ["192.0.2.1", "2001:db8::1"]);
        assert_eq!(dns.domain, "b.example");
        assert_eq!(dns.search, ["a", "b", "c"]);
        assert_eq!(dns.options, ["ndots:2", "rotate", "edns0", "#", "no", "comment"]);
    }

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let refused = read("/nonexistent/resolv.conf").unwrap_err();
        assert!(refused.msg.starts_with("open /nonexistent/resolv.conf: No such file"), "{}", refused.msg);
        assert!(read("/").unwrap_err().msg.contains("not a regular file"));
    }
}
