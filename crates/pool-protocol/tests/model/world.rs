//! All machines, the engine, the operator and the network.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::net::IpAddr;
use std::sync::{Arc, Mutex};

use cnikit_pool::{
    AfterBoot, BlockRecord, BlockState, FenceRecord, Incarnation, KeyOfEngine, NodeState, PoolFamily, SessionRecord,
    StaticRecord, StickyRecord, UnheldRecord, read_record, write_record,
};
use cnikit_pool_protocol::{
    BlockId, Execution, FoundSticky, KeyRequest, MemoryStore, Outcome, Step, StickyClaim, StickyDecision, StoredValue,
    Survey, Transaction, WriteOperation, decide_sticky, fence, free_fenced, plan, settled, transaction_of,
};
use stateright::{Model, Property};

use crate::engine::give_up;
use crate::machine::{Holder, Late, Machine, NETWORK, POOL, Process, boot, late_request};
use crate::planted::Planted;
use crate::renumber::renumber;

/// How often each event happens at most, and what is in the scene.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) machines: Vec<Machine>,
    /// The number of blocks, of one address each.
    pub(crate) blocks: u8,
    pub(crate) limits: Budget,
    /// Whether the blocks are static addresses, each of which stays with a name.
    pub(crate) sticky: bool,
    /// Whether the last machine is made from the first one's store, or with an empty store under its name.
    pub(crate) copy: Option<Copy>,
    /// Whether a session ends although its machine runs, because the agent does not.
    pub(crate) sessions_end: bool,
    pub(crate) after_boot: AfterBoot,
    /// Whether the engine has no transactions over several keys, so that each is executed one key at a time.
    pub(crate) one_by_one: bool,
    /// What a survey reads first.
    pub(crate) survey: SurveyOrder,
    /// An error in the protocol that the model has to find.
    pub(crate) planted: Option<Planted>,
    /// Whether surveys have the blocks of the machine's files only, except for those that find out whether nothing is lost.
    pub(crate) asks_for_held: bool,
    /// What some world has to be.
    pub(crate) reached: Option<fn(&World) -> bool>,
    /// Fingerprints of the worlds of one machine ([`World::alone`]) in which nothing is lost: many worlds have the same ones.
    pub(crate) healed: Arc<Mutex<HashSet<u64>>>,
}

#[derive(Clone, std::marker::Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copy {
    Clone,
    Reimage,
}

/// What a survey reads first; between its two parts anything can happen.
#[derive(Clone, std::marker::Copy, Debug, PartialEq, Eq)]
pub(crate) enum SurveyOrder {
    /// All at one revision.
    AtOnce,
    /// The blocks, then session, record and fence.
    BlocksFirst,
    /// Session, record and fence, then the blocks.
    BlocksLast,
}

#[derive(Clone, std::marker::Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) crashes: u8,
    pub(crate) reboots: u8,
    pub(crate) late: u8,
    pub(crate) fences: u8,
    /// New containers.
    pub(crate) adds: u8,
    /// Definitions of the pool.
    pub(crate) definitions: u8,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) store: MemoryStore,
    pub(crate) machines: Vec<Machine>,
    /// What the network may deliver later, or never.
    pub(crate) late: Vec<Late>,
    /// The definition that an operator's program is writing.
    pub(crate) defines: Option<Execution>,
    /// The nodes whose session counts as ended, because it was not renewed for long.
    pub(crate) ended: BTreeSet<String>,
    pub(crate) left: Budget,
    pub(crate) next_incarnation: u128,
    pub(crate) next_boot: u8,
    /// A container was started by an incarnation whose machine knew that it is fenced.
    pub(crate) served_fenced: bool,
    /// A fenced incarnation was given a block.
    pub(crate) gave_fenced: bool,
    /// The boots of which an operator has said that their containers are gone: those in which the machines were when they were
    /// fenced.
    pub(crate) given_up: BTreeSet<Holder>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Start(usize),
    Crash(usize),
    Reboot(usize),
    /// The agent asks the engine, and plans these steps.
    Look(usize, VecDeque<Step>),
    /// It claims a block, by this step.
    Want(usize, Step),
    /// It executes the next step of its plan.
    Next(usize),
    /// The engine executes what the agent asked, and the agent gets the answer.
    Answer(usize),
    /// The agent waits no longer. What it asked is executed later, or never.
    GiveUp(usize),
    /// It writes its files.
    Write(usize),
    Add(usize, BlockId),
    Del(usize, BlockId),
    Deliver(usize),
    Lose(usize),
    /// The survey's first part is read.
    Survey(usize),
    /// It reads the definition of the pool.
    Refresh(usize),
    /// An operator's program begins to define the pool.
    Define,
    /// It executes a request about one key.
    DefineStep,
    /// It ends.
    DefineEnds,
    Expire(String),
    Copy,
    Fence(String, Incarnation),
    Free(BlockId),
    /// As [`Action::Free`], delivered late.
    FreeLate(BlockId),
}

