//! What a container sends under another MAC than its own goes nowhere.

use std::fmt;

use cnikit_nftables::{HookPoint, Mac, Match, Rule, TableFamily, Verdict};
use cnikit_plan::{ApplyContext, Drifts, GcContext, Kind, Made, ReleaseContext, Resource};
use cnikit_resources::veth;
use cnikit_skel::{AttachmentId, Journal, Result};

use crate::port_rules::{Content, GuardedPort, Sort};

/// The port of a bridge takes frames of the container's MAC only. It stands in the plan before the pair of links, whose
/// names and MACs it knows: there is no moment in which the container could send anything else.
///
/// Table, chains, rules and comments are the reference's, so that its DEL removes ours and ours removes the reference's.
/// Beside its comment, which names container and interface, each rule names its owner: two networks never share one.
#[derive(Clone, Debug)]
#[doc(alias = "macspoofchk")]
pub struct SpoofCheck {
    /// The container's MAC; absent: from the tag, as the pair of links has it.
    pub mac: Option<Mac>,
}

/// Rules are found by their owner, the reference's by their comment.
pub const KIND: Kind = Kind { name: "MAC spoof check", release, sweep, outlives_link: true };

/// Names and comments are those of the upstream plugins.
const SORT: Sort = Sort {
    what: "MAC spoof check",
    key: "macspoofchk",
    family: TableFamily::Bridge,
    table: "nat",
    table_comment: None,
    base: &[("PREROUTING", HookPoint::Prerouting, -300)],
    names: &[("cni-br-iface-", ""), ("cni-br-iface-", "-mac")],
    hashed: false,
    lacking: "macspoofchk needs nf_tables for bridges: load nf_tables and nft_meta_bridge (CONFIG_NF_TABLES_BRIDGE, \
              CONFIG_NFT_BRIDGE_META), or leave the key out",
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
        SORT.verify(&context.tag, &|chains| content(chains, &port.name, mac), drifts)
    }
}

/// Has the port guarded; what is so already stays.
fn put(tag: &AttachmentId, port: &str, mac: Mac, journal: &mut Journal) -> Result<()> {
    SORT.put(tag, &|chains| content(chains, port, mac), journal)
}

fn content(chains: &[String], port: &str, mac: Mac) -> Content {
    let [first, second] = chains else { return Content { base: Vec::new(), own: Vec::new() } };
    let rule = |matches: Vec<Match>, verdict| Rule { matches, verdict, comment: None };
    let jump = |chain: &String| Verdict::Jump(chain.clone());
    let lead = rule(vec![Match::from(port)], jump(first));
    let own = rule(vec![Match::SourceMac(mac)], Verdict::Return);
    Content {
        base: vec![vec![lead]],
        own: vec![vec![rule(Vec::new(), jump(second))], vec![own, rule(Vec::new(), Verdict::Drop)]],
    }
}

impl fmt::Display for SpoofCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("drop what the container sends under another MAC than ")?;
        match self.mac {
            Some(mac) => write!(f, "{mac} (nftables)"),
            None => f.write_str("its own (nftables)"),
        }
    }
}

fn release(context: &ReleaseContext) -> Result<()> {
    SORT.release(context)
}

fn sweep(context: &GcContext) -> Result<()> {
    SORT.sweep(context)
}

/// Whether the kernel can check MACs, for STATUS.
pub fn available() -> Result<()> {
    SORT.available(&|chains| content(chains, "lo", Mac([2, 0, 0, 0, 0, 0])))
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
    fn names_and_comments_are_the_references_to_the_letter() {
        let names: Vec<_> = SORT.names(&tag("n1", "c1")).collect();
        assert_eq!(names[..2], ["cni-br-iface-c1-eth0", "cni-br-iface-c1-eth0-mac"]);
        assert_eq!(SORT.comment(&tag("n1", "c1")), "macspoofchk-c1-eth0");
        assert_eq!(shortened(SORT.comment(&tag("n1", &"f".repeat(64)))), SORT.comment(&tag("n1", &"f".repeat(64))));
    }

    #[test]
    fn names_and_comments_fit_the_kernel_whatever_the_id() {
        let long = "c".repeat(300);
        for length in [1, 116, 117, 233, 234, 300] {
            let tag = tag("n1", &long[..length]);
            assert!(SORT.names(&tag).all(|name| name.len() <= LONGEST_CHAIN));
            assert!(shortened(SORT.comment(&tag)).len() <= LONGEST_COMMENT);
            assert_eq!(SORT.ids(&tag).count(), if length <= 233 { 2 } else { 1 });
        }
    }

    #[test]
    fn the_second_choice_is_of_one_network_alone() {
        let hashes = ["n1", "n2"].map(|network| SORT.ids(&tag(network, "c1")).last());
        assert_ne!(hashes[0], hashes[1]);
        assert!(hashes.iter().flatten().all(|hash| !hash.contains('-')));
    }
}
