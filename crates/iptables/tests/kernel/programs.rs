//! The real programs of both variants of iptables, in namespaces of our own.

use std::time::Duration;

use cnikit_iptables::{
    Chains, Changes, Error, InstalledChains, IpVersion, IptablesRule, Programs, ReadScope, Ruleset, Table,
};
use cnikit_netns::{Netns, make};
use cnikit_nftables::Nftables;
use cnikit_process::{Deadline, Env, Program, run};

/// A new network namespace for one test.
struct Host(Netns);

impl Host {
    fn new() -> Self {
        Self(make::anonymous().unwrap())
    }

    fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        self.0.enter(|_| work()).unwrap()
    }

    /// Runs a shell line, which has to succeed.
    fn sh(&self, line: &str) {
        let program = Program::new("/bin/sh", Env::inherited(Vec::new())).args(vec!["-c".into(), line.into()]);
        let ended = self.enter(|| run(&program, Deadline::after(Duration::from_mins(1)))).unwrap();
        assert!(ended.how.is_success(), "{line}: {ended:?}");
    }
}

const NAT: &str = "nat";
const CHAIN: &str = "OWN-0123456789abcdef01234567";

fn part(text: &str) -> ReadScope<'_> {
    ReadScope { table: NAT, line_text: text, chain_text: text, shared_chains: &[] }
}

/// Every test runs with both variants.
const VARIANTS: [&str; 2] = ["nft", "legacy"];

fn rules() -> [IptablesRule; 2] {
    let from = || IptablesRule::any().source("10.0.0.2".parse().unwrap());
    let comment = r#"name: "n" id: "c\" if: "e'h""#;
    [
        from().destination("10.0.0.9/24".parse().unwrap()).commented(comment).jump("ACCEPT"),
        from().not_destination("224.0.0.0/4".parse().unwrap()).commented(comment).jump("MASQUERADE"),
    ]
}

/// The number of chains of these tests, and of the jumps to them from a built-in chain.
fn own(table: &Table) -> usize {
    let chains = table.chains().filter(|chain| chain.starts_with("OWN-")).count();
    assert_eq!(table.rules("POSTROUTING").count(), chains, "a jump each");
    chains
}

fn jump() -> IptablesRule {
    IptablesRule::any().source("10.0.0.2".parse().unwrap()).commented("name: \"n\" id: \"c\"").jump(CHAIN)
}

fn made() -> Changes {
    let mut changes = Changes::default();
    changes.new_chain(CHAIN);
    changes.prepend(CHAIN, &rules());
    changes.append("POSTROUTING", &jump());
    changes
}

/// The programs of one variant, whichever variant is the default of the machine.
fn programs(host: &Host, variant: &str) -> Programs {
    host.sh(&format!("iptables-{variant} -t nat -N {CHAIN}"));
    let mut found = host.enter(|| reaching(IpVersion::V4, Chains::Named(CHAIN))).unwrap();
    host.sh(&format!("iptables-{variant} -t nat -X {CHAIN}"));
    assert_eq!(found.len(), 1, "{variant}: {found:?}");
    found.remove(0).0
}

fn change(host: &Host, programs: &Programs, changes: &Changes) -> Result<(), Error> {
    let decide = |_: &Table| changes.clone();
    host.enter(|| Ruleset::open(programs.clone(), &part(CHAIN))?.change(decide))
}

fn read(host: &Host, programs: &Programs) -> Table {
    host.enter(|| Ruleset::open(programs.clone(), &part(CHAIN))).unwrap().table().clone()
}

/// The programs that read the installed chains here.
fn reaching(version: IpVersion, chains: Chains) -> Result<Vec<(Programs, InstalledChains)>, Error> {
    Programs::reaching(Nftables::if_any()?.as_ref(), version, NAT, chains)
}

