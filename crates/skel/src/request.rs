//! Environment and stdin become a typed request.
//!
//! Everything that can be judged is judged here, before a plugin is asked anything: the variables, the names, the version,
//! whether `CNI_NETNS` is a network namespace and not the plugin's own. What a verb guarantees is not an `Option`. The
//! order of the checks, their codes and their first words are those that runtimes and people know.

use std::collections::HashSet;

use cnikit_netns::{Netns, NetnsLookup};
use cnikit_types::document::Duplicate;
use cnikit_types::{
    Args, CniResult, Interface, NetConf, Release, Version, check_container_id, check_ifname, check_network_name,
};
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::error::{Error, Result, code};
use crate::input::Input;
use crate::log;
use crate::node;
use crate::plugin::{Plugin, Traits};
use crate::registry::Plugins;
use crate::restore_batch::{RestoreEntry, listed};
use crate::sources::{self, Origins};
use crate::tag::AttachmentId;

/// What was asked.
#[derive(Debug)]
pub enum Request {
    /// Attach a container.
    Add(Add),
    /// Detach it.
    Del(Del),
    /// Compare.
    Check(Check),
    /// Remove what is not valid.
    Gc(Gc),
    /// Could an ADD be served?
    Status(Status),
    /// Which versions are spoken?
    Version,
    /// Put back the rules that somebody flushed. An extension too: `CNI_COMMAND=RESTORE`, with all that CHECK is given.
    Restore(Check),
    /// The same for many attachments of a network.
    RestoreAll(Vec<RestoreEntry>),
    /// What would ADD do? An extension: `CNI_COMMAND=PLAN`, which a plugin that does not know it refuses.
    Plan(DryRun),
}

/// What every verb carries.
#[derive(Clone, Debug)]
pub struct Call {
    /// The plugin's name, for texts.
    pub plugin: String,
    /// Environment and stdin as they came.
    pub input: Input,
    /// The configuration, each key that may be said elsewhere settled.
    pub conf: NetConf,
    /// The version that is spoken.
    pub version: Version,
    /// `CNI_ARGS`; empty if it could not be read and the verb or the plugin does not insist.
    pub args: Args,
    /// The plugins of this binary.
    pub plugins: Plugins,
    /// Where the settled keys have their values from.
    pub(crate) origins: Origins,
}

/// Which attachment ADD, CHECK, RESTORE and PLAN are about. Pure: nothing is open, so a plan cannot read the kernel.
#[derive(Clone, Debug)]
pub struct AttachmentSpec {
    /// Whose state it is.
    pub tag: AttachmentId,
    /// `CNI_NETNS` as it was given: the text that results carry.
    pub sandbox: String,
    /// The configuration.
    pub conf: NetConf,
    /// The version that is spoken.
    pub version: Version,
    /// `CNI_ARGS`.
    pub args: Args,
    /// Other spellings of `sandbox` in the prevResult of an ADD, such as `/var/run/netns/NAME` for `/run/netns/NAME`.
    pub respelled: Vec<String>,
}

impl AttachmentSpec {
    /// Is this the one interface of an answer that the attachment is about?
    pub fn is_own(&self, interface: &Interface) -> bool {
        let is_here = interface.sandbox == self.sandbox || self.respelled.contains(&interface.sandbox);
        interface.name == self.tag.ifname && is_here
    }

    /// Finds the other spellings of `sandbox`: those that lead to the same namespace. If no sandbox does, those that lead to no
    /// namespace at all: a plugin may name what exists only where it runs, and that is no other container's. An interface
    /// without a sandbox is the host's.
    fn with_respelled(mut self, netns: &Netns, prev: Option<&CniResult>) -> AttachmentSpec {
        let interfaces = prev.into_iter().flat_map(|prev| &prev.interfaces);
        let own: Vec<&str> = interfaces
            .filter(|one| one.name == self.tag.ifname && !one.sandbox.is_empty())
            .map(|one| one.sandbox.as_str())
            .collect();
        let mut same = Vec::new();
        let mut nowhere = Vec::new();
        for sandbox in own.iter().filter(|sandbox| **sandbox != self.sandbox) {
            match cnikit_netns::find(sandbox) {
                NetnsLookup::Present(found) | NetnsLookup::Own(found) if found.is(netns) => {
                    same.push((*sandbox).to_owned());
                }
                NetnsLookup::Present(_) | NetnsLookup::Own(_) | NetnsLookup::Unknown { .. } => {}
                NetnsLookup::Empty | NetnsLookup::Gone | NetnsLookup::NotNetns { .. } => {
                    nowhere.push((*sandbox).to_owned());
                }
            }
        }
        let is_found = !same.is_empty() || own.contains(&self.sandbox.as_str());
        self.respelled = if is_found { same } else { nowhere };
        self
    }
}

