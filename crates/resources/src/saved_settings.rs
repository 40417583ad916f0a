//! What was there before an attachment changed it, kept until it is given back.
//!
//! The file is the reference's, `CONTAINER_IFNAME.json` in `dataDir`, with one member more: so either can give back what the
//! other changed. That member says whose it is and of which namespace, and holds what the reference keeps nothing of.
//! A file is there, whole and synced, before anything is changed.

mod owner;

use std::fmt;
use std::path::{Path, PathBuf};

use cnikit_netlink::Link;
use cnikit_netns::Netns;
use cnikit_plan::{ApplyContext, GcContext, ReleaseContext};
use cnikit_skel::{AttachmentId, Error, Errors, Journal, NetnsLookup, Result, log};
use cnikit_store::{Directory, Facts};
use cnikit_types::{NetConf, Value};
use nix::errno::Errno;
use serde::Deserialize;

use crate::identity::alias::hex;
use crate::identity::recorded::has_mac_of;
use crate::link::link_settings::LinkValues;
pub(crate) use owner::Owner;

/// Where the reference keeps it: gone with a reboot, as all that it speaks of.
const USUAL: &str = "/run/cni/tuning";
/// The member that is not the reference's.
const MEMBER: &str = "cnikit";
/// A name may be as long before its end is added; the kernel takes 255 bytes, and a temporary file needs some.
const LONGEST: usize = 200;
/// More than a configuration could fill.
const LIMIT: usize = 16 << 20;
/// Of a file.
const MODE: u32 = 0o600;
/// How often a place is looked for: others who look for one at the same time take it once.
const TRIES: usize = 8;

/// What one attachment changed, with the values from before.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lent {
    /// Of the link.
    pub(crate) link: LinkValues,
    /// Settings below `net/`, in the order in which they were changed.
    pub(crate) sysctls: Vec<(String, String)>,
    /// None: the reference kept it.
    pub(crate) owner: Option<Owner>,
}

/// Where a plugin keeps what it has to give back: `dataDir`. DEL and GC read no more of the configuration.
pub fn kept_in(conf: &NetConf) -> PathBuf {
    conf.text("dataDir").filter(|path| !path.is_empty()).unwrap_or(USUAL).into()
}

/// Checks that a file could be created in `dir`: STATUS asks, and ADD before it writes anything.
///
/// # Errors
/// It could not, see [`Directory::probe_at`].
pub fn available(dir: &Path) -> Result<()> {
    Ok(Directory::probe_at(dir)?)
}

/// Adds to what is kept of this attachment, before the change. What is kept already is older, and stays.
pub(crate) fn record(context: &ApplyContext, dir: &Path, journal: &mut Journal, before: &Lent) -> Result<()> {
    let directory = Directory::make(dir, 0o700)?;
    let owner = Owner::of(context)?;
    for _ in 0..TRIES {
        let Some((name, found)) = own_place(&directory, &context.tag)? else { break };
        let older = match &found {
            Some(lent) => is_older(lent, context, &owner, || directory.facts(&name))?,
            None => false,
        };
        let content = before.under(found.as_ref().filter(|_| older), &owner).content()?;
        let put_back = PutBack { dir: dir.to_owned(), name: name.clone(), before: found };
        if put_back.before.is_some() {
            // While what it speaks of may still be changed, DEL needs it.
            let _ = journal.undo_if_clean(&put_back, PutBack::put);
            return Ok(directory.replace_and_sync(&name, &content, MODE)?);
        }
        if directory.create_and_sync(&name, &content, MODE)?.is_some() {
            let _ = journal.undo_if_clean(&put_back, PutBack::put);
            return Ok(());
        }
    }
    let text = format!("the files for {} in {} are taken", context.tag, dir.display());
    Err(Error::conflict(text).hint("remove what stands there under the names of this container"))
}

/// Kept earlier in the same namespace. What the reference kept does not say of which: it has to be younger than the namespace,
/// for a container that is started again keeps its id, and the interface has to be the one of the record, as DEL asks too.
fn is_older(
    lent: &Lent,
    context: &ApplyContext,
    owner: &Owner,
    facts: impl FnOnce() -> Result<Option<Facts>, cnikit_store::Error>,
) -> Result<bool> {
    if let Some(kept) = &lent.owner {
        return Ok(kept.is_same(owner));
    }
    let since = context.netns.held_since()?;
    if facts()?.is_none_or(|facts| facts.changed < since) {
        return Ok(false);
    }
    let link = context.container()?.find_recent_link(&context.tag.ifname)?;
    Ok(link.is_some_and(|link| has_mac_of(Some(&context.record), &context.tag.ifname, &link)))
}

