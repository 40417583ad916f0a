//! Settings of the container's interface, which somebody else has made.

use std::fmt;
use std::path::PathBuf;

use cnikit_netlink::{Link, LinkChange, Mac, Netlink};
use cnikit_netns::Netns;
use cnikit_plan::{ApplyContext, Drifts, Kind, Made, Resource};
use cnikit_skel::{AttachmentId, Error, Errors, Journal, Result};
use serde::{Deserialize, Serialize};

use crate::link::mac_holder::Behind;
use crate::saved_settings::{self, Lent};

/// The container's interface has these settings. It is lent: what they were before is kept, and given back.
#[derive(Clone, Debug)]
pub struct LinkSettings {
    /// The interface.
    pub ifname: String,
    /// Its settings.
    pub settings: LinkValues,
    /// Where the settings from before are kept; see [`saved_settings::kept_in`].
    pub kept_in: PathBuf,
}

/// Some settings of a link: as they are wanted, or as they were. The names are those of the file they are kept in.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct LinkValues {
    /// Its hardware address.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mac: Option<Mac>,
    /// In bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Whether it takes all packets.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub promisc: Option<bool>,
    /// Whether it takes the packets of all groups.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allmulti: Option<bool>,
    /// How many packets its queue takes.
    #[serde(rename = "txQLen", skip_serializing_if = "Option::is_none")]
    pub tx_queue_length: Option<u32>,
}

/// The kind that these are of.
pub const KIND: Kind = Kind {
    name: "link settings",
    release: |context| saved_settings::release(context, give_back),
    sweep: |context| saved_settings::sweep(context, give_back),
    outlives_link: true,
};

impl Resource for LinkSettings {
    fn kind(&self) -> Kind {
        KIND
    }

    /// The interface is there and can have this MTU, and what it had can be kept.
    fn preflight(&self, context: &ApplyContext) -> Result<()> {
        let link = self.link(context)?;
        let (wanted, _) = self.settings.differing(&link);
        let most = link.max_mtu.unwrap_or(u32::MAX);
        if let Some(mtu) = wanted.mtu.filter(|mtu| !(link.min_mtu..=most).contains(mtu)) {
            let text = format!("{} cannot have the MTU {mtu}: it takes {} to {most}", self.ifname, link.min_mtu);
            return Err(Error::config(text).hint("correct `mtu`"));
        }
        if let Some(mac) = wanted.mac
            && let Some(behind) = Behind::find(context.host()?, &context.netns, &link)?
        {
            behind.refuse_held(mac)?;
        }
        if wanted == LinkValues::default() { Ok(()) } else { saved_settings::available(&self.kept_in) }
    }

    /// All in one message, of which the kernel may refuse a part when it has done another.
    fn ensure(&self, context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let container = context.container()?;
        let link = self.link(context)?;
        let (wanted, before) = self.settings.differing(&link);
        if wanted == LinkValues::default() {
            return Ok(Made::nothing());
        }
        saved_settings::record(context, &self.kept_in, journal, &Lent { link: before.clone(), ..Lent::default() })?;
        let behind = match wanted.mac {
            Some(_) => Behind::find(context.host()?, &context.netns, &link)?,
            None => None,
        };
        let was = Was {
            container: container.clone(),
            link: link.clone(),
            before,
            tag: context.tag.clone(),
            behind: behind.clone(),
        };
        let _ = journal.undo(&was, Was::put_back);
        container.change(link.index, &wanted.change())?;
        if let (Some(behind), Some(mac)) = (behind, wanted.mac) {
            behind.record(&context.tag, mac)?;
            // Another attachment may have got the same MAC since it was compared. Of two that compare now, both may be refused.
            behind.refuse_held(mac)?;
        }
        Ok(Made::nothing())
    }

    /// Where the record, which later plugins of the chain may have changed, says another MAC or MTU, that is as good.
    fn verify(&self, context: &ApplyContext, drifts: &mut Drifts) -> Result<()> {
        let name = &self.ifname;
        let recorded = context.recorded();
        let Some(link) = context.container()?.find_recent_link(name)? else {
            drifts.unless(false, || format!("interface {name}: wanted in the container, found none"));
            return Ok(());
        };
        let mac = recorded.and_then(|one| one.mac.parse().ok());
        let mtu = recorded.and_then(|one| one.mtu);
        let (mut wanted, found) = self.settings.differing(&link);
        wanted.mac = wanted.mac.filter(|_| link.mac != mac);
        wanted.mtu = wanted.mtu.filter(|_| Some(link.mtu) != mtu);
        let found = found.words();
        for (of, wanted) in wanted.words() {
            let found = found.iter().find(|(other, _)| *other == of).map(|(_, found)| found.as_str());
            drifts.compare(format!("{of} of {name}"), wanted.as_str(), found.unwrap_or("none"));
        }
        Ok(())
    }
}

impl LinkSettings {
    fn link(&self, context: &ApplyContext) -> Result<Link> {
        let absent = || {
            Error::conflict(format!("Cannot find container link {} in {}", self.ifname, context.sandbox))
                .hint("a plugin that makes the interface has to come before this one in the list")
        };
        context.container()?.find_recent_link(&self.ifname)?.ok_or_else(absent)
    }
}

impl fmt::Display for LinkSettings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<String> = self.settings.words().into_iter().map(|(of, value)| format!("{of} {value}")).collect();
        let ifname = &self.ifname;
        let kept_in = self.kept_in.display();
        write!(f, "{ifname} in the container with {}; what it had is kept in {kept_in}", words.join(", "))
    }
}

