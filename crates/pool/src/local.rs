//! The files of a node: what its agent knows of the engine, and the reservations of its networks.
//!
//! All are below `<dataDir>/.pool`, which only root can open; no network's name begins with a dot.
//!
//! | file | content | written by |
//! |---|---|---|
//! | `node.json` | the node's incarnation, the boot in which its blocks were confirmed, whether it serves | the agent |
//! | `pools.json` | the pools, and which namespace uses which | the agent |
//! | `<network>.blocks` | the blocks of a network, with epoch and state | the agent, under the network's lock |
//! | `<network>.cooling` | released addresses | the plugin, under the network's lock |
//! | `unused.json` | since when blocks have been without use | a process that gives them back, if no agent runs |
//! | `claims.lock` | nothing: it is locked while the agent's program is run to claim a block | |
//! | `agent.lock`, `give-back.lock` | nothing: see `give_back.rs` | |
//!
//! The blocks' file does not end in `.json`, because a network can have the name `node` or `pools`. A file is replaced as a whole
//! and synced, so a reader sees the old or the new one, after a kill and after a power cut.
//!
//! A network's directory `<dataDir>/<network>` is that of host-local, with a file for each address. Whoever takes a block away does
//! that under the network's lock, in which ADD reads the blocks and takes an address: see [`LockedNetwork`].

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_reservations::{
    Allocation, AllocationRequest, Boot, CoolingFile, Error as ReservationError, LockedStore, RangeConfig, Store,
};
use cnikit_store::{Lock, PrivateDirectory, check_version};
use cnikit_types::{check_network_name, document, limit, read};
use ipnetwork::IpNetwork;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::definition::{AfterBoot, PoolConfig, PoolDefinition, PoolFamily};
use crate::error::Error;
use crate::record::{BlockState, Incarnation, NodeState};

/// The directory of these files, below the data directory.
pub(crate) const DIRECTORY: &str = ".pool";
const NODE: &str = "node.json";
const POOLS: &str = "pools.json";
const UNUSED: &str = "unused.json";
const BLOCKS: &str = ".blocks";
const COOLING: &str = ".cooling";
const CLAIMS: &str = "claims.lock";
/// The version of the formats.
const VERSION: u64 = 1;
/// The largest file that is read or written, in bytes.
const LARGEST: usize = 4 << 20;
/// The most blocks of one network on one node.
pub const MOST_BLOCKS: usize = 16_384;
/// The longest name of a network that has blocks, in bytes: files have it with an ending, and temporary ones with two.
pub const LONGEST_NETWORK: usize = 230;

/// `node.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalNode {
    /// The node's name, under which the engine has its blocks; empty if an agent wrote it that did not store the name.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub node: String,
    /// The incarnation of this store.
    pub incarnation: Incarnation,
    /// The boot in which the engine confirmed the blocks that are active; see `cnikit_netns::boot_id`.
    pub boot: String,
    /// Whether it allocates addresses.
    pub state: NodeState,
}

/// `pools.json`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalPools {
    /// The pools. One that is invalid does not make the others so: each is validated when it is used.
    pub pools: Vec<PoolConfig>,
    /// The pool of a namespace.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub select: BTreeMap<String, String>,
}

/// One block of a network.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LocalBlock {
    /// The pool that it was cut from.
    pub pool: String,
    /// Its addresses.
    pub cidr: IpNetwork,
    /// Whether it is a static address, which only its attachment gets. It is written when the address is claimed: a later
    /// definition of the pool does not make a block of it, nor the reverse.
    #[serde(default, rename = "static", skip_serializing_if = "is_false")]
    pub is_static: bool,
    /// The revision in which the engine created its record.
    pub epoch: i64,
    /// Its state.
    pub state: BlockState,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

/// `unused.json`: which blocks had no address in use when a process that gives blocks back saw them last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LocalUnused {
    /// The boot whose times these are.
    pub boot: String,
    /// The blocks.
    pub blocks: Vec<UnusedBlock>,
}

