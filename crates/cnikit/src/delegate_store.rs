//! Configurations of delegates, kept in files until their DEL.

use std::fmt;
use std::path::PathBuf;

use cnikit_skel::{AttachmentId, Error, Result, ValidAttachments, log};
use cnikit_store::Directory;
use cnikit_types::{NetConf, Value};
use serde_json::json;

/// More than any stdin that is taken.
const LIMIT: usize = 16 << 20;

/// Of a name, so that temporary files can be called after it.
const LONGEST: usize = 200;

/// The member that says whose a file is. The reference's delegating plugins pass over it, and so do their delegates.
const OURS: &str = "cnikit";

/// A directory of configurations, one file each.
///
/// The reference calls a file by the container's id alone, and finds none that is called otherwise. So we call it so too, and
/// say in it which attachment it is; where that name is another's, as with two networks of one container, it is called by a
/// hash of the tag. An attachment has two files while it is added again with another configuration, and after a kill then.
#[derive(Debug)]
pub(crate) struct DelegateStore {
    path: PathBuf,
    network: String,
}

/// One configuration that is kept.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    directory: PathBuf,
    name: String,
    container: String,
    /// The reference does not say it.
    ifname: Option<String>,
    /// What the delegate was given.
    pub(crate) conf: NetConf,
}

impl DelegateStore {
    /// Those of a network, in this directory, which need not be there.
    pub(crate) fn new(path: PathBuf, network: &str) -> DelegateStore {
        DelegateStore { path, network: network.to_owned() }
    }

    /// What is kept of an attachment: the files that say so, else one that does not say whose it is and can be its.
    pub(crate) fn find(&self, tag: &AttachmentId) -> Result<Vec<Saved>> {
        let Some(directory) = Directory::open_if_any(&self.path)? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for name in names(tag) {
            found.extend(self.read(&directory, &name)?.filter(|saved| saved.can_be_of(tag)));
        }
        if found.iter().any(Saved::says_whose) {
            found.retain(Saved::says_whose);
        }
        Ok(found)
    }

    /// Every one of the network; one that the kernel does not let us read hides no other.
    pub(crate) fn all(&self) -> Result<Vec<Result<Saved>>> {
        let Some(directory) = Directory::open_if_any(&self.path)? else { return Ok(Vec::new()) };
        directory.discard_unfinished()?;
        let names = directory.list()?.into_iter().map(|name| name.to_string_lossy().into_owned());
        let names = names.filter(|name| !name.starts_with('.'));
        Ok(names.filter_map(|name| self.read(&directory, &name).transpose()).collect())
    }

    /// Keeps a configuration of an attachment, beside what else is kept of it.
    ///
    /// Nothing is synced: a power cut ends every container, and an address that it held is known to be of an earlier boot.
    pub(crate) fn save(&self, tag: &AttachmentId, conf: &NetConf) -> Result<Saved> {
        let directory = Directory::make(&self.path, 0o700)?;
        let content = marked(tag, conf);
        for name in names(tag) {
            if directory.create(&name, &content, 0o600)?.is_some() {
                let container = tag.container.clone();
                let ifname = Some(tag.ifname.clone());
                return Ok(Saved { directory: self.path.clone(), name, container, ifname, conf: conf.clone() });
            }
        }
        Err(Error::conflict(format!("the files for {tag} in {} are taken", self.path.display()))
            .hint("DEL the attachment; if that does not help, remove the files of this container there"))
    }

    /// Keeps this configuration alone, of those that say that they are the attachment's; at every moment it is there.
    pub(crate) fn remove(&self, tag: &AttachmentId, conf: &NetConf) -> Result<()> {
        let mut own = self.find(tag)?.into_iter().filter(Saved::says_whose);
        if let Some(first) = own.next().filter(|first| first.conf != *conf) {
            Directory::open(&self.path)?.replace(&first.name, &marked(tag, conf), 0o600)?;
        }
        own.try_for_each(|other| other.remove())
    }

    /// Whether one could be kept.
    pub(crate) fn probe(&self) -> Result<()> {
        let path = self.path.display();
        let what = format_args!("no configuration can be kept in {path}");
        Directory::probe_at(&self.path).map_err(|error| Error::from(error).context(what))
    }

