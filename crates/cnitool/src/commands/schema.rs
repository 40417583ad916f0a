//! `schema`: the JSON Schema of configurations, from the tables of keys on the plugins' pages.
//!
//! It is draft 7, because editors know that best. It accepts keys only as the pages spell them, because an editor should propose
//! that spelling; a plugin reads a key in any case. A null is an absent key there, too.

use cnikit_libcni::{StringForm, ValueType};
use cnikit_types::Version;
use serde_json::{Map, Value, json};

use crate::failure::Result;
use crate::output::print::print_json;
use crate::plugin_pages::{KeyRow, PAGES, PluginPage};

const DRAFT: &str = "http://json-schema.org/draft-07/schema#";
/// Keys that are comments.
const COMMENT: &str = "^(_|//)";

/// Prints the schema of a plugin's configuration, or of network lists.
pub(crate) fn schema(plugin: Option<&str>) -> Result {
    let Some(plugin) = plugin else { return print_json(&of_lists()?) };
    let Some(page) = PAGES.iter().find(|page| page.plugin == plugin) else {
        let known: Vec<&str> = PAGES.iter().map(|page| page.plugin).collect();
        return Err(format!("no schema for the plugin {plugin:?}; hint: there is one for {}", known.join(", ")).into());
    };
    let mut schema = of_plugin(page)?;
    schema["$schema"] = json!(DRAFT);
    schema["title"] = json!(format!("Configuration of the CNI plugin {plugin}"));
    schema["definitions"] = definitions(None)?;
    print_json(&schema)
}

/// The schema of network lists. It allows plugins that are not ours, with any keys.
fn of_lists() -> Result<Value> {
    let mut of_types = Vec::new();
    for page in &PAGES {
        of_types.push(if_type(page.plugin, &json!({"$ref": format!("#/definitions/{}", page.plugin)})));
    }
    // The runtime writes these two.
    let no_value = json!({"not": {}});
    let plugin = json!({
        "type": "object",
        "properties": {
            "type": {"type": "string", "pattern": PLUGIN_NAME, "description": "The name of the plugin's program"},
            "runtimeConfig": no_value,
            "prevResult": no_value,
        },
        "required": ["type"],
        "allOf": of_types,
    });
    let version = json!({"enum": versions()});
    let flag = |meaning: &str| json!({"type": ["boolean", "null"], "description": meaning});
    Ok(json!({
        "$schema": DRAFT,
        "title": "CNI network list",
        "type": "object",
        "properties": {
            "cniVersion": version,
            "cniVersions": {"type": ["array", "null"], "items": version},
            "name": {"type": "string", "pattern": NETWORK_NAME, "description": "The name of the network"},
            "disableCheck": flag("The runtime runs no CHECK"),
            "disableGC": flag("The runtime runs no GC"),
            "loadOnlyInlinedPlugins": flag("Plugins are in this file only, not in the directory of the network's name"),
            "plugins": {"type": "array", "items": plugin, "minItems": 1},
        },
        "required": ["cniVersion", "name", "plugins"],
        "patternProperties": {COMMENT: {}},
        "additionalProperties": false,
        "definitions": definitions(Some(&PAGES))?,
    }))
}

/// The versions of the specification.
fn versions() -> Vec<&'static str> {
    Version::ALL.iter().map(|version| version.as_str()).collect()
}

/// The names of programs of plugins.
const PLUGIN_NAME: &str = "^(?![.]{1,2}$)[^/\\u0000-\\u001f\\u007f]+$";
/// The names of networks that the specification allows.
const NETWORK_NAME: &str = "^[a-zA-Z0-9][a-zA-Z0-9_.-]*$";

/// What schemas refer to: the keys of each IPAM plugin in `ipam`, results, and these plugins.
fn definitions(plugins: Option<&[PluginPage]>) -> Result<Value> {
    let mut all = Map::new();
    let mut of_types = Vec::new();
    for page in PAGES.iter().filter(|page| page.is_ipam) {
        let name = format!("ipam-{}", page.plugin);
        of_types.push(if_type(page.plugin, &json!({"$ref": format!("#/definitions/{name}")})));
        all.insert(name, of_ipam(page)?);
    }
    let ipam_type = json!({
        "anyOf": [{"type": "string", "pattern": PLUGIN_NAME}, {"const": ""}, {"type": "null"}],
        "description": "The name of the IPAM plugin's program",
    });
    let ipam = json!({"type": ["object", "null"], "properties": {"type": ipam_type}, "allOf": of_types});
    all.insert("ipam".to_owned(), ipam);
    all.insert("result".to_owned(), result());
    for page in plugins.unwrap_or_default() {
        all.insert(page.plugin.to_owned(), of_plugin(page)?);
    }
    Ok(Value::Object(all))
}

