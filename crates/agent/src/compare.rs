//! `cnikit-agent check`: compares the node's files with the engine. It locks nothing and changes nothing, so agent and plugins go
//! on meanwhile; what differs is read once more before it is reported.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use cnikit_pool::{
    BlockRecord, BlockState, Error, Incarnation, KeyOfEngine, LocalBlock, LocalNode, NodeFiles, NodeState,
    PoolDefinition,
};
use cnikit_pool_protocol::{BlockId, Survey};
use cnikit_reservations::{Holder, TIMEOUT};
use cnikit_types::limit;
use serde::Serialize;

use crate::agent::AgentFailure;
use crate::engine::{Engine, Listing, Reach};
use crate::log::log;

/// After how long a difference is read again: a claim is in the engine before it is in the files.
const AGAIN: Duration = Duration::from_secs(2);
/// How many containers a finding names.
const NAMED: usize = 4;

/// A difference, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeDifference {
    /// A word for programs.
    pub kind: &'static str,
    /// What differs.
    pub what: String,
    /// What to do.
    pub hint: String,
}

fn finding(kind: &'static str, what: String, hint: impl Into<String>) -> NodeDifference {
    NodeDifference { kind, what, hint: hint.into() }
}

/// The node whose files are compared.
#[derive(Clone, Debug)]
pub struct ComparedNode {
    /// Its name.
    pub name: String,
    /// The boot id.
    pub boot: String,
    /// Its files.
    pub files: NodeFiles,
}

/// What differs twice, at two moments.
///
/// # Errors
/// The engine does not answer, or the files cannot be read.
pub async fn compare_node<E: Engine>(engine: &E, node: &ComparedNode) -> Result<Vec<NodeDifference>, AgentFailure> {
    let first = compare_once(engine, node).await?;
    if first.is_empty() {
        return Ok(first);
    }
    tokio::time::sleep(AGAIN).await;
    let mut second = compare_once(engine, node).await?;
    second.retain(|found| first.contains(found));
    Ok(second)
}

/// The files of a node as they are at one moment.
struct LocalSide {
    node: LocalNode,
    /// The blocks with their networks.
    blocks: Vec<(String, LocalBlock)>,
    /// The reserved addresses of networks that have blocks, with network and owner.
    reserved: Vec<(IpAddr, String, String)>,
}

async fn compare_once<E: Engine>(engine: &E, node: &ComparedNode) -> Result<Vec<NodeDifference>, AgentFailure> {
    let Some(local) = LocalSide::read(&node.files)? else {
        let what = format!("there is no node.json in {}", node.files.path().display());
        return Ok(vec![finding("no-agent", what, "start cnikit-agent on this node")]);
    };
    let held: BTreeSet<BlockId> = local.blocks.iter().map(|(_, block)| BlockId::of_local(block)).collect();
    let survey = engine.survey(&node.name, local.node.incarnation, &held, Reach::All).await?;
    let mut pools = BTreeMap::new();
    for (key, stored) in engine.list(&Listing::Pools).await? {
        if let (KeyOfEngine::Pool(name), Ok(pool)) = (key, PoolDefinition::parse(&stored.value)) {
            pools.insert(name, pool);
        }
    }
    let mut findings = of_node(node, &local.node, &survey);
    for (network, block) in &local.blocks {
        findings.extend(of_block(node, &local, network, block, &survey, &pools));
    }
    findings.extend(of_unknown_blocks(&held, node, &local.node, &survey, &pools));
    findings.extend(of_former_lives(engine, node, local.node.incarnation).await?);
    findings.extend(local.of_reservations());
    Ok(findings)
}

