//! Validates the configurations of a directory before they are used.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use cnikit_invoke as invoke;
use cnikit_types::document::is_remark;
use cnikit_types::{NetConf, ReadError, Value, code, is_key};

use crate::config::list::{RESERVED, flag};
use crate::config::load::{Candidate, EXTENSIONS, append_file, plugin_files};
use crate::directory::plugin_keys::{COMMON, IPAM, KeyError, LIST, PluginKeys, nearest};
use crate::directory::select::for_version;
use crate::directory::subnets::{self, Range, RoutedSubnet};
use crate::runtime::chain::unsupported;
use crate::{ConfigError, Error, FailureKind, NetworkList, Runtime, SourceLocation, conf_files};

/// The most findings in one file: after correcting them the user validates again.
const MOST: usize = 20;

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The network can be used, but perhaps not as intended.
    Warning,
    /// The network cannot be used.
    Error,
}

/// An error or a warning about a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Its severity.
    pub severity: Severity,
    /// File, position, cause and hint.
    pub error: ConfigError,
}

/// Validates a directory of configurations without changing anything.
///
/// Findings are: files that cannot be read or used; unknown keys, with the key that was probably meant; missing keys, and values of
/// a wrong type; plugins, IPAM plugins too, that are not found or do not support the version; capabilities that no plugin supports;
/// two networks with the same name; addresses that two networks assign, or to which the host has another route.
///
/// ```
/// use cnikit_libcni::{PluginKeys, Severity, Validator};
/// # let dir = tempfile::tempdir()?;
/// let text = r#"{
///   "cniVersion": "1.1.0",
///   "name": "pods",
///   "plugins": [{"type": "bridge", "isGatway": true}]
/// }"#;
/// std::fs::write(dir.path().join("10-pods.conflist"), text)?;
///
/// let bridge = PluginKeys { plugin: "bridge".into(), keys: vec!["bridge".into(), "isGateway".into()] };
/// let validator = Validator { dir: dir.path().to_owned(), plugins: vec![bridge], ..Validator::default() };
/// let findings = validator.validate()?;
/// assert_eq!((findings.len(), findings[0].severity), (1, Severity::Warning));
/// let text = findings[0].to_string();
/// assert!(text.contains("10-pods.conflist:4:34: plugins[0].isGatway: bridge has no such key"), "{text}");
/// assert!(text.ends_with("hint: did you mean `isGateway`?"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Validator {
    /// The directory of configurations.
    pub dir: PathBuf,
    /// The runtime that finds plugins and runs their VERSION, at most ten seconds each; with `None` plugins are not checked.
    pub runtime: Option<Runtime>,
    /// The keys of plugins; the keys of other plugins are not checked.
    pub plugins: Vec<PluginKeys>,
    /// The capabilities that the caller will set: each network should declare them.
    pub capabilities: Vec<String>,
    /// The routes of the host.
    pub routes: Vec<RoutedSubnet>,
}

/// A plugin's object, with its position.
struct PluginObject {
    /// The index of its file.
    file: usize,
    /// Its path in the file; empty if the plugin is the whole document.
    path: String,
    conf: NetConf,
}

/// A network, as far as it could be read.
struct Network {
    /// The index of its file.
    file: usize,
    name: String,
    /// The version in which its plugins are called; `None` if the network cannot be used.
    version: Option<String>,
    plugins: Vec<PluginObject>,
}

impl Validator {
    /// Validates the directory, and returns the findings in the order of the files and of their lines.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the directory cannot be listed.
    pub fn validate(&self) -> Result<Vec<Finding>, Error> {
        self.validate_files(&conf_files(&self.dir, &EXTENSIONS)?)
    }

    /// Validates one file of any directory, with the files of plugins that belong to its list. The networks of other files are not
    /// compared with it.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the file has none of the [`EXTENSIONS`], or the directory of its plugins cannot be listed.
    pub fn validate_file(&self, file: &Path) -> Result<Vec<Finding>, Error> {
        if !file.extension().is_some_and(|end| EXTENSIONS.iter().any(|known| end == *known)) {
            let message = "runtimes read only files that end in .conflist, .conf or .json".to_owned();
            return Err(ConfigError::of_file(file, message, "rename the file").into());
        }
        self.validate_files(&[file.to_owned()])
    }

