//! Gateway addresses on a link of the host that containers share.

use std::collections::HashSet;
use std::fmt;
use std::net::IpAddr;

use cnikit_netlink::{Address, Batch, Link, LinkChange, NewAddress};
use cnikit_netns::{Inside, sysctl};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result};
use ipnetwork::IpNetwork;

use crate::address::ipv6_ready;

/// A link of the host has these addresses. They are never removed, because other containers use them.
#[derive(Clone, Debug)]
pub struct Gateway {
    /// The link.
    pub link: String,
    /// The addresses, with the prefixes of the containers' addresses.
    pub addresses: Vec<IpNetwork>,
    /// An address in the way is removed. Otherwise it is an error.
    pub force: bool,
    /// The container's addresses. None of them may be an address of the link.
    pub containers: Vec<IpAddr>,
    /// Those of the addresses that come from the reply of a DHCP server: ADD fails if the link does not have them.
    pub untrusted: Vec<IpNetwork>,
}

/// `RT_SCOPE_UNIVERSE`. Link-local addresses are never in the way.
const GLOBAL: u8 = 0;

/// The kind of [`Gateway`].
pub const KIND: Kind = Kind::shared("gateway");

impl Resource for Gateway {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        let own = self.addresses.iter().map(IpNetwork::ip);
        refuse_shared(&self.link, own, &self.containers)?;
        let Some(link) = context.host()?.find_recent_link(&self.link)? else {
            return self.refuse_untrusted(&self.addresses);
        };
        let present = context.host()?.addresses(link.index)?;
        let missing = self.missing(&present);
        self.refuse_untrusted(&missing)?;
        refuse_shared(&self.link, present.iter().map(|one| one.address.ip()), &self.containers)?;
        match self.in_the_way(&missing, &present).first() {
            Some(other) => self.refuse_unless_forced(other),
            None => Ok(()),
        }
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        let host = context.host()?;
        let link = host.link(&self.link)?;
        let present = host.addresses(link.index)?;
        let missing = self.missing(&present);
        if missing.is_empty() {
            return Ok(Made::nothing());
        }
        self.refuse_untrusted(&missing)?;
        if missing.iter().any(IpNetwork::is_ipv6) {
            sysctl::set(&Inside::here(), &format!("net/ipv6/conf/{}/disable_ipv6", self.link), "0")?;
        }
        for other in self.in_the_way(&missing, &present) {
            self.refuse_unless_forced(other)?;
            match host.delete_address(link.index, other.address) {
                Err(error) if !error.is_absent() => return Err(error.into()),
                _ => {} // deleted, now or by another ADD
            }
        }
        host.send(changes(&link, &missing))?;
        ipv6_ready::wait_ipv6_ready(host, &missing)?;
        Ok(Made::nothing())
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let Some(link) = context.host()?.find_recent_link(&self.link)? else { return Ok(()) };
        let present = context.host()?.addresses(link.index)?;
        let found: Vec<String> = present.iter().map(|one| one.address.to_string()).collect();
        for address in self.missing(&present) {
            drifts.unless(false, || format!("gateway on {}: wanted {address}, found [{}]", self.link, found.join(" ")));
        }
        Ok(())
    }
}

impl Gateway {
    fn missing(&self, present: &[Address]) -> Vec<IpNetwork> {
        let is_missing = |wanted: &IpNetwork| present.iter().all(|one| one.address != *wanted);
        self.addresses.iter().copied().filter(is_missing).collect()
    }

