//! Addresses that stay with a name.
//!
//! `sticky/<pool>/<namespace>/<name>` says which addresses a name has, and is written once. Who has such an address now is said by
//! `static/<pool>/<ip>`, as for every static address, with the name in its record: nothing else decides. It is not deleted when its
//! node gives it back, or when the node is fenced: it is left to the name, without a node, so that no other attachment gets it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use cnikit_pool::{
    Error, Incarnation, KeyOfEngine, PoolFamily, StaticRecord, StickyRecord, UnheldRecord, write_record,
};

use super::plan::Standing;
use super::survey::StoredValue;
use super::transaction::{Guard, Transaction, WriteOperation, standing_guards};
use super::view::{BlockId, NodeView};

/// A name that wants its addresses on this node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StickyClaim {
    /// The pool.
    pub pool: String,
    /// The namespace.
    pub namespace: String,
    /// The name in it.
    pub name: String,
    /// The network.
    pub network: String,
    /// The attachment, as `<container id>/<interface>`.
    pub attachment: String,
    /// The families of which an address is wanted.
    pub families: Vec<PoolFamily>,
}

impl StickyClaim {
    /// Its key.
    pub fn key(&self) -> KeyOfEngine {
        let (pool, namespace, name) = (self.pool.clone(), self.namespace.clone(), self.name.clone());
        KeyOfEngine::Sticky { pool, namespace, name }
    }

    /// The name as records of its addresses have it.
    pub fn full_name(&self) -> String {
        format!("{}/{}", self.namespace, self.name)
    }
}

/// What the engine has of a name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FoundSticky {
    /// The value of its key.
    pub record: Option<StoredValue>,
    /// The static addresses of the pool; if the name has addresses of all wanted families, at least those.
    pub statics: BTreeMap<IpAddr, StoredValue>,
    /// The revisions of fences.
    pub fences: BTreeMap<(String, Incarnation), i64>,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StickyDecision {
    /// These addresses are the name's, and this transaction makes them this node's. Its claimed blocks are the addresses.
    Claim(Vec<IpAddr>, Transaction),
    /// Another node has an address of the name.
    Held {
        /// The address.
        address: IpAddr,
        /// Who has it.
        holder: String,
    },
    /// No static address of this family is free.
    Full(PoolFamily),
}

/// Decides about a name. `candidates` are the addresses of a family that a new name may get, in the order in which they are tried.
///
/// # Errors
/// A record would be too long.
pub fn decide_sticky<I: Iterator<Item = IpAddr>>(
    view: &NodeView,
    claim: &StickyClaim,
    found: &FoundSticky,
    standing: Standing,
    candidates: impl Fn(PoolFamily) -> I,
) -> Result<StickyDecision, Error> {
    let mut record = StickyRecord::default();
    if let Some(stored) = &found.record {
        // A value that is not a record is another program's, and is replaced.
        record = stored.record().unwrap_or_default();
    }
    let before = record.clone();
    let mut addresses = Vec::new();
    for family in &claim.families {
        let slot = match family {
            PoolFamily::V4 => &mut record.ip4,
            PoolFamily::V6 => &mut record.ip6,
        };
        let address = match *slot {
            Some(address) => address,
            None => match reserved(claim, found, *family)
                .or_else(|| candidates(*family).find(|address| !found.statics.contains_key(address)))
            {
                Some(address) => address,
                None => return Ok(StickyDecision::Full(*family)),
            },
        };
        *slot = Some(address);
        addresses.push(address);
    }
    let key = claim.key();
    let ids: Vec<BlockId> = addresses.iter().map(|address| BlockId::of_static(&claim.pool, *address)).collect();
    let mut guards = standing_guards(view, standing, ids.iter());
    guards.push(match &found.record {
        Some(stored) => Guard::Unchanged(key.clone(), stored.revision),
        None => Guard::Absent(key.clone()),
    });
    let mut writes = Vec::new();
    let mut fences = BTreeSet::new();
    for (id, address) in ids.iter().zip(&addresses) {
        match found.statics.get(address) {
            None => guards.push(Guard::Absent(id.key())),
            Some(stored) => {
                match holder(view, claim, stored, found) {
                    Holder::Free => {}
                    Holder::Fenced(node, incarnation, revision) => drop(fences.insert((node, incarnation, revision))),
                    Holder::Other(holder) => return Ok(StickyDecision::Held { address: *address, holder }),
                }
                guards.push(Guard::Unchanged(id.key(), stored.revision));
            }
        }
        writes.push(WriteOperation::Put(id.key(), write_record(&record_of(view, claim))?));
    }
    // After its addresses: an engine that writes one key at a time leaves no name whose address is not reserved.
    if before != record || found.record.is_none() {
        writes.push(WriteOperation::Put(key, write_record(&record)?));
    }
    for (node, incarnation, revision) in fences {
        guards.push(Guard::Unchanged(KeyOfEngine::Fence { node, incarnation }, revision));
    }
    Ok(StickyDecision::Claim(addresses, Transaction { guards, writes }))
}

/// An address that is reserved for the name although its record does not say so: a claim or a deletion of the name that did not end
/// has left it.
fn reserved(claim: &StickyClaim, found: &FoundSticky, family: PoolFamily) -> Option<IpAddr> {
    let is_of_name = |stored: &StoredValue| name_of(stored).as_deref() == Some(&claim.full_name());
    let mut statics = found.statics.iter().filter(|(address, _)| PoolFamily::of(**address) == family);
    statics.find(|(_, stored)| is_of_name(stored)).map(|(address, _)| *address)
}

/// The name that a static address stays with.
pub fn name_of(stored: &StoredValue) -> Option<String> {
    match stored.record::<StaticRecord>() {
        Some(record) => record.sticky,
        None => stored.record::<UnheldRecord>().map(|unheld| unheld.sticky),
    }
}

fn record_of(view: &NodeView, claim: &StickyClaim) -> StaticRecord {
    StaticRecord {
        node: view.name.clone(),
        incarnation: view.incarnation,
        network: claim.network.clone(),
        attachment: claim.attachment.clone(),
        sticky: Some(claim.full_name()),
    }
}

/// Who has an address of a name.
enum Holder {
    /// The name alone, or this node.
    Free,
    /// An incarnation that was fenced.
    Fenced(String, Incarnation, i64),
    /// Another one.
    Other(String),
}

fn holder(view: &NodeView, claim: &StickyClaim, stored: &StoredValue, found: &FoundSticky) -> Holder {
    let Some(record) = stored.record::<StaticRecord>() else {
        return match stored.record::<UnheldRecord>() {
            Some(unheld) if unheld.sticky == claim.full_name() => Holder::Free,
            Some(unheld) => Holder::Other(format!("the name {}", unheld.sticky)),
            None => Holder::Other("another program".to_owned()),
        };
    };
    let StaticRecord { node, incarnation, network, attachment, sticky } = record;
    let is_of_name = sticky.as_deref() == Some(&claim.full_name());
    if is_of_name && node == view.name && incarnation == view.incarnation && network == claim.network {
        return Holder::Free;
    }
    if is_of_name && let Some(revision) = found.fences.get(&(node.clone(), incarnation)) {
        return Holder::Fenced(node, incarnation, *revision);
    }
    Holder::Other(format!("{attachment} of network {network} on node {node}"))
}

/// What is written in the place of the record of a static address when its node gives it back: the name that it stays with. `None`:
/// the record is deleted.
pub fn left_to_name(stored: &StoredValue) -> Option<Vec<u8>> {
    let sticky = stored.record::<StaticRecord>()?.sticky?;
    write_record(&UnheldRecord { sticky }).ok()
}