    fn validate_files(&self, paths: &[PathBuf]) -> Result<Vec<Finding>, Error> {
        let mut validation =
            Validation { validator: self, files: Vec::new(), counts: BTreeMap::new(), findings: Vec::new() };
        let mut networks = Vec::new();
        for path in paths {
            if let Some(network) = validation.network(path)? {
                networks.push(network);
            }
        }
        validation.names(&networks);
        let runtime = self.runtime.as_ref().map(for_version);
        let mut versions = VersionCache::new();
        for network in &networks {
            validation.keys(network);
            validation.capabilities(network);
            if let Some(runtime) = &runtime {
                validation.plugins(network, runtime, &mut versions);
            }
        }
        validation.addresses(&networks);
        validation.findings.sort_by(|one, other| position(one).cmp(&position(other)));
        Ok(validation.findings)
    }

    fn keys_of(&self, plugin: Option<&str>) -> Option<&PluginKeys> {
        let plugin = plugin?;
        self.plugins.iter().find(|keys| keys.plugin == plugin)
    }
}

fn position(finding: &Finding) -> (&Path, Option<SourceLocation>) {
    (&finding.error.file, finding.error.location)
}

/// The versions that each plugin supports, so that it is called once.
type VersionCache = BTreeMap<String, Result<Vec<String>, FailureKind>>;

struct Validation<'a> {
    validator: &'a Validator,
    files: Vec<Candidate>,
    /// The number of findings of each file.
    counts: BTreeMap<PathBuf, usize>,
    findings: Vec<Finding>,
}

