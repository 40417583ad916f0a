//! Selects the networks of a directory that a runtime uses, and the default among them.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::load::{EXTENSIONS, find};
use crate::{ConfigError, Error, NetworkFile, Runtime, conf_files, list_from_file};

/// How a runtime selects networks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectionPolicy {
    /// The network of this name, as [`load()`](crate::load()) finds it: lists before single plugins.
    ByName(String),
    /// As cri-dockerd does, and kubelet before 1.24: the first valid file in the order of their names is the only network.
    FirstValid,
    /// As CRI-O does: every valid network is used, the first of each name. The default is the first of all, or the network with
    /// the given name (`cni_default_network`).
    FirstOfEachName(Option<String>),
    /// As containerd does: this number of files, in the order of their names; 0 for all (`max_conf_num`). Plugins are not called.
    /// If one file cannot be used, none is.
    FirstFiles(usize),
}

/// Selects among the networks of a directory.
///
/// ```
/// use cnikit_libcni::{NetworkSelector, Reason, SelectionPolicy};
/// # let dir = tempfile::tempdir()?;
/// for (file, name) in [("10-a.conflist", "a"), ("20-b.conflist", "b")] {
///     let text = format!(r#"{{"cniVersion": "1.1.0", "name": "{name}", "plugins": [{{"type": "bridge"}}]}}"#);
///     std::fs::write(dir.path().join(file), text)?;
/// }
/// std::fs::write(dir.path().join("00-torn.conf"), "{")?;
///
/// let selector = NetworkSelector { dir: dir.path().to_owned(), policy: SelectionPolicy::FirstValid, runtime: None };
/// let selection = selector.select()?;
/// assert_eq!(selection.default_network().unwrap().list.name, "a");
/// assert!(matches!(selection.skipped[0].reason, Reason::Invalid(_)));
/// let skipped = selection.skipped[1].to_string();
/// assert!(skipped.ends_with("20-b.conflist: comes after 10-a.conflist, which is the default"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct NetworkSelector {
    /// The directory of configurations.
    pub dir: PathBuf,
    /// How networks are selected.
    pub policy: SelectionPolicy,
    /// The runtime that validates the plugins of each network ([`Runtime::validate`]); with `None` no plugin is called.
    /// [`SelectionPolicy::ByName`] and [`SelectionPolicy::FirstFiles`] never call plugins. No plugin gets more than ten seconds.
    pub runtime: Option<Runtime>,
}

/// How long a plugin may take for VERSION, which changes nothing.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The networks that were selected, and the files that were not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// The networks that are used.
    pub networks: Vec<NetworkFile>,
    /// The index of the default; `None` if there is none, or if the network that has to be the default does not exist.
    pub default: Option<usize>,
    /// Every other file, in the order in which they were read.
    pub skipped: Vec<SkippedFile>,
}

/// A file that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SkippedFile {
    /// The file.
    pub file: PathBuf,
    /// Why it is not used.
    pub reason: Reason,
}

/// Why a file is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// It cannot be read, or is not a valid configuration.
    Invalid(ConfigError),
    /// Plugins are missing or do not support its version: the failures as text.
    Plugins(String),
    /// An earlier file, this one, has a network with the same name.
    SameName(PathBuf),
    /// Earlier files were enough for the policy; this is the last of them.
    NotNeeded(PathBuf),
    /// It is valid, but the policy wants all files or none, and this one is not valid.
    OtherInvalid(PathBuf),
}

impl Selection {
    /// The default network; `None` if there is none that can be used.
    pub fn default_network(&self) -> Option<&NetworkFile> {
        self.networks.get(self.default?)
    }

    /// Sets the default: the first network for which `may_be` is true.
    fn with_default(self, may_be: impl Fn(&NetworkFile) -> bool) -> Selection {
        Selection { default: self.networks.iter().position(may_be), ..self }
    }

    fn skip(&mut self, file: &Path, reason: Reason) {
        self.skipped.push(SkippedFile { file: file.to_owned(), reason });
    }
}

impl NetworkSelector {
    /// Reads the directory and selects networks. A file that cannot be used is part of the result; a directory that does not
    /// exist has no networks.
    ///
    /// # Errors
    /// [`Error::Configuration`] if the directory cannot be listed.
    #[doc(alias = "getDefaultCNINetwork")]
    pub fn select(&self) -> Result<Selection, Error> {
        match &self.policy {
            SelectionPolicy::ByName(name) => self.by_name(name),
            SelectionPolicy::FirstValid => self.first_valid(),
            SelectionPolicy::FirstOfEachName(default) => self.first_of_each_name(default.as_deref()),
            SelectionPolicy::FirstFiles(most) => self.first_files(*most),
        }
    }

