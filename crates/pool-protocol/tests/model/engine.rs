//! The engine, of either kind, as the machines and an operator's program use it: surveys, definitions, and transactions that are
//! executed at once or one key at a time.

use cnikit_pool::{BlockRecord, KeyOfEngine, NodeState, read_record};
use cnikit_pool_protocol::{
    BlockId, CheckOrder, Execution, Guard, KeyReply, KeyRequest, NextRequest, NodeView, Outcome, Part, StoredValue,
    Survey, Transaction, WriteOperation,
};

use crate::machine::{Late, Machine, POOL, Process, late_request};
use crate::planted::Planted;
use crate::world::{Scene, SurveyOrder, World, block};

impl World {
    /// The engine executes a request about one key. Returns also whether it gave a block to an incarnation that was fenced.
    pub(crate) fn request(&mut self, request: &KeyRequest) -> (KeyReply, bool) {
        let reply = self.store.request(request);
        let mut gives = false;
        if let KeyReply::Written(_) = reply
            && let KeyRequest::Create { key, value, .. } | KeyRequest::Replace { key, value, .. } = request
        {
            if let KeyOfEngine::Session(name) = key {
                self.ended.remove(name);
            }
            if BlockId::of_key(key).is_some()
                && let Ok(owner) = read_record::<BlockRecord>(value)
            {
                gives = self.is_fenced(&owner.node, owner.incarnation);
            }
        }
        (reply, gives)
    }

    /// Executes a transaction on an engine of either kind.
    pub(crate) fn execute(&mut self, one_by_one: bool, transaction: &Transaction) -> Outcome {
        if !one_by_one {
            return self.commit(transaction);
        }
        let mut execution = Execution::new(transaction.clone());
        loop {
            match execution.next() {
                NextRequest::Ask(request) => execution.answer(self.request(&request).0),
                NextRequest::Done(outcome) => return outcome,
            }
        }
    }

    /// Delivers what was late.
    pub(crate) fn deliver(&mut self, late: &Late) {
        match late {
            Late::Transaction(transaction) => drop(self.commit(transaction)),
            Late::Request(request) => drop(self.request(request)),
        }
    }
}

impl Scene {
    /// The blocks of a definition of the pool.
    pub(crate) fn ids_of(&self, definition: u8) -> Vec<BlockId> {
        if definition == 1 {
            return self.ids();
        }
        vec![BlockId { cidr: "10.0.0.0/31".parse().unwrap(), ..block(0) }]
    }

    /// What the survey of a machine says.
    pub(crate) fn survey_of(&self, world: &World, n: usize) -> Survey {
        let machine = &world.machines[n];
        let view = &machine.view;
        let is_block = |(key, _): &(KeyOfEngine, StoredValue)| BlockId::of_key(key).is_some();
        let mut now: Vec<(KeyOfEngine, StoredValue)> =
            world.store.values.iter().map(|(key, stored)| (key.clone(), stored.clone())).collect();
        if let Process::Surveying(before) = &machine.process {
            now.retain(|pair| is_block(pair) != (self.survey == SurveyOrder::BlocksFirst));
            now.extend(before.iter().cloned());
        }
        for (key, stored) in &mut now {
            // A session that has ended is reported as one that is no record.
            if let KeyOfEngine::Session(name) = key
                && world.ended.contains(name)
            {
                stored.value.clear();
            }
        }
        let held = machine.held();
        let mut survey = Survey::gather(&view.name, view.incarnation, &held, now);
        if self.asks_for_held && view.state != NodeState::Fenced {
            survey.blocks.retain(|id, _| held.contains(id));
        }
        let of_pool = self.ids_of(machine.definition);
        survey.set_strays_aside(&held, |id| of_pool.contains(id));
        survey
    }

    /// What the agent's files say, with what they know of the pool.
    pub(crate) fn view_of(&self, machine: &Machine, is_idle: bool, is_wanted: bool) -> NodeView {
        let mut view = machine.seen(is_idle, is_wanted);
        let of_pool = self.ids_of(machine.definition);
        for block in &mut view.blocks {
            block.is_gone = !of_pool.contains(&block.id);
            block.is_closing = block.is_gone;
        }
        view
    }

    /// The first part of a survey.
    pub(crate) fn first_part(&self, world: &World, n: usize) -> Vec<(KeyOfEngine, StoredValue)> {
        let view = &world.machines[n].view;
        let concerns = |key: &KeyOfEngine| match key {
            KeyOfEngine::Session(name) | KeyOfEngine::Node(name) => *name == view.name,
            KeyOfEngine::Fence { node, incarnation } => *node == view.name && *incarnation == view.incarnation,
            _ => false,
        };
        let is_first = |key: &KeyOfEngine| match self.survey {
            SurveyOrder::BlocksFirst => BlockId::of_key(key).is_some(),
            SurveyOrder::BlocksLast | SurveyOrder::AtOnce => concerns(key),
        };
        let values = world.store.values.iter().filter(|(key, _)| is_first(key));
        values.map(|(key, stored)| (key.clone(), stored.clone())).collect()
    }

