//! The rules of a container's chain, by owner.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cnikit_iptables::{IptablesRule, Table};
use cnikit_resources::alias::mark;

/// The most ports of one match (`XT_MULTI_PORTS`).
const PORTS: usize = 15;

/// Consecutive rules of a chain that belong to one owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The comment of the two rules around the piece; `None` for rules of upstream.
    pub(super) owner: Option<String>,
    /// Its rules, without those two.
    pub(super) rules: Vec<IptablesRule>,
}

/// The ports of an entry: a protocol, and up to 15 ports.
pub(super) type Ports = (String, Vec<u16>);

impl Piece {
    /// The pieces of a chain, in their order.
    pub(super) fn all(table: &Table, chain: &str) -> Vec<Piece> {
        Piece::of(table.rules(chain))
    }

    /// The pieces of a list of rules, in their order.
    pub(super) fn of<'a>(rules: impl IntoIterator<Item = &'a IptablesRule>) -> Vec<Piece> {
        let mut pieces: Vec<Piece> = Vec::new();
        // The owner of the block that has begun and not ended.
        let mut open: Option<String> = None;
        for rule in rules {
            match marker(rule) {
                Some(owner) if open.as_deref() == Some(owner) => open = None,
                Some(owner) => {
                    open = Some(owner.to_owned());
                    pieces.push(Piece { owner: open.clone(), rules: Vec::new() });
                }
                None => match pieces.last_mut() {
                    Some(last) if last.owner == open => last.rules.push(rule.clone()),
                    _ => pieces.push(Piece { owner: None, rules: vec![rule.clone()] }),
                },
            }
        }
        pieces
    }

    /// The rules as they are in the chain, with the two rules around them.
    pub(super) fn in_chain(&self) -> Vec<IptablesRule> {
        let Some(owner) = &self.owner else { return self.rules.clone() };
        let marker = IptablesRule::any().commented(owner);
        let mut rules = vec![marker.clone()];
        rules.extend(self.rules.iter().cloned());
        rules.push(marker);
        rules
    }

    /// The rules in groups by the address that they lead to. Rules before a DNAT rule belong to its group.
    pub(super) fn by_address(&self) -> Vec<AddressGroup> {
        let mut groups: Vec<AddressGroup> = Vec::new();
        let mut pending = Vec::new();
        for rule in &self.rules {
            pending.push(rule.clone());
            if let Some(to) = rule.dnat_target() {
                let rules = std::mem::take(&mut pending);
                match groups.iter_mut().find(|group| group.address == Some(to.ip())) {
                    Some(group) => group.rules.extend(rules),
                    None => groups.push(AddressGroup { address: Some(to.ip()), rules }),
                }
            }
        }
        if !pending.is_empty() {
            groups.push(AddressGroup { address: None, rules: pending });
        }
        groups
    }
}

/// Rules of one piece that lead to one address.
pub(super) struct AddressGroup {
    /// `None` if no DNAT rule follows the rules.
    pub(super) address: Option<IpAddr>,
    pub(super) rules: Vec<IptablesRule>,
}

/// The owner, if the rule has only a comment with a mark.
fn marker(rule: &IptablesRule) -> Option<&str> {
    let comment = rule.comment()?;
    if mark(comment).is_none() || *rule != IptablesRule::any().commented(comment) {
        return None;
    }
    Some(comment)
}

/// The ports of the entries to these rules, as upstream writes them: by protocol, in the order of the rules.
pub(super) fn entries(rules: &[IptablesRule]) -> Vec<Ports> {
    let mut mapped = Vec::new();
    for rule in rules {
        let is_of_mapping = rule.dnat_target().is_some() || rule.target().is_none();
        if is_of_mapping
            && let Some(protocol) = rule.protocol_name()
            && let Some(port) = rule.port()
        {
            mapped.push((protocol.to_owned(), port));
        }
    }
    ports(mapped)
}

