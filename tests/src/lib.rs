//! Shared by the end-to-end tests in `tests/`: the paths of the binaries, and the tested configurations.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::missing_panics_doc, reason = "a test panics: that is how it fails")]
#![expect(clippy::disallowed_methods, reason = "it starts cargo, once, and container runtimes")]
#![expect(clippy::print_stdout, reason = "what was not run is part of what a test program says")]

pub mod attached;
pub mod campaign_subjects;
pub mod chain;
pub mod conformance_run;
pub mod debian_root;
pub mod dhcp_servers;
pub mod dnsmasq;
pub mod docs;
pub mod guest;
pub mod kubernetes;
pub mod lease_daemon;
pub mod mixed;
pub mod release_files;
pub mod running_server;
pub mod runtimes;
pub mod scene;
pub mod schema;
pub mod served;
pub mod state_files;
pub mod switched;
pub mod tampering;
pub mod transcripts;
pub mod udhcpd;
pub mod upper;
pub mod way;
pub mod world;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use cnikit::{Entry, Ipam};
use cnikit_testkit::campaign::{SummaryLine, runs_all_cases, seeded_rng};
use cnikit_testkit::{Subject, cache};
use serde_json::{Value, json};

/// Every plugin of ours.
pub const NAMES: [&str; 20] = [
    "bandwidth",
    "bridge",
    "dhcp",
    "dummy",
    "firewall",
    "flannel",
    "host-device",
    "host-local",
    "ipvlan",
    "loopback",
    "macvlan",
    "pool",
    "portmap",
    "ptp",
    "sbr",
    "static",
    "tap",
    "tuning",
    "vlan",
    "vrf",
];

/// host-local, to be called in this process, because it is this same program under another name.
pub static HOST_LOCAL: &[Entry] = &[Entry::of::<Ipam<host_local::HostLocalPlugin>>("host-local")];

/// The directory of cargo's output that this test is in: `target/TRIPLE/PROFILE`.
pub fn built() -> PathBuf {
    let mut dir = std::env::current_exe().unwrap();
    dir.pop(); // deps
    dir.pop();
    dir
}

/// `CNIKIT_RELEASED`: a release that `scripts/test` has built, as nodes have it installed, after all that [`build`] builds. With it
/// the tests take a fifth less of the processors than with plugins that are not optimized.
fn tested_release() -> Option<PathBuf> {
    std::env::var_os("CNIKIT_RELEASED").map(PathBuf::from)
}

/// The multi-call binary, the tool and each plugin as a binary of its own, built with the same profile as this test; or those in
/// `CNIKIT_BUILT`, where cargo cannot run.
fn build() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(build_once)
}

fn build_once() -> PathBuf {
    if let Some(built) = std::env::var_os("CNIKIT_BUILT") {
        return built.into();
    }
    if tested_release().is_some() {
        return built();
    }
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    cargo.args(["build", "--quiet", "--locked", "--workspace", "--bins", "--examples", "--profile", profile]);
    if std::env::var_os("CNIKIT_WITH_AGENT").is_none_or(|value| value.is_empty()) {
        cargo.args(["--exclude", "cnikit-agent"]);
    }
    let built_well = cargo.status().expect("cargo can be started");
    assert!(built_well.success(), "the binaries do not build");
    built()
}

/// A program that this workspace builds.
pub fn program(name: &str) -> PathBuf {
    match tested_release() {
        Some(released) if ["cni-plugins", "cnitool"].contains(&name) => released.join(name),
        _ => build().join(name),
    }
}

/// The plugins as they are built here: hard links to one binary, without launchers.
pub fn bin() -> &'static Path {
    static BIN: OnceLock<PathBuf> = OnceLock::new();
    BIN.get_or_init(link_plugins)
}

fn link_plugins() -> PathBuf {
    // In the directory of the binary, because hard links cannot cross file systems. It is made again if it has links to an older
    // build.
    let dir = dir_until_exit(build());
    for name in NAMES {
        std::fs::hard_link(program("cni-plugins"), dir.join(name)).unwrap();
    }
    dir
}

