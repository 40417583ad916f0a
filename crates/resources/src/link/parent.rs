//! The master: the link that a container's interface is on top of.

use std::fmt;
use std::os::fd::{AsFd, AsRawFd};

use cnikit_netlink::{Family, Link, MAIN_TABLE, Netlink, UpperKind};
use cnikit_netns::Netns;
use cnikit_plan::{ApplyContext, Drifts};
use cnikit_skel::{Error, Result};
use cnikit_types::CniResult;
use ipnetwork::IpNetwork;

/// How the master is found. It is looked up when something is made on it, so that DEL never needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// Which link it is.
    pub which: Which,
    /// It is in the container, not on the host.
    pub in_container: bool,
}

/// Which link is the master.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// The link of this name or alternative name.
    Named(String),
    /// The link of the default route, of IPv4 or else of IPv6. Of several routes it is that of the lowest metric, of several next
    /// hops the first. Routes over links that are down or without carrier come last.
    OfDefaultRoute,
    /// The only interface that the plugins before this one made.
    OfPrevResult,
}

impl Master {
    /// Finds the link, as it is now or was a moment ago.
    pub(crate) fn find(&self, context: &ApplyContext) -> Result<Link> {
        let netlink = self.netlink(context)?;
        match &self.which {
            Which::Named(name) => self.named(netlink, name),
            Which::OfDefaultRoute => self.of_default_route(netlink),
            Which::OfPrevResult => self.named(netlink, only_interface(&context.record)?),
        }
    }

    /// The socket in the master's namespace.
    pub(crate) fn netlink<'a>(&self, context: &'a ApplyContext) -> Result<&'a Netlink> {
        if self.in_container { context.container() } else { context.host() }
    }

    fn named(&self, netlink: &Netlink, name: &str) -> Result<Link> {
        netlink.find_recent_link(name)?.ok_or_else(|| {
            let text = format!("failed to lookup master {name:?}: there is no such link {}", self.place());
            Error::conflict(text).hint("create it, or set `master` to a link that exists")
        })
    }

    fn of_default_route(&self, netlink: &Netlink) -> Result<Link> {
        for family in [Family::V4, Family::V6] {
            let mut routes = netlink.routes_to(everything(family), MAIN_TABLE)?;
            routes.retain(|route| route.is_ordinary() && route.index.is_some());
            // The sort is stable: of routes with the same metric the first one stays first. Dead routes come last.
            routes.sort_by_key(|route| (route.dead, route.priority.unwrap_or_default()));
            if let Some(index) = routes.first().and_then(|route| route.index) {
                return Ok(netlink.link_at(index)?);
            }
        }
        let text = format!("no default route interface found {}", self.place());
        Err(Error::conflict(text).hint("set `master`, or add a default route"))
    }

    /// Checks that the master exists, for STATUS, and returns it. A master in a container, or one that an earlier plugin makes, is
    /// known to ADD only.
    pub(crate) fn available(&self, host: &Netlink) -> Result<Option<Link>> {
        match &self.which {
            _ if self.in_container => Ok(None),
            Which::Named(name) => self.named(host, name).map(Some),
            Which::OfDefaultRoute => self.of_default_route(host).map(Some),
            Which::OfPrevResult => Ok(None),
        }
    }

    /// Compares the master of a link with the configured one. The link of the default route may change at any time, so it is not
    /// compared.
    pub(crate) fn verify(&self, context: &ApplyContext, upper: &Link, drifts: &mut Drifts) -> Result<()> {
        let Which::Named(name) = &self.which else { return Ok(()) };
        let container = context.container()?;
        let place = self.place();
        let Some(master) = self.netlink(context)?.find_recent_link(name)? else {
            drifts.unless(false, || format!("master of {}: wanted {name} {place}, found none", upper.name));
            return Ok(());
        };
        let is_on = self.is_below(container, &master, upper)?;
        drifts.unless(is_on, || format!("master of {}: wanted {name} {place}, found another link", upper.name));
        Ok(())
    }

    /// Whether a link of the container is on this master. If the master is a macvlan or an ipvlan itself, the kernel puts another
    /// one of the kind not on it, but on its own master.
    fn is_below(&self, container: &Netlink, master: &Link, upper: &Link) -> Result<bool> {
        let home = if self.in_container { None } else { Some(Netns::own()?) };
        let is_flattened = upper.upper.is_some_and(UpperKind::is_flattened) && master.kind == upper.kind;
        let lower = if is_flattened { master.lower } else { None };
        match (lower, master.lower_netns) {
            (None, _) => is_on(container, upper, master.index, home.as_ref()),
            (Some(lower), None) => is_on(container, upper, lower, home.as_ref()),
            // The master's own master is in a third namespace. Ids of namespaces are compared as seen from one namespace only.
            (lower, netns) => Ok(upper.lower == lower && (home.is_some() || upper.lower_netns == netns)),
        }
    }

    /// The namespace of the master, opened anew.
    pub(crate) fn home(&self, context: &ApplyContext) -> Result<Netns> {
        if !self.in_container {
            return Ok(Netns::own()?);
        }
        Ok(Netns::open(format!("/proc/thread-self/fd/{}", context.netns.as_fd().as_raw_fd()))?)
    }

    pub(crate) fn place(&self) -> &'static str {
        if self.in_container { "in the container" } else { "on the host" }
    }
}