pub(crate) fn block(number: u8) -> BlockId {
    BlockId { pool: POOL.into(), cidr: IpAddr::from([10, 0, 0, number]).into(), is_static: false }
}

impl World {
    pub(crate) fn owner(&self, id: &BlockId) -> Option<BlockRecord> {
        read_record(&self.store.values.get(&id.key())?.value).ok()
    }

    pub(crate) fn is_fenced(&self, node: &str, incarnation: Incarnation) -> bool {
        self.store.values.contains_key(&KeyOfEngine::Fence { node: node.into(), incarnation })
    }

    /// Running containers that no operator has declared to be gone: machine and block.
    pub(crate) fn living(&self) -> Vec<(usize, BlockId, Incarnation)> {
        let mut living = Vec::new();
        for (n, machine) in self.machines.iter().enumerate() {
            for (id, holder) in &machine.containers {
                if !self.given_up.contains(holder) {
                    living.push((n, id.clone(), holder.incarnation));
                }
            }
        }
        living
    }

    /// The engine executes a transaction.
    pub(crate) fn commit(&mut self, transaction: &Transaction) -> Outcome {
        let outcome = self.store.commit(transaction);
        for write in &transaction.writes {
            let WriteOperation::Put(KeyOfEngine::Block { .. } | KeyOfEngine::Static { .. }, value) = write else {
                continue;
            };
            if let Outcome::Committed(_) = &outcome
                && let Ok(owner) = read_record::<BlockRecord>(value)
            {
                self.gave_fenced |= self.is_fenced(&owner.node, owner.incarnation);
            }
        }
        outcome
    }

    /// The world of one machine and the engine: the network, the operator and the other machines do nothing in it.
    pub(crate) fn alone(&self, n: usize) -> World {
        World {
            store: self.store.clone(),
            machines: vec![self.machines[n].clone()],
            late: Vec::new(),
            defines: None,
            ended: self.ended.clone(),
            left: Budget::default(),
            next_incarnation: self.next_incarnation,
            next_boot: 0,
            served_fenced: false,
            gave_fenced: false,
            given_up: BTreeSet::new(),
        }
    }

    /// A container gets the address of the block.
    fn add(&mut self, n: usize, id: BlockId) {
        self.left.adds -= 1;
        let machine = &mut self.machines[n];
        let holder = machine.holder();
        self.served_fenced |= machine.learned.contains(&holder.incarnation);
        machine.containers.insert(id, holder);
    }

    /// An operator says that the containers of an incarnation are gone, of the boot in which its machine is.
    fn fence(&mut self, node: &str, incarnation: Incarnation) {
        self.left.fences -= 1;
        for machine in &self.machines {
            if machine.exists && machine.view.name == node && machine.view.incarnation == incarnation {
                self.given_up.insert(machine.holder());
            }
        }
        let record = FenceRecord { by: "o".into(), at: String::new(), why: String::new() };
        // One key: alike for engines of both kinds.
        self.commit(&fence(node, incarnation, &record).unwrap());
    }

    /// The process of a machine ends. What it asked last may still be delivered.
    fn crash(&mut self, n: usize) {
        let late = self.machines[n].crash();
        self.put_late(late);
    }

