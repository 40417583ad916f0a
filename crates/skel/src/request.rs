//! Environment and stdin become a typed request.
//!
//! Everything that can be validated is validated here, before a plugin runs: the variables, the names, the version, and whether
//! `CNI_NETNS` is a network namespace and not the plugin's own. A value that a verb guarantees is not an `Option`. The order of the
//! checks, their codes and the beginnings of their messages are upstream's.

use std::collections::HashSet;

use cnikit_netns::{Netns, NetnsLookup};
use cnikit_types::document::Duplicate;
use cnikit_types::{
    Args, CniResult, Interface, NetConf, ReadError, Release, Version, check_container_id, check_ifname,
    check_network_name,
};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::entry::Plugins;
use crate::error::{Error, Result, code};
use crate::input::Input;
use crate::log;
use crate::node;
use crate::sources::{self, Origins};
use crate::tag::AttachmentId;
use crate::traits::Traits;

/// A valid request.
#[derive(Debug)]
#[non_exhaustive]
pub enum Request {
    /// Attach a container.
    Add(Add),
    /// Detach it.
    Del(Del),
    /// Compare the attachment with what ADD made.
    Check(Check),
    /// Remove the attachments that are not valid.
    Gc(Gc),
    /// Check whether an ADD could be served.
    Status(Status),
    /// Print the supported versions.
    Version,
    /// Make the rules again that another program flushed. An extension, `CNI_COMMAND=RESTORE`, with the same input as CHECK.
    Restore(Check),
    /// RESTORE of many attachments of a network.
    RestoreAll(Vec<RestoreEntry>),
    /// Report what ADD would do. An extension, `CNI_COMMAND=PLAN`. Plugins that do not support it refuse it.
    Plan(DryRun),
}

/// One attachment of a RESTORE of many. It is validated alone: an invalid one does not fail the others.
#[derive(Debug)]
#[non_exhaustive]
pub struct RestoreEntry {
    /// The input of a RESTORE of this attachment alone.
    pub input: Input,
    /// The request, or why it is refused.
    pub asked: Result<Check>,
}

/// The part of a request that every verb has.
#[derive(Clone, Debug)]
pub struct Call {
    /// The plugin's name, for texts.
    pub plugin: String,
    /// Environment and stdin, unchanged.
    pub input: Input,
    /// The configuration. Keys that may be set in other places are resolved.
    pub conf: NetConf,
    /// The version of the configuration and of the result.
    pub version: Version,
    /// `CNI_ARGS`; empty if it is invalid and the verb or the plugin accepts that.
    pub args: Args,
    /// The plugins of this binary.
    pub plugins: Plugins,
    /// The places that the resolved keys have their values from.
    pub(crate) origins: Origins,
}

/// The attachment of an ADD, CHECK, RESTORE or PLAN. Nothing in it is open, so a plan cannot read the kernel's state.
#[derive(Clone, Debug)]
pub struct AttachmentSpec {
    /// The identity of the attachment.
    pub tag: AttachmentId,
    /// `CNI_NETNS` unchanged, which results have as `sandbox`.
    pub sandbox: String,
    /// The configuration.
    pub conf: NetConf,
    /// The version of the configuration and of the result.
    pub version: Version,
    /// `CNI_ARGS`.
    pub args: Args,
    /// Other spellings of `sandbox` in the prevResult of an ADD, such as `/var/run/netns/NAME` for `/run/netns/NAME`.
    pub respelled: Vec<String>,
}

impl AttachmentSpec {
    /// Whether this interface of a result is the attachment's.
    pub fn is_own(&self, interface: &Interface) -> bool {
        let is_here = interface.sandbox == self.sandbox || self.respelled.contains(&interface.sandbox);
        interface.name == self.tag.ifname && is_here
    }

