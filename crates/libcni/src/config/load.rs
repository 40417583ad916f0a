//! Loads network lists: by the name of a file, or by the name of the network.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cnikit_types::document::Duplicate;
use cnikit_types::{Map, NetConf, ParseError, ReadError, Value, limit};

use crate::config::file;
use crate::config::list::{flag, plugin_errors};
use crate::{ConfigError, Error, NetworkList};

/// The extensions of configuration files: of a list, and two for a single plugin.
pub const EXTENSIONS: [&str; 3] = ["conflist", "conf", "json"];

/// A configuration file that was parsed, but not yet read as a network.
pub(crate) struct Candidate {
    pub(crate) path: PathBuf,
    /// The text in which lines and columns are counted.
    pub(crate) text: String,
    bytes: Vec<u8>,
    pub(crate) conf: NetConf,
    /// Keys that one object has more than once.
    pub(crate) duplicates: Vec<Duplicate>,
}

/// A network list and its file.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct NetworkFile {
    /// The file.
    pub file: PathBuf,
    /// The network list in it.
    pub list: NetworkList,
}

/// Loads the network `name` from a directory such as `/etc/cni/net.d`.
///
/// All `.conflist` files are searched first, in the order of their names, then `.conf` and `.json` together, which have one
/// plugin each. A file that cannot be read is skipped with a warning, unless it is the network's own. The plugins in
/// `<dir>/<name>/*.conf` are added to a list unless `loadOnlyInlinedPlugins` is set.
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// let text = r#"{"cniVersion": "1.1.0", "name": "pods", "plugins": [{"type": "bridge"}]}"#;
/// std::fs::write(dir.path().join("10-pods.conflist"), text)?;
/// std::fs::write(dir.path().join("05-torn.conflist"), &text[..40])?;
/// let list = cnikit_libcni::load(dir.path(), "pods")?;
/// assert_eq!(list.plugins[0].plugin, "bridge");
/// assert!(list.warnings[0].contains("05-torn.conflist:1:40: unexpected end of file"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::NoConfigurations`] if the directory has no such file or does not exist, [`Error::NoNetwork`] if none of its files
/// has that network, and [`Error::Configuration`] if the network's own file cannot be used or the directory cannot be listed.
#[doc(alias = "NETCONFPATH")]
#[doc(alias = "LoadNetworkConf")]
#[doc(alias = "LoadConfList")]
pub fn load(dir: &Path, name: &str) -> Result<NetworkList, Error> {
    let (mut network, skipped) = find(dir, name)?;
    for error in skipped {
        network.list.warnings.push(format!("skipped: {error}"));
    }
    Ok(network.list)
}

/// As [`load()`]; returns the file too, and why other files were skipped.
pub(crate) fn find(dir: &Path, name: &str) -> Result<(NetworkFile, Vec<ConfigError>), Error> {
    let mut skipped = Vec::new();
    let is_list = |found: &Candidate| found.conf.0.get("name").and_then(Value::as_str) == Some(name);
    let lists = conf_files(dir, &EXTENSIONS[..1])?;
    if let Some(found) = first(&lists, &mut skipped, is_list) {
        return Ok((NetworkFile { list: list(dir, &found)?, file: found.path }, skipped));
    }
    let singles = conf_files(dir, &EXTENSIONS[1..])?;
    if let Some(found) = first(&singles, &mut skipped, |found| found.conf.name() == Some(name)) {
        return Ok((NetworkFile { list: found.single()?, file: found.path }, skipped));
    }
    if lists.is_empty() && singles.is_empty() {
        return Err(Error::NoConfigurations { dir: dir.to_owned() });
    }
    Err(Error::NoNetwork { name: name.to_owned(), dir: dir.to_owned(), skipped })
}

/// The first file that `is_wanted`. Files that cannot be read are added to `skipped`.
fn first(
    files: &[PathBuf],
    skipped: &mut Vec<ConfigError>,
    is_wanted: impl Fn(&Candidate) -> bool,
) -> Option<Candidate> {
    for path in files {
        match Candidate::read(path) {
            Ok(found) if is_wanted(&found) => return Some(found),
            Ok(_) => {}
            Err(error) => skipped.push(error),
        }
    }
    None
}

