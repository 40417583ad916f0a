//! Gets the addresses of an attachment from a DHCP server of the network that its interface is in.
//!
//! A lease has to be renewed, and a plugin lives for milliseconds. So a daemon holds the leases (`dhcp daemon`, see
//! [`cnikit_dhcp_daemon`]), and the plugin calls it by a socket. The keys under `ipam` are those of [`DhcpKeys`].
//!
//! - ADD asks for a lease, and waits for it: at most `timeout` seconds. The server's DNS servers, domains and routes are in the
//!   result; the interface gets the server's MTU if the configuration has none and it is smaller.
//! - DEL gives the lease back. If no daemon runs, that is noted in `dataDir`, and the next daemon makes it good.
//! - CHECK compares the lease with the interface. STATUS fails if no daemon runs. GC gives back what is not valid.
#![forbid(unsafe_code)]

mod addresses;
mod daemon;
mod keys;

use std::time::Duration;

use cnikit::resources::slaac;
use cnikit::types::{Args, Ip};
use cnikit::{
    Addresses, AttachmentSpec, Check, Del, Error, Gc, IpamPlugin, Journal, NetConf, Result, Role, Status, code,
};
use cnikit_dhcp_daemon::{Lease6Order, LeaseFamily, LeaseOrder, LeaseOwner, LeaseReply, LeaseRequest};
use cnikit_process::Deadline;
use serde::Deserialize;

pub use keys::DhcpKeys;

use crate::daemon::{Daemon, owner};
use crate::keys::{Families, ProvidedOption, RequestedOption};

/// dhcp's configuration, validated.
#[derive(Debug, Deserialize)]
#[serde(from = "DhcpKeys")]
pub struct DhcpPlugin {
    families: Families,
    daemon: Daemon,
    /// Whether ADD starts the daemon if none runs.
    starts_daemon: bool,
    /// How long ADD waits.
    timeout: Duration,
    /// The metric of every route of the lease.
    priority: Option<u32>,
    provide: Vec<ProvidedOption>,
    request: Vec<RequestedOption>,
}

impl IpamPlugin for DhcpPlugin {
    const EXAMPLE: &'static str = r#""ipam":{"type":"dhcp"}"#;
    const ROLE: Option<Role> = Some(Role { argument: "daemon", run: cnikit_dhcp_daemon::run });

    fn acquire(&self, at: &AttachmentSpec, journal: &mut Journal) -> Result<Addresses> {
        let orders = self.orders(at)?;
        let deadline = Deadline::after(self.timeout);
        let Families { v6, slaac, .. } = self.families;
        if v6 || slaac {
            slaac::accept_router_adverts(&at.sandbox, &at.tag.ifname, slaac)?;
        }
        let mut all = Addresses::default();
        for lease in self.daemon.order(&orders, self.timeout, self.starts_daemon, &owner(&at.tag), journal)? {
            addresses::add(&mut all, lease.addresses(self.priority)?);
        }
        if slaac {
            let networks = slaac::wait_router_address(&at.sandbox, &at.tag.ifname, deadline)?;
            all.ips.extend(networks.into_iter().map(Ip::new));
        }
        Ok(all)
    }

    fn release(del: &Del) -> Result<()> {
        Daemon::of(&del.call.conf).release(&owner(&del.tag))
    }

    fn confirm(&self, check: &Check) -> Result<()> {
        let at = &check.attachment;
        let reported = check.prev.ips.iter().map(|ip| ip.address).collect();
        let mut differences = Vec::new();
        if self.families.slaac {
            let ifname = &at.tag.ifname;
            let found = slaac::router_addresses(&at.sandbox, ifname)?;
            if !check.prev.ips.iter().any(|ip| found.contains(&ip.address)) {
                differences.push(format!("{ifname} has no address of prevResult by router advertisement"));
            }
        }
        let families = self.families.leased();
        if !families.is_empty() {
            let (owner, netns) = (owner(&at.tag), netns(at)?);
            let request = LeaseRequest::Check { owner, netns, reported: Some(reported), families };
            match self.daemon.ask(&request)? {
                LeaseReply::Done => {}
                LeaseReply::Drift { differences: found } => differences.extend(found),
                other => return Err(daemon::unexpected(&other)),
            }
        }
        drift(differences)
    }

