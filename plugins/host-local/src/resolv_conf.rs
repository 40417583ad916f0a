//! Reading a resolv.conf(5).

use cnikit::types::Dns;
use cnikit::{Error, Result};

/// More than any resolver reads.
const LIMIT: usize = 1 << 20;

/// Reads the file that the configuration names.
pub(crate) fn read(path: &str) -> Result<Dns> {
    let bytes = cnikit_store::read(path, LIMIT);
    let bytes =
        bytes.map_err(|error| Error::from(error).hint("`resolvConf` names a file of this host; correct or remove it"));
    Ok(parse(&String::from_utf8_lossy(&bytes?)))
}

/// Every `nameserver` counts by its first value, the last `domain` wins, and all values of every `search` and `options`
/// add up. Comments are whole lines; nothing is judged.
fn parse(text: &str) -> Dns {
    let mut dns = Dns::default();
    for line in text.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';'])) {
        let mut words = line.split_whitespace().map(str::to_owned);
        let (Some(key), Some(first)) = (words.next(), words.next()) else { continue };
        match key.as_str() {
            "nameserver" => dns.nameservers.push(first),
            "domain" => dns.domain = first,
            "search" => dns.search.extend([first].into_iter().chain(words)),
            "options" => dns.options.extend([first].into_iter().chain(words)),
            _ => {}
        }
    }
    dns
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_add_up_as_users_of_the_reference_know_it() {
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
