//! The allocations of whereabouts, as `kubectl get ippools.whereabouts.cni.cncf.io -A -o json` prints them.

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::Value;

/// One allocation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ImportedAddress {
    /// The address, or why it has none.
    pub(super) address: Result<IpAddr, String>,
    /// The container's id.
    pub(super) container: String,
    /// Namespace and name of the pod.
    pub(super) pod: String,
}

/// An `IPPool`, or a list of them.
#[derive(Deserialize)]
struct Object {
    #[serde(default)]
    kind: String,
    #[serde(default)]
    items: Vec<Object>,
    spec: Option<PoolSpec>,
}

#[derive(Deserialize)]
struct PoolSpec {
    range: String,
    /// By the distance from the address in `range`.
    #[serde(default)]
    allocations: std::collections::BTreeMap<String, PoolAllocation>,
}

#[derive(Deserialize)]
struct PoolAllocation {
    #[serde(default)]
    id: String,
    #[serde(default)]
    podref: String,
}

/// All allocations of a document.
pub(super) fn parse_pools(document: &Value) -> Result<Vec<ImportedAddress>, String> {
    let object = Object::deserialize(document).map_err(|error| error.to_string())?;
    let mut all = Vec::new();
    add(&object, &mut all)?;
    Ok(all)
}

fn add(object: &Object, all: &mut Vec<ImportedAddress>) -> Result<(), String> {
    if object.kind.ends_with("List") {
        return object.items.iter().try_for_each(|item| add(item, all));
    }
    let Some(spec) = object.spec.as_ref().filter(|_| object.kind == "IPPool") else {
        return Err(format!("it has an object of kind {:?}, which is no IPPool", object.kind));
    };
    // The network address need not be written: 10.8.0.7/16 counts from 10.8.0.7.
    let (first, prefix) = spec.range.split_once('/').ok_or_else(|| format!("{:?} is no range", spec.range))?;
    let first: IpAddr = first.parse().map_err(|error| format!("range {:?}: {error}", spec.range))?;
    let prefix = prefix.parse().map_err(|error| format!("range {:?}: {error}", spec.range))?;
    let range = IpNetwork::new(first, prefix).map_err(|error| format!("range {:?}: {error}", spec.range))?;
    for (offset, allocation) in &spec.allocations {
        all.push(ImportedAddress {
            address: address(range, offset),
            container: allocation.id.clone(),
            pod: allocation.podref.clone(),
        });
    }
    Ok(())
}

/// The address at this distance from the first one.
fn address(range: IpNetwork, offset: &str) -> Result<IpAddr, String> {
    let outside = || format!("allocation {offset:?} is not in range {range}");
    let distance: u128 = offset.parse().map_err(|_| outside())?;
    let found = match range.ip() {
        IpAddr::V4(first) => {
            let number = u128::from(u32::from(first)).checked_add(distance).ok_or_else(outside)?;
            IpAddr::V4(u32::try_from(number).map_err(|_| outside())?.into())
        }
        IpAddr::V6(first) => IpAddr::V6(u128::from(first).checked_add(distance).ok_or_else(outside)?.into()),
    };
    if range.contains(found) { Ok(found) } else { Err(outside()) }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_allocation_is_counted_from_the_address_of_the_range() {
        let allocations = json!({
            "1": {"id": "c1", "podref": "default/web-0", "ifname": "net1"},
            "65536": {"id": "c2", "podref": "default/web-1"},
            "x": {"id": "c3", "podref": "default/web-2"},
        });
        let pool = json!({"kind": "IPPool", "spec": {"range": "10.8.0.0/16", "allocations": allocations}});
        let v6 = json!({"kind": "IPPool", "spec": {"range": "fd00::10/64", "allocations": {"2": {"id": "c1"}}}});
        let all = parse_pools(&json!({"kind": "List", "items": [pool, v6]})).unwrap();
        let addresses: Vec<String> =
            all.iter().map(|one| one.address.as_ref().map_or_else(Clone::clone, IpAddr::to_string)).collect();
        assert_eq!(
            addresses,
            [
                "10.8.0.1",
                "allocation \"65536\" is not in range 10.8.0.0/16",
                "allocation \"x\" is not in range 10.8.0.0/16",
                "fd00::12",
            ]
        );
        assert_eq!((all[0].container.as_str(), all[0].pod.as_str()), ("c1", "default/web-0"));
    }

    #[test]
    fn another_object_is_refused() {
        for (document, says) in [
            (json!({"kind": "Pod"}), "kind \"Pod\""),
            (json!({"kind": "IPPool", "spec": {"range": "10.8.0.0"}}), "is no range"),
            (json!({"kind": "IPPool", "spec": {"range": "10.8.0.0/33"}}), "10.8.0.0/33"),
            (json!({"kind": "List", "items": [{"kind": "IPPool"}]}), "no IPPool"),
        ] {
            let error = parse_pools(&document).unwrap_err();
            assert!(error.contains(says), "{document}: {error}");
        }
    }
}
