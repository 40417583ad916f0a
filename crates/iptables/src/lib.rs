//! Rules of iptables as values, changed by its own programs.
//!
//! Parts, in reading order:
//!
//! - [`IptablesRule`] and [`Table`]: rules as values, and a table as `iptables-save` prints it.
//! - [`Changes`]: the difference between two states of a table, as `iptables-restore --noflush` reads it.
//! - [`Programs`]: the programs of one variant for one version of IP, found and run.
//! - [`Ruleset`]: one table, read and changed.
//! - [`InstalledChains`]: which chains exist, asked of the kernel instead of a program.
//! - [`rules_in_nf_tables`]: rules that the programs wrote, read from the kernel.
//!
//! Read a table, and compute the changes after which a chain accepts packets to a port:
//!
//! ```
//! use cnikit_iptables::{Changes, IptablesRule, Table};
//!
//! let output = "*filter\n:INPUT ACCEPT [0:0]\n:WEB - [0:0]\n-A INPUT -j WEB\nCOMMIT\n";
//! let table = Table::read(output, "filter", "WEB").unwrap();
//! let accept = IptablesRule::any().destination_port("tcp", 443).jump("ACCEPT");
//!
//! let mut changes = Changes::default();
//! if !table.has_chain("WEB") {
//!     changes.new_chain("WEB");
//! }
//! if !table.rules("WEB").any(|rule| *rule == accept) {
//!     changes.append("WEB", &accept);
//! }
//! assert_eq!(changes.to_string(), "-A WEB -p tcp -m tcp --dport 443 -j ACCEPT\n");
//! ```
//!
//! Design decision: iptables has no stable interface except its programs, and starting one takes milliseconds. So a table is read
//! once (`iptables-save`), the difference is computed here, and all of it is written at once (`iptables-restore --noflush`).
//! Nothing is written if nothing differs. Rules of other programs are never written back, so this crate need not parse them, and
//! they keep their counters. If the programs are of the variant in `nf_tables`, the kernel is asked which chains exist, the program
//! prints only chains of interest, and changes that only remove are made without a program.

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
pub use error::{Error, Result};
pub use installed_chains::{Chains, InstalledChains};
pub use programs::{Changing, Programs};
pub use read_scope::ReadScope;
pub use rule::IptablesRule;
pub use ruleset::{Opening, Ruleset};
pub use table::Table;
pub use variant::IpVersion;
pub use xtables_compat::{iptables_rule, rules_in_nf_tables};