impl Validation<'_> {
    /// Reads one file; `None` if it has no network to check.
    fn network(&mut self, path: &Path) -> Result<Option<Network>, Error> {
        let found = match Candidate::read(path) {
            Ok(found) => found,
            Err(error) => {
                self.add(Severity::Error, error);
                return Ok(None);
            }
        };
        let file = self.files.len();
        let mut read = if found.is_list() { found.inlined() } else { found.single() };
        let mut plugins = plugin_objects(&found, file);
        let is_alone = !found.is_list() || flag(&found.conf.0, "loadOnlyInlinedPlugins").unwrap_or_default();
        let name = found.conf.name().unwrap_or_default().to_owned();
        self.files.push(found);
        if let Ok(list) = &mut read
            && !is_alone
        {
            plugins.extend(self.plugins_of_other_files(list, path.parent().unwrap_or(Path::new("")))?);
        }
        let version = match read {
            Ok(_) if plugins.is_empty() => {
                self.add(Severity::Error, self.files[file].without_plugins());
                None
            }
            Ok(list) => Some(list.version),
            Err(error) => {
                for error in self.files[file].errors(error, MOST) {
                    self.add(Severity::Error, error);
                }
                None
            }
        };
        let mut files = BTreeSet::from([file]);
        files.extend(plugins.iter().map(|plugin| plugin.file));
        for file in files {
            self.duplicates(file);
        }
        Ok(Some(Network { file, name, version, plugins }))
    }

    /// Reports keys that one object has more than once. Our plugins refuse that in their own object; runtimes use the last one,
    /// also for the keys of a list.
    fn duplicates(&mut self, file: usize) {
        for duplicate in self.files[file].duplicates.clone() {
            let found = &self.files[file];
            let is_of_plugin = !found.is_list() || duplicate.object.starts_with("plugins[");
            let mut error = ReadError::value("is given more than once").under(&duplicate.key);
            if !duplicate.object.is_empty() {
                error = error.under(&duplicate.object);
            }
            let error = ConfigError::of_key(&found.path, &found.text, error, "remove all but one of them");
            self.add(if is_of_plugin { Severity::Error } else { Severity::Warning }, error);
        }
    }

    /// Adds the plugins in the directory of the network's name to the list.
    fn plugins_of_other_files(&mut self, list: &mut NetworkList, dir: &Path) -> Result<Vec<PluginObject>, Error> {
        let mut plugins = Vec::new();
        for path in plugin_files(list, dir)? {
            match append_file(list, &path) {
                Ok(found) => {
                    let conf = found.conf.clone();
                    plugins.push(PluginObject { file: self.files.len(), path: String::new(), conf });
                    self.files.push(found);
                }
                Err(error) => self.add(Severity::Error, error),
            }
        }
        Ok(plugins)
    }

    /// Reports two networks with the same name: the second is not found by its name.
    fn names(&mut self, networks: &[Network]) {
        // Lists are found before single plugins.
        let mut order: Vec<&Network> = networks.iter().filter(|network| network.version.is_some()).collect();
        order.sort_by_key(|network| !self.files[network.file].is_list());
        let mut first: BTreeMap<&str, usize> = BTreeMap::new();
        for network in order {
            let Some(earlier) = first.get(network.name.as_str()).copied() else {
                first.insert(&network.name, network.file);
                continue;
            };
            let earlier = self.files[earlier].path.display();
            let message = format!("network \"{}\" is also in {earlier}, which is found first", network.name);
            self.warn(network.file, "name", message, "remove one of the files, or give its network another name");
        }
    }

    fn keys(&mut self, network: &Network) {
        if self.files[network.file].is_list() {
            let names: Vec<String> = self.files[network.file].conf.0.keys().cloned().collect();
            let is_unknown = |name: &&String| !LIST.contains(&name.as_str()) && !is_remark(name);
            for name in names.iter().filter(is_unknown).take(MOST) {
                let in_another_case = LIST.iter().find(|known| is_key(name, known)).copied();
                let meant = in_another_case.or_else(|| nearest(name, LIST.into_iter()));
                let message = "a list has no such key; its keys are case-sensitive".to_owned();
                self.warn(network.file, name, message, &meant_hint(meant));
            }
        }
        for plugin in &network.plugins {
            self.keys_of_plugin(plugin);
        }
    }

    fn keys_of_plugin(&mut self, plugin: &PluginObject) {
        let is_reserved = |key: &&String| RESERVED.iter().any(|name| is_key(key, name));
        for key in plugin.conf.0.keys().filter(is_reserved).take(MOST) {
            let message = "only a runtime sets it: it is not passed to the plugin".to_owned();
            self.warn(plugin.file, &plugin.at(key), message, "remove it");
        }
        if let Some(keys) = self.validator.keys_of(plugin.conf.plugin_type()) {
            let common = [&COMMON[..], &RESERVED].concat();
            for error in keys.errors(&plugin.conf.0, &common, MOST) {
                self.key_error(keys, plugin, "", error);
            }
        }
        if let Some(wrong) = plugin.conf.at(&["ipam", "type"]).filter(|value| !value.is_string() && !value.is_null()) {
            let error = ReadError::wrong_type(format!("expected a text, found {wrong}")).under(&plugin.at("ipam.type"));
            let found = &self.files[plugin.file];
            let error = ConfigError::of_key(&found.path, &found.text, error, "write the name of an IPAM plugin");
            self.add(Severity::Error, error);
        }
        if let Some(keys) = self.validator.keys_of(plugin.conf.ipam_type())
            && let Some(Value::Object(ipam)) = plugin.conf.get("ipam")
        {
            for error in keys.errors(ipam, &IPAM, MOST) {
                self.key_error(keys, plugin, "ipam.", error);
            }
        }
    }

    /// Reports an error in a key of a plugin. `prefix` is the path of the object that was searched.
    fn key_error(&mut self, keys: &PluginKeys, plugin: &PluginObject, prefix: &str, error: KeyError) {
        match error {
            KeyError::Unknown { path, meant } => {
                let message = format!("{} has no such key", keys.plugin);
                self.warn(plugin.file, &plugin.at(&format!("{prefix}{path}")), message, &meant_hint(meant.as_deref()));
            }
            KeyError::Invalid(error) => {
                let path = plugin.at(&format!("{prefix}{}", error.path));
                let found = &self.files[plugin.file];
                let hint = match &error.hint {
                    Some(hint) => hint.clone(),
                    None => format!("correct it: see the documentation of {}", keys.plugin),
                };
                let error = ConfigError::of_key(&found.path, &found.text, ReadError { path, ..error }, hint);
                self.add(Severity::Error, error);
            }
        }
    }

    /// Reports capabilities that a plugin declares and does not support, and those that no plugin declares.
    fn capabilities(&mut self, network: &Network) {
        let mut declared = BTreeSet::new();
        for plugin in &network.plugins {
            let Some(Value::Object(capabilities)) = plugin.conf.get("capabilities") else { continue };
            let mut names = Vec::new();
            for (name, value) in capabilities {
                if *value == Value::Bool(true) {
                    names.push(name);
                    declared.insert(name.clone());
                }
            }
            self.unsupported_capabilities(plugin, &names);
        }
        for name in &self.validator.capabilities {
            if !declared.contains(name) {
                let message =
                    format!("no plugin of the network takes the capability \"{name}\", which the runtime will pass");
                let hint = format!("add \"capabilities\": {{\"{name}\": true}} to the plugin that needs it");
                self.warn(network.file, "plugins", message, &hint);
            }
        }
    }

    /// Reports declared capabilities that neither the plugin nor its IPAM plugin supports.
    fn unsupported_capabilities(&mut self, plugin: &PluginObject, declared: &[&String]) {
        let Some(own) = self.validator.keys_of(plugin.conf.plugin_type()) else { return };
        let mut supported: Vec<&str> = own.capabilities().collect();
        if let Some(ipam_type) = plugin.conf.ipam_type() {
            // The capabilities of an unknown IPAM plugin are unknown.
            let Some(ipam) = self.validator.keys_of(Some(ipam_type)) else { return };
            supported.extend(ipam.capabilities());
        }
        for name in declared.iter().filter(|name| !supported.contains(&name.as_str())).take(MOST) {
            let meant = nearest(name, supported.iter().copied());
            let message = format!("{} does not support this capability", own.plugin);
            self.warn(plugin.file, &plugin.at(&format!("capabilities.{name}")), message, &meant_hint(meant));
        }
    }

    /// Reports plugins that are not found, cannot be run, or do not support the version.
    fn plugins(&mut self, network: &Network, runtime: &Runtime, versions: &mut VersionCache) {
        for plugin in &network.plugins {
            for (key, plugin_type) in [("type", plugin.conf.plugin_type()), ("ipam.type", plugin.conf.ipam_type())] {
                let Some(name) = plugin_type else { continue };
                if self.is_full(plugin.file) {
                    continue;
                }
                let supported = versions.entry(name.to_owned()).or_insert_with(|| runtime.supported_versions(name));
                let Some(refusal) = refusal(name, network.version.as_deref(), supported) else { continue };
                let found = &self.files[plugin.file];
                let error = ReadError::value(refusal.message).under(&plugin.at(key));
                let hint = match self.similar_plugin(name, supported) {
                    Some(meant) => format!("did you mean `{meant}`? If not, {}", refusal.hint),
                    None => refusal.hint,
                };
                let error = ConfigError::of_key(&found.path, &found.text, error, hint);
                self.add(Severity::Error, ConfigError { code: refusal.code, ..error });
            }
        }
    }

    /// The plugin with known keys that was probably meant by the name of one that was not found.
    fn similar_plugin(&self, name: &str, supported: &Result<Vec<String>, FailureKind>) -> Option<&str> {
        let Err(FailureKind::Call(error)) = supported else { return None };
        if !matches!(**error, invoke::Error::NotFound { .. }) {
            return None;
        }
        let meant = nearest(name, self.validator.plugins.iter().map(|keys| keys.plugin.as_str()))?;
        if meant == name { None } else { Some(meant) }
    }

    /// Reports addresses that two networks assign, or that the host has a route to.
    fn addresses(&mut self, networks: &[Network]) {
        let mut usable: Vec<(usize, &PluginObject)> = Vec::new();
        for (number, network) in networks.iter().enumerate() {
            if network.version.is_some() {
                usable.extend(network.plugins.iter().map(|plugin| (number, plugin)));
            }
        }
        // Routes on the links of any network do not count: overlapping networks are found below.
        let own: BTreeSet<String> = usable.iter().flat_map(|(_, plugin)| subnets::own_links(&plugin.conf)).collect();
        let mut all: Vec<(usize, &PluginObject, Range)> = Vec::new();
        for (number, plugin) in usable {
            for range in subnets::ranges(&plugin.conf) {
                if let Some(route) = subnets::overlapping_route(&range, &self.validator.routes, &own) {
                    let RoutedSubnet { network, device } = route;
                    let message = format!("{} overlaps the host's route to {network} over {device}", range.subnet);
                    let hint = "give the network addresses that no other network uses";
                    self.warn(plugin.file, &plugin.at(&range.key), message, hint);
                }
                all.push((number, plugin, range));
            }
        }
        let ranges: Vec<(usize, &Range)> = all.iter().map(|(number, _, range)| (*number, range)).collect();
        for (one, other) in subnets::overlaps(&ranges) {
            let (_, plugin, range) = &all[one];
            let (network, rival_plugin, rival) = &all[other];
            let name = &networks[*network].name;
            let file = self.files[rival_plugin.file].path.display();
            let message = format!("{} overlaps {} of network \"{name}\" in {file}", range.subnet, rival.subnet);
            self.warn(plugin.file, &plugin.at(&range.key), message, "give each network addresses of its own");
        }
    }

    fn warn(&mut self, file: usize, key: &str, message: String, hint: &str) {
        if !self.is_full(file) {
            let found = &self.files[file];
            let error = ConfigError::of_key(&found.path, &found.text, ReadError::value(message).under(key), hint);
            self.add(Severity::Warning, error);
        }
    }

    /// Whether a file has reached the limit of findings.
    fn is_full(&self, file: usize) -> bool {
        self.counts.get(&self.files[file].path).is_some_and(|count| *count >= MOST)
    }

    fn add(&mut self, severity: Severity, error: ConfigError) {
        let count = self.counts.entry(error.file.clone()).or_default();
        *count += 1;
        if *count <= MOST {
            self.findings.push(Finding { severity, error });
        }
    }
}

