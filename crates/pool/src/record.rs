//! What the engine stores: keys, and the JSON of their values.

use std::fmt;
use std::net::IpAddr;

use cnikit_types::{check_network_name, document, read};
use ipnetwork::IpNetwork;
use serde::de::{DeserializeOwned, Error as _};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::Error;
use crate::usage::PoolUsage;

/// The longest value that is read or written, in bytes, except the definition of a pool.
pub const VALUE_LIMIT: usize = 4 << 10;
/// The longest name of a node, in bytes: that of Kubernetes.
const LONGEST_NODE: usize = 253;

/// Identifies one life of a node's local store: a random number that is drawn when the store is made. A node that is installed
/// again has another one, although its name is the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Incarnation(u128);

impl Incarnation {
    /// Draws a new one.
    ///
    /// # Errors
    /// The kernel has no random bytes.
    pub fn draw() -> Result<Incarnation, Error> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| Error::new(format!("draw an incarnation: {error}")))?;
        Ok(Incarnation(u128::from_be_bytes(bytes)))
    }

    /// The one with this number, for tests and models.
    pub fn of(number: u128) -> Incarnation {
        Incarnation(number)
    }
}

/// 32 hexadecimal digits.
impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::str::FromStr for Incarnation {
    type Err = Error;

    fn from_str(text: &str) -> Result<Incarnation, Error> {
        let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        if text.len() == 32 && text.bytes().all(is_digit) {
            return u128::from_str_radix(text, 16).map(Incarnation).map_err(|error| Error::new(error.to_string()));
        }
        Err(Error::new(format!("{text:?} is not an incarnation: 32 hexadecimal digits in lower case")))
    }
}

impl Serialize for Incarnation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Incarnation {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Incarnation, D::Error> {
        String::deserialize(from)?.parse().map_err(D::Error::custom)
    }
}

/// The state of a block in the files of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BlockState {
    /// The node has booted since the engine confirmed the block: a fence may have passed.
    Unconfirmed,
    /// It serves.
    Active,
    /// It is being given back, and serves no new address.
    Sealed,
    /// It belongs to another node, or to none, by a fence. Its containers are not this node's business any more, except DEL and GC.
    Lost,
}

/// Whether a node allocates addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// It does.
    Serving,
    /// Its incarnation was fenced: it does not, until it has a new one.
    Fenced,
}

/// The value of `blocks/<pool>/<cidr>`. It is written once; the revision of that is the block's epoch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct BlockRecord {
    /// The node that owns the block.
    pub node: String,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The network on that node whose containers get the addresses.
    pub network: String,
}

/// The value of `nodes/<node>`: the incarnation that may claim.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct NodeRecord {
    /// The incarnation.
    pub incarnation: Incarnation,
}

/// The value of `session/<node>`, which is leased. It shows that an agent lives, and frees nothing when it ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct SessionRecord {
    /// The node's boot id: that of another machine is another one.
    pub boot: String,
    /// The node's incarnation.
    pub incarnation: Incarnation,
}

/// The value of `fence/<node>/<incarnation>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FenceRecord {
    /// Who fenced it: an operator's name, or `kubernetes`.
    pub by: String,
    /// When, in RFC 3339; for people only.
    pub at: String,
    /// Why.
    pub why: String,
}

/// The value of `static/<pool>/<ip>`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StaticRecord {
    /// The node.
    pub node: String,
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The network.
    pub network: String,
    /// Container and interface, as `<container id>/<interface>`.
    pub attachment: String,
    /// The name that the address stays with, as `<namespace>/<name>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sticky: Option<String>,
}

/// The value of `static/<pool>/<ip>` while no node has the address, because it stays with a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnheldRecord {
    /// The name, as `<namespace>/<name>`.
    pub sticky: String,
}

/// The value of `sticky/<pool>/<namespace>/<name>`: addresses that stay with a name. Their `static/` records say who has them now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StickyRecord {
    /// The IPv4 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip4: Option<IpAddr>,
    /// The IPv6 address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip6: Option<IpAddr>,
}

/// The value of `usage/<node>`: for people only, and written late.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UsageRecord {
    /// When it was written, in RFC 3339.
    pub at: String,
    /// The pools of which the node has blocks.
    pub pools: Vec<PoolUsage>,
}

