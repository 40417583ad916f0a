//! The backends that rules are written with, and programs of iptables that are replaced by scripts.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use cnikit_testkit::{Host, Subject};
use tempfile::TempDir;

/// The programs of iptables.
pub const PROGRAMS: [&str; 6] =
    ["iptables", "iptables-save", "iptables-restore", "ip6tables", "ip6tables-save", "ip6tables-restore"];

/// What rules are written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// nftables, over netlink.
    Nftables,
    /// The half of iptables that is in `nf_tables`.
    IptablesNft,
    /// The other half.
    IptablesLegacy,
}

impl Way {
    /// Every one.
    pub const ALL: [Way; 3] = [Way::Nftables, Way::IptablesNft, Way::IptablesLegacy];
    /// Both halves of iptables.
    pub const HALVES: [Way; 2] = [Way::IptablesNft, Way::IptablesLegacy];

    /// As keys of configurations have it.
    pub fn backend(self) -> &'static str {
        if self == Way::Nftables { "nftables" } else { "iptables" }
    }

    /// As the names of programs have it.
    pub fn half(self) -> &'static str {
        if self == Way::IptablesLegacy { "legacy" } else { "nft" }
    }

    /// A directory in which `iptables` is of this half.
    pub fn directory(self) -> TempDir {
        let dir = tempfile::tempdir().unwrap();
        let file = format!("/usr/sbin/xtables-{}-multi", self.half());
        PROGRAMS.iter().for_each(|name| symlink(&file, dir.path().join(name)).unwrap());
        dir
    }

    /// All rules of a table in this variant of iptables, or the ruleset of nftables.
    pub fn rules(self, host: &Host, table: &str) -> String {
        match self {
            Way::Nftables => host.sh("nft list ruleset"),
            Way::IptablesNft | Way::IptablesLegacy => {
                let half = self.half();
                host.sh(&format!("iptables-{half}-save -t {table}; ip6tables-{half}-save -t {table}"))
            }
        }
    }
}

/// A subject with these programs first in its search path.
pub fn on_path(subject: &Subject, dir: &Path) -> Subject {
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", dir.display());
    subject.with_env(vec![("PATH".into(), path)])
}

/// Makes a program that is a line of shell.
pub fn script(dir: &Path, name: &str, line: &str) {
    let file = dir.join(name);
    fs::write(&file, format!("#!/bin/sh\n{line}\n")).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A line for [`started_by`]: its result cannot be written.
pub const WITHOUT_RESULT: &str = "exec PLUGIN >/dev/full";
/// A line for [`started_by`]: no sysctl can be written.
pub const WITH_READ_ONLY_SYSCTLS: &str = "exec unshare --mount sh -c \
    'mount --bind /proc/sys /proc/sys && mount -o remount,bind,ro /proc/sys && exec PLUGIN'";

/// The same plugin, without others in its `CNI_PATH`, started by a line of shell that has its path as `PLUGIN`. The directory goes
/// with the second value.
pub fn started_by(subject: &Subject, line: &str) -> (Subject, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let plugin = subject.bin.join(&subject.plugin);
    script(dir.path(), &subject.plugin, &line.replace("PLUGIN", &plugin.display().to_string()));
    (subject.in_directory(dir.path()), dir)
}

/// Both under the name that the administrator chooses, and under that of the variant which has the rules.
pub fn scripts(dir: &Path, name: &str, line: &str) {
    [name, &name.replace('-', "-nft-")].iter().for_each(|name| script(dir, name, line));
}

/// A directory with all programs, each of which appends its name to a file before it does its work. Both are below `dir`.
pub fn noting(dir: &Path) -> (PathBuf, PathBuf) {
    let programs = dir.join("programs");
    let log = dir.join("started");
    fs::create_dir(&programs).unwrap();
    for name in PROGRAMS {
        scripts(&programs, name, &format!("echo {name} >>{}; exec /usr/sbin/{name} \"$@\"", log.display()));
    }
    (programs, log)
}

/// The names that were noted since the last time.
pub fn started(log: &Path) -> Vec<String> {
    let names = fs::read_to_string(log).unwrap_or_default().lines().map(str::to_owned).collect();
    let _ = fs::remove_file(log);
    names
}
