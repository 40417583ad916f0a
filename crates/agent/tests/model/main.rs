//! The protocol as a model: every order of what nodes, the engine, an operator and the network can do, within limits.
//!
//! The steps of a node are those that the agent computes, and the transactions are those that it sends: `cnikit_agent::protocol`.

mod machine;
mod planted;
mod renumber;
mod scenes;
mod world;