impl LinkValues {
    /// Those that a link has otherwise, and what it has instead.
    fn differing(&self, link: &Link) -> (LinkValues, LinkValues) {
        let mtu = self.mtu.filter(|mtu| *mtu != link.mtu);
        let mac = self.mac.filter(|mac| Some(*mac) != link.mac);
        let promisc = self.promisc.filter(|on| *on != link.promiscuous);
        let allmulti = self.allmulti.filter(|on| *on != link.all_multicast);
        let tx_queue_length = self.tx_queue_length.filter(|length| *length != link.tx_queue_length);
        let found = LinkValues {
            mac: mac.and(link.mac),
            mtu: mtu.map(|_| link.mtu),
            promisc: promisc.map(|_| link.promiscuous),
            allmulti: allmulti.map(|_| link.all_multicast),
            tx_queue_length: tx_queue_length.map(|_| link.tx_queue_length),
        };
        (LinkValues { mac, mtu, promisc, allmulti, tx_queue_length }, found)
    }

    /// These, and where they say nothing the others.
    pub(crate) fn or(&self, others: &LinkValues) -> LinkValues {
        LinkValues {
            mac: self.mac.or(others.mac),
            mtu: self.mtu.or(others.mtu),
            promisc: self.promisc.or(others.promisc),
            allmulti: self.allmulti.or(others.allmulti),
            tx_queue_length: self.tx_queue_length.or(others.tx_queue_length),
        }
    }

    /// Each that is said, alone.
    fn each(&self) -> Vec<LinkValues> {
        let none = LinkValues::default();
        let all = [
            LinkValues { mac: self.mac, ..none.clone() },
            LinkValues { mtu: self.mtu, ..none.clone() },
            LinkValues { promisc: self.promisc, ..none.clone() },
            LinkValues { allmulti: self.allmulti, ..none.clone() },
            LinkValues { tx_queue_length: self.tx_queue_length, ..none.clone() },
        ];
        all.into_iter().filter(|one| *one != none).collect()
    }

    fn change(&self) -> LinkChange {
        LinkChange {
            mac: self.mac,
            mtu: self.mtu,
            promiscuous: self.promisc,
            all_multicast: self.allmulti,
            tx_queue_length: self.tx_queue_length,
            ..LinkChange::default()
        }
    }

    /// What is said, in words.
    fn words(&self) -> Vec<(&'static str, String)> {
        let switched = |on: Option<bool>| on.map(|on| if on { "on".to_owned() } else { "off".to_owned() });
        let all = [
            ("MAC", self.mac.map(|mac| mac.to_string())),
            ("MTU", self.mtu.map(|mtu| mtu.to_string())),
            ("promisc", switched(self.promisc)),
            ("allmulti", switched(self.allmulti)),
            ("txQLen", self.tx_queue_length.map(|length| length.to_string())),
        ];
        all.into_iter().filter_map(|(of, value)| Some((of, value?))).collect()
    }
}

/// A link as this ADD found it.
#[derive(Clone)]
struct Was {
    container: Netlink,
    link: Link,
    before: LinkValues,
    tag: AttachmentId,
    behind: Option<Behind>,
}

impl Was {
    fn put_back(&self) -> Result<()> {
        put(&self.container, &self.link.name, &self.before)?;
        match (&self.behind, self.before.mac) {
            (Some(behind), Some(mac)) => behind.record(&self.tag, mac),
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Was {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "settings of {}", self.link.name)
    }
}

fn give_back(lent: &mut Lent, ifname: &str, netns: Option<&Netns>) -> Result<()> {
    let before = std::mem::take(&mut lent.link);
    let Some(netns) = netns else { return Ok(()) };
    if before == LinkValues::default() {
        return Ok(());
    }
    let container = Netlink::inside(netns)?;
    put(&container, ifname, &before)?;
    let (Some(mac), Some(owner)) = (before.mac, &lent.owner) else { return Ok(()) };
    if let Some(link) = container.find_link(ifname)?
        && link.mac == Some(mac)
        && let Some(behind) = Behind::find(&Netlink::here()?, netns, &link)?
    {
        behind.record(&owner.tag(), mac)?;
    }
    Ok(())
}

/// A link that is gone needs nothing, and a value that the kernel refuses by now holds back no other.
fn put(netlink: &Netlink, ifname: &str, settings: &LinkValues) -> Result<()> {
    let Some(link) = netlink.find_link(ifname)? else { return Ok(()) };
    let (changed, _) = settings.differing(&link);
    if changed == LinkValues::default() {
        return Ok(());
    }
    match netlink.change(link.index, &changed.change()) {
        Err(error) if saved_settings::is_verdict(error.errno) => {
            changed.each().iter().map(|one| put_one(netlink, &link, one)).collect::<Errors>().finish()
        }
        Err(error) if !error.is_absent() => Err(error.into()),
        _ => Ok(()),
    }
}

fn put_one(netlink: &Netlink, link: &Link, one: &LinkValues) -> Result<()> {
    match netlink.change(link.index, &one.change()) {
        Err(error) if saved_settings::is_verdict(error.errno) => {
            let words: Vec<String> = one.words().into_iter().map(|(of, value)| format!("{of} {value}")).collect();
            saved_settings::give_up(error.during("give back", format!("{} to {}", words.join(", "), link.name)));
            Ok(())
        }
        Err(error) if !error.is_absent() => Err(error.into()),
        _ => Ok(()),
    }
}
