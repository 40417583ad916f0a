//! A pool: its ranges, and the blocks that they are cut into.

use std::net::IpAddr;
use std::ops::RangeInclusive;

use cnikit_reservations::{Range, RangeConfig, RangeSet};
use cnikit_types::{check_network_name, document, limit, read};
use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::Error;

/// The longest JSON text of a pool, in bytes.
const LONGEST_TEXT: usize = 64 << 10;
/// The most ranges of a pool, both families and the static ones together.
const MOST_RANGES: usize = 256;
/// The longest name of a pool, in bytes.
const LONGEST_NAME: usize = 63;
/// The longest cooldown: a day.
const LONGEST_COOLDOWN: u32 = 24 * 60 * 60;

/// A family of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolFamily {
    /// IPv4.
    V4,
    /// IPv6.
    V6,
}

/// What a block may serve between a reboot of the node and its confirmation by the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AfterBoot {
    /// No new address: the node may have been fenced while it was down.
    #[default]
    Confirm,
    /// New addresses too. It is for sites that never fence a node that can return.
    Serve,
}

/// The JSON of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolConfig {
    /// The name, which is part of keys and of messages.
    pub name: String,
    /// Ranges of either family.
    pub ranges: Vec<PoolRangeConfig>,
    /// The prefix length of IPv4 blocks; 32 makes blocks of one address.
    #[serde(default = "default_size4")]
    pub block_size4: u8,
    /// The prefix length of IPv6 blocks; 128 makes blocks of one address.
    #[serde(default = "default_size6")]
    pub block_size6: u8,
    /// Ranges that no block is cut from: their addresses are given one by one, on request. A block that has an address of such a
    /// range is not used at all.
    #[serde(default, rename = "static", skip_serializing_if = "Vec::is_empty")]
    pub static_ranges: Vec<PoolRangeConfig>,
    /// How long a released address is not allocated again, in seconds.
    #[serde(default = "default_cooldown")]
    pub cooldown: u32,
    /// The most blocks per family that one node may own; absent: no limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_blocks: Option<u32>,
    /// What a block may serve before it is confirmed.
    #[serde(default)]
    pub after_boot: AfterBoot,
    /// Whether nodes claim no more blocks of it, so that it drains.
    #[serde(default, skip_serializing_if = "is_false")]
    pub closed: bool,
}

/// The JSON of one range of a pool, with the keys and defaults of host-local.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct PoolRangeConfig {
    /// The subnet.
    pub subnet: IpNetwork,
    /// The first address; default: the one after the network address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range_start: Option<IpAddr>,
    /// The last address; default: the one before the broadcast address, or the last one of an IPv6 subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub range_end: Option<IpAddr>,
    /// The gateway; default: the address after the network address. A static range has that of the range with its subnet.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gateway: Option<IpAddr>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}

fn default_size4() -> u8 {
    26
}

fn default_size6() -> u8 {
    122
}

fn default_cooldown() -> u32 {
    60
}

impl From<&PoolRangeConfig> for RangeConfig {
    fn from(range: &PoolRangeConfig) -> RangeConfig {
        RangeConfig {
            subnet: Some(range.subnet),
            start: range.range_start,
            end: range.range_end,
            gateway: range.gateway,
        }
    }
}

/// A validated pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolDefinition {
    config: PoolConfig,
    v4: Vec<CutRange>,
    v6: Vec<CutRange>,
    statics: Vec<Range>,
}

/// The most addresses of a static range that are tried for a name.
const MOST_TRIED: u128 = 1 << 16;

/// A range of one family, with the numbers of its blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
struct CutRange {
    range: Range,
    /// The number of its first block in the family.
    first: u64,
    /// How many blocks it has.
    count: u64,
}

/// A block of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolBlock {
    /// Its addresses as a prefix, which is its name in the engine.
    pub cidr: IpNetwork,
    /// Its usable addresses, for the reservations: subnet and gateway are those of the range that it was cut from.
    pub range: RangeConfig,
}

/// The address as a number, comparable within its family.
fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(v4) => u32::from(v4).into(),
        IpAddr::V6(v6) => v6.into(),
    }
}