/// A block without an address in use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnusedBlock {
    /// The network.
    pub network: String,
    /// The pool.
    pub pool: String,
    /// Its addresses.
    pub cidr: IpNetwork,
    /// As [`LocalBlock::is_static`].
    #[serde(default, rename = "static", skip_serializing_if = "is_false")]
    pub is_static: bool,
    /// As [`LocalBlock::epoch`]: one that was claimed again meanwhile is another one.
    pub epoch: i64,
    /// Since when, in milliseconds since the start of the machine.
    pub since: u64,
    /// What the network's file of released addresses was: its size, and its time in seconds and nanoseconds. If it is something
    /// else, addresses were released since.
    pub released: Option<(u64, i64, i64)>,
}

#[derive(Serialize, Deserialize)]
struct BlocksFile {
    blocks: Vec<LocalBlock>,
}

/// A file with its version.
#[derive(Serialize)]
struct Versioned<'a, T> {
    version: u64,
    #[serde(flatten)]
    content: &'a T,
}

#[derive(Deserialize)]
struct VersionOnly {
    #[serde(default)]
    version: u64,
}

impl LocalPools {
    /// The pool of this name, validated; `None` if there is none.
    ///
    /// # Errors
    /// It is invalid.
    pub fn pool(&self, name: &str) -> Result<Option<PoolDefinition>, Error> {
        let Some(config) = self.pools.iter().find(|pool| pool.name == name) else { return Ok(None) };
        PoolDefinition::new(config.clone()).map(Some)
    }
}

impl LocalBlock {
    /// Whether it is of IPv4 or IPv6.
    pub fn family(&self) -> PoolFamily {
        PoolFamily::of(self.cidr.ip())
    }

    /// Whether new addresses may be allocated from it. `is_confirmed`: the engine has confirmed the blocks since the node booted.
    pub fn serves(&self, is_confirmed: bool, after_boot: AfterBoot) -> bool {
        match self.state {
            BlockState::Active => is_confirmed || after_boot == AfterBoot::Serve,
            BlockState::Unconfirmed => after_boot == AfterBoot::Serve,
            BlockState::Sealed | BlockState::Lost => false,
        }
    }

    /// Its usable addresses for the reservations; `None` if the pool has no such block any more, or it is a static address.
    pub fn range(&self, pool: &PoolDefinition) -> Option<RangeConfig> {
        if self.pool != pool.name() || self.is_static {
            return None;
        }
        pool.block_of(self.cidr).map(|block| block.range)
    }

    /// The range of its one address; `None` if it is not a static address, or the pool has no such static address any more.
    pub fn static_range(&self, pool: &PoolDefinition) -> Option<RangeConfig> {
        let address = self.cidr.ip();
        if self.pool != pool.name() || !self.is_static || self.cidr.prefix() != self.family().bits() {
            return None;
        }
        let range = pool.static_range_of(address)?;
        Some(RangeConfig {
            subnet: Some(range.subnet()),
            start: Some(address),
            end: Some(address),
            gateway: Some(range.gateway()),
        })
    }
}

/// The files of this node.
#[derive(Clone, Debug)]
pub struct NodeFiles {
    data_dir: PathBuf,
}

impl NodeFiles {
    /// Those below a data directory. Nothing is opened yet.
    pub fn new(data_dir: impl Into<PathBuf>) -> NodeFiles {
        NodeFiles { data_dir: data_dir.into() }
    }

    /// The data directory.
    pub fn data_dir(&self) -> &Path {
        &self.data_dir
    }

    /// The path of their directory, for messages.
    pub fn path(&self) -> PathBuf {
        self.data_dir.join(DIRECTORY)
    }

