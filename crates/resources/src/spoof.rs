//! What a container sends under another MAC than its own goes nowhere.

use std::fmt;

use cnikit_netfilter::{
    Chain, Claim, Family, Frame, Hook, HookKind, HookPoint, LONGEST_COMMENT, Mac, Match, Nftables, OwnChain, Rule,
    Verdict, Whose,
};
use cnikit_netlink::{Batch, Change, Link, Netlink};
use cnikit_plan::{Drifts, Kind, Made, Remains, Resource, Scene, Stale};
use cnikit_skel::{Error, Journal, Result, Tag, log};

use crate::alias::{self, Marks, Owner, hex};
use crate::rules::replace;
use crate::veth;

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

const PREROUTING: &str = "PREROUTING";
/// What the names of the reference's chains begin with, and the end of the second one's.
const CHAIN: &str = "cni-br-iface-";
const MAC_CHAIN: &str = "-mac";
/// The longest name of a chain, in bytes.
#[doc(alias = "NFT_NAME_MAXLEN")]
const LONGEST_CHAIN: usize = 255;

impl Resource for SpoofCheck {
    fn kind(&self) -> Kind {
        KIND
    }

    fn judge(&self, _scene: &Scene) -> Result<()> {
        available()
    }

    fn ensure(&self, scene: &Scene, journal: &mut Journal) -> Result<Made> {
        let port = veth::vacant(scene.host()?, &scene.tag)?;
        put(&scene.tag, &port, veth::mac(&scene.tag, self.mac), journal)?;
        Ok(Made::nothing())
    }

    fn restore(&self, scene: &Scene, journal: &mut Journal) -> Result<()> {
        let Some(guarded) = GuardedPort::find(scene, self.mac)? else { return Ok(()) };
        guarded.refuse_unknown_mac(scene)?;
        put(&scene.tag, &guarded.port.name, guarded.mac, journal)
    }

    /// The rules must match the MAC that the container is known to have been given. If a later plugin of the chain gave it
    /// another one, the result records that one, and the rules of ADD, which still allow the first, are reported.
    fn verify(&self, scene: &Scene, drifts: &mut Drifts) -> Result<()> {
        let Some(GuardedPort { port, mac, .. }) = GuardedPort::find(scene, self.mac)? else { return Ok(()) };
        let (tag, nftables) = (&scene.tag, Nftables::here()?);
        let named = |claims| Guard::of(&nftables, tag, &port.name, mac, claims);
        let guard = named(&[Claim::This]).or_else(|_| named(&[Claim::Free]))?;
        let found = nftables.verify(&guard.frame, whose(tag), &guard.lead)?;
        drifts.extend(found.into_iter().map(|text| format!("macspoofchk: {text}")));
        Ok(())
    }
}

/// The port of a container that is attached, and the MAC that the container may use.
struct GuardedPort {
    port: Link,
    /// The MAC that the container may use, wherever it is known from.
    mac: Mac,
    /// The MAC that the container's interface has now. The container can change it, so no rule may be made from it.
    live: Option<Mac>,
    /// A result of the ADD records `mac`.
    recorded: bool,
}

impl GuardedPort {
    /// The port, or none if the container is not attached. The MAC is the one that the result of the whole chain records,
    /// which includes what a later plugin (tuning) has changed. Results of versions before 0.3.0 record no MAC. Then it is
    /// the MAC that ADD set: the requested one, or the one that is derived from the tag. The container is never asked.
    fn find(scene: &Scene, requested: Option<Mac>) -> Result<Option<GuardedPort>> {
        let tag = &scene.tag;
        let Some(end) = scene.container()?.find_recent_link(&tag.ifname)? else { return Ok(None) };
        let Some(port) = veth::host_end_of(scene.host()?, &scene.netns, &end)? else { return Ok(None) };
        let recorded: Option<Mac> = scene.recorded().and_then(|one| one.mac.parse().ok());
        let mac = veth::mac(tag, recorded.or(requested));
        Ok(Some(GuardedPort { port, mac, live: end.mac, recorded: recorded.is_some() }))
    }

    /// Refuses to restore a port whose container has a MAC that nothing vouches for. A port of ours gets its rules all the
    /// same, for the MAC that it was given: without rules, the container could use any. The rules stay although RESTORE fails.
    fn refuse_unknown_mac(&self, scene: &Scene) -> Result<()> {
        let (tag, name) = (&scene.tag, &self.port.name);
        let live = match self.live {
            Some(live) if live != self.mac && !self.recorded => live,
            _ => return Ok(()),
        };
        if alias::owner(&self.port, tag) == Owner::This {
            let mut journal = Journal::default();
            put(tag, name, self.mac, &mut journal)?;
            journal.keep();
        }
        let text = format!("{} of {tag} has the MAC {live}, but it was given {}", tag.ifname, self.mac);
        Err(Error::conflict(text).remedy(
            "the result of ADD records no MAC that could confirm the change: DEL and ADD make the attachment anew",
        ))
    }
}