impl LocalSide {
    fn read(files: &NodeFiles) -> Result<Option<LocalSide>, AgentFailure> {
        let Some(node) = files.node()? else { return Ok(None) };
        let mut blocks = Vec::new();
        let mut reserved = Vec::new();
        for name in files.networks()? {
            let network = files.network(&name, TIMEOUT, |warning| log("reservations", warning));
            blocks.extend(network.blocks()?.into_iter().map(|block| (name.clone(), block)));
            for one in network.store().survey().map_err(Error::from)? {
                let owner = match one.holder {
                    Holder::Of(owner) => owner.to_string(),
                    Holder::Lost | Holder::Unreadable(_) => "an unknown container".to_owned(),
                };
                reserved.push((one.address, name.clone(), owner));
            }
        }
        Ok(Some(LocalSide { node, blocks, reserved }))
    }

    /// The containers that have an address of a block.
    fn holders(&self, network: &str, block: &LocalBlock) -> String {
        let mut holders = Vec::new();
        for (address, of, owner) in &self.reserved {
            if of == network && block.cidr.contains(*address) {
                holders.push(format!("{address} of {owner}"));
            }
        }
        if holders.is_empty() {
            return "no container has an address of it".to_owned();
        }
        format!("in use: {}", limit::first_few(&holders, NAMED, ", "))
    }

    fn of_reservations(&self) -> Vec<NodeDifference> {
        let mut findings = Vec::new();
        let mut seen: BTreeMap<IpAddr, &str> = BTreeMap::new();
        for (address, network, owner) in &self.reserved {
            let blocks = self.blocks.iter().filter(|(of, _)| of == network);
            if !blocks.into_iter().any(|(_, block)| block.cidr.contains(*address)) {
                findings.push(finding(
                    "reserved-without-block",
                    format!("{address} of {owner} in network {network} is in no block of this node"),
                    "if its container runs, `cnitool ipam adopt` claims the block, unless another node has it",
                ));
            }
            if let Some(other) = seen.insert(*address, network) {
                findings.push(finding(
                    "reserved-twice",
                    format!("{address} is reserved in network {other} and in network {network}"),
                    "restart the container of one of them",
                ));
            }
        }
        findings
    }
}

fn of_node(node: &ComparedNode, local: &LocalNode, survey: &Survey) -> Vec<NodeDifference> {
    let (name, incarnation) = (&node.name, local.incarnation);
    let mut findings = Vec::new();
    if !local.node.is_empty() && local.node != *name {
        let what = format!("the files are those of node {}, and this node is {name}", local.node);
        findings.push(finding("other-name", what, "set `node` in the agent's configuration to the name in the files"));
    }
    if survey.is_fenced || local.state == NodeState::Fenced {
        let what = format!("incarnation {incarnation} of this node was fenced");
        findings.push(finding("fenced", what, "end its containers; then the agent begins anew"));
    }
    match survey.node_record() {
        None => {
            let what = format!("the engine has no record of node {name}");
            findings.push(finding("unregistered", what, "start cnikit-agent on this node, or look at its log"));
        }
        Some(record) if record.incarnation != incarnation => {
            let what = format!(
                "the engine has incarnation {} of node {name}, the files have {incarnation}",
                record.incarnation
            );
            let hint = "is there another machine of this name? Otherwise start cnikit-agent, which registers this one";
            findings.push(finding("other-incarnation", what, hint));
        }
        Some(_) => {}
    }
    match survey.session_record() {
        None => {
            let what = "no agent of this node has a session".to_owned();
            findings.push(finding("no-session", what, "start cnikit-agent on this node, or look at its log"));
        }
        Some(session) if session.boot != node.boot => {
            let what = format!("another machine, or this one before it booted, has the session: boot {}", session.boot);
            findings.push(finding("other-session", what, "is there a clone of this node? Otherwise wait for its end"));
        }
        Some(_) => {}
    }
    findings
}

