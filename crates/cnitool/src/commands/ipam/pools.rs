//! `ipam pools`, `blocks`, `usage --nodes` and `fence`: what the engine has of all nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use cnikit_pool::{
    BlockState, NetworkFiles, NodeFiles, PoolConfig, PoolDefinition, PoolFamily, PoolRangeConfig, PoolUsage,
    UsageRecord, pool_usage,
};
use cnikit_reservations::TIMEOUT;
use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::agent::{ask, words};
use crate::cli::{AgentProgram, Blocks, Fence, Pools};
use crate::failure::Result;
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print, print_json, print_to_stderr};
use crate::output::table::Cell;
use crate::output::text::Tone;

/// Up to so many block numbers of a pool are tried one by one, because some of them are no blocks.
const COUNTED: u64 = 1 << 16;

/// What `cnikit-agent list` prints.
#[derive(Debug, Deserialize)]
pub(super) struct Listed {
    #[serde(default)]
    pools: Vec<Value>,
    #[serde(default)]
    selections: Vec<ListedSelection>,
    blocks: Vec<ListedBlock>,
    nodes: Vec<ListedNode>,
    pub(super) this: ThisNode,
}

/// The pool of a namespace.
#[derive(Debug, Deserialize)]
struct ListedSelection {
    namespace: String,
    pool: String,
}

/// The node on which the agent's program was run.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ThisNode {
    node: String,
    pub(super) data_dir: PathBuf,
}

#[derive(Debug, Deserialize)]
struct ListedBlock {
    pool: String,
    cidr: IpNetwork,
    #[serde(rename = "static")]
    is_static: bool,
    epoch: i64,
    owner: Option<ListedOwner>,
}

#[derive(Debug, Deserialize)]
struct ListedOwner {
    node: String,
    incarnation: String,
    network: String,
}

#[derive(Debug, Deserialize)]
struct ListedNode {
    node: String,
    incarnation: String,
    session: Option<Value>,
    fences: Vec<ListedFence>,
    usage: Option<UsageRecord>,
}

#[derive(Debug, Deserialize)]
struct ListedFence {
    incarnation: String,
}

impl Listed {
    pub(super) fn read(common: &Common, agent: &AgentProgram) -> Result<Listed> {
        let document = ask(common, agent, &words(&["list"]), Vec::new())?;
        Ok(serde_json::from_value(document).map_err(|error| format!("cnikit-agent list: {error}"))?)
    }

    /// The valid definitions.
    fn definitions(&self) -> Vec<PoolDefinition> {
        let mut valid = Vec::new();
        for value in &self.pools {
            let parsed = serde_json::from_value::<PoolConfig>(value.clone());
            match parsed
                .map_err(|error| error.to_string())
                .and_then(|config| PoolDefinition::new(config).map_err(|error| error.to_string()))
            {
                Ok(pool) => valid.push(pool),
                Err(error) => print_to_stderr(&format!("Warning: a pool is skipped: {error}")),
            }
        }
        valid
    }

    pub(super) fn definition(&self, name: &str) -> Option<PoolDefinition> {
        self.definitions().into_iter().find(|pool| pool.name() == name)
    }

    fn of_pool(&self, pool: &PoolDefinition, family: PoolFamily) -> impl Iterator<Item = &ListedBlock> {
        let name = pool.name().to_owned();
        self.blocks.iter().filter(move |block| block.pool == name && PoolFamily::of(block.cidr.ip()) == family)
    }