    fn by_name(&self, name: &str) -> Result<Selection, Error> {
        let mut selection = Selection::default();
        let errors = match find(&self.dir, name) {
            Ok((network, skipped)) => {
                selection.networks.push(network);
                skipped
            }
            Err(Error::NoConfigurations { .. }) => Vec::new(),
            Err(Error::NoNetwork { skipped, .. }) => skipped,
            Err(Error::Configuration(error)) if error.file != self.dir => vec![*error],
            Err(error) => return Err(error),
        };
        for error in errors {
            selection.skip(&error.file.clone(), Reason::Invalid(error));
        }
        Ok(selection.with_default(|_| true))
    }

    fn first_valid(&self) -> Result<Selection, Error> {
        let mut selection = Selection::default();
        let runtime = self.validating_runtime();
        for file in conf_files(&self.dir, &EXTENSIONS)? {
            let first = selection.networks.first().map(|network| network.file.clone());
            // After the first valid network no plugin is called: the result would not matter.
            let validating = if first.is_none() { runtime.as_ref() } else { None };
            match (usable(&file, validating), first) {
                (Err(reason), _) => selection.skip(&file, reason),
                (Ok(network), None) => selection.networks.push(network),
                (Ok(_), Some(first)) => selection.skip(&file, Reason::NotNeeded(first)),
            }
        }
        Ok(selection.with_default(|_| true))
    }

    fn first_of_each_name(&self, default: Option<&str>) -> Result<Selection, Error> {
        let mut selection = Selection::default();
        let runtime = self.validating_runtime();
        for file in conf_files(&self.dir, &EXTENSIONS)? {
            let network = match usable(&file, runtime.as_ref()) {
                Ok(network) => network,
                Err(reason) => {
                    selection.skip(&file, reason);
                    continue;
                }
            };
            match selection.networks.iter().find(|first| first.list.name == network.list.name) {
                Some(first) => selection.skip(&file, Reason::SameName(first.file.clone())),
                None => selection.networks.push(network),
            }
        }
        Ok(selection.with_default(|network| default.is_none_or(|name| network.list.name == name)))
    }

    fn first_files(&self, most: usize) -> Result<Selection, Error> {
        let mut selection = Selection::default();
        let mut invalid = None;
        for file in conf_files(&self.dir, &EXTENSIONS)? {
            if let Some(last) = selection.networks.last()
                && selection.networks.len() == most
            {
                let last = last.file.clone();
                selection.skip(&file, Reason::NotNeeded(last));
                continue;
            }
            match usable(&file, None) {
                Ok(network) => selection.networks.push(network),
                Err(reason) => {
                    selection.skip(&file, reason);
                    invalid = Some(file);
                    break;
                }
            }
        }
        if let Some(invalid) = invalid {
            for network in std::mem::take(&mut selection.networks) {
                selection.skip(&network.file, Reason::OtherInvalid(invalid.clone()));
            }
        }
        Ok(selection.with_default(|_| true))
    }

    /// Whether a file that could change the selection ends before its document does and was written so recently that a program
    /// may still be writing it.
    pub(crate) fn is_incomplete(&self, selection: &Selection, recent: Duration) -> bool {
        let mut first = None;
        if self.policy == SelectionPolicy::FirstValid {
            first = selection.default_network();
        }
        for skipped in &selection.skipped {
            let Reason::Invalid(error) = &skipped.reason else { continue };
            let counts = first.is_none_or(|first| skipped.file < first.file);
            if counts && error.is_cut_short() && is_written_within(&error.file, recent) {
                return true;
            }
        }
        false
    }

    fn validating_runtime(&self) -> Option<Runtime> {
        self.runtime.as_ref().map(for_version)
    }
}

/// The runtime with a shorter timeout, for VERSION.
pub(crate) fn for_version(runtime: &Runtime) -> Runtime {
    Runtime { timeout: runtime.timeout.min(TIMEOUT), ..runtime.clone() }
}

/// Whether a file was written within this time. A time in the future, after the clock was set back, counts as now.
fn is_written_within(file: &Path, recent: Duration) -> bool {
    let modified = fs::metadata(file).and_then(|found| found.modified());
    modified.is_ok_and(|modified| modified.elapsed().unwrap_or_default() < recent)
}

/// The network in a file, if it is valid. If there is a runtime, its plugins have to be valid too.
fn usable(file: &Path, runtime: Option<&Runtime>) -> Result<NetworkFile, Reason> {
    let list = list_from_file(file).map_err(Reason::Invalid)?;
    if let Some(runtime) = runtime
        && let Err(failures) = runtime.validate(&list)
    {
        return Err(Reason::Plugins(failures.to_string()));
    }
    Ok(NetworkFile { file: file.to_owned(), list })
}

