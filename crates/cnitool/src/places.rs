//! Where host-local keeps its reservations on this node, and for which ranges.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cnikit_libcni::{EXTENSIONS, NetworkList, conf_files, list_from_file};
use cnikit_reservations::{Boot, RangeSet, Store, TIMEOUT};
use cnikit_types::NetConf;

use crate::environment;
use crate::failure::Result;
use crate::options::Common;
use crate::output::print::print_to_stderr;

/// One network's reservations.
#[derive(Debug)]
pub(crate) struct Location {
    /// The directory, and who knows its format.
    pub(crate) store: Store,
    /// The ranges of every configuration of the network that could be read; none if there is none.
    pub(crate) sets: Vec<RangeSet>,
}

/// Every network's, by directory and name: those that configurations name, and all whose files lie in a directory that one
/// names, or the caller.
pub(crate) fn places(common: &Common, network: Option<&str>, more: &[PathBuf]) -> Result<Vec<Location>> {
    let configured = configured(common);
    let mut dirs: BTreeSet<PathBuf> = configured.keys().map(|(dir, _)| dir.clone()).collect();
    dirs.insert(host_local::DATA_DIR.into());
    dirs.extend(more.iter().cloned());
    let mut names: BTreeSet<(PathBuf, String)> = configured.keys().cloned().collect();
    for dir in dirs {
        names.extend(Store::networks(&dir)?.into_iter().map(|name| (dir.clone(), name)));
    }
    let wanted = names.into_iter().filter(|(_, name)| network.is_none_or(|network| network == name));
    let place = |(dir, name): (PathBuf, String)| {
        let sets = configured.get(&(dir.clone(), name.clone())).cloned().unwrap_or_default();
        Location { store: store(dir, name), sets }
    };
    Ok(wanted.map(place).collect())
}

fn store(data_dir: PathBuf, network: String) -> Store {
    let log = |text: &str| print_to_stderr(&format!("Warning: {text}"));
    Store { data_dir, network, boot: Boot::now(), timeout: TIMEOUT, log }
}

/// The ranges of all configurations, by directory and network.
fn configured(common: &Common) -> BTreeMap<(PathBuf, String), Vec<RangeSet>> {
    let mut found: BTreeMap<(PathBuf, String), Vec<RangeSet>> = BTreeMap::new();
    for list in lists(&environment::configurations(common)) {
        for listed in &list.plugins {
            let Ok(conf) = NetConf::parse(listed.text.as_bytes()) else { continue };
            if conf.ipam_type() != Some("host-local") {
                continue;
            }
            let known = found.entry((host_local::data_dir(&conf), list.name.clone())).or_default();
            match host_local::ranges(&conf) {
                Ok(sets) => known.extend(sets),
                Err(error) => print_to_stderr(&format!("Warning: ranges of network {}: {error}", list.name)),
            }
        }
    }
    found
}

/// Every network of a directory that can be read.
fn lists(dir: &Path) -> Vec<NetworkList> {
    let files = conf_files(dir, &EXTENSIONS).unwrap_or_default();
    files.iter().filter_map(|file| list_from_file(file).ok()).collect()
}
