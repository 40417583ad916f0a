//! Which networks of a directory a runtime uses, and which of them is the default.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::config::load::EXTENSIONS;
use crate::config::load::find;
use crate::{ConfigError, Error, NetworkFile, Runtime, conf_files, list_from_file};

/// How runtimes choose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SelectionPolicy {
    /// The network of this name, as [`load()`](crate::load()) finds it: lists before single plugins.
    ByName(String),
    /// cri-dockerd's, and kubelet's before 1.24: all files in the order of their names, and the first valid one is the only
    /// network.
    FirstValid,
    /// CRI-O's: the same, but every valid network is used, the first of each name; the default is the first of all,
    /// or that of the name that is given, wherever it stands (`cni_default_network`).
    FirstOfEachName(Option<String>),
    /// containerd's: the first so many files, 0 being all, in the order of their names (`max_conf_num`). The plugins
    /// are not asked, and one file that cannot be used is the end of all.
    FirstFiles(usize),
}

/// Chooses among the networks of a directory.
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
/// let chosen = selector.select()?;
/// assert_eq!(chosen.default_network().unwrap().list.name, "a");
/// assert!(matches!(chosen.skipped[0].why, Reason::Defect(_)));
/// let why = chosen.skipped[1].to_string();
/// assert!(why.ends_with("20-b.conflist: comes after 10-a.conflist, which is the default"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct NetworkSelector {
    /// Where the configurations are.
    pub dir: PathBuf,
    /// Which of them count.
    pub policy: SelectionPolicy,
    /// Whom the plugins of a network have to satisfy ([`Runtime::validate`]); `None`: nobody is asked. [`SelectionPolicy::ByName`]
    /// and [`SelectionPolicy::FirstFiles`] never ask. No plugin is given more than ten seconds to name its versions.
    pub runtime: Option<Runtime>,
}

/// How long a plugin may take to name its versions: it touches nothing for that.
const TIMEOUT: Duration = Duration::from_secs(10);

/// What was chosen, and what was not.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// The networks that are used.
    pub networks: Vec<NetworkFile>,
    /// Which of them is the default; `None` if none is, or if the one that has to be is not there.
    pub default: Option<usize>,
    /// Every other file that was looked at, in the order in which that was done.
    pub skipped: Vec<SkippedFile>,
}

/// A file that is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SkippedFile {
    /// The file.
    pub file: PathBuf,
    /// Why it is not used.
    pub why: Reason,
}

/// Why a file is not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Something is wrong with it.
    Defect(ConfigError),
    /// Plugins are missing or do not speak its version: the failures in words.
    Plugins(String),
    /// Its network has the name of that in this file, which comes before it.
    SameName(PathBuf),
    /// The rule was satisfied by this file, which comes before it.
    Behind(PathBuf),
    /// It could be used, but for this file, one that cannot be used; the rule wants all or none.
    Beside(PathBuf),
}

impl Selection {
    /// The default network; `None` if there is none that can be used.
    pub fn default_network(&self) -> Option<&NetworkFile> {
        self.networks.get(self.default?)
    }

    /// The first network that may be the default is it.
    fn with_default(self, may_be: impl Fn(&NetworkFile) -> bool) -> Selection {
        Selection { default: self.networks.iter().position(may_be), ..self }
    }

    fn pass_over(&mut self, file: &Path, why: Reason) {
        self.skipped.push(SkippedFile { file: file.to_owned(), why });
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
        let mut chosen = Selection::default();
        let skipped = match find(&self.dir, name) {
            Ok((network, skipped)) => {
                chosen.networks.push(network);
                skipped
            }
            Err(Error::NoConfigurations { .. }) => Vec::new(),
            Err(Error::NoNetwork { skipped, .. }) => skipped,
            Err(Error::Configuration(defect)) if defect.file != self.dir => vec![*defect],
            Err(error) => return Err(error),
        };
        for defect in skipped {
            chosen.pass_over(&defect.file.clone(), Reason::Defect(defect));
        }
        Ok(chosen.with_default(|_| true))
    }

    fn first_valid(&self) -> Result<Selection, Error> {
        let (mut chosen, runtime) = (Selection::default(), self.asking());
        for file in conf_files(&self.dir, &EXTENSIONS)? {
            let default = chosen.networks.first().map(|network| network.file.clone());
            // Behind the default nobody is asked: it would change nothing.
            match (usable(&file, runtime.as_ref().filter(|_| default.is_none())), default) {
                (Err(why), _) => chosen.pass_over(&file, why),
                (Ok(network), None) => chosen.networks.push(network),
                (Ok(_), Some(first)) => chosen.pass_over(&file, Reason::Behind(first)),
            }
        }
        Ok(chosen.with_default(|_| true))
    }

