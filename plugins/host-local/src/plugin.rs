//! The verbs.

use std::fmt;
use std::io::Write;
use std::net::IpAddr;

use cnikit::types::{Args, Ip};
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
        let dns = resolv_conf.map(|path| resolv_conf::read(&path)).transpose()?.unwrap_or_default();
        let store = store(&at.conf, &at.tag.network);
        let owner = owner(&at.tag);
        let given = store.acquire(&AllocationRequest { owner: owner.clone(), sets, wanted }).map_err(refused)?;
        let held = Held { store, owner, addresses: given.iter().map(|one| one.address.ip()).collect() };
        let _kept_until_the_answer_is_out = journal.undo(&held, Held::give_back);
        Ok(Addresses { ips: given.into_iter().map(answered).collect(), routes, dns })
    }

    fn release(del: &Del) -> Result<()> {
        let freed = store(&del.call.conf, &del.tag.network).release(&owner(&del.tag)).map_err(refused)?;
        log::info(format_args!("freed {}", listed(&freed)));
        Ok(())
    }

    /// The record's addresses that lie in the configured ranges must be held; others may be anybody's.
    fn confirm(&self, check: &Check) -> Result<()> {
        let at = &check.attachment;
        let sets = self.checked(&at.conf, &at.args, at.version)?.sets;
        let recorded = check.prev.ips.iter().map(|ip| ip.address.ip());
        let recorded: Vec<IpAddr> = recorded.filter(|ip| sets.iter().any(|set| set.contains(*ip))).collect();
        store(&at.conf, &at.tag.network).confirm(&owner(&at.tag), &recorded).map_err(refused)
    }

    fn sweep(gc: &Gc) -> Result<()> {
        let valid: Vec<Owner> = gc.valid.iter().map(|(container, ifname)| Owner::new(container, ifname)).collect();
        let freed = store(&gc.call.conf, &gc.network).sweep(&valid).map_err(refused)?;
        log::info(format_args!("freed {}", listed(&freed)));
        Ok(())
    }

    /// A full range is no failure: ordinary DELs cure it, while a runtime that takes this node for broken evicts what runs.
    fn status(&self, status: &Status) -> Result<()> {
        let conf = &status.call.conf;
        let sets = self.checked(conf, &Args::default(), status.call.version)?.sets;
        let health = store(conf, conf.name().unwrap_or_default()).health().map_err(refused)?;
        for set in &sets {
            let taken = health.taken.iter().filter(|address| set.contains(**address)).count();
            log::info(format_args!("{taken} addresses of {set} are taken"));
        }
        tell_unreadable(&health);
        Ok(())
    }

    fn preview(&self, at: &AttachmentSpec) -> Result<(Vec<String>, Addresses)> {
        let Checked { sets, wanted, routes, .. } = self.checked(&at.conf, &at.args, at.version)?;
        let request = AllocationRequest { owner: owner(&at.tag), sets, wanted };
        let assigned = request.assign().map_err(refused)?;
        let place = data_dir(&at.conf).join(&at.tag.network);
        let words = request.sets.iter().zip(assigned).map(|(set, wanted)| {
            let which = wanted.map_or("the next free address".to_owned(), |wanted| wanted.to_string());
            format!("reserve {which} of {set} for {} in {}", request.owner, place.display())
        });
        let example = request.example().map_err(refused)?;
        let addresses = Addresses { ips: example.into_iter().map(answered).collect(), routes, ..Addresses::default() };
        Ok((words.collect(), addresses))
    }
}

/// What one ADD allocated, for the journal.
#[derive(Clone)]
struct Held {
    store: Store,
    owner: Owner,
    addresses: Vec<IpAddr>,
}

impl Held {
    fn give_back(&self) -> Result<()> {
        self.store.give_back(&self.owner, &self.addresses).map_err(refused)
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reservation of {} for {}", listed(&self.addresses), self.owner)
    }
}

fn store(conf: &NetConf, network: &str) -> Store {
    let log = |text: &str| log::warn(text);
    Store { data_dir: data_dir(conf), network: network.to_owned(), boot: Boot::now(), patience: TIMEOUT, log }
}

fn owner(tag: &AttachmentId) -> Owner {
    Owner::new(&tag.container, &tag.ifname)
}

fn answered(given: Allocation) -> Ip {
    Ip { gateway: Some(given.gateway), ..Ip::new(given.address) }
}

fn listed(addresses: &[IpAddr]) -> String {
    let texts: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    if texts.is_empty() { "nothing".into() } else { texts.join(" ") }
}

/// Says on stderr what STATUS, which answers with an error or with nothing, has no other place for.
fn tell_unreadable(health: &Health) {
    for path in &health.unreadable {
        let text = format!(
            "{} names no container and its address counts as taken: remove it if it is garbage",
            path.display()
        );
        // Nobody may be listening.
        let _ = writeln!(std::io::stderr(), "host-local: {text}");
    }
}
