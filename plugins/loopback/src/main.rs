//! The plugin loopback as a binary of its own.

fn main() -> std::process::ExitCode {
    cnikit::main::<loopback::LoopbackPlugin>()
}
