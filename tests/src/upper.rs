//! Tests that macvlan, ipvlan and vlan share: their containers' interfaces are on top of a link of the host, whose wire leads to
//! another host. Some of them are for dummy and tap too, whose interfaces are on top of nothing.

use std::sync::atomic::{AtomicU16, Ordering};
use std::thread;
use std::time::Duration;

use cnikit::AttachmentId;
use cnikit::resources::alias;
use cnikit_testkit::life::SHARED;
use cnikit_testkit::snapshot::HINTS;
use cnikit_testkit::{Container, Host, HostSnapshot, Subject};
use serde_json::{Value, json};

use crate::MASTER;
use crate::world::{detecting_with, once_within};

/// The addresses of the other host.
pub const GATEWAYS: [&str; 2] = ["10.77.0.1", "fd00:77::1"];
/// An ADD that does not wait for duplicate address detection takes less. One that waits for a result that never comes takes four
/// times as long.
pub const DETECTION: Duration = Duration::from_secs(5);
/// Those that the first container gets.
pub const FIRST: [&str; 2] = ["10.77.0.2", "fd00:77::2"];
/// And the second one.
pub const SECOND: [&str; 2] = ["10.77.0.3", "fd00:77::3"];

/// A shell line of a container that gives its interface the alias of another attachment's.
pub const ALIAS_OF_ANOTHER: &str =
    "ip link set eth0 alias 'cnikit:0123456789abcdef:0123456789abcdef0123456789abcdef other/c-other/eth0'";

/// A master whose wire leads to another host, which has the gateways' addresses.
pub struct Lan {
    /// Where the master is.
    pub host: Host,
    /// The other host.
    pub outer: Container,
}

impl Lan {
    /// With a master without other links.
    #[expect(clippy::new_without_default, reason = "it makes links")]
    pub fn new() -> Lan {
        let host = Host::new();
        let outer = Host::new().container();
        host.sh(&format!("ip link add master0 type veth peer name outer0 netns {}", outer.path()));
        outer.sh("echo 0 > /proc/sys/net/ipv6/conf/outer0/accept_dad; ip address add 10.77.0.1/24 dev outer0; \
                  ip address add fd00:77::1/64 dev outer0 nodad; ip link set outer0 up");
        host.sh("ip link set master0 up");
        Lan { host, outer }
    }

    /// Creates a master whose other host answers to the subject's containers: those of vlan in their VLAN.
    pub fn of(subject: &Subject) -> Lan {
        let lan = Lan::new();
        if subject.plugin == "vlan" {
            lan.tag(&format!("id {}", subject.conf["vlanId"]));
        }
        lan
    }

    /// Moves the gateways' addresses to a VLAN on top of the other host's end. The VLAN gets the name of that end.
    pub fn tag(&self, vlan: &str) {
        self.outer.sh(&format!(
            "ip link set outer0 down; ip address flush dev outer0; ip link set outer0 name wire0; ip link set wire0 up
             ip link add link wire0 name outer0 type vlan {vlan}; echo 0 > /proc/sys/net/ipv6/conf/outer0/accept_dad
             ip address add 10.77.0.1/24 dev outer0; ip address add fd00:77::1/64 dev outer0 nodad; ip link set outer0 up"
        ));
    }

    /// A container with an attachment.
    pub fn add(&self, subject: &Subject, id: &str) -> Container {
        let container = self.host.container();
        subject.at(self.host.dir()).add(&self.host, id, &container);
        container
    }
}

/// A shell line of the host that makes a link of the subject's kind, called `eth0`, in a namespace; on the master if the kind
/// has one.
fn foreign_link(subject: &Subject, netns: &str) -> String {
    /// Each link has a VLAN of its own, because a VLAN is free again only some time after its namespace is gone.
    static VLAN: AtomicU16 = AtomicU16::new(1000);
    let kind = &subject.plugin;
    match kind.as_str() {
        "dummy" => format!("ip link add name eth0 netns {netns} type dummy"),
        "tap" => format!("nsenter --net={netns} ip tuntap add eth0 mode tap"),
        "ipvlan" => format!("ip link add link master0 name eth0 netns {netns} type ipvlan mode l2"),
        "vlan" => {
            let id = VLAN.fetch_add(1, Ordering::Relaxed);
            format!("ip link add link master0 name eth0 netns {netns} type vlan id {id}")
        }
        _ => format!("ip link add link master0 name eth0 netns {netns} type {kind}"),
    }
}

