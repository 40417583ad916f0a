//! The chains that all containers share, and how packets come there.

use cnikit_iptables::{Changes, IptablesRule, Table};

use super::super::{Mark, Masquerades, PortMap};

/// The chain of entries, one or more a container.
pub(super) const ENTRIES: &str = "CNI-HOSTPORT-DNAT";
/// The chain that sets the mark of the reference's choice.
pub(super) const SETMARK: &str = "CNI-HOSTPORT-SETMARK";
/// The chain that masquerades what bears a mark.
const MASQ: &str = "CNI-HOSTPORT-MASQ";
/// The bit that the reference's chain sets where nobody says another one: no container of ours has any other set there,
/// for it would be set for all.
pub(super) const USUAL_BIT: u8 = 13;

/// What a container needs of them.
pub(super) struct Shared(Vec<Chain>);

struct Chain {
    name: &'static str,
    rules: Vec<IptablesRule>,
    /// From chains that the kernel calls; of `POSTROUTING` from its first place, before whatever accepts there.
    jumps: Vec<(&'static str, IptablesRule)>,
}

const FIRST: &str = "POSTROUTING";

/// Whether rules of a container jump to a chain that marks.
pub(super) fn is_jumped_to(portmap: &PortMap) -> bool {
    portmap.masquerades != Masquerades::Nothing && !portmap.mappings.is_empty()
}

/// The mark as a number.
pub(super) fn bits(bit: u8) -> u32 {
    1u32.checked_shl(bit.into()).unwrap_or_default()
}

impl Shared {
    pub(super) fn of(portmap: &PortMap) -> Shared {
        let mut chains = Vec::new();
        if let (Mark::Bit(bit), true) = (&portmap.mark, is_jumped_to(portmap)) {
            if *bit == USUAL_BIT {
                let rule = IptablesRule::any().commented("CNI portfwd masquerade mark").set_mark(bits(*bit));
                chains.push(Chain { name: SETMARK, rules: vec![rule], jumps: Vec::new() });
            }
            let jump = IptablesRule::any().commented("CNI portfwd requiring masquerade").jump(MASQ);
            let rule = IptablesRule::any().marked(bits(*bit)).jump("MASQUERADE");
            chains.push(Chain { name: MASQ, rules: vec![rule], jumps: vec![(FIRST, jump)] });
        }
        if !portmap.mappings.is_empty() {
            let jump = IptablesRule::any().to_this_host().jump(ENTRIES);
            let jumps = ["PREROUTING", "OUTPUT"].map(|place| (place, jump.clone())).to_vec();
            chains.push(Chain { name: ENTRIES, rules: Vec::new(), jumps });
        }
        Shared(chains)
    }

    /// What has to be made or put right, so that each thing is there once.
    pub(super) fn missing(&self, table: &Table) -> Changes {
        let mut changes = Changes::default();
        self.faults(table).iter().for_each(|fault| fault.mend(&mut changes));
        changes
    }

    /// What an ADD would make or put right, each a sentence.
    pub(super) fn differences(&self, table: &Table, place: &str) -> Vec<String> {
        self.faults(table).iter().map(|fault| fault.said(place)).collect()
    }

    fn faults(&self, table: &Table) -> Vec<Fault<'_>> {
        self.0.iter().flat_map(|chain| chain.faults(table)).collect()
    }
}

impl Chain {
    fn faults(&self, table: &Table) -> Vec<Fault<'_>> {
        let name = self.name;
        let absent = (!table.has_chain(name)).then_some(Fault::NoChain(name));
        let missing = self.rules.iter().filter(|rule| !table.rules(name).any(|found| found == *rule));
        let missing = missing.map(|rule| Fault::NoRule(name, rule));
        let jumps = self.jumps.iter().filter_map(|(from, jump)| misplaced(table, from, jump));
        absent.into_iter().chain(missing).chain(jumps).collect()
    }
}

/// A jump is there once, and where it has to be first, it is.
fn misplaced<'a>(table: &Table, from: &'static str, jump: &'a IptablesRule) -> Option<Fault<'a>> {
    let found: Vec<usize> =
        table.numbered_rules(from).filter(|(_, rule)| *rule == jump).map(|(place, _)| place).collect();
    let right = matches!(found[..], [at] if from != FIRST || at == 1);
    (!right).then_some(Fault::Jump { from, jump, times: found.len() })
}

/// Something that is not as a container needs it.
enum Fault<'a> {
    NoChain(&'static str),
    NoRule(&'static str, &'a IptablesRule),
    /// It is there so often: not at all, too often, or once behind what has to come after it.
    Jump {
        from: &'static str,
        jump: &'a IptablesRule,
        times: usize,
    },
}

