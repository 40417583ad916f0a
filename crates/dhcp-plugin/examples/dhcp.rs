//! The plugin `dhcp` and, with `daemon` as its first argument, the daemon that it calls.

fn main() -> std::process::ExitCode {
    cnikit_dhcp_plugin::main()
}
