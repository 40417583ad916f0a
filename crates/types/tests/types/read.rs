//! Reading values as types.

use std::{
    collections::BTreeMap,
    net::{IpAddr, Ipv4Addr},
};

use cnikit_types::{Map, ReadError, Value, Wrong, document, read};
use ipnetwork::IpNetwork;
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::Number;

fn parsed<T: DeserializeOwned>(text: &str) -> Result<T, ReadError> {
    read(&document::parse(text.as_bytes()).unwrap())
}

fn refused<T: DeserializeOwned>(text: &str) -> (Wrong, String, String) {
    let Err(error) = parsed::<T>(text) else { panic!("{text} was read") };
    (error.what, error.path, error.message)
}

#[derive(Debug, PartialEq, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    bridge: String,
    mtu: u16,
    is_gateway: bool,
    ipam: Ipam,
    vlan: Option<i32>,
    mode: Mode,
    ratio: f64,
    letter: Option<char>,
    wrapped: Wrapped,
    pair: Option<(u8, String)>,
    boxed: Option<Box<Ipam>>,
    address: Option<IpAddr>,
    networks: Vec<IpNetwork>,
    by_name: BTreeMap<String, u64>,
    raw: Value,
    bag: Map<String, Value>,
    even: Even,
}

#[derive(Debug, PartialEq, Default, Deserialize)]
struct Ipam {
    #[serde(rename = "type")]
    plugin: String,
    #[serde(default)]
    ranges: Vec<Vec<Range>>,
}

#[derive(Debug, PartialEq, Deserialize)]
struct Range {
    subnet: String,
}

#[derive(Debug, PartialEq, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mode {
    #[default]
    Bridge,
    Private,
}

#[derive(Debug, PartialEq, Default, Deserialize)]
struct Wrapped(u8);

#[derive(Debug, PartialEq, Default, Deserialize)]
#[serde(try_from = "u8")]
struct Even(u8);

impl TryFrom<u8> for Even {
    type Error = String;

    fn try_from(number: u8) -> Result<Even, String> {
        if number.is_multiple_of(2) { Ok(Even(number)) } else { Err(format!("{number} is odd")) }
    }
}

