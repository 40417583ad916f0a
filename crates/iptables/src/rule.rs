//! A rule in the words of iptables(8).

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnetwork::IpNetwork;

/// Before where a packet goes instead.
const LEADS_TO: &str = "--to-destination";

/// A rule: the words that iptables-save writes behind `-A CHAIN`, in its order, which is that of the functions here.
///
/// Rules are equal if their words are. One that was read may hold words that nothing here writes; its addresses are
/// written as they are here, whatever iptables-save made of them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct IptablesRule(Vec<String>);

impl IptablesRule {
    /// A rule that every packet matches and that does nothing yet.
    pub fn any() -> Self {
        Self::default()
    }

    /// The packet comes from this address.
    #[must_use]
    pub fn source(self, address: IpAddr) -> Self {
        self.word("-s").word(written(address.into()))
    }

    /// The packet comes from this network. The host part of the address does not count; all addresses are no condition.
    #[must_use]
    pub fn source_in(self, network: IpNetwork) -> Self {
        if network.prefix() == 0 { self } else { self.word("-s").word(written(network)) }
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

    /// It is of this protocol.
    #[must_use]
    pub fn protocol(self, name: &str) -> Self {
        self.word("-p").word(name)
    }

    /// It goes to this port of a protocol that has ports.
    #[must_use]
    pub fn destination_port(self, protocol: &str, port: u16) -> Self {
        self.protocol(protocol).word("-m").word(protocol).word("--dport").word(port.to_string())
    }

    /// It goes to one of these ports: at most 15, behind [`IptablesRule::protocol`].
    #[must_use]
    #[doc(alias = "multiport")]
    pub fn destination_ports(self, ports: &[u16]) -> Self {
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        ["-m", "multiport", "--dports", &ports.join(",")].into_iter().fold(self, Self::word)
    }

    /// It goes to an address of this host.
    #[must_use]
    #[doc(alias = "addrtype")]
    pub fn to_this_host(self) -> Self {
        ["-m", "addrtype", "--dst-type", "LOCAL"].into_iter().fold(self, Self::word)
    }

    /// It bears all of these bits in its mark.
    #[must_use]
    pub fn marked(self, bits: u32) -> Self {
        ["-m", "mark", "--mark", &masked(bits)].into_iter().fold(self, Self::word)
    }

    /// These words, as they are: matches, or what iptables takes for some.
    #[must_use]
    pub fn words(self, words: &[String]) -> Self {
        words.iter().fold(self, Self::word)
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

    /// It bears these bits in its mark from then on, and goes on.
    #[must_use]
    pub fn set_mark(self, bits: u32) -> Self {
        ["-j", "MARK", "--set-xmark", &masked(bits)].into_iter().fold(self, Self::word)
    }

    /// It goes there instead.
    #[must_use]
    #[doc(alias = "DNAT")]
    pub fn lead_to(self, address: SocketAddr) -> Self {
        ["-j", "DNAT", LEADS_TO, &address.to_string()].into_iter().fold(self, Self::word)
    }

    /// Where it leads to, if it is to one address and port.
    pub fn leads_to(&self) -> Option<SocketAddr> {
        self.behind(LEADS_TO)?.parse().ok()
    }

    /// The name of its protocol.
    pub fn protocol_name(&self) -> Option<&str> {
        self.behind("-p")
    }

    /// The one port that it is for.
    pub fn port(&self) -> Option<u16> {
        self.behind("--dport")?.parse().ok()
    }

    /// The ports that it is for, if it names them one by one.
    pub fn ports(&self) -> Option<Vec<u16>> {
        self.behind("--dports")?.split(',').map(|port| port.parse().ok()).collect()
    }

    /// The one address that a packet has to go to.
    pub fn destination_address(&self) -> Option<IpAddr> {
        self.network_behind("-d").filter(is_one_address).map(|network| network.ip())
    }

    /// The words of the rule that this one does not have, if it has no other words than the rule.
    pub fn words_beyond(&self, other: &Self) -> Option<Vec<String>> {
        let mut rest = self.0.clone();
        for word in &other.0 {
            rest.remove(rest.iter().rposition(|one| one == word)?);
        }
        Some(rest)
    }

    /// The one address that a packet has to come from.
    pub fn source_address(&self) -> Option<IpAddr> {
        self.source_network().filter(is_one_address).map(|network| network.ip())
    }

    /// The addresses that a packet has to come from one of: a network, or a single one.
    pub fn source_network(&self) -> Option<IpNetwork> {
        self.network_behind("-s")
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
            let as_here = match words[place - 1].as_str() {
                "-s" | "-d" => words[place].parse::<IpNetwork>().ok().map(|network| network.to_string()),
                LEADS_TO => words[place].parse::<SocketAddr>().ok().map(|address| address.to_string()),
                _ => None,
            };
            words[place] = as_here.unwrap_or_else(|| std::mem::take(&mut words[place]));
        }
        Self(words)
    }

    /// Where an option stands; what a comment says is none.
    fn place_of(&self, option: &str) -> Option<usize> {
        let told = |place: usize| place.checked_sub(1).is_some_and(|before| self.0[before] == "--comment");
        (0..self.0.len()).find(|place| self.0[*place] == option && !told(*place))
    }

    fn behind(&self, option: &str) -> Option<&str> {
        self.0.get(self.place_of(option)? + 1).map(String::as_str)
    }

    fn network_behind(&self, option: &str) -> Option<IpNetwork> {
        let place = self.place_of(option)?;
        let negated = place.checked_sub(1).is_some_and(|before| self.0[before] == "!");
        self.0.get(place + 1).filter(|_| !negated)?.parse().ok()
    }

    fn word(mut self, word: impl Into<String>) -> Self {
        self.0.push(word.into());
        self
    }

    /// The packet came in by this interface.
    #[must_use]
    #[doc(alias = "in-interface")]
    pub fn from(self, interface: &str) -> Self {
        self.word("-i").word(interface)
    }

    /// It goes out by this interface.
    #[must_use]
    #[doc(alias = "out-interface")]
    pub fn to(self, interface: &str) -> Self {
        self.word("-o").word(interface)
    }

    /// It goes out by another interface.
    #[must_use]
    pub fn not_to(self, interface: &str) -> Self {
        self.word("!").to(interface)
    }

    /// It belongs to a connection that is there already, or to one that such a one brought about.
    #[must_use]
    #[doc(alias = "ctstate")]
    pub fn established(self) -> Self {
        ["-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED"].into_iter().fold(self, Self::word)
    }

    /// The interface that a packet has to come in by.
    pub fn from_interface(&self) -> Option<&str> {
        self.behind("-i")
    }

    /// The interface that it has to go out by, or by any but which.
    pub fn to_interface(&self) -> Option<&str> {
        self.behind("-o")
    }
}

fn is_one_address(network: &IpNetwork) -> bool {
    network.prefix() == if network.is_ipv4() { 32 } else { 128 }
}

fn masked(bits: u32) -> String {
    format!("{bits:#x}/{bits:#x}")
}

fn written(network: IpNetwork) -> String {
    format!("{}/{}", network.network(), network.prefix())
}

/// As iptables-restore takes it.
impl fmt::Display for IptablesRule {
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
    fn what_leads_to_a_port_is_written_and_read_as_iptables_save_writes_it() {
        let read = |line: &str| IptablesRule::read(line.split(' ').map(str::to_owned).collect());
        let to = |text: &str| text.parse::<SocketAddr>().unwrap();
        let led = IptablesRule::any()
            .destination(network("127.0.0.2/32"))
            .destination_port("udp", 53)
            .lead_to(to("10.1.0.2:5353"));
        let line = "-d 127.0.0.2/32 -p udp -m udp --dport 53 -j DNAT --to-destination 10.1.0.2:5353";
        assert_eq!((led.to_string().as_str(), &read(line)), (line, &led));
        assert_eq!(
            (led.protocol_name(), led.port(), led.leads_to()),
            (Some("udp"), Some(53), Some(to("10.1.0.2:5353")))
        );
        assert_eq!(led.destination_address(), Some([127, 0, 0, 2].into()));
        let of_libc = read("-p tcp -m tcp --dport 80 -j DNAT --to-destination [::10.0.0.2]:80");
        assert_eq!(of_libc, IptablesRule::any().destination_port("tcp", 80).lead_to(to("[::a00:2]:80")));
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
    fn what_one_rule_says_beyond_another_is_told() {
        let (plain, more) = (IptablesRule::any().protocol("tcp").jump("OWN-x"), ["!", "-i", "lo"].map(str::to_owned));
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
            let (address, whole) = (own.parse().unwrap(), network(&format!("{own}/128")));
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