    pub(crate) fn put_late(&mut self, late: Option<Late>) {
        if let Some(late) = late
            && self.left.late > 0
        {
            self.left.late -= 1;
            self.late.push(late);
            self.late.sort_by_key(|late| format!("{late:?}"));
        }
    }

    /// Whether the machine that has the session is alive in the boot of the session.
    fn holds_session(&self, name: &str, session: &SessionRecord, sessions_end: bool) -> bool {
        self.machines.iter().any(|machine| {
            machine.exists
                && machine.view.name == name
                && machine.view.incarnation == session.incarnation
                && machine.view.boot == session.boot
                && !(sessions_end && machine.process == Process::Down)
        })
    }

    fn sessions(&self) -> Vec<(String, SessionRecord)> {
        let mut sessions = Vec::new();
        for (key, stored) in &self.store.values {
            if let KeyOfEngine::Session(name) = key
                && let Some(record) = stored.record()
            {
                sessions.push((name.clone(), record));
            }
        }
        sessions
    }
}

impl Scene {
    pub(crate) fn ids(&self) -> Vec<BlockId> {
        (1..=self.blocks).map(|number| BlockId { is_static: self.sticky, ..block(number) }).collect()
    }

    /// The claim of the name that is called as the address, as the agent makes it.
    fn claim_sticky(&self, world: &World, n: usize, survey: &Survey, id: &BlockId) -> Option<Step> {
        let machine = &world.machines[n];
        let view = self.view_of(machine, false, true);
        if view.blocks.iter().any(|block| block.id == *id) || !plan(&view, Some(survey)).is_empty() {
            return None;
        }
        let claim = StickyClaim {
            pool: POOL.into(),
            namespace: "ns".into(),
            name: format!("name-{}", id.cidr.ip()),
            network: NETWORK.into(),
            attachment: String::new(),
            families: vec![PoolFamily::V4],
        };
        let mut found = FoundSticky { record: world.store.values.get(&claim.key()).cloned(), ..FoundSticky::default() };
        for (key, stored) in &world.store.values {
            match key {
                KeyOfEngine::Static { address, .. } => drop(found.statics.insert(*address, stored.clone())),
                KeyOfEngine::Fence { node, incarnation } => {
                    found.fences.insert((node.clone(), *incarnation), stored.revision);
                }
                _ => {}
            }
        }
        let candidates = |_: PoolFamily| std::iter::once(id.cidr.ip());
        let standing = survey.standing(&view)?;
        if self.planted == Some(Planted::NameTakesHeld)
            && let Some(stored) = found.statics.get_mut(&id.cidr.ip())
        {
            // The error: whoever has it, it is taken for the name's.
            stored.value = write_record(&UnheldRecord { sticky: claim.full_name() }).unwrap();
        }
        match decide_sticky(&view, &claim, &found, standing, candidates).unwrap() {
            StickyDecision::Claim(addresses, transaction) => Some(Step::ClaimSticky { claim, addresses, transaction }),
            StickyDecision::Held { .. } | StickyDecision::Full(_) => None,
        }
    }

    fn wanted(&self, world: &World, n: usize, survey: &Survey, id: &BlockId) -> Option<Step> {
        if self.sticky { self.claim_sticky(world, n, survey, id) } else { self.claim(world, n, survey, id) }
    }

    /// The steps of a machine after a survey, with the planted error.
    fn planned(&self, machine: &Machine, survey: &Survey, is_idle: bool, is_wanted: bool) -> VecDeque<Step> {
        let view = self.view_of(machine, is_idle, is_wanted);
        let steps = plan(&view, Some(survey));
        match self.planted {
            Some(planted) => planted.steps(&view, survey, steps).into(),
            None => steps.into(),
        }
    }

