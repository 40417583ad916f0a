//! Rules of iptables as values, changed by its own programs.
//!
//! Parts, in reading order:
//!
//! - [`IptablesRule`] and [`Table`]: rules as values, and a table as `iptables-save` prints it.
//! - [`Changes`]: what is to be different, as `iptables-restore --noflush` takes it.
//! - [`Programs`]: the programs of one variant for one version of IP, found and run.
//! - [`Ruleset`]: one table, read and changed.
//! - [`InstalledChains`]: which chains exist, asked of the kernel instead of a program.
//! - [`rules_in_nf_tables`]: rules that the programs wrote, read from the kernel.
//!
//! Design decision: iptables has no stable interface except its programs, and starting one costs milliseconds. So a table is read
//! once (`iptables-save`), the difference is computed here, and all of it is written at once (`iptables-restore --noflush`), or
//! nothing if nothing differs. Rules of other programs are never written back, so they need not be understood and keep their
//! counters. Where the programs are of the variant in `nf_tables`, the kernel is asked which chains there are, the program lists
//! ours alone, and what is only removed is removed without a program.

mod changes;
mod error;
mod installed_chains;
mod kernel_table;
mod programs;
mod read_scope;
mod rule;
mod ruleset;
mod table;
mod variant;
mod xtables_compat;

pub use changes::Changes;
pub use error::Error;
pub use installed_chains::{Chains, InstalledChains};
pub use programs::{Changing, Programs};
pub use read_scope::ReadScope;
pub use rule::IptablesRule;
pub use ruleset::{Opening, Ruleset};
pub use table::Table;
pub use variant::IpVersion;
pub use xtables_compat::{iptables_rule, rules_in_nf_tables};

/// What the functions of this crate return.
pub type Result<T> = std::result::Result<T, Error>;
