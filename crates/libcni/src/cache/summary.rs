//! Summaries of all cached attachments: each file is read once, and only the members that a summary has are parsed.
//!
//! There is a second parser for the files because of `cnitool list`: see `docs/adr/0019-summaries-of-the-cache.md`.

use std::array;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cnikit_store::Directory;
use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::cache::entry::{CacheMetadata, Entry, FORMAT, KIND, are_undamaged};
use crate::cache::file_name;
use crate::cache::record::{addresses_of, names_in};
use crate::cache::results::LIMIT;
use crate::{Cache, CachedAttachment, Error, State};

/// How many files are read before they are parsed: a checksum waits for its multiplication at each byte, and those of several files
/// do not wait for each other.
const AT_ONCE: usize = 4;

/// The most important data of one attachment; [`Cache::attachment`] returns all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AttachmentSummary {
    /// The network's name; empty if the file does not have it.
    pub network: String,
    /// The container's id.
    pub container_id: String,
    /// The interface's name.
    pub ifname: String,
    /// The path of the namespace; empty if none was given.
    pub netns: String,
    /// The addresses of the result, such as `10.1.0.2/24`.
    pub addresses: Vec<String>,
    /// The MAC of the container's interface, as it is in the result.
    pub mac: Option<String>,
    /// Its state.
    pub state: State,
    /// The time, the boot and the namespace of its ADD.
    pub metadata: CacheMetadata,
    /// When its file was last changed.
    pub written: SystemTime,
    /// Its file.
    pub file: PathBuf,
}

/// The members of a file that a summary has. Strings with escape sequences cannot be borrowed, and an unknown key may be another
/// spelling of a known one: such a file is parsed as a whole.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct EntryFields<'f> {
    kind: &'f str,
    #[serde(rename = "containerId")]
    container_id: &'f str,
    #[serde(rename = "ifName")]
    ifname: &'f str,
    #[serde(rename = "networkName")]
    network: &'f str,
    #[serde(default)]
    netns: &'f str,
    #[serde(borrow)]
    result: Option<ResultFields<'f>>,
    cnikit: Option<MetadataFields<'f>>,
    #[serde(rename = "config")]
    _config: Option<IgnoredAny>,
    #[serde(rename = "cniArgs")]
    _args: Option<IgnoredAny>,
    #[serde(rename = "capabilityArgs")]
    _capabilities: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct ResultFields<'f> {
    #[serde(borrow, default)]
    interfaces: Vec<InterfaceFields<'f>>,
    #[serde(borrow, default)]
    ips: Vec<IpFields<'f>>,
    /// Members of versions before 0.3.0.
    ip4: Option<IgnoredAny>,
    ip6: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct InterfaceFields<'f> {
    name: &'f str,
    #[serde(default)]
    mac: &'f str,
    #[serde(default)]
    sandbox: &'f str,
}

#[derive(Deserialize)]
struct IpFields<'f> {
    address: &'f str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct MetadataFields<'f> {
    version: Option<u64>,
    time: Option<u64>,
    boot_id: Option<&'f str>,
    netns_cookie: Option<u64>,
}

impl Cache {
    /// Summaries of all attachments, in the order of [`Cache::attachments`]. Whether a namespace still exists or a
    /// configuration can be used is not checked.
    ///
    /// # Errors
    /// As [`Cache::attachments`].
    pub fn list(&self) -> Result<Vec<AttachmentSummary>, Error> {
        let mut all = self.summaries(&self.results(), State::Attached)?;
        let finished = all.len();
        for intent in self.summaries(&self.intents(), State::Interrupted)? {
            let name = intent.file.file_name();
            if all[..finished].binary_search_by_key(&name, |one| one.file.file_name()).is_err() {
                all.push(intent);
            }
        }
        Ok(all)
    }

    fn summaries(&self, dir: &Path, state: State) -> Result<Vec<AttachmentSummary>, Error> {
        let Some(directory) = Directory::open_if_any(dir)? else { return Ok(Vec::new()) };
        let names = names_in(&directory)?;
        let mut all = Vec::with_capacity(names.len());
        let (groups, rest) = names.as_chunks::<AT_ONCE>();
        groups.iter().for_each(|group| read_summaries(&directory, group, &mut all));
        rest.iter().for_each(|name| read_summaries(&directory, array::from_ref(name), &mut all));
        for summary in &mut all {
            if summary.state == State::Attached && state == State::Interrupted {
                summary.state = self.state_of_intent(&summary.container_id);
            }
        }
        Ok(all)
    }
}

