//! `ipam adopt` and `ipam import`: running containers of another IPAM plugin keep their addresses, which become the pool's.
//!
//! Both ask the agent's program first what would be claimed, and change nothing if that is refused.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use cnikit_libcni::State;
use cnikit_pool::{NodeFiles, PoolDefinition};
use cnikit_reservations::{AllocationRequest, Holder, Owner, RangeConfig, RangeSet, TIMEOUT};
use serde_json::{Value, json};

use super::Evidence;
use super::agent::{ask, words};
use super::pools::Listed;
use super::whereabouts::{ImportedAddress, parse_pools};
use crate::cli::{Adopt, Import};
use crate::failure::{Failure, Result};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print, print_json, print_to_stderr};
use crate::output::table::Cell;

/// The largest file that is read, in bytes.
const LARGEST: u64 = 64 << 20;

/// Claims the blocks that cover the addresses of a directory of host-local.
pub(crate) fn adopt(common: &Common, out: Output, args: &Adopt) -> Result {
    let mut line = words(&["adopt"]);
    line.push(args.directory.clone().into());
    line.extend(words(&["--pool", &args.pool]));
    for range in &args.range {
        line.extend(words(&["--range", &range.to_string()]));
    }
    if args.dry_run {
        line.extend(words(&["--dry-run"]));
    }
    let document = ask(common, &args.agent, &line, Vec::new())?;
    if out.json {
        return print_json(&document);
    }
    print_blocks(out, &[document])
}

fn print_blocks(out: Output, documents: &[Value]) -> Result {
    let mut rows: Vec<[Cell<'_>; 5]> = Vec::new();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for document in documents {
        for block in document["blocks"].as_array().into_iter().flatten() {
            let state = match (block["had"].as_bool(), document["dryRun"].as_bool()) {
                (Some(true), _) => "was this node's",
                (_, Some(true)) => "would be claimed",
                _ => "claimed",
            };
            rows.push([
                text(&document["network"]).into(),
                text(&document["pool"]).into(),
                text(&block["cidr"]).into(),
                block["addresses"].to_string().into(),
                state.into(),
            ]);
        }
    }
    out.table(["NETWORK", "POOL", "BLOCK", "ADDRESSES", "STATE"], &rows)
}

/// An address that is not taken over, and why.
struct Left {
    address: String,
    pod: String,
    why: String,
}

/// The addresses of a network that are taken over.
type OfOwner = BTreeMap<(String, String), Vec<IpAddr>>;

