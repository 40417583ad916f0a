//! The plugins and configurations that the campaigns of kills and faults disturb.

use std::path::Path;

use cnikit_testkit::Subject;
use serde_json::{Value, json};

use crate::{apart, bin, crowded_host_device, dual_stack, flannel, installed, macvlan, pool, tap, written_down};

/// Calls the macro `$tests` for every subject, one line each: the name of its tests, the subject, and what is tried besides kills
/// and faults (`moments` and `limits`). A new plugin is a new line.
#[macro_export]
macro_rules! each_subject {
    ($tests:ident) => {
        $crate::each_subject! { $tests:
            loopback: alone("loopback"), moments, limits;
            host_local: alone("host-local"), moments, limits;
            static_ipam: alone("static"), moments, limits;
            pool: alone("pool"), moments, limits;
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
            sbr: source_routed(), moments, limits;
            bandwidth: limited(), moments, limits;
            firewall_with_iptables: firewalled("iptables"), moments, limits;
            firewall_with_nftables: firewalled("nftables"), moments, limits;
            portmap_with_nftables: published("nftables"), moments, limits;
            portmap_with_iptables: published("iptables"), moments, limits;
            macvlan: on_master(), moments, limits;
            tap: without_a_guest(), moments, limits;
            host_device: device(), moments, limits;
            bridge_with_dhcp: leased(), moments, limits;
        }
    };
    ($tests:ident: $($name:ident: $subject:ident($($argument:literal),*) $(, $more:ident)*;)+) => {
        $tests! { $($name: $crate::campaign_subjects::$subject($($argument),*) $(, $more)*;)+ }
    };
}

