//! Configurations of delegates, stored in files until the delegate's DEL.

use std::fmt;
use std::path::PathBuf;

use cnikit_skel::{AttachmentId, Error, Result, ValidSet, log};
use cnikit_store::{Directory, check_version};
use cnikit_types::{NetConf, Value};
use serde_json::json;

/// The largest file that is read, in bytes: more than the largest stdin.
const LIMIT: usize = 16 << 20;

/// The longest name of a file, in bytes. The names of temporary files are made from it and are longer.
const LONGEST: usize = 200;

/// The member that names the attachment of a file. Upstream's delegating plugins and their delegates ignore it.
const MEMBER: &str = "cnikit";

/// The version of the format that is written, and the newest that is read. It is in the member; a file without it has version 1.
/// Every later version has the network's `name`, and `containerID` and `ifname` in the member, too.
const FORMAT: u64 = 1;

/// A directory of configurations, one per file.
///
/// Upstream names a file after the container's id alone. The same name is used here, so that upstream finds the file, and the file
/// names its attachment. If another attachment has that name already, such as a second network of the container, the file is named
/// after a hash of the tag. An attachment has two files while it is added again with another configuration, and after a kill
/// in that moment.
#[derive(Debug)]
pub(crate) struct DelegateStore {
    path: PathBuf,
    network: String,
}

/// One stored configuration.
#[derive(Clone, Debug)]
pub(crate) struct Saved {
    directory: PathBuf,
    name: String,
    container: String,
    /// None in a file that upstream wrote.
    ifname: Option<String>,
    /// The version of the format. If it is above [`FORMAT`], a later release wrote the file, and only its owner is known.
    version: u64,
    /// The delegate's configuration.
    pub(crate) conf: NetConf,
}

impl DelegateStore {
    /// The configurations of a network, in this directory, which may not exist yet.
    pub(crate) fn new(path: PathBuf, network: &str) -> DelegateStore {
        DelegateStore { path, network: network.to_owned() }
    }

    /// The configurations of an attachment: the files that name it, otherwise one that names no attachment and can belong to it.
    /// A file of a later release is an error.
    pub(crate) fn find(&self, tag: &AttachmentId) -> Result<Vec<Saved>> {
        let found = self.find_any_version(tag)?;
        for saved in &found {
            check_version(saved.path(), saved.version, FORMAT)?;
        }
        Ok(found)
    }

    /// As [`DelegateStore::find`], for a DEL: a file of a later release is logged and skipped.
    pub(crate) fn find_readable(&self, tag: &AttachmentId) -> Result<Vec<Saved>> {
        let mut found = self.find_any_version(tag)?;
        found.retain(Saved::is_readable);
        Ok(found)
    }

    fn find_any_version(&self, tag: &AttachmentId) -> Result<Vec<Saved>> {
        let Some(directory) = Directory::open_if_any(&self.path)? else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for name in names(tag) {
            if let Some(saved) = self.read(&directory, &name)?
                && saved.can_be_of(tag)
            {
                found.push(saved);
            }
        }
        if found.iter().any(Saved::names_attachment) {
            found.retain(Saved::names_attachment);
        }
        Ok(found)
    }

    /// Every configuration of the network. A file that cannot be read is an error of its own and hides no other. A file of a
    /// later release is logged and skipped.
    pub(crate) fn all(&self) -> Result<Vec<Result<Saved>>> {
        let Some(directory) = Directory::open_if_any(&self.path)? else { return Ok(Vec::new()) };
        directory.discard_unfinished()?;
        let mut all = Vec::new();
        for name in directory.list()? {
            let name = name.to_string_lossy();
            if name.starts_with('.') {
                continue;
            }
            match self.read(&directory, &name) {
                Ok(Some(saved)) if saved.is_readable() => all.push(Ok(saved)),
                Ok(_) => {}
                Err(error) => all.push(Err(error)),
            }
        }
        Ok(all)
    }