    /// Finds the other spellings of `sandbox`: the paths to the same namespace. If there are none, the paths that lead to no
    /// namespace at all are used: a plugin may report a path that exists only in its mount namespace, which is not another
    /// container's. An interface without a sandbox is the host's.
    fn with_respelled(mut self, netns: &Netns, prev: Option<&CniResult>) -> AttachmentSpec {
        let mut is_listed = false;
        let mut same = Vec::new();
        let mut nowhere = Vec::new();
        for interface in prev.into_iter().flat_map(|prev| &prev.interfaces) {
            let sandbox = &interface.sandbox;
            if interface.name != self.tag.ifname || sandbox.is_empty() {
                continue;
            }
            if *sandbox == self.sandbox {
                is_listed = true;
                continue;
            }
            match cnikit_netns::find(sandbox) {
                NetnsLookup::Present(found) | NetnsLookup::Own(found) if found.is(netns) => same.push(sandbox.clone()),
                NetnsLookup::Present(_) | NetnsLookup::Own(_) | NetnsLookup::Unknown { .. } => {}
                NetnsLookup::Empty | NetnsLookup::Gone | NetnsLookup::NotNetns { .. } => nowhere.push(sandbox.clone()),
            }
        }
        self.respelled = if is_listed || !same.is_empty() { same } else { nowhere };
        self
    }
}

/// A valid ADD.
#[derive(Debug)]
#[non_exhaustive]
pub struct Add {
    /// The part that every verb has.
    pub call: Call,
    /// The attachment.
    pub attachment: AttachmentSpec,
    /// The container's namespace, open.
    pub netns: Netns,
    /// The result of the plugins before this one in the chain.
    pub prev: Option<CniResult>,
}

/// A valid CHECK, or RESTORE.
#[derive(Debug)]
#[non_exhaustive]
pub struct Check {
    /// The part that every verb has.
    pub call: Call,
    /// The attachment.
    pub attachment: AttachmentSpec,
    /// The container's namespace, open.
    pub netns: Netns,
    /// The result of the whole chain's ADD.
    pub prev: CniResult,
}

/// A DEL. Everything except the tag may be missing or useless.
#[derive(Debug)]
#[non_exhaustive]
pub struct Del {
    /// The part that every verb has.
    pub call: Call,
    /// The identity of the attachment.
    pub tag: AttachmentId,
    /// The container's namespace, or what was found in its place.
    pub netns: NetnsLookup,
    /// The result of the whole chain's ADD, if it is there and can be parsed.
    pub prev: Option<CniResult>,
}

/// A valid GC.
#[derive(Debug)]
#[non_exhaustive]
pub struct Gc {
    /// The part that every verb has.
    pub call: Call,
    /// The network whose attachments are listed.
    pub network: String,
    /// The attachments that GC must leave alone.
    pub valid: ValidSet,
}

/// A STATUS.
#[derive(Debug)]
#[non_exhaustive]
pub struct Status {
    /// The part that every verb has.
    pub call: Call,
}

/// A dry run.
#[derive(Debug)]
#[non_exhaustive]
pub struct DryRun {
    /// The part that every verb has.
    pub call: Call,
    /// The attachment that ADD would make.
    pub attachment: AttachmentSpec,
    /// The result of the plugins before this one in the chain.
    pub prev: Option<CniResult>,
}

/// The attachments of one network that GC must leave alone.
#[derive(Clone, Debug, Default)]
pub struct ValidSet(HashSet<(String, String)>);

impl ValidSet {
    /// Whether the attachment of this container and interface is valid.
    pub fn has(&self, container: &str, ifname: &str) -> bool {
        self.0.contains(&(container.to_owned(), ifname.to_owned()))
    }

    /// The container and the interface of each attachment.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(container, ifname)| (container.as_str(), ifname.as_str()))
    }
}

impl FromIterator<(String, String)> for ValidSet {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(pairs: T) -> ValidSet {
        ValidSet(pairs.into_iter().collect())
    }
}

/// The variables that a verb requires, in the order in which they are reported.
fn required(verb: &str) -> &'static [&'static str] {
    match verb {
        "ADD" | "CHECK" | "RESTORE" => &["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"],
        "DEL" | "PLAN" => &["CNI_CONTAINERID", "CNI_IFNAME"],
        _ => &[],
    }
}