impl PluginObject {
    /// The path of a key in the file.
    fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

/// The plugins of a document.
fn plugin_objects(found: &Candidate, file: usize) -> Vec<PluginObject> {
    if !found.is_list() {
        return vec![PluginObject { file, path: String::new(), conf: found.conf.clone() }];
    }
    let mut objects = Vec::new();
    let plugins = found.conf.0.get("plugins").and_then(Value::as_array);
    for (index, plugin) in plugins.into_iter().flatten().enumerate() {
        if let Value::Object(members) = plugin {
            objects.push(PluginObject { file, path: format!("plugins[{index}]"), conf: NetConf(members.clone()) });
        }
    }
    objects
}

fn meant_hint(meant: Option<&str>) -> String {
    match meant {
        Some(key) => format!("did you mean `{key}`?"),
        None => "remove it, or correct its name".to_owned(),
    }
}

/// Why a plugin cannot be used.
struct UnusablePlugin {
    code: u32,
    message: String,
    hint: String,
}

/// Why a plugin cannot serve a version; without a version, why it cannot be called at all.
fn refusal(
    plugin: &str,
    version: Option<&str>,
    supported: &Result<Vec<String>, FailureKind>,
) -> Option<UnusablePlugin> {
    match supported {
        Err(kind) => Some(refusal_of(plugin, kind)),
        Ok(supported) => Some(refusal_of(plugin, &unsupported(version?, supported)?)),
    }
}

fn refusal_of(plugin: &str, kind: &FailureKind) -> UnusablePlugin {
    let (code, message) = match kind {
        FailureKind::Call(error) => match &**error {
            invoke::Error::Refused(refused) => (refused.code, error.to_string()),
            _ => (code::INVALID_CONFIG, error.to_string()),
        },
        FailureKind::InvalidOutput(text) => {
            (code::DECODE, format!("{plugin}'s answer to VERSION cannot be read: {text}"))
        }
        FailureKind::UnsupportedVersion(text) => (code::INCOMPATIBLE_VERSION, format!("{plugin} {text}")),
    };
    let hint = kind.hint().unwrap_or_else(|| format!("find out why {plugin} fails"));
    UnusablePlugin { code, message, hint }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Warning => "warning",
            Severity::Error => "error",
        })
    }
}

/// `error: FILE:LINE:COLUMN: KEY: what is wrong; hint: what to do`.
impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.severity, self.error)
    }
}
