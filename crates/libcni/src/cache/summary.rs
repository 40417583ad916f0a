//! What is known of every attachment, for who looks through thousands: each file is read once, and no more of it than is shown.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::num::NonZero;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cnikit_store::Directory;
use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::cache::entry::{CacheMetadata, Entry, FORMAT, KIND, is_whole};
use crate::cache::file_name;
use crate::cache::record::names_in;
use crate::cache::results::LIMIT;
use crate::{Cache, CachedAttachment, Error, State};

/// One attachment at a glance; [`Cache::attachment`] tells all of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttachmentSummary {
    /// The network's name; empty if the file does not say.
    pub network: String,
    /// The container's id.
    pub container_id: String,
    /// The interface's name.
    pub ifname: String,
    /// The path of the namespace; empty if none was given.
    pub netns: String,
    /// The addresses of the result, such as `10.1.0.2/24`.
    pub addresses: Vec<String>,
    /// The MAC of the container's end, as the result says it.
    pub mac: Option<String>,
    /// How far it has come.
    pub state: State,
    /// When, in which boot, in which namespace.
    pub note: CacheMetadata,
    /// When its file was last changed.
    pub written: SystemTime,
    /// Its file.
    pub file: PathBuf,
}

/// So many files are worth a thread: to start one takes as long as some ten of them.
const MANY: usize = 256;

/// As much of a file as a glimpse shows. A text with an escape in it cannot be borrowed, and a key that nobody writes may be
/// another spelling of one: such a file is read as a whole.
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
    result: Option<Answered<'f>>,
    cnikit: Option<Noted<'f>>,
    #[serde(rename = "config")]
    _config: Option<IgnoredAny>,
    #[serde(rename = "cniArgs")]
    _args: Option<IgnoredAny>,
    #[serde(rename = "capabilityArgs")]
    _capabilities: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Answered<'f> {
    #[serde(borrow, default)]
    interfaces: Vec<Link<'f>>,
    #[serde(borrow, default)]
    ips: Vec<Address<'f>>,
    /// Of versions before 0.3.0.
    ip4: Option<IgnoredAny>,
    ip6: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Link<'f> {
    name: &'f str,
    #[serde(default)]
    mac: &'f str,
    #[serde(default)]
    sandbox: &'f str,
}

#[derive(Deserialize)]
struct Address<'f> {
    address: &'f str,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Noted<'f> {
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
        let mut all = self.glimpses(&self.results(), State::Attached)?;
        let begun = self.glimpses(&self.intents(), State::Interrupted)?;
        let done: BTreeSet<OsString> = all.iter().filter_map(|one| Some(one.file.file_name()?.to_owned())).collect();
        all.extend(begun.into_iter().filter(|one| one.file.file_name().is_none_or(|name| !done.contains(name))));
        Ok(all)
    }

    fn glimpses(&self, dir: &Path, state: State) -> Result<Vec<AttachmentSummary>, Error> {
        let Some(directory) = Directory::open_if_any(dir)? else { return Ok(Vec::new()) };
        let names = names_in(&directory)?;
        let glimpse = |name: &OsString| {
            let mut one = glimpse_of(&directory, name)?;
            one.file = dir.join(name);
            if one.state == State::Attached && state == State::Interrupted {
                one.state = self.state_of_begun(&one.container_id);
            }
            Some(one)
        };
        Ok(on_each_processor(&names, glimpse))
    }
}

/// What a function says of each, in their order; of many, every processor takes its share.
fn on_each_processor<T: Sync, R: Send>(all: &[T], of: impl Fn(&T) -> Option<R> + Sync) -> Vec<R> {
    let processors = if all.len() < MANY { 1 } else { thread::available_parallelism().map_or(1, NonZero::get) };
    let share = |part: &[T]| part.iter().filter_map(&of).collect::<Vec<R>>();
    let mut parts = all.chunks(all.len().div_ceil(processors).max(1));
    let own = parts.next().unwrap_or_default();
    thread::scope(|scope| {
        let others: Vec<_> = parts.map(|part| scope.spawn(|| share(part))).collect();
        let mut said = share(own);
        others.into_iter().for_each(|other| said.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic))));
        said
    })
}

/// `None` if the file is gone by now.
fn glimpse_of(directory: &Directory, name: &OsString) -> Option<AttachmentSummary> {
    let name = name.to_str().unwrap_or_default();
    let (bytes, written) = match directory.read(name, LIMIT) {
        Ok(None) if !name.is_empty() => return None,
        Ok(Some((bytes, facts))) => (bytes, UNIX_EPOCH + Duration::from_nanos(facts.changed)),
        Ok(None) | Err(_) => (Vec::new(), UNIX_EPOCH),
    };
    Some(quickly(&bytes, name, written).unwrap_or_else(|| wholly(&bytes, name, written)))
}