/// Has the port guarded; what is so already stays.
fn put(tag: &Tag, port: &str, mac: Mac, journal: &mut Journal) -> Result<()> {
    let nftables = Nftables::here()?;
    let guard = Guard::of(&nftables, tag, port, mac, &[Claim::Free, Claim::This])?;
    let what = format!("MAC spoof check of {tag}");
    replace(&nftables, (guard.frame, whose(tag)), &guard.lead, |_| Ok(()), (&what, journal)).map_err(remedied)
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

/// What stands for one port: its chains, and the rule that leads there.
struct Guard {
    frame: Frame,
    lead: [Rule; 1],
}

impl Guard {
    /// Under the first name with which it is so. Identities of two attachments may read alike when they are joined.
    fn of(nftables: &Nftables, tag: &Tag, port: &str, mac: Mac, claims: &[Claim]) -> Result<Guard> {
        for id in ids(tag) {
            let guard = Guard::named(tag, &id, port, mac);
            if claims.contains(&nftables.claim(&guard.frame, whose(tag))?) {
                return Ok(guard);
            }
        }
        Err(Error::conflict(format!("all names of the chains of {tag} are taken by other attachments")))
    }

    fn named(tag: &Tag, id: &str, port: &str, mac: Mac) -> Guard {
        let rule = |matches: Vec<Match>, verdict| Rule { matches, verdict, comment: Some(shortened(comment(tag))) };
        let content = |name: &str| match name {
            _ if name == chain(id) => vec![rule(Vec::new(), Verdict::Jump(mac_chain(id)))],
            _ if name == mac_chain(id) => {
                vec![rule(vec![Match::SourceMac(mac)], Verdict::Return), rule(Vec::new(), Verdict::Drop)]
            }
            _ => Vec::new(),
        };
        let lead = [rule(vec![Match::from(port)], Verdict::Jump(chain(id)))];
        Guard { frame: frame(names(tag).map(|name| OwnChain { rules: content(&name), name })), lead }
    }
}

/// The reference's table, which other programs have chains in too.
fn frame(own: impl Iterator<Item = OwnChain>) -> Frame {
    let hook = Hook { kind: HookKind::Filter, hook: HookPoint::Prerouting, priority: -300 };
    Frame {
        chains: vec![Chain { name: PREROUTING, comment: None, hook: Some(hook) }],
        holds: vec![PREROUTING],
        own: own.collect(),
        ..Frame::of(Family::Bridge, "nat")
    }
}

/// The frame in which this tag wants nothing.
fn nothing(tag: &Tag) -> Frame {
    frame(names(tag).map(|name| OwnChain { name, rules: Vec::new() }))
}

/// What the names of a tag's chains are made of, first choice first: the reference's where it fits, then a hash, which has
/// no hyphen and so is nobody's first choice.
fn ids(tag: &Tag) -> impl Iterator<Item = String> {
    let plain = format!("{}-{}", tag.container, tag.ifname);
    let fits = mac_chain(&plain).len() <= LONGEST_CHAIN;
    fits.then_some(plain).into_iter().chain([hex(&tag.hash()[..16])])
}

/// Every name that a chain of this tag can have; each chain before the one that it leads to.
fn names(tag: &Tag) -> impl Iterator<Item = String> {
    ids(tag).flat_map(|id| [chain(&id), mac_chain(&id)])
}

fn chain(id: &str) -> String {
    format!("{CHAIN}{id}")
}

fn mac_chain(id: &str) -> String {
    format!("{CHAIN}{id}{MAC_CHAIN}")
}

/// The reference's comment.
fn comment(tag: &Tag) -> String {
    format!("macspoofchk-{}-{}", tag.container, tag.ifname)
}

/// One that was cut still has its owner beside it.
fn shortened(comment: String) -> String {
    alias::cut(comment, LONGEST_COMMENT)
}

/// The rules of a tag: those that name it, and those of the reference, which name no network.
fn whose(tag: &Tag) -> Whose {
    Whose::Owned { owner: alias::mark_of(tag), comment: Some(comment(tag)) }
}

/// Where none of its chains stands, nothing leads there, and nothing is looked at.
fn release(remains: &Remains) -> Result<()> {
    let (tag, Some(nftables)) = (&remains.tag, remains.nftables()?) else { return Ok(()) };
    let frame = nothing(tag);
    if nftables.stands(&frame)? {
        let host = remains.host()?;
        shut(host, veth::host_end(host, tag)?.as_ref())?;
        removed(nftables.release(&frame, whose(tag))?);
    }
    Ok(())
}

/// Rules that name no network may be a running container's, whom the reference attached: they stay.
fn sweep(stale: &Stale) -> Result<()> {
    let Some(nftables) = stale.nftables()? else { return Ok(()) };
    let frame = frame(std::iter::empty());
    let network = Whose::Owned { owner: alias::network_mark(&stale.network), comment: None };
    let valid: Vec<String> = stale.tags().map(|tag| alias::mark_of(&tag)).collect();
    let keep = |owner: &str| valid.iter().any(|mark| mark == owner);
    let found = nftables.rules(&frame, network.clone())?;
    if found.iter().filter_map(cnikit_netfilter::Found::owner).all(keep) {
        return Ok(());
    }
    let host = stale.host()?;
    let (marks, mut batch) = (Marks::of(stale), Batch::new());
    let links = host.links_of_kind("veth")?;
    links.iter().filter(|link| marks.is_stale(link)).for_each(|link| batch.set_link_if_present(link.index, &down()));
    host.send(batch)?;
    removed(nftables.sweep(&frame, network, keep)?);
    Ok(())
}

/// A port whose guard goes is shut first: the container may still run, and the link is removed only after this.
fn shut(host: &Netlink, port: Option<&Link>) -> Result<()> {
    let mut batch = Batch::new();
    port.into_iter().for_each(|port| batch.set_link_if_present(port.index, &down()));
    Ok(host.send(batch)?)
}

fn down() -> Change {
    Change { up: Some(false), ..Change::default() }
}

fn removed(count: usize) {
    if count > 0 {
        log::info(format_args!("removed the MAC spoof check of {count} ports"));
    }
}

/// Whether the kernel can check MACs, for STATUS: with rules like those of an attachment, of which none will ever be.
pub fn available() -> Result<()> {
    let nobody = Tag { network: String::new(), container: String::new(), ifname: String::new() };
    let guard = Guard::named(&nobody, &hex(&nobody.hash()[..16]), "lo", Mac([2, 0, 0, 0, 0, 0]));
    let tried = Nftables::here().and_then(|here| here.rehearse(&guard.frame, whose(&nobody), &guard.lead));
    tried.map_err(remedied)
}

fn remedied(error: cnikit_netfilter::Error) -> Error {
    let lacking = error.unsupported() || error.is_absent();
    let remedy = "macspoofchk needs nf_tables for bridges: load nf_tables and nft_meta_bridge (CONFIG_NF_TABLES_BRIDGE, \
                  CONFIG_NFT_BRIDGE_META), or leave the key out";
    if lacking { Error::from(error).remedy(remedy) } else { error.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(network: &str, container: &str) -> Tag {
        Tag { network: network.into(), container: container.into(), ifname: "eth0".into() }
    }

    #[test]
    fn names_and_comments_are_the_references_to_the_letter() {
        let names: Vec<_> = names(&tag("n1", "c1")).collect();
        assert_eq!(names[..2], ["cni-br-iface-c1-eth0", "cni-br-iface-c1-eth0-mac"]);
        assert_eq!(comment(&tag("n1", "c1")), "macspoofchk-c1-eth0");
        assert_eq!(shortened(comment(&tag("n1", &"f".repeat(64)))), comment(&tag("n1", &"f".repeat(64))));
    }

    #[test]
    fn names_and_comments_fit_the_kernel_whatever_the_id() {
        let long = "c".repeat(300);
        for length in [1, 116, 117, 233, 234, 300] {
            let tag = tag("n1", &long[..length]);
            assert!(names(&tag).all(|name| name.len() <= LONGEST_CHAIN));
            assert!(shortened(comment(&tag)).len() <= LONGEST_COMMENT);
            assert_eq!(ids(&tag).count(), if length <= 233 { 2 } else { 1 });
        }
    }

    #[test]
    fn the_second_choice_is_of_one_network_alone() {
        let hashes = ["n1", "n2"].map(|network| ids(&tag(network, "c1")).last());
        assert_ne!(hashes[0], hashes[1]);
        assert!(hashes.iter().flatten().all(|hash| !hash.contains('-')));
    }
}
