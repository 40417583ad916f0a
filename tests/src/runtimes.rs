//! Real container runtimes, driven as an operator or a kubelet drives them, on a temporary node.
//!
//! A [`Node`] is namespaces of its own with the directories that runtimes insist on. [`Containerd`] is one that runs there,
//! asked by CRI; Podman is a program that is called by [`Node::sh`]. Their configuration is the page's, `docs/runtimes.md`.

mod containerd;
mod grpc;
mod image;
mod node;
mod page;
mod plugins;
mod session;
mod trials;

pub use containerd::{Containerd, Edition, PodSandbox, ReadyPod, Sandbox};
pub use image::{IMAGE, UNTIL_SERVED, release_image};
pub use node::{HINTS, Node};
pub use page::{CONFLIST, file, file_in, files, network, with_backend};
pub use plugins::Maker;
pub use session::Session;
pub use trials::{trials, trials_unless};

/// The settings of Podman that the tests need: there may be no systemd, root in a container may not raise every limit, and a
/// profile would stay loaded in the machine's kernel.
pub const PODMAN_CONF: &str = r#"[containers]
apparmor_profile = "unconfined"
default_ulimits = ["nofile=1024:4096", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"#;
