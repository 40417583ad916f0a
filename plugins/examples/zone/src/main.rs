//! The plugin zone as a program.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::Delegating<zone::ZonePlugin>>()
}