    /// Stores a configuration of an attachment, in addition to those that are stored already.
    ///
    /// The file is not synced. A power cut ends every container, and their addresses are recognised as those of an earlier boot.
    pub(crate) fn save(&self, tag: &AttachmentId, conf: &NetConf) -> Result<Saved> {
        let directory = Directory::make(&self.path, 0o700)?;
        let content = marked(tag, conf);
        for name in names(tag) {
            if directory.create(&name, &content, 0o600)?.is_some() {
                let container = tag.container.clone();
                let ifname = Some(tag.ifname.clone());
                let directory = self.path.clone();
                return Ok(Saved { directory, name, container, ifname, version: FORMAT, conf: conf.clone() });
            }
        }
        Err(Error::conflict(format!("the files for {tag} in {} are taken", self.path.display()))
            .hint("DEL the attachment; if that does not help, remove the files of this container in that directory"))
    }

    /// Removes all other configurations that name the attachment. This configuration is stored at every moment.
    pub(crate) fn remove_others(&self, tag: &AttachmentId, conf: &NetConf) -> Result<()> {
        let mut own = self.find(tag)?.into_iter().filter(Saved::names_attachment);
        if let Some(first) = own.next()
            && first.conf != *conf
        {
            Directory::open(&self.path)?.replace(&first.name, &marked(tag, conf), 0o600)?;
        }
        for other in own {
            other.remove()?;
        }
        Ok(())
    }

    /// Checks that a configuration could be stored.
    pub(crate) fn probe(&self) -> Result<()> {
        let path = self.path.display();
        let what = format_args!("no configuration can be stored in {path}");
        Directory::probe_at(&self.path).map_err(|error| Error::from(error).context(what))
    }

    /// The configuration in a file, if it belongs to this network. A file that cannot be parsed is logged and skipped, because its
    /// attachment is unknown.
    fn read(&self, directory: &Directory, name: &str) -> Result<Option<Saved>> {
        let parsed = match directory.read(name, LIMIT) {
            Ok(None) => return Ok(None),
            Ok(Some((content, _))) => NetConf::parse(&content).map_err(|error| error.to_string()),
            Err(error) if error.is_garbage() => Err(error.to_string()),
            Err(error) => return Err(error.into()),
        };
        let mut conf = match parsed {
            Ok(conf) => conf,
            Err(why) => {
                let path = self.path.join(name);
                log::warn(format_args!("{} is skipped: it is not a configuration: {why}", path.display()));
                return Ok(None);
            }
        };
        if conf.name() != Some(&self.network) {
            return Ok(None);
        }
        let member = |key| conf.at(&[MEMBER, key]).and_then(Value::as_str).map(str::to_owned);
        let container = member("containerID").unwrap_or_else(|| name.to_owned());
        let ifname = member("ifname");
        let version = match conf.at(&[MEMBER, "version"]).map(Value::as_u64) {
            None => FORMAT,
            Some(Some(version)) => version,
            Some(None) => {
                let path = self.path.join(name);
                log::warn(format_args!("{} is skipped: its version is not a number", path.display()));
                return Ok(None);
            }
        };
        conf.0.shift_remove(MEMBER);
        Ok(Some(Saved { directory: self.path.clone(), name: name.to_owned(), container, ifname, version, conf }))
    }
}

/// The content of a file.
fn marked(tag: &AttachmentId, conf: &NetConf) -> Vec<u8> {
    let mut marked = conf.clone();
    marked.set(MEMBER, json!({"version": FORMAT, "containerID": tag.container, "ifname": tag.ifname}));
    marked.to_vec()
}

/// The names that the file of an attachment may have, first choice first. A container's id has no colon.
fn names(tag: &AttachmentId) -> Vec<String> {
    let mut names = Vec::new();
    if tag.container.len() <= LONGEST {
        names.push(tag.container.clone());
    }
    let [half @ .., _, _, _, _, _, _, _, _, _, _, _, _, _, _, _, _] = tag.hash();
    let hash = format!("{:032x}", u128::from_be_bytes(half));
    names.push(format!(":{hash}"));
    names.push(format!("::{hash}"));
    names
}

impl Saved {
    /// The attachment; `None` if the file does not name the interface.
    pub(crate) fn tag(&self) -> Option<AttachmentId> {
        let network = self.conf.name().unwrap_or_default().to_owned();
        Some(AttachmentId { network, container: self.container.clone(), ifname: self.ifname.clone()? })
    }