/// The address of the family with this number.
fn address(family: PoolFamily, number: u128) -> IpAddr {
    match (family, u32::try_from(number)) {
        (PoolFamily::V4, Ok(number)) => IpAddr::V4(number.into()),
        _ => IpAddr::V6(number.into()),
    }
}

impl PoolFamily {
    /// Both, IPv4 first.
    pub const ALL: [PoolFamily; 2] = [PoolFamily::V4, PoolFamily::V6];

    /// The family of an address.
    pub fn of(address: IpAddr) -> PoolFamily {
        if address.is_ipv4() { PoolFamily::V4 } else { PoolFamily::V6 }
    }

    /// The number of bits of an address.
    pub fn bits(self) -> u8 {
        match self {
            PoolFamily::V4 => 32,
            PoolFamily::V6 => 128,
        }
    }
}

/// Checks the name of a pool: letters, digits, `_`, `.` and `-`, the first a letter or a digit, at most 63 bytes.
///
/// # Errors
/// It is not one.
pub fn check_pool_name(name: &str) -> Result<(), Error> {
    if check_network_name(name).is_ok() && name.len() <= LONGEST_NAME {
        return Ok(());
    }
    Err(Error::new(format!("{name:?} is not the name of a pool"))
        .hint("use up to 63 letters, digits, `_`, `.` and `-`, the first a letter or a digit"))
}

impl PoolDefinition {
    /// Parses and validates the JSON of a pool.
    ///
    /// # Errors
    /// The text is longer than 64 KiB, is not JSON, has a wrong type, or is not valid, as [`PoolDefinition::new`] says.
    pub fn parse(text: &[u8]) -> Result<PoolDefinition, Error> {
        if text.len() > LONGEST_TEXT {
            let long = format!("the pool has {} bytes, and at most {LONGEST_TEXT} are allowed", text.len());
            return Err(Error::new(long));
        }
        let document = document::parse(text).map_err(|error| Error::new(format!("the pool is not JSON: {error}")))?;
        limit::check(&document)?;
        PoolDefinition::new(read(&document)?)
    }

    /// Validates a pool.
    ///
    /// # Errors
    /// The name is not one of letters, digits, `_`, `.` and `-`, or has more than 63 bytes; there is no range, or more than 256;
    /// a range is invalid as host-local defines it, overlaps another one, or has the gateway of another one; a block is larger than
    /// the subnet of a range; a family has 2^64 blocks or more; or the cooldown is longer than a day.
    pub fn new(config: PoolConfig) -> Result<PoolDefinition, Error> {
        check_pool_name(&config.name)?;
        let in_pool = |error: Error| error.within(format_args!("pool {}", config.name));
        validate(&config).map_err(in_pool)?;
        let v4 = cut_family(&config, PoolFamily::V4, config.block_size4).map_err(in_pool)?;
        let v6 = cut_family(&config, PoolFamily::V6, config.block_size6).map_err(in_pool)?;
        let statics = static_ranges(&config).map_err(in_pool)?;
        let pool = PoolDefinition { config, v4, v6, statics };
        pool.check_gateways().map_err(|error| error.within(format_args!("pool {}", pool.name())))?;
        Ok(pool)
    }

