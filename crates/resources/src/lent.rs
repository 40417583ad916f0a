//! What was there before an attachment changed it, kept until it is given back.
//!
//! The file is the reference's, `CONTAINER_IFNAME.json` in `dataDir`, with one member more: so either can give back what the
//! other changed. That member says whose it is and of which namespace, and holds what the reference keeps nothing of.
//! A file is there, whole, before anything is changed. It need not survive a power cut: what was changed does not either.

use std::fmt;
use std::path::{Path, PathBuf};

use cnikit_netns::{Netns, boot_id};
use cnikit_plan::{Remains, Scene, Stale};
use cnikit_skel::{Errors, Found, Journal, Result, Tag, log};
use cnikit_store::Directory;
use cnikit_types::{NetConf, Value};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

use crate::alias::hex;
use crate::link_settings::Settings;
use crate::recorded::has_mac_of;

/// Where the reference keeps it: gone with a reboot, as all that it speaks of.
const USUAL: &str = "/run/cni/tuning";
/// The member that is not the reference's.
const MEMBER: &str = "cnikit";
/// A name may be as long before its end is added; the kernel takes 255 bytes, and a temporary file needs some.
const LONGEST: usize = 200;
/// More than a configuration could fill.
const LIMIT: usize = 16 << 20;

/// What one attachment changed, with the values from before.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Lent {
    /// Of the link.
    pub(crate) link: Settings,
    /// Settings below `net/`, in the order in which they were changed.
    pub(crate) sysctls: Vec<(String, String)>,
    /// None: the reference kept it.
    pub(crate) owner: Option<Owner>,
}

/// Whose it is, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Owner {
    network: String,
    container: String,
    ifname: String,
    /// Boot and cookie recognise the namespace; kernels before 5.14 give none.
    boot: String,
    cookie: Option<u64>,
    /// `CNI_NETNS` of the ADD.
    netns: String,
    #[serde(default)]
    sysctls: Vec<(String, String)>,
}

/// Where a plugin keeps what it has to give back: `dataDir`. DEL and GC read no more of the configuration.
pub fn kept_in(conf: &NetConf) -> PathBuf {
    conf.text("dataDir").filter(|path| !path.is_empty()).unwrap_or(USUAL).into()
}

/// Whether something could be kept there, which STATUS asks.
pub fn available(dir: &Path) -> Result<()> {
    let there = dir.ancestors().find_map(|above| match Directory::open(above) {
        Err(error) if error.is_absent() => None,
        opened => Some(opened),
    });
    Ok(there.map_or(Ok(()), |opened| opened?.probe())?)
}

/// Adds to what is kept of this attachment, before the change. What is kept already is older, and stays.
pub(crate) fn keep(scene: &Scene, dir: &Path, journal: &mut Journal, before: Lent) -> Result<()> {
    let directory = Directory::make(dir, 0o700)?;
    let owner = Owner::of(scene)?;
    let (name, found) = own_place(&directory, &scene.tag)?;
    let mut lent = found.clone().filter(|lent| lent.owner.as_ref().is_none_or(|kept| kept.is_same(&owner)));
    let lent = lent.get_or_insert_default();
    lent.owner = Some(owner);
    lent.link = lent.link.or(&before.link);
    let newer = before.sysctls.into_iter().filter(|(key, _)| lent.sysctls.iter().all(|(kept, _)| kept != key));
    let newer: Vec<_> = newer.collect();
    lent.sysctls.extend(newer);
    let put_back = PutBack { dir: dir.to_owned(), name: name.clone(), before: found };
    // While what it speaks of may still be changed, DEL needs it.
    let _ = journal.undo_if_clean(&put_back, PutBack::put);
    lent.write(&directory, &name)
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
            Some(lent) => lent.write(&directory, &self.name),
            None => Ok(directory.remove(&self.name).map(drop)?),
        }
    }
}

impl fmt::Display for PutBack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "old values in {}", self.dir.join(&self.name).display())
    }
}

/// The attachment's own file; else the first name that is nobody's, or the reference's, which does not say whose it is.
fn own_place(directory: &Directory, tag: &Tag) -> Result<(String, Option<Lent>)> {
    let mut free = None;
    for name in names(tag) {
        match read(directory, &name)? {
            Some(lent) if lent.is_of(tag) => return Ok((name, Some(lent))),
            Some(lent) if lent.owner.is_some() => {}
            found => {
                free.get_or_insert((name, found));
            }
        }
    }
    // The second name is a hash's: whatever stands there instead is no more than garbage.
    Ok(free.unwrap_or_else(|| (names(tag)[1].clone(), None)))
}

/// The names of an attachment's file, first choice first: the reference's name does not tell networks apart.
fn names(tag: &Tag) -> [String; 2] {
    let hash = hex(&tag.hash()[..16]);
    let clear = format!("{}_{}", tag.container, tag.ifname);
    let clear = if clear.len() > LONGEST { hash.clone() } else { clear };
    [format!("{clear}.json"), format!("{clear}.{hash}.json")]
}

