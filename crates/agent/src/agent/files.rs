//! The node's files, as the protocol sees them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use cnikit_pool::{
    BlockState, Error, Incarnation, LocalBlock, LocalNode, LocalPools, LocalUnused, LockedNetwork, NetworkFiles,
    NodeFiles, NodeState, PoolDefinition, PoolFamily, UnusedBlock,
};
use cnikit_pool_protocol::{BlockChange, BlockId, HeldBlock, NodeView, changed};
use nix::time::{ClockId, clock_gettime};

use crate::log::log;

/// How long to wait for a network's lock, which a plugin holds for milliseconds.
pub(super) const LOCK: Duration = Duration::from_secs(10);

/// How long an address of a name is without use before it is given back: the pod may be on its way to another node. An ADD that
/// has just claimed it has reserved it by then.
const NAME_GRACE: Duration = Duration::from_secs(5);

/// The files of this node, and what was seen of their use.
#[derive(Debug)]
pub(crate) struct AgentFiles {
    files: NodeFiles,
    /// The node's name.
    name: String,
    /// Since when each block has had no address in use, and no address of its network was released.
    unused: BTreeMap<(String, BlockId), Unused>,
    /// The pools by name.
    pools: BTreeMap<String, PoolDefinition>,
    /// The revisions of their definitions in the engine; none before it was asked.
    revisions: BTreeMap<String, i64>,
    /// The static addresses that stay with a name, as far as the engine was asked.
    names: BTreeSet<BlockId>,
}

/// A block without use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Unused {
    /// The time since the start of the machine, which no change of the clock affects.
    since: Duration,
    /// What the file of released addresses was.
    released: ReleasedFile,
    /// The block's epoch: one that was claimed again is another one.
    epoch: i64,
}

/// Size and change time of the file of released addresses: every release changes them.
type ReleasedFile = Option<(u64, i64, i64)>;

/// The addresses of a network that are in use, as they were while its lock was held.
struct UsedAddresses {
    reserved: Vec<IpAddr>,
    /// Those that a running container may have.
    of_this_boot: Vec<IpAddr>,
    /// Of each pool, the addresses in their cooldown.
    cooling: BTreeMap<String, Vec<IpAddr>>,
}

impl UsedAddresses {
    /// Whether an address of the block is in use, so that the block does not leave this node.
    fn has(&self, id: &BlockId, state: BlockState) -> bool {
        let has = |addresses: &Vec<IpAddr>| addresses.iter().any(|address| id.cidr.contains(*address));
        match state {
            // Its cooldown was over when it was sealed.
            BlockState::Sealed => has(&self.reserved),
            // Only containers that run matter: a reboot ended them, whether DEL was called or not.
            BlockState::Lost => has(&self.of_this_boot),
            BlockState::Active | BlockState::Unconfirmed => {
                has(&self.reserved) || self.cooling.get(&id.pool).is_some_and(has)
            }
        }
    }
}

impl AgentFiles {
    /// Opens the files of the node with this name.
    pub(crate) fn open(files: NodeFiles, name: &str) -> Result<AgentFiles, Error> {
        let name = name.to_owned();
        let mut opened = AgentFiles {
            files,
            name,
            unused: BTreeMap::new(),
            pools: BTreeMap::new(),
            revisions: BTreeMap::new(),
            names: BTreeSet::new(),
        };
        opened.node()?;
        match opened.files.pools() {
            Ok(known) => opened.use_pools(&known.unwrap_or_default()),
            Err(error) => log("pools", format_args!("{error}; the file is written anew")),
        }
        for network in opened.files.networks()? {
            opened.set_aside_if_damaged(&network)?;
        }
        Ok(opened)
    }

