//! The plugin flannel as a binary of its own.

fn main() -> std::process::ExitCode {
    cnikit::main::<cnikit::Delegating<flannel::FlannelPlugin>>()
}
