//! A rule, in the words of iptables(8).

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnetwork::IpNetwork;

/// The option of the target `DNAT` before its address and port.
const TO_DESTINATION: &str = "--to-destination";

/// Words for which a new rule has room; nearly all rules have fewer.
const MOST_WORDS: usize = 16;

/// A rule: the words that iptables-save prints behind `-A CHAIN`. Call the functions in the order in which it prints them.
///
/// Rules are equal if their words are equal. A rule that was read may have words that no function here adds. Its addresses are
/// written as they are here, not as iptables-save prints them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct IptablesRule(Vec<String>);

impl IptablesRule {
    /// A rule without matches and target.
    pub fn any() -> Self {
        Self(Vec::with_capacity(MOST_WORDS))
    }

    /// `-s`: match the source address.
    #[must_use]
    pub fn source(self, address: IpAddr) -> Self {
        self.word("-s").word(network_text(address.into()))
    }

    /// `-s`: match the source network, without the host bits of the address. A prefix of length 0 adds no match.
    #[must_use]
    pub fn source_in(self, network: IpNetwork) -> Self {
        if network.prefix() == 0 { self } else { self.word("-s").word(network_text(network)) }
    }

    /// `-d`: match the destination network, without the host bits of the address. A prefix of length 0 adds no match.
    #[must_use]
    pub fn destination(self, network: IpNetwork) -> Self {
        if network.prefix() == 0 { self } else { self.word("-d").word(network_text(network)) }
    }

    /// `! -d`: match all other destinations.
    #[must_use]
    pub fn not_destination(self, network: IpNetwork) -> Self {
        self.word("!").word("-d").word(network_text(network))
    }

    /// `-p`: match the transport protocol.
    #[must_use]
    pub fn protocol(self, name: &str) -> Self {
        self.word("-p").word(name)
    }

    /// `-p`, `-m` and `--dport`: match the destination port of a protocol that has ports.
    #[must_use]
    pub fn destination_port(self, protocol: &str, port: u16) -> Self {
        self.protocol(protocol).word("-m").word(protocol).word("--dport").word(port.to_string())
    }

    /// `-m multiport --dports`: match one of at most 15 destination ports. [`IptablesRule::protocol`] must be called before.
    #[must_use]
    #[doc(alias = "multiport")]
    pub fn destination_ports(self, ports: &[u16]) -> Self {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        self.all(["-m", "multiport", "--dports", &ports.join(",")])
    }

    /// `-m addrtype --dst-type LOCAL`: match destinations that are addresses of this host.
    #[must_use]
    #[doc(alias = "addrtype")]
    pub fn to_this_host(self) -> Self {
        self.all(["-m", "addrtype", "--dst-type", "LOCAL"])
    }

    /// `-m mark`: match packets in whose mark all of these bits are set.
    #[must_use]
    pub fn marked(self, bits: u32) -> Self {
        self.all(["-m", "mark", "--mark", &masked(bits)])
    }

    /// Further words as they are.
    #[must_use]
    pub fn words(self, words: &[String]) -> Self {
        words.iter().fold(self, Self::word)
    }

    /// `-m comment --comment`: at most 255 bytes, without line breaks.
    #[must_use]
    #[doc(alias = "XT_MAX_COMMENT_LEN")]
    pub fn commented(self, comment: &str) -> Self {
        self.all(["-m", "comment", "--comment", comment])
    }

    /// `-j`: jump to a chain, or to a target without options such as `ACCEPT`.
    #[must_use]
    pub fn jump(self, target: &str) -> Self {
        self.word("-j").word(target)
    }

    /// `-j MARK --set-xmark`: set these bits of the packet's mark.
    #[must_use]
    pub fn set_mark(self, bits: u32) -> Self {
        self.all(["-j", "MARK", "--set-xmark", &masked(bits)])
    }

    /// `-j DNAT --to-destination`: change the destination to this address and port.
    #[must_use]
    #[doc(alias = "DNAT")]
    pub fn dnat_to(self, address: SocketAddr) -> Self {
        self.all(["-j", "DNAT", TO_DESTINATION, &address.to_string()])
    }

    /// The new destination of the target `DNAT`, if it is one address and port.
    pub fn dnat_target(&self) -> Option<SocketAddr> {
        self.value_of(TO_DESTINATION)?.parse().ok()
    }

    /// The name of the protocol that the rule matches.
    pub fn protocol_name(&self) -> Option<&str> {
        self.value_of("-p")
    }

    /// The destination port of `--dport`, if it is one port.
    pub fn port(&self) -> Option<u16> {
        self.value_of("--dport")?.parse().ok()
    }

    /// The destination ports of `--dports`, if none of them is a range.
    pub fn ports(&self) -> Option<Vec<u16>> {
        self.value_of("--dports")?.split(',').map(|port| port.parse().ok()).collect()
    }

