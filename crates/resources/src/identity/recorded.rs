//! What the record of an ADD says about the container's interface.

use cnikit_netlink::{Link, Mac, Netlink};
use cnikit_plan::{ApplyContext, Drifts};
use cnikit_skel::Result;
use cnikit_types::{CniResult, Interface};
use ipnetwork::IpNetwork;

/// Compares the container's interface with the record, which later plugins that changed something have brought up to date.
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
    // A plugin further on that changes the MTU may say so in the record; if nobody said any, it does not have to.
    if let Some(mtu) = mtu.map(|mtu| recorded.mtu.unwrap_or(mtu)) {
        drifts.compare(format!("MTU of {ifname}"), mtu, found.mtu);
    }
}

/// A record that lists addresses, of which the link has none, is the record of another link.
pub(crate) fn has_address_of(record: Option<&CniResult>, netlink: &Netlink, link: &Link) -> Result<bool> {
    let recorded: Vec<IpNetwork> = record.into_iter().flat_map(|record| &record.ips).map(|ip| ip.address).collect();
    if recorded.is_empty() {
        return Ok(true);
    }
    Ok(netlink.addresses(link.index)?.iter().any(|one| recorded.contains(&one.address)))
}

/// A record that lists interfaces, but none of the container's with this name and MAC, is the record of another link.
pub(crate) fn has_mac_of(record: Option<&CniResult>, ifname: &str, link: &Link) -> bool {
    let mut recorded = record.into_iter().flat_map(|record| &record.interfaces).peekable();
    let is_link = |one: &Interface| {
        let mac = one.mac.parse::<Mac>();
        one.name == ifname && !one.sandbox.is_empty() && mac.is_ok_and(|mac| link.mac == Some(mac))
    };
    recorded.peek().is_none() || recorded.any(is_link)
}
