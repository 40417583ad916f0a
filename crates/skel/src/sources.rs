//! Who may say the value of a key, and who has the last word.

use std::fmt;

use cnikit_types::{Args, NetConf, ReadError};
use serde_json::Value;

use crate::error::Error;

/// One place where a key may be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeySource {
    /// `runtimeConfig.NAME`: a capability.
    Runtime(&'static str),
    /// `args.cni.NAME`.
    ArgsCni(&'static str),
    /// `NAME=…` in `CNI_ARGS`.
    CniArg(&'static str),
    /// The key itself, at the top of the configuration. Where it is not listed it is not read.
    Key,
}

/// For each key that may be said elsewhere: the places, the one with the last word first.
///
/// The winner is written under the key *before* the configuration is read, so that a value is a typed field and is
/// checked once, wherever it came from.
pub type Sources = &'static [(&'static str, &'static [KeySource])];

/// From which place each settled key has its value.
pub(crate) type Origins = Vec<(&'static str, KeySource)>;

/// Puts the winner of each key's sources under the key, and says which place it was. An empty text counts as not said.
pub(crate) fn resolve(conf: &mut NetConf, args: &Args, sources: Sources) -> Origins {
    let mut origins = Origins::new();
    for (key, places) in sources {
        let said = places.iter().find_map(|place| Some((*place, look(conf, args, key, *place)?)));
        let (place, value) = said.map_or((None, Value::Null), |(place, value)| (Some(place), value));
        conf.set(key, value);
        origins.extend(place.map(|place| (*key, place)));
    }
    origins
}

/// The error of a configuration, told of the place where the value was said rather than of the key it was put under.
pub(crate) fn misread(error: ReadError, origins: &Origins) -> Error {
    let rest = |key: &str| error.path.strip_prefix(key).filter(|rest| rest.is_empty() || rest.starts_with(['.', '[']));
    let origin = origins.iter().find_map(|(key, place)| Some((place, rest(key)?)));
    match origin {
        None | Some((KeySource::Key, _)) => error.into(),
        Some((KeySource::CniArg(name), _)) => Error::environment(format!("CNI_ARGS {name}: {}", error.message))
            .hint(format!("correct {name} in CNI_ARGS")),
        Some((place, rest)) => ReadError { path: format!("{place}{rest}"), ..error }.into(),
    }
}

/// As an error names the place.
impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeySource::Runtime(name) => write!(f, "runtimeConfig.{name}"),
            KeySource::ArgsCni(name) => write!(f, "args.cni.{name}"),
            KeySource::CniArg(name) => write!(f, "CNI_ARGS {name}"),
            KeySource::Key => f.write_str("the key itself"),
        }
    }
}

fn look(conf: &NetConf, args: &Args, key: &str, place: KeySource) -> Option<Value> {
    let said = match place {
        KeySource::Runtime(name) => conf.at(&["runtimeConfig", name]).cloned(),
        KeySource::ArgsCni(name) => conf.at(&["args", "cni", name]).cloned(),
        KeySource::CniArg(name) => args.get(name).map(Value::from),
        KeySource::Key => conf.get(key).cloned(),
    };
    said.filter(|value| value.as_str() != Some(""))
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
    fn the_first_place_that_says_something_wins() {
        let all = r#"{"mac":"key","args":{"cni":{"mac":"args"}},"runtimeConfig":{"Mac":"runtime"}}"#;
        assert_eq!(winner(all, "MAC=env").as_deref(), Some("runtime"));
        let empty = r#"{"args":{"cni":{"mac":"args"}},"runtimeConfig":{"mac":""}}"#;
        assert_eq!(winner(empty, "MAC=env").as_deref(), Some("args"));
        assert_eq!(winner("{}", "MAC=env").as_deref(), Some("env"));
    }

    #[test]
    fn an_error_names_the_place_where_the_value_was_said() {
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
    fn a_place_that_is_not_listed_is_not_read() {
        assert_eq!(winner(r#"{"mac":"key","Mac":"too"}"#, ""), None);
    }
}
