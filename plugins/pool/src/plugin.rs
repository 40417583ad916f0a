//! The verbs.

use std::fmt;
use std::net::IpAddr;
use std::os::unix::fs::FileTypeExt;

use cnikit::types::Ip;
use cnikit::{
    Addresses, AttachmentSpec, Check, Del, Error, Errors, Gc, IpamPlugin, Journal, Result, Status, code, log,
    one_address_a_family,
};
use cnikit_pool::{BlockState, LocalBlock, NetworkFiles, NodeFiles, NodeState, PoolDefinition, PoolFamily};
use cnikit_reservations::{Allocation, AllocationRequest, Owner, RangeConfig, RangeSet};
use ipnetwork::IpNetwork;

use crate::agent::start_giving_back;
use crate::allocation::{PoolRequest, fenced, network};
use crate::keys::{PoolPlugin, data_dir};
use crate::refused::{refused, unreadable};
use crate::sticky::name_of;

impl IpamPlugin for PoolPlugin {
    const KNOWN_ARGS: Option<&'static [&'static str]> = Some(&["IP", "K8S_POD_NAMESPACE", "K8S_POD_NAME"]);
    const EXAMPLE: &'static str = r#""ipam":{"type":"pool","pool":"blue"}"#;
    const ENTERS_NETNS: bool = false;

    fn acquire(&self, at: &AttachmentSpec, journal: &mut Journal) -> Result<Addresses> {
        let mut request = PoolRequest::new(self, at)?;
        if let Some(name) = name_of(self.sticky, &at.conf, &at.args)? {
            request.requested = request.addresses_of(&name)?;
        }
        let allocated = request.allocate()?;
        let addresses = allocated.iter().map(|one| one.address.ip()).collect();
        let PoolRequest { network, owner, .. } = request;
        let _ = journal.undo(&Allocated { network, owner, addresses }, Allocated::release);
        Ok(Addresses {
            ips: allocated.into_iter().map(ip).collect(),
            routes: self.routes.clone(),
            ..Addresses::default()
        })
    }

    fn release(del: &Del) -> Result<()> {
        let owner = Owner::new(&del.tag.container, &del.tag.ifname);
        let network = network(&NodeFiles::new(data_dir(&del.call.conf)), &del.tag.network);
        let freed = network.store().release(&owner).map_err(refused)?;
        log::info(format_args!("freed {}", listed(&freed)));
        if !freed.is_empty() {
            start_giving_back(&del.call.conf, &network);
        }
        Ok(())
    }

    /// Checks that the record's addresses in blocks of this network are reserved, and that no block was lost. Other addresses may
    /// come from another plugin.
    fn confirm(&self, check: &Check) -> Result<()> {
        let at = &check.attachment;
        let network = network(&NodeFiles::new(data_dir(&at.conf)), &at.tag.network);
        let mut recorded: Vec<IpAddr> = check.prev.ips.iter().map(|ip| ip.address.ip()).collect();
        let mut drifts = Errors::default();
        match network.blocks() {
            Ok(blocks) => {
                recorded.retain(|ip| blocks.iter().any(|block| block.cidr.contains(*ip)));
                for address in &recorded {
                    let is_lost =
                        |block: &&LocalBlock| block.state == BlockState::Lost && block.cidr.contains(*address);
                    if let Some(block) = blocks.iter().find(is_lost) {
                        let text = format!("{address}: its block {} was lost when this node was fenced", block.cidr);
                        drifts.note(Err(Error::new(code::DRIFT, text)
                            .hint("restart the container: its address may be assigned on another node")));
                    }
                }
            }
            Err(error) => {
                log::warn(format_args!("the blocks are not compared: {error}"));
                recorded.clear();
            }
        }
        let owner = Owner::new(&at.tag.container, &at.tag.ifname);
        drifts.note(network.store().confirm(&owner, &recorded).map_err(refused));
        drifts.finish()
    }

    fn sweep(gc: &Gc) -> Result<()> {
        let valid: Vec<Owner> = gc.valid.iter().map(|(container, ifname)| Owner::new(container, ifname)).collect();
        let network = network(&NodeFiles::new(data_dir(&gc.call.conf)), &gc.network);
        let freed = network.store().sweep(&valid).map_err(refused)?;
        log::info(format_args!("freed {}", listed(&freed)));
        if !freed.is_empty() {
            start_giving_back(&gc.call.conf, &network);
        }
        Ok(())
    }

    /// A pool without a free address is not an error, and neither is an agent or an engine that is out of reach while the network
    /// has blocks: a runtime may evict the containers of a node that fails STATUS.
    fn status(&self, status: &Status) -> Result<()> {
        let conf = &status.call.conf;
        let files = NodeFiles::new(data_dir(conf));
        let pools = files.pools().map_err(unreadable)?;
        let pool = self.pool_of_status(conf, pools.as_ref())?;
        if let (Some(pool), Some(pools)) = (&pool, &pools)
            && let Some(definition) = pools.pool(pool).transpose()
        {
            self.check_version(&definition.map_err(unreadable)?, status.call.version)?;
        }
        let pool = pool.unwrap_or_else(|| "of any namespace".to_owned());
        let node = files.node().map_err(unreadable)?;
        if node.is_some_and(|node| node.state == NodeState::Fenced) {
            let mut error = fenced(&pool);
            error.code = code::LIMITED;
            return Err(error);
        }
        let network = network(&files, conf.name().unwrap_or_default());
        let blocks = network.blocks().map_err(unreadable)?;
        network.store().health().map_err(refused)?;
        if blocks.is_empty() && !self.can_claim() {
            let text =
                format!("network {} has no block of pool {pool}, and no agent runs to claim one", network.name());
            return Err(Error::new(code::UNAVAILABLE, text).hint("start cnikit-agent on this node"));
        }
        Ok(())
    }

    fn preview(&self, at: &AttachmentSpec) -> Result<(Vec<String>, Addresses)> {
        let request = PoolRequest::new(self, at)?;
        let files = request.files.open().map_err(unreadable)?;
        let pools = files.pools().map_err(unreadable)?;
        let pool = self.select(request.requested_pool, &at.args, pools.as_ref())?;
        let place = data_dir(&at.conf).join(&at.tag.network);
        let ask = format!("ask the agent at {} for more addresses of pool {pool}", self.agent_socket.display());
        let Ok(serving) = request.serving(&files, pools.as_ref())? else {
            let steps = vec![ask, format!("reserve one of each family for {} in {}", request.owner, place.display())];
            return Ok((steps, self.example_of_documentation()?));
        };
        self.check_version(&serving.definition, at.version)?;
        let (sets, foreign) = serving.sets(&request)?;
        let mut steps = Vec::new();
        if self.sticky {
            let name = match name_of(self.sticky, &at.conf, &at.args) {
                Ok(Some(name)) => format!("name {name}"),
                _ => "the name of the request".to_owned(),
            };
            let steps =
                vec![ask, format!("reserve the addresses of {name} for {} in {}", request.owner, place.display())];
            return Ok((steps, self.example_of_documentation()?));
        }
        let mut sets_for_example = sets.clone();
        if sets.len() < serving.families.len() || !foreign.is_empty() {
            steps.push(ask);
            sets_for_example = example_sets(&serving.definition, &serving.families);
        }
        for family in &serving.families {
            let wanted = request.requested.iter().find(|address| PoolFamily::of(**address) == *family);
            let which = wanted.map_or("the address that is free for the longest time".to_owned(), ToString::to_string);
            let from = match sets.iter().find(|set| set.is_ipv4() == (*family == PoolFamily::V4)) {
                Some(set) => set.to_string(),
                None => format!("a new block of pool {pool}"),
            };
            steps.push(format!("reserve {which} of {from} for {} in {}", request.owner, place.display()));
        }
        let example = AllocationRequest {
            owner: request.owner.clone(),
            sets: sets_for_example,
            wanted: if foreign.is_empty() { request.requested.clone() } else { Vec::new() },
            cooldown: std::time::Duration::ZERO,
        };
        let ips = example.example().map_err(refused)?.into_iter().map(ip).collect();
        Ok((steps, Addresses { ips, routes: self.routes.clone(), ..Addresses::default() }))
    }
}

