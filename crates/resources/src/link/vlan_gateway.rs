//! The gateway's link into one VLAN of a bridge.

use std::fmt;

use cnikit_netlink::{Link, LinkChange, Mac, Netlink, NewVeth, Peer, VlanRange};
use cnikit_netns::{Inside, Netns};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result};
use cnikit_types::Interface;

use crate::address::layer3::Detection;
use crate::address::router_adverts;
use crate::link::bridge::{random_mac, verify_recorded};
use crate::link::veth;
use crate::link::vlans::{Vlans, listed};

/// A pair of links on the host: one end has the addresses of the gateway of a VLAN, the other is a port of the bridge in
/// that VLAN. All containers of the VLAN share it: made when it is not there, else adopted; never removed.
#[derive(Clone, Debug)]
pub struct VlanGateway {
    /// The bridge.
    pub bridge: String,
    /// The VLAN.
    pub vlan: u16,
    /// The port stays in the bridge's default VLAN too.
    pub keep_default: bool,
    /// Whether others in the VLAN may hold one of its IPv6 addresses; a link that is adopted keeps its own setting.
    pub detection: Detection,
}

/// The name of the link that has the addresses, as the reference calls it.
pub fn name(bridge: &str, vlan: u16) -> String {
    format!("{bridge}.{vlan}")
}

/// The kind that these are of.
pub const KIND: Kind = Kind::shared("VLAN gateway");

impl Resource for VlanGateway {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        let host = context.host()?;
        if let Some(gateway) = host.find_link(&self.name())? {
            return self.port_of(host, &gateway).map(drop);
        }
        let other = host.find_link(&self.port_name())?;
        other.map_or(Ok(()), |other| Err(self.strange(&other.name, "it leads elsewhere")))
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        let host = context.host()?;
        let bridge = host.link(&self.bridge)?;
        let gateway = host.find_link(&self.name())?.map_or_else(|| self.create(host, &bridge), Ok)?;
        let port = self.port_of(host, &gateway)?;
        if port.master.is_none() {
            host.change(port.index, &LinkChange { master: Some(bridge.index), ..LinkChange::default() })?;
        }
        if !self.is_native_on(host, &port)? {
            Vlans::new(self.vlan, &[], self.keep_default).give(host, &port)?;
        }
        [&port, &gateway].into_iter().try_for_each(|end| self.bring_up(host, end))?;
        veth::wait_running(host, &port)?;
        Ok(Made::one(Interface { name: gateway.name, ..Interface::default() }))
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let host = context.host()?;
        let name = self.name();
        let Some(gateway) = host.find_link(&name)? else {
            drifts.unless(false, || format!("VLAN gateway {name}: wanted on the host, found none"));
            return Ok(());
        };
        drifts.unless(gateway.up, || format!("VLAN gateway {name}: wanted up, found down"));
        verify_recorded(context, "VLAN gateway", &gateway, true, drifts);
        match self.port_of(host, &gateway) {
            Ok(port) => {
                self.verify_pair(&gateway, &port, drifts);
                self.verify_port(host, &port, drifts)?;
            }
            Err(error) => drifts.unless(false, || error.msg),
        }
        Ok(())
    }
}

impl VlanGateway {
    fn name(&self) -> String {
        name(&self.bridge, self.vlan)
    }

    /// Of the end in the bridge, as long as the other's, so that it is a name wherever that is one; it marks a pair as ours
    /// from the first moment.
    fn port_name(&self) -> String {
        format!("{}~{}", self.bridge, self.vlan)
    }

    /// Makes the pair, its port in the bridge. The end that has the addresses has a MAC of the kernel's choice; the port's
    /// starts with `fe`, so that a bridge which takes the lowest of its ports never takes it.
    fn create(&self, host: &Netlink, bridge: &Link) -> Result<Link> {
        let Mac([_, rest @ ..]) = random_mac()?;
        let mac = Mac([0xfe, rest[0], rest[1], rest[2], rest[3], rest[4]]);
        let peer = Peer { name: self.name(), mac: None, netns: Netns::own()? };
        let name = self.port_name();
        let mtu = Some(bridge.mtu);
        match host.create_veth(&NewVeth {
            name,
            mac: Some(mac),
            mtu,
            queues: Some(1),
            master: Some(bridge.index),
            peer,
        }) {
            // Another ADD was faster, and its pair is as good; or one of the names is taken for something else.
            Err(error) if error.exists() => host.find_link(&self.name())?.ok_or_else(|| error.into()),
            made => made.map(|_| host.link(&self.name()))?.map_err(Into::into),
        }
    }

    /// The other end of a link that has the gateway's name, if this is the gateway: ours, complete or not, or one that
    /// leads into this VLAN of this bridge, whoever made it. Anything else is somebody's, and not touched.
    fn port_of(&self, host: &Netlink, gateway: &Link) -> Result<Link> {
        if gateway.name != self.name() {
            return Err(self.strange(&gateway.name, format!("{:?} is an alternative name of it", self.name())));
        }
        let Some(port) = other_end(host, gateway)? else {
            return Err(self.strange(&gateway.name, "it is no veth whose other end is here too"));
        };
        let is_ours = port.name == self.port_name();
        let Some(master) = port.master.map(|index| host.find_link_at(index)).transpose()?.flatten() else {
            let unless_ours =
                || self.strange(&gateway.name, format!("its other end {} is a port of nothing", port.name));
            return Some(port.clone()).filter(|_| is_ours).ok_or_else(unless_ours);
        };
        if master.name != self.bridge {
            return Err(
                self.strange(&gateway.name, format!("its other end {} is a port of {}", port.name, master.name))
            );
        }
        if is_ours || self.is_native_on(host, &port)? {
            return Ok(port);
        }
        let found = listed(&host.vlans(port.index)?);
        Err(self.strange(&gateway.name, format!("its other end {} is in VLANs {found}", port.name)))
    }