    /// Whether the file names its attachment. Upstream's files do not.
    pub(crate) fn names_attachment(&self) -> bool {
        self.ifname.is_some()
    }

    fn path(&self) -> PathBuf {
        self.directory.join(&self.name)
    }

    /// Whether this release can read the file. If it cannot, the reason is logged.
    fn is_readable(&self) -> bool {
        match check_version(self.path(), self.version, FORMAT) {
            Ok(()) => true,
            Err(newer) => {
                log::warn(format_args!("{newer}: it is skipped"));
                false
            }
        }
    }

    fn can_be_of(&self, tag: &AttachmentId) -> bool {
        self.container == tag.container && self.ifname.as_ref().is_none_or(|ifname| *ifname == tag.ifname)
    }

    /// Whether it belongs, or may belong, to a valid attachment.
    pub(crate) fn is_valid(&self, valid: &ValidSet) -> bool {
        for (container, ifname) in valid.iter() {
            if container == self.container && self.ifname.as_ref().is_none_or(|own| own == ifname) {
                return true;
            }
        }
        false
    }

    /// Removes the file. A file that is gone already is success.
    pub(crate) fn remove(&self) -> Result<()> {
        match Directory::open(&self.directory).and_then(|directory| directory.remove(&self.name)) {
            Err(error) if !error.is_absent() => Err(error.into()),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Saved {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "configuration stored in {}", self.path().display())
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

    fn store(dir: &tempfile::TempDir, network: &str) -> DelegateStore {
        DelegateStore::new(dir.path().join("flannel"), network)
    }

    fn only(found: Result<Vec<Saved>>) -> Saved {
        let [only]: [Saved; 1] = found.unwrap().try_into().unwrap();
        only
    }

    fn valid(container: &str, ifname: &str) -> ValidSet {
        [(container.to_owned(), ifname.to_owned())].into_iter().collect()
    }

    fn files(dir: &tempfile::TempDir) -> usize {
        fs::read_dir(dir.path().join("flannel")).unwrap().count()
    }

    #[test]
    fn each_attachment_has_its_own_file_and_one_has_the_name_of_upstream() {
        let dir = tempfile::tempdir().unwrap();
        let all = [("one", "eth0"), ("one", "eth1"), ("two", "eth0")];
        assert!(store(&dir, "one").find(&tag("one", "eth0")).unwrap().is_empty(), "not even the directory is there");
        for (mtu, (network, ifname)) in (1400..).zip(all) {
            store(&dir, network).save(&tag(network, ifname), &conf(network, mtu)).unwrap();
        }
        let first = fs::read(dir.path().join("flannel/c1")).unwrap();
        assert_eq!(NetConf::parse(&first).unwrap().get("mtu"), Some(&json!(1400)));
        for (mtu, (network, ifname)) in (1400..).zip(all) {
            let stored = store(&dir, network);
            let tag = tag(network, ifname);
            let found = only(stored.find(&tag));
            assert_eq!((found.tag(), &found.conf), (Some(tag.clone()), &conf(network, mtu)));
            stored.save(&tag, &conf(network, 9000)).unwrap();
            assert_eq!((stored.find(&tag).unwrap().len(), files(&dir)), (2, 4), "the one before stays");
            stored.remove_others(&tag, &conf(network, 9000)).unwrap();
            let left = only(stored.find(&tag));
            assert_eq!((left.name, left.conf), (found.name, conf(network, 9000)), "where upstream looks");
        }
        assert_eq!((store(&dir, "one").all().unwrap().len(), store(&dir, "two").all().unwrap().len()), (2, 1));
        assert!(store(&dir, "one").find(&tag("one", "eth2")).unwrap().is_empty());
        for saved in store(&dir, "one").all().unwrap() {
            let saved = saved.unwrap();
            saved.remove().unwrap();
            saved.remove().unwrap();
        }
        assert_eq!(files(&dir), 1);
    }

    #[test]
    fn a_file_of_upstream_fits_any_interface_and_is_never_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("flannel")).unwrap();
        let file = dir.path().join("flannel/c1");
        fs::write(&file, conf("one", 1400).to_vec()).unwrap();
        let in_one = store(&dir, "one");
        let eth1 = tag("one", "eth1");
        assert!(store(&dir, "two").find(&tag("two", "eth0")).unwrap().is_empty());
        let found = only(in_one.find(&eth1));
        assert_eq!((found.tag(), &found.conf), (None, &conf("one", 1400)));
        assert!(found.is_valid(&valid("c1", "eth0")) && !found.is_valid(&valid("c2", "eth0")));
        in_one.save(&eth1, &conf("one", 9000)).unwrap();
        in_one.remove_others(&eth1, &conf("one", 9000)).unwrap();
        assert_eq!(fs::read(&file).unwrap(), conf("one", 1400).to_vec());
        assert_eq!(only(in_one.find(&eth1)).conf, conf("one", 9000), "a file that names its attachment counts alone");
    }

