//! The content of a file that tells of one attachment: the reference's form, with a member of our own behind its.
//!
//! The reference passes over what it does not know, so it reads what we write. Our member says when and in which boot the
//! file was written and which namespace it was, and ends with a checksum of all that stands before it: a file that was
//! damaged is told from one that is only strange.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use base64ct::{Base64, Encoding};
use cnikit_types::{NetConf, check_plugin_name};
use serde_json::{Map, Value, json};

use crate::cache::file_name;
use crate::{Attachment, NetworkList};

/// The mark of the form that a file is in.
pub(crate) const KIND: &str = "cniCacheV1";

/// Members that a bare result has none of.
const MARKS: [&str; 4] = ["kind", "containerId", "networkName", "config"];

/// The member that only we write.
const OURS: &str = "cnikit";

/// The version of our member and of the file, which is written and is the newest that is read. Releases that wrote none wrote
/// version 1. Each later version ends with the checksum too.
pub(crate) const FORMAT: u64 = 1;

/// What stands before the checksum.
const SUM: &str = ",\"sum\":\"";

/// What one file says. What it does not say is empty.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Entry {
    pub(crate) network: String,
    pub(crate) at: Attachment,
    pub(crate) config: Option<Vec<u8>>,
    pub(crate) result: Option<Value>,
    pub(crate) note: CacheMetadata,
    /// Whether it bears the mark of its form; a file from before 2019 is a bare result and says nothing else.
    pub(crate) marked: bool,
    /// The version of the format. If it is above [`FORMAT`], a later release wrote the file, and nothing else of it is read.
    pub(crate) version: u64,
}

/// Where and when an entry was written; the reference says none of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CacheMetadata {
    /// When, in whole seconds.
    pub time: Option<SystemTime>,
    /// In which boot; see random(4).
    pub boot_id: Option<String>,
    /// The kernel's number of the container's network namespace (`SO_NETNS_COOKIE`).
    pub netns_cookie: Option<u64>,
}

impl CacheMetadata {
    /// Of this moment, about the namespace at a path; what cannot be told is left out.
    pub(crate) fn now(netns: &str) -> Self {
        let opened = Some(netns).filter(|path| !path.is_empty()).and_then(|path| cnikit_netns::Netns::open(path).ok());
        Self {
            time: Some(SystemTime::now()),
            boot_id: cnikit_netns::boot_id().ok(),
            netns_cookie: opened.and_then(|netns| netns.cookie().ok()),
        }
    }

    /// How long ago that was, as far as the clock tells; of a file that says no time, since it was written.
    pub(crate) fn age(&self, written: SystemTime) -> Duration {
        SystemTime::now().duration_since(self.time.unwrap_or(written)).unwrap_or_default()
    }

    fn read(member: &Value) -> Self {
        let text = |key: &str| member.get(key).and_then(Value::as_str).map(str::to_owned);
        let number = |key: &str| member.get(key).and_then(Value::as_u64);
        let time = number("time").and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds)));
        Self { time, boot_id: text("bootId"), netns_cookie: number("netnsCookie") }
    }

    fn members(&self) -> Value {
        let seconds = self.time.and_then(|time| time.duration_since(UNIX_EPOCH).ok()).map(|since| since.as_secs());
        let members = [
            ("version", Some(FORMAT.into())),
            ("time", seconds.map(Value::from)),
            ("bootId", self.boot_id.as_deref().map(Value::from)),
            ("netnsCookie", self.netns_cookie.map(Value::from)),
        ];
        object(members)
    }
}

impl Entry {
    /// What is to be written about an attachment now.
    pub(crate) fn new(list: &NetworkList, at: &Attachment, note: &CacheMetadata, result: Option<&Value>) -> Self {
        Self {
            network: list.name.clone(),
            at: at.clone(),
            config: Some(list.recorded()),
            result: result.cloned(),
            note: note.clone(),
            marked: true,
            version: FORMAT,
        }
    }

