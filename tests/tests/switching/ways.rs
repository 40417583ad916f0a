//! The ways to install this release, and back: those of docs/packages.md and of scripts/install.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use cnikit_testkit::cache;
use cnikit_tests::debian_root::{Debian, PLUGINS};
use cnikit_tests::release_files::{Podman, file, kinds, sh};
use cnikit_tests::switched::copy_plugins;
use cnikit_tests::{NAMES, copy_program, earlier, references, released};
use tempfile::TempDir;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// `scripts/install`, from a checkout.
    Script,
    /// The tarball, unpacked elsewhere: it installs itself.
    Tarball,
    /// tar, over the directory of plugins, as many install upstream's.
    UntarOver,
    Deb,
    Rpm,
    Image,
}

pub(crate) const WAYS: [Way; 6] = [Way::Script, Way::Tarball, Way::UntarOver, Way::Deb, Way::Rpm, Way::Image];

impl Way {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Way::Script => "the_script",
            Way::Tarball => "the_tarball",
            Way::UntarOver => "untarring",
            Way::Deb => "the_debian_package",
            Way::Rpm => "the_rpm",
            Way::Image => "the_image",
        }
    }

    /// Whether the files that `scripts/test packages` made are enough for it: the RPM is made for whole campaigns.
    pub(crate) fn is_made(self) -> bool {
        self != Way::Rpm || kinds().contains("rpm")
    }

    /// The directory of plugins.
    pub(crate) fn plugins(self) -> &'static str {
        if self == Way::Deb { PLUGINS } else { "/opt/cni/bin" }
    }
}

/// How the name of our RPM begins; cnikit-agent's has a word there.
pub(crate) const RPM: &str = concat!("cnikit-", env!("CARGO_PKG_VERSION"));

/// A root directory, and the means to install something there.
pub(crate) struct Machine {
    way: Way,
    root: PathBuf,
    dir: TempDir,
    /// For packages: their scripts run in it.
    debian: Option<Debian>,
    podman: Option<Podman>,
}

