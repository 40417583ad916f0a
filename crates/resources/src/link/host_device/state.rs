//! The stored state of a moved device: how it is recognised, and what it was on the host.

use cnikit_netlink::{AddressCopy, HardwareAddress, Link, Netlink, ParentDevice};
use cnikit_netns::Netns;
use cnikit_skel::Result;
use serde::{Deserialize, Serialize};

use crate::identity::alias::hex;
use crate::saved_settings::LinkValues;
use crate::state_file::StoredState;
use crate::stored_file::unhex;

/// A device that was moved into a container, as it was on the host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeviceState {
    pub(crate) identity: DeviceIdentity,
    pub(crate) before: LinkBefore,
}

impl StoredState for DeviceState {
    const ENDING: &'static str = ".host-device.json";
}

/// How a device is recognised again. Nothing here can be changed from inside a container.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct DeviceIdentity {
    /// The number of the link on the host.
    pub(crate) index: u32,
    /// The number in the container; `None` as long as it is not known.
    pub(crate) inside: Option<u32>,
    /// The kind of the link, such as `veth`. Hardware has none. The kernel destroys a link of a kind with its namespace.
    pub(crate) kind: Option<String>,
    /// The bus and the name of the device there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) parent: Option<ParentDevice>,
    /// The permanent hardware address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) permanent: Option<HardwareAddress>,
    /// The number of the other end of a veth that is on the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) peer: Option<u32>,
}

/// What a link was on the host.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct LinkBefore {
    pub(crate) name: String,
    pub(crate) alias: String,
    /// Alternative names; `None` if they are not known, and left as they are.
    pub(crate) altnames: Option<Vec<String>>,
    pub(crate) up: bool,
    pub(crate) group: u32,
    /// MAC, MTU, promiscuous mode, all-multicast mode, and the length of the queue.
    pub(crate) settings: LinkValues,
    /// The name of the bridge, bond or VRF that the link was a port of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) master: Option<String>,
    pub(crate) addresses: Vec<StoredAddress>,
}

/// An address with all its properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "AddressTexts", into = "AddressTexts")]
pub(crate) struct StoredAddress(pub(crate) AddressCopy);

/// An address as it is stored.
#[derive(Serialize, Deserialize)]
struct AddressTexts {
    /// For readers only.
    #[serde(default)]
    address: String,
    /// The kernel's message, in hexadecimal digits.
    message: String,
}

impl From<StoredAddress> for AddressTexts {
    fn from(StoredAddress(copy): StoredAddress) -> AddressTexts {
        AddressTexts { address: copy.address().address.to_string(), message: hex(&copy.to_bytes()) }
    }
}

impl TryFrom<AddressTexts> for StoredAddress {
    type Error = String;

    fn try_from(texts: AddressTexts) -> Result<StoredAddress, String> {
        let copy = unhex(&texts.message).and_then(|bytes| AddressCopy::from_bytes(&bytes));
        match copy {
            Some(copy) => Ok(StoredAddress(copy)),
            None => Err(format!("{:?} is not an address", texts.message)),
        }
    }
}

impl DeviceState {
    /// The state of a link of the host, before it is moved into this container.
    pub(crate) fn of(link: &Link, host: &Netlink, container: &Netlink) -> Result<DeviceState> {
        let is_free = container.find_link_at(link.index)?.is_none();
        let is_veth_of_host = link.kind.as_deref() == Some("veth") && link.lower_netns.is_none();
        let identity = DeviceIdentity {
            index: link.index,
            inside: is_free.then_some(link.index),
            kind: link.kind.clone(),
            parent: link.parent.clone(),
            permanent: link.permanent_address.clone(),
            peer: if is_veth_of_host { link.lower } else { None },
        };
        let master = match link.master {
            Some(index) => host.find_link_at(index)?.map(|master| master.name),
            None => None,
        };
        let settings = LinkValues {
            mac: link.mac,
            mtu: Some(link.mtu),
            promisc: Some(link.promiscuous),
            allmulti: Some(link.all_multicast),
            tx_queue_length: Some(link.tx_queue_length),
        };
        let before = LinkBefore {
            name: link.name.clone(),
            alias: link.alias.clone().unwrap_or_default(),
            altnames: Some(link.altnames.clone()),
            up: link.up,
            group: link.group,
            settings,
            master,
            addresses: host.address_copies_of(link.index)?.into_iter().map(StoredAddress).collect(),
        };
        Ok(DeviceState { identity, before })
    }