/// An object with this `type` must match a schema.
fn if_type(plugin: &str, schema: &Value) -> Value {
    json!({"if": {"properties": {"type": {"const": plugin}}, "required": ["type"]}, "then": schema})
}

/// The result of the plugins before, as far as plugins read it.
fn result() -> Value {
    let text = json!({"type": ["string", "null"]});
    let number = json!({"type": ["integer", "null"]});
    let texts = json!({"type": ["array", "null"], "items": {"type": "string"}});
    let interface = json!({
        "type": "object",
        "properties": {"name": text, "mac": text, "mtu": number, "sandbox": text},
    });
    let ip = json!({
        "type": "object",
        "properties": {
            "address": of_type(&ValueType::String { form: StringForm::AddressPrefix, or_empty: false }),
            "gateway": text,
            "interface": number,
        },
        "required": ["address"],
    });
    let dns = json!({
        "type": ["object", "null"],
        "properties": {"nameservers": texts, "domain": text, "search": texts, "options": texts},
    });
    json!({
        "type": ["object", "null"],
        "properties": {
            "cniVersion": {"enum": versions()},
            "interfaces": {"type": ["array", "null"], "items": interface},
            "ips": {"type": ["array", "null"], "items": ip},
            "routes": {"type": ["array", "null"], "items": {"type": "object"}},
            "dns": dns,
        },
    })
}

/// The keys of an IPAM plugin in `ipam`.
fn of_ipam(page: &PluginPage) -> Result<Value> {
    let rows = page.rows()?;
    let in_ipam: Vec<&KeyRow> = rows.iter().filter(|row| !is_elsewhere(row)).collect();
    let mut schema = object(&in_ipam, "");
    let properties = &mut schema["properties"];
    properties["type"] = json!({"type": ["string", "null"], "default": page.plugin});
    if properties.get("allowedSubnets").is_none() {
        let subnets = ValueType::List(Box::new(ValueType::String { form: StringForm::AddressPrefix, or_empty: false }));
        properties["allowedSubnets"] = described(&subnets, "Subnets in which a tenant may request addresses");
    }
    Ok(schema)
}

/// The configuration that a plugin gets: of the file, and what the runtime adds.
fn of_plugin(page: &PluginPage) -> Result<Value> {
    let rows = page.rows()?;
    let own: Vec<&KeyRow> = rows.iter().filter(|row| !page.is_ipam || is_elsewhere(row)).collect();
    let mut schema = object(&own, "");
    schema["type"] = json!("object");
    let properties = &mut schema["properties"];
    let mut capabilities = Map::new();
    for row in &rows {
        if let Some(name) = row.key.path.strip_prefix("runtimeConfig.").filter(|name| !name.contains('.')) {
            let meaning = format!("The runtime sets {name}");
            capabilities.insert(name.to_owned(), json!({"type": ["boolean", "null"], "description": meaning}));
        }
    }
    let of_any = json!({"type": ["boolean", "null"]});
    for (name, value) in [
        ("cniVersion", json!({"enum": versions(), "description": "The version of the specification"})),
        ("name", json!({"type": "string", "pattern": NETWORK_NAME, "description": "The name of the network"})),
        ("type", json!({"const": page.plugin})),
        (
            "capabilities",
            json!({"type": ["object", "null"], "properties": capabilities, "additionalProperties": of_any,
                "description": "What the runtime sets in `runtimeConfig`"}),
        ),
        ("prevResult", json!({"$ref": "#/definitions/result"})),
        ("cni.dev/valid-attachments", json!({"type": ["array", "null"], "items": valid_attachment()})),
    ] {
        properties[name] = value;
    }
    for name in ["args", "runtimeConfig"] {
        // Tenants and other plugins have keys there, too.
        let mut open = properties.get(name).cloned().unwrap_or_else(|| json!({"type": ["object", "null"]}));
        remove_limits(&mut open);
        if name == "args" && open["properties"]["cni"].is_null() {
            open["properties"] = json!({"cni": {"type": ["object", "null"]}});
        }
        properties[name] = open;
    }
    if !page.delegates {
        let mut ipam = json!({"$ref": "#/definitions/ipam"});
        if page.is_ipam {
            ipam = json!({"allOf": [{"$ref": format!("#/definitions/ipam-{}", page.plugin)}, {"type": "object"}]});
        } else if rows.iter().any(|row| row.key.path == "ipam" && row.key.is_required) {
            let named = json!({"type": "object", "properties": {"type": {"type": "string", "minLength": 1}}, "required": ["type"]});
            ipam = json!({"allOf": [ipam, named]});
        }
        properties["ipam"] = ipam;
    }
    if page.is_ipam {
        schema["required"] = json!(["ipam"]);
    }
    Ok(schema)
}

