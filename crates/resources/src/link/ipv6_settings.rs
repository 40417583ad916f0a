//! IPv6 sysctls of the links that plugins make: router advertisements, duplicate address detection, forwarding.

use cnikit_netlink::Link;
use cnikit_netns::{Inside, sysctl};
use cnikit_skel::{Error, Result};

/// Duplicate address detection (RFC 4862).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "DAD")]
pub enum Detection {
    /// No detection: no other host is on the segment, and the IPAM plugin assigns each address once. Addresses can be used at once.
    Off,
    /// Detect, and wait for the outcome.
    Full,
}

impl Detection {
    /// [`Detection::Full`] if it is wanted, otherwise [`Detection::Off`].
    pub fn wished(wish: bool) -> Detection {
        if wish { Detection::Full } else { Detection::Off }
    }
}

/// The settings by which a link accepts routes and makes addresses from router advertisements.
pub(crate) const ALL: [&str; 2] = ["accept_ra", "autoconf"];
/// The setting by which a link accepts routes, for an adopted bridge. Its owner may want the others.
pub(crate) const ROUTES: [&str; 1] = ["accept_ra"];

/// Switches these settings of a link off, before it could receive an advertisement.
///
/// If IPv6 is disabled on the link there is nothing to switch off. If it is enabled, a setting that is not 0 and cannot be set to 0
/// is an error: any neighbour could redirect the container's traffic (CVE-2020-10749).
pub(crate) fn ignore_router_adverts(inside: &Inside, link: &str, settings: &[&str]) -> Result<()> {
    for setting in settings {
        let key = format!("net/ipv6/conf/{link}/{setting}");
        match sysctl::set(inside, &key, "0") {
            Err(error) if !error.is_absent() && !is_disabled(inside, link) => {
                return Err(Error::from(error).hint(format!(
                    "router advertisements from any neighbour would be accepted: make /proc/sys/{key} writable, \
                     set it to 0, or switch IPv6 off"
                )));
            }
            _ => {}
        }
    }
    Ok(())
}

/// Configures a link of the host that containers share.
///
/// A link that is down was made just now, or by an ADD that was killed before this step, so nothing relies on its settings yet. A
/// link that is up keeps its settings, but ignores advertised routes from now on.
pub(crate) fn configure_shared(link: &Link, detection: Detection) -> Result<()> {
    let here = Inside::here();
    if link.up {
        return ignore_router_adverts(&here, &link.name, &ROUTES);
    }
    if detection == Detection::Off {
        disable_dad(&here, &link.name);
    }
    ignore_router_adverts(&here, &link.name, &ALL)
}

/// Switches duplicate address detection off, for a link whose segment has addresses of the plugin alone. As long as the link-local
/// address is under detection, a second or two, the host could not even solicit a neighbour on the link.
pub(crate) fn disable_dad(inside: &Inside, link: &str) {
    // Without IPv6 there is no such setting. If it cannot be written, IPv6 only starts more slowly.
    let _ = sysctl::set(inside, &format!("net/ipv6/conf/{link}/accept_dad"), "0");
}

/// Switches IPv6 forwarding off for a bridge port, which does not route: its packets enter the host by the bridge.
///
/// Where the host forwards IPv6, the kernel would add an anycast address for the port's link-local one. Removing that address holds
/// the link for a second grace period of RCU, so that DEL would take twice as long.
pub(crate) fn disable_forwarding(inside: &Inside, port: &str) {
    // Without IPv6 there is no such setting. If it cannot be written, DEL is only slower.
    let _ = sysctl::set(inside, &format!("net/ipv6/conf/{port}/forwarding"), "0");
}

/// The settings of a link that are not as [`ignore_router_adverts`] leaves them, each with its value.
pub(crate) fn ra_drift(link: &Link, settings: &[&str]) -> Vec<String> {
    let Some(found) = link.ipv6.filter(|found| !found.disabled) else { return Vec::new() };
    let values = [("accept_ra", found.accept_ra), ("autoconf", found.autoconf)];
    let wrong = values.iter().filter(|(setting, value)| settings.contains(setting) && *value != 0);
    wrong.map(|(setting, value)| format!("{setting} of {}: wanted 0, found {value}", link.name)).collect()
}

/// Whether IPv6 is disabled on a link.
fn is_disabled(inside: &Inside, link: &str) -> bool {
    sysctl::read(inside, &format!("net/ipv6/conf/{link}/disable_ipv6")).is_ok_and(|value| value == "1")
}