#[test]
fn rules_come_back_as_they_were_written_and_go_again() {
    for variant in VARIANTS {
        let host = Host::new();
        let programs = programs(&host, variant);
        change(&host, &programs, &made()).unwrap();
        let table = read(&host, &programs);
        assert!(table.has_chain(CHAIN));
        assert_eq!(table.rules(CHAIN).cloned().collect::<Vec<_>>(), rules(), "{variant}");
        assert_eq!(table.jumps(CHAIN).collect::<Vec<_>>(), [("POSTROUTING", &jump())], "{variant}");
        let mut changes = Changes::default();
        changes.delete(CHAIN, &rules()[0]);
        change(&host, &programs, &changes).unwrap();
        assert_eq!(read(&host, &programs).rules(CHAIN).collect::<Vec<_>>(), [&rules()[1]], "{variant}");
        let mut changes = Changes::default();
        changes.delete("POSTROUTING", &jump());
        changes.delete_chain(CHAIN);
        change(&host, &programs, &changes).unwrap();
        assert_eq!(own(&read(&host, &programs)), 0, "{variant}");
    }
}

#[test]
fn changes_are_made_together_or_not_at_all() {
    for variant in VARIANTS {
        let host = Host::new();
        let programs = programs(&host, variant);
        let mut changes = made();
        changes.delete("POSTROUTING", &IptablesRule::any().jump("NOBODY"));
        let error = change(&host, &programs, &changes).unwrap_err();
        assert!(error.to_string().contains("-restore --noflush -w 5 --verbose: exit status "), "{variant}: {error}");
        assert_eq!(own(&read(&host, &programs)), 0, "{variant}");
    }
}

#[test]
fn a_table_that_changed_meanwhile_is_read_again() {
    for variant in VARIANTS {
        let host = Host::new();
        let programs = programs(&host, variant);
        let mut looks = 0;
        host.enter(|| {
            let ruleset = Ruleset::open(programs.clone(), &part(CHAIN)).unwrap();
            ruleset.change(|table: &Table| {
                looks += 1;
                if looks == 1 {
                    change(&host, &programs, &made()).unwrap();
                }
                if table.has_chain(CHAIN) { Changes::default() } else { made() }
            })
        })
        .unwrap();
        assert_eq!(looks, 2, "{variant}");
        assert_eq!(read(&host, &programs).jumps(CHAIN).count(), 1, "{variant}");
    }
}

#[test]
fn the_half_that_holds_a_chain_is_known_without_a_program() {
    let reaching = |host: &Host, version, chains| host.enter(|| self::reaching(version, chains)).unwrap();
    let (own, other) = (Chains::Named(CHAIN), Chains::Named("OWN-other"));
    let (such, none_such) =
        (Chains::Like("OWN-", |name| name.starts_with("OWN-")), Chains::Like("OWN-", |name| name == "OWN-other"));
    let host = Host::new();
    for version in IpVersion::ALL {
        assert_eq!(reaching(&host, version, own), []);
        assert_eq!(reaching(&host, version, such), []);
    }
    host.sh(&format!("ip6tables-nft -t nat -N {CHAIN}; ip6tables-nft -t mangle -N OWN-other"));
    assert_eq!(reaching(&host, IpVersion::V6, own).len(), 1);
    assert_eq!(reaching(&host, IpVersion::V6, other), []);
    assert_eq!(reaching(&host, IpVersion::V6, such).len(), 1);
    assert_eq!(reaching(&host, IpVersion::V6, none_such), []);
    assert_eq!(reaching(&host, IpVersion::V4, such), []);
    host.sh("ip6tables-legacy -t nat -L");
    assert_eq!(reaching(&host, IpVersion::V6, own).len(), 2);
    assert_eq!(reaching(&host, IpVersion::V6, other).len(), 1);
}

