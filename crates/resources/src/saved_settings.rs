//! Settings that a plugin replaced, stored in a file until DEL or GC restores them.
//!
//! The file is that of upstream's tuning plugin, `CONTAINER_IFNAME.json` in `dataDir`, with one more member. So each of the two
//! plugins can restore what the other one changed. The member names the attachment and its namespace, and holds the values of
//! sysctls, which upstream does not store. The file is complete and synced before anything is changed.

mod link_values;
mod owner;

use std::fmt;
use std::path::{Path, PathBuf};

use cnikit_netns::Netns;
use cnikit_plan::{ApplyContext, GcContext, ReleaseContext};
use cnikit_skel::{AttachmentId, Error, Errors, Journal, NetnsLookup, Result, log};
use cnikit_store::{Directory, check_version};
use cnikit_types::{Map, NetConf, Value};
use nix::errno::Errno;
use serde::Deserialize;

use crate::identity::alias::hex;
use crate::identity::recorded::has_mac_of;
use crate::stored_file::{self, DIRECTORY_MODE, MODE, PreviousFile, StoredFile, remove_unusable, warn_of_newer};
pub use link_values::LinkValues;
pub(crate) use owner::Owner;

/// Upstream's directory for these files. A reboot empties it, and the links and namespaces that they describe are gone then too.
const DEFAULT_DIR: &str = "/run/cni/tuning";
/// The member that upstream's files do not have.
const MEMBER: &str = "cnikit";
/// The key of the format's version in that member. A file without it has version 1.
const VERSION: &str = "version";
/// The version of the format that is written, and the newest that is read. Every later version has `network`, `container` and
/// `ifname` in the member, too, so that this release knows the owner.
const FORMAT: u64 = 1;
/// The longest file name without its ending, in bytes. The kernel takes 255, and a temporary file needs some of them.
const LONGEST: usize = 200;
/// The largest file that is read, in bytes. No configuration fills so much.
const LIMIT: usize = 16 << 20;
/// How often [`record`] chooses a file. Another process that chooses at the same time can take each name only once.
const TRIES: usize = 8;

/// The values from before one attachment changed them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct SavedSettings {
    /// Values of the link.
    pub(crate) link: LinkValues,
    /// Settings below `net/`, in the order in which they were changed.
    pub(crate) sysctls: Vec<(String, String)>,
    /// The attachment and its namespace. None in a file that upstream wrote.
    pub(crate) owner: Option<Owner>,
}

/// The directory of the files: `dataDir`. DEL and GC read nothing else of the configuration.
pub fn data_dir(conf: &NetConf) -> PathBuf {
    stored_file::data_dir(conf, DEFAULT_DIR)
}

/// Checks that a file could be created in `dir`. STATUS calls this, and ADD before it changes anything.
///
/// # Errors
/// A file could not be created, see [`Directory::probe_at`].
pub fn available(dir: &Path) -> Result<()> {
    Ok(Directory::probe_at(dir)?)
}

/// Stores `before`, before anything is changed. Values that the attachment has stored already are older, and are not replaced.
pub(crate) fn record(context: &ApplyContext, dir: &Path, journal: &mut Journal, before: &SavedSettings) -> Result<()> {
    let directory = Directory::make(dir, DIRECTORY_MODE)?;
    let owner = Owner::of(context)?;
    for _ in 0..TRIES {
        let Some((name, found)) = choose_file(&directory, &context.tag)? else { break };
        let stored = match &found {
            Some(saved) if is_of_this_life(saved, context, &owner, &directory, &name)? => saved.clone(),
            _ => SavedSettings::default(),
        };
        let content = before.added_to(stored, &owner).content()?;
        let content_before = match &found {
            Some(saved) => Some(saved.content()?),
            None => None,
        };
        let previous =
            PreviousFile { content: "old values", dir: dir.to_owned(), name: name.clone(), before: content_before };
        if previous.before.is_some() {
            // As long as the settings of the earlier file may still be changed, DEL needs that file.
            let _ = journal.undo_if_clean(&previous, PreviousFile::put_back);
            return Ok(directory.replace_and_sync(&name, &content, MODE)?);
        }
        if directory.create_and_sync(&name, &content, MODE)?.is_some() {
            let _ = journal.undo_if_clean(&previous, PreviousFile::put_back);
            return Ok(());
        }
    }
    let text = format!("the files for {} in {} are taken", context.tag, dir.display());
    Err(Error::conflict(text).hint("remove the files there with the names of this container"))
}

