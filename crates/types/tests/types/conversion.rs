//! Conversions between every pair of versions, compared with what each version can express.

use cnikit_types::{CniResult, Interface, Ip, Map, Route, Value, Version, document};
use ipnetwork::IpNetwork;
use proptest::prelude::*;

use crate::arbitrary::{KEYS, answer, json, respell, spelling};

/// The part of `answer` that a document of `version` can express.
fn expressible(version: Version, answer: &CniResult) -> CniResult {
    match version {
        Version::V0_1_0 | Version::V0_2_0 => expressible_in_oldest(answer),
        Version::V0_3_0 | Version::V0_3_1 | Version::V0_4_0 => {
            let interfaces = answer.interfaces.iter().cloned().map(without_newest).collect();
            CniResult { interfaces, ..answer.clone() }
        }
        Version::V1_0_0 | Version::V1_1_0 => answer.clone(),
    }
}

fn without_newest(interface: Interface) -> Interface {
    Interface { mtu: None, socket_path: String::new(), pci_id: String::new(), ..interface }
}

fn expressible_in_oldest(answer: &CniResult) -> CniResult {
    let mut expressible = CniResult { dns: answer.dns.clone(), extra: answer.extra.clone(), ..CniResult::default() };
    for is_of in [IpNetwork::is_ipv4, IpNetwork::is_ipv6] {
        let Some(ip) = answer.ips.iter().find(|ip| is_of(&ip.address)) else { continue };
        expressible.ips.push(Ip { interface: None, ..ip.clone() });
        expressible.routes.extend(answer.routes.iter().filter(|route| is_of(&route.dst)).map(without_attributes));
    }
    expressible
}

fn without_attributes(route: &Route) -> Route {
    Route { gw: route.gw, extra: route.extra.clone(), ..Route::to(route.dst) }
}

/// The document after it was written and parsed again, as between two processes.
fn sent(document: &Value) -> Value {
    document::parse(document.to_string().as_bytes()).unwrap()
}

/// Applies `change` to every object of a result that has members in the specification.
fn in_every_object(document: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match document {
        Value::Array(list) => list.iter_mut().for_each(|value| in_every_object(value, change)),
        Value::Object(object) => {
            object.values_mut().for_each(|value| in_every_object(value, change));
            change(object);
        }
        _ => {}
    }
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn conversion_preserves_all_members_that_both_versions_have(answer in answer()) {
        for from in Version::ALL {
            let (version, first) = CniResult::read(&sent(&answer.write(from)), Version::NEWEST).unwrap();
            prop_assert_eq!(version, from);
            prop_assert_eq!(&first, &expressible(from, &answer));
            for to in Version::ALL {
                let second = CniResult::read(&sent(&first.write(to)), Version::NEWEST).unwrap();
                prop_assert_eq!(second, (to, expressible(to, &expressible(from, &answer))), "{} to {}", from, to);
            }
        }
    }

    #[test]
    fn versions_of_one_shape_differ_in_the_version_alone(answer in answer()) {
        let shapes = [&Version::ALL[..2], &Version::ALL[2..5], &Version::ALL[5..]];
        for shape in shapes {
            let mut documents: Vec<Value> = shape.iter().map(|version| answer.write(*version)).collect();
            for (document, version) in documents.iter_mut().zip(shape) {
                prop_assert_eq!(document["cniVersion"].take(), version.as_str());
            }
            prop_assert!(documents.windows(2).all(|pair| pair[0] == pair[1]));
        }
    }

    #[test]
    fn keys_in_any_case_read_the_same(answer in answer(), bits: u32) {
        for version in Version::ALL {
            let mut document = answer.write(version);
            in_every_object(&mut document, &mut |object| {
                let known = |key: String| if KEYS.contains(&key.as_str()) { respell(&key, bits) } else { key };
                *object = std::mem::take(object).into_iter().map(|(key, value)| (known(key), value)).collect();
            });
            prop_assert_eq!(CniResult::read(&document, Version::NEWEST).unwrap(), (version, expressible(version, &answer)));
        }
    }

    #[test]
    fn a_null_member_reads_as_an_absent_one(answer in answer()) {
        const LATER: [&str; 10] =
            ["MAC", "Mtu", "SandBox", "SocketPath", "PciId", "Interface", "Gateway", "GW", "Routes", "Table"];
        for version in [Version::V1_0_0, Version::V1_1_0] {
            let mut document = answer.write(version);
            in_every_object(&mut document, &mut |object| {
                object.extend(LATER.map(|key| (key.to_owned(), Value::Null)));
            });
            let (_, mut read) = CniResult::read(&document, version).unwrap();
            forget_nulls(&mut read);
            let mut expected = answer.clone();
            forget_nulls(&mut expected);
            prop_assert_eq!(read, expected);
        }
    }

    #[test]
    fn a_foreign_member_never_passes_for_one_of_the_specification(
        mut answer in answer(),
        keys in proptest::collection::vec(spelling(), 1..6),
    ) {
        let hostile: Map<String, Value> = keys.into_iter().map(|key| (key, Value::from("hostile"))).collect();
        let clean = answer.clone();
        answer.extra.extend(hostile.clone());
        answer.dns.extra.extend(hostile.clone());
        answer.ips.iter_mut().for_each(|ip| ip.extra.extend(hostile.clone()));
        answer.routes.iter_mut().for_each(|route| route.extra.extend(hostile.clone()));
        answer.interfaces.iter_mut().for_each(|interface| interface.extra.extend(hostile.clone()));
        for version in Version::ALL {
            let (_, mut read) = CniResult::read(&answer.write(version), version).unwrap();
            forget_hostile(&mut read);
            prop_assert_eq!(read, expressible(version, &clean));
        }
    }

    #[test]
    fn any_result_that_was_read_can_be_written_in_every_version(document in json(), fallback in 0..7_usize) {
        let Ok((version, answer)) = CniResult::read(&document, Version::ALL[fallback]) else { return Ok(()) };
        let (_, again) = CniResult::read(&answer.write(version), version).unwrap();
        for to in Version::ALL {
            let written = answer.write(to);
            prop_assert_eq!(&again.write(to), &written);
            prop_assert_eq!(CniResult::read(&written, to).unwrap().1.write(to), written);
        }
    }
}

/// Applies `change` to the unknown members of every part.
fn in_every_extra(answer: &mut CniResult, change: impl Fn(&mut Map<String, Value>)) {
    change(&mut answer.extra);
    change(&mut answer.dns.extra);
    answer.ips.iter_mut().for_each(|ip| change(&mut ip.extra));
    answer.routes.iter_mut().for_each(|route| change(&mut route.extra));
    answer.interfaces.iter_mut().for_each(|interface| change(&mut interface.extra));
}

fn forget_nulls(answer: &mut CniResult) {
    in_every_extra(answer, |extra| extra.retain(|_, value| !value.is_null()));
}

fn forget_hostile(answer: &mut CniResult) {
    in_every_extra(answer, |extra| extra.retain(|_, value| value != "hostile"));
}
