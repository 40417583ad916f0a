//! The container's own loopback interface, up.
//!
//! The interface is always `lo`, whatever `CNI_IFNAME` says; the kernel gives it `127.0.0.1/8` and `::1/128`. There are no keys.
//! ADD reports it, or passes on the result of the plugins before it in the chain; DEL takes `lo` down once nothing else in
//! the container is up.
#![forbid(unsafe_code)]

use cnikit::plan::{Plan, Remains, Scene, apply, judge, release, verify};
use cnikit::resources::loopback::{self, Loopback as Lo};
use cnikit::types::{Answer, Ip};
use cnikit::{Add, Check, Del, Journal, Outline, Plugin, Preview, Result};
use serde::Deserialize;

/// loopback's configuration: it has no keys.
#[derive(Debug, Deserialize)]
pub struct Loopback {}

impl Plugin for Loopback {
    fn add(&self, add: &Add, journal: &mut Journal) -> Result<Answer> {
        let (plan, scene) = (Plan::of(Lo), Scene::from(add));
        judge(&plan, &[loopback::KIND], &scene)?;
        let mut made = apply(&plan, &scene, journal)?;
        if let Some(prev) = &add.prev {
            return Ok(prev.clone());
        }
        made.interfaces.iter_mut().for_each(|lo| lo.mac = "00:00:00:00:00:00".into());
        let ip = |address| Ip { interface: Some(0), ..Ip::new(address) };
        let ips = loopback::first_addresses(&scene)?.into_iter().map(ip).collect();
        Ok(Answer { interfaces: made.interfaces, ips, ..Answer::default() })
    }

    fn del(del: &Del) -> Result<()> {
        release(&[loopback::KIND], &Remains::from(del)).finish()
    }

    fn check(&self, check: &Check) -> Result<()> {
        verify(&[&Plan::of(Lo)], &Scene::from(check))
    }

    fn plan(&self, _preview: &Preview) -> Result<Outline> {
        Ok(Outline { steps: Plan::of(Lo).lines(), ..Outline::default() })
    }
}
