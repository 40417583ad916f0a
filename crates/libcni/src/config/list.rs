//! A network list, and what each of its plugins reads on stdin.

use cnikit_types::{NetConf, ReadError, Release, Version, check_network_name, is_key, limit};
use serde_json::{Map, Value, json};

use crate::config::json_text::{elements, spliced, value};
use crate::{Attachment, Error};

/// Keys that only a runtime may set; in a file they would be taken for its word.
pub(crate) const RESERVED: [&str; 4] =
    ["prevResult", "runtimeConfig", "cni.dev/valid-attachments", "cni.dev/attachments"];

/// What of a plugin's text is the runtime's to say: it is replaced, or left out.
const REPLACED: [&str; 3] = ["name", "cniVersion", "capabilities"];

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
    /// Whether GC is to do nothing.
    pub disable_gc: bool,
    /// At least one.
    pub plugins: Vec<ListedPlugin>,
    /// The document as it stood in the file.
    pub bytes: Vec<u8>,
    /// What was passed over or left out while it was loaded, for people.
    pub warnings: Vec<String>,
    /// How many of the plugins stand in the document itself.
    inlined: usize,
}

/// One plugin of a list.
#[derive(Clone, Debug, PartialEq)]
pub struct ListedPlugin {
    /// Its `type`.
    pub plugin: String,
    /// The capabilities that it declares.
    pub capabilities: Vec<String>,
    /// Its configuration as it stands in the file.
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
        let (disable_check, disable_gc) = (flag(document, "disableCheck")?, flag(document, "disableGC")?);
        let (version, plugins, warnings) = (version(document)?, Vec::new(), Vec::new());
        let mut list = Self { name, version, disable_check, disable_gc, plugins, bytes, warnings, inlined: 0 };
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

    /// All that keeps a document from being a list: of each key of its own, and of each plugin's type and capabilities. None if
    /// nothing does.
    pub(crate) fn defects(document: &Map<String, Value>) -> Vec<ReadError> {
        let mut defects: Vec<ReadError> = Vec::new();
        // Without the plugins, and with one key at a time in the place of one that is right.
        let sound = json!({"name": "n", "plugins": [{"type": "t"}]});
        for keys in [&["name"][..], &["disableCheck"], &["disableGC"], &["cniVersion", "cniVersions"]] {
            let mut alone = sound.as_object().cloned().unwrap_or_default();
            for key in keys {
                match document.get(*key) {
                    Some(value) => alone.insert((*key).to_owned(), value.clone()),
                    None => alone.shift_remove(*key),
                };
            }
            defects.extend(Self::read(&alone, Vec::new()).err());
        }
        match document.get("plugins") {
            Some(Value::Array(plugins)) if !plugins.is_empty() => {
                for (at, plugin) in plugins.iter().enumerate() {
                    let under = |error: ReadError| error.at(at).under("plugins");
                    defects.extend(plugin_defects(plugin).into_iter().map(under));
                }
            }
            None => {}
            Some(plugins) => {
                let alone = [("name", "n".into()), ("plugins", plugins.clone())];
                let alone = alone.map(|(key, value): (&str, Value)| (key.to_owned(), value)).into_iter().collect();
                defects.extend(Self::read(&alone, Vec::new()).err());
            }
        }
        defects
    }

    /// Adds the plugins of the document, each with its text as it stands there.
    fn inline(&mut self, plugins: &[Value]) -> Result<(), ReadError> {
        limit::count("plugins", plugins.len(), limit::PLUGINS).map_err(|error| error.under("plugins"))?;
        let document = String::from_utf8_lossy(&self.bytes).into_owned();
        let texts = value(&document, "plugins").map(elements).filter(|texts| texts.len() == plugins.len());
        for (at, plugin) in plugins.iter().enumerate() {
            let text = texts.as_ref().map_or_else(|| plugin.to_string(), |texts| texts[at].to_owned());
            self.append(plugin, &text).map_err(|error| error.at(at).under("plugins"))?;
        }
        Ok(())
    }

