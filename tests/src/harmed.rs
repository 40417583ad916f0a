//! Whom the campaigns of kills and faults try.

use std::path::Path;

use cnikit_testkit::Subject;
use serde_json::{Value, json};

use crate::{apart, bin, dual_stack, flannel, installed, macvlan, written_down};

/// Gives the macro `$tests` every subject, one line each: what its tests are called, what it is, and what is tried beside kills
/// and faults: `moments` and `limits`. A plugin more is a line more.
#[macro_export]
macro_rules! each_harmed {
    ($tests:ident) => {
        $crate::each_harmed! { $tests:
            loopback: alone("loopback"), moments, limits;
            host_local: alone("host-local"), moments, limits;
            static_ipam: alone("static"), moments, limits;
            bridge_with_nftables: masquerading("bridge", "nftables"), moments, limits;
            bridge_with_iptables: masquerading("bridge", "iptables"), moments, limits;
            bridge_with_mac_spoof_check: spoof_checking_bridge(), moments, limits;
            bridge_and_its_ipam_plugin: with_ipam_apart("bridge"), moments, limits;
            ptp_with_nftables: masquerading("ptp", "nftables"), moments, limits;
            ptp_with_iptables: masquerading("ptp", "iptables"), moments, limits;
            ptp_and_its_ipam_plugin: with_ipam_apart("ptp"), moments, limits;
            flannel_over_bridge: delegating("in one process"), moments, limits;
            flannel_and_its_delegate: delegating("delegate apart"), moments, limits;
            tuning: tuning(), moments, limits;
            macvlan: on_master(), moments, limits;
        }
    };
    ($tests:ident: $($name:ident: $subject:ident($($argument:literal),*) $(, $more:ident)*;)+) => {
        $tests! { $($name: $crate::harmed::$subject($($argument),*) $(, $more)*;)+ }
    };
}

/// A plugin that makes no interface, as it is installed.
pub fn alone(plugin: &str) -> Subject {
    let keys = match plugin {
        "loopback" => json!({}),
        "static" => json!({"ipam": written_down()}),
        _ => json!({"ipam": dual_stack()}),
    };
    Subject::new(installed(), plugin, keys)
}

/// An interface plugin with all that it makes for both families, masquerade by `backend` included.
pub fn masquerading(plugin: &str, backend: &str) -> Subject {
    interface(installed(), plugin, backend).called(&format!("{plugin} {backend}"))
}

/// The same, and its IPAM plugin is another process.
pub fn with_ipam_apart(plugin: &str) -> Subject {
    interface(apart(), plugin, "nftables").called(&format!("{plugin} nftables, IPAM apart"))
}

fn interface(bin: &Path, plugin: &str, backend: &str) -> Subject {
    let ipam = dual_stack();
    let conf = json!({"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": backend, "mtu": 1500, "ipam": ipam});
    Subject::new(bin, plugin, conf)
}

/// flannel over a bridge, which is another process or is not.
pub fn delegating(how: &str) -> Subject {
    let bin = if how == "delegate apart" { apart() } else { installed() };
    Subject { bin: bin.to_owned(), ..flannel() }.called(&format!("flannel, {how}"))
}

/// tuning with every key, and what it is to give back.
pub fn tuning() -> Subject {
    tuned(installed())
}

/// The same of these plugins.
pub fn tuned(bin: &Path) -> Subject {
    let sysctl = json!({"net.ipv4.conf.IFNAME.arp_notify": "1", "net.core.somaxconn": "100",
        "net.ipv4.ip_local_port_range": "20000 0x7530"});
    let conf = json!({"mac": "0A:00:00:00:00:07", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 500,
        "sysctl": sysctl, "restoreSysctls": true, "dataDir": "$DIR/tuning"});
    Subject::new(bin, "tuning", conf).after(INTERFACE, interface_of_others())
}

/// What makes an interface of others'.
pub const INTERFACE: &str =
    "ip link add eth0 address 0a:00:00:00:00:01 type veth peer name peer0 && ip link set eth0 up";

/// What they answer.
pub fn interface_of_others() -> Value {
    json!({"cniVersion": "1.1.0", "interfaces": [
        {"name": "eth0", "mac": "0a:00:00:00:00:02"},
        {"name": "eth0", "mac": "0a:00:00:00:00:01", "mtu": 1500, "sandbox": "$NETNS"}]})
}

/// A bridge that checks MACs.
pub fn spoof_checking_bridge() -> Subject {
    let conf = json!({"isGateway": true, "macspoofchk": true, "ipam": dual_stack()});
    Subject::new(installed(), "bridge", conf).called("bridge macspoofchk")
}

/// A macvlan with both families.
pub fn on_master() -> Subject {
    Subject { bin: installed().into(), ..macvlan() }
}

/// A bridge with a gateway in a VLAN, whose port carries the tagged frames of others too. It is not the installed one: the
/// virtual machine, the only place that surely has VLANs, has the other.
pub fn vlan_bridge() -> Subject {
    let trunk = json!([{"minID": 200, "maxID": 203}]);
    let conf = json!({"vlan": 100, "vlanTrunk": trunk, "isDefaultGateway": true, "ipam": dual_stack()});
    Subject::new(bin(), "bridge", conf).called("bridge VLAN")
}
