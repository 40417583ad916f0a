//! The raw configuration.

use cnikit_types::{Dns, NetConf, ParseError, Wrong};
use serde::Deserialize;
use serde_json::json;

fn conf(text: &str) -> NetConf {
    NetConf::parse(text.as_bytes()).unwrap()
}

#[test]
fn an_object_is_a_configuration_and_null_an_empty_one() {
    assert_eq!(conf("null"), NetConf::default());
    assert!(matches!(NetConf::parse(b"{"), Err(ParseError::Json(_))));
    for (text, message) in [
        ("[]", "expected an object, found a list"),
        ("7", "expected an object, found a number"),
        ("\"x\"", "expected an object, found a text"),
        ("true", "expected an object, found true or false"),
    ] {
        assert_eq!(NetConf::parse(text.as_bytes()).unwrap_err().to_string(), message);
    }
}

#[test]
fn keys_are_found_in_any_case_the_last_that_is_not_null() {
    let conf = conf(r#"{"name":"a","NAME":"b","Name":null,"Type":"bridge","mtu":5}"#);
    assert_eq!((conf.name(), conf.plugin_type(), conf.text("MTU")), (Some("b"), Some("bridge"), None));
    assert_eq!(conf.get("Mtu"), Some(&json!(5)));
    assert_eq!(conf.get("other"), None);
}

#[test]
fn a_path_is_looked_up_in_all_spellings_of_an_object() {
    let conf = conf(r#"{"ipam":{"type":"host-local","a":{"x":1}},"IPAM":{"A":{"y":2},"subnet":null}}"#);
    assert_eq!(conf.ipam_type(), Some("host-local"));
    assert_eq!(conf.at(&["ipam", "a", "x"]), Some(&json!(1)));
    assert_eq!(conf.at(&["Ipam", "A", "Y"]), Some(&json!(2)));
    assert_eq!(conf.at(&["ipam", "subnet"]), None);
    assert_eq!(conf.at(&[]), None);
}

#[test]
fn a_value_that_is_not_an_object_hides_earlier_spellings() {
    assert_eq!(conf(r#"{"ipam":{"type":"x"},"IPAM":7}"#).ipam_type(), None);
}

#[test]
fn an_ipam_without_a_type_is_none() {
    for text in ["{}", r#"{"ipam":{}}"#, r#"{"ipam":null}"#, r#"{"ipam":{"type":""}}"#, r#"{"ipam":{"type":7}}"#] {
        assert_eq!(conf(text).ipam_type(), None, "{text}");
    }
}

#[test]
fn setting_takes_the_place_of_every_spelling() {
    let mut conf = conf(r#"{"a":1,"A":2,"b":{"x":1},"B":{"Y":2}}"#);
    conf.set("a", json!(3));
    conf.set_at(&["b", "y"], json!(4));
    conf.set_at(&["new", "deep", "er"], json!(5));
    conf.set_at(&["a", "in"], json!(6));
    conf.set_at(&[], json!(7));
    let text = String::from_utf8(conf.to_vec()).unwrap();
    assert_eq!(text, r#"{"b":{"x":1,"y":4},"new":{"deep":{"er":5}},"a":{"in":6}}"#);
}

#[test]
fn a_configuration_is_written_as_it_was_read() {
    let text = r#"{"cniVersion":"1.1.0","prevResult":{"x":18446744073709551617,"y":[1.0,null]},"Ü":"<&>"}"#;
    assert_eq!(String::from_utf8(conf(text).to_vec()).unwrap(), text);
}

#[test]
fn a_configuration_reads_into_a_type() {
    #[derive(Debug, Deserialize)]
    struct Own {
        #[serde(default)]
        dns: Dns,
        mtu: u16,
    }
    let own: Own = conf(r#"{"DNS":{"Search":["a"],"x":1},"Mtu":5}"#).read().unwrap();
    assert_eq!((own.dns.search.as_slice(), own.dns.extra.len(), own.mtu), (["a".to_owned()].as_slice(), 1, 5));
    let error = conf(r#"{"dns":{"search":[1]},"mtu":5}"#).read::<Own>().unwrap_err();
    assert_eq!((error.what, error.path.as_str()), (Wrong::Type, "dns.search[0]"));
}
