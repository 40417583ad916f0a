//! Documents of every shape, as files: those that we write, and those that upstream wrote.

use cnikit_types::{CniResult, Dns, Interface, Ip, Map, Route, Value, Version, document};
use serde_json::json;

fn golden(name: &str) -> Value {
    document::parse(&text(name)).unwrap()
}

pub(crate) fn text(name: &str) -> Vec<u8> {
    let path = format!("{}/tests/golden/{name}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// A member that no version has, with numbers that fit in no machine type.
fn foreign(place: &str) -> Map<String, Value> {
    let numbers =
        document::parse(b"[9007199254740993, 18446744073709551616, -9223372036854775809, 1.10, 1e3]").unwrap();
    Map::from_iter([("com.example".to_owned(), json!({"in": place, "numbers": numbers}))])
}

/// A result with everything that the newest version can express.
fn full() -> CniResult {
    let bridge =
        Interface { name: "cni0".into(), mac: "02:00:00:00:00:01".into(), mtu: Some(1500), ..Interface::default() };
    let inside = Interface {
        name: "eth0".into(),
        mac: "02:00:00:00:00:02".into(),
        mtu: Some(9000),
        sandbox: "/run/netns/a".into(),
        socket_path: "/run/vhost/a.sock".into(),
        pci_id: "0000:03:00.1".into(),
        extra: foreign("interface"),
    };
    CniResult {
        interfaces: vec![bridge, inside],
        ips: vec![
            ip(Some(1), "fd00::5/64", Some("fd00::1")),
            Ip { extra: foreign("ip"), ..ip(Some(1), "10.1.0.5/16", Some("10.1.0.1")) },
            ip(None, "10.2.0.5/16", None),
        ],
        routes: vec![
            Route { gw: "fd00::9".parse().ok(), ..Route::to("fd01::/64".parse().unwrap()) },
            Route {
                gw: "10.1.0.9".parse().ok(),
                mtu: Some(1400),
                advmss: Some(1360),
                priority: Some(100),
                table: Some(0),
                scope: Some(0),
                extra: foreign("route"),
                ..Route::to("10.9.0.0/16".parse().unwrap())
            },
            Route::to("0.0.0.0/0".parse().unwrap()),
        ],
        dns: Dns {
            nameservers: vec!["10.1.0.1".into()],
            domain: "example".into(),
            search: vec!["a.example".into(), "b.example".into()],
            options: vec!["ndots:2".into()],
            extra: foreign("dns"),
        },
        extra: foreign("result"),
    }
}

fn ip(interface: Option<i64>, address: &str, gateway: Option<&str>) -> Ip {
    let gateway = gateway.map(|text| text.parse().unwrap());
    Ip { interface, gateway, ..Ip::new(address.parse().unwrap()) }
}

#[test]
fn a_full_result_is_written_as_its_golden_file_in_every_version_keys_in_their_order() {
    for version in Version::ALL {
        let written = format!("{:#}\n", full().write(version));
        assert_eq!(written, String::from_utf8(text(&format!("full-{version}"))).unwrap(), "{version}");
    }
}

#[test]
fn a_full_result_of_any_version_is_read_up_and_written_again_unchanged() {
    for version in Version::ALL {
        let document = golden(&format!("full-{version}"));
        let (own, answer) = CniResult::read(&document, Version::V0_1_0).unwrap();
        assert_eq!((own, answer.write(version)), (version, document));
    }
    assert_eq!(CniResult::read(&golden("full-1.1.0"), Version::V0_1_0).unwrap().1, full());
}

#[test]
fn an_empty_result_is_written_as_its_golden_file_in_every_version() {
    for version in Version::ALL {
        assert_eq!(CniResult::default().write(version), golden(&format!("empty-{version}")), "{version}");
    }
}

#[test]
fn results_of_upstream_are_read_and_written_unchanged() {
    for version in &Version::ALL[..6] {
        let document = golden(&format!("reference-{version}"));
        let (own, answer) = CniResult::read(&document, Version::NEWEST).unwrap();
        assert_eq!((own, answer.write(*version)), (*version, document));
    }
}

#[test]
fn results_of_upstream_in_versions_with_lists_are_equal() {
    let read =
        |version: &Version| CniResult::read(&golden(&format!("reference-{version}")), Version::NEWEST).unwrap().1;
    let newest = read(&Version::V1_0_0);
    assert_eq!((newest.interfaces.len(), newest.ips.len(), newest.routes.len()), (2, 3, 3));
    for version in &Version::ALL[2..5] {
        assert_eq!(read(version), newest, "{version}");
    }
}

#[test]
fn a_result_is_converted_to_the_oldest_versions_as_by_upstream() {
    let (_, newest) = CniResult::read(&golden("reference-1.0.0"), Version::NEWEST).unwrap();
    for version in &Version::ALL[..2] {
        assert_eq!(newest.write(*version), golden(&format!("reference-{version}")), "{version}");
    }
}

#[test]
fn a_result_without_addresses_has_only_dns_in_the_oldest_version() {
    let answer = CniResult { ips: Vec::new(), extra: Map::new(), dns: Dns::default(), ..full() };
    assert_eq!(answer.write(Version::V0_2_0), golden("empty-0.2.0"));
}

#[test]
fn a_null_result_is_empty_and_has_the_version_that_was_asked_for() {
    assert_eq!(CniResult::read(&Value::Null, Version::V0_4_0).unwrap(), (Version::V0_4_0, CniResult::default()));
    let unsaid = json!({"cniVersion": "", "ips": [{"version": "4", "address": "10.0.0.1/8"}]});
    let (version, answer) = CniResult::read(&unsaid, Version::V0_3_1).unwrap();
    assert_eq!((version, answer.ips.len(), answer.ips[0].extra.len()), (Version::V0_3_1, 1, 0));
}

#[test]
fn an_invalid_result_is_an_error_with_its_path_and_kind() {
    for (document, expected) in [
        (json!([]), "Type expected an object, found a list"),
        (json!({"cniVersion": 1}), "Type cniVersion: expected a string such as \"1.1.0\""),
        (json!({"CNIVersion": "2.0.0"}), "Value CNIVersion: unsupported CNI result version \"2.0.0\""),
        (json!({"ips": [{"Address": 7}]}), "Type ips[0].Address: expected a text, found 7"),
        (json!({"ips": [{}]}), "Value ips[0].address: is missing"),
        (json!({"ips": [null]}), "Type ips[0]: expected an object, found null"),
        (
            json!({"routes": [{"dst": "10.0.0.0"}]}),
            "Value routes[0].dst: \"10.0.0.0\" is not an address with a prefix length, such as 10.1.0.5/16",
        ),
        (
            json!({"routes": [{"dst": "::/0", "scope": 256}]}),
            "Value routes[0].scope: expected an integer from 0 to 255, found 256",
        ),
        (json!({"interfaces": {}}), "Type interfaces: expected a list, found an object"),
        (json!({"dns": {"search": "x"}}), "Type dns.search: expected a list, found the text \"x\""),
    ] {
        let error = CniResult::read(&document, Version::NEWEST).unwrap_err();
        assert_eq!(format!("{:?} {error}", error.what), expected);
    }
}

#[test]
fn a_mapped_address_is_the_ipv4_address_that_it_means() {
    let document = json!({"ips": [{"address": "::ffff:10.0.0.5/120", "gateway": "::ffff:10.0.0.1"}]});
    let (_, answer) = CniResult::read(&document, Version::V1_1_0).unwrap();
    let expected = json!({"version": "4", "address": "10.0.0.5/24", "gateway": "10.0.0.1"});
    assert_eq!(answer.write(Version::V0_4_0)["ips"][0], expected);
    let by_hand =
        CniResult { ips: vec![ip(None, "::ffff:10.0.0.5/120", Some("::ffff:10.0.0.1"))], ..CniResult::default() };
    assert_eq!(by_hand.write(Version::V0_4_0)["ips"][0], expected);
    assert_eq!(by_hand.write(Version::V0_2_0)["ip4"], json!({"ip": "10.0.0.5/24", "gateway": "10.0.0.1"}));
}

#[test]
fn null_empty_and_zero_members_are_omitted() {
    let document = json!({
        "interfaces": [{"name": "eth0", "mtu": 0, "mac": "", "sandbox": null}],
        "ips": [{"address": "10.0.0.5/8", "gateway": "", "interface": -1}],
        "routes": [{"dst": "10.0.0.0/8", "gw": "", "mtu": 0, "advmss": 0, "priority": 0, "table": 0, "scope": 0}],
    });
    let (_, answer) = CniResult::read(&document, Version::V1_1_0).unwrap();
    let expected = json!({
        "cniVersion": "1.1.0",
        "interfaces": [{"name": "eth0"}],
        "ips": [{"interface": -1, "address": "10.0.0.5/8"}],
        "routes": [{"dst": "10.0.0.0/8", "table": 0, "scope": 0}],
    });
    assert_eq!(answer.write(Version::V1_1_0), expected);
}
