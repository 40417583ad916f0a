//! What stands in a container's chain, piece by piece.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cnikit_iptables::{IptablesRule, Table};
use cnikit_resources::alias::mark;

/// What one match of iptables takes at most (`XT_MULTI_PORTS`).
const PORTS: usize = 15;

/// A piece of a chain that is one owner's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// The comment of the two rules that it stands between; without, it is the reference's.
    pub(super) owner: Option<String>,
    /// Its rules, without those two.
    pub(super) rules: Vec<IptablesRule>,
}

/// An entry: a protocol, and up to 15 ports of it.
pub(super) type Ports = (String, Vec<u16>);

impl Piece {
    /// Those of a chain, in their order.
    pub(super) fn all(table: &Table, chain: &str) -> Vec<Piece> {
        Piece::of(table.rules(chain))
    }

    /// Those that rules are, in their order.
    pub(super) fn of<'a>(rules: impl IntoIterator<Item = &'a IptablesRule>) -> Vec<Piece> {
        let (mut pieces, mut open) = (Vec::<Piece>::new(), None::<String>);
        for rule in rules {
            let found = marker(rule);
            match found {
                Some(owner) if open.as_deref() == Some(owner) => open = None,
                Some(owner) => {
                    open = Some(owner.to_owned());
                    pieces.push(Piece { owner: open.clone(), rules: Vec::new() });
                }
                None => match pieces.last_mut().filter(|last| last.owner == open) {
                    Some(last) => last.rules.push(rule.clone()),
                    None => pieces.push(Piece { owner: None, rules: vec![rule.clone()] }),
                },
            }
        }
        pieces
    }

    /// As it stands in the chain.
    pub(super) fn laid_out(&self) -> Vec<IptablesRule> {
        let edge = || self.owner.iter().map(|owner| IptablesRule::any().commented(owner));
        edge().chain(self.rules.iter().cloned()).chain(edge()).collect()
    }

    /// The same, taken apart by where it leads: what stands before a rule that leads somewhere belongs to it.
    pub(super) fn by_address(&self) -> Vec<(Option<IpAddr>, Vec<IptablesRule>)> {
        let mut groups = Vec::<(Option<IpAddr>, Vec<IptablesRule>)>::new();
        let mut pending = Vec::new();
        for rule in &self.rules {
            pending.push(rule.clone());
            if let Some(to) = rule.dnat_target() {
                let rules = std::mem::take(&mut pending);
                match groups.iter_mut().find(|(address, _)| *address == Some(to.ip())) {
                    Some((_, group)) => group.extend(rules),
                    None => groups.push((Some(to.ip()), rules)),
                }
            }
        }
        if !pending.is_empty() {
            groups.push((None, pending));
        }
        groups
    }
}

/// The mark of an owner, if it is a rule that does nothing but to bear one.
fn marker(rule: &IptablesRule) -> Option<&str> {
    let comment = rule.comment().filter(|comment| mark(comment).is_some())?;
    (*rule == IptablesRule::any().commented(comment)).then_some(comment)
}

/// The entries that lead to these rules: as the reference has them, by protocol, in the order of the rules.
pub(super) fn entries(rules: &[IptablesRule]) -> Vec<Ports> {
    let mapped = rules.iter().filter(|rule| rule.dnat_target().is_some() || rule.target().is_none());
    ports(mapped.filter_map(|rule| Some((rule.protocol_name()?.to_owned(), rule.port()?))))
}

/// Ports by protocol, so many at a time.
pub(super) fn ports(mapped: impl Iterator<Item = (String, u16)>) -> Vec<Ports> {
    let mut by_protocol = BTreeMap::<String, Vec<u16>>::new();
    mapped.for_each(|(protocol, port)| by_protocol.entry(protocol).or_default().push(port));
    let chunks = |(protocol, ports): (String, Vec<u16>)| {
        ports.chunks(PORTS).map(|some| (protocol.clone(), some.to_vec())).collect::<Vec<_>>()
    };
    by_protocol.into_iter().flat_map(chunks).collect()
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
    fn a_chain_is_blocks_and_what_is_the_references() {
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
        let again: Vec<IptablesRule> = pieces[..3].iter().flat_map(Piece::laid_out).collect();
        assert_eq!(again, table.rules("C").take(5).cloned().collect::<Vec<_>>());
    }

    #[test]
    fn rules_without_marks_are_told_apart_by_where_they_lead() {
        let lines = [
            "-s 10.0.0.0/24 -p tcp -m tcp --dport 1 -j CNI-HOSTPORT-SETMARK",
            "-p tcp -m tcp --dport 1 -j DNAT --to-destination 10.0.0.1:80",
            "-p tcp -m tcp --dport 2 -j DNAT --to-destination 10.0.0.2:80",
            "-s 10.0.0.0/24 -p tcp -m tcp --dport 3 -j CNI-HOSTPORT-SETMARK",
        ];
        let pieces = Piece::all(&table(&lines.map(str::to_owned)), "C");
        let groups: Vec<_> =
            pieces[0].by_address().into_iter().map(|(address, rules)| (address, rules.len())).collect();
        let [one, two] = [1, 2].map(|last| Some([10, 0, 0, last].into()));
        assert_eq!(groups, [(one, 2), (two, 1), (None, 1)]);
    }

    #[test]
    fn entries_are_those_of_the_reference_fifteen_ports_at_a_time() {
        let rules: Vec<IptablesRule> = (1..=31).map(|port| IptablesRule::any().destination_port("udp", port)).collect();
        let mut with_tcp = rules.clone();
        with_tcp.insert(3, IptablesRule::any().destination_port("tcp", 7).jump("CNI-HOSTPORT-SETMARK"));
        with_tcp.insert(4, IptablesRule::any().destination_port("tcp", 7).dnat_to("10.0.0.1:80".parse().unwrap()));
        let sizes: Vec<_> = entries(&with_tcp).into_iter().map(|(name, ports)| (name, ports.len())).collect();
        let wanted = [("tcp", 1), ("udp", 15), ("udp", 15), ("udp", 1)].map(|(name, count)| (name.to_owned(), count));
        assert_eq!(sizes, wanted);
    }
}
