//! Tests against the real kernel, each in namespaces of its own. They need root.

mod address;
mod batch;
mod bridge;
mod link;
mod namespace;
mod neighbour;
mod route;
mod rule;
mod scene;
mod socket;
mod upper;
mod veth;
mod vlan;
mod watch;