/// Loads the network in one file: a list if its name ends in `.conflist`, otherwise one plugin, which becomes a list of one.
///
/// The plugins in the directory of the network's name are added to a list, as by [`load()`].
///
/// ```
/// # let dir = tempfile::tempdir()?;
/// let file = dir.path().join("10-lo.conf");
/// std::fs::write(&file, r#"{"cniVersion": "1.1.0", "name": "lo", "type": 5}"#)?;
/// let error = cnikit_libcni::list_from_file(&file).unwrap_err();
/// let location = error.location.unwrap();
/// assert_eq!((error.key.as_str(), location.line, location.column, error.code), ("type", 1, 39, 6));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// The file cannot be read, or its content is invalid; in the second case the error has key, line and column.
#[doc(alias = "NetworkConfFromFile")]
#[doc(alias = "ConfListFromFile")]
#[doc(alias = "ConfListFromConf")]
pub fn list_from_file(file: &Path) -> Result<NetworkList, ConfigError> {
    let found = Candidate::read(file)?;
    if file.extension().is_some_and(|end| end == EXTENSIONS[0]) {
        list(file.parent().unwrap_or(Path::new("")), &found)
    } else {
        found.single()
    }
}

impl NetworkList {
    /// Parses a list, or a stand-alone plugin as a list of one, from its text. No plugins from other files are added to it.
    ///
    /// # Errors
    /// [`Error::Configuration`] with key, line and column of what cannot be used: text that is not JSON, a missing or invalid
    /// key, or more plugins than the limit.
    #[doc(alias = "NetworkConfFromBytes")]
    #[doc(alias = "ConfListFromBytes")]
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let found = Candidate::of(Path::new(""), bytes.to_vec())?;
        let is_list = found.conf.0.contains_key("plugins") || found.conf.plugin_type().is_none();
        let list = if is_list { found.inlined() } else { found.single() }?;
        if list.plugins.is_empty() { Err(found.without_plugins().into()) } else { Ok(list) }
    }
}

fn list(dir: &Path, found: &Candidate) -> Result<NetworkList, ConfigError> {
    let mut list = found.inlined()?;
    if !flag(&found.conf.0, "loadOnlyInlinedPlugins").map_err(|error| found.error(error))? {
        append_all(&mut list, dir)?;
    }
    if list.plugins.is_empty() { Err(found.without_plugins()) } else { Ok(list) }
}

/// Adds the plugins in the directory of the network's name.
fn append_all(list: &mut NetworkList, dir: &Path) -> Result<(), ConfigError> {
    let files = plugin_files(list, dir)?;
    if let Err(error) = limit::count("plugins", list.plugins.len() + files.len(), limit::PLUGINS) {
        let hint = "make it several networks, or remove plugins";
        return Err(ConfigError::of_file(&dir.join(&list.name), error.to_string(), hint));
    }
    for file in &files {
        append_file(list, file)?;
    }
    Ok(())
}

/// The files of plugins in the directory of the network's name.
pub(crate) fn plugin_files(list: &NetworkList, dir: &Path) -> Result<Vec<PathBuf>, ConfigError> {
    conf_files(&dir.join(&list.name), &["conf"])
}

/// Adds the plugin in a file.
pub(crate) fn append_file(list: &mut NetworkList, file: &Path) -> Result<Candidate, ConfigError> {
    let found = Candidate::read(file)?;
    list.append(&Value::Object(found.conf.0.clone()), &found.text).map_err(|error| found.error(error))?;
    Ok(found)
}

