//! The content of a cache file: upstream's format, with one more member at its end.
//!
//! Upstream ignores members that it does not know, so it reads our files. Our member has the time, the boot and the network
//! namespace of the ADD, and ends with a checksum of everything before it, so that damage is detected.

use std::array;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64ct::{Base64, Encoding};
use cnikit_netns::Netns;
use cnikit_types::{NetConf, check_plugin_name};
use serde_json::{Map, Value, json};

use crate::cache::file_name;
use crate::{Attachment, NetworkList};

/// The value of `kind`: the name of the format.
pub(crate) const KIND: &str = "cniCacheV1";

/// Members of the format that a bare result does not have.
const MEMBERS: [&str; 4] = ["kind", "containerId", "networkName", "config"];

/// The member that only we write.
const OURS: &str = "cnikit";

/// The version of our member and of the file: the version that is written, and the newest that is read. Releases before the
/// version was written have version 1. Later versions end with the checksum too.
pub(crate) const FORMAT: u64 = 1;

/// The text before the checksum, its hexadecimal digits, and the text after it.
const SUM: &str = ",\"sum\":\"";
const DIGITS: usize = 16;
const CLOSING: &str = "\"}}";

/// The content of one file. Members that it does not have are empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Entry {
    pub(crate) network: String,
    pub(crate) at: Attachment,
    pub(crate) config: Option<Vec<u8>>,
    pub(crate) result: Option<Value>,
    pub(crate) metadata: CacheMetadata,
    /// Whether it has a `kind`. A file from before 2019 does not: it is a bare result.
    pub(crate) has_kind: bool,
    /// The version of the format. If it is above [`FORMAT`], a later release wrote the file, and nothing else of it is read.
    pub(crate) version: u64,
}

/// The time, the boot and the network namespace of an ADD. Upstream does not record them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheMetadata {
    /// The time, in whole seconds.
    pub time: Option<SystemTime>,
    /// The boot id; see random(4).
    pub boot_id: Option<String>,
    /// The kernel's cookie of the container's network namespace (`SO_NETNS_COOKIE`).
    pub netns_cookie: Option<u64>,
}

impl CacheMetadata {
    /// The metadata of an ADD that happens now, in the namespace at a path. What cannot be determined is left out.
    pub(crate) fn now(netns: &str) -> Self {
        let mut netns_cookie = None;
        if !netns.is_empty()
            && let Ok(opened) = Netns::open(netns)
        {
            netns_cookie = opened.cookie().ok();
        }
        Self { time: Some(SystemTime::now()), boot_id: cnikit_netns::boot_id().ok(), netns_cookie }
    }

    /// The time since the ADD; if that is not recorded, since the file was written.
    pub(crate) fn age(&self, written: SystemTime) -> Duration {
        SystemTime::now().duration_since(self.time.unwrap_or(written)).unwrap_or_default()
    }

    fn read(member: &Value) -> Self {
        let seconds = member.get("time").and_then(Value::as_u64);
        Self {
            time: seconds.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds))),
            boot_id: member.get("bootId").and_then(Value::as_str).map(str::to_owned),
            netns_cookie: member.get("netnsCookie").and_then(Value::as_u64),
        }
    }

    fn to_json(&self) -> Value {
        let since_epoch = self.time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        object([
            ("version", Some(FORMAT.into())),
            ("time", since_epoch.map(|since| since.as_secs().into())),
            ("bootId", self.boot_id.as_deref().map(Value::from)),
            ("netnsCookie", self.netns_cookie.map(Value::from)),
        ])
    }
}

impl Entry {
    pub(crate) fn new(
        list: &NetworkList,
        attachment: &Attachment,
        metadata: &CacheMetadata,
        result: Option<&Value>,
    ) -> Self {
        Self {
            network: list.name.clone(),
            at: attachment.clone(),
            config: Some(list.recorded()),
            result: result.cloned(),
            metadata: metadata.clone(),
            has_kind: true,
            version: FORMAT,
        }
    }

