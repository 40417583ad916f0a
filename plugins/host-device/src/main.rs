//! The plugin host-device as a binary of its own.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::InterfaceShape<host_device::HostDevicePlugin>>()
}