/// The files of a directory with one of these extensions, sorted by name; empty if the directory does not exist.
///
/// Entries of such a name that can never be read, such as a directory or a dangling link, are included, so that the caller can
/// report them.
///
/// # Errors
/// The directory cannot be listed.
#[doc(alias = "ConfFiles")]
pub fn conf_files(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, ConfigError> {
    let not_listed = |error: io::Error| {
        let hint = "make it a directory that can be read";
        ConfigError::of_file(dir, format!("cannot be listed: {error}"), hint)
    };
    let entries = match fs::read_dir(dir) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(not_listed(error)),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(not_listed)?.path();
        if path.extension().is_some_and(|end| extensions.iter().any(|known| end == *known)) {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

impl Candidate {
    pub(crate) fn read(path: &Path) -> Result<Candidate, ConfigError> {
        Candidate::of(path, file::read(path)?)
    }

    fn of(path: &Path, bytes: Vec<u8>) -> Result<Candidate, ConfigError> {
        let text = String::from_utf8_lossy(&bytes).into_owned();
        match NetConf::parse_with_duplicates(&bytes) {
            Ok((conf, duplicates)) => Ok(Candidate { path: path.to_owned(), text, bytes, conf, duplicates }),
            Err(ParseError::Json(error)) => Err(ConfigError::of_syntax(path, &text, &error)),
            Err(ParseError::NotAnObject(_)) => {
                let error = ReadError::wrong_type("the document is not an object");
                Err(ConfigError::of_key(path, &text, error, "write one network as a JSON object: {...}"))
            }
        }
    }

    pub(crate) fn is_list(&self) -> bool {
        self.path.extension().is_some_and(|end| end == EXTENSIONS[0])
    }

    /// The list with the plugins in its own document.
    pub(crate) fn inlined(&self) -> Result<NetworkList, ConfigError> {
        NetworkList::read(&self.conf.0, self.bytes.clone()).map_err(|error| self.error(error))
    }

    /// The single plugin as a list.
    pub(crate) fn single(&self) -> Result<NetworkList, ConfigError> {
        NetworkList::of_one(&self.conf, &self.text).map_err(|error| self.single_error(error))
    }

    /// The error about a single plugin. If the file is a list instead, the hint says so.
    fn single_error(&self, error: ReadError) -> ConfigError {
        let mut error = self.error(error);
        let is_list = self.conf.get("plugins").is_some() && self.conf.get("type").is_none();
        if is_list && error.key == "type" {
            "this is a list: rename the file to end in .conflist".clone_into(&mut error.hint);
        }
        error
    }

    /// Everything that makes the file invalid: `first`, with which it is refused, then at most `most` others. There is a limit
    /// because the text is searched for the position of each.
    pub(crate) fn errors(&self, first: ConfigError, most: usize) -> Vec<ConfigError> {
        let errors = if self.is_list() { NetworkList::errors(&self.conf.0) } else { self.plugin_errors() };
        let mut all = vec![first];
        for error in errors.into_iter().take(most) {
            if !all.iter().any(|other| other.key == error.path) {
                all.push(if self.is_list() { self.error(error) } else { self.single_error(error) });
            }
        }
        all
    }

    /// Everything that makes the file invalid as a single plugin. Its keys are matched in any case.
    fn plugin_errors(&self) -> Vec<ReadError> {
        let mut of_list = Map::new();
        for key in ["name", "cniVersion"] {
            if let Some(value) = self.conf.get(key) {
                of_list.insert(key.to_owned(), value.clone());
            }
        }
        let mut errors = NetworkList::errors(&of_list);
        errors.extend(plugin_errors(&Value::Object(self.conf.0.clone())));
        errors
    }

    /// An error about this file.
    pub(crate) fn error(&self, error: ReadError) -> ConfigError {
        let hint = hint(&error);
        ConfigError::of_key(&self.path, &self.text, error, hint)
    }

    pub(crate) fn without_plugins(&self) -> ConfigError {
        self.error(ReadError::value("no plugin configs found").under("plugins"))
    }
}

/// Hints for keys. Of the names in the path of a key, the last one that is listed here selects the hint.
const HINTS: [(&str, &str); 9] = [
    ("name", "give the network a name of letters, digits, `_`, `.` and `-`, a letter or digit first"),
    ("type", "name the plugin's file on CNI_PATH"),
    ("plugins", "list at least one plugin, as an object with a `type`"),
    ("disableCheck", "write true or false, or leave it out"),
    ("disableGC", "write true or false, or leave it out"),
    ("loadOnlyInlinedPlugins", "write true or false, or leave it out"),
    ("cniVersion", "write a version such as \"1.1.0\""),
    ("cniVersions", "write a list of versions such as [\"1.0.0\", \"1.1.0\"]"),
    ("capabilities", "write an object with true or false for each capability"),
];

fn hint(error: &ReadError) -> &'static str {
    let parts = error.path.rsplit(['.', '[', ']']);
    let known = |part: &str| HINTS.iter().find(|(key, _)| *key == part).map(|(_, hint)| *hint);
    parts.into_iter().find_map(known).unwrap_or("correct it at that place")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn dir(files: &[(&str, &str)]) -> TempDir {
        let dir = TempDir::new().unwrap();
        for (name, text) in files {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        dir
    }

    fn list(name: &str, plugin: &str) -> String {
        format!(r#"{{"cniVersion": "1.0.0", "name": "{name}", "plugins": [{{"type": "{plugin}"}}]}}"#)
    }

    fn plugins(list: &NetworkList) -> Vec<&str> {
        list.plugins.iter().map(|listed| listed.plugin.as_str()).collect()
    }

    #[test]
    fn the_limit_of_plugins_counts_those_of_other_files() {
        let names: Vec<String> = (0..limit::PLUGINS).map(|n| format!("net/{n}.conf")).collect();
        let text = list("net", "inside");
        let mut files: Vec<(&str, &str)> = names.iter().map(|name| (&**name, r#"{"type": "other"}"#)).collect();
        files.push(("a.conflist", &text));
        let found = dir(&files);
        let file = found.path().join("a.conflist");
        let error = list_from_file(&file).unwrap_err();
        assert!(error.to_string().contains("has 257 plugins, and at most 256 are allowed"), "{error}");
        fs::remove_file(found.path().join(&names[0])).unwrap();
        assert_eq!(list_from_file(&file).unwrap().plugins.len(), limit::PLUGINS);
    }

    #[test]
    fn the_first_list_of_the_name_comes_before_later_ones_and_single_plugins() {
        let single = r#"{"name": "net", "type": "single"}"#;
        let late = list("net", "late");
        let early = list("net", "early");
        let dir = dir(&[("00.conf", single), ("20.conflist", &late), ("10.conflist", &early), ("05.txt", "x")]);
        let found = load(dir.path(), "net").unwrap();
        assert_eq!((plugins(&found), found.warnings.len()), (vec!["early"], 0));
        assert_eq!(found.bytes, early.as_bytes());
    }

    #[test]
    fn a_single_plugin_becomes_a_list_of_one() {
        let text = r#"{"Name": "net", "type": "bridge", "cniVersion": "0.4.0", "mtu": 12345678901234567890}"#;
        let dir = dir(&[("10.json", text), ("net/10.conf", r#"{"type": "not-read"}"#)]);
        let found = load(dir.path(), "net").unwrap();
        assert_eq!((plugins(&found), found.version.as_str()), (vec!["bridge"], "0.4.0"));
        let expected = format!(r#"{{"cniVersion":"0.4.0","name":"net","plugins":[{text}]}}"#);
        assert_eq!(String::from_utf8(found.bytes).unwrap(), expected);
    }

    #[test]
    fn a_broken_file_is_an_error_only_for_its_own_network() {
        let wrong = r#"{"name": "wrong", "plugins": []}"#;
        let good = list("good", "t");
        let dir = dir(&[("00.conflist", "{"), ("10.conflist", wrong), ("20.conflist", &good)]);
        let found = load(dir.path(), "good").unwrap();
        assert!(found.warnings.len() == 1 && found.warnings[0].contains("00.conflist"), "{:?}", found.warnings);
        let error = load(dir.path(), "wrong").unwrap_err().to_string();
        assert!(error.contains("10.conflist:1:19: plugins: no plugins in list; hint: "), "{error}");
        let error = load(dir.path(), "none").unwrap_err().to_string();
        assert!(
            error.starts_with("no net configuration with name \"none\"") && error.contains("00.conflist"),
            "{error}"
        );
    }

    #[test]
    fn plugins_of_other_files_are_added_in_order_unless_the_list_forbids_it() {
        let siblings = [("net/20.conf", r#"{"type": "c"}"#), ("net/10.conf", r#"{"type": "b"}"#)];
        let inline = list("net", "a");
        let forbidding = inline.replace(r#""plugins""#, r#""loadOnlyInlinedPlugins": true, "plugins""#);
        let bare = r#"{"name": "net", "cniVersion": "1.0.0"}"#;
        for (text, expected) in
            [(inline.as_str(), vec!["a", "b", "c"]), (&forbidding, vec!["a"]), (bare, vec!["b", "c"])]
        {
            let dir = dir(&[&siblings[..], &[("n.conflist", text)]].concat());
            assert_eq!(plugins(&load(dir.path(), "net").unwrap()), expected, "{text}");
        }
        let alone = dir(&[("n.conflist", bare)]);
        assert!(load(alone.path(), "net").unwrap_err().to_string().contains("no plugin configs found"));
    }

    #[test]
    fn a_list_in_a_file_for_a_single_plugin_is_recognized() {
        let dir = dir(&[("10.conf", &list("net", "a"))]);
        let error = load(dir.path(), "net").unwrap_err().to_string();
        assert!(error.contains("missing 'type'") && error.contains(".conflist"), "{error}");
        let missing = load(&dir.path().join("none"), "net").unwrap_err();
        assert!(matches!(missing, Error::NoConfigurations { .. }));
    }

    #[test]
    fn a_text_that_ends_too_early_is_cut_short_and_any_other_is_not() {
        for (text, is_cut_short) in
            [("", true), (" ", true), ("{\"name\"", true), ("{x", false), ("[]", false), ("{} x", false)]
        {
            let error = Candidate::of(Path::new("n.conf"), text.into()).err().unwrap();
            assert_eq!(error.is_cut_short(), is_cut_short, "{text:?}: {error}");
        }
        let gone = ConfigError::of_file(Path::new("n.conf"), "is not there any more", "try again");
        assert!(!gone.is_cut_short());
    }
}
