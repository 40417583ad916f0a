//! Blocks that are not used go back, also on a node where no agent runs: a release of an address starts a process of the agent's
//! program then, which outlives the call and waits for the grace.
//!
//! | lock in `.pool` | held |
//! |---|---|
//! | `agent.lock` | by the process that may change the node's blocks: the agent while it runs, or one claim |
//! | `give-back.lock` | by the one process that waits to give blocks back |

use std::fs::File;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::Duration;

use cnikit_process::{Daemon, start_daemon};
use cnikit_store::{Directory, Error as StoreError, Lock, PrivateDirectory};
use ipnetwork::IpNetwork;

use crate::error::Error;
use crate::local::{DIRECTORY, LocalBlock, LocalPools, NetworkFiles, NodeFiles, of_store};
use crate::record::{BlockState, NodeState};

const AGENT: &str = "agent.lock";
const GIVE_BACK: &str = "give-back.lock";
/// How long to wait for the second lock: those who only look whether it is held have it for microseconds.
const LOOK: Duration = Duration::from_millis(200);

impl NodeFiles {
    /// Takes the lock that one process of the agent's program has, waiting at most `timeout`: two would not know of each other's
    /// claims. `None` if it is not free in time.
    ///
    /// # Errors
    /// The directory cannot be made, or the lock's file is another user's.
    pub fn lock_agent(&self, timeout: Duration) -> Result<Option<Lock>, Error> {
        self.lock_in_time(AGENT, timeout)
    }

    /// Takes the lock of the process that waits to give blocks back; `None` if another one has it.
    ///
    /// # Errors
    /// As [`NodeFiles::lock_agent`].
    pub fn lock_give_back(&self) -> Result<Option<Lock>, Error> {
        self.lock_in_time(GIVE_BACK, LOOK)
    }