    /// The bytes of the file. As upstream does, empty members are left out.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let Attachment { container_id, netns, ifname, args, capabilities } = &self.at;
        let pairs: Vec<Value> = args.iter().map(|(key, value)| json!([key, value])).collect();
        let members = [
            ("kind", Some(KIND.into())),
            ("containerId", Some(container_id.as_str().into())),
            ("config", Some(self.config.as_deref().map(Base64::encode_string).into())),
            ("ifName", Some(ifname.as_str().into())),
            ("networkName", Some(self.network.as_str().into())),
            ("netns", (!netns.is_empty()).then(|| netns.as_str().into())),
            ("cniArgs", (!pairs.is_empty()).then_some(Value::Array(pairs))),
            ("capabilityArgs", (!capabilities.is_empty()).then(|| Value::Object(capabilities.clone()))),
            ("result", self.result.clone()),
            (OURS, Some(self.metadata.to_json())),
        ];
        let mut text = object(members).to_string();
        text.truncate(text.len() - "}}".len());
        let checksum = checksum(text.as_bytes());
        format!("{text}{SUM}{checksum:016x}{CLOSING}").into_bytes()
    }

    /// Parses the content of the file with this name. The error says why it cannot be trusted.
    pub(crate) fn of_file(bytes: &[u8], name: &str) -> Result<Self, String> {
        let entry = Self::read(bytes)?;
        let Attachment { container_id, ifname, .. } = &entry.at;
        if entry.network.is_empty() || container_id.is_empty() || ifname.is_empty() {
            return Ok(entry);
        }
        if file_name::is_of_parts(name, [&entry.network, container_id, ifname]) {
            return Ok(entry);
        }
        let own_name = file_name::from_parts(&entry.network, container_id, ifname);
        Err(format!("its content belongs to {own_name}, which is not its name"))
    }

    fn read(bytes: &[u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("it is empty".to_owned());
        }
        let conf = NetConf::parse(bytes).map_err(|error| format!("it is not a JSON object: {error}"))?;
        if conf.get(OURS).is_some() && !is_undamaged(bytes) {
            return Err("its checksum is wrong".to_owned());
        }
        let version = match conf.at(&[OURS, "version"]) {
            Some(version) => version.as_u64().ok_or("its version is not a number")?,
            None => FORMAT,
        };
        if version > FORMAT {
            return Ok(Self { version, ..Self::default() });
        }
        if conf.text("kind") != Some(KIND) {
            if let Some(member) = MEMBERS.iter().find(|member| conf.get(member).is_some()) {
                return Err(format!("it has `{member}`, and its `kind` is not {KIND}"));
            }
            // Before 2019 the file was the result itself.
            return Ok(Self { result: Some(Value::Object(conf.0)), version, ..Self::default() });
        }
        let text = |key: &str| conf.text(key).unwrap_or_default().to_owned();
        Ok(Self {
            network: text("networkName"),
            at: Attachment {
                container_id: text("containerId"),
                netns: text("netns"),
                ifname: text("ifName"),
                args: args(&conf),
                capabilities: conf.get("capabilityArgs").and_then(Value::as_object).cloned().unwrap_or_default(),
            },
            // Text that is not base64 is passed on as it is, so that its user gets an error.
            config: conf.text("config").map(|text| Base64::decode_vec(text).unwrap_or_else(|_| text.into())),
            result: conf.get("result").cloned(),
            metadata: conf.get(OURS).map(CacheMetadata::read).unwrap_or_default(),
            has_kind: true,
            version,
        })
    }

    /// Whether it belongs to this attachment, as far as the file has the names: a bare result does not, and other tools may leave
    /// members out.
    pub(crate) fn is_of(&self, network: &str, attachment: &Attachment) -> bool {
        let is_same = |found: &str, own: &str| found.is_empty() || found == own;
        is_same(&self.at.container_id, &attachment.container_id)
            && is_same(&self.at.ifname, &attachment.ifname)
            && is_same(&self.network, network)
    }
}

/// The network list that is recorded in a cache file.
pub(crate) fn recorded(config: &[u8], network: &str) -> Result<NetworkList, String> {
    std::str::from_utf8(config).map_err(|error| error.to_string())?;
    let list = NetworkList::parse(config).map_err(|error| error.to_string())?;
    for listed in &list.plugins {
        check_plugin_name(&listed.plugin)?;
    }
    if list.name == network { Ok(list) } else { Err("it belongs to another network".to_owned()) }
}

/// An object of the members that have a value.
fn object<const N: usize>(members: [(&str, Option<Value>); N]) -> Value {
    let mut object = Map::new();
    for (key, member) in members {
        if let Some(value) = member {
            object.insert(key.to_owned(), value);
        }
    }
    Value::Object(object)
}

