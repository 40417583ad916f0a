//! Fuzz target: the configuration of containerd and of CRI-O, which names the directories of plugins and of network lists.

use std::fs;
use std::path::{Path, PathBuf};

use cnikit_installer::configured_directories;

const CONTAINERD: &str = "etc/containerd/config.toml";
const CRIO: &str = "etc/crio/crio.conf";

/// The first byte selects the runtime; the rest is the content of its file.
pub(crate) fn run(data: &[u8]) {
    let Some((choice, content)) = data.split_first() else { return };
    let path = if choice % 2 == 0 { CONTAINERD } else { CRIO };
    match directories(path, content) {
        Ok(found) => {
            assert!(!found.is_empty(), "there are directories without any configuration");
            for pair in found {
                assert!(pair.0.is_absolute() && pair.1.is_absolute(), "{pair:?}");
                // A path may have a name that is not clean; it is one name all the same in a literal string.
                if let Some(text) = written(path, &pair) {
                    assert_eq!(directories(path, text.as_bytes()).expect("what was read can be read again"), [pair]);
                }
            }
        }
        Err(why) => {
            // An imported file may have any name.
            let names_it = why.contains(path) || why.contains("the runtime's directory");
            let names_it = names_it || why.starts_with('/') || why.starts_with("read /");
            assert!(names_it, "{why}");
            assert!(!why.contains('\0') || content.contains(&0), "{why}");
        }
    }
}

/// What is found on a node with this file.
fn directories(path: &str, content: &[u8]) -> Result<Vec<(PathBuf, PathBuf)>, String> {
    let node = tempfile::tempdir().expect("there is a temporary directory");
    let file = node.path().join(path);
    fs::create_dir_all(file.parent().expect("it is in a directory")).expect("it can be made");
    fs::write(&file, content).expect("it can be written to");
    configured_directories(node.path())
}

/// The configuration with these directories; `None` if they cannot be written without escapes.
fn written(path: &str, (plugins, networks): &(PathBuf, PathBuf)) -> Option<String> {
    let [plugins, networks] = [plugins, networks].map(|path| Path::to_str(path).filter(|text| is_literal(text)));
    let (plugins, networks) = (plugins?, networks?);
    Some(if path == CONTAINERD {
        format!(
            "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '{plugins}'\nconf_dir = '{networks}'\n"
        )
    } else {
        format!("[crio.network]\nplugin_dirs = ['', '{plugins}']\nnetwork_dir = '{networks}'\n")
    })
}

fn is_literal(text: &str) -> bool {
    !text.contains(|letter: char| letter == '\'' || letter.is_control())
}