    /// Whether a network has a block that can be given back, as [`NetworkFiles::has_unused_blocks`]. The arguments are those of
    /// [`NodeFiles::network`].
    ///
    /// # Errors
    /// As [`NetworkFiles::has_unused_blocks`].
    pub fn has_unused_blocks(&self, timeout: Duration, log: fn(&str)) -> Result<bool, Error> {
        for name in self.networks()? {
            if self.network(&name, timeout, log).has_unused_blocks()? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether a block of any network has a reserved address. The arguments are those of [`NodeFiles::network`].
    ///
    /// # Errors
    /// As [`NetworkFiles::has_unused_blocks`].
    pub fn has_used_blocks(&self, timeout: Duration, log: fn(&str)) -> Result<bool, Error> {
        for name in self.networks()? {
            let network = self.network(&name, timeout, log);
            let reserved = network.sorted_reservations()?;
            if network.blocks()?.iter().any(|block| has_one_of(&block.cidr, &reserved)) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn lock_in_time(&self, name: &str, timeout: Duration) -> Result<Option<Lock>, Error> {
        Directory::make_durably(self.data_dir(), 0o755).map_err(|error| of_store(&error))?;
        let directory = PrivateDirectory::make(self.data_dir(), &[DIRECTORY]).map_err(|error| of_store(&error))?;
        free_or_none(directory.lock(name, timeout))
    }

    /// Whether a process has a lock. It is not taken away from one that begins meanwhile, because those wait.
    fn is_locked(&self, name: &str) -> Result<bool, Error> {
        let opened = PrivateDirectory::open(self.data_dir(), &[DIRECTORY]).map_err(|error| of_store(&error))?;
        let Some(directory) = opened else { return Ok(false) };
        let shared = directory.directory().share_while(name, 0o600, Duration::ZERO, &|| true);
        Ok(free_or_none(shared)?.is_none())
    }
}

fn free_or_none(lock: Result<Lock, StoreError>) -> Result<Option<Lock>, Error> {
    match lock {
        Ok(lock) => Ok(Some(lock)),
        Err(error) if error.is_deadline() => Ok(None),
        Err(error) => Err(of_store(&error)),
    }
}

impl NetworkFiles {
    /// Whether a block of the network can be given back when it has been without use for long enough, or the node was fenced and
    /// has to begin anew. Cooldown and grace do not matter here. The last active block of a pool and family stays, as long as the
    /// pool is open and has such a block.
    ///
    /// # Errors
    /// A file cannot be read, or is damaged, or the network's lock is not free in time.
    pub fn has_unused_blocks(&self) -> Result<bool, Error> {
        let files = self.files().open()?;
        if files.node()?.is_some_and(|node| node.state == NodeState::Fenced) {
            return Ok(true);
        }
        let blocks = files.blocks(self.name())?;
        if blocks.is_empty() {
            return Ok(false);
        }
        let reserved = self.sorted_reservations()?;
        let mut pools: Option<LocalPools> = None;
        for block in blocks.iter().filter(|block| !has_one_of(&block.cidr, &reserved)) {
            let goes = match block.state {
                BlockState::Sealed | BlockState::Lost => true,
                // The agent's next claim confirms it, and then it is active.
                BlockState::Unconfirmed => false,
                BlockState::Active if block.is_static || !is_last(block, &blocks) => true,
                BlockState::Active => {
                    if pools.is_none() {
                        pools = Some(files.pools()?.unwrap_or_default());
                    }
                    pools.as_ref().is_some_and(|pools| drains(block, pools))
                }
            };
            if goes {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn sorted_reservations(&self) -> Result<Vec<IpAddr>, Error> {
        let mut reserved = self.lock()?.reserved()?;
        reserved.sort_unstable();
        Ok(reserved)
    }
}

/// Whether one of the addresses, which are sorted, is in the block.
fn has_one_of(cidr: &IpNetwork, sorted: &[IpAddr]) -> bool {
    let first = sorted.partition_point(|address| *address < cidr.network());
    sorted.get(first).is_some_and(|address| cidr.contains(*address))
}

/// Whether no other block of the pool and the family is active.
fn is_last(block: &LocalBlock, blocks: &[LocalBlock]) -> bool {
    let is_other = |other: &LocalBlock| {
        other.cidr != block.cidr
            && other.pool == block.pool
            && other.family() == block.family()
            && other.state == BlockState::Active
            && !other.is_static
    };
    !blocks.iter().any(is_other)
}

/// Whether the pool is closed, or has no such block any more. Of a pool that is not known, nothing is concluded.
fn drains(block: &LocalBlock, pools: &LocalPools) -> bool {
    match pools.pool(&block.pool) {
        Ok(Some(pool)) => pool.config().closed || block.range(&pool).is_none(),
        _ => false,
    }
}

/// Starts `cnikit-agent give-back --wait`, if a block of the network can be given back, no agent runs that does it, and no such
/// process waits already. It waits for nothing. Returns whether it started one.
///
/// # Errors
/// The files cannot be read, or the program cannot be started.
pub fn start_give_back(network: &NetworkFiles, socket: &Path, program: &Path, config: &Path) -> Result<bool, Error> {
    if !program.exists() || !config.exists() {
        return Ok(false);
    }
    let files = network.files();
    // The lock alone may be that of a claim; the socket alone may be left by an agent that was killed.
    let has_agent = socket.exists() && files.is_locked(AGENT)?;
    if has_agent || files.is_locked(GIVE_BACK)? || !network.has_unused_blocks()? {
        return Ok(false);
    }
    let failed = |why: &dyn std::fmt::Display| Error::new(format!("start {}: {why}", program.display()));
    let nothing = File::open("/dev/null").map_err(|error| failed(&error))?;
    let daemon = Daemon {
        path: program.to_owned(),
        name: "cnikit-agent",
        args: vec!["give-back".into(), "--wait".into(), "--config".into(), config.into()],
        stdin: nothing.as_fd(),
    };
    start_daemon(&daemon).map_err(|error| failed(&error))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use cnikit_reservations::{AllocationRequest, Owner, RangeSet};

    use super::*;
    use crate::definition::PoolDefinition;
    use crate::local::LocalNode;
    use crate::record::Incarnation;

    struct Place {
        _dir: tempfile::TempDir,
        files: NodeFiles,
    }

    impl Place {
        fn new() -> Place {
            let dir = tempfile::tempdir().unwrap();
            let files = NodeFiles::new(dir.path().join("networks"));
            let place = Place { _dir: dir, files };
            place.set_node(NodeState::Serving);
            place.define(false);
            place
        }

        fn set_node(&self, state: NodeState) {
            let incarnation = Incarnation::of(1);
            self.files.write_node(&LocalNode { node: "a".into(), incarnation, boot: "b".into(), state }).unwrap();
        }

        fn define(&self, closed: bool) {
            let text = format!(
                r#"{{"name":"blue","ranges":[{{"subnet":"10.8.0.0/24"}},{{"subnet":"fd00::/64"}}],"closed":{closed}}}"#
            );
            let pool = PoolDefinition::parse(text.as_bytes()).unwrap();
            self.files
                .write_pools(&LocalPools { pools: vec![pool.config().clone()], ..LocalPools::default() })
                .unwrap();
        }

        fn network(&self) -> NetworkFiles {
            self.files.network("pods", Duration::from_secs(5), |_| {})
        }

        fn set(&self, blocks: &[(&str, BlockState)]) {
            let block = |(cidr, state): &(&str, BlockState)| {
                let cidr: IpNetwork = cidr.parse().unwrap();
                let is_static = [32, 128].contains(&cidr.prefix());
                LocalBlock { pool: "blue".into(), cidr, is_static, epoch: 7, state: *state }
            };
            let blocks: Vec<LocalBlock> = blocks.iter().map(block).collect();
            self.network().lock().unwrap().write_blocks(&blocks).unwrap();
        }

        fn reserve(&self, cidr: &str) {
            let range = cnikit_reservations::RangeConfig { subnet: cidr.parse().ok(), ..Default::default() };
            let request = AllocationRequest {
                owner: Owner::new(cidr, "eth0"),
                sets: vec![RangeSet::try_from(&[range][..]).unwrap()],
                wanted: Vec::new(),
                cooldown: Duration::ZERO,
            };
            self.network().lock().unwrap().acquire(&request).unwrap();
        }

        fn has_used(&self) -> bool {
            self.files.has_used_blocks(Duration::from_secs(5), |_| {}).unwrap()
        }

        fn has_unused(&self) -> bool {
            self.network().has_unused_blocks().unwrap()
        }
    }

    #[test]
    fn a_block_goes_back_if_it_is_empty_and_not_the_last_one() {
        use BlockState::{Active, Sealed, Unconfirmed};
        let place = Place::new();
        assert!(!place.has_unused(), "no block at all");
        place.set(&[("10.8.0.0/26", Active), ("fd00::/122", Active)]);
        assert!(!place.has_unused(), "the last one of each family");
        place.define(true);
        assert!(place.has_unused(), "of a closed pool none stays");
        place.define(false);
        place.set(&[("10.8.0.0/26", Active), ("10.8.0.64/26", Active)]);
        assert!(place.has_unused());
        place.reserve("10.8.0.0/26");
        assert!(place.has_unused());
        place.reserve("10.8.0.64/26");
        assert!(!place.has_unused(), "both are used");
        place.set(&[("10.8.0.0/26", Active), ("10.8.0.128/26", Unconfirmed)]);
        assert!(!place.has_unused());
        place.set(&[("10.8.0.0/26", Active), ("10.8.0.128/26", Sealed)]);
        assert!(place.has_unused());
        place.set(&[("10.8.0.0/26", Active), ("10.8.0.200/32", Active)]);
        assert!(place.has_unused(), "a static address");
        place.set(&[("10.8.0.0/26", Active)]);
        assert!(!place.has_unused());
        place.set_node(NodeState::Fenced);
        assert!(place.has_unused(), "the node begins anew");
    }

    #[test]
    fn blocks_are_used_if_one_of_their_addresses_is_reserved() {
        let place = Place::new();
        assert!(!place.has_used(), "no block at all");
        place.set(&[("10.8.0.0/26", BlockState::Lost), ("10.8.0.64/26", BlockState::Active)]);
        assert!(!place.has_used());
        place.reserve("10.8.0.128/26");
        assert!(!place.has_used(), "an address of no block here");
        place.reserve("10.8.0.0/26");
        assert!(place.has_used());
    }

    #[test]
    fn a_process_is_started_only_if_no_agent_runs_and_none_waits() {
        use std::os::unix::fs::PermissionsExt;
        let place = Place::new();
        let dir = place.files.data_dir().to_owned();
        let (socket, program, config) = (dir.join("agent.sock"), dir.join("program"), dir.join("agent.json"));
        let began = dir.join("began");
        std::fs::write(&program, format!("#!/bin/sh\necho \"$@\" >{0}.new && mv {0}.new {0}\n", began.display()))
            .unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        place.set(&[("10.8.0.0/26", BlockState::Active), ("10.8.0.64/26", BlockState::Active)]);
        let start = || start_give_back(&place.network(), &socket, &program, &config).unwrap();
        assert!(!start(), "without a configuration");
        std::fs::write(&config, "{}").unwrap();

        let waits = place.files.lock_give_back().unwrap().unwrap();
        assert!(!start(), "one waits");
        drop(waits);
        let runs = place.files.lock_agent(Duration::ZERO).unwrap().unwrap();
        std::fs::write(&socket, "").unwrap();
        assert!(!start(), "an agent runs");
        std::fs::remove_file(&socket).unwrap();
        assert!(start(), "a claim runs, which gives nothing back");
        drop(runs);
        let deadline = cnikit_process::Deadline::after(Duration::from_secs(20));
        while !began.exists() {
            assert!(deadline.pause(Duration::from_millis(5)), "it was not started");
        }
        let expected = format!("give-back --wait --config {}\n", config.display());
        assert_eq!(std::fs::read_to_string(&began).unwrap(), expected);
        place.set(&[("10.8.0.0/26", BlockState::Active)]);
        assert!(!start(), "nothing can be given back");
    }
}
