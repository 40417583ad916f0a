//! The options of every command.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

// These are help texts. In the help of a command they are behind its own options.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Common {
    /// Interface in the container [default: `CNI_IFNAME`, then eth0]
    #[arg(short, long, global = true, display_order = 101, value_name = "NAME")]
    pub(crate) ifname: Option<String>,
    /// Print one JSON document, also for errors
    #[arg(long, global = true, display_order = 102)]
    pub(crate) json: bool,
    /// Colours: auto, always or never
    #[arg(
        long,
        global = true,
        display_order = 103,
        value_name = "WHEN",
        default_value = "auto",
        hide_possible_values = true
    )]
    pub(crate) color: When,
    /// Configurations [default: `NETCONFPATH`, then /etc/cni/net.d]
    #[arg(long, global = true, display_order = 104, value_name = "DIR")]
    pub(crate) conf_dir: Option<PathBuf>,
    /// Directories of plugins [default: `CNI_PATH`, then /opt/cni/bin]
    #[arg(long, global = true, display_order = 105, value_name = "DIRS")]
    pub(crate) plugin_path: Option<String>,
    /// Cached results [default: `CNI_CACHE_DIR`, then /var/lib/cni]
    #[arg(long, global = true, display_order = 106, value_name = "DIR")]
    pub(crate) cache_dir: Option<PathBuf>,
}

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum When {
    /// On a terminal, unless `NO_COLOR` is set or TERM is dumb
    #[default]
    Auto,
    /// Always
    Always,
    /// Never
    Never,
}