/// A plugin that makes no interface, as it is installed.
pub fn alone(plugin: &str) -> Subject {
    let keys = match plugin {
        "loopback" => json!({}),
        "pool" => return pool(installed()),
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

/// A device of the host. Its addresses have no gateway: the campaigns have the other container talk to that, which no spare device
/// can.
pub fn device() -> Subject {
    let addresses = json!([{"address": "10.77.0.5/24"}, {"address": "fd00:77::5/64"}]);
    crowded_host_device(installed()).with("ipam", json!({"type": "static", "addresses": addresses}))
}

/// A bridge whose containers have leases of a DHCP server. Server and daemon end with the directory of their host, and the server's
/// own files are elsewhere. It has thousands of addresses, as killed calls leave leases behind, and renews none while a test runs,
/// because records of leases are compared. The bridge is as an earlier container left it, and has a carrier without any container.
pub fn leased() -> Subject {
    let daemon = installed().join("dhcp").display().to_string();
    let setup = format!(
        "ip link add br-dhcp address 02:00:5e:10:00:09 type bridge && ip address add 10.99.0.1/16 dev br-dhcp && \
         echo 0 >/proc/sys/net/ipv6/conf/br-dhcp/accept_ra && ip link set br-dhcp up && \
         ip link add port0 type veth peer name uplink0 && ip link set port0 master br-dhcp up && ip link set uplink0 up && \
         {{ setsid sh -c 'own=$(mktemp -d -p /run); \
             dnsmasq --keep-in-foreground --conf-file=/dev/null --user=root --port=0 --bind-interfaces \
             --dhcp-authoritative --no-ping --interface=br-dhcp --dhcp-range=10.99.0.10,10.99.15.250,255.255.0.0,1h \
             --dhcp-leasefile=$own/leases --pid-file= & server=$!; \
             {daemon} daemon -socketpath $DIR/dhcp.sock -datadir $DIR/dhcp-leases & daemon=$!; \
             while test -d $DIR; do sleep 0.5; done; kill $server $daemon; rm -r $own' >/dev/null 2>&1 & }} && \
         timeout 30 sh -c 'until test -S $DIR/dhcp.sock && ss -Hlun sport = :67 | grep -q .; do sleep 0.05; done'"
    );
    let ipam = json!({"type": "dhcp", "daemonSocketPath": "$DIR/dhcp.sock", "dataDir": "$DIR/dhcp-leases"});
    let bridge = Subject::new(installed(), "bridge", json!({"bridge": "br-dhcp", "ipam": ipam}));
    bridge.on(Box::leak(setup.into_boxed_str())).called("bridge, dhcp")
}

/// flannel over a bridge, which is another process or is not.
pub fn delegating(how: &str) -> Subject {
    let bin = if how == "delegate apart" { apart() } else { installed() };
    flannel().in_directory(bin).called(&format!("flannel, {how}"))
}

/// tuning with every key, and the settings that DEL has to restore.
pub fn tuning() -> Subject {
    tuned(installed())
}

/// The same of these plugins.
pub fn tuned(bin: &Path) -> Subject {
    let sysctl = json!({"net.ipv4.conf.IFNAME.arp_notify": "1", "net.core.somaxconn": "100",
        "net.ipv4.ip_local_port_range": "20000 0x7530"});
    let conf = json!({"mac": "0A:00:00:00:00:07", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 500,
        "sysctl": sysctl, "restoreSysctls": true, "dataDir": "$DIR/tuning"});
    Subject::new(bin, "tuning", conf).after(INTERFACE, interface_result())
}

/// sbr with both families, and routes that it is to give back.
pub fn source_routed() -> Subject {
    source_routing(installed())
}

/// The same of these plugins. No host could be a gateway, so none is in the result.
pub fn source_routing(bin: &Path) -> Subject {
    let conf = json!({"dataDir": "$DIR/sbr", "gateways": ["10.77.0.1", "fd00:77::1"]});
    Subject::new(bin, "sbr", conf).after(ROUTED_INTERFACE, addressed())
}

/// sbr in the midst of many, each with addresses of its own.
pub fn crowded_source_routing(bin: &Path) -> Subject {
    with_own_addresses(source_routing(bin))
}

fn with_own_addresses(mut subject: Subject) -> Subject {
    let own = |text: &str| {
        let text = text.replace("10.77.0.2/24", "10.77.$PLACE/16");
        text.replace("fd00:77::2/64", "fd00:77::$NUMBER/64").replace("-q fd00:77::2;", "-q fd00:77::$NUMBER;")
    };
    if let Some(after) = &mut subject.after {
        after.made = own(&after.made);
        after.result = serde_json::from_str(&own(&after.result.to_string())).unwrap();
    }
    subject
}

/// Makes the rules that the kernel adds with the first VRF, and keeps.
pub const FIRST_VRF: &str = "printf 'link %s\\n' 'add first0 type vrf table 9' 'del first0' | ip -b - 2>/dev/null || :";

/// vrf with both families, and routes that DEL gives back.
pub fn vrf_member(bin: &Path) -> Subject {
    let conf = json!({"vrfname": "red", "dataDir": "$DIR/vrf"});
    Subject::new(bin, "vrf", conf).after(&format!("{FIRST_VRF}; {ROUTED_INTERFACE}"), addressed())
}

/// vrf in the midst of many, each with addresses of its own.
pub fn crowded_vrf_member(bin: &Path) -> Subject {
    with_own_addresses(vrf_member(bin))
}

/// bandwidth with both limits.
pub fn limited() -> Subject {
    shaped(installed())
}

/// The same of these plugins.
pub fn shaped(bin: &Path) -> Subject {
    let rates =
        json!({"ingressRate": 8_000_000, "ingressBurst": 800_000, "egressRate": 16_000_000, "egressBurst": 160_000});
    let result = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "pairend$NUMBER"},
        {"name": "eth0", "mac": "0a:00:00:00:00:01", "sandbox": "$NETNS"}]});
    Subject::new(bin, "bandwidth", rates).after(PAIR, result)
}

/// The result of the plugin that made one such pair.
pub fn result_of_pair() -> Value {
    json!({"cniVersion": "1.1.0", "interfaces": [{"name": "toward0", "mac": "0a:00:00:00:00:02"},
        {"name": "eth0", "mac": "0a:00:00:00:00:01", "sandbox": "$NETNS"}]})
}

/// A veth pair as another plugin makes it; snapshots know the name of its host end. It replaces a link that another container with
/// the same number had.
const PAIR: &str = "nsenter --net=$HOST ip link del pairend$NUMBER 2>/dev/null; \
    ip link add eth0 address 0a:00:00:00:00:01 type veth peer name pairend$NUMBER netns $HOST && ip link set eth0 up && \
    nsenter --net=$HOST ip link set pairend$NUMBER up";

/// portmap with ports of both families, and all that is done for them.
pub fn published(backend: &str) -> Subject {
    publishing(installed(), backend)
}

