//! Keys as objects of the Kubernetes API: their kinds, names and specs.

use std::fmt::Write;
use std::net::IpAddr;

use cnikit_pool::{EngineKeys, Incarnation, KeyOfEngine};
use cnikit_pool_protocol::{FoundValue, StoredValue};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::super::EngineError;

/// The group and the version of the kinds.
pub const GROUP: &str = "pool.cnikit";
pub(super) const VERSION: &str = "v1";
/// What a part of a name begins with that is a hash.
const HASHED: &str = "x--";

/// A kind of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kind {
    pub(super) kind: &'static str,
    pub(super) plural: &'static str,
}

macro_rules! kinds {
    ($($name:ident $kind:literal $plural:literal,)*) => {
        $(pub(super) const $name: Kind = Kind { kind: $kind, plural: $plural };)*
    };
}

kinds! {
    POOLS "Pool" "pools",
    SELECTIONS "NamespacePool" "namespacepools",
    BLOCKS "Block" "blocks",
    STATICS "StaticAddress" "staticaddresses",
    NAMES "StickyName" "stickynames",
    NODES "PoolNode" "poolnodes",
    SESSIONS "NodeSession" "nodesessions",
    HEARTBEATS "NodeHeartbeat" "nodeheartbeats",
    FENCES "NodeFence" "nodefences",
    USAGES "NodeUsage" "nodeusages",
    SIGHTINGS "NodeSighting" "nodesightings",
}

/// The kind of a key.
pub(super) fn kind_of(key: &KeyOfEngine) -> Kind {
    match key {
        KeyOfEngine::Pool(_) => POOLS,
        KeyOfEngine::Select(_) => SELECTIONS,
        KeyOfEngine::Block { .. } => BLOCKS,
        KeyOfEngine::Static { .. } => STATICS,
        KeyOfEngine::Sticky { .. } => NAMES,
        KeyOfEngine::Node(_) => NODES,
        KeyOfEngine::Session(_) => SESSIONS,
        KeyOfEngine::Fence { .. } => FENCES,
        KeyOfEngine::Usage(_) => USAGES,
    }
}

impl Kind {
    /// The path of all its objects.
    pub(super) fn path(self) -> String {
        format!("/apis/{GROUP}/{VERSION}/{}", self.plural)
    }

    /// The path of one object.
    pub(super) fn path_of(self, name: &str) -> String {
        format!("{}/{name}", self.path())
    }
}

/// The name of the object of a key. A key has one name, and no two keys have the same: what is no DNS label, or begins as a hash
/// does, is replaced by its hash.
pub(super) fn object_name(key: &KeyOfEngine) -> String {
    match key {
        KeyOfEngine::Pool(name) => label(name),
        KeyOfEngine::Select(name) | KeyOfEngine::Node(name) | KeyOfEngine::Session(name) | KeyOfEngine::Usage(name) => {
            node_name(name)
        }
        KeyOfEngine::Block { pool, cidr } => format!("{}.{}-{}", label(pool), address_label(cidr.ip()), cidr.prefix()),
        KeyOfEngine::Static { pool, address } => format!("{}.{}", label(pool), address_label(*address)),
        KeyOfEngine::Sticky { pool, namespace, name } => {
            format!("{}.{}.{}", label(pool), label(namespace), label(name))
        }
        KeyOfEngine::Fence { node, incarnation } => fence_name(node, *incarnation),
    }
}

fn fence_name(node: &str, incarnation: Incarnation) -> String {
    // The incarnation has 32 characters, and a name at most 253.
    let node = node_name(node);
    if node.len() > 220 { format!("{}.{incarnation}", hashed(&node)) } else { format!("{node}.{incarnation}") }
}

fn is_label(text: &str) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    text.len() <= 63
        && bytes.first().is_some_and(is_letter)
        && bytes.last().is_some_and(is_letter)
        && bytes.iter().all(|byte| is_letter(byte) || *byte == b'-')
        && !text.starts_with(HASHED)
}

fn hashed(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    let mut name = HASHED.to_owned();
    for byte in &digest[..16] {
        let _ = write!(name, "{byte:02x}");
    }
    name
}

fn label(text: &str) -> String {
    if is_label(text) { text.to_owned() } else { hashed(text) }
}

/// The name of a node or a namespace, which may have dots.
pub(super) fn node_name(text: &str) -> String {
    if text.len() <= 253 && text.split('.').all(is_label) { text.to_owned() } else { hashed(text) }
}

fn address_label(address: IpAddr) -> String {
    match address {
        IpAddr::V4(address) => address.octets().map(|octet| octet.to_string()).join("-"),
        IpAddr::V6(address) => address.segments().map(|segment| format!("{segment:x}")).join("-"),
    }
}

/// The object of a key. Each write has a number of its own, because the API server writes nothing, and gives no new revision, if
/// an object is replaced by the same.
pub(super) fn object_of(key: &KeyOfEngine, value: &[u8], is_pending: bool) -> Result<Value, EngineError> {
    let value = match serde_json::from_slice::<Value>(value) {
        Ok(value @ Value::Object(_)) => value,
        _ => Value::String(
            String::from_utf8(value.to_vec())
                .map_err(|_| EngineError { text: format!("the value of {key} is not UTF-8"), is_open: false })?,
        ),
    };
    let mut spec = json!({"key": key.to_string(), "value": value, "write": draw()?});
    if is_pending {
        spec["pending"] = Value::Bool(true);
    }
    Ok(object(kind_of(key), &object_name(key), &spec))
}

