//! The plugin deny as a program.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::Chained<deny::DenyPlugin>>()
}