    /// As a file has it. The reference leaves out what is empty; so do we.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let at = &self.at;
        let args: Vec<Value> = at.args.iter().map(|(key, value)| json!([key, value])).collect();
        let members = [
            ("kind", Some(KIND.into())),
            ("containerId", Some(at.container_id.as_str().into())),
            ("config", Some(self.config.as_deref().map(Base64::encode_string).into())),
            ("ifName", Some(at.ifname.as_str().into())),
            ("networkName", Some(self.network.as_str().into())),
            ("netns", (!at.netns.is_empty()).then(|| at.netns.as_str().into())),
            ("cniArgs", (!args.is_empty()).then_some(Value::Array(args))),
            ("capabilityArgs", (!at.capabilities.is_empty()).then(|| Value::Object(at.capabilities.clone()))),
            ("result", self.result.clone()),
            (OURS, Some(self.note.members())),
        ];
        let text = object(members).to_string();
        let summed = &text[..text.len() - "}}".len()];
        format!("{summed}{SUM}{:016x}\"}}}}", sum(summed.as_bytes())).into_bytes()
    }

    /// What a file of this name says; an error says why that cannot be told or trusted.
    pub(crate) fn of_file(bytes: &[u8], name: &str) -> Result<Self, String> {
        let entry = Self::read(bytes)?;
        let said = [&entry.network, &entry.at.container_id, &entry.at.ifname];
        let own = file_name::from_parts(&entry.network, &entry.at.container_id, &entry.at.ifname);
        if own == name || said.iter().any(|said| said.is_empty()) {
            return Ok(entry);
        }
        Err(format!("it tells of {own}, which is not its name"))
    }

    fn read(bytes: &[u8]) -> Result<Self, String> {
        if bytes.is_empty() {
            return Err("it is empty".to_owned());
        }
        let conf = NetConf::parse(bytes).map_err(|error| format!("it is not a JSON object: {error}"))?;
        if conf.get(OURS).is_some() && !is_whole(bytes) {
            return Err("it does not agree with its own checksum".to_owned());
        }
        let version = match conf.at(&[OURS, "version"]) {
            Some(version) => version.as_u64().ok_or("its version is not a number")?,
            None => FORMAT,
        };
        if version > FORMAT {
            return Ok(Self { version, ..Self::default() });
        }
        if conf.text("kind") != Some(KIND) {
            if let Some(mark) = MARKS.iter().find(|mark| conf.get(mark).is_some()) {
                return Err(format!("it has `{mark}`, and its `kind` is not {KIND}"));
            }
            // Before 2019 the file was the result itself.
            return Ok(Self { result: Some(Value::Object(conf.0)), version, ..Self::default() });
        }
        let text = |key: &str| conf.text(key).unwrap_or_default().to_owned();
        let at = Attachment {
            container_id: text("containerId"),
            netns: text("netns"),
            ifname: text("ifName"),
            args: conf.get("cniArgs").and_then(Value::as_array).into_iter().flatten().filter_map(pair).collect(),
            capabilities: conf.get("capabilityArgs").and_then(Value::as_object).cloned().unwrap_or_default(),
        };
        Ok(Self {
            network: text("networkName"),
            at,
            // What is none stays as it is, so that whoever wants to use it is told.
            config: conf.text("config").map(|text| Base64::decode_vec(text).unwrap_or_else(|_| text.into())),
            result: conf.get("result").cloned(),
            note: conf.get(OURS).map(CacheMetadata::read).unwrap_or_default(),
            marked: true,
            version,
        })
    }

    /// Whether it is this attachment's. An old one does not say, and one of another tool may say less.
    pub(crate) fn is_of(&self, network: &str, at: &Attachment) -> bool {
        let said = [
            (self.at.container_id.as_str(), at.container_id.as_str()),
            (&self.at.ifname, &at.ifname),
            (&self.network, network),
        ];
        said.into_iter().all(|(found, own)| found.is_empty() || found == own)
    }
}