/// Takes over addresses of whereabouts that containers of this node have.
pub(crate) fn import(common: &Common, out: Output, args: &Import) -> Result {
    let all = read_file(&args.file)?;
    let listed = Listed::read(common, &args.agent)?;
    let pool = listed.definition(&args.pool).ok_or_else(|| format!("there is no pool {}", args.pool))?;
    let files = NodeFiles::new(&listed.this.data_dir);
    let mut sorted = sort(common, &pool, all)?;
    let mut documents = Vec::new();
    for (network, owners) in &sorted.networks {
        let stdin = also(owners, &sorted.foreign)?;
        documents.push(ask(common, &args.agent, &line(&files, network, args, true), stdin)?);
    }
    if !args.dry_run {
        documents.clear();
        for (network, owners) in &sorted.networks {
            reserve(&files, network, &pool, owners)?;
            let stdin = also(owners, &sorted.foreign)?;
            documents.push(ask(common, &args.agent, &line(&files, network, args, false), stdin)?);
        }
    }
    sorted.left.sort_by(|one, other| one.address.cmp(&other.address));
    let left_document = |left: &Left| json!({"address": left.address, "pod": left.pod, "why": left.why});
    let left: Vec<Value> = sorted.left.iter().map(left_document).collect();
    if out.json {
        print_json(&json!({"networks": documents, "left": left}))?;
    } else {
        print_blocks(out, &documents)?;
        if !sorted.left.is_empty() {
            print("\nNot taken over:\n")?;
            let row = |left: &Left| -> [Cell<'static>; 3] {
                [left.address.clone().into(), left.pod.clone().into(), left.why.clone().into()]
            };
            let rows: Vec<[Cell<'_>; 3]> = sorted.left.iter().map(row).collect();
            out.table(["ADDRESS", "POD", "WHY"], &rows)?;
        }
    }
    if sorted.left.is_empty() { Ok(()) } else { Err(Failure::found()) }
}

fn line(files: &NodeFiles, network: &str, args: &Import, is_dry_run: bool) -> Vec<OsString> {
    let mut line = words(&["adopt"]);
    line.push(files.data_dir().join(network).into());
    line.extend(words(&["--pool", &args.pool, "--also-stdin"]));
    if is_dry_run {
        line.extend(words(&["--dry-run"]));
    }
    line
}

/// The further addresses for the agent's program.
fn also(owners: &OfOwner, foreign: &BTreeSet<IpAddr>) -> Result<Vec<u8>> {
    let mut addresses = Vec::new();
    for ((container, ifname), held) in owners {
        for address in held {
            addresses.push(json!({"address": address, "attachment": format!("{container}/{ifname}")}));
        }
    }
    let document = json!({"addresses": addresses, "foreign": foreign});
    Ok(serde_json::to_vec(&document).map_err(|error| error.to_string())?)
}

fn read_file(path: &Path) -> Result<Vec<ImportedAddress>> {
    let failed = |why: &dyn std::fmt::Display| Failure::new(format!("{}: {why}", path.display()));
    let found = std::fs::metadata(path).map_err(|error| failed(&error))?;
    if found.len() > LARGEST {
        return Err(failed(&format_args!("it has more than {LARGEST} bytes")));
    }
    let text = std::fs::read(path).map_err(|error| failed(&error))?;
    let document: Value = serde_json::from_slice(&text).map_err(|error| {
        failed(&format_args!("it is not JSON: {error}; hint: kubectl get ippools.whereabouts.cni.cncf.io -A -o json"))
    })?;
    parse_pools(&document).map_err(|why| failed(&why))
}

/// The addresses by what becomes of them.
#[derive(Default)]
struct Sorted {
    networks: BTreeMap<String, OfOwner>,
    /// Addresses of other nodes' containers.
    foreign: BTreeSet<IpAddr>,
    left: Vec<Left>,
}

/// Sorts the addresses: which containers of this node have, by its cached results, and that the pool has.
fn sort(common: &Common, pool: &PoolDefinition, all: Vec<ImportedAddress>) -> Result<Sorted> {
    let evidence = Evidence::from_cache(common)?;
    let mut sorted = Sorted::default();
    for one in all {
        let address = match one.address {
            Ok(address) => address,
            Err(why) => {
                sorted.left.push(Left { address: String::new(), pod: one.pod, why });
                continue;
            }
        };
        let left = |why: &str| Left { address: address.to_string(), pod: one.pod.clone(), why: why.to_owned() };
        let own = evidence.attachments.iter().find(|attachment| {
            let has = |text: &String| text.split('/').next() == Some(address.to_string().as_str());
            attachment.container_id == one.container && attachment.addresses.iter().any(has)
        });
        let Some(own) = own else {
            sorted.foreign.insert(address);
            sorted.left.push(left("no container of this node has it by its cached result: run this on its node, too"));
            continue;
        };
        if own.state != State::Attached || evidence.inspector.attachment(&own.netns, &own.metadata).is_lost() {
            sorted.left.push(left("its container is gone"));
        } else if pool.static_range_of(address).is_none() && pool.block_with(address).is_none() {
            sorted.left.push(left(&format!("pool {} has no such address", pool.name())));
        } else {
            let owner = (own.container_id.clone(), own.ifname.clone());
            let owners = sorted.networks.entry(own.network.clone()).or_default();
            owners.entry(owner).or_default().push(address);
        }
    }
    Ok(sorted)
}

/// Writes the reservations that are not there yet, each attachment's all or none.
fn reserve(files: &NodeFiles, network: &str, pool: &PoolDefinition, owners: &OfOwner) -> Result {
    let network = files.network(network, TIMEOUT, |text| print_to_stderr(&format!("Warning: {text}")));
    let there = network.store().survey()?;
    for ((container, ifname), addresses) in owners {
        let owner = Owner::new(container, ifname);
        let mut sets = Vec::new();
        let mut wanted = Vec::new();
        for address in addresses {
            if there.iter().any(|one| one.address == *address && one.holder == Holder::Of(owner.clone())) {
                continue;
            }
            sets.push(RangeSet::try_from(&[range_of(pool, *address)?][..])?);
            wanted.push(*address);
        }
        if !wanted.is_empty() {
            network.store().acquire(&AllocationRequest { owner, sets, wanted, cooldown: Duration::ZERO })?;
        }
    }
    Ok(())
}

/// The range of one address, with subnet and gateway of the pool.
fn range_of(pool: &PoolDefinition, address: IpAddr) -> Result<RangeConfig> {
    let found = match pool.static_range_of(address) {
        Some(range) => Some((Some(range.subnet()), Some(range.gateway()))),
        None => pool.block_with(address).map(|block| (block.range.subnet, block.range.gateway)),
    };
    let (subnet, gateway) = found.ok_or_else(|| format!("pool {} has no address {address}", pool.name()))?;
    Ok(RangeConfig { subnet, start: Some(address), end: Some(address), gateway })
}
