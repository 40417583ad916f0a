//! A copy of Debian, in memory: packages are installed in it, as an administrator does.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use cnikit_testkit::cache;
use tempfile::TempDir;

use crate::release_files::{sh, try_sh};

/// The directory of plugins, in the root.
pub const PLUGINS: &str = "/usr/lib/cni";

/// A Debian, with its own mounts.
pub struct Debian {
    dir: TempDir,
    /// Its root directory.
    pub root: PathBuf,
}

impl Debian {
    /// Mounts a copy of what `scripts/test packages` unpacked.
    #[expect(clippy::new_without_default, reason = "it mounts file systems")]
    pub fn new() -> Debian {
        let below = cache().join("debian");
        assert!(below.join(".complete").exists(), "{} is missing: `scripts/test packages` makes it", below.display());
        let dir = tempfile::tempdir().unwrap();
        let line = format!(
            "mount -t tmpfs tmpfs . && cd \"$PWD\" && mkdir upper work root && \
             mount -t overlay -o lowerdir={},upperdir=upper,workdir=work overlay root && \
             mount -t proc proc root/proc && mount --bind /dev root/dev && mkdir root/files && \
             mount -t tmpfs tmpfs root/files",
            below.display()
        );
        sh(dir.path(), &line);
        let root = dir.path().join("root");
        Debian { dir, root }
    }

    /// Runs a shell line in it.
    pub fn try_sh(&self, line: &str) -> (bool, String) {
        fs::write(self.root.join("files/line"), line).unwrap();
        let path = "PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C DEBIAN_FRONTEND=noninteractive";
        try_sh(&self.root, &format!("env -i {path} chroot . /bin/sh -ec '. /files/line'"))
    }

    /// The same; the line has to succeed.
    pub fn sh(&self, line: &str) -> String {
        let (succeeded, printed) = self.try_sh(line);
        assert!(succeeded, "{line}: {printed}");
        printed
    }

    /// Copies a file into it. Returns its path there.
    pub fn give(&self, file: &Path) -> String {
        let name = file.file_name().unwrap().to_str().unwrap();
        fs::copy(file, self.root.join("files").join(name))
            .unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        format!("/files/{name}")
    }

    /// The path of a plugin, from outside.
    pub fn plugin(&self, name: &str) -> PathBuf {
        self.root.join(&PLUGINS[1..]).join(name)
    }

    /// What `bridge` and its like print about themselves.
    pub fn version(&self, name: &str) -> String {
        self.sh(&format!("{PLUGINS}/{name} --version 2>&1 || true"))
    }

    /// Whether a plugin is one of ours that works.
    pub fn is_ours(&self, name: &str) -> bool {
        self.version(name).contains(&format!("CNI {name} plugin cnikit"))
    }

    /// All files and directories that packages may have made, except for the package manager's, and for what upstream's package
    /// leaves of its units.
    pub fn files(&self) -> BTreeSet<String> {
        let line = "find /etc /usr /opt /var /run -xdev ! -path '/var/lib/dpkg/*' ! -path '/var/log/*' ! -path '/var/cache/*' \
                    ! -path '/var/lib/systemd/*'";
        self.sh(line).lines().map(str::to_owned).collect()
    }

    /// The diversions of our package.
    pub fn diversions(&self) -> Vec<String> {
        self.sh("dpkg-divert --list").lines().filter(|line| line.ends_with("by cnikit")).map(str::to_owned).collect()
    }
}

impl Drop for Debian {
    fn drop(&mut self) {
        // A failed test has failed already; the mounts go away with the namespace.
        let _ = try_sh(self.dir.path(), "umount -R root && cd / && umount -l \"$OLDPWD\"");
    }
}
