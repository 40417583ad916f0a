//! The allocation of addresses for one ADD, from the blocks that this node owns.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use cnikit::types::{Args, limit};
use cnikit::{AttachmentSpec, Error, Result, code, log, netns};
use cnikit_pool::{
    BlockState, LocalBlock, LocalPools, NetworkFiles, NodeFiles, NodeState, OpenNodeFiles, PoolDefinition, PoolFamily,
};
use cnikit_process::Deadline;
use cnikit_reservations::{Allocation, AllocationRequest, ErrorKind, Owner, Range, RangeConfig, RangeSet, TIMEOUT};

use crate::agent;
use crate::keys::{PoolPlugin, data_dir, requested, requested_pool};
use crate::refused::{refused, unreadable, with_hint};

/// How often the agent is asked during one ADD: others may take what it gets.
const ROUNDS: usize = 16;
/// How many blocks an error names.
const NAMED: usize = 8;

/// A request for addresses.
pub(crate) struct PoolRequest<'a> {
    pub(crate) plugin: &'a PoolPlugin,
    pub(crate) args: &'a Args,
    /// The pool that `args.cni.pool` names, or an empty text.
    pub(crate) requested_pool: &'a str,
    pub(crate) owner: Owner,
    pub(crate) files: NodeFiles,
    pub(crate) network: NetworkFiles,
    pub(crate) requested: Vec<IpAddr>,
}

/// What an attempt came to.
#[derive(Debug)]
pub(crate) enum Attempt {
    /// The addresses, and what is wanted because few are left.
    Allocated(Vec<Allocation>, Option<Shortage>),
    /// Nothing was allocated, and more blocks may help.
    Short(Shortage),
}

/// What the agent can help with.
#[derive(Debug)]
pub(crate) struct Shortage {
    pub(crate) pool: String,
    pub(crate) families: Vec<PoolFamily>,
    pub(crate) free: u32,
    /// Requested addresses that are in no block of this network.
    pub(crate) addresses: Vec<IpAddr>,
    /// The error if it does not help.
    pub(crate) error: Error,
}

/// The blocks of a network that new addresses come from.
pub(crate) struct Serving {
    pub(crate) definition: PoolDefinition,
    pub(crate) families: Vec<PoolFamily>,
    /// All blocks of the network, for messages.
    blocks: Vec<LocalBlock>,
    /// The ranges of the blocks that serve.
    ranges: Vec<RangeConfig>,
    /// The ranges of static addresses that this node has for the network.
    statics: Vec<RangeConfig>,
}

