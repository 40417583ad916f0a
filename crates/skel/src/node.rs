//! Reads the node's policy, which an administrator sets for all networks.
//!
//! The policy is a file with a fixed path. No network list, runtime, tenant or environment variable can override it. It is used
//! only if no user except root can have written it. A policy that cannot be used fails ADD, CHECK, RESTORE, PLAN and STATUS, but
//! never DEL and GC.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use cnikit_invoke::{is_writable_by_others, parts_on_the_way};
use cnikit_types::NetConf;
use nix::fcntl::OFlag;

use crate::error::{Error, Result};
use crate::input::{Input, Stdin};
use crate::log;
use crate::policy::NodePolicy;

/// The path of the policy.
const FILE: &str = "/etc/cnikit/node.json";

/// The kernel's file with the user id that is reported for owners that are not mapped in this user namespace.
const OVERFLOW_UID: &str = "/proc/sys/kernel/overflowuid";
/// The users that this user namespace has numbers for.
const UID_MAP: &str = "/proc/self/uid_map";

/// The largest policy that is read, in bytes.
const LONGEST: u64 = 64 << 10;

/// The part of a configuration that tenants can write, through runtimes that copy a pod's annotations there (Multus).
const TENANTS_ARGS: [&str; 2] = ["args", "cni"];

/// The policy for this call. It is read once; plugins that are called in this process use the same one.
pub(crate) fn policy(input: &mut Input) -> Result<NodePolicy> {
    let policy = match input.node {
        Some(policy) => policy,
        None => match read(Path::new(FILE)) {
            Ok(policy) => policy,
            Err(error) if ["DEL", "GC"].contains(&input.command.as_str()) => {
                log::warn(format_args!("{} continues without the node's policy: {error}", input.command));
                NodePolicy::default()
            }
            Err(error) => return Err(error),
        },
    };
    input.node = Some(policy);
    Ok(policy)
}

/// Removes the part that tenants can write, if the policy says so, from the configuration and from the stdin of delegated plugins.
pub(crate) fn remove_tenants_args(policy: NodePolicy, conf: &mut NetConf, input: &mut Input) {
    if policy.ignore_args && conf.remove_at(&TENANTS_ARGS) {
        log::warn(format_args!("args.cni is ignored: {FILE} has ignoreArgs"));
        input.stdin = Stdin::Given(conf.to_vec());
    }
}

/// The same for a configuration that an earlier call stored.
pub(crate) fn remove_stored_tenants_args(input: &Input, conf: &mut NetConf) {
    if input.node.is_some_and(|policy| policy.ignore_args) {
        conf.remove_at(&TENANTS_ARGS);
    }
}

fn read(path: &Path) -> Result<NodePolicy> {
    // Opening must not wait for the writer of a FIFO. Symbolic links are followed, because tools that manage configurations make
    // them; every part of the path is checked below.
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
    check_owner(path, &metadata, false)?;
    let parts = parts_on_the_way(path).map_err(|error| unusable(path, &error))?;
    let ends = [path.parent(), parts.last().and_then(|end| end.parent())];
    for part in &parts {
        let metadata = part.symlink_metadata().map_err(|error| unusable(part, &error))?;
        check_owner(part, &metadata, metadata.is_dir() && !ends.contains(&Some(part)))?;
    }
    let mut text = Vec::new();
    file.take(LONGEST + 1).read_to_end(&mut text).map_err(|error| unusable(path, &error))?;
    if text.len() as u64 > LONGEST {
        return Err(unusable(path, &format_args!("it is longer than {} KiB", LONGEST >> 10)));
    }
    serde_json::from_slice(&text).map_err(|error| {
        unusable(path, &error).hint("correct the file; docs/node.md lists its keys, all of which are optional")
    })
}

/// Checks that only root can have written this file, or replaced an entry of this directory or the target of this symbolic link. In
/// a sticky directory, such as `/tmp`, only the owner of an entry can replace it, and root owns the entries on the path.
fn check_owner(path: &Path, metadata: &Metadata, may_be_sticky: bool) -> Result<()> {
    if metadata.uid() != 0 && !is_unmapped(metadata.uid()) {
        let why = format!("it belongs to user {}, not to root", metadata.uid());
        return Err(unusable(path, &why).hint(format!("check its content, then `chown root {}`", path.display())));
    }
    if is_writable_by_others(metadata, may_be_sticky) {
        let why = "users other than root may write to it";
        return Err(unusable(path, &why).hint(format!("check its content, then `chmod go-w {}`", path.display())));
    }
    Ok(())
}

/// Whether this process is in a user namespace without a number for this owner. With rootless Podman the host's root is such an
/// owner.
fn is_unmapped(owner: u32) -> bool {
    let [Ok(overflow), Ok(map)] = [OVERFLOW_UID, UID_MAP].map(std::fs::read_to_string) else { return false };
    let is_initial = map.split_whitespace().eq(["0", "0", "4294967295"]);
    !is_initial && overflow.trim().parse() == Ok(owner)
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::config(format!("the node's policy cannot be used: {}: {why}", path.display()))
        .hint("make it a regular file of root that no other user may write to, or remove it")
}
