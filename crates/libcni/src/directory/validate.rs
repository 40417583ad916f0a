//! What is wrong, or looks wrong, with the configurations of a directory, before anything is set up with them.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use cnikit_invoke as invoke;
use cnikit_types::document::is_remark;
use cnikit_types::{NetConf, ReadError, Value, code, is_key};

use crate::config::list::{RESERVED, flag};
use crate::config::load::{Candidate, EXTENSIONS, append_file, beside};
use crate::directory::plugin_keys::{COMMON, IPAM, LIST, PluginKeys, nearest};
use crate::directory::select::asking;
use crate::directory::subnets::{self, Range, RoutedSubnet};
use crate::runtime::chain::unspoken;
use crate::{ConfigError, Error, FailureKind, NetworkList, Runtime, conf_files};

/// Of one file so much is told at most: who has corrected that can ask again.
const MOST: usize = 20;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The network can be used, but perhaps not as it is meant.
    Warning,
    /// The network cannot be used.
    Error,
}

/// Something that is wrong, or looks wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How bad it is.
    pub severity: Severity,
    /// Where it is, what, and what to do.
    pub defect: ConfigError,
}

/// Looks through a directory of configurations: everything that can be told without setting anything up.
///
/// Told are files that cannot be read or used; keys that no plugin takes, with the one that may have been meant;
/// plugins, IPAM plugins too, that are not found or do not speak the version; capabilities that nobody takes; two
/// networks with one name; addresses that two networks give, or to which the host has another route.
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
/// assert!(text.contains("10-pods.conflist:4:34: plugins[0].isGatway: no key of bridge"), "{text}");
/// assert!(text.ends_with("hint: did you mean `isGateway`?"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Validator {
    /// Where the configurations are.
    pub dir: PathBuf,
    /// Who looks for the plugins and asks them for their versions, ten seconds each at most; `None`: nobody does.
    pub runtime: Option<Runtime>,
    /// The keys of plugins; the keys of any other plugin are not judged.
    pub plugins: Vec<PluginKeys>,
    /// Capabilities of which the caller will give values: each network should declare them.
    pub capabilities: Vec<String>,
    /// The routes that the host has.
    pub routes: Vec<RoutedSubnet>,
}

/// A plugin's object, and where it stands.
struct Placed {
    /// The number of its file.
    file: usize,
    /// Its path in the file; empty if it is all of it.
    path: String,
    conf: NetConf,
}

/// A network, as far as it could be read.
struct Seen {
    file: usize,
    name: String,
    /// As it was negotiated; `None` if the network cannot be used.
    version: Option<String>,
    plugins: Vec<Placed>,
}

impl Validator {
    /// Validates the directory, and returns the findings in the order of the files and of their lines.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the directory cannot be listed.
    pub fn validate(&self) -> Result<Vec<Finding>, Error> {
        let mut look = Look { validator: self, files: Vec::new(), told: BTreeMap::new(), findings: Vec::new() };
        let mut networks = Vec::new();
        for path in conf_files(&self.dir, &EXTENSIONS)? {
            networks.extend(look.network(&path)?);
        }
        look.names(&networks);
        let (mut asked, runtime) = (Asked::new(), self.runtime.as_ref().map(asking));
        for network in &networks {
            look.keys(network);
            look.capabilities(network);
            if let Some(runtime) = &runtime {
                look.plugins(network, runtime, &mut asked);
            }
        }
        look.addresses(&networks);
        look.findings.sort_by(|one, other| order(one).cmp(&order(other)));
        Ok(look.findings)
    }

    fn keys_of(&self, plugin: &str) -> Option<&PluginKeys> {
        self.plugins.iter().find(|keys| keys.plugin == plugin)
    }
}

fn order(finding: &Finding) -> (&Path, Option<crate::SourceLocation>) {
    (&finding.defect.file, finding.defect.place)
}

/// The versions of each plugin that was asked.
type Asked = BTreeMap<String, Result<Vec<String>, FailureKind>>;

struct Look<'a> {
    validator: &'a Validator,
    files: Vec<Candidate>,
    /// How much was told of each file.
    told: BTreeMap<PathBuf, usize>,
    findings: Vec<Finding>,
}

