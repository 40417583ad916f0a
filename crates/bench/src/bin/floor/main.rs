//! A CNI plugin with nothing in it but what the kernel and the files of host-local need: the floor for `scripts/bench`.
//!
//! It is `bridge`, `ptp`, `macvlan`, `host-local`, `bandwidth` or `sbr`, by the name that it is called with, and does ADD, CHECK
//! and DEL of the configurations in `scenarios/mod.rs`, in IPv4; sbr does no CHECK, and both families. It validates nothing, undoes
//! nothing, and finds nothing without the result of its ADD. It sends as few messages as the kernel allows, from one process with
//! one thread.

mod addresses;
mod limits;
mod links;
mod masquerade;
mod netlink;
mod sources;

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::ExitCode;

use nix::sched::CloneFlags;
use serde_json::{Value, json};

use crate::addresses::Reservations;
use crate::links::{Host, Inside, Near};
use crate::sources::Change;

type Result<T> = io::Result<T>;

/// The length of the prefix of the scenarios' only subnet.
pub(crate) const PREFIX: u8 = 16;

/// The name of the bridge in the scenarios, and of the master of a macvlan.
const BRIDGE: &str = "bench0";
const MASTER: &str = "master0";

/// The interface of the call.
pub(crate) const IFNAME: &str = "eth0";

fn main() -> ExitCode {
    match call() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(io::stdout(), "{}", json!({"code": 999, "msg": error.to_string()}));
            ExitCode::FAILURE
        }
    }
}

/// A call, as the environment and the configuration describe it.
struct Call {
    container: String,
    netns: String,
    conf: Value,
    reservations: Reservations,
}

#[expect(
    clippy::disallowed_methods,
    reason = "a plugin's parameters are environment variables, and this one has no SDK"
)]
fn variable(name: &str) -> Result<String> {
    std::env::var(name).map_err(|_| io::Error::other(format!("{name} is missing")))
}

fn call() -> Result<()> {
    let called = std::env::args().next().unwrap_or_default();
    let plugin = called.rsplit('/').next().unwrap_or_default();
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    let conf: Value = serde_json::from_str(&text)?;
    let is_chained = ["bandwidth", "sbr"].contains(&plugin);
    let ranges = conf["ipam"]["ranges"].as_array().map_or(0, Vec::len);
    if !is_chained && (ranges != 1 || conf["ipMasqBackend"] == "iptables") {
        return Err(io::Error::other("the floor has one range of IPv4 and no iptables"));
    }
    let dir = Path::new(conf["ipam"]["dataDir"].as_str().unwrap_or_default()).join("bench");
    let container = variable("CNI_CONTAINERID")?;
    let reservations = Reservations::new(dir, &container);
    let call = Call { netns: variable("CNI_NETNS")?, container, conf, reservations };
    let command = variable("CNI_COMMAND")?;
    if is_chained {
        return call.chained(plugin, &command);
    }
    match command.as_str() {
        "ADD" => call.add(plugin),
        "CHECK" => call.check(plugin),
        "DEL" => call.del(plugin),
        verb => Err(io::Error::other(format!("the floor has no {verb}"))),
    }
}

impl Call {
    fn add(&self, plugin: &str) -> Result<()> {
        if plugin == "host-local" {
            let address = self.reservations.take()?;
            return print(&json!({"cniVersion": "1.0.0", "ips": [ip(address)]}));
        }
        let host = Host::here()?;
        let near = match plugin {
            "bridge" => Near::Bridge(host.bridge(BRIDGE)?),
            "ptp" => Near::Alone,
            "macvlan" => Near::Master(host.index(MASTER)?),
            _ => return Err(io::Error::other("the floor has no such plugin")),
        };
        let netns = File::open(&self.netns)?;
        let address = self.reservations.take()?;
        let name = format!("f{}", self.container);
        host.make(&near, &name, &netns, address)?;
        if self.conf["ipMasq"] == true {
            masquerade::add(address, &self.container)?;
        }
        if plugin != "macvlan" {
            forward()?;
        }
        enter(&netns)?;
        let inside = Inside::here()?;
        let mac = inside.configure(&near, address)?;
        let mut interface = json!({"name": IFNAME, "sandbox": self.netns, "mac": mac});
        let host_end = json!({"name": name});
        let interfaces = if plugin == "macvlan" { vec![interface.take()] } else { vec![host_end, interface.take()] };
        let mut ip = ip(address);
        ip["interface"] = json!(interfaces.len() - 1);
        print(&json!({"cniVersion": "1.0.0", "interfaces": interfaces, "ips": [ip]}))
    }

