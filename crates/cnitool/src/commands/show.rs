//! `show`: the attachments of one container, as they are now.

use std::fmt::Write;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use cnikit_dhcp_daemon::{LeaseOwner, LeaseReply, LeaseReport, LeaseRequest, SOCKET, call};
use cnikit_libcni::CachedAttachment;
use cnikit_netlink::{KernelRoute, Link, Netlink};
use cnikit_netns::Netns;
use cnikit_resources::alias;
use cnikit_skel::AttachmentId;
use serde_json::{Value, json};

use crate::cli::Show;
use crate::commands::list::{LinkState, document, state_word};
use crate::commands::restore::attachments;
use crate::commands::rules::Rules;
use crate::environment;
use crate::failure::Result;
use crate::namespace::{PathInspector, PathState};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print, print_json, print_to_stderr};
use crate::output::time::age;
use crate::output::tree::Branch;

/// One attachment with its links, addresses, routes and rules.
#[derive(Debug)]
struct Shown {
    cached: CachedAttachment,
    path: PathState,
    /// The interface in the container; `None` if it does not exist, or cannot be read.
    inside: Option<Inside>,
    /// The host end.
    peer: Option<Link>,
    /// The bridge of the host end.
    bridge: Option<BridgeLink>,
    /// The rules of the host that name the container or one of its addresses.
    rules: Vec<String>,
    /// Its leases of DHCP, a line each.
    leases: Vec<String>,
}

/// The interface in the container.
#[derive(Debug)]
struct Inside {
    link: Link,
    addresses: Vec<String>,
    routes: Vec<String>,
    /// The index of the host end.
    peer: Option<u32>,
}

/// A bridge with its addresses.
#[derive(Debug)]
struct BridgeLink {
    link: Link,
    addresses: Vec<String>,
}

pub(crate) fn show(common: &Common, out: Output, args: &Show) -> Result {
    let all = attachments(&environment::cache(common))?;
    let found = match &args.id {
        Some(id) => find(all, id)?,
        None => all,
    };
    let host = Host::read()?;
    let inspector = PathInspector::new();
    let mut rules = Rules::default();
    let mut shown = Vec::new();
    for cached in found {
        shown.push(host.inspect(cached, &inspector, &mut rules));
    }
    for why in rules.missing() {
        print_to_stderr(&format!("Warning: {why}"));
    }
    if out.json {
        let attachments: Vec<Value> = shown.iter().map(Shown::to_json).collect();
        return print_json(&json!({"attachments": attachments}));
    }
    if shown.is_empty() {
        return print("no attachment is in the cache\n");
    }
    print(&shown.iter().map(|one| one.tree().drawn(out)).collect::<String>())
}

/// The attachments of one container: by id, by namespace, by address, or by the beginning of the id; the first that matches any.
fn find(all: Vec<CachedAttachment>, id: &str) -> Result<Vec<CachedAttachment>> {
    let address: Option<IpAddr> = id.parse().ok();
    let matches: [&dyn Fn(&CachedAttachment) -> bool; 4] = [
        &|cached| cached.at.container_id == id,
        &|cached| cached.at.netns == id || cached.at.netns.rsplit('/').next() == Some(id),
        &|cached| address.is_some_and(|address| has_address(cached, address)),
        &|cached| !id.is_empty() && cached.at.container_id.starts_with(id),
    ];
    let Some(is_match) = matches.into_iter().find(|is_match| all.iter().any(is_match)) else {
        return Err(format!(
            "no attachment in the cache has the container id, namespace or address \"{id}\"; hint: run `cnitool list`"
        )
        .into());
    };
    let found: Vec<CachedAttachment> = all.into_iter().filter(|cached| is_match(cached)).collect();
    let first = &found[0].at.container_id;
    if let Some(other) = found.iter().find(|cached| cached.at.container_id != *first) {
        return Err(format!(
            "\"{id}\" is the beginning of {first} and of {}; hint: write more of it",
            other.at.container_id
        )
        .into());
    }
    Ok(found)
}

fn has_address(cached: &CachedAttachment, address: IpAddr) -> bool {
    let ips = cached.cni_result().map(|result| result.ips).unwrap_or_default();
    ips.iter().any(|ip| ip.address.ip() == address)
}

/// The links of the host, which are read once.
struct Host {
    netlink: Netlink,
    links: Vec<Link>,
}

impl Host {
    fn read() -> Result<Host> {
        let netlink = Netlink::here()?;
        let links = netlink.links()?;
        Ok(Host { netlink, links })
    }