impl<'a> Look<'a> {
    /// Reads one file; `None` if there is no network in it to be looked at.
    fn network(&mut self, path: &Path) -> Result<Option<Seen>, Error> {
        let found = match Candidate::read(path) {
            Ok(found) => found,
            Err(defect) => {
                self.tell(Severity::Error, defect);
                return Ok(None);
            }
        };
        let file = self.files.len();
        let mut read = if found.is_list() { found.inlined() } else { found.single() };
        let mut plugins = placed(&found, file);
        let is_alone = !found.is_list() || flag(&found.conf.0, "loadOnlyInlinedPlugins").unwrap_or_default();
        self.files.push(found);
        if let (Ok(list), false) = (&mut read, is_alone) {
            plugins.extend(self.beside(list)?);
        }
        let name = self.files[file].conf.name().unwrap_or_default().to_owned();
        let version = match read {
            Ok(_) if plugins.is_empty() => {
                self.tell(Severity::Error, self.files[file].without_plugins());
                None
            }
            Ok(list) => Some(list.version),
            Err(defect) => {
                let defects = self.files[file].defects(defect, MOST);
                defects.into_iter().for_each(|defect| self.tell(Severity::Error, defect));
                None
            }
        };
        let own = std::iter::once(file).chain(plugins.iter().map(|plugin| plugin.file)).collect::<BTreeSet<usize>>();
        own.into_iter().for_each(|file| self.duplicates(file));
        Ok(Some(Seen { file, name, version, plugins }))
    }

    /// Keys that one object has more than once: our plugins refuse their own. Runtimes take the last, also of a list's keys.
    fn duplicates(&mut self, file: usize) {
        for duplicate in self.files[file].duplicates.clone() {
            let found = &self.files[file];
            let is_plugins = !found.is_list() || duplicate.object.starts_with("plugins[");
            let why = "is given more than once";
            let error = ReadError::value(why).under(&duplicate.key);
            let error = if duplicate.object.is_empty() { error } else { error.under(&duplicate.object) };
            let defect = ConfigError::of_key(&found.path, &found.text, error, "remove all but one of them");
            self.tell(if is_plugins { Severity::Error } else { Severity::Warning }, defect);
        }
    }

    /// The plugins in the directory of the network's name.
    fn beside(&mut self, list: &mut NetworkList) -> Result<Vec<Placed>, Error> {
        let mut plugins = Vec::new();
        for path in beside(list, &self.validator.dir)? {
            match append_file(list, &path) {
                Ok(found) => {
                    plugins.push(Placed { file: self.files.len(), path: String::new(), conf: found.conf.clone() });
                    self.files.push(found);
                }
                Err(defect) => self.tell(Severity::Error, defect),
            }
        }
        Ok(plugins)
    }

    /// Two networks with one name: of a second nobody who looks for a name knows.
    fn names(&mut self, networks: &[Seen]) {
        // Lists are found before single plugins.
        let mut order: Vec<&Seen> = networks.iter().filter(|network| network.version.is_some()).collect();
        order.sort_by_key(|network| !self.files[network.file].is_list());
        let mut first: BTreeMap<&str, usize> = BTreeMap::new();
        for network in order {
            let Some(earlier) = first.get(network.name.as_str()).copied() else {
                first.insert(&network.name, network.file);
                continue;
            };
            let why = format!(
                "network \"{}\" is also in {}, which is found first",
                network.name,
                self.files[earlier].path.display()
            );
            self.warn(network.file, "name", why, "remove one of the files, or give its network another name");
        }
    }

    fn keys(&mut self, network: &Seen) {
        if self.files[network.file].is_list() {
            let names: Vec<String> = self.files[network.file].conf.0.keys().cloned().collect();
            for name in names.iter().filter(|name| !LIST.contains(&name.as_str()) && !is_remark(name)).take(MOST) {
                let meant = LIST.iter().find(|known| is_key(name, known)).copied();
                let meant = meant.or_else(|| nearest(name, LIST.into_iter()));
                self.warn(
                    network.file,
                    name,
                    "no key of a list, whose keys are matched letter by letter".to_owned(),
                    &mean(meant),
                );
            }
        }
        for plugin in &network.plugins {
            self.keys_of_plugin(plugin);
        }
    }

