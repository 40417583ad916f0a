//! `cnikit-agent adopt`: finds the blocks that cover the addresses of a host-local directory, and what prevents that they are
//! claimed. Nothing is changed here: the caller claims them afterwards, one request per block.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::path::Path;

use cnikit_pool::{
    BlockRecord, Error, Incarnation, KeyOfEngine, LONGEST_NETWORK, NodeFiles, PoolDefinition, PoolFamily, Want,
};
use cnikit_pool_protocol::BlockId;
use cnikit_reservations::{Holder, Store, TIMEOUT};
use cnikit_types::{check_network_name, document, limit, read};
use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use crate::agent::{AgentFailure, LOOKED_AT, owner_of};
use crate::engine::{Engine, Listing};
use crate::log::log;
use crate::operator::refused;

/// How many conflicts an error names.
const NAMED: usize = 10;
/// The most blocks that one call claims.
const MOST: usize = 4096;

/// What is to be adopted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdoptRequest {
    /// The network, whose directory is below the data directory.
    pub network: String,
    /// The pool.
    pub pool: String,
    /// Ranges of which all blocks are claimed, whether they have addresses in use or not.
    pub ranges: Vec<IpNetwork>,
    /// Further addresses, as an import has them.
    pub also: AlsoAdopted,
}

/// Addresses besides those of the directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub struct AlsoAdopted {
    /// Addresses of this node's containers, with the attachment, as `<container id>/<interface>`.
    #[serde(default)]
    pub addresses: Vec<AdoptedAddress>,
    /// Addresses of other nodes' containers: a block that has one is not claimed.
    #[serde(default)]
    pub foreign: Vec<IpAddr>,
}

/// An address with its attachment.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct AdoptedAddress {
    /// The address.
    pub address: IpAddr,
    /// The attachment.
    pub attachment: String,
}

impl AlsoAdopted {
    /// Parses the JSON of it.
    ///
    /// # Errors
    /// It is not that.
    pub fn parse(text: &[u8]) -> Result<AlsoAdopted, Error> {
        let document = document::parse(text).map_err(|error| Error { text: error.to_string(), hint: None })?;
        limit::check(&document)?;
        Ok(read(&document)?)
    }
}

/// A block that is adopted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AdoptedBlock {
    /// The block, or a static address.
    pub cidr: IpNetwork,
    /// Whether it is a static address.
    #[serde(rename = "static")]
    pub is_static: bool,
    /// How many of the addresses it has.
    pub addresses: usize,
    /// Whether this node had it before.
    pub had: bool,
    /// What claims it.
    #[serde(skip)]
    pub want: Want,
}

/// The name of the network whose directory this is. Only a directory below the data directory can be adopted: its files stay where
/// they are. It need not exist if all addresses are given otherwise (`may_be_new`).
///
/// # Errors
/// It is elsewhere, or not a directory.
pub fn network_of(directory: &Path, data_dir: &Path, may_be_new: bool) -> Result<String, Error> {
    let failed = |path: &Path, why: std::io::Error| Error { text: format!("{}: {why}", path.display()), hint: None };
    let base = data_dir.canonicalize().map_err(|why| failed(data_dir, why))?;
    match directory.symlink_metadata() {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return Err(Error { text: format!("{} is no directory", directory.display()), hint: None }),
        Err(why) if why.kind() == std::io::ErrorKind::NotFound && may_be_new => {}
        Err(why) => return Err(failed(directory, why)),
    }
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let above = directory.parent().and_then(|above| above.canonicalize().ok());
    if above != Some(base) || check_network_name(name).is_err() {
        return Err(Error {
            text: format!("{} is not the directory of a network below {}", directory.display(), data_dir.display()),
            hint: Some(
                "the files stay where they are: set `dataDir` of the agent and of the network to the directory above it"
                    .to_owned(),
            ),
        });
    }
    Ok(name.to_owned())
}