impl fmt::Display for SkippedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |file: &PathBuf| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let reason = match &self.reason {
            Reason::Invalid(error) => return error.fmt(f),
            Reason::Plugins(failures) => failures.clone(),
            Reason::SameName(first) => {
                format!("its network has the same name as the one in {}, which comes first", name(first))
            }
            Reason::NotNeeded(first) => format!("comes after {}, which is the default", name(first)),
            Reason::OtherInvalid(invalid) => {
                format!("is not used because {} cannot be used: correct or remove that file", name(invalid))
            }
        };
        write!(f, "{}: {reason}", self.file.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cache;
    use tempfile::TempDir;

    fn dir(files: &[(&str, &str)]) -> TempDir {
        let dir = TempDir::new().unwrap();
        files.iter().for_each(|(name, text)| fs::write(dir.path().join(name), text).unwrap());
        dir
    }

    fn list(name: &str) -> String {
        format!(r#"{{"cniVersion": "1.1.0", "name": "{name}", "plugins": [{{"type": "t"}}]}}"#)
    }

    /// The names of the files of the networks, of the default, and of the skipped files.
    struct Names {
        networks: Vec<String>,
        default: Option<String>,
        skipped: Vec<String>,
    }

    fn select(dir: &TempDir, policy: SelectionPolicy) -> Names {
        let selector = NetworkSelector { dir: dir.path().to_owned(), policy, runtime: None };
        let selection = selector.select().unwrap();
        let name = |file: &Path| file.file_name().unwrap().to_str().unwrap().to_owned();
        Names {
            networks: selection.networks.iter().map(|network| name(&network.file)).collect(),
            default: selection.default_network().map(|network| name(&network.file)),
            skipped: selection.skipped.iter().map(|file| name(&file.file)).collect(),
        }
    }

    /// An incomplete file, a list, a single plugin, a list with the name of the first, a third list, and another file.
    fn five() -> TempDir {
        let a = list("a");
        let c = list("c");
        dir(&[
            ("00-torn.conflist", "{"),
            ("10-a.conflist", &a),
            ("20-b.json", r#"{"name": "b", "type": "t"}"#),
            ("30-a.conflist", &a),
            ("40-c.conflist", &c),
            ("50-c.txt", "no network"),
        ])
    }

    #[test]
    fn kubelet_uses_the_first_valid_file_of_any_kind() {
        let names = select(&five(), SelectionPolicy::FirstValid);
        assert_eq!(names.networks, ["10-a.conflist"]);
        assert_eq!(names.default.as_deref(), Some("10-a.conflist"));
        assert_eq!(names.skipped, ["00-torn.conflist", "20-b.json", "30-a.conflist", "40-c.conflist"]);
    }

    #[test]
    fn by_name_a_list_comes_before_a_single_plugin() {
        let early = r#"{"name": "a", "type": "single"}"#;
        let dir = dir(&[("00-a.conf", early), ("10-a.conflist", &list("a")), ("05-torn.conflist", "")]);
        let names = select(&dir, SelectionPolicy::ByName("a".into()));
        assert_eq!(names.networks, ["10-a.conflist"]);
        assert_eq!(names.skipped, ["05-torn.conflist"]);
        let none = select(&dir, SelectionPolicy::ByName("none".into()));
        assert_eq!(none.networks, [""; 0]);
        assert_eq!(none.default, None);
        assert_eq!(none.skipped, ["05-torn.conflist"]);
    }

    #[test]
    fn crio_uses_the_first_network_of_each_name_and_any_of_them_may_be_the_default() {
        let all = ["10-a.conflist", "20-b.json", "40-c.conflist"];
        let names = select(&five(), SelectionPolicy::FirstOfEachName(None));
        assert_eq!(names.networks, all);
        assert_eq!(names.default.as_deref(), Some("10-a.conflist"));
        assert_eq!(names.skipped, ["00-torn.conflist", "30-a.conflist"]);
        for (name, default) in [("c", Some("40-c.conflist")), ("not-yet", None)] {
            let names = select(&five(), SelectionPolicy::FirstOfEachName(Some(name.into())));
            assert_eq!(names.networks, all, "{name}");
            assert_eq!(names.default.as_deref(), default, "{name}");
        }
    }

    #[test]
    fn containerd_uses_the_first_files_and_none_if_one_of_them_is_invalid() {
        let dir = five();
        let first = select(&dir, SelectionPolicy::FirstFiles(1));
        assert_eq!(first.networks, [""; 0]);
        assert_eq!(first.default, None);
        assert_eq!(first.skipped, ["00-torn.conflist"]);
        fs::rename(dir.path().join("00-torn.conflist"), dir.path().join("25-torn.conflist")).unwrap();
        let two = select(&dir, SelectionPolicy::FirstFiles(2));
        assert_eq!(two.networks, ["10-a.conflist", "20-b.json"]);
        assert_eq!(two.skipped, ["25-torn.conflist", "30-a.conflist", "40-c.conflist"]);
        let all = select(&dir, SelectionPolicy::FirstFiles(0));
        assert_eq!(all.networks, [""; 0]);
        assert_eq!(all.skipped, ["25-torn.conflist", "10-a.conflist", "20-b.json"]);
    }

    #[test]
    fn a_missing_plugin_is_a_reason_if_plugins_are_validated() {
        let dir = five();
        let bin = TempDir::new().unwrap();
        let runtime = Some(Runtime::new(bin.path().to_str().unwrap(), Cache::below(bin.path())));
        let selection = NetworkSelector { dir: dir.path().to_owned(), policy: SelectionPolicy::FirstValid, runtime }
            .select()
            .unwrap();
        assert!(selection.networks.is_empty() && selection.skipped.len() == 5, "{selection:?}");
        let text = selection.skipped[1].to_string();
        let words = "10-a.conflist: plugin type=\"t\" name=\"a\" (1 of 1) failed (version): failed to find";
        assert!(text.contains(words), "{text}");
    }

    #[test]
    fn a_missing_directory_has_no_networks_and_a_file_instead_of_it_is_an_error() {
        let dir = dir(&[("file", "")]);
        for policy in [
            SelectionPolicy::FirstValid,
            SelectionPolicy::ByName("a".into()),
            SelectionPolicy::FirstOfEachName(None),
            SelectionPolicy::FirstFiles(0),
        ] {
            let selector =
                |name: &str| NetworkSelector { dir: dir.path().join(name), policy: policy.clone(), runtime: None };
            assert_eq!(selector("none").select().unwrap(), Selection::default());
            assert!(matches!(selector("file").select().unwrap_err(), Error::Configuration(_)), "{policy:?}");
        }
    }

    #[test]
    fn a_file_that_ends_too_early_counts_while_it_is_new_and_may_change_the_selection() {
        let files =
            [("05-torn.conf", "{"), ("10-a.conflist", &*list("a")), ("20-torn.conf", "{"), ("30-bad.conf", "{x")];
        let is_incomplete = |names: &[&str], policy: SelectionPolicy, recent: Duration| {
            let files: Vec<_> = files.iter().filter(|(name, _)| names.contains(name)).copied().collect();
            let dir = dir(&files);
            let selector = NetworkSelector { dir: dir.path().to_owned(), policy, runtime: None };
            selector.is_incomplete(&selector.select().unwrap(), recent)
        };
        let first = SelectionPolicy::FirstValid;
        let all = SelectionPolicy::FirstOfEachName(None);
        let hour = Duration::from_hours(1);
        assert!(is_incomplete(&["05-torn.conf", "10-a.conflist"], first.clone(), hour));
        assert!(is_incomplete(&["05-torn.conf"], first.clone(), hour), "there is no network yet");
        assert!(
            !is_incomplete(&["10-a.conflist", "20-torn.conf"], first.clone(), hour),
            "the first one is used anyway"
        );
        assert!(is_incomplete(&["10-a.conflist", "20-torn.conf"], all.clone(), hour));
        assert!(!is_incomplete(&["10-a.conflist", "30-bad.conf"], all.clone(), hour), "it is whole, and wrong");
        assert!(
            !is_incomplete(&["05-torn.conf", "10-a.conflist"], first, Duration::ZERO),
            "it is not written any more"
        );
        assert!(!is_incomplete(&["10-a.conflist"], all, hour));
    }

    #[test]
    fn the_network_of_a_name_is_skipped_if_its_own_file_is_invalid() {
        let dir = dir(&[("10-a.conflist", r#"{"name": "a", "plugins": []}"#)]);
        let policy = SelectionPolicy::ByName("a".to_owned());
        let selector = NetworkSelector { dir: dir.path().to_owned(), policy, runtime: None };
        let selection = selector.select().unwrap();
        assert!(selection.networks.is_empty() && matches!(selection.skipped[0].reason, Reason::Invalid(_)));
        let file = NetworkSelector { dir: dir.path().join("10-a.conflist"), ..selector };
        assert!(file.select().is_err(), "it is no directory");
    }

    #[test]
    fn a_plugin_gets_ten_seconds_at_most_for_its_versions() {
        for (timeout, expected) in [(1, 1), (10, 10), (60, 10)] {
            let runtime = Runtime::new("/nonexistent", Cache::below(Path::new("/nonexistent")));
            let runtime = Runtime { timeout: Duration::from_secs(timeout), ..runtime };
            assert_eq!(for_version(&runtime).timeout.as_secs(), expected);
        }
    }
}
