//! A network list, and the configuration that each of its plugins reads on stdin.

use cnikit_types::{NetConf, ReadError, Release, Version, check_network_name, is_key, limit};
use serde_json::{Map, Value, json};

use crate::config::json_text::{elements, spliced, value};
use crate::{Attachment, Error};

/// Keys that only a runtime may set. In a file they are ignored.
pub(crate) const RESERVED: [&str; 4] =
    ["prevResult", "runtimeConfig", "cni.dev/valid-attachments", "cni.dev/attachments"];

/// Keys of a plugin that the runtime replaces or leaves out.
const REPLACED: [&str; 3] = ["name", "cniVersion", "capabilities"];

/// A network: its name, its version, and its plugins in the order of ADD (specification, section 1).
#[doc(alias = "conflist")]
#[derive(Clone, Debug, PartialEq)]
pub struct NetworkList {
    /// The network's name.
    pub name: String,
    /// The version in which all plugins are called; empty if the file has none.
    pub version: String,
    /// Whether CHECK does nothing.
    pub disable_check: bool,
    /// Whether GC does nothing.
    pub disable_gc: bool,
    /// At least one plugin.
    pub plugins: Vec<ListedPlugin>,
    /// The document as it is in the file.
    pub bytes: Vec<u8>,
    /// Warnings about what was skipped or ignored while it was loaded, one sentence each.
    pub warnings: Vec<String>,
    /// How many of the plugins are in the document itself.
    inlined: usize,
}

/// One plugin of a list.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct ListedPlugin {
    /// Its `type`.
    pub plugin: String,
    /// The capabilities that it declares.
    pub capabilities: Vec<String>,
    /// Its configuration as it is in the file.
    pub text: String,
}

impl NetworkList {
    /// Reads the document of a `.conflist`. Keys of the list are matched exactly, those of a plugin in any case.
    pub(crate) fn read(document: &Map<String, Value>, bytes: Vec<u8>) -> Result<Self, ReadError> {
        let name = match document.get("name") {
            Some(Value::String(name)) => name.clone(),
            Some(_) => return Err(ReadError::wrong_type("is not a text").under("name")),
            None => return Err(ReadError::value("is missing").under("name")),
        };
        check_network_name(&name).map_err(|why| ReadError::value(format!("{why}: {name:?}")).under("name"))?;
        let disable_check = flag(document, "disableCheck")?;
        let disable_gc = flag(document, "disableGC")?;
        let mut list = Self {
            name,
            version: version(document)?,
            disable_check,
            disable_gc,
            plugins: Vec::new(),
            bytes,
            warnings: Vec::new(),
            inlined: 0,
        };
        match document.get("plugins") {
            None => {}
            Some(Value::Array(plugins)) if plugins.is_empty() => {
                return Err(ReadError::value("no plugins in list").under("plugins"));
            }
            Some(Value::Array(plugins)) => list.inline(plugins)?,
            Some(_) => return Err(ReadError::wrong_type("is not a list").under("plugins")),
        }
        list.inlined = list.plugins.len();
        Ok(list)
    }

    /// Everything that makes a document invalid as a list: in each of its own keys, and in the type and capabilities of each
    /// plugin.
    pub(crate) fn errors(document: &Map<String, Value>) -> Vec<ReadError> {
        let mut errors: Vec<ReadError> = Vec::new();
        // Each key is read in a document in which everything else is valid.
        let valid = json!({"name": "n", "plugins": [{"type": "t"}]});
        for keys in [&["name"][..], &["disableCheck"], &["disableGC"], &["cniVersion", "cniVersions"]] {
            let mut alone = valid.as_object().cloned().unwrap_or_default();
            for key in keys {
                match document.get(*key) {
                    Some(value) => alone.insert((*key).to_owned(), value.clone()),
                    None => alone.shift_remove(*key),
                };
            }
            if let Err(error) = Self::read(&alone, Vec::new()) {
                errors.push(error);
            }
        }
        match document.get("plugins") {
            Some(Value::Array(plugins)) if !plugins.is_empty() => {
                for (index, plugin) in plugins.iter().enumerate() {
                    for error in plugin_errors(plugin) {
                        errors.push(error.at(index).under("plugins"));
                    }
                }
            }
            None => {}
            Some(plugins) => {
                let mut alone = Map::new();
                alone.insert("name".to_owned(), "n".into());
                alone.insert("plugins".to_owned(), plugins.clone());
                if let Err(error) = Self::read(&alone, Vec::new()) {
                    errors.push(error);
                }
            }
        }
        errors
    }

