//! A bridge on the host.

use std::fmt;

use cnikit_netlink::{Change, Link, Mac, Netlink, NewBridge};
use cnikit_netns::Inside;
use cnikit_plan::{Drifts, Kind, Made, Resource, Scene};
use cnikit_skel::{Error, Journal, Result, code};
use cnikit_types::Interface;

use crate::layer3::Detection;
use crate::quiet;

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
}

impl Resource for Bridge {
    fn kind(&self) -> Kind {
        Kind::shared("bridge")
    }

    fn judge(&self, scene: &Scene) -> Result<()> {
        scene.host()?.find_link(&self.name)?.map_or(Ok(()), |link| self.is_one(&link))
    }

    fn ensure(&self, scene: &Scene, _journal: &mut Journal) -> Result<Made> {
        let host = scene.host()?;
        let found = host.find_link(&self.name)?;
        let mtu = self.mtu.filter(|_| found.is_none());
        let link = found.map_or_else(|| self.create(host), Ok)?;
        self.is_one(&link)?;
        self.quiet(&link)?;
        let change = Change {
            mtu,
            up: (!link.up).then_some(true),
            promiscuous: (self.promiscuous && !link.promiscuous).then_some(true),
            ..Change::default()
        };
        if change != Change::default() {
            host.change(link.index, &change)?;
        }
        Ok(Made::one(Interface { name: self.name.clone(), ..Interface::default() }))
    }

    fn verify(&self, scene: &Scene, drifts: &mut Drifts) -> Result<()> {
        let Some(link) = scene.host()?.find_link(&self.name)? else {
            drifts.unless(false, || format!("bridge {}: wanted on the host, found none", self.name));
            return Ok(());
        };
        drifts.compare(format!("kind of {}", self.name), "bridge", link.kind.as_deref().unwrap_or("none"));
        drifts.unless(link.up, || format!("bridge {}: wanted up, found down", self.name));
        drifts.unless(!self.promiscuous || link.promiscuous, || {
            format!("bridge {}: wanted promiscuous, found not", self.name)
        });
        drifts.extend(quiet::loud(&Inside::here(), &self.name, &quiet::ROUTES));
        let recorded = scene.record.interfaces.iter().find(|one| one.name == self.name && one.sandbox.is_empty());
        drifts.unless(recorded.is_some(), || format!("bridge {}: wanted in prevResult, found none", self.name));
        if let Some(mac) = recorded.filter(|_| self.pinned).and_then(|one| one.mac.parse::<Mac>().ok()) {
            drifts.compare(format!("MAC of {}", self.name), mac, link.mac.unwrap_or(Mac([0; 6])));
        }
        Ok(())
    }
}

impl Bridge {
    /// Made down, so that nothing is heard before advertisements are off, with a MAC of its own, which no port that comes
    /// or goes can change. The MTU is said only afterwards: one that a bridge is made with does not stay when ports come.
    fn create(&self, host: &Netlink) -> Result<Link> {
        let wanted = NewBridge { name: self.name.clone(), mac: Some(random_mac()?), mtu: None, vlan_filtering: None };
        match host.create_bridge(&wanted) {
            Err(error) if error.exists() => Ok(host.link(&self.name)?), // another ADD was faster: adopt its bridge
            made => Ok(made?),
        }
    }

    /// One that is still down was made just now, or by an ADD that was killed before it got this far: nobody relies on its
    /// settings yet. One that is up keeps them but for the routes that anybody could advertise.
    fn quiet(&self, link: &Link) -> Result<()> {
        let here = Inside::here();
        if link.up {
            return quiet::quiet(&here, &self.name, &quiet::ROUTES);
        }
        if self.detection == Detection::Off {
            quiet::undetected(&here, &self.name);
        }
        quiet::quiet(&here, &self.name, &quiet::ALL)
    }

    fn is_one(&self, link: &Link) -> Result<()> {
        if link.name != self.name {
            let text = format!("{:?} is an alternative name of {}", self.name, link.name);
            return Err(Error::conflict(text).remedy(format!("set `bridge` to {:?}", link.name)));
        }
        if link.kind.as_deref() == Some("bridge") {
            return Ok(());
        }
        let (name, kind) = (&self.name, link.kind.as_deref().unwrap_or("physical or loopback"));
        Err(Error::conflict(format!("{name:?} already exists but is not a bridge: its kind is {kind}")).remedy(
            format!("set `bridge` to another name, or remove that link with `ip link del {name}` if nobody needs it"),
        ))
    }
}

/// Random: two nodes that have a bridge of one name must not meet with one MAC.
fn random_mac() -> Result<Mac> {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::new(code::SYSTEM, format!("no random bytes for a MAC: {error}")))?;
    bytes[0] = (bytes[0] & 0xfc) | 0x02;
    Ok(Mac(bytes))
}

impl fmt::Display for Bridge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "bridge {} on the host", self.name)?;
        self.mtu.iter().try_for_each(|mtu| write!(f, ", mtu {mtu} if it is made"))?;
        f.write_str(if self.promiscuous { ", promiscuous" } else { "" })
    }
}