    /// `node.json`; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn node(&self) -> Result<Option<LocalNode>, Error> {
        self.open()?.node()
    }

    /// Replaces `node.json`.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_node(&self, node: &LocalNode) -> Result<(), Error> {
        self.write(NODE, node)
    }

    /// `pools.json`; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn pools(&self) -> Result<Option<LocalPools>, Error> {
        self.open()?.pools()
    }

    /// Replaces `pools.json`.
    ///
    /// # Errors
    /// It cannot be written, or would be larger than 4 MiB.
    pub fn write_pools(&self, pools: &LocalPools) -> Result<(), Error> {
        self.write(POOLS, pools)
    }

    /// `unused.json`; `None` if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is damaged.
    pub fn unused(&self) -> Result<Option<LocalUnused>, Error> {
        self.open()?.read(UNUSED)
    }

    /// Replaces `unused.json`. If the directory is gone, nothing is written: so are the blocks.
    ///
    /// # Errors
    /// It cannot be written, or would be larger than 4 MiB.
    pub fn write_unused(&self, unused: &LocalUnused) -> Result<(), Error> {
        let Some(directory) = self.open()?.directory else { return Ok(()) };
        let text = self.text_of(UNUSED, unused)?;
        directory.directory().replace_durably(UNUSED, &text, 0o600).map_err(|error| of_store(&error))
    }

    /// The networks that have a file of blocks, sorted.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn networks(&self) -> Result<Vec<String>, Error> {
        let Some(directory) = self.open()?.directory else { return Ok(Vec::new()) };
        let mut networks = Vec::new();
        for name in directory.directory().list().map_err(|error| of_store(&error))? {
            let name = name.into_string().unwrap_or_default();
            if let Some(network) = name.strip_suffix(BLOCKS)
                && check_network_name(network).is_ok()
            {
                networks.push(network.to_owned());
            }
        }
        networks.sort();
        Ok(networks)
    }

    /// The files of one network. `timeout` is how long to wait for its lock, `log` gets events that fail no call.
    pub fn network(&self, network: &str, timeout: Duration, log: fn(&str)) -> NetworkFiles {
        let cooling =
            CoolingFile { base: self.data_dir.clone(), directory: DIRECTORY, name: format!("{network}{COOLING}") };
        let store = Store {
            data_dir: self.data_dir.clone(),
            network: network.to_owned(),
            boot: Boot::now(),
            cooling: Some(cooling),
            timeout,
            log,
        };
        NetworkFiles { files: self.clone(), store }
    }

    /// Takes the lock of those who run the agent's program to claim a block, which waits at most `timeout`.
    ///
    /// # Errors
    /// It is not free in time, or the directory cannot be made.
    pub fn lock_claims(&self, timeout: Duration) -> Result<Lock, Error> {
        cnikit_store::Directory::make(&self.data_dir, 0o755).map_err(|error| of_store(&error))?;
        let directory = PrivateDirectory::make(&self.data_dir, &[DIRECTORY]).map_err(|error| of_store(&error))?;
        directory.lock(CLAIMS, timeout).map_err(|error| of_store(&error))
    }

    /// Opens the directory once, to read several files of it.
    ///
    /// # Errors
    /// It cannot be opened, or another user can write there. That it does not exist is not an error.
    pub fn open(&self) -> Result<OpenNodeFiles, Error> {
        let directory = PrivateDirectory::open(&self.data_dir, &[DIRECTORY]).map_err(|error| of_store(&error))?;
        Ok(OpenNodeFiles { path: self.path(), directory })
    }

    fn write<T: Serialize>(&self, name: &str, content: &T) -> Result<(), Error> {
        let text = self.text_of(name, content)?;
        cnikit_store::Directory::make_durably(&self.data_dir, 0o755).map_err(|error| of_store(&error))?;
        let directory = PrivateDirectory::make(&self.data_dir, &[DIRECTORY]).map_err(|error| of_store(&error))?;
        directory.directory().replace_durably(name, &text, 0o600).map_err(|error| of_store(&error))
    }

    fn text_of<T: Serialize>(&self, name: &str, content: &T) -> Result<Vec<u8>, Error> {
        let failed =
            |why: &dyn std::fmt::Display| Error::new(format!("write {}: {why}", self.path().join(name).display()));
        let text = serde_json::to_vec(&Versioned { version: VERSION, content }).map_err(|error| failed(&error))?;
        if text.len() > LARGEST {
            return Err(failed(&format_args!("it would have {} bytes, and at most {LARGEST} are read", text.len())));
        }
        Ok(text)
    }
}