    /// Adds the looks of a machine at a survey: the plain one, and those that have seen unused blocks for long or want an address,
    /// if their steps differ from its. Without `all`, only those that find something to do.
    fn looks(&self, machine: &Machine, n: usize, survey: &Survey, all: bool, actions: &mut Vec<Action>) {
        let plain = self.planned(machine, survey, false, false);
        let does = |steps: &VecDeque<Step>| all || !(steps.is_empty() || *steps == [Step::Refused]);
        for (is_idle, is_wanted) in [(true, false), (false, true)] {
            let steps = self.planned(machine, survey, is_idle, is_wanted);
            if steps != plain && does(&steps) {
                actions.push(Action::Look(n, steps));
            }
        }
        if does(&plain) {
            actions.push(Action::Look(n, plain));
        }
    }

    fn transaction(&self, machine: &Machine, step: &Step) -> Option<Transaction> {
        let transaction = transaction_of(&machine.view, step).unwrap()?;
        Some(match self.planted {
            Some(planted) => planted.transaction(transaction),
            None => transaction,
        })
    }

    /// A claim of the block, if the machine may claim and has none that serves.
    fn claim(&self, world: &World, n: usize, survey: &Survey, id: &BlockId) -> Option<Step> {
        let machine = &world.machines[n];
        let view = self.view_of(machine, false, true);
        let has_room = view.blocks.iter().filter(|block| block.state != BlockState::Lost).count() < 2;
        if !has_room || world.owner(id).is_some() || !plan(&view, Some(survey)).is_empty() {
            return None;
        }
        let standing = survey.standing(&view)?;
        Some(Step::Claim { ids: vec![id.clone()], network: NETWORK.into(), attachment: None, standing })
    }

    fn actions_of_machine(&self, world: &World, n: usize, actions: &mut Vec<Action>) {
        let machine = &world.machines[n];
        let runs = machine.process != Process::Down;
        if !runs {
            actions.push(Action::Start(n));
        }
        if runs && world.left.crashes > 0 {
            actions.push(Action::Crash(n));
        }
        if world.left.reboots > 0 {
            actions.push(Action::Reboot(n));
        }
        match &machine.process {
            Process::Down => {}
            Process::Idle => {
                if self.survey != SurveyOrder::AtOnce {
                    actions.push(Action::Survey(n));
                }
                let survey = self.survey_of(world, n);
                self.looks(machine, n, &survey, false, actions);
                if Scene::defined(world) != (machine.definition, machine.view.pools.get(POOL).copied()) {
                    actions.push(Action::Refresh(n));
                }
                let ids = self.ids_of(machine.definition).into_iter();
                let wanted = ids.filter_map(|id| self.wanted(world, n, &survey, &id));
                actions.extend(wanted.map(|step| Action::Want(n, step)));
            }
            Process::Surveying(_) => {
                self.looks(machine, n, &self.survey_of(world, n), true, actions);
            }
            Process::Planned(_) => actions.push(Action::Next(n)),
            Process::Asked(..) | Process::Executing(..) => {
                actions.push(Action::Answer(n));
                if world.left.late > 0 {
                    actions.push(Action::GiveUp(n));
                }
            }
            Process::Answered(..) => actions.push(Action::Write(n)),
        }
        if world.left.adds > 0 {
            let serving = machine.view.blocks.iter().filter(|block| machine.allocates(block, self.after_boot));
            actions.extend(serving.map(|block| Action::Add(n, block.id.clone())));
        }
        actions.extend(machine.containers.keys().map(|id| Action::Del(n, id.clone())));
    }

    fn actions_of_operator(&self, world: &World, actions: &mut Vec<Action>) {
        if world.defines.is_some() {
            actions.extend([Action::DefineStep, Action::DefineEnds]);
        } else if world.left.definitions > 0 && self.definition(world).is_some() {
            actions.push(Action::Define);
        }
        if world.left.fences > 0 {
            for machine in world.machines.iter().filter(|machine| machine.exists) {
                let view = &machine.view;
                let action = Action::Fence(view.name.clone(), view.incarnation);
                if !world.is_fenced(&view.name, view.incarnation) && !actions.contains(&action) {
                    actions.push(action);
                }
            }
        }
        for id in self.ids() {
            if let Some(owner) = world.owner(&id)
                && world.is_fenced(&owner.node, owner.incarnation)
            {
                actions.push(Action::Free(id.clone()));
                if world.left.late > 0 {
                    actions.push(Action::FreeLate(id));
                }
            }
        }
    }