    fn is_native_on(&self, host: &Netlink, port: &Link) -> Result<bool> {
        let vlans = if port.master.is_some() { host.vlans(port.index)? } else { Vec::new() };
        Ok(vlans.contains(&VlanRange::native(self.vlan)))
    }

    fn bring_up(&self, host: &Netlink, end: &Link) -> Result<()> {
        router_adverts::shared(end, self.detection)?;
        let change = LinkChange { up: Some(true), ..LinkChange::default() };
        if end.up { Ok(()) } else { Ok(host.change(end.index, &change)?) }
    }

    /// What can be said of a pair of ours. One of somebody else's is as it was made until an ADD of ours comes by: that is
    /// no drift. The MTU was the bridge's when the pair was made, and the bridge's follows its ports since: only the ends are
    /// compared, with each other.
    fn verify_pair(&self, gateway: &Link, port: &Link, drifts: &mut Drifts) {
        if port.name != self.port_name() {
            return;
        }
        for end in [gateway, port] {
            drifts.extend(router_adverts::ra_drift(&Inside::here(), &end.name, &router_adverts::ROUTES));
        }
        drifts.unless(gateway.mtu == port.mtu, || {
            let one = &gateway.name;
            let other = &port.name;
            format!("MTU of {one} and {other}: wanted the same, found {} and {}", gateway.mtu, port.mtu)
        });
    }

    fn verify_port(&self, host: &Netlink, port: &Link, drifts: &mut Drifts) -> Result<()> {
        let name = &port.name;
        let bridge = &self.bridge;
        drifts.unless(port.up, || format!("{name}: wanted up, found down"));
        if port.master.is_none() {
            drifts.unless(false, || format!("bridge of {name}: wanted {bridge}, found none"));
            return Ok(());
        }
        let found = host.vlans(port.index)?;
        if !found.contains(&VlanRange::native(self.vlan)) {
            let found = listed(&found);
            drifts.unless(false, || format!("VLANs of {name}: wanted {} PVID untagged, found {found}", self.vlan));
        } else if *name == self.port_name() {
            self.verify_no_other(host, name, &found, drifts)?;
        }
        Ok(())
    }

    /// The pair is shared with networks that keep the bridge's default VLAN on its port and with those that do not: it may
    /// be there or not. In any other VLAN the gateway would be a neighbour of those whom it is to be kept from.
    fn verify_no_other(&self, host: &Netlink, port: &str, found: &[VlanRange], drifts: &mut Drifts) -> Result<()> {
        let default = host.find_link(&self.bridge)?.and_then(|bridge| bridge.default_vlan);
        let fine = Vlans::new(self.vlan, &[], true).on(default);
        drifts.unless(found.iter().all(|one| fine.contains(one)), || {
            format!("VLANs of {port}: wanted none but {}, found {}", listed(&fine), listed(found))
        });
        Ok(())
    }

    fn strange(&self, link: &str, why: impl fmt::Display) -> Error {
        let bridge = &self.bridge;
        let vlan = self.vlan;
        Error::conflict(format!("{link:?} already exists but is not the gateway of VLAN {vlan} on {bridge}: {why}"))
            .hint(format!(
                "set `bridge` or `vlan` to another, or remove that link with `ip link del {link}` if nobody needs it"
            ))
    }
}

/// The other end of a veth, if both are in this namespace.
fn other_end(host: &Netlink, end: &Link) -> Result<Option<Link>> {
    let Some(index) = end.lower.filter(|_| veth::is_veth(end) && end.lower_netns.is_none()) else { return Ok(None) };
    Ok(host.find_link_at(index)?.filter(|other| veth::is_veth(other) && other.lower == Some(end.index)))
}

impl fmt::Display for VlanGateway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "VLAN gateway {} on the host: a port of bridge {} in VLAN {} untagged",
            self.name(),
            self.bridge,
            self.vlan
        )?;
        f.write_str(if self.keep_default { ", beside the bridge's default" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use cnikit_netlink::NewBridge;

    use super::*;

    fn bridge(host: &Netlink, name: &str) -> Link {
        host.create_bridge(&NewBridge { name: name.into(), ..NewBridge::default() }).unwrap()
    }

    #[test]
    fn a_pair_that_another_add_made_meanwhile_is_as_good_and_a_name_that_is_taken_is_not() {
        let gateway =
            |vlan| VlanGateway { bridge: "cni0".into(), vlan, keep_default: false, detection: Detection::Off };
        let work = |_: &Inside| {
            let host = Netlink::here().unwrap();
            let cni0 = bridge(&host, "cni0");
            let made = gateway(7).create(&host, &cni0).unwrap();
            assert_eq!(gateway(7).create(&host, &cni0).unwrap().index, made.index);
            assert_eq!(gateway(7).port_of(&host, &made).unwrap().master, Some(cni0.index));
            bridge(&host, "cni0~8");
            let error = gateway(8).create(&host, &cni0).unwrap_err();
            assert!(error.msg.contains("create veth \"cni0~8 with peer cni0.8"), "{error}");
        };
        cnikit_netns::make::anonymous().unwrap().enter(work).unwrap();
    }
}