/// The same of these plugins.
pub fn publishing(bin: &Path, backend: &str) -> Subject {
    let mapping = |host: u16, container: u16, protocol: &str| json!({"hostPort": host, "containerPort": container, "protocol": protocol});
    let mappings = [mapping(8080, 80, "tcp"), mapping(5353, 53, "udp")];
    let conf = json!({"backend": backend, "hostPortTaken": "firstWins", "runtimeConfig": {"portMappings": mappings}});
    Subject::new(bin, "portmap", conf).after(INTERFACE, addressed()).on(TOWARD).called(&format!("portmap {backend}"))
}

/// portmap with two ports per container, among many others, while other programs write into the same table. A later container may
/// get the ports of one whose ADD was killed and forgotten, until a GC.
pub fn crowded_ports(bin: &Path, backend: &str) -> Subject {
    let mapping =
        |port: u16, protocol: &str| json!({"hostPort": "$NUMBER", "containerPort": port, "protocol": protocol});
    let mappings = json!({"portMappings": [mapping(80, "tcp"), mapping(53, "udp")]});
    let conf = json!({"backend": backend, "hostPortTaken": "firstWins", "runtimeConfig": mappings});
    crowded(&Subject::new(bin, "portmap", conf), backend)
}

/// A firewall that cuts containers off from each other, likewise.
pub fn crowded_firewall(bin: &Path, backend: &str) -> Subject {
    crowded(&Subject::new(bin, "firewall", json!({"backend": backend, "ingressPolicy": "isolated"})), backend)
}

/// The same with an interface that is a real port of a bridge. Its host end is removed with the container.
pub fn connected(subject: &Subject) -> Subject {
    let mut subject = subject.clone();
    subject.after.iter_mut().for_each(|after| after.made = after.made.replace(INTERFACE, CONNECTION));
    subject
}

fn crowded(subject: &Subject, backend: &str) -> Subject {
    let subject = subject.called(&format!("{} {backend}", subject.plugin)).on(CROWDED);
    let subject = if backend == "iptables" { subject.background(WRITING) } else { subject };
    subject.after(&format!("{INTERFACE} && {ADDRESSES}"), crowded_bridge_result())
}

/// A bridge of another program with room for many containers, and chains of an operator.
const CROWDED: &str = "ip link add cni0 address 0a:00:00:00:00:fe type bridge && ip link set cni0 up && ip address add 10.77.0.1/16 dev cni0 && \
    ip address add fd00:77::1/64 dev cni0 nodad && \
    for table in nat filter; do iptables -t $table -N OTHERS && ip6tables -t $table -N OTHERS || exit; done";

/// Adds rules to them and removes them, again and again.
const WRITING: &str = r"for of in iptables ip6tables; do
    for table in nat filter; do
        printf '*%s\n-A OTHERS -p tcp -j RETURN\n-D OTHERS -p tcp -j RETURN\nCOMMIT\n' $table
    done | $of-restore --noflush || exit
done";

/// The veth pair that bridge makes. It replaces a link that another container with the same number had.
const CONNECTION: &str = "nsenter --net=$HOST ip link del toward$NUMBER 2>/dev/null; \
    ip link add eth0 type veth peer name toward$NUMBER netns $HOST && ip link set eth0 up && \
    nsenter --net=$HOST ip link set toward$NUMBER master cni0 up";

/// The addresses that an IPAM plugin gives a container, different for each. It waits until the kernel uses them.
const ADDRESSES: &str = "ip address add 10.77.$PLACE/16 dev eth0 && ip address add fd00:77::$NUMBER/64 dev eth0 nodad && \
    timeout 60 sh -c 'until ip -6 route show table local | grep -q fd00:77::$NUMBER; do sleep 0.02; done'";

/// The result of bridge in that case.
fn crowded_bridge_result() -> Value {
    let mut result = bridge_result();
    result["ips"] = json!([{"address": "10.77.$PLACE/16", "gateway": "10.77.0.1", "interface": 2},
        {"address": "fd00:77::$NUMBER/64", "gateway": "fd00:77::1", "interface": 2}]);
    result
}

/// A link of the host toward containers.
pub const TOWARD: &str =
    "ip link add toward0 type bridge && ip link set toward0 up && ip address add 10.77.0.1/24 dev toward0";