    /// A stand-alone plugin as a list of one, with its text as it stands; the list's document is made here.
    pub(crate) fn of_one(conf: &NetConf, text: &str) -> Result<Self, ReadError> {
        let version = conf.get("cniVersion").cloned().unwrap_or_else(|| "".into());
        let name: Value = conf.name().unwrap_or_default().into();
        let text = text.trim();
        let bytes = format!(r#"{{"cniVersion":{version},"name":{name},"plugins":[{text}]}}"#).into_bytes();
        let plugins = Value::Array(vec![Value::Object(conf.0.clone())]);
        let keys = [("cniVersion", version), ("name", name), ("plugins", plugins)];
        let document: Map<String, Value> = keys.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        // What is wrong with the plugin stands at the top of the document that people know.
        let at_top = |error: ReadError| match error.path.strip_prefix("plugins[0]") {
            Some(rest) => ReadError { path: rest.trim_start_matches('.').to_owned(), ..error },
            None => error,
        };
        Self::read(&document, bytes).map_err(at_top)
    }

    /// Adds a plugin behind the others, with its text as it stands.
    pub(crate) fn append(&mut self, plugin: &Value, text: &str) -> Result<(), ReadError> {
        let Value::Object(conf) = plugin else { return Err(ReadError::wrong_type("is not an object")) };
        let conf = NetConf(conf.clone());
        let plugin = plugin_type(&conf)?;
        let capabilities = declared(&conf)?;
        let stands = |key: &&str| conf.0.keys().any(|own| is_key(own, key));
        for key in RESERVED.into_iter().filter(stands) {
            self.warnings.push(format!("plugin {plugin}: `{key}` is left out: only a runtime sets it"));
        }
        self.plugins.push(ListedPlugin { plugin, capabilities, text: text.trim().to_owned() });
        Ok(())
    }

    /// What a kept result says of the configuration: the document, with plugins that stood beside it inside.
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

    /// Whether CHECK is to be sent. The error is that the version has none.
    pub(crate) fn is_checked(&self) -> Result<bool, Error> {
        if self.disable_check || self.is_since(Version::V0_4_0) {
            return Ok(!self.disable_check);
        }
        Err(Error::NoCheck { version: self.version.clone() })
    }

    /// Whether the version has a verb that came with `floor`. One that cannot be read is left to the plugins to refuse.
    pub(crate) fn is_since(&self, floor: Version) -> bool {
        match (release(&self.version), release(floor.as_str())) {
            (Ok(version), Ok(floor)) => version >= floor,
            _ => true,
        }
    }
}

impl ListedPlugin {
    /// The configuration for one call about an attachment: name and version of the list, the result so far, the
    /// capabilities that it declares. All else is as it stands in the file, byte for byte.
    pub(crate) fn stdin(&self, list: &NetworkList, at: &Attachment, previous: Option<&Value>) -> Vec<u8> {
        let wanted = self.runtime_config(at).map(|wanted| ("runtimeConfig", wanted.to_string()));
        let previous = previous.map(|previous| ("prevResult", previous.to_string()));
        let more: Vec<_> = previous.into_iter().chain(wanted).collect();
        self.stdin_with(list, &more)
    }

    /// What the runtime says of an attachment, as far as the plugin declares that it wants it; none if that is nothing.
    pub(crate) fn runtime_config(&self, at: &Attachment) -> Option<Value> {
        let is_wanted = |(name, _): &(&String, &Value)| self.capabilities.contains(name);
        let wanted: Map<String, Value> = at.capabilities.iter().filter(is_wanted).map(owned).collect();
        (!wanted.is_empty()).then_some(Value::Object(wanted))
    }

