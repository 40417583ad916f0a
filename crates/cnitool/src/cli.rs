//! The command line: every command with its arguments. Help, completions and man pages are generated from it.
//!
//! Comments with three slashes are help texts.

use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use cnikit_netns::Scope;

use crate::options::Common;

// Printed at the end of the help of every command.
const ENVIRONMENT: &str = "\
Environment (a flag of the same meaning goes before it):
  NETCONFPATH      directory of configuration files (default /etc/cni/net.d)
  CNI_PATH         directories of plugins, separated by colons (default /opt/cni/bin)
  CNI_ARGS         KEY=VALUE;KEY=VALUE for the plugins
  CAP_ARGS         a JSON object, value by capability: {\"portMappings\": [...]}
  CNI_IFNAME       the interface in the container (default eth0)
  CNI_CACHE_DIR    where results are kept, below results/ (default /var/lib/cni)
  NO_COLOR         no colours, whatever it is set to

Exit status: 0 done, 1 failed, 3 done and something was found that wants attention.";

/// Adds, checks and deletes a network of a container by hand; shows what there is, and mends it.
#[derive(Debug, Parser)]
#[command(
    name = "cnitool",
    version = concat!("cnikit-", env!("CARGO_PKG_VERSION")),
    after_help = ENVIRONMENT,
    max_term_width = 120,
    subcommand_required = false,
    disable_help_subcommand = false
)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Set a network up in a namespace, and print the result
    #[command(after_help = "Example:\n  cnitool add pods /run/netns/c1")]
    Add(Attachment),
    /// Compare what is there with the result of add
    #[command(after_help = "Example:\n  cnitool check pods /run/netns/c1 && echo as it was added")]
    Check(Attachment),
    /// Take a network down
    #[command(after_help = "Example:\n  cnitool del pods /run/netns/c1")]
    Del(Attachment),
    /// Delete what is left of a network's containers that are gone
    #[command(after_help = "Example:\n  cnitool gc pods --dry-run")]
    Gc(Gc),
    /// Put back the rules of all attachments, after somebody flushed them
    #[command(after_help = "Example:\n  cnitool restore")]
    Restore(Restore),
    /// Ask a network's plugins whether they could serve an add
    #[command(after_help = "Example:\n  cnitool status pods")]
    Status(Network),
    /// Say which versions the plugins of a network speak
    #[command(after_help = "Example:\n  cnitool version pods")]
    Version(MaybeNetwork),
    /// Print what add would do, and do nothing
    #[command(after_help = "Example:\n  cnitool plan pods /run/netns/c1")]
    Plan(Attachment),
    /// List the attachments that are known
    #[command(after_help = "Example:\n  cnitool list --live")]
    List(List),
    /// Show the attachments of a container, or of all: namespace, links, addresses, rules
    #[command(after_help = "Example:\n  cnitool show c1")]
    Show(Show),
    /// Addresses of host-local: who holds them, which are lost, and get those back
    #[command(subcommand, after_help = "Example:\n  cnitool ipam usage")]
    Ipam(Ipam),
    /// The directory of configurations
    #[command(subcommand, after_help = "Example:\n  cnitool config explain")]
    Config(Config),
    /// Judge every file of a directory of configurations
    #[command(after_help = "Example:\n  cnitool validate /etc/cni/net.d")]
    Validate(Validate),
    /// Inspect the node: configurations, plugins, attachments, leaked addresses, forwarding, packet filter
    #[command(after_help = "Example:\n  cnitool doctor")]
    Doctor(Doctor),
    /// Network namespaces with a name, as `ip netns` has them
    #[command(subcommand, after_help = "Example:\n  cnitool netns add c1")]
    Netns(Netns),
    /// Write a configuration for a new network
    #[command(after_help = "Example:\n  cnitool init bridge pods --subnet 10.1.2.0/24 --subnet fd00:1::/64")]
    Init(Init),
    /// Print the completions of a shell
    #[command(
        visible_alias = "completion",
        after_help = "Example:\n  cnitool completions bash >/etc/bash_completion.d/cnitool"
    )]
    Completions {
        /// Whose
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    #[command(after_help = "Example:\n  cnitool man /usr/local/share/man/man1")]
    Man {
        /// Where to; it is made if it is not there
        dir: PathBuf,
    },
}

