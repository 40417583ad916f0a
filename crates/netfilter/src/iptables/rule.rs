//! A rule in the words of iptables(8).

use std::fmt;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

/// A rule: the words that iptables-save writes behind `-A CHAIN`, in its order, which is that of the functions here.
///
/// Rules are equal if their words are. One that was read may hold words that nothing here writes; its addresses are
/// written as they are here, whatever iptables-save made of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule(Vec<String>);

impl Rule {
    /// A rule that every packet matches and that does nothing yet.
    pub fn any() -> Self {
        Self::default()
    }

    /// The packet comes from this address.
    #[must_use]
    pub fn source(self, address: IpAddr) -> Self {
        self.word("-s").word(written(address.into()))
    }

    /// It goes into this network. The host part of the address does not count; all addresses are no condition.
    #[must_use]
    pub fn destination(self, network: IpNetwork) -> Self {
        if network.prefix() == 0 { self } else { self.word("-d").word(written(network)) }
    }

    /// It goes elsewhere.
    #[must_use]
    pub fn not_destination(self, network: IpNetwork) -> Self {
        self.word("!").word("-d").word(written(network))
    }

    /// By which the rule is found again: at most 255 bytes, no line break.
    #[must_use]
    #[doc(alias = "XT_MAX_COMMENT_LEN")]
    pub fn commented(self, comment: &str) -> Self {
        ["-m", "comment", "--comment", comment].into_iter().fold(self, Self::word)
    }

    /// What happens then: a chain, or a target such as `ACCEPT`.
    #[must_use]
    pub fn jump(self, target: &str) -> Self {
        self.word("-j").word(target)
    }

    /// The one address that a packet has to come from.
    pub fn source_address(&self) -> Option<IpAddr> {
        self.source_network().filter(is_one_address).map(|network| network.ip())
    }

    /// The addresses that a packet has to come from one of: a network, or a single one.
    pub fn source_network(&self) -> Option<IpNetwork> {
        let place = self.0.iter().position(|word| word == "-s")?;
        let negated = place.checked_sub(1).is_some_and(|before| self.0[before] == "!");
        self.0.get(place + 1).filter(|_| !negated)?.parse().ok()
    }

    /// Its comment.
    pub fn comment(&self) -> Option<&str> {
        self.behind("--comment")
    }

    /// Where it jumps to.
    pub fn target(&self) -> Option<&str> {
        self.behind("-j").or_else(|| self.behind("-g"))
    }

    /// Of words of iptables-save's. It writes the C library's `::10.0.0.2` for what is `::a00:2` here; both delete the rule.
    pub(crate) fn read(mut words: Vec<String>) -> Self {
        for place in 1..words.len() {
            if let ("-s" | "-d", Ok(network)) = (words[place - 1].as_str(), words[place].parse::<IpNetwork>()) {
                words[place] = network.to_string();
            }
        }
        Self(words)
    }

    fn behind(&self, option: &str) -> Option<&str> {
        let place = self.0.iter().position(|word| word == option)?;
        self.0.get(place + 1).map(String::as_str)
    }

    fn word(mut self, word: impl Into<String>) -> Self {
        self.0.push(word.into());
        self
    }
}

fn is_one_address(network: &IpNetwork) -> bool {
    network.prefix() == if network.is_ipv4() { 32 } else { 128 }
}

fn written(network: IpNetwork) -> String {
    format!("{}/{}", network.network(), network.prefix())
}

/// As iptables-restore takes it.
impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(|word| quoted(word)).collect();
        f.write_str(&words.join(" "))
    }
}

/// One word of a line: in quotation marks unless it is plain.
fn quoted(word: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:,+=!".contains(&byte);
    if !word.is_empty() && word.bytes().all(plain) {
        return word.to_owned();
    }
    format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> IpNetwork {
        text.parse().unwrap()
    }

    #[test]
    fn a_rule_is_written_as_iptables_save_would_write_it() {
        let rule = Rule::any().source("10.0.0.2".parse().unwrap()).not_destination(network("224.0.0.0/4"));
        let rule = rule.commented(r#"name: "n" \"#).jump("MASQUERADE");
        let expected = r#"-s 10.0.0.2/32 ! -d 224.0.0.0/4 -m comment --comment "name: \"n\" \\" -j MASQUERADE"#;
        assert_eq!(rule.to_string(), expected);
        assert_eq!(Rule::any().destination(network("10.1.2.3/16")).to_string(), "-d 10.1.0.0/16");
        assert_eq!(Rule::any().destination(network("::/0")), Rule::any());
    }

    #[test]
    fn the_parts_of_a_rule_are_found_again() {
        let rule = Rule::any().source("fd00::2".parse().unwrap()).commented("-j").jump("OWN-x");
        assert_eq!(rule.source_address(), Some("fd00::2".parse().unwrap()));
        assert_eq!(rule.comment(), Some("-j"));
        let words = |line: &str| Rule::read(line.split(' ').map(str::to_owned).collect());
        assert_eq!(words("! -s 10.0.0.2/32").source_address(), None);
        assert_eq!(words("-s 10.0.0.0/24").source_address(), None);
        assert_eq!(words("-s 10.0.0.0/24").source_network(), Some(network("10.0.0.0/24")));
        assert_eq!(words("! -s 10.0.0.0/24").source_network(), None);
        assert_eq!(words("-p tcp -g OTHER").target(), Some("OTHER"));
    }

    /// As iptables-save of 1.8.9 wrote them.
    #[test]
    fn addresses_are_equal_however_iptables_writes_them() {
        let read = |line: &str| Rule::read(line.split(' ').map(str::to_owned).collect());
        for (theirs, own) in [("::10.0.0.2", "::a00:2"), ("::0.1.0.0", "::1:0"), ("fd00:0:1::", "fd00:0:1::")] {
            let (address, whole) = (own.parse().unwrap(), network(&format!("{own}/128")));
            assert_eq!(
                read(&format!("-s {theirs}/128 -d {theirs}/128")),
                Rule::any().source(address).destination(whole)
            );
            assert_eq!(read(&format!("! -d {theirs}/128")), Rule::any().not_destination(whole));
        }
        for kept in ["-s 10.0.0.0/255.0.255.0", "-s fd00::1/ffff::ff", "-m comment --comment ::10.0.0.2/128", "-s"] {
            assert_eq!(read(kept).to_string(), kept);
        }
    }
}