    fn first_of_each_name(&self, default: Option<&str>) -> Result<Selection, Error> {
        let (mut chosen, runtime) = (Selection::default(), self.asking());
        for file in conf_files(&self.dir, &EXTENSIONS)? {
            let network = match usable(&file, runtime.as_ref()) {
                Ok(network) => network,
                Err(why) => {
                    chosen.pass_over(&file, why);
                    continue;
                }
            };
            match chosen.networks.iter().find(|first| first.list.name == network.list.name) {
                Some(first) => chosen.pass_over(&file, Reason::SameName(first.file.clone())),
                None => chosen.networks.push(network),
            }
        }
        Ok(chosen.with_default(|network| default.is_none_or(|name| network.list.name == name)))
    }

    fn first_files(&self, most: usize) -> Result<Selection, Error> {
        let mut chosen = Selection::default();
        for file in conf_files(&self.dir, &EXTENSIONS)? {
            let last = chosen.networks.last().map(|network| network.file.clone());
            match last.filter(|_| most != 0 && chosen.networks.len() == most) {
                Some(last) => chosen.pass_over(&file, Reason::Behind(last)),
                None => match usable(&file, None) {
                    Ok(network) => chosen.networks.push(network),
                    Err(why) => {
                        chosen.pass_over(&file, why);
                        break;
                    }
                },
            }
        }
        let bad = chosen.skipped.iter().find(|file| matches!(file.why, Reason::Defect(_)));
        if let Some(bad) = bad.map(|bad| bad.file.clone()) {
            let good: Vec<NetworkFile> = chosen.networks.drain(..).collect();
            good.iter().for_each(|network| chosen.pass_over(&network.file, Reason::Beside(bad.clone())));
        }
        Ok(chosen.with_default(|_| true))
    }

    /// Whether a file that would count, were it whole, ends before its document does and was written to so lately that
    /// somebody may still be at it.
    pub(crate) fn is_open(&self, chosen: &Selection, lately: Duration) -> bool {
        let behind = chosen
            .default_network()
            .filter(|_| self.policy == SelectionPolicy::FirstValid)
            .map(|network| &network.file);
        let counts = |file: &SkippedFile| behind.is_none_or(|first| file.file < *first);
        let is_cut = |file: &SkippedFile| match &file.why {
            Reason::Defect(defect) => defect.is_cut_short() && is_written_within(&defect.file, lately),
            _ => false,
        };
        chosen.skipped.iter().any(|file| counts(file) && is_cut(file))
    }

    fn asking(&self) -> Option<Runtime> {
        self.runtime.as_ref().map(asking)
    }
}

/// The same, for a question that touches nothing.
pub(crate) fn asking(runtime: &Runtime) -> Runtime {
    Runtime { patience: runtime.patience.min(TIMEOUT), ..runtime.clone() }
}

/// A time in the future, which a clock that was set leaves, counts as just now.
fn is_written_within(file: &Path, lately: Duration) -> bool {
    let modified = fs::metadata(file).and_then(|found| found.modified());
    modified.is_ok_and(|modified| modified.elapsed().unwrap_or_default() < lately)
}

/// The network in a file, if nothing speaks against using it.
fn usable(file: &Path, runtime: Option<&Runtime>) -> Result<NetworkFile, Reason> {
    let list = list_from_file(file).map_err(Reason::Defect)?;
    match runtime.map(|runtime| runtime.validate(&list)) {
        Some(Err(failures)) => Err(Reason::Plugins(failures.to_string())),
        None | Some(Ok(_)) => Ok(NetworkFile { file: file.to_owned(), list }),
    }
}

