//! The agent of a node: it compares the files with the engine, claims, and gives back.

mod claim;
mod files;
mod give_back;
mod sticky;
mod usage;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cnikit_pool::{
    AgentReply, AgentRequest, BlockState, Error, KeyOfEngine, LocalNode, LocalPools, NodeFiles, NodeState,
    PoolDefinition, PoolFamily, check_pool_name,
};
use cnikit_pool_protocol::{
    BlockId, FoundBlock, HeldBlock, NodeView, Outcome, Standing, Step, Survey, Transaction, left_to_name, plan,
    settled, transaction_of,
};
use tokio::runtime::Handle;

use crate::engine::{Engine, EngineError, Listing, Reach};
use crate::log::{log, log_step};
use crate::metrics::AgentMetrics;

pub(crate) use claim::{LOOKED_AT, owner_of};
use files::AgentFiles;
pub use give_back::give_back;
use usage::ReportedUsage;

/// How often the files and the engine are compared at most until they agree.
const ROUNDS: usize = 50;
/// So many characters at most are stored of the pool of a namespace: one more than a name has.
const SELECTED: usize = 64;
/// Of so many blocks at most it is noted that the engine may have more of them than the files.
const MOST_DOUBTFUL: usize = 1_000;

/// What an agent is configured with.
#[derive(Clone, Debug)]
pub struct AgentSettings {
    /// The node's name.
    pub node: String,
    /// The boot id.
    pub boot: String,
    /// The files.
    pub files: NodeFiles,
    /// How long a block has to be without use before it is given back.
    pub grace: Duration,
}

/// Why something was not done.
#[derive(Clone, Debug)]
pub enum AgentFailure {
    /// The engine did not answer.
    Engine(EngineError),
    /// The files could not be read or written.
    Files(Error),
    /// The node may not claim, or the pool does not allow it.
    Refused {
        /// The code for the plugin.
        code: u32,
        /// Why.
        text: String,
        /// What to do about it.
        hint: Option<String>,
    },
}

impl fmt::Display for AgentFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AgentFailure::Engine(error) => error.fmt(f),
            AgentFailure::Files(error) => error.fmt(f),
            AgentFailure::Refused { text, .. } => f.write_str(text),
        }
    }
}

impl std::error::Error for AgentFailure {}

impl From<EngineError> for AgentFailure {
    fn from(error: EngineError) -> AgentFailure {
        AgentFailure::Engine(error)
    }
}

impl From<Error> for AgentFailure {
    fn from(error: Error) -> AgentFailure {
        AgentFailure::Files(error)
    }
}

/// An agent. Its calls wait; what has to go on meanwhile is a task of the runtime.
#[derive(Debug)]
pub struct PoolAgent<E> {
    settings: AgentSettings,
    engine: Arc<E>,
    runtime: Handle,
    files: AgentFiles,
    /// The revision of the session that this process has opened.
    session: i64,
    /// What the last survey said that a claim needs.
    standing: Option<Standing>,
    /// Why there is none.
    hindrance: Option<String>,
    /// Whether the next survey reads all blocks. The first one of a process does: the process before may have ended between a claim
    /// and the files.
    reads_all: bool,
    /// Blocks of which the engine may have more than the files, because a claim was not answered or not written down.
    doubtful: BTreeSet<BlockId>,
    metrics: Arc<AgentMetrics>,
    /// What was written last into the engine of the use of the blocks.
    reported: ReportedUsage,
}

impl<E: Engine> PoolAgent<E> {
    /// An agent that has done nothing yet. Only one process of a node may have one: the caller holds the lock of the agents.
    ///
    /// # Errors
    /// The files cannot be read, or are those of another node.
    pub fn new(
        settings: AgentSettings,
        engine: Arc<E>,
        runtime: Handle,
        metrics: Arc<AgentMetrics>,
    ) -> Result<PoolAgent<E>, Error> {
        let files = AgentFiles::open(settings.files.clone(), &settings.node)?;
        Ok(PoolAgent {
            settings,
            engine,
            runtime,
            files,
            session: 0,
            standing: None,
            hindrance: None,
            reads_all: true,
            doubtful: BTreeSet::new(),
            metrics,
            reported: ReportedUsage::default(),
        })
    }

    /// Has the next [`PoolAgent::reconcile`] look for blocks of this node that it does not know of, among all blocks.
    pub fn read_all_next(&mut self) {
        self.reads_all = true;
    }

    /// Does what a plugin asks for, and returns the reply.
    ///
    /// # Errors
    /// As [`PoolAgent::serve`] and [`PoolAgent::serve_sticky`].
    pub fn reply(&mut self, request: &AgentRequest) -> Result<AgentReply, AgentFailure> {
        match request {
            AgentRequest::Want(want) => self.serve(want).map(|()| AgentReply::Done(true)),
            AgentRequest::Sticky(want) => self.serve_sticky(want).map(AgentReply::Addresses),
            _ => Err(AgentFailure::Refused {
                code: 0,
                text: "this agent does not know the request".to_owned(),
                hint: Some("the agent is older than the plugin: install the same release of both".to_owned()),
            }),
        }
    }

