//! Values out of a fuzzer's bytes.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arbitrary::{Result, Unstructured};
use ipnetwork::IpNetwork;

/// Does something with values out of these bytes until they are used up, or do not suffice for the next one.
pub(crate) fn repeat(data: &[u8], once: impl Fn(&mut Unstructured<'_>) -> Result<()>) {
    let mut bytes = Unstructured::new(data);
    while !bytes.is_empty() && once(&mut bytes).is_ok() {}
}

pub(crate) fn ip(bytes: &mut Unstructured<'_>) -> Result<IpAddr> {
    Ok(if bytes.arbitrary()? {
        Ipv4Addr::from_bits(bytes.arbitrary()?).into()
    } else {
        Ipv6Addr::from_bits(bytes.arbitrary()?).into()
    })
}

pub(crate) fn network(bytes: &mut Unstructured<'_>) -> Result<IpNetwork> {
    let ip = ip(bytes)?;
    let prefix = bytes.int_in_range(0..=longest(ip))?;
    Ok(IpNetwork::new(ip, prefix).expect("the prefix is not too long"))
}

/// How long a prefix of such an address may be.
pub(crate) fn longest(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}