impl fmt::Display for SkippedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |file: &PathBuf| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let said = match &self.why {
            Reason::Defect(defect) => return defect.fmt(f),
            Reason::Plugins(failures) => failures.clone(),
            Reason::SameName(first) => {
                format!("its network has the name of that in {}, which comes first", name(first))
            }
            Reason::Behind(first) => format!("comes after {}, which is the default", name(first)),
            Reason::Beside(bad) => format!("is not used because {} cannot be: correct or remove that", name(bad)),
        };
        write!(f, "{}: {said}", self.file.display())
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

    /// The files of the networks, that of the default, and what was passed over.
    fn chosen(dir: &TempDir, rule: SelectionPolicy) -> (Vec<String>, Option<String>, Vec<String>) {
        let chosen = NetworkSelector { dir: dir.path().to_owned(), policy: rule, runtime: None }.select().unwrap();
        let name = |file: &Path| file.file_name().unwrap().to_str().unwrap().to_owned();
        (
            chosen.networks.iter().map(|network| name(&network.file)).collect(),
            chosen.default_network().map(|network| name(&network.file)),
            chosen.skipped.iter().map(|file| name(&file.file)).collect(),
        )
    }

    fn texts(files: &[&str]) -> Vec<String> {
        files.iter().map(|file| (*file).to_owned()).collect()
    }

    /// A torn file, a network, another in a file of its own, the first once more, a third one.
    fn five() -> TempDir {
        let (a, c) = (list("a"), list("c"));
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
    fn kubelet_takes_the_first_valid_file_of_all_kinds_together() {
        let (networks, default, skipped) = chosen(&five(), SelectionPolicy::FirstValid);
        assert_eq!((networks, default.as_deref()), (texts(&["10-a.conflist"]), Some("10-a.conflist")));
        assert_eq!(skipped, ["00-torn.conflist", "20-b.json", "30-a.conflist", "40-c.conflist"]);
    }

    #[test]
    fn by_name_a_list_comes_before_a_single_plugin() {
        let early = r#"{"name": "a", "type": "single"}"#;
        let dir = dir(&[("00-a.conf", early), ("10-a.conflist", &list("a")), ("05-torn.conflist", "")]);
        let (networks, _, skipped) = chosen(&dir, SelectionPolicy::ByName("a".into()));
        assert_eq!((networks, skipped), (texts(&["10-a.conflist"]), texts(&["05-torn.conflist"])));
        let (networks, default, skipped) = chosen(&dir, SelectionPolicy::ByName("none".into()));
        assert_eq!((networks, default, skipped), (texts(&[]), None, texts(&["05-torn.conflist"])));
    }

    #[test]
    fn crio_takes_the_first_of_each_name_and_the_default_where_it_stands() {
        let all = texts(&["10-a.conflist", "20-b.json", "40-c.conflist"]);
        let (networks, default, skipped) = chosen(&five(), SelectionPolicy::FirstOfEachName(None));
        assert_eq!((networks, default.as_deref()), (all.clone(), Some("10-a.conflist")));
        assert_eq!(skipped, ["00-torn.conflist", "30-a.conflist"]);
        let (networks, default, _) = chosen(&five(), SelectionPolicy::FirstOfEachName(Some("c".into())));
        assert_eq!((networks, default.as_deref()), (all.clone(), Some("40-c.conflist")));
        let (networks, default, _) = chosen(&five(), SelectionPolicy::FirstOfEachName(Some("not-yet".into())));
        assert_eq!((networks, default), (all, None));
    }

    #[test]
    fn containerd_takes_the_first_files_and_none_beside_a_bad_one() {
        let dir = five();
        let (networks, default, skipped) = chosen(&dir, SelectionPolicy::FirstFiles(1));
        assert_eq!((networks, default, skipped), (texts(&[]), None, texts(&["00-torn.conflist"])));
        fs::rename(dir.path().join("00-torn.conflist"), dir.path().join("25-torn.conflist")).unwrap();
        let (networks, _, skipped) = chosen(&dir, SelectionPolicy::FirstFiles(2));
        assert_eq!(networks, ["10-a.conflist", "20-b.json"]);
        assert_eq!(skipped, ["25-torn.conflist", "30-a.conflist", "40-c.conflist"]);
        let (networks, _, skipped) = chosen(&dir, SelectionPolicy::FirstFiles(0));
        assert_eq!(networks, texts(&[]));
        assert_eq!(skipped, ["25-torn.conflist", "10-a.conflist", "20-b.json"]);
    }

    #[test]
    fn a_plugin_that_is_not_there_is_a_reason_where_plugins_are_asked() {
        let (dir, bin) = (five(), TempDir::new().unwrap());
        let runtime = Some(Runtime::new(bin.path().to_str().unwrap(), Cache::below(bin.path())));
        let chosen = NetworkSelector { dir: dir.path().to_owned(), policy: SelectionPolicy::FirstValid, runtime }
            .select()
            .unwrap();
        assert!(chosen.networks.is_empty() && chosen.skipped.len() == 5, "{chosen:?}");
        let said = chosen.skipped[1].to_string();
        let words = "10-a.conflist: plugin type=\"t\" name=\"a\" (1 of 1) failed (version): failed to find";
        assert!(said.contains(words), "{said}");
    }

    #[test]
    fn a_directory_that_is_not_there_has_no_networks_and_a_file_in_its_place_is_an_error() {
        let dir = dir(&[("file", "")]);
        for rule in [
            SelectionPolicy::FirstValid,
            SelectionPolicy::ByName("a".into()),
            SelectionPolicy::FirstOfEachName(None),
            SelectionPolicy::FirstFiles(0),
        ] {
            let selector =
                |name: &str| NetworkSelector { dir: dir.path().join(name), policy: rule.clone(), runtime: None };
            assert_eq!(selector("none").select().unwrap(), Selection::default());
            assert!(matches!(selector("file").select().unwrap_err(), Error::Configuration(_)), "{rule:?}");
        }
    }
}