    /// The destination that the rule matches, if it is a single address.
    pub fn destination_address(&self) -> Option<IpAddr> {
        single_address(self.network_of("-d")?)
    }

    /// The words that this rule has in addition to those of `other`; `None` if it lacks a word of `other`.
    pub fn words_beyond(&self, other: &Self) -> Option<Vec<String>> {
        let mut rest = self.0.clone();
        for word in &other.0 {
            rest.remove(rest.iter().rposition(|one| one == word)?);
        }
        Some(rest)
    }

    /// The source that the rule matches, if it is a single address.
    pub fn source_address(&self) -> Option<IpAddr> {
        single_address(self.source_network()?)
    }

    /// The source that the rule matches.
    pub fn source_network(&self) -> Option<IpNetwork> {
        self.network_of("-s")
    }

    /// The comment.
    pub fn comment(&self) -> Option<&str> {
        self.value_of("--comment")
    }

    /// The chain or target of `-j` or `-g`.
    pub fn target(&self) -> Option<&str> {
        self.value_of("-j").or_else(|| self.value_of("-g"))
    }

    /// A rule of words that iptables-save printed. It prints `::10.0.0.2` where Rust prints `::a00:2`; both delete the rule.
    pub(crate) fn read(mut words: Vec<String>) -> Self {
        for at in 1..words.len() {
            let normalized = match words[at - 1].as_str() {
                "-s" | "-d" => words[at].parse::<IpNetwork>().ok().map(|network| network.to_string()),
                TO_DESTINATION => words[at].parse::<SocketAddr>().ok().map(|address| address.to_string()),
                _ => None,
            };
            if let Some(word) = normalized {
                words[at] = word;
            }
        }
        Self(words)
    }

    /// The index of an option. The text of a comment is not an option.
    fn index_of(&self, option: &str) -> Option<usize> {
        let mut previous = "";
        for (index, word) in self.0.iter().enumerate() {
            if word == option && previous != "--comment" {
                return Some(index);
            }
            previous = word;
        }
        None
    }

    fn value_of(&self, option: &str) -> Option<&str> {
        self.0.get(self.index_of(option)? + 1).map(String::as_str)
    }

    /// The network behind an option that is not negated.
    fn network_of(&self, option: &str) -> Option<IpNetwork> {
        let index = self.index_of(option)?;
        if index > 0 && self.0[index - 1] == "!" {
            return None;
        }
        self.0.get(index + 1)?.parse().ok()
    }

    fn word(mut self, word: impl Into<String>) -> Self {
        self.0.push(word.into());
        self
    }

    fn all<const N: usize>(self, words: [&str; N]) -> Self {
        words.into_iter().fold(self, Self::word)
    }

    /// `-i`: match the interface by which the packet came in.
    #[must_use]
    #[doc(alias = "in-interface")]
    pub fn from(self, interface: &str) -> Self {
        self.word("-i").word(interface)
    }

    /// `-o`: match the interface by which the packet is sent.
    #[must_use]
    #[doc(alias = "out-interface")]
    pub fn to(self, interface: &str) -> Self {
        self.word("-o").word(interface)
    }

    /// `! -o`: match all other outgoing interfaces.
    #[must_use]
    pub fn not_to(self, interface: &str) -> Self {
        self.word("!").to(interface)
    }

    /// `-m conntrack --ctstate RELATED,ESTABLISHED`: match packets of known connections, and of connections related to those.
    #[must_use]
    #[doc(alias = "ctstate")]
    pub fn established(self) -> Self {
        self.all(["-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"])
    }

    /// The interface of `-i`.
    pub fn from_interface(&self) -> Option<&str> {
        self.value_of("-i")
    }

    /// The interface of `-o`, negated or not.
    pub fn to_interface(&self) -> Option<&str> {
        self.value_of("-o")
    }
}

/// The address of a network that is a single address.
fn single_address(network: IpNetwork) -> Option<IpAddr> {
    let length = if network.is_ipv4() { 32 } else { 128 };
    if network.prefix() == length { Some(network.ip()) } else { None }
}

fn masked(bits: u32) -> String {
    format!("{bits:#x}/{bits:#x}")
}

fn network_text(network: IpNetwork) -> String {
    format!("{}/{}", network.network(), network.prefix())
}

/// The rule as iptables-restore reads it.
impl fmt::Display for IptablesRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.0.iter().map(|word| quoted(word)).collect();
        f.write_str(&words.join(" "))
    }
}