    #[test]
    fn a_file_without_version_is_read_and_a_later_version_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let store = store(&dir, "one");
        let eth0 = tag("one", "eth0");
        store.save(&eth0, &conf("one", 1400)).unwrap();
        let file = dir.path().join("flannel/c1");
        let text = fs::read_to_string(&file).unwrap();
        fs::write(&file, text.replace(r#""version":1,"#, "")).unwrap();
        assert_eq!(only(store.find(&eth0)).conf, conf("one", 1400));
        fs::write(&file, text.replace(r#""version":1,"#, r#""version":2,"#)).unwrap();
        let error = store.find(&eth0).unwrap_err().to_string();
        assert!(error.contains(file.to_str().unwrap()) && error.contains("version 2"), "{error}");
        assert!(store.find_readable(&eth0).unwrap().is_empty() && store.all().unwrap().is_empty());
        assert!(store.find(&tag("one", "eth1")).unwrap().is_empty(), "it is another attachment's");
    }

    #[test]
    fn a_file_that_is_valid_for_one_interface_is_not_for_another() {
        let dir = tempfile::tempdir().unwrap();
        let saved = store(&dir, "one").save(&tag("one", "eth0"), &conf("one", 1400)).unwrap();
        assert!(saved.is_valid(&valid("c1", "eth0")) && !saved.is_valid(&valid("c1", "eth1")));
        assert_eq!(saved.to_string(), format!("configuration stored in {}/flannel/c1", dir.path().display()));
        assert_eq!(only(store(&dir, "one").find_readable(&tag("one", "eth0"))).conf, conf("one", 1400));
    }

    #[test]
    fn a_directory_that_is_a_file_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let stored = store(&dir, "one");
        stored.probe().unwrap();
        let saved = stored.save(&tag("one", "eth0"), &conf("one", 1400)).unwrap();
        fs::remove_dir_all(dir.path().join("flannel")).unwrap();
        saved.remove().unwrap();
        fs::write(dir.path().join("flannel"), "").unwrap();
        let error = stored.probe().unwrap_err().to_string();
        assert!(error.contains("no configuration can be stored in"), "{error}");
        assert!(saved.remove().is_err(), "the file may be there");
    }

    #[test]
    fn a_file_that_cannot_be_parsed_is_skipped_and_is_not_in_the_way() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("flannel")).unwrap();
        fs::write(dir.path().join("flannel/c1"), "{\"name\":\"one\",").unwrap();
        fs::create_dir(dir.path().join("flannel/c2")).unwrap();
        let stored = store(&dir, "one");
        let eth0 = tag("one", "eth0");
        assert!(stored.find(&eth0).unwrap().is_empty() && stored.all().unwrap().is_empty());
        for more in 1..=2 {
            stored.save(&eth0, &conf("one", 1400)).unwrap();
            assert_eq!((stored.find(&eth0).unwrap().len(), files(&dir)), (more, 2 + more));
        }
        assert!(stored.save(&eth0, &conf("one", 1400)).unwrap_err().msg.contains("one/c1/eth0"), "all names are taken");
        let long = AttachmentId { container: "c".repeat(300), ..eth0 };
        stored.save(&long, &conf("one", 1500)).unwrap();
        assert_eq!(only(stored.find(&long)).tag(), Some(long));
    }
}