/// A file as it was before this ADD.
#[derive(Clone)]
struct PutBack {
    dir: PathBuf,
    name: String,
    before: Option<Lent>,
}

impl PutBack {
    fn put(&self) -> Result<()> {
        let directory = Directory::open(&self.dir)?;
        directory.discard_unfinished_of(&self.name)?;
        match &self.before {
            Some(lent) => Ok(directory.replace(&self.name, &lent.content()?, MODE)?),
            None => Ok(directory.remove(&self.name).map(drop)?),
        }
    }
}

impl fmt::Display for PutBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "old values in {}", self.dir.join(&self.name).display())
    }
}

/// The attachment's own file; else the first name that is free, or the reference's, which does not say whose it is. Garbage is
/// left to DEL.
fn own_place(directory: &Directory, tag: &AttachmentId) -> Result<Option<(String, Option<Lent>)>> {
    let mut free = None;
    for name in names(tag) {
        match read(directory, &name)? {
            Stands::Kept(lent) if lent.is_of(tag) => return Ok(Some((name, Some(*lent)))),
            Stands::Kept(lent) if lent.owner.is_none() => free = free.or(Some((name, Some(*lent)))),
            Stands::Nothing => free = free.or(Some((name, None))),
            Stands::Kept(_) | Stands::Garbage => {}
        }
    }
    Ok(free)
}

/// The names of an attachment's file, first choice first: the reference's name does not tell networks apart.
fn names(tag: &AttachmentId) -> [String; 2] {
    let hash = hex(&tag.hash()[..16]);
    let clear = format!("{}_{}", tag.container, tag.ifname);
    let clear = if clear.len() > LONGEST { hash.clone() } else { clear };
    [format!("{clear}.json"), format!("{clear}.{hash}.json")]
}

/// What stands under a name.
#[derive(Debug, PartialEq)]
enum Stands {
    Nothing,
    /// What nobody understands.
    Garbage,
    Kept(Box<Lent>),
}

fn read(directory: &Directory, name: &str) -> Result<Stands> {
    let content = match directory.read(name, LIMIT) {
        Err(error) if error.is_garbage() => {
            log::warn(format_args!("{error}: nothing is given back by it"));
            return Ok(Stands::Garbage);
        }
        read => read?,
    };
    let Some((content, _)) = content else { return Ok(Stands::Nothing) };
    Ok(Lent::parse(&content).map_or_else(
        |error| {
            let path = directory.path().join(name);
            log::warn(format_args!("{} is damaged, nothing is given back by it: {error}", path.display()));
            Stands::Garbage
        },
        |lent| Stands::Kept(Box::new(lent)),
    ))
}

impl Lent {
    fn parse(content: &[u8]) -> Result<Lent, serde_json::Error> {
        let whole: Value = serde_json::from_slice(content)?;
        let mut owner = whole.get(MEMBER).map(Owner::deserialize).transpose()?;
        let sysctls = owner.as_mut().map(|owner| std::mem::take(&mut owner.sysctls)).unwrap_or_default();
        Ok(Lent { link: LinkValues::deserialize(whole)?, sysctls, owner })
    }

    fn content(&self) -> Result<Vec<u8>> {
        let owner = self.owner.clone().map(|owner| Owner { sysctls: self.sysctls.clone(), ..owner });
        let mut whole = serde_json::to_value(&self.link)?;
        if let Some(owner) = owner {
            whole[MEMBER] = serde_json::to_value(owner)?;
        }
        Ok(whole.to_string().into_bytes())
    }

    /// What is kept already, with what is new in this.
    fn under(&self, kept: Option<&Lent>, owner: &Owner) -> Lent {
        let mut lent = kept.cloned().unwrap_or_default();
        lent.owner = Some(owner.clone());
        lent.link = lent.link.or(&self.link);
        let is_new = |key: &String| kept.is_none_or(|kept| kept.sysctls.iter().all(|(known, _)| known != key));
        lent.sysctls.extend(self.sysctls.iter().filter(|(key, _)| is_new(key)).cloned());
        lent
    }

    fn is_of(&self, tag: &AttachmentId) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.is(tag))
    }

    fn is_empty(&self) -> bool {
        self.link == LinkValues::default() && self.sysctls.is_empty()
    }
}