/// The oldest version that has the verb.
fn oldest_version(verb: &str) -> Option<Version> {
    match verb {
        "CHECK" => Some(Version::V0_4_0),
        "GC" | "STATUS" => Some(Version::V1_1_0),
        _ => None,
    }
}

/// Whether the verb refuses invalid input. DEL and GC remove what exists even if some of the input is invalid.
fn is_strict(verb: &str) -> bool {
    ["ADD", "CHECK", "RESTORE", "PLAN"].contains(&verb)
}

/// Whether the verb refuses an object that has a key more than once. Verbs for an existing attachment do not.
fn refuses_duplicates(verb: &str) -> bool {
    ["ADD", "CHECK", "PLAN", "STATUS"].contains(&verb)
}

/// The keys of the protocol. Only their JSON types are validated here.
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

/// The part of `args` that has a fixed type.
#[derive(Default, Deserialize)]
#[serde(default)]
struct ProtocolArgs {
    #[serde(rename = "cni")]
    _cni: Map<String, Value>,
}

/// Parses and validates a call of a plugin with these constants, except for a RESTORE of many attachments.
pub(crate) fn parse(traits: Traits, plugin: &str, input: &mut Input, plugins: Plugins) -> Result<Request> {
    check_variables(input)?;
    if input.command == "VERSION" {
        return Ok(Request::Version);
    }
    let (mut conf, duplicates) = parse_configuration(input)?;
    let verb = input.command.clone();
    if !["ADD", "DEL", "CHECK", "GC", "STATUS", "RESTORE", "PLAN"].contains(&verb.as_str()) {
        return Err(Error::environment(format!("unknown CNI_COMMAND: {verb}"))
            .hint("CNI_COMMAND is ADD, DEL, CHECK, GC, STATUS, VERSION, RESTORE or PLAN"));
    }
    let version = parse_version(&verb, &conf)?;
    if refuses_duplicates(&verb)
        && let Some(duplicate) = duplicates.first()
    {
        return Err(Error::config(duplicate.to_string()).hint("remove all but one of them"));
    }
    let policy = node::policy(input)?;
    node::remove_tenants_args(policy, &mut conf, input);
    if is_strict(&verb) {
        conf.read::<Protocol>()?;
    }
    let args = parse_arguments(traits.known_args, &verb, &input.args)?;
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
        _ => call.dry_run().map(Request::Plan),
    }
}

/// Checks that the variables that the verb requires are set and valid. The others are not validated.
fn check_variables(input: &Input) -> Result<()> {
    let mut missing = Vec::new();
    for name in required(&input.command) {
        match *name {
            "CNI_CONTAINERID" if !input.container_id.is_empty() => {
                if let Err(text) = check_container_id(&input.container_id) {
                    return Err(Error::environment(text)
                        .detail(input.container_id.clone())
                        .hint("CNI_CONTAINERID has letters, digits, `_`, `.` and `-`"));
                }
            }
            "CNI_IFNAME" if !input.ifname.is_empty() => {
                if let Err(text) = check_ifname(&input.ifname) {
                    return Err(Error::environment(text)
                        .detail(input.ifname.clone())
                        .hint("CNI_IFNAME is a name such as eth0, of 1 to 15 bytes"));
                }
            }
            "CNI_NETNS" if !input.netns.is_empty() => {}
            name => missing.push(name),
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    Err(Error::environment(format!("required env variables [{}] missing", missing.join(",")))
        .hint("plugins are run by a container runtime; run this one without CNI_COMMAND for an example"))
}

/// The hint for a list that is too long.
const TOO_MUCH: &str =
    "the limits are far above the size of usual networks: check the program that writes this configuration";

/// Parses the configuration. Returns the keys that it has more than once, too.
fn parse_configuration(input: &mut Input) -> Result<(NetConf, Vec<Duplicate>)> {
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
            return Err(Error::new(code::DECODE, text).hint("write the network's `name` as a string"));
        }
    };
    if let Err(text) = check_network_name(&name) {
        return Err(Error::config(text).detail(name.clone()).hint(
            "a network's `name` begins with a letter or a digit, and has only letters, digits, `_`, `.` and `-`",
        ));
    }
    log::network(&name);
    // DEL removes what exists, however large the configuration is.
    if input.command != "DEL" {
        conf.check_size().map_err(|error| Error::from(error).hint(TOO_MUCH))?;
    }
    Ok((conf, duplicates))
}