    fn keys_of_plugin(&mut self, plugin: &Placed) {
        for key in plugin.conf.0.keys().filter(|key| RESERVED.iter().any(|name| is_key(key, name))).take(MOST) {
            self.warn(plugin.file, &plugin.at(key), "only a runtime sets it: it is left out".to_owned(), "remove it");
        }
        if let Some(keys) = self.known(plugin.conf.plugin_type()) {
            let common = [&COMMON[..], &RESERVED].concat();
            self.unknown(keys, plugin, "", keys.unknown(&plugin.conf.0, &common, MOST));
        }
        if let (Some(keys), Some(Value::Object(ipam))) = (self.known(plugin.conf.ipam_type()), plugin.conf.get("ipam"))
        {
            self.unknown(keys, plugin, "ipam", keys.unknown(ipam, &IPAM, MOST));
        }
    }

    fn unknown(
        &mut self,
        keys: &PluginKeys,
        plugin: &Placed,
        under: &str,
        unknown: Vec<crate::directory::plugin_keys::Unknown>,
    ) {
        for unknown in unknown {
            let path = if under.is_empty() { unknown.path } else { format!("{under}.{}", unknown.path) };
            self.warn(
                plugin.file,
                &plugin.at(&path),
                format!("no key of {}", keys.plugin),
                &mean(unknown.meant.as_deref()),
            );
        }
    }

    fn known(&self, plugin: Option<&str>) -> Option<&'a PluginKeys> {
        self.validator.keys_of(plugin?)
    }

    /// Capabilities that are declared for a plugin that takes them not, and those that nobody declares.
    fn capabilities(&mut self, network: &Seen) {
        let mut declared = BTreeSet::new();
        for plugin in &network.plugins {
            let Some(Value::Object(capabilities)) = plugin.conf.get("capabilities") else { continue };
            let names: Vec<&String> =
                capabilities.iter().filter(|(_, on)| **on == Value::Bool(true)).map(|(name, _)| name).collect();
            declared.extend(names.iter().map(|name| (*name).clone()));
            let Some(own) = self.known(plugin.conf.plugin_type()) else { continue };
            let ipam = match plugin.conf.ipam_type().map(|ipam| self.known(Some(ipam))) {
                // Nobody knows what that takes.
                Some(None) => continue,
                ipam => ipam.flatten(),
            };
            let taken: Vec<&str> =
                own.capabilities().chain(ipam.into_iter().flat_map(PluginKeys::capabilities)).collect();
            for name in names.into_iter().filter(|name| !taken.contains(&name.as_str())).take(MOST) {
                let meant = nearest(name, taken.iter().copied());
                let why = format!("{} takes no such capability", own.plugin);
                self.warn(plugin.file, &plugin.at(&format!("capabilities.{name}")), why, &mean(meant));
            }
        }
        for name in self.validator.capabilities.iter().filter(|name| !declared.contains(*name)) {
            let why = format!("no plugin of the network takes the capability \"{name}\", which will be given");
            let hint = format!("add \"capabilities\": {{\"{name}\": true}} to the plugin that is to have it");
            self.warn(network.file, "plugins", why, &hint);
        }
    }

    /// Plugins that are not found, cannot be run, or do not speak the version.
    fn plugins(&mut self, network: &Seen, runtime: &Runtime, asked: &mut Asked) {
        for plugin in &network.plugins {
            let types = [("type", plugin.conf.plugin_type()), ("ipam.type", plugin.conf.ipam_type())];
            for (key, name) in types.into_iter().filter_map(|(key, name)| Some((key, name?))) {
                if self.is_told_enough(plugin.file) {
                    continue;
                }
                let spoken = asked.entry(name.to_owned()).or_insert_with(|| runtime.ask_versions(name));
                let Some((code, why, hint)) = refusal(name, network.version.as_deref(), spoken) else { continue };
                let found = &self.files[plugin.file];
                let defect =
                    ConfigError::of_key(&found.path, &found.text, ReadError::value(why).under(&plugin.at(key)), hint);
                self.tell(Severity::Error, ConfigError { code, ..defect });
            }
        }
    }

    /// Addresses that two networks give, or that the host has a route to.
    fn addresses(&mut self, networks: &[Seen]) {
        let usable = || networks.iter().enumerate().filter(|(_, network)| network.version.is_some());
        // Where two networks overlap, that is said of them.
        let own: BTreeSet<String> = usable()
            .flat_map(|(_, network)| &network.plugins)
            .flat_map(|plugin| subnets::own_links(&plugin.conf))
            .collect();
        let mut all: Vec<(usize, &Placed, Range)> = Vec::new();
        for (number, network) in usable() {
            for plugin in &network.plugins {
                for range in subnets::ranges(&plugin.conf) {
                    if let Some(route) = subnets::met(&range, &self.validator.routes, &own) {
                        let why = format!(
                            "{} overlaps the host's route to {} over {}",
                            range.subnet, route.network, route.device
                        );
                        self.warn(
                            plugin.file,
                            &plugin.at(&range.key),
                            why,
                            "give the network addresses that are nobody else's",
                        );
                    }
                    all.push((number, plugin, range));
                }
            }
        }
        let ranges: Vec<(usize, &Range)> = all.iter().map(|(number, _, range)| (*number, range)).collect();
        for (one, other) in subnets::overlaps(&ranges) {
            let ((_, plugin, range), (network, there, rival)) = (&all[one], &all[other]);
            let (name, file) = (&networks[*network].name, &self.files[there.file].path);
            let why = format!("{} overlaps {} of network \"{name}\" in {}", range.subnet, rival.subnet, file.display());
            self.warn(plugin.file, &plugin.at(&range.key), why, "give each network addresses of its own");
        }
    }

    fn warn(&mut self, file: usize, key: &str, why: String, hint: &str) {
        if !self.is_told_enough(file) {
            let found = &self.files[file];
            let defect = ConfigError::of_key(&found.path, &found.text, ReadError::value(why).under(key), hint);
            self.tell(Severity::Warning, defect);
        }
    }

    fn is_told_enough(&self, file: usize) -> bool {
        self.told.get(&self.files[file].path).is_some_and(|told| *told >= MOST)
    }

    fn tell(&mut self, severity: Severity, defect: ConfigError) {
        let told = self.told.entry(defect.file.clone()).or_default();
        *told += 1;
        if *told <= MOST {
            self.findings.push(Finding { severity, defect });
        }
    }
}

