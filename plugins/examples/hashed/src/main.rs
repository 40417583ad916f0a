//! The plugin hashed as a program.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::Ipam<hashed::HashedPlugin>>()
}
