//! Rules of iptables as values, changed by its own programs.
//!
//! iptables has no stable interface but its programs, and their price is the fork. So a table is read once
//! (`iptables-save`), the difference is computed here, and all of it is written at once (`iptables-restore --noflush`),
//! or nothing is where nothing differs. What is written holds our own differences alone: a rule of somebody else's is
//! never written back, so that it need not be understood, and nobody's counters are lost.
//!
//! In `nf_tables` the kernel tells which chains there are and how long they are. So of a table that is mostly somebody else's
//! the program is asked for our chains alone, and what is only removed, the kernel removes without it.
//!
//! The kernel may have two halves of iptables side by side, that in `nf_tables` and the legacy one, which know nothing of each
//! other. [`Programs::find`] gives what the administrator chose; [`Programs::reaching`] those that reach what stands.

mod changes;
mod error;
mod installed_chains;
mod programs;
mod read_scope;
mod rule;
mod ruleset;
mod standing;
mod table;

pub use changes::Changes;
pub use error::Error;
pub use installed_chains::{Chains, InstalledChains};
pub use programs::{Changing, IpVersion, Programs};
pub use read_scope::ReadScope;
pub use rule::IptablesRule;
pub use ruleset::{Opening, Ruleset};
pub use table::Table;

/// What the functions of this module return.
pub type Result<T> = std::result::Result<T, Error>;