    /// The definition that the engine has: its number and its revision, if it counts.
    pub(crate) fn defined(world: &World) -> (u8, Option<i64>) {
        let key = KeyOfEngine::Pool(POOL.into());
        let stored = &world.store.values[&key];
        (stored.value[0], Some(stored.revision).filter(|_| !world.store.pending.contains(&key)))
    }

    /// The agent of a machine reads the definition.
    pub(crate) fn refresh(world: &mut World, n: usize) {
        let (definition, revision) = Scene::defined(world);
        let machine = &mut world.machines[n];
        machine.definition = definition;
        machine.view.pools = revision.map(|revision| (POOL.to_owned(), revision)).into_iter().collect();
    }

    /// The transaction that defines the pool anew, as an operator's program computes it; `None` if a block would be lost.
    pub(crate) fn definition(&self, world: &World) -> Option<Transaction> {
        let next = 3 - Scene::defined(world).0;
        let kept = self.ids_of(next);
        let blocks =
            world.store.values.iter().filter_map(|(key, stored)| Some((BlockId::of_key(key)?, stored.revision)));
        let blocks: Vec<(BlockId, i64)> = blocks.collect();
        if blocks.iter().any(|(id, _)| !kept.contains(id)) {
            return None;
        }
        let last = blocks.iter().map(|(_, revision)| *revision).max().unwrap_or_default();
        let key = KeyOfEngine::Pool(POOL.into());
        let revision = world.store.values[&key].revision;
        let guards = vec![
            Guard::Unchanged(key.clone(), revision),
            Guard::NoneSince(Part::Pools, revision),
            Guard::NoneSince(Part::BlocksOf(POOL.into()), last),
            Guard::NoneSince(Part::StaticsOf(POOL.into()), 0),
        ];
        Some(Transaction { guards, writes: vec![WriteOperation::Put(key, vec![next])] })
    }

    /// Executes one request of an execution, with the planted error.
    pub(crate) fn request(&self, world: &mut World, execution: &mut Execution) -> bool {
        let NextRequest::Ask(request) = execution.next() else { return false };
        let request = match self.planted {
            Some(planted) => planted.request(&world.store, execution, request),
            None => request,
        };
        let (reply, gives) = world.request(&request);
        execution.answer(reply);
        gives
    }

    /// The execution of a transaction, with the planted error.
    pub(crate) fn begin(&self, transaction: Transaction) -> Execution {
        match self.planted {
            Some(Planted::CheckBeforeWrite) => Execution::in_order(transaction, CheckOrder::BeforeWrites),
            _ => Execution::new(transaction),
        }
    }

    /// An operator's program begins to define the pool.
    pub(crate) fn define(&self, before: &World, world: &mut World) -> Option<()> {
        let transaction = self.definition(before)?;
        world.left.definitions -= 1;
        if self.one_by_one {
            world.defines = Some(self.begin(transaction));
        } else {
            world.commit(&transaction);
        }
        Some(())
    }

    /// It executes a request.
    pub(crate) fn define_step(&self, world: &mut World) -> Option<()> {
        let mut defines = world.defines.take()?;
        self.request(world, &mut defines);
        if let NextRequest::Ask(_) = defines.next() {
            world.defines = Some(defines);
        }
        Some(())
    }

    /// The engine executes what a machine asked: all of it, or a request about one key.
    pub(crate) fn answer(&self, world: &mut World, n: usize) -> Option<()> {
        let simple = |outcome: Outcome| match outcome {
            Outcome::Refused(_) => Outcome::Refused(Vec::new()),
            committed @ Outcome::Committed(_) => committed,
        };
        world.machines[n].process = match std::mem::replace(&mut world.machines[n].process, Process::Idle) {
            Process::Asked(step, transaction, rest) => {
                Process::Answered(step, simple(world.commit(&transaction)), rest)
            }
            Process::Executing(step, mut execution, rest, gave) => {
                let gave = self.request(world, &mut execution) || gave;
                match execution.next() {
                    NextRequest::Ask(_) => Process::Executing(step, execution, rest, gave),
                    NextRequest::Done(outcome) => {
                        world.gave_fenced |= gave && matches!(outcome, Outcome::Committed(_));
                        Process::Answered(step, simple(outcome), rest)
                    }
                }
            }
            _ => return None,
        };
        Some(())
    }

    /// What the network delivers late of a transaction: of one that is executed one key at a time, its first write.
    pub(crate) fn late(&self, world: &mut World, transaction: Transaction) -> Option<Late> {
        if !self.one_by_one {
            return Some(Late::Transaction(transaction));
        }
        let mut execution = Execution::new(transaction);
        while let NextRequest::Ask(request) = execution.next()
            && !request.writes()
        {
            execution.answer(world.request(&request).0);
        }
        late_request(&execution)
    }
}

/// The agent of a machine waits no longer.
pub(crate) fn give_up(world: &mut World, n: usize) -> Option<()> {
    let late = match std::mem::replace(&mut world.machines[n].process, Process::Idle) {
        Process::Asked(_, transaction, _) => Some(Late::Transaction(transaction)),
        Process::Executing(_, execution, _, _) => late_request(&execution),
        _ => return None,
    };
    world.put_late(late);
    Some(())
}