// A network and a namespace.
#[derive(Args, Clone, Debug)]
pub(crate) struct Attachment {
    /// The name in a configuration file
    pub(crate) network: String,
    /// The path of a network namespace
    pub(crate) netns: String,
    /// The reference takes more, and passes it over.
    #[arg(hide = true)]
    rest: Vec<String>,
}

// A network. Upstream requires a namespace, which it ignores.
#[derive(Args, Clone, Debug)]
pub(crate) struct Network {
    /// The name in a configuration file
    #[arg(value_name = "NETWORK")]
    pub(crate) name: String,
    /// Taken, and not looked at: the reference demands it
    netns: Option<String>,
    /// The reference takes more, and passes it over.
    #[arg(hide = true)]
    rest: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct MaybeNetwork {
    /// The name in a configuration file; without it, the version of this tool
    pub(crate) network: Option<String>,
    #[arg(hide = true)]
    rest: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Gc {
    #[command(flatten)]
    pub(crate) network: Network,
    /// Delete those that live too: what the reference's gc does
    #[arg(long)]
    pub(crate) all: bool,
    /// Keep this one, whatever became of its namespace; may be repeated
    #[arg(long, value_name = "CONTAINER/IFNAME")]
    pub(crate) keep: Vec<String>,
    #[command(flatten)]
    pub(crate) sight: ScanScope,
    /// Say what would be deleted, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Restore {
    /// Of this network only
    #[arg(long, value_name = "NAME")]
    pub(crate) network: Option<String>,
    /// Say whose rules would be put back, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

// Which processes are scanned for living namespaces.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ScanScope {
    /// Take the processes of this PID namespace for all there are: right where the whole node lives in it
    #[arg(long)]
    within_pid_namespace: bool,
}

impl ScanScope {
    // The processes that are scanned.
    pub(crate) fn scope(self) -> Scope {
        if self.within_pid_namespace { Scope::PidNamespace } else { Scope::Machine }
    }
}

#[derive(Args, Clone, Debug)]
pub(crate) struct List {
    /// Of this network only
    #[arg(long, value_name = "NAME")]
    pub(crate) network: Option<String>,
    /// Look into each namespace whether the link is there; otherwise only whether the path leads to one
    #[arg(long)]
    pub(crate) live: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Show {
    /// A container's id or the beginning of one, the path or name of its namespace, or one of its addresses [default: all]
    pub(crate) id: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) sight: ScanScope,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Ipam {
    /// What is taken and what is free, by range, and by whom
    #[command(after_help = "Example:\n  cnitool ipam usage --summary")]
    Usage(Usage),
    /// Addresses that nobody seems to hold any more, each with the reason, and whether that is proven
    #[command(after_help = "Example:\n  cnitool ipam leaks")]
    Leaks(Leaks),
    /// Free the addresses that are proven to be nobody's any more
    #[command(after_help = "Example:\n  cnitool ipam reclaim --dry-run")]
    Reclaim(Reclaim),
}

// Which reservations.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreFilter {
    /// Of this network only
    #[arg(long, value_name = "NAME")]
    pub(crate) network: Option<String>,
    /// Look here too, besides the directories that configurations name; may be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Vec<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Usage {
    #[command(flatten)]
    pub(crate) filter: StoreFilter,
    /// Only the ranges, not each address
    #[arg(long)]
    pub(crate) summary: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Leaks {
    #[command(flatten)]
    pub(crate) filter: StoreFilter,
    #[command(flatten)]
    pub(crate) sight: ScanScope,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Reclaim {
    #[command(flatten)]
    pub(crate) leaks: Leaks,
    /// Say what would be freed, and do nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Config {
    /// Which file a runtime takes for its default network, and why none of the others
    #[command(alias = "why", after_help = "Example:\n  cnitool config explain --runtime cri-o")]
    Explain {
        /// The directory [default: --conf-dir]
        dir: Option<PathBuf>,
        /// By whose rule
        #[arg(long, value_name = "NAME", default_value = "containerd")]
        runtime: RuntimeKind,
    },
}

// The runtime whose default network is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuntimeKind {
    /// The first file, and if that is not valid, none
    Containerd,
    /// The first file of each name that is valid; the first of these is the default
    CriO,
    /// The first file that is valid; kubelet itself did so before 1.24, since when it chooses no network
    #[value(alias = "kubelet")]
    CriDockerd,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Validate {
    /// The directory [default: --conf-dir]
    pub(crate) dir: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Netns {
    /// Make a namespace, and say its path
    #[command(after_help = "Example:\n  cnitool netns add c1")]
    Add {
        /// Below /run/netns; a path with a slash is taken as it is
        name: String,
    },
    /// Remove a namespace's name; it ends when nothing else holds it
    #[command(after_help = "Example:\n  cnitool netns del c1 --dry-run")]
    Del {
        /// Below /run/netns; a path with a slash is taken as it is
        name: String,
        /// Even if an attachment is known there: its del can then no longer look inside
        #[arg(long)]
        force: bool,
        /// Say what would be removed, and do nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Those of /run/netns, and who is attached there
    #[command(after_help = "Example:\n  cnitool netns list")]
    List,
}

// The plugin that connects the containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MainPlugin {
    /// All on one bridge of the host
    Bridge,
    /// Each by a routed link of its own
    Ptp,
    /// Each by an interface in a VLAN of a link of the host
    Vlan,
    /// By nothing: an interface that has addresses and leads nowhere
    Dummy,
    /// By programs: a TAP device for a virtual machine
    Tap,
    /// By a device of the host, which one container at a time has
    HostDevice,
}

impl MainPlugin {
    /// Whether the host is between a container and the rest of the world, so that its rules and limits apply.
    pub(crate) fn leads_to_the_host(self) -> bool {
        matches!(self, MainPlugin::Bridge | MainPlugin::Ptp)
    }
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Init {
    /// How containers are connected; --plugin is the same
    #[arg(value_name = "PLUGIN", conflicts_with = "plugin")]
    pub(crate) plugin_argument: Option<MainPlugin>,
    /// The network's name; --name is the same
    #[arg(value_name = "NAME", conflicts_with = "name")]
    pub(crate) name_argument: Option<String>,
    /// The network's name
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// How containers are connected
    #[arg(long, value_name = "PLUGIN")]
    pub(crate) plugin: Option<MainPlugin>,
    /// The bridge's name
    #[arg(long, value_name = "LINK")]
    pub(crate) bridge: Option<String>,
    /// The link that the VLAN is on [default: that of the default route]
    #[arg(long, value_name = "LINK")]
    pub(crate) master: Option<String>,
    /// The number of the VLAN; required by `vlan`
    #[arg(long, value_name = "ID", value_parser = clap::value_parser!(u16).range(0..4095))]
    pub(crate) vlan_id: Option<u16>,
    /// The device of the host; required by `host-device`
    #[arg(long, value_name = "LINK")]
    pub(crate) device: Option<String>,
    /// Where addresses come from; may be repeated: a container gets one of each
    #[arg(long, value_name = "SUBNET")]
    pub(crate) subnet: Vec<String>,
    /// The gateway of the subnet that it is in; may be repeated [default: its first address]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) gateway: Vec<IpAddr>,
    /// Containers are seen outside under their own addresses, not the host's
    #[arg(long)]
    pub(crate) no_masquerade: bool,
    /// `portmap` after it, for published ports
    #[arg(long)]
    pub(crate) ports: bool,
    /// `bandwidth` after it, for rates that the runtime asks for
    #[arg(long)]
    pub(crate) limits: bool,
    /// `sbr` after it: a container with several interfaces replies by the one that the request came in by
    #[arg(long)]
    pub(crate) source_routing: bool,
    /// `vrf` after it: the interface is a member of this VRF
    #[arg(long, value_name = "NAME", conflicts_with = "source_routing")]
    pub(crate) vrf: Option<String>,
    /// The version of the specification that the file is in
    #[arg(long, value_name = "VERSION", default_value = "1.0.0")]
    pub(crate) cni_version: String,
    /// The file [default: 10-NAME.conflist in the directory of configurations; - is stdout]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Replace a file that is there
    #[arg(long)]
    pub(crate) force: bool,
    /// Ask nothing: what no flag says is as proposed
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print what would be written, and write nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}
