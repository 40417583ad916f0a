//! What the plugins of a network need of the node: features of the kernel, devices, directories.
//!
//! Features are tried in a namespace made for that, so nothing of the host is changed. The kernel may load a module meanwhile, as
//! it does for an ADD.

use std::path::Path;

use cnikit_libcni::{ListedPlugin, NetworkList};
use cnikit_netlink::{
    Batch, Family, FilterRule, HtbClass, Netlink, NewIfb, PacketMatch, QdiscPlace, Tbf, VlanProtocol,
};
use cnikit_netns::make;
use cnikit_resources::host_device::{self, DeviceSelector};
use cnikit_resources::parent::{Master, Which};
use cnikit_resources::stacked::StackedLink;
use cnikit_resources::vlan::VlanLink;
use cnikit_resources::{dummy, egress_limit, source_routing, tap, vrf};
use cnikit_skel::{Error, Result};
use cnikit_store::Directory;
use cnikit_types::NetConf;
use serde_json::Value;

/// Something that the node lacks, for a plugin of a network.
#[derive(Debug)]
pub(super) struct Unmet {
    pub(super) plugin: &'static str,
    pub(super) text: String,
    pub(super) hint: String,
}

/// A need of a plugin.
struct Need {
    plugin: &'static str,
    /// Whether a configuration of the plugin has this need.
    applies: fn(&NetConf) -> bool,
    /// Succeeds if the node has it. Otherwise the error says what is missing, and its hint what to do.
    check: fn(&NetConf) -> Result<()>,
}

/// Every need that is checked.
const NEEDS: &[Need] = &[
    Need { plugin: "vlan", applies: always, check: vlan_on_master },
    Need { plugin: "dummy", applies: always, check: |_| dummy::available() },
    Need { plugin: "tap", applies: always, check: |conf| tap::available(conf.text("selinuxContext").unwrap_or("")) },
    Need { plugin: "host-device", applies: moves_device, check: |conf| directory(&host_device::data_dir(conf)) },
    Need { plugin: "host-device", applies: moves_device, check: device_exists },
    Need { plugin: "sbr", applies: always, check: |_| policy_routing() },
    Need { plugin: "sbr", applies: always, check: |conf| directory(&source_routing::data_dir(conf)) },
    Need { plugin: "vrf", applies: always, check: |_| vrf::known() },
    Need { plugin: "vrf", applies: always, check: |conf| directory(&vrf::data_dir(conf)) },
    Need {
        plugin: "bandwidth",
        applies: |conf| is_limited(conf) && !has_subnets(conf),
        check: |_| scheduler(Scheduler::Tbf),
    },
    Need {
        plugin: "bandwidth",
        applies: |conf| is_limited(conf) && has_subnets(conf),
        check: |_| scheduler(Scheduler::Htb),
    },
    Need {
        plugin: "bandwidth",
        applies: |conf| is_limited(conf) && conf.get("fq_codel") == Some(&Value::Bool(true)),
        check: |_| scheduler(Scheduler::FqCodel),
    },
    Need { plugin: "bandwidth", applies: is_egress_limited, check: |_| egress_limit::available() },
    Need { plugin: "bandwidth", applies: is_egress_limited, check: |_| scheduler(Scheduler::Redirection) },
];

/// What the node lacks for the plugins of this network, in their order.
pub(super) fn unmet(list: &NetworkList) -> Vec<Unmet> {
    let mut unmet = Vec::new();
    for ListedPlugin { plugin, text, .. } in &list.plugins {
        let conf = NetConf::parse(text.as_bytes()).unwrap_or_default();
        for need in NEEDS {
            if need.plugin != plugin || !(need.applies)(&conf) {
                continue;
            }
            if let Err(error) = (need.check)(&conf) {
                unmet.push(Unmet { plugin: need.plugin, text: error.msg, hint: error.hint.unwrap_or_default() });
            }
        }
    }
    unmet
}

fn always(_: &NetConf) -> bool {
    true
}

/// Whether the plugin moves a device. With `dpdkMode` a program in user space has it.
fn moves_device(conf: &NetConf) -> bool {
    conf.get("dpdkMode") != Some(&Value::Bool(true))
}

fn is_limited(conf: &NetConf) -> bool {
    is_set(conf, "ingressRate") || is_egress_limited(conf)
}

/// Whether packets from the container are limited, or may be because the runtime passes rates.
fn is_egress_limited(conf: &NetConf) -> bool {
    is_set(conf, "egressRate") || conf.at(&["capabilities", "bandwidth"]) == Some(&Value::Bool(true))
}

fn is_set(conf: &NetConf, key: &str) -> bool {
    conf.get(key).and_then(Value::as_u64).is_some_and(|number| number > 0)
}

fn has_subnets(conf: &NetConf) -> bool {
    let has_any = |key: &str| conf.get(key).and_then(Value::as_array).is_some_and(|subnets| !subnets.is_empty());
    has_any("shapedSubnets") || has_any("unshapedSubnets")
}

/// A file can be created in the directory of a plugin's states.
fn directory(dir: &Path) -> Result<()> {
    Directory::probe_at(dir).map_err(|error| {
        Error::conflict(format!("no file can be created in {}: {error}", dir.display()))
            .hint("set `dataDir` to a directory that root can write, or repair the file system")
    })
}

/// VLANs, and a master that exists and is up.
fn vlan_on_master(conf: &NetConf) -> Result<()> {
    let which = match conf.text("master") {
        None | Some("") => Which::OfDefaultRoute,
        Some(name) => Which::Named(name.to_owned()),
    };
    let in_container = conf.get("linkInContainer") == Some(&Value::Bool(true));
    let link = StackedLink { ifname: String::new(), master: Master { which, in_container }, mtu: None, up: false };
    VlanLink { link, id: 0, protocol: VlanProtocol::Dot1q }.available()
}

