//! All plugins in one binary, called by the name of the plugin.

use cnikit::{Chained, Delegating, Entry, Interface, Ipam};
use dlmalloc::GlobalDlmalloc;

/// musl's own takes a page and a system call for each size of object; this one takes 64 KiB at once.
#[global_allocator]
static ALLOCATOR: GlobalDlmalloc = GlobalDlmalloc;

/// Every plugin of this binary; each finds the others here before it looks for a program.
static ALL: &[Entry] = &[
    Entry::of::<Interface<bridge::Bridge>>("bridge"),
    Entry::of::<Chained<firewall::Firewall>>("firewall"),
    Entry::of::<Delegating<flannel::Flannel>>("flannel"),
    Entry::of::<Ipam<host_local::HostLocal>>("host-local"),
    Entry::of::<Interface<ipvlan::Ipvlan>>("ipvlan"),
    Entry::of::<loopback::Loopback>("loopback"),
    Entry::of::<Interface<macvlan::Macvlan>>("macvlan"),
    Entry::of::<Chained<portmap::Portmap>>("portmap"),
    Entry::of::<Interface<ptp::Ptp>>("ptp"),
    Entry::of::<Ipam<static_ipam::Static>>("static"),
    Entry::of::<Chained<tuning::Tuning>>("tuning"),
];

fn main() -> std::process::ExitCode {
    cnikit::dispatch(ALL)
}