/// The network as it was when somebody was attached to it, out of its kept configuration.
pub(crate) fn recorded(config: &[u8], network: &str) -> Result<NetworkList, String> {
    std::str::from_utf8(config).map_err(|error| error.to_string())?;
    let list = NetworkList::parse(config).map_err(|error| error.to_string())?;
    list.plugins.iter().try_for_each(|listed| check_plugin_name(&listed.plugin))?;
    if list.name == network { Ok(list) } else { Err("it is another network's".to_owned()) }
}

fn object<const N: usize>(members: [(&str, Option<Value>); N]) -> Value {
    let present = members.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?)));
    Value::Object(present.collect::<Map<String, Value>>())
}

/// One of `CNI_ARGS`, as a list of two texts.
fn pair(value: &Value) -> Option<(String, String)> {
    let [key, value] = value.as_array()?.as_slice() else { return None };
    Some((key.as_str()?.to_owned(), value.as_str()?.to_owned()))
}

/// Whether a file agrees with the checksum at its end.
pub(crate) fn is_whole(bytes: &[u8]) -> bool {
    let tail = SUM.len() + 16 + "\"}}".len();
    let Some((summed, end)) = bytes.len().checked_sub(tail).map(|at| bytes.split_at(at)) else { return false };
    end == format!("{SUM}{:016x}\"}}}}", sum(summed)).as_bytes()
}

/// FNV-1a of 64 bits: no change of a single byte leaves it as it is. It is against damage, not against an enemy, who could
/// write a file of his own.
fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
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
            note: CacheMetadata {
                time: Some(UNIX_EPOCH + Duration::from_secs(1_700_000_000)),
                boot_id: Some("b".to_owned()),
                netns_cookie: Some(7),
            },
            marked: true,
            version: FORMAT,
        }
    }

    #[test]
    fn what_is_written_is_read_again_with_and_without_a_note() {
        for entry in [entry(), Entry { note: CacheMetadata::default(), ..entry() }] {
            assert_eq!(Entry::read(&entry.to_bytes()).unwrap(), entry);
        }
    }

    /// The text of an entry with another text in the place of its version, and a checksum that fits.
    fn with_version(entry: &Entry, version: &str) -> Vec<u8> {
        let text = String::from_utf8(entry.to_bytes()).unwrap();
        let (summed, _) = text.rsplit_once(SUM).unwrap();
        let summed = summed.replace(r#""version":1,"#, version);
        format!("{summed}{SUM}{:016x}\"}}}}", sum(summed.as_bytes())).into_bytes()
    }

    #[test]
    fn an_entry_without_a_version_is_read_and_of_a_later_version_the_version_alone() {
        assert_eq!(Entry::read(&with_version(&entry(), "")).unwrap(), entry());
        let later = Entry::of_file(&with_version(&entry(), r#""version":2,"#), "any").unwrap();
        assert_eq!(later, Entry { version: 2, ..Entry::default() });
        assert_eq!(
            Entry::read(&with_version(&entry(), r#""version":"2","#)).unwrap_err(),
            "its version is not a number"
        );
    }

    #[test]
    fn no_change_of_a_byte_and_no_cut_goes_for_the_entry_itself() {
        let (entry, bytes) = (entry(), entry().to_bytes());
        let note = CacheMetadata::default();
        let is_harmless = |read: &Entry| *read == entry || *read == Entry { note: note.clone(), ..entry.clone() };
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
    fn a_file_of_the_reference_is_read_and_a_bare_result_is_one() {
        let theirs = r#"{"kind":"cniCacheV1","containerId":"c1","config":null,"ifName":"eth0","networkName":"net"}"#;
        let read = Entry::read(theirs.as_bytes()).unwrap();
        assert_eq!((read.at.container_id.as_str(), read.config, read.result, read.marked), ("c1", None, None, true));
        let bare = Entry::read(br#"{"cniVersion":"1.0.0"}"#).unwrap();
        assert_eq!((bare.result, bare.marked), (Some(json!({"cniVersion": "1.0.0"})), false));
    }
}