    /// Its JSON.
    pub fn config(&self) -> &PoolConfig {
        &self.config
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The families that it has ranges of.
    pub fn families(&self) -> impl Iterator<Item = PoolFamily> {
        PoolFamily::ALL.into_iter().filter(|family| !self.cut_ranges(*family).is_empty())
    }

    /// The prefix length of its blocks.
    pub fn block_size(&self, family: PoolFamily) -> u8 {
        match family {
            PoolFamily::V4 => self.config.block_size4,
            PoolFamily::V6 => self.config.block_size6,
        }
    }

    /// The number of block numbers. Some of them may have no usable address and are no blocks.
    pub fn count(&self, family: PoolFamily) -> u64 {
        self.cut_ranges(family).last().map_or(0, |cut| cut.first + cut.count)
    }

    /// The block of a number; `None` if it has no usable address, has one of a static range, or the number is too large.
    pub fn block(&self, family: PoolFamily, index: u64) -> Option<PoolBlock> {
        let cut = self.cut_ranges(family).iter().find(|cut| index >= cut.first && index - cut.first < cut.count)?;
        let shift = u32::from(family.bits() - self.block_size(family));
        let first_block = number(cut.range.start()).checked_shr(shift).unwrap_or(0);
        let base = (first_block + u128::from(index - cut.first)).checked_shl(shift).unwrap_or(0);
        self.usable(family, cut, base)
    }

    /// The block with this prefix; `None` if the pool has no such block.
    pub fn block_of(&self, cidr: IpNetwork) -> Option<PoolBlock> {
        let family = PoolFamily::of(cidr.ip());
        if cidr.prefix() != self.block_size(family) || cidr.ip() != cidr.network() {
            return None;
        }
        let addresses = addresses(cidr);
        let overlaps = |cut: &&CutRange| {
            number(cut.range.start()) <= *addresses.end() && *addresses.start() <= number(cut.range.end())
        };
        let cuts = self.cut_ranges(family).iter().filter(overlaps);
        // Two ranges can have parts of one prefix: that is the block of the first one only.
        cuts.into_iter().next().and_then(|cut| self.usable(family, cut, *addresses.start()))
    }

    /// The block that has this address; `None` if no block has it.
    pub fn block_with(&self, address: IpAddr) -> Option<PoolBlock> {
        let cidr = IpNetwork::new(address, self.block_size(PoolFamily::of(address))).ok()?;
        let block = self.block_of(IpNetwork::new(cidr.network(), cidr.prefix()).ok()?)?;
        let range = Range::try_from(&block.range).ok()?;
        (range.contains(address) && range.gateway() != address).then_some(block)
    }

    /// The static range that has this address; `None` also for a gateway.
    pub fn static_range_of(&self, address: IpAddr) -> Option<&Range> {
        self.statics.iter().find(|range| range.contains(address) && range.gateway() != address)
    }

    /// The static addresses of a family, each once, from one that a hash of the name draws: two names rarely try the same first. At
    /// most 65,536 of each range.
    pub fn static_addresses(&self, family: PoolFamily, name: &str) -> impl Iterator<Item = IpAddr> {
        let digest = Sha256::digest([self.name().as_bytes(), b"\0", name.as_bytes()].concat());
        let mut seed = [0; 16];
        seed.copy_from_slice(&digest[..16]);
        let seed = u128::from_be_bytes(seed);
        let of_family = self.statics.iter().filter(move |range| PoolFamily::of(range.start()) == family);
        of_family.flat_map(move |range| {
            let (first, last) = (number(range.start()), number(range.end()));
            let count = (last - first).saturating_add(1);
            let indexes = 0..count.min(MOST_TRIED);
            let gateway = range.gateway();
            indexes.filter_map(move |index| {
                let found = address(family, first + (seed % count + index) % count);
                (found != gateway).then_some(found)
            })
        })
    }

    /// Refuses a range that has the gateway of another one: only its own gateway is never assigned from a range.
    fn check_gateways(&self) -> Result<(), Error> {
        for range in self.all_ranges() {
            for other in self.all_ranges() {
                let gateway = other.gateway();
                if range.contains(gateway) && range.gateway() != gateway {
                    return Err(Error::new(format!("range {range} has the gateway {gateway} of range {other}"))
                        .hint("give both ranges the same gateway, or leave that address out of the range"));
                }
            }
        }
        Ok(())
    }

    /// A range of this pool and one of the other that have addresses in common, static ranges included.
    pub fn overlap<'a>(&'a self, other: &'a PoolDefinition) -> Option<(&'a Range, &'a Range)> {
        for one in self.all_ranges() {
            if let Some(found) = other.all_ranges().find(|range| one.overlaps(range)) {
                return Some((one, found));
            }
        }
        None
    }

    fn all_ranges(&self) -> impl Iterator<Item = &Range> {
        self.v4.iter().chain(&self.v6).map(|cut| &cut.range).chain(&self.statics)
    }

    /// The numbers of the family's blocks in the order in which this node tries them: each once, the beginning and the step drawn
    /// from a hash of pool and node, so that two nodes rarely try the same.
    pub fn order(&self, family: PoolFamily, node: &str) -> BlockOrder {
        BlockOrder::new(self.count(family), &[self.name().as_bytes(), node.as_bytes(), &[family.bits()]])
    }

