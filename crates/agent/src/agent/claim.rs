//! Claims of blocks, for a plugin that has no free address.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cnikit_pool::{
    AgentError, BlockRecord, BlockState, LONGEST_NETWORK, MOST_BLOCKS, PoolDefinition, PoolFamily, UnheldRecord, Want,
};
use cnikit_pool_protocol::{BlockId, FoundBlock, HeldBlock, NodeView, Outcome, Standing, Step, StoredValue};
use cnikit_types::code;

use super::{AgentFailure, PoolAgent};
use crate::engine::{Engine, Listing};
use crate::log::log;

/// How many blocks are claimed in one transaction, of each family.
const BATCH: usize = 16;
/// After so many claims that found the blocks taken, the engine is asked which ones are.
const BLIND: usize = 2;
/// How often a claim is tried anew because the session or the node's record has changed.
pub(super) const RETRIES: usize = 5;
/// How many block numbers are looked at to find one that can be claimed.
pub(crate) const LOOKED_AT: usize = 1 << 20;
/// The first guards of a claim: session, node, fence, the pool's definition. Those of the blocks follow.
const OWN_GUARDS: usize = 4;

pub(super) fn refused(code: u32, text: impl Into<String>, hint: &str) -> AgentFailure {
    AgentFailure::Refused { code, text: text.into(), hint: Some(hint.to_owned()) }
}

impl AgentFailure {
    /// As the plugin gets it.
    pub fn reply(&self) -> AgentError {
        match self {
            AgentFailure::Engine(error) => {
                AgentError { code: code::TRY_AGAIN, msg: error.text.clone(), hint: Some(error.hint().to_owned()) }
            }
            AgentFailure::Files(error) => {
                AgentError { code: code::IO, msg: error.text.clone(), hint: error.hint.clone() }
            }
            AgentFailure::Refused { code, text, hint } => {
                AgentError { code: *code, msg: text.clone(), hint: hint.clone() }
            }
        }
    }
}

/// One call's search for blocks.
struct Search<'a> {
    want: &'a Want,
    pool: PoolDefinition,
    /// The revision of this definition: nothing is claimed by it under another one.
    revision: Option<i64>,
    /// Blocks that other nodes have.
    taken: BTreeSet<BlockId>,
    /// How many claims found their blocks taken.
    missed: usize,
}

impl<E: Engine> PoolAgent<E> {
    /// Claims what a plugin wants: nothing, if enough addresses are free by now, because it looked at the files before.
    ///
    /// # Errors
    /// The pool does not exist or has no free block, the node may not claim, or the engine does not answer.
    pub fn serve(&mut self, want: &Want) -> Result<(), AgentFailure> {
        for _ in 0..RETRIES {
            if self.served(want)? == Served::Done {
                return Ok(());
            }
        }
        Err(refused(
            code::TRY_AGAIN,
            format!("pool {} or the blocks of this node change again and again", want.pool),
            "`cnikit-agent list` shows pools, nodes and sessions",
        ))
    }

    /// One attempt.
    fn served(&mut self, want: &Want) -> Result<Served, AgentFailure> {
        let pool = self.pool_of(want)?;
        let revision = self.files.revision_of(&want.pool);
        let mut search = Search { want, pool, revision, taken: BTreeSet::new(), missed: 0 };
        if !want.addresses.is_empty() {
            for address in &want.addresses {
                if self.claim_address(&mut search, *address)? == Served::Again {
                    return Ok(Served::Again);
                }
            }
            return Ok(Served::Done);
        }
        let families: Vec<PoolFamily> = search
            .pool
            .families()
            .filter(|family| want.families.is_empty() || want.families.contains(family))
            .collect();
        if families.is_empty() {
            return Err(refused(
                code::INVALID_CONFIG,
                format!("pool {} has no range of the wanted family", want.pool),
                "choose another pool, or give this one a range of that family",
            ));
        }
        self.unseal(&search, &families)?;
        let mut needs: Vec<(PoolFamily, usize)> = Vec::new();
        for family in &families {
            needs.push((*family, self.lacking(&search, *family)?));
        }
        self.claim_blocks(&mut search, needs)
    }

