//! All of one container's attachments, as they are now.

use std::net::IpAddr;

use cnikit_libcni::CachedAttachment;
use cnikit_netlink::{KernelRoute, Link, Netlink};
use cnikit_netns::Netns;
use cnikit_resources::alias;
use cnikit_skel::AttachmentId;
use serde_json::{Value, json};

use crate::cli::Show;
use crate::commands::list::{End, document, word};
use crate::commands::rules::Rules;
use crate::environment;
use crate::failure::Result;
use crate::namespace::{Look, Standing};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print, print_json, print_to_stderr};
use crate::output::time::age;
use crate::output::tree::Branch;

/// One attachment and what stands of it.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) kept: CachedAttachment,
    pub(crate) standing: Standing,
    /// The container's end; `None` if it is not there, or could not be looked at.
    pub(crate) inside: Option<Inside>,
    /// The host's end.
    pub(crate) peer: Option<Link>,
    /// What the host's end is a port of, with its addresses.
    pub(crate) bridge: Option<(Link, Vec<String>)>,
    /// Rules of the host that name the container or one of its addresses.
    pub(crate) rules: Vec<String>,
}

/// The container's end.
#[derive(Debug)]
pub(crate) struct Inside {
    pub(crate) link: Link,
    pub(crate) addresses: Vec<String>,
    pub(crate) routes: Vec<String>,
}

pub(crate) fn show(common: &Common, out: Output, asked: &Show) -> Result {
    let found = wanted(environment::cache(common).attachments()?, &asked.id)?;
    let (host, look) = (Host::look()?, Look::new());
    let mut rules = Rules::default();
    let shown: Vec<Shown> = found.into_iter().map(|kept| host.shown(kept, &look, &mut rules)).collect();
    rules.missing().for_each(|why| print_to_stderr(&format!("Warning: {why}")));
    if out.json {
        let attachments: Vec<Value> = shown.iter().map(Shown::to_json).collect();
        return print_json(&json!({"attachments": attachments}));
    }
    print(&shown.iter().map(|one| one.tree().drawn(out)).collect::<String>())
}

/// Those that are meant: by id or its beginning, by namespace, by address. The first way that finds any counts.
fn wanted(all: Vec<CachedAttachment>, id: &str) -> Result<Vec<CachedAttachment>> {
    let address: Option<IpAddr> = id.parse().ok();
    let has_address = |kept: &CachedAttachment| {
        let ips = kept.cni_result().map(|answer| answer.ips).unwrap_or_default();
        address.is_some_and(|address| ips.iter().any(|ip| ip.address.ip() == address))
    };
    let in_namespace = |kept: &CachedAttachment| kept.at.netns == id || kept.at.netns.rsplit('/').next() == Some(id);
    let ways: [&dyn Fn(&CachedAttachment) -> bool; 4] =
        [&|kept| kept.at.container_id == id, &in_namespace, &has_address, &|kept| {
            !id.is_empty() && kept.at.container_id.starts_with(id)
        }];
    let Some(way) = ways.into_iter().find(|way| all.iter().any(way)) else {
        return Err(format!("no attachment of \"{id}\" is known; `cnitool list` shows all").into());
    };
    let found: Vec<CachedAttachment> = all.into_iter().filter(|kept| way(kept)).collect();
    let first = found[0].at.container_id.clone();
    match found.iter().find(|kept| kept.at.container_id != first) {
        Some(other) => Err(format!("\"{id}\" may be {first} or {}: give more of it", other.at.container_id).into()),
        None => Ok(found),
    }
}

/// The host's links, asked for once.
struct Host {
    netlink: Netlink,
    links: Vec<Link>,
}

impl Host {
    fn look() -> Result<Host> {
        let netlink = Netlink::here()?;
        let links = netlink.links()?;
        Ok(Host { netlink, links })
    }

    fn shown(&self, kept: CachedAttachment, look: &Look, rules: &mut Rules) -> Shown {
        let standing = look.at(&kept.at.netns, &kept.metadata);
        let inside = if standing == Standing::There { inside(&kept) } else { None };
        let (inside, peer) = inside.map_or((None, None), |(inside, peer)| (Some(inside), peer));
        let peer = peer.and_then(|index| self.at(index)).or_else(|| self.tagged(&kept)).cloned();
        let bridge = peer.as_ref().and_then(|peer| self.at(peer.master?)).cloned();
        let bridge = bridge.map(|bridge| (self.addresses(&bridge), bridge)).map(|(all, bridge)| (bridge, all));
        let rules = rules.of(&kept);
        Shown { kept, standing, inside, peer, bridge, rules }
    }

    fn at(&self, index: u32) -> Option<&Link> {
        self.links.iter().find(|link| link.index == index)
    }

    /// The link that bears the attachment's tag: of plugins that write one.
    fn tagged(&self, kept: &CachedAttachment) -> Option<&Link> {
        self.links.iter().find(|link| is_tagged(link, &kept.network, kept))
    }

