//! The pages in `docs/`: their text, the network lists in them, and the calls that a list is tested with.

use std::path::{Path, PathBuf};

use cnikit_libcni::{Attachment, Cache, Runtime, load};
use cnikit_testkit::snapshot::HINTS;
use cnikit_testkit::{Container, Host, HostSnapshot};
use serde_json::{Value, json};

use crate::dnsmasq::{DHCP_BRIDGE, DHCP6_OPTIONS, Dnsmasq, dhcp_bridge, dhcp6_address};
use crate::lease_daemon::LeaseDaemon;

/// The project's own folder.
fn top() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()
}

/// A page: its path relative to the project's folder, and its text.
#[derive(Clone, Debug)]
pub struct Page {
    /// Such as `docs/ptp.md`.
    pub path: PathBuf,
    /// All of it.
    pub text: String,
}

/// A network list that a page shows.
#[derive(Clone, Debug)]
pub struct Example {
    /// The page and line of the block, for messages.
    pub place: String,
    /// The feature of the kernel that it needs, by the name of a [`cnikit_testkit::need::Need`]: the word after `needs=` beside the
    /// fence.
    pub need: Option<String>,
    /// The list.
    pub list: Value,
}

/// A page by its path.
pub fn page(path: impl AsRef<Path>) -> Page {
    let file = top().join(path.as_ref());
    let text = std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    Page { path: path.as_ref().to_owned(), text }
}

/// Every page of `docs/`, in the order of their names.
pub fn pages() -> Vec<Page> {
    let entries = std::fs::read_dir(top().join("docs")).unwrap();
    let mut names: Vec<PathBuf> = entries.map(|entry| entry.unwrap().file_name().into()).collect();
    names.retain(|name| name.extension().is_some_and(|end| end == "md"));
    names.sort();
    names.iter().map(|name| page(Path::new("docs").join(name))).collect()
}

/// Every network list of every page that needs this of the kernel, or nothing.
pub fn examples(need: Option<&str>) -> Vec<Example> {
    let all = pages().into_iter().flat_map(|page| page.examples());
    all.filter(|example| example.need.as_deref() == need).collect()
}

impl Page {
    /// Its blocks of code that are marked as JSON: each is a network list. One with a `file=` is for a container runtime.
    pub fn examples(&self) -> Vec<Example> {
        let mut lines = self.text.lines().enumerate();
        let mut found = Vec::new();
        while let Some((number, fence)) = lines.next() {
            let Some(words) = fence.strip_prefix("```") else { continue };
            let block: Vec<&str> = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            let mut words = words.split_whitespace();
            if words.next() == Some("json") && !words.clone().any(|word| word.starts_with("file=")) {
                let place = format!("{}:{}", self.path.display(), number + 1);
                let list = serde_json::from_str(&block.join("\n")).unwrap_or_else(|error| panic!("{place}: {error}"));
                let need = words.find_map(|word| word.strip_prefix("needs=")).map(str::to_owned);
                found.push(Example { place, need, list });
            }
        }
        found
    }
}

impl Example {
    /// Runs ADD, CHECK and DEL twice, as a runtime does: the gateways answer, and the second time leaves nothing that the first did
    /// not.
    pub fn try_out(&self) {
        let host = Host::new();
        let container = Host::new().container();
        if let Some(master) = self.master() {
            // A router of the segment, which the server of DHCP is, advertises itself at any time: the host is not to heed it.
            host.sh(&format!(
                "ip link add {master} type veth peer name wire0; echo 0 >/proc/sys/net/ipv6/conf/{master}/accept_ra; \
                 ip link set {master} up; ip link set wire0 up"
            ));
            if let Some(id) = self.vlan() {
                host.sh(&format!("ip link add link wire0 name tagged0 type vlan id {id}; ip link set tagged0 up"));
            }
        }
        let _servers = self.servers(&host);
        // A loopback that was up once has its IPv4 address from then on.
        container.sh("ip link set lo up; ip link set lo down");
        // The rules that the kernel adds with the first VRF stay.
        container.try_sh("ip link add first0 type vrf table 9 && ip link del first0");
        let inside = HostSnapshot::inside(&container);
        let life = || self.life(&host, &container).unwrap_or_else(|error| panic!("{}: {error}", self.place));
        life();
        let first = HostSnapshot::of(&host);
        let name = self.list["name"].as_str().unwrap();
        let left = host.sh("ip -o link; nft list ruleset; iptables-save; ip6tables-save");
        for trace in ["cnikit:", "docs-one"] {
            assert!(!left.contains(trace), "{}: of {name} is left: {left}", self.place);
        }
        HostSnapshot::inside(&container).assert_unchanged_since(&inside, &[], &self.place);
        life();
        let hints = [HINTS.as_slice(), &["file: dnsmasq/"]].concat();
        HostSnapshot::of(&host).assert_unchanged_since(&first, &hints, &self.place);
    }

    /// What dhcp needs: a server on the bridge, or behind the master, and the daemon.
    fn servers(&self, host: &Host) -> Option<(Dnsmasq, LeaseDaemon)> {
        if !self.has_dhcp() {
            return None;
        }
        dhcp_bridge(host);
        if self.master().is_some() {
            host.sh(&format!("ip link set wire0 master {DHCP_BRIDGE}"));
        }
        dhcp6_address(host);
        Some((Dnsmasq::start(host, "10.99.0.10,10.99.0.50", &DHCP6_OPTIONS), LeaseDaemon::start(host, &[])))
    }