/// If another host has the container's address, ADD fails and leaves nothing, unless detection is disabled.
pub fn a_taken_address_is_refused_unless_detection_is_off(subject: &Subject) {
    for looks in [true, false] {
        let lan = Lan::of(subject);
        let container = Host::new().container();
        lan.outer.sh("ip address add fd00:77::2/64 dev outer0 nodad");
        let subject = subject.with("enabledad", json!(looks)).at(lan.host.dir());
        let before = HostSnapshot::of(&lan.host);
        let output = subject.call(&lan.host, "ADD", "c-one", &container.path(), &[]);
        if !looks {
            output.ok();
            assert!(container.sh("ip -6 address show dev eth0").contains(FIRST[1]));
            continue;
        }
        let (code, text) = output.refused();
        assert!(code == 101 && text.contains("another host on the segment of eth0 has fd00:77::2/64"), "{code} {text}");
        assert_eq!(container.links(), [""; 0]);
        HostSnapshot::of(&lan.host).assert_unchanged_since(&before, &SHARED, "after the refusal");
    }
}

/// Without carrier no other host can be asked, so ADD does not wait. A kernel that sends sixty probes would make it wait until the
/// timeout.
pub fn without_carrier_nothing_is_waited_for(subject: &Subject) {
    let subject = subject.with("enabledad", json!(true));
    for unplugged in ["ip link set outer0 down", "ip link set master0 down", "ip link set master0 state dormant"] {
        if subject.plugin == "vlan" && unplugged.ends_with("master0 down") {
            continue; // ADD is refused
        }
        let host = subject.on(MASTER).host();
        let subject = subject.clone();
        host.sh(unplugged);
        let subject = subject.at(host.dir());
        let adds = || {
            let container = host.container();
            container.sh(&detecting_with(60));
            let result = subject.add(&host, "c-one", &container);
            subject.check(&host, "c-one", &container, &result).ok();
            subject.del(&host, "c-one", &container, &result);
        };
        assert!(once_within(DETECTION, adds), "{unplugged}: ADD waits for the outcome of detection");
    }
}

/// DEL works whatever happened to the keys that name the master, and to the master: without a name, another name, removed, from
/// prevResult.
pub fn a_del_does_not_look_for_the_master(subject: &Subject) {
    let several = json!({"cniVersion": "1.1.0", "interfaces": [{"name": "one0"}, {"name": "two0"}]});
    let later = [
        json!({}),
        json!({"master": "gone0", "mode": "none", "mtu": "big", "vlanId": "none"}),
        json!({"linkInContainer": true}),
        json!({"prevResult": several}),
    ];
    for keys in later {
        let host = subject.host();
        let container = Host::new().container();
        let subject = subject.at(host.dir());
        subject.add(&host, "c-one", &container);
        host.sh("ip link set master0 down; ip link set master0 name renamed0; ip link set renamed0 up");
        let mut later = subject.clone();
        for key in ["master", "mode", "mtu", "vlanId", "linkInContainer", "prevResult"] {
            later.conf[key] = keys[key].clone();
        }
        later.call(&host, "DEL", "c-one", &container.path(), &[]).ok();
        assert_eq!(container.links(), [""; 0], "{keys}");
    }
}

/// Not even for a moment: a link that is made on the host and then moved would be announced there.
pub fn no_link_event_of_it_is_seen_on_the_host(subject: &Subject) {
    let host = subject.host();
    let container = Host::new().container();
    let subject = subject.at(host.dir());
    // It listens once it has seen the first of these, and until it has seen the last.
    let watched = "mkfifo told; timeout 60 ip -o monitor link >told & exec 3<told; while read -r link <&3; do echo \"$link\"; \
                   case $link in *first0*) : >begun;; *seen0*) break;; esac; done; kill $!; rm told";
    let watched = format!("cd {}; {watched}", host.dir().display());
    thread::scope(|scope| {
        let watch = scope.spawn(|| host.try_sh(&watched).1);
        let heard = |_| {
            host.sh("ip link add first0 type bridge; ip link del first0");
            host.dir().join("begun").exists()
        };
        assert!((0..1000).any(heard), "the monitor does not listen");
        let result = subject.add(&host, "c-one", &container);
        subject.del(&host, "c-one", &container, &result);
        host.sh("ip link add seen0 type bridge");
        let output = watch.join().unwrap();
        assert!(output.contains("seen0"), "it watches: {output}");
        assert!(!output.contains("eth0") && !output.contains(&subject.plugin), "{output}");
    });
}

