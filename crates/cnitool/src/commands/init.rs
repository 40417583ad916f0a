//! `init`: writes a configuration for a new network, from options or from the answers to a few questions.
//!
//! JSON has no comments: the meaning of the keys is under the key `//` at the top of the list, which every reader ignores.

use std::io::{self, BufRead, IsTerminal};
use std::net::IpAddr;
use std::path::Path;

use cnikit_libcni::{Error, load};
use cnikit_netlink::{Family, Netlink};
use cnikit_pool::{NodeFiles, PoolFamily, check_pool_name};
use cnikit_reservations::{RangeConfig, RangeSet};
use cnikit_store::Directory;
use cnikit_types::{Version, check_ifname, check_network_name, parse_cidr};
use ipnetwork::IpNetwork;
use serde_json::{Map, Value, json};

use crate::cli::{Init, MainPlugin, parse_vlan_id};
use crate::environment;
use crate::failure::{Failure, Result};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{indented, print, print_json, print_to_stderr, write_to_stderr};

/// The new network, with valid names and ranges.
#[derive(Debug)]
struct NewNetwork {
    name: String,
    plugin: MainPlugin,
    bridge: String,
    /// The link below a VLAN; none: that of the default route.
    master: Option<String>,
    vlan_id: Option<u16>,
    /// The device of the host; empty with other plugins.
    device: String,
    /// Whether a DHCP server assigns the addresses.
    dhcp: bool,
    /// The pool that has the addresses. If there is none, and no DHCP server, those of `ranges` are used.
    pool: Option<UsedPool>,
    ranges: Vec<RangeConfig>,
    masquerade: bool,
    ports: bool,
    limits: bool,
    source_routing: bool,
    vrf: Option<String>,
    version: String,
}

/// A pool of many nodes, as far as this node knows it.
#[derive(Debug)]
struct UsedPool {
    name: String,
    /// IPv4 alone if this node does not know the pool yet.
    families: Vec<PoolFamily>,
}

/// Asks questions on a terminal; without a terminal the proposed answers are used.
struct Questions {
    is_interactive: bool,
}

impl Questions {
    fn ask(&self, question: &str, proposed: &str) -> Result<String> {
        if !self.is_interactive {
            return Ok(proposed.to_owned());
        }
        let failed = |error: io::Error| Failure::new(format!("terminal: {error}"));
        write_to_stderr(&format!("{question} [{proposed}]: ")).map_err(failed)?;
        let mut line = String::new();
        if io::stdin().lock().read_line(&mut line).map_err(failed)? == 0 {
            return Err("the questions were not answered: nothing is written".into());
        }
        let answer = line.trim();
        Ok(if answer.is_empty() { proposed.to_owned() } else { answer.to_owned() })
    }

    fn agree(&self, question: &str, proposed: bool) -> Result<bool> {
        let answer = self.ask(question, if proposed { "yes" } else { "no" })?;
        match answer.to_ascii_lowercase().as_str() {
            "y" | "yes" => Ok(true),
            "n" | "no" => Ok(false),
            other => Err(format!("\"{other}\" is neither yes nor no").into()),
        }
    }
}

/// Writes the file atomically, unless the file or the network exists already.
pub(crate) fn init(common: &Common, out: Output, args: &Init) -> Result {
    let dir = environment::configurations(common);
    let questions = Questions { is_interactive: !args.yes && io::stdin().is_terminal() };
    let network = new_network(args, &questions)?;
    let text = indented(&network.document())? + "\n";
    if args.output.as_deref() == Some(Path::new("-")) {
        return print(&text);
    }
    let file = match &args.output {
        Some(file) => file.clone(),
        None => dir.join(format!("10-{}.conflist", network.name)),
    };
    if !args.force {
        check_absent(&dir, &file, &network.name)?;
    }
    if args.dry_run {
        print_to_stderr(&format!("would write {}:", file.display()));
        return print(&text);
    }
    write(&file, &text)?;
    if out.json {
        return print_json(&json!({"file": file.display().to_string(), "network": network.name}));
    }
    print(&format!("wrote {}; check it with `cnitool validate`\n", file.display()))
}

