//! The protocol as a model: every order of what nodes, the engine, an operator and the network can do, within limits.
//!
//! The steps of a node are those that the agent computes, and the transactions are those that it sends: `cnikit_pool_protocol`.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]
#![expect(clippy::print_stderr, reason = "how much was explored")]

mod engine;
mod machine;
mod planted;
mod renumber;
mod scenes;
mod world;