    fn cut_ranges(&self, family: PoolFamily) -> &[CutRange] {
        match family {
            PoolFamily::V4 => &self.v4,
            PoolFamily::V6 => &self.v6,
        }
    }

    /// The part of the block at `base` that is in the range.
    fn usable(&self, family: PoolFamily, cut: &CutRange, base: u128) -> Option<PoolBlock> {
        let size = self.block_size(family);
        let cidr = IpNetwork::new(address(family, base), size).ok()?;
        let block = addresses(cidr);
        let first = number(cut.range.start()).max(*block.start());
        let last = number(cut.range.end()).min(*block.end());
        let is_static = self.statics.iter().any(|range| {
            PoolFamily::of(range.start()) == family
                && number(range.start()) <= *block.end()
                && *block.start() <= number(range.end())
        });
        if first > last || is_static || (first == last && first == number(cut.range.gateway())) {
            return None;
        }
        let range = RangeConfig {
            subnet: Some(cut.range.subnet()),
            start: Some(address(family, first)),
            end: Some(address(family, last)),
            gateway: Some(cut.range.gateway()),
        };
        Some(PoolBlock { cidr, range })
    }
}

/// The addresses of a prefix, as numbers.
fn addresses(cidr: IpNetwork) -> RangeInclusive<u128> {
    number(cidr.network())..=number(cidr.broadcast())
}

/// Validates what concerns the pool as a whole.
fn validate(config: &PoolConfig) -> Result<(), Error> {
    limit::count("ranges", config.ranges.len() + config.static_ranges.len(), MOST_RANGES)?;
    if config.ranges.is_empty() {
        return Err(Error::new("no range").hint("give it `ranges`, such as [{\"subnet\": \"10.8.0.0/16\"}]"));
    }
    if config.cooldown > LONGEST_COOLDOWN {
        return Err(Error::new(format!("cooldown: {} s is longer than a day", config.cooldown)));
    }
    if config.max_blocks == Some(0) {
        return Err(Error::new("maxBlocks: 0 blocks per node").hint("use `closed` if no block is to be claimed"));
    }
    Ok(())
}

fn static_ranges(config: &PoolConfig) -> Result<Vec<Range>, Error> {
    let mut ranges = Vec::new();
    for (n, range) in config.static_ranges.iter().enumerate() {
        let mut range_config = RangeConfig::from(range);
        if range_config.gateway.is_none() {
            let of_subnet = config.ranges.iter().find(|other| other.subnet == range.subnet);
            range_config.gateway = of_subnet.and_then(|other| other.gateway);
        }
        ranges.push(Range::try_from(&range_config).map_err(|error| invalid(error, "static", n))?);
    }
    Ok(ranges)
}

fn invalid(error: cnikit_reservations::Error, key: &str, index: usize) -> Error {
    Error { text: format!("{key}[{index}]: {}", error.text), hint: error.hint }
}

fn cut_family(config: &PoolConfig, family: PoolFamily, size: u8) -> Result<Vec<CutRange>, Error> {
    let of_family = |range: &&PoolRangeConfig| PoolFamily::of(range.subnet.ip()) == family;
    let mut configured = Vec::new();
    for (n, range) in config.ranges.iter().enumerate().filter(|(_, range)| of_family(range)) {
        let range_config = RangeConfig::from(range);
        Range::try_from(&range_config).map_err(|error| invalid(error, "ranges", n))?;
        if size < range.subnet.prefix() || size > family.bits() {
            let key = if family == PoolFamily::V4 { "blockSize4" } else { "blockSize6" };
            let subnet = range.subnet;
            return Err(Error::new(format!("{key}: a block of /{size} cannot be cut from ranges[{n}], {subnet}"))
                .hint(format!("use a prefix length from {} to {}", subnet.prefix(), family.bits())));
        }
        configured.push(range_config);
    }
    if configured.is_empty() {
        return Ok(Vec::new());
    }
    let set = RangeSet::try_from(&configured[..])?;
    number_blocks(&set, family, size)
}

