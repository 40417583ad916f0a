//! A bridge on the host.

use std::fmt;

use cnikit_netlink::{Link, LinkChange, Netlink, NewBridge};
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result, code, log};
use cnikit_types::Interface;

use crate::identity::recorded::verify_shared;
use crate::link::ipv6_settings::{self, Detection};
use crate::link::random;

/// A bridge that all containers of a network share. If it exists it is adopted as it is, otherwise it is made; it is never removed.
#[derive(Clone, Debug)]
pub struct Bridge {
    /// The name.
    pub name: String,
    /// The MTU in bytes of a bridge that is made. An adopted bridge keeps its own.
    pub mtu: Option<u32>,
    /// Promiscuous mode is switched on. It is never switched off, because another program may need it.
    pub promiscuous: bool,
    /// The MAC must not change, because it is a gateway's. CHECK compares it.
    pub pinned: bool,
    /// Duplicate address detection for the bridge's IPv6 addresses. An adopted bridge keeps its own setting.
    pub detection: Detection,
    /// VLAN filtering.
    pub filtering: VlanFiltering,
    /// The bridge must not learn MACs from frames to link-local groups (`01:80:c2:00:00:00` to `0f`). The kernel learns from them
    /// before any rule of nftables can drop them, so a container could redirect its neighbour's traffic to itself. A bridge that is
    /// made never learns from them; an adopted one is changed if this is set. Kernels before 5.0 do not have this option.
    #[doc(alias = "no_linklocal_learn")]
    pub guarded: bool,
}

/// What a network requires of a bridge's VLAN filtering. It is never switched on for an existing bridge, because that would change
/// the traffic of all its ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "vlan_filtering")]
pub enum VlanFiltering {
    /// Filtering or not.
    #[default]
    Any,
    /// A bridge that is made filters.
    IfMade,
    /// A bridge that is made filters, and an adopted one must filter already.
    Required,
}

/// The kind of [`Bridge`].
pub const KIND: Kind = Kind::shared("bridge");

impl Resource for Bridge {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        match context.host()?.find_link(&self.name)? {
            Some(link) => self.check_usable(&link),
            None => Ok(()),
        }
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        let host = context.host()?;
        let (link, mtu) = match host.find_recent_link(&self.name)? {
            Some(link) => (link, None),
            None => (self.create(host)?, self.mtu),
        };
        self.check_usable(&link)?;
        if self.guarded && link.link_local_learning.is_none() {
            log::warn(format_args!(
                "bridge {}: this kernel (before 5.0) learns MACs from frames to 01:80:c2:00:00:0x even with macspoofchk",
                self.name
            ));
        }
        ipv6_settings::configure_shared(&link, self.detection)?;
        let change = LinkChange::default()
            .mtu(mtu)
            .up((!link.up).then_some(true))
            .promiscuous((self.promiscuous && !link.promiscuous).then_some(true))
            .link_local_learning((self.guarded && link.link_local_learning == Some(true)).then_some(false));
        if change != LinkChange::default() {
            host.change(link.index, &change)?;
        }
        Ok(Made::one(Interface { name: self.name.clone(), ..Interface::default() }))
    }

    /// Restores only the option that macspoofchk depends on. An earlier release may have made the bridge without it.
    fn restore(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<()> {
        if !self.guarded {
            return Ok(());
        }
        let host = context.host()?;
        if let Some(link) = host.find_link(&self.name)?
            && link.link_local_learning == Some(true)
        {
            host.change(link.index, &LinkChange::default().link_local_learning(false))?;
        }
        Ok(())
    }

    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let Some(link) = context.host()?.find_link(&self.name)? else {
            drifts.unless(false, || format!("bridge {}: wanted on the host, found none", self.name));
            return Ok(());
        };
        drifts.compare(format!("kind of {}", self.name), "bridge", link.kind.as_deref().unwrap_or("none"));
        drifts.unless(link.up, || format!("bridge {}: wanted up, found down", self.name));
        drifts.unless(!self.promiscuous || link.promiscuous, || {
            format!("bridge {}: wanted promiscuous, found not", self.name)
        });
        let filters = self.filtering != VlanFiltering::Required || link.vlan_filtering == Some(true);
        drifts.unless(filters, || format!("VLAN filtering of {}: wanted on, found off", self.name));
        drifts.unless(!self.guarded || link.link_local_learning != Some(true), || {
            format!(
                "no_linklocal_learn of {}: wanted 1, found 0: frames to 01:80:c2:00:00:0x pass macspoofchk",
                self.name
            )
        });
        drifts.extend(ipv6_settings::ra_drift(&link, &ipv6_settings::ROUTES));
        verify_shared(context, "bridge", &link, self.pinned, drifts);
        Ok(())
    }
}