/// The plugins as `scripts/install` installs them, beside the tests. They are optimized, because they are run thousands of times.
pub fn installed() -> &'static Path {
    static INSTALLED: OnceLock<PathBuf> = OnceLock::new();
    INSTALLED.get_or_init(|| {
        let dir = built().join("installed");
        install_into(&dir);
        dir.join("bin")
    })
}

/// `CNIKIT_BUILT` or `CNIKIT_RELEASED`, if what is installed is built already.
fn built_as_installed() -> Option<PathBuf> {
    std::env::var_os("CNIKIT_BUILT").map(PathBuf::from).or_else(tested_release)
}

/// The directory of what `scripts/install` installs, and builds here; or `CNIKIT_BUILT`, or `CNIKIT_RELEASED`.
pub fn released() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        if let Some(built) = built_as_installed() {
            return built;
        }
        let printed =
            Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/install")).arg("--build").output().unwrap();
        assert!(printed.status.success(), "{printed:?}");
        PathBuf::from(String::from_utf8(printed.stdout).unwrap().trim_end())
    })
}

/// A program of another package of this workspace, built as those that `scripts/install` installs.
pub fn also_released(package: &str) -> PathBuf {
    if let Some(built) = built_as_installed() {
        return built.join(package);
    }
    let mut install = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/install"));
    let printed = install.arg("--build").env("CNIKIT_ALSO", package).output().unwrap();
    assert!(printed.status.success(), "{printed:?}");
    Path::new(String::from_utf8(printed.stdout).unwrap().trim_end()).join(package)
}

/// The earlier release of cnikit, commit b2fe807: its plugins, which are hard links to one binary, and its cnitool. It is there if
/// the file `.complete` is.
pub fn earlier() -> PathBuf {
    cache().join("release-b2fe807")
}

/// Installs the plugins in `bin` of a directory, which may exist, and cnitool in `tool`.
fn install_into(dir: &Path) {
    let mut install = Command::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/install"));
    install.env("CNIKIT_BUILT", released());
    let said = install.args([dir.join("bin"), dir.join("tool")]).output().expect("scripts/install can be started");
    assert!(said.status.success(), "scripts/install: {}", String::from_utf8_lossy(&said.stderr));
}

/// The same, each a binary of its own, so that they execute their IPAM plugin.
pub fn apart() -> &'static Path {
    static APART: OnceLock<PathBuf> = OnceLock::new();
    APART.get_or_init(copy_plugins)
}

fn copy_plugins() -> PathBuf {
    let dir = dir_until_exit(built());
    for name in NAMES {
        copy_program(&installed().join("cni-plugins"), &dir.join(name));
    }
    dir
}

/// Copies a program by another one: a child of another thread could inherit our file descriptor, and a file that is open for
/// writing cannot be executed.
pub fn copy_program(from: &Path, to: &Path) {
    let copied = Command::new("cp").args([from, to]).status();
    assert!(copied.expect("cp can be started").success(), "{} cannot be copied", from.display());
}

/// Whether this run tries one of the campaigns of a program that has too many for a run: a third of them, by chance, or all with
/// `CNIKIT_CAMPAIGNS=whole`. One that is left to another run is printed, with the seed of the choice.
pub fn is_chosen(campaign: &str) -> bool {
    let is_chosen = runs_all_cases() || seeded_rng(campaign).u8(..3) == 0;
    if !is_chosen {
        SummaryLine { tried: 0, of: 1, ..SummaryLine::new(campaign, "campaigns") }.with_seed().print();
    }
    is_chosen
}

/// The directories of upstream's plugins: the packaged ones, 1.1.1, and the newest, 1.9.1. If they are missing, the error says how
/// to get them.
pub fn references() -> [PathBuf; 2] {
    let packaged = there("/usr/lib/cni".into(), "install the package containernetworking-plugins");
    [packaged, unpacked("reference/usr/lib/cni")]
}

/// The directory of the newest ones together with upstream's last flannel, 0.9.0.
pub fn reference_with_flannel() -> PathBuf {
    unpacked("reference-flannel")
}

