//! IPv6 addresses that a link has, but that the kernel does not answer for yet.

use std::net::IpAddr;
use std::time::Duration;

use cnikit_netlink::Netlink;
use cnikit_process::Deadline;
use cnikit_skel::Result;
use ipnetwork::IpNetwork;

/// `RT_TABLE_LOCAL`.
const LOCAL_TABLE: u32 = 255;
const TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(1);

/// Waits until the kernel has taken these addresses up, usually not at all.
///
/// Even without duplicate address detection it joins an address's multicast group in a queue of its own, whenever that gets
/// the kernel's one lock for all links; on a busy node that takes a while, and whoever asks for the address meanwhile asks
/// again a second later. The local route comes last and can be seen.
#[doc(alias = "addrconf_dad_work")]
pub(crate) fn wait_ipv6_ready(netlink: &Netlink, addresses: &[IpNetwork]) -> Result<()> {
    let deadline = Deadline::after(TIMEOUT);
    for address in addresses.iter().filter(|address| address.is_ipv6()) {
        // Past the deadline nothing is lost but the second.
        while !is_local(netlink, address.ip())? && deadline.pause(PAUSE) {}
    }
    Ok(())
}

fn is_local(netlink: &Netlink, address: IpAddr) -> Result<bool> {
    Ok(netlink.route_for(address)?.is_some_and(|route| route.table == LOCAL_TABLE))
}