    /// Has the files say what the engine says: opens the session, registers the incarnation, confirms, adopts, gives back. Blocks
    /// that are sealed serve again if more addresses of their network and pool are wanted.
    ///
    /// It asks for the blocks that the files have, or for all blocks after [`PoolAgent::read_all_next`] and in a new process.
    ///
    /// # Errors
    /// The engine does not answer, or a file cannot be read or written. What was done is done; the next call goes on.
    pub fn reconcile(&mut self, wanted: &BTreeSet<(String, String, PoolFamily)>) -> Result<(), AgentFailure> {
        self.standing = None;
        let mut is_fresh = false;
        for _ in 0..ROUNDS {
            if !is_fresh {
                self.refresh_pools()?;
            }
            let mut view = self.view()?;
            view.wanted.clone_from(wanted);
            if view.recorded_boot != view.boot {
                is_fresh = self.execute_all(&view, plan(&view, None))?;
                continue;
            }
            let survey = self.survey(&view)?;
            let steps = plan(&view, Some(&survey));
            if steps.is_empty() || steps == [Step::Refused] {
                self.agreed(&view, &survey);
                self.reads_all = false;
                return Ok(());
            }
            // A refused step may be one of another definition of its pool.
            is_fresh = self.execute_all(&view, steps)?;
        }
        Err(AgentFailure::Refused {
            code: 0,
            text: "the engine changes faster than the files can follow".into(),
            hint: None,
        })
    }

    /// What the node may do, after files and engine agree.
    fn agreed(&mut self, view: &NodeView, survey: &Survey) {
        self.standing = if view.state == NodeState::Serving { survey.standing(view) } else { None };
        let hindrance = match (self.standing, survey.session_record()) {
            (Some(_), _) => None,
            _ if view.state == NodeState::Fenced => {
                let using = view.blocks.iter().filter(|block| block.in_use).count();
                Some(format!("node {} was fenced, and {using} of its blocks still have reserved addresses", view.name))
            }
            (None, Some(session)) => {
                Some(format!("another machine, of boot {}, has the session of node {}", session.boot, view.name))
            }
            (None, None) => Some("the node has no session".to_owned()),
        };
        if self.hindrance != hindrance {
            log("node", hindrance.as_deref().unwrap_or("may claim"));
        }
        self.metrics.set_node(&view.blocks, view.state, hindrance.is_none());
        self.hindrance = hindrance;
    }

    /// Whether a block is idle, and the engine is to be asked because of that. Reads the files only.
    ///
    /// # Errors
    /// The files cannot be read.
    pub fn has_idle_blocks(&mut self) -> Result<bool, Error> {
        let blocks = self.files.blocks(self.settings.grace)?;
        let is_closed =
            |block: &HeldBlock| block.state == BlockState::Sealed || block.state == BlockState::Lost && !block.in_use;
        let idle = blocks.iter().filter(|block| block.state == BlockState::Active && block.idle);
        let mut idle_of: BTreeMap<(&str, &str, PoolFamily), usize> = BTreeMap::new();
        for block in idle {
            *idle_of.entry((&block.network, &block.id.pool, block.id.family())).or_default() += 1;
        }
        let active = |(network, pool, family): &(&str, &str, PoolFamily)| {
            let of_these = |block: &&HeldBlock| {
                block.state == BlockState::Active
                    && (block.network.as_str(), block.id.pool.as_str(), block.id.family()) == (*network, *pool, *family)
            };
            blocks.iter().filter(of_these).count()
        };
        let drains = |block: &HeldBlock| block.idle && (block.is_closing || block.id.is_static);
        let can_give = idle_of.keys().any(|key| active(key) > 1)
            || blocks.iter().any(|block| block.state == BlockState::Active && drains(block));
        let fenced_and_empty = self.files.node()?.state == NodeState::Fenced;
        Ok(can_give || fenced_and_empty || blocks.iter().any(is_closed))
    }

    /// Whether the node had a session and was registered when files and engine agreed last.
    pub fn may_claim(&self) -> bool {
        self.standing.is_some()
    }

    fn view(&mut self) -> Result<NodeView, Error> {
        let AgentSettings { node, boot, grace, .. } = &self.settings;
        self.files.view(node, boot, self.session, *grace)
    }