    /// What a file says, if it is of this network. One that cannot be understood is passed over, and nothing done about it:
    /// nobody can say whose it is.
    fn read(&self, directory: &Directory, name: &str) -> Result<Option<Saved>> {
        let read = match directory.read(name, LIMIT) {
            Err(error) if error.is_garbage() => Some(Err(error.to_string())),
            read => read?.map(|(content, _)| NetConf::parse(&content).map_err(|error| error.to_string())),
        };
        let mut conf = match read {
            None => return Ok(None),
            Some(Ok(conf)) => conf,
            Some(Err(why)) => {
                let path = self.path.join(name);
                log::warn(format_args!("{} is passed over, for it is no configuration: {why}", path.display()));
                return Ok(None);
            }
        };
        let said = |key| conf.at(&[OURS, key]).and_then(Value::as_str).map(str::to_owned);
        let container = said("containerID").unwrap_or_else(|| name.to_owned());
        let ifname = said("ifname");
        conf.0.shift_remove(OURS);
        let is_ours = conf.name() == Some(&self.network);
        let saved = Saved { directory: self.path.clone(), name: name.to_owned(), container, ifname, conf };
        Ok(Some(saved).filter(|_| is_ours))
    }
}

/// The content of a file.
fn marked(tag: &AttachmentId, conf: &NetConf) -> Vec<u8> {
    let mut marked = conf.clone();
    marked.set(OURS, json!({"containerID": tag.container, "ifname": tag.ifname}));
    marked.to_vec()
}

/// The names that the file of an attachment may have, the first that is free first. No container's id has a colon.
fn names(tag: &AttachmentId) -> impl Iterator<Item = String> {
    let hashed = |mark: &str| tag.hash().first_chunk().map(|half| format!("{mark}{:032x}", u128::from_be_bytes(*half)));
    [Some(tag.container.clone()), hashed(":"), hashed("::")].into_iter().flatten().filter(|name| name.len() <= LONGEST)
}

impl Saved {
    /// Whose it is; of one that does not say the interface, `None`.
    pub(crate) fn tag(&self) -> Option<AttachmentId> {
        let network = self.conf.name().unwrap_or_default().to_owned();
        Some(AttachmentId { network, container: self.container.clone(), ifname: self.ifname.clone()? })
    }

    /// Is it ours, and not the reference's?
    pub(crate) fn says_whose(&self) -> bool {
        self.ifname.is_some()
    }

    fn can_be_of(&self, tag: &AttachmentId) -> bool {
        self.container == tag.container && self.ifname.as_ref().is_none_or(|ifname| *ifname == tag.ifname)
    }

    /// Is it, or may it be, of an attachment that is to stay?
    pub(crate) fn is_valid(&self, valid: &ValidAttachments) -> bool {
        let is_it =
            |(container, ifname)| container == self.container && self.ifname.as_ref().is_none_or(|own| own == ifname);
        valid.iter().any(is_it)
    }

