//! The use of this node's blocks, which is written into the engine for people.

use std::time::{Duration, Instant, SystemTime};

use cnikit_pool::{KeyOfEngine, NetworkFiles, PoolUsage, UsageRecord, VALUE_LIMIT, pool_usage, write_record};
use cnikit_pool_protocol::{Guard, Transaction, WriteOperation};

use super::{AgentFailure, PoolAgent};
use crate::engine::Engine;
use crate::log::log;

/// What was written last, and when it was compared.
#[derive(Debug, Default)]
pub(crate) struct ReportedUsage {
    pools: Option<Vec<PoolUsage>>,
    at: Option<Instant>,
}

impl<E: Engine> PoolAgent<E> {
    /// Writes how much of the node's blocks is in use, if that has changed, and not more often than `every`.
    ///
    /// # Errors
    /// The engine does not answer, or the files cannot be read.
    pub fn report_usage(&mut self, every: Duration) -> Result<(), AgentFailure> {
        if self.reported.at.is_some_and(|at| at.elapsed() < every) {
            return Ok(());
        }
        let Some(standing) = self.standing else { return Ok(()) };
        let lock = Duration::from_secs(10);
        let files = self.settings.files.clone();
        let open = |name: &str| files.network(name, lock, |warning| log("reservations", warning));
        let reserved = |network: &NetworkFiles| Ok(network.lock()?.reserved()?);
        let pools = pool_usage(&files, reserved, open)?;
        self.reported.at = Some(Instant::now());
        if self.reported.pools.as_ref() == Some(&pools) {
            return Ok(());
        }
        let at = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
        let mut record = UsageRecord { at, pools: pools.clone() };
        while serde_json::to_vec(&record).is_ok_and(|text| text.len() > VALUE_LIMIT) {
            record.pools.pop();
        }
        let node = &self.settings.node;
        let transaction = Transaction {
            guards: vec![Guard::Unchanged(KeyOfEngine::Node(node.clone()), standing.node)],
            writes: vec![WriteOperation::Put(KeyOfEngine::Usage(node.clone()), write_record(&record)?)],
        };
        self.runtime.block_on(self.engine.commit(&transaction))?;
        self.reported.pools = Some(pools);
        Ok(())
    }
}