/// The files of this node, whose directory is open.
#[derive(Debug)]
pub struct OpenNodeFiles {
    path: PathBuf,
    directory: Option<PrivateDirectory>,
}

impl OpenNodeFiles {
    /// As [`NodeFiles::node`].
    ///
    /// # Errors
    /// As [`NodeFiles::node`].
    pub fn node(&self) -> Result<Option<LocalNode>, Error> {
        self.read(NODE)
    }

    /// As [`NodeFiles::pools`].
    ///
    /// # Errors
    /// As [`NodeFiles::pools`].
    pub fn pools(&self) -> Result<Option<LocalPools>, Error> {
        self.read(POOLS)
    }

    /// The blocks of a network; none if it has no file.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged, or the network's name is too long.
    pub fn blocks(&self, network: &str) -> Result<Vec<LocalBlock>, Error> {
        if network.len() > LONGEST_NETWORK {
            return Err(Error::new(format!("the network's name has {} bytes", network.len()))
                .hint(format!("a network of pool has a name of at most {LONGEST_NETWORK} bytes")));
        }
        let Some(file) = self.read::<BlocksFile>(&format!("{network}{BLOCKS}"))? else { return Ok(Vec::new()) };
        limit::count("blocks", file.blocks.len(), MOST_BLOCKS)?;
        Ok(file.blocks)
    }

    fn read<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, Error> {
        let Some(directory) = &self.directory else { return Ok(None) };
        let Some((text, _)) = directory.directory().read(name, LARGEST).map_err(|error| of_store(&error))? else {
            return Ok(None);
        };
        let path = self.path.join(name);
        let damaged = |why: &dyn std::fmt::Display| {
            Error::new(format!("read {}: {why}", path.display()))
                .hint("start cnikit-agent again, which writes the file anew from its engine")
        };
        let document = document::parse(&text).map_err(|error| damaged(&format_args!("not JSON: {error}")))?;
        limit::check(&document).map_err(|error| damaged(&error))?;
        let version: VersionOnly = read(&document).map_err(|error| damaged(&error))?;
        check_version(&path, version.version, VERSION).map_err(|error| of_store(&error))?;
        read(&document).map(Some).map_err(|error| damaged(&error))
    }
}

pub(crate) fn of_store(error: &cnikit_store::Error) -> Error {
    Error { text: error.to_string(), hint: None }
}

/// The files of one network.
#[derive(Clone, Debug)]
pub struct NetworkFiles {
    files: NodeFiles,
    store: Store,
}

impl NetworkFiles {
    /// The network's name.
    pub fn name(&self) -> &str {
        &self.store.network
    }

    /// The files of the node.
    pub(crate) fn files(&self) -> &NodeFiles {
        &self.files
    }

    /// The reservations, to release addresses and to inspect them. Addresses are allocated by [`LockedNetwork::acquire`] only.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// The blocks as they are now, without the lock: for messages, CHECK and STATUS.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub fn blocks(&self) -> Result<Vec<LocalBlock>, Error> {
        self.files.open()?.blocks(&self.store.network)
    }

    /// Locks the network, whose directory is created if it does not exist.
    ///
    /// # Errors
    /// The lock is not free in time, or the directory cannot be created or opened.
    pub fn lock(&self) -> Result<LockedNetwork<'_>, ReservationError> {
        Ok(LockedNetwork { network: self, store: self.store.lock()? })
    }
}