/// Whether the values were stored earlier for the same namespace.
///
/// A file of upstream does not name the namespace. It has to be younger than the namespace, because a container that is started
/// again keeps its id, and the interface has to be the one of the record, as for DEL.
fn is_of_this_life(
    saved: &SavedSettings,
    context: &ApplyContext,
    owner: &Owner,
    directory: &Directory,
    name: &str,
) -> Result<bool> {
    if let Some(stored) = &saved.owner {
        return Ok(stored.is_same(owner));
    }
    let since = context.netns.held_since()?;
    match directory.facts(name)? {
        Some(facts) if facts.changed >= since => {}
        _ => return Ok(false),
    }
    let link = context.container()?.find_recent_link(&context.tag.ifname)?;
    Ok(link.is_some_and(|link| has_mac_of(Some(&context.record), &context.tag.ifname, &link)))
}

/// The name of the file for an attachment, and its content: the attachment's own file if there is one, otherwise the first name
/// that is free or has a file of upstream, which does not name its owner. Damaged files are left to DEL.
///
/// # Errors
/// The attachment's own file has a version that this release cannot read.
fn choose_file(directory: &Directory, tag: &AttachmentId) -> Result<Option<(String, Option<SavedSettings>)>> {
    let mut free = None;
    for name in names(tag) {
        match read(directory, &name)? {
            StoredFile::Valid(saved) if saved.is_of(tag) => return Ok(Some((name, Some(*saved)))),
            StoredFile::Valid(saved) if saved.owner.is_none() => free = free.or(Some((name, Some(*saved)))),
            StoredFile::Absent => free = free.or(Some((name, None))),
            StoredFile::Newer { version, owner } if owner.as_ref().is_none_or(|owner| owner == tag) => {
                check_version(directory.path().join(&name), version, FORMAT)?;
            }
            StoredFile::Valid(_) | StoredFile::Newer { .. } | StoredFile::Damaged => {}
        }
    }
    Ok(free)
}

/// The names that an attachment's file may have, first choice first. The first is upstream's, which is the same for two networks.
fn names(tag: &AttachmentId) -> [String; 2] {
    let hash = hex(&tag.hash()[..16]);
    let mut clear = format!("{}_{}", tag.container, tag.ifname);
    if clear.len() > LONGEST {
        clear.clone_from(&hash);
    }
    [format!("{clear}.json"), format!("{clear}.{hash}.json")]
}

fn read(directory: &Directory, name: &str) -> Result<StoredFile<SavedSettings>> {
    stored_file::read(directory, name, LIMIT, parse)
}

/// Parses a file. Of a later version only the owner is read.
fn parse(content: &[u8]) -> Result<StoredFile<SavedSettings>, serde_json::Error> {
    let whole: Value = serde_json::from_slice(content)?;
    if let Some(version) = whole.get(MEMBER).and_then(|member| member.get(VERSION)) {
        let version = u64::deserialize(version)?;
        if version > FORMAT {
            return Ok(StoredFile::Newer { version, owner: owner_of_newer(&whole[MEMBER]) });
        }
    }
    Ok(StoredFile::Valid(Box::new(SavedSettings::parse(whole)?)))
}

/// The attachment that a file of a later version names.
fn owner_of_newer(member: &Value) -> Option<AttachmentId> {
    let text = |key: &str| member.get(key).and_then(Value::as_str).map(str::to_owned);
    Some(AttachmentId { network: text("network")?, container: text("container")?, ifname: text("ifname")? })
}