    /// Adds the plugins of the document, each with its text as it is there.
    fn inline(&mut self, plugins: &[Value]) -> Result<(), ReadError> {
        limit::count("plugins", plugins.len(), limit::PLUGINS).map_err(|error| error.under("plugins"))?;
        let document = String::from_utf8_lossy(&self.bytes).into_owned();
        let texts = value(&document, "plugins").map(elements).unwrap_or_default();
        for (index, plugin) in plugins.iter().enumerate() {
            let text = if texts.len() == plugins.len() { texts[index].to_owned() } else { plugin.to_string() };
            self.append(plugin, &text).map_err(|error| error.at(index).under("plugins"))?;
        }
        Ok(())
    }

    /// A stand-alone plugin as a list of one, with its text as it is; the list's document is generated.
    pub(crate) fn of_one(conf: &NetConf, text: &str) -> Result<Self, ReadError> {
        let version = conf.get("cniVersion").cloned().unwrap_or_else(|| "".into());
        let name: Value = conf.name().unwrap_or_default().into();
        let text = text.trim();
        let bytes = format!(r#"{{"cniVersion":{version},"name":{name},"plugins":[{text}]}}"#).into_bytes();
        let mut document = Map::new();
        document.insert("cniVersion".to_owned(), version);
        document.insert("name".to_owned(), name);
        document.insert("plugins".to_owned(), Value::Array(vec![Value::Object(conf.0.clone())]));
        Self::read(&document, bytes).map_err(at_top)
    }

    /// Adds a plugin after the others, with its text as it is.
    pub(crate) fn append(&mut self, plugin: &Value, text: &str) -> Result<(), ReadError> {
        let Value::Object(members) = plugin else { return Err(ReadError::wrong_type("is not an object")) };
        let conf = NetConf(members.clone());
        let plugin_type = plugin_type(&conf)?;
        let capabilities = declared(&conf)?;
        for key in RESERVED {
            if members.keys().any(|own| is_key(own, key)) {
                self.warnings
                    .push(format!("plugin {plugin_type}: `{key}` is not passed to the plugin: only a runtime sets it"));
            }
        }
        self.plugins.push(ListedPlugin { plugin: plugin_type, capabilities, text: text.trim().to_owned() });
        Ok(())
    }

    /// The document for the cache: that of the file, with the plugins from other files in it.
    pub(crate) fn recorded(&self) -> Vec<u8> {
        if self.plugins.len() == self.inlined {
            return self.bytes.clone();
        }
        let plugins: Vec<&str> = self.plugins.iter().map(|listed| listed.text.as_str()).collect();
        let more = [
            ("cniVersion", json!(self.version).to_string()),
            ("loadOnlyInlinedPlugins", "true".to_owned()),
            ("plugins", format!("[{}]", plugins.join(","))),
        ];
        let without = ["cniVersion", "cniVersions", "loadOnlyInlinedPlugins", "plugins"];
        let document = String::from_utf8_lossy(&self.bytes);
        spliced(&document, |key| without.contains(&key), &more).into_bytes()
    }

    /// Whether CHECK is sent. The error is that the version has no CHECK.
    pub(crate) fn is_checked(&self) -> Result<bool, Error> {
        if self.disable_check {
            return Ok(false);
        }
        if self.is_since(Version::V0_4_0) {
            return Ok(true);
        }
        Err(Error::NoCheck { version: self.version.clone() })
    }

    /// Whether the version has a verb that was added in `floor`; true for a version that cannot be parsed, which the plugins
    /// report.
    pub(crate) fn is_since(&self, floor: Version) -> bool {
        match (release(&self.version), release(floor.as_str())) {
            (Ok(version), Ok(floor)) => version >= floor,
            _ => true,
        }
    }
}

impl ListedPlugin {
    /// The configuration for one call about an attachment: the list's name and version, the previous result, and the
    /// capabilities that the plugin declares. Everything else is as in the file, byte for byte.
    pub(crate) fn stdin(&self, list: &NetworkList, attachment: &Attachment, previous: Option<&Value>) -> Vec<u8> {
        let mut more = Vec::new();
        if let Some(previous) = previous {
            more.push(("prevResult", previous.to_string()));
        }
        if let Some(config) = self.runtime_config(attachment) {
            more.push(("runtimeConfig", config.to_string()));
        }
        self.stdin_with(list, &more)
    }