/// How a kind gives back its part: takes it out of what is kept, and writes it where it was, if there still is a namespace.
pub(crate) type GiveBack = fn(&mut Lent, ifname: &str, netns: Option<&Netns>) -> Result<()>;

/// What the kernel says of a value that it does not take, and would say until the namespace is gone: one that the link below
/// does not carry any more, an address that another link has by now. A permission that is missing may be had again.
const VERDICTS: [Errno; 6] = [
    Errno::EINVAL,
    Errno::ERANGE,
    Errno::EOPNOTSUPP,
    Errno::EADDRINUSE,
    Errno::EADDRNOTAVAIL,
    Errno::EBUSY, // of drivers that change no MAC of a link that is up
];

/// Whether the kernel has refused the value itself: to try again would hold DEL up for ever.
pub(crate) fn is_verdict(errno: i32) -> bool {
    VERDICTS.contains(&Errno::from_raw(errno))
}

/// Says which value is not given back, and why.
pub(crate) fn give_up(why: impl fmt::Display) {
    log::warn(format_args!("{why}: an old value that is not given back"));
}

/// Gives back what belongs to one attachment.
pub(crate) fn release(context: &ReleaseContext, give_back: GiveBack) -> Result<()> {
    let Some(directory) = Directory::open_if_any(kept_in(&context.conf))? else { return Ok(()) };
    let one = |name: &String| {
        directory.discard_unfinished_of(name)?;
        let lent = match read(&directory, name)? {
            Stands::Nothing => return Ok(()),
            Stands::Garbage => return remove_garbage(&directory, name),
            Stands::Kept(lent) => *lent,
        };
        let netns = match &lent.owner {
            Some(owner) if owner.is(&context.tag) => owner.namespace(&context.netns)?,
            Some(_) => return Ok(()),
            None => unmarked(context)?,
        };
        restore_values(&directory, name, lent, &context.tag.ifname, netns.as_ref(), give_back)
    };
    names(&context.tag).iter().map(one).collect::<Errors>().finish()
}

/// Something else than a file is none of ours, and stays.
fn remove_garbage(directory: &Directory, name: &str) -> Result<()> {
    if directory.facts(name)?.is_some_and(|facts| facts.regular) {
        directory.remove(name)?;
    }
    Ok(())
}

/// Gives back what belongs to this network and to no valid attachment. The reference's files name no network.
pub(crate) fn sweep(context: &GcContext, give_back: GiveBack) -> Result<()> {
    let Some(directory) = Directory::open_if_any(kept_in(&context.conf))? else { return Ok(()) };
    directory.discard_unfinished()?;
    let names = directory.list()?.into_iter().filter_map(|name| name.into_string().ok());
    let one = |name: String| {
        let Stands::Kept(lent) = read(&directory, &name)? else { return Ok(()) };
        let Some(owner) = lent.owner.clone().filter(|owner| owner.network == context.network) else { return Ok(()) };
        if context.valid.has(&owner.container, &owner.ifname) {
            return Ok(());
        }
        if owner.is_doubtful()? {
            return Ok(()); // DEL is told which namespace it is
        }
        let netns = owner.namespace(&NetnsLookup::Empty)?;
        restore_values(&directory, &name, *lent, &owner.ifname, netns.as_ref(), give_back)
    };
    names.filter(|name| name.strip_suffix(".json").is_some()).map(one).collect::<Errors>().finish()
}

/// The reference does not say of which namespace its file speaks: the interface has to be the one of the record.
fn unmarked(context: &ReleaseContext) -> Result<Option<Netns>> {
    let (NetnsLookup::Present(netns), Some(container)) = (&context.netns, context.container()?) else {
        return Ok(None);
    };
    let link = container.find_link(&context.tag.ifname)?;
    let is_it = |link: &Link| has_mac_of(context.prev.as_ref(), &context.tag.ifname, link);
    Ok(link.filter(is_it).map(|_| netns.clone()))
}

