//! Addresses of containers: by version of IP, by network, and by attachment where rules of upstream name no interface.

use std::net::IpAddr;

use cnikit_iptables::IpVersion;
use cnikit_plan::ReleaseContext;
use cnikit_skel::Result;
use ipnetwork::IpNetwork;

/// Whether an address is of this version of IP.
pub(crate) fn is_of_version(address: IpAddr, version: IpVersion) -> bool {
    address.is_ipv4() == (version == IpVersion::V4)
}

/// The network of an address: the address without its host bits.
pub(crate) fn network(address: IpNetwork) -> IpNetwork {
    IpNetwork::new(address.network(), address.prefix()).unwrap_or(address)
}

/// Of the addresses in rules without an owner, those of this attachment. They are the addresses that the result of ADD records;
/// without a result, those of the container's link; if it has none of them, all that no other link of the container has.
pub(crate) fn attribute_unclaimed(context: &ReleaseContext, unclaimed: &[IpAddr]) -> Result<Vec<IpAddr>> {
    if unclaimed.is_empty() {
        return Ok(Vec::new());
    }
    let unclaimed_where =
        |is_wanted: &dyn Fn(&IpAddr) -> bool| -> Vec<IpAddr> { unclaimed.iter().copied().filter(is_wanted).collect() };
    let recorded = recorded_addresses(context);
    if !recorded.is_empty() {
        return Ok(unclaimed_where(&|address| recorded.contains(address)));
    }
    let links = addresses_on_links(context)?;
    let on_link = unclaimed_where(&|address| links.own.contains(address));
    if !on_link.is_empty() {
        return Ok(on_link);
    }
    Ok(unclaimed_where(&|address| !links.others.contains(address)))
}

/// The addresses that the result of ADD records.
pub(crate) fn recorded_addresses(context: &ReleaseContext) -> Vec<IpAddr> {
    match &context.prev {
        Some(prev) => prev.ips.iter().map(|ip| ip.address.ip()).collect(),
        None => Vec::new(),
    }
}

/// The addresses of the attachment's link in the container, and of all other links there.
#[derive(Default)]
struct LinkAddresses {
    own: Vec<IpAddr>,
    others: Vec<IpAddr>,
}

fn addresses_on_links(context: &ReleaseContext) -> Result<LinkAddresses> {
    let mut found = LinkAddresses::default();
    let Some(container) = context.container()? else { return Ok(found) };
    for link in container.links()? {
        let addresses = container.addresses(link.index)?.into_iter().map(|address| address.address.ip());
        if link.name == context.tag.ifname {
            found.own.extend(addresses);
        } else {
            found.others.extend(addresses);
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_of_one_version_and_its_network_has_no_host_bits() {
        for (address, version, within) in
            [("10.1.2.3/16", IpVersion::V4, "10.1.0.0/16"), ("fd00::1:2/112", IpVersion::V6, "fd00::1:0/112")]
        {
            let address: IpNetwork = address.parse().unwrap();
            for one in IpVersion::ALL {
                assert_eq!(is_of_version(address.ip(), one), one == version, "{address} {one:?}");
            }
            assert_eq!(network(address).to_string(), within);
        }
    }
}
