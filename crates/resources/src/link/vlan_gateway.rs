//! The host's link into one VLAN of a bridge, for the addresses of the gateway.

use std::fmt;

use cnikit_netlink::{Link, LinkChange, Mac, Netlink, NewVeth, Peer, VlanRange};
use cnikit_netns::Netns;
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result};
use cnikit_types::Interface;

use crate::identity::recorded::verify_shared;
use crate::link::ipv6_settings::{self, Detection};
use crate::link::random;
use crate::link::veth_ends::{is_veth, wait_running};
use crate::link::vlans::{Vlans, listed};

/// A veth pair on the host: one end has the addresses of a VLAN's gateway, the other is a port of the bridge in that VLAN. All
/// containers of the VLAN share it. If it exists it is adopted, otherwise it is made; it is never removed.
#[derive(Clone, Debug)]
pub struct VlanGateway {
    /// The bridge.
    pub bridge: String,
    /// The VLAN.
    pub vlan: u16,
    /// The port stays in the bridge's default VLAN too.
    pub keep_default: bool,
    /// Duplicate address detection for its IPv6 addresses. An adopted link keeps its own setting.
    pub detection: Detection,
}

/// The name of the link that has the addresses, the same as upstream's.
pub fn name(bridge: &str, vlan: u16) -> String {
    format!("{bridge}.{vlan}")
}