    pub(crate) fn free(world: &World, id: &BlockId) -> Option<Transaction> {
        let owner = world.owner(id)?;
        let key = KeyOfEngine::Fence { node: owner.node.clone(), incarnation: owner.incarnation };
        let fence = world.store.values.get(&key)?.revision;
        let found = world.store.values.get(&id.key())?;
        Some(free_fenced(&owner.node, owner.incarnation, fence, id, found))
    }

    fn start_copy(&self, world: &mut World) {
        let last = world.machines.len() - 1;
        let boot = boot(world.next_boot);
        world.next_boot += 1;
        if self.copy == Some(Copy::Clone) {
            let mut copy = world.machines[0].clone();
            copy.crash();
            copy.containers.clear();
            copy.learned.clear();
            copy.view.boot = boot;
            world.machines[last] = copy;
        } else {
            let view = &mut world.machines[last].view;
            view.incarnation = Incarnation::of(world.next_incarnation);
            view.boot = boot;
            world.next_incarnation += 1;
            world.machines[last].exists = true;
        }
    }
}

impl Model for Scene {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let mut world = World {
            store: MemoryStore::default(),
            machines: self.machines.clone(),
            late: Vec::new(),
            defines: None,
            ended: BTreeSet::new(),
            left: self.limits,
            next_incarnation: 100,
            next_boot: 100,
            served_fenced: false,
            gave_fenced: false,
            given_up: BTreeSet::new(),
        };
        let pool = StoredValue { value: vec![1], revision: 1 };
        world.store.values.insert(KeyOfEngine::Pool(POOL.into()), pool);
        world.store.revision = 1;
        for n in 0..world.machines.len() {
            if world.machines[n].exists {
                self.run(&mut world, n);
            }
        }
        renumber(&mut world);
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        for (n, machine) in world.machines.iter().enumerate() {
            if machine.exists {
                self.actions_of_machine(world, n, actions);
            }
        }
        for n in 0..world.late.len() {
            actions.push(Action::Deliver(n));
            actions.push(Action::Lose(n));
        }
        for (name, session) in world.sessions() {
            if !world.holds_session(&name, &session, self.sessions_end) && !world.ended.contains(&name) {
                actions.push(Action::Expire(name));
            }
        }
        if self.copy.is_some() && !world.machines.last().unwrap().exists {
            actions.push(Action::Copy);
        }
        self.actions_of_operator(world, actions);
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        match action {
            Action::Start(n) => world.machines[n].process = Process::Idle,
            Action::Crash(n) => {
                world.left.crashes -= 1;
                world.crash(n);
            }
            Action::Reboot(n) => {
                world.left.reboots -= 1;
                world.crash(n);
                world.machines[n].containers.clear();
                world.machines[n].view.boot = boot(world.next_boot);
                world.next_boot += 1;
            }
            Action::Look(n, steps) => world.machines[n].process = rest(steps),
            Action::Survey(n) => world.machines[n].process = Process::Surveying(self.first_part(before, n)),
            Action::Refresh(n) => Scene::refresh(&mut world, n),
            Action::Define => self.define(before, &mut world)?,
            Action::DefineStep => self.define_step(&mut world)?,
            Action::DefineEnds => {
                let defines = world.defines.take()?;
                world.put_late(late_request(&defines));
            }
            Action::Want(n, step) => world.machines[n].process = Process::Planned(VecDeque::from([step])),
            Action::Next(n) => self.next_step(&mut world, n)?,
            Action::Answer(n) => self.answer(&mut world, n)?,
            Action::GiveUp(n) => give_up(&mut world, n)?,
            Action::Write(n) => write_answer(&mut world.machines[n])?,
            Action::Add(n, id) => world.add(n, id),
            Action::Del(n, id) => drop(world.machines[n].containers.remove(&id)),
            Action::Deliver(n) => {
                let late = world.late.remove(n);
                world.deliver(&late);
            }
            Action::Lose(n) => drop(world.late.remove(n)),
            Action::Expire(name) if self.one_by_one => drop(world.ended.insert(name)),
            Action::Expire(name) => drop(world.store.values.remove(&KeyOfEngine::Session(name))),
            Action::Copy => self.start_copy(&mut world),
            Action::Fence(node, incarnation) => world.fence(&node, incarnation),
            Action::Free(id) => drop(world.execute(self.one_by_one, &Scene::free(before, &id)?)),
            Action::FreeLate(id) => {
                let late = self.late(&mut world, Scene::free(before, &id)?);
                world.put_late(late);
            }
        }
        renumber(&mut world);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Scene>> {
        if self.reached.is_some() {
            let reached = |scene: &Scene, world: &World| scene.reached.is_some_and(|reached| reached(world));
            return vec![Property::sometimes("reached", reached)];
        }
        vec![
            Property::always("one holder", |_, world| one_holder(world)),
            Property::always("holders own their blocks", |_, world| holders_own(world)),
            Property::always("a fenced incarnation serves nothing that it knows of", |_, world: &World| {
                !world.served_fenced
            }),
            Property::always("a name keeps its address", |_, world: &World| keeps_names(world)),
            Property::always("a fenced incarnation is given nothing", |_, world: &World| !world.gave_fenced),
            Property::always("nothing is lost for ever", crate::scenes::heals),
        ]
    }
}