#[test]
fn keys_match_in_any_case_and_unknown_ones_are_ignored() {
    let conf: Conf =
        parsed(r#"{"BRIDGE":"cni0","Mtu":1400,"isgateway":true,"IPAM":{"Type":"x"},"other":{"deep":[1]}}"#).unwrap();
    let ipam = Ipam { plugin: "x".into(), ranges: Vec::new() };
    assert_eq!(conf, Conf { bridge: "cni0".into(), mtu: 1400, is_gateway: true, ipam, ..Conf::default() });
}

#[test]
fn the_last_spelling_of_a_key_wins_and_objects_are_merged() {
    let conf: Conf = parsed(r#"{"mtu":1,"MTU":2,"Mtu":3,"mtu":4,"Bridge":"a","bridge":null}"#).unwrap();
    assert_eq!((conf.mtu, conf.bridge.as_str()), (4, "a"));
    let conf: Conf = parsed(r#"{"mtu":1,"MTU":2,"mtu":3,"MTU":4}"#).unwrap();
    assert_eq!(conf.mtu, 4);
    let conf: Conf = parsed(r#"{"ipam":{"type":"a","ranges":[]},"Ipam":{"TYPE":"b"},"IPAM":{"ranges":[[]]}}"#).unwrap();
    assert_eq!(conf.ipam, Ipam { plugin: "b".into(), ranges: vec![vec![]] });
}

#[test]
fn null_is_absent() {
    assert_eq!(
        parsed::<Conf>(r#"{"bridge":null,"mtu":null,"ipam":null,"vlan":null,"networks":null}"#).unwrap(),
        Conf::default()
    );
    assert_eq!(parsed::<Conf>("null").unwrap(), Conf::default());
    assert_eq!(refused::<Ipam>(r#"{"type":null}"#), (Wrong::Value, "type".into(), "is missing".into()));
    assert_eq!(parsed::<Vec<u8>>("null").unwrap(), Vec::<u8>::new());
}

#[test]
fn a_null_in_a_list_is_of_the_wrong_type() {
    assert_eq!(refused::<Vec<Ipam>>("[null]"), (Wrong::Type, "[0]".into(), "expected an object, found null".into()));
    assert_eq!(refused::<Vec<String>>("[\"a\",null]").0, Wrong::Type);
    assert_eq!(parsed::<Vec<Value>>("[null]").unwrap(), [Value::Null]);
}

#[test]
fn every_kind_of_field_is_read() {
    let conf: Conf = parsed(
        r#"{"mode":"private","ratio":1.5,"letter":"x","wrapped":7,"pair":[1,"b"],"boxed":{"type":"y"},"vlan":-3,
            "address":"10.0.0.1","networks":["10.0.0.5/8","fd00::/64"],"byName":{"B":1,"b":2},"even":4}"#,
    )
    .unwrap();
    assert_eq!(conf.mode, Mode::Private);
    assert_eq!((conf.letter, conf.wrapped, conf.pair), (Some('x'), Wrapped(7), Some((1, "b".into()))));
    assert!((conf.ratio - 1.5).abs() < f64::EPSILON);
    assert_eq!(conf.boxed.unwrap().plugin, "y");
    assert_eq!((conf.vlan, conf.even), (Some(-3), Even(4)));
    assert_eq!(conf.address, Some(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1))));
    assert_eq!(conf.networks[0].to_string(), "10.0.0.5/8");
    assert_eq!(conf.by_name, BTreeMap::from([("B".into(), 1), ("b".into(), 2)]));
}

#[test]
fn a_wrong_type_differs_from_a_wrong_value() {
    for (text, path, message) in [
        (r#"{"mtu":"5"}"#, "mtu", "expected an integer from 0 to 65535, found the text \"5\""),
        (r#"{"MTU":5.0}"#, "MTU", "expected an integer from 0 to 65535, found 5.0"),
        (r#"{"mtu":1e3}"#, "mtu", "expected an integer from 0 to 65535, found 1e+3"),
        (r#"{"bridge":5}"#, "bridge", "expected a text, found 5"),
        (r#"{"isGateway":"true"}"#, "isGateway", "expected true or false, found the text \"true\""),
        (r#"{"isGateway":1}"#, "isGateway", "expected true or false, found 1"),
        (r#"{"ipam":[]}"#, "ipam", "expected an object, found a list"),
        (r#"{"ipam":true}"#, "ipam", "expected an object, found true"),
        (r#"{"networks":{}}"#, "networks", "expected a list, found an object"),
        (r#"{"networks":[1]}"#, "networks[0]", "expected a text, found 1"),
        (r#"{"byName":[]}"#, "byName", "expected an object, found a list"),
        (r#"{"byName":{"x":"1"}}"#, "byName.x", "expected an integer of at least 0, found the text \"1\""),
        (r#"{"mode":{}}"#, "mode", "expected a text, found an object"),
        (r#"{"ratio":"1"}"#, "ratio", "expected f64, found the text \"1\""),
        ("[]", "", "expected an object, found a list"),
    ] {
        assert_eq!(refused::<Conf>(text), (Wrong::Type, path.into(), message.into()), "{text}");
    }
    for (text, path, message) in [
        (r#"{"mtu":-1}"#, "mtu", "expected an integer from 0 to 65535, found -1"),
        (r#"{"mtu":70000}"#, "mtu", "expected an integer from 0 to 65535, found 70000"),
        (r#"{"mtu":18446744073709551616}"#, "mtu", "expected an integer from 0 to 65535, found 18446744073709551616"),
        (r#"{"mode":"x"}"#, "mode", "unknown variant `x`, expected `bridge` or `private`"),
        (r#"{"even":3}"#, "even", "3 is odd"),
        (r#"{"address":"x"}"#, "address", "invalid IP address syntax"),
        (r#"{"ipam":{}}"#, "ipam.type", "is missing"),
    ] {
        assert_eq!(refused::<Conf>(text), (Wrong::Value, path.into(), message.into()), "{text}");
    }
    assert_eq!(refused::<Conf>(r#"{"networks":["10.0.0.0/99"]}"#).0, Wrong::Value);
    assert_eq!(refused::<Conf>(r#"{"letter":"xy"}"#).0, Wrong::Value);
    assert_eq!(refused::<Conf>(r#"{"pair":[1]}"#).0, Wrong::Value);
}

#[test]
fn the_path_leads_to_the_wrong_member_as_the_document_spells_it() {
    let text = r#"{"IPAM":{"type":"x","Ranges":[[{"subnet":"a"},{"SUBNET":7}]]}}"#;
    let error = parsed::<Conf>(text).unwrap_err();
    assert_eq!(error.to_string(), "IPAM.Ranges[0][1].SUBNET: expected a text, found 7");
    let merged = r#"{"ipam":{"type":"x"},"Ipam":{"type":7}}"#;
    assert_eq!(parsed::<Conf>(merged).unwrap_err().path, "Ipam.type");
}

#[test]
fn values_pass_through_fields_unchanged_numbers_of_any_size_too() {
    let inner = r#"{"big":18446744073709551616,"Exact":9007199254740993,"text":1.10,"null":null,"list":[null,-0]}"#;
    let conf: Conf = parsed(&format!(r#"{{"raw":{inner},"bag":{inner}}}"#)).unwrap();
    assert_eq!(conf.raw.to_string(), inner);
    assert_eq!(Value::Object(conf.bag).to_string(), inner);
    assert_eq!(parsed::<Vec<Number>>("[36893488147419103232]").unwrap()[0].as_str(), "36893488147419103232");
}

#[test]
fn a_field_called_star_receives_what_no_other_field_takes() {
    #[derive(Deserialize)]
    struct Open {
        name: String,
        #[serde(rename = "*", default)]
        rest: Map<String, Value>,
    }
    let open: Open = parsed(r#"{"x":null,"NAME":"a","*":1,"y":18446744073709551616}"#).unwrap();
    assert_eq!(open.name, "a");
    assert_eq!(Value::Object(open.rest).to_string(), r#"{"x":null,"*":1,"y":18446744073709551616}"#);
}
