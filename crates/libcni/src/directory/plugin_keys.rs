//! The keys of plugins: find the unknown keys of a configuration, and the known key that was probably meant.

use cnikit_types::document::is_remark;
use cnikit_types::{Map, Value, is_key};

/// The keys of one plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginKeys {
    /// Its `type`.
    pub plugin: String,
    /// Paths in the plugin's object, for an IPAM plugin in `ipam`: names separated by dots, with `[]` after each that is a list, as
    /// in `ranges[][].subnet`. An object without any known path below it may have any keys. `runtimeConfig.NAME` is a capability.
    /// Paths of values that are not in files, such as `CNI_ARGS NAME`, are ignored.
    pub keys: Vec<String>,
}

/// The keys that every plugin may have.
pub(crate) const COMMON: [&str; 6] = ["cniVersion", "name", "type", "capabilities", "args", "ipam"];
/// The keys that every IPAM plugin may have.
pub(crate) const IPAM: [&str; 1] = ["type"];
/// The keys of a list.
pub(crate) const LIST: [&str; 7] =
    ["cniVersion", "cniVersions", "name", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "plugins"];

/// The prefix of the paths of capabilities.
const CAPABILITY: &str = "runtimeConfig.";

/// An unknown key.
pub(crate) struct Unknown {
    /// Its path in the object that was searched.
    pub(crate) path: String,
    /// The key that was probably meant; a path if it belongs to another object.
    pub(crate) meant: Option<String>,
}

impl PluginKeys {
    /// The unknown keys of an object, at any depth, at most `most`. `common` keys are known at its top level.
    pub(crate) fn unknown(&self, object: &Map<String, Value>, common: &[&str], most: usize) -> Vec<Unknown> {
        let keys = self.keys.iter().map(String::as_str).filter(|key| is_in_files(key)).collect();
        let mut search = Search { keys, common, most, found: Vec::new() };
        search.object("", "", object);
        search.found
    }

    /// The capabilities that it supports.
    pub(crate) fn capabilities(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().filter_map(|key| key.strip_prefix(CAPABILITY)).filter(|name| !name.contains('.'))
    }
}

struct Search<'a> {
    keys: Vec<&'a str>,
    common: &'a [&'a str],
    most: usize,
    found: Vec<Unknown>,
}

impl<'a> Search<'a> {
    /// Searches an object. `path` is its path in the document, `level` the same in the form of the known paths.
    fn object(&mut self, path: &str, level: &str, object: &Map<String, Value>) {
        let known = self.known(level);
        for (name, value) in object {
            if self.found.len() == self.most {
                return;
            }
            let path = joined(path, name);
            match known.iter().find(|known| is_key(name, known)) {
                Some(known) => self.value(&path, &joined(level, known), value),
                None if is_remark(name) || known.is_empty() => {}
                None => {
                    let near = nearest(name, known.iter().copied());
                    let meant = near.map(str::to_owned).or_else(|| self.elsewhere(name));
                    self.found.push(Unknown { path, meant });
                }
            }
        }
    }

    fn value(&mut self, path: &str, level: &str, value: &Value) {
        match value {
            Value::Object(object) if !self.known(level).is_empty() => self.object(path, level, object),
            Value::Array(list) => {
                let level = format!("{level}[]");
                if self.keys.iter().any(|key| key.starts_with(&level)) {
                    for (index, element) in list.iter().enumerate() {
                        self.value(&format!("{path}[{index}]"), &level, element);
                    }
                }
            }
            _ => {}
        }
    }

    /// The known names in the objects of a level.
    fn known(&self, level: &str) -> Vec<&'a str> {
        let mut names: Vec<&'a str> = Vec::new();
        for key in &self.keys {
            let below = if level.is_empty() { Some(*key) } else { below(key, level) };
            if let Some(name) = below.and_then(|below| below.split(['.', '[']).next())
                && !names.contains(&name)
            {
                names.push(name);
            }
        }
        if level.is_empty() {
            names.extend(self.common);
        }
        names
    }

    /// The known path of a key with this name in another object.
    fn elsewhere(&self, name: &str) -> Option<String> {
        let has_name = |key: &&str| key.rsplit('.').next().is_some_and(|last| is_key(name, last));
        self.keys.iter().copied().find(has_name).map(str::to_owned)
    }
}