impl Scene {
    pub(crate) fn next_step(&self, world: &mut World, n: usize) -> Option<()> {
        let process = std::mem::replace(&mut world.machines[n].process, Process::Idle);
        let Process::Planned(mut steps) = process else { return None };
        let step = steps.pop_front()?;
        world.machines[n].process = if let Some(transaction) = self.transaction(&world.machines[n], &step) {
            if self.one_by_one {
                let execution = self.begin(transaction);
                Process::Executing(step, execution, steps, false)
            } else {
                Process::Asked(step, transaction, steps)
            }
        } else {
            world.machines[n].write(&step, &mut world.next_incarnation);
            rest(steps)
        };
        Some(())
    }
}

impl Scene {
    /// Has the agent of a machine do all that there is to do, alone. Returns whether it comes to an end.
    pub(crate) fn run(&self, world: &mut World, n: usize) -> bool {
        world.machines[n].process = Process::Idle;
        for _ in 0..20 {
            Scene::refresh(world, n);
            let steps = self.planned(&world.machines[n], &self.survey_of(world, n), false, false);
            if steps.is_empty() {
                return true;
            }
            world.machines[n].process = Process::Planned(steps);
            while world.machines[n].process != Process::Idle {
                match std::mem::replace(&mut world.machines[n].process, Process::Idle) {
                    Process::Asked(step, transaction, rest) => {
                        let outcome = world.commit(&transaction);
                        world.machines[n].process = Process::Answered(step, outcome, rest);
                    }
                    Process::Executing(step, execution, rest, _) => {
                        let outcome = world.execute(true, execution.transaction());
                        world.machines[n].process = Process::Answered(step, outcome, rest);
                    }
                    answered @ Process::Answered(..) => {
                        world.machines[n].process = answered;
                        let _ = write_answer(&mut world.machines[n]);
                    }
                    planned => {
                        world.machines[n].process = planned;
                        let _ = self.next_step(world, n);
                    }
                }
            }
        }
        false
    }
}

/// The process with the remaining steps.
fn rest(steps: VecDeque<Step>) -> Process {
    if steps.is_empty() { Process::Idle } else { Process::Planned(steps) }
}

/// Writes into the files what the engine's answer means.
pub(crate) fn write_answer(machine: &mut Machine) -> Option<()> {
    let process = std::mem::replace(&mut machine.process, Process::Idle);
    let Process::Answered(step, outcome, steps) = process else { return None };
    if let (Step::OpenSession { .. }, Outcome::Committed(revisions)) = (&step, &outcome) {
        machine.view.session = revisions[0];
    }
    for change in settled(&step, &outcome) {
        machine.change(&change);
    }
    machine.process = rest(steps);
    Some(())
}