/// The blocks that cover the addresses, with what claims each.
///
/// # Errors
/// Something overlaps, no block has an address, or the engine does not answer. Nothing was changed.
pub async fn plan_adoption<E: Engine>(
    engine: &E,
    files: &NodeFiles,
    node: &str,
    request: &AdoptRequest,
) -> Result<Vec<AdoptedBlock>, AgentFailure> {
    let pool = pool_of(engine, request).await?;
    let mut conflicts = Vec::new();
    let blocks = covering(files, &pool, request, &mut conflicts)?;
    let owners = owners(engine, &pool, files.node()?.map(|node| node.incarnation), node).await?;
    let mut adopted = Vec::new();
    for (id, addresses) in blocks {
        let had = match owners.get(&id) {
            None => false,
            Some(Owner::This { network }) if *network == request.network => true,
            Some(owner) => {
                conflicts.push(format!("{} belongs to {owner}", id.cidr));
                continue;
            }
        };
        for address in &request.also.foreign {
            if id.cidr.contains(*address) {
                conflicts.push(format!("{} has {address}, of a container of another node", id.cidr));
            }
        }
        adopted.push(AdoptedBlock {
            cidr: id.cidr,
            is_static: id.is_static,
            addresses: addresses.count,
            had,
            want: want(request, &addresses),
        });
    }
    conflicts.extend(reserved_in_other_networks(files, request, &adopted)?);
    check_count(&pool, files, &adopted, &mut conflicts)?;
    if conflicts.is_empty() {
        return Ok(adopted);
    }
    let named = limit::first_few(&conflicts, NAMED, "; ");
    Err(AgentFailure::Refused {
        code: 0,
        text: format!("network {} cannot be adopted into pool {}: {named}", request.network, pool.name()),
        hint: Some(
            "nothing was changed. Put shared ranges into `static` of the pool, so that each address is claimed alone, or end the \
             containers that are named"
                .to_owned(),
        ),
    })
}

async fn pool_of<E: Engine>(engine: &E, request: &AdoptRequest) -> Result<PoolDefinition, AgentFailure> {
    if request.network.len() > LONGEST_NETWORK {
        let text = format!("the name of network {} is too long for a pool", request.network);
        return Err(refused(text, "rename the network"));
    }
    for (key, stored) in engine.list(&Listing::Pools).await? {
        if key != KeyOfEngine::Pool(request.pool.clone()) {
            continue;
        }
        let pool = PoolDefinition::parse(&stored.value)?;
        if pool.config().closed {
            return Err(refused(
                format!("pool {} is closed: nodes claim no more blocks of it", request.pool),
                "open it",
            ));
        }
        return Ok(pool);
    }
    Err(refused(format!("there is no pool {}", request.pool), "define it: cnikit-agent define FILE"))
}

/// The addresses of one block.
#[derive(Default)]
struct Covered {
    /// One that is asked for, and its attachment.
    first: Option<(IpAddr, Option<String>)>,
    count: usize,
}

/// The blocks that have the addresses of the directory, the further addresses and the ranges.
fn covering(
    files: &NodeFiles,
    pool: &PoolDefinition,
    request: &AdoptRequest,
    conflicts: &mut Vec<String>,
) -> Result<BTreeMap<BlockId, Covered>, AgentFailure> {
    let mut addresses: BTreeMap<IpAddr, Option<String>> = BTreeMap::new();
    for one in reservations(files, &request.network)? {
        addresses.insert(one.0, one.1);
    }
    for one in &request.also.addresses {
        if let Some(Some(holder)) = addresses.get(&one.address)
            && *holder != one.attachment
        {
            conflicts.push(format!("{} is reserved for {holder}, and not for {}", one.address, one.attachment));
        }
        addresses.insert(one.address, Some(one.attachment.clone()));
    }
    let mut blocks: BTreeMap<BlockId, Covered> = BTreeMap::new();
    for (address, attachment) in addresses {
        let Some(id) = BlockId::of_address(pool, address) else {
            conflicts.push(format!("pool {} has no address {address} for containers", pool.name()));
            continue;
        };
        let covered = blocks.entry(id).or_default();
        covered.count += 1;
        covered.first.get_or_insert((address, attachment));
    }
    for range in &request.ranges {
        add_range(pool, *range, &mut blocks)?;
    }
    if blocks.len() > MOST {
        let text = format!("{} blocks would be claimed, and at most {MOST} are", blocks.len());
        return Err(Error { text, hint: Some("make the blocks of the pool larger".to_owned()) }.into());
    }
    Ok(blocks)
}

/// The blocks of a range, each with an address that can be asked for.
fn add_range(
    pool: &PoolDefinition,
    range: IpNetwork,
    blocks: &mut BTreeMap<BlockId, Covered>,
) -> Result<(), AgentFailure> {
    let family = PoolFamily::of(range.ip());
    let mut found = 0;
    for index in 0..pool.count(family).min(LOOKED_AT as u64) {
        let Some(block) = pool.block(family, index) else { continue };
        if !range.contains(block.cidr.network()) || !range.contains(block.cidr.broadcast()) {
            continue;
        }
        let (Some(start), Some(end)) = (block.range.start, block.range.end) else { continue };
        let address = if block.range.gateway == Some(start) { end } else { start };
        let id = BlockId { pool: pool.name().to_owned(), cidr: block.cidr, is_static: false };
        blocks.entry(id).or_default().first.get_or_insert((address, None));
        found += 1;
    }
    if found == 0 {
        let text = format!("pool {} has no whole block in {range}", pool.name());
        return Err(Error { text, hint: Some("choose a range of the pool that has one".to_owned()) }.into());
    }
    Ok(())
}