    pub(super) fn pool_of(&mut self, want: &Want) -> Result<PoolDefinition, AgentFailure> {
        cnikit_types::check_network_name(&want.network)
            .map_err(|why| refused(code::INVALID_CONFIG, why, "a network has a name of letters and digits"))?;
        if want.network.len() > LONGEST_NETWORK {
            let text = format!("the network's name has {} bytes", want.network.len());
            let hint = format!("a network of pool has a name of at most {LONGEST_NETWORK} bytes");
            return Err(refused(code::INVALID_CONFIG, text, &hint));
        }
        let is_claimable = self.files.pool(&want.pool).is_some() && self.files.revision_of(&want.pool).is_some();
        if !is_claimable || self.standing.is_none() {
            self.reconcile(&BTreeSet::new())?;
        }
        match self.files.pool(&want.pool) {
            None => Err(refused(
                code::INVALID_CONFIG,
                format!("there is no pool {}", want.pool),
                "define it: cnikit-agent define FILE",
            )),
            Some(pool) if pool.config().closed => Err(refused(
                code::TRY_AGAIN,
                format!("pool {} is closed: nodes claim no more blocks of it", want.pool),
                "choose another pool, or open this one",
            )),
            Some(_) if self.files.revision_of(&want.pool).is_none() => Err(refused(
                code::TRY_AGAIN,
                format!("pool {} is being defined anew", want.pool),
                "try again; if it stays so, the operator's program has not ended well: repeat cnikit-agent define",
            )),
            Some(pool) => Ok(pool.clone()),
        }
    }

    /// Has sealed blocks serve again.
    fn unseal(&mut self, search: &Search<'_>, families: &[PoolFamily]) -> Result<(), AgentFailure> {
        let of_want = |block: &HeldBlock| {
            block.state == BlockState::Sealed
                && block.network == search.want.network
                && block.id.pool == search.want.pool
        };
        if self.files.blocks(self.settings.grace)?.iter().any(of_want) {
            let wanted = families.iter().map(|family| (search.want.network.clone(), search.want.pool.clone(), *family));
            self.reconcile(&wanted.collect())?;
        }
        Ok(())
    }

    /// How many more blocks are needed so that as many addresses are free as are wanted.
    fn lacking(&self, search: &Search<'_>, family: PoolFamily) -> Result<usize, AgentFailure> {
        let free = self.files.free(&search.want.network, &search.pool, family)?;
        let lacking = u128::from(search.want.free.max(1)).saturating_sub(free);
        let bits = u32::from(family.bits() - search.pool.block_size(family));
        let block_size = 1_u128.checked_shl(bits).unwrap_or(u128::MAX);
        Ok(usize::try_from(lacking.div_ceil(block_size)).unwrap_or(usize::MAX))
    }

    fn claim_blocks(
        &mut self,
        search: &mut Search<'_>,
        mut needs: Vec<(PoolFamily, usize)>,
    ) -> Result<Served, AgentFailure> {
        let mut batch = BATCH;
        while needs.iter().any(|(_, count)| *count > 0) {
            let view = self.view()?;
            let mut ids = Vec::new();
            for (family, count) in &needs {
                ids.extend(candidates(search, &view, *family, (*count).min(batch))?);
            }
            match self.claim_ids(search, &view, &ids)? {
                Claimed::All => {
                    for (family, count) in &mut needs {
                        let claimed = ids.iter().filter(|id| id.family() == *family).count();
                        *count = count.saturating_sub(claimed);
                    }
                    batch = BATCH;
                }
                Claimed::Again => return Ok(Served::Again),
                Claimed::Taken(_) => {
                    search.missed += 1;
                    batch = 1;
                    if search.missed == BLIND {
                        self.list_taken(search)?;
                        batch = BATCH;
                    }
                }
            }
        }
        Ok(Served::Done)
    }

    fn list_taken(&self, search: &mut Search<'_>) -> Result<(), AgentFailure> {
        let listing = Listing::BlocksOf(search.want.pool.clone());
        for (key, _) in self.runtime.block_on(self.engine.list(&listing))? {
            search.taken.extend(BlockId::of_key(&key));
        }
        Ok(())
    }

