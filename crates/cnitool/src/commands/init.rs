//! A configuration for a new network, by flags or by a few questions.
//!
//! JSON has no comments: what the keys mean stands under `//` at the top of the list, a key that every reader passes over.

use std::io::{self, BufRead, IsTerminal};
use std::net::IpAddr;
use std::path::Path;

use cnikit_libcni::{Error, load};
use cnikit_netlink::{Family, Netlink};
use cnikit_reservations::{RangeConfig, RangeSet};
use cnikit_store::Directory;
use cnikit_types::{Version, check_ifname, check_network_name, parse_cidr};
use ipnetwork::IpNetwork;
use serde_json::{Map, Value, json};

use crate::cli::{Init, Main};
use crate::environment;
use crate::failure::{Failure, Result};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{indented, print, print_json, print_to_stderr, write_to_stderr};

/// A network as it was asked for, checked.
#[derive(Debug)]
struct Wanted {
    name: String,
    plugin: Main,
    bridge: String,
    ranges: Vec<RangeConfig>,
    masquerade: bool,
    ports: bool,
    version: String,
}

/// Asks on a terminal; without one, what is proposed is taken.
struct Questions {
    is_asking: bool,
}

impl Questions {
    fn ask(&self, question: &str, proposed: &str) -> Result<String> {
        if !self.is_asking {
            return Ok(proposed.to_owned());
        }
        let failed = |error: io::Error| Failure::new(format!("terminal: {error}"));
        write_to_stderr(&format!("{question} [{proposed}]: ")).map_err(failed)?;
        let mut answer = String::new();
        if io::stdin().lock().read_line(&mut answer).map_err(failed)? == 0 {
            return Err("the questions were not answered: nothing is written".into());
        }
        let answer = answer.trim();
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

/// Writes the file, whole, and only if nothing is harmed by it.
pub(crate) fn init(common: &Common, out: Output, asked: &Init) -> Result {
    let dir = environment::configurations(common);
    let wanted = wanted(asked, &Questions { is_asking: !asked.yes && io::stdin().is_terminal() })?;
    let text = indented(&wanted.document())? + "\n";
    let to_stdout = asked.output.as_deref() == Some(Path::new("-"));
    let file = asked.output.clone().unwrap_or_else(|| dir.join(format!("10-{}.conflist", wanted.name)));
    if !to_stdout {
        refuse_harm(&dir, &file, &wanted.name, asked.force)?;
    }
    if to_stdout || asked.dry_run {
        if asked.dry_run && !to_stdout {
            print_to_stderr(&format!("would write {}:", file.display()));
        }
        return print(&text);
    }
    write(&file, &text)?;
    if out.json {
        return print_json(&json!({"file": file.display().to_string(), "network": wanted.name}));
    }
    print(&format!("wrote {}; `cnitool validate` judges it\n", file.display()))
}

fn refuse_harm(dir: &Path, file: &Path, name: &str, force: bool) -> Result {
    if force {
        return Ok(());
    }
    if file.exists() {
        return Err(format!("{} is there already; --force replaces it", file.display()).into());
    }
    match load(dir, name) {
        Err(Error::NoNetwork { .. } | Error::NoConfigurations { .. }) => Ok(()),
        _ => Err(format!("a network \"{name}\" is in {} already; --force writes all the same", dir.display()).into()),
    }
}

fn write(file: &Path, text: &str) -> Result {
    let name = file.file_name().and_then(|name| name.to_str());
    let name = name.ok_or_else(|| format!("{} is no name of a file", file.display()))?;
    let parent = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let directory = Directory::make(parent, 0o755)?;
    Ok(directory.replace_durably(name, text.as_bytes(), 0o644)?)
}

fn wanted(asked: &Init, questions: &Questions) -> Result<Wanted> {
    let name = said(asked.name.clone(), || questions.ask("Name of the network", "pods"))?;
    check_network_name(&name).map_err(|why| format!("--name: {why}: {name:?}"))?;
    let plugin =
        said(asked.plugin, || match questions.ask("Containers are connected by (bridge, ptp)", "bridge")?.as_str() {
            "bridge" => Ok(Main::Bridge),
            "ptp" => Ok(Main::Ptp),
            other => Err(format!("\"{other}\" is neither bridge nor ptp").into()),
        })?;
    let bridge = if plugin == Main::Bridge {
        said(asked.bridge.clone(), || questions.ask("Name of the bridge", "cni0"))?
    } else {
        String::new()
    };
    if plugin == Main::Bridge {
        check_ifname(&bridge).map_err(|why| format!("--bridge: {why}: {bridge:?}"))?;
    }
    let subnets = if asked.subnet.is_empty() {
        let said = questions.ask("Subnets, IPv4 or IPv6, with blanks between them", &free_subnet())?;
        said.split_whitespace().map(str::to_owned).collect()
    } else {
        asked.subnet.clone()
    };
    let masquerade = !asked.no_masquerade && questions.agree("Masquerade what leaves the network", true)?;
    let ports = asked.ports || questions.agree("Published ports, by the plugin portmap", false)?;
    if Version::exact(&asked.cni_version).is_none() {
        return Err(format!("--cni-version: no version of the specification: {}", asked.cni_version).into());
    }
    let ranges = ranges(&subnets, &asked.gateway)?;
    Ok(Wanted { name, plugin, bridge, ranges, masquerade, ports, version: asked.cni_version.clone() })
}

fn said<T>(said: Option<T>, ask: impl FnOnce() -> Result<T>) -> Result<T> {
    said.map_or_else(ask, Ok)
}

/// The subnets as host-local takes them, each with its gateway.
fn ranges(subnets: &[String], gateways: &[IpAddr]) -> Result<Vec<RangeConfig>> {
    let mut written = Vec::new();
    for text in subnets {
        let subnet = parse_cidr(text).map_err(|why| format!("--subnet: {why}"))?;
        let gateway = gateways.iter().copied().find(|gateway| subnet.contains(*gateway));
        written.push(RangeConfig { subnet: Some(subnet), gateway, ..RangeConfig::default() });
    }
    let sets = written.iter().map(|range| RangeSet::try_from(std::slice::from_ref(range)));
    let sets: Vec<RangeSet> = sets.collect::<Result<_, _>>().map_err(|refusal| format!("--subnet: {refusal}"))?;
    if sets.is_empty() {
        return Err("--subnet: at least one is needed".into());
    }
    if RangeSet::overlap(&sets).is_some() {
        return Err("--subnet: two of them overlap".into());
    }
    let stray = gateways.iter().find(|gateway| !written.iter().any(|range| range.gateway == Some(**gateway)));
    match stray {
        Some(stray) => Err(format!("--gateway: {stray} is in none of the subnets").into()),
        None => Ok(written),
    }
}

/// A subnet that no route of the host leads to; the first of those that are tried if all are taken.
fn free_subnet() -> String {
    let routes = Netlink::here().and_then(|netlink| netlink.routes(Family::V4)).unwrap_or_default();
    let is_free = |subnet: &IpNetwork| {
        let meets = |route: IpNetwork| route.contains(subnet.ip()) || subnet.contains(route.ip());
        !routes.iter().any(|route| !route.is_default() && meets(route.dst))
    };
    let tried = (88..128).filter_map(|second| format!("10.{second}.0.0/24").parse().ok());
    tried.into_iter().find(is_free).map_or_else(|| "10.88.0.0/24".to_owned(), |subnet| subnet.to_string())
}

impl Wanted {
    fn document(&self) -> Value {
        let mut plugins = vec![self.main()];
        if self.ports {
            plugins.push(json!({"type": "portmap", "capabilities": {"portMappings": true}}));
        }
        json!({"//": self.remarks(), "cniVersion": self.version, "name": self.name, "plugins": plugins})
    }

    fn main(&self) -> Value {
        let range = |range: &RangeConfig| {
            let subnet = range.subnet.map(|subnet| subnet.to_string());
            let mut keys = Map::from_iter([("subnet".to_owned(), json!(subnet))]);
            keys.extend(range.gateway.map(|gateway| ("gateway".to_owned(), json!(gateway.to_string()))));
            json!([keys])
        };
        let ranges: Vec<Value> = self.ranges.iter().map(range).collect();
        match self.plugin {
            Main::Bridge => json!({
                "type": "bridge",
                "bridge": self.bridge,
                "isDefaultGateway": true,
                "ipMasq": self.masquerade,
                "hairpinMode": true,
                "ipam": {"type": "host-local", "ranges": ranges},
            }),
            Main::Ptp => {
                let families = [("0.0.0.0/0", true), ("::/0", false)];
                let has =
                    |of_ipv4| self.ranges.iter().any(|range| range.subnet.is_some_and(|one| one.is_ipv4() == of_ipv4));
                let routes = families.iter().filter(|(_, of_ipv4)| has(*of_ipv4)).map(|(dst, _)| json!({"dst": dst}));
                json!({
                    "type": "ptp",
                    "ipMasq": self.masquerade,
                    "ipam": {"type": "host-local", "ranges": ranges, "routes": routes.collect::<Vec<_>>()},
                })
            }
        }
    }

    /// What stands for comments.
    fn remarks(&self) -> Vec<String> {
        let main = match self.plugin {
            Main::Bridge => vec![
                "bridge: all containers are ports of this link, which is made if it is not there.",
                "isDefaultGateway: the bridge has each subnet's gateway address, and containers go out through it.",
                "hairpinMode: a container reaches itself by a published port.",
            ],
            Main::Ptp => vec![
                "ptp: each container has a routed link of its own to the host.",
                "routes: what containers reach through the host; 0.0.0.0/0 and ::/0 are everything.",
            ],
        };
        let mut all = vec!["Written by cnitool init. Readers pass over this key; change what you like."];
        all.extend(main);
        all.push("ipMasq: what leaves the network leaves under the host's address.");
        all.push("ranges: a container gets one address of each list; reservations are in /var/lib/cni/networks.");
        if self.ports {
            all.push("portmap: ports of the host that lead to a container, as its runtime asks for them.");
        }
        all.into_iter().map(str::to_owned).collect()
    }
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
    fn a_gateway_goes_to_the_subnet_that_it_is_in() {
        let ranges = ranges_of(&["10.1.0.0/24", "fd00:1::/64"], &["10.1.0.9"]).unwrap();
        assert_eq!((ranges[0].gateway, ranges[1].gateway), ("10.1.0.9".parse().ok(), None));
    }

    #[test]
    fn what_no_plugin_would_take_is_refused_by_the_flag() {
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