/// A valid ADD.
#[derive(Debug)]
pub struct Add {
    /// What every verb carries.
    pub call: Call,
    /// Which attachment.
    pub attachment: AttachmentSpec,
    /// The container's namespace, open.
    pub netns: Netns,
    /// What the plugins before this one in the chain answered.
    pub prev: Option<CniResult>,
}

/// A valid CHECK, or RESTORE.
#[derive(Debug)]
pub struct Check {
    /// What every verb carries.
    pub call: Call,
    /// Which attachment.
    pub attachment: AttachmentSpec,
    /// The container's namespace, open.
    pub netns: Netns,
    /// The answer of the whole chain's ADD.
    pub prev: CniResult,
}

/// A DEL. All but the tag may be missing or of no use.
#[derive(Debug)]
pub struct Del {
    /// What every verb carries.
    pub call: Call,
    /// Whose state is to go.
    pub tag: AttachmentId,
    /// The container's namespace, or what was found in its place.
    pub netns: NetnsLookup,
    /// The answer of the whole chain's ADD, where it came and could be read.
    pub prev: Option<CniResult>,
}

/// A valid GC.
#[derive(Debug)]
pub struct Gc {
    /// What every verb carries.
    pub call: Call,
    /// The network whose attachments are listed.
    pub network: String,
    /// The attachments that are to stay.
    pub valid: ValidAttachments,
}

/// A STATUS.
#[derive(Debug)]
pub struct Status {
    /// What every verb carries.
    pub call: Call,
}

/// A dry run.
#[derive(Debug)]
pub struct DryRun {
    /// What every verb carries.
    pub call: Call,
    /// Which attachment it would be.
    pub attachment: AttachmentSpec,
    /// What the plugins before this one in the chain answered.
    pub prev: Option<CniResult>,
}

/// The attachments of one network that GC must leave alone.
#[derive(Clone, Debug, Default)]
pub struct ValidAttachments(HashSet<(String, String)>);

impl ValidAttachments {
    /// Is the attachment of this container and interface to stay?
    pub fn has(&self, container: &str, ifname: &str) -> bool {
        self.0.contains(&(container.to_owned(), ifname.to_owned()))
    }

    /// Container and interface of each.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(container, ifname)| (container.as_str(), ifname.as_str()))
    }
}

impl FromIterator<(String, String)> for ValidAttachments {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(pairs: T) -> ValidAttachments {
        ValidAttachments(pairs.into_iter().collect())
    }
}

/// Which variables a verb insists on, in the order in which they are reported.
fn required(verb: &str) -> &'static [&'static str] {
    match verb {
        "ADD" | "CHECK" | "RESTORE" => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
        "DEL" | "PLAN" => &["CNI_CONTAINERID", "CNI_IFNAME"],
        _ => &[],
    }
}

/// The oldest version whose runtimes may ask this.
fn floor(verb: &str) -> Option<Version> {
    match verb {
        "CHECK" => Some(Version::V0_4_0),
        "GC" | "STATUS" => Some(Version::V1_1_0),
        _ => None,
    }
}

/// Does the verb insist on everything that it was given? What is there is taken away whatever else is wrong.
fn is_strict(verb: &str) -> bool {
    ["ADD", "CHECK", "RESTORE", "PLAN"].contains(&verb)
}

/// Does the verb refuse a key that an object has more than once? Not where something runs already: it is removed, or put back,
/// as it was made.
fn refuses_duplicates(verb: &str) -> bool {
    ["ADD", "CHECK", "PLAN", "STATUS"].contains(&verb)
}

/// The keys that are the protocol's own, read for their JSON types alone: what a plugin makes of them is its affair.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Protocol {
    #[serde(rename = "type")]
    _type: String,
    #[serde(rename = "capabilities")]
    _capabilities: Map<String, Value>,
    #[serde(rename = "args")]
    _args: ProtocolArgs,
    #[serde(rename = "runtimeConfig")]
    _runtime_config: Map<String, Value>,
}