/// What is kept under a name; what cannot be understood counts as nothing, and is said.
fn read(directory: &Directory, name: &str) -> Result<Option<Lent>> {
    let content = match directory.read(name, LIMIT) {
        Err(error) if error.is_garbage() => {
            log::warn(format_args!("{error}: nothing is given back by it"));
            return Ok(None);
        }
        read => read?.map(|(content, _)| content),
    };
    Ok(content.and_then(|content| {
        Lent::parse(&content)
            .inspect_err(|error| {
                let path = directory.path().join(name);
                log::warn(format_args!("{} is damaged, nothing is given back by it: {error}", path.display()));
            })
            .ok()
    }))
}

impl Lent {
    fn parse(content: &[u8]) -> Result<Lent, serde_json::Error> {
        let whole: Value = serde_json::from_slice(content)?;
        let mut owner = whole.get(MEMBER).map(Owner::deserialize).transpose()?;
        let sysctls = owner.as_mut().map(|owner| std::mem::take(&mut owner.sysctls)).unwrap_or_default();
        Ok(Lent { link: Settings::deserialize(whole)?, sysctls, owner })
    }

    fn write(&self, directory: &Directory, name: &str) -> Result<()> {
        let owner = self.owner.clone().map(|owner| Owner { sysctls: self.sysctls.clone(), ..owner });
        let mut whole = serde_json::to_value(&self.link)?;
        if let Some(owner) = owner {
            whole[MEMBER] = serde_json::to_value(owner)?;
        }
        let content = whole.to_string().into_bytes();
        if directory.create(name, &content, 0o600)?.is_none() {
            directory.replace(name, &content, 0o600)?;
        }
        Ok(())
    }

    fn is_of(&self, tag: &Tag) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.is(tag))
    }

    fn is_empty(&self) -> bool {
        self.link == Settings::default() && self.sysctls.is_empty()
    }
}

impl Owner {
    fn of(scene: &Scene) -> Result<Owner> {
        let Tag { network, container, ifname } = scene.tag.clone();
        let (boot, cookie, netns) = (boot_id()?, cookie(&scene.netns)?, scene.sandbox.clone());
        Ok(Owner { network, container, ifname, boot, cookie, netns, sysctls: Vec::new() })
    }

    fn is(&self, tag: &Tag) -> bool {
        (&self.network, &self.container, &self.ifname) == (&tag.network, &tag.container, &tag.ifname)
    }

    /// Is it the same attachment in the same namespace?
    fn is_same(&self, other: &Owner) -> bool {
        (&self.boot, self.cookie) == (&other.boot, other.cookie)
    }

    /// The namespace, if it still is: at the path that DEL was given, or at that of the ADD.
    fn namespace(&self, given: &Found) -> Result<Option<Netns>> {
        if boot_id()? != self.boot {
            return Ok(None);
        }
        for found in [given, &cnikit_netns::find(&self.netns)] {
            if let Found::Present(netns) | Found::Own(netns) = found
                && cookie(netns)? == self.cookie
            {
                return Ok(Some(netns.clone()));
            }
        }
        Ok(None)
    }
}

/// None where the kernel knows none.
fn cookie(netns: &Netns) -> Result<Option<u64>> {
    match netns.cookie() {
        Err(error) if error.errno() == Some(Errno::ENOPROTOOPT as i32) => Ok(None),
        cookie => Ok(Some(cookie?)),
    }
}

/// How a kind gives back its part: takes it out of what is kept, and writes it where it was, if there still is a namespace.
pub(crate) type GiveBack = fn(&mut Lent, ifname: &str, netns: Option<&Netns>) -> Result<()>;

/// Gives back what belongs to one attachment.
pub(crate) fn release(remains: &Remains, give_back: GiveBack) -> Result<()> {
    let Some(directory) = existing(&kept_in(&remains.conf))? else { return Ok(()) };
    let one = |name: &String| {
        directory.discard_unfinished_of(name)?;
        let Some(lent) = read(&directory, name)? else { return Ok(directory.remove(name).map(drop)?) };
        let netns = match &lent.owner {
            Some(owner) if owner.is(&remains.tag) => owner.namespace(&remains.netns)?,
            Some(_) => return Ok(()),
            None => unmarked(remains)?,
        };
        if netns.is_none() && matches!(remains.netns, Found::Unknown { .. }) {
            remains.container()?; // says why: what it has may still be given back
        }
        settle(&directory, name, lent, &remains.tag.ifname, netns.as_ref(), give_back)
    };
    names(&remains.tag).iter().map(one).collect::<Errors>().finish()
}