fn unpacked(name: &str) -> PathBuf {
    there(cache().join(name), "`scripts/test` unpacks it there before its tests")
}

fn there(dir: PathBuf, hint: &str) -> PathBuf {
    assert!(dir.join("bridge").exists(), "the reference's plugins are not in {}: {hint}", dir.display());
    dir
}

/// Upstream's cnitool, 1.3.0, with its libcni. If it is missing that is an error, as with the plugins.
pub fn reference_tool() -> PathBuf {
    let tool = cache().join("reference-tool/cnitool");
    assert!(
        tool.exists(),
        "the reference's cnitool is not {}: `scripts/test` builds it before its tests",
        tool.display()
    );
    tool
}

/// A new directory below another one. It is removed when the last of our processes has ended: a shell waits for that.
pub fn dir_until_exit(above: impl AsRef<Path>) -> PathBuf {
    let dir = tempfile::tempdir_in(above).unwrap().keep();
    let wait = format!("read -r _; rm -rf '{}'", dir.display());
    let shell = Command::new("/bin/sh").args(["-c", &wait]).stdin(std::process::Stdio::piped()).spawn().unwrap();
    std::mem::forget(shell); // its stdin closes with this process, and that is the signal
    dir
}

/// A plugin of ours with a configuration.
pub fn subject(plugin: &str, conf: Value) -> Subject {
    Subject::new(bin(), plugin, conf)
}

/// host-local with both families.
pub fn dual_stack() -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}], [{"subnet": "fd00:77::/64"}]]})
}

/// host-local with IPv4 only: upstream's plugins wait seconds for IPv6 addresses.
pub fn one_family() -> Value {
    json!({"type": "host-local", "ranges": [[{"subnet": "10.77.0.0/24"}]]})
}

/// pool with both families, on a host that is prepared by [`POOL_FILES`].
pub fn pooled() -> Value {
    json!({"type": "pool", "pool": "blue", "dataDir": "$DIR/leases", "agentSocket": "$DIR/agent.sock", "agentConfig": "$DIR/none"})
}

/// Writes the files that the agent of a node has: a pool without a cooldown, and a block of each family for the network `testnet`.
pub const POOL_FILES: &str = r#"mkdir -p $DIR/leases && mkdir -p -m 700 $DIR/leases/.pool && cd $DIR/leases/.pool && umask 077 &&
    printf '{"version":1,"incarnation":"0000000000000000000000000000000a","boot":"%s","state":"serving"}'         "$(cat /proc/sys/kernel/random/boot_id)" >node.json &&
    echo '{"version":1,"pools":[{"name":"blue","ranges":[{"subnet":"10.77.0.0/24"},{"subnet":"fd00:77::/64"}],
        "blockSize4":24,"blockSize6":120,"cooldown":0},
        {"name":"red","ranges":[{"subnet":"10.78.0.0/24"}]}],"select":{"kube-system":"red"}}' >pools.json &&
    echo '{"version":1,"blocks":[{"pool":"blue","cidr":"10.77.0.0/24","epoch":1,"state":"active"},
        {"pool":"blue","cidr":"fd00:77::/120","epoch":2,"state":"active"}]}' >testnet.blocks"#;

/// pool by itself, on a node that has [`POOL_FILES`].
pub fn pool(bin: &Path) -> Subject {
    Subject::new(bin, "pool", json!({"ipam": pooled()})).on(POOL_FILES)
}

/// Writes the files of [`POOL_FILES`] for a network below a directory.
pub fn write_pool_files(dir: &Path, network: &str) {
    let line = POOL_FILES.replace("$DIR", &dir.display().to_string()).replace("testnet", network);
    let written = Command::new("sh").args(["-c", &line]).status().unwrap();
    assert!(written.success(), "{line}");
}