/// The part of `args` that has a shape.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ProtocolArgs {
    #[serde(rename = "cni")]
    _cni: Map<String, Value>,
}

/// Parses and validates a call of a plugin with these constants.
pub(crate) fn parse_request(traits: Traits, plugin: &str, input: &mut Input, plugins: Plugins) -> Result<Request> {
    if let Some(all) = listed(traits, plugin, input, plugins)? {
        return Ok(Request::RestoreAll(all));
    }
    variables(input)?;
    if input.command == "VERSION" {
        return Ok(Request::Version);
    }
    let (mut conf, duplicates) = configuration(input)?;
    let verb = input.command.clone();
    if !["ADD", "DEL", "CHECK", "GC", "STATUS", "RESTORE", "PLAN"].contains(&verb.as_str()) {
        return Err(Error::environment(format!("unknown CNI_COMMAND: {verb}"))
            .hint("CNI_COMMAND is ADD, DEL, CHECK, GC, STATUS, VERSION, RESTORE or PLAN"));
    }
    let version = version(&verb, &conf)?;
    if let Some(duplicate) = duplicates.first().filter(|_| refuses_duplicates(&verb)) {
        return Err(
            Error::config(duplicate.to_string()).hint("remove all but one of them: nobody can say which is meant")
        );
    }
    let policy = node::policy(input)?;
    node::shut_out_tenants(policy, &mut conf, input);
    if is_strict(&verb) {
        conf.read::<Protocol>()?;
    }
    let args = arguments(traits.known_args, &verb, &input.args)?;
    let mut call =
        Call { plugin: plugin.to_owned(), input: input.clone(), conf, version, args, plugins, origins: Vec::new() };
    call.origins = sources::resolve(&mut call.conf, &call.args, traits.sources);
    match verb.as_str() {
        "ADD" => call.add(traits).map(Request::Add),
        "CHECK" => call.check(traits).map(Request::Check),
        "RESTORE" => call.check(traits).map(Request::Restore),
        "DEL" => Ok(Request::Del(call.del())),
        "GC" => call.gc().map(Request::Gc),
        "STATUS" => Ok(Request::Status(Status { call })),
        _ => call.preview().map(Request::Plan),
    }
}

