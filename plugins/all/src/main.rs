//! All plugins in one binary, called by the name of the plugin; and the commands that install it.

use cnikit::{Chained, Delegating, Entry, InterfaceShape, Ipam};
use cnikit_memory as _;

/// Every plugin of this binary. Each of them calls the others in this process.
static ALL: &[Entry] = &[
    Entry::of::<Chained<bandwidth::BandwidthPlugin>>("bandwidth"),
    Entry::of::<InterfaceShape<bridge::BridgePlugin>>("bridge"),
    Entry::of::<Ipam<dhcp::DhcpPlugin>>("dhcp"),
    Entry::of::<InterfaceShape<dummy::DummyPlugin>>("dummy"),
    Entry::of::<Chained<firewall::FirewallPlugin>>("firewall"),
    Entry::of::<Delegating<flannel::FlannelPlugin>>("flannel"),
    Entry::of::<InterfaceShape<host_device::HostDevicePlugin>>("host-device"),
    Entry::of::<Ipam<host_local::HostLocalPlugin>>("host-local"),
    Entry::of::<InterfaceShape<ipvlan::IpvlanPlugin>>("ipvlan"),
    Entry::of::<loopback::LoopbackPlugin>("loopback"),
    Entry::of::<InterfaceShape<macvlan::MacvlanPlugin>>("macvlan"),
    Entry::of::<Ipam<pool::PoolPlugin>>("pool"),
    Entry::of::<Chained<portmap::PortmapPlugin>>("portmap"),
    Entry::of::<InterfaceShape<ptp::PtpPlugin>>("ptp"),
    Entry::of::<Chained<sbr::SbrPlugin>>("sbr"),
    Entry::of::<Ipam<static_ipam::StaticPlugin>>("static"),
    Entry::of::<InterfaceShape<tap::TapPlugin>>("tap"),
    Entry::of::<Chained<tuning::TuningPlugin>>("tuning"),
    Entry::of::<InterfaceShape<vlan::VlanPlugin>>("vlan"),
    Entry::of::<Chained<vrf::VrfPlugin>>("vrf"),
];

fn main() -> std::process::ExitCode {
    cnikit::dispatch(ALL, &cnikit_installer::COMMANDS)
}
