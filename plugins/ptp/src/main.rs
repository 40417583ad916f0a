//! The plugin ptp as a binary of its own.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::Interface<ptp::Ptp>>()
}
