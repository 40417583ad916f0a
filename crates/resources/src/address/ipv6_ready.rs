//! Waiting until the kernel answers for new IPv6 addresses.

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

/// Waits until the kernel answers for these addresses. Usually it does already.
///
/// Even without duplicate address detection the kernel joins an address's multicast group later, in a work queue that needs the
/// lock for all links. On a busy node that takes a while, and a neighbour that solicits the address meanwhile repeats that only
/// after a second. The kernel adds the local route as the last step, so the route is polled.
#[doc(alias = "addrconf_dad_work")]
pub(crate) fn wait_ipv6_ready(netlink: &Netlink, addresses: &[IpNetwork]) -> Result<()> {
    let deadline = Deadline::after(TIMEOUT);
    for address in addresses.iter().filter(|address| address.is_ipv6()) {
        // After the deadline the ADD goes on: a neighbour then only waits for that second.
        while !is_local(netlink, address.ip())? && deadline.pause(PAUSE) {}
    }
    Ok(())
}

fn is_local(netlink: &Netlink, address: IpAddr) -> Result<bool> {
    Ok(netlink.route_for(address)?.is_some_and(|route| route.table == LOCAL_TABLE))
}
