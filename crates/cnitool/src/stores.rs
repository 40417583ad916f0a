//! The directories of reservations on this node, of host-local and of pools, with the ranges of each network.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use cnikit_libcni::{EXTENSIONS, NetworkList, conf_files, list_from_file};
use cnikit_pool::NodeFiles;
use cnikit_reservations::{Boot, RangeSet, Store, TIMEOUT};
use cnikit_types::NetConf;

use crate::environment;
use crate::failure::Result;
use crate::options::Common;
use crate::output::print::print_to_stderr;

/// The reservations of one network.
#[derive(Debug)]
pub(crate) struct NetworkStore {
    pub(crate) store: Store,
    /// The ranges of the network in all configurations that can be read; empty if there are none.
    pub(crate) sets: Vec<RangeSet>,
}

/// A data directory and the name of a network in it.
type StoreName = (PathBuf, String);

/// The stores of all networks, or of one, by directory and name: those of configurations, and all in the default directory and in
/// the directories of configurations and of the caller.
pub(crate) fn stores(common: &Common, network: Option<&str>, more_dirs: &[PathBuf]) -> Result<Vec<NetworkStore>> {
    let mut configured = configured(common);
    let mut names: BTreeSet<StoreName> = configured.keys().cloned().collect();
    let mut dirs: BTreeSet<PathBuf> = configured.keys().map(|(dir, _)| dir.clone()).collect();
    dirs.insert(host_local::DATA_DIR.into());
    dirs.extend(more_dirs.iter().cloned());
    for dir in dirs {
        for name in Store::networks(&dir)? {
            names.insert((dir.clone(), name));
        }
    }
    let mut stores = Vec::new();
    for name in names {
        if network.is_none_or(|network| network == name.1) {
            let mut sets = configured.remove(&name).unwrap_or_default();
            sets.extend(block_ranges(&name.0, &name.1));
            stores.push(NetworkStore { store: store(name), sets });
        }
    }
    Ok(stores)
}

/// The reservations of a network that has blocks of a pool.
pub(crate) fn pool_store(dir: &Path, network: &str) -> Store {
    store((dir.to_owned(), network.to_owned()))
}

/// The data directories of networks with the plugin pool, and the default one.
pub(crate) fn pool_directories(common: &Common) -> BTreeSet<PathBuf> {
    let mut dirs = BTreeSet::from([PathBuf::from(host_local::DATA_DIR)]);
    for list in lists(&environment::configurations(common)) {
        for listed in &list.plugins {
            if let Ok(conf) = NetConf::parse(listed.text.as_bytes())
                && conf.ipam_type() == Some("pool")
            {
                dirs.insert(host_local::data_dir(&conf));
            }
        }
    }
    dirs
}

/// The ranges of the network's blocks.
fn block_ranges(dir: &Path, network: &str) -> Vec<RangeSet> {
    let read = || -> Result<Vec<RangeSet>, cnikit_pool::Error> {
        let files = NodeFiles::new(dir).open()?;
        let blocks = files.blocks(network)?;
        if blocks.is_empty() {
            return Ok(Vec::new());
        }
        let pools = files.pools()?.unwrap_or_default();
        let mut sets = Vec::new();
        for block in blocks {
            let Some(pool) = pools.pool(&block.pool)? else { continue };
            let range = if block.is_static { block.static_range(&pool) } else { block.range(&pool) };
            let set = range.map(|range| RangeSet::try_from(&[range][..]));
            sets.extend(set.and_then(std::result::Result::ok));
        }
        Ok(sets)
    };
    read().unwrap_or_else(|error| {
        print_to_stderr(&format!("Warning: blocks of network {network}: {error}"));
        Vec::new()
    })
}

fn store((data_dir, network): StoreName) -> Store {
    let log = |text: &str| print_to_stderr(&format!("Warning: {text}"));
    let files = NodeFiles::new(&data_dir);
    if files.networks().is_ok_and(|networks| networks.contains(&network)) {
        // What is released has a cooldown.
        return files.network(&network, TIMEOUT, log).store().clone();
    }
    Store { data_dir, network, boot: Boot::now(), cooling: None, timeout: TIMEOUT, log }
}

/// The ranges in all configurations.
fn configured(common: &Common) -> BTreeMap<StoreName, Vec<RangeSet>> {
    let mut found: BTreeMap<StoreName, Vec<RangeSet>> = BTreeMap::new();
    for list in lists(&environment::configurations(common)) {
        for listed in &list.plugins {
            let Ok(conf) = NetConf::parse(listed.text.as_bytes()) else { continue };
            if conf.ipam_type() == Some("pool") {
                found.entry((host_local::data_dir(&conf), list.name.clone())).or_default();
                continue;
            }
            if conf.ipam_type() != Some("host-local") {
                continue;
            }
            let sets = found.entry((host_local::data_dir(&conf), list.name.clone())).or_default();
            match host_local::ranges(&conf) {
                Ok(more) => sets.extend(more),
                Err(error) => print_to_stderr(&format!("Warning: ranges of network {}: {error}", list.name)),
            }
        }
    }
    found
}

/// The networks of a directory, as far as they can be read.
fn lists(dir: &Path) -> Vec<NetworkList> {
    let files = conf_files(dir, &EXTENSIONS).unwrap_or_default();
    files.iter().filter_map(|file| list_from_file(file).ok()).collect()
}