    /// The capabilities of an attachment that the plugin declares; `None` if there are none.
    pub(crate) fn runtime_config(&self, attachment: &Attachment) -> Option<Value> {
        let mut config = Map::new();
        for (name, value) in &attachment.capabilities {
            if self.capabilities.contains(name) {
                config.insert(name.clone(), value.clone());
            }
        }
        if config.is_empty() { None } else { Some(Value::Object(config)) }
    }

    /// The configuration with the list's name and version and these members at its end.
    pub(crate) fn stdin_with(&self, list: &NetworkList, more: &[(&str, String)]) -> Vec<u8> {
        let mut members = vec![("name", json!(list.name).to_string()), ("cniVersion", json!(list.version).to_string())];
        members.extend_from_slice(more);
        let is_ours = |key: &str| RESERVED.iter().chain(&REPLACED).any(|ours| is_key(key, ours));
        spliced(&self.text, is_ours, &members).into_bytes()
    }
}

/// The error about a list of one, with the path in the stand-alone plugin that it was made from.
fn at_top(error: ReadError) -> ReadError {
    match error.path.strip_prefix("plugins[0]") {
        Some(rest) => ReadError { path: rest.trim_start_matches('.').to_owned(), ..error },
        None => error,
    }
}

/// The newest of `cniVersion` and `cniVersions` that this library supports; without `cniVersions`, the value of `cniVersion`.
fn version(document: &Map<String, Value>) -> Result<String, ReadError> {
    let wrong = |key: &str| ReadError::wrong_type("is not a text").under(key);
    let written = match document.get("cniVersion") {
        None => "",
        Some(Value::String(text)) => text,
        Some(_) => return Err(wrong("cniVersion")),
    };
    let offered = match document.get("cniVersions") {
        None => return Ok(written.to_owned()),
        Some(Value::Array(offered)) => offered,
        Some(_) => return Err(ReadError::wrong_type("is not a list").under("cniVersions")),
    };
    let mut candidates: Vec<(String, Option<&str>)> = Vec::new();
    for (index, offer) in offered.iter().enumerate() {
        candidates.push((format!("cniVersions[{index}]"), offer.as_str()));
    }
    if !written.is_empty() {
        candidates.push(("cniVersion".to_owned(), Some(written)));
    }
    let newest = Release::from(Version::NEWEST);
    let mut best: Option<(Release, &str)> = None;
    for (key, offer) in candidates {
        let text = offer.ok_or_else(|| wrong(&key))?;
        let candidate = release(text).map_err(|why| ReadError::value(why).under(&key))?;
        if candidate <= newest && best.as_ref().is_none_or(|(best, _)| candidate > *best) {
            best = Some((candidate, text));
        }
    }
    Ok(best.map_or(written, |(_, text)| text).to_owned())
}

fn release(text: &str) -> Result<Release, String> {
    Release::parse(or_first(text))
}

/// The version in which a plugin is called: a configuration without a version has the first one.
pub(crate) fn or_first(version: &str) -> &str {
    if version.is_empty() { Version::V0_1_0.as_str() } else { version }
}

/// A boolean of the list, which may also be written as a string in any case.
pub(crate) fn flag(document: &Map<String, Value>, key: &str) -> Result<bool, ReadError> {
    match document.get(key) {
        None => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(ReadError::wrong_type("is not true or false").under(key)),
    }
}

fn plugin_type(conf: &NetConf) -> Result<String, ReadError> {
    match conf.get("type") {
        Some(Value::String(plugin)) => Ok(plugin.clone()),
        Some(_) => Err(ReadError::wrong_type("is not a text").under("type")),
        None => Err(ReadError::value("missing 'type'").under("type")),
    }
}

/// Everything that makes an object invalid as a plugin of a list.
pub(crate) fn plugin_errors(plugin: &Value) -> Vec<ReadError> {
    let Value::Object(members) = plugin else { return vec![ReadError::wrong_type("is not an object")] };
    let conf = NetConf(members.clone());
    let mut errors = Vec::new();
    if let Err(error) = plugin_type(&conf) {
        errors.push(error);
    }
    match conf.get("capabilities") {
        None => {}
        Some(Value::Object(capabilities)) => {
            for (name, value) in capabilities {
                if !value.is_boolean() {
                    errors.push(not_boolean(name));
                }
            }
        }
        Some(_) => errors.push(ReadError::wrong_type("is not an object").under("capabilities")),
    }
    errors
}

/// The capabilities that a plugin's configuration declares with `true`.
fn declared(conf: &NetConf) -> Result<Vec<String>, ReadError> {
    let Some(value) = conf.get("capabilities") else { return Ok(Vec::new()) };
    let Value::Object(capabilities) = value else {
        return Err(ReadError::wrong_type("is not an object").under("capabilities"));
    };
    let mut names = Vec::new();
    for (name, value) in capabilities {
        match value {
            Value::Bool(true) => names.push(name.clone()),
            Value::Bool(false) => {}
            _ => return Err(not_boolean(name)),
        }
    }
    Ok(names)
}

fn not_boolean(capability: &str) -> ReadError {
    ReadError::wrong_type("is not true or false").under(capability).under("capabilities")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(text: &str) -> Result<NetworkList, ReadError> {
        let conf = NetConf::parse(text.as_bytes()).unwrap();
        NetworkList::read(&conf.0, text.as_bytes().to_vec())
    }

    fn one(plugin: &str) -> NetworkList {
        read(&format!(r#"{{"cniVersion": "1.0.0", "name": "net", "plugins": [{plugin}]}}"#)).unwrap()
    }

    fn stdin(list: &NetworkList, attachment: &Attachment, previous: Option<&Value>) -> String {
        String::from_utf8(list.plugins[0].stdin(list, attachment, previous)).unwrap()
    }

    fn with_capabilities(capabilities: &Value) -> Attachment {
        Attachment { capabilities: capabilities.as_object().unwrap().clone(), ..Attachment::default() }
    }

    #[test]
    fn a_plugin_reads_its_keys_in_their_order_and_numbers_digit_by_digit() {
        let list =
            one(r#"{"type": "t", "z": 9007199254740993, "a": 0.1000000000000000055511151231257827, "é": "<&>"}"#);
        let text = stdin(&list, &with_capabilities(&json!({})), None);
        let as_written =
            r#"{"type": "t", "z": 9007199254740993, "a": 0.1000000000000000055511151231257827, "é": "<&>","#;
        assert!(text.starts_with(as_written), "{text}");
        assert!(text.contains(r#""name":"net""#) && text.contains(r#""cniVersion":"1.0.0""#), "{text}");
    }

    #[test]
    fn more_plugins_than_the_limit_are_refused() {
        let of = |count: usize| {
            let plugins = vec![r#"{"type": "t"}"#; count].join(",");
            read(&format!(r#"{{"cniVersion": "1.0.0", "name": "net", "plugins": [{plugins}]}}"#))
        };
        assert_eq!(of(limit::PLUGINS).unwrap().plugins.len(), limit::PLUGINS);
        let error = of(limit::PLUGINS + 1).unwrap_err();
        assert_eq!(error.to_string(), "plugins: has 257 plugins, and at most 256 are allowed");
    }

    #[test]
    fn the_recorded_document_has_the_plugins_of_other_files() {
        let mut list = read(
            r#"{"cniVersion": "0.4.0", "cniVersions": ["1.0.0"], "name": "net", "disableGC": true,
            "plugins": [{"type":  "a", "capabilities": {"mac": true}}]}"#,
        )
        .unwrap();
        assert_eq!(list.recorded(), list.bytes);
        list.append(&json!({"type": "b"}), "{\"type\" : \"b\"}\n").unwrap();
        assert_eq!(list.plugins[1].text, "{\"type\" : \"b\"}");
        let again = NetworkList::parse(&list.recorded()).unwrap();
        assert_eq!(again.plugins, list.plugins);
        assert_eq!((again.version.as_str(), again.name.as_str(), again.disable_gc), ("1.0.0", "net", true));
        assert_eq!(again.recorded(), again.bytes);
        assert!(NetworkList::parse(br#"{"name": "n"}"#).unwrap_err().to_string().contains("no plugin configs"));
        assert_eq!(NetworkList::parse(br#"{"name": "n", "type": "t"}"#).unwrap().plugins[0].plugin, "t");
    }

    #[test]
    fn name_and_version_are_the_lists_and_replace_the_plugins_in_any_case() {
        let list = one(r#"{"type": "t", "Name": "other", "CNIVERSION": "0.1.0"}"#);
        let document: Value = serde_json::from_str(&stdin(&list, &with_capabilities(&json!({})), None)).unwrap();
        assert_eq!(document, json!({"type": "t", "name": "net", "cniVersion": "1.0.0"}));
    }

    #[test]
    fn only_declared_capabilities_are_passed_and_the_declaration_is_not() {
        let list = one(r#"{"type": "t", "capabilities": {"mac": true, "ips": false}}"#);
        let given = with_capabilities(&json!({"mac": "02:00:00:00:00:01", "ips": ["10.0.0.2/8"], "dns": {}}));
        let document: Value = serde_json::from_str(&stdin(&list, &given, None)).unwrap();
        assert_eq!(document["runtimeConfig"], json!({"mac": "02:00:00:00:00:01"}));
        assert_eq!(document.get("capabilities"), None);
        let without: Value =
            serde_json::from_str(&stdin(&list, &with_capabilities(&json!({"dns": {}})), None)).unwrap();
        assert_eq!(without.get("runtimeConfig"), None);
    }

    #[test]
    fn keys_that_only_a_runtime_may_set_are_ignored_with_a_warning() {
        let list = one(r#"{"type": "t", "PrevResult": {"ips": []}, "runtimeConfig": {}, "args": {"cni": {}}}"#);
        let document: Value = serde_json::from_str(&stdin(&list, &with_capabilities(&json!({})), None)).unwrap();
        assert_eq!(document, json!({"type": "t", "args": {"cni": {}}, "name": "net", "cniVersion": "1.0.0"}));
        assert_eq!(list.warnings.len(), 2);
        let document: Value =
            serde_json::from_str(&stdin(&list, &with_capabilities(&json!({})), Some(&json!({"dns": {}})))).unwrap();
        assert_eq!(document["prevResult"], json!({"dns": {}}));
    }

    #[test]
    fn the_newest_known_of_the_offered_versions_is_used() {
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
    fn an_invalid_list_is_refused_with_the_key() {
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
            let error = read(&format!(r#"{{"name": "net", {keys}}}"#)).unwrap_err().to_string();
            assert!(error.contains(word), "{keys}: {error}");
        }
        assert!(read(r#"{"disableCheck": "TRUE", "name": "net", "plugins": [{"Type": "t"}]}"#).unwrap().disable_check);
    }
}
