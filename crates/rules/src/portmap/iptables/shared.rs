//! The chains that all containers share, and the jumps to them.

use cnikit_iptables::{Changes, IptablesRule, Table};

use super::super::mapping::{Mark, Masquerades, PortMap};

/// The chain of entries: rules that jump to the chain of a container, one or more per container.
pub(super) const ENTRIES: &str = "CNI-HOSTPORT-DNAT";
/// The chain that sets upstream's default mark.
pub(super) const SETMARK: &str = "CNI-HOSTPORT-SETMARK";
/// The chain that masquerades packets with a mark.
const MASQ: &str = "CNI-HOSTPORT-MASQ";
/// The bit that upstream's chain sets by default. Another bit is not set in that chain, since it would be set for all containers.
pub(super) const DEFAULT_BIT: u8 = 13;

/// The shared chains that the rules of a container need.
pub(super) struct SharedChains(Vec<Chain>);

struct Chain {
    name: &'static str,
    rules: Vec<IptablesRule>,
    /// Jumps from base chains. In `POSTROUTING` the jump must be the first rule, before rules that accept.
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

impl SharedChains {
    pub(super) fn of(portmap: &PortMap) -> SharedChains {
        let mut chains = Vec::new();
        if let Mark::Bit(bit) = &portmap.mark
            && is_jumped_to(portmap)
        {
            if *bit == DEFAULT_BIT {
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
        SharedChains(chains)
    }

    /// The changes after which each chain, rule and jump exists once.
    pub(super) fn missing(&self, table: &Table) -> Changes {
        let mut changes = Changes::default();
        self.faults(table).iter().for_each(|fault| fault.repair(&mut changes));
        changes
    }

    /// The differences that an ADD would repair, each a sentence.
    pub(super) fn differences(&self, table: &Table, place: &str) -> Vec<String> {
        self.faults(table).iter().map(|fault| fault.describe(place)).collect()
    }

    fn faults(&self, table: &Table) -> Vec<Fault<'_>> {
        self.0.iter().flat_map(|chain| chain.faults(table)).collect()
    }
}

impl Chain {
    fn faults(&self, table: &Table) -> Vec<Fault<'_>> {
        let name = self.name;
        let mut faults = Vec::new();
        if !table.has_chain(name) {
            faults.push(Fault::NoChain(name));
        }
        for rule in &self.rules {
            if !table.rules(name).any(|found| found == rule) {
                faults.push(Fault::NoRule(name, rule));
            }
        }
        for (from, jump) in &self.jumps {
            if let Some(fault) = jump_fault(table, from, jump) {
                faults.push(fault);
            }
        }
        faults
    }
}

/// The fault of a jump that does not exist once, or that must be the first rule and is not.
fn jump_fault<'a>(table: &Table, from: &'static str, jump: &'a IptablesRule) -> Option<Fault<'a>> {
    let found: Vec<usize> =
        table.numbered_rules(from).filter(|(_, rule)| *rule == jump).map(|(number, _)| number).collect();
    if let [number] = found[..]
        && (from != FIRST || number == 1)
    {
        return None;
    }
    Some(Fault::Jump { from, jump, times: found.len() })
}

/// A difference from the chains that a container needs.
enum Fault<'a> {
    NoChain(&'static str),
    NoRule(&'static str, &'a IptablesRule),
    /// A jump that exists this many times: not at all, more than once, or once behind rules that must come after it.
    Jump {
        from: &'static str,
        jump: &'a IptablesRule,
        times: usize,
    },
}

impl Fault<'_> {
    fn repair(&self, changes: &mut Changes) {
        match *self {
            Fault::NoChain(name) => changes.new_chain(name),
            Fault::NoRule(chain, rule) => changes.append(chain, rule),
            Fault::Jump { from, jump, times } => {
                (0..times).for_each(|_| changes.delete(from, jump));
                if from == FIRST { changes.prepend(from, [jump]) } else { changes.append(from, jump) }
            }
        }
    }

    fn describe(&self, place: &str) -> String {
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
    fn the_shared_chains_are_equal_to_upstreams() {
        let shared = SharedChains::of(&portmap());
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
    fn missing_and_duplicate_jumps_are_repaired_and_named() {
        let shared = SharedChains::of(&portmap());
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
    fn another_mark_bit_gets_its_own_rule_and_a_foreign_chain_none() {
        let other = SharedChains::of(&PortMap { mark: Mark::Bit(31), ..portmap() });
        let made = other.missing(&table(WHOLE)).to_string();
        assert_eq!(made, "-A CNI-HOSTPORT-MASQ -m mark --mark 0x80000000/0x80000000 -j MASQUERADE\n");
        let foreign = SharedChains::of(&PortMap { mark: Mark::Chain("KUBE-MARK-MASQ".into()), ..portmap() });
        let none = SharedChains::of(&PortMap { masquerades: Masquerades::Nothing, ..portmap() });
        for shared in [foreign, none] {
            let made = shared.missing(&table("")).to_string();
            assert!(
                made.contains("-N CNI-HOSTPORT-DNAT") && !made.contains("MASQ") && !made.contains("MARK"),
                "{made}"
            );
        }
    }
}
