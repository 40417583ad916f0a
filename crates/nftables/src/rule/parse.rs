//! Parses matches in the syntax of nft(8), as operators write them in a configuration.

use ipnetwork::IpNetwork;

use crate::rule::types::{Direction, L4Protocol, Match, Side};

/// The known matches, for errors.
const KNOWN: &str = "ip saddr, ip daddr, ip6 saddr, ip6 daddr, iifname, oifname, meta mark, meta l4proto, tcp dport and \
                     sport of tcp, udp and sctp, ct state established,related, fib daddr type local; each of one value, \
                     with == or != before it";

impl Match {
    /// Parses matches in the syntax of nft(8). The texts are joined, so a match may span several of them.
    ///
    /// Known are addresses and networks of both families, names of interfaces, marks, protocols, ports, established connections,
    /// and the host's own addresses, each with one value and `==` or `!=`. Sets, ranges and statements that change a packet are not
    /// known.
    ///
    /// # Errors
    /// A word that is not known, with a list of the known ones.
    pub fn read(texts: &[String]) -> Result<Vec<Match>, String> {
        let text = texts.join(" ");
        let words: Vec<&str> = text.split_whitespace().collect();
        let mut rest = words.as_slice();
        let mut matches = Vec::new();
        while !rest.is_empty() {
            let (one, after) = next(rest)?;
            matches.push(one);
            rest = after;
        }
        Ok(matches)
    }
}

/// Parses a match, and returns it with the words after it.
fn next<'a, 'b>(words: &'b [&'a str]) -> Result<(Match, &'b [&'a str]), String> {
    match words {
        ["fib", "daddr", "type", "local", rest @ ..] => Ok((Match::LocalDestination, rest)),
        ["ct", "state", "established,related" | "related,established", rest @ ..] => Ok((Match::Established, rest)),
        ["ip" | "ip6", side @ ("saddr" | "daddr"), rest @ ..] => {
            compared(rest, |is, word| address(words[0], side, is, word))
        }
        ["meta", rest @ ..] if matches!(rest, ["iifname" | "oifname" | "mark", ..]) => next(rest),
        [key @ ("iifname" | "oifname"), rest @ ..] => {
            let way = if *key == "iifname" { Direction::In } else { Direction::Out };
            compared(rest, |is, word| Ok(Match::Interface { way, is, name: name(word)? }))
        }
        ["mark", operation @ ("and" | "&"), mask, rest @ ..] => {
            let mask = number(mask)?;
            if !matches!(rest, ["==" | "!=", ..]) {
                return Err(format!("`mark {operation}` needs a mask, `==` or `!=`, and a value"));
            }
            compared(rest, |is, word| Ok(Match::Mark { mask, is, value: number(word)? }))
        }
        ["mark", rest @ ..] => compared(rest, |is, word| Ok(Match::Mark { mask: u32::MAX, is, value: number(word)? })),
        ["meta", "l4proto", "==", word, rest @ ..] | ["meta", "l4proto", word, rest @ ..] => {
            Ok((Match::Protocol(protocol(word)?), rest))
        }
        [of @ ("tcp" | "udp" | "sctp"), side @ ("sport" | "dport"), rest @ ..] => {
            let protocol = protocol(of)?;
            let side = side_of(side);
            compared(rest, |is, word| Ok(Match::Port { protocol, side, is, port: port(word)? }))
        }
        _ => Err(format!("{:?} is not known; known are {KNOWN}", words.first().copied().unwrap_or_default())),
    }
}

/// Parses `[== | !=] VALUE`.
fn compared<'a, 'b>(
    words: &'b [&'a str],
    read: impl FnOnce(bool, &'a str) -> Result<Match, String>,
) -> Result<(Match, &'b [&'a str]), String> {
    let (is, word, rest) = match words {
        ["!=", word, rest @ ..] => (false, *word, rest),
        ["==", word, rest @ ..] | [word, rest @ ..] => (true, *word, rest),
        [] => return Err("a value is missing at the end".to_owned()),
    };
    Ok((read(is, word)?, rest))
}

