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
    is_overflow(owner, &overflow, &map)
}

/// The same with the number that the kernel shows for all owners without one, and with the map of this namespace. See
/// `user_namespaces(7)`.
fn is_overflow(owner: u32, number: &str, map: &str) -> bool {
    let is_initial = map.split_whitespace().eq(["0", "0", "4294967295"]);
    !is_initial && number.trim().parse() == Ok(owner)
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Error {
    Error::config(format!("the node's policy cannot be used: {}: {why}", path.display()))
        .hint("make it a regular file of root that no other user may write to, or remove it")
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};
    use std::path::PathBuf;

    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;

    const TEXT: &str = r#"{"ignoreArgs":true}"#;
    const IGNORING: NodePolicy = NodePolicy { ignore_args: true, refuse_writable_plugins: false };

    /// A directory with a policy, whose path leads through a sticky directory of all users (`/tmp`, as a rule).
    struct Node(tempfile::TempDir);

    impl Node {
        fn new() -> Node {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("etc")).unwrap();
            let node = Node(dir);
            node.set_mode("", 0o1777);
            node.set_mode("etc", 0o755);
            node.write(TEXT);
            node
        }

        fn at(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn file(&self) -> PathBuf {
            self.at("etc/node.json")
        }

        fn write(&self, text: &str) {
            fs::write(self.file(), text).unwrap();
            self.set_mode("etc/node.json", 0o644);
        }

        fn set_mode(&self, path: &str, mode: u32) {
            fs::set_permissions(self.at(path), Permissions::from_mode(mode)).unwrap();
        }

        /// Checks that the policy cannot be used, and why.
        fn check_refused_for(&self, why: &str) {
            let text = read(&self.file()).unwrap_err().to_string();
            assert!(text.contains(why), "{text}");
        }
    }

    #[test]
    fn an_owner_without_a_number_is_one_only_in_a_user_namespace() {
        let rootless = "         0       1000          1\n         1     100000      65536\n";
        for (owner, map, expected) in [
            (65534, rootless, true),
            (1000, rootless, false),
            (65534, "         0          0 4294967295\n", false),
            (1000, "         0          0 4294967295\n", false),
        ] {
            assert_eq!(is_overflow(owner, "65534\n", map), expected, "{owner} with {map:?}");
        }
    }

    #[test]
    fn a_policy_is_read_through_links_and_without_a_file_all_is_default() {
        let node = Node::new();
        assert_eq!(read(&node.file()).unwrap(), IGNORING);
        symlink("node.json", node.at("etc/link.json")).unwrap();
        assert_eq!(read(&node.at("etc/link.json")).unwrap(), IGNORING);
        assert_eq!(read(&node.at("etc/none.json")).unwrap(), NodePolicy::default());
        assert!(read(&node.file().join("below-a-file")).is_err());
    }

    #[test]
    fn a_policy_that_another_user_may_have_written_is_refused() {
        const WRITABLE: &str = "users other than root may write to it";
        let node = Node::new();
        for (path, mode) in
            [("etc/node.json", 0o646), ("etc/node.json", 0o664), ("etc", 0o777), ("etc", 0o1777), ("", 0o777)]
        {
            let usual = node.at(path).metadata().unwrap().permissions();
            node.set_mode(path, mode);
            node.check_refused_for(WRITABLE);
            fs::set_permissions(node.at(path), usual).unwrap();
            assert_eq!(read(&node.file()).unwrap(), IGNORING);
        }
        // A link that another user can replace.
        fs::create_dir(node.at("open")).unwrap();
        symlink("../etc/node.json", node.at("open/node.json")).unwrap();
        node.set_mode("open", 0o1777);
        let error = read(&node.at("open/node.json")).unwrap_err();
        assert!(error.to_string().contains(WRITABLE), "{error}");
        assert!(!is_unmapped(0), "root owns the files of its namespace");
    }

    #[test]
    fn what_is_no_policy_is_refused_and_not_waited_for() {
        let node = Node::new();
        node.write("{");
        node.check_refused_for("node.json: EOF");
        node.write(r#"{"ignoreArg":true}"#);
        node.check_refused_for("unknown field");
        fs::remove_file(node.file()).unwrap();
        mkfifo(&node.file(), Mode::S_IRWXU).unwrap();
        node.check_refused_for("it is not a regular file");
        fs::remove_file(node.file()).unwrap();
        fs::create_dir(node.file()).unwrap();
        node.check_refused_for("it is not a regular file");
    }

    #[test]
    fn a_policy_of_64_kib_is_read_and_one_that_is_longer_is_refused() {
        let node = Node::new();
        let longest = usize::try_from(LONGEST).unwrap();
        assert_eq!(longest, 65_536);
        let padded = |length: usize| TEXT.to_owned() + &" ".repeat(length - TEXT.len());
        node.write(&padded(longest));
        assert_eq!(read(&node.file()).unwrap(), IGNORING);
        node.write(&padded(longest + 1));
        node.check_refused_for("it is longer than 64 KiB");
    }

    #[test]
    fn what_tenants_can_write_is_removed_only_if_the_policy_says_so() {
        const CONF: &str = r#"{"name":"n","type":"moody","args":{"cni":{"ips":["10.0.0.9"]},"other":1}}"#;
        let conf = NetConf::parse(CONF.as_bytes()).unwrap();
        let (mut changed, mut input) = (conf.clone(), Input::new("ADD", CONF));
        remove_tenants_args(NodePolicy::default(), &mut changed, &mut input);
        assert_eq!((&changed, input.stdin.so_far()), (&conf, CONF.as_bytes()));
        input.node = Some(NodePolicy::default());
        remove_stored_tenants_args(&input, &mut changed);
        assert_eq!(changed, conf);

        remove_tenants_args(IGNORING, &mut changed, &mut input);
        assert_eq!(changed.get("args").unwrap(), &serde_json::json!({"other": 1}));
        assert_eq!(input.stdin.so_far(), changed.to_vec());
        let mut stored = conf.clone();
        input.node = Some(IGNORING);
        remove_stored_tenants_args(&input, &mut stored);
        assert_eq!(stored, changed);
        // Without the part nothing is written anew.
        let mut input = Input::new("ADD", " {}");
        remove_tenants_args(IGNORING, &mut changed, &mut input);
        assert_eq!(input.stdin.so_far(), b" {}");
    }
}
