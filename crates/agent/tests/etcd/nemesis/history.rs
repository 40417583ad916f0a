//! What was done and what came of it, and the checks of that.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;

use cnikit_pool::{BlockRecord, Incarnation, KeyOfEngine, NodeRecord, SessionRecord, read_record};
use ipnetwork::IpNetwork;

use crate::plugin::Called;

/// Microseconds since the start.
pub(crate) type Moment = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
}

/// One call of the plugin.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) begin: Moment,
    pub(crate) end: Moment,
    pub(crate) node: String,
    pub(crate) attachment: String,
    pub(crate) verb: Verb,
    pub(crate) called: Called,
}

/// All that happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) operations: Vec<Operation>,
    /// Reservations that an ADD left that failed or was killed, as the node's files had them at this time.
    pub(crate) left: Vec<(Moment, String, String, IpAddr)>,
    /// When the containers of a node were gone: its power was cut.
    pub(crate) gone: Vec<(String, Moment)>,
}

/// The time in which an attachment has an address for certain.
#[derive(Clone, Debug)]
struct Hold {
    begin: Moment,
    end: Moment,
    node: String,
    attachment: String,
}

impl History {
    /// Checks that no address had two holders at a time, and returns a text for each pair that had.
    ///
    /// An attachment holds an address for certain from the end of its ADD, or from when the reservation of a failed one was seen,
    /// to the begin of the first DEL after, or until the containers of its node are gone. If these times of two attachments do not
    /// overlap, there is an order of the calls in which each has its effect between its begin and its end, and no address has two
    /// holders; if they do, there is none.
    pub(crate) fn check_holders(&self) -> Vec<String> {
        let mut dels: HashMap<(&str, &str), Vec<Moment>> = HashMap::new();
        for operation in self.operations.iter().filter(|operation| operation.verb == Verb::Del) {
            dels.entry((&operation.node, &operation.attachment)).or_default().push(operation.begin);
        }
        let end = |node: &str, attachment: &str, begin: Moment| {
            let dels = dels.get(&(node, attachment)).into_iter().flatten().copied();
            let gone = self.gone.iter().filter(|(gone, _)| gone == node).map(|(_, at)| *at);
            dels.chain(gone).filter(|at| *at >= begin).min().unwrap_or(Moment::MAX)
        };
        let mut holds: BTreeMap<IpAddr, Vec<Hold>> = BTreeMap::new();
        let mut hold = |address: IpAddr, begin: Moment, node: &str, attachment: &str| {
            let (end, node, attachment) = (end(node, attachment, begin), node.to_owned(), attachment.to_owned());
            holds.entry(address).or_default().push(Hold { begin, end, node, attachment });
        };
        for operation in self.operations.iter().filter(|operation| operation.verb == Verb::Add) {
            if let Called::Done(addresses) = &operation.called {
                for address in addresses {
                    hold(*address, operation.end, &operation.node, &operation.attachment);
                }
            }
        }
        for (at, node, attachment, address) in &self.left {
            hold(*address, *at, node, attachment);
        }
        let mut found = Vec::new();
        for (address, mut holds) in holds {
            holds.sort_by_key(|hold| hold.begin);
            found.extend(overlaps(address, &holds));
        }
        found
    }

    /// Checks why calls failed, and returns a text for each that must not have: a DEL, and an ADD for another reason than that it
    /// found no free address or no space for its files.
    pub(crate) fn check_failures(&self) -> Vec<String> {
        let is_expected = |operation: &&Operation| match &operation.called {
            Called::Failed(11, _) => operation.verb == Verb::Add,
            Called::Failed(_, text) => operation.verb == Verb::Add && text.contains("No space left on device"),
            Called::Done(_) | Called::Killed => true,
        };
        let failed = self.operations.iter().filter(|operation| !is_expected(operation));
        failed.map(|operation| format!("{operation:?}")).collect()
    }

