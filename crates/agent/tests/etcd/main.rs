//! Agents and a real etcd of three members, in network namespaces of their own.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod certificates;
mod claims;
mod cluster;
mod definitions;
mod end_to_end;
mod figures;
mod members;
mod nemesis;
mod node;
mod operations;
mod plugin;
mod program;
mod proxy;
mod restore;
mod running;
mod selections;
mod sticky;
mod without_agent;
