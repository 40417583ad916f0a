//! Random bytes and MACs.

use std::io;

use cnikit_netlink::Mac;
use cnikit_skel::{Error, Result};

/// Random bytes from getrandom(2), or from /dev/urandom where that is refused. An error has the kernel's error number and names
/// `what` the bytes are for.
pub(crate) fn bytes<const N: usize>(what: &str) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    match getrandom::fill(&mut bytes) {
        Ok(()) => Ok(bytes),
        Err(error) => Err(Error::from(io::Error::from(error)).context(format_args!("no random bytes for {what}"))),
    }
}

/// A random MAC, locally administered. It is random so that bridges of the same name on two nodes have different MACs.
pub(crate) fn mac() -> Result<Mac> {
    let mut mac: [u8; 6] = bytes("a MAC")?;
    mac[0] = (mac[0] & 0xfc) | 0x02;
    Ok(Mac(mac))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_mac_is_another_one_of_a_single_machine_and_locally_administered() {
        let macs: [Mac; 8] = std::array::from_fn(|_| mac().unwrap());
        for (place, one) in macs.iter().enumerate() {
            assert_eq!(one.0[0] & 3, 2, "{one}");
            assert!(!macs[..place].contains(one), "{macs:?}");
        }
    }
}
