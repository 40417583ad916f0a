//! A network list, and what each of its plugins reads on stdin.

use cnikit_types::{NetConf, Release, Version, check_network_name};
use serde_json::{Map, Value};

use crate::Attachment;

/// Keys that only a runtime may set; in a file they would be taken for its word.
const RESERVED: [&str; 4] = ["prevResult", "runtimeConfig", "cni.dev/valid-attachments", "cni.dev/attachments"];

/// A network: its name, its version, its plugins in the order of ADD (specification, section 1).
#[doc(alias = "conflist")]
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkList {
    /// The network's name.
    pub name: String,
    /// The version that all plugins are asked in; empty if the file has none.
    pub version: String,
    /// Whether CHECK is to do nothing.
    pub disable_check: bool,
    /// At least one.
    pub plugins: Vec<Listed>,
    /// The document as it stood in the file.
    pub bytes: Vec<u8>,
    /// What was passed over or left out while it was loaded, for people.
    pub warnings: Vec<String>,
}

/// One plugin of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    /// Its `type`.
    pub plugin: String,
    conf: NetConf,
    capabilities: Vec<String>,
}

impl NetworkList {
    /// Reads the document of a `.conflist`. Keys of the list are matched exactly, those of a plugin in any case.
    pub(crate) fn read(document: &Map<String, Value>, bytes: Vec<u8>) -> Result<Self, String> {
        let name = match document.get("name") {
            Some(Value::String(name)) => name.clone(),
            _ => return Err("`name` is missing or not a string".to_owned()),
        };
        check_network_name(&name).map_err(|why| format!("{why}: {name:?}"))?;
        let version = version(document)?;
        let disable_check = flag(document, "disableCheck")?;
        let mut list = Self { name, version, disable_check, plugins: Vec::new(), bytes, warnings: Vec::new() };
        match document.get("plugins") {
            None => {}
            Some(Value::Array(plugins)) if plugins.is_empty() => return Err("no plugins in list".to_owned()),
            Some(Value::Array(plugins)) => plugins.iter().try_for_each(|plugin| list.append(plugin.clone()))?,
            Some(_) => return Err("`plugins` is not a list".to_owned()),
        }
        Ok(list)
    }

    /// A stand-alone plugin as a list of one; the list's document is made here.
    pub(crate) fn of_one(conf: NetConf) -> Result<Self, String> {
        if conf.get("plugins").is_some() && conf.plugin_type().is_none() {
            return Err("missing 'type'; this is a list: call the file .conflist".to_owned());
        }
        let version = conf.get("cniVersion").cloned().unwrap_or_else(|| "".into());
        let name = conf.name().unwrap_or_default().into();
        let plugins = Value::Array(vec![Value::Object(conf.0)]);
        let keys = [("cniVersion", version), ("name", name), ("plugins", plugins)];
        let document: Map<String, Value> = keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        let bytes = Value::Object(document.clone()).to_string().into_bytes();
        Self::read(&document, bytes)
    }

    /// Adds a plugin behind the others.
    pub(crate) fn append(&mut self, plugin: Value) -> Result<(), String> {
        let Value::Object(conf) = plugin else { return Err("a plugin of the list is not an object".to_owned()) };
        let mut conf = NetConf(conf);
        let plugin = conf.plugin_type().ok_or("missing 'type'")?.to_owned();
        let capabilities = declared(&conf).map_err(|why| format!("plugin {plugin}: {why}"))?;
        remove(&mut conf, "capabilities");
        for key in RESERVED.into_iter().filter(|key| remove(&mut conf, key)) {
            self.warnings.push(format!("plugin {plugin}: `{key}` is left out: only a runtime sets it"));
        }
        self.plugins.push(Listed { plugin, conf, capabilities });
        Ok(())
    }

    /// Whether the version has a verb that came with `floor`. One that cannot be read is left to the plugins to refuse.
    pub(crate) fn is_since(&self, floor: Version) -> bool {
        match (release(&self.version), release(floor.as_str())) {
            (Ok(version), Ok(floor)) => version >= floor,
            _ => true,
        }
    }
}