/// Numbers the blocks of the ranges of a set, one range after the other.
fn number_blocks(set: &RangeSet, family: PoolFamily, size: u8) -> Result<Vec<CutRange>, Error> {
    let shift = u32::from(family.bits() - size);
    let mut cut: Vec<CutRange> = Vec::new();
    let mut next = 0_u64;
    for range in set.ranges() {
        let first_block = number(range.start()).checked_shr(shift).unwrap_or(0);
        let last_block = number(range.end()).checked_shr(shift).unwrap_or(0);
        let shared = cut.iter().any(|other| {
            number(other.range.start()).checked_shr(shift).unwrap_or(0) <= last_block
                && first_block <= number(other.range.end()).checked_shr(shift).unwrap_or(0)
        });
        if shared {
            return Err(Error::new(format!("range {range} shares a block of /{size} with another range")).hint(
                "a block belongs to one node: choose smaller blocks, or ranges that begin and end with a block",
            ));
        }
        let sum = u64::try_from(last_block - first_block).ok().and_then(|blocks| {
            let count = blocks.checked_add(1)?;
            Some((count, next.checked_add(count)?))
        });
        let Some((count, after)) = sum else {
            return Err(Error::new(format!("it has 2^64 blocks of /{size} or more"))
                .hint("choose larger blocks, which is a smaller prefix length, or smaller ranges"));
        };
        cut.push(CutRange { range: range.clone(), first: next, count });
        next = after;
    }
    Ok(cut)
}

/// A permutation of the numbers below a count, in which the next number needs no memory of those before.
#[derive(Clone, Debug)]
pub struct BlockOrder {
    count: u64,
    start: u64,
    step: u64,
    /// How many were returned.
    returned: u64,
}

impl BlockOrder {
    fn new(count: u64, parts: &[&[u8]]) -> BlockOrder {
        let mut hash = Sha256::new();
        for part in parts {
            hash.update((part.len() as u64).to_be_bytes());
            hash.update(part);
        }
        let digest = hash.finalize();
        let word = |at: usize| digest[at..at + 8].iter().fold(0_u64, |word, byte| word << 8 | u64::from(*byte));
        if count == 0 {
            return BlockOrder { count, start: 0, step: 1, returned: 0 };
        }
        // A step that has no factor in common with the count visits every number once. Every second to tenth number is one.
        let mut step = word(8) % count;
        while greatest_common_divisor(step, count) != 1 {
            step = (step + 1) % count;
        }
        BlockOrder { count, start: word(0) % count, step, returned: 0 }
    }
}

/// Of a number and 0 it is the number.
fn greatest_common_divisor(mut one: u64, mut other: u64) -> u64 {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}

