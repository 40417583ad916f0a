//! Sets the container's loopback interface up.
//!
//! The interface is always `lo`, whatever `CNI_IFNAME` is; the kernel assigns `127.0.0.1/8` and `::1/128` to it. There are no keys.
//! ADD reports `lo`, or passes on the result of the plugins before it in the chain. DEL sets `lo` down once no other link of the
//! container is up.
#![forbid(unsafe_code)]

use cnikit::plan::{ApplyContext, Plan, ReleaseContext, apply, preflight, release, verify};
use cnikit::resources::loopback::{self, Loopback};
use cnikit::types::{CniResult, Ip};
use cnikit::{Add, Check, Del, DryRun, DryRunReport, Journal, Plugin, Result};
use serde::Deserialize;

/// loopback's configuration: it has no keys.
#[derive(Debug, Deserialize)]
pub struct LoopbackPlugin {}

impl Plugin for LoopbackPlugin {
    const EXAMPLE: &'static str = "";

    fn add(&self, add: &Add, journal: &mut Journal) -> Result<CniResult> {
        let plan = Plan::of(Loopback);
        let context = ApplyContext::from(add);
        preflight(&plan, &[loopback::KIND], &context)?;
        let mut made = apply(&plan, &context, journal)?;
        if let Some(prev) = &add.prev {
            return Ok(prev.clone());
        }
        for lo in &mut made.interfaces {
            lo.mac = "00:00:00:00:00:00".into();
        }
        let mut ips = Vec::new();
        for address in loopback::first_addresses(&context)? {
            ips.push(Ip { interface: Some(0), ..Ip::new(address) });
        }
        Ok(CniResult { interfaces: made.interfaces, ips, ..CniResult::default() })
    }

    fn del(del: &Del) -> Result<()> {
        release(&[loopback::KIND], &ReleaseContext::from(del)).finish()
    }

    fn check(&self, check: &Check) -> Result<()> {
        verify(&[&Plan::of(Loopback)], &ApplyContext::from(check))
    }

    fn plan(&self, _dry_run: &DryRun) -> Result<DryRunReport> {
        Ok(DryRunReport { steps: Plan::of(Loopback).lines(), ..DryRunReport::default() })
    }
}