    /// Sets a file of blocks aside that a power cut has damaged: the engine has every block of it, with its network. A file of a
    /// later release is not damaged, and an error.
    fn set_aside_if_damaged(&self, name: &str) -> Result<(), Error> {
        let network = self.network(name);
        let Err(error) = network.blocks() else { return Ok(()) };
        if !error.text.contains(": not JSON") {
            return Err(error);
        }
        let _locked = network.lock()?;
        if network.blocks().is_ok() {
            return Ok(());
        }
        let file = self.files.path().join(format!("{name}.blocks"));
        let aside = self.files.path().join(format!("{name}.blocks.damaged"));
        std::fs::rename(&file, &aside)
            .map_err(|why| Error { text: format!("set {} aside: {why}", file.display()), hint: None })?;
        log("files", format_args!("{error}; it is now {}, and is written anew", aside.display()));
        Ok(())
    }

    /// The node's file; one is made with a new incarnation if there is none. The file of another node is an error.
    pub(crate) fn node(&self) -> Result<LocalNode, Error> {
        match self.files.node()? {
            Some(node) if node.node == self.name => return Ok(node),
            Some(node) if node.node.is_empty() => {
                let named = LocalNode { node: self.name.clone(), ..node };
                self.files.write_node(&named)?;
                return Ok(named);
            }
            Some(node) => return Err(self.is_of_another(&node.node)),
            None => {}
        }
        let node = LocalNode {
            node: self.name.clone(),
            incarnation: Incarnation::draw()?,
            boot: String::new(),
            state: NodeState::Serving,
        };
        self.files.write_node(&node)?;
        log("node", format_args!("a new store: its incarnation is {}", node.incarnation));
        Ok(node)
    }

    fn is_of_another(&self, name: &str) -> Error {
        let path = self.files.path();
        Error {
            text: format!("the files in {} are those of node {name}, and this node is {}", path.display(), self.name),
            hint: Some(format!(
                "if the node's name has changed, set `node` in the configuration to {name}; if this machine is a copy of \
                 that node, and no container runs, remove {}",
                path.display()
            )),
        }
    }

    pub(crate) fn write_node(&self, node: &LocalNode) -> Result<(), Error> {
        self.files.write_node(node)
    }

    pub(crate) fn pool(&self, name: &str) -> Option<&PoolDefinition> {
        self.pools.get(name)
    }

    /// Replaces the file of the pools, if it says something else. `revisions` are those of the definitions.
    pub(crate) fn write_pools(&mut self, pools: &LocalPools, revisions: BTreeMap<String, i64>) -> Result<(), Error> {
        if self.files.pools().ok().flatten().as_ref() != Some(pools) {
            self.files.write_pools(pools)?;
            log("pools", format_args!("{} pools, {} selections", pools.pools.len(), pools.select.len()));
        }
        self.use_pools(pools);
        self.revisions = revisions;
        Ok(())
    }

    pub(crate) fn revision_of(&self, pool: &str) -> Option<i64> {
        self.revisions.get(pool).copied()
    }

    fn use_pools(&mut self, pools: &LocalPools) {
        let valid = pools.pools.iter().filter_map(|config| PoolDefinition::new(config.clone()).ok());
        self.pools = valid.map(|pool| (pool.name().to_owned(), pool)).collect();
    }

    fn network(&self, name: &str) -> NetworkFiles {
        self.files.network(name, LOCK, |warning| log("reservations", warning))
    }

