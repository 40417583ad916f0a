//! A bridge on the host.

use std::fmt;

use cnikit_netlink::{Link, LinkChange, Mac, Netlink, NewBridge};
use cnikit_netns::Inside;
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{Error, Journal, Result, code, log};
use cnikit_types::Interface;

use crate::address::layer3::Detection;
use crate::address::router_adverts;
use crate::link::random;

/// A bridge that all containers of a network share: made when it is not there, else adopted as it is; never removed.
#[derive(Clone, Debug)]
pub struct Bridge {
    /// Its name.
    pub name: String,
    /// In bytes, of a bridge that is made; one that is adopted keeps its own.
    pub mtu: Option<u32>,
    /// It receives every frame. Never switched off: somebody else may need it.
    pub promiscuous: bool,
    /// Its MAC is ours to keep (a gateway's), so CHECK compares it.
    pub pinned: bool,
    /// Whether others on the segment may hold one of its IPv6 addresses; a bridge that is adopted keeps its own setting.
    pub detection: Detection,
    /// Whether it tells VLANs apart.
    pub filtering: VlanFiltering,
    /// It must not learn MACs from frames to link-local groups (`01:80:c2:00:00:00` to `0f`): the kernel does so before any
    /// rule of nftables sees such a frame, so a container could direct its neighbour's traffic to itself. A bridge that is
    /// made never learns from them; an adopted one is changed if this is set. Kernels before 5.0 have no such option.
    #[doc(alias = "no_linklocal_learn")]
    pub guarded: bool,
}

/// What is asked of a bridge's VLAN filtering. It is never switched on: that would change what all its ports may do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "vlan_filtering")]
pub enum VlanFiltering {
    /// Nothing.
    #[default]
    Any,
    /// A bridge that is made has it.
    IfMade,
    /// A bridge that is made has it, one that is adopted must have it.
    Required,
}

/// The kind that these are of.
pub const KIND: Kind = Kind::shared("bridge");

impl Resource for Bridge {
    fn kind(&self) -> Kind {
        KIND
    }

    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        context.host()?.find_link(&self.name)?.map_or(Ok(()), |link| self.is_one(&link))
    }

    fn ensure(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        let host = context.host()?;
        let found = host.find_recent_link(&self.name)?;
        let mtu = self.mtu.filter(|_| found.is_none());
        let link = found.map_or_else(|| self.create(host), Ok)?;
        self.is_one(&link)?;
        if self.guarded && link.link_local_learning.is_none() {
            log::warn(format_args!(
                "bridge {}: this kernel (before 5.0) learns MACs from frames to 01:80:c2:00:00:0x whatever macspoofchk says",
                self.name
            ));
        }
        router_adverts::shared(&link, self.detection)?;
        let change = LinkChange {
            mtu,
            up: (!link.up).then_some(true),
            promiscuous: (self.promiscuous && !link.promiscuous).then_some(true),
            link_local_learning: (self.guarded && link.link_local_learning == Some(true)).then_some(false),
            ..LinkChange::default()
        };
        if change != LinkChange::default() {
            host.change(link.index, &change)?;
        }
        Ok(Made::one(Interface { name: self.name.clone(), ..Interface::default() }))
    }

    /// Nothing but the option that macspoofchk depends on: after an upgrade, the bridge may have been made without it.
    fn restore(&self, context: &ApplyContext, _journal: &mut Journal) -> Result<()> {
        if !self.guarded {
            return Ok(());
        }
        let host = context.host()?;
        if let Some(link) = host.find_link(&self.name)?
            && link.link_local_learning == Some(true)
        {
            host.change(link.index, &LinkChange { link_local_learning: Some(false), ..LinkChange::default() })?;
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
        drifts.extend(router_adverts::ra_drift(&Inside::here(), &self.name, &router_adverts::ROUTES));
        verify_recorded(context, "bridge", &link, self.pinned, drifts);
        Ok(())
    }
}

