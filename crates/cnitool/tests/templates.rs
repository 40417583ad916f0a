//! The libraries that `cnitool new plugin` writes are compiled here too, with their tests, so that a change of an API that they use
//! is seen at once. `scripts/supply-chain` builds and runs the whole crates.

#[rustfmt::skip]
#[path = "../templates/chained/lib.rs.in"]
pub mod chained;
#[rustfmt::skip]
#[path = "../templates/delegating/lib.rs.in"]
pub mod delegating;
#[rustfmt::skip]
#[path = "../templates/interface/lib.rs.in"]
pub mod interface;
#[rustfmt::skip]
#[path = "../templates/ipam/lib.rs.in"]
pub mod ipam;
#[rustfmt::skip]
#[path = "../templates/plain/lib.rs.in"]
pub mod plain;