/// The kind of [`VlanGateway`].
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
        match host.find_link(&self.port_name())? {
            Some(other) => Err(self.not_the_gateway(&other.name, "it leads elsewhere")),
            None => Ok(()),
        }
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        let host = context.host()?;
        let bridge = host.link(&self.bridge)?;
        let gateway = match host.find_link(&self.name())? {
            Some(gateway) => gateway,
            None => self.create(host, &bridge)?,
        };
        let port = self.port_of(host, &gateway)?;
        if port.master.is_none() {
            host.change(port.index, &LinkChange::default().master(bridge.index))?;
        }
        if !self.is_native_on(host, &port)? {
            Vlans::new(self.vlan, &[], self.keep_default).set_on(host, &port)?;
        }
        self.bring_up(host, &port)?;
        self.bring_up(host, &gateway)?;
        wait_running(host, &port)?;
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
        verify_shared(context, "VLAN gateway", &gateway, true, drifts);
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

    /// The name of the end in the bridge. It is as long as that of the other end, so that it is valid whenever the other is. It
    /// marks the pair as ours from the moment it is made.
    fn port_name(&self) -> String {
        format!("{}~{}", self.bridge, self.vlan)
    }

    /// Makes the pair, with its port in the bridge. The end that has the addresses has a MAC of the kernel's choice. The port's MAC
    /// starts with `fe`, so that a bridge which takes the lowest MAC of its ports never takes it.
    fn create(&self, host: &Netlink, bridge: &Link) -> Result<Link> {
        let Mac(mut mac) = random::mac()?;
        mac[0] = 0xfe;
        let wanted = NewVeth::new(self.port_name(), Peer::new(self.name(), Netns::own()?))
            .mac(Mac(mac))
            .mtu(bridge.mtu)
            .queues(1)
            .master(bridge.index);
        match host.create_veth(&wanted) {
            Ok(_) => Ok(host.link(&self.name())?),
            // Another ADD was faster and made the same pair, or another link has one of the names.
            Err(error) if error.exists() => host.find_link(&self.name())?.ok_or_else(|| error.into()),
            Err(error) => Err(error.into()),
        }
    }

    /// The bridge port of a link that has the gateway's name, if that link is the gateway: a pair of ours, complete or not, or one
    /// that any program made and that leads into this VLAN of this bridge. Any other link is refused and not touched.
    fn port_of(&self, host: &Netlink, gateway: &Link) -> Result<Link> {
        if gateway.name != self.name() {
            return Err(self.not_the_gateway(&gateway.name, format!("{:?} is an alternative name of it", self.name())));
        }
        let Some(port) = other_end(host, gateway)? else {
            return Err(self.not_the_gateway(&gateway.name, "it is not a veth whose other end is here too"));
        };
        let is_ours = port.name == self.port_name();
        let master = match port.master {
            Some(index) => host.find_link_at(index)?,
            None => None,
        };
        match master {
            None if is_ours => return Ok(port),
            None => {
                let why = format!("its other end {} is not a port", port.name);
                return Err(self.not_the_gateway(&gateway.name, why));
            }
            Some(master) if master.name != self.bridge => {
                let why = format!("its other end {} is a port of {}", port.name, master.name);
                return Err(self.not_the_gateway(&gateway.name, why));
            }
            Some(_) => {}
        }
        if is_ours || self.is_native_on(host, &port)? {
            return Ok(port);
        }
        let found = listed(&host.vlans(port.index)?);
        Err(self.not_the_gateway(&gateway.name, format!("its other end {} is in VLANs {found}", port.name)))
    }

    fn is_native_on(&self, host: &Netlink, port: &Link) -> Result<bool> {
        if port.master.is_none() {
            return Ok(false);
        }
        Ok(host.vlans(port.index)?.contains(&VlanRange::native(self.vlan)))
    }

    fn bring_up(&self, host: &Netlink, end: &Link) -> Result<()> {
        ipv6_settings::configure_shared(end, self.detection)?;
        if !end.up {
            host.change(end.index, &LinkChange::default().up(true))?;
        }
        Ok(())
    }

    /// Compares a pair that a plugin of this project made. A pair of another program is as that made it until our next ADD, which
    /// is not a drift. The MTUs of the two ends are compared with each other only: they were the bridge's when the pair was made,
    /// and since then the bridge's has followed its ports.
    fn verify_pair(&self, gateway: &Link, port: &Link, drifts: &mut Drifts) {
        if port.name != self.port_name() {
            return;
        }
        for end in [gateway, port] {
            drifts.extend(ipv6_settings::ra_drift(end, &ipv6_settings::ROUTES));
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

    /// Compares the other VLANs of the port. It may be in the bridge's default VLAN or not, because networks with and without that
    /// VLAN share the pair. In any other VLAN the gateway could be reached by containers that it has to be separated from.
    fn verify_no_other(&self, host: &Netlink, port: &str, found: &[VlanRange], drifts: &mut Drifts) -> Result<()> {
        let default = host.find_link(&self.bridge)?.and_then(|bridge| bridge.default_vlan);
        let fine = Vlans::new(self.vlan, &[], true).on(default);
        drifts.unless(found.iter().all(|one| fine.contains(one)), || {
            format!("VLANs of {port}: wanted none but {}, found {}", listed(&fine), listed(found))
        });
        Ok(())
    }

    fn not_the_gateway(&self, link: &str, why: impl fmt::Display) -> Error {
        let bridge = &self.bridge;
        let vlan = self.vlan;
        Error::conflict(format!("{link:?} already exists but is not the gateway of VLAN {vlan} on {bridge}: {why}"))
            .hint(format!(
                "set `bridge` or `vlan` to another, or remove that link with `ip link del {link}` if it is not needed"
            ))
    }
}

/// The other end of a veth, if both are in this namespace.
fn other_end(host: &Netlink, end: &Link) -> Result<Option<Link>> {
    if !is_veth(end) || end.lower_netns.is_some() {
        return Ok(None);
    }
    let Some(index) = end.lower else { return Ok(None) };
    match host.find_link_at(index)? {
        Some(other) if is_veth(&other) && other.lower == Some(end.index) => Ok(Some(other)),
        _ => Ok(None),
    }
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
    use cnikit_netns::Inside;

    use super::*;

    fn bridge(host: &Netlink, name: &str) -> Link {
        host.create_bridge(&NewBridge::new(name)).unwrap()
    }

    #[test]
    fn a_pair_of_a_concurrent_add_is_used_and_a_foreign_link_is_refused() {
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