/// Checks that neither the file nor a network with the name exists.
fn check_absent(dir: &Path, file: &Path, name: &str) -> Result {
    if file.exists() {
        return Err(format!("{} already exists; hint: use `--force` to replace it", file.display()).into());
    }
    match load(dir, name) {
        Err(Error::NoNetwork { .. } | Error::NoConfigurations { .. }) => Ok(()),
        _ => Err(format!("a network \"{name}\" is in {} already; --force writes all the same", dir.display()).into()),
    }
}

fn write(file: &Path, text: &str) -> Result {
    let Some(name) = file.file_name().and_then(|name| name.to_str()) else {
        return Err(format!("{} is no name of a file", file.display()).into());
    };
    let parent = match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let directory = Directory::make(parent, 0o755)?;
    Ok(directory.replace_durably(name, text.as_bytes(), 0o644)?)
}

/// The network from the options, and from the answers to the questions about missing ones.
fn new_network(args: &Init, questions: &Questions) -> Result<NewNetwork> {
    let name = match args.name.as_ref().or(args.name_argument.as_ref()) {
        Some(name) => name.clone(),
        None => questions.ask("Name of the network", "pods")?,
    };
    check_network_name(&name).map_err(|why| format!("--name: {why}: {name:?}"))?;
    let plugin = match args.plugin.or(args.plugin_argument) {
        Some(plugin) => plugin,
        None => ask_plugin(questions)?,
    };
    check_fits(plugin, args)?;
    let bridge = match (plugin, &args.bridge) {
        (MainPlugin::Bridge, Some(bridge)) => bridge.clone(),
        (MainPlugin::Bridge, None) => questions.ask("Name of the bridge", "cni0")?,
        _ => String::new(),
    };
    let vlan_id = vlan_id(plugin, args, questions)?;
    let device = device(plugin, args, questions)?;
    if plugin == MainPlugin::Bridge {
        check_ifname(&bridge).map_err(|why| format!("--bridge: {why}: {bridge:?}"))?;
    }
    let mut subnets = args.subnet.clone();
    let pool = args.pool.as_deref().map(used_pool).transpose()?;
    let has_ranges = !args.dhcp && pool.is_none();
    if subnets.is_empty() && has_ranges {
        let answer = questions.ask("Subnets, IPv4 or IPv6, with blanks between them", &free_subnet())?;
        subnets.extend(answer.split_whitespace().map(str::to_owned));
    }
    let mut masquerade = false;
    let mut ports = false;
    let mut limits = false;
    if args.dhcp {
        limits = args.limits;
    } else if plugin.leads_to_the_host() {
        masquerade = !args.no_masquerade && questions.agree("Masquerade what leaves the network", true)?;
        ports = args.ports || questions.agree("Published ports, by the plugin portmap", false)?;
        limits = args.limits || questions.agree("Limits of rates, by the plugin bandwidth", false)?;
    }
    let version = args.cni_version.clone();
    if Version::exact(&version).is_none() {
        return Err(format!("--cni-version: no version of the specification: {version}").into());
    }
    let ranges = if has_ranges { ranges(&subnets, &args.gateway)? } else { Vec::new() };
    Ok(NewNetwork {
        name,
        plugin,
        bridge,
        master: args.master.clone(),
        device,
        vlan_id,
        dhcp: args.dhcp,
        pool,
        ranges,
        masquerade,
        ports,
        limits,
        source_routing: args.source_routing,
        vrf: args.vrf.clone(),
        version,
    })
}

/// Checks that names of links are valid, and that every option has an effect with this plugin.
fn check_fits(plugin: MainPlugin, args: &Init) -> Result {
    for (option, link) in [("--master", &args.master), ("--vrf", &args.vrf)] {
        if let Some(link) = link {
            check_ifname(link).map_err(|why| format!("{option}: {why}: {link:?}"))?;
        }
    }
    let of_vlan = [("--master", args.master.is_some()), ("--vlan-id", args.vlan_id.is_some())];
    for (option, is_given) in of_vlan {
        if is_given && plugin != MainPlugin::Vlan {
            return Err(format!("{option}: only with --plugin vlan").into());
        }
    }
    if args.dhcp && matches!(plugin, MainPlugin::Ptp | MainPlugin::Dummy | MainPlugin::Tap) {
        return Err(
            "--dhcp: only with --plugin bridge, vlan or host-device, which a server of the network reaches".into()
        );
    }
    if args.device.is_some() && plugin != MainPlugin::HostDevice {
        return Err("--device: only with --plugin host-device".into());
    }
    for (option, is_given) in [("--ports", args.ports), ("--limits", args.limits)] {
        if is_given && !plugin.leads_to_the_host() {
            return Err(format!("{option}: only with --plugin bridge or ptp, whose traffic the host sees").into());
        }
    }
    Ok(())
}

