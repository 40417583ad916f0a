//! Claims of the addresses that stay with a name.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cnikit_pool::{
    KeyOfEngine, PoolDefinition, PoolFamily, StaticRecord, StickyRecord, StickyWant, Want, check_node_name,
};
use cnikit_pool_protocol::{
    BlockId, FoundSticky, Outcome, Step, StickyClaim, StickyDecision, StoredValue, decide_sticky,
};
use cnikit_types::code;

use super::claim::{RETRIES, refused};
use super::{AgentFailure, PoolAgent};
use crate::engine::{Engine, Listing};
use crate::log::log;

impl<E: Engine> PoolAgent<E> {
    /// Has this node have the addresses of a name, and returns them. Which addresses these are is decided once.
    ///
    /// # Errors
    /// Another node has them, the pool has no static address that is free, the node may not claim, or the engine does not answer.
    pub fn serve_sticky(&mut self, want: &StickyWant) -> Result<Vec<IpAddr>, AgentFailure> {
        for name in [&want.namespace, &want.name] {
            check_node_name(name).map_err(|_| {
                refused(
                    code::INVALID_CONFIG,
                    format!("{name:?} is not a name or a namespace"),
                    "use up to 253 letters, digits, `_`, `.` and `-`, the first a letter or a digit",
                )
            })?;
        }
        for _ in 0..RETRIES {
            if let Some(addresses) = self.sticky_round(want)? {
                return Ok(addresses);
            }
            // The session, the node's record, the definition, or what the name has is another one than was read.
            self.reconcile(&BTreeSet::new())?;
        }
        Err(refused(
            code::TRY_AGAIN,
            format!("the addresses of name {}/{} change again and again", want.namespace, want.name),
            "`cnitool ipam blocks` shows who has them",
        ))
    }

    /// One attempt; `None` if something has changed meanwhile.
    fn sticky_round(&mut self, want: &StickyWant) -> Result<Option<Vec<IpAddr>>, AgentFailure> {
        let (pool, families) = self.pool_of_names(want)?;
        let standing = self.standing()?;
        let view = self.view()?;
        if view.pools.get(&want.pool).copied() != self.files.revision_of(&want.pool) {
            return Ok(None);
        }
        let claim = StickyClaim {
            pool: want.pool.clone(),
            namespace: want.namespace.clone(),
            name: want.name.clone(),
            network: want.network.clone(),
            attachment: want.attachment.clone(),
            families,
        };
        let found = self.find_sticky(&claim)?;
        let name = claim.full_name();
        let candidates = |family: PoolFamily| pool.static_addresses(family, &name);
        let (addresses, transaction) = match decide_sticky(&view, &claim, &found, standing, candidates)? {
            StickyDecision::Claim(addresses, transaction) => (addresses, transaction),
            StickyDecision::Held { address, holder } => {
                return Err(refused(
                    code::TRY_AGAIN,
                    format!("{address} of name {name} belongs to {holder}"),
                    "wait until that attachment is deleted; if its node is gone for ever: cnitool ipam fence NODE",
                ));
            }
            StickyDecision::Full(family) => {
                return Err(refused(
                    code::TRY_AGAIN,
                    format!("pool {} has no free static address of {family:?} for name {name}", want.pool),
                    "give the pool another range in `static`, or forget names: cnikit-agent forget",
                ));
            }
        };
        let step = Step::ClaimSticky { claim, addresses: addresses.clone(), transaction };
        match self.execute(&view, &step) {
            Ok(Some(Outcome::Committed(_))) => {
                self.files.add_names(addresses.iter().map(|address| BlockId::of_static(&want.pool, *address)));
                Ok(Some(addresses))
            }
            Ok(_) => Ok(None),
            // It may have been executed: then this node is found as the holder.
            Err(AgentFailure::Engine(error)) if error.is_open => {
                log("claim", format_args!("{error}; the engine is asked what became of it"));
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// The pool, and the families of which a name gets an address each.
    fn pool_of_names(&mut self, want: &StickyWant) -> Result<(PoolDefinition, Vec<PoolFamily>), AgentFailure> {
        let pool = self.pool_of(&Want {
            network: want.network.clone(),
            pool: want.pool.clone(),
            families: want.families.clone(),
            free: 1,
            addresses: Vec::new(),
            attachment: None,
        })?;
        let mut families = want.families.clone();
        if families.is_empty() {
            families = pool.families().collect();
        }
        let has_static = |family: &PoolFamily| pool.static_addresses(*family, "").next().is_some();
        if let Some(family) = families.iter().find(|family| !has_static(family)) {
            let text = format!("pool {} has no static range of {family:?}, from which names get addresses", want.pool);
            return Err(refused(code::INVALID_CONFIG, text, "give the pool a range in `static`"));
        }
        Ok((pool, families))
    }

    /// What the engine has of the name. The values may be of different revisions: each is a guard of the transaction.
    fn find_sticky(&self, claim: &StickyClaim) -> Result<FoundSticky, AgentFailure> {
        let list = |listing: Listing| self.runtime.block_on(self.engine.list(&listing));
        let record = list(Listing::Key(claim.key()))?.into_iter().next().map(|(_, stored)| stored);
        let mut found = FoundSticky { record, ..FoundSticky::default() };
        let known: StickyRecord = found.record.as_ref().and_then(StoredValue::record).unwrap_or_default();
        let address_of = |family: &PoolFamily| match family {
            PoolFamily::V4 => known.ip4,
            PoolFamily::V6 => known.ip6,
        };
        let known: Option<Vec<IpAddr>> = claim.families.iter().map(address_of).collect();
        let mut listed = Vec::new();
        match known {
            Some(addresses) => {
                for address in addresses {
                    listed.extend(list(Listing::Key(BlockId::of_static(&claim.pool, address).key()))?);
                }
            }
            None => listed = list(Listing::StaticsOf(claim.pool.clone()))?,
        }
        for (key, stored) in listed {
            let KeyOfEngine::Static { address, .. } = key else { continue };
            if let Some(record) = stored.record::<StaticRecord>()
                && record.sticky.as_deref() == Some(&claim.full_name())
            {
                let fence = KeyOfEngine::Fence { node: record.node.clone(), incarnation: record.incarnation };
                if let Some((_, fence)) = list(Listing::Key(fence))?.into_iter().next() {
                    found.fences.insert((record.node, record.incarnation), fence.revision);
                }
            }
            found.statics.insert(address, stored);
        }
        Ok(found)
    }
}
