//! The plugin vxlan as a program.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::InterfaceShape<vxlan::VxlanPlugin>>()
}
