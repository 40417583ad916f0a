//! `CNI_ARGS`.

use cnikit_types::Args;

fn args(text: &str) -> Args {
    Args::parse(text).unwrap()
}

#[test]
fn pairs_are_found_by_their_key_as_it_is_spelt() {
    let args = args("IgnoreUnknown=1;K8S_POD_NAME=a;IP=;IP=10.0.0.5/8");
    assert_eq!((args.get("K8S_POD_NAME"), args.get("ip"), args.get("IP")), (Some("a"), None, Some("10.0.0.5/8")));
    assert_eq!(Args::parse("A=").unwrap().get("A"), Some(""));
}

#[test]
fn an_empty_text_has_no_pairs() {
    assert_eq!(args(""), Args::default());
}

#[test]
fn a_piece_that_is_not_one_pair_is_named() {
    for (text, piece) in [("A=1;", ""), ("A", "A"), ("B=1;A=b=c", "A=b=c"), (";A=1", "")] {
        assert_eq!(Args::parse(text).unwrap_err(), format!("ARGS: invalid pair {piece:?}"));
    }
}

#[test]
fn unknown_pairs_are_listed_but_for_the_key_that_excuses_them() {
    assert_eq!(args("MAC=m;FOO=1;IgnoreUnknown=0;BAR=;FOO=2").unknown(&["MAC", "IP"]), ["BAR=", "FOO=2"]);
    assert_eq!(args("ignoreunknown=1").unknown(&[]), ["ignoreunknown=1"]);
}

#[test]
fn ignore_unknown_is_one_of_four_words() {
    for (text, expected) in [("", false), ("1", true), ("0", false), ("TRUE", true), ("False", false)] {
        let text = if text.is_empty() { String::new() } else { format!("IgnoreUnknown={text}") };
        assert_eq!(args(&text).ignore_unknown(), Ok(expected), "{text}");
    }
    for text in ["IgnoreUnknown=", "IgnoreUnknown=yes"] {
        assert!(args(text).ignore_unknown().is_err(), "{text}");
    }
}
