//! Distributions whose runtimes are configured elsewhere, or have other directories.
//!
//! | preset | source |
//! |---|---|
//! | k3s, rke2 | `pkg/agent/templates` of k3s; k3s PR 10868 (the directory of plugins) |
//! | openshift | `templates/common/_base/files/crio.yaml` of the machine config operator |
//! | microshift | PR 4093 (the drop-in file of Multus); its nodes have CRI-O's usual directory of network lists |
//! | talos | PR 9158 (an overlay over /opt/cni/bin); `/etc/cri/containerd.toml` of its images |
//! | flatcar | containerd's own defaults; `/usr` is read-only, `/opt` is not |

use crate::runtimes::{NETWORKS, PLUGINS};

/// A kind of node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Preset {
    pub(crate) name: &'static str,
    /// The directories where no configuration of a runtime names others.
    pub(crate) plugins: &'static str,
    pub(crate) networks: &'static str,
    /// containerd's configuration if it is the node's only runtime; `None`: the usual files of containerd and CRI-O.
    pub(crate) containerd: Option<&'static str>,
}

const ALL: [Preset; 7] = [
    Preset { name: "default", plugins: PLUGINS, networks: NETWORKS, containerd: None },
    Preset {
        name: "k3s",
        plugins: "/var/lib/rancher/k3s/data/cni",
        networks: "/var/lib/rancher/k3s/agent/etc/cni/net.d",
        containerd: Some("/var/lib/rancher/k3s/agent/etc/containerd/config.toml"),
    },
    Preset {
        name: "rke2",
        plugins: PLUGINS,
        networks: NETWORKS,
        containerd: Some("/var/lib/rancher/rke2/agent/etc/containerd/config.toml"),
    },
    Preset { name: "openshift", plugins: "/var/lib/cni/bin", networks: "/etc/kubernetes/cni/net.d", containerd: None },
    Preset { name: "microshift", plugins: "/run/cni/bin", networks: NETWORKS, containerd: None },
    Preset { name: "talos", plugins: PLUGINS, networks: NETWORKS, containerd: Some("/etc/cri/containerd.toml") },
    Preset { name: "flatcar", plugins: PLUGINS, networks: NETWORKS, containerd: None },
];

/// The preset of a name; the error lists all names.
pub(crate) fn by_name(name: &str) -> Result<&'static Preset, String> {
    let mut names = Vec::new();
    for preset in &ALL {
        if preset.name == name {
            return Ok(preset);
        }
        names.push(preset.name);
    }
    Err(format!("--preset {name}: there is none of this name; hint: {}", names.join(", ")))
}