fn valid_attachment() -> Value {
    json!({
        "type": "object",
        "properties": {"containerID": {"type": "string"}, "ifname": {"type": "string"}},
        "required": ["containerID", "ifname"],
    })
}

/// Whether a key is set outside of the plugin's own object.
fn is_elsewhere(row: &KeyRow) -> bool {
    ["runtimeConfig.", "args."].iter().any(|prefix| row.key.path.starts_with(prefix))
}

/// Allows any other keys in an object, and in the objects in it.
fn remove_limits(schema: &mut Value) {
    let Some(members) = schema.as_object_mut() else { return };
    if members.remove("additionalProperties").is_some() {
        members.remove("patternProperties");
    }
    if let Some(Value::Object(properties)) = members.get_mut("properties") {
        properties.values_mut().for_each(remove_limits);
    }
}

/// The schema of the object at a level, such as `ranges[][]`.
fn object(rows: &[&KeyRow], level: &str) -> Value {
    let prefix = if level.is_empty() { String::new() } else { format!("{level}.") };
    let mut properties = Map::new();
    let mut required = Vec::new();
    for row in rows {
        let Some(rest) = row.key.path.strip_prefix(&prefix) else { continue };
        let Some(name) = rest.split(['.', '[']).next().filter(|name| !properties.contains_key(*name)) else { continue };
        let path = format!("{prefix}{name}");
        let key = rows.iter().find(|row| row.key.path == path);
        properties.insert(name.to_owned(), member(rows, &path, key.copied()));
        if key.is_some_and(|row| row.key.is_required) {
            required.push(name);
        }
    }
    let mut schema = json!({
        "type": ["object", "null"],
        "properties": properties,
        "patternProperties": {COMMENT: {}},
        "additionalProperties": false,
    });
    if !required.is_empty() {
        schema["required"] = json!(required);
    }
    schema
}

/// The schema of one member of an object, with what is below it.
fn member(rows: &[&KeyRow], path: &str, key: Option<&KeyRow>) -> Value {
    let Some(row) = key else { return object(rows, path) };
    let mut schema = described(&row.key.value, &plain(row.meaning));
    let mut level = path.to_owned();
    let mut value = &row.key.value;
    while let ValueType::List(of) = value {
        level.push_str("[]");
        value = of;
    }
    let has_keys = rows.iter().any(|row| row.key.path.starts_with(&format!("{level}.")));
    if has_keys {
        let mut below = object(rows, &level);
        // An element of a list cannot be absent.
        let mut at = &mut schema;
        while at.get("items").is_some() {
            at = &mut at["items"];
            below["type"] = json!("object");
        }
        let description = at.get("description").cloned();
        *at = below;
        if let Some(description) = description {
            at["description"] = description;
        }
    }
    if row.key.is_required {
        without_null(&mut schema);
    }
    if let Ok(default) = serde_json::from_str::<Value>(row.default) {
        schema["default"] = default;
    }
    schema
}

/// The schema of a member that may be absent, with its meaning.
fn described(value: &ValueType, meaning: &str) -> Value {
    let mut schema = of_type(value);
    if let Some(name) = schema.get("type").cloned() {
        schema["type"] = json!([name, "null"]);
    } else if *value != ValueType::Any {
        schema = one_of_these(schema, json!({"type": "null"}));
    }
    if !meaning.is_empty() {
        schema["description"] = json!(meaning);
    }
    schema
}

