//! What an operator does with the engine: define a pool, choose that of a namespace, fence a node, list.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::SystemTime;

use cnikit_pool::{
    BlockRecord, Error, FenceRecord, Incarnation, KeyOfEngine, NodeRecord, PoolDefinition, SessionRecord, StickyRecord,
    UnheldRecord, UsageRecord, check_namespace, check_node_name,
};
use cnikit_pool_protocol::{
    BlockId, Guard, Outcome, Part, StoredValue, Transaction, WriteOperation, fence, free_fenced, name_of,
};
use serde_json::{Value, json};

use crate::agent::AgentFailure;
use crate::engine::{Engine, Listing};

/// How often the blocks of a fenced node are listed at most, until none is left.
const ROUNDS: usize = 20;

pub(crate) fn refused(text: String, hint: &str) -> AgentFailure {
    AgentFailure::Refused { code: 0, text, hint: Some(hint.to_owned()) }
}

/// What is to be fenced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FenceRequest {
    /// The node.
    pub node: String,
    /// Its incarnation; `None`: the one of a fence that was begun and has not freed all blocks yet, otherwise the registered one.
    pub incarnation: Option<Incarnation>,
    /// Who says that its containers are gone.
    pub by: String,
    /// Why.
    pub why: String,
    /// Whether an incarnation is fenced that has a session, so that its agent seems to run.
    pub force: bool,
}

/// Fences an incarnation of a node, and frees its blocks. It is the operator's word that the node's containers are gone. Returns
/// the incarnation and how many blocks were freed.
///
/// # Errors
/// There is no such node, its agent seems to run, or the engine does not answer. Once the incarnation is known, the error names
/// it: the command is to be repeated with it, and goes on.
pub async fn fence_node<E: Engine>(engine: &E, request: &FenceRequest) -> Result<(Incarnation, usize), AgentFailure> {
    check_node_name(&request.node)?;
    let incarnation = match request.incarnation {
        Some(incarnation) => incarnation,
        None => match unfinished(engine, &request.node).await? {
            Some(incarnation) => incarnation,
            None => registered(engine, &request.node).await?,
        },
    };
    match fence_incarnation(engine, request, incarnation).await {
        Ok(freed) => Ok((incarnation, freed)),
        Err(AgentFailure::Engine(error)) => Err(refused(
            format!("fence incarnation {incarnation} of node {}: {error}", request.node),
            &format!("repeat it: cnikit-agent fence {} --incarnation {incarnation}", request.node),
        )),
        Err(error) => Err(error),
    }
}

async fn fence_incarnation<E: Engine>(
    engine: &E,
    request: &FenceRequest,
    incarnation: Incarnation,
) -> Result<usize, AgentFailure> {
    let node = request.node.as_str();
    let key = KeyOfEngine::Fence { node: node.to_owned(), incarnation };
    let mut fenced = fence_of(engine, node, &key).await?;
    if fenced.is_none() {
        let at = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let record = FenceRecord { by: request.by.clone(), at, why: request.why.clone() };
        let mut transaction = fence(node, incarnation, &record)?;
        if !request.force {
            transaction.guards.push(without_session(engine, node, incarnation).await?);
        }
        engine.commit(&transaction).await?;
        fenced = fence_of(engine, node, &key).await?;
    }
    let Some(fence) = fenced else {
        let text = format!("the session of node {node} changed while its incarnation {incarnation} was to be fenced");
        return Err(refused(text, "is its agent starting? Look with `cnikit-agent list`, and fence it again"));
    };
    let mut freed = 0;
    for _ in 0..ROUNDS {
        let owned = blocks_of(engine, node, incarnation).await?;
        if owned.is_empty() {
            return Ok(freed);
        }
        for (id, found) in owned {
            let outcome = engine.commit(&free_fenced(node, incarnation, fence, &id, &found)).await?;
            freed += usize::from(matches!(outcome, Outcome::Committed(_)));
        }
    }
    Err(refused(
        format!("incarnation {incarnation} of node {node} still has blocks"),
        &format!("fence it again: cnikit-agent fence {node} --incarnation {incarnation}"),
    ))
}

/// The revision of a fence.
async fn fence_of<E: Engine>(engine: &E, node: &str, key: &KeyOfEngine) -> Result<Option<i64>, AgentFailure> {
    let fences = engine.list(&Listing::FencesOf(node.to_owned())).await?;
    Ok(fences.into_iter().find(|(found, _)| found == key).map(|(_, stored)| stored.revision))
}

