//! The verbs.

use std::fmt;
use std::io::Write;
use std::net::IpAddr;
use std::time::Duration;

use cnikit::types::{Args, Dns, Ip};
use cnikit::{
    Addresses, AttachmentId, AttachmentSpec, Check, Del, Gc, IpamPlugin, Journal, NetConf, Result, Status, log,
};

use cnikit_reservations::{Allocation, AllocationRequest, Boot, Health, Owner, Store, TIMEOUT};

use crate::configuration::{Checked, HostLocalPlugin, data_dir};
use crate::refused::refused;
use crate::resolv_conf;

impl IpamPlugin for HostLocalPlugin {
    const KNOWN_ARGS: Option<&'static [&'static str]> = Some(&["IP"]);
    const ENTERS_NETNS: bool = false;

    fn acquire(&self, at: &AttachmentSpec, journal: &mut Journal) -> Result<Addresses> {
        let Checked { sets, wanted, routes, resolv_conf } = self.checked(&at.conf, &at.args, at.version)?;
        let dns = match resolv_conf {
            Some(path) => resolv_conf::read(&path)?,
            None => Dns::default(),
        };
        let store = store(&at.conf, &at.tag.network);
        let owner = owner(&at.tag);
        let request = AllocationRequest { owner: owner.clone(), sets, wanted, cooldown: Duration::ZERO };
        let allocated = store.acquire(&request).map_err(refused)?;
        let addresses = allocated.iter().map(|one| one.address.ip()).collect();
        let _ = journal.undo(&Allocated { store, owner, addresses }, Allocated::release);
        Ok(Addresses { ips: allocated.into_iter().map(ip).collect(), routes, dns })
    }

    fn release(del: &Del) -> Result<()> {
        let freed = store(&del.call.conf, &del.tag.network).release(&owner(&del.tag)).map_err(refused)?;
        log::info(format_args!("freed {}", listed(&freed)));
        Ok(())
    }

    /// Checks that the record's addresses in the configured ranges are reserved. Other addresses may come from another plugin.
    fn confirm(&self, check: &Check) -> Result<()> {
        let at = &check.attachment;
        let sets = self.checked(&at.conf, &at.args, at.version)?.sets;
        let mut recorded: Vec<IpAddr> = check.prev.ips.iter().map(|ip| ip.address.ip()).collect();
        recorded.retain(|ip| sets.iter().any(|set| set.contains(*ip)));
        store(&at.conf, &at.tag.network).confirm(&owner(&at.tag), &recorded).map_err(refused)
    }

    fn sweep(gc: &Gc) -> Result<()> {
        let valid: Vec<Owner> = gc.valid.iter().map(|(container, ifname)| Owner::new(container, ifname)).collect();
        let freed = store(&gc.call.conf, &gc.network).sweep(&valid).map_err(refused)?;
        log::info(format_args!("freed {}", listed(&freed)));
        Ok(())
    }

    /// A full range is not an error: the next DELs free addresses, while a runtime may evict the containers of a node that fails
    /// STATUS.
    fn status(&self, status: &Status) -> Result<()> {
        let conf = &status.call.conf;
        let sets = self.checked(conf, &Args::default(), status.call.version)?.sets;
        let health = store(conf, conf.name().unwrap_or_default()).health().map_err(refused)?;
        for set in &sets {
            let taken = health.taken.iter().filter(|address| set.contains(**address)).count();
            log::info(format_args!("{taken} addresses of {set} are reserved"));
        }
        print_unreadable(&health);
        Ok(())
    }

    fn preview(&self, at: &AttachmentSpec) -> Result<(Vec<String>, Addresses)> {
        let Checked { sets, wanted, routes, .. } = self.checked(&at.conf, &at.args, at.version)?;
        let request = AllocationRequest { owner: owner(&at.tag), sets, wanted, cooldown: Duration::ZERO };
        let assigned = request.assign().map_err(refused)?;
        let place = data_dir(&at.conf).join(&at.tag.network);
        let mut steps = Vec::new();
        for (set, wanted) in request.sets.iter().zip(assigned) {
            let which = wanted.map_or("the next free address".to_owned(), |wanted| wanted.to_string());
            steps.push(format!("reserve {which} of {set} for {} in {}", request.owner, place.display()));
        }
        let example = request.example().map_err(refused)?;
        let addresses = Addresses { ips: example.into_iter().map(ip).collect(), routes, ..Addresses::default() };
        Ok((steps, addresses))
    }
}

/// The addresses that one ADD allocated, for the journal.
#[derive(Clone)]
struct Allocated {
    store: Store,
    owner: Owner,
    addresses: Vec<IpAddr>,
}

impl Allocated {
    fn release(&self) -> Result<()> {
        self.store.give_back(&self.owner, &self.addresses).map_err(refused)
    }
}

impl fmt::Display for Allocated {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reservation of {} for {}", listed(&self.addresses), self.owner)
    }
}

fn store(conf: &NetConf, network: &str) -> Store {
    let log = |text: &str| log::warn(text);
    Store {
        data_dir: data_dir(conf),
        network: network.to_owned(),
        boot: Boot::now(),
        cooling: None,
        timeout: TIMEOUT,
        log,
    }
}

fn owner(tag: &AttachmentId) -> Owner {
    Owner::new(&tag.container, &tag.ifname)
}

fn ip(allocated: Allocation) -> Ip {
    Ip { gateway: Some(allocated.gateway), ..Ip::new(allocated.address) }
}

fn listed(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    if texts.is_empty() { "nothing".into() } else { texts.join(" ") }
}

/// Prints to stderr what STATUS cannot report on stdout, because its only document is an error.
fn print_unreadable(health: &Health) {
    for path in &health.unreadable {
        let text = format!(
            "{} has no container id, and its address counts as reserved: remove it if it is not needed",
            path.display()
        );
        // stderr may be closed.
        let _ = writeln!(std::io::stderr(), "host-local: {text}");
    }
}