impl<'a> PoolRequest<'a> {
    /// What the runtime requests. Nothing is read or made.
    ///
    /// # Errors
    /// A requested address or pool is not one.
    pub(crate) fn new(plugin: &'a PoolPlugin, at: &'a AttachmentSpec) -> Result<PoolRequest<'a>> {
        let requested = requested(&at.conf, &at.args)?;
        let requested_pool = requested_pool(&at.conf)?;
        let files = NodeFiles::new(data_dir(&at.conf));
        let network = network(&files, &at.tag.network);
        let owner = Owner::new(&at.tag.container, &at.tag.ifname);
        Ok(PoolRequest { plugin, args: &at.args, requested_pool, owner, files, network, requested })
    }

    /// Allocates one address of each family. If the node has none, the agent is asked for more, until the deadline.
    pub(crate) fn allocate(&self) -> Result<Vec<Allocation>> {
        let deadline = Deadline::after(self.plugin.timeout);
        let mut has_asked = false;
        let mut attempt = self.attempt()?;
        for _ in 0..ROUNDS {
            let shortage = match attempt {
                Attempt::Allocated(addresses, None) => return Ok(addresses),
                Attempt::Allocated(addresses, Some(shortage)) => {
                    agent::tell(self, &shortage);
                    return Ok(addresses);
                }
                Attempt::Short(shortage) => shortage,
            };
            // Nobody takes a requested address away that the agent got for this attachment.
            if has_asked && !shortage.addresses.is_empty() {
                return Err(shortage.error);
            }
            attempt = match agent::ask(self, shortage, deadline)? {
                Some(allocated) => allocated,
                None => self.attempt()?,
            };
            has_asked = true;
        }
        match attempt {
            Attempt::Allocated(addresses, _) => Ok(addresses),
            Attempt::Short(shortage) => Err(shortage.error),
        }
    }

    /// Allocates from the blocks that the node has now.
    pub(crate) fn attempt(&self) -> Result<Attempt> {
        // The agent's files are read under the network's lock: the agent holds it when it takes a block away.
        let locked = self.network.lock().map_err(refused)?;
        let files = self.files.open().map_err(unreadable)?;
        let pools = files.pools().map_err(unreadable)?;
        let serving = match self.serving(&files, pools.as_ref())? {
            Ok(serving) => serving,
            Err(shortage) => return Ok(Attempt::Short(shortage)),
        };
        let (sets, foreign) = serving.sets(self)?;
        if sets.len() < serving.families.len() || !foreign.is_empty() {
            return Ok(Attempt::Short(serving.shortage(self, foreign, None)));
        }
        let request = AllocationRequest {
            owner: self.owner.clone(),
            sets,
            wanted: self.requested.clone(),
            // The address of a name is the same container's again.
            cooldown: if self.plugin.sticky {
                Duration::ZERO
            } else {
                Duration::from_secs(serving.definition.config().cooldown.into())
            },
        };
        let allocated = match locked.acquire(&request) {
            Ok(allocated) => allocated,
            // If all addresses were requested, no other one helps.
            Err(error) if error.kind == ErrorKind::Exhausted && self.requested.len() < serving.families.len() => {
                return Ok(Attempt::Short(serving.shortage(self, Vec::new(), Some(error))));
            }
            Err(error) => return Err(refused(error).context(format_args!("pool {}", serving.definition.name()))),
        };
        let low = match locked.reserved() {
            Ok(reserved) => serving.low(self, &reserved),
            Err(_) => None, // the addresses are allocated all the same
        };
        Ok(Attempt::Allocated(allocated, low))
    }

    /// The blocks that serve; the inner error is what to ask the agent for.
    pub(crate) fn serving(
        &self,
        files: &OpenNodeFiles,
        pools: Option<&LocalPools>,
    ) -> Result<Result<Serving, Shortage>> {
        let name = self.plugin.select(self.requested_pool, self.args, pools)?;
        let Some(node) = files.node().map_err(unreadable)? else {
            let text =
                format!("no agent has ever served this node: there is no node.json in {}", self.files.path().display());
            return Ok(Err(self.unknown(name, &text)));
        };
        if node.state == NodeState::Fenced {
            return Err(fenced(&name));
        }
        let Some(pools) = pools else {
            let text = format!("there is no pools.json in {}", self.files.path().display());
            return Ok(Err(self.unknown(name, &text)));
        };
        let Some(definition) = pools.pool(&name).map_err(invalid_pool)? else {
            return Ok(Err(self.unknown(name, "the agent knows no pool of this name")));
        };
        let families = self.families(&definition)?;
        let is_confirmed = netns::boot_id().is_ok_and(|boot| boot == node.boot);
        let after_boot = definition.config().after_boot;
        let blocks = files.blocks(self.network.name()).map_err(unreadable)?;
        let mut ranges = Vec::new();
        let mut statics = Vec::new();
        for block in blocks.iter().filter(|block| block.serves(is_confirmed, after_boot)) {
            match block.range(&definition) {
                Some(range) => ranges.push(range),
                None => statics.extend(block.static_range(&definition)),
            }
        }
        Ok(Ok(Serving { definition, families, blocks, ranges, statics }))
    }

    fn families(&self, definition: &PoolDefinition) -> Result<Vec<PoolFamily>> {
        let all: Vec<PoolFamily> = definition.families().collect();
        for family in &self.plugin.families {
            if !all.contains(family) {
                let text = format!("pool {} has no addresses of {}", definition.name(), word(*family));
                return Err(Error::config(text).hint("correct `ipam.families`, or add a range to the pool"));
            }
        }
        Ok(if self.plugin.families.is_empty() { all } else { self.plugin.families.clone() })
    }

    /// The shortage of a node that knows nothing of the pool yet.
    fn unknown(&self, pool: String, why: &str) -> Shortage {
        let error = Error::new(code::TRY_AGAIN, format!("pool {pool} has no free address for {}: {why}", self.name()));
        let families = self.plugin.families.clone();
        Shortage { pool, families, free: self.plugin.min_free(0).max(1), addresses: self.requested.clone(), error }
    }

    fn name(&self) -> String {
        format!("network {}", self.network.name())
    }
}