/// The name of the network, if stdin has one.
pub(crate) fn network_name(input: &Input) -> String {
    let conf = NetConf::parse(input.stdin.so_far()).unwrap_or_default();
    conf.name().unwrap_or_default().to_owned()
}

/// Parses the configuration's version. It has to be one of the supported versions, spelled exactly, and has to have the verb.
fn parse_version(verb: &str, conf: &NetConf) -> Result<Version> {
    let text = match conf.get("cniVersion") {
        None => "",
        Some(Value::String(text)) => text,
        Some(other) => {
            let text = format!("decoding version from network config: `cniVersion` is not a string but {other}");
            return Err(Error::new(code::DECODE, text).hint("write `cniVersion` as a string, such as \"1.1.0\""));
        }
    };
    if let Some(oldest) = oldest_version(verb) {
        check_verb(verb, text, oldest)?;
    }
    Version::exact(text).ok_or_else(|| {
        let supported: Vec<String> = Version::ALL.iter().map(|version| format!("{:?}", version.as_str())).collect();
        Error::new(code::INCOMPATIBLE_VERSION, "incompatible CNI versions")
            .detail(format!("config is \"{text}\", plugin supports [{}]", supported.join(" ")))
            .hint("set `cniVersion` to one of these")
    })
}

/// Checks that a version has the verb.
fn check_verb(verb: &str, text: &str, oldest: Version) -> Result<()> {
    let misspelt = |text| Error::new(code::DECODE, text).hint("`cniVersion` is three numbers, such as 1.1.0");
    let parse = |text: &str| Release::parse(text).map_err(misspelt);
    let given = parse(if text.is_empty() { "0.1.0" } else { text })?;
    if given < parse(oldest.as_str())? {
        let text = format!("config version does not allow {verb}");
        return Err(Error::new(code::INCOMPATIBLE_VERSION, text)
            .hint(format!("{verb} exists since version {oldest}: raise `cniVersion`")));
    }
    if given > parse(Version::NEWEST.as_str())? {
        return Err(Error::new(code::INCOMPATIBLE_VERSION, format!("plugin version does not allow {verb}"))
            .detail(format!("config is \"{text}\", the newest that this plugin supports is {}", Version::NEWEST))
            .hint(format!("set `cniVersion` to {} or older, or install a newer plugin", Version::NEWEST)));
    }
    Ok(())
}

/// Parses `CNI_ARGS`. A plugin that lists the ones it knows refuses others on ADD and CHECK; they never fail another verb.
fn parse_arguments(known: Option<&[&str]>, verb: &str, text: &str) -> Result<Args> {
    let known = match known {
        Some(known) if is_strict(verb) => known,
        _ => return Ok(Args::parse(text).unwrap_or_default()),
    };
    let refused = |text| Error::environment(text).hint("CNI_ARGS is KEY=VALUE;KEY=VALUE");
    let args = Args::parse(text).map_err(refused)?;
    let ignores_unknown = match args.ignore_unknown() {
        Ok(ignores_unknown) => ignores_unknown,
        Err(text) => return Err(Error::environment(text).hint("set IgnoreUnknown in CNI_ARGS to 1 or 0")),
    };
    let unknown = args.unknown(known);
    if unknown.is_empty() || ignores_unknown {
        return Ok(args);
    }
    Err(Error::environment(format!("ARGS: unknown args {unknown:?}"))
        .hint(format!("this plugin knows {known:?}; to ignore all others, add IgnoreUnknown=1 to CNI_ARGS")))
}

