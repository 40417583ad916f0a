//! A machine: its files, its agent, its containers.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use cnikit_pool::{AfterBoot, Incarnation, KeyOfEngine, LocalBlock, NodeState, PoolFamily};
use cnikit_pool_protocol::{
    BlockId, Execution, HeldBlock, KeyRequest, NextRequest, NodeView, Outcome, Step, StoredValue, Transaction,
};

pub(crate) const POOL: &str = "p";
pub(crate) const NETWORK: &str = "n";

/// What the agent's process is doing.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Process {
    /// There is none.
    Down,
    /// It waits.
    Idle,
    /// It has read a part of what a survey needs.
    Surveying(Vec<(KeyOfEngine, StoredValue)>),
    /// It has steps to do, which it computed some time ago.
    Planned(VecDeque<Step>),
    /// It waits for the engine's answer.
    Asked(Step, Transaction, VecDeque<Step>),
    /// It executes a transaction one key at a time. Whether a block was written after its owner was fenced.
    Executing(Step, Execution, VecDeque<Step>, bool),
    /// It has the answer, and has not written the files.
    Answered(Step, Outcome, VecDeque<Step>),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Machine {
    /// Whether it exists: a clone does not before it is made.
    pub(crate) exists: bool,
    /// Its files. `session` is the memory of the process.
    pub(crate) view: NodeView,
    pub(crate) process: Process,
    /// Running containers: the block of the address, and who allocated it.
    pub(crate) containers: BTreeMap<BlockId, Holder>,
    /// The incarnations of which the files said that they are fenced.
    pub(crate) learned: BTreeSet<Incarnation>,
    /// The definition of the pool that the files have.
    pub(crate) definition: u8,
}

/// What the network may still deliver.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Late {
    Transaction(Transaction),
    Request(KeyRequest),
}

/// Under which incarnation and in which boot an address was allocated.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Holder {
    pub(crate) incarnation: Incarnation,
    pub(crate) boot: String,
}

pub(crate) fn boot(number: u8) -> String {
    format!("boot-{number}")
}

impl Machine {
    pub(crate) fn new(name: &str, incarnation: u128, number: u8) -> Machine {
        Machine {
            exists: true,
            view: NodeView {
                name: name.to_owned(),
                boot: boot(number),
                incarnation: Incarnation::of(incarnation),
                state: NodeState::Serving,
                recorded_boot: String::new(),
                session: 0,
                pools: BTreeMap::from([(POOL.to_owned(), 1)]),
                blocks: Vec::new(),
                wanted: BTreeSet::new(),
            },
            process: Process::Down,
            containers: BTreeMap::new(),
            learned: BTreeSet::new(),
            definition: 1,
        }
    }

    /// Who allocates an address now.
    pub(crate) fn holder(&self) -> Holder {
        Holder { incarnation: self.view.incarnation, boot: self.view.boot.clone() }
    }

    pub(crate) fn held(&self) -> BTreeSet<BlockId> {
        self.view.blocks.iter().map(|block| block.id.clone()).collect()
    }

    /// Whether the plugin allocates an address of the block, by the rule of its own code.
    pub(crate) fn allocates(&self, block: &HeldBlock, after_boot: AfterBoot) -> bool {
        let BlockId { pool, cidr, is_static } = block.id.clone();
        let local = LocalBlock { pool, cidr, is_static, epoch: block.epoch, state: block.state };
        self.view.state == NodeState::Serving
            && local.serves(self.view.recorded_boot == self.view.boot, after_boot)
            && !self.containers.contains_key(&block.id)
    }

    /// The files as the agent sees them: with what containers use. `is_idle` is whether it has seen the others without use for
    /// long.
    pub(crate) fn seen(&self, is_idle: bool, is_wanted: bool) -> NodeView {
        let mut view = self.view.clone();
        self.mark_use(&mut view);
        for block in &mut view.blocks {
            block.idle = is_idle && !block.in_use;
        }
        if is_wanted {
            for family in PoolFamily::ALL {
                view.wanted.insert((NETWORK.to_owned(), POOL.to_owned(), family));
            }
        }
        view
    }

    fn mark_use(&self, view: &mut NodeView) {
        for block in &mut view.blocks {
            block.in_use = self.containers.contains_key(&block.id);
        }
    }

    /// Executes a step that changes the files only.
    pub(crate) fn write(&mut self, step: &Step, next_incarnation: &mut u128) {
        match step {
            Step::RecordBoot => self.view.recorded_boot = self.view.boot.clone(),
            Step::RecordFence => {
                self.view.state = NodeState::Fenced;
                self.learned.insert(self.view.incarnation);
            }
            Step::NewIncarnation => {
                self.view.incarnation = Incarnation::of(*next_incarnation);
                self.view.state = NodeState::Serving;
                *next_incarnation += 1;
            }
            Step::Change(change) => self.change(change),
            _ => {}
        }
    }

    /// Changes a block. Whether it is in use is read now, as under the network's lock.
    pub(crate) fn change(&mut self, change: &cnikit_pool_protocol::BlockChange) {
        let mut view = self.view.clone();
        self.mark_use(&mut view);
        view.apply(change);
        for block in &mut view.blocks {
            block.in_use = false;
        }
        self.view = view;
    }

    /// The process ends, whatever it was doing. Returns what the network may still deliver.
    pub(crate) fn crash(&mut self) -> Option<Late> {
        self.view.session = 0;
        match std::mem::replace(&mut self.process, Process::Down) {
            Process::Asked(_, transaction, _) => Some(Late::Transaction(transaction)),
            Process::Executing(_, execution, _, _) => late_request(&execution),
            _ => None,
        }
    }
}

/// What is under way of an execution that is given up.
pub(crate) fn late_request(execution: &Execution) -> Option<Late> {
    match execution.next() {
        NextRequest::Ask(request) if request.writes() => Some(Late::Request(request)),
        _ => None,
    }
}