/// Those that the verb needs are there and well formed; the others are not looked at.
fn variables(input: &Input) -> Result<()> {
    let mut missing = Vec::new();
    for name in required(&input.command) {
        match *name {
            "CNI_CONTAINERID" if !input.container_id.is_empty() => {
                let checked = check_container_id(&input.container_id);
                let refused = |text| Error::environment(text).detail(input.container_id.clone());
                checked.map_err(|text| refused(text).hint("CNI_CONTAINERID has letters, digits, `_`, `.` and `-`"))?;
            }
            "CNI_IFNAME" if !input.ifname.is_empty() => {
                let checked = check_ifname(&input.ifname);
                let refused = |text| Error::environment(text).detail(input.ifname.clone());
                checked.map_err(|text| refused(text).hint("CNI_IFNAME is a name such as eth0, of 1 to 15 bytes"))?;
            }
            "CNI_NETNS" if !input.netns.is_empty() => {}
            name => missing.push(name),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::environment(format!("required env variables [{}] missing", missing.join(",")))
        .hint("plugins are called by a container runtime; call this one without CNI_COMMAND to see how to try it"))
}

/// What can be done about a list that is too long.
const TOO_MUCH: &str = "the limits are far above what networks in use have: look at what makes this configuration";

/// The configuration, and the keys that it has more than once.
fn configuration(input: &mut Input) -> Result<(NetConf, Vec<Duplicate>)> {
    let (conf, duplicates) = NetConf::parse_with_duplicates(input.stdin.read()?)
        .map_err(|error| Error::new(code::DECODE, format!("error unmarshall network config: {error}")))
        .map_err(|error| error.hint("give the plugin the network's configuration, one JSON object, on stdin"))?;
    let nameless = || Error::config("missing network name").hint("give the network a `name`");
    let name = match conf.get("name") {
        None => return Err(nameless()),
        Some(Value::String(name)) if name.is_empty() => return Err(nameless()),
        Some(Value::String(name)) => name.clone(),
        Some(other) => {
            let text = format!("error unmarshall network config: `name` is not a string but {other}");
            return Err(Error::new(code::DECODE, text).hint("write the network's `name` between quotes"));
        }
    };
    check_network_name(&name).map_err(|text| {
        let refused = Error::config(text).detail(name.clone());
        refused.hint("a network's `name` begins with a letter or a digit, and has but those, `_`, `.` and `-`")
    })?;
    log::network(&name);
    // What is there is taken away, however much else is said.
    if input.command != "DEL" {
        conf.check_size().map_err(|error| Error::from(error).hint(TOO_MUCH))?;
    }
    Ok((conf, duplicates))
}

/// The name of the network, as far as stdin tells it.
pub(crate) fn network_name(input: &Input) -> String {
    NetConf::parse(input.stdin.so_far()).ok().and_then(|conf| conf.name().map(str::to_owned)).unwrap_or_default()
}

/// The version of the configuration must be one that exists, to the letter, and old enough or new enough for the verb.
fn version(verb: &str, conf: &NetConf) -> Result<Version> {
    let text = match conf.get("cniVersion") {
        None => "",
        Some(Value::String(text)) => text,
        Some(other) => {
            let text = format!("decoding version from network config: `cniVersion` is not a string but {other}");
            return Err(Error::new(code::DECODE, text).hint("write `cniVersion` between quotes, such as \"1.1.0\""));
        }
    };
    if let Some(floor) = floor(verb) {
        allows(verb, text, floor)?;
    }
    Version::exact(text).ok_or_else(|| {
        let spoken: Vec<String> = Version::ALL.iter().map(|version| format!("{:?}", version.as_str())).collect();
        Error::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions")
            .detail(format!("config is \"{text}\", plugin supports [{}]", spoken.join(" ")))
            .hint("set `cniVersion` to one of these")
    })
}

fn allows(verb: &str, text: &str, floor: Version) -> Result<()> {
    let misspelt = |text| Error::new(code::DECODE, text).hint("`cniVersion` is three numbers, such as 1.1.0");
    let parse = |text: &str| Release::parse(text).map_err(misspelt);
    let given = parse(if text.is_empty() { "0.1.0" } else { text })?;
    if given < parse(floor.as_str())? {
        let text = format!("config version does not allow {verb}");
        return Err(Error::new(code::INCOMPATIBLE_VERSION, text)
            .hint(format!("{verb} exists since version {floor}: raise `cniVersion`")));
    }
    if given > parse(Version::NEWEST.as_str())? {
        return Err(Error::new(code::INCOMPATIBLE_VERSION, format!("plugin version does not allow {verb}"))
            .detail(format!("config is \"{text}\", the newest that this plugin speaks is {}", Version::NEWEST))
            .hint(format!("set `cniVersion` to {} or older, or install a newer plugin", Version::NEWEST)));
    }
    Ok(())
}

/// A plugin that knows some `CNI_ARGS` refuses others on ADD and CHECK; nothing of them ever fails another verb.
fn arguments(known: Option<&[&str]>, verb: &str, text: &str) -> Result<Args> {
    let known = match known {
        Some(known) if is_strict(verb) => known,
        _ => return Ok(Args::parse(text).unwrap_or_default()),
    };
    let refused = |text| Error::environment(text).hint("CNI_ARGS is KEY=VALUE;KEY=VALUE");
    let args = Args::parse(text).map_err(refused)?;
    let passed_over = args.ignore_unknown();
    let passed_over =
        passed_over.map_err(|text| Error::environment(text).hint("set IgnoreUnknown in CNI_ARGS to 1 or 0"))?;
    let unknown = args.unknown(known);
    if unknown.is_empty() || passed_over {
        return Ok(args);
    }
    Err(Error::environment(format!("ARGS: unknown args {unknown:?}"))
        .hint(format!("this plugin knows {known:?}; add IgnoreUnknown=1 to CNI_ARGS to have others passed over")))
}

impl Call {
    /// The plugin that the configuration is.
    pub(crate) fn configured<P: Plugin>(&self) -> Result<P> {
        self.conf.read().map_err(|error| sources::misread(error, &self.origins))
    }

    fn add(self, traits: Traits) -> Result<Add> {
        let prev = self.prev()?;
        let netns = self.sandbox(traits, prev.is_some())?;
        let attachment = self.attachment().with_respelled(&netns, prev.as_ref());
        Ok(Add { attachment, netns, prev, call: self })
    }

    fn check(self, traits: Traits) -> Result<Check> {
        let verb = &self.input.command;
        let prev = self.prev()?.ok_or_else(|| {
            let missing = Error::config("Required prevResult missing");
            missing.hint(format!(
                "the runtime has to give {verb} the result of the ADD: if it has none, DEL and ADD again"
            ))
        })?;
        let netns = self.sandbox(traits, true)?;
        Ok(Check { attachment: self.attachment(), netns, prev, call: self })
    }

    fn del(self) -> Del {
        let prev = self.prev().unwrap_or_else(|error| {
            log::warn(format_args!("DEL goes on without prevResult: {error}"));
            None
        });
        let netns = match cnikit_netns::find(&self.input.netns) {
            NetnsLookup::Own(netns) if self.input.netns_override => NetnsLookup::Present(netns),
            found => found,
        };
        Del { tag: self.tag(), netns, prev, call: self }
    }

    fn gc(self) -> Result<Gc> {
        let listed = self.conf.valid_attachments()?.ok_or_else(|| {
            Error::config("required key `cni.dev/valid-attachments` missing")
                .hint("GC removes whatever is not listed; if really no attachment is valid, pass an empty list")
        })?;
        let valid = listed.into_iter().map(|attachment| (attachment.container_id, attachment.ifname)).collect();
        Ok(Gc { network: self.network().to_owned(), valid, call: self })
    }

    fn preview(self) -> Result<DryRun> {
        let prev = self.prev()?;
        Ok(DryRun { attachment: self.attachment(), prev, call: self })
    }

    fn network(&self) -> &str {
        self.conf.name().unwrap_or_default()
    }

    fn tag(&self) -> AttachmentId {
        let Input { container_id, ifname, .. } = &self.input;
        AttachmentId { network: self.network().to_owned(), container: container_id.clone(), ifname: ifname.clone() }
    }

    fn attachment(&self) -> AttachmentSpec {
        AttachmentSpec {
            tag: self.tag(),
            sandbox: self.input.netns.clone(),
            conf: self.conf.clone(),
            version: self.version,
            args: self.args.clone(),
            respelled: Vec::new(),
        }
    }

    pub(crate) fn prev(&self) -> Result<Option<CniResult>> {
        let read = self.conf.get("prevResult").map(|value| {
            let (version, answer) = CniResult::read(value, self.version)?;
            answer.check_size().map(|()| (version, answer))
        });
        let read = read
            .transpose()
            .map_err(|error| Error::from(error.under("prevResult")).context("could not parse prevResult"))
            .map_err(|error| {
                error.hint("the runtime has to pass on the ADD's result as it was: DEL, then ADD again")
            })?;
        Ok(read.map(|(_, answer)| answer))
    }

    /// The container's namespace. Gone is code 3, "no DEL needed", unless plugins before this one made something.
    fn sandbox(&self, traits: Traits, something_was_made: bool) -> Result<Netns> {
        let path = &self.input.netns;
        match cnikit_netns::find(path) {
            NetnsLookup::Present(netns) => Ok(netns),
            NetnsLookup::Own(netns) if self.input.netns_override => Ok(netns),
            NetnsLookup::Own(_) => {
                Err(Error::new(code::INVALID_NETNS, "plugin's netns and netns from CNI_NETNS should not be the same")
                    .detail(path.clone())
                    .hint("pass the container's namespace; CNI_NETNS_OVERRIDE=1 if this is meant"))
            }
            _ if !traits.enters_netns => Ok(Netns::nowhere(path)?),
            NetnsLookup::NotNetns { why, .. } => {
                Err(Error::environment(format!("CNI_NETNS {path:?} is not a network namespace: {why}"))
                    .hint("set CNI_NETNS to the container's namespace, such as /run/netns/NAME or /proc/PID/ns/net"))
            }
            NetnsLookup::Unknown { why, .. } => {
                let text = format!("the network namespace CNI_NETNS {path:?} cannot be opened: {why}");
                Err(Error::new(code::SYSTEM, text).hint("try again once the cause is mended"))
            }
            NetnsLookup::Gone | NetnsLookup::Empty => {
                let code = if something_was_made { code::INVALID_ENVIRONMENT } else { code::UNKNOWN_CONTAINER };
                Err(Error::new(code, format!("the network namespace CNI_NETNS {path:?} is gone"))
                    .hint("the container is gone, or the runtime did not make its namespace"))
            }
        }
    }
}