    /// The configuration with these members behind, as it goes to a plugin.
    pub(crate) fn stdin_with(&self, list: &NetworkList, more: &[(&str, String)]) -> Vec<u8> {
        let own = [("name", json!(list.name).to_string()), ("cniVersion", json!(list.version).to_string())];
        let all: Vec<(&str, String)> = own.into_iter().chain(more.iter().cloned()).collect();
        let is_ours = |key: &str| RESERVED.iter().chain(&REPLACED).any(|ours| is_key(key, ours));
        spliced(&self.text, is_ours, &all).into_bytes()
    }
}

fn owned((name, value): (&String, &Value)) -> (String, Value) {
    (name.clone(), value.clone())
}

/// The newest of `cniVersion` and `cniVersions` that this library knows; without the latter, what the former says.
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
    let newest = Release::from(Version::NEWEST);
    let mut best: Option<(Release, &str)> = None;
    let written_too = Some(("cniVersion".to_owned(), Some(written))).filter(|_| !written.is_empty());
    let offered = offered.iter().enumerate().map(|(index, text)| (format!("cniVersions[{index}]"), text.as_str()));
    for (key, text) in offered.chain(written_too) {
        let text = text.ok_or_else(|| wrong(&key))?;
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

/// A version as it is asked for: a configuration that says none is of the first one.
pub(crate) fn or_first(version: &str) -> &str {
    if version.is_empty() { Version::V0_1_0.as_str() } else { version }
}

/// A switch of the list: a boolean, or its word in any case.
pub(crate) fn flag(document: &Map<String, Value>, key: &str) -> Result<bool, ReadError> {
    match document.get(key) {
        None => Ok(false),
        Some(Value::Bool(on)) => Ok(*on),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(word)) if word.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(ReadError::wrong_type("is neither true nor false").under(key)),
    }
}

fn plugin_type(conf: &NetConf) -> Result<String, ReadError> {
    match conf.get("type") {
        Some(Value::String(plugin)) => Ok(plugin.clone()),
        Some(_) => Err(ReadError::wrong_type("is not a text").under("type")),
        None => Err(ReadError::value("missing 'type'").under("type")),
    }
}

/// All that keeps an object from being a plugin of a list.
pub(crate) fn plugin_defects(plugin: &Value) -> Vec<ReadError> {
    let Value::Object(conf) = plugin else { return vec![ReadError::wrong_type("is not an object")] };
    let conf = NetConf(conf.clone());
    let mut defects: Vec<ReadError> = plugin_type(&conf).err().into_iter().collect();
    let Some(capabilities) = conf.get("capabilities") else { return defects };
    let Value::Object(capabilities) = capabilities else {
        defects.push(ReadError::wrong_type("is not an object").under("capabilities"));
        return defects;
    };
    for (name, _) in capabilities.iter().filter(|(_, on)| !on.is_boolean()) {
        defects.push(ReadError::wrong_type("is neither true nor false").under(name).under("capabilities"));
    }
    defects
}

/// The capabilities that a plugin's configuration declares with `true`.
fn declared(conf: &NetConf) -> Result<Vec<String>, ReadError> {
    let Some(value) = conf.get("capabilities") else { return Ok(Vec::new()) };
    let wrong = |why: &str| ReadError::wrong_type(why);
    let capabilities = value.as_object().ok_or_else(|| wrong("is not an object").under("capabilities"))?;
    match capabilities.iter().find(|(_, on)| !on.is_boolean()) {
        Some((name, _)) => Err(wrong("is neither true nor false").under(name).under("capabilities")),
        None => {
            Ok(capabilities.iter().filter(|(_, on)| on.as_bool() == Some(true)).map(|(name, _)| name.clone()).collect())
        }
    }
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
        let as_it_stands =
            r#"{"type": "t", "z": 9007199254740993, "a": 0.1000000000000000055511151231257827, "é": "<&>","#;
        assert!(text.starts_with(as_it_stands), "{text}");
        assert!(text.contains(r#""name":"net""#) && text.contains(r#""cniVersion":"1.0.0""#), "{text}");
    }

    #[test]
    fn more_plugins_than_are_run_are_no_list() {
        let of = |count: usize| {
            let plugins = vec![r#"{"type": "t"}"#; count].join(",");
            read(&format!(r#"{{"cniVersion": "1.0.0", "name": "net", "plugins": [{plugins}]}}"#))
        };
        assert_eq!(of(limit::PLUGINS).unwrap().plugins.len(), limit::PLUGINS);
        let error = of(limit::PLUGINS + 1).unwrap_err();
        assert_eq!(error.to_string(), "plugins: has 257 plugins, and at most 256 are served");
    }

    #[test]
    fn what_is_recorded_holds_the_plugins_that_stood_beside_the_list() {
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
            let error = read(&format!(r#"{{"name": "net", {keys}}}"#)).unwrap_err().to_string();
            assert!(error.contains(word), "{keys}: {error}");
        }
        assert!(read(r#"{"disableCheck": "TRUE", "name": "net", "plugins": [{"Type": "t"}]}"#).unwrap().disable_check);
    }
}
