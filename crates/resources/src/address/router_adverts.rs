//! Router advertisements are not for links of ours to hear.

use cnikit_netlink::Link;
use cnikit_netns::{Inside, sysctl};
use cnikit_skel::{Error, Result};

use crate::address::layer3::Detection;

/// Nothing is accepted, and no address made up, from router advertisements.
pub(crate) const ALL: [&str; 2] = ["accept_ra", "autoconf"];
/// An adopted bridge: what else its owner does with IPv6 there is not ours to change.
pub(crate) const ROUTES: [&str; 1] = ["accept_ra"];

/// Switches these settings of a link off, before it could receive an advertisement.
///
/// Without IPv6 on the link there is nothing to switch off. Where it is on, a setting that is not 0 and cannot be set to 0
/// is an error: the container could be led astray by any neighbour (CVE-2020-10749).
pub(crate) fn ignore_router_adverts(inside: &Inside, link: &str, settings: &[&str]) -> Result<()> {
    settings.iter().try_for_each(|setting| {
        let key = format!("net/ipv6/conf/{link}/{setting}");
        match sysctl::set(inside, &key, "0") {
            Ok(_) => Ok(()),
            Err(error) if error.is_absent() || is_off(inside, link) => Ok(()),
            Err(error) => Err(Error::from(error).hint(format!(
                "router advertisements from any neighbour would be followed: make /proc/sys/{key} writable, \
                 set it to 0, or switch IPv6 off"
            ))),
        }
    })
}

/// A link of the host that containers share. One that is still down was made just now, or by an ADD that was killed before
/// it got this far: nobody relies on its settings yet. One that is up keeps them but for the routes that anybody could
/// advertise.
pub(crate) fn shared(link: &Link, detection: Detection) -> Result<()> {
    let here = Inside::here();
    if link.up {
        return ignore_router_adverts(&here, &link.name, &ROUTES);
    }
    if detection == Detection::Off {
        disable_dad(&here, &link.name);
    }
    ignore_router_adverts(&here, &link.name, &ALL)
}

/// The segment is ours, and so are its addresses: those of this link need no duplicate address detection. Until the
/// link-local one is through with it, a second or two, the host could not even ask for a neighbour there.
pub(crate) fn disable_dad(inside: &Inside, link: &str) {
    // Without IPv6 there is no such setting; and where it cannot be written, IPv6 is only slower to start.
    let _ = sysctl::set(inside, &format!("net/ipv6/conf/{link}/accept_dad"), "0");
}

/// A port of a bridge routes nothing: what comes in by it comes in by the bridge. Where the host forwards IPv6, the kernel
/// would give the port an anycast address for its link-local one, and what that leaves when it goes holds the link through
/// a second grace period of RCU: DEL would take twice as long.
pub(crate) fn disable_forwarding(inside: &Inside, port: &str) {
    // Without IPv6 there is no such setting; and where it cannot be written, a DEL is only slower.
    let _ = sysctl::set(inside, &format!("net/ipv6/conf/{port}/forwarding"), "0");
}

/// Settings that are as [`ignore_router_adverts`] leaves them; each that is not, with its value.
pub(crate) fn ra_drift(inside: &Inside, link: &str, settings: &[&str]) -> Vec<String> {
    let on = |setting: &&str| {
        let value = sysctl::read(inside, &format!("net/ipv6/conf/{link}/{setting}")).ok()?;
        (value != "0").then(|| format!("{setting} of {link}: wanted 0, found {value}"))
    };
    if is_off(inside, link) { Vec::new() } else { settings.iter().filter_map(on).collect() }
}

fn is_off(inside: &Inside, link: &str) -> bool {
    sysctl::read(inside, &format!("net/ipv6/conf/{link}/disable_ipv6")).is_ok_and(|value| value == "1")
}
