//! The plugin portmap as a binary of its own.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::Chained<portmap::PortmapPlugin>>()
}