/// The keys below a prefix, such as `/cnikit/v1/`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineKeys {
    prefix: String,
}

/// What a key names.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum KeyOfEngine {
    /// `pools/<pool>`.
    Pool(String),
    /// `select/<namespace>`.
    Select(String),
    /// `blocks/<pool>/<cidr>`.
    Block {
        /// The pool.
        pool: String,
        /// The block.
        cidr: IpNetwork,
    },
    /// `nodes/<node>`.
    Node(String),
    /// `session/<node>`.
    Session(String),
    /// `fence/<node>/<incarnation>`.
    Fence {
        /// The node.
        node: String,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// `static/<pool>/<ip>`.
    Static {
        /// The pool.
        pool: String,
        /// The address.
        address: IpAddr,
    },
    /// `sticky/<pool>/<namespace>/<name>`.
    Sticky {
        /// The pool.
        pool: String,
        /// The namespace.
        namespace: String,
        /// The name in that namespace.
        name: String,
    },
    /// `usage/<node>`.
    Usage(String),
}

impl EngineKeys {
    /// The default prefix.
    pub const PREFIX: &str = "/cnikit/v1/";

    /// Keys below a prefix, which begins and ends with a slash.
    ///
    /// # Errors
    /// It does not, or has an empty part, a control character, or more than 256 bytes.
    pub fn new(prefix: &str) -> Result<EngineKeys, Error> {
        let is_path = prefix.len() >= 2 && prefix.len() <= 256 && prefix.starts_with('/') && prefix.ends_with('/');
        if !is_path || prefix.contains("//") || prefix.contains(char::is_control) {
            return Err(Error::new(format!("{prefix:?} is not a prefix of keys"))
                .hint(format!("it begins and ends with a slash, as {:?} does", EngineKeys::PREFIX)));
        }
        Ok(EngineKeys { prefix: prefix.to_owned() })
    }

    /// The prefix of every key.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The key.
    pub fn of(&self, key: &KeyOfEngine) -> String {
        format!("{}{key}", self.prefix)
    }

    /// The prefix of all pools' definitions.
    pub fn pools(&self) -> String {
        format!("{}pools/", self.prefix)
    }

    /// The prefix of all selections by namespace.
    pub fn selections(&self) -> String {
        format!("{}select/", self.prefix)
    }

    /// The prefix of the blocks of all pools.
    pub fn blocks(&self) -> String {
        format!("{}blocks/", self.prefix)
    }

    /// The prefix of the blocks of a pool.
    pub fn blocks_of(&self, pool: &str) -> String {
        format!("{}blocks/{pool}/", self.prefix)
    }

    /// The prefix of all nodes.
    pub fn nodes(&self) -> String {
        format!("{}nodes/", self.prefix)
    }

    /// The prefix of all sessions.
    pub fn sessions(&self) -> String {
        format!("{}session/", self.prefix)
    }

    /// The prefix of the fences of a node.
    pub fn fences_of(&self, node: &str) -> String {
        format!("{}fence/{node}/", self.prefix)
    }

    /// The prefix of the static addresses of all pools.
    pub fn statics(&self) -> String {
        format!("{}static/", self.prefix)
    }

    /// The prefix of the static addresses of a pool.
    pub fn statics_of(&self, pool: &str) -> String {
        format!("{}static/{pool}/", self.prefix)
    }

    /// The prefix of the sticky names of all pools.
    pub fn stickies(&self) -> String {
        format!("{}sticky/", self.prefix)
    }

    /// The prefix of the use of all nodes' blocks.
    pub fn usages(&self) -> String {
        format!("{}usage/", self.prefix)
    }