fn ask_plugin(questions: &Questions) -> Result<MainPlugin> {
    let known = [
        ("bridge", MainPlugin::Bridge),
        ("ptp", MainPlugin::Ptp),
        ("vlan", MainPlugin::Vlan),
        ("dummy", MainPlugin::Dummy),
        ("tap", MainPlugin::Tap),
        ("host-device", MainPlugin::HostDevice),
    ];
    let names = known.map(|(name, _)| name).join(", ");
    let answer = questions.ask(&format!("Containers are connected by ({names})"), "bridge")?;
    match known.iter().find(|(name, _)| *name == answer) {
        Some((_, plugin)) => Ok(*plugin),
        None => Err(format!("\"{answer}\" is not one of {names}").into()),
    }
}

/// The number of the VLAN, which nothing can be proposed for.
fn vlan_id(plugin: MainPlugin, args: &Init, questions: &Questions) -> Result<Option<u16>> {
    if plugin != MainPlugin::Vlan || args.vlan_id.is_some() {
        return Ok(args.vlan_id);
    }
    let answer = questions.ask("Number of the VLAN", "")?;
    if answer.is_empty() {
        return Err("vlan needs `--vlan-id`, the number of the VLAN; hint: use, for instance, `--vlan-id 100`".into());
    }
    match parse_vlan_id(&answer) {
        Ok(id) => Ok(Some(id)),
        Err(why) => Err(format!("--vlan-id \"{answer}\": {why}; hint: use, for instance, `--vlan-id 100`").into()),
    }
}

/// The device of the host, which nothing can be proposed for.
fn device(plugin: MainPlugin, args: &Init, questions: &Questions) -> Result<String> {
    if plugin != MainPlugin::HostDevice {
        return Ok(String::new());
    }
    let device = match &args.device {
        Some(device) => device.clone(),
        None => questions.ask("Device of the host", "")?,
    };
    if device.is_empty() {
        return Err("host-device needs `--device`, a device of the host; hint: `ip link` lists them".into());
    }
    check_ifname(&device).map_err(|why| format!("--device: {why}: {device:?}"))?;
    Ok(device)
}

fn used_pool(name: &str) -> Result<UsedPool> {
    check_pool_name(name).map_err(|error| format!("--pool: {error}"))?;
    let known = NodeFiles::new(host_local::DATA_DIR).pools().ok().flatten().unwrap_or_default();
    let families = match known.pool(name) {
        Ok(Some(definition)) => definition.families().collect(),
        _ => vec![PoolFamily::V4],
    };
    Ok(UsedPool { name: name.to_owned(), families })
}

/// The ranges of host-local: one for each subnet, with its gateway.
fn ranges(subnets: &[String], gateways: &[IpAddr]) -> Result<Vec<RangeConfig>> {
    let mut ranges = Vec::new();
    let mut sets = Vec::new();
    for text in subnets {
        let subnet = parse_cidr(text).map_err(|why| format!("--subnet: {why}"))?;
        let gateway = gateways.iter().copied().find(|gateway| subnet.contains(*gateway));
        ranges.push(RangeConfig { subnet: Some(subnet), gateway, ..RangeConfig::default() });
    }
    for range in &ranges {
        let set = RangeSet::try_from(std::slice::from_ref(range)).map_err(|error| format!("--subnet: {error}"))?;
        sets.push(set);
    }
    if sets.is_empty() {
        return Err("--subnet: at least one is needed".into());
    }
    if RangeSet::overlap(&sets).is_some() {
        return Err("--subnet: two of them overlap".into());
    }
    for gateway in gateways {
        if !ranges.iter().any(|range| range.gateway == Some(*gateway)) {
            return Err(format!("--gateway: {gateway} is in none of the subnets").into());
        }
    }
    Ok(ranges)
}

/// The first subnet from 10.88.0.0/24 on that no route of the host overlaps; that one if there is none.
fn free_subnet() -> String {
    let routes = Netlink::here().and_then(|netlink| netlink.routes(Family::V4)).unwrap_or_default();
    for second in 88..128 {
        let candidate = format!("10.{second}.0.0/24");
        let Ok(subnet) = candidate.parse::<IpNetwork>() else { continue };
        let is_used = routes.iter().any(|route| !route.is_default() && overlaps(route.dst, subnet));
        if !is_used {
            return candidate;
        }
    }
    "10.88.0.0/24".to_owned()
}

