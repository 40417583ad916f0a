//! Values made from the bytes of the fuzzer.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use arbitrary::{Result, Unstructured};
use ipnetwork::IpNetwork;

/// Runs `once` with values made from the bytes, until the bytes do not suffice for the next value.
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

/// The longest prefix for this family of addresses, in bits.
pub(crate) fn longest(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}