impl Machine {
    pub(crate) fn new(way: Way) -> Machine {
        let dir = tempfile::tempdir().unwrap();
        let debian = matches!(way, Way::Deb | Way::Rpm).then(Debian::new);
        let root = debian.as_ref().map_or_else(|| dir.path().join("root"), |debian| debian.root.clone());
        fs::create_dir_all(root.join(&way.plugins()[1..])).unwrap();
        fs::set_permissions(&root, fs::Permissions::from_mode(0o755)).unwrap();
        let podman = (way == Way::Image).then(|| Podman::new(&file(0, "cnikit-v", ".oci.tar")));
        if matches!(way, Way::Tarball | Way::UntarOver) {
            let line =
                "mkdir unpacked upstream && tar -xzf '{ours}' -C unpacked && tar -czf upstream.tgz -C '{upstream}' .";
            let line = line.replace("{ours}", tarball().to_str().unwrap());
            sh(dir.path(), &line.replace("{upstream}", references()[1].to_str().unwrap()));
        }
        Machine { way, root, dir, debian, podman }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    fn plugins(&self) -> PathBuf {
        self.root.join(&self.way.plugins()[1..])
    }

    pub(crate) fn bytes_of(&self, name: &str) -> Vec<u8> {
        fs::read(self.plugins().join(name)).unwrap()
    }

    /// Upstream's newest release, as a package or as files.
    pub(crate) fn place_upstream(&self) {
        if self.way == Way::Deb {
            let debian = self.debian();
            let package = debian.give(&cache().join("debian-packages/sid.deb"));
            debian.sh(&format!("dpkg --force-depends --install {package}"));
        } else {
            copy_plugins(&references()[1], &self.plugins());
        }
    }

    /// As the earlier release's installer placed it: every name is a hard link.
    pub(crate) fn place_earlier(&self) {
        let binary = self.plugins().join("cni-plugins");
        copy_program(&earlier().join("cni-plugins"), &binary);
        for name in sh(self.dir.path(), &format!("'{}' --list", binary.display())).lines() {
            fs::hard_link(&binary, self.plugins().join(name)).unwrap();
        }
    }

    /// Every name is this release's.
    pub(crate) fn has_this_release(&self) -> bool {
        let launcher = fs::read(released().join("cni-launcher")).unwrap();
        let binary = fs::read(released().join("cni-plugins")).unwrap();
        NAMES.iter().all(|name| self.bytes_of(name) == launcher) && self.bytes_of("cni-plugins") == binary
    }

    /// Installs this release. Returns what was printed.
    pub(crate) fn install(&self) -> String {
        match self.way {
            Way::Script => self.script(""),
            Way::Tarball => self.unpacked("install"),
            Way::UntarOver => self.untar(&tarball()),
            Way::Deb => {
                let package = self.debian().give(&file(0, "cnikit_", "_amd64.deb"));
                self.debian().sh(&format!("dpkg --install {package}"))
            }
            Way::Rpm => self.rpm(&format!("--install '{}'", file(0, RPM, ".x86_64.rpm").display())),
            Way::Image => self.image("install"),
        }
    }

    /// Undoes that, so that upstream's plugins are there again.
    pub(crate) fn back_to_upstream(&self) -> String {
        match self.way {
            Way::Script => self.script("--uninstall"),
            Way::Tarball => self.unpacked("uninstall"),
            Way::UntarOver => self.untar(&self.dir.path().join("upstream.tgz")),
            Way::Deb => self.debian().sh("dpkg --remove cnikit"),
            Way::Rpm => self.rpm("--erase cnikit"),
            Way::Image => self.image("uninstall"),
        }
    }

    /// Installs the earlier release's binary instead, and removes the package: the plugins stay then, for the containers need them.
    pub(crate) fn back_to_earlier(&self) -> String {
        let from = format!("install --from '{}'", earlier().display());
        match self.way {
            Way::Script => {
                let built = released().join("cni-plugins");
                sh(&self.root, &format!("'{}' {from} --plugin-dir '{}'", built.display(), self.plugins().display()))
            }
            Way::Tarball | Way::UntarOver => self.unpacked(&from),
            Way::Deb => self.leave_package("dpkg --remove cnikit", &|debian| debian.sh("dpkg --remove cnikit")),
            Way::Rpm => self.leave_package("rpm --erase cnikit", &|_| self.rpm("--erase cnikit")),
            Way::Image => {
                let podman = self.podman.as_ref().unwrap();
                let volume = format!("--volume '{}:/earlier'", earlier().display());
                podman.run(&self.root, &volume, "install --from /earlier --plugin-dir /opt/cni/bin")
            }
        }
    }

    fn leave_package(&self, what: &str, remove: &dyn Fn(&Debian) -> String) -> String {
        let debian = self.debian();
        debian.sh("mkdir -p /files/earlier");
        copy_program(&earlier().join("cni-plugins"), &debian.root.join("files/earlier/cni-plugins"));
        debian.sh(&format!(
            "/usr/lib/cnikit/cni-plugins install --plugin-dir {} --from /files/earlier",
            self.way.plugins()
        ));
        let printed = remove(debian);
        assert!(printed.contains("the plugins stay"), "{what}: {printed}");
        printed
    }

    fn debian(&self) -> &Debian {
        self.debian.as_ref().unwrap()
    }

    fn script(&self, flags: &str) -> String {
        let line = format!(
            "CNIKIT_BUILT='{}' '{}/../scripts/install' {flags} '{}' '{}'",
            released().display(),
            env!("CARGO_MANIFEST_DIR"),
            self.plugins().display(),
            self.root.join("usr/local/bin").display()
        );
        sh(&self.root, &line)
    }

    fn unpacked(&self, command: &str) -> String {
        let program = self.dir.path().join("unpacked/cni-plugins");
        let root = self.root.display();
        sh(&self.root, &format!("'{}' {command} --root '{root}' --plugin-dir /opt/cni/bin", program.display()))
    }

    fn untar(&self, archive: &Path) -> String {
        sh(&self.plugins(), &format!("tar -xzf '{}'", archive.display()))
    }

    fn image(&self, command: &str) -> String {
        self.podman.as_ref().unwrap().run(&self.root, "", &format!("{command} --plugin-dir /opt/cni/bin"))
    }

    /// The machine's rpm, with the database and the shell of that root directory.
    pub(crate) fn rpm(&self, what: &str) -> String {
        let line = format!("rpm --root '{}' --dbpath /var/lib/rpm --nodeps {what}", self.root.display());
        sh(&self.root, &format!("{line} 2>&1"))
    }
}

fn tarball() -> PathBuf {
    file(0, "cni-plugins-linux-amd64-v", ".tgz")
}
