//! State that attachments share. It is not removed by the last DEL.

use crate::env::snapshot::HINTS;

/// The lock file of host-local, upstream's too. It belongs to no attachment.
const LOCK: &str = "file: leases/<network>/lock = \"\"";

/// Texts that identify lines of shared state, which the first ADD may add to a snapshot; see
/// [`line_contains`](crate::env::snapshot::line_contains).
pub const SHARED: [&str; 52] = [
    // The bridge, with its addresses, routes and settings.
    "cni0",
    // Forwarding, and the settings that the kernel derives from it.
    "net/ipv4/ip_forward",
    "forwarding = 1",
    "conf/all/accept_redirects",
    // nftables: empty chains and base chains of masquerading and port mappings.
    "cni_plugins_masquerade",
    "masq_checks",
    "cni_hostport",
    "nft: \t",
    "nft: }",
    // nftables: the tables of the MAC and IP spoof checks.
    "table bridge nat {",
    "table bridge cni_ipspoofchk {",
    "table inet cni_ipspoofchk {",
    // iptables: tables and built-in chains of NAT.
    "table ip nat {",
    "table ip6 nat {",
    "*nat",
    ":PREROUTING ACCEPT",
    ":INPUT ACCEPT",
    ":OUTPUT ACCEPT",
    ":POSTROUTING ACCEPT",
    "tables: COMMIT",
    // Tables and built-in chains of the firewall.
    "table ip filter {",
    "table ip6 filter {",
    "table inet cni_firewall {",
    "table bridge cni_firewall {",
    "*filter",
    ":FORWARD ACCEPT",
    // iptables: the chains that all containers behind a firewall share.
    ":CNI-FORWARD -",
    ":CNI-ADMIN -",
    // iptables: the chains that all containers with published ports share. Each container has its own rules in them.
    ":CNI-HOSTPORT-",
    "-j CNI-HOSTPORT-DNAT",
    "-j CNI-HOSTPORT-MASQ",
    "-A CNI-HOSTPORT-MASQ",
    "-A CNI-HOSTPORT-SETMARK",
    // iptables: isolation between networks, and the jumps to shared chains.
    ":CNI-ISOLATION-STAGE-",
    "rules\" -j CNI-FORWARD",
    "overrides\" -j CNI-ADMIN",
    "-j CNI-ISOLATION-STAGE-1",
    "|isolated)\" -j RETURN",
    // Directories: state files of host-device, delegates' configurations of flannel, reservations of host-local, state files of sbr
    // and vrf, saved settings of tuning.
    "directory: devices",
    "directory: flannel",
    "directory: leases",
    "directory: sbr",
    "directory: tuning",
    "directory: vrf",
    LOCK,
    HINTS[0],
    HINTS[1],
    // The same where a host has its own `/var/lib/cni`.
    "directory: state/var/lib/cni",
    "file: state/var/lib/cni/networks/<network>/lock = \"\"",
    HINTS[2],
    HINTS[3],
    HINTS[4],
];

/// Whether a line names this attachment or any host end. The name of a host end is `veth` and digits; `veth` alone is the kind of a
/// link, which a shared link may have too.
pub(crate) fn names_attachment(line: &str, id: &str) -> bool {
    let mut after = line.split("veth").skip(1);
    line.contains(id) || after.any(|rest| rest.starts_with(|c: char| c.is_ascii_hexdigit()))
}
