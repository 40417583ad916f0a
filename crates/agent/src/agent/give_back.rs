//! Giving blocks back on a node where no agent runs.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cnikit_pool::NodeFiles;
use cnikit_process::Deadline;
use tokio::runtime::Handle;

use super::files::LOCK;
use super::{AgentFailure, AgentSettings, PoolAgent};
use crate::engine::Engine;
use crate::log::log;
use crate::metrics::AgentMetrics;

/// How often the files are read.
const TICK: Duration = Duration::from_secs(5);
/// How long a claim may take. If the lock is not free then, an agent has it, which gives back by itself.
const CLAIM: Duration = Duration::from_secs(30);
/// How long to wait after the engine did not answer, and how long it may be out of reach. The next release of an address starts
/// another process.
const PAUSE: Duration = Duration::from_secs(30);
const OUTAGE: Duration = Duration::from_mins(10);

/// Gives back the blocks that have been without use for the grace. With `waits` also those that have not been yet, until there is
/// none; one process of a node does that. What was seen of their use is written down: if the process is killed, the next one goes
/// on.
///
/// # Errors
/// The engine does not answer, the files cannot be read or written, or this node may not claim.
pub fn give_back<E: Engine>(
    runtime: &Handle,
    settings: &AgentSettings,
    engine: &Arc<E>,
    waits: bool,
) -> Result<(), AgentFailure> {
    loop {
        let Some(lock) = settings.files.lock_give_back()? else { return Ok(()) };
        let had_containers = waits && has_used_blocks(&settings.files)?;
        let done = give_back_all(runtime, settings, engine, waits);
        drop(lock);
        // A plugin that released an address and found the lock taken relies on this process, also after its last look.
        let is_relied_on = match &done {
            Ok(is_done) => *is_done && waits && has_unused_blocks(&settings.files)?,
            // A fenced node with containers is refused. The DEL of the last one may have come meanwhile.
            Err(AgentFailure::Refused { .. }) => had_containers && !has_used_blocks(&settings.files)?,
            Err(_) => false,
        };
        if !is_relied_on {
            return done.map(drop);
        }
    }
}

fn has_used_blocks(files: &NodeFiles) -> Result<bool, AgentFailure> {
    Ok(files.has_used_blocks(LOCK, |warning| log("reservations", warning))?)
}

fn has_unused_blocks(files: &NodeFiles) -> Result<bool, AgentFailure> {
    Ok(files.has_unused_blocks(LOCK, |warning| log("reservations", warning))?)
}

/// Returns whether that is done, or an agent does it.
fn give_back_all<E: Engine>(
    runtime: &Handle,
    settings: &AgentSettings,
    engine: &Arc<E>,
    waits: bool,
) -> Result<bool, AgentFailure> {
    let mut opened: Option<PoolAgent<E>> = None;
    let mut has_asked = false;
    let mut failing: Option<Instant> = None;
    while has_unused_blocks(&settings.files)? {
        let Some(lock) = settings.files.lock_agent(CLAIM)? else { return Ok(false) };
        let agent = match &mut opened {
            Some(agent) => agent,
            none => none.insert(PoolAgent::going_on(settings, runtime, engine)?),
        };
        let mut pause = TICK.min(settings.grace.max(Duration::from_secs(1)));
        // The engine knows which addresses are those of names, and which pools drain.
        if !has_asked || agent.has_idle_blocks()? {
            match agent.reconcile(&BTreeSet::new()) {
                Ok(()) => {
                    agent.standing()?;
                    has_asked = true;
                    failing = None;
                }
                Err(AgentFailure::Engine(error)) => {
                    if !waits || failing.get_or_insert_with(Instant::now).elapsed() >= OUTAGE {
                        return Err(error.into());
                    }
                    log("engine", error);
                    pause = PAUSE;
                }
                Err(error) => return Err(error),
            }
        }
        agent.files.write_unused(&settings.boot)?;
        drop(lock);
        if !waits {
            return Ok(true);
        }
        Deadline::never().pause(pause);
    }
    Ok(true)
}

impl<E: Engine> PoolAgent<E> {
    /// One that goes on with what a process before has written down.
    fn going_on(settings: &AgentSettings, runtime: &Handle, engine: &Arc<E>) -> Result<PoolAgent<E>, AgentFailure> {
        let metrics = Arc::new(AgentMetrics::default());
        let mut agent = PoolAgent::new(settings.clone(), Arc::clone(engine), runtime.clone(), metrics)?;
        agent.files.read_unused(&settings.boot);
        Ok(agent)
    }
}
