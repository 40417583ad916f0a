//! Who may say the value of a key, and who has the last word.

use cnikit_types::{Args, NetConf};
use serde_json::Value;

/// One place where a key may be said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
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
pub type Sources = &'static [(&'static str, &'static [Said])];

/// Puts the winner of each key's sources under the key. An empty text counts as not said.
pub(crate) fn settle(conf: &mut NetConf, args: &Args, sources: Sources) {
    for (key, places) in sources {
        let said = places.iter().find_map(|place| look(conf, args, key, *place));
        conf.set(key, said.unwrap_or(Value::Null));
    }
}

fn look(conf: &NetConf, args: &Args, key: &str, place: Said) -> Option<Value> {
    let said = match place {
        Said::Runtime(name) => conf.at(&["runtimeConfig", name]).cloned(),
        Said::ArgsCni(name) => conf.at(&["args", "cni", name]).cloned(),
        Said::CniArg(name) => args.get(name).map(Value::from),
        Said::Key => conf.get(key).cloned(),
    };
    said.filter(|value| value.as_str() != Some(""))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Sources = &[("mac", &[Said::Runtime("mac"), Said::ArgsCni("mac"), Said::CniArg("MAC")])];

    fn winner(conf: &str, args: &str) -> Option<String> {
        let mut conf = NetConf::parse(conf.as_bytes()).unwrap();
        settle(&mut conf, &Args::parse(args).unwrap(), MAC);
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
    fn a_place_that_is_not_listed_is_not_read() {
        assert_eq!(winner(r#"{"mac":"key","Mac":"too"}"#, ""), None);
    }
}
