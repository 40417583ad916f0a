//! The forms of results and errors, by section 5 of the specification.

use cnikit::Version;
use serde_json::Value;

use crate::env::subject::CallOutput;

/// What is wrong with a result in the form of a version. Empty: nothing.
pub fn faults_of_result(version: Version, result: &Value) -> Vec<String> {
    let mut faults = Faults::default();
    if !result.is_object() {
        return vec![format!("the result is not an object: {result}")];
    }
    if result["cniVersion"] != version.as_str() {
        faults.add("cniVersion", &result["cniVersion"], version.as_str());
    }
    if version < Version::V0_3_0 {
        faults.check_first_form(result);
    } else {
        faults.check_lists(version, result);
    }
    faults.0
}

/// What is wrong with the output of a call that has to fail. Empty: nothing.
pub fn faults_of_error(output: &CallOutput) -> Vec<String> {
    let mut faults = Vec::new();
    if output.exit == 0 {
        faults.push("the exit status is 0".to_owned());
    } else if output.exit < 0 {
        faults.push(format!("it died by signal {}", -output.exit));
    }
    let error: Value = match serde_json::from_str(&output.stdout) {
        Ok(error) => error,
        Err(error) => {
            faults.push(format!("stdout is not one JSON document ({error}): {:?}", output.stdout));
            return faults;
        }
    };
    if error["code"].as_u64().is_none_or(|code| code == 0) {
        faults.push(format!("`code` of the error is {}, and not a number above 0", error["code"]));
    }
    if error["msg"].as_str().is_none_or(str::is_empty) {
        faults.push(format!("`msg` of the error is {}, and not a text", error["msg"]));
    }
    if !matches!(&error["details"], Value::Null | Value::String(_)) {
        faults.push(format!("`details` of the error is {}, and not a text", error["details"]));
    }
    faults
}

/// Collects what is wrong.
#[derive(Default)]
struct Faults(Vec<String>);

impl Faults {
    fn add(&mut self, place: &str, found: &Value, wanted: &str) {
        self.0.push(format!("`{place}` of the result is {found}; wanted: {wanted}"));
    }

    /// The form of 0.1.0 and 0.2.0: one address of each family.
    fn check_first_form(&mut self, result: &Value) {
        for family in ["ip4", "ip6"] {
            let one = &result[family];
            if one.is_null() {
                continue;
            }
            self.check_prefix(&format!("{family}.ip"), &one["ip"]);
            self.check_address(&format!("{family}.gateway"), &one["gateway"]);
            self.check_routes(&format!("{family}.routes"), &one["routes"]);
        }
        for key in ["ips", "interfaces"] {
            if !result[key].is_null() {
                self.add(key, &result[key], "no such key before 0.3.0");
            }
        }
    }

    /// The form since 0.3.0: lists of interfaces, addresses and routes.
    fn check_lists(&mut self, version: Version, result: &Value) {
        for (n, interface) in self.list("interfaces", &result["interfaces"]).iter().enumerate() {
            if interface["name"].as_str().is_none_or(str::is_empty) {
                self.add(&format!("interfaces[{n}].name"), &interface["name"], "the name of an interface");
            }
            for key in ["mac", "sandbox"] {
                if !matches!(&interface[key], Value::Null | Value::String(_)) {
                    self.add(&format!("interfaces[{n}].{key}"), &interface[key], "a text");
                }
            }
        }
        let interfaces = result["interfaces"].as_array().map_or(0, Vec::len);
        for (n, ip) in self.list("ips", &result["ips"]).iter().enumerate() {
            self.check_prefix(&format!("ips[{n}].address"), &ip["address"]);
            self.check_address(&format!("ips[{n}].gateway"), &ip["gateway"]);
            let index = &ip["interface"];
            if !index.is_null() && index.as_u64().is_none_or(|index| usize::try_from(index).unwrap() >= interfaces) {
                self.add(&format!("ips[{n}].interface"), index, "an index in `interfaces`");
            }
            let family = ip["address"].as_str().map(|text| if text.contains(':') { "6" } else { "4" });
            if version < Version::V1_0_0 && ip["version"].as_str() != family {
                self.add(&format!("ips[{n}].version"), &ip["version"], "\"4\" or \"6\", as the address has it");
            }
        }
        self.check_routes("routes", &result["routes"]);
        if !matches!(&result["dns"], Value::Null | Value::Object(_)) {
            self.add("dns", &result["dns"], "an object");
        }
    }

