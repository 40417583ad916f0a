//! Limits of the rate at which a container's interface receives and sends, by queueing disciplines on the host's side of it.
//!
//! What the container receives is sent by the host end, so its limit is a `tbf` at the root of that. What the container sends is
//! received by the host end, where nothing is queued: it is redirected to an `ifb`, a link whose root is the second `tbf`.
//!
//! Where only the traffic of some subnets counts, the root of the host end is an `htb`, whose filters say what its only class
//! limits; and the filters of what the host end receives redirect only what counts.

mod counted_traffic;
pub mod egress_limit;
mod host_end;
mod ifb_links;
pub mod ingress_limit;
mod rate_limit;
mod root;

pub use counted_traffic::CountedTraffic;
pub use rate_limit::{RateLimit, USUAL_LATENCY};