fn want(request: &AdoptRequest, covered: &Covered) -> Want {
    let mut addresses = Vec::new();
    let mut attachment = None;
    if let Some((address, of)) = &covered.first {
        addresses.push(*address);
        attachment.clone_from(of);
    }
    Want {
        network: request.network.clone(),
        pool: request.pool.clone(),
        families: Vec::new(),
        free: 1,
        addresses,
        attachment,
    }
}

/// Who has a block.
enum Owner {
    This { network: String },
    Former(Incarnation),
    Other(String),
}

impl std::fmt::Display for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Owner::This { network } => write!(f, "network {network} of this node"),
            Owner::Former(incarnation) => write!(f, "incarnation {incarnation} of this node"),
            Owner::Other(owner) => f.write_str(owner),
        }
    }
}

async fn owners<E: Engine>(
    engine: &E,
    pool: &PoolDefinition,
    incarnation: Option<Incarnation>,
    node: &str,
) -> Result<BTreeMap<BlockId, Owner>, AgentFailure> {
    let mut owners = BTreeMap::new();
    for listing in [Listing::BlocksOf(pool.name().to_owned()), Listing::StaticsOf(pool.name().to_owned())] {
        for (key, stored) in engine.list(&listing).await? {
            let Some(id) = BlockId::of_key(&key) else { continue };
            let owner = match stored.record::<BlockRecord>() {
                Some(found) if found.node == node && Some(found.incarnation) == incarnation => {
                    Owner::This { network: found.network }
                }
                Some(found) if found.node == node => Owner::Former(found.incarnation),
                _ => Owner::Other(owner_of(&stored)),
            };
            owners.insert(id, owner);
        }
    }
    Ok(owners)
}

/// The reserved addresses of a network, with their owners.
fn reservations(files: &NodeFiles, network: &str) -> Result<Vec<(IpAddr, Option<String>)>, AgentFailure> {
    let network = files.network(network, TIMEOUT, |warning| log("reservations", warning));
    let all = network.store().survey().map_err(Error::from)?;
    let mut found = Vec::new();
    for one in all {
        let owner = match one.holder {
            Holder::Of(owner) => Some(owner.to_string()),
            Holder::Lost | Holder::Unreadable(_) => None,
        };
        found.push((one.address, owner));
    }
    Ok(found)
}

/// Addresses of other networks of this node in the blocks: host-local lets two networks have one range.
fn reserved_in_other_networks(
    files: &NodeFiles,
    request: &AdoptRequest,
    adopted: &[AdoptedBlock],
) -> Result<Vec<String>, AgentFailure> {
    let mut conflicts = Vec::new();
    let names = Store::networks(files.data_dir()).map_err(Error::from)?;
    for name in names.into_iter().filter(|name| *name != request.network) {
        for (address, _) in reservations(files, &name)? {
            if let Some(block) = adopted.iter().find(|block| block.cidr.contains(address)) {
                conflicts.push(format!("{} has {address} of network {name}", block.cidr));
            }
        }
    }
    Ok(conflicts)
}

/// Refuses more blocks than a node may have of the pool.
fn check_count(
    pool: &PoolDefinition,
    files: &NodeFiles,
    adopted: &[AdoptedBlock],
    conflicts: &mut Vec<String>,
) -> Result<(), AgentFailure> {
    let Some(most) = pool.config().max_blocks else { return Ok(()) };
    let mut held = BTreeSet::new();
    let open = files.open()?;
    for name in files.networks()? {
        for block in open.blocks(&name)? {
            if block.pool == pool.name() && !block.is_static {
                held.insert(block.cidr);
            }
        }
    }
    held.extend(adopted.iter().filter(|block| !block.is_static).map(|block| block.cidr));
    for family in PoolFamily::ALL {
        let count = held.iter().filter(|cidr| PoolFamily::of(cidr.ip()) == family).count();
        if count > most as usize {
            conflicts.push(format!("this node would have {count} blocks, and may have {most} (maxBlocks)"));
        }
    }
    Ok(())
}