impl Call {
    /// Parses the configuration into the plugin's type.
    pub(crate) fn configured<P: DeserializeOwned>(&self) -> Result<P> {
        self.conf.read().map_err(|error| sources::misread(error, &self.origins))
    }

    fn add(mut self, traits: Traits) -> Result<Add> {
        let prev = self.prev()?;
        let netns = self.sandbox(traits, prev.is_some())?;
        let attachment = self.attachment().with_respelled(&netns, prev.as_ref());
        Ok(Add { attachment, netns, prev, call: self })
    }

    fn check(mut self, traits: Traits) -> Result<Check> {
        let Some(prev) = self.prev()? else {
            let verb = &self.input.command;
            return Err(Error::config("Required prevResult missing").hint(format!(
                "the runtime must pass the result of the ADD to {verb}: if it has none, DEL and ADD again"
            )));
        };
        let netns = self.sandbox(traits, true)?;
        Ok(Check { attachment: self.attachment(), netns, prev, call: self })
    }

    fn del(mut self) -> Del {
        let prev = self.prev().unwrap_or_else(|error| {
            log::warn(format_args!("DEL continues without prevResult: {error}"));
            None
        });
        let netns = match self.input.find_netns() {
            NetnsLookup::Own(netns) if self.input.netns_override => NetnsLookup::Present(netns),
            found => found,
        };
        if let NetnsLookup::Present(found) = &netns {
            self.input.sandbox = Some(found.clone());
        }
        Del { tag: self.tag(), netns, prev, call: self }
    }

    fn gc(self) -> Result<Gc> {
        let Some(listed) = self.conf.valid_attachments()? else {
            return Err(Error::config("required key `cni.dev/valid-attachments` missing").hint(
                "GC removes every attachment that is not listed; if no attachment is valid, pass an empty list",
            ));
        };
        let valid = listed.into_iter().map(|attachment| (attachment.container_id, attachment.ifname)).collect();
        Ok(Gc { network: self.network().to_owned(), valid, call: self })
    }

    fn dry_run(self) -> Result<DryRun> {
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
        let Some(value) = self.conf.get("prevResult") else { return Ok(None) };
        match self.parse_prev(value) {
            Ok(prev) => Ok(Some(prev)),
            Err(error) => Err(Error::from(error.under("prevResult"))
                .context("could not parse prevResult")
                .hint("the runtime must pass the result of the ADD unchanged: DEL, then ADD again")),
        }
    }

    fn parse_prev(&self, value: &Value) -> Result<CniResult, ReadError> {
        let (_, prev) = CniResult::read(value, self.version)?;
        prev.check_size()?;
        Ok(prev)
    }

