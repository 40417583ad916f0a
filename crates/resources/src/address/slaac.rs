//! Addresses that the kernel makes from router advertisements.

use cnikit_netlink::{Address, LinkChange, Netlink};
use cnikit_netns::{Netns, sysctl};
use cnikit_process::Deadline;
use cnikit_skel::{Error, Result, code};
use ipnetwork::IpNetwork;

/// Has the interface accept router advertisements: `addresses` says whether it makes addresses from them, apart from routes. It is
/// set up, so that it solicits routers.
///
/// # Errors
/// The namespace cannot be entered, there is no such interface, or a setting cannot be written.
pub fn accept_router_adverts(netns: &str, ifname: &str, addresses: bool) -> Result<()> {
    let netns = Netns::open(netns)?;
    // Addresses for privacy change every day: none of them could be reported.
    let mut settings = vec![("disable_ipv6", "0"), ("accept_ra", "1"), ("use_tempaddr", "0")];
    if addresses {
        settings.push(("autoconf", "1"));
    }
    netns.enter(|inside| -> Result<()> {
        for (setting, value) in settings {
            sysctl::set(inside, &format!("net/ipv6/conf/{ifname}/{setting}"), value)?;
        }
        Ok(())
    })??;
    let netlink = Netlink::inside(&netns)?;
    let link = netlink.link(ifname)?;
    if !link.up {
        netlink.change(link.index, &LinkChange::default().up(true))?;
    }
    Ok(())
}

/// Waits until the interface has an address from a router advertisement that can be used, and returns all that it has.
///
/// # Errors
/// Until the deadline it has none (code 100), or there is no such interface.
pub fn wait_router_address(netns: &str, ifname: &str, deadline: Deadline) -> Result<Vec<IpNetwork>> {
    let netlink = Netlink::inside(&Netns::open(netns)?)?;
    let index = netlink.link(ifname)?.index;
    let is_there = |found: &[Address]| found.iter().any(is_usable) && !found.iter().any(is_undecided);
    match netlink.wait_addresses(index, deadline, is_there) {
        Ok(found) => Ok(usable(&found)),
        Err(error) if error.timed_out() => {
            let found = netlink.addresses(index)?;
            // One of several prefixes is enough.
            let usable = usable(&found);
            if !usable.is_empty() {
                return Ok(usable);
            }
            let why = why_none(&found);
            Err(Error::new(code::SYSTEM, format!("no address by router advertisement for {ifname}: {why}"))
                .hint("check that a router of this link sends advertisements with the autonomous flag"))
        }
        Err(error) => Err(error.into()),
    }
}

/// The addresses from router advertisements that the interface has and that can be used.
///
/// # Errors
/// The namespace cannot be entered, or there is no such interface.
pub fn router_addresses(netns: &str, ifname: &str) -> Result<Vec<IpNetwork>> {
    let netlink = Netlink::inside(&Netns::open(netns)?)?;
    Ok(usable(&netlink.addresses(netlink.link(ifname)?.index)?))
}

/// Why none of these addresses can be used.
fn why_none(found: &[Address]) -> String {
    match found.iter().find(|one| is_of_router(one)) {
        Some(one) if one.dad_failed => format!("another host uses {}", one.address),
        Some(one) => format!("{} is still under duplicate address detection", one.address),
        None => "no router advertised a prefix for addresses".to_owned(),
    }
}

fn usable(found: &[Address]) -> Vec<IpNetwork> {
    found.iter().filter(|one| is_usable(one)).map(|one| one.address).collect()
}

/// Those that a plugin or an operator adds do not expire.
fn is_of_router(one: &Address) -> bool {
    one.address.is_ipv6() && one.scope == 0 && !one.permanent
}

fn is_usable(one: &Address) -> bool {
    is_of_router(one) && !one.tentative && !one.dad_failed
}

fn is_undecided(one: &Address) -> bool {
    is_of_router(one) && one.tentative && !one.dad_failed
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::present;

    /// As the kernel makes it from an advertisement: it expires.
    fn advertised(address: &str) -> Address {
        Address { permanent: false, ..present(address) }
    }

    #[test]
    fn only_what_a_router_advertised_counts() {
        assert!(is_of_router(&advertised("fd00::5/64")));
        let others = [
            advertised("10.1.0.5/24"),
            Address { scope: 253, ..advertised("fe80::5/64") },
            Address { scope: 253, ..present("fe80::6/64") },
            present("fd00::6/64"),
        ];
        for other in others {
            assert!(!is_of_router(&other), "{other:?}");
            let other = Address { tentative: true, ..other };
            assert!(!is_undecided(&other), "{other:?}");
        }
    }

    #[test]
    fn an_address_can_be_used_once_no_other_host_has_it() {
        let found = advertised("fd00::5/64");
        let tentative = Address { tentative: true, ..found.clone() };
        let failed = Address { tentative: true, dad_failed: true, ..found.clone() };
        assert_eq!(
            [&found, &tentative, &failed].map(|one| (is_usable(one), is_undecided(one))),
            [(true, false), (false, true), (false, false)]
        );
        let all = [present("fd00::6/64"), failed.clone(), found];
        assert_eq!(usable(&all), ["fd00::5/64".parse().unwrap()]);
        assert_eq!(why_none(&all[..2]), "another host uses fd00::5/64");
        assert_eq!(why_none(&[tentative]), "fd00::5/64 is still under duplicate address detection");
        assert_eq!(why_none(&all[..1]), "no router advertised a prefix for addresses");
    }
}