impl SavedSettings {
    fn parse(whole: Value) -> Result<SavedSettings, serde_json::Error> {
        let mut saved = SavedSettings::default();
        if let Some(member) = whole.get(MEMBER) {
            let mut owner = Owner::deserialize(member)?;
            saved.sysctls = std::mem::take(&mut owner.sysctls);
            saved.owner = Some(owner);
        }
        saved.link = LinkValues::deserialize(whole)?;
        Ok(saved)
    }

    fn content(&self) -> Result<Vec<u8>> {
        let mut whole = serde_json::to_value(&self.link)?;
        if let Some(owner) = &self.owner {
            let mut member = Map::from_iter([(VERSION.to_owned(), FORMAT.into())]);
            let owner = serde_json::to_value(Owner { sysctls: self.sysctls.clone(), ..owner.clone() })?;
            if let Value::Object(owner) = owner {
                member.extend(owner);
            }
            whole[MEMBER] = Value::Object(member);
        }
        Ok(whole.to_string().into_bytes())
    }

    /// `stored`, with those values of `self` that it does not have.
    fn added_to(&self, mut stored: SavedSettings, owner: &Owner) -> SavedSettings {
        let older = stored.sysctls.len();
        for (key, value) in &self.sysctls {
            if stored.sysctls[..older].iter().all(|(known, _)| known != key) {
                stored.sysctls.push((key.clone(), value.clone()));
            }
        }
        stored.link = stored.link.or(&self.link);
        stored.owner = Some(owner.clone());
        stored
    }

    fn is_of(&self, tag: &AttachmentId) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.is(tag))
    }

    fn is_empty(&self) -> bool {
        self.link == LinkValues::default() && self.sysctls.is_empty()
    }
}

/// Restores the values of one kind: takes them out of the saved settings, and writes them into the namespace if it still exists.
pub(crate) type RestoreValues = fn(&mut SavedSettings, ifname: &str, netns: Option<&Netns>) -> Result<()>;

/// Errors by which the kernel refuses the value itself, and will as long as the namespace exists: the link below does not support
/// the value any more, or another link has the address. `EPERM` is not one of them, because the permission may be granted later.
const VALUE_REFUSED: [Errno; 6] = [
    Errno::EINVAL,
    Errno::ERANGE,
    Errno::EOPNOTSUPP,
    Errno::EADDRINUSE,
    Errno::EADDRNOTAVAIL,
    Errno::EBUSY, // of drivers that cannot change the MAC of a link that is up
];

/// Whether the kernel refused the value itself. If DEL tried it again, it would never succeed.
pub(crate) fn is_value_refused(errno: i32) -> bool {
    VALUE_REFUSED.contains(&Errno::from_raw(errno))
}

/// Logs that a value is not restored, and why.
pub(crate) fn warn_not_restored(why: impl fmt::Display) {
    log::warn(format_args!("{why}: an old value that is not restored"));
}

/// Restores the values of one attachment.
pub(crate) fn release(context: &ReleaseContext, restore: RestoreValues) -> Result<()> {
    let Some(directory) = Directory::open_if_any(data_dir(&context.conf))? else { return Ok(()) };
    let mut errors = Errors::default();
    for name in names(&context.tag) {
        errors.note(release_file(context, &directory, &name, restore));
    }
    errors.finish()
}

fn release_file(context: &ReleaseContext, directory: &Directory, name: &str, restore: RestoreValues) -> Result<()> {
    directory.discard_unfinished_of(name)?;
    let saved = match read(directory, name)? {
        StoredFile::Absent => return Ok(()),
        StoredFile::Damaged => return remove_unusable(directory, name),
        StoredFile::Newer { owner: Some(owner), .. } if owner != context.tag => return Ok(()),
        StoredFile::Newer { version, .. } => {
            warn_of_newer(directory, name, version, FORMAT);
            return remove_unusable(directory, name);
        }
        StoredFile::Valid(saved) => *saved,
    };
    let netns = match &saved.owner {
        Some(owner) if owner.is(&context.tag) => owner.namespace(&context.netns)?,
        Some(_) => return Ok(()),
        None => namespace_of_upstream(context)?,
    };
    restore_values(directory, name, saved, &context.tag.ifname, netns.as_ref(), restore)
}