/// Reads the summaries of some files, and leaves out the files that are gone.
fn read_summaries<const N: usize>(directory: &Directory, names: &[OsString; N], all: &mut Vec<AttachmentSummary>) {
    let names = names.each_ref().map(|name| (name, name.to_str().unwrap_or_default()));
    let files = names.map(|(_, text)| match directory.read(text, LIMIT) {
        Ok(None) if !text.is_empty() => None,
        Ok(Some((bytes, facts))) => Some((bytes, UNIX_EPOCH + Duration::from_nanos(facts.changed))),
        Ok(None) | Err(_) => Some((Vec::new(), UNIX_EPOCH)),
    });
    let undamaged = are_undamaged(files.each_ref().map(|file| file.as_ref().map_or(&[][..], |(bytes, _)| bytes)));
    for ((file, (name, text)), is_undamaged) in files.into_iter().zip(names).zip(undamaged) {
        let Some((bytes, written)) = file else { continue };
        let fields = parse_fields(&bytes, text, written, is_undamaged);
        let mut summary = fields.unwrap_or_else(|| parse_whole(&bytes, text, written));
        summary.file = directory.path().join(name);
        all.push(summary);
    }
}

/// Parses a file in the format that upstream and we write; `None` for any other file, such as a damaged or an old one.
fn parse_fields(bytes: &[u8], name: &str, written: SystemTime, is_undamaged: bool) -> Option<AttachmentSummary> {
    // The whole text is validated as UTF-8 once, which is faster than string by string.
    let fields: EntryFields<'_> = serde_json::from_str(str::from_utf8(bytes).ok()?).ok()?;
    let is_own = file_name::is_of_parts(name, [fields.network, fields.container_id, fields.ifname]);
    if !is_own || fields.kind != KIND || (fields.cnikit.is_some() && !is_undamaged) {
        return None;
    }
    if fields.cnikit.as_ref().and_then(|member| member.version).is_some_and(|version| version > FORMAT) {
        return None;
    }
    let mut addresses = Vec::new();
    let mut mac = None;
    let mut netns = fields.netns;
    if let Some(result) = &fields.result {
        if result.ip4.is_some() || result.ip6.is_some() {
            return None;
        }
        for ip in &result.ips {
            addresses.push(ip.address.parse::<IpNetwork>().ok()?.to_string());
        }
        let own = result.interfaces.iter().find(|one| one.name == fields.ifname && !one.sandbox.is_empty());
        mac = own.and_then(|own| non_empty(own.mac));
        if let Some(own) = own
            && netns.is_empty()
        {
            netns = own.sandbox;
        }
    }
    Some(AttachmentSummary {
        network: fields.network.to_owned(),
        container_id: fields.container_id.to_owned(),
        ifname: fields.ifname.to_owned(),
        netns: netns.to_owned(),
        addresses,
        mac,
        state: State::Attached,
        metadata: fields.cnikit.as_ref().map(MetadataFields::to_metadata).unwrap_or_default(),
        written,
        file: PathBuf::new(),
    })
}

impl MetadataFields<'_> {
    fn to_metadata(&self) -> CacheMetadata {
        CacheMetadata {
            time: self.time.and_then(|seconds| UNIX_EPOCH.checked_add(Duration::from_secs(seconds))),
            boot_id: self.boot_id.map(str::to_owned),
            netns_cookie: self.netns_cookie,
        }
    }
}

/// Parses any file. A damaged one has a summary without content.
fn parse_whole(bytes: &[u8], name: &str, written: SystemTime) -> AttachmentSummary {
    let Entry { network, at, config, result, metadata, has_kind, .. } = Entry::of_file(bytes, name).unwrap_or_default();
    let cached = CachedAttachment {
        network,
        at,
        state: if has_kind { State::Attached } else { State::Unreadable },
        result,
        config,
        metadata,
        written,
        file: PathBuf::new(),
        problems: Vec::new(),
    };
    cached.summary()
}

fn non_empty(text: &str) -> Option<String> {
    if text.is_empty() { None } else { Some(text.to_owned()) }
}

impl CachedAttachment {
    /// The summary, which has neither configuration nor result.
    pub fn summary(&self) -> AttachmentSummary {
        let result = self.cni_result();
        let interfaces = result.as_ref().map(|result| result.interfaces.as_slice()).unwrap_or_default();
        let own = interfaces.iter().find(|one| one.name == self.at.ifname && !one.sandbox.is_empty());
        let mut netns = self.at.netns.clone();
        if let Some(own) = own
            && netns.is_empty()
        {
            netns.clone_from(&own.sandbox);
        }
        AttachmentSummary {
            network: self.network.clone(),
            container_id: self.at.container_id.clone(),
            ifname: self.at.ifname.clone(),
            netns,
            addresses: addresses_of(result.as_ref()),
            mac: own.and_then(|own| non_empty(&own.mac)),
            state: self.state,
            metadata: self.metadata.clone(),
            written: self.written,
            file: self.file.clone(),
        }
    }
}

