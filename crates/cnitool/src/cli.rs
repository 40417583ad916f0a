//! The command line: every command with its arguments. Help, completions and man pages are generated from it.
//!
//! Comments with three slashes are help texts.

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand, ValueEnum};
use cnikit_netns::Scope;
use ipnetwork::IpNetwork;

use crate::options::Common;

// Printed at the end of the help of the tool.
const ENVIRONMENT: &str = "\
Environment (a flag has precedence over its variable):
  NETCONFPATH, CNI_PATH, CNI_IFNAME, CNI_CACHE_DIR   as the flags above
  CNI_ARGS   arguments for the plugins: KEY=VALUE;KEY=VALUE
  CAP_ARGS   capabilities, a JSON object: {\"portMappings\": [...]}
  NO_COLOR   print no colours if it is set

Exit status: 0 success, 1 failure, 3 success but something needs attention.

Example:
  cnitool add pods /run/netns/c1";

/// Connect containers to networks by hand, inspect a node, and repair it.
#[derive(Debug, Parser)]
#[command(
    name = "cnitool",
    version = concat!("cnikit-", env!("CARGO_PKG_VERSION")),
    after_help = ENVIRONMENT,
    max_term_width = 100,
    subcommand_required = false,
    disable_help_subcommand = false
)]
pub(crate) struct CommandLine {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
}

// The common options that have no effect in a command: the command accepts them, and its help does not show them.
const WITHOUT_EFFECT: [(&str, &[&str]); 35] = [
    ("add", &["color"]),
    ("check", &["color"]),
    ("del", &["color"]),
    ("gc", &["ifname", "color"]),
    ("restore", &["ifname", "color", "conf_dir"]),
    ("status", &["ifname", "color", "cache_dir"]),
    ("version", &["ifname", "cache_dir"]),
    ("plan", &["color", "cache_dir"]),
    ("list", &["ifname", "conf_dir", "plugin_path"]),
    ("show", &["ifname", "conf_dir", "plugin_path"]),
    ("ipam", &["ifname"]),
    ("ipam usage", &["ifname", "plugin_path"]),
    ("ipam leaks", &["ifname", "plugin_path"]),
    ("ipam reclaim", &["ifname", "plugin_path"]),
    ("ipam release", &["ifname", "plugin_path"]),
    ("ipam pools", &["ifname", "conf_dir", "cache_dir"]),
    ("ipam blocks", &["ifname", "conf_dir", "cache_dir"]),
    ("ipam check", &["ifname"]),
    ("ipam fence", &["ifname", "color", "conf_dir", "cache_dir"]),
    ("ipam adopt", &["ifname", "conf_dir", "cache_dir"]),
    ("ipam import", &["ifname", "conf_dir"]),
    ("config", &["ifname", "cache_dir"]),
    ("config explain", &["ifname", "cache_dir"]),
    ("validate", &["ifname", "cache_dir"]),
    ("schema", &["ifname", "json", "color", "conf_dir", "plugin_path", "cache_dir"]),
    ("doctor", &["ifname"]),
    ("netns", &["ifname", "conf_dir", "plugin_path"]),
    ("netns add", &["ifname", "color", "conf_dir", "plugin_path", "cache_dir"]),
    ("netns del", &["ifname", "color", "conf_dir", "plugin_path"]),
    ("netns list", &["ifname", "conf_dir", "plugin_path"]),
    ("init", &["ifname", "color", "plugin_path", "cache_dir"]),
    ("new", &["ifname", "color", "conf_dir", "plugin_path", "cache_dir"]),
    ("new plugin", &["ifname", "color", "conf_dir", "plugin_path", "cache_dir"]),
    ("completions", &["ifname", "json", "color", "conf_dir", "plugin_path", "cache_dir"]),
    ("man", &["ifname", "color", "conf_dir", "plugin_path", "cache_dir"]),
];