    fn addresses(&self, link: &Link) -> Vec<String> {
        let found = self.netlink.addresses(link.index).unwrap_or_default();
        found.iter().map(|address| address.address.to_string()).collect()
    }
}

/// Whether a link of the host bears the attachment's tag.
pub(crate) fn is_tagged(link: &Link, network: &str, kept: &CachedAttachment) -> bool {
    let (container, ifname) = (kept.at.container_id.clone(), kept.at.ifname.clone());
    let tag = AttachmentId { network: network.to_owned(), container, ifname };
    alias::owner(link, &tag) == alias::AliasOwner::This
}

/// The container's end, and the number of the host's.
fn inside(kept: &CachedAttachment) -> Option<(Inside, Option<u32>)> {
    let netns = Netns::open(&kept.at.netns).ok()?;
    let netlink = Netlink::inside(&netns).ok()?;
    let link = netlink.find_link(&kept.at.ifname).ok()??;
    let addresses = netlink.addresses(link.index).unwrap_or_default();
    let routes = netlink.routes_of(link.index).unwrap_or_default();
    let routes = routes.iter().filter(|route| route.is_ordinary()).map(words).collect();
    let own = Netns::own().map(|own| netlink.namespace_id(&own).ok().flatten());
    let peer = link.lower.filter(|_| link.lower_netns.is_some() && link.lower_netns == own.ok().flatten());
    let addresses = addresses.iter().map(|address| address.address.to_string()).collect();
    Some((Inside { link, addresses, routes }, peer))
}

fn words(route: &KernelRoute) -> String {
    let via = route.gateway.map(|gateway| format!(" via {gateway}")).unwrap_or_default();
    if route.is_default() { format!("default{via}") } else { format!("{}{via}", route.dst) }
}

impl Shown {
    /// The same for a program.
    fn to_json(&self) -> Value {
        let link = self.inside.as_ref().map_or(End::Gone, |inside| if inside.link.up { End::Up } else { End::Down });
        let mut document = document(&self.kept.summary(), self.standing, &link);
        document["interface"] = self.inside.as_ref().map_or(Value::Null, |inside| {
            json!({
                "name": inside.link.name,
                "mac": inside.link.mac.map(|mac| mac.to_string()),
                "mtu": inside.link.mtu,
                "addresses": inside.addresses,
                "routes": inside.routes,
            })
        });
        document["peer"] = self.peer.as_ref().map_or(
            Value::Null,
            |peer| json!({"name": peer.name, "index": peer.index, "mtu": peer.mtu, "up": peer.up, "alias": peer.alias}),
        );
        document["bridge"] = self.bridge.as_ref().map_or(
            Value::Null,
            |(bridge, addresses)| json!({"name": bridge.name, "addresses": addresses, "up": bridge.up}),
        );
        document["rules"] = self.rules.clone().into();
        document["problems"] = self.kept.problems.clone().into();
        document
    }

    fn tree(&self) -> Branch {
        let kept = &self.kept;
        let (state, _) = word(kept.state);
        let title =
            format!("{}/{}/{}  {state}, {} old", kept.network, kept.at.container_id, kept.at.ifname, age(kept.age()));
        let mut below = vec![Branch {
            text: format!("namespace {} ({})", kept.at.netns, self.standing.word()),
            below: vec![self.inside_branch()],
        }];
        below.extend(self.peer.as_ref().map(|peer| self.peer_branch(peer)));
        if !self.rules.is_empty() {
            below.push(Branch::over("rules", self.rules.iter().cloned()));
        }
        below.push(Branch::over("kept", [kept.file.display().to_string()]));
        if !kept.problems.is_empty() {
            below.push(Branch::over("problems", kept.problems.iter().cloned()));
        }
        Branch { text: title, below }
    }

    fn inside_branch(&self) -> Branch {
        let mut lines = self.inside_lines().into_iter();
        Branch::over(lines.next().unwrap_or_default(), lines)
    }

    /// The container's end in lines: itself, or that it is not there, then its addresses and routes.
    pub(crate) fn inside_lines(&self) -> Vec<String> {
        let Some(Inside { link, addresses, routes }) = &self.inside else {
            return vec![format!("{} is not there", self.kept.at.ifname)];
        };
        let addresses = addresses.iter().map(|address| format!("address {address}"));
        let routes = routes.iter().map(|route| format!("route {route}"));
        std::iter::once(described(link)).chain(addresses).chain(routes).collect()
    }

    fn peer_branch(&self, peer: &Link) -> Branch {
        let bridge = self.bridge.iter().map(|(bridge, addresses)| {
            Branch::over(format!("port of {}", described(bridge)), addresses.iter().map(|one| format!("address {one}")))
        });
        Branch { text: format!("host end {}", described(peer)), below: bridge.collect() }
    }
}

/// A link in a line.
pub(crate) fn described(link: &Link) -> String {
    let kind = link.kind.as_deref().unwrap_or("device");
    let mac = link.mac.map(|mac| format!(" {mac}")).unwrap_or_default();
    format!("{} ({kind}{mac} mtu {}, {})", link.name, link.mtu, if link.up { "up" } else { "down" })
}
