//! The checks of a plugin: ADD to DEL, floods, faults, kills, failing system calls, power cuts, and mixed implementations.

pub mod crash;
pub mod errno;
pub mod fault;
pub mod flood;
pub mod kill;
pub mod life;
pub mod mixed;
pub mod protocol;
pub mod soak;
