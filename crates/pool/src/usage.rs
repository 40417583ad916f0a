//! How much of a node's blocks is in use.

use std::collections::BTreeMap;
use std::net::IpAddr;

use cnikit_reservations::Range;
use serde::{Deserialize, Serialize};

use crate::definition::{PoolDefinition, PoolFamily};
use crate::error::Error;
use crate::local::{LocalBlock, NetworkFiles, NodeFiles};
use crate::record::BlockState;

/// The use of the blocks that a node has of one pool and family. Numbers beyond 64 bits are the largest number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolUsage {
    /// The pool.
    pub pool: String,
    /// The family; absent only in a record of another release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub family: Option<PoolFamily>,
    /// How many blocks and static addresses the node has.
    pub blocks: u64,
    /// How many addresses are reserved.
    pub used: u64,
    /// How many addresses of active blocks are not.
    pub free: u64,
}

/// The use of all blocks of the node, by pool and family. `reserved` reads the addresses of a network that are reserved.
///
/// # Errors
/// A file of the node cannot be read, or is damaged.
pub fn pool_usage(
    files: &NodeFiles,
    reserved: impl Fn(&NetworkFiles) -> Result<Vec<IpAddr>, Error>,
    network: impl Fn(&str) -> NetworkFiles,
) -> Result<Vec<PoolUsage>, Error> {
    let pools = files.pools()?.unwrap_or_default();
    let mut usages: BTreeMap<(String, PoolFamily), PoolUsage> = BTreeMap::new();
    for name in files.networks()? {
        let network = network(&name);
        let blocks = network.blocks()?;
        if blocks.is_empty() {
            continue;
        }
        let mut addresses = reserved(&network)?;
        addresses.sort_unstable();
        for block in &blocks {
            let key = (block.pool.clone(), block.family());
            let usage = usages.entry(key).or_insert_with(|| PoolUsage {
                pool: block.pool.clone(),
                family: Some(block.family()),
                ..PoolUsage::default()
            });
            usage.blocks += 1;
            let used = count_between(&addresses, block.cidr.network(), block.cidr.broadcast());
            usage.used = usage.used.saturating_add(used);
            if let Ok(Some(pool)) = pools.pool(&block.pool) {
                let free = u64::try_from(block.free(&pool, &addresses)).unwrap_or(u64::MAX);
                usage.free = usage.free.saturating_add(free);
            }
        }
    }
    Ok(usages.into_values().collect())
}

impl LocalBlock {
    /// How many addresses of an active block are free, if these are taken, which are sorted and each there once. A static address
    /// is for one attachment, and never counts as free.
    pub fn free(&self, pool: &PoolDefinition, taken: &[IpAddr]) -> u128 {
        let Some(range) = self.range(pool) else { return 0 };
        let Ok(range) = Range::try_from(&range) else { return 0 };
        if self.state != BlockState::Active {
            return 0;
        }
        let taken = count_between(taken, range.start(), range.end());
        range.size(&[range.gateway()]).saturating_sub(taken.into())
    }
}

fn count_between(sorted: &[IpAddr], first: IpAddr, last: IpAddr) -> u64 {
    let begin = sorted.partition_point(|address| *address < first);
    let end = sorted.partition_point(|address| *address <= last);
    end.saturating_sub(begin) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::LocalPools;

    #[test]
    fn each_block_counts_its_own_addresses() {
        let dir = tempfile::tempdir().unwrap();
        let files = NodeFiles::new(dir.path());
        let text = r#"{"name":"blue","ranges":[{"subnet":"10.8.0.0/24"}],"blockSize4":28,
            "static":[{"subnet":"10.8.0.0/24","rangeStart":"10.8.0.240"}]}"#;
        let pool = PoolDefinition::parse(text.as_bytes()).unwrap();
        files.write_pools(&LocalPools { pools: vec![pool.config().clone()], ..LocalPools::default() }).unwrap();
        let block = |cidr: &str, state| LocalBlock {
            pool: "blue".into(),
            cidr: cidr.parse().unwrap(),
            is_static: cidr.ends_with("/32"),
            epoch: 1,
            state,
        };
        let open = |name: &str| files.network(name, std::time::Duration::from_secs(5), |_| {});
        let blocks = [
            block("10.8.0.0/28", BlockState::Active),
            block("10.8.0.16/28", BlockState::Lost),
            block("10.8.0.245/32", BlockState::Active),
        ];
        open("pods").lock().unwrap().write_blocks(&blocks).unwrap();
        let addresses = ["10.8.0.2", "10.8.0.15", "10.8.0.16", "10.8.0.245", "10.8.1.1"];
        let reserved = |_: &NetworkFiles| Ok(addresses.iter().map(|text| text.parse().unwrap()).collect());
        let usage = pool_usage(&files, reserved, open).unwrap();
        let expected = PoolUsage { pool: "blue".into(), family: Some(PoolFamily::V4), blocks: 3, used: 4, free: 12 };
        assert_eq!(usage, [expected], "the first block has 14 addresses without network address and gateway");
    }
}
