//! JSON text to a value, as Go's decoder reads it.

use cnikit_types::{Value, document};
use proptest::prelude::*;

use crate::arbitrary::json;

fn reads(text: &str) -> String {
    document::parse(text.as_bytes()).unwrap().to_string()
}

#[test]
fn the_last_of_two_equal_keys_wins_and_is_last() {
    assert_eq!(reads(r#"{"a":1,"b":2,"a":3}"#), r#"{"b":2,"a":3}"#);
    assert_eq!(reads(r#"{"a":[1,2],"a":[3]}"#), r#"{"a":[3]}"#);
    assert_eq!(reads(r#"{"a":{"b":1},"a":7}"#), r#"{"a":7}"#);
}

#[test]
fn objects_under_one_key_are_merged_at_every_depth() {
    assert_eq!(
        reads(r#"{"ipam":{"type":"x","a":{"p":1}},"n":1,"ipam":{"a":{"q":2},"type":"y"}}"#),
        r#"{"n":1,"ipam":{"a":{"p":1,"q":2},"type":"y"}}"#
    );
}

#[test]
fn a_later_null_does_not_replace_an_earlier_value() {
    assert_eq!(reads(r#"{"a":1,"A":2,"a":null}"#), r#"{"a":1,"A":2}"#);
    assert_eq!(reads(r#"{"a":null,"a":1}"#), r#"{"a":1}"#);
    assert_eq!(reads(r#"{"a":null}"#), r#"{"a":null}"#);
}

#[test]
fn numbers_keep_their_text() {
    for text in
        ["9007199254740993", "18446744073709551616", "-9223372036854775809", "1.10", "5.0", "1e3", "1E-400", "-0"]
    {
        assert_eq!(reads(text).to_lowercase(), text.to_lowercase().replace("e3", "e+3"), "{text}");
    }
}

#[test]
fn a_text_that_is_not_one_document_is_refused() {
    for text in ["", " ", "{", "{} {}", "{}x", "\u{feff}{}", "nul", "{\"a\":01}", "[1,]", "{'a':1}"] {
        assert!(document::parse(text.as_bytes()).is_err(), "{text:?}");
    }
}

#[test]
fn nesting_has_a_limit_that_saves_the_stack() {
    let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    assert!(document::parse(nested(100).as_bytes()).is_ok());
    for depth in [128, 100_000] {
        let error = document::parse(nested(depth).as_bytes()).unwrap_err();
        assert!(error.to_string().contains("recursion limit"), "{error}");
    }
}

#[test]
fn bytes_that_are_no_text_are_replaced_as_go_does() {
    assert_eq!(document::parse(b"{\"a\":\"\xff\"}").unwrap()["a"], "\u{fffd}");
}

#[test]
fn an_object_that_looks_like_a_wrapped_number_stays_an_object() {
    let text = r#"{"$serde_json::private::Number":"no number"}"#;
    assert_eq!(reads(text), text);
}

fn duplicates(text: &str) -> Vec<String> {
    let (value, duplicates) = document::parse_with_duplicates(text.as_bytes(), |key| key == "prevResult").unwrap();
    assert_eq!(value, document::parse(text.as_bytes()).unwrap());
    duplicates.into_iter().map(|duplicate| format!("{}>{}", duplicate.object, duplicate.key)).collect()
}

#[test]
fn duplicate_keys_are_listed_with_the_path_of_their_object() {
    for (text, listed) in [
        (r#"{"a":1,"A":2,"b":{"a":1}}"#, vec![]),
        (r#"{"a":1,"a":1,"a":1}"#, vec![">a", ">a"]),
        (r#"{"a":{"b":1},"a":{"c":1}}"#, vec![">a"]),
        (r#"{"a":null,"a":null}"#, vec![">a"]),
        (r#"{"a":{"x.y":[[],[{},{"b":1,"b":2}]]}}"#, vec!["a.x.y[1][1]>b"]),
        (r#"[{"b":1,"b":2}]"#, vec!["[0]>b"]),
        (r#"{"//":1,"//":2,"_a":1,"_a":2}"#, vec![]),
        (r#"{"prevResult":{"a":1,"a":1},"b":{"prevResult":{"a":1,"a":1}}}"#, vec!["b.prevResult>a"]),
        (r#"{"prevResult":1,"prevResult":2}"#, vec![]),
    ] {
        assert_eq!(duplicates(text), listed, "{text}");
    }
    let many = format!(r#"{{"z":0{}}}"#, r#","z":1"#.repeat(100_000));
    assert_eq!(duplicates(&many).len(), 20);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_document_without_duplicate_keys_is_read_unchanged(value in json()) {
        prop_assert_eq!(document::parse(value.to_string().as_bytes()).unwrap(), value.clone());
        prop_assert_eq!(document::parse(format!("{value:#}").as_bytes()).unwrap().to_string(), value.to_string());
        prop_assert_eq!(document::parse_with_duplicates(value.to_string().as_bytes(), |_| false).unwrap().1, []);
    }

    #[test]
    fn a_value_read_as_a_value_is_the_same_to_the_letter(value in json()) {
        prop_assert_eq!(cnikit_types::read::<Value>(&value).unwrap().to_string(), value.to_string());
    }
}

/// Moving each repeated key to the end separately took minutes.
#[test]
fn keys_that_come_again_by_the_hundred_thousand_are_read_at_once() {
    let member = |n: usize| format!(r#""k{}":{{"m{}":{n}}}"#, n % 80_000, n / 80_000);
    let members: Vec<String> = (0..240_000).map(member).collect();
    let text = format!("{{{}}}", members.join(","));
    let began = on_processor();
    let read = document::parse(text.as_bytes()).unwrap();
    let took = on_processor() - began;
    assert!(took < 20_000_000_000, "{took} nanoseconds");
    let object = read.as_object().unwrap();
    assert_eq!((object.len(), object["k7"].to_string()), (80_000, r#"{"m0":7,"m1":80007,"m2":160007}"#.to_owned()));
}

/// A list in a list takes two bytes of text, and a hundred bytes of memory.
#[test]
fn more_values_than_are_served_are_refused_before_they_are_made() {
    let text = format!("[{}[]]", "[[],[[],[]]],".repeat(1 << 18));
    let began = on_processor();
    let refusals = [document::parse(text.as_bytes()), document::parse_plainly(text.as_bytes())];
    let took = on_processor() - began;
    for refused in refusals {
        assert_eq!(refused.unwrap_err().to_string(), "has more than 524288 values, which is the limit");
    }
    assert!(took < 1_000_000_000, "{took} nanoseconds");
}

/// If any crate enables the feature `raw_value` of `serde_json`, its `Value` parses the string under this key as JSON, without any
/// limits.
#[test]
fn a_private_key_of_the_parser_is_a_key_like_any_other() {
    let text = r#"{"$serde_json::private::RawValue":"[1,[2]]"}"#;
    for read in [document::parse(text.as_bytes()), document::parse_plainly(text.as_bytes())] {
        assert_eq!(read.unwrap().to_string(), text);
    }
}

#[test]
fn output_of_programs_is_read_by_the_rules_of_serde_json() {
    let text = br#"{"a":{"x":1},"b":1e400,"a":{"y":18446744073709551616},"a":null,"c":-0.10}"#;
    let read = document::parse_plainly(text).unwrap();
    assert_eq!(read, serde_json::from_slice::<serde_json::Value>(text).unwrap());
    assert_eq!(read.to_string(), r#"{"a":null,"b":1e+400,"c":-0.10}"#);
    assert!(document::parse_plainly(b"{} {}").is_err());
    assert!(document::parse_plainly(b"\"\xff\"").is_err());
}

/// The CPU time of this thread, in nanoseconds.
fn on_processor() -> u64 {
    let statistics = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    statistics.split(' ').next().unwrap().parse().unwrap()
}
