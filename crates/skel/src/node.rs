//! The node's own policy: what its administrator decided for all networks.
//!
//! It is a file with a fixed path, which no network list, runtime or tenant can override, and no environment variable can move.
//! It is trusted only if nobody but root can have written it. A policy that cannot be trusted or read fails what would make or
//! report anything (ADD, CHECK, RESTORE, PLAN, STATUS), and never what cleans up (DEL, GC).

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use cnikit_invoke::{is_writable_by_others, parts_on_the_way};
use cnikit_types::NetConf;
use nix::fcntl::OFlag;
use serde::Deserialize;

use crate::error::{Error, Result};
use crate::input::{Input, Stdin};
use crate::log;

/// Where the policy is.
const FILE: &str = "/etc/cnikit/node.json";

/// The owner that a file has if its own has no number in this user namespace.
const OVERFLOW_UID: &str = "/proc/sys/kernel/overflowuid";
/// The users that this user namespace has numbers for.
const UID_MAP: &str = "/proc/self/uid_map";

/// A longer file is refused.
const LONGEST: u64 = 64 << 10;

/// Where tenants reach a network's configuration, through runtimes that copy annotations of a pod there (Multus).
const TENANTS_ARGS: [&str; 2] = ["args", "cni"];

/// What `/etc/cnikit/node.json` says. Without the file everything has its default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "camelCase")]
pub struct NodePolicy {
    /// `args.cni` of a configuration is removed before anything reads it, delegated plugins included.
    pub ignore_args: bool,
    /// A delegated plugin that any user may write to, or whose directory any user may write to, is not run.
    pub refuse_writable_plugins: bool,
}

/// The policy for this call, read once: plugins that are called in this process use the same.
pub(crate) fn policy(input: &mut Input) -> Result<NodePolicy> {
    let policy = match input.node {
        Some(policy) => policy,
        None => match read(Path::new(FILE)) {
            Ok(policy) => policy,
            Err(error) if ["DEL", "GC"].contains(&input.command.as_str()) => {
                log::warn(format_args!("{} goes on without the node's policy: {error}", input.command));
                NodePolicy::default()
            }
            Err(error) => return Err(error),
        },
    };
    input.node = Some(policy);
    Ok(policy)
}

/// Removes what tenants wrote, where the policy says so: from the configuration, and from what delegated plugins are given.
pub(crate) fn shut_out_tenants(policy: NodePolicy, conf: &mut NetConf, input: &mut Input) {
    if policy.ignore_args && conf.remove_at(&TENANTS_ARGS) {
        log::warn(format_args!("args.cni is ignored: {FILE} has ignoreArgs"));
        input.stdin = Stdin::Given(conf.to_vec());
    }
}

/// The same for a configuration that was kept since an earlier call.
pub(crate) fn shut_out_kept(input: &Input, conf: &mut NetConf) {
    if input.node.is_some_and(|policy| policy.ignore_args) {
        conf.remove_at(&TENANTS_ARGS);
    }
}

fn read(path: &Path) -> Result<NodePolicy> {
    // A FIFO must not stop us. Symbolic links are followed, because tools that manage configurations make them; the way is judged.
    let flags = OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let file = match File::options().read(true).custom_flags(flags.bits()).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(NodePolicy::default()),
        Err(error) => return Err(unusable(path, &error)),
    };
    let metadata = file.metadata().map_err(|error| unusable(path, &error))?;
    if !metadata.is_file() {
        return Err(unusable(path, &"it is not a regular file"));
    }
    trusted(path, &metadata, false)?;
    let way = parts_on_the_way(path).map_err(|error| unusable(path, &error))?;
    let ends = [path.parent(), way.last().and_then(|end| end.parent())];
    for part in &way {
        let metadata = part.symlink_metadata().map_err(|error| unusable(part, &error))?;
        trusted(part, &metadata, metadata.is_dir() && !ends.contains(&Some(part)))?;
    }
    let mut text = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut text).map_err(|error| unusable(path, &error))?;
    if text.len() as u64 > LONGEST {
        return Err(unusable(path, &format_args!("it is longer than {} KiB", LONGEST >> 10)));
    }
    serde_json::from_slice(&text).map_err(|error| {
        unusable(path, &error).hint("correct the file; docs/node.md lists its keys, and a node needs none of them")
    })
}

/// Nobody but root can have written this file, or changed what this directory or symbolic link leads to. In a sticky directory,
/// such as `/tmp`, nobody but the owner can replace an entry, and root owns what is on the way.
fn trusted(path: &Path, metadata: &Metadata, may_be_sticky: bool) -> Result<()> {
    if metadata.uid() != 0 && !is_unmapped(metadata.uid()) {
        let why = format!("it belongs to user {}, not to root", metadata.uid());
        return Err(unusable(path, &why).hint(format!("`chown root {}`, after a look at what it says", path.display())));
    }
    if is_writable_by_others(metadata, may_be_sticky) {
        let why = "users other than root may write to it";
        return Err(unusable(path, &why).hint(format!("`chmod go-w {}`, after a look at what it says", path.display())));
    }
    Ok(())
}

/// Whether this process is in a user namespace and the owner is a user that it has no number for, as root of the host is for
/// rootless Podman.
fn is_unmapped(owner: u32) -> bool {
    let [Ok(overflow), Ok(map)] = [OVERFLOW_UID, UID_MAP].map(std::fs::read_to_string) else { return false };
    let is_initial = map.split_whitespace().eq(["0", "0", "4294967295"]);
    !is_initial && overflow.trim().parse() == Ok(owner)
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::config(format!("the node's policy cannot be used: {}: {why}", path.display()))
        .hint("make it a regular file of root that nobody else may write to, or remove it")
}