    /// The blocks of all networks, with their use. `grace` is how long a block has to be without use to be idle.
    pub(crate) fn blocks(&mut self, grace: Duration) -> Result<Vec<HeldBlock>, Error> {
        let mut held = Vec::new();
        let mut unused = BTreeMap::new();
        let now = since_start()?;
        for name in self.files.networks()? {
            let network = self.network(&name);
            let blocks = network.blocks()?;
            if blocks.is_empty() {
                continue;
            }
            let released = self.released(&name);
            let locked = network.lock()?;
            let used = self.used(&locked, blocks.iter().map(|block| &block.pool))?;
            drop(locked);
            for block in &blocks {
                let id = BlockId::of_local(block);
                let in_use = self.is_in_use(&used, &id, block.state);
                let mut is_idle = false;
                if !in_use {
                    let key = (name.clone(), id.clone());
                    let seen = match self.unused.get(&key) {
                        Some(seen) if (seen.released, seen.epoch) == (released, block.epoch) => *seen,
                        _ => Unused { since: now, released, epoch: block.epoch },
                    };
                    let needed = if self.names.contains(&id) { grace.min(NAME_GRACE) } else { grace };
                    is_idle = now.saturating_sub(seen.since) >= needed;
                    unused.insert(key, seen);
                }
                let (epoch, state) = (block.epoch, block.state);
                let (is_closing, is_gone) = self.outlook_of(&id);
                let network = name.clone();
                held.push(HeldBlock { id, network, epoch, state, in_use, idle: is_idle, is_closing, is_gone });
            }
        }
        self.unused = unused;
        Ok(held)
    }

    /// Goes on with what an earlier process of this boot saw of the use of the blocks. Without the file, or if it cannot be read,
    /// their grace begins anew.
    pub(crate) fn read_unused(&mut self, boot: &str) {
        let Ok(Some(stored)) = self.files.unused() else { return };
        if stored.boot != boot {
            return;
        }
        for block in stored.blocks {
            let id = BlockId { pool: block.pool, cidr: block.cidr, is_static: block.is_static };
            let seen =
                Unused { since: Duration::from_millis(block.since), released: block.released, epoch: block.epoch };
            self.unused.insert((block.network, id), seen);
        }
    }

    /// Writes down what was seen of the use of the blocks, for the next process, unless the file says that already.
    pub(crate) fn write_unused(&self, boot: &str) -> Result<(), Error> {
        let mut blocks = Vec::new();
        for ((network, id), seen) in &self.unused {
            let BlockId { pool, cidr, is_static } = id.clone();
            let since = u64::try_from(seen.since.as_millis()).unwrap_or(u64::MAX);
            let (network, released, epoch) = (network.clone(), seen.released, seen.epoch);
            blocks.push(UnusedBlock { network, pool, cidr, is_static, epoch, since, released });
        }
        let unused = LocalUnused { boot: boot.to_owned(), blocks };
        if self.files.unused().ok().flatten().as_ref() == Some(&unused) {
            return Ok(());
        }
        self.files.write_unused(&unused)
    }

    /// Whether the block has to stay on this node. An address of a name has no cooldown: its next
    /// container is meant to have it.
    fn is_in_use(&self, used: &UsedAddresses, id: &BlockId, state: BlockState) -> bool {
        let state = if self.names.contains(id) && state == BlockState::Active { BlockState::Sealed } else { state };
        used.has(id, state)
    }

    pub(crate) fn set_names(&mut self, names: BTreeSet<BlockId>) {
        self.names = names;
    }

    pub(crate) fn add_names(&mut self, names: impl Iterator<Item = BlockId>) {
        self.names.extend(names);
    }

    /// Whether a pool that the node knows has the block.
    pub(crate) fn is_of_pool(&self, id: &BlockId) -> bool {
        self.pools.contains_key(&id.pool) && !self.outlook_of(id).1
    }

    /// Whether the pool of a block drains, and whether it has no such block any more. Of a pool that is not known, nothing is
    /// concluded.
    fn outlook_of(&self, id: &BlockId) -> (bool, bool) {
        let Some(pool) = self.pools.get(&id.pool) else { return (false, false) };
        let has =
            if id.is_static { pool.static_range_of(id.cidr.ip()).is_some() } else { pool.block_of(id.cidr).is_some() };
        (pool.config().closed || !has, !has)
    }

    fn released(&self, network: &str) -> ReleasedFile {
        let found = std::fs::metadata(self.files.path().join(format!("{network}.cooling"))).ok()?;
        Some((found.len(), found.mtime(), found.mtime_nsec()))
    }