    /// There is nothing left to delete by it. That it is gone already is as good.
    pub(crate) fn remove(&self) -> Result<()> {
        match Directory::open(&self.directory).and_then(|directory| directory.remove(&self.name)) {
            Err(error) if !error.is_absent() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configuration kept in {}", self.directory.join(&self.name).display())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn tag(network: &str, ifname: &str) -> AttachmentId {
        AttachmentId { network: network.into(), container: "c1".into(), ifname: ifname.into() }
    }

    fn conf(network: &str, mtu: u32) -> NetConf {
        NetConf::parse(json!({"name": network, "type": "bridge", "mtu": mtu}).to_string().as_bytes()).unwrap()
    }

    fn kept(dir: &tempfile::TempDir, network: &str) -> DelegateStore {
        DelegateStore::new(dir.path().join("flannel"), network)
    }

    fn only(found: Result<Vec<Saved>>) -> Saved {
        let [only]: [Saved; 1] = found.unwrap().try_into().unwrap();
        only
    }

    fn files(dir: &tempfile::TempDir) -> usize {
        fs::read_dir(dir.path().join("flannel")).unwrap().count()
    }

    #[test]
    fn each_attachment_of_a_container_has_its_own_and_one_the_name_that_the_reference_looks_for() {
        let dir = tempfile::tempdir().unwrap();
        let all = [("one", "eth0"), ("one", "eth1"), ("two", "eth0")];
        assert!(kept(&dir, "one").find(&tag("one", "eth0")).unwrap().is_empty(), "not even the directory is there");
        for (mtu, (network, ifname)) in (1400..).zip(all) {
            kept(&dir, network).save(&tag(network, ifname), &conf(network, mtu)).unwrap();
        }
        let first = fs::read(dir.path().join("flannel/c1")).unwrap();
        assert_eq!(NetConf::parse(&first).unwrap().get("mtu"), Some(&json!(1400)));
        for (mtu, (network, ifname)) in (1400..).zip(all) {
            let kept = kept(&dir, network);
            let tag = tag(network, ifname);
            let found = only(kept.find(&tag));
            assert_eq!((found.tag(), &found.conf), (Some(tag.clone()), &conf(network, mtu)));
            kept.save(&tag, &conf(network, 9000)).unwrap();
            assert_eq!((kept.find(&tag).unwrap().len(), files(&dir)), (2, 4), "the one before stays");
            kept.remove(&tag, &conf(network, 9000)).unwrap();
            let settled = only(kept.find(&tag));
            assert_eq!((settled.name, settled.conf), (found.name, conf(network, 9000)), "where the reference looks");
        }
        assert_eq!((kept(&dir, "one").all().unwrap().len(), kept(&dir, "two").all().unwrap().len()), (2, 1));
        assert!(kept(&dir, "one").find(&tag("one", "eth2")).unwrap().is_empty());
        for saved in kept(&dir, "one").all().unwrap() {
            let saved = saved.unwrap();
            saved.remove().unwrap();
            saved.remove().unwrap();
        }
        assert_eq!(files(&dir), 1);
    }

    #[test]
    fn what_the_reference_kept_is_anybodys_of_its_container_and_network_and_replaced_by_nobody() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("flannel")).unwrap();
        let file = dir.path().join("flannel/c1");
        fs::write(&file, conf("one", 1400).to_vec()).unwrap();
        let kept_one = kept(&dir, "one");
        let eth1 = tag("one", "eth1");
        assert!(kept(&dir, "two").find(&tag("two", "eth0")).unwrap().is_empty());
        let found = only(kept_one.find(&eth1));
        assert_eq!((found.tag(), &found.conf), (None, &conf("one", 1400)));
        let valid =
            |container: &str| [(container.to_owned(), "eth0".to_owned())].into_iter().collect::<ValidAttachments>();
        assert!(found.is_valid(&valid("c1")) && !found.is_valid(&valid("c2")));
        kept_one.save(&eth1, &conf("one", 9000)).unwrap();
        kept_one.remove(&eth1, &conf("one", 9000)).unwrap();
        assert_eq!(fs::read(&file).unwrap(), conf("one", 1400).to_vec());
        assert_eq!(only(kept_one.find(&eth1)).conf, conf("one", 9000), "what says whose it is counts alone");
    }

    #[test]
    fn what_cannot_be_understood_is_passed_over_and_stands_in_nobodys_way() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("flannel")).unwrap();
        fs::write(dir.path().join("flannel/c1"), "{\"name\":\"one\",").unwrap();
        fs::create_dir(dir.path().join("flannel/c2")).unwrap();
        let kept = kept(&dir, "one");
        let eth0 = tag("one", "eth0");
        assert!(kept.find(&eth0).unwrap().is_empty() && kept.all().unwrap().is_empty());
        for more in 1..=2 {
            kept.save(&eth0, &conf("one", 1400)).unwrap();
            assert_eq!((kept.find(&eth0).unwrap().len(), files(&dir)), (more, 2 + more));
        }
        assert!(kept.save(&eth0, &conf("one", 1400)).unwrap_err().msg.contains("one/c1/eth0"), "all names are taken");
        let long = AttachmentId { container: "c".repeat(300), ..eth0 };
        kept.save(&long, &conf("one", 1500)).unwrap();
        assert_eq!(only(kept.find(&long)).tag(), Some(long));
    }
}