    /// Checks that each address that a node gave was of a block that it owned at a moment between the begin and the end of that
    /// ADD, and returns a text for each that was not.
    ///
    /// With [`check_claims`], this makes the claims linearizable: the engine's revisions are an order of all claims and releases
    /// in which each is right, and what a node does with a claim agrees with the time of this order.
    pub(crate) fn check_blocks(&self, blocks: &OwnedBlocks, markers: &[Marker]) -> Vec<String> {
        let mut found = Vec::new();
        for operation in self.operations.iter().filter(|operation| operation.verb == Verb::Add) {
            let Called::Done(addresses) = &operation.called else { continue };
            for address in addresses {
                let mut owned = blocks.of_node(&operation.node, *address);
                let overlaps = |(claimed, released): (i64, i64)| {
                    earliest(claimed, markers) <= operation.end && latest(released, markers) >= operation.begin
                };
                if !owned.any(overlaps) {
                    found.push(format!("{address} was of no block of the node: {operation:?}"));
                }
            }
        }
        found
    }
}

/// A write to the engine, which had this revision.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Marker {
    pub(crate) revision: i64,
    pub(crate) begin: Moment,
    pub(crate) end: Moment,
}

/// The earliest moment at which a revision can have been written. `markers` are in their order.
fn earliest(revision: i64, markers: &[Marker]) -> Moment {
    let before = markers.partition_point(|marker| marker.revision < revision);
    markers[..before].last().map_or(0, |marker| marker.begin)
}

/// The latest moment at which a revision can have been written.
fn latest(revision: i64, markers: &[Marker]) -> Moment {
    let after = markers.partition_point(|marker| marker.revision <= revision);
    markers.get(after).map_or(Moment::MAX, |marker| marker.end)
}

/// Which node owned a block, from which revision on and before which one.
struct Ownership {
    block: IpNetwork,
    node: String,
    claimed: i64,
    released: i64,
}

/// The owners of the blocks, by the engine.
#[derive(Default)]
pub(crate) struct OwnedBlocks(Vec<Ownership>);

impl OwnedBlocks {
    /// Those of all changes. A record that is written anew by the same node goes on.
    pub(crate) fn of(changes: &[Change]) -> OwnedBlocks {
        let mut all: Vec<Ownership> = Vec::new();
        for change in changes {
            let KeyOfEngine::Block { cidr, .. } = &change.key else { continue };
            let record: Option<BlockRecord> = change.value.as_deref().and_then(|value| read_record(value).ok());
            let owned = all.iter_mut().rfind(|owned| owned.block == *cidr && owned.released == i64::MAX);
            if let (Some(record), Some(owned)) = (&record, &owned)
                && record.node == owned.node
            {
                continue;
            }
            if let Some(owned) = owned {
                owned.released = change.revision;
            }
            if let Some(BlockRecord { node, .. }) = record {
                all.push(Ownership { block: *cidr, node, claimed: change.revision, released: i64::MAX });
            }
        }
        OwnedBlocks(all)
    }

    /// The revisions between which a node owned the block with an address.
    fn of_node(&self, node: &str, address: IpAddr) -> impl Iterator<Item = (i64, i64)> {
        let owned = self.0.iter().filter(move |owned| owned.node == node && owned.block.contains(address));
        owned.map(|owned| (owned.claimed, owned.released))
    }
}

/// The pairs of holders of an address at one time. `holds` are sorted by their begin.
fn overlaps(address: IpAddr, holds: &[Hold]) -> Vec<String> {
    let mut found = Vec::new();
    let mut longest: Option<&Hold> = None;
    for hold in holds {
        if let Some(before) = longest
            && hold.begin < before.end
            && (&hold.node, &hold.attachment) != (&before.node, &before.attachment)
        {
            let Hold { begin, node, attachment, .. } = hold;
            found.push(format!(
                "{address} is {attachment}'s on {node} from {begin}, and {}'s on {} from {} to {}",
                before.attachment, before.node, before.begin, before.end
            ));
        }
        if longest.is_none_or(|before| hold.end > before.end) {
            longest = Some(hold);
        }
    }
    found
}

