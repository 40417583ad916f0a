//! The options of every command.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

// These are help texts.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Common {
    /// The interface in the container [default: `CNI_IFNAME`, then eth0]
    #[arg(short, long, global = true, value_name = "NAME")]
    pub(crate) ifname: Option<String>,
    /// One JSON document on stdout, errors too, instead of text
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// When to colour
    #[arg(long, global = true, value_name = "WHEN", default_value = "auto")]
    pub(crate) color: When,
    /// Directory of configuration files [default: `NETCONFPATH`, then /etc/cni/net.d]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) conf_dir: Option<PathBuf>,
    /// Directories of plugins, separated by colons [default: `CNI_PATH`, then /opt/cni/bin]
    #[arg(long, global = true, value_name = "DIRS")]
    pub(crate) plugin_path: Option<String>,
    /// Where results are kept, below results/ [default: `CNI_CACHE_DIR`, then /var/lib/cni]
    #[arg(long, global = true, value_name = "DIR")]
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