impl Iterator for BlockOrder {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        if self.returned == self.count {
            return None;
        }
        let offset = u128::from(self.returned) * u128::from(self.step);
        self.returned += 1;
        u64::try_from((u128::from(self.start) + offset) % u128::from(self.count)).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn pool(members: &str) -> Result<PoolDefinition, Error> {
        PoolDefinition::parse(format!(r#"{{"name":"blue",{members}}}"#).as_bytes())
    }

    fn refused(members: &str) -> String {
        pool(members).unwrap_err().text
    }

    fn blocks(pool: &PoolDefinition, family: PoolFamily) -> Vec<String> {
        let blocks = (0..pool.count(family)).filter_map(|index| pool.block(family, index));
        blocks.map(|block| format!("{} {}", block.cidr, Range::try_from(&block.range).unwrap())).collect()
    }

    #[test]
    fn a_pool_is_cut_into_blocks_of_usable_addresses() {
        let both = pool(
            r#""ranges":[{"subnet":"10.8.0.0/25","rangeStart":"10.8.0.40"},{"subnet":"2001:db8::/125"}],
               "blockSize4":27,"blockSize6":127"#,
        )
        .unwrap();
        assert_eq!(
            blocks(&both, PoolFamily::V4),
            [
                "10.8.0.32/27 10.8.0.40-10.8.0.63",
                "10.8.0.64/27 10.8.0.64-10.8.0.95",
                "10.8.0.96/27 10.8.0.96-10.8.0.126"
            ]
        );
        let v6 = blocks(&both, PoolFamily::V6);
        assert_eq!(v6.len(), 3, "the first pair is network address and gateway: {v6:?}");
        assert_eq!(v6[0], "2001:db8::2/127 2001:db8::2-2001:db8::3");
        assert_eq!(both.count(PoolFamily::V6), 4);
        assert_eq!(both.block(PoolFamily::V4, 3), None);
    }

    #[test]
    fn blocks_of_one_address_omit_the_gateway_and_static_ranges() {
        let tiny = pool(
            r#""ranges":[{"subnet":"10.8.0.0/29"},{"subnet":"10.9.0.0/30"}],"blockSize4":32,
               "static":[{"subnet":"10.8.0.0/29","rangeStart":"10.8.0.4","rangeEnd":"10.8.0.5"}]"#,
        )
        .unwrap();
        assert_eq!(
            blocks(&tiny, PoolFamily::V4),
            [
                "10.8.0.2/32 10.8.0.2-10.8.0.2",
                "10.8.0.3/32 10.8.0.3-10.8.0.3",
                "10.8.0.6/32 10.8.0.6-10.8.0.6",
                "10.9.0.2/32 10.9.0.2-10.9.0.2"
            ]
        );
        assert!(tiny.static_range_of("10.8.0.4".parse().unwrap()).is_some());
        assert_eq!(tiny.block_with("10.8.0.1".parse().unwrap()), None, "the gateway");
        assert_eq!(tiny.block_with("10.8.0.4".parse().unwrap()), None, "static");
        assert_eq!(tiny.block_with("10.9.0.2".parse().unwrap()).unwrap().cidr.to_string(), "10.9.0.2/32");
    }

    #[test]
    fn a_block_is_found_by_its_prefix_and_by_an_address() {
        let one = pool(r#""ranges":[{"subnet":"10.8.0.0/16"},{"subnet":"fd00::/64"}]"#).unwrap();
        assert_eq!((one.block_size(PoolFamily::V4), one.block_size(PoolFamily::V6)), (26, 122));
        let block = one.block_with("10.8.3.70".parse().unwrap()).unwrap();
        assert_eq!(block.cidr.to_string(), "10.8.3.64/26");
        assert_eq!(one.block_of(block.cidr), Some(block));
        for other in ["10.8.3.65/26", "10.8.3.64/27", "10.9.0.0/26", "fd01::/122"] {
            assert_eq!(one.block_of(other.parse().unwrap()), None, "{other}");
        }
    }

    #[test]
    fn no_gateway_of_a_pool_is_an_address_for_containers() {
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let one = pool(
            r#""ranges":[{"subnet":"10.8.0.0/24","rangeEnd":"10.8.0.191","gateway":"10.8.0.254"}],
               "static":[{"subnet":"10.8.0.0/24","rangeStart":"10.8.0.192"},{"subnet":"10.9.0.0/29"}]"#,
        )
        .unwrap();
        let gateway = |address: &str| one.static_range_of(ip(address)).map(Range::gateway);
        assert_eq!(gateway("10.8.0.200"), Some(ip("10.8.0.254")), "that of the range with its subnet");
        assert_eq!(gateway("10.8.0.254"), None, "the gateway is no static address");
        assert_eq!((gateway("10.9.0.2"), gateway("10.9.0.1")), (Some(ip("10.9.0.1")), None));
        for text in [
            r#""ranges":[{"subnet":"10.8.0.0/24","rangeEnd":"10.8.0.127"},
                {"subnet":"10.8.0.0/24","rangeStart":"10.8.0.128","gateway":"10.8.0.7"}]"#,
            r#""ranges":[{"subnet":"10.8.0.0/24","rangeEnd":"10.8.0.127","gateway":"10.8.0.1"}],
                "static":[{"subnet":"10.8.0.0/24","rangeStart":"10.8.0.128","gateway":"10.8.0.7"}]"#,
        ] {
            let error = refused(text);
            assert!(
                error.contains("range 10.8.0.1-10.8.0.127 has the gateway 10.8.0.7 of range 10.8.0.128"),
                "{error}"
            );
        }
    }

    #[test]
    fn ranges_of_two_pools_that_overlap_are_found() {
        let blue = pool(
            r#""ranges":[{"subnet":"10.8.0.0/24","rangeEnd":"10.8.0.127"},{"subnet":"fd00::/64"}],
               "static":[{"subnet":"10.8.0.0/24","rangeStart":"10.8.0.200"}]"#,
        )
        .unwrap();
        let found = |ranges: &str| {
            let other = pool(&format!(r#""ranges":[{ranges}],"blockSize4":28"#)).unwrap();
            blue.overlap(&other).map(|(one, other)| format!("{one} {other}"))
        };
        assert_eq!(found(r#"{"subnet":"10.8.0.0/24","rangeStart":"10.8.0.128","rangeEnd":"10.8.0.199"}"#), None);
        let whole = r#"{"subnet":"10.8.0.0/16"}"#;
        assert_eq!(found(whole).as_deref(), Some("10.8.0.1-10.8.0.127 10.8.0.1-10.8.255.254"));
        let last = r#"{"subnet":"10.8.0.192/26","rangeStart":"10.8.0.240"}"#;
        assert_eq!(found(last).as_deref(), Some("10.8.0.200-10.8.0.254 10.8.0.240-10.8.0.254"));
        assert!(found(r#"{"subnet":"fd00::/96"}"#).is_some());
        assert_eq!(found(r#"{"subnet":"::/64"}"#), None, "10.8.0.1 is not ::a08:1");
    }

    #[test]
    fn a_pool_is_written_as_it_is_read() {
        let text = r#""ranges":[{"subnet":"10.8.0.0/16","gateway":"10.8.0.9"}],"maxBlocks":3,"afterBoot":"serve","closed":true"#;
        let one = pool(text).unwrap();
        let written = serde_json::to_vec(one.config()).unwrap();
        assert_eq!(PoolDefinition::parse(&written).unwrap(), one);
        assert_eq!((one.config().cooldown, one.config().after_boot), (60, AfterBoot::Serve));
    }

    #[test]
    fn invalid_pools_are_refused_with_the_reason() {
        assert_eq!(refused(r#""ranges":[]"#), "pool blue: no range");
        assert_eq!(PoolDefinition::parse(b"{").unwrap_err().text.split(':').next(), Some("the pool is not JSON"));
        for name in ["", "../x", "a/b", &"x".repeat(64)] {
            let text = format!(r#"{{"name":"{name}","ranges":[{{"subnet":"10.0.0.0/8"}}]}}"#);
            assert_eq!(
                PoolDefinition::parse(text.as_bytes()).unwrap_err().text,
                format!("{name:?} is not the name of a pool")
            );
        }
        let error = refused(r#""ranges":[{"subnet":"10.8.0.0/28"}]"#);
        assert_eq!(error, "pool blue: blockSize4: a block of /26 cannot be cut from ranges[0], 10.8.0.0/28");
        let error = refused(r#""ranges":[{"subnet":"10.8.0.0/16"}],"blockSize4":33"#);
        assert_eq!(error, "pool blue: blockSize4: a block of /33 cannot be cut from ranges[0], 10.8.0.0/16");
        let error = refused(r#""ranges":[{"subnet":"10.8.0.1/16"}]"#);
        assert!(error.starts_with("pool blue: ranges[0]: Network has host bits set"), "{error}");
        let error = refused(r#""ranges":[{"subnet":"fd00::/63"}],"blockSize6":128"#);
        assert_eq!(error, "pool blue: it has 2^64 blocks of /128 or more");
        let error = refused(
            r#""ranges":[{"subnet":"10.8.0.0/24","rangeEnd":"10.8.0.99"},{"subnet":"10.8.0.0/24","rangeStart":"10.8.0.100"}]"#,
        );
        assert_eq!(error, "pool blue: range 10.8.0.100-10.8.0.254 shares a block of /26 with another range");
        let many = vec![r#"{"subnet":"10.0.0.0/8"}"#; 257].join(",");
        assert_eq!(refused(&format!(r#""ranges":[{many}]"#)), "pool blue: has 257 ranges, and at most 256 are allowed");
        assert!(refused(&format!(r#""ranges":[],"x":"{}""#, "x".repeat(LONGEST_TEXT))).contains("at most 65536"));
        assert_eq!(
            refused(r#""ranges":[{"subnet":"10.0.0.0/8"}],"cooldown":90000"#),
            "pool blue: cooldown: 90000 s is longer than a day"
        );
        assert!(refused(r#""ranges":[{"subnet":"10.0.0.0/8"}],"maxBlocks":0"#).contains("maxBlocks"));
    }

    #[test]
    fn the_largest_pools_have_a_first_and_a_last_block() {
        let all = pool(r#""ranges":[{"subnet":"::/0"}],"blockSize6":63"#).unwrap();
        assert_eq!(all.count(PoolFamily::V6), 1 << 63);
        assert_eq!(all.block(PoolFamily::V6, (1 << 63) - 1).unwrap().cidr.to_string(), "ffff:ffff:ffff:fffe::/63");
        let whole =
            pool(r#""ranges":[{"subnet":"0.0.0.0/0"},{"subnet":"::/0"}],"blockSize4":0,"blockSize6":0"#).unwrap();
        assert_eq!(blocks(&whole, PoolFamily::V4), ["0.0.0.0/0 0.0.0.1-255.255.255.254"]);
        assert_eq!(whole.count(PoolFamily::V6), 1);
        let single = pool(r#""ranges":[{"subnet":"fd00::/64"}],"blockSize6":128"#).unwrap();
        assert_eq!(single.count(PoolFamily::V6), u64::MAX);
        assert!(single.order(PoolFamily::V6, "n").take(1000).collect::<BTreeSet<u64>>().len() == 1000);
    }

    #[test]
    fn two_nodes_begin_apart() {
        let one = pool(r#""ranges":[{"subnet":"10.0.0.0/8"}]"#).unwrap();
        let first: BTreeSet<u64> =
            (0..100).filter_map(|n| one.order(PoolFamily::V4, &format!("node-{n}")).next()).collect();
        assert!(first.len() >= 99, "{}", first.len());
    }

    proptest! {
        #[test]
        fn an_order_has_every_number_once(count in 0_u64..3000, node in "[a-z]{1,8}") {
            let order: Vec<u64> = BlockOrder::new(count, &[node.as_bytes()]).collect();
            let set: BTreeSet<u64> = order.iter().copied().collect();
            prop_assert_eq!(order.len() as u64, count);
            prop_assert!(set.iter().copied().eq(0..count));
        }

        #[test]
        fn blocks_do_not_overlap_and_their_addresses_are_the_ranges(
            prefix in 20_u8..30, more in 0_u8..8, start in 0_u32..300, length in 0_u32..3000,
        ) {
            let size = (prefix + more).min(32);
            let base = 0x0a08_0000_u32;
            let hosts = 1_u32 << (32 - prefix);
            let first = base + 1 + start % (hosts - 2);
            let last = (first + length).min(base + hosts - 2);
            let text = format!(
                r#""ranges":[{{"subnet":"10.8.0.0/{prefix}","rangeStart":"{}","rangeEnd":"{}"}}],"blockSize4":{size}"#,
                std::net::Ipv4Addr::from(first), std::net::Ipv4Addr::from(last)
            );
            let pool = pool(&text).unwrap();
            let mut seen = BTreeSet::new();
            for index in 0..pool.count(PoolFamily::V4) {
                let Some(block) = pool.block(PoolFamily::V4, index) else { continue };
                prop_assert_eq!(pool.block_of(block.cidr), Some(block.clone()));
                let range = Range::try_from(&block.range).unwrap();
                for address in number(range.start())..=number(range.end()) {
                    let ip = super::address(PoolFamily::V4, address);
                    prop_assert!(block.cidr.contains(ip) && seen.insert(address));
                    let gateway = ip == range.gateway();
                    prop_assert_eq!(pool.block_with(ip).is_none(), gateway);
                }
            }
            let lacking: Vec<u128> = (u128::from(first)..=u128::from(last)).filter(|one| !seen.contains(one)).collect();
            let gateway = u128::from(base + 1);
            prop_assert!(lacking.is_empty() || lacking == [gateway], "{:?}", lacking);
        }
    }
}