impl Placed {
    fn at(&self, key: &str) -> String {
        if self.path.is_empty() { key.to_owned() } else { format!("{}.{key}", self.path) }
    }
}

/// The plugins of a document.
fn placed(found: &Candidate, file: usize) -> Vec<Placed> {
    if !found.is_list() {
        let conf = found.conf.clone();
        return vec![Placed { file, path: String::new(), conf }];
    }
    let plugins = found.conf.0.get("plugins").and_then(Value::as_array).into_iter().flatten().enumerate();
    let objects = plugins.filter_map(|(index, plugin)| Some((index, plugin.as_object()?.clone())));
    objects.map(|(index, plugin)| Placed { file, path: format!("plugins[{index}]"), conf: NetConf(plugin) }).collect()
}

fn mean(meant: Option<&str>) -> String {
    meant.map_or_else(|| "remove it, or correct its name".to_owned(), |meant| format!("did you mean `{meant}`?"))
}

/// Why a plugin cannot serve a version, or any if none is known: code, cause and hint.
fn refusal(
    plugin: &str,
    version: Option<&str>,
    spoken: &Result<Vec<String>, FailureKind>,
) -> Option<(u32, String, String)> {
    let lacking = spoken.as_ref().ok().map(|spoken| version.and_then(|version| unspoken(version, spoken)));
    let why = match (spoken, &lacking) {
        (Err(why), _) => why,
        (Ok(_), lacking) => lacking.as_ref()?.as_ref()?,
    };
    let (code, text) = match why {
        FailureKind::NotDone(error) => match &**error {
            invoke::Error::Refused(refused) => (refused.code, error.to_string()),
            _ => (code::INVALID_CONFIG, error.to_string()),
        },
        FailureKind::Garbled(text) => (code::DECODE, format!("{plugin}'s answer to VERSION cannot be read: {text}")),
        FailureKind::Unspoken(text) => (code::INCOMPATIBLE_VERSION, format!("{plugin} {text}")),
    };
    Some((code, text, why.hint().unwrap_or_else(|| format!("find out what is wrong with {plugin}"))))
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
        write!(f, "{}: {}", self.severity, self.defect)
    }
}