    fn inspect(&self, cached: CachedAttachment, inspector: &PathInspector, rules: &mut Rules) -> Shown {
        let path = inspector.attachment(&cached.at.netns, &cached.metadata);
        let inside = if path == PathState::Present { Inside::read(&cached) } else { None };
        let peer_index = inside.as_ref().and_then(|inside| inside.peer);
        let peer = peer_index.and_then(|index| self.link(index)).or_else(|| self.tagged_link(&cached)).cloned();
        let bridge = peer.as_ref().and_then(|peer| self.bridge_of(peer));
        let rules = rules.of(&cached);
        let leases = leases(&cached);
        Shown { cached, path, inside, peer, bridge, rules, leases }
    }

    fn link(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// The link with the attachment's tag, if its plugin writes one.
    fn tagged_link(&self, cached: &CachedAttachment) -> Option<&Link> {
        self.links.iter().find(|link| is_tagged(link, &cached.network, cached))
    }

    fn bridge_of(&self, port: &Link) -> Option<BridgeLink> {
        let link = self.link(port.master?)?.clone();
        let found = self.netlink.addresses(link.index).unwrap_or_default();
        let addresses = found.iter().map(|address| address.address.to_string()).collect();
        Some(BridgeLink { link, addresses })
    }
}

/// Whether a link of the host has the attachment's tag.
pub(crate) fn is_tagged(link: &Link, network: &str, cached: &CachedAttachment) -> bool {
    let tag = AttachmentId {
        network: network.to_owned(),
        container: cached.at.container_id.clone(),
        ifname: cached.at.ifname.clone(),
    };
    alias::owner(link, &tag) == alias::AliasOwner::This
}

impl Inside {
    fn read(cached: &CachedAttachment) -> Option<Inside> {
        let netns = Netns::open(&cached.at.netns).ok()?;
        let netlink = Netlink::inside(&netns).ok()?;
        let link = netlink.find_link(&cached.at.ifname).ok()??;
        let addresses = netlink.addresses(link.index).unwrap_or_default();
        let routes = netlink.routes_of(link.index).unwrap_or_default();
        let mut inside = Inside {
            addresses: addresses.iter().map(|address| address.address.to_string()).collect(),
            routes: routes.iter().filter(|route| route.is_ordinary()).map(route_text).collect(),
            peer: None,
            link,
        };
        if is_peer_here(&netlink, &inside.link) {
            inside.peer = inside.link.lower;
        }
        Some(inside)
    }
}

/// Whether the peer of a link is in this process's namespace. `netlink` is that of the link's namespace.
fn is_peer_here(netlink: &Netlink, link: &Link) -> bool {
    let Ok(own) = Netns::own() else { return false };
    let own_id = netlink.namespace_id(&own).ok().flatten();
    link.lower_netns.is_some() && link.lower_netns == own_id
}

fn route_text(route: &KernelRoute) -> String {
    let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    if route.is_default() { format!("default{via}") } else { format!("{}{via}", route.dst) }
}

impl Shown {
    fn to_json(&self) -> Value {
        let mut document = document(&self.cached.summary(), self.path, &self.link_state());
        document["interface"] = match &self.inside {
            Some(Inside { link, addresses, routes, .. }) => json!({
                "name": link.name,
                "mac": link.mac.map(|mac| mac.to_string()),
                "mtu": link.mtu,
                "addresses": addresses,
                "routes": routes,
            }),
            None => Value::Null,
        };
        document["peer"] = match &self.peer {
            Some(peer) => json!({
                "name": peer.name, "index": peer.index, "mtu": peer.mtu, "up": peer.up, "alias": peer.alias,
            }),
            None => Value::Null,
        };
        document["bridge"] = match &self.bridge {
            Some(BridgeLink { link, addresses }) => {
                json!({"name": link.name, "addresses": addresses, "up": link.up})
            }
            None => Value::Null,
        };
        document["rules"] = self.rules.clone().into();
        document["leases"] = self.leases.clone().into();
        document["problems"] = self.cached.problems.clone().into();
        document
    }

    fn link_state(&self) -> LinkState {
        match &self.inside {
            Some(inside) if inside.link.up => LinkState::Up,
            Some(_) => LinkState::Down,
            None => LinkState::Gone,
        }
    }

    fn tree(&self) -> Branch {
        let cached = &self.cached;
        let (state, _) = state_word(cached.state);
        let age = age(cached.age());
        let title = format!("{}/{}/{}  {state}, {age} old", cached.network, cached.at.container_id, cached.at.ifname);
        let mut below = vec![Branch {
            text: format!("namespace {} ({})", cached.at.netns, self.path.word()),
            below: vec![self.inside_branch()],
        }];
        if let Some(peer) = &self.peer {
            below.push(self.peer_branch(peer));
        }
        if !self.rules.is_empty() {
            below.push(Branch::over("rules", self.rules.iter().cloned()));
        }
        if !self.leases.is_empty() {
            below.push(Branch::over("leases", self.leases.iter().cloned()));
        }
        below.push(Branch::over("cached result", [cached.file.display().to_string()]));
        if !cached.problems.is_empty() {
            below.push(Branch::over("problems", cached.problems.iter().cloned()));
        }
        Branch { text: title, below }
    }

