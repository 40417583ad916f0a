//! A plugin that changes nothing and passes on what came before it.
use cnikit::{Add, CniResult, Del, Journal, Plugin, Result};
#[derive(serde::Deserialize)]
struct Hello {}
#[rustfmt::skip]
impl Plugin for Hello {
    fn add(&self, add: &Add, _: &mut Journal) -> Result<CniResult> { Ok(add.prev.clone().unwrap_or_default()) }
    fn del(_: &Del) -> Result<()> { Ok(()) }
}
fn main() -> std::process::ExitCode {
    cnikit::main::<Hello>()
}
