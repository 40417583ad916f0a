//! The plugin bandwidth as a binary of its own.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::Chained<bandwidth::BandwidthPlugin>>()
}