/// `CNI_ARGS`, which is a list of pairs. Anything else in it is skipped.
fn args(conf: &NetConf) -> Vec<(String, String)> {
    let mut args = Vec::new();
    for pair in conf.get("cniArgs").and_then(Value::as_array).into_iter().flatten() {
        if let Some([Value::String(key), Value::String(value)]) = pair.as_array().map(Vec::as_slice) {
            args.push((key.clone(), value.clone()));
        }
    }
    args
}

/// Whether a file agrees with the checksum at its end.
pub(crate) fn is_undamaged(bytes: &[u8]) -> bool {
    are_undamaged([bytes])[0]
}

/// Whether each of the files agrees with the checksum at its end. For a file that has none, nothing is computed.
pub(crate) fn are_undamaged<const N: usize>(files: [&[u8]; N]) -> [bool; N] {
    let parts = files.map(split_checksum);
    let sums = checksums(parts.map(|part| part.map_or(&[][..], |(summed, _)| summed)));
    array::from_fn(|at| parts[at].is_some_and(|(_, digits)| digits.iter().copied().eq(hexadecimal(sums[at]))))
}

/// The part of a file before its checksum, and the checksum's digits; `None` if the file does not end with one.
fn split_checksum(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (rest, digits) = bytes.strip_suffix(CLOSING.as_bytes())?.split_last_chunk::<DIGITS>()?;
    Some((rest.strip_suffix(SUM.as_bytes())?, digits))
}

fn hexadecimal(sum: u64) -> impl Iterator<Item = u8> {
    (0..DIGITS).rev().map(move |digit| b"0123456789abcdef"[(sum >> (4 * digit) & 15) as usize])
}

/// FNV-1a of 64 bits: every change of a single byte changes it. It detects damage; it does not stop an attacker, who could write
/// a whole file.
fn checksum(bytes: &[u8]) -> u64 {
    checksums([bytes])[0]
}

/// The checksums of several texts, byte by byte in turn.
fn checksums<const N: usize>(texts: [&[u8]; N]) -> [u64; N] {
    let with = |sum: u64, byte: u8| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    let common = texts.map(<[u8]>::len).into_iter().min().unwrap_or_default();
    let mut sums = [0xcbf2_9ce4_8422_2325; N];
    let starts = texts.map(|text| &text[..common]);
    for at in 0..common {
        for (sum, text) in sums.iter_mut().zip(starts) {
            *sum = with(*sum, text[at]);
        }
    }
    array::from_fn(|at| texts[at][common..].iter().fold(sums[at], |sum, byte| with(sum, *byte)))
}

#[cfg(test)]
impl Entry {
    /// The bytes of the file with another text instead of its version, and a checksum of that.
    pub(crate) fn to_bytes_with(&self, version: &str) -> Vec<u8> {
        let text = String::from_utf8(self.to_bytes()).unwrap();
        let (before, _) = text.rsplit_once(SUM).unwrap();
        let summed = before.replace(r#""version":1,"#, version);
        format!("{summed}{SUM}{:016x}{CLOSING}", checksum(summed.as_bytes())).into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            network: "net".to_owned(),
            at: Attachment {
                container_id: "c1".to_owned(),
                netns: "/ns".to_owned(),
                ifname: "eth0".to_owned(),
                args: vec![("b".to_owned(), "1".to_owned()), ("a".to_owned(), String::new())],
                capabilities: Map::from_iter([("mac".to_owned(), json!("02:00:00:00:00:01"))]),
            },
            config: Some(b"{\"name\": \"net\"}".to_vec()),
            result: Some(json!({"cniVersion": "1.0.0", "x": 123_456_789_012_345_678_u64})),
            metadata: CacheMetadata {
                time: Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
                boot_id: Some("b".to_owned()),
                netns_cookie: Some(7),
            },
            has_kind: true,
            version: FORMAT,
        }
    }