impl Bridge {
    /// Makes the bridge. It is down, so that it receives nothing before router advertisements are off. It has a MAC of its own,
    /// which does not change with its ports. The MTU is set afterwards: a bridge that is made with an MTU changes it with its
    /// ports.
    fn create(&self, host: &Netlink) -> Result<Link> {
        let vlan_filtering = (self.filtering != VlanFiltering::Any).then_some(true);
        let wanted = NewBridge::new(self.name.clone())
            .mac(random::mac()?)
            .vlan_filtering(vlan_filtering)
            .link_local_learning(false);
        match host.create_bridge(&wanted) {
            Err(error) if error.exists() => Ok(host.link(&self.name)?), // another ADD was faster: adopt its bridge
            // If the error has a text of the kernel, the kernel does not support bridges at all.
            Err(error) if error.unsupported() && error.kernel.is_none() && vlan_filtering.is_some() => {
                Err(no_vlan_filtering(&self.name))
            }
            made => Ok(made?),
        }
    }

    /// Refuses an existing link that is not the bridge, or does not filter by VLAN though it has to.
    fn check_usable(&self, link: &Link) -> Result<()> {
        if link.name != self.name {
            let text = format!("{:?} is an alternative name of {}", self.name, link.name);
            return Err(Error::conflict(text).hint(format!("set `bridge` to {:?}", link.name)));
        }
        if link.kind.as_deref() == Some("bridge") {
            return self.check_filtering(link);
        }
        let name = &self.name;
        let kind = link.kind.as_deref().unwrap_or("physical or loopback");
        Err(Error::conflict(format!("{name:?} already exists but is not a bridge: its kind is {kind}")).hint(format!(
            "set `bridge` to another name, or remove that link with `ip link del {name}` if it is not needed"
        )))
    }

    /// Without VLAN filtering every frame would reach every port, whatever VLANs the ports are in.
    fn check_filtering(&self, link: &Link) -> Result<()> {
        let name = &self.name;
        match (self.filtering, link.vlan_filtering, link.default_vlan) {
            (VlanFiltering::Any | VlanFiltering::IfMade, ..) | (_, Some(true), _) => Ok(()),
            (.., None) => Err(no_vlan_filtering(name)),
            (.., Some(_)) => Err(Error::conflict(format!("bridge {name} does not filter by VLAN")).hint(format!(
                "`ip link set dev {name} type bridge vlan_filtering 1` if all its users agree, or set `bridge` to another name"
            ))),
        }
    }
}

/// The error for a bridge on a kernel without VLAN filtering.
fn no_vlan_filtering(bridge: &str) -> Error {
    let text = format!("bridge {bridge} cannot tell VLANs apart: this kernel lacks CONFIG_BRIDGE_VLAN_FILTERING");
    Error::new(code::SYSTEM, text).hint("boot a kernel that has it, or remove `vlan` and `vlanTrunk`")
}

impl fmt::Display for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bridge {} on the host", self.name)?;
        if let Some(mtu) = self.mtu {
            write!(f, ", mtu {mtu} if it is made")?;
        }
        f.write_str(if self.promiscuous { ", promiscuous" } else { "" })?;
        f.write_str(if self.guarded { ", learning nothing from link-local groups" } else { "" })?;
        f.write_str(match self.filtering {
            VlanFiltering::Any => "",
            VlanFiltering::IfMade => ", filtering by VLAN if it is made",
            VlanFiltering::Required => ", filtering by VLAN",
        })
    }
}
