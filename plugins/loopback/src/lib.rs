//! The container's own loopback interface, up.
//!
//! The interface is always `lo`, whatever `CNI_IFNAME` says; the kernel gives it `127.0.0.1/8` and `::1/128`. There are no keys.
//! ADD reports it, or passes on the result of the plugins before it in the chain; DEL takes `lo` down once nothing else in
//! the container is up.
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
    fn add(&self, add: &Add, journal: &mut Journal) -> Result<CniResult> {
        let plan = Plan::of(Loopback);
        let context = ApplyContext::from(add);
        preflight(&plan, &[loopback::KIND], &context)?;
        let mut made = apply(&plan, &context, journal)?;
        if let Some(prev) = &add.prev {
            return Ok(prev.clone());
        }
        made.interfaces.iter_mut().for_each(|lo| lo.mac = "00:00:00:00:00:00".into());
        let ip = |address| Ip { interface: Some(0), ..Ip::new(address) };
        let ips = loopback::first_addresses(&context)?.into_iter().map(ip).collect();
        Ok(CniResult { interfaces: made.interfaces, ips, ..CniResult::default() })
    }

    fn del(del: &Del) -> Result<()> {
        release(&[loopback::KIND], &ReleaseContext::from(del)).finish()
    }

    fn check(&self, check: &Check) -> Result<()> {
        verify(&[&Plan::of(Loopback)], &ApplyContext::from(check))
    }

    fn plan(&self, _preview: &DryRun) -> Result<DryRunReport> {
        Ok(DryRunReport { steps: Plan::of(Loopback).lines(), ..DryRunReport::default() })
    }
}