    /// What a key names; `None` for a key that is not one of these.
    pub fn parse(&self, key: &str) -> Option<KeyOfEngine> {
        let (kind, rest) = key.strip_prefix(&self.prefix)?.split_once('/')?;
        let parsed = match kind {
            "pools" => KeyOfEngine::Pool(rest.to_owned()),
            "select" => KeyOfEngine::Select(rest.to_owned()),
            "nodes" => KeyOfEngine::Node(rest.to_owned()),
            "session" => KeyOfEngine::Session(rest.to_owned()),
            "usage" => KeyOfEngine::Usage(rest.to_owned()),
            "blocks" => {
                let (pool, cidr) = rest.split_once('/')?;
                KeyOfEngine::Block { pool: pool.to_owned(), cidr: cidr.parse().ok()? }
            }
            "fence" => {
                let (node, incarnation) = rest.split_once('/')?;
                KeyOfEngine::Fence { node: node.to_owned(), incarnation: incarnation.parse().ok()? }
            }
            "static" => {
                let (pool, address) = rest.split_once('/')?;
                KeyOfEngine::Static { pool: pool.to_owned(), address: address.parse().ok()? }
            }
            "sticky" => {
                let (pool, rest) = rest.split_once('/')?;
                let (namespace, name) = rest.split_once('/')?;
                KeyOfEngine::Sticky { pool: pool.to_owned(), namespace: namespace.to_owned(), name: name.to_owned() }
            }
            _ => return None,
        };
        // A key in another spelling, such as 10.08.0.0/26, is not that of the block.
        (self.of(&parsed) == key && parsed.is_valid()).then_some(parsed)
    }
}

impl KeyOfEngine {
    fn is_valid(&self) -> bool {
        let word = |text: &String| check_node_name(text).is_ok();
        match self {
            KeyOfEngine::Pool(name)
            | KeyOfEngine::Select(name)
            | KeyOfEngine::Node(name)
            | KeyOfEngine::Session(name)
            | KeyOfEngine::Usage(name)
            | KeyOfEngine::Fence { node: name, .. }
            | KeyOfEngine::Static { pool: name, .. } => word(name),
            KeyOfEngine::Block { pool, cidr } => word(pool) && cidr.ip() == cidr.network(),
            KeyOfEngine::Sticky { pool, namespace, name } => word(pool) && word(namespace) && word(name),
        }
    }
}

/// The key below the prefix.
impl fmt::Display for KeyOfEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyOfEngine::Pool(pool) => write!(f, "pools/{pool}"),
            KeyOfEngine::Select(namespace) => write!(f, "select/{namespace}"),
            KeyOfEngine::Block { pool, cidr } => write!(f, "blocks/{pool}/{cidr}"),
            KeyOfEngine::Node(node) => write!(f, "nodes/{node}"),
            KeyOfEngine::Session(node) => write!(f, "session/{node}"),
            KeyOfEngine::Usage(node) => write!(f, "usage/{node}"),
            KeyOfEngine::Fence { node, incarnation } => write!(f, "fence/{node}/{incarnation}"),
            KeyOfEngine::Static { pool, address } => write!(f, "static/{pool}/{address}"),
            KeyOfEngine::Sticky { pool, namespace, name } => write!(f, "sticky/{pool}/{namespace}/{name}"),
        }
    }
}

/// Checks the name of a namespace, as [`check_node_name`]. Those of Kubernetes are some of these.
///
/// # Errors
/// It is not one.
pub fn check_namespace(name: &str) -> Result<(), Error> {
    check_node_name(name).map_err(|_| {
        Error::new(format!("{name:?} is not the name of a namespace"))
            .hint("use up to 253 letters, digits, `_`, `.` and `-`, the first a letter or a digit")
    })
}

/// Checks the name of a node, a namespace or a name in one: letters, digits, `_`, `.` and `-`, the first a letter or a digit, at
/// most 253 bytes.
///
/// # Errors
/// It is not one.
pub fn check_node_name(name: &str) -> Result<(), Error> {
    if check_network_name(name).is_ok() && name.len() <= LONGEST_NODE {
        return Ok(());
    }
    Err(Error::new(format!("{name:?} is not the name of a node"))
        .hint("use up to 253 letters, digits, `_`, `.` and `-`, the first a letter or a digit"))
}

/// Parses the value of a key.
///
/// # Errors
/// It is longer than [`VALUE_LIMIT`], not JSON, or has not the members of the type.
pub fn read_record<T: DeserializeOwned>(value: &[u8]) -> Result<T, Error> {
    if value.len() > VALUE_LIMIT {
        return Err(Error::new(format!("it has {} bytes, and at most {VALUE_LIMIT} are allowed", value.len())));
    }
    let document = document::parse(value).map_err(|error| Error::new(format!("it is not JSON: {error}")))?;
    Ok(read(&document)?)
}