    fn sweep(gc: &Gc) -> Result<()> {
        Daemon::of(&gc.call.conf).sweep(gc)
    }

    fn status(&self, _status: &Status) -> Result<()> {
        let none = LeaseOwner { container: String::new(), network: String::new(), ifname: String::new() };
        keys::client_options(&self.provide, &self.request, &none, &Args::default())?;
        if self.families.leased().is_empty() {
            return Ok(()); // the kernel alone makes the addresses
        }
        self.daemon.status(self.starts_daemon)
    }

    fn preview(&self, at: &AttachmentSpec) -> Result<(Vec<String>, Addresses)> {
        self.orders(at)?; // which refuses options that cannot be sent
        let (owner, seconds) = (owner(&at.tag), self.timeout.as_secs());
        let socket = self.daemon.socket.display();
        let start = if self.starts_daemon { ", which is started if it does not run," } else { "" };
        let (mut steps, mut ips) = (Vec::new(), Vec::new());
        // Addresses for documentation (RFC 5737, RFC 3849): the server chooses the real ones.
        for family in self.families.leased() {
            let what = match family {
                LeaseFamily::V4 => {
                    ips.push(Ip { gateway: Some("192.0.2.1".parse()?), ..Ip::new("192.0.2.2/24".parse()?) });
                    "a lease"
                }
                LeaseFamily::V6 => {
                    ips.push(Ip::new("2001:db8::2/128".parse()?));
                    "a lease of IPv6"
                }
            };
            steps.push(format!("ask the DHCP daemon at {socket}{start} for {what} for {owner}, at most {seconds} s"));
        }
        if self.families.slaac {
            let ifname = &at.tag.ifname;
            steps.push(format!("wait for an address of {ifname} by router advertisement, at most {seconds} s"));
            ips.push(Ip::new("2001:db8::ff:fe00:2/64".parse()?));
        }
        Ok((steps, Addresses { ips, ..Addresses::default() }))
    }
}

impl DhcpPlugin {
    /// The plan of an ADD: what the daemon is asked for.
    fn orders(&self, at: &AttachmentSpec) -> Result<Vec<LeaseRequest>> {
        let (owner, netns) = (owner(&at.tag), netns(at)?);
        let options = keys::client_options(&self.provide, &self.request, &owner, &at.args)?;
        let timeout_ms = u64::try_from(self.timeout.as_millis()).unwrap_or(u64::MAX);
        let mut orders = Vec::new();
        for family in self.families.leased() {
            let (owner, netns) = (owner.clone(), netns.clone());
            orders.push(match family {
                LeaseFamily::V4 => LeaseRequest::Add(LeaseOrder {
                    owner,
                    netns,
                    options: options.clone(),
                    mtu: !has_mtu(&at.conf),
                    priority: self.priority,
                    timeout_ms,
                }),
                LeaseFamily::V6 => LeaseRequest::Add6(Lease6Order { owner, netns, timeout_ms }),
            });
        }
        Ok(orders)
    }
}

/// The path of the namespace: the daemon has another working directory. A dry run has none.
fn netns(at: &AttachmentSpec) -> Result<String> {
    if at.sandbox.is_empty() {
        return Ok(String::new());
    }
    Ok(std::path::absolute(&at.sandbox)?.to_string_lossy().into_owned())
}

/// Whether the configuration of the interface says its MTU.
fn has_mtu(conf: &NetConf) -> bool {
    conf.get("mtu").and_then(cnikit::types::Value::as_u64).is_some_and(|mtu| mtu > 0)
}

/// One error for all differences.
fn drift(differences: Vec<String>) -> Result<()> {
    let mut differences = differences.into_iter();
    let Some(first) = differences.next() else { return Ok(()) };
    let mut error = Error::new(code::DRIFT, first);
    for difference in differences {
        error = error.detail(difference);
    }
    Err(error.hint("restart the container, so that it gets its addresses again"))
}