    /// The interface in the container, with its addresses and routes.
    fn inside_branch(&self) -> Branch {
        let Some(Inside { link, addresses, routes, .. }) = &self.inside else {
            return Branch::over(format!("{} is not there", self.cached.at.ifname), []);
        };
        let mut lines = Vec::new();
        lines.extend(addresses.iter().map(|address| format!("address {address}")));
        lines.extend(routes.iter().map(|route| format!("route {route}")));
        Branch::over(link_text(link), lines)
    }

    fn peer_branch(&self, peer: &Link) -> Branch {
        let mut below = Vec::new();
        if let Some(BridgeLink { link, addresses }) = &self.bridge {
            let lines = addresses.iter().map(|address| format!("address {address}"));
            below.push(Branch::over(format!("port of {}", link_text(link)), lines));
        }
        Branch { text: format!("host end {}", link_text(peer)), below }
    }
}

/// How long the DHCP daemon may take to list its leases.
const DAEMON: Duration = Duration::from_secs(5);

/// The leases that the DHCP daemon has for an attachment, if its network uses dhcp; or why that is not known.
fn leases(cached: &CachedAttachment) -> Vec<String> {
    let Some(config) = &cached.config else { return Vec::new() };
    let Ok(list) = serde_json::from_slice::<Value>(config) else { return Vec::new() };
    let plugins = list["plugins"].as_array().cloned().unwrap_or_default();
    let Some(plugin) = plugins.iter().find(|plugin| plugin["ipam"]["type"] == "dhcp") else { return Vec::new() };
    let socket = plugin["ipam"]["daemonSocketPath"].as_str().filter(|path| !path.is_empty()).unwrap_or(SOCKET);
    match call(Path::new(socket), &LeaseRequest::List, DAEMON) {
        Ok(LeaseReply::Leases { leases }) => {
            leases.iter().filter(|lease| is_of(lease, cached)).map(lease_text).collect()
        }
        Ok(other) => vec![format!("unknown: the DHCP daemon answers {other:?}")],
        Err(error) => vec![format!("unknown: {error}")],
    }
}

fn is_of(lease: &LeaseReport, cached: &CachedAttachment) -> bool {
    let LeaseOwner { container, network, ifname } = &lease.owner;
    (container, network, ifname) == (&cached.at.container_id, &cached.network, &cached.at.ifname)
}

/// Address, server, routers, MTU, time left and state of a lease.
fn lease_text(report: &LeaseReport) -> String {
    let mut text = match (lease4_text(report), &report.lease6) {
        (Some(text), _) => text,
        (None, Some(lease)) => {
            let addresses: Vec<String> = lease.addresses.iter().map(|one| one.address.to_string()).collect();
            let mut server = String::new();
            for byte in &lease.server {
                let _ = write!(server, "{byte:02x}"); // writing to a text does not fail
            }
            format!("{} of the server {server}", addresses.join(", "))
        }
        (None, None) => "none at the moment".to_owned(),
    };
    if report.lease.is_some() || report.lease6.is_some() {
        // Writing to a text does not fail.
        let _ = match report.seconds_left {
            Some(seconds) => write!(text, ", {seconds} s left"),
            None => write!(text, ", for ever"),
        };
    }
    if let Some(hindrance) = &report.hindrance {
        let _ = write!(text, ": {hindrance}");
    }
    text
}

/// Address and server of a lease of IPv4, and the routers and the MTU that the server has configured.
fn lease4_text(report: &LeaseReport) -> Option<String> {
    let lease = report.lease.as_ref()?;
    let mut text = format!("{} of {}", lease.address, lease.server);
    let routers: Vec<String> = lease.parameters.routers.iter().map(ToString::to_string).collect();
    if !routers.is_empty() {
        let _ = write!(text, " by {}", routers.join(" and ")); // writing to a text does not fail
    }
    if let Some(mtu) = lease.parameters.mtu {
        let _ = write!(text, ", MTU {mtu}");
    }
    Some(text)
}

/// A link in a line.
fn link_text(link: &Link) -> String {
    let kind = link.kind.as_deref().unwrap_or("device");
    let mac = link.mac.map(|mac| format!(" {mac}")).unwrap_or_default();
    format!("{} ({kind}{mac} mtu {}, {})", link.name, link.mtu, if link.up { "up" } else { "down" })
}
