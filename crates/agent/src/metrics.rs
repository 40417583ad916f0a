//! Figures for Prometheus, in its text format.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use cnikit_pool::{BlockState, NodeState, PoolFamily, PoolUsage};
use cnikit_pool_protocol::{HeldBlock, Outcome, Step};

/// The figures of one agent.
#[derive(Debug, Default)]
pub struct AgentMetrics {
    claims: AtomicU64,
    claims_taken: AtomicU64,
    releases: AtomicU64,
    adoptions: AtomicU64,
    requests: AtomicU64,
    requests_failed: AtomicU64,
    engine_calls: AtomicU64,
    engine_failures: AtomicU64,
    node: Mutex<NodeFigures>,
}

#[derive(Debug, Default)]
struct NodeFigures {
    blocks: BTreeMap<(String, &'static str), u64>,
    is_fenced: bool,
    may_claim: bool,
}

fn state_name(state: BlockState) -> &'static str {
    match state {
        BlockState::Unconfirmed => "unconfirmed",
        BlockState::Active => "active",
        BlockState::Sealed => "sealed",
        BlockState::Lost => "lost",
    }
}

impl AgentMetrics {
    pub(crate) fn count_engine(&self, is_answered: bool) {
        self.engine_calls.fetch_add(1, Ordering::Relaxed);
        self.engine_failures.fetch_add(u64::from(!is_answered), Ordering::Relaxed);
    }

    pub(crate) fn count_request(&self, is_served: bool) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.requests_failed.fetch_add(u64::from(!is_served), Ordering::Relaxed);
    }

    pub(crate) fn count_step(&self, step: &Step, outcome: &Outcome) {
        let is_committed = matches!(outcome, Outcome::Committed(_));
        let (counter, count) = match step {
            Step::Claim { ids, .. } if is_committed => (&self.claims, ids.len()),
            Step::Claim { .. } => (&self.claims_taken, 1),
            Step::Release { .. } if is_committed => (&self.releases, 1),
            Step::Renew { .. } if is_committed => (&self.adoptions, 1),
            _ => return,
        };
        counter.fetch_add(count as u64, Ordering::Relaxed);
    }

    pub(crate) fn set_node(&self, held: &[HeldBlock], state: NodeState, may_claim: bool) {
        let mut blocks = BTreeMap::new();
        for block in held {
            *blocks.entry((block.id.pool.clone(), state_name(block.state))).or_default() += 1;
        }
        let figures = NodeFigures { blocks, is_fenced: state == NodeState::Fenced, may_claim };
        *self.node.lock().unwrap_or_else(PoisonError::into_inner) = figures;
    }

    /// All figures, except those of `usage_text`.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let counters = [
            ("claimed_blocks", "Blocks and static addresses that were claimed.", &self.claims),
            (
                "refused_claims",
                "Claims that the engine refused, mostly because another node was first.",
                &self.claims_taken,
            ),
            ("released_blocks", "Blocks that were given back.", &self.releases),
            (
                "renewed_blocks",
                "Blocks that were written anew: adopted after a lost answer, or unsealed.",
                &self.adoptions,
            ),
            ("requests", "Requests of plugins.", &self.requests),
            ("failed_requests", "Requests of plugins that were answered with an error.", &self.requests_failed),
            ("engine_calls", "Surveys and transactions that the engine was asked for.", &self.engine_calls),
            ("engine_failures", "Those that it did not answer.", &self.engine_failures),
        ];
        for (name, help, counter) in counters {
            let value = counter.load(Ordering::Relaxed);
            // Writing to a String cannot fail.
            let _ = write!(
                text,
                "# HELP cnikit_agent_{name}_total {help}\n# TYPE cnikit_agent_{name}_total counter\ncnikit_agent_{name}_total {value}\n"
            );
        }
        let node = self.node.lock().unwrap_or_else(PoisonError::into_inner);
        text.push_str(
            "# HELP cnikit_agent_blocks Blocks in the files of this node.\n# TYPE cnikit_agent_blocks gauge\n",
        );
        for ((pool, state), count) in &node.blocks {
            let _ = writeln!(text, "cnikit_agent_blocks{{pool=\"{pool}\",state=\"{state}\"}} {count}");
        }
        for (name, help, is_true) in [
            ("fenced", "Whether this node was fenced.", node.is_fenced),
            ("may_claim", "Whether this node has a session and is registered.", node.may_claim),
        ] {
            let value = u8::from(is_true);
            let _ = write!(
                text,
                "# HELP cnikit_agent_{name} {help}\n# TYPE cnikit_agent_{name} gauge\ncnikit_agent_{name} {value}\n"
            );
        }
        text
    }
}

/// The figures of the addresses of a node's blocks.
pub(crate) fn usage_text(usages: &[PoolUsage]) -> String {
    let mut text = String::new();
    let of_pool = [
        (
            "free_addresses",
            "Addresses of active blocks that are not reserved.",
            (|usage| usage.free) as fn(&PoolUsage) -> u64,
        ),
        ("reserved_addresses", "Reserved addresses of the blocks of this node.", |usage| usage.used),
    ];
    for (name, help, value) in of_pool {
        // Writing to a String cannot fail.
        let _ = write!(text, "# HELP cnikit_agent_{name} {help}\n# TYPE cnikit_agent_{name} gauge\n");
        for usage in usages {
            let family = match usage.family {
                Some(PoolFamily::V4) => "v4",
                Some(PoolFamily::V6) => "v6",
                None => continue,
            };
            let pool = &usage.pool;
            let _ = writeln!(text, "cnikit_agent_{name}{{pool=\"{pool}\",family=\"{family}\"}} {}", value(usage));
        }
    }
    text
}