/// A change of a key of the engine; without a value it was deleted.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: i64,
    pub(crate) key: KeyOfEngine,
    pub(crate) value: Option<Vec<u8>>,
}

/// What the engine had, while its changes are replayed.
#[derive(Default)]
struct Replay {
    /// The owner of each block, by the key's text.
    owners: BTreeMap<String, (String, Incarnation)>,
    nodes: BTreeMap<String, Incarnation>,
    sessions: BTreeMap<String, SessionRecord>,
    fences: Vec<(String, Incarnation)>,
    found: Vec<String>,
}

/// Checks by the engine's revisions that each block had one owner at a time, and that each claim was of the incarnation that was
/// registered, had a session and was not fenced. Returns a text for each that was not.
pub(crate) fn check_claims(changes: &[Change]) -> Vec<String> {
    let mut replay = Replay::default();
    let mut last = 0;
    for change in changes {
        if change.revision < last {
            replay.found.push(format!("revision {} after {last}", change.revision));
        }
        last = change.revision;
        replay.apply(change);
    }
    replay.found
}

impl Replay {
    fn apply(&mut self, change: &Change) {
        let value = change.value.as_deref();
        match &change.key {
            KeyOfEngine::Node(node) => {
                let record: Option<NodeRecord> = value.and_then(|value| read_record(value).ok());
                match record {
                    Some(record) => drop(self.nodes.insert(node.clone(), record.incarnation)),
                    None => drop(self.nodes.remove(node)),
                }
            }
            KeyOfEngine::Session(node) => match value.and_then(|value| read_record(value).ok()) {
                Some(session) => drop(self.sessions.insert(node.clone(), session)),
                None => drop(self.sessions.remove(node)),
            },
            KeyOfEngine::Fence { node, incarnation } if value.is_some() => {
                self.fences.push((node.clone(), *incarnation));
            }
            key @ (KeyOfEngine::Block { .. } | KeyOfEngine::Static { .. }) => {
                self.change_owner(change.revision, &key.to_string(), value);
            }
            _ => {}
        }
    }

    fn change_owner(&mut self, revision: i64, block: &str, value: Option<&[u8]>) {
        let Some(value) = value else {
            if self.owners.remove(block).is_none() {
                self.found.push(format!("revision {revision}: {block} is deleted and was nobody's"));
            }
            return;
        };
        let Ok(BlockRecord { node, incarnation, .. }) = read_record(value) else {
            self.found.push(format!("revision {revision}: {block} has a record that cannot be read"));
            return;
        };
        let owner = (node, incarnation);
        let mut wrong =
            |why: String| self.found.push(format!("revision {revision}: {block} is claimed by {}: {why}", owner.0));
        if let Some(before) = self.owners.get(block)
            && *before != owner
        {
            wrong(format!("it is {}'s, of incarnation {}", before.0, before.1));
        }
        if self.fences.contains(&owner) {
            wrong(format!("incarnation {incarnation} was fenced"));
        }
        if self.nodes.get(&owner.0) != Some(&incarnation) {
            wrong(format!("incarnation {incarnation} is not registered"));
        }
        if self.sessions.get(&owner.0).is_none_or(|session| session.incarnation != incarnation) {
            wrong(format!("incarnation {incarnation} has no session"));
        }
        self.owners.insert(block.to_owned(), owner);
    }
}

#[cfg(test)]
mod tests {
    use cnikit_pool::{FenceRecord, write_record};

    use super::*;

    fn add(node: &str, attachment: &str, begin: Moment, end: Moment, called: Called) -> Operation {
        let (node, attachment) = (node.to_owned(), attachment.to_owned());
        Operation { begin, end, node, attachment, verb: Verb::Add, called }
    }