/// A network whose lock is held. What is decided from its blocks is true until the value is dropped: no other process
/// allocates an address or takes a block away.
#[derive(Debug)]
pub struct LockedNetwork<'a> {
    network: &'a NetworkFiles,
    store: LockedStore<'a>,
}

impl LockedNetwork<'_> {
    /// The blocks.
    ///
    /// # Errors
    /// As [`NetworkFiles::blocks`].
    pub fn blocks(&self) -> Result<Vec<LocalBlock>, Error> {
        self.network.blocks()
    }

    /// Replaces the blocks.
    ///
    /// # Errors
    /// The file cannot be written, or there are more than 16,384 blocks.
    pub fn write_blocks(&self, blocks: &[LocalBlock]) -> Result<(), Error> {
        limit::count("blocks", blocks.len(), MOST_BLOCKS)?;
        let file = BlocksFile { blocks: blocks.to_vec() };
        self.network.files.write(&format!("{}{BLOCKS}", self.network.name()), &file)
    }

    /// All addresses of the network that are reserved, in these blocks or not.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn reserved(&self) -> Result<Vec<IpAddr>, ReservationError> {
        self.store.reserved()
    }

    /// The reserved addresses that a running container may have.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn reserved_in_this_boot(&self) -> Result<Vec<IpAddr>, ReservationError> {
        self.store.reserved_in_this_boot()
    }

    /// The addresses that were released less than `cooldown` ago.
    pub fn cooling(&self, cooldown: Duration) -> Vec<IpAddr> {
        self.store.cooling(cooldown)
    }

    /// Allocates addresses.
    ///
    /// # Errors
    /// As [`Store::acquire`].
    pub fn acquire(&self, request: &AllocationRequest) -> Result<Vec<Allocation>, ReservationError> {
        self.store.acquire(request)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn place() -> (tempfile::TempDir, NodeFiles) {
        let dir = tempfile::tempdir().unwrap();
        let files = NodeFiles::new(dir.path().join("networks"));
        (dir, files)
    }

    fn network(files: &NodeFiles, name: &str) -> NetworkFiles {
        files.network(name, Duration::from_secs(5), |_| {})
    }

    fn block(cidr: &str, state: BlockState) -> LocalBlock {
        LocalBlock { pool: "blue".into(), cidr: cidr.parse().unwrap(), is_static: false, epoch: 7, state }
    }

    fn pool() -> PoolDefinition {
        let text = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"},{"subnet":"fd00::/64"}],
            "static":[{"subnet":"10.8.0.0/24","rangeStart":"10.8.0.200"}]}"#;
        PoolDefinition::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn what_is_written_is_read_and_nothing_is_there_before() {
        let (_dir, files) = place();
        assert_eq!((files.node().unwrap(), files.pools().unwrap()), (None, None));
        assert_eq!(network(&files, "pods").blocks().unwrap(), []);
        assert_eq!(files.networks().unwrap(), [""; 0]);
        assert!(!files.data_dir().exists(), "reading makes nothing");

        let node = LocalNode {
            node: "node-1".into(),
            incarnation: Incarnation::of(9),
            boot: "b".into(),
            state: NodeState::Serving,
        };
        files.write_node(&node).unwrap();
        let pools = LocalPools {
            pools: vec![pool().config().clone()],
            select: BTreeMap::from([("kube-system".into(), "blue".into())]),
        };
        files.write_pools(&pools).unwrap();
        let blocks = [block("10.8.0.64/26", BlockState::Active), block("fd00::40/122", BlockState::Sealed)];
        let pods = network(&files, "pods");
        pods.lock().unwrap().write_blocks(&blocks).unwrap();
        assert_eq!(files.node().unwrap(), Some(node));
        assert_eq!(files.pools().unwrap(), Some(pools.clone()));
        assert_eq!(pools.pool("blue").unwrap(), Some(pool()));
        assert_eq!(pools.pool("red").unwrap(), None);
        assert_eq!(pods.blocks().unwrap(), blocks);
        assert_eq!(files.networks().unwrap(), ["pods"]);
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&files.path()), mode(&files.path().join(NODE))), (0o700, 0o600));
    }

    #[test]
    fn what_was_seen_of_unused_blocks_is_written_only_where_blocks_are() {
        let (_dir, files) = place();
        let unused = LocalUnused { boot: "b".into(), blocks: Vec::new() };
        files.write_unused(&unused).unwrap();
        assert!(!files.data_dir().exists(), "a directory that was removed stays away");
        network(&files, "pods").lock().unwrap().write_blocks(&[]).unwrap();
        files.write_unused(&unused).unwrap();
        assert_eq!(files.unused().unwrap(), Some(unused));
    }

    #[test]
    fn the_formats_are_json_with_a_version() {
        let (_dir, files) = place();
        network(&files, "pods")
            .lock()
            .unwrap()
            .write_blocks(&[block("10.8.0.64/26", BlockState::Unconfirmed)])
            .unwrap();
        let text = fs::read_to_string(files.path().join("pods.blocks")).unwrap();
        assert_eq!(
            text,
            r#"{"version":1,"blocks":[{"pool":"blue","cidr":"10.8.0.64/26","epoch":7,"state":"unconfirmed"}]}"#
        );
        let address = LocalBlock { is_static: true, ..block("10.8.0.200/32", BlockState::Active) };
        let text = serde_json::to_string(&address).unwrap();
        assert_eq!(text, r#"{"pool":"blue","cidr":"10.8.0.200/32","static":true,"epoch":7,"state":"active"}"#);
    }

    #[test]
    fn a_network_of_any_name_has_files_of_its_own() {
        let (_dir, files) = place();
        files
            .write_node(&LocalNode {
                node: String::new(),
                incarnation: Incarnation::of(1),
                boot: String::new(),
                state: NodeState::Fenced,
            })
            .unwrap();
        for name in ["node", "pools", "node.json", "a", "a.blocks", "a.cooling"] {
            network(&files, name).lock().unwrap().write_blocks(&[block("10.8.0.0/26", BlockState::Lost)]).unwrap();
        }
        assert_eq!(files.networks().unwrap(), ["a", "a.blocks", "a.cooling", "node", "node.json", "pools"]);
        assert_eq!(files.node().unwrap().unwrap().state, NodeState::Fenced);
        assert!(files.pools().unwrap().is_none());
        let long = network(&files, &"x".repeat(LONGEST_NETWORK + 1));
        assert!(long.blocks().unwrap_err().text.contains("name has 231 bytes"));
        let longest = network(&files, &"x".repeat(LONGEST_NETWORK));
        longest.lock().unwrap().write_blocks(&[]).unwrap();
        assert_eq!(longest.blocks().unwrap(), []);
    }

    #[test]
    fn a_damaged_file_is_an_error_that_names_it() {
        let (_dir, files) = place();
        files.write_pools(&LocalPools::default()).unwrap();
        let path = files.path().join(POOLS);
        let whole = fs::read(&path).unwrap();
        for length in 0..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let error = files.pools().unwrap_err();
            assert!(error.text.contains("pools.json") && error.hint.is_some(), "{length}: {error}");
        }
        for (text, says) in [
            (r#"{"version":2,"pools":[]}"#, "version 2"),
            (r#"{"version":1}"#, "pools"),
            (r#"{"version":1,"pools":{}}"#, "pools"),
            ("[]", "pools.json"),
        ] {
            fs::write(&path, text).unwrap();
            assert!(files.pools().unwrap_err().text.contains(says), "{text}: {}", files.pools().unwrap_err());
        }
        fs::write(&path, vec![b' '; LARGEST + 1]).unwrap();
        assert!(files.pools().unwrap_err().text.contains("longer"));
        files.write_pools(&LocalPools::default()).unwrap();
        assert!(files.pools().unwrap().is_some(), "the next write repairs it");
    }

    #[test]
    fn nothing_is_read_through_a_link_or_from_a_directory_that_others_write() {
        let (dir, files) = place();
        files.write_pools(&LocalPools::default()).unwrap();
        fs::rename(files.path().join(POOLS), dir.path().join("elsewhere")).unwrap();
        symlink(dir.path().join("elsewhere"), files.path().join(POOLS)).unwrap();
        assert!(files.pools().is_err());
        fs::remove_file(files.path().join(POOLS)).unwrap();
        fs::rename(dir.path().join("elsewhere"), files.path().join(POOLS)).unwrap();
        assert!(files.pools().is_ok());
        fs::set_permissions(files.path(), fs::Permissions::from_mode(0o722)).unwrap();
        assert!(files.pools().unwrap_err().text.contains("other users may write there"));
        assert!(files.write_pools(&LocalPools::default()).is_err());
        fs::rename(files.path(), dir.path().join("moved")).unwrap();
        symlink(dir.path().join("moved"), files.path()).unwrap();
        assert!(files.pools().is_err());
    }

    #[test]
    fn the_file_of_a_killed_writer_is_no_hindrance() {
        let (_dir, files) = place();
        files.write_pools(&LocalPools::default()).unwrap();
        fs::write(files.path().join(".pools.json.new"), "half a fi").unwrap();
        let pools = LocalPools { pools: vec![pool().config().clone()], ..LocalPools::default() };
        files.write_pools(&pools).unwrap();
        assert_eq!(files.pools().unwrap(), Some(pools));
        assert!(!files.path().join(".pools.json.new").exists());
    }

    #[test]
    fn one_invalid_pool_leaves_the_others_usable() {
        let mut bad = pool().config().clone();
        bad.name = "bad".into();
        bad.block_size4 = 3;
        let pools = LocalPools { pools: vec![bad, pool().config().clone()], ..LocalPools::default() };
        assert!(pools.pool("bad").is_err());
        assert!(pools.pool("blue").unwrap().is_some());
    }

    #[test]
    fn a_block_serves_in_one_state_only_unless_the_pool_says_otherwise() {
        use AfterBoot::{Confirm, Serve};
        use BlockState::{Active, Lost, Sealed, Unconfirmed};
        let serves = |state, is_confirmed, after_boot| block("10.8.0.0/26", state).serves(is_confirmed, after_boot);
        assert!(serves(Active, true, Confirm) && serves(Active, false, Serve) && serves(Unconfirmed, false, Serve));
        assert!(!serves(Active, false, Confirm) && !serves(Unconfirmed, true, Confirm));
        for after_boot in [Confirm, Serve] {
            assert!(!serves(Sealed, true, after_boot) && !serves(Lost, true, after_boot));
        }
    }

    #[test]
    fn a_block_has_the_addresses_that_its_pool_says() {
        let start = |cidr: &str| block(cidr, BlockState::Active).range(&pool()).and_then(|range| range.start);
        assert_eq!(start("10.8.0.0/26"), "10.8.0.1".parse().ok());
        assert_eq!(start("10.8.1.0/26"), None, "outside the pool");
        assert_eq!(start("10.8.0.0/27"), None, "of another size");
        assert_eq!(start("10.8.0.200/32"), None);
        let fixed = |cidr: &str| {
            let address = LocalBlock { is_static: true, ..block(cidr, BlockState::Active) };
            assert_eq!(address.range(&pool()), None, "it is no block");
            address.static_range(&pool()).and_then(|range| range.end)
        };
        assert_eq!(fixed("10.8.0.200/32"), "10.8.0.200".parse().ok());
        assert_eq!(fixed("10.8.0.7/32"), None, "not in a static range");
        assert_eq!(block("10.8.0.200/32", BlockState::Active).static_range(&pool()), None, "not claimed as one");
        let other = LocalBlock { pool: "red".into(), ..block("10.8.0.0/26", BlockState::Active) };
        assert_eq!(other.range(&pool()), None);
    }
}
