//! The attachments that are known.

use std::collections::HashMap;

use cnikit_libcni::{AttachmentSummary, State};
use cnikit_netlink::{Link, Netlink};
use cnikit_netns::Netns;
use serde_json::{Value, json};

use crate::cli::List;
use crate::environment;
use crate::failure::Result;
use crate::namespace::{Look, Standing};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::print_json;
use crate::output::progress::Progress;
use crate::output::table::Cell;
use crate::output::text::Tone;
use crate::output::time::{age, moment};

/// How the container's end of an attachment is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// Nobody looked.
    Unasked,
    /// It is there, and up.
    Up,
    /// It is there, and down.
    Down,
    /// It is not there, or another one is.
    Gone,
    /// Another namespace is where its own was.
    Elsewhere,
    /// It could not be looked at.
    Unknown(String),
}

impl End {
    fn word(&self) -> &str {
        match self {
            End::Unasked => "",
            End::Up => "up",
            End::Down => "down",
            End::Gone => "gone",
            End::Elsewhere => "another namespace",
            End::Unknown(why) => why,
        }
    }
}

/// Lists what is kept; with `--live`, each namespace is entered once, and all its links are asked for together.
pub(crate) fn list(common: &Common, out: Output, asked: &List) -> Result {
    let all = environment::cache(common).list()?;
    let wanted = |kept: &AttachmentSummary| asked.network.as_ref().is_none_or(|network| is_of(kept, network));
    let all: Vec<AttachmentSummary> = all.into_iter().filter(wanted).collect();
    let look = Look::new();
    let mut links = if asked.live { Some(Links::default()) } else { None };
    let mut progress = Progress::of("looking into namespaces");
    let mut told: Vec<(&AttachmentSummary, Standing, End)> = Vec::new();
    for (done, kept) in all.iter().enumerate() {
        let standing = look.at(&kept.netns, &kept.metadata);
        let link = match &mut links {
            Some(links) if standing == Standing::There => links.of(kept),
            Some(_) if standing.is_lost() => End::Gone,
            _ => End::Unasked,
        };
        told.push((kept, standing, link));
        progress.count(done, all.len());
    }
    progress.end();
    if out.json {
        let attachments: Vec<Value> =
            told.iter().map(|(kept, standing, link)| document(kept, *standing, link)).collect();
        return print_json(&json!({"attachments": attachments}));
    }
    let head = ["NETWORK", "CONTAINER", "INTERFACE", "ADDRESSES", "AGE", "NAMESPACE", "LINK", "STATE"];
    out.table(head, &told.iter().map(|(kept, standing, link)| row(kept, *standing, link)).collect::<Vec<_>>())
}

/// Whether it is an attachment of this network, or a file that cannot be read and is named as if.
fn is_of(kept: &AttachmentSummary, network: &str) -> bool {
    let name = || kept.file.file_name()?.to_str()?.strip_prefix(network)?.strip_prefix('-');
    kept.network == network || (kept.state == State::Unreadable && name().is_some())
}

/// The links of namespaces, each asked for once.
#[derive(Default)]
pub(crate) struct Links {
    found: HashMap<String, Result<Looked, String>>,
}

/// What a namespace showed: its cookie, and its links.
type Looked = (Option<u64>, Vec<Link>);

impl Links {
    /// How the container's end is: its name, and its MAC where the result says that.
    fn of(&mut self, kept: &AttachmentSummary) -> End {
        let path = kept.netns.clone();
        let found = self.found.entry(path).or_insert_with_key(|path| look_into(path));
        let (cookie, links) = match found {
            Ok(found) => found,
            Err(why) => return End::Unknown(why.clone()),
        };
        if kept.metadata.netns_cookie.is_some_and(|then| cookie.is_some_and(|now| now != then)) {
            return End::Elsewhere;
        }
        let recorded = kept.mac.as_ref().map(|mac| mac.to_ascii_lowercase());
        let is_it = |link: &&Link| {
            let mac = link.mac.map(|mac| mac.to_string());
            link.name == kept.ifname && recorded.as_ref().is_none_or(|then| mac.is_none_or(|now| now == *then))
        };
        match links.iter().find(is_it) {
            Some(link) if link.up => End::Up,
            Some(_) => End::Down,
            None => End::Gone,
        }
    }
}

fn look_into(path: &str) -> Result<Looked, String> {
    let netns = Netns::open(path).map_err(|error| error.to_string())?;
    let links = Netlink::inside(&netns).and_then(|netlink| netlink.links()).map_err(|error| error.to_string())?;
    Ok((netns.cookie().ok(), links))
}

/// The word for how far an attachment has come.
pub(crate) fn word(state: State) -> (&'static str, Tone) {
    match state {
        State::Attached => ("attached", Tone::Good),
        State::Adding => ("adding", Tone::Doubtful),
        State::Interrupted => ("interrupted", Tone::Bad),
        State::Unreadable => ("unreadable", Tone::Bad),
    }
}

fn row<'k>(kept: &'k AttachmentSummary, standing: Standing, link: &'k End) -> [Cell<'k>; 8] {
    let (state, tone) = word(kept.state);
    let lost = if standing.is_lost() { Tone::Bad } else { Tone::Plain };
    let link_tone = if matches!(link, End::Gone | End::Elsewhere) { Tone::Bad } else { Tone::Plain };
    let unnamed = kept.network.is_empty().then(|| kept.file.display().to_string());
    [
        unnamed.map_or_else(|| kept.network.as_str().into(), Cell::from),
        kept.container_id.as_str().into(),
        kept.ifname.as_str().into(),
        kept.addresses.join(" ").into(),
        age(kept.age()).into(),
        Cell::toned(standing.word(), lost),
        Cell::toned(link.word(), link_tone),
        Cell::toned(state, tone),
    ]
}

/// One attachment for a program.
pub(crate) fn document(kept: &AttachmentSummary, standing: Standing, link: &End) -> Value {
    let is_asked = *link != End::Unasked;
    json!({
        "network": kept.network,
        "container": kept.container_id,
        "ifname": kept.ifname,
        "addresses": kept.addresses,
        "since": moment(kept.metadata.time.unwrap_or(kept.written)),
        "ageSeconds": kept.age().as_secs(),
        "netns": {"path": kept.netns, "cookie": kept.metadata.netns_cookie, "state": standing.word()},
        "link": is_asked.then(|| link.word()),
        "state": word(kept.state).0,
        "file": kept.file.display().to_string(),
    })
}