    /// The device in the container. Its name, alias and addresses do not matter there: a container may change all of them.
    pub(crate) fn find_inside(&self, host: &Netlink, netns: &Netns, ifname: &str) -> Result<Option<Link>> {
        let container = Netlink::inside(netns)?;
        let at_index = match self.identity.inside {
            Some(index) => container.find_link_at(index)?,
            // ADD was killed before it wrote down the number: no process of the container had run.
            None => container.find_link(ifname)?.filter(|link| link.alias.as_ref() == Some(&self.before.name)),
        };
        if let Some(link) = at_index
            && self.identity.is_at_its_index(&link)
            && self.identity.peer_agrees(host, &link, Some(netns))?
        {
            return Ok(Some(link));
        }
        Ok(self.identity.hardware_among(container.links()?))
    }

    /// The device on the host.
    pub(crate) fn find_on_host(&self, host: &Netlink) -> Result<Option<Link>> {
        if let Some(link) = host.find_link_at(self.identity.index)?
            && self.identity.is_at_its_index(&link)
            && (link.name == self.before.name || link.alias.as_ref() == Some(&self.before.name))
            && self.identity.peer_agrees(host, &link, None)?
        {
            return Ok(Some(link));
        }
        if self.identity.is_hardware() { Ok(self.identity.hardware_among(host.links()?)) } else { Ok(None) }
    }
}

impl DeviceIdentity {
    /// Whether the kernel can tell the device from every other one.
    pub(crate) fn is_hardware(&self) -> bool {
        self.kind.is_none() && (self.parent.is_some() || self.permanent.is_some())
    }

    /// Whether a link that has the number of the device may be the device.
    fn is_at_its_index(&self, link: &Link) -> bool {
        let is_other_port = self.permanent.is_some()
            && link.permanent_address.is_some()
            && self.permanent != link.permanent_address
            && self.parent.is_none();
        link.kind == self.kind && self.is_of_the_device(link) && !is_other_port
    }

    /// Whether the link is one of the same device. Linux before 5.14 tells the permanent address of a link, but not its device.
    fn is_of_the_device(&self, link: &Link) -> bool {
        let is_untold = link.parent.is_none() && link.permanent_address.is_some();
        link.parent == self.parent || is_untold && link.permanent_address == self.permanent
    }

    /// For a veth whose other end is on the host: whether that is the other end of this link. A container cannot make a link with
    /// such an end.
    fn peer_agrees(&self, host: &Netlink, link: &Link, netns: Option<&Netns>) -> Result<bool> {
        let Some(peer) = self.peer else { return Ok(true) };
        let Some(peer) = host.find_link_at(peer)? else { return Ok(false) };
        if peer.kind.as_deref() != Some("veth") || peer.lower != Some(link.index) {
            return Ok(false);
        }
        match netns {
            None => Ok(peer.lower_netns.is_none()),
            Some(netns) => Ok(peer.lower_netns.is_some() && host.namespace_id(netns)? == peer.lower_netns),
        }
    }

