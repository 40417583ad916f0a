//! The plugin tap as a binary of its own.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::InterfaceShape<tap::TapPlugin>>()
}