    /// The present addresses that are in the way of missing ones: for IPv4 any other address, for IPv6 an address in an overlapping
    /// network, because a link may have several IPv6 networks.
    fn in_the_way<'a>(&self, missing: &[IpNetwork], present: &'a [Address]) -> Vec<&'a Address> {
        let mut in_the_way = Vec::new();
        for one in present {
            let is_other = one.scope == GLOBAL && !self.addresses.contains(&one.address);
            if is_other && missing.iter().any(|wanted| excludes(*wanted, one.address)) {
                in_the_way.push(one);
            }
        }
        in_the_way
    }

    /// The error if one of these missing addresses comes from a DHCP server.
    fn refuse_untrusted(&self, missing: &[IpNetwork]) -> Result<()> {
        let Some(first) = missing.iter().find(|one| self.untrusted.contains(one)) else { return Ok(()) };
        let link = &self.link;
        let text =
            format!("the gateway {first} comes from the reply of a DHCP server, and {link} does not have that address");
        Err(Error::config(text).hint(format!(
            "remove `isGateway` and `isDefaultGateway`; or, if the host is to have it: `ip address add {first} dev {link}`, or name \
             its subnet in `ipam.allowedSubnets`"
        )))
    }

    fn refuse_unless_forced(&self, other: &Address) -> Result<()> {
        if self.force {
            return Ok(());
        }
        let wanted = listed(&self.addresses);
        let link = &self.link;
        let other = other.address;
        Err(Error::conflict(format!("{link:?} already has an IP address different from {wanted}: {other}")).hint(
            format!("if no container needs it: `ip address del {other} dev {link}`, or set `forceAddress`; otherwise give this network another bridge"),
        ))
    }
}