/// The configured device is on the host, or an attachment has it. One that the runtime passes is known to ADD only.
fn device_exists(conf: &NetConf) -> Result<()> {
    let key = |key: &str| conf.text(key).filter(|text| !text.is_empty());
    let device = if let Some(name) = key("device") {
        DeviceSelector::Name(name.to_owned())
    } else if let Some(address) = key("hwaddr") {
        DeviceSelector::HardwareAddress(address.parse().map_err(Error::config)?)
    } else if let Some(path) = key("kernelpath") {
        DeviceSelector::KernelPath(host_device::check_kernel_path(path).map_err(Error::config)?)
    } else if let Some(pci) = key("pciBusID") {
        host_device::check_bus_name(pci).map_err(Error::config)?;
        if host_device::is_in_userspace(pci)? {
            return Ok(());
        }
        DeviceSelector::Pci(pci.to_owned())
    } else {
        return Ok(());
    };
    host_device::check_exists(&device, &host_device::data_dir(conf))
}

/// Routing rules, which the kernel has from the beginning in each namespace.
fn policy_routing() -> Result<()> {
    let tried = make::anonymous()?;
    let rules = Netlink::inside(&tried)?.rules()?;
    if !rules.iter().any(|rule| rule.family == Family::V4) {
        return Err(Error::conflict("this kernel has no policy routing")
            .hint("boot a kernel with CONFIG_IP_MULTIPLE_TABLES, as all distributions have"));
    }
    Ok(())
}

/// A part of the kernel's traffic control.
#[derive(Clone, Copy, Debug)]
enum Scheduler {
    Tbf,
    Htb,
    FqCodel,
    Redirection,
}

impl Scheduler {
    /// The modules that have it.
    fn modules(self) -> &'static str {
        match self {
            Scheduler::Tbf => "sch_tbf",
            Scheduler::Htb => "sch_htb cls_u32",
            Scheduler::FqCodel => "sch_fq_codel",
            Scheduler::Redirection => "sch_ingress cls_u32 act_mirred",
        }
    }
}

/// Tries a part of the traffic control at the `lo` of a namespace.
fn scheduler(part: Scheduler) -> Result<()> {
    let tried = make::anonymous()?;
    let netlink = Netlink::inside(&tried)?;
    let lo = netlink.link("lo")?.index;
    let all = |redirects_to| FilterRule { preference: 1, packets: PacketMatch::All, class: 1, redirects_to };
    let mut batch = Batch::new();
    match part {
        Scheduler::Tbf => batch.set_tbf(lo, &SOME_LIMIT),
        Scheduler::Htb => {
            batch.add_htb(lo, 1);
            batch.set_htb_class(lo, &HtbClass { rate: SOME_LIMIT.rate, buffer: SOME_LIMIT.buffer });
            batch.add_filter(lo, QdiscPlace::Root, &all(None));
        }
        Scheduler::FqCodel => {
            batch.set_tbf(lo, &SOME_LIMIT);
            batch.set_qdisc_below_root(lo, "fq_codel");
        }
        Scheduler::Redirection => {
            let ifb = netlink.create_ifb(&NewIfb { name: "ifb".to_owned(), mtu: 1500, group: 0 });
            // A kernel without ifb is another finding.
            let target = ifb.map_or(lo, |ifb| ifb.index);
            batch.add_ingress(lo);
            batch.add_filter(lo, QdiscPlace::Ingress, &all(Some(target)));
        }
    }
    netlink.send(batch).map_err(|error| {
        let modules = part.modules();
        Error::conflict(format!("this kernel cannot limit rates with {modules}: {error}"))
            .hint(format!("`modprobe -a {modules}`, or boot a kernel that has them"))
    })
}

/// One Mbit/s.
const SOME_LIMIT: Tbf = Tbf { rate: 125_000, limit: 20_000, buffer: 1_000_000, burst: None };

#[cfg(test)]
mod tests {
    use super::*;

    /// The needs of a plugin with this configuration, by their places in the table.
    fn needs(plugin: &str, conf: &str) -> usize {
        let conf = NetConf::parse(conf.as_bytes()).unwrap();
        NEEDS.iter().filter(|need| need.plugin == plugin && (need.applies)(&conf)).count()
    }

    #[test]
    fn a_configuration_has_the_needs_of_its_keys() {
        for (plugin, conf, count) in [
            ("bandwidth", "{}", 0),
            ("bandwidth", r#"{"ingressRate":0,"egressRate":0}"#, 0),
            ("bandwidth", r#"{"ingressRate":8000}"#, 1),
            ("bandwidth", r#"{"ingressRate":8000,"fq_codel":true}"#, 2),
            ("bandwidth", r#"{"ingressRate":8000,"shapedSubnets":["10.0.0.0/8"]}"#, 1),
            ("bandwidth", r#"{"egressRate":8000}"#, 3),
            ("bandwidth", r#"{"capabilities":{"bandwidth":true}}"#, 3),
            ("host-device", r#"{"device":"eth1"}"#, 2),
            ("host-device", r#"{"pciBusID":"0000:00:03.0","dpdkMode":true}"#, 0),
            ("bridge", "{}", 0),
        ] {
            assert_eq!(needs(plugin, conf), count, "{plugin} {conf}");
        }
        for plugin in ["vlan", "host-device", "dummy", "tap", "bandwidth", "sbr", "vrf"] {
            assert!(NEEDS.iter().any(|need| need.plugin == plugin), "{plugin}");
        }
    }
}