    fn del(node: &str, attachment: &str, begin: Moment, end: Moment) -> Operation {
        Operation { verb: Verb::Del, ..add(node, attachment, begin, end, Called::Done(Vec::new())) }
    }

    fn has(address: &str) -> Called {
        Called::Done(vec![address.parse().unwrap()])
    }

    /// The number of duplicates in a history.
    fn duplicates(operations: Vec<Operation>, left: &[(Moment, &str, &str)], gone: &[(&str, Moment)]) -> usize {
        let left = left.iter().map(|(at, node, id)| (*at, (*node).into(), (*id).into(), "10.8.0.2".parse().unwrap()));
        let gone = gone.iter().map(|(node, at)| ((*node).to_owned(), *at)).collect();
        History { operations, left: left.collect(), gone }.check_holders().len()
    }

    #[test]
    fn a_duplicate_is_found_and_what_can_be_ordered_is_none() {
        let first = || add("a", "1", 0, 10, has("10.8.0.2"));
        let second = |begin, end| add("b", "2", begin, end, has("10.8.0.2"));
        let killed = || Operation { called: Called::Killed, ..del("a", "1", 20, 30) };
        for (operations, expected) in [
            (vec![first(), second(12, 15)], 1),
            (vec![first(), second(12, 15), del("a", "1", 20, 30)], 1),
            (vec![second(12, 19), first(), del("a", "1", 20, 30)], 1),
            // The DEL may have had its effect before the ADD had.
            (vec![first(), second(12, 21), del("a", "1", 20, 30)], 0),
            (vec![first(), second(25, 35), killed()], 0),
            (vec![first(), second(12, 15), killed()], 1),
            // A DEL of another attachment, or before the ADD, releases nothing.
            (vec![first(), del("b", "1", 11, 12), second(13, 15)], 1),
            (vec![del("a", "1", 0, 0), add("a", "1", 1, 10, has("10.8.0.2")), second(13, 15)], 1),
            (vec![first(), add("b", "2", 12, 15, has("10.8.0.3"))], 0),
            (vec![first(), add("b", "2", 12, 15, Called::Failed(11, String::new()))], 0),
            // A long holder before a short one.
            (vec![first(), second(11, 12), del("b", "2", 13, 14), add("c", "3", 16, 17, has("10.8.0.2"))], 2),
        ] {
            assert_eq!(duplicates(operations.clone(), &[], &[]), expected, "{operations:?}");
        }
        assert_eq!(duplicates(vec![first(), second(12, 15)], &[], &[("a", 14)]), 0, "its containers are gone");
        assert_eq!(duplicates(vec![first(), second(12, 15)], &[], &[("b", 14), ("a", 16)]), 1);
        let unknown = |called| vec![add("a", "1", 0, 10, called), second(12, 15)];
        assert_eq!(duplicates(unknown(Called::Killed), &[(11, "a", "1")], &[]), 1, "it left a reservation");
        assert_eq!(duplicates(unknown(Called::Failed(11, String::new())), &[], &[]), 0);
    }

    fn block(node: &str, incarnation: u128, revision: i64) -> Change {
        let record =
            BlockRecord { node: node.into(), incarnation: Incarnation::of(incarnation), network: "pods".into() };
        let key = KeyOfEngine::Block { pool: "blue".into(), cidr: "10.8.0.16/28".parse().unwrap() };
        Change { revision, key, value: Some(write_record(&record).unwrap()) }
    }

    fn node(name: &str, incarnation: u128, revision: i64) -> [Change; 2] {
        let incarnation = Incarnation::of(incarnation);
        let session = SessionRecord { boot: "b".into(), incarnation };
        let (session, node) = (write_record(&session).unwrap(), write_record(&NodeRecord { incarnation }).unwrap());
        [
            Change { revision, key: KeyOfEngine::Session(name.into()), value: Some(session) },
            Change { revision, key: KeyOfEngine::Node(name.into()), value: Some(node) },
        ]
    }