    fn survey(&mut self, view: &NodeView) -> Result<Survey, EngineError> {
        let held: BTreeSet<BlockId> = view.blocks.iter().map(|block| block.id.clone()).collect();
        self.doubtful.retain(|id| !held.contains(id));
        if self.doubtful.len() > MOST_DOUBTFUL {
            self.doubtful.clear();
            self.reads_all = true;
        }
        // A fenced incarnation gives everything back, also what it does not know of.
        let reach = if self.reads_all || view.state == NodeState::Fenced { Reach::All } else { Reach::Given };
        let given: BTreeSet<BlockId> = held.union(&self.doubtful).cloned().collect();
        let surveyed = self.runtime.block_on(self.engine.survey(&view.name, view.incarnation, &given, reach));
        self.metrics.count_engine(surveyed.is_ok());
        let mut survey = surveyed?;
        // Whoever can write to the engine is not trusted with addresses that no pool has.
        survey.set_strays_aside(&held, |id| self.files.is_of_pool(id));
        let is_name = |found: &FoundBlock| left_to_name(&found.stored).is_some();
        let names = survey.blocks.iter().filter(|(_, found)| is_name(found)).map(|(id, _)| id.clone());
        self.files.set_names(names.collect());
        Ok(survey)
    }

    /// Executes steps. Returns whether the engine refused none.
    fn execute_all(&mut self, view: &NodeView, steps: Vec<Step>) -> Result<bool, AgentFailure> {
        let mut is_done = true;
        for step in steps {
            is_done &= !matches!(self.execute(view, &step)?, Some(Outcome::Refused(_)));
        }
        Ok(is_done)
    }

    /// Executes a step; a refused one changes nothing.
    fn execute(&mut self, view: &NodeView, step: &Step) -> Result<Option<Outcome>, AgentFailure> {
        log_step(format_args!("{step:?}"));
        let Some(transaction) = transaction_of(view, step)? else {
            self.write(view, step)?;
            return Ok(None);
        };
        let committed = self.runtime.block_on(self.engine.commit(&transaction));
        self.metrics.count_engine(committed.is_ok());
        if committed.as_ref().is_err_and(|error| error.is_open) {
            self.doubt(&transaction);
        }
        let outcome = committed?;
        if let (Step::OpenSession { .. }, Outcome::Committed(revisions)) = (step, &outcome) {
            self.session = revisions.first().copied().unwrap_or_default();
        }
        for change in settled(step, &outcome) {
            if let Err(error) = self.files.apply(&change) {
                // The engine has what the files have not: they are compared before the next claim.
                self.standing = None;
                self.doubt(&transaction);
                return Err(error.into());
            }
        }
        self.metrics.count_step(step, &outcome);
        Ok(Some(outcome))
    }

    /// Notes the blocks that a transaction writes.
    fn doubt(&mut self, transaction: &Transaction) {
        self.doubtful.extend(transaction.writes.iter().filter_map(|write| BlockId::of_key(write.key())));
    }

    /// Executes a step that changes the files only.
    fn write(&mut self, view: &NodeView, step: &Step) -> Result<(), Error> {
        let node = LocalNode {
            node: view.name.clone(),
            incarnation: view.incarnation,
            boot: view.recorded_boot.clone(),
            state: view.state,
        };
        match step {
            Step::RecordBoot => self.files.write_node(&LocalNode { boot: view.boot.clone(), ..node }),
            Step::RecordFence => {
                log("node", format_args!("incarnation {} was fenced: it serves nothing any more", view.incarnation));
                self.files.write_node(&LocalNode { state: NodeState::Fenced, ..node })
            }
            Step::NewIncarnation => {
                let incarnation = cnikit_pool::Incarnation::draw()?;
                log("node", format_args!("its containers are gone: incarnation {incarnation} begins"));
                self.files.write_node(&LocalNode { incarnation, state: NodeState::Serving, ..node })
            }
            Step::Change(change) => self.files.apply(change),
            _ => Ok(()),
        }
    }

    /// Copies the definitions of the pools and the selections into the files.
    fn refresh_pools(&mut self) -> Result<(), AgentFailure> {
        let mut pools = LocalPools::default();
        let mut revisions = BTreeMap::new();
        for (key, stored) in self.runtime.block_on(self.engine.list(&Listing::Pools))? {
            let KeyOfEngine::Pool(name) = key else { continue };
            match PoolDefinition::parse(&stored.value) {
                Ok(pool) if pool.name() == name => {
                    pools.pools.push(pool.config().clone());
                    if stored.revision > 0 {
                        revisions.insert(name, stored.revision);
                    }
                }
                Ok(pool) => log("pools", format_args!("the pool {} is under the name {name}: ignored", pool.name())),
                Err(error) => log("pools", format_args!("the pool {name} is ignored: {error}")),
            }
        }
        for (key, stored) in self.runtime.block_on(self.engine.list(&Listing::Selections))? {
            let KeyOfEngine::Select(namespace) = key else { continue };
            // What is no pool's name stays none when it is cut off. Pods of the namespace then get no address, instead of one of
            // another pool; so they do if there is no such pool.
            let pool: String = String::from_utf8_lossy(&stored.value).chars().take(SELECTED).collect();
            if check_pool_name(&pool).is_err() {
                log("pools", format_args!("namespace {namespace} has {pool:?}, which is not the name of a pool"));
            }
            pools.select.insert(namespace, pool);
        }
        self.files.write_pools(&pools, revisions)?;
        Ok(())
    }
}