    /// The node as it is now.
    pub(crate) fn view(&mut self, name: &str, boot: &str, session: i64, grace: Duration) -> Result<NodeView, Error> {
        let node = self.node()?;
        let blocks = self.blocks(grace)?;
        Ok(NodeView {
            name: name.to_owned(),
            boot: boot.to_owned(),
            incarnation: node.incarnation,
            state: node.state,
            recorded_boot: node.boot,
            session,
            pools: self.revisions.clone(),
            blocks,
            wanted: BTreeSet::new(),
        })
    }

    /// Changes a block, under its network's lock.
    pub(crate) fn apply(&self, change: &BlockChange) -> Result<(), Error> {
        let network = self.network(&change.network);
        let locked = network.lock()?;
        self.apply_locked(&locked, change)
    }

    /// The addresses of a network that are in use. `pools` are those of its blocks.
    fn used<'a>(
        &self,
        locked: &LockedNetwork<'_>,
        pools: impl Iterator<Item = &'a String>,
    ) -> Result<UsedAddresses, Error> {
        let reserved = locked.reserved()?;
        let mut cooling = BTreeMap::new();
        for name in pools.collect::<BTreeSet<&String>>() {
            let cooldown = self.pools.get(name).map_or(0, |pool| pool.config().cooldown);
            cooling.insert(name.clone(), locked.cooling(Duration::from_secs(cooldown.into())));
        }
        let of_this_boot = locked.reserved_in_this_boot()?;
        Ok(UsedAddresses { reserved, of_this_boot, cooling })
    }

    fn apply_locked(&self, locked: &LockedNetwork<'_>, change: &BlockChange) -> Result<(), Error> {
        let mut blocks = locked.blocks()?;
        let at = blocks.iter().position(|block| BlockId::of_local(block) == change.id);
        let used = self.used(locked, std::iter::once(&change.id.pool))?;
        // A block that the files do not have yet serves.
        let state = at.map_or(BlockState::Active, |at| blocks[at].state);
        let in_use = self.is_in_use(&used, &change.id, state);
        let current = at.map(|at| HeldBlock {
            id: change.id.clone(),
            network: change.network.clone(),
            epoch: blocks[at].epoch,
            state: blocks[at].state,
            in_use,
            idle: false,
            is_closing: false,
            is_gone: false,
        });
        let after = changed(change, current.as_ref(), in_use);
        if after == current {
            return Ok(());
        }
        match (at, after) {
            (Some(at), Some(block)) => blocks[at] = local(&block),
            (None, Some(block)) => blocks.push(local(&block)),
            (Some(at), None) => drop(blocks.remove(at)),
            (None, None) => {}
        }
        locked.write_blocks(&blocks)
    }

    /// How many addresses of a family are free and past their cooldown, in the blocks that a network has of a pool.
    pub(crate) fn free(&self, network: &str, pool: &PoolDefinition, family: PoolFamily) -> Result<u128, Error> {
        let files = self.network(network);
        let locked = files.lock()?;
        let mut taken = locked.reserved()?;
        taken.extend(locked.cooling(Duration::from_secs(pool.config().cooldown.into())));
        taken.sort_unstable();
        taken.dedup(); // one that is allocated again
        let blocks = locked.blocks()?;
        let of_family = blocks.iter().filter(|block| block.family() == family);
        Ok(of_family.fold(0, |free: u128, block| free.saturating_add(block.free(pool, &taken))))
    }
}

/// The time since the start of the machine, suspended or not.
fn since_start() -> Result<Duration, Error> {
    let read = clock_gettime(ClockId::CLOCK_BOOTTIME);
    read.map(Duration::from).map_err(|errno| Error { text: format!("read the clock: {errno}"), hint: None })
}

fn local(block: &HeldBlock) -> LocalBlock {
    let BlockId { pool, cidr, is_static } = block.id.clone();
    LocalBlock { pool, cidr, is_static, epoch: block.epoch, state: block.state }
}
