//! The keys of plugins: find the unknown keys of a configuration with the key that was probably meant, missing keys, and values
//! of a wrong type.

use cnikit_types::document::is_remark;
use cnikit_types::{Map, ReadError, Value, is_key};

use crate::directory::value_type::ValueType;

/// The keys of one plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginKeys {
    /// Its `type`.
    pub plugin: String,
    /// Its keys. An object without any known key in it may have any keys.
    pub keys: Vec<PluginKey>,
}

/// One key of a plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginKey {
    /// The path in the plugin's object, for an IPAM plugin in `ipam`: names separated by dots, with `[]` after each that is a list,
    /// as in `ranges[][].subnet`. `runtimeConfig.NAME` is a capability. Paths of values that are not in files, such as
    /// `CNI_ARGS NAME`, are ignored.
    pub path: String,
    /// The type of its value.
    pub value: ValueType,
    /// The object that it is in must have it.
    pub is_required: bool,
}

/// A key with any value.
impl From<&str> for PluginKey {
    fn from(path: &str) -> PluginKey {
        PluginKey { path: path.to_owned(), ..PluginKey::default() }
    }
}

/// The keys that every plugin may have. The types of the first four are checked when the file is read.
pub(crate) const COMMON: [&str; 6] = ["cniVersion", "name", "type", "capabilities", "args", "ipam"];
/// The keys that every IPAM plugin may have. The interface plugins read `allowedSubnets`.
pub(crate) const IPAM: [&str; 2] = ["type", "allowedSubnets"];
/// The keys of a list.
pub(crate) const LIST: [&str; 7] =
    ["cniVersion", "cniVersions", "name", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "plugins"];

/// The prefix of the paths of capabilities.
const CAPABILITY: &str = "runtimeConfig.";

/// An error in the keys of an object.
pub(crate) enum KeyError {
    /// The key is unknown.
    Unknown {
        /// Its path in the object that was searched.
        path: String,
        /// The key that was probably meant; a path if it belongs to another object.
        meant: Option<String>,
    },
    /// A required key is missing, or a value has a wrong type.
    Invalid(ReadError),
}

impl PluginKeys {
    /// The errors in the keys of an object, at any depth, at most `most`. `common` keys are known at its top level.
    pub(crate) fn errors(&self, object: &Map<String, Value>, common: &[&str], most: usize) -> Vec<KeyError> {
        let keys = self.keys.iter().filter(|key| is_in_files(&key.path)).collect();
        let mut search = Search { keys, common, most, found: Vec::new() };
        search.object("", "", object);
        search.found
    }

    /// The capabilities that it supports.
    pub(crate) fn capabilities(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().filter_map(|key| key.path.strip_prefix(CAPABILITY)).filter(|name| !name.contains('.'))
    }
}