/// The name of the only interface in a result.
fn only_interface(record: &CniResult) -> Result<&str> {
    let named: Vec<&str> =
        record.interfaces.iter().map(|one| one.name.as_str()).filter(|name| !name.is_empty()).collect();
    let [name] = named[..] else {
        let text = "chained master failure. PrevResult lacks a single named interface";
        return Err(Error::config(text).hint("name one with `master`"));
    };
    Ok(name)
}

/// Whether a link of the namespace of `place` is on the link with the number `lower` in `home`. `None` is the namespace of `place`
/// itself. The number alone is not enough, because every namespace counts its links from 1.
pub(crate) fn is_on(place: &Netlink, link: &Link, lower: u32, home: Option<&Netns>) -> Result<bool> {
    if link.lower != Some(lower) {
        return Ok(false);
    }
    match (home, link.lower_netns) {
        (None, id) => Ok(id.is_none()),
        (Some(_), None) => Ok(false),
        (Some(home), id) => Ok(place.namespace_id(home)? == id),
    }
}

/// The destination of a default route.
fn everything(family: Family) -> IpNetwork {
    let none: std::net::IpAddr = match family {
        Family::V4 => [0; 4].into(),
        Family::V6 => [0; 16].into(),
    };
    IpNetwork::new(none, 0).unwrap_or_else(|_| none.into())
}

impl fmt::Display for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.which {
            Which::Named(name) => f.write_str(name),
            Which::OfDefaultRoute => f.write_str("what has the default route"),
            Which::OfPrevResult => f.write_str("what was made before"),
        }?;
        write!(f, " {}", self.place())
    }
}

#[cfg(test)]
mod tests {
    use cnikit_types::Interface;

    use super::*;

    #[test]
    fn the_master_of_the_result_is_its_only_interface_with_a_name() {
        let of = |names: &[&str]| {
            let interface = |name: &&str| Interface { name: (*name).to_owned(), ..Interface::default() };
            let record = CniResult { interfaces: names.iter().map(interface).collect(), ..CniResult::default() };
            only_interface(&record).map(str::to_owned).map_err(|error| error.to_string())
        };
        assert_eq!(of(&["eth0"]).as_deref(), Ok("eth0"));
        assert_eq!(of(&["", "eth0"]).as_deref(), Ok("eth0"));
        for names in [&[][..], &[""], &["eth0", "eth1"]] {
            assert!(of(names).unwrap_err().contains("lacks a single named interface"), "{names:?}");
        }
    }

    #[test]
    fn a_default_route_leads_everywhere_of_its_family() {
        assert_eq!(
            (everything(Family::V4).to_string(), everything(Family::V6).to_string()),
            ("0.0.0.0/0".into(), "::/0".into())
        );
    }

    #[test]
    fn a_master_is_printed_with_its_place() {
        for (which, in_container, text) in [
            (Which::Named("eth7".into()), false, "eth7 on the host"),
            (Which::Named("eth7".into()), true, "eth7 in the container"),
            (Which::OfDefaultRoute, false, "what has the default route on the host"),
            (Which::OfPrevResult, true, "what was made before in the container"),
        ] {
            assert_eq!(Master { which, in_container }.to_string(), text);
        }
    }
}