impl Listed {
    /// The configuration for one call: name and version of the list, the result so far, the capabilities it declares.
    pub(crate) fn stdin(&self, list: &NetworkList, at: &Attachment, previous: Option<&Value>) -> Vec<u8> {
        let mut conf = self.conf.clone();
        conf.set("name", list.name.as_str().into());
        conf.set("cniVersion", list.version.as_str().into());
        if let Some(previous) = previous {
            conf.set("prevResult", previous.clone());
        }
        let is_wanted = |(name, _): &(&String, &Value)| self.capabilities.contains(name);
        let wanted: Map<String, Value> = at.capabilities.iter().filter(is_wanted).map(owned).collect();
        if !wanted.is_empty() {
            conf.set("runtimeConfig", Value::Object(wanted));
        }
        conf.to_vec()
    }
}

fn owned((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}

/// The newest of `cniVersion` and `cniVersions` that this library knows; without the latter, what the former says.
fn version(document: &Map<String, Value>) -> Result<String, String> {
    let written = match document.get("cniVersion") {
        None => "",
        Some(Value::String(text)) => text,
        Some(_) => return Err("`cniVersion` is not a string".to_owned()),
    };
    let offered = match document.get("cniVersions") {
        None => return Ok(written.to_owned()),
        Some(Value::Array(texts)) => texts.iter().map(Value::as_str).collect::<Option<Vec<&str>>>(),
        Some(_) => None,
    };
    let offered = offered.ok_or("`cniVersions` is not a list of strings")?;
    let newest = release(Version::NEWEST.as_str())?;
    let mut best: Option<(Release, &str)> = None;
    for text in offered.into_iter().chain(Some(written).filter(|text| !text.is_empty())) {
        let candidate = release(text)?;
        if candidate <= newest && best.as_ref().is_none_or(|(best, _)| candidate > *best) {
            best = Some((candidate, text));
        }
    }
    Ok(best.map_or(written, |(_, text)| text).to_owned())
}

fn release(text: &str) -> Result<Release, String> {
    Release::parse(if text.is_empty() { "0.1.0" } else { text })
}

/// A switch of the list: a boolean, or its word in any case.
pub(crate) fn flag(document: &Map<String, Value>, key: &str) -> Result<bool, String> {
    match document.get(key) {
        None => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(format!("`{key}` is neither true nor false")),
    }
}

/// The capabilities that a plugin's configuration declares with `true`.
fn declared(conf: &NetConf) -> Result<Vec<String>, String> {
    let Some(value) = conf.get("capabilities") else { return Ok(Vec::new()) };
    let capabilities = value.as_object().ok_or("`capabilities` is not an object")?;
    match capabilities.iter().find(|(_, on)| !on.is_boolean()) {
        Some((name, _)) => Err(format!("capability `{name}` is neither true nor false")),
        None => {
            Ok(capabilities.iter().filter(|(_, on)| on.as_bool() == Some(true)).map(|(name, _)| name.clone()).collect())
        }
    }
}

/// Removes a key in every spelling; says whether it was there.
fn remove(conf: &mut NetConf, key: &str) -> bool {
    let before = conf.0.len();
    conf.0.retain(|spelling, _| !spelling.eq_ignore_ascii_case(key));
    conf.0.len() < before
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Result<NetworkList, String> {
        let conf = NetConf::parse(text.as_bytes()).unwrap();
        NetworkList::read(&conf.0, text.as_bytes().to_vec())
    }

    fn one(plugin: &str) -> NetworkList {
        read(&format!(r#"{{"cniVersion": "1.0.0", "name": "net", "plugins": [{plugin}]}}"#)).unwrap()
    }

    fn stdin(list: &NetworkList, at: &Attachment, previous: Option<&Value>) -> String {
        String::from_utf8(list.plugins[0].stdin(list, at, previous)).unwrap()
    }

    fn at(capabilities: &Value) -> Attachment {
        Attachment { capabilities: capabilities.as_object().unwrap().clone(), ..Attachment::default() }
    }

    #[test]
    fn a_plugin_reads_its_keys_in_their_order_and_numbers_digit_by_digit() {
        let list =
            one(r#"{"type": "t", "z": 9007199254740993, "a": 0.1000000000000000055511151231257827, "é": "<&>"}"#);
        let text = stdin(&list, &at(&json!({})), None);
        let (z, a) = (text.find(r#""z":9007199254740993"#), text.find(r#""a":0.1000000000000000055511151231257827"#));
        assert!(z.is_some() && z < a && text.contains(r#""é":"<&>""#), "{text}");
        assert!(text.contains(r#""name":"net""#) && text.contains(r#""cniVersion":"1.0.0""#), "{text}");
    }

    #[test]
    fn name_and_version_are_the_lists_whatever_the_plugin_says_in_whatever_spelling() {
        let list = one(r#"{"type": "t", "Name": "other", "CNIVERSION": "0.1.0"}"#);
        let document: Value = serde_json::from_str(&stdin(&list, &at(&json!({})), None)).unwrap();
        assert_eq!(document, json!({"type": "t", "name": "net", "cniVersion": "1.0.0"}));
    }

    #[test]
    fn only_declared_capabilities_are_handed_on_and_the_declaration_is_not() {
        let list = one(r#"{"type": "t", "capabilities": {"mac": true, "ips": false}}"#);
        let given = at(&json!({"mac": "02:00:00:00:00:01", "ips": ["10.0.0.2/8"], "dns": {}}));
        let document: Value = serde_json::from_str(&stdin(&list, &given, None)).unwrap();
        assert_eq!(document["runtimeConfig"], json!({"mac": "02:00:00:00:00:01"}));
        assert_eq!(document.get("capabilities"), None);
        let without: Value = serde_json::from_str(&stdin(&list, &at(&json!({"dns": {}})), None)).unwrap();
        assert_eq!(without.get("runtimeConfig"), None);
    }

    #[test]
    fn what_only_a_runtime_may_say_is_left_out_of_a_file_with_a_warning() {
        let list = one(r#"{"type": "t", "PrevResult": {"ips": []}, "runtimeConfig": {}, "args": {"cni": {}}}"#);
        let document: Value = serde_json::from_str(&stdin(&list, &at(&json!({})), None)).unwrap();
        assert_eq!(document, json!({"type": "t", "args": {"cni": {}}, "name": "net", "cniVersion": "1.0.0"}));
        assert_eq!(list.warnings.len(), 2);
        let document: Value = serde_json::from_str(&stdin(&list, &at(&json!({})), Some(&json!({"dns": {}})))).unwrap();
        assert_eq!(document["prevResult"], json!({"dns": {}}));
    }

    #[test]
    fn the_newest_known_of_the_offered_versions_is_taken() {
        let cases = [
            (r#""cniVersion": "0.4.0""#, "0.4.0"),
            (r#""cniVersion": "7.0.0""#, "7.0.0"),
            (r#""cniVersions": ["0.3.1", "1.1.0", "1.0.0", "2.0.0"]"#, "1.1.0"),
            (r#""cniVersion": "1.0.0", "cniVersions": ["0.4.0"]"#, "1.0.0"),
            (r#""cniVersion": "3.0.0", "cniVersions": ["2.0.0"]"#, "3.0.0"),
            (r#""disableCheck": false"#, ""),
        ];
        for (keys, version) in cases {
            let list = read(&format!(r#"{{{keys}, "name": "net", "plugins": [{{"type": "t"}}]}}"#)).unwrap();
            assert_eq!(list.version, version, "{keys}");
        }
    }

    #[test]
    fn a_list_that_cannot_be_used_says_which_key_is_wrong() {
        let cases = [
            (r#""cniVersion": 1"#, "cniVersion"),
            (r#""cniVersions": ["x"]"#, "x"),
            (r#""cniVersions": "1.0.0""#, "cniVersions"),
            (r#""disableCheck": "1""#, "disableCheck"),
            (r#""plugins": []"#, "no plugins in list"),
            (r#""plugins": null"#, "plugins"),
            (r#""plugins": [{}]"#, "missing 'type'"),
            (r#""plugins": [1]"#, "not an object"),
            (r#""plugins": [{"type": "t", "capabilities": {"mac": 1}}]"#, "mac"),
            (r#""name": "../up""#, "../up"),
        ];
        for (keys, word) in cases {
            let error = read(&format!(r#"{{"name": "net", {keys}}}"#)).unwrap_err();
            assert!(error.contains(word), "{keys}: {error}");
        }
        assert!(read(r#"{"disableCheck": "TRUE", "name": "net", "plugins": [{"Type": "t"}]}"#).unwrap().disable_check);
    }
}