/// The guard by which this incarnation has no session when it is fenced.
async fn without_session<E: Engine>(engine: &E, node: &str, incarnation: Incarnation) -> Result<Guard, AgentFailure> {
    let key = KeyOfEngine::Session(node.to_owned());
    let Some(stored) = engine.living_session(node).await? else { return Ok(Guard::Absent(key)) };
    match stored.record::<SessionRecord>() {
        Some(session) if session.incarnation == incarnation => Err(refused(
            format!("incarnation {incarnation} of node {node} has a session: its agent runs, or has ended just now"),
            "wait until the session has ended (`session` of its configuration), or say --force if its containers are gone",
        )),
        _ => Ok(Guard::Unchanged(key, stored.revision)),
    }
}

/// The incarnation of a fence of the node that has not freed all blocks.
async fn unfinished<E: Engine>(engine: &E, node: &str) -> Result<Option<Incarnation>, AgentFailure> {
    for (key, _) in engine.list(&Listing::FencesOf(node.to_owned())).await? {
        if let KeyOfEngine::Fence { incarnation, .. } = key
            && !blocks_of(engine, node, incarnation).await?.is_empty()
        {
            return Ok(Some(incarnation));
        }
    }
    Ok(None)
}

/// The incarnation that is registered for a node.
async fn registered<E: Engine>(engine: &E, node: &str) -> Result<Incarnation, AgentFailure> {
    let key = KeyOfEngine::Node(node.to_owned());
    for (found, stored) in engine.list(&Listing::Nodes).await? {
        if found == key
            && let Some(NodeRecord { incarnation }) = stored.record()
        {
            return Ok(incarnation);
        }
    }
    Err(refused(format!("there is no node {node}"), "`cnikit-agent list` shows all nodes"))
}

/// The blocks and static addresses of an incarnation, with their records.
async fn blocks_of<E: Engine>(
    engine: &E,
    node: &str,
    incarnation: Incarnation,
) -> Result<Vec<(BlockId, StoredValue)>, AgentFailure> {
    let mut owned = Vec::new();
    for listing in [Listing::Blocks, Listing::Statics] {
        for (key, stored) in engine.list(&listing).await? {
            let owner: Option<BlockRecord> = stored.record();
            if let (Some(id), Some(owner)) = (BlockId::of_key(&key), owner)
                && owner.node == node
                && owner.incarnation == incarnation
            {
                owned.push((id, stored));
            }
        }
    }
    Ok(owned)
}

/// Writes the definition of a pool. Blocks that nodes have stay theirs: a definition that has no such block any more is refused.
/// Nodes may claim meanwhile: a claim by the definition before is refused after this one.
///
/// # Errors
/// The definition is invalid, would lose blocks that nodes have, overlaps another pool, or the engine does not answer.
pub async fn define_pool<E: Engine>(engine: &E, text: &[u8]) -> Result<PoolDefinition, AgentFailure> {
    let pool = PoolDefinition::parse(text)?;
    let key = KeyOfEngine::Pool(pool.name().to_owned());
    let value = serde_json::to_vec(pool.config()).map_err(|error| Error { text: error.to_string(), hint: None })?;
    for _ in 0..ROUNDS {
        let guards = guards_of_definition(engine, &pool, &key).await?;
        let written = Transaction { guards, writes: vec![WriteOperation::Put(key.clone(), value.clone())] };
        match engine.commit(&written).await? {
            Outcome::Committed(_) => return Ok(pool),
            // A node has claimed a block meanwhile, or a pool was defined.
            Outcome::Refused(_) => {}
        }
    }
    Err(refused(format!("nodes claim blocks of pool {} again and again", pool.name()), "try again"))
}

/// Checks that a definition keeps what nodes have, and overlaps no other pool. Returns the guards by which this is still so when it
/// is written: whoever writes a key after it was listed gives it a later revision than all that were listed have.
async fn guards_of_definition<E: Engine>(
    engine: &E,
    pool: &PoolDefinition,
    key: &KeyOfEngine,
) -> Result<Vec<Guard>, AgentFailure> {
    let mut guards = vec![Guard::Absent(key.clone())];
    let mut last = 0;
    for (found, stored) in engine.list(&Listing::Pools).await? {
        let revision = stored.revision.abs();
        last = last.max(revision);
        if found == *key {
            guards = vec![Guard::Unchanged(key.clone(), revision)];
        } else if let Ok(other) = PoolDefinition::parse(&stored.value)
            && let Some((range, of_other)) = pool.overlap(&other)
        {
            return Err(refused(
                format!("range {range} overlaps {of_other} of pool {}", other.name()),
                "an address is of one pool: choose other ranges",
            ));
        }
    }
    guards.push(Guard::NoneSince(Part::Pools, last));
    let name = pool.name().to_owned();
    for (listing, part) in [
        (Listing::BlocksOf(name.clone()), Part::BlocksOf(name.clone())),
        (Listing::StaticsOf(name.clone()), Part::StaticsOf(name.clone())),
    ] {
        let mut last = 0;
        for (key, stored) in engine.list(&listing).await? {
            last = last.max(stored.revision);
            check_keeps(pool, &key, &stored)?;
        }
        guards.push(Guard::NoneSince(part, last));
    }
    Ok(guards)
}