/// Restores the values of every attachment of this network that is not valid any more. Upstream's files do not name the network,
/// so they are left to DEL.
pub(crate) fn sweep(context: &GcContext, restore: RestoreValues) -> Result<()> {
    stored_file::sweep_all(&data_dir(&context.conf), ".json", |directory, name| {
        sweep_file(context, directory, name, restore)
    })
}

fn sweep_file(context: &GcContext, directory: &Directory, name: &str, restore: RestoreValues) -> Result<()> {
    let saved = match read(directory, name)? {
        StoredFile::Valid(saved) => saved,
        StoredFile::Newer { version, .. } => {
            warn_of_newer(directory, name, version, FORMAT);
            return Ok(());
        }
        StoredFile::Absent | StoredFile::Damaged => return Ok(()),
    };
    let Some(owner) = saved.owner.clone() else { return Ok(()) };
    if !owner.is_swept(context)? {
        return Ok(());
    }
    let netns = owner.namespace(&NetnsLookup::Empty)?;
    restore_values(directory, name, *saved, &owner.ifname, netns.as_ref(), restore)
}

/// The namespace that a file of upstream is about. It does not name it, so the interface has to be the one of the record.
fn namespace_of_upstream(context: &ReleaseContext) -> Result<Option<Netns>> {
    let (NetnsLookup::Present(netns), Some(container)) = (&context.netns, context.container()?) else {
        return Ok(None);
    };
    match container.find_link(&context.tag.ifname)? {
        Some(link) if has_mac_of(context.prev.as_ref(), &context.tag.ifname, &link) => Ok(Some(netns.clone())),
        _ => Ok(None),
    }
}