impl Serving {
    /// One set of ranges per family that has any, and the requested addresses that no set has.
    pub(crate) fn sets(&self, request: &PoolRequest<'_>) -> Result<(Vec<RangeSet>, Vec<IpAddr>)> {
        let mut foreign = Vec::new();
        let mut sets = Vec::new();
        for family in &self.families {
            let mut requested = request.requested.iter().filter(|address| PoolFamily::of(**address) == *family);
            let first = requested.next();
            if requested.next().is_some() {
                return Err(Error::config(format!("more than one address of {} is requested", word(*family)))
                    .hint("an attachment gets one address of each family of a pool"));
            }
            let mut ranges = of_family(&self.ranges, *family);
            if let Some(address) = first {
                self.check_requested(*address)?;
                let fixed = of_family(&self.statics, *family);
                let is_static = |range: &RangeConfig| range.start == Some(*address);
                if let Some(range) = fixed.into_iter().find(is_static) {
                    ranges = vec![range];
                } else if !ranges.iter().any(|range| has(range, *address)) {
                    foreign.push(*address);
                }
            }
            if !ranges.is_empty() {
                sets.push(RangeSet::try_from(&ranges[..]).map_err(refused)?);
            }
        }
        for address in &request.requested {
            if !self.families.contains(&PoolFamily::of(*address)) {
                let text = format!(
                    "{address} is requested, and the network gets no {} of pool",
                    word(PoolFamily::of(*address))
                );
                return Err(Error::config(format!("{text} {}", self.definition.name())).hint("correct `ipam.families`"));
            }
        }
        Ok((sets, foreign))
    }

    /// Refuses a requested address that no node could have.
    fn check_requested(&self, address: IpAddr) -> Result<()> {
        let pool = self.definition.name();
        if self.definition.block_with(address).is_some() || self.definition.static_range_of(address).is_some() {
            return Ok(());
        }
        let mut subnets: Vec<String> = Vec::new();
        for range in &self.definition.config().ranges {
            subnets.push(range.subnet.to_string());
        }
        subnets.truncate(NAMED);
        Err(Error::config(format!("{address} is requested, and is no address for containers in pool {pool}"))
            .hint(format!("request an address of {} that is in its ranges and no gateway", subnets.join(", "))))
    }

    /// What the agent is to do about a lack of addresses.
    fn shortage(
        &self,
        request: &PoolRequest<'_>,
        addresses: Vec<IpAddr>,
        exhausted: Option<cnikit_reservations::Error>,
    ) -> Shortage {
        let pool = self.definition.name().to_owned();
        let blocks = self.named_blocks();
        let mut families = self.families.clone();
        let error = if addresses.is_empty() {
            let why = match &exhausted {
                Some(error) => format!("; {}", error.text),
                None => String::new(),
            };
            let text = format!("pool {pool} has no free address for {}: {blocks}{why}", request.name());
            with_hint(Error::new(code::TRY_AGAIN, text), exhausted.and_then(|error| error.hint))
        } else {
            let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
            families = addresses.iter().map(|address| PoolFamily::of(*address)).collect();
            let text =
                format!("{} of pool {pool} is requested, and is not {}'s: {blocks}", texts.join(" "), request.name());
            Error::new(code::TRY_AGAIN, text)
        };
        let free = self.min_free(request, &families).max(1);
        Shortage { pool, families, free, addresses, error }
    }