/// A shell line that makes an interface as another plugin would.
pub const INTERFACE: &str =
    "ip link add eth0 address 0a:00:00:00:00:01 type veth peer name peer0 && ip link set eth0 up";

/// What makes one with addresses and routes of both families, once the kernel has taken them up.
pub const ROUTED_INTERFACE: &str = "ip link add eth0 address 0a:00:00:00:00:01 type veth peer name peer0 && \
    for link in eth0 peer0; do echo 0 >/proc/sys/net/ipv6/conf/$link/accept_dad || exit; done && \
    printf 'link set eth0 up\\nlink set peer0 up\\naddress add 10.77.0.2/24 dev eth0\\naddress add fd00:77::2/64 dev eth0 nodad\\n' | \
    ip -b - && \
    timeout 60 sh -c 'until ip -6 route show table local | grep -q fd00:77::2; do sleep 0.02; done' && \
    printf 'route add %s\\n' 'default via 10.77.0.1' '10.9.0.0/16 via 10.77.0.1 metric 7 mtu 1400' \
        'default via fd00:77::1' 'fd09::/64 via fe80::9 dev eth0 metric 8' | ip -b -";

/// The result of that plugin.
pub fn interface_result() -> Value {
    json!({"cniVersion": "1.1.0", "interfaces": [
        {"name": "eth0", "mac": "0a:00:00:00:00:02"},
        {"name": "eth0", "mac": "0a:00:00:00:00:01", "mtu": 1500, "sandbox": "$NETNS"}]})
}

/// The same with an address of each family.
pub fn addressed() -> Value {
    let mut result = interface_result();
    result["ips"] = json!([{"address": "10.77.0.2/24", "interface": 1}, {"address": "fd00:77::2/64", "interface": 1}]);
    result
}

/// The same with a gateway of each family.
pub fn routed_interface() -> Value {
    let mut result = addressed();
    for (ip, gateway) in [(0, "10.77.0.1"), (1, "fd00:77::1")] {
        result["ips"][ip]["gateway"] = json!(gateway);
    }
    result
}

/// A firewall after a bridge whose containers are isolated from each other.
pub fn firewalled(backend: &str) -> Subject {
    firewall(installed(), backend)
}

/// The same of these plugins.
pub fn firewall(bin: &Path, backend: &str) -> Subject {
    let conf = json!({"backend": backend, "ingressPolicy": "isolated"});
    let subject = Subject::new(bin, "firewall", conf).called(&format!("firewall {backend}"));
    subject.after(INTERFACE, bridge_result()).on("ip link add cni0 type bridge")
}

/// The result of bridge. No address is a gateway.
pub fn bridge_result() -> Value {
    json!({"cniVersion": "1.1.0", "interfaces": [{"name": "cni0"}, {"name": "peer0"}, {"name": "eth0", "sandbox": "$NETNS"}],
        "ips": [{"address": "10.77.0.2/24", "interface": 2},
                {"address": "fd00:77::2/64", "interface": 2}]})
}

/// A bridge that checks MACs.
pub fn spoof_checking_bridge() -> Subject {
    let conf = json!({"isGateway": true, "macspoofchk": true, "ipam": dual_stack()});
    Subject::new(installed(), "bridge", conf).called("bridge macspoofchk")
}

/// A macvlan with both families.
pub fn on_master() -> Subject {
    macvlan().in_directory(installed())
}

/// A TAP device with both families. There is no gateway: the campaigns have another container talk to it, which no device without
/// a guest can.
pub fn without_a_guest() -> Subject {
    let addresses = json!([{"address": "10.77.0.5/24"}, {"address": "fd00:77::5/64"}]);
    let subject = tap().in_directory(installed());
    subject.with("ipam", json!({"type": "static", "addresses": addresses}))
}

/// A bridge with a gateway in a VLAN, whose port carries tagged frames of other networks too. It is not the installed binary: in
/// the virtual machine, the only place that surely has VLANs, the other one is installed.
pub fn vlan_bridge() -> Subject {
    let trunk = json!([{"minID": 200, "maxID": 203}]);
    let conf = json!({"vlan": 100, "vlanTrunk": trunk, "isDefaultGateway": true, "ipam": dual_stack()});
    Subject::new(bin(), "bridge", conf).called("bridge VLAN")
}
