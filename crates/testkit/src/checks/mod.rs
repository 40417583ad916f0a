//! The checks of a plugin: a whole life, floods, faults, kills, error numbers, crashes, and upstream beside it.

pub mod crash;
pub mod errno;
pub mod fault;
pub mod flood;
pub mod kill;
pub mod life;
pub mod mixed;
pub mod soak;
