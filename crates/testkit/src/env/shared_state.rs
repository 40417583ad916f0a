//! State that attachments share. It is not removed by the last DEL.

use crate::env::snapshot::HINTS;

/// The lock file of host-local, upstream's too. It belongs to no attachment.
const LOCK: &str = "file: leases/<network>/lock = \"\"";

/// Texts that identify lines of shared state, which the first ADD may add to a snapshot; see
/// [`line_contains`](crate::env::snapshot::line_contains).
pub const SHARED: [&str; 44] = [
    "cni0",                          // the bridge and whatever hangs on it
    "net/ipv4/ip_forward",           // forwarding
    "forwarding = 1",                // and what the kernel derives from it
    "conf/all/accept_redirects",     //
    "cni_plugins_masquerade",        // empty chains and their base rules
    "masq_checks",                   //
    "cni_hostport",                  // and those of port mappings
    "nft: \t",                       //
    "nft: }",                        //
    "table bridge nat {",            // and that of the MAC spoof check
    "table bridge cni_ipspoofchk {", // and those of the IP spoof check
    "table inet cni_ipspoofchk {",
    "table ip nat {",            // and those of iptables
    "table ip6 nat {",           //
    "*nat",                      //
    ":PREROUTING ACCEPT",        //
    ":INPUT ACCEPT",             //
    ":OUTPUT ACCEPT",            //
    ":POSTROUTING ACCEPT",       //
    "tables: COMMIT",            //
    "table ip filter {",         // of iptables
    "table ip6 filter {",        //
    "table inet cni_firewall {", //
    "table bridge cni_firewall {",
    "*filter",                  //
    ":FORWARD ACCEPT",          //
    ":CNI-FORWARD -",           // what all containers behind a firewall share
    ":CNI-ADMIN -",             //
    ":CNI-HOSTPORT-",           // and all with published ports; entries are a container's
    "-j CNI-HOSTPORT-DNAT",     //
    "-j CNI-HOSTPORT-MASQ",     //
    "-A CNI-HOSTPORT-MASQ",     //
    "-A CNI-HOSTPORT-SETMARK",  //
    ":CNI-ISOLATION-STAGE-",    //
    "rules\" -j CNI-FORWARD",   //
    "overrides\" -j CNI-ADMIN", //
    "-j CNI-ISOLATION-STAGE-1", //
    "|isolated)\" -j RETURN",   //
    "directory: flannel",       // where configurations of a delegate were kept
    "directory: leases",        // and what host-local keeps for a network
    "directory: tuning",        // and tuning for all of them
    LOCK,
    HINTS[0],
    HINTS[1],
];

/// Whether a line names this attachment or any host end. The name of a host end is `veth` and digits; `veth` alone is the kind of a
/// link, which a shared link may have too.
pub(crate) fn names_attachment(line: &str, id: &str) -> bool {
    let mut after = line.split("veth").skip(1);
    line.contains(id) || after.any(|rest| rest.starts_with(|c: char| c.is_ascii_hexdigit()))
}