struct Search<'a> {
    keys: Vec<&'a PluginKey>,
    common: &'a [&'a str],
    most: usize,
    found: Vec<KeyError>,
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
                Some(known) => self.member(&path, &joined(level, known), value),
                None if is_remark(name) || known.is_empty() => {}
                None => {
                    let near = nearest(name, known.iter().copied());
                    let meant = near.map(str::to_owned).or_else(|| self.elsewhere(name));
                    self.found.push(KeyError::Unknown { path, meant });
                }
            }
        }
        self.missing(path, level, object);
    }

    /// Finds the required keys that an object lacks.
    fn missing(&mut self, path: &str, level: &str, object: &Map<String, Value>) {
        let prefix = if level.is_empty() { String::new() } else { format!("{level}.") };
        for key in self.keys.iter().filter(|key| key.is_required) {
            let Some(name) = key.path.strip_prefix(&prefix).filter(|name| !name.contains(['.', '['])) else { continue };
            let is_given = object.iter().any(|(given, value)| is_key(given, name) && !value.is_null());
            if !is_given && self.found.len() < self.most {
                self.found.push(KeyError::Invalid(ReadError::value("is missing").under(&joined(path, name))));
            }
        }
    }

    /// Checks the value of a known key, and what is in it.
    fn member(&mut self, path: &str, level: &str, value: &Value) {
        // A null is an absent key.
        if value.is_null() {
            return;
        }
        let of_key = self.keys.iter().find(|key| key.path == level);
        let checked = match of_key {
            Some(key) => key.value.check(value),
            None => Ok(()),
        };
        match checked {
            Ok(()) => self.value(path, level, value),
            Err(error) => self.found.push(KeyError::Invalid(error.under(path))),
        }
    }

    fn value(&mut self, path: &str, level: &str, value: &Value) {
        match value {
            Value::Object(object) if !self.known(level).is_empty() => self.object(path, level, object),
            Value::Array(list) => {
                let level = format!("{level}[]");
                if self.keys.iter().any(|key| key.path.starts_with(&level)) {
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
            let below = if level.is_empty() { Some(&*key.path) } else { below(&key.path, level) };
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
        let has_name = |path: &&String| path.rsplit('.').next().is_some_and(|last| is_key(name, last));
        self.keys.iter().map(|key| &key.path).find(has_name).cloned()
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

    fn errors(text: &str) -> Vec<KeyError> {
        let keys = [
            ("mtu", "integer"),
            ("isGateway", ""),
            ("vlanTrunk[].minID", ""),
            ("ipam", ""),
            ("ranges", "list of lists of objects"),
            ("ranges[][].subnet", "string: address/prefix"),
            ("dns", ""),
            ("runtimeConfig.mac", ""),
        ];
        let key = |(path, value): (&str, &str)| PluginKey {
            value: value.parse().unwrap(),
            is_required: path == "ranges[][].subnet",
            ..path.into()
        };
        let keys = PluginKeys { plugin: "p".into(), keys: keys.map(key).to_vec() };
        let object = NetConf::parse(text.as_bytes()).unwrap().0;
        keys.errors(&object, &COMMON, 3)
    }

    fn unknown(text: &str) -> Vec<(String, Option<String>)> {
        let mut unknown = Vec::new();
        for error in errors(text) {
            if let KeyError::Unknown { path, meant } = error {
                unknown.push((path, meant));
            }
        }
        unknown
    }

    #[test]
    fn every_invalid_value_and_missing_key_is_found_with_its_path() {
        let text = r#"{"MTU": "x", "ranges": [[{"subnet": "10.0.0.0/8"}, {"subnet": "no"}], [{"subnet": null}]]}"#;
        let mut texts = Vec::new();
        for error in errors(text) {
            if let KeyError::Invalid(error) = error {
                texts.push(error.to_string());
            }
        }
        let expected = [
            "MTU: expected an integer, found the text \"x\"".to_owned(),
            "ranges[0][1].subnet: expected an IP address with a prefix length, found \"no\"".to_owned(),
            "ranges[1][0].subnet: is missing".to_owned(),
        ];
        assert_eq!(texts, expected);
        assert!(errors(r#"{"mtu": null, "ranges": null}"#).is_empty());
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
        assert_eq!(errors(r#"{"ranges": [[{}, {}, {}, {}]]}"#).len(), 3);
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

    #[test]
    fn the_nearest_name_is_the_first_of_those_with_the_fewest_changes() {
        let of = |written: &str, names: &[&'static str]| nearest(written, names.iter().copied());
        assert_eq!(of("MUT", &["mac", "mtu"]), Some("mtu"), "two letters exchanged are one change");
        assert_eq!(of("gatewey", &["gateways", "gateway"]), Some("gateway"));
        assert_eq!(of("abcdex", &["abcdey", "abcdez"]), Some("abcdey"));
        // At most every third letter of the shorter one.
        assert_eq!(of("abcdef", &["abcdxy"]), Some("abcdxy"));
        assert_eq!(of("abcdef", &["abcxyz"]), None);
        assert_eq!(of("abc", &["abcdef"]), None);
        assert_eq!(of(&"x".repeat(40), &["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxy"]).map(str::len), Some(40));
        assert_eq!(of(&"x".repeat(41), &["xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxy"]), None);
    }
}
