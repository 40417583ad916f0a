//! Which keys a plugin takes, and what somebody meant who wrote another.

use cnikit_types::document::is_remark;
use cnikit_types::{Map, Value, is_key};

/// The keys of one plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PluginKeys {
    /// Its `type`.
    pub plugin: String,
    /// Paths from the plugin's own object, of an IPAM plugin from `ipam`: names with dots between them, `[]` after each
    /// for a list, as in `ranges[][].subnet`. What nothing is listed below may hold anything. `runtimeConfig.NAME` is a
    /// capability that it takes; what else is said elsewhere than in files, such as `CNI_ARGS NAME`, is passed over.
    pub keys: Vec<String>,
}

/// What every plugin may have, be it its own or the runtime's.
pub(crate) const COMMON: [&str; 6] = ["cniVersion", "name", "type", "capabilities", "args", "ipam"];
/// What an IPAM plugin has beside its own.
pub(crate) const IPAM: [&str; 1] = ["type"];
/// What a list has.
pub(crate) const LIST: [&str; 7] =
    ["cniVersion", "cniVersions", "name", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "plugins"];

/// The capabilities' keys.
const CAPABILITY: &str = "runtimeConfig.";

/// A key that nobody takes.
pub(crate) struct Unknown {
    /// Its path from where the search began.
    pub(crate) path: String,
    /// A key that is taken and may have been meant; a path if it stands elsewhere.
    pub(crate) meant: Option<String>,
}

impl PluginKeys {
    /// The keys of the object that no path names, at any depth; `common` are allowed at its top. At most `most`.
    pub(crate) fn unknown(&self, object: &Map<String, Value>, common: &[&str], most: usize) -> Vec<Unknown> {
        let keys = self.keys.iter().map(String::as_str).filter(|key| is_written(key)).collect();
        let mut search = Search { keys, common, most, found: Vec::new() };
        search.object("", "", object);
        search.found
    }

    /// The capabilities that it takes.
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
    /// `place` is where the object stands in the document, `level` the same as the keys write it.
    fn object(&mut self, place: &str, level: &str, object: &Map<String, Value>) {
        let known = self.known(level);
        for (name, value) in object {
            if self.found.len() == self.most {
                return;
            }
            let place = joined(place, name);
            match known.iter().find(|known| is_key(name, known)) {
                Some(known) => self.below(&place, &joined(level, known), value),
                None if is_remark(name) || known.is_empty() => {}
                None => {
                    let meant = nearest(name, known.iter().copied()).map(str::to_owned);
                    self.found.push(Unknown { path: place, meant: meant.or_else(|| self.elsewhere(name)) });
                }
            }
        }
    }

    fn below(&mut self, place: &str, level: &str, value: &Value) {
        match value {
            Value::Object(object) if !self.known(level).is_empty() => self.object(place, level, object),
            Value::Array(list) => {
                let level = format!("{level}[]");
                if self.keys.iter().any(|key| key.starts_with(&level)) {
                    list.iter()
                        .enumerate()
                        .for_each(|(index, value)| self.below(&format!("{place}[{index}]"), &level, value));
                }
            }
            _ => {}
        }
    }

    /// The names that are taken in the objects of a level.
    fn known(&self, level: &str) -> Vec<&'a str> {
        let name = |key: &&'a str| -> Option<&'a str> {
            let below = if level.is_empty() { key } else { key.strip_prefix(level)?.strip_prefix('.')? };
            below.split(['.', '[']).next()
        };
        let mut names: Vec<&'a str> = Vec::new();
        for name in self.keys.iter().filter_map(name) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        if level.is_empty() {
            names.extend(self.common);
        }
        names
    }

    /// A key of this name on another level.
    fn elsewhere(&self, name: &str) -> Option<String> {
        let is_it = |key: &&&str| key.rsplit('.').next().is_some_and(|last| is_key(name, last));
        self.keys.iter().find(is_it).map(|key| (*key).to_owned())
    }
}

/// Whether it is said in a file: what a runtime says is none of its keys, and in `args` anybody may have some.
fn is_written(key: &str) -> bool {
    !["runtimeConfig.", "args.", "CNI_ARGS "].iter().any(|elsewhere| key.starts_with(elsewhere))
}

fn joined(place: &str, name: &str) -> String {
    if place.is_empty() { name.to_owned() } else { format!("{place}.{name}") }
}

/// Longer than any key: what is so long is no slip of the fingers.
const LONGEST: usize = 40;

/// The name that is meant by `written`, if it is not far from one: a slip in every three letters at most.
pub(crate) fn nearest<'a>(written: &str, names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if written.len() > LONGEST {
        return None;
    }
    let written = written.to_ascii_lowercase();
    let near = names.map(|name| (strsim::osa_distance(&written, &name.to_ascii_lowercase()), name));
    near.filter(|(slips, name)| *slips <= name.len().min(written.len()) / 3)
        .min_by_key(|(slips, _)| *slips)
        .map(|(_, name)| name)
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
    fn a_slip_is_told_with_what_was_meant() {
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
    fn keys_in_any_case_remarks_and_what_holds_anything_are_no_slips() {
        for text in [
            r#"{"MTU": 1, "_remark": 1, "//": 2}"#,
            r#"{"dns": {"x": 1}, "ipam": {"y": [{}]}, "mtu": [{"z": 1}]}"#,
            r#"{"name": "n", "TYPE": "p", "args": {"cni": {}}}"#,
        ] {
            assert_eq!(unknown(text), [], "{text}");
        }
    }

    #[test]
    fn no_more_are_told_than_were_asked_for() {
        assert_eq!(unknown(r#"{"a": 1, "b": 1, "c": 1, "d": 1}"#).len(), 3);
    }

    #[test]
    fn slips_are_counted() {
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