fn restore_values(
    directory: &Directory,
    name: &str,
    mut lent: Lent,
    ifname: &str,
    netns: Option<&Netns>,
    give_back: GiveBack,
) -> Result<()> {
    let before = lent.clone();
    give_back(&mut lent, ifname, netns)?;
    if lent.is_empty() {
        directory.remove(name)?;
    } else if lent != before {
        let content = lent.content()?;
        match directory.replace(name, &content, MODE) {
            // It is shorter than it was: in its place it needs no space.
            Err(error) if error.is_full() => directory.rewrite(name, &content, MODE)?,
            replaced => replaced?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(network: &str, container: &str, ifname: &str) -> AttachmentId {
        AttachmentId { network: network.into(), container: container.into(), ifname: ifname.into() }
    }

    fn lent(tag: &AttachmentId, mtu: u32) -> Lent {
        let AttachmentId { network, container, ifname } = tag.clone();
        let boot = "b".into();
        let cookie = Some(u64::MAX);
        let netns = "/run/netns/x".into();
        let owner = Owner { network, container, ifname, boot, cookie, netns, sysctls: Vec::new() };
        let link = LinkValues { mtu: Some(mtu), ..LinkValues::default() };
        Lent { link, sysctls: vec![("net/a".into(), "1\t2".into())], owner: Some(owner) }
    }

    fn write(directory: &Directory, name: &str, lent: &Lent) {
        directory.replace(name, &lent.content().unwrap(), MODE).unwrap();
    }

    /// A full disk is no reason to write what has not changed; what has changed is shorter.
    #[test]
    fn a_kind_with_nothing_to_give_back_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let own = tag("n", "c", "eth0");
        let kept = lent(&own, 1500);
        write(&directory, "a", &kept);
        let facts = directory.facts("a").unwrap();
        restore_values(&directory, "a", kept.clone(), "eth0", None, |_, _, _| Ok(())).unwrap();
        assert_eq!(directory.facts("a").unwrap(), facts);
        let taken = |lent: &mut Lent, _: &str, _: Option<&Netns>| {
            lent.sysctls.clear();
            Ok(())
        };
        restore_values(&directory, "a", kept.clone(), "eth0", None, taken).unwrap();
        assert_eq!(read(&directory, "a").unwrap(), Stands::Kept(Box::new(Lent { sysctls: Vec::new(), ..kept })));
    }

    #[test]
    fn what_is_written_is_read_and_the_reference_finds_its_own_keys() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let own = tag("n", "c", "eth0");
        let kept = lent(&own, 1500);
        write(&directory, &names(&own)[0], &kept);
        assert_eq!(own_place(&directory, &own).unwrap(), Some(("c_eth0.json".into(), Some(kept))));
        let text = std::fs::read_to_string(dir.path().join("c_eth0.json")).unwrap();
        assert!(text.starts_with(r#"{"mtu":1500,"cnikit":{"network":"n","#), "{text}");
    }

    #[test]
    fn networks_that_share_the_references_name_have_a_file_each() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let one = tag("n", "a_b", "c");
        let two = tag("n", "a", "b_c");
        write(&directory, &own_place(&directory, &one).unwrap().unwrap().0, &lent(&one, 1500));
        let (name, found) = own_place(&directory, &two).unwrap().unwrap();
        assert!(name.starts_with("a_b_c.") && name.len() == "a_b_c..json".len() + 32 && found.is_none(), "{name}");
        write(&directory, &name, &lent(&two, 1400));
        for (tag, mtu) in [(&one, 1500), (&two, 1400)] {
            let (_, found) = own_place(&directory, tag).unwrap().unwrap();
            assert_eq!(found.unwrap().link.mtu, Some(mtu));
        }
    }

    #[test]
    fn a_file_of_the_references_is_taken_over_and_garbage_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let own = tag("n", "c", "eth0");
        let theirs = "{\n \"mac\": \"0a:00:00:00:00:07\",\n \"promisc\": false,\n \"txQLen\": 1000\n}";
        std::fs::write(dir.path().join("c_eth0.json"), theirs).unwrap();
        let (name, found) = own_place(&directory, &own).unwrap().unwrap();
        let link = found.unwrap().link;
        assert_eq!((name.as_str(), link.promisc, link.tx_queue_length), ("c_eth0.json", Some(false), Some(1000)));
        std::fs::write(dir.path().join("c_eth0.json"), &theirs[..20]).unwrap();
        assert_eq!(own_place(&directory, &own).unwrap(), Some((names(&own)[1].clone(), None)));
        std::fs::create_dir(dir.path().join(&names(&own)[1])).unwrap();
        assert_eq!(own_place(&directory, &own).unwrap(), None);
    }

    #[test]
    fn the_longest_container_id_has_a_name() {
        let names = names(&tag("n", &"c".repeat(400), "eth0"));
        assert!(names.iter().all(|name| name.len() < 100) && names[0] != names[1], "{names:?}");
    }
}
