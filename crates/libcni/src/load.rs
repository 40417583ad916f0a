//! From a network's name to its list.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use cnikit_types::NetConf;
use serde_json::Value;

use crate::list::flag;
use crate::{Error, NetworkList};

/// A file as far as it must be read to know whether it is the one.
struct Candidate {
    path: PathBuf,
    bytes: Vec<u8>,
    conf: NetConf,
}

/// Finds the network `name` in a directory, `/etc/cni/net.d` or the like.
///
/// All `.conflist` files are looked through first, in the order of their names, then `.conf` and `.json` together, which
/// hold one plugin each. A file that is not JSON is passed over, which is a warning; what is wrong in the wanted
/// one is an error. To a list, the plugins in `<dir>/<name>/*.conf` are added unless `loadOnlyInlinedPlugins` is set.
#[doc(alias = "NETCONFPATH")]
pub fn load(dir: &Path, name: &str) -> Result<NetworkList, Error> {
    let mut passed_over = Vec::new();
    let is_list = |found: &Candidate| found.conf.0.get("name").and_then(Value::as_str) == Some(name);
    let mut found = match search(dir, &["conflist"], &mut passed_over, is_list)? {
        Some(found) => list(dir, found)?,
        None => match search(dir, &["conf", "json"], &mut passed_over, |found| found.conf.name() == Some(name))? {
            Some(found) => NetworkList::of_one(found.conf).map_err(|why| configuration(&found.path, why))?,
            None => return Err(Error::NoNetwork { name: name.to_owned(), dir: dir.to_owned(), passed_over }),
        },
    };
    found.warnings.extend(passed_over.into_iter().map(|file| format!("passed over: {file}")));
    Ok(found)
}

/// The first file that is wanted; those that cannot be read are noted.
fn search(
    dir: &Path,
    extensions: &[&str],
    passed_over: &mut Vec<String>,
    is_wanted: impl Fn(&Candidate) -> bool,
) -> Result<Option<Candidate>, Error> {
    for path in files(dir, extensions)? {
        match read(path) {
            Ok(found) if is_wanted(&found) => return Ok(Some(found)),
            Ok(_) => {}
            Err(why) => passed_over.push(why.to_string()),
        }
    }
    Ok(None)
}

fn list(dir: &Path, found: Candidate) -> Result<NetworkList, Error> {
    let Candidate { path, bytes, conf: NetConf(document) } = found;
    let failed = |why: String| configuration(&path, why);
    let mut list = NetworkList::read(&document, bytes).map_err(failed)?;
    if !flag(&document, "loadOnlyInlinedPlugins").map_err(failed)? {
        append_beside(&mut list, dir)?;
    }
    if list.plugins.is_empty() { Err(failed("no plugin configs found".to_owned())) } else { Ok(list) }
}

/// Adds the plugins that stand in the directory of the network's name.
fn append_beside(list: &mut NetworkList, dir: &Path) -> Result<(), Error> {
    for path in files(&dir.join(&list.name), &["conf"])? {
        let found = read(path)?;
        list.append(Value::Object(found.conf.0)).map_err(|why| configuration(&found.path, why))?;
    }
    Ok(())
}

/// The regular files of a directory with one of these extensions, in the order of their names; none without a directory.
fn files(dir: &Path, extensions: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.and_then(Iterator::collect::<io::Result<Vec<_>>>),
    };
    let entries = entries.map_err(|error| configuration(dir, format!("cannot be listed: {error}")))?;
    let has_extension =
        |path: &PathBuf| path.extension().is_some_and(|end| extensions.iter().any(|known| end == *known));
    let mut paths: Vec<PathBuf> = entries.iter().map(fs::DirEntry::path).filter(has_extension).collect();
    paths.retain(|path| path.is_file());
    paths.sort();
    Ok(paths)
}

fn read(path: PathBuf) -> Result<Candidate, Error> {
    let bytes = fs::read(&path).map_err(|error| configuration(&path, error.to_string()))?;
    let conf = NetConf::parse(&bytes).map_err(|error| configuration(&path, error.to_string()))?;
    Ok(Candidate { path, bytes, conf })
}

fn configuration(path: &Path, why: String) -> Error {
    Error::Configuration { path: path.to_owned(), why }
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
    fn the_first_list_of_the_name_wins_over_later_ones_and_over_single_files() {
        let single = r#"{"name": "net", "type": "single"}"#;
        let (late, early) = (list("net", "late"), list("net", "early"));
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
        let expected = format!(
            r#"{{"cniVersion":"0.4.0","name":"net","plugins":[{}]}}"#,
            text.replace(": ", ":").replace(", ", ",")
        );
        assert_eq!(String::from_utf8(found.bytes).unwrap(), expected);
    }

    #[test]
    fn a_broken_file_stops_only_those_who_want_it() {
        let wrong = r#"{"name": "wrong", "plugins": []}"#;
        let good = list("good", "t");
        let dir = dir(&[("00.conflist", "{"), ("10.conflist", wrong), ("20.conflist", &good)]);
        let found = load(dir.path(), "good").unwrap();
        assert!(found.warnings.len() == 1 && found.warnings[0].contains("00.conflist"), "{:?}", found.warnings);
        let error = load(dir.path(), "wrong").unwrap_err().to_string();
        assert!(error.contains("10.conflist: no plugins in list"), "{error}");
        let error = load(dir.path(), "none").unwrap_err().to_string();
        assert!(
            error.starts_with("no net configuration with name \"none\"") && error.contains("00.conflist"),
            "{error}"
        );
    }

    #[test]
    fn plugins_beside_the_list_are_added_in_their_files_order_unless_it_forbids() {
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
    fn a_list_in_a_file_for_one_plugin_is_told_apart() {
        let dir = dir(&[("10.conf", &list("net", "a"))]);
        let error = load(dir.path(), "net").unwrap_err().to_string();
        assert!(error.contains("missing 'type'") && error.contains(".conflist"), "{error}");
        let missing = load(&dir.path().join("none"), "net").unwrap_err();
        assert!(matches!(missing, Error::NoNetwork { .. }));
    }
}