fn overlaps(one: IpNetwork, other: IpNetwork) -> bool {
    one.contains(other.ip()) || other.contains(one.ip())
}

impl NewNetwork {
    fn document(&self) -> Value {
        let mut plugins = vec![self.main_plugin()];
        if self.ports {
            plugins.push(json!({"type": "portmap", "capabilities": {"portMappings": true}}));
        }
        if self.limits {
            plugins.push(json!({"type": "bandwidth", "capabilities": {"bandwidth": true}}));
        }
        if self.source_routing {
            plugins.push(json!({"type": "sbr"}));
        }
        if let Some(vrf) = &self.vrf {
            plugins.push(json!({"type": "vrf", "vrfname": vrf}));
        }
        json!({"//": self.remarks(), "cniVersion": self.version, "name": self.name, "plugins": plugins})
    }

    fn main_plugin(&self) -> Value {
        match self.plugin {
            MainPlugin::Bridge if self.dhcp => {
                json!({"type": "bridge", "bridge": self.bridge, "ipam": {"type": "dhcp"}})
            }
            MainPlugin::Bridge => json!({
                "type": "bridge",
                "bridge": self.bridge,
                "isDefaultGateway": true,
                "ipMasq": self.masquerade,
                "hairpinMode": true,
                "ipam": self.ipam(),
            }),
            MainPlugin::Ptp => json!({"type": "ptp", "ipMasq": self.masquerade, "ipam": self.routed_ipam()}),
            MainPlugin::Vlan => {
                let mut vlan = json!({"type": "vlan", "vlanId": self.vlan_id, "ipam": self.routed_ipam()});
                if let Some(master) = &self.master {
                    vlan["master"] = json!(master);
                }
                vlan
            }
            MainPlugin::Tap => json!({"type": "tap", "ipam": self.ipam()}),
            MainPlugin::Dummy => json!({"type": "dummy", "ipam": self.ipam()}),
            MainPlugin::HostDevice => json!({"type": "host-device", "device": self.device, "ipam": self.routed_ipam()}),
        }
    }

    /// The IPAM plugin, without routes.
    fn ipam(&self) -> Value {
        if self.dhcp {
            return json!({"type": "dhcp"});
        }
        if let Some(pool) = &self.pool {
            return json!({"type": "pool", "pool": pool.name});
        }
        let ranges: Vec<Value> = self.ranges.iter().map(range_set_document).collect();
        json!({"type": "host-local", "ranges": ranges})
    }

    /// The IPAM plugin, with a default route for each family. A DHCP server says itself what is routed.
    fn routed_ipam(&self) -> Value {
        let mut ipam = self.ipam();
        if !self.dhcp {
            ipam["routes"] = self.default_routes().into();
        }
        ipam
    }

    /// A default route for each family of the pool, or of the subnets.
    fn default_routes(&self) -> Vec<Value> {
        let families: Vec<PoolFamily> = if let Some(pool) = &self.pool {
            pool.families.clone()
        } else {
            let subnets = self.ranges.iter().filter_map(|range| range.subnet);
            subnets.map(|subnet| PoolFamily::of(subnet.ip())).collect()
        };
        let mut routes = Vec::new();
        if families.contains(&PoolFamily::V4) {
            routes.push(json!({"dst": "0.0.0.0/0"}));
        }
        if families.contains(&PoolFamily::V6) {
            routes.push(json!({"dst": "::/0"}));
        }
        routes
    }