    #[test]
    fn an_address_of_a_block_that_is_not_the_nodes_at_the_time_is_found() {
        let deleted = |revision| Change { revision, value: None, ..block("a", 1, 0) };
        let marker = |revision, begin| Marker { revision, begin, end: begin + 5 };
        let markers = [marker(10, 100), marker(20, 200), marker(30, 300)];
        let blocks = OwnedBlocks::of(&[block("a", 1, 15), block("a", 1, 17), deleted(25), block("b", 2, 26)]);
        let found = |node: &str, begin, end| {
            let operations = vec![add(node, "1", begin, end, has("10.8.0.17"))];
            History { operations, ..History::default() }.check_blocks(&blocks, &markers).len()
        };
        // a's from a moment after 100 to one before 305, b's from one after 200.
        for (node, begin, end, expected) in [
            ("a", 50, 99, 1),
            ("a", 50, 100, 0),
            ("a", 150, 160, 0),
            ("a", 305, 310, 0),
            ("a", 306, 310, 1),
            ("b", 150, 199, 1),
            ("b", 150, 200, 0),
            ("b", 1_000, 1_001, 0),
            ("c", 150, 160, 1),
        ] {
            assert_eq!(found(node, begin, end), expected, "{node} {begin} {end}");
        }
    }

    #[test]
    fn a_failure_that_nothing_explains_is_found() {
        let failed = |code, text: &str| Called::Failed(code, text.to_owned());
        let full = "write x: No space left on device (os error 28)";
        let (add, del) = (|called| add("a", "1", 0, 10, called), |called| Operation { called, ..del("a", "1", 0, 10) });
        for (operation, expected) in [
            (add(failed(11, "no free address")), 0),
            (add(failed(100, full)), 0),
            (add(failed(100, "a bug")), 1),
            (add(Called::Killed), 0),
            (del(failed(11, full)), 1),
            (del(failed(100, full)), 1),
            (del(Called::Killed), 0),
        ] {
            let history = History { operations: vec![operation.clone()], ..History::default() };
            assert_eq!(history.check_failures().len(), expected, "{operation:?}");
        }
    }

    #[test]
    fn a_claim_of_anothers_block_or_of_a_node_that_may_not_claim_is_found() {
        let deleted = |change: &Change, revision| Change { revision, value: None, ..change.clone() };
        let fence = |revision| {
            let record = FenceRecord { by: "me".into(), at: String::new(), why: String::new() };
            let key = KeyOfEngine::Fence { node: "a".into(), incarnation: Incarnation::of(1) };
            Change { revision, key, value: Some(write_record(&record).unwrap()) }
        };
        let begin = [node("a", 1, 1), node("b", 2, 1)].concat();
        let with = |more: &[Change]| check_claims(&[&begin, more].concat());
        let (a, b) = (|revision| block("a", 1, revision), |revision| block("b", 2, revision));
        assert_eq!(with(&[a(2), a(3), deleted(&a(0), 4), b(5)]), [""; 0]);
        assert!(with(&[a(2), b(3)])[0].contains("it is a's"));
        assert!(with(&[a(2), fence(3), a(4)])[0].contains("was fenced"));
        assert_eq!(with(&[a(2), fence(3), deleted(&a(0), 4), b(5)]), [""; 0]);
        assert!(with(&[a(2), block("a", 9, 3)])[0].contains("it is a's"));
        assert!(with(&[block("a", 9, 3)])[0].contains("is not registered"));
        assert!(with(&[deleted(&begin[0], 2), a(3)])[0].contains("has no session"));
        assert!(with(&[deleted(&a(0), 4)])[0].contains("was nobody's"));
        assert!(with(&[a(4), deleted(&a(0), 3)])[0].contains("revision 3 after 4"));
    }
}