/// A dry run changes neither the host nor the container, and its report has this text.
pub fn a_dry_run_makes_nothing(subject: &Subject, text: &str) {
    let host = subject.host();
    let container = host.container();
    let before = HostSnapshot::of(&host);
    let inside = HostSnapshot::inside(&container);
    let subject = subject.at(host.dir());
    let output = subject.call(&host, "PLAN", "c-one", &container.path(), &[]).ok().to_string();
    assert!(output.contains(text), "{output}");
    HostSnapshot::of(&host).assert_unchanged_since(&before, &[], "on the host");
    HostSnapshot::inside(&container).assert_unchanged_since(&inside, &[], "in the container");
}

/// Kernels before 6.15 look for the name there too.
pub fn the_host_may_have_a_link_of_the_same_name(subject: &Subject) {
    let host = subject.host();
    let container = Host::new().container();
    host.sh("ip link add eth0 type bridge");
    let subject = subject.at(host.dir());
    let before = HostSnapshot::of(&host);
    let result = subject.add(&host, "c-one", &container);
    subject.check(&host, "c-one", &container, &result).ok();
    let taken = subject.call(&host, "ADD", "c-two", &container.path(), &[]).refused();
    assert!(taken.0 == 101 && taken.1.contains("already exists in"), "{taken:?}");
    subject.del(&host, "c-one", &container, &result);
    assert_eq!(container.links(), [""; 0]);
    HostSnapshot::of(&host).assert_unchanged_since(&before, &SHARED, "after the DEL");
}

/// Interfaces of the kind that another program made, on the master, in the container and with the attachment's name: whatever their
/// alias is, no ADD, DEL or roll-back of ours changes them.
pub fn foreign_links_on_the_master_stay(subject: &Subject) {
    let marked = |network: &str, container: &str| {
        let tag = AttachmentId { network: network.into(), container: container.into(), ifname: "eth0".into() };
        format!("ip link set eth0 alias '{}'", alias::of(&tag))
    };
    // An interface without a mark of ours is upstream's unless a record says otherwise.
    let marks = [
        (":".to_owned(), false),
        ("ip link set eth0 alias foreign".to_owned(), false),
        (marked("testnet", "c-other"), true),
        (marked("another", "c-one"), true),
        ("ip link set eth0 group 7".to_owned(), true),
    ];
    let host = subject.host();
    let reused = Host::new().container();
    let subject = subject.at(host.dir());
    // Shared objects are made with the first container, and so is the record of a container whose path belongs to another one by
    // now.
    let mut record = subject.add(&host, "c-one", &reused);
    subject.del(&host, "c-one", &reused, &record);
    // Without what a carrier changes: the kernel notices a moment later that a tap which no program has open has none.
    let carrier = "s/NO-CARRIER,|,LOWER_UP| linkdown//g; s/ state [A-Z]+//";
    let shown = format!("{{ ip -o -d link 2>/dev/null; ip -o -4 address; ip route; }} | sed -E '{carrier}'");
    let seen = |container: &Container| container.sh(&shown);
    let before = HostSnapshot::of(&host);
    for (mark, is_told) in marks {
        let container = host.container();
        host.sh(&foreign_link(&subject, &container.path()));
        container.sh(&format!("{mark}; ip address add 10.77.0.99/24 dev eth0; ip link set eth0 up"));
        record["interfaces"][0]["sandbox"] = json!(container.path());
        let inside = seen(&container);
        let (code, text) = subject.call(&host, "ADD", "c-one", &container.path(), &[]).refused();
        assert!(code == 101 && text.contains("interface \"eth0\" already exists in"), "{mark}: {code} {text}");
        // A second one, whose ADD fails after its link is made, and is rolled back.
        let failing = subject.with("ipam", failing_ipam()).conf.to_string();
        let beside = [("CNI_IFNAME", "eth1")];
        let output = subject.call_raw(&host, "ADD", "c-one", &container.path(), failing.as_bytes(), &beside);
        assert!(output.refused().1.contains("Route with host scope can not have a gateway"), "{mark}: {output:?}");
        subject.del(&host, "c-one", &container, &record);
        if is_told {
            subject.call(&host, "DEL", "c-one", &container.path(), &[]).ok();
        }
        assert_eq!(seen(&container), inside, "{mark}");
    }
    HostSnapshot::of(&host).assert_unchanged_since(&before, &HINTS, "after all of them");
}