/// Refuses a definition without a block or a static address that a node has.
fn check_keeps(pool: &PoolDefinition, key: &KeyOfEngine, stored: &StoredValue) -> Result<(), AgentFailure> {
    let Some(id) = BlockId::of_key(key) else { return Ok(()) };
    let (is_kept, what) = if id.is_static {
        (pool.static_range_of(id.cidr.ip()).is_some(), format!("static address {}", id.cidr.ip()))
    } else {
        (pool.block_of(id.cidr).is_some(), format!("block {}", id.cidr))
    };
    if is_kept {
        return Ok(());
    }
    let owner: Option<BlockRecord> = stored.record();
    let owner = match (owner, stored.record::<UnheldRecord>()) {
        (Some(owner), _) => format!("node {}", owner.node),
        (None, Some(unheld)) => format!("the name {}", unheld.sticky),
        (None, None) => "another program".to_owned(),
    };
    Err(refused(
        format!("{owner} has {what}, which this definition does not have"),
        "close the pool (\"closed\": true) with its old ranges, and wait until its blocks are given back",
    ))
}

/// Chooses the pool of a namespace: pods of it get addresses of this pool, instead of that of their network. Without a pool, they
/// get those of their network's again. Containers keep the addresses that they have.
///
/// # Errors
/// The namespace can be no name, there is no such pool, the namespace has no pool that could be removed, or the engine does not
/// answer.
pub async fn select_pool<E: Engine>(engine: &E, namespace: &str, pool: Option<&str>) -> Result<(), AgentFailure> {
    check_namespace(namespace)?;
    let key = KeyOfEngine::Select(namespace.to_owned());
    for _ in 0..ROUNDS {
        let selected = engine.list(&Listing::Key(key.clone())).await?.into_iter().next();
        let guard = match &selected {
            Some((_, stored)) => Guard::Unchanged(key.clone(), stored.revision),
            None => Guard::Absent(key.clone()),
        };
        let transaction = match pool {
            Some(pool) => {
                // The definition cannot go away meanwhile, and a namespace never has a pool that does not exist.
                let guards = vec![guard, existing_pool(engine, pool).await?];
                Transaction { guards, writes: vec![WriteOperation::Put(key.clone(), pool.into())] }
            }
            None if selected.is_none() => {
                let text = format!("namespace {namespace} has no pool of its own");
                return Err(refused(text, "`cnikit-agent list` shows which namespaces have one"));
            }
            None => Transaction { guards: vec![guard], writes: vec![WriteOperation::Delete(key.clone())] },
        };
        if let Outcome::Committed(_) = engine.commit(&transaction).await? {
            return Ok(());
        }
        // Another operator has written one of the two keys meanwhile.
    }
    Err(refused(format!("the pool of namespace {namespace} changes again and again"), "try again"))
}

/// The guard by which a pool has the definition that it has now.
async fn existing_pool<E: Engine>(engine: &E, pool: &str) -> Result<Guard, AgentFailure> {
    let key = KeyOfEngine::Pool(pool.to_owned());
    for (found, stored) in engine.list(&Listing::Pools).await? {
        let is_valid = PoolDefinition::parse(&stored.value).is_ok_and(|definition| definition.name() == pool);
        if found != key || !is_valid {
            continue;
        }
        if stored.revision < 0 {
            return Err(refused(
                format!("a definition of pool {pool} has begun, and has not ended"),
                "repeat `cnikit-agent define`, then this command",
            ));
        }
        return Ok(Guard::Unchanged(key, stored.revision));
    }
    Err(refused(
        format!("there is no pool {pool}"),
        "`cnikit-agent list` shows all pools, and `cnikit-agent define` makes one",
    ))
}