    /// Claims these blocks, all or none.
    fn claim_ids(
        &mut self,
        search: &mut Search<'_>,
        view: &NodeView,
        ids: &[BlockId],
    ) -> Result<Claimed, AgentFailure> {
        let network = &search.want.network;
        let has = view.blocks.iter().filter(|block| block.network == *network).count();
        if has + ids.len() > MOST_BLOCKS {
            return Err(refused(
                code::TRY_AGAIN,
                format!("network {network} has {has} blocks on this node, and may have {MOST_BLOCKS}"),
                "make the blocks of the pool larger",
            ));
        }
        let mut unheard = None;
        for _ in 0..RETRIES {
            let Some(standing) = self.standing else {
                // The session of the boot before may have ended just now, and the node's own blocks are confirmed: they are counted
                // again.
                self.standing()?;
                return Ok(Claimed::Again);
            };
            let known = [view.pools.get(&search.want.pool).copied(), self.files.revision_of(&search.want.pool)];
            if known != [search.revision; 2] {
                return Ok(Claimed::Again);
            }
            let step = Step::Claim {
                ids: ids.to_vec(),
                network: search.want.network.clone(),
                attachment: search.want.attachment.clone(),
                standing,
            };
            let outcome = match self.execute(view, &step) {
                Ok(outcome) => outcome,
                // It may have been executed: then the next survey finds the blocks, and adopts them.
                Err(AgentFailure::Engine(error)) if error.is_open => {
                    log("claim", format_args!("{error}; the engine is asked what became of it"));
                    self.reconcile(&BTreeSet::new())?;
                    if self.view()?.has_all_active(ids) {
                        return Ok(Claimed::All);
                    }
                    if error.is_no_space() {
                        return Err(AgentFailure::Engine(error));
                    }
                    unheard = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let Some(Outcome::Refused(values)) = outcome else { return Ok(Claimed::All) };
            if let Some(claimed) = self.claim_of_taken(search, view, ids, values)? {
                return Ok(claimed);
            }
            // The session, the node's record, the fence or the definition is another one than the last survey said.
            unheard = None;
            self.reconcile(&BTreeSet::new())?;
        }
        if let Some(error) = unheard {
            return Err(AgentFailure::Engine(error));
        }
        Err(refused(
            code::TRY_AGAIN,
            "the session of this node changes again and again",
            "is there a clone of this node?",
        ))
    }

    /// What a refused claim means, by the values of its guards' keys; `None` if no block of it has an owner.
    fn claim_of_taken(
        &mut self,
        search: &mut Search<'_>,
        view: &NodeView,
        ids: &[BlockId],
        values: Vec<Option<StoredValue>>,
    ) -> Result<Option<Claimed>, AgentFailure> {
        let found: Vec<(BlockId, StoredValue)> = ids
            .iter()
            .zip(values.into_iter().skip(OWN_GUARDS))
            .filter_map(|(id, stored)| Some((id.clone(), stored?)))
            .collect();
        let is_own =
            |(_, stored): &(BlockId, StoredValue)| FoundBlock::of(stored.clone()).is_of(&view.name, view.incarnation);
        if found.iter().any(is_own) {
            // An earlier claim was executed, and the files do not have it: they get it now.
            self.doubtful.extend(found.iter().filter(|one| is_own(one)).map(|(id, _)| id.clone()));
            self.reconcile(&BTreeSet::new())?;
            let now = self.view()?;
            let is_adopted = |id: &BlockId| now.blocks.iter().any(|block| block.id == *id);
            if found.iter().filter(|one| is_own(one)).all(|(id, _)| is_adopted(id)) {
                return Ok(Some(Claimed::Again));
            }
            // Another program has written a record under this node's name that is not adopted.
        }
        if found.is_empty() {
            return Ok(None);
        }
        search.taken.extend(found.iter().map(|(id, _)| id.clone()));
        Ok(Some(Claimed::Taken(found)))
    }

    pub(super) fn standing(&mut self) -> Result<Standing, AgentFailure> {
        if self.standing.is_none() {
            self.reconcile(&BTreeSet::new())?;
        }
        self.standing.ok_or_else(|| {
            let why = self.hindrance.clone().unwrap_or_else(|| "this node may not claim".to_owned());
            refused(code::TRY_AGAIN, why, "`cnikit-agent list` shows nodes, sessions and fences")
        })
    }

    /// Claims the block of a requested address, or the address itself if it is in a static range.
    fn claim_address(&mut self, search: &mut Search<'_>, address: IpAddr) -> Result<Served, AgentFailure> {
        let want = search.want;
        let Some(id) = BlockId::of_address(&search.pool, address) else {
            return Err(refused(
                code::INVALID_CONFIG,
                format!("pool {} has no address {address}", want.pool),
                "request an address of the pool's ranges",
            ));
        };
        let mut view = self.view()?;
        let is_given_back =
            |block: &HeldBlock| block.id == id && block.network == want.network && block.state == BlockState::Sealed;
        if view.blocks.iter().any(is_given_back) {
            let wanted = (want.network.clone(), want.pool.clone(), id.family());
            self.reconcile(&BTreeSet::from([wanted]))?;
            view = self.view()?;
        }
        if let Some(block) = view.blocks.iter().find(|block| block.id == id) {
            if block.network == want.network && block.state == BlockState::Active {
                return Ok(Served::Done);
            }
            let network = &block.network;
            return Err(refused(
                code::TRY_AGAIN,
                format!("{address} is in {id}, which this node has for network {network}, as {:?}", block.state),
                "request an address of another block",
            ));
        }
        if !id.is_static {
            check_may_have_more(search, &view, id.family())?;
        }
        match self.claim_ids(search, &view, std::slice::from_ref(&id))? {
            Claimed::All => Ok(Served::Done),
            Claimed::Again => Ok(Served::Again),
            Claimed::Taken(taken) => {
                let owner = taken.first().map_or_else(String::new, |(_, stored)| owner_of(stored));
                Err(refused(
                    code::TRY_AGAIN,
                    format!("{address} is in {id}, which belongs to {owner}"),
                    "request an address that no other node has",
                ))
            }
        }
    }
}

/// Who has a block, for messages.
pub(crate) fn owner_of(stored: &StoredValue) -> String {
    if let Some(owner) = stored.record::<BlockRecord>() {
        return format!("node {}, for network {}", owner.node, owner.network);
    }
    match stored.record::<UnheldRecord>() {
        Some(unheld) => format!("the name {}", unheld.sticky),
        None => "another program".to_owned(),
    }
}

/// What became of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Served {
    Done,
    /// The files are fresh now, and say something else.
    Again,
}

/// What became of a claim.
enum Claimed {
    All,
    /// As [`Served::Again`].
    Again,
    /// These blocks are another's.
    Taken(Vec<(BlockId, StoredValue)>),
}

/// How many more blocks of the pool the node may have; none is an error.
fn check_may_have_more(search: &Search<'_>, view: &NodeView, family: PoolFamily) -> Result<usize, AgentFailure> {
    let name = search.pool.name();
    let is_of_pool = |id: &BlockId| id.pool == name && id.family() == family && !id.is_static;
    let has = view.blocks.iter().filter(|block| is_of_pool(&block.id)).count();
    let most = search.pool.config().max_blocks.map_or(usize::MAX, |most| most as usize);
    if has >= most {
        return Err(refused(
            code::TRY_AGAIN,
            format!("this node has {has} blocks of pool {name}, and may have {most}"),
            "wait for containers to end, or raise maxBlocks of the pool",
        ));
    }
    Ok(most - has)
}

/// The next blocks to claim, in the node's order: none that it has, and none that is known to be another's.
fn candidates(
    search: &Search<'_>,
    view: &NodeView,
    family: PoolFamily,
    count: usize,
) -> Result<Vec<BlockId>, AgentFailure> {
    let name = search.pool.name();
    let own: BTreeSet<&BlockId> = view.blocks.iter().map(|block| &block.id).collect();
    let more = if count > 0 { check_may_have_more(search, view, family)? } else { 0 };
    let mut found = Vec::new();
    for index in search.pool.order(family, &view.name).take(LOOKED_AT) {
        if found.len() == count.min(more) {
            break;
        }
        let Some(block) = search.pool.block(family, index) else { continue };
        let id = BlockId { pool: name.to_owned(), cidr: block.cidr, is_static: false };
        if !own.contains(&id) && !search.taken.contains(&id) {
            found.push(id);
        }
    }
    if found.is_empty() && count > 0 {
        return Err(refused(
            code::TRY_AGAIN,
            format!("pool {name} has no free block: nodes have all of them"),
            "`cnikit-agent list` shows which; give the pool another range, or fence nodes that are gone",
        ));
    }
    Ok(found)
}
