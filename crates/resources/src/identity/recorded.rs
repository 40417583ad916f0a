//! Comparisons of links with the record of an ADD: its result, which CHECK and DEL are given as prevResult.

use cnikit_netlink::{Link, Mac, Netlink};
use cnikit_plan::{ApplyContext, Drifts};
use cnikit_skel::Result;
use cnikit_types::CniResult;
use ipnetwork::IpNetwork;

/// Compares the MAC and the MTU of the container's interface with the record. A later plugin of the chain that changed one of them
/// has changed the record too.
pub(crate) fn verify(context: &ApplyContext, ifname: &str, mtu: Option<u32>, found: &Link, drifts: &mut Drifts) {
    let Some(recorded) = context.recorded() else {
        drifts.unless(false, || {
            format!("Sandbox in prevResult: wanted {ifname} in {}, found no such interface", context.sandbox)
        });
        return;
    };
    if let Ok(mac) = recorded.mac.parse::<Mac>() {
        drifts.compare(format!("MAC of {ifname}"), mac, found.mac.unwrap_or(Mac([0; 6])));
    }
    // Without a configured MTU the record's is not compared either: a later plugin may have changed it without recording it.
    if let Some(configured) = mtu {
        drifts.compare(format!("MTU of {ifname}"), recorded.mtu.unwrap_or(configured), found.mtu);
    }
}

/// Compares a link of the host that containers share with the record. Its MAC is compared if it is `pinned`.
pub(crate) fn verify_shared(context: &ApplyContext, what: &str, link: &Link, pinned: bool, drifts: &mut Drifts) {
    let name = &link.name;
    let recorded = context.record.interfaces.iter().find(|one| one.name == *name && one.sandbox.is_empty());
    let Some(recorded) = recorded else {
        drifts.unless(false, || format!("{what} {name}: wanted in prevResult, found none"));
        return;
    };
    if pinned && let Ok(mac) = recorded.mac.parse::<Mac>() {
        drifts.compare(format!("MAC of {name}"), mac, link.mac.unwrap_or(Mac([0; 6])));
    }
}

/// Whether the link has an address of the record. A record that lists addresses, none of which the link has, is the record of
/// another link; a record without addresses tells nothing.
pub(crate) fn has_address_of(record: Option<&CniResult>, netlink: &Netlink, link: &Link) -> Result<bool> {
    let recorded: Vec<IpNetwork> = record.into_iter().flat_map(|record| &record.ips).map(|ip| ip.address).collect();
    if recorded.is_empty() {
        return Ok(true);
    }
    Ok(netlink.addresses(link.index)?.iter().any(|one| recorded.contains(&one.address)))
}

/// Whether the record lists an interface of the container with this name and MAC. A record that lists interfaces, but not this one,
/// is the record of another link; a record without interfaces tells nothing.
pub(crate) fn has_mac_of(record: Option<&CniResult>, ifname: &str, link: &Link) -> bool {
    let Some(record) = record else { return true };
    if record.interfaces.is_empty() {
        return true;
    }
    for interface in &record.interfaces {
        if interface.name == ifname
            && !interface.sandbox.is_empty()
            && let Ok(mac) = interface.mac.parse::<Mac>()
            && link.mac == Some(mac)
        {
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use cnikit_types::Interface;

    use super::*;

    #[test]
    fn a_link_is_the_recorded_one_if_an_interface_of_the_container_has_its_name_and_mac() {
        let mac = "02:00:00:00:00:01";
        let mut link = Link::default();
        link.mac = mac.parse().ok();
        let of = |name: &str, mac: &str, sandbox: &str| Interface {
            name: name.into(),
            mac: mac.into(),
            sandbox: sandbox.into(),
            ..Interface::default()
        };
        let other = of("eth1", "02:00:00:00:00:09", "/run/netns/a");
        for (interface, is_recorded) in [
            (of("eth0", mac, "/run/netns/a"), true),
            (of("eth0", mac, ""), false),
            (of("eth1", mac, "/run/netns/a"), false),
            (of("eth0", "02:00:00:00:00:02", "/run/netns/a"), false),
            (of("eth0", "", "/run/netns/a"), false),
        ] {
            let record = CniResult { interfaces: vec![other.clone(), interface.clone()], ..CniResult::default() };
            assert_eq!(has_mac_of(Some(&record), "eth0", &link), is_recorded, "{interface:?}");
        }
        assert!(has_mac_of(None, "eth0", &link) && has_mac_of(Some(&CniResult::default()), "eth0", &link));
        let record = CniResult { interfaces: vec![of("eth0", "", "/run/netns/a")], ..CniResult::default() };
        assert!(!has_mac_of(Some(&record), "eth0", &Link::default()), "neither has a MAC");
    }
}