    fn has_dhcp(&self) -> bool {
        self.list["plugins"][0]["ipam"]["type"] == "dhcp"
    }

    fn life(&self, host: &Host, container: &Container) -> Result<(), cnikit_libcni::Error> {
        let configurations = host.dir().join("net.d");
        std::fs::create_dir_all(&configurations).unwrap();
        std::fs::write(configurations.join("example.conflist"), self.below(host.dir()).to_string()).unwrap();
        let list = load(&configurations, self.list["name"].as_str().unwrap())?;
        assert_eq!(list.warnings, [""; 0], "{}", self.place);
        let path = crate::bin().display().to_string();
        let runtime = Runtime::new(path, Cache::below(&host.dir().join("kept")));
        let at = Attachment::new("docs-one", container.path());
        let result = host.enter(|| runtime.add(&list, &at))?;
        host.enter(|| runtime.check(&list, &at))?;
        if self.master().is_some() && !self.has_dhcp() {
            let end = if self.vlan().is_some() { "tagged0" } else { "wire0" };
            assign_the_gateway(host, end, &result);
        }
        for address in self.answering(&result) {
            assert!(self.is_reached(container, &address), "{}: {address} does not answer", self.place);
        }
        host.enter(|| runtime.del(&list, &at)).map(drop)
    }

    /// The link of the host that the first plugin is on top of, or moves, if it names one.
    fn master(&self) -> Option<&str> {
        let first = &self.list["plugins"][0];
        first["master"].as_str().or(first["device"].as_str())
    }

    /// The VLAN of the master that the container is in.
    fn vlan(&self) -> Option<u64> {
        self.list["plugins"][0]["vlanId"].as_u64()
    }

    /// The list with the directories of host-local and flannel below this directory, and with flanneld's file there.
    /// Whether an address answers, in the VRF that a plugin of the list puts the interface into.
    fn is_reached(&self, container: &Container, address: &str) -> bool {
        let plugins = self.list["plugins"].as_array().unwrap();
        match plugins.iter().find_map(|plugin| plugin["vrfname"].as_str()) {
            Some(vrf) => container.try_sh(&format!("ping -n -q -c 1 -W 10 -I {vrf} {address}")).0,
            None => container.reaches(address),
        }
    }

    fn below(&self, dir: &Path) -> Value {
        let mut list = self.list.clone();
        let name = list["name"].as_str().unwrap().to_owned();
        for plugin in list["plugins"].as_array_mut().unwrap() {
            let is_flannel = plugin["type"] == "flannel";
            if is_flannel {
                let content = crate::subnet_env(["10.77.0.1/24", "fd00:77::1/64"], 1450);
                std::fs::write(dir.join("subnet.env"), content).unwrap();
                plugin["subnetFile"] = json!(dir.join("subnet.env"));
                plugin["dataDir"] = json!(dir.join("flannel"));
            }
            if plugin["ipam"]["type"] == "dhcp" {
                plugin["ipam"]["daemonSocketPath"] = json!(dir.join("dhcp.sock"));
                plugin["ipam"]["dataDir"] = json!(dir.join("dhcp-leases"));
                if plugin["bridge"].is_string() {
                    plugin["bridge"] = json!(DHCP_BRIDGE);
                }
            }
            if plugin["ipam"]["type"] == "pool" {
                crate::write_pool_files(dir, &name);
                plugin["ipam"]["agentSocket"] = json!(dir.join("agent.sock"));
                plugin["ipam"]["dataDir"] = json!(dir.join("leases"));
            }
            if is_flannel || plugin["ipam"]["type"] == "host-local" {
                plugin["ipam"]["dataDir"] = json!(dir.join("leases"));
            }
        }
        list
    }

    /// The addresses that must answer the container: the gateways, if the first plugin makes them, and its own loopback.
    fn answering(&self, result: &Value) -> Vec<String> {
        let first = &self.list["plugins"][0];
        let serves = ["ptp", "flannel"].iter().any(|plugin| first["type"] == *plugin)
            || first["isGateway"] == true
            || first["isDefaultGateway"] == true
            || self.has_dhcp()
            || self.master().is_some();
        let of_ip = |ip: &Value| {
            let wanted = if first["type"] == "loopback" { &ip["address"] } else { &ip["gateway"] };
            wanted.as_str().map(|text| text.split('/').next().unwrap().to_owned())
        };
        let ips = result["ips"].as_array().into_iter().flatten();
        let answering: Vec<String> = ips.filter_map(of_ip).filter(|_| serves || first["type"] == "loopback").collect();
        let is_silent = first["ipam"].is_null() || ["dummy", "tap"].iter().any(|plugin| first["type"] == *plugin);
        assert!(!answering.is_empty() || is_silent, "{}: nothing is tried with a packet", self.place);
        answering
    }
}

/// At the other end of the master's wire, which is on the same host: it has the gateways' addresses.
fn assign_the_gateway(host: &Host, end: &str, result: &Value) {
    for ip in result["ips"].as_array().into_iter().flatten() {
        let [address, gateway] = ["address", "gateway"].map(|key| ip[key].as_str().unwrap_or_default());
        let prefix = address.split_once('/').map_or("", |(_, prefix)| prefix);
        let nodad = if gateway.contains(':') { "nodad" } else { "" };
        host.sh(&format!("ip address replace {gateway}/{prefix} dev {end} {nodad}"));
    }
}
