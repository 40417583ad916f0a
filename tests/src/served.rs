//! Each plugin with a configuration in which it uses all its features, for tests that are run for every plugin.

use cnikit_testkit::Subject;
use serde_json::json;

use crate::campaign_subjects::{firewall, publishing, shaped, source_routing, tuned, vrf_member};
use crate::{
    MASTER, bin, bridge, crowded_host_device, dual_stack, dummy, flannel, ipvlan, lost_host_device, macvlan, pool, ptp,
    subject, tap, vlan, written_down,
};

/// A plugin that serves: its host is [`Subject::host`], its container [`Subject::container`], its files [`Subject::at`].
pub fn served(plugin: &str) -> Subject {
    match plugin {
        "bandwidth" => shaped(bin()),
        "bridge" => bridge().with("ipMasqBackend", json!("nftables")).with("macspoofchk", json!(true)),
        // With its servers: `lease_daemon::dhcp_servers`.
        "dhcp" => {
            subject("dhcp", json!({"ipam": {"daemonSocketPath": "$DIR/dhcp.sock", "dataDir": "$DIR/dhcp-leases"}}))
        }
        "dummy" => dummy(),
        "firewall" => firewall(bin(), "nftables"),
        "flannel" => flannel(),
        "host-device" => lost_host_device(bin()),
        "host-local" => subject("host-local", json!({"ipam": dual_stack()})),
        "ipvlan" => ipvlan().on(MASTER), // a master, also where the kernel has no ipvlan
        "loopback" => subject("loopback", json!({})),
        "macvlan" => macvlan(),
        "pool" => pool(bin()),
        "portmap" => publishing(bin(), "nftables"),
        "ptp" => ptp().with("ipMasqBackend", json!("nftables")),
        "sbr" => source_routing(bin()),
        "static" => subject("static", json!({"ipam": written_down()})),
        "tap" => tap(),
        "tuning" => tuned(bin()),
        "vlan" => vlan().on(MASTER), // as with ipvlan
        "vrf" => vrf_member(bin()),
        _ => panic!("say in tests/src/served.rs how {plugin} is called so that it succeeds"),
    }
}

/// The same plugin where several containers are attached at the same time: the kernel allows one per VLAN of a master, and
/// each has a device of its own.
pub fn served_together(plugin: &str) -> Subject {
    match plugin {
        "host-device" => crowded_host_device(bin()),
        "vlan" => served(plugin).with("vlanId", json!("$NUMBER")),
        _ => served(plugin),
    }
}
