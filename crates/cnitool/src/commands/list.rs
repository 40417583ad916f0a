//! `list`: the cached attachments.

use std::collections::HashMap;

use cnikit_libcni::{AttachmentSummary, State};
use cnikit_netlink::{Link, Netlink};
use cnikit_netns::Netns;
use serde_json::{Value, json};

use crate::cli::List;
use crate::environment;
use crate::failure::Result;
use crate::namespace::{PathInspector, PathState};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::print_json;
use crate::output::progress::Progress;
use crate::output::table::Cell;
use crate::output::text::Tone;
use crate::output::time::{age, rfc3339};

/// The state of the link in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum LinkState {
    /// It was not inspected.
    Unchecked,
    Up,
    Down,
    /// It does not exist, or has another MAC.
    Gone,
    /// Another namespace is at the path.
    OtherNetns,
    /// The namespace cannot be read.
    Unknown(String),
}

impl LinkState {
    fn word(&self) -> &'static str {
        match self {
            LinkState::Unchecked => "",
            LinkState::Up => "up",
            LinkState::Down => "down",
            LinkState::Gone => "gone",
            LinkState::OtherNetns => "replaced",
            LinkState::Unknown(_) => "unknown",
        }
    }
}

/// One attachment of the list.
struct Listed<'a> {
    attachment: &'a AttachmentSummary,
    path: PathState,
    link: LinkState,
}

/// Lists the attachments. With `--live` each namespace is entered once to read all its links.
pub(crate) fn list(common: &Common, out: Output, args: &List) -> Result {
    let mut all = environment::cache(common).list()?;
    if let Some(network) = &args.network {
        all.retain(|attachment| is_of(attachment, network));
    }
    let listed = inspect(&all, args.live);
    if out.json {
        let attachments: Vec<Value> = listed.iter().map(Listed::to_json).collect();
        return print_json(&json!({"attachments": attachments}));
    }
    let titles = ["NETWORK", "CONTAINER", "INTERFACE", "ADDRESSES", "AGE", "NAMESPACE", "LINK", "STATE"];
    let rows: Vec<_> = listed.iter().map(Listed::row).collect();
    out.table(titles, &rows)
}

/// Inspects the namespaces of all attachments, and their links if `is_live`.
fn inspect(all: &[AttachmentSummary], is_live: bool) -> Vec<Listed<'_>> {
    let inspector = PathInspector::new();
    let mut links = Links::default();
    let mut progress = Progress::of("looking into namespaces");
    let mut listed = Vec::with_capacity(all.len());
    for attachment in all {
        let path = inspector.attachment(&attachment.netns, &attachment.metadata);
        let link = match path {
            _ if !is_live => LinkState::Unchecked,
            PathState::Present => links.state(attachment),
            path if path.is_lost() => LinkState::Gone,
            _ => LinkState::Unchecked,
        };
        listed.push(Listed { attachment, path, link });
        progress.count(listed.len() - 1, all.len());
    }
    progress.end();
    listed
}

/// Whether it is an attachment of this network, or a damaged file whose name may be that of an attachment of this network.
fn is_of(attachment: &AttachmentSummary, network: &str) -> bool {
    if attachment.network == network {
        return true;
    }
    let name = attachment.file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let has_prefix = name.strip_prefix(network).is_some_and(|rest| rest.starts_with('-'));
    attachment.state == State::Unreadable && has_prefix
}

/// The links of namespaces, each of which is read once.
#[derive(Default)]
struct Links {
    namespaces: HashMap<String, Result<NetnsLinks, String>>,
}

/// The cookie and the links of a namespace.
struct NetnsLinks {
    cookie: Option<u64>,
    links: Vec<Link>,
}

impl Links {
    /// The state of an attachment's link: by its name, and by its MAC if the result has one.
    fn state(&mut self, attachment: &AttachmentSummary) -> LinkState {
        let path = attachment.netns.clone();
        let namespace = match self.namespaces.entry(path).or_insert_with_key(|path| read_links(path)) {
            Ok(namespace) => namespace,
            Err(why) => return LinkState::Unknown(why.clone()),
        };
        if let (Some(recorded), Some(cookie)) = (attachment.metadata.netns_cookie, namespace.cookie)
            && recorded != cookie
        {
            return LinkState::OtherNetns;
        }
        match namespace.links.iter().find(|link| is_link_of(link, attachment)) {
            Some(link) if link.up => LinkState::Up,
            Some(_) => LinkState::Down,
            None => LinkState::Gone,
        }
    }
}

fn is_link_of(link: &Link, attachment: &AttachmentSummary) -> bool {
    if link.name != attachment.ifname {
        return false;
    }
    match (&attachment.mac, &link.mac) {
        (Some(recorded), Some(mac)) => mac.to_string() == recorded.to_ascii_lowercase(),
        _ => true,
    }
}

fn read_links(path: &str) -> Result<NetnsLinks, String> {
    let netns = Netns::open(path).map_err(|error| error.to_string())?;
    let links = Netlink::inside(&netns).and_then(|netlink| netlink.links()).map_err(|error| error.to_string())?;
    Ok(NetnsLinks { cookie: netns.cookie().ok(), links })
}

/// The word for a state, and its tone.
pub(crate) fn state_word(state: State) -> (&'static str, Tone) {
    match state {
        State::Attached => ("attached", Tone::Good),
        State::Adding => ("adding", Tone::Doubtful),
        State::Interrupted => ("interrupted", Tone::Bad),
        State::Unreadable => ("unreadable", Tone::Bad),
    }
}

impl Listed<'_> {
    fn row(&self) -> [Cell<'_>; 8] {
        let Listed { attachment, path, link } = self;
        let (state, state_tone) = state_word(attachment.state);
        let path_tone = if path.is_lost() { Tone::Bad } else { Tone::Plain };
        let is_link_lost = matches!(link, LinkState::Gone | LinkState::OtherNetns);
        let network = if attachment.network.is_empty() {
            Cell::from(attachment.file.display().to_string())
        } else {
            attachment.network.as_str().into()
        };
        [
            network,
            attachment.container_id.as_str().into(),
            attachment.ifname.as_str().into(),
            attachment.addresses.join(" ").into(),
            age(attachment.age()).into(),
            Cell::toned(path.word(), path_tone),
            Cell::toned(link.word(), if is_link_lost { Tone::Bad } else { Tone::Plain }),
            Cell::toned(state, state_tone),
        ]
    }

    fn to_json(&self) -> Value {
        document(self.attachment, self.path, &self.link)
    }
}

/// One attachment as a document.
pub(crate) fn document(attachment: &AttachmentSummary, path: PathState, link: &LinkState) -> Value {
    let mut document = json!({
        "network": attachment.network,
        "container": attachment.container_id,
        "ifname": attachment.ifname,
        "addresses": attachment.addresses,
        "since": rfc3339(attachment.metadata.time.unwrap_or(attachment.written)),
        "ageSeconds": attachment.age().as_secs(),
        "netns": {"path": attachment.netns, "cookie": attachment.metadata.netns_cookie, "state": path.word()},
        "link": if *link == LinkState::Unchecked { None } else { Some(link.word()) },
        "state": state_word(attachment.state).0,
        "file": attachment.file.display().to_string(),
    });
    if let LinkState::Unknown(why) = link {
        document["linkError"] = json!(why);
    }
    document
}