/// Compares a link of the host that containers share with the record: it is there, and if its MAC is one that stays, with
/// that.
pub(crate) fn verify_recorded(context: &ApplyContext, what: &str, link: &Link, pinned: bool, drifts: &mut Drifts) {
    let name = &link.name;
    let recorded = context.record.interfaces.iter().find(|one| one.name == *name && one.sandbox.is_empty());
    drifts.unless(recorded.is_some(), || format!("{what} {name}: wanted in prevResult, found none"));
    if let Some(mac) = recorded.filter(|_| pinned).and_then(|one| one.mac.parse::<Mac>().ok()) {
        drifts.compare(format!("MAC of {name}"), mac, link.mac.unwrap_or(Mac([0; 6])));
    }
}

impl Bridge {
    /// Made down, so that nothing is heard before advertisements are off, with a MAC of its own, which no port that comes
    /// or goes can change. The MTU is said only afterwards: one that a bridge is made with does not stay when ports come.
    fn create(&self, host: &Netlink) -> Result<Link> {
        let vlan_filtering = (self.filtering != VlanFiltering::Any).then_some(true);
        let wanted = NewBridge {
            name: self.name.clone(),
            mac: Some(random_mac()?),
            mtu: None,
            vlan_filtering,
            link_local_learning: Some(false),
        };
        match host.create_bridge(&wanted) {
            Err(error) if error.exists() => Ok(host.link(&self.name)?), // another ADD was faster: adopt its bridge
            // With words of the kernel, it is bridges that it does not know.
            Err(error) if error.unsupported() && error.kernel.is_none() && vlan_filtering.is_some() => {
                Err(filters_none(&self.name))
            }
            made => Ok(made?),
        }
    }

    fn is_one(&self, link: &Link) -> Result<()> {
        if link.name != self.name {
            let text = format!("{:?} is an alternative name of {}", self.name, link.name);
            return Err(Error::conflict(text).hint(format!("set `bridge` to {:?}", link.name)));
        }
        if link.kind.as_deref() == Some("bridge") {
            return self.filters(link);
        }
        let name = &self.name;
        let kind = link.kind.as_deref().unwrap_or("physical or loopback");
        Err(Error::conflict(format!("{name:?} already exists but is not a bridge: its kind is {kind}")).hint(format!(
            "set `bridge` to another name, or remove that link with `ip link del {name}` if nobody needs it"
        )))
    }

    /// Without it, every frame would reach every port, whatever VLANs the ports are in.
    fn filters(&self, link: &Link) -> Result<()> {
        let name = &self.name;
        match (self.filtering, link.vlan_filtering, link.default_vlan) {
            (VlanFiltering::Any | VlanFiltering::IfMade, ..) | (_, Some(true), _) => Ok(()),
            (.., None) => Err(filters_none(name)),
            (.., Some(_)) => Err(Error::conflict(format!("bridge {name} does not filter by VLAN")).hint(format!(
                "`ip link set dev {name} type bridge vlan_filtering 1` if all who use it agree, or set `bridge` to another name"
            ))),
        }
    }
}

/// What is said of a bridge on a kernel that knows no VLANs.
fn filters_none(bridge: &str) -> Error {
    let text = format!("bridge {bridge} cannot tell VLANs apart: this kernel lacks CONFIG_BRIDGE_VLAN_FILTERING");
    Error::new(code::SYSTEM, text).hint("boot a kernel that has it, or drop `vlan` and `vlanTrunk`")
}

/// Random: two nodes that have a bridge of one name must not meet with one MAC.
pub(crate) fn random_mac() -> Result<Mac> {
    let mut bytes: [u8; 6] = random::bytes("a MAC")?;
    bytes[0] = (bytes[0] & 0xfc) | 0x02;
    Ok(Mac(bytes))
}

impl fmt::Display for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bridge {} on the host", self.name)?;
        self.mtu.iter().try_for_each(|mtu| write!(f, ", mtu {mtu} if it is made"))?;
        f.write_str(if self.promiscuous { ", promiscuous" } else { "" })?;
        f.write_str(if self.guarded { ", learning nothing from link-local groups" } else { "" })?;
        f.write_str(match self.filtering {
            VlanFiltering::Any => "",
            VlanFiltering::IfMade => ", filtering by VLAN if it is made",
            VlanFiltering::Required => ", filtering by VLAN",
        })
    }
}