fn of_block(
    node: &ComparedNode,
    local: &LocalSide,
    network: &str,
    block: &LocalBlock,
    survey: &Survey,
    pools: &BTreeMap<String, PoolDefinition>,
) -> Vec<NodeDifference> {
    let id = BlockId::of_local(block);
    let holders = local.holders(network, block);
    let mut findings = Vec::new();
    let found = survey.blocks.get(&id);
    let owner = found.and_then(|found| found.record.clone());
    let is_mine = found.is_some_and(|found| found.is_of(&node.name, local.node.incarnation));
    if found.is_some() && !is_mine {
        let owner = match owner {
            Some(record) if record.node == node.name => format!("incarnation {} of this node", record.incarnation),
            Some(record) => format!("node {}", record.node),
            None => "another program".to_owned(),
        };
        let what = format!("block {id} of network {network} belongs to {owner}; {holders}");
        findings.push(finding(
            "foreign-block",
            what,
            "restart the containers that are in it: their addresses are taken",
        ));
    } else if found.is_none() {
        let what = format!("the engine has no record of block {id} of network {network}; {holders}");
        let hint = "the agent claims it again while containers have its addresses, and forgets it otherwise";
        findings.push(finding("unknown-block", what, hint));
    } else if found.is_some_and(|found| found.stored.revision != block.epoch) {
        let what = format!("block {id} of network {network} was written since the files had it");
        findings.push(finding("other-epoch", what, "the agent writes it anew: look at its log if this stays"));
    }
    match block.state {
        BlockState::Unconfirmed => {
            let what = format!("block {id} of network {network} is unconfirmed since the boot, and serves nothing");
            findings.push(finding("unconfirmed", what, "the agent confirms it as soon as it has a session"));
        }
        BlockState::Lost if is_mine => {
            let what = format!("block {id} of network {network} is lost in the files, and this node's in the engine");
            findings.push(finding("lost", what, "the agent writes it anew: look at its log if this stays"));
        }
        _ => {}
    }
    let has_pool = pools.get(&block.pool).is_some_and(|pool| {
        if id.is_static { pool.static_range_of(id.cidr.ip()).is_some() } else { pool.block_of(id.cidr).is_some() }
    });
    if !has_pool {
        let what = format!("no pool {} has block {id} of network {network}; {holders}", block.pool);
        findings.push(finding("no-pool", what, "it assigns nothing, and is given back when its containers have ended"));
    }
    findings
}

/// Blocks of this incarnation that the files do not have.
fn of_unknown_blocks(
    held: &BTreeSet<BlockId>,
    node: &ComparedNode,
    local: &LocalNode,
    survey: &Survey,
    pools: &BTreeMap<String, PoolDefinition>,
) -> Vec<NodeDifference> {
    let mut findings = Vec::new();
    for (id, found) in &survey.blocks {
        if held.contains(id) || !found.is_of(&node.name, local.incarnation) {
            continue;
        }
        let network = found.record.as_ref().map_or("", |record| record.network.as_str());
        let what = format!("the engine has block {id} for network {network} of this node, and the files do not");
        let hint = if pools.contains_key(&id.pool) {
            "the agent takes it over at its next comparison: look at its log if this stays"
        } else {
            "no pool has it: another program wrote the key; delete it"
        };
        findings.push(finding("unadopted-block", what, hint));
    }
    findings
}

/// Blocks of other incarnations under this name.
async fn of_former_lives<E: Engine>(
    engine: &E,
    node: &ComparedNode,
    incarnation: Incarnation,
) -> Result<Vec<NodeDifference>, AgentFailure> {
    let mut counts: BTreeMap<Incarnation, usize> = BTreeMap::new();
    for listing in [Listing::Blocks, Listing::Statics] {
        for (_, stored) in engine.list(&listing).await? {
            if let Some(owner) = stored.record::<BlockRecord>()
                && owner.node == node.name
                && owner.incarnation != incarnation
            {
                *counts.entry(owner.incarnation).or_default() += 1;
            }
        }
    }
    let mut findings = Vec::new();
    for (other, count) in counts {
        let what = format!("incarnation {other} of this node has {count} blocks");
        let hint = format!(
            "if that installation and its containers are gone: cnitool ipam fence {} --incarnation {other}",
            node.name
        );
        findings.push(finding("former-incarnation", what, hint));
    }
    Ok(findings)
}