/// Parses the number of a VLAN.
pub(crate) fn parse_vlan_id(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(id) if id < 4095 => Ok(id),
        _ => Err("not a number from 0 to 4094".to_owned()),
    }
}

/// Parses a command line.
pub(crate) fn parse(arguments: &[OsString]) -> Result<CommandLine, clap::Error> {
    let brief = brief(arguments).and_then(|brief| brief.try_get_matches_from(arguments).ok());
    // Help and errors show all commands and hide options, so they are made from the complete description.
    let matches = brief.map_or_else(|| command().try_get_matches_from(arguments), Ok)?;
    CommandLine::from_arg_matches(&matches)
}

// The tool with only one command, the first that is named, because clap copies the common options to every command. If that
// word is the value of an option, the real command is unknown here.
fn brief(arguments: &[OsString]) -> Option<clap::Command> {
    let all = Command::augment_subcommands(clap::Command::default());
    let named = arguments.iter().skip(1).find_map(|word| all.find_subcommand(word))?;
    Some(Common::augment_args(clap::Command::new("cnitool")).subcommand(named.clone()))
}

/// The commands, with the help of each as it is printed.
pub(crate) fn command() -> clap::Command {
    complete(CommandLine::command())
}

/// The commands without `help`, which needs no page.
pub(crate) fn documented() -> clap::Command {
    complete(CommandLine::command().disable_help_subcommand(true))
}

// Describes all commands, and hides the options that have no effect in each.
fn complete(mut command: clap::Command) -> clap::Command {
    // Commands have their arguments, and the common ones, after this.
    command.build();
    for (path, options) in WITHOUT_EFFECT {
        let hide = |command: clap::Command| {
            command.mut_args(|argument| {
                let has_effect = !options.contains(&argument.get_id().as_str());
                if has_effect { argument } else { argument.hide(true) }
            })
        };
        command = match path.split_once(' ') {
            None => command.mut_subcommand(path, hide),
            Some((group, name)) => command.mut_subcommand(group, |group| group.mut_subcommand(name, hide)),
        };
    }
    command
}

#[derive(Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum Command {
    /// Connect a container to a network, and print the result
    #[command(after_help = "Example:\n  cnitool add pods /run/netns/c1")]
    Add(Attachment),
    /// Compare a container, or every attachment of the node, with the result of add
    #[command(
        override_usage = "cnitool check [OPTIONS] NETWORK NETNS\n       cnitool check [OPTIONS] --all [--network NAME]",
        after_help = "Examples:\n  cnitool check pods /run/netns/c1 && echo unchanged\n  cnitool check --all"
    )]
    Check(Check),
    /// Disconnect a container from a network
    #[command(after_help = "Example:\n  cnitool del pods /run/netns/c1")]
    Del(Attachment),
    /// Delete the attachments of containers that have ended
    #[command(after_help = "Example:\n  cnitool gc pods --dry-run")]
    Gc(Gc),
    /// Add packet filter rules again that another program flushed
    #[command(after_help = "Example:\n  cnitool restore")]
    Restore(Restore),
    /// Ask the plugins of a network whether an add would succeed
    #[command(after_help = "Example:\n  cnitool status pods")]
    Status(Network),
    /// Print the versions that the plugins of a network support
    #[command(after_help = "Example:\n  cnitool version pods")]
    Version(MaybeNetwork),
    /// Print what add would do, without doing it
    #[command(after_help = "Example:\n  cnitool plan pods /run/netns/c1")]
    Plan(Attachment),
    /// List attachments
    #[command(after_help = "Example:\n  cnitool list --live")]
    List(List),
    /// Show the namespace, links, addresses and rules of attachments
    #[command(after_help = "Example:\n  cnitool show c1")]
    Show(Show),
    /// Show the addresses of host-local and pools, and release leaked ones
    #[command(subcommand, after_help = "Example:\n  cnitool ipam usage")]
    Ipam(Ipam),
    /// Explain the directory of configurations
    #[command(subcommand, after_help = "Example:\n  cnitool config explain")]
    Config(Config),
    /// Find the errors in a configuration file, or in all files of a directory
    #[command(after_help = "Examples:\n  cnitool validate /etc/cni/net.d\n  cnitool validate ./10-pods.conflist")]
    Validate(Validate),
    /// Print the JSON Schema of network lists, or of a plugin's configuration
    #[command(after_help = "Examples:\n  cnitool schema >/etc/cni/conflist.schema.json\n  cnitool schema bridge")]
    Schema {
        /// The plugin [default: network lists with any of our plugins]
        plugin: Option<String>,
    },
    /// Inspect the node: kernel, configurations, plugins, attachments, forwarding, rules
    #[command(after_help = "Example:\n  cnitool doctor")]
    Doctor(Doctor),
    /// Add, delete and list named network namespaces, as `ip netns`
    #[command(subcommand, after_help = "Example:\n  cnitool netns add c1")]
    Netns(Netns),
    /// Write the configuration of a new network
    #[command(after_help = "Example:\n  cnitool init bridge pods --subnet 10.1.2.0/24 --subnet fd00:1::/64")]
    Init(Init),
    /// Write the crate of a new plugin, for authors
    #[command(subcommand, after_help = "Example:\n  cnitool new plugin vxlan --sdk ~/cnikit")]
    New(New),
    /// Print the completions for a shell
    #[command(
        visible_alias = "completion",
        after_help = "Example:\n  cnitool completions bash >/etc/bash_completion.d/cnitool"
    )]
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Write the man pages into a directory
    #[command(after_help = "Example:\n  cnitool man /usr/local/share/man/man1")]
    Man {
        /// The directory; it is created if it does not exist
        dir: PathBuf,
    },
}

