//! Connections to published ports that the kernel tracks.

use cnikit_conntrack::{Conntrack, Flows};
use cnikit_netlink::Netlink;
use cnikit_nftables::L4Protocol;
use cnikit_skel::log;

/// Deletes flows to published ports that do not lead where the rules of the ports lead. An error is only logged: such flows expire,
/// so no ADD fails because of them.
pub(super) fn forget_stale(flows: &[Flows]) {
    forget(flows, |lasting| Conntrack::here()?.forget_stale(lasting, &Netlink::here()?));
}

/// Deletes flows to ports whose rules are removed. An error is only logged: such flows expire, so no DEL fails because of them.
pub(super) fn forget_removed(flows: &[Flows]) {
    forget(flows, |lasting| Conntrack::here()?.forget_led(lasting));
}

fn forget(flows: &[Flows], delete: impl FnOnce(&[Flows]) -> cnikit_netlink::Result<usize>) {
    let lasting: Vec<Flows> = flows.iter().filter(|flows| outlasts(flows.protocol)).copied().collect();
    if lasting.is_empty() {
        return;
    }
    match delete(&lasting) {
        Ok(0) => {}
        Ok(count) => log::info(format_args!("deleted {count} tracked flows to published ports")),
        Err(error) => log::warn(format_args!("flows to published ports may still go elsewhere: {error}")),
    }
}

/// Whether flows of a protocol outlast their rules: the sender goes on from the same port, and is led where no container answers
/// any more. A connection of TCP ends with its container, and a new one has another source port. Both ends of SCTP keep their
/// ports.
fn outlasts(protocol: u8) -> bool {
    protocol != L4Protocol::Tcp.number()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_of_protocols_without_connections_outlast_their_rules() {
        let outlasting =
            [L4Protocol::Tcp, L4Protocol::Udp, L4Protocol::Sctp].map(|protocol| outlasts(protocol.number()));
        assert_eq!(outlasting, [false, true, true]);
    }
}