    #[test]
    fn each_of_several_files_is_compared_with_its_own_checksum() {
        let whole = ["net", "longer network", "n", "another"].map(|network| {
            let network = network.to_owned();
            Entry { network, ..entry() }.to_bytes()
        });
        assert_eq!(are_undamaged(whole.each_ref().map(Vec::as_slice)), [true; 4]);
        for at in 0..whole.len() {
            for byte in 0..whole[at].len() {
                let mut files = whole.clone();
                files[at][byte] ^= 0x20;
                let expected = array::from_fn(|one| one != at);
                assert_eq!(are_undamaged(files.each_ref().map(Vec::as_slice)), expected, "byte {byte} of {at}");
            }
            let mut files = whole.clone();
            files[at].truncate(at);
            assert_eq!(are_undamaged(files.each_ref().map(Vec::as_slice)), array::from_fn(|one| one != at));
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_written_with_and_without_metadata() {
        for entry in [entry(), Entry { metadata: CacheMetadata::default(), ..entry() }] {
            assert_eq!(Entry::read(&entry.to_bytes()).unwrap(), entry);
        }
    }

    #[test]
    fn an_entry_without_a_version_is_read_and_of_a_later_version_the_version_alone() {
        assert_eq!(Entry::read(&entry().to_bytes_with("")).unwrap(), entry());
        let later = Entry::of_file(&entry().to_bytes_with(r#""version":2,"#), "any").unwrap();
        assert_eq!(later, Entry { version: 2, ..Entry::default() });
        assert_eq!(
            Entry::read(&entry().to_bytes_with(r#""version":"2","#)).unwrap_err(),
            "its version is not a number"
        );
    }

    #[test]
    fn changed_bytes_and_cut_files_are_detected() {
        let entry = entry();
        let bytes = entry.to_bytes();
        let without_metadata = Entry { metadata: CacheMetadata::default(), ..entry.clone() };
        let is_harmless = |read: &Entry| *read == entry || *read == without_metadata;
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                let read = Entry::read(&flipped);
                assert!(read.as_ref().map_or(true, is_harmless), "byte {at}, bit {bit}: {read:?}");
            }
            assert!(Entry::read(&bytes[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn a_file_of_upstream_and_a_bare_result_are_read() {
        let upstream = r#"{"kind":"cniCacheV1","containerId":"c1","config":null,"ifName":"eth0","networkName":"net"}"#;
        let read = Entry::read(upstream.as_bytes()).unwrap();
        assert_eq!((read.at.container_id.as_str(), read.config, read.result, read.has_kind), ("c1", None, None, true));
        let bare = Entry::read(br#"{"cniVersion":"1.0.0"}"#).unwrap();
        assert_eq!((bare.version, bare.has_kind), (FORMAT, false));
        assert_eq!(bare.result, Some(json!({"cniVersion": "1.0.0"})));
    }

    #[test]
    fn an_entry_has_the_name_of_its_file_as_far_as_it_has_names() {
        let bytes = entry().to_bytes();
        assert_eq!(Entry::of_file(&bytes, "net-c1-eth0").unwrap(), entry());
        assert_eq!(
            Entry::of_file(&bytes, "net-c1-eth1").unwrap_err(),
            "its content belongs to net-c1-eth0, which is not its name"
        );
        let named = |network: &str, container_id: &str, ifname: &str| {
            let mut entry = entry();
            entry.network = network.to_owned();
            entry.at.container_id = container_id.to_owned();
            entry.at.ifname = ifname.to_owned();
            entry
        };
        for partial in [named("", "c1", "eth0"), named("net", "", "eth0"), named("net", "c1", "")] {
            assert_eq!(Entry::of_file(&partial.to_bytes(), "any").unwrap(), partial);
            assert!(partial.is_of("net", &entry().at));
        }
        let at = entry().at;
        for other in [named("net2", "c1", "eth0"), named("net", "c2", "eth0"), named("net", "c1", "eth1")] {
            assert!(!other.is_of("net", &at));
        }
    }

    #[test]
    fn metadata_has_the_namespace_if_there_is_one() {
        let cookie = Netns::open("/proc/self/ns/net").unwrap().cookie().ok();
        let now = CacheMetadata::now("/proc/self/ns/net");
        assert_eq!(now.netns_cookie, cookie);
        assert!(now.time.is_some() && now.boot_id.is_some());
        assert_eq!(CacheMetadata::now("").netns_cookie, None);
        assert_eq!(CacheMetadata::now("/nonexistent").netns_cookie, None);
    }

    #[test]
    fn the_age_is_that_of_the_add_or_of_the_file() {
        let hour = Duration::from_hours(1);
        let ago = |hours: u32| SystemTime::now() - hour * hours;
        let of_add = CacheMetadata { time: Some(ago(2)), ..CacheMetadata::default() };
        assert_eq!(of_add.age(ago(1)).as_secs() / 3600, 2);
        assert_eq!(CacheMetadata::default().age(ago(1)).as_secs() / 3600, 1);
        assert_eq!(CacheMetadata::default().age(SystemTime::now() + hour), Duration::ZERO);
    }
}