/// An IPAM plugin with a route that the kernel refuses after the link is made: a route of scope `host` cannot have a gateway.
fn failing_ipam() -> Value {
    let routes = json!([{"dst": "10.1.0.0/16", "gw": "10.77.0.1", "scope": 254}]);
    json!({"type": "static", "addresses": [{"address": "10.77.0.50/24"}], "routes": routes})
}

/// Named namespaces in mounts that only this process sees: two containers that the runtime lost, one that is valid, one of another
/// network, and one with an interface of another program. The output of `ip` for each comes last. Each
/// call has a VLAN of its own.
const NAMED: &str = r#"unshare --mount sh -euc '
    mount -t tmpfs tmpfs /run/netns
    vlan=10
    call() {
        vlan=$((vlan + 1))
        sed "s/\"[$]NUMBER\"/$vlan/" $dir/$3 >$dir/stdin
        CNI_COMMAND=$1 CNI_CONTAINERID=$2 CNI_NETNS=/run/netns/$2 CNI_IFNAME=eth0 CNI_PATH=$bin $bin/$plugin <$dir/stdin >/dev/null
    }
    all="lost-one lost-two valid other foreign"
    for name in $all; do ip netns add $name; done
    call ADD lost-one conf; call ADD lost-two conf; call ADD valid conf; call ADD other conf-of-another
    $foreign
    CNI_COMMAND=GC CNI_PATH=$bin $bin/$plugin <$dir/gc
    for name in $all; do echo $name $(ip -n $name -o link | grep -c eth0); ip netns del $name; done
'"#;

/// GC removes interfaces in named namespaces that belong to no valid attachment, and nothing else.
pub fn gc_removes_invalid_links_in_named_namespaces(subject: &Subject) {
    let host = subject.host();
    let subject = subject.at(host.dir());
    let valid = subject.with("cni.dev/valid-attachments", json!([{"containerID": "valid", "ifname": "eth0"}]));
    // No two ipvlans of a master may have an address.
    let ipam = json!({"type": "host-local", "subnet": "10.78.0.0/24"});
    let another = subject.with("name", json!("another")).with("ipam", ipam).at(host.dir());
    for (file, subject) in [("conf", &subject), ("conf-of-another", &another), ("gc", &valid)] {
        std::fs::write(host.dir().join(file), subject.conf.to_string()).unwrap();
    }
    let bin = subject.bin.display();
    let dir = host.dir().display();
    let plugin = &subject.plugin;
    let foreign = foreign_link(&subject, "/run/netns/foreign");
    let set = format!("export bin='{bin}' dir='{dir}' plugin='{plugin}' foreign='{foreign}'");
    let output = host.sh(&format!("{set}; {NAMED}"));
    assert_eq!(output, "lost-one 0\nlost-two 0\nvalid 1\nother 1\nforeign 1\n");
    let leases = host.sh(&format!("ls {dir}/leases/testnet | grep -c '^10[.]'"));
    assert_eq!(leases.trim(), "1", "only the valid one's address is still taken");
}

/// STATUS reports that there is no master, and makes no link to find out.
pub fn status_fails_while_the_master_is_missing(subject: &Subject) {
    let host = Host::new();
    let status = |master: Value, inside: bool| {
        let subject = subject.with("master", master).with("linkInContainer", json!(inside));
        subject.at(host.dir()).call(&host, "STATUS", "", "", &[])
    };
    let (code, text) = status(json!("master0"), false).refused();
    assert!(code == 50 && text.contains("failed to lookup master \"master0\""), "{code} {text}");
    let (code, text) = status(json!(""), false).refused();
    assert!(code == 50 && text.contains("no default route interface found"), "{code} {text}");
    status(json!("inside0"), true).ok();
    host.sh(MASTER);
    status(json!("master0"), false).ok();
    assert!(!host.sh("ip -o link").contains("probe"), "it makes nothing");
}