fn restore_values(
    directory: &Directory,
    name: &str,
    mut saved: SavedSettings,
    ifname: &str,
    netns: Option<&Netns>,
    restore: RestoreValues,
) -> Result<()> {
    let before = saved.clone();
    restore(&mut saved, ifname, netns)?;
    if saved.is_empty() {
        directory.remove(name)?;
    } else if saved != before {
        let content = saved.content()?;
        match directory.replace(name, &content, MODE) {
            // It is shorter than it was, so it can be rewritten in place without more space.
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

    fn saved(tag: &AttachmentId, mtu: u32) -> SavedSettings {
        let AttachmentId { network, container, ifname } = tag.clone();
        let boot = "b".into();
        let cookie = Some(u64::MAX);
        let netns = "/run/netns/x".into();
        let owner = Owner { network, container, ifname, boot, cookie, hold: None, netns, sysctls: Vec::new() };
        let link = LinkValues { mtu: Some(mtu), ..LinkValues::default() };
        SavedSettings { link, sysctls: vec![("net/a".into(), "1\t2".into())], owner: Some(owner) }
    }

    fn write(directory: &Directory, name: &str, saved: &SavedSettings) {
        directory.replace(name, &saved.content().unwrap(), MODE).unwrap();
    }

    /// A full disk is no reason to write what has not changed; what has changed is shorter.
    #[test]
    fn a_kind_with_nothing_to_restore_writes_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let own = tag("n", "c", "eth0");
        let stored = saved(&own, 1500);
        write(&directory, "a", &stored);
        let facts = directory.facts("a").unwrap();
        restore_values(&directory, "a", stored.clone(), "eth0", None, |_, _, _| Ok(())).unwrap();
        assert_eq!(directory.facts("a").unwrap(), facts);
        let taken = |saved: &mut SavedSettings, _: &str, _: Option<&Netns>| {
            saved.sysctls.clear();
            Ok(())
        };
        restore_values(&directory, "a", stored.clone(), "eth0", None, taken).unwrap();
        assert_eq!(
            read(&directory, "a").unwrap(),
            StoredFile::Valid(Box::new(SavedSettings { sysctls: Vec::new(), ..stored }))
        );
    }

    #[test]
    fn saved_settings_are_read_again_and_have_the_keys_of_upstream() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let own = tag("n", "c", "eth0");
        let stored = saved(&own, 1500);
        write(&directory, &names(&own)[0], &stored);
        assert_eq!(choose_file(&directory, &own).unwrap(), Some(("c_eth0.json".into(), Some(stored))));
        let text = std::fs::read_to_string(dir.path().join("c_eth0.json")).unwrap();
        assert!(text.starts_with(r#"{"mtu":1500,"cnikit":{"version":1,"network":"n","#), "{text}");
    }

    #[test]
    fn networks_that_share_upstreams_name_have_a_file_each() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let one = tag("n", "a_b", "c");
        let two = tag("n", "a", "b_c");
        write(&directory, &choose_file(&directory, &one).unwrap().unwrap().0, &saved(&one, 1500));
        let (name, found) = choose_file(&directory, &two).unwrap().unwrap();
        assert!(name.starts_with("a_b_c.") && name.len() == "a_b_c..json".len() + 32 && found.is_none(), "{name}");
        write(&directory, &name, &saved(&two, 1400));
        for (tag, mtu) in [(&one, 1500), (&two, 1400)] {
            let (_, found) = choose_file(&directory, tag).unwrap().unwrap();
            assert_eq!(found.unwrap().link.mtu, Some(mtu));
        }
    }

    #[test]
    fn a_file_of_upstream_is_adopted_and_a_damaged_one_is_not() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let own = tag("n", "c", "eth0");
        let theirs = "{\n \"mac\": \"0a:00:00:00:00:07\",\n \"promisc\": false,\n \"txQLen\": 1000\n}";
        std::fs::write(dir.path().join("c_eth0.json"), theirs).unwrap();
        let (name, found) = choose_file(&directory, &own).unwrap().unwrap();
        let link = found.unwrap().link;
        assert_eq!((name.as_str(), link.promisc, link.tx_queue_length), ("c_eth0.json", Some(false), Some(1000)));
        std::fs::write(dir.path().join("c_eth0.json"), &theirs[..20]).unwrap();
        assert_eq!(choose_file(&directory, &own).unwrap(), Some((names(&own)[1].clone(), None)));
        std::fs::create_dir(dir.path().join(&names(&own)[1])).unwrap();
        assert_eq!(choose_file(&directory, &own).unwrap(), None);
    }

    #[test]
    fn a_file_without_a_version_is_read_and_one_of_a_later_version_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let directory = Directory::open(dir.path()).unwrap();
        let own = tag("n", "c", "eth0");
        let before = saved(&own, 1500);
        let text = String::from_utf8(before.content().unwrap()).unwrap();
        let path = dir.path().join("c_eth0.json");
        std::fs::write(&path, text.replace(r#""version":1,"#, "")).unwrap();
        assert_eq!(choose_file(&directory, &own).unwrap(), Some(("c_eth0.json".into(), Some(before))));
        let later = text.replace(r#""version":1,"#, r#""version":2,"cookies":[],"#).replace("1500", "\"1500\"");
        std::fs::write(&path, &later).unwrap();
        let error = choose_file(&directory, &own).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()) && error.contains("version 2"), "{error}");
        let other = tag("other", "c", "eth0");
        assert_eq!(
            choose_file(&directory, &other).unwrap(),
            Some((names(&other)[1].clone(), None)),
            "another attachment's"
        );
        std::fs::write(&path, r#"{"cnikit":{"version":"2"}}"#).unwrap();
        assert_eq!(read(&directory, "c_eth0.json").unwrap(), StoredFile::Damaged);
    }

    #[test]
    fn the_longest_container_id_has_a_name() {
        let names = names(&tag("n", &"c".repeat(400), "eth0"));
        assert!(names.iter().all(|name| name.len() < 100) && names[0] != names[1], "{names:?}");
    }
}