    fn check_routes(&mut self, place: &str, routes: &Value) {
        for (n, route) in self.list(place, routes).iter().enumerate() {
            self.check_prefix(&format!("{place}[{n}].dst"), &route["dst"]);
            self.check_address(&format!("{place}[{n}].gw"), &route["gw"]);
        }
    }

    /// The elements of a list, which may be absent.
    fn list<'a>(&mut self, place: &str, value: &'a Value) -> &'a [Value] {
        match value {
            Value::Null => &[],
            Value::Array(elements) => elements,
            _ => {
                self.add(place, value, "a list");
                &[]
            }
        }
    }

    fn check_prefix(&mut self, place: &str, value: &Value) {
        let parts = value.as_str().and_then(|text| text.split_once('/'));
        let is_one = parts.is_some_and(|(address, length)| {
            let most = if address.contains(':') { 128 } else { 32 };
            is_address(address) && length.parse::<u8>().is_ok_and(|length| length <= most)
        });
        if !is_one {
            self.add(place, value, "an address with its prefix length");
        }
    }

    /// An address that may be absent.
    fn check_address(&mut self, place: &str, value: &Value) {
        if !value.is_null() && !value.as_str().is_some_and(|text| text.is_empty() || is_address(text)) {
            self.add(place, value, "an address");
        }
    }
}

fn is_address(text: &str) -> bool {
    text.parse::<std::net::IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn correct_results_have_no_faults() {
        let first = json!({"cniVersion": "0.2.0", "ip4": {"ip": "10.0.0.2/24", "gateway": "10.0.0.1", "routes": [{"dst": "0.0.0.0/0"}]}, "dns": {}});
        assert_eq!(faults_of_result(Version::V0_2_0, &first), [""; 0]);
        let mut lists = json!({"cniVersion": "0.4.0",
            "interfaces": [{"name": "eth0", "mac": "0a:00:00:00:00:01", "sandbox": "/run/netns/x"}],
            "ips": [{"version": "6", "address": "fd00::2/64", "interface": 0}], "routes": [{"dst": "::/0", "gw": "fd00::1"}], "dns": {}});
        assert_eq!(faults_of_result(Version::V0_4_0, &lists), [""; 0]);
        lists["cniVersion"] = json!("1.0.0");
        assert_eq!(faults_of_result(Version::V1_0_0, &lists), [""; 0]);
    }

    #[test]
    fn each_fault_of_a_result_is_named() {
        let correct = json!({"cniVersion": "0.4.0", "interfaces": [{"name": "eth0"}], "ips": [{"version": "4", "address": "10.0.0.2/24", "interface": 0}]});
        for (pointer, value) in [
            ("/cniVersion", json!("1.0.0")),
            ("/interfaces", json!({})),
            ("/interfaces/0/name", json!("")),
            ("/ips/0/version", json!("6")),
            ("/ips/0/address", json!("10.0.0.2")),
            ("/ips/0/address", json!("10.0.0.2/33")),
            ("/ips/0/interface", json!(1)),
            ("/ips", json!("none")),
        ] {
            let mut faulty = correct.clone();
            *faulty.pointer_mut(pointer).unwrap() = value;
            assert!(!faults_of_result(Version::V0_4_0, &faulty).is_empty(), "{pointer}: {faulty}");
        }
        assert_eq!(faults_of_result(Version::V0_1_0, &json!({"cniVersion": "0.1.0", "ips": []})).len(), 1);
        assert_eq!(faults_of_result(Version::V1_0_0, &json!(7)), ["the result is not an object: 7"]);
    }

    #[test]
    fn each_fault_of_an_error_is_named() {
        let output = |exit, stdout: &str| CallOutput { exit, stdout: stdout.to_owned(), stderr: String::new() };
        assert_eq!(faults_of_error(&output(1, r#"{"code": 7, "msg": "no"}"#)), [""; 0]);
        for (exit, stdout) in [
            (0, r#"{"code": 7, "msg": "no"}"#),
            (-6, r#"{"code": 7, "msg": "no"}"#),
            (1, ""),
            (1, r#"{"code": 7, "msg": "no"}{}"#),
            (1, r#"{"code": 0, "msg": "no"}"#),
            (1, r#"{"code": 7, "msg": ""}"#),
            (1, r#"{"code": 7, "msg": "no", "details": {}}"#),
        ] {
            assert_eq!(faults_of_error(&output(exit, stdout)).len(), 1, "{exit} {stdout}");
        }
    }
}