    /// The container's namespace. If it is gone the code is 3, "no DEL needed", unless the plugins before this one made something.
    fn sandbox(&mut self, traits: Traits, something_was_made: bool) -> Result<Netns> {
        let found = self.input.find_netns();
        let path = &self.input.netns;
        match found {
            NetnsLookup::Present(netns) => {
                self.input.sandbox = Some(netns.clone());
                Ok(netns)
            }
            NetnsLookup::Own(netns) if self.input.netns_override => Ok(netns),
            NetnsLookup::Own(_) => {
                Err(Error::new(code::INVALID_NETNS, "plugin's netns and netns from CNI_NETNS should not be the same")
                    .detail(path.clone())
                    .hint("pass the container's namespace; CNI_NETNS_OVERRIDE=1 if this is meant"))
            }
            _ if !traits.enters_netns => Ok(Netns::unopened(path)?),
            NetnsLookup::NotNetns { why, .. } => {
                Err(Error::environment(format!("CNI_NETNS {path:?} is not a network namespace: {why}"))
                    .hint("set CNI_NETNS to the container's namespace, such as /run/netns/NAME or /proc/PID/ns/net"))
            }
            NetnsLookup::Unknown { why, .. } => {
                let text = format!("the network namespace CNI_NETNS {path:?} cannot be opened: {why}");
                Err(Error::new(code::SYSTEM, text).hint("correct the cause, then try again"))
            }
            NetnsLookup::Gone | NetnsLookup::Empty => {
                let code = if something_was_made { code::INVALID_ENVIRONMENT } else { code::UNKNOWN_CONTAINER };
                Err(Error::new(code, format!("the network namespace CNI_NETNS {path:?} is gone"))
                    .hint("the container has ended, or the runtime did not create its namespace"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SANDBOX: &str = "/proc/self/ns/net";
    /// Another path to the namespace of this process.
    const SAME: &str = "/proc/thread-self/ns/net";

    fn interface(name: &str, sandbox: &str) -> Interface {
        Interface { name: name.into(), sandbox: sandbox.into(), ..Interface::default() }
    }

    /// An attachment in this process's namespace, after an ADD of a chain that reported `eth0` at these paths.
    fn after(sandboxes: &[&str]) -> AttachmentSpec {
        let mut interfaces = vec![interface("eth1", SAME), interface("eth0", "")];
        interfaces.extend(sandboxes.iter().map(|sandbox| interface("eth0", sandbox)));
        let prev = CniResult { interfaces, ..CniResult::default() };
        let tag = AttachmentId { network: "blue".into(), container: "c1".into(), ifname: "eth0".into() };
        let spec = AttachmentSpec {
            tag,
            sandbox: SANDBOX.into(),
            conf: NetConf::default(),
            version: Version::NEWEST,
            args: Args::default(),
            respelled: Vec::new(),
        };
        spec.with_respelled(&Netns::own().unwrap(), Some(&prev))
    }

    #[test]
    fn other_paths_to_the_namespace_are_its_own_and_paths_to_nowhere_only_without_one() {
        const GONE: &str = "/nonexistent/netns";
        const FILE: &str = "/proc/self/status";
        assert_eq!(after(&[SAME]).respelled, [SAME]);
        assert_eq!(after(&[GONE, SAME]).respelled, [SAME]);
        assert_eq!(after(&[GONE, FILE]).respelled, [GONE, FILE]);
        assert!(after(&[SANDBOX, GONE]).respelled.is_empty());
        assert_eq!(after(&[SANDBOX, SAME]).respelled, [SAME]);
        assert!(after(&[]).respelled.is_empty());
    }

    #[test]
    fn an_interface_is_the_attachments_by_its_name_and_any_spelling_of_the_sandbox() {
        let spec = after(&[SAME]);
        let is_own = |name, sandbox| spec.is_own(&interface(name, sandbox));
        assert!(is_own("eth0", SANDBOX) && is_own("eth0", SAME));
        assert!(!is_own("eth1", SANDBOX) && !is_own("eth1", SAME) && !is_own("eth0", "") && !is_own("eth0", "/other"));
    }

    #[test]
    fn a_set_of_valid_attachments_has_what_it_was_made_of() {
        let pairs = [("c1", "eth0"), ("c2", "eth1")];
        let set: ValidSet = pairs.iter().map(|(container, ifname)| ((*container).into(), (*ifname).into())).collect();
        assert!(set.has("c1", "eth0") && set.has("c2", "eth1"));
        assert!(!set.has("c1", "eth1") && !set.has("c3", "eth0"));
        let mut listed: Vec<(&str, &str)> = set.iter().collect();
        listed.sort_unstable();
        assert_eq!(listed, pairs);
    }

    #[test]
    fn each_verb_has_its_rules() {
        let verbs = ["ADD", "CHECK", "RESTORE", "DEL", "PLAN", "GC", "STATUS", "VERSION"];
        assert_eq!(verbs.map(|verb| required(verb).len()), [3, 3, 3, 2, 2, 0, 0, 0]);
        assert_eq!(verbs.map(is_strict), [true, true, true, false, true, false, false, false]);
        assert_eq!(verbs.map(refuses_duplicates), [true, true, false, false, true, false, true, false]);
        let versions = verbs.map(|verb| oldest_version(verb).map_or("", Version::as_str));
        assert_eq!(versions, ["", "0.4.0", "", "", "", "1.1.0", "1.1.0", ""]);
    }
}
