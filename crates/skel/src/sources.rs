//! The places where a key may be set, and their precedence.

use std::fmt;

use cnikit_types::{Args, NetConf, ReadError};
use serde_json::Value;

use crate::error::Error;

/// One place where a key may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeySource {
    /// `runtimeConfig.NAME`: a capability.
    Runtime(&'static str),
    /// `args.cni.NAME`.
    ArgsCni(&'static str),
    /// `NAME=…` in `CNI_ARGS`, as a text.
    CniArg(&'static str),
    /// `NAME=…` in `CNI_ARGS`, as a number if it is one in JSON: for a field that is a number. Otherwise as a text, which the type
    /// of the field refuses.
    CniArgNumber(&'static str),
    /// The key itself, at the top of the configuration. If it is not listed it is not read.
    Key,
}

/// For each key that may be set in other places: the places, the one with the highest precedence first.
///
/// The value is written under the key *before* the configuration is parsed, so that it is a typed field and validated once, from
/// whatever place it comes.
pub type Sources = &'static [(&'static str, &'static [KeySource])];

/// The place that each resolved key has its value from.
pub(crate) type Origins = Vec<(&'static str, KeySource)>;

/// Writes the value of the place with the highest precedence under each key, and returns those places. An empty text counts as
/// absent.
pub(crate) fn resolve(conf: &mut NetConf, args: &Args, sources: Sources) -> Origins {
    let mut origins = Origins::new();
    for (key, places) in sources {
        match places.iter().find_map(|place| Some((*place, look(conf, args, key, *place)?))) {
            Some((place, value)) => {
                conf.set(key, value);
                origins.push((*key, place));
            }
            None => conf.set(key, Value::Null),
        }
    }
    origins
}

/// The error of a configuration. It names the place that the value came from instead of the key that it was written under.
pub(crate) fn misread(error: ReadError, origins: &Origins) -> Error {
    let origin = origins.iter().find_map(|(key, place)| Some((place, path_below(&error.path, key)?)));
    match origin {
        None | Some((KeySource::Key, _)) => error.into(),
        Some((KeySource::CniArg(name) | KeySource::CniArgNumber(name), _)) => {
            Error::environment(format!("CNI_ARGS {name}: {}", error.message))
                .hint(format!("correct {name} in CNI_ARGS"))
        }
        Some((place, rest)) => ReadError { path: format!("{place}{rest}"), ..error }.into(),
    }
}

/// The rest of a path below a key, such as `[0].dst`; `None` if the path is not below it.
fn path_below<'a>(path: &'a str, key: &str) -> Option<&'a str> {
    let rest = path.strip_prefix(key)?;
    (rest.is_empty() || rest.starts_with(['.', '['])).then_some(rest)
}

/// The place as an error names it.
impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySource::Runtime(name) => write!(f, "runtimeConfig.{name}"),
            KeySource::ArgsCni(name) => write!(f, "args.cni.{name}"),
            KeySource::CniArg(name) | KeySource::CniArgNumber(name) => write!(f, "CNI_ARGS {name}"),
            KeySource::Key => f.write_str("the key itself"),
        }
    }
}

fn look(conf: &NetConf, args: &Args, key: &str, place: KeySource) -> Option<Value> {
    let value = match place {
        KeySource::Runtime(name) => conf.at(&["runtimeConfig", name]).cloned(),
        KeySource::ArgsCni(name) => conf.at(&["args", "cni", name]).cloned(),
        KeySource::CniArg(name) => args.get(name).map(Value::from),
        KeySource::CniArgNumber(name) => args.get(name).map(number_or_text),
        KeySource::Key => conf.get(key).cloned(),
    }?;
    if value.as_str() == Some("") {
        return None;
    }
    Some(value)
}

fn number_or_text(text: &str) -> Value {
    text.parse::<serde_json::Number>().map_or_else(|_| Value::from(text), Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Sources = &[("mac", &[KeySource::Runtime("mac"), KeySource::ArgsCni("mac"), KeySource::CniArg("MAC")])];

    fn winner(conf: &str, args: &str) -> Option<String> {
        let mut conf = NetConf::parse(conf.as_bytes()).unwrap();
        resolve(&mut conf, &Args::parse(args).unwrap(), MAC);
        conf.text("mac").map(str::to_owned)
    }

    #[test]
    fn the_first_source_with_a_value_wins() {
        let all = r#"{"mac":"key","args":{"cni":{"mac":"args"}},"runtimeConfig":{"Mac":"runtime"}}"#;
        assert_eq!(winner(all, "MAC=env").as_deref(), Some("runtime"));
        let empty = r#"{"args":{"cni":{"mac":"args"}},"runtimeConfig":{"mac":""}}"#;
        assert_eq!(winner(empty, "MAC=env").as_deref(), Some("args"));
        assert_eq!(winner("{}", "MAC=env").as_deref(), Some("env"));
    }

    #[test]
    fn an_error_names_the_source_of_the_value() {
        let place = |conf: &str, args: &str| {
            let mut conf = NetConf::parse(conf.as_bytes()).unwrap();
            let origins = resolve(&mut conf, &Args::parse(args).unwrap(), MAC);
            let error = misread(ReadError::value("no").under("mac"), &origins);
            (error.code, error.msg)
        };
        assert_eq!(place(r#"{"runtimeConfig":{"mac":"x"}}"#, "MAC=y"), (7, "runtimeConfig.mac: no".into()));
        assert_eq!(place(r#"{"args":{"cni":{"mac":"x"}}}"#, "MAC=y"), (7, "args.cni.mac: no".into()));
        assert_eq!(place("{}", "MAC=y"), (4, "CNI_ARGS MAC: no".into()));
        assert_eq!(
            misread(ReadError::value("no").under("machine"), &vec![("mac", KeySource::Runtime("mac"))]).msg,
            "machine: no"
        );
    }

    #[test]
    fn a_number_in_cni_args_is_one_and_another_text_is_refused_by_name() {
        const VNI: Sources = &[("vni", &[KeySource::CniArgNumber("VNI"), KeySource::Key])];
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Keys {
            vni: u32,
        }
        let read = |args: &str| {
            let mut conf = NetConf::parse(br#"{"vni":5}"#).unwrap();
            let origins = resolve(&mut conf, &Args::parse(args).unwrap(), VNI);
            conf.read::<Keys>().map_err(|error| misread(error, &origins).msg)
        };
        assert_eq!((read("VNI=9"), read("")), (Ok(Keys { vni: 9 }), Ok(Keys { vni: 5 })));
        for wrong in ["nine", "-1", "9.5", "0x9"] {
            let text = read(&format!("VNI={wrong}")).unwrap_err();
            assert!(text.starts_with("CNI_ARGS VNI: "), "{wrong}: {text}");
        }
    }

    #[test]
    fn a_place_that_is_not_listed_is_not_read() {
        assert_eq!(winner(r#"{"mac":"key","Mac":"too"}"#, ""), None);
    }
}
