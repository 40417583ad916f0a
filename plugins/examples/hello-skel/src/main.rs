//! Tells containers which name servers to use: it adds `nameservers` to the result of the plugins before it.

use std::net::IpAddr;
use std::process::ExitCode;

use cnikit_skel::{Add, Del, Journal, Plugin, Result};
use cnikit_types::CniResult;

/// The keys of the configuration.
#[derive(serde::Deserialize)]
struct HelloSkel {
    nameservers: Vec<IpAddr>,
}

impl Plugin for HelloSkel {
    fn add(&self, add: &Add, _: &mut Journal) -> Result<CniResult> {
        let mut result = add.prev.clone().unwrap_or_default();
        result.dns.nameservers.extend(self.nameservers.iter().map(IpAddr::to_string));
        Ok(result)
    }

    fn del(_: &Del) -> Result<()> {
        Ok(())
    }
}

fn main() -> ExitCode {
    cnikit_skel::main::<HelloSkel>()
}