    /// The device among these links, by its bus and its permanent address. A driver may change the latter, so a link alone on its
    /// device counts too.
    pub(crate) fn hardware_among(&self, mut links: Vec<Link>) -> Option<Link> {
        if !self.is_hardware() {
            return None;
        }
        links.retain(|link| link.kind.is_none() && self.is_of_the_device(link));
        if self.permanent.is_some()
            && let Some(link) = links.iter().find(|link| link.permanent_address == self.permanent)
        {
            return Some(link.clone());
        }
        let is_alone = self.parent.is_some() && links.len() == 1;
        if is_alone { links.pop() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> Option<HardwareAddress> {
        HardwareAddress::new(&[2, 0, 0, 0, 0, last])
    }

    fn place(name: &str) -> ParentDevice {
        let mut place = ParentDevice::default();
        place.bus = "pci".into();
        place.name = name.into();
        place
    }

    fn link(name: &str, kind: Option<&str>, parent: Option<ParentDevice>, permanent: Option<HardwareAddress>) -> Link {
        let mut link = Link::default();
        link.name = name.into();
        link.kind = kind.map(str::to_owned);
        link.parent = parent;
        link.permanent_address = permanent;
        link
    }

    fn identity(of: &Link) -> DeviceIdentity {
        DeviceIdentity {
            index: 7,
            inside: None,
            kind: of.kind.clone(),
            parent: of.parent.clone(),
            permanent: of.permanent_address.clone(),
            peer: None,
        }
    }

    /// Names among which hardware is looked for, and the one that is found.
    fn found(identity: &DeviceIdentity, among: &[&Link]) -> Option<String> {
        identity.hardware_among(among.iter().map(|link| (*link).clone()).collect()).map(|link| link.name)
    }

    #[test]
    fn hardware_is_what_has_no_kind_and_a_place_on_a_bus_or_an_address_of_its_own() {
        for (kind, place, permanent, is) in [
            (None, Some(place("0000:00:03.0")), address(1), true),
            (None, Some(place("0000:00:03.0")), None, true),
            (None, None, address(1), true),
            (None, None, None, false),
            (Some("dummy"), None, address(1), false),
            (Some("veth"), Some(place("0000:00:03.0")), None, false),
        ] {
            assert_eq!(identity(&link("a", kind, place, permanent)).is_hardware(), is);
        }
    }

    #[test]
    fn a_number_that_another_device_has_by_now_is_not_the_device() {
        let card = link("a", None, Some(place("0000:00:03.0")), address(1));
        let of_card = identity(&card);
        assert!(of_card.is_at_its_index(&card));
        assert!(of_card.is_at_its_index(&link("b", None, Some(place("0000:00:03.0")), address(1))), "a name changes");
        assert!(!of_card.is_at_its_index(&link("a", None, Some(place("0000:00:04.0")), address(1))));
        assert!(!of_card.is_at_its_index(&link("a", Some("dummy"), Some(place("0000:00:03.0")), address(1))));
        // Kernels before 5.14 do not tell the place on the bus.
        assert!(of_card.is_at_its_index(&link("a", None, None, address(1))));
        assert!(!of_card.is_at_its_index(&link("a", None, None, address(2))));
        assert!(!of_card.is_at_its_index(&link("a", None, None, None)));
        let unplaced = identity(&link("a", None, None, address(1)));
        assert!(!unplaced.is_at_its_index(&link("a", None, None, address(2))), "another port");
        assert!(unplaced.is_at_its_index(&link("b", None, None, address(1))), "the same one");
        let untold = identity(&link("a", None, None, None));
        assert!(untold.is_at_its_index(&link("a", None, None, address(1))), "an older state has no address");
        let dummy = identity(&link("a", Some("dummy"), None, None));
        assert!(dummy.is_at_its_index(&link("a", Some("dummy"), None, None)));
        assert!(!dummy.is_at_its_index(&link("a", Some("veth"), None, None)));
    }

    #[test]
    fn hardware_is_found_by_its_address_or_as_the_only_port_of_its_place() {
        let there = || Some(place("0000:00:03.0"));
        let (one, two) = (link("one", None, there(), address(1)), link("two", None, there(), address(2)));
        let other = link("other", None, Some(place("0000:00:04.0")), address(1));
        let macvlan = link("macvlan", Some("macvlan"), there(), address(1));
        assert_eq!(found(&identity(&two), &[&other, &one, &macvlan, &two]).as_deref(), Some("two"));
        assert_eq!(found(&identity(&two), &[&one]).as_deref(), Some("one"), "the card has one port and a new address");
        let third = link("third", None, there(), address(3));
        assert_eq!(found(&identity(&third), &[&one, &two]), None, "which of two ports it was is not known");
        assert_eq!(found(&identity(&one), &[&other, &macvlan]), None);
        let without = link("without", None, there(), None);
        assert_eq!(found(&identity(&without), &[&other, &one]).as_deref(), Some("one"));
        let unplaced = link("unplaced", None, None, address(1));
        assert_eq!(found(&identity(&unplaced), &[&link("a", None, None, address(2))]), None);
        assert_eq!(found(&identity(&unplaced), &[&link("b", None, None, address(1))]).as_deref(), Some("b"));
        let dummy = link("dummy", Some("dummy"), None, None);
        assert_eq!(found(&identity(&dummy), &[&dummy]), None, "any program can make another one");
    }
}