/// static with both families.
pub fn written_down() -> Value {
    let addresses = json!([{"address": "10.77.0.5/24", "gateway": "10.77.0.1"}, {"address": "fd00:77::5/64", "gateway": "fd00:77::1"}]);
    json!({"type": "static", "addresses": addresses, "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]})
}

/// The file that flanneld writes on a host with these subnets, if its tunnel needs this many bytes.
pub fn subnet_env(subnets: [&str; 2], mtu: u32) -> String {
    let [ipv4, ipv6] = subnets;
    format!(
        "FLANNEL_NETWORK=10.77.0.0/16\nFLANNEL_SUBNET={ipv4}\nFLANNEL_IPV6_NETWORK=fd00:77::/48\nFLANNEL_IPV6_SUBNET={ipv6}\n\
         FLANNEL_MTU={mtu}\nFLANNEL_IPMASQ=false\n"
    )
}

/// The file of flanneld on a host, at a path that is there until the process ends.
pub fn subnet_file(name: &str, text: &str) -> PathBuf {
    static DIR: OnceLock<PathBuf> = OnceLock::new();
    let dir = DIR.get_or_init(|| dir_until_exit(built()));
    // A reader sees the complete file, which has the same content each time.
    let mut file = tempfile::NamedTempFile::new_in(dir).unwrap();
    std::io::Write::write_all(&mut file, text.as_bytes()).unwrap();
    file.persist(dir.join(name)).unwrap();
    dir.join(name)
}

/// flannel over a bridge that masquerades, with flanneld's file.
pub fn flannel() -> Subject {
    let file = subnet_file("subnet.env", &subnet_env(["10.77.0.1/24", "fd00:77::1/64"], 1450));
    let delegate = json!({"type": "bridge", "isDefaultGateway": true, "ipMasqBackend": "nftables"});
    let ipam = json!({"type": "host-local"});
    subject("flannel", json!({"subnetFile": file, "dataDir": "$DIR/flannel", "delegate": delegate, "ipam": ipam}))
}

/// flannel, in one process, with flanneld's file in the directory of the host: its path is the same in each run, so a soak can be
/// continued.
fn flannel_with_own_file() -> Subject {
    let text = subnet_env(["10.77.0.1/24", "fd00:77::1/64"], 1450);
    let subject = campaign_subjects::delegating("in one process").with("subnetFile", json!("$DIR/subnet.env"));
    subject.on(format!("printf '%s' '{text}' >$DIR/subnet.env").leak())
}

/// The subjects of a flood, as they are installed, each with its weight: its share of all calls.
pub fn flooded() -> Vec<(Subject, usize)> {
    let of = |plugin: &str, keys: Value| Subject::new(installed(), plugin, keys);
    let masquerading = |plugin: &str, backend: &str| {
        let keys = json!({"isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": backend, "ipam": dual_stack()});
        of(plugin, keys).called(&format!("{plugin} with {backend}"))
    };
    let [_, upstream] = references();
    let bridge = |ipam| of("bridge", json!({"isDefaultGateway": true, "ipam": ipam}));
    let host_local = |ipam| of("host-local", json!({"ipam": ipam}));
    vec![
        (bridge(dual_stack()), 8),
        (masquerading("bridge", "nftables"), 4),
        (masquerading("bridge", "iptables"), 2), // programs that wait for each other
        (masquerading("ptp", "nftables"), 4),
        (host_local(dual_stack()), 2),
        (bridge(one_family()).called("bridge beside upstream's").beside(&upstream), 2),
        (host_local(one_family()).called("host-local beside upstream's").beside(&upstream), 2),
        (bridge(dual_stack()).called("bridge on a full disk").on_small_disk(512), 2),
        (host_local(dual_stack()).called("host-local on a full disk").on_small_disk(512), 2),
        (pool(installed()), 2),
        (campaign_subjects::on_master(), 2),
        (campaign_subjects::tuning(), 2),
        (campaign_subjects::limited(), 1),
        (tap().in_directory(installed()), 1),
        (crowded_host_device(installed()), 1),
        (campaign_subjects::crowded_source_routing(installed()), 2),
        (flannel_with_own_file(), 2),
        (campaign_subjects::crowded_ports(installed(), "nftables"), 1),
        (campaign_subjects::crowded_ports(installed(), "iptables"), 1),
        (campaign_subjects::crowded_firewall(installed(), "nftables"), 1),
        (campaign_subjects::crowded_firewall(installed(), "iptables"), 1),
    ]
}

/// A bridge that is a gateway of both families and masquerades.
pub fn bridge() -> Subject {
    subject("bridge", json!({"isDefaultGateway": true, "ipMasq": true, "ipam": dual_stack()}))
}

/// ptp with default routes of both families, masqueraded.
pub fn ptp() -> Subject {
    let mut ipam = dual_stack();
    ipam["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    subject("ptp", json!({"ipMasq": true, "ipam": ipam}))
}

/// A master, optionally with another link on it. The peer at the other end of its wire is the gateway; the line waits until the
/// kernel uses its address.
macro_rules! master {
    ($($sibling:literal)?) => {
        concat!(
            "ip link add master0 type veth peer name outer0 && ",
            $("ip link add link master0 name sibling0 type ", $sibling, " && ",)?
            "ip address add 10.77.0.1/24 dev outer0 && ip address add fd00:77::1/64 dev outer0 nodad && ",
            "for link in $(ip -br link | grep -oE '^(master|outer|sibling)0'); do ",
            "echo 0 > /proc/sys/net/ipv6/conf/$link/accept_dad; ip link set $link up; done && ",
            "timeout 60 sh -c 'until ip -6 route show table local | grep -q fd00:77::1; do sleep 0.02; done'",
        )
    };
}

/// A master without other links.
pub const MASTER: &str = master!();

/// A master with a macvlan. Without it the snapshot would show a difference when the last macvlan is removed.
pub const MASTER_OF_MACVLANS: &str = master!("macvlan mode bridge");

/// The same with an ipvlan.
pub const MASTER_OF_IPVLANS: &str = master!("ipvlan mode l2");

/// The same with another VLAN.
pub const MASTER_OF_VLANS: &str = master!("vlan id 4000");

/// Default routes of both families by the gateways of [`dual_stack`].
pub fn routed() -> Value {
    let mut ipam = dual_stack();
    ipam["routes"] = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]);
    ipam
}

/// A macvlan with both families, and without the seconds of duplicate address detection.
pub fn macvlan() -> Subject {
    subject("macvlan", json!({"master": "master0", "enabledad": false, "ipam": routed()})).on(MASTER_OF_MACVLANS)
}

/// An ipvlan likewise.
pub fn ipvlan() -> Subject {
    subject("ipvlan", json!({"master": "master0", "enabledad": false, "ipam": routed()})).on(MASTER_OF_IPVLANS)
}

/// A VLAN of a master, likewise. The kernel allows one container per VLAN of a master.
pub fn vlan() -> Subject {
    subject("vlan", json!({"master": "master0", "vlanId": 7, "enabledad": false, "ipam": routed()})).on(MASTER_OF_VLANS)
}

/// The same with a VLAN of its own for each container.
pub fn vlans() -> Subject {
    vlan().with("vlanId", json!("$NUMBER"))
}

/// A dummy with both families.
pub fn dummy() -> Subject {
    subject("dummy", json!({"ipam": dual_stack()}))
}

/// A TAP device with both families, for one user and group.
pub fn tap() -> Subject {
    subject("tap", json!({"owner": 1000, "group": 1001, "ipam": dual_stack()}))
}

/// A device on the host for each container, with everything that has to be given back.
const DEVICE: &str = "nsenter --net=$HOST sh -c 'ip link show NAME >/dev/null 2>&1 || { \
    ip link add NAME address 02:00:5e:10:00:01 type ifb && \
    ip link set NAME mtu 1400 txqueuelen 77 alias spare promisc on group 7 && \
    ip link property add dev NAME altname a-spare-device-$NUMBER && \
    ip address add 10.66.$PLACE/32 dev NAME label NAME:x && \
    ip address add 10.67.$PLACE peer 10.68.$PLACE/32 dev NAME && ip link set NAME up; }'";

/// A device of the host with both families: `hd` and the container's number.
pub fn host_device(bin: &Path) -> Subject {
    spare_device(bin, "hd$NUMBER")
}

/// The same with one name, `pairend0`, of which snapshots compare nothing: a container can destroy such a device.
pub fn lost_host_device(bin: &Path) -> Subject {
    spare_device(bin, "pairend0")
}

/// The same for campaigns with many containers.
pub fn crowded_host_device(bin: &Path) -> Subject {
    spare_device(bin, "pairend$NUMBER")
}

fn spare_device(bin: &Path, name: &str) -> Subject {
    let keys = json!({"device": name, "dataDir": "$DIR/devices", "ipam": dual_stack()});
    Subject::new(bin, "host-device", keys).after(&DEVICE.replace("NAME", name), json!({"ips": []}))
}

/// Every configuration of an interface plugin that is put through everything.
pub fn interface_subjects() -> Vec<Subject> {
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "::/0"}, {"dst": "10.1.0.0/16", "mtu": 1400, "priority": 7}]);
    let mut with_routes = dual_stack();
    with_routes["routes"] = routes;
    vec![
        subject("bridge", json!({"isDefaultGateway": true, "ipMasq": true, "ipam": dual_stack()})),
        subject(
            "bridge",
            json!({"isGateway": true, "ipMasq": true, "ipMasqBackend": "nftables", "hairpinMode": true, "portIsolation": true, "mtu": 1400,
                   "ipam": with_routes.clone(), "dns": {"nameservers": ["10.0.0.53"]}}),
        ),
        subject("bridge", json!({})),
        subject("bridge", json!({"disableContainerInterface": true, "promiscMode": true})),
        subject("bridge", json!({"isDefaultGateway": true, "macspoofchk": true, "ipam": dual_stack()})),
        subject("ptp", json!({"ipMasq": true, "ipMasqBackend": "iptables", "mtu": 1400, "ipam": with_routes})),
        subject("ptp", json!({"ipam": {"type": "host-local", "subnet": "10.78.0.0/24"}})),
    ]
}