fn address(family: &str, side: &str, is: bool, word: &str) -> Result<Match, String> {
    let network: IpNetwork = word.parse().map_err(|_| format!("{word:?} is not an address or a network"))?;
    if network.is_ipv4() != (family == "ip") {
        return Err(format!("{word:?} is not an address of {family}"));
    }
    Ok(match (side_of(side), is) {
        (Side::Source, true) if network == IpNetwork::from(network.ip()) => Match::Source(network.ip()),
        (Side::Source, true) => Match::SourceIn(network),
        (Side::Source, false) => Match::SourceNotIn(network),
        (Side::Destination, true) => Match::DestinationIn(network),
        (Side::Destination, false) => Match::DestinationNotIn(network),
    })
}

fn side_of(word: &str) -> Side {
    if word.starts_with('s') { Side::Source } else { Side::Destination }
}

/// A name with or without quotation marks. Wildcards are not known.
fn name(word: &str) -> Result<String, String> {
    let bare = word.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(word);
    let plain = (1..=15).contains(&bare.len()) && !bare.contains(['"', '*', '{', '}', '@', '$', '\\']);
    if plain { Ok(bare.to_owned()) } else { Err(format!("{word} is not the name of one interface")) }
}

fn port(word: &str) -> Result<u16, String> {
    word.parse().map_err(|_| format!("{word:?} is no port"))
}

/// A decimal number, or a hexadecimal one with the prefix `0x`.
fn number(word: &str) -> Result<u32, String> {
    let read = match word.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16),
        None => word.parse(),
    };
    read.map_err(|_| format!("{word:?} is no mark"))
}

fn protocol(word: &str) -> Result<L4Protocol, String> {
    let named = L4Protocol::ALL.into_iter().find(|one| one.to_string() == word);
    named.ok_or_else(|| format!("{word:?} is not tcp, udp or sctp"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Vec<Match>, String> {
        Match::read(&text.split(' ').map(str::to_owned).collect::<Vec<_>>())
    }

    /// In the words in which nft(8) lists them, and in synonyms.
    #[test]
    fn parsed_matches_are_written_as_nft_lists_them() {
        for (text, shown) in [
            ("ip saddr 10.0.0.2", "ip saddr 10.0.0.2"),
            ("ip saddr == 10.0.0.0/8 ip daddr != 10.1.0.0/16", "ip saddr 10.0.0.0/8 ip daddr != 10.1.0.0/16"),
            ("ip6 saddr != fd00::/8", "ip6 saddr != fd00::/8"),
            ("ip6 daddr fd00::1", "ip6 daddr fd00::1"),
            ("iifname eth0", "iifname \"eth0\""),
            ("meta oifname != \"eth0\"", "oifname != \"eth0\""),
            ("meta mark 0x10", "meta mark 0x00000010"),
            ("mark != 16", "meta mark != 0x00000010"),
            ("meta mark and 0xff == 1", "meta mark & 0x000000ff == 0x00000001"),
            ("mark & 0xff != 1", "meta mark & 0x000000ff != 0x00000001"),
            ("meta l4proto tcp", "meta l4proto tcp"),
            ("udp sport != 53 ct state established,related", "udp sport != 53 ct state established,related"),
            ("fib daddr type local", "fib daddr type local"),
        ] {
            let matches = read(text).unwrap();
            assert_eq!(matches.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "), shown);
        }
        assert_eq!(read(""), Ok(vec![]));
        assert_eq!(Match::read(&["ip saddr".to_owned(), "10.0.0.2".to_owned()]), read("ip saddr 10.0.0.2"));
    }

    #[test]
    fn an_unknown_word_is_an_error_with_the_word() {
        for (text, why) in [
            ("counter", "\"counter\" is not known; known are ip saddr"),
            ("ip saddr 10.0.0.2 accept", "\"accept\" is not known"),
            ("ip saddr { 10.0.0.2 }", "\"{\" is not an address"),
            ("ip saddr fd00::1", "\"fd00::1\" is not an address of ip"),
            ("ip saddr", "a value is missing"),
            ("ip ttl 1", "\"ip\" is not known"),
            ("iifname eth*", "eth* is not the name of one interface"),
            ("meta mark set 1", "\"set\" is no mark"),
            ("meta mark and 1", "needs a mask"),
            ("meta nftrace set 1", "\"meta\" is not known"),
            ("tcp dport 70000", "\"70000\" is no port"),
            ("tcp dport 80-90", "\"80-90\" is no port"),
            ("meta l4proto icmp", "\"icmp\" is not tcp, udp or sctp"),
            ("ip saddr 10.0.0.2 ; flush ruleset", "\";\" is not known"),
        ] {
            let said = read(text).unwrap_err();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