    /// What the agent is told if few addresses are left.
    fn low(&self, request: &PoolRequest<'_>, reserved: &[IpAddr]) -> Option<Shortage> {
        let reserved: HashSet<&IpAddr> = reserved.iter().collect();
        let mut families = Vec::new();
        for family in &self.families {
            let mut free: u128 = 0;
            for range in of_family(&self.ranges, *family) {
                let Ok(range) = Range::try_from(&range) else { continue };
                let taken = reserved.iter().filter(|address| range.contains(***address)).count();
                free = free.saturating_add(range.size(&[range.gateway()]).saturating_sub(taken as u128));
            }
            if free < self.min_free(request, &[*family]).into() {
                families.push(*family);
            }
        }
        if families.is_empty() {
            return None;
        }
        let free = self.min_free(request, &families);
        let error = Error::new(code::TRY_AGAIN, "few addresses are free");
        Some(Shortage { pool: self.definition.name().to_owned(), families, free, addresses: Vec::new(), error })
    }

    /// How many free addresses there should be of each of these families.
    fn min_free(&self, request: &PoolRequest<'_>, families: &[PoolFamily]) -> u32 {
        let of_family = |family: &PoolFamily| {
            let bits = family.bits() - self.definition.block_size(*family);
            request.plugin.min_free(1_u128.checked_shl(bits.into()).unwrap_or(u128::MAX))
        };
        families.iter().map(of_family).max().unwrap_or(0)
    }

    /// The blocks of the pool with their states, for errors.
    fn named_blocks(&self) -> String {
        let mut texts = Vec::new();
        for block in self.blocks.iter().filter(|block| block.pool == self.definition.name()) {
            texts.push(format!("{} ({})", block.cidr, state_word(block.state)));
        }
        if texts.is_empty() {
            return "this node has no block of it".to_owned();
        }
        format!("its blocks here are {}", limit::first_few(&texts, NAMED, ", "))
    }
}

/// The files of a network.
pub(crate) fn network(files: &NodeFiles, name: &str) -> NetworkFiles {
    files.network(name, TIMEOUT, |text| log::warn(text))
}

/// The error of a node that was fenced.
pub(crate) fn fenced(pool: &str) -> Error {
    Error::new(code::TRY_AGAIN, format!("pool {pool}: this node was fenced, so its blocks may be another node's"))
        .hint("end its containers; then the agent begins anew with blocks of its own")
}

fn invalid_pool(error: cnikit_pool::Error) -> Error {
    with_hint(Error::config(error.text), error.hint)
}

fn of_family(ranges: &[RangeConfig], family: PoolFamily) -> Vec<RangeConfig> {
    let mut of_family = ranges.to_vec();
    of_family.retain(|range| range.start.is_some_and(|start| PoolFamily::of(start) == family));
    of_family
}

fn has(range: &RangeConfig, address: IpAddr) -> bool {
    Range::try_from(range).is_ok_and(|range| range.contains(address))
}

fn word(family: PoolFamily) -> &'static str {
    match family {
        PoolFamily::V4 => "IPv4",
        PoolFamily::V6 => "IPv6",
    }
}

fn state_word(state: BlockState) -> &'static str {
    match state {
        BlockState::Unconfirmed => "unconfirmed since the reboot",
        BlockState::Active => "active",
        BlockState::Sealed => "being given back",
        BlockState::Lost => "lost by a fence",
    }
}