/// Ports by protocol, in chunks of at most 15.
pub(super) fn ports(mapped: Vec<(String, u16)>) -> Vec<Ports> {
    let mut by_protocol = BTreeMap::<String, Vec<u16>>::new();
    for (protocol, port) in mapped {
        by_protocol.entry(protocol).or_default().push(port);
    }
    let mut entries = Vec::new();
    for (protocol, ports) in by_protocol {
        for chunk in ports.chunks(PORTS) {
            entries.push((protocol.clone(), chunk.to_vec()));
        }
    }
    entries
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(of: &str) -> String {
        format!("cnikit:{}:{} if: {of}", "0".repeat(16), "1".repeat(32))
    }

    fn table(lines: &[String]) -> Table {
        let said: Vec<String> = lines.iter().map(|line| format!("-A C {line}")).collect();
        Table::read(&format!("*nat\n:C - [0:0]\n{}\nCOMMIT\n", said.join("\n")), "nat", "").unwrap()
    }

    fn marker_line(of: &str) -> String {
        format!("-m comment --comment \"{}\"", owner(of))
    }

    #[test]
    fn a_marker_has_a_comment_with_a_mark_and_nothing_else() {
        for (line, expected) in [
            (marker_line("eth0"), true),
            (format!("-p tcp {}", marker_line("eth0")), false),
            ("-m comment --comment other".to_owned(), false),
        ] {
            let table = table(std::slice::from_ref(&line));
            let rule = table.rules("C").next().unwrap();
            assert_eq!(marker(rule).is_some(), expected, "{line}");
        }
    }

    #[test]
    fn a_chain_consists_of_blocks_and_upstreams_rules() {
        let dnat = |port: u16, to: &str| format!("-p tcp -m tcp --dport {port} -j DNAT --to-destination {to}:80");
        let lines = [
            dnat(1, "10.0.0.1"),
            marker_line("eth1"),
            dnat(2, "10.0.0.2"),
            marker_line("eth1"),
            dnat(3, "10.0.0.1"),
            marker_line("eth2"),
            dnat(4, "10.0.0.4"),
        ];
        let table = table(&lines);
        let pieces = Piece::all(&table, "C");
        let seen = |piece: &Piece| {
            let ports: Vec<u16> = piece.rules.iter().filter_map(IptablesRule::port).collect();
            (piece.owner.clone(), ports)
        };
        let wanted = [(None, vec![1]), (Some(owner("eth1")), vec![2]), (None, vec![3]), (Some(owner("eth2")), vec![4])];
        assert_eq!(pieces.iter().map(seen).collect::<Vec<_>>(), wanted);
        let again: Vec<IptablesRule> = pieces[..3].iter().flat_map(Piece::in_chain).collect();
        assert_eq!(again, table.rules("C").take(5).cloned().collect::<Vec<_>>());
    }

    #[test]
    fn rules_without_marks_are_grouped_by_their_dnat_address() {
        let lines = [
            "-s 10.0.0.0/24 -p tcp -m tcp --dport 1 -j CNI-HOSTPORT-SETMARK",
            "-p tcp -m tcp --dport 1 -j DNAT --to-destination 10.0.0.1:80",
            "-p tcp -m tcp --dport 2 -j DNAT --to-destination 10.0.0.2:80",
            "-s 10.0.0.0/24 -p tcp -m tcp --dport 3 -j CNI-HOSTPORT-SETMARK",
        ];
        let pieces = Piece::all(&table(&lines.map(str::to_owned)), "C");
        let groups: Vec<_> =
            pieces[0].by_address().into_iter().map(|group| (group.address, group.rules.len())).collect();
        let [one, two] = [1, 2].map(|last| Some([10, 0, 0, last].into()));
        assert_eq!(groups, [(one, 2), (two, 1), (None, 1)]);
    }

    #[test]
    fn entries_are_upstreams_with_fifteen_ports_each() {
        let rules: Vec<IptablesRule> = (1..=31).map(|port| IptablesRule::any().destination_port("udp", port)).collect();
        let mut with_tcp = rules.clone();
        with_tcp.insert(3, IptablesRule::any().destination_port("tcp", 7).jump("CNI-HOSTPORT-SETMARK"));
        with_tcp.insert(4, IptablesRule::any().destination_port("tcp", 7).dnat_to("10.0.0.1:80".parse().unwrap()));
        let sizes: Vec<_> = entries(&with_tcp).into_iter().map(|(name, ports)| (name, ports.len())).collect();
        let wanted = [("tcp", 1), ("udp", 15), ("udp", 15), ("udp", 1)].map(|(name, count)| (name.to_owned(), count));
        assert_eq!(sizes, wanted);
    }
}
