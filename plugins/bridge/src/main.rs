//! The plugin bridge as a binary of its own.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::InterfaceShape<bridge::BridgePlugin>>()
}