    /// The state of a block: on this node that of its files, on others what the engine's records say.
    fn state(&self, block: &ListedBlock, local: &BTreeMap<(String, IpNetwork), BlockState>) -> (String, Tone) {
        let Some(owner) = &block.owner else { return ("not a record".into(), Tone::Bad) };
        let Some(node) = self.nodes.iter().find(|node| node.node == owner.node) else {
            return ("of an unregistered node".into(), Tone::Doubtful);
        };
        if node.fences.iter().any(|fence| fence.incarnation == owner.incarnation) {
            return ("fenced: fence it again".into(), Tone::Bad);
        }
        if node.incarnation != owner.incarnation {
            return ("of a former incarnation".into(), Tone::Doubtful);
        }
        if owner.node == self.this.node {
            return match local.get(&(block.pool.clone(), block.cidr)) {
                Some(BlockState::Active) => ("active".into(), Tone::Good),
                Some(BlockState::Unconfirmed) => ("unconfirmed".into(), Tone::Doubtful),
                Some(BlockState::Sealed) => ("sealed".into(), Tone::Plain),
                Some(BlockState::Lost) => ("lost".into(), Tone::Bad),
                None => ("not in the files".into(), Tone::Doubtful),
            };
        }
        match node.session {
            Some(_) => ("owned".into(), Tone::Good),
            None => ("owned, no agent runs".into(), Tone::Doubtful),
        }
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PoolRow {
    pool: String,
    family: PoolFamily,
    ranges: Vec<String>,
    #[serde(rename = "static")]
    static_ranges: Vec<String>,
    block_size: u8,
    closed: bool,
    blocks_taken: u64,
    blocks_free: u64,
    static_taken: usize,
    nodes: BTreeSet<String>,
    namespaces: BTreeSet<String>,
}

/// Prints each pool with its ranges, its blocks, its nodes, and the namespaces that have it.
pub(crate) fn pools(common: &Common, out: Output, args: &Pools) -> Result {
    let listed = Listed::read(common, &args.agent)?;
    let mut rows = Vec::new();
    let definitions = listed.definitions();
    for ListedSelection { namespace, pool } in &listed.selections {
        if !definitions.iter().any(|definition| definition.name() == pool) {
            let warning = format!("Warning: namespace {namespace:?} has pool {pool:?}, and there is no such pool");
            print_to_stderr(&warning);
        }
    }
    for pool in definitions {
        for family in pool.families() {
            rows.push(pool_row(&listed, &pool, family));
        }
    }
    if out.json {
        return print_json(&json!({"pools": rows}));
    }
    let mut cells: Vec<[Cell<'_>; 8]> = Vec::new();
    for row in &rows {
        let mut ranges = row.ranges.join(" ");
        if row.closed {
            ranges.push_str(" (closed)");
        }
        let nodes: Vec<&str> = row.nodes.iter().map(String::as_str).collect();
        let namespaces: Vec<&str> = row.namespaces.iter().map(String::as_str).collect();
        cells.push([
            row.pool.as_str().into(),
            ranges.into(),
            format!("/{}", row.block_size).into(),
            row.blocks_taken.to_string().into(),
            Cell::toned(row.blocks_free.to_string(), if row.blocks_free == 0 { Tone::Bad } else { Tone::Plain }),
            row.static_taken.to_string().into(),
            nodes.join(" ").into(),
            namespaces.join(" ").into(),
        ]);
    }
    out.table(["POOL", "RANGES", "BLOCK", "TAKEN", "FREE", "STATIC", "NODES", "NAMESPACES"], &cells)
}

fn pool_row(listed: &Listed, pool: &PoolDefinition, family: PoolFamily) -> PoolRow {
    let of_family = |range: &&PoolRangeConfig| PoolFamily::of(range.subnet.ip()) == family;
    let taken = listed.of_pool(pool, family).filter(|block| !block.is_static).count() as u64;
    let count = pool.count(family);
    let usable = match count {
        0..=COUNTED => (0..count).filter(|index| pool.block(family, *index).is_some()).count() as u64,
        _ => count,
    };
    let selections = listed.selections.iter().filter(|selection| selection.pool == pool.name());
    let owners = listed.of_pool(pool, family).filter_map(|block| block.owner.as_ref());
    PoolRow {
        pool: pool.name().to_owned(),
        family,
        ranges: pool.config().ranges.iter().filter(of_family).map(text).collect(),
        static_ranges: pool.config().static_ranges.iter().filter(of_family).map(text).collect(),
        block_size: pool.block_size(family),
        closed: pool.config().closed,
        blocks_taken: taken,
        blocks_free: usable.saturating_sub(taken),
        static_taken: listed.of_pool(pool, family).filter(|block| block.is_static).count(),
        nodes: owners.map(|owner| owner.node.clone()).collect(),
        namespaces: selections.map(|selection| selection.namespace.clone()).collect(),
    }
}

fn text(range: &PoolRangeConfig) -> String {
    match (range.range_start, range.range_end) {
        (None, None) => range.subnet.to_string(),
        (start, end) => {
            let side = |address: Option<std::net::IpAddr>| address.map(|one| one.to_string()).unwrap_or_default();
            format!("{}[{}-{}]", range.subnet, side(start), side(end))
        }
    }
}

/// Prints each block with its owner.
pub(crate) fn blocks(common: &Common, out: Output, args: &Blocks) -> Result {
    let listed = Listed::read(common, &args.agent)?;
    let local = local_states(&NodeFiles::new(&listed.this.data_dir));
    let mut found = Vec::new();
    for block in &listed.blocks {
        let is_of_node = match (&args.node, &block.owner) {
            (None, _) => true,
            (Some(node), Some(owner)) => *node == owner.node,
            (Some(_), None) => false,
        };
        if is_of_node && args.pool.as_ref().is_none_or(|pool| *pool == block.pool) {
            found.push((block, listed.state(block, &local)));
        }
    }
    let mut documents = Vec::new();
    let mut rows: Vec<[Cell<'_>; 7]> = Vec::new();
    for (block, (state, tone)) in &found {
        let owner = block.owner.as_ref();
        let of_owner = |member: fn(&ListedOwner) -> &String| owner.map_or("", |owner| member(owner).as_str());
        let (node, network) = (of_owner(|owner| &owner.node), of_owner(|owner| &owner.network));
        let incarnation = of_owner(|owner| &owner.incarnation);
        documents.push(json!({
            "pool": block.pool, "cidr": block.cidr.to_string(), "static": block.is_static, "node": node,
            "network": network, "state": state, "epoch": block.epoch, "incarnation": incarnation,
        }));
        rows.push([
            block.pool.as_str().into(),
            block.cidr.to_string().into(),
            node.into(),
            network.into(),
            Cell::toned(state.as_str(), *tone),
            block.epoch.to_string().into(),
            Cell::toned(incarnation, Tone::Faint),
        ]);
    }
    if out.json {
        return print_json(&json!({"blocks": documents}));
    }
    out.table(["POOL", "BLOCK", "NODE", "NETWORK", "STATE", "EPOCH", "INCARNATION"], &rows)
}

/// The states in the files of this node.
fn local_states(files: &NodeFiles) -> BTreeMap<(String, IpNetwork), BlockState> {
    let mut states = BTreeMap::new();
    let open = files.open();
    for network in files.networks().unwrap_or_default() {
        let blocks = open.as_ref().ok().and_then(|open| open.blocks(&network).ok());
        for block in blocks.unwrap_or_default() {
            states.insert((block.pool, block.cidr), block.state);
        }
    }
    states
}

/// Prints how many addresses each node uses: this one by its files, the others as their agents wrote it.
pub(crate) fn usage_of_nodes(common: &Common, out: Output, agent: &AgentProgram) -> Result {
    let listed = Listed::read(common, agent)?;
    let mut rows: Vec<(&str, PoolUsage, String)> = Vec::new();
    for node in &listed.nodes {
        if node.node == listed.this.node {
            let own = own_usage(&NodeFiles::new(&listed.this.data_dir))?;
            rows.extend(own.into_iter().map(|usage| (node.node.as_str(), usage, "now".to_owned())));
        } else if let Some(record) = &node.usage {
            rows.extend(record.pools.iter().map(|usage| (node.node.as_str(), usage.clone(), record.at.clone())));
        }
    }
    if out.json {
        let document = |(node, usage, at): &(&str, PoolUsage, String)| {
            json!({
                "node": node, "pool": usage.pool, "family": usage.family, "blocks": usage.blocks, "used": usage.used,
                "free": usage.free, "at": at,
            })
        };
        return print_json(&json!({"nodes": rows.iter().map(document).collect::<Vec<Value>>()}));
    }
    let mut cells: Vec<[Cell<'_>; 7]> = Vec::new();
    for (node, usage, at) in &rows {
        let family = match usage.family {
            Some(PoolFamily::V4) => "v4",
            Some(PoolFamily::V6) => "v6",
            None => "",
        };
        cells.push([
            (*node).into(),
            usage.pool.as_str().into(),
            family.into(),
            usage.blocks.to_string().into(),
            usage.used.to_string().into(),
            usage.free.to_string().into(),
            Cell::toned(at.as_str(), Tone::Faint),
        ]);
    }
    out.table(["NODE", "POOL", "FAMILY", "BLOCKS", "USED", "FREE", "WRITTEN"], &cells)
}

/// The use of this node's blocks, by its files, without a lock.
fn own_usage(files: &NodeFiles) -> Result<Vec<PoolUsage>> {
    let open = |name: &str| files.network(name, TIMEOUT, |text| print_to_stderr(&format!("Warning: {text}")));
    let reserved = |network: &NetworkFiles| Ok(network.store().survey()?.into_iter().map(|one| one.address).collect());
    Ok(pool_usage(files, reserved, open).map_err(|error| error.to_string())?)
}

/// Frees the blocks of a node that is gone.
pub(crate) fn fence(common: &Common, out: Output, args: &Fence) -> Result {
    let mut line = words(&["fence", &args.node]);
    for (option, value) in [("--incarnation", &args.incarnation), ("--by", &args.by), ("--why", &args.why)] {
        if let Some(value) = value {
            line.extend(words(&[option, value]));
        }
    }
    if args.force {
        line.extend(words(&["--force"]));
    }
    let fenced = ask(common, &args.agent, &line, Vec::new())?;
    if out.json {
        return print_json(&fenced);
    }
    let incarnation = fenced["incarnation"].as_str().unwrap_or_default();
    print(&format!("incarnation {incarnation} of node {} is fenced; {} blocks are free\n", args.node, fenced["freed"]))
}