    /// The comments of the file.
    fn remarks(&self) -> Vec<String> {
        let main = match self.plugin {
            MainPlugin::Bridge if self.dhcp => vec![
                "bridge: all containers are ports of this link, which is made if it is not there. The DHCP server is on a network that it \
                 has a port to, such as `ip link set eth1 master BRIDGE`.",
            ],
            MainPlugin::Bridge => vec![
                "bridge: all containers are ports of this link, which is made if it is not there.",
                "isDefaultGateway: the bridge has each subnet's gateway address, and containers go out through it.",
                "hairpinMode: a container reaches itself by a published port.",
            ],
            MainPlugin::Ptp => vec![
                "ptp: each container has a routed link of its own to the host.",
                "routes: what containers reach through the host; 0.0.0.0/0 and ::/0 are everything.",
            ],
            MainPlugin::Vlan => vec![
                "vlan: each container has an interface in this VLAN of the master; without one, of the link of the default route.",
            ],
            MainPlugin::Tap => vec![
                "tap: each container has a TAP device, which a virtual machine monitor in its namespace attaches to.",
                "owner, group: without them, every process there that can open /dev/net/tun may attach to it.",
            ],
            MainPlugin::HostDevice => {
                vec!["host-device: the container has this device of the host, alone; the host has it back after DEL."]
            }
            MainPlugin::Dummy => vec!["dummy: each container has an interface that leads nowhere, for its addresses."],
        };
        let mut all = vec!["Written by cnitool init. This key is a comment: runtimes and plugins ignore it."];
        all.extend(main);
        all.extend(self.remarks_on_addresses());
        if self.ports {
            all.push("portmap: ports of the host that lead to a container, as its runtime requests them.");
        }
        if self.limits {
            all.push("bandwidth: the rates at which a container receives and sends, as its runtime requests them.");
        }
        if self.source_routing {
            all.push("sbr: a reply leaves by the interface on which the request arrived.");
        }
        if self.vrf.is_some() {
            all.push(
                "vrf: the interface is a member of this VRF in the container, whose table alone routes its packets.",
            );
        }
        all.into_iter().map(str::to_owned).collect()
    }

    /// The comments about IPAM and masquerading.
    fn remarks_on_addresses(&self) -> Vec<&'static str> {
        let mut all = Vec::new();
        if self.dhcp {
            all.push("dhcp: a server assigns the addresses, and a daemon of the host keeps them: enable cni-dhcp.socket, or start `dhcp daemon`.");
        }
        if self.plugin.leads_to_the_host() && !self.dhcp {
            all.push("ipMasq: packets that leave the network get the host's address (masquerading).");
        }
        let is_shared = matches!(self.plugin, MainPlugin::Vlan | MainPlugin::HostDevice);
        if !self.ranges.is_empty() {
            if is_shared {
                all.push("ranges: other hosts on the wire do not see these reservations, so each host needs a range of its own.");
            }
            all.push("ranges: a container gets one address of each list; reservations are in /var/lib/cni/networks.");
        }
        if self.pool.is_some() {
            all.push("pool: a container gets an address of each family of this pool, from blocks that cnikit-agent claims for the host.");
            if is_shared || self.plugin == MainPlugin::Ptp {
                all.push("routes: one default route for each family of the pool that was known here.");
            }
        }
        all
    }
}

/// A range set of one range.
fn range_set_document(range: &RangeConfig) -> Value {
    let mut keys = Map::new();
    keys.insert("subnet".to_owned(), json!(range.subnet.map(|subnet| subnet.to_string())));
    if let Some(gateway) = range.gateway {
        keys.insert("gateway".to_owned(), json!(gateway.to_string()));
    }
    json!([keys])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges_of(subnets: &[&str], gateways: &[&str]) -> Result<Vec<RangeConfig>> {
        let subnets: Vec<String> = subnets.iter().map(|&text| text.to_owned()).collect();
        let gateways: Vec<IpAddr> = gateways.iter().map(|text| text.parse().unwrap()).collect();
        ranges(&subnets, &gateways)
    }

    #[test]
    fn a_gateway_belongs_to_the_subnet_that_has_it() {
        let ranges = ranges_of(&["10.1.0.0/24", "fd00:1::/64"], &["10.1.0.9"]).unwrap();
        assert_eq!((ranges[0].gateway, ranges[1].gateway), ("10.1.0.9".parse().ok(), None));
    }

    #[test]
    fn invalid_ranges_are_refused_with_the_option() {
        let refused = [
            (&["10.1.0.1/24"][..], &[][..], "--subnet"),
            (&["10.1.0.0/24", "10.1.0.0/16"], &[], "overlap"),
            (&["10.1.0.0/24"], &["10.2.0.1"], "--gateway"),
            (&[], &[], "at least one"),
        ];
        for (subnets, gateways, word) in refused {
            let error = ranges_of(subnets, gateways).unwrap_err().text;
            assert!(error.contains(word), "{error}");
        }
    }
}