// A network and a namespace.
#[derive(Args, Clone, Debug)]
pub(crate) struct Attachment {
    /// The name of the network, as in its configuration file
    pub(crate) network: String,
    /// The path of the container's network namespace
    pub(crate) netns: String,
    /// Ignored, as upstream ignores it.
    #[arg(hide = true)]
    rest: Vec<String>,
}

// An attachment, or all of them.
#[derive(Args, Clone, Debug)]
pub(crate) struct Check {
    /// The name of the network, as in its configuration file
    #[arg(required_unless_present = "all")]
    network: Option<String>,
    /// The path of the container's network namespace
    #[arg(required_unless_present = "all")]
    netns: Option<String>,
    /// Ignored, as upstream ignores it.
    #[arg(hide = true)]
    rest: Vec<String>,
    /// Every attachment in the cache, also those that a runtime added
    #[arg(long, conflicts_with_all = ["network", "netns"])]
    pub(crate) all: bool,
    /// With --all: only this network
    #[arg(long = "network", value_name = "NAME", requires = "all")]
    pub(crate) only: Option<String>,
}

impl Check {
    // The attachment that the arguments name; none with `--all`.
    pub(crate) fn attachment(&self) -> Option<Attachment> {
        let network = self.network.clone()?;
        let netns = self.netns.clone()?;
        Some(Attachment { network, netns, rest: Vec::new() })
    }
}