/// Of a table that belongs mostly to other programs only our chains are read. iptables-save would not print the table at all,
/// because it does not support an expression in the other chains.
#[test]
fn only_our_chains_are_read_beside_many_others() {
    let host = Host::new();
    let programs = programs(&host, "nft");
    let others = "i=0; while [ $i -lt 500 ]; do echo -A OTHERS -s 10.9.0.1 -j RETURN; i=$((i+1)); done";
    host.sh(&format!("(echo '*nat'; echo :OTHERS -; {others}; echo COMMIT) | iptables-nft-restore --noflush"));
    change(&host, &programs, &made()).unwrap();
    let whole = read(&host, &programs);
    host.sh("nft add rule ip nat OTHERS fib daddr type local accept");
    let table = read(&host, &programs);
    assert!(table.has_chain("OTHERS") && table.has_chain(CHAIN));
    assert_eq!(table.rules(CHAIN).collect::<Vec<_>>(), rules().each_ref());
    assert_eq!(table.numbered_rules("POSTROUTING").collect::<Vec<_>>(), [(1, &jump())]);
    assert_eq!(table.rules("OTHERS").count(), whole.rules("OTHERS").count());
    let mut changes = Changes::default();
    changes.delete("POSTROUTING", &jump());
    changes.delete_chain(CHAIN);
    change(&host, &programs, &changes).unwrap();
    assert_eq!(own(&read(&host, &programs)), 0);
    host.sh("nft flush chain ip nat OTHERS; nft add rule ip nat OTHERS fib daddr type local accept");
    change(&host, &programs, &made()).unwrap();
    assert_eq!(own(&read(&host, &programs)), 1, "however few rules the other chains have");
    host.sh("nft add rule ip nat POSTROUTING fib daddr type local accept");
    let whole = host.enter(|| Ruleset::open(programs.clone(), &part(CHAIN)).err());
    assert!(matches!(whole, Some(Error::Incompatible { table: NAT, .. })), "{whole:?}");
}

/// iptables-nft-save succeeds and leaves out what it could not read. Here the programs of the other variant leave it out.
#[test]
fn a_chain_that_iptables_save_does_not_show_is_an_error() {
    let host = Host::new();
    let blind = programs(&host, "legacy");
    host.sh(&format!("iptables-nft -t nat -N {CHAIN}"));
    let (_, traces) = host.enter(|| reaching(IpVersion::V4, Chains::Named(CHAIN))).unwrap().remove(0);
    let hidden = || match host.enter(|| Ruleset::open_whole(blind.clone(), traces.clone(), &part(CHAIN))) {
        Err(Error::Hidden { chain, .. }) => chain == CHAIN,
        read => read.is_err(),
    };
    assert!(hidden(), "it is not shown");
    host.sh(&format!("iptables-legacy -t nat -N {CHAIN}"));
    assert!(!hidden(), "it is shown, and has no rules");
    host.sh(&format!("iptables-nft -t nat -A {CHAIN} -j ACCEPT"));
    assert!(hidden(), "it is shown without its rules");
    host.sh(&format!(
        "iptables-nft -t nat -F {CHAIN}; iptables-nft -t nat -X {CHAIN}; iptables-legacy -t nat -X {CHAIN}"
    ));
    assert!(!hidden(), "it is gone");
}

#[test]
fn many_writers_at_once_lose_nothing() {
    for variant in VARIANTS {
        let host = Host::new();
        let programs = programs(&host, variant);
        let write = |n: u8| {
            let (chain, mut changes) = (format!("OWN-{n:024x}"), Changes::default());
            let from = IptablesRule::any().source([10, 0, 0, n].into());
            changes.new_chain(&chain);
            changes.append("POSTROUTING", &from.clone().jump(&chain));
            host.enter(|| Ruleset::open(programs.clone(), &part(&chain))?.change(|_| changes.clone())).unwrap();
            let (mut back, jump) = (Changes::default(), from.jump(&chain));
            back.delete("POSTROUTING", &jump);
            back.delete_chain(&chain);
            if n.is_multiple_of(2) {
                host.enter(|| Ruleset::open(programs.clone(), &part(&chain))?.change(|_| back.clone())).unwrap();
            }
        };
        std::thread::scope(|scope| (0..64).for_each(|n| drop(scope.spawn(move || write(n)))));
        let table = host.enter(|| Ruleset::open(programs.clone(), &part("OWN-"))).unwrap();
        assert_eq!(own(table.table()), 32, "{variant}");
    }
}
