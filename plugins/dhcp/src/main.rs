//! The plugin dhcp as a binary of its own, and its daemon: `dhcp daemon`.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::Ipam<dhcp::DhcpPlugin>>()
}