// A network. Upstream requires a namespace, which it ignores.
#[derive(Args, Clone, Debug)]
pub(crate) struct Network {
    /// The name of the network, as in its configuration file
    #[arg(value_name = "NETWORK")]
    pub(crate) name: String,
    /// Ignored; upstream's cnitool requires it
    netns: Option<String>,
    /// Ignored, as upstream ignores it.
    #[arg(hide = true)]
    rest: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct MaybeNetwork {
    /// The name of the network; without it, the version of cnitool is printed
    pub(crate) network: Option<String>,
    #[arg(hide = true)]
    rest: Vec<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Gc {
    #[command(flatten)]
    pub(crate) network: Network,
    /// Delete the attachments of running containers, too, as upstream's gc
    #[arg(long)]
    pub(crate) all: bool,
    /// Keep this attachment; may be repeated
    #[arg(long, value_name = "CONTAINER/IFNAME")]
    pub(crate) keep: Vec<String>,
    #[command(flatten)]
    pub(crate) sight: ScanScope,
    /// Print what would be deleted, without deleting it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Restore {
    /// Only this network
    #[arg(long, value_name = "NAME")]
    pub(crate) network: Option<String>,
    /// Print whose rules would be added, without adding them
    #[arg(long)]
    pub(crate) dry_run: bool,
}

// Which processes are scanned for living namespaces.
#[derive(Args, Clone, Copy, Debug)]
pub(crate) struct ScanScope {
    /// The whole node is in this PID namespace: its scan is complete
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
    /// Only this network
    #[arg(long, value_name = "NAME")]
    pub(crate) network: Option<String>,
    /// Check the link inside each namespace, too
    #[arg(long)]
    pub(crate) live: bool,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Show {
    /// A container id or its beginning, a namespace, or an address [default: all]
    pub(crate) id: Option<String>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Doctor {
    #[command(flatten)]
    pub(crate) sight: ScanScope,
}

#[derive(Clone, Debug, Subcommand)]
#[command(defer = true)]
pub(crate) enum Ipam {
    /// Print used and free addresses by range, and the holder of each
    #[command(after_help = "Example:\n  cnitool ipam usage --summary\n  cnitool ipam usage --nodes")]
    Usage(Usage),
    /// Print addresses without a holder, and whether that is proven
    #[command(after_help = "Example:\n  cnitool ipam leaks")]
    Leaks(Leaks),
    /// Release the addresses that are proven to have no holder
    #[command(after_help = "Example:\n  cnitool ipam reclaim --dry-run")]
    Reclaim(Reclaim),
    /// Release one address, or those of a block, that a container left behind
    #[command(after_help = "Example:\n  cnitool ipam release 10.8.3.66 --dry-run")]
    Release(Release),
    /// Print the pools of all nodes, with taken and free blocks
    #[command(after_help = "Example:\n  cnitool ipam pools")]
    Pools(Pools),
    /// Print the blocks of all nodes, with their owners
    #[command(after_help = "Example:\n  cnitool ipam blocks --node node-1")]
    Blocks(Blocks),
    /// Compare this node's files with the engine and with the namespaces
    #[command(after_help = "Example:\n  cnitool ipam check")]
    Check(Compare),
    /// Free the blocks of a node: your word that its containers are gone for ever
    #[command(after_help = "Example:\n  cnitool ipam fence node-1 --why 'the disk burnt'")]
    Fence(Fence),
    /// Claim the blocks that cover the addresses of a network of host-local
    #[command(after_help = "Example:\n  cnitool ipam adopt /var/lib/cni/networks/pods --pool blue --dry-run")]
    Adopt(Adopt),
    /// Take over the addresses that whereabouts gave to containers of this node
    #[command(
        after_help = "Example:\n  cnitool ipam import pools.json --pool blue --dry-run\n\nMake the file by\n  kubectl get ippools.whereabouts.cni.cncf.io -A -o json >pools.json"
    )]
    Import(Import),
}

// The program that is run for what needs the engine.
#[derive(Args, Clone, Debug)]
pub(crate) struct AgentProgram {
    /// The agent's program [default: beside the plugins or cnitool]
    #[arg(long, value_name = "FILE")]
    pub(crate) agent: Option<PathBuf>,
    /// Its configuration [default: /etc/cnikit/agent.json]
    #[arg(long, value_name = "FILE")]
    pub(crate) agent_config: Option<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Pools {
    #[command(flatten)]
    pub(crate) agent: AgentProgram,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Blocks {
    /// Only this pool
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Option<String>,
    /// Only the blocks of this node
    #[arg(long, value_name = "NAME")]
    pub(crate) node: Option<String>,
    #[command(flatten)]
    pub(crate) agent: AgentProgram,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Compare {
    /// Without the engine: the files and the namespaces only
    #[arg(long)]
    pub(crate) local: bool,
    /// Another `dataDir`, besides those of configurations; may be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) sight: ScanScope,
    #[command(flatten)]
    pub(crate) agent: AgentProgram,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Fence {
    /// The node
    pub(crate) node: String,
    /// Its incarnation [default: the registered one]
    #[arg(long, value_name = "ID")]
    pub(crate) incarnation: Option<String>,
    /// Who says that its containers are gone, for the record
    #[arg(long, value_name = "NAME")]
    pub(crate) by: Option<String>,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: Option<String>,
    /// Although the node has a session, so that its agent seems to run
    #[arg(long)]
    pub(crate) force: bool,
    #[command(flatten)]
    pub(crate) agent: AgentProgram,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Adopt {
    /// The directory of the network, below the agent's `dataDir`
    #[arg(value_name = "DIR")]
    pub(crate) directory: PathBuf,
    /// The pool
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: String,
    /// All blocks in this range, too; may be repeated
    #[arg(long, value_name = "CIDR")]
    pub(crate) range: Vec<IpNetwork>,
    /// Print what would be claimed, without claiming it
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) agent: AgentProgram,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Import {
    /// The `IPPools` of whereabouts, as JSON
    pub(crate) file: PathBuf,
    /// The pool
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: String,
    /// Print what would be taken over, without doing it
    #[arg(long)]
    pub(crate) dry_run: bool,
    #[command(flatten)]
    pub(crate) agent: AgentProgram,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Release {
    /// The address, or a block such as 10.8.3.64/26
    #[arg(value_name = "ADDRESS")]
    pub(crate) what: IpNetwork,
    #[command(flatten)]
    pub(crate) filter: StoreFilter,
    #[command(flatten)]
    pub(crate) sight: ScanScope,
    /// Although it is not proven that the containers are gone
    #[arg(long)]
    pub(crate) force: bool,
    /// Print what would be released, without releasing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

// Which reservations.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreFilter {
    /// Only this network
    #[arg(long, value_name = "NAME")]
    pub(crate) network: Option<String>,
    /// Another `dataDir`, besides those of configurations; may be repeated
    #[arg(long, value_name = "DIR")]
    pub(crate) data_dir: Vec<PathBuf>,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Usage {
    #[command(flatten)]
    pub(crate) filter: StoreFilter,
    /// Print the ranges without the addresses
    #[arg(long)]
    pub(crate) summary: bool,
    /// Print the use of pools by node instead
    #[arg(long)]
    pub(crate) nodes: bool,
    #[command(flatten)]
    pub(crate) agent: AgentProgram,
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
    /// Print what would be released, without releasing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Config {
    /// Print which file a runtime uses as its default network, and why it skips the others
    #[command(alias = "why", after_help = "Example:\n  cnitool config explain --runtime cri-o")]
    Explain {
        /// The directory of configuration files [default: --conf-dir]
        dir: Option<PathBuf>,
        /// The runtime: containerd, cri-o or cri-dockerd
        #[arg(long, value_name = "NAME", default_value = "containerd", hide_possible_values = true)]
        runtime: RuntimeKind,
    },
}

// The runtime whose default network is explained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum RuntimeKind {
    /// The first file; no network if it is invalid
    Containerd,
    /// The first valid file; of each name the first valid file is used
    CriO,
    /// The first valid file, as kubelet before 1.24
    #[value(alias = "kubelet")]
    CriDockerd,
}

#[derive(Args, Clone, Debug)]
pub(crate) struct Validate {
    /// A configuration file, or a directory of them [default: --conf-dir]
    #[arg(value_name = "PATH")]
    pub(crate) path: Option<PathBuf>,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum Netns {
    /// Create a namespace, and print its path
    #[command(after_help = "Example:\n  cnitool netns add c1")]
    Add {
        /// A name below /run/netns, or a path
        name: String,
    },
    /// Delete a namespace by its name; it ends when nothing else uses it
    #[command(after_help = "Example:\n  cnitool netns del c1 --dry-run")]
    Del {
        /// A name below /run/netns, or a path
        name: String,
        /// Delete it even if an attachment is in it
        #[arg(long)]
        force: bool,
        /// Print what would be deleted, without deleting it
        #[arg(long)]
        dry_run: bool,
    },
    /// List the namespaces of /run/netns with their attachments
    #[command(after_help = "Example:\n  cnitool netns list")]
    List,
}

// The plugin that connects the containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum MainPlugin {
    /// A bridge of the host that all containers share
    Bridge,
    /// A routed veth pair per container
    Ptp,
    /// An interface in a VLAN of a link of the host
    Vlan,
    /// An interface with addresses and without a connection
    Dummy,
    /// A TAP device, for a virtual machine
    Tap,
    /// A device of the host, which one container has at a time
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
    /// bridge, ptp, vlan, dummy, tap or host-device; the same as --plugin
    #[arg(value_name = "PLUGIN", conflicts_with = "plugin", hide_possible_values = true)]
    pub(crate) plugin_argument: Option<MainPlugin>,
    /// The name of the network; the same as --name
    #[arg(value_name = "NAME", conflicts_with = "name")]
    pub(crate) name_argument: Option<String>,
    /// The name of the network
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// How containers are connected: one of the plugins above
    #[arg(long, value_name = "PLUGIN", hide_possible_values = true)]
    pub(crate) plugin: Option<MainPlugin>,
    /// The name of the bridge
    #[arg(long, value_name = "LINK")]
    pub(crate) bridge: Option<String>,
    /// The link below the VLAN [default: that of the default route]
    #[arg(long, value_name = "LINK")]
    pub(crate) master: Option<String>,
    /// The number of the VLAN; required with `vlan`
    #[arg(long, value_name = "ID", value_parser = parse_vlan_id)]
    pub(crate) vlan_id: Option<u16>,
    /// The device of the host; required with `host-device`
    #[arg(long, value_name = "LINK")]
    pub(crate) device: Option<String>,
    /// Addresses of a DHCP server of the network, by `dhcp`
    #[arg(long, conflicts_with_all = ["subnet", "gateway", "no_masquerade", "ports"])]
    pub(crate) dhcp: bool,
    /// Addresses of this pool of many nodes, by `pool`
    #[arg(long, value_name = "NAME", conflicts_with_all = ["dhcp", "subnet", "gateway"])]
    pub(crate) pool: Option<String>,
    /// A subnet; may be repeated: a container gets an address of each
    #[arg(long, value_name = "SUBNET")]
    pub(crate) subnet: Vec<String>,
    /// The gateway of a subnet; may be repeated [default: the first address]
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) gateway: Vec<IpAddr>,
    /// Do not masquerade: packets keep the container's address as source
    #[arg(long)]
    pub(crate) no_masquerade: bool,
    /// Add `portmap`, for published ports
    #[arg(long)]
    pub(crate) ports: bool,
    /// Add `bandwidth`, for rates that the runtime requests
    #[arg(long)]
    pub(crate) limits: bool,
    /// Add `sbr`: replies leave by the interface of the request
    #[arg(long)]
    pub(crate) source_routing: bool,
    /// Add `vrf`: the interface becomes a member of this VRF
    #[arg(long, value_name = "NAME", conflicts_with = "source_routing")]
    pub(crate) vrf: Option<String>,
    /// The version of the specification
    #[arg(long, value_name = "VERSION", default_value = "1.0.0")]
    pub(crate) cni_version: String,
    /// The file, - for stdout [default: 10-NAME.conflist in --conf-dir]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Replace an existing file
    #[arg(long)]
    pub(crate) force: bool,
    /// Ask no questions: use the default of everything that no flag sets
    #[arg(short, long)]
    pub(crate) yes: bool,
    /// Print the file, without writing it
    #[arg(long)]
    pub(crate) dry_run: bool,
}

#[derive(Clone, Debug, Subcommand)]
pub(crate) enum New {
    /// Write a crate that has tests and CI, and attaches a container by one script
    #[command(after_help = "Example:\n  cnitool new plugin vxlan --sdk ~/cnikit && cd vxlan && ./attach")]
    Plugin(NewPlugin),
}

#[derive(Args, Clone, Debug)]
pub(crate) struct NewPlugin {
    /// The name of the plugin, its crate and the new directory
    pub(crate) name: String,
    /// interface, chained, ipam, delegating or plain
    #[arg(long, value_name = "SHAPE", default_value = "interface", hide_possible_values = true)]
    pub(crate) shape: Shape,
    /// A checkout of cnikit [default: that of cnitool, or of this directory]
    #[arg(long, value_name = "PATH")]
    pub(crate) sdk: Option<PathBuf>,
}

// The shape of a new plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Shape {
    /// Makes an interface in the container
    Interface,
    /// Changes what plugins before it made
    Chained,
    /// Assigns addresses
    Ipam,
    /// Runs another plugin with a configuration of its own making
    Delegating,
    /// Implements the protocol itself
    Plain,
}

#[cfg(test)]
mod tests {
    use super::*;

    // The command lines in the help of all commands.
    fn examples(command: &clap::Command) -> Vec<String> {
        let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
        let own = help
            .lines()
            .filter_map(|line| line.strip_prefix("  cnitool "))
            .map(|line| line.replace("the disk burnt", "fire"));
        own.chain(command.get_subcommands().flat_map(examples)).collect()
    }

    fn arguments(line: &str) -> Vec<OsString> {
        ["cnitool"].into_iter().chain(line.split_whitespace()).map(OsString::from).collect()
    }

    fn complete_parse(arguments: &[OsString]) -> Result<CommandLine, clap::Error> {
        CommandLine::from_arg_matches(&command().try_get_matches_from(arguments)?)
    }

    #[test]
    fn one_command_is_parsed_as_all_commands_parse_it() {
        let examples = examples(&command());
        assert!(examples.len() >= 30, "{examples:?}");
        let examples = examples.iter().map(|line| line.split([';', '&', '>']).next().unwrap());
        let options = [
            "--ifname eth1 add pods /ns",
            "--json list --network add",
            "add pods /ns --cache-dir add --json",
            "completion zsh",
        ];
        for line in examples.chain(options) {
            let arguments = arguments(line);
            let brief = brief(&arguments).unwrap().try_get_matches_from(&arguments).expect(line);
            let parsed = CommandLine::from_arg_matches(&brief).expect(line);
            assert_eq!(format!("{parsed:?}"), format!("{:?}", complete_parse(&arguments).expect(line)), "{line}");
        }
    }

    #[test]
    fn the_value_of_an_option_may_be_named_like_a_command() {
        for line in ["--ifname list add pods /ns", "-i show check --all"] {
            let arguments = arguments(line);
            assert!(brief(&arguments).unwrap().try_get_matches_from(&arguments).is_err(), "{line}");
            let parsed = parse(&arguments).expect(line);
            assert_eq!(format!("{parsed:?}"), format!("{:?}", complete_parse(&arguments).unwrap()), "{line}");
        }
    }

    #[test]
    fn help_and_errors_are_those_of_the_complete_description() {
        for line in
            ["", "--help", "help add", "add --help", "ipam help usage", "add", "add --nosuch", "ad", "--version"]
        {
            let arguments = arguments(line);
            let [short, complete] = [parse(&arguments), complete_parse(&arguments)].map(|parsed| match parsed {
                Ok(line) => format!("{line:?}"),
                Err(error) => error.to_string(),
            });
            assert_eq!(short, complete, "{line}");
        }
    }
}