/// One word of a line, in quotation marks if it has other than plain characters.
fn quoted(word: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./:,+=!".contains(&byte);
    if !word.is_empty() && word.bytes().all(is_plain) {
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
        let rule = IptablesRule::any().source("10.0.0.2".parse().unwrap()).not_destination(network("224.0.0.0/4"));
        let rule = rule.commented(r#"name: "n" \"#).jump("MASQUERADE");
        let expected = r#"-s 10.0.0.2/32 ! -d 224.0.0.0/4 -m comment --comment "name: \"n\" \\" -j MASQUERADE"#;
        assert_eq!(rule.to_string(), expected);
        assert_eq!(IptablesRule::any().destination(network("10.1.2.3/16")).to_string(), "-d 10.1.0.0/16");
        assert_eq!(IptablesRule::any().destination(network("::/0")), IptablesRule::any());
    }

    #[test]
    fn the_parts_of_a_rule_are_found_again() {
        let rule = IptablesRule::any().source("fd00::2".parse().unwrap()).commented("-j").jump("OWN-x");
        assert_eq!(rule.source_address(), Some("fd00::2".parse().unwrap()));
        assert_eq!(rule.comment(), Some("-j"));
        let words = |line: &str| IptablesRule::read(line.split(' ').map(str::to_owned).collect());
        assert_eq!(words("! -s 10.0.0.2/32").source_address(), None);
        assert_eq!(words("-s 10.0.0.0/24").source_address(), None);
        assert_eq!(words("-s 10.0.0.0/24").source_network(), Some(network("10.0.0.0/24")));
        assert_eq!(words("! -s 10.0.0.0/24").source_network(), None);
        assert_eq!(words("-p tcp -g OTHER").target(), Some("OTHER"));
        assert_eq!(rule.target(), Some("OWN-x"));
    }

    /// As iptables-save of 1.8.9 wrote them, of both halves.
    #[test]
    fn dnat_rules_are_written_and_read_as_by_iptables_save() {
        let read = |line: &str| IptablesRule::read(line.split(' ').map(str::to_owned).collect());
        let to = |text: &str| text.parse::<SocketAddr>().unwrap();
        let led = IptablesRule::any()
            .destination(network("127.0.0.2/32"))
            .destination_port("udp", 53)
            .dnat_to(to("10.1.0.2:5353"));
        let line = "-d 127.0.0.2/32 -p udp -m udp --dport 53 -j DNAT --to-destination 10.1.0.2:5353";
        assert_eq!((led.to_string().as_str(), &read(line)), (line, &led));
        assert_eq!(
            (led.protocol_name(), led.port(), led.dnat_target()),
            (Some("udp"), Some(53), Some(to("10.1.0.2:5353")))
        );
        assert_eq!(led.destination_address(), Some([127, 0, 0, 2].into()));
        let of_libc = read("-p tcp -m tcp --dport 80 -j DNAT --to-destination [::10.0.0.2]:80");
        assert_eq!(of_libc, IptablesRule::any().destination_port("tcp", 80).dnat_to(to("[::a00:2]:80")));
        let entry = IptablesRule::any().protocol("sctp").destination_ports(&[1, 2, 65535]).jump("OWN-x");
        assert_eq!(entry.to_string(), "-p sctp -m multiport --dports 1,2,65535 -j OWN-x");
        assert_eq!((entry.ports(), read("-m multiport --dports 1:3").ports()), (Some(vec![1, 2, 65535]), None));
        assert_eq!(
            IptablesRule::any().to_this_host().set_mark(1 << 31).to_string(),
            "-m addrtype --dst-type LOCAL -j MARK --set-xmark 0x80000000/0x80000000"
        );
        assert_eq!(IptablesRule::any().marked(0x20).to_string(), "-m mark --mark 0x20/0x20");
    }

    #[test]
    fn words_beyond_another_rule_are_returned() {
        let plain = IptablesRule::any().protocol("tcp").jump("OWN-x");
        let more = ["!", "-i", "lo"].map(str::to_owned);
        assert_eq!(
            IptablesRule::any().words(&more).protocol("tcp").jump("OWN-x").words_beyond(&plain),
            Some(more.to_vec())
        );
        assert_eq!(plain.words_beyond(&IptablesRule::any().protocol("udp")), None);
    }

    /// As iptables-save of 1.8.9 wrote them.
    #[test]
    fn addresses_are_equal_however_iptables_writes_them() {
        let read = |line: &str| IptablesRule::read(line.split(' ').map(str::to_owned).collect());
        for (theirs, own) in [("::10.0.0.2", "::a00:2"), ("::0.1.0.0", "::1:0"), ("fd00:0:1::", "fd00:0:1::")] {
            let address = own.parse().unwrap();
            let whole = network(&format!("{own}/128"));
            assert_eq!(
                read(&format!("-s {theirs}/128 -d {theirs}/128")),
                IptablesRule::any().source(address).destination(whole)
            );
            assert_eq!(read(&format!("! -d {theirs}/128")), IptablesRule::any().not_destination(whole));
        }
        for kept in ["-s 10.0.0.0/255.0.255.0", "-s fd00::1/ffff::ff", "-m comment --comment ::10.0.0.2/128", "-s"] {
            assert_eq!(read(kept).to_string(), kept);
        }
    }
}
