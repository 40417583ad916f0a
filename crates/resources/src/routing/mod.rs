//! Routing in the container: rules, tables other than the main one, and VRFs.

pub(crate) mod changes;
pub(crate) mod route_index;
pub mod source_routing;
mod source_state;
mod source_tables;
pub(crate) mod stored_route;
pub(crate) mod tables;
pub mod vrf;