/// A plugin that is a shell script, in a directory that is removed with the value; its configuration is in `$conf`.
pub fn script(text: &str, conf: Value) -> (tempfile::TempDir, Subject) {
    let bin = tempfile::tempdir().unwrap();
    std::fs::write(bin.path().join("script"), format!("#!/bin/sh\nconf=$(cat)\n{text}")).unwrap();
    std::fs::set_permissions(bin.path().join("script"), PermissionsExt::from_mode(0o755)).unwrap();
    let subject = Subject::new(bin.path(), "script", conf).called("a script, meant to be found out");
    (bin, subject)
}

/// A directory of plugins in which a shell line runs after the plugin of a subject. Output and exit status are the plugin's.
pub fn wrapped(subject: &Subject, line: &str) -> tempfile::TempDir {
    in_place_of(subject, &format!("'{}' || exit\n{line}", subject.bin.join(&subject.plugin).display()))
}

/// A subject whose plugin runs under strace(1), and a function that returns these system calls of it with their arguments, all so
/// far.
pub fn traced(subject: &Subject, calls: &str) -> (tempfile::TempDir, impl Fn() -> Vec<String> + use<>) {
    let real = subject.bin.join(&subject.plugin);
    let bin = in_place_of(subject, &format!("exec strace -f -o \"$0.calls\" -e trace={calls} '{}'", real.display()));
    let file = bin.path().join(format!("{}.calls", subject.plugin));
    let said = move || {
        let text = std::fs::read_to_string(&file).unwrap();
        text.lines().filter_map(|line| Some(line.split_once(' ')?.1.trim().to_owned())).collect()
    };
    (bin, said)
}

/// A directory of plugins in which a script replaces the plugin of a subject.
fn in_place_of(subject: &Subject, text: &str) -> tempfile::TempDir {
    let bin = tempfile::tempdir().unwrap();
    for name in NAMES.iter().filter(|name| **name != subject.plugin) {
        std::os::unix::fs::symlink(subject.bin.join(name), bin.path().join(name)).unwrap();
    }
    let script = bin.path().join(&subject.plugin);
    std::fs::write(&script, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&script, PermissionsExt::from_mode(0o755)).unwrap();
    bin
}