impl Fault<'_> {
    fn mend(&self, changes: &mut Changes) {
        match *self {
            Fault::NoChain(name) => changes.new_chain(name),
            Fault::NoRule(chain, rule) => changes.append(chain, rule),
            Fault::Jump { from, jump, times } => {
                (0..times).for_each(|_| changes.delete(from, jump));
                if from == FIRST { changes.prepend(from, [jump]) } else { changes.append(from, jump) }
            }
        }
    }

    fn said(&self, place: &str) -> String {
        match *self {
            Fault::NoChain(name) => format!("chain {name} of {place} is missing"),
            Fault::NoRule(chain, rule) | Fault::Jump { from: chain, jump: rule, times: 0 } => {
                format!("rule `{rule}` is missing from chain {chain} of {place}")
            }
            Fault::Jump { from, jump, times: 1 } => {
                format!("rule `{jump}` is not the first of chain {from} of {place}")
            }
            Fault::Jump { from, jump, times } => format!("rule `{jump}` is {times} times in chain {from} of {place}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::share::tests::portmap;
    use super::*;

    fn table(lines: &str) -> Table {
        Table::read(&format!("*nat\n{lines}COMMIT\n"), "nat", "CNI-").unwrap()
    }

    const WHOLE: &str = r#":CNI-HOSTPORT-DNAT - [0:0]
:CNI-HOSTPORT-MASQ - [0:0]
:CNI-HOSTPORT-SETMARK - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j CNI-HOSTPORT-MASQ
-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE
-A CNI-HOSTPORT-SETMARK -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark 0x2000/0x2000
"#;

    #[test]
    fn the_shared_chains_are_the_references_to_the_letter() {
        let shared = Shared::of(&portmap());
        assert!(shared.missing(&table(WHOLE)).is_empty());
        assert_eq!(shared.differences(&table(WHOLE), "here"), [""; 0]);
        let made = shared.missing(&table("")).to_string();
        let chains = ["DNAT", "MASQ", "SETMARK"].map(|name| format!("-N CNI-HOSTPORT-{name}"));
        let rules =
            WHOLE.lines().filter(|line| line.starts_with("-A")).map(|line| match line.strip_prefix("-A POSTROUTING") {
                Some(rest) => format!("-I POSTROUTING 1{rest}"),
                None => line.to_owned(),
            });
        let mut wanted: Vec<String> = chains.into_iter().chain(rules).collect();
        let mut found: Vec<String> = made.lines().map(str::to_owned).collect();
        wanted.sort();
        found.sort();
        assert_eq!(found, wanted);
    }

    #[test]
    fn each_jump_is_put_right_and_there_once_and_what_would_be_is_named() {
        let shared = Shared::of(&portmap());
        let mended = |said: &str| shared.missing(&table(said)).to_string();
        let named = |said: &str| shared.differences(&table(said), "here").join("; ");
        let prerouting = "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT\n";
        let none = WHOLE.replace(prerouting, "");
        assert_eq!(mended(&none), prerouting);
        assert!(named(&none).ends_with("is missing from chain PREROUTING of here"), "{}", named(&none));
        let twice = WHOLE.replace(prerouting, &prerouting.repeat(2));
        assert_eq!(mended(&twice), format!("{}{prerouting}", prerouting.replace("-A", "-D").repeat(2)));
        assert!(named(&twice).ends_with("is 2 times in chain PREROUTING of here"), "{}", named(&twice));
        let behind = WHOLE.replace("-A POSTROUTING", "-A POSTROUTING -j KUBE-POSTROUTING\n-A POSTROUTING");
        assert!(named(&behind).ends_with("is not the first of chain POSTROUTING of here"), "{}", named(&behind));
        let masq = "-m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ\n";
        assert_eq!(mended(&behind), format!("-D POSTROUTING {masq}-I POSTROUTING 1 {masq}"));
    }

    #[test]
    fn another_bit_is_no_matter_of_the_shared_mark_and_a_foreign_chain_of_none() {
        let other = Shared::of(&PortMap { mark: Mark::Bit(31), ..portmap() });
        let made = other.missing(&table(WHOLE)).to_string();
        assert_eq!(made, "-A CNI-HOSTPORT-MASQ -m mark --mark 0x80000000/0x80000000 -j MASQUERADE\n");
        let foreign = Shared::of(&PortMap { mark: Mark::Chain("KUBE-MARK-MASQ".into()), ..portmap() });
        let none = Shared::of(&PortMap { masquerades: Masquerades::Nothing, ..portmap() });
        for shared in [foreign, none] {
            let made = shared.missing(&table("")).to_string();
            assert!(
                made.contains("-N CNI-HOSTPORT-DNAT") && !made.contains("MASQ") && !made.contains("MARK"),
                "{made}"
            );
        }
    }
}