/// No address has two living holders.
fn one_holder(world: &World) -> bool {
    let living = world.living();
    let overlap =
        |one: &BlockId, other: &BlockId| one.cidr.contains(other.cidr.ip()) || other.cidr.contains(one.cidr.ip());
    living.iter().enumerate().all(|(n, (_, id, _))| living[n + 1..].iter().all(|(_, other, _)| !overlap(id, other)))
}

/// The engine says of the block of each living holder that it is its machine's.
fn holders_own(world: &World) -> bool {
    world.living().iter().all(|(n, id, incarnation)| {
        world
            .owner(id)
            .is_some_and(|owner| owner.node == world.machines[*n].view.name && owner.incarnation == *incarnation)
    })
}

/// The address of each name is reserved, for its node or for the name alone.
fn keeps_names(world: &World) -> bool {
    world.store.values.iter().all(|(key, stored)| {
        let KeyOfEngine::Sticky { pool, namespace, name } = key else { return true };
        let Some(StickyRecord { ip4: Some(address), .. }) = stored.record() else { return false };
        let full_name = format!("{namespace}/{name}");
        let Some(found) = world.store.values.get(&BlockId::of_static(pool, address).key()) else { return false };
        match found.record::<StaticRecord>() {
            Some(record) => record.sticky == Some(full_name),
            None => found.record() == Some(UnheldRecord { sticky: full_name }),
        }
    })
}

/// Whether a container of the second machine has the address that a container of the first one had.
pub(crate) fn moved(world: &World) -> bool {
    world.left.adds == 0 && world.living().iter().any(|(n, _, _)| *n == 1) && world.store.values.keys().any(is_name)
}

/// Whether a name has an address that no node has.
pub(crate) fn unheld(world: &World) -> bool {
    world
        .store
        .values
        .iter()
        .any(|(key, stored)| matches!(key, KeyOfEngine::Static { .. }) && stored.record::<StaticRecord>().is_none())
}

fn is_name(key: &KeyOfEngine) -> bool {
    matches!(key, KeyOfEngine::Sticky { .. })
}

/// Whether a deletion is under way, of a block that serves.
pub(crate) fn deletes_serving(world: &World) -> bool {
    let serves = |key: &KeyOfEngine| world.living().iter().any(|(_, id, _)| id.key() == *key);
    world.late.iter().any(|late| match late {
        Late::Transaction(late) => {
            late.writes.iter().any(|write| matches!(write, WriteOperation::Delete(key) if serves(key)))
        }
        Late::Request(KeyRequest::Delete { key, .. }) => serves(key),
        Late::Request(_) => false,
    })
}

/// Whether the engine has a block of a machine that its files do not have, while the machine does nothing about it.
pub(crate) fn is_orphaned(world: &World) -> bool {
    world.machines.iter().any(|machine| {
        let view = &machine.view;
        let is_mine = |id: &BlockId| {
            world.owner(id).is_some_and(|owner| owner.node == view.name && owner.incarnation == view.incarnation)
        };
        machine.process == Process::Idle && is_mine(&block(1)) && machine.held().is_empty()
    })
}

/// Whether a machine that was fenced has containers under a new incarnation.
pub(crate) fn returned(world: &World) -> bool {
    world.machines.iter().any(|machine| {
        let is_new = !machine.learned.is_empty() && !machine.learned.contains(&machine.view.incarnation);
        is_new && machine.view.state == NodeState::Serving && !machine.containers.is_empty()
    })
}

/// Whether containers of two incarnations of one name run, on machines of their own.
pub(crate) fn two_incarnations(world: &World) -> bool {
    world.machines.iter().all(|machine| !machine.view.blocks.is_empty())
}

/// Whether a machine undoes a claim.
pub(crate) fn undoes(world: &World) -> bool {
    let undoes =
        |machine: &Machine| matches!(&machine.process, Process::Executing(_, execution, _, _) if execution.undoes());
    world.machines.iter().any(undoes)
}

/// Whether an operator's program undoes a definition.
pub(crate) fn undoes_definition(world: &World) -> bool {
    world.defines.as_ref().is_some_and(Execution::undoes)
}