/// The part of a path below a level.
fn below<'a>(key: &'a str, level: &str) -> Option<&'a str> {
    key.strip_prefix(level)?.strip_prefix('.')
}

/// Whether a key may be in a file: some are only in what the runtime passes, and those in `args` are for several plugins.
fn is_in_files(key: &str) -> bool {
    !["runtimeConfig.", "args.", "CNI_ARGS "].iter().any(|elsewhere| key.starts_with(elsewhere))
}

fn joined(path: &str, name: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") }
}

/// The longest name for which a similar key is searched: no known key is longer.
const LONGEST: usize = 40;

/// The known name that is nearest to `written`, if at most every third letter differs.
pub(crate) fn nearest<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if written.len() > LONGEST {
        return None;
    }
    let written = written.to_ascii_lowercase();
    let mut nearest: Option<(usize, &str)> = None;
    for name in names {
        let distance = strsim::osa_distance(&written, &name.to_ascii_lowercase());
        let is_near = distance <= name.len().min(written.len()) / 3;
        if is_near && nearest.is_none_or(|(least, _)| distance < least) {
            nearest = Some((distance, name));
        }
    }
    nearest.map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cnikit_types::NetConf;

    fn unknown(text: &str) -> Vec<(String, Option<String>)> {
        let keys = ["mtu", "isGateway", "vlanTrunk[].minID", "ipam", "ranges[][].subnet", "dns", "runtimeConfig.mac"];
        let keys = PluginKeys { plugin: "p".into(), keys: keys.map(str::to_owned).to_vec() };
        let object = NetConf::parse(text.as_bytes()).unwrap().0;
        keys.unknown(&object, &COMMON, 3).into_iter().map(|unknown| (unknown.path, unknown.meant)).collect()
    }

    #[test]
    fn an_unknown_key_is_found_with_the_key_that_was_meant() {
        let cases = [
            (r#"{"isGatway": true}"#, "isGatway", Some("isGateway")),
            (r#"{"isgatewya": true}"#, "isgatewya", Some("isGateway")),
            (r#"{"mut": 1500}"#, "mut", Some("mtu")),
            (r#"{"vlanTrunk": [{"minID": 1}, {"minid": 2, "minIDs": 3}]}"#, "vlanTrunk[1].minIDs", Some("minID")),
            (r#"{"ranges": [[{"sub": 1}]]}"#, "ranges[0][0].sub", None),
            (r#"{"subnet": "10.0.0.0/8"}"#, "subnet", Some("ranges[][].subnet")),
            (r#"{"frobnicate": 1}"#, "frobnicate", None),
        ];
        for (text, path, meant) in cases {
            assert_eq!(unknown(text), [(path.to_owned(), meant.map(str::to_owned))], "{text}");
        }
    }

    #[test]
    fn keys_in_any_case_remarks_and_objects_with_any_keys_are_known() {
        for text in [
            r#"{"MTU": 1, "_remark": 1, "//": 2}"#,
            r#"{"dns": {"x": 1}, "ipam": {"y": [{}]}, "mtu": [{"z": 1}]}"#,
            r#"{"name": "n", "TYPE": "p", "args": {"cni": {}}}"#,
        ] {
            assert_eq!(unknown(text), [], "{text}");
        }
    }

    #[test]
    fn at_most_the_given_number_is_found() {
        assert_eq!(unknown(r#"{"a": 1, "b": 1, "c": 1, "d": 1}"#).len(), 3);
    }

    #[test]
    fn differences_are_counted() {
        for (one, other, count) in
            [("mtu", "mtu", 0), ("mut", "mtu", 1), ("", "abc", 3), ("bridge", "brdige", 1), ("ab", "cd", 2)]
        {
            assert_eq!(
                (strsim::osa_distance(one, other), strsim::osa_distance(other, one)),
                (count, count),
                "{one} {other}"
            );
        }
    }
}