fn listed(addresses: &[IpNetwork]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// Refuses an address for a container if a link of the host in the same segment has it, or will have it.
pub(crate) fn refuse_shared(link: &str, own: impl Iterator<Item = IpAddr>, containers: &[IpAddr]) -> Result<()> {
    let containers: HashSet<IpAddr> = containers.iter().copied().collect();
    for address in own {
        if containers.contains(&address) {
            return Err(Error::conflict(format!("the container cannot have {address}: the host has it on {link}"))
                .hint("give the container another address, or the host another gateway"));
        }
    }
    Ok(())
}

/// Adds the addresses, and sets the link's MAC to what it is, so that it does not change with the ports: containers have it in
/// their neighbour tables as the gateway's.
fn changes(link: &Link, missing: &[IpNetwork]) -> Batch {
    let mut batch = Batch::new();
    for address in missing {
        let new = NewAddress::from(*address).no_dad(true).scope(GLOBAL);
        batch.add_address_if_absent(link.index, &new);
    }
    if let Some(mac) = link.mac
        && !mac.is_zero()
    {
        batch.set_link(link.index, &LinkChange::default().mac(mac));
    }
    batch
}

/// Whether a link with the present address cannot have the wanted one too.
fn excludes(wanted: IpNetwork, present: IpNetwork) -> bool {
    match (wanted.is_ipv4(), present.is_ipv4()) {
        (true, true) => true,
        (false, false) => wanted.contains(present.network()) || present.contains(wanted.network()),
        _ => false,
    }
}

impl fmt::Display for Gateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "gateway on {}: {}", self.link, listed(&self.addresses))?;
        if !self.untrusted.is_empty() {
            write!(f, "; the link must have {} already", listed(&self.untrusted))?;
        }
        f.write_str(if self.force { ", in place of any other" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(text: &str) -> IpNetwork {
        text.parse().unwrap()
    }

    fn present(text: &str) -> Address {
        let scope = if text.starts_with("fe80") { 253 } else { GLOBAL };
        Address { scope, ..crate::address::present(text) }
    }

    fn gateway(addresses: &[&str]) -> Gateway {
        Gateway {
            link: "br0".into(),
            addresses: addresses.iter().map(|text| network(text)).collect(),
            force: false,
            containers: Vec::new(),
            untrusted: Vec::new(),
        }
    }

    #[test]
    fn an_address_is_missing_unless_the_link_has_it_with_its_prefix() {
        let wanted = gateway(&["10.1.0.1/24", "fd00::1/64"]);
        assert_eq!(wanted.missing(&[]), wanted.addresses);
        assert_eq!(wanted.missing(&[present("10.1.0.1/24")]), [network("fd00::1/64")]);
        assert_eq!(wanted.missing(&[present("10.1.0.1/16"), present("fd00::1/64")]), [network("10.1.0.1/24")]);
        assert_eq!(wanted.missing(&[present("fd00::1/64"), present("10.1.0.1/24")]), []);
    }

    #[test]
    fn another_ipv4_address_or_an_overlapping_ipv6_network_is_in_the_way() {
        let wanted = gateway(&["10.1.0.1/24", "fd00::1/64"]);
        let of = |missing: &[&str], there: &[&str]| -> Vec<String> {
            let missing: Vec<IpNetwork> = missing.iter().map(|text| network(text)).collect();
            let there: Vec<Address> = there.iter().map(|text| present(text)).collect();
            wanted.in_the_way(&missing, &there).iter().map(|one| one.address.to_string()).collect()
        };
        let (v4, v6) = (&["10.1.0.1/24"][..], &["fd00::1/64"][..]);
        assert_eq!(of(v4, &["10.9.0.1/24", "fd00::9/64", "fe80::1/64"]), ["10.9.0.1/24"]);
        assert_eq!(of(v6, &["10.9.0.1/24", "fd00::9/64", "fe80::1/64"]), ["fd00::9/64"]);
        assert_eq!(of(v6, &["fd00::9/48", "fd00::9/96", "fd00:1::1/64"]), ["fd00::9/48", "fd00::9/96"]);
        assert_eq!(of(v6, &["fd00::5:0:0:1/96"]), ["fd00::5:0:0:1/96"], "inside of the wanted network");
        let wanted = gateway(&["fd00:0:0:7::1/64"]);
        let around = present("fd00::9/48");
        assert_eq!(wanted.in_the_way(&wanted.addresses, std::slice::from_ref(&around)), [&around]);
        assert_eq!(of(v4, &["10.1.0.1/24"]), [""; 0], "it is wanted");
        assert_eq!(of(&[], &["10.9.0.1/24"]), [""; 0], "nothing is missing");
    }

    #[test]
    fn what_is_in_the_way_is_refused_with_both_addresses_unless_it_may_be_removed() {
        let mut wanted = gateway(&["10.1.0.1/24", "fd00::1/64"]);
        let said = wanted.refuse_unless_forced(&present("10.9.0.1/24")).unwrap_err().to_string();
        let text = "\"br0\" already has an IP address different from 10.1.0.1/24, fd00::1/64: 10.9.0.1/24";
        assert!(said.contains(text) && said.contains("ip address del 10.9.0.1/24 dev br0"), "{said}");
        assert_eq!(wanted.to_string(), "gateway on br0: 10.1.0.1/24, fd00::1/64");
        wanted.force = true;
        wanted.refuse_unless_forced(&present("10.9.0.1/24")).unwrap();
        assert_eq!(wanted.to_string(), "gateway on br0: 10.1.0.1/24, fd00::1/64, in place of any other");
    }

    #[test]
    fn an_address_of_a_dhcp_servers_reply_is_not_given_to_the_host() {
        let untrusted = vec![network("10.1.0.1/24")];
        let wanted = Gateway { untrusted, ..gateway(&["10.1.0.1/24", "fd00::1/64"]) };
        wanted.refuse_untrusted(&[network("fd00::1/64")]).unwrap();
        let said = wanted.refuse_untrusted(&wanted.addresses).unwrap_err().to_string();
        assert!(said.contains("the gateway 10.1.0.1/24 comes from the reply of a DHCP server, and br0"), "{said}");
        assert!(wanted.to_string().ends_with("; the link must have 10.1.0.1/24 already"), "{wanted}");
    }

    #[test]
    fn a_container_cannot_have_an_address_of_the_host() {
        let [one, two] = [[10, 1, 0, 1], [10, 1, 0, 2]].map(IpAddr::from);
        refuse_shared("br0", [one].into_iter(), &[two]).unwrap();
        refuse_shared("br0", [].into_iter(), &[two]).unwrap();
        let said = refuse_shared("br0", [one, two].into_iter(), &[two]).unwrap_err().to_string();
        assert!(said.contains("the container cannot have 10.1.0.2: the host has it on br0"), "{said}");
    }
}
