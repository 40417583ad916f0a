//! Fuzz target: the configurations of static, dhcp, pool and of all plugins that make or change an interface.

use std::sync::OnceLock;

use cnikit::types::{NetConf, Value};
use cnikit::{Chained, InterfaceShape, Ipam, Plugins, serve};
use host_local::HostLocalPlugin;

use crate::plugin_call::{PluginReply, call, plan, plugin_entry};

/// Plans an ADD: the first byte selects the plugin; then follow `CNI_ARGS`, a NUL, and the configuration. A configured host-local
/// is run in this program.
pub(crate) fn run(data: &[u8]) {
    let Some((choice, rest)) = data.split_first() else { return };
    let mut fields = rest.splitn(2, |byte| *byte == 0);
    let args = String::from_utf8_lossy(fields.next().unwrap_or_default());
    let (path, plugins) = own_entry();
    let stdin = with_own_ipam(fields.next().unwrap_or_default(), plugins[0].name);
    let mut input = plan(&args, &stdin);
    input.path.clone_from(path);
    let reply = match choice % 18 {
        0 => call::<InterfaceShape<bridge::BridgePlugin>>(input, plugins),
        1 => call::<InterfaceShape<ptp::PtpPlugin>>(input, plugins),
        3 => call::<Ipam<static_ipam::StaticPlugin>>(input, plugins),
        4 => call::<Chained<tuning::TuningPlugin>>(input, plugins),
        5 => call::<InterfaceShape<macvlan::MacvlanPlugin>>(input, plugins),
        6 => call::<InterfaceShape<ipvlan::IpvlanPlugin>>(input, plugins),
        7 => call::<Chained<firewall::FirewallPlugin>>(input, plugins),
        8 => call::<Chained<portmap::PortmapPlugin>>(input, plugins),
        9 => call::<InterfaceShape<dummy::DummyPlugin>>(input, plugins),
        10 => call::<InterfaceShape<vlan::VlanPlugin>>(input, plugins),
        11 => call::<Chained<sbr::SbrPlugin>>(input, plugins),
        12 => call::<Chained<vrf::VrfPlugin>>(input, plugins),
        13 => call::<Chained<bandwidth::BandwidthPlugin>>(input, plugins),
        14 => call::<InterfaceShape<tap::TapPlugin>>(input, plugins),
        15 => call::<InterfaceShape<host_device::HostDevicePlugin>>(input, plugins),
        16 => call::<Ipam<dhcp::DhcpPlugin>>(input, plugins),
        17 => call::<Ipam<pool::PoolPlugin>>(input, plugins),
        _ => call::<loopback::LoopbackPlugin>(input, plugins),
    };
    check_plan(&reply);
}

fn check_plan(reply: &PluginReply) {
    if !reply.success {
        return;
    }
    let document = reply.document.as_ref().expect("a dry run has something to say");
    let steps = document["plan"].as_array().expect("a plan is a list");
    assert!(steps.iter().all(|step| step.as_str().is_some_and(|step| !step.trim().is_empty())), "{document}");
}

fn own_entry() -> &'static (String, Plugins) {
    static ENTRY: OnceLock<(String, Plugins)> = OnceLock::new();
    ENTRY.get_or_init(|| plugin_entry(serve::<Ipam<HostLocalPlugin>>))
}

/// Replaces host-local in the configuration by this program.
fn with_own_ipam(stdin: &[u8], name: &str) -> Vec<u8> {
    match NetConf::parse(stdin) {
        Ok(mut conf) if conf.ipam_type() == Some("host-local") => {
            conf.set_at(&["ipam", "type"], Value::from(name));
            conf.to_vec()
        }
        _ => stdin.to_vec(),
    }
}