fn without_null(schema: &mut Value) {
    if let Some(name) = schema.get("type").and_then(|names| names.get(0)).cloned() {
        schema["type"] = name;
    } else if let Some(Value::Array(all)) = schema.get_mut("anyOf") {
        all.retain(|one| *one != json!({"type": "null"}));
    }
}

/// The schema of a value that has one of two schemas.
fn one_of_these(mut one: Value, other: Value) -> Value {
    if let Some(Value::Array(all)) = one.get_mut("anyOf") {
        all.push(other);
        return one;
    }
    json!({"anyOf": [one, other]})
}

/// The schema of a value that is not null.
fn of_type(value: &ValueType) -> Value {
    match value {
        ValueType::Any => json!({}),
        ValueType::Boolean => json!({"type": "boolean"}),
        ValueType::Object => json!({"type": "object"}),
        ValueType::Strings => json!({"type": "object", "additionalProperties": {"type": ["string", "null"]}}),
        ValueType::List(of) => json!({"type": "array", "items": of_type(of)}),
        ValueType::Integer { least, most } => {
            let mut schema = json!({"type": "integer"});
            if let Some(least) = least {
                schema["minimum"] = json!(least);
            }
            if let Some(most) = most {
                schema["maximum"] = json!(most);
            }
            schema
        }
        ValueType::String { form, or_empty } => {
            let has_empty = *form != StringForm::Text && *or_empty;
            if has_empty { one_of_these(of_form(form), json!({"const": ""})) } else { of_form(form) }
        }
    }
}

/// The schema of a string. The patterns of addresses accept more than there are addresses: a plugin, and `validate`, parse them.
fn of_form(form: &StringForm) -> Value {
    let pattern = |pattern: &str| json!({"type": "string", "pattern": pattern});
    match form {
        StringForm::Text => json!({"type": "string"}),
        StringForm::Address => pattern("^[0-9a-fA-F.]*[.:][0-9a-fA-F:.]*$"),
        StringForm::AddressPrefix => pattern("^[0-9a-fA-F.]*[.:][0-9a-fA-F:.]*/[0-9]{1,3}$"),
        StringForm::AnyAddress => pattern("^[0-9a-fA-F.]*[.:][0-9a-fA-F:.]*(/[0-9]{1,3})?$"),
        StringForm::Mac => {
            // Not zero, and not the address of a group, in which the lowest bit of the first byte is set.
            let pairs = |separator: &str| format!("([0-9a-fA-F]{{2}}{separator}){{5}}[0-9a-fA-F]{{2}}");
            let words = "([0-9a-fA-F]{4}[.]){2}[0-9a-fA-F]{4}";
            let unicast = "(?![0:.-]*$)(?=.[02468aceACE])";
            pattern(&format!("^{unicast}({}|{}|{words})$", pairs(":"), pairs("-")))
        }
        StringForm::InterfaceName => pattern("^[^/:%\\s\\u0000-\\u001f\\u007f]{1,15}$"),
        StringForm::Words { words, any_case: false } => json!({"enum": words}),
        StringForm::Words { words, any_case: true } => {
            let patterns: Vec<String> = words.iter().map(|word| in_any_case(word)).collect();
            // An editor proposes the words; the pattern is for the other spellings.
            one_of_these(json!({"enum": words}), pattern(&format!("^({})$", patterns.join("|"))))
        }
    }
}

/// A pattern for a word with letters of either case.
fn in_any_case(word: &str) -> String {
    let mut pattern = String::new();
    for letter in word.chars() {
        if letter.is_ascii_alphabetic() {
            pattern.extend(['[', letter.to_ascii_lowercase(), letter.to_ascii_uppercase(), ']']);
        } else {
            pattern.extend(['[', letter, ']']);
        }
    }
    pattern
}

/// A cell of a page without the targets of its links.
fn plain(cell: &str) -> String {
    let mut text = String::new();
    let mut rest = cell;
    while let Some((before, after)) = rest.split_once("](") {
        text += &before.replacen('[', "", before.matches('[').count().min(1));
        rest = after.split_once(')').map_or("", |(_, after)| after);
    }
    text + rest
}
