//! MAC spoof check: drop frames that a container sends with another source MAC than its own.

use std::fmt;

use cnikit_nftables::{HookPoint, Mac, Match, Rule, TableFamily, Verdict};
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource};
use cnikit_resources::veth;
use cnikit_skel::{AttachmentId, Journal, Result};

use crate::port_rules::{Content, GuardedPort, PortRules};

/// Accepts frames from the port of a bridge only with the container's MAC. It is in the plan before the veth pair, whose names and
/// MACs are known in advance: at no time can the container send with another MAC.
///
/// Table, chains, rules and comments are those of the upstream plugins, so that a DEL of either removes the rules of the other. The
/// comment of a rule has container and interface; the owner in its user data has the network too, so two networks never share a
/// rule.
#[derive(Clone, Debug)]
#[doc(alias = "macspoofchk")]
pub struct SpoofCheck {
    /// The container's MAC; absent: the MAC that is derived from the tag, as for the veth pair.
    pub mac: Option<Mac>,
}

/// DEL and GC find rules by their owner, and those of upstream by their comment.
pub const KIND: Kind = Kind { name: "MAC spoof check", release, sweep, outlives_link: true };

/// Names and comments are those of the upstream plugins.
const RULES: PortRules = PortRules {
    what: "MAC spoof check",
    key: "macspoofchk",
    family: TableFamily::Bridge,
    table: "nat",
    table_comment: None,
    base: &[("PREROUTING", HookPoint::Prerouting, -300)],
    names: &[("cni-br-iface-", ""), ("cni-br-iface-", "-mac")],
    hashed: false,
    lacking: "macspoofchk needs nf_tables for bridges: load nf_tables and nft_meta_bridge (CONFIG_NF_TABLES_BRIDGE, \
              CONFIG_NFT_BRIDGE_META), or remove the key",
};

impl Resource for SpoofCheck {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, _context: &ApplyContext) -> Result<()> {
        available()
    }

    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let port = veth::free_host_name(context.host()?, &context.tag)?;
        put(&context.tag, &port, veth::mac(&context.tag, self.mac), journal)?;
        Ok(Made::nothing())
    }

    fn restore(&self, context: &ApplyContext, journal: &mut Journal) -> Result<()> {
        let Some(guarded) = GuardedPort::find(context, self.mac)? else { return Ok(()) };
        let put = |journal: &mut Journal| put(&context.tag, &guarded.port.name, guarded.mac, journal);
        guarded.refuse_unknown_mac(context, put)?;
        put(journal)
    }

    /// The rules must match the MAC that the container is known to have been given. If a later plugin of the chain gave it
    /// another one, the result records that one, and the rules of ADD, which still allow the first, are reported.
    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let Some(GuardedPort { port, mac, .. }) = GuardedPort::find(context, self.mac)? else { return Ok(()) };
        RULES.verify(&context.tag, &|chains| content(chains, &port.name, mac), drifts)
    }
}

/// Makes the rules of a port, or replaces those that differ.
fn put(tag: &AttachmentId, port: &str, mac: Mac, journal: &mut Journal) -> Result<()> {
    RULES.put(tag, &|chains| content(chains, port, mac), journal)
}

fn content(chains: &[String], port: &str, mac: Mac) -> Content {
    let [first, second] = chains else { return Content { base: Vec::new(), own: Vec::new() } };
    let rule = |matches: Vec<Match>, verdict| Rule { matches, verdict, comment: None };
    let jump = |chain: &String| Verdict::Jump(chain.clone());
    let to_first = rule(vec![Match::from(port)], jump(first));
    let own = rule(vec![Match::SourceMac(mac)], Verdict::Return);
    Content {
        base: vec![vec![to_first]],
        own: vec![vec![rule(Vec::new(), jump(second))], vec![own, rule(Vec::new(), Verdict::Drop)]],
    }
}

impl fmt::Display for SpoofCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("drop frames from the container with another source MAC than ")?;
        match self.mac {
            Some(mac) => write!(f, "{mac} (nftables)"),
            None => f.write_str("its own (nftables)"),
        }
    }
}

fn release(context: &ReleaseContext) -> Result<()> {
    RULES.release(context)
}

fn sweep(context: &GcContext) -> Result<()> {
    RULES.sweep(context)
}

/// Checks for STATUS that the kernel supports these rules.
///
/// # Errors
/// The kernel lacks `nf_tables` for bridges.
pub fn available() -> Result<()> {
    RULES.available(&|chains| content(chains, "lo", Mac([2, 0, 0, 0, 0, 0])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port_rules::LONGEST_CHAIN;
    use crate::port_rules::shortened;
    use cnikit_nftables::LONGEST_COMMENT;

    fn tag(network: &str, container: &str) -> AttachmentId {
        AttachmentId { network: network.into(), container: container.into(), ifname: "eth0".into() }
    }

    #[test]
    fn names_and_comments_are_equal_to_upstreams() {
        let names: Vec<_> = RULES.names(&tag("n1", "c1")).collect();
        assert_eq!(names[..2], ["cni-br-iface-c1-eth0", "cni-br-iface-c1-eth0-mac"]);
        assert_eq!(RULES.comment(&tag("n1", "c1")), "macspoofchk-c1-eth0");
        assert_eq!(shortened(RULES.comment(&tag("n1", &"f".repeat(64)))), RULES.comment(&tag("n1", &"f".repeat(64))));
    }

    #[test]
    fn names_and_comments_fit_the_kernel_whatever_the_id() {
        let long = "c".repeat(300);
        for length in [1, 116, 117, 233, 234, 300] {
            let tag = tag("n1", &long[..length]);
            assert!(RULES.names(&tag).all(|name| name.len() <= LONGEST_CHAIN));
            assert!(shortened(RULES.comment(&tag)).len() <= LONGEST_COMMENT);
            assert_eq!(RULES.ids(&tag).count(), if length <= 233 { 2 } else { 1 });
        }
        assert_eq!(RULES.names(&tag("n1", &long[..233])).map(|name| name.len()).max(), Some(LONGEST_CHAIN));
        assert_eq!(shortened(RULES.comment(&tag("n1", &long))).len(), LONGEST_COMMENT);
    }

    #[test]
    fn rules_with_hashed_ids_have_the_second_choice_alone() {
        let hashed = PortRules { hashed: true, ..RULES };
        let all: Vec<_> = RULES.names(&tag("n1", "c1")).collect();
        assert_eq!(hashed.names(&tag("n1", "c1")).collect::<Vec<_>>(), all[2..]);
    }

    #[test]
    fn the_table_has_the_shared_chains_and_all_that_an_attachment_may_have() {
        let tag = tag("n1", "c1");
        let layout = RULES.empty_layout(&tag);
        let base: Vec<_> = RULES.base.iter().map(|(name, ..)| *name).collect();
        assert!(!base.is_empty() && layout.rule_chains == base, "{:?}", layout.rule_chains);
        assert_eq!(layout.chains.iter().map(|chain| chain.name).collect::<Vec<_>>(), base);
        assert!(layout.owned_chains.iter().map(|chain| &chain.name).eq(&RULES.names(&tag).collect::<Vec<_>>()));
        let commented = PortRules { table_comment: Some("for a test"), ..RULES };
        assert_eq!(commented.empty_layout(&tag).table_comment, Some("for a test"));
    }

    #[test]
    fn the_second_choice_is_of_one_network_alone() {
        let hashes = ["n1", "n2"].map(|network| RULES.ids(&tag(network, "c1")).last());
        assert_ne!(hashes[0], hashes[1]);
        assert!(hashes.iter().flatten().all(|hash| !hash.contains('-')));
    }
}