/// The value for a key.
///
/// # Errors
/// It would be longer than [`VALUE_LIMIT`].
pub fn write_record(record: &impl Serialize) -> Result<Vec<u8>, Error> {
    let text = serde_json::to_vec(record).map_err(|error| Error::new(error.to_string()))?;
    if text.len() > VALUE_LIMIT {
        return Err(Error::new(format!("it would have {} bytes, and at most {VALUE_LIMIT} are allowed", text.len())));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> EngineKeys {
        EngineKeys::new(EngineKeys::PREFIX).unwrap()
    }

    #[test]
    fn every_key_is_parsed_as_it_is_written() {
        let incarnation = Incarnation::of(0xabc);
        let all = [
            KeyOfEngine::Pool("blue".into()),
            KeyOfEngine::Select("kube-system".into()),
            KeyOfEngine::Block { pool: "blue".into(), cidr: "10.8.0.64/26".parse().unwrap() },
            KeyOfEngine::Block { pool: "blue".into(), cidr: "fd00::40/122".parse().unwrap() },
            KeyOfEngine::Node("node-1.example".into()),
            KeyOfEngine::Session("node-1.example".into()),
            KeyOfEngine::Fence { node: "node-1".into(), incarnation },
            KeyOfEngine::Static { pool: "blue".into(), address: "fd00::7".parse().unwrap() },
            KeyOfEngine::Sticky { pool: "blue".into(), namespace: "db".into(), name: "postgres-0".into() },
        ];
        for key in all {
            assert_eq!(keys().parse(&keys().of(&key)), Some(key.clone()), "{key}");
        }
        assert_eq!(keys().of(&KeyOfEngine::Pool("blue".into())), "/cnikit/v1/pools/blue");
    }

    #[test]
    fn a_key_of_another_program_is_none_of_ours() {
        for key in [
            "/cnikit/v1/blocks/blue/10.8.0.1/26",
            "/cnikit/v1/blocks/blue/10.8.0.0",
            "/cnikit/v1/blocks/blue/fd00:0::/122",
            "/cnikit/v1/blocks//10.8.0.0/26",
            "/cnikit/v1/blocks/-a/10.8.0.0/26",
            "/cnikit/v1/fence/n/ABC",
            "/cnikit/v1/sticky/blue/db",
            "/cnikit/v1/other/x",
            "/cnikit/v2/pools/blue",
            "/cnikit/v1/pools/",
            "",
        ] {
            assert_eq!(keys().parse(key), None, "{key}");
        }
    }

    #[test]
    fn a_prefix_is_a_path() {
        for bad in ["", "/", "cnikit/", "/cnikit", "//", "/a//b/", "/a\n/"] {
            assert!(EngineKeys::new(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn records_are_json_and_limited() {
        let record = BlockRecord { node: "n".into(), incarnation: Incarnation::of(1), network: "pods".into() };
        let text = write_record(&record).unwrap();
        assert_eq!(
            String::from_utf8_lossy(&text),
            r#"{"node":"n","incarnation":"00000000000000000000000000000001","network":"pods"}"#
        );
        assert_eq!(read_record::<BlockRecord>(&text).unwrap(), record);
        let long = FenceRecord { by: "x".repeat(VALUE_LIMIT), at: String::new(), why: String::new() };
        assert!(write_record(&long).is_err());
        assert!(read_record::<BlockRecord>(&vec![b' '; VALUE_LIMIT + 1]).unwrap_err().text.contains("at most 4096"));
        assert!(read_record::<BlockRecord>(br#"{"node":"n","incarnation":"1","network":"pods"}"#).is_err());
        assert!(read_record::<NodeRecord>(b"null").is_err());
    }

    #[test]
    fn incarnations_are_32_digits_in_lower_case() {
        let drawn = Incarnation::draw().unwrap();
        assert_eq!(drawn.to_string().parse::<Incarnation>().unwrap(), drawn);
        assert_ne!(drawn, Incarnation::draw().unwrap());
        for bad in ["", "0", "+0000000000000000000000000000001", "ABCDEFABCDEFABCDEFABCDEFABCDEFAB"] {
            assert!(bad.parse::<Incarnation>().is_err(), "{bad}");
        }
    }
}