impl PoolPlugin {
    /// Checks that a result of this version can have an address of each family.
    fn check_version(&self, definition: &PoolDefinition, version: cnikit::Version) -> Result<()> {
        let families: Vec<PoolFamily> = definition.families().collect();
        let used = if self.families.is_empty() { &families } else { &self.families };
        one_address_a_family(version, used.iter().map(|family| *family == PoolFamily::V4))
    }

    /// Whether an agent listens, or its program can be run.
    fn can_claim(&self) -> bool {
        let is_socket = |found: std::fs::Metadata| found.file_type().is_socket();
        self.agent_socket.metadata().is_ok_and(is_socket)
            || (self.agent_config.exists() && self.agent().is_some_and(|program| program.exists()))
    }

    /// The addresses of a dry run on a node that knows no pool yet: those for documentation (RFC 5737, RFC 3849).
    fn example_of_documentation(&self) -> Result<Addresses> {
        let mut ips = Vec::new();
        if self.families.is_empty() || self.families.contains(&PoolFamily::V4) {
            ips.push(Ip { gateway: Some("192.0.2.1".parse()?), ..Ip::new("192.0.2.2/24".parse::<IpNetwork>()?) });
        }
        if self.families.contains(&PoolFamily::V6) {
            ips.push(Ip { gateway: Some("2001:db8::1".parse()?), ..Ip::new("2001:db8::2/64".parse::<IpNetwork>()?) });
        }
        Ok(Addresses { ips, routes: self.routes.clone(), ..Addresses::default() })
    }
}

/// The first range of each family, for the example of a dry run.
fn example_sets(definition: &PoolDefinition, families: &[PoolFamily]) -> Vec<RangeSet> {
    let mut sets = Vec::new();
    for family in families {
        let mut ranges = definition.config().ranges.iter().map(RangeConfig::from);
        let first = ranges.find(|range| range.subnet.is_some_and(|subnet| PoolFamily::of(subnet.ip()) == *family));
        sets.extend(first.and_then(|range| RangeSet::try_from(&[range][..]).ok()));
    }
    sets
}

/// The addresses that one ADD allocated, for the journal.
#[derive(Clone)]
struct Allocated {
    network: NetworkFiles,
    owner: Owner,
    addresses: Vec<IpAddr>,
}

impl Allocated {
    fn release(&self) -> Result<()> {
        self.network.store().give_back(&self.owner, &self.addresses).map_err(refused)
    }
}

impl fmt::Display for Allocated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reservation of {} for {}", listed(&self.addresses), self.owner)
    }
}

fn ip(allocated: Allocation) -> Ip {
    Ip { gateway: Some(allocated.gateway), ..Ip::new(allocated.address) }
}

fn listed(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    if texts.is_empty() { "nothing".into() } else { texts.join(" ") }
}
