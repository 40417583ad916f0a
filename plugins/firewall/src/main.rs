//! The plugin firewall as a binary of its own.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::Chained<firewall::FirewallPlugin>>()
}