impl AttachmentSummary {
    /// The time since its ADD, or since its file was written.
    pub fn age(&self) -> Duration {
        self.metadata.age(self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::entry::is_undamaged;

    const NAME: &str = "net-c1-eth0";
    const FILE: &str = r#"{"kind":"cniCacheV1","containerId":"c1","config":null,"ifName":"eth0","networkName":"net","netns":"/ns",
        "result":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01"},
        {"name":"eth0","mac":"02:00:00:00:00:02","sandbox":"/ns"}],"ips":[{"address":"10.1.0.2/24"}],"dns":{}}}"#;

    fn fields_of(bytes: &[u8]) -> Option<AttachmentSummary> {
        parse_fields(bytes, NAME, UNIX_EPOCH, is_undamaged(bytes))
    }

    fn both(text: &str) -> (Option<AttachmentSummary>, AttachmentSummary) {
        let bytes = text.as_bytes();
        (fields_of(bytes), parse_whole(bytes, NAME, UNIX_EPOCH))
    }

    #[test]
    fn both_parsers_return_the_same() {
        let whole = Entry::of_file(FILE.as_bytes(), NAME).unwrap();
        let metadata = CacheMetadata {
            time: UNIX_EPOCH.checked_add(Duration::from_secs(7)),
            boot_id: Some("b".into()),
            ..whole.metadata
        };
        let ours = String::from_utf8(Entry { metadata, ..whole }.to_bytes()).unwrap();
        for text in [FILE, &ours] {
            let (fields, whole) = both(text);
            assert_eq!(fields.as_ref(), Some(&whole), "{text}");
            assert_eq!(
                (whole.mac.as_deref(), &whole.addresses[..]),
                (Some("02:00:00:00:00:02"), &["10.1.0.2/24".into()][..])
            );
        }
    }

    #[test]
    fn a_file_in_another_format_is_parsed_as_a_whole() {
        let old = r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24"}}"#;
        let odd = [
            FILE.replace("containerId", "containerID"),
            FILE.replace(r#""ifName":"eth0""#, r#""ifName":"eth0","IFNAME":"eth0""#),
            FILE.replace(r#""c1""#, r#""c\u0031""#),
            FILE.split("\"result\":").next().unwrap().to_owned() + "\"result\":" + old + "}",
        ];
        for text in odd {
            let (fields, whole) = both(&text);
            assert_eq!((fields, whole.container_id.as_str(), whole.addresses.len()), (None, "c1", 1), "{text}");
        }
        for text in ["", "{", "{}", r#"{"kind":"other"}"#, &FILE.replace("cniCacheV1", "other")] {
            let (fields, whole) = both(text);
            assert_eq!((fields, whole.state), (None, State::Unreadable), "{text}");
        }
        assert_eq!(parse_fields(FILE.as_bytes(), "net-c1-eth1", UNIX_EPOCH, true), None);
    }

    #[test]
    fn of_a_later_version_nothing_is_read() {
        let metadata = CacheMetadata { time: Some(UNIX_EPOCH), ..CacheMetadata::default() };
        let entry = Entry { metadata, ..Entry::of_file(FILE.as_bytes(), NAME).unwrap() };
        let of = |version: &str| {
            let bytes = entry.to_bytes_with(&format!("\"version\":{version},"));
            (fields_of(&bytes), parse_whole(&bytes, NAME, UNIX_EPOCH))
        };
        let (fields, whole) = of("1");
        assert_eq!((fields.as_ref(), whole.state), (Some(&whole), State::Attached));
        let (fields, whole) = of("2");
        assert_eq!((fields, whole.state), (None, State::Unreadable));
    }

    #[test]
    fn the_parser_of_fields_accepts_no_damaged_file() {
        let ours = Entry::of_file(FILE.as_bytes(), NAME).unwrap().to_bytes();
        for at in 0..ours.len() {
            let mut flipped = ours.clone();
            flipped[at] ^= 1;
            let fields = fields_of(&flipped);
            let whole = Entry::of_file(&flipped, NAME).ok();
            assert!(fields.is_none() || whole.is_some(), "byte {at}");
        }
    }
}
