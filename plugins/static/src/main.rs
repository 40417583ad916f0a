//! The plugin static as a binary of its own.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::Ipam<static_ipam::StaticPlugin>>()
}