    fn check(&self, plugin: &str) -> Result<()> {
        self.reservations.holds(self.address()?)?;
        if plugin == "host-local" {
            return Ok(());
        }
        let host = Host::here()?;
        let near = match plugin {
            "bridge" => Near::Bridge(host.index(BRIDGE)?),
            "macvlan" => Near::Master(host.index(MASTER)?),
            _ => Near::Alone,
        };
        host.check(&near, &format!("f{}", self.container), self.address()?)?;
        if self.conf["ipMasq"] == true {
            masquerade::find(&self.container)?.ok_or_else(|| io::Error::other("the rule is missing"))?;
        }
        if plugin != "macvlan" && !forwards()? {
            return Err(io::Error::other("the host does not forward packets"));
        }
        enter(&File::open(&self.netns)?)?;
        Inside::here()?.check(self.address()?)
    }

    fn del(&self, plugin: &str) -> Result<()> {
        if plugin != "host-local" {
            if self.conf["ipMasq"] == true {
                masquerade::delete(&self.container)?;
            }
            enter(&File::open(&self.netns)?)?;
            Inside::here()?.delete()?;
        }
        self.reservations.give_back(self.address()?)
    }

    /// Serves a plugin that works on the interface of the plugin before it.
    fn chained(&self, plugin: &str, command: &str) -> Result<()> {
        let netns = File::open(&self.netns)?;
        if plugin == "sbr" {
            enter(&netns)?;
            let change = match command {
                "ADD" => Change::Add,
                "DEL" => Change::Delete,
                verb => return Err(io::Error::other(format!("the floor has no {verb} of sbr"))),
            };
            sources::change(change, &self.addresses())?;
        } else {
            let host = limits::socket()?;
            enter(&netns)?;
            let end = links::other_end(&limits::socket()?)?;
            let name = format!("f{}", self.container);
            match command {
                "ADD" => {
                    let mac = limits::add(&host, end, &name)?;
                    let mut result = self.conf["prevResult"].clone();
                    if let Some(interfaces) = result["interfaces"].as_array_mut() {
                        interfaces.push(json!({"name": name, "mac": links::text(&mac)}));
                    }
                    return print(&result);
                }
                "CHECK" => limits::check(&host, end, &name)?,
                _ => limits::delete(&host, end, &name)?,
            }
        }
        if command == "ADD" { print(&self.conf["prevResult"]) } else { Ok(()) }
    }

    /// The addresses in the result of the plugin before this one.
    fn addresses(&self) -> Vec<IpAddr> {
        let ips = self.conf["prevResult"]["ips"].as_array();
        let texts = ips.into_iter().flatten().filter_map(|ip| ip["address"].as_str());
        texts.filter_map(|text| text.split('/').next()?.parse().ok()).collect()
    }

    /// The address in the result of ADD.
    fn address(&self) -> Result<Ipv4Addr> {
        let text = self.conf["prevResult"]["ips"][0]["address"].as_str().unwrap_or_default();
        text.split('/').next().unwrap_or_default().parse().map_err(io::Error::other)
    }
}

fn ip(address: Ipv4Addr) -> Value {
    json!({"address": format!("{address}/{PREFIX}"), "gateway": gateway(address)})
}

/// The first address of the subnet.
pub(crate) fn gateway(address: Ipv4Addr) -> Ipv4Addr {
    let [a, b, ..] = address.octets();
    Ipv4Addr::new(a, b, 0, 1)
}

fn print(result: &Value) -> Result<()> {
    io::stdout().write_all(result.to_string().as_bytes())
}

const FORWARDING: &str = "/proc/sys/net/ipv4/ip_forward";

/// Lets the host forward packets, as the containers need it.
fn forward() -> Result<()> {
    if forwards()? { Ok(()) } else { std::fs::write(FORWARDING, "1") }
}

fn forwards() -> Result<bool> {
    Ok(std::fs::read(FORWARDING)?.starts_with(b"1"))
}

/// Moves this process, which has one thread, into a network namespace, and ends there.
#[expect(clippy::disallowed_methods, reason = "this program ends in the namespace")]
fn enter(netns: &File) -> Result<()> {
    Ok(nix::sched::setns(netns, CloneFlags::CLONE_NEWNET)?)
}