pub(super) fn object(kind: Kind, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": format!("{GROUP}/{VERSION}"),
        "kind": kind.kind,
        "metadata": {"name": name},
        "spec": spec,
    })
}

/// A number that no other write has.
pub(super) fn draw() -> Result<String, EngineError> {
    Incarnation::draw()
        .map(|number| number.to_string())
        .map_err(|error| EngineError { text: error.to_string(), is_open: false })
}

/// The revision of an object. The API server's are those of its etcd: they grow with each write of any object.
pub(super) fn revision_of(object: &Value) -> Result<i64, EngineError> {
    let text = object["metadata"]["resourceVersion"].as_str().unwrap_or_default();
    match text.parse() {
        Ok(revision) if revision > 0 => Ok(revision),
        _ => Err(EngineError { text: format!("the resourceVersion {text:?} is not a number"), is_open: true }),
    }
}

/// The key and the value of an object. The key is `None` if the object has not the name of its key: no key is at that place.
pub(super) fn parse_object(
    keys: &EngineKeys,
    object: &Value,
) -> Result<(Option<KeyOfEngine>, FoundValue), EngineError> {
    let spec = &object["spec"];
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let text = spec["key"].as_str().unwrap_or_default();
    let key = keys.parse(&format!("{}{text}", keys.prefix())).filter(|key| object_name(key) == name);
    let value = match &spec["value"] {
        Value::String(text) => text.clone().into_bytes(),
        value => value.to_string().into_bytes(),
    };
    // What is under another key's name is no record of that key.
    let value = if key.is_some() { value } else { b"null".to_vec() };
    let stored = StoredValue { value, revision: revision_of(object)? };
    Ok((key, FoundValue { stored, is_pending: spec["pending"] == Value::Bool(true) }))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn sticky(pool: &str, namespace: &str, name: &str) -> KeyOfEngine {
        KeyOfEngine::Sticky { pool: pool.into(), namespace: namespace.into(), name: name.into() }
    }

    fn block(pool: &str, cidr: &str) -> KeyOfEngine {
        KeyOfEngine::Block { pool: pool.into(), cidr: cidr.parse().unwrap() }
    }

    #[test]
    fn every_key_has_a_name_of_its_own() {
        let incarnation = Incarnation::of(7);
        let long = "n".repeat(253);
        let all = [
            (KeyOfEngine::Pool("blue".into()), "blue"),
            (KeyOfEngine::Node("node-1.example.com".into()), "node-1.example.com"),
            (block("blue", "10.8.0.64/26"), "blue.10-8-0-64-26"),
            (block("blue", "fd00:8::/64"), "blue.fd00-8-0-0-0-0-0-0-64"),
            (sticky("blue", "db", "pg-0"), "blue.db.pg-0"),
            (KeyOfEngine::Fence { node: "node-1".into(), incarnation }, "node-1.00000000000000000000000000000007"),
        ];
        for (key, name) in all {
            assert_eq!(object_name(&key), name);
        }
        let odd = [
            KeyOfEngine::Pool("Blue".into()),
            KeyOfEngine::Pool("blue.".into()),
            KeyOfEngine::Pool("blue_".into()),
            KeyOfEngine::Pool(object_name(&KeyOfEngine::Pool("Blue".into()))),
            sticky("blue", "db", "a.b"),
            sticky("blue", "db.a", "b"),
            sticky(&long, &long, &long),
            KeyOfEngine::Fence { node: long.clone(), incarnation },
            KeyOfEngine::Node(long),
        ];
        let mut seen = BTreeMap::new();
        for key in odd {
            let name = object_name(&key);
            assert!(
                name.len() <= 253
                    && name.split('.').all(|part| {
                        part.len() <= 63
                            && part
                                .bytes()
                                .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
                    }),
                "{name}"
            );
            assert_eq!(seen.insert((kind_of(&key).plural, name), key.clone()), None, "{key}");
        }
    }

    #[test]
    fn an_object_under_another_keys_name_is_no_record() {
        let keys = EngineKeys::new(EngineKeys::PREFIX).unwrap();
        let key = block("blue", "10.8.0.64/26");
        let mut object = object_of(&key, br#"{"node":"a"}"#, false).unwrap();
        object["metadata"]["resourceVersion"] = json!("12");
        let (parsed, found) = parse_object(&keys, &object).unwrap();
        assert_eq!((parsed, found.stored.revision), (Some(key.clone()), 12));
        assert_eq!(found.stored.value, br#"{"node":"a"}"#);
        assert!(!found.is_pending);
        object["metadata"]["name"] = json!("blue.10-8-0-0-26");
        let (parsed, found) = parse_object(&keys, &object).unwrap();
        assert_eq!((parsed, found.stored.value), (None, b"null".to_vec()));
        for version in ["", "0", "x", "-1"] {
            object["metadata"]["resourceVersion"] = json!(version);
            assert!(parse_object(&keys, &object).is_err(), "{version}");
        }
        let text = object_of(&KeyOfEngine::Select("db".into()), b"blue", true).unwrap();
        assert_eq!((&text["spec"]["value"], &text["spec"]["pending"]), (&json!("blue"), &json!(true)));
        let again = object_of(&KeyOfEngine::Select("db".into()), b"blue", true).unwrap();
        assert_ne!(text["spec"]["write"], again["spec"]["write"]);
    }
}
