//! Agents and a real Kubernetes API server with its etcd, in a network namespace of their own.
//!
//! The tests of claims, definitions and selections are those of etcd.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

mod cluster;
mod names;
mod objects;
mod program;
mod sessions;
mod watched_nodes;

#[path = "../etcd/claims.rs"]
mod claims;
#[path = "../etcd/definitions.rs"]
mod definitions;
#[path = "../etcd/node.rs"]
mod node;
#[expect(dead_code, reason = "the tests with etcd call the plugin in more ways")]
#[path = "../etcd/plugin.rs"]
mod plugin;
#[path = "../etcd/proxy.rs"]
mod proxy;
#[path = "../etcd/running.rs"]
mod running;
#[path = "../etcd/selections.rs"]
mod selections;