/// Forgets a name whose addresses no node has. They are free then.
///
/// # Errors
/// There is no such name, a node has an address of it, or the engine does not answer.
pub async fn forget_name<E: Engine>(
    engine: &E,
    pool: &str,
    namespace: &str,
    name: &str,
) -> Result<Vec<IpAddr>, AgentFailure> {
    let key = KeyOfEngine::Sticky { pool: pool.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() };
    let mut transaction = Transaction { guards: Vec::new(), writes: Vec::new() };
    let mut addresses: BTreeSet<IpAddr> = BTreeSet::new();
    if let Some((_, stored)) = engine.list(&Listing::Key(key.clone())).await?.into_iter().next() {
        let record: StickyRecord = stored.record().unwrap_or_default();
        addresses.extend(record.ip4.into_iter().chain(record.ip6));
        transaction.guards.push(Guard::Unchanged(key.clone(), stored.revision));
        transaction.writes.push(WriteOperation::Delete(key));
    }
    let full_name = format!("{namespace}/{name}");
    for (held, found) in engine.list(&Listing::StaticsOf(pool.to_owned())).await? {
        let KeyOfEngine::Static { address, .. } = held else { continue };
        // Also what a claim or a deletion of the name that did not end has left.
        if !addresses.contains(&address) && name_of(&found).as_deref() != Some(&full_name) {
            continue;
        }
        if let Some(owner) = found.record::<BlockRecord>() {
            return Err(refused(
                format!("node {} has {address} of name {full_name}", owner.node),
                "delete its attachment first, or fence the node if it is gone for ever",
            ));
        }
        addresses.insert(address);
        transaction.guards.push(Guard::Unchanged(held.clone(), found.revision));
        transaction.writes.push(WriteOperation::Delete(held));
    }
    if transaction.writes.is_empty() {
        return Err(refused(
            format!("pool {pool} has no name {full_name}"),
            "the keys below sticky/ of etcd, or the objects stickynames of Kubernetes, are all names",
        ));
    }
    match engine.commit(&transaction).await? {
        Outcome::Committed(_) => Ok(addresses.into_iter().collect()),
        Outcome::Refused(_) => Err(refused(format!("name {namespace}/{name} was changed meanwhile"), "try again")),
    }
}

/// Everything that the engine has, as JSON.
///
/// # Errors
/// The engine does not answer.
pub async fn list_all<E: Engine>(engine: &E) -> Result<Value, AgentFailure> {
    let mut pools = Vec::new();
    for (_, stored) in engine.list(&Listing::Pools).await? {
        pools.push(serde_json::from_slice::<Value>(&stored.value).unwrap_or(Value::Null));
    }
    let mut selections = Vec::new();
    for (key, stored) in engine.list(&Listing::Selections).await? {
        if let KeyOfEngine::Select(namespace) = key {
            selections.push(json!({"namespace": namespace, "pool": String::from_utf8_lossy(&stored.value)}));
        }
    }
    let mut blocks = Vec::new();
    for listing in [Listing::Blocks, Listing::Statics] {
        for (key, stored) in engine.list(&listing).await? {
            let (Some(id), owner) = (BlockId::of_key(&key), stored.record::<BlockRecord>()) else { continue };
            blocks.push(json!({
                "pool": id.pool,
                "cidr": id.cidr.to_string(),
                "static": id.is_static,
                "epoch": stored.revision,
                "owner": owner,
            }));
        }
    }
    let sessions = engine.list(&Listing::Sessions).await?;
    let usages = engine.list(&Listing::Usages).await?;
    let mut nodes = Vec::new();
    for (key, stored) in engine.list(&Listing::Nodes).await? {
        let (KeyOfEngine::Node(name), Some(node)) = (&key, stored.record::<NodeRecord>()) else { continue };
        let session = sessions.iter().find(|(key, _)| *key == KeyOfEngine::Session(name.clone()));
        let session: Option<SessionRecord> = session.and_then(|(_, stored)| stored.record());
        let usage = usages.iter().find(|(key, _)| *key == KeyOfEngine::Usage(name.clone()));
        let usage: Option<UsageRecord> = usage.and_then(|(_, stored)| stored.record());
        let mut fences = Vec::new();
        for (key, stored) in engine.list(&Listing::FencesOf(name.clone())).await? {
            if let (KeyOfEngine::Fence { incarnation, .. }, Some(fence)) = (key, stored.record::<FenceRecord>()) {
                fences.push(json!({"incarnation": incarnation, "by": fence.by, "at": fence.at, "why": fence.why}));
            }
        }
        nodes.push(json!({
            "node": name, "incarnation": node.incarnation, "session": session, "fences": fences,
            "usage": usage,
        }));
    }
    Ok(json!({"pools": pools, "selections": selections, "blocks": blocks, "nodes": nodes}))
}