/// A file in the form in which it is written, but for its path; `None` for any other, be it damaged or only older.
fn quickly(bytes: &[u8], name: &str, written: SystemTime) -> Option<AttachmentSummary> {
    // Looked through as text once, not string by string.
    let found: EntryFields<'_> = serde_json::from_str(str::from_utf8(bytes).ok()?).ok()?;
    let own = file_name::from_parts(found.network, found.container_id, found.ifname);
    if own != name || found.kind != KIND || (found.cnikit.is_some() && !is_whole(bytes)) {
        return None;
    }
    if found.cnikit.as_ref().and_then(|noted| noted.version).is_some_and(|version| version > FORMAT) {
        return None;
    }
    let (mut addresses, mut mac) = (Vec::new(), None);
    if let Some(result) = &found.result {
        if result.ip4.is_some() || result.ip6.is_some() {
            return None;
        }
        for ip in &result.ips {
            addresses.push(ip.address.parse::<IpNetwork>().ok()?.to_string());
        }
        let own = result.interfaces.iter().find(|one| one.name == found.ifname && !one.sandbox.is_empty());
        mac = own.map(|own| own.mac.to_owned()).filter(|mac| !mac.is_empty());
    }
    let noted = found.cnikit.as_ref();
    let note = CacheMetadata {
        time: noted.and_then(|noted| UNIX_EPOCH.checked_add(Duration::from_secs(noted.time?))),
        boot_id: noted.and_then(|noted| noted.boot_id.map(str::to_owned)),
        netns_cookie: noted.and_then(|noted| noted.netns_cookie),
    };
    Some(AttachmentSummary {
        network: found.network.to_owned(),
        container_id: found.container_id.to_owned(),
        ifname: found.ifname.to_owned(),
        netns: found.netns.to_owned(),
        addresses,
        mac,
        state: State::Attached,
        note,
        written,
        file: PathBuf::new(),
    })
}

fn wholly(bytes: &[u8], name: &str, written: SystemTime) -> AttachmentSummary {
    let entry = Entry::of_file(bytes, name).unwrap_or_default();
    let state = if entry.marked { State::Attached } else { State::Unreadable };
    let Entry { network, at, config, result, note, .. } = entry;
    let (file, broken) = (PathBuf::new(), Vec::new());
    CachedAttachment { network, at, state, result, config, note, written, file, broken }.glimpse()
}

impl CachedAttachment {
    /// The same at a glance.
    pub fn glimpse(&self) -> AttachmentSummary {
        let interfaces = self.answer().map(|answer| answer.interfaces).unwrap_or_default();
        let own = interfaces.into_iter().find(|one| one.name == self.at.ifname && !one.sandbox.is_empty());
        AttachmentSummary {
            network: self.network.clone(),
            container_id: self.at.container_id.clone(),
            ifname: self.at.ifname.clone(),
            netns: self.at.netns.clone(),
            addresses: self.addresses(),
            mac: own.map(|own| own.mac).filter(|mac| !mac.is_empty()),
            state: self.state,
            note: self.note.clone(),
            written: self.written,
            file: self.file.clone(),
        }
    }
}

impl AttachmentSummary {
    /// How long ago it was written, as far as the clock tells.
    pub fn age(&self) -> Duration {
        self.note.age(self.written)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: &str = "net-c1-eth0";
    const FILE: &str = r#"{"kind":"cniCacheV1","containerId":"c1","config":null,"ifName":"eth0","networkName":"net","netns":"/ns",
        "result":{"cniVersion":"1.0.0","interfaces":[{"name":"eth0","mac":"02:00:00:00:00:01"},
        {"name":"eth0","mac":"02:00:00:00:00:02","sandbox":"/ns"}],"ips":[{"address":"10.1.0.2/24"}],"dns":{}}}"#;

    fn both(text: &str) -> (Option<AttachmentSummary>, AttachmentSummary) {
        let bytes = text.as_bytes();
        (quickly(bytes, NAME, UNIX_EPOCH), wholly(bytes, NAME, UNIX_EPOCH))
    }

    #[test]
    fn a_quick_look_sees_what_a_whole_reading_does() {
        let whole = Entry::of_file(FILE.as_bytes(), NAME).unwrap();
        let note = CacheMetadata {
            time: UNIX_EPOCH.checked_add(Duration::from_secs(7)),
            boot_id: Some("b".into()),
            ..whole.note
        };
        let ours = String::from_utf8(Entry { note, ..whole }.to_bytes()).unwrap();
        for text in [FILE, &ours] {
            let (quick, whole) = both(text);
            assert_eq!(quick.as_ref(), Some(&whole), "{text}");
            assert_eq!(
                (whole.mac.as_deref(), &whole.addresses[..]),
                (Some("02:00:00:00:00:02"), &["10.1.0.2/24".into()][..])
            );
        }
    }

    #[test]
    fn what_a_quick_look_does_not_understand_is_read_as_a_whole() {
        let old = r#"{"cniVersion":"0.2.0","ip4":{"ip":"10.1.0.2/24"}}"#;
        let odd = [
            FILE.replace("containerId", "containerID"),
            FILE.replace(r#""ifName":"eth0""#, r#""ifName":"eth0","IFNAME":"eth0""#),
            FILE.replace(r#""c1""#, r#""c\u0031""#),
            FILE.split("\"result\":").next().unwrap().to_owned() + "\"result\":" + old + "}",
        ];
        for text in odd {
            let (quick, whole) = both(&text);
            assert_eq!((quick, whole.container_id.as_str(), whole.addresses.len()), (None, "c1", 1), "{text}");
        }
        for text in ["", "{", "{}", r#"{"kind":"other"}"#] {
            let (quick, whole) = both(text);
            assert_eq!((quick, whole.state), (None, State::Unreadable), "{text}");
        }
    }

    #[test]
    fn no_damage_is_passed_over_by_a_quick_look() {
        let ours = Entry::of_file(FILE.as_bytes(), NAME).unwrap().to_bytes();
        for at in 0..ours.len() {
            let mut flipped = ours.clone();
            flipped[at] ^= 1;
            let quick = quickly(&flipped, NAME, UNIX_EPOCH);
            let whole = Entry::of_file(&flipped, NAME).ok();
            assert!(quick.is_none() || whole.is_some(), "byte {at}");
        }
    }
}