/// Gives back what belongs to this network and to no valid attachment. The reference's files name no network.
pub(crate) fn sweep(stale: &Stale, give_back: GiveBack) -> Result<()> {
    let Some(directory) = existing(&kept_in(&stale.conf))? else { return Ok(()) };
    directory.discard_unfinished()?;
    let names = directory.list()?.into_iter().filter_map(|name| name.into_string().ok());
    let one = |name: String| {
        let Some(lent) = read(&directory, &name)? else { return Ok(()) };
        let Some(owner) = lent.owner.clone().filter(|owner| owner.network == stale.network) else { return Ok(()) };
        if stale.valid.has(&owner.container, &owner.ifname) {
            return Ok(());
        }
        let netns = owner.namespace(&Found::Empty)?;
        settle(&directory, &name, lent, &owner.ifname, netns.as_ref(), give_back)
    };
    names.filter(|name| name.strip_suffix(".json").is_some()).map(one).collect::<Errors>().finish()
}

/// The directory; none if nothing was ever kept.
fn existing(dir: &Path) -> Result<Option<Directory>> {
    match Directory::open(dir) {
        Err(error) if error.is_absent() => Ok(None),
        opened => Ok(Some(opened?)),
    }
}

/// The reference does not say of which namespace its file speaks: the interface has to be the one of the record.
fn unmarked(remains: &Remains) -> Result<Option<Netns>> {
    let (Found::Present(netns), Some(container)) = (&remains.netns, remains.container()?) else { return Ok(None) };
    let link = container.find_link(&remains.tag.ifname)?;
    Ok(link.filter(|link| has_mac_of(remains, link)).map(|_| netns.clone()))
}

fn settle(
    directory: &Directory,
    name: &str,
    mut lent: Lent,
    ifname: &str,
    netns: Option<&Netns>,
    give_back: GiveBack,
) -> Result<()> {
    give_back(&mut lent, ifname, netns)?;
    if lent.is_empty() { Ok(directory.remove(name).map(drop)?) } else { lent.write(directory, name) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tag(network: &str, container: &str, ifname: &str) -> Tag {
        Tag { network: network.into(), container: container.into(), ifname: ifname.into() }
    }

    fn lent(tag: &Tag, mtu: u32) -> Lent {
        let Tag { network, container, ifname } = tag.clone();
        let (boot, cookie, netns) = ("b".into(), Some(u64::MAX), "/run/netns/x".into());
        let owner = Owner { network, container, ifname, boot, cookie, netns, sysctls: Vec::new() };
        let link = Settings { mtu: Some(mtu), ..Settings::default() };
        Lent { link, sysctls: vec![("net/a".into(), "1\t2".into())], owner: Some(owner) }
    }

    #[test]
    fn what_is_written_is_read_and_the_reference_finds_its_own_keys() {
        let dir = tempfile::tempdir().unwrap();
        let (directory, own) = (Directory::open(dir.path()).unwrap(), tag("n", "c", "eth0"));
        let kept = lent(&own, 1500);
        kept.write(&directory, &names(&own)[0]).unwrap();
        assert_eq!(own_place(&directory, &own).unwrap(), ("c_eth0.json".into(), Some(kept)));
        let text = std::fs::read_to_string(dir.path().join("c_eth0.json")).unwrap();
        assert!(text.starts_with(r#"{"mtu":1500,"cnikit":{"network":"n","#), "{text}");
    }

    #[test]
    fn networks_that_share_the_references_name_have_a_file_each() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let (one, two) = (tag("n", "a_b", "c"), tag("n", "a", "b_c"));
        lent(&one, 1500).write(&directory, &own_place(&directory, &one).unwrap().0).unwrap();
        let (name, found) = own_place(&directory, &two).unwrap();
        assert!(name.starts_with("a_b_c.") && name.len() == "a_b_c..json".len() + 32 && found.is_none(), "{name}");
        lent(&two, 1400).write(&directory, &name).unwrap();
        assert_eq!(own_place(&directory, &one).unwrap().1.unwrap().link.mtu, Some(1500));
        assert_eq!(own_place(&directory, &two).unwrap().1.unwrap().link.mtu, Some(1400));
    }

    #[test]
    fn a_file_of_the_references_is_taken_over_and_garbage_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let (directory, own) = (Directory::open(dir.path()).unwrap(), tag("n", "c", "eth0"));
        let theirs = "{\n \"mac\": \"0a:00:00:00:00:07\",\n \"promisc\": false,\n \"txQLen\": 1000\n}";
        std::fs::write(dir.path().join("c_eth0.json"), theirs).unwrap();
        let (name, found) = own_place(&directory, &own).unwrap();
        let link = found.unwrap().link;
        assert_eq!((name.as_str(), link.promisc, link.tx_queue_length), ("c_eth0.json", Some(false), Some(1000)));
        std::fs::write(dir.path().join("c_eth0.json"), &theirs[..20]).unwrap();
        assert_eq!(own_place(&directory, &own).unwrap(), ("c_eth0.json".into(), None));
    }

    #[test]
    fn the_longest_container_id_has_a_name() {
        let names = names(&tag("n", &"c".repeat(400), "eth0"));
        assert!(names.iter().all(|name| name.len() < 100) && names[0] != names[1], "{names:?}");
    }
}
