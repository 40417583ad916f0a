//! The protocol: what a plugin prints, and with which exit status, in each version of the specification.
//!
//! Each function panics with everything that it finds. A plugin that supports version 0.1.0 only passes none: it has no VERSION.

mod form;

use std::collections::BTreeSet;

use cnikit::{Version, code};
pub use form::{faults_of_error, faults_of_result};
use serde_json::{Value, json};

use crate::campaign::assert_no_findings;
use crate::env::host::{Container, Host};
use crate::env::snapshot::{HINTS, HostSnapshot};
use crate::env::subject::Subject;
use crate::parallel::catch_panic;

/// The versions that VERSION lists.
///
/// # Errors
/// What is wrong with the output of VERSION.
pub fn supported_versions(subject: &Subject) -> Result<BTreeSet<String>, String> {
    let host = Host::new();
    // libcni gives the other variables the value `dummy`.
    let stdin = json!({"cniVersion": subject.conf["cniVersion"]}).to_string();
    let output = subject.call_raw(&host, "VERSION", "dummy", "dummy", stdin.as_bytes(), &[("CNI_IFNAME", "dummy")]);
    let answer: Value = serde_json::from_str(&output.stdout)
        .map_err(|error| format!("VERSION: stdout is not one JSON document ({error}): {output:?}"))?;
    let listed = answer["supportedVersions"].as_array().into_iter().flatten();
    let versions: BTreeSet<String> = listed.filter_map(|one| one.as_str().map(str::to_owned)).collect();
    if output.exit != 0 || !answer["cniVersion"].is_string() || versions.is_empty() {
        return Err(format!("VERSION: wanted exit status 0, `cniVersion` and `supportedVersions`: {output:?}"));
    }
    Ok(versions)
}

/// VERSION lists the supported versions, and that of the configuration is one of them.
pub fn reports_versions(subject: &Subject) {
    let versions = supported_versions(subject).unwrap_or_else(|found| panic!("{found}"));
    let own = subject.conf["cniVersion"].as_str().unwrap_or_default();
    assert!(versions.contains(own), "VERSION does not list {own}, the version of the configuration: {versions:?}");
}

/// The published versions that the plugin supports, oldest first.
fn known_versions(subject: &Subject) -> Vec<Version> {
    let supported = supported_versions(subject).unwrap_or_else(|found| panic!("{found}"));
    Version::ALL.into_iter().filter(|version| supported.contains(version.as_str())).collect()
}

/// In every supported version the result of an ADD has the form of that version, and as many addresses of each family as in the
/// others. A version that is not supported is refused with code 1.
pub fn converts_results(subject: &Subject) {
    let mut found = Vec::new();
    let mut families = Vec::new();
    for version in known_versions(subject) {
        let is_chain = subject.after.is_some() || subject.conf.get("plugins").is_some();
        if is_chain && version < Version::V0_3_0 {
            continue; // there were no chains
        }
        let host = subject.host();
        let subject = subject.at(host.dir()).with("cniVersion", json!(version));
        let container = subject.container(&host);
        let output = subject.call(&host, "ADD", "c-one", &container.path(), &[]);
        let result: Value = serde_json::from_str(&output.stdout).unwrap_or_default();
        if output.exit != 0 {
            found.push(format!("ADD in version {version} fails: {}{}", output.stdout, output.stderr));
            continue;
        }
        let faults = faults_of_result(version, &result);
        found.extend(faults.iter().map(|fault| format!("ADD in version {version}: {fault}")));
        families.push((version, count_families(version, &result)));
        let output = subject.call(&host, "DEL", "c-one", &container.path(), &[]);
        if output.exit != 0 {
            found.push(format!("DEL in version {version} fails: {}{}", output.stdout, output.stderr));
        }
    }
    // Results before 0.3.0 have room for one address of each family.
    let most = families.last().map(|(_, counts)| *counts);
    for (version, counts) in &families {
        let expected = most.map(|most| if *version < Version::V0_3_0 { most.map(|count| count.min(1)) } else { most });
        if Some(*counts) != expected {
            found.push(format!(
                "the result in version {version} has {counts:?} addresses of IPv4 and IPv6, in the newest {most:?}"
            ));
        }
    }
    let host = subject.host();
    let output = subject.at(host.dir()).with("cniVersion", json!("9.9.9")).call(
        &host,
        "ADD",
        "c-one",
        &subject.container(&host).path(),
        &[],
    );
    let mut faults = faults_of_error(&output);
    if faults.is_empty() && output.json()["code"] != code::INCOMPATIBLE_VERSION {
        faults.push(format!("wanted code {}: {}", code::INCOMPATIBLE_VERSION, output.stdout));
    }
    found.extend(faults.iter().map(|fault| format!("ADD in version 9.9.9, which does not exist: {fault}")));
    assert_no_findings(&found);
}

/// The number of IPv4 and IPv6 addresses of a result.
fn count_families(version: Version, result: &Value) -> [usize; 2] {
    if version < Version::V0_3_0 {
        return ["ip4", "ip6"].map(|family| usize::from(!result[family].is_null()));
    }
    let ips: Vec<&str> =
        result["ips"].as_array().into_iter().flatten().filter_map(|ip| ip["address"].as_str()).collect();
    let ipv6 = ips.iter().filter(|address| address.contains(':')).count();
    [ips.len() - ipv6, ipv6]
}

/// The result says what is in the container: each interface with a sandbox exists there with its MAC, and has its addresses.
pub fn results_are_true(subject: &Subject) {
    let host = subject.host();
    let subject = subject.at(host.dir());
    let container = subject.container(&host);
    let result = subject.add(&host, "c-one", &container);
    let mut found = Vec::new();
    let interfaces = result["interfaces"].as_array().cloned().unwrap_or_default();
    for (n, interface) in interfaces.iter().enumerate() {
        let name = interface["name"].as_str().unwrap_or_default();
        if interface["socketPath"].is_string() {
            continue; // it is no link of the kernel's
        }
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "._-@".contains(c)) {
            found.push(format!("the result has an interface with the name {name:?}"));
            continue;
        }
        let is_inside = interface["sandbox"].as_str().is_some_and(|sandbox| !sandbox.is_empty());
        let line = format!("ip -o link show dev {name} && ip -o address show dev {name}");
        let (exists, shown) = if is_inside { container.try_sh(&line) } else { host.try_sh(&line) };
        let place = if is_inside { "in the container" } else { "on the host" };
        if !exists {
            found.push(format!("the result has the interface {name:?}, which does not exist {place}: {shown}"));
            continue;
        }
        if let Some(mac) = interface["mac"].as_str().filter(|mac| !mac.is_empty())
            && !shown.to_lowercase().contains(&mac.to_lowercase())
        {
            found.push(format!("the result has the MAC {mac} for {name}, {place} it has another one: {shown}"));
        }
        for ip in result["ips"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|ip| ip["interface"].as_u64() == u64::try_from(n).ok())
        {
            let address = ip["address"].as_str().unwrap_or_default();
            if !shown.contains(&format!(" {address} ")) {
                found.push(format!("the result has {address} for {name}, {place} it has not: {shown}"));
            }
        }
    }
    subject.del(&host, "c-one", &container, &result);
    assert_no_findings(&found);
}

/// A request that has to be refused.
struct BadRequest {
    what: &'static str,
    verb: &'static str,
    id: &'static str,
    ifname: &'static str,
    netns: BadNetns,
    stdin: fn(&Value) -> Vec<u8>,
    /// The codes that the specification has for it; none: it leaves the code open.
    codes: &'static [u32],
    /// The variable that the message has to name, because it is missing.
    names: &'static str,
}

#[derive(Clone, Copy, PartialEq)]
enum BadNetns {
    Correct,
    Empty,
    Nowhere,
}

const CORRECT: BadRequest = BadRequest {
    what: "",
    verb: "ADD",
    id: "c-one",
    ifname: "eth0",
    netns: BadNetns::Correct,
    stdin: |conf| conf.to_string().into_bytes(),
    codes: &[code::INVALID_ENVIRONMENT],
    names: "",
};

/// The configuration is JSON, and not one of a network.
const MALFORMED: &[u32] = &[code::DECODE, code::INVALID_CONFIG];

/// Without `CNI_COMMAND` a person runs the plugin, and many describe themselves then, with exit status 0.
const BAD_REQUESTS: [BadRequest; 11] = [
    BadRequest { what: "with the verb FROB", verb: "FROB", ..CORRECT },
    BadRequest { what: "without CNI_CONTAINERID", id: "", names: "CNI_CONTAINERID", ..CORRECT },
    BadRequest { what: "with the container ID ../c", id: "../c", ..CORRECT },
    BadRequest { what: "without CNI_IFNAME", ifname: "", names: "CNI_IFNAME", ..CORRECT },
    BadRequest { what: "with the interface name a/b", ifname: "a/b", ..CORRECT },
    BadRequest { what: "without CNI_NETNS", netns: BadNetns::Empty, names: "CNI_NETNS", ..CORRECT },
    BadRequest { what: "with a namespace that does not exist", netns: BadNetns::Nowhere, codes: &[], ..CORRECT },
    BadRequest { what: "without a configuration", stdin: |_| Vec::new(), codes: &[code::IO, code::DECODE], ..CORRECT },
    BadRequest {
        what: "with text that is not JSON",
        stdin: |_| b"{\"name\":".to_vec(),
        codes: &[code::DECODE],
        ..CORRECT
    },
    BadRequest { what: "with a list for the configuration", stdin: |_| b"[]".to_vec(), codes: MALFORMED, ..CORRECT },
    BadRequest { what: "without the network's name", stdin: without_name, codes: MALFORMED, ..CORRECT },
];

fn without_name(conf: &Value) -> Vec<u8> {
    let mut conf = conf.clone();
    conf.as_object_mut().map(|keys| keys.remove("name"));
    conf.to_string().into_bytes()
}

/// Each bad request is refused with one error object, which has the code of the specification, and changes nothing. `enters`:
/// whether ADD enters the namespace, so that one that does not exist is an error; an IPAM plugin does not.
pub fn refuses_bad_requests(subject: &Subject, enters: bool) {
    let mut found = Vec::new();
    let host = subject.host();
    let subject = subject.at(host.dir());
    let container = subject.container(&host);
    for bad in BAD_REQUESTS.iter().filter(|bad| enters || bad.netns != BadNetns::Nowhere) {
        let netns = match bad.netns {
            BadNetns::Correct => container.path(),
            BadNetns::Empty => String::new(),
            BadNetns::Nowhere => host.dir().join("nowhere").display().to_string(),
        };
        let before = HostSnapshot::of(&host);
        let stdin = (bad.stdin)(&subject.conf_of("ADD", &container.path()));
        let output = subject.call_raw(&host, bad.verb, bad.id, &netns, &stdin, &[("CNI_IFNAME", bad.ifname)]);
        let mut faults = faults_of_error(&output);
        if faults.is_empty() {
            let error = output.json();
            let text = format!("{} {}", error["msg"], error["details"]);
            if !bad.codes.is_empty() && !bad.codes.iter().any(|code| error["code"] == *code) {
                faults.push(format!("wanted code {:?}, found {}: {text}", bad.codes, error["code"]));
            }
            if !text.contains(bad.names) {
                faults.push(format!("the message does not name {}: {text}", bad.names));
            }
        }
        found.extend(faults.iter().map(|fault| format!("a call {}: {fault}", bad.what)));
        // A runtime calls DEL after an ADD that failed.
        subject.call(&host, "DEL", "c-one", &container.path(), &[]);
        let left = HostSnapshot::of(&host).added_since(&before, &subject.shared);
        if !left.is_empty() {
            found.push(format!("a call {} leaves after DEL {left:?}", bad.what));
        }
    }
    assert_no_findings(&found);
}

/// ADD fails if the container has an interface of this name already, which stays as it is.
pub fn refuses_an_existing_interface(subject: &Subject) {
    add_to_an_existing_interface(subject, |_| ());
}

/// An ADD that fails because the interface exists leaves nothing on the host, also without DEL.
pub fn rolls_back(subject: &Subject) {
    add_to_an_existing_interface(subject, |left| {
        assert!(left.is_empty(), "left on the host by an ADD that failed because eth0 exists: {left:#?}");
    });
}

/// Calls ADD for an interface that exists, and passes on what that leaves on the host.
fn add_to_an_existing_interface(subject: &Subject, look: impl FnOnce(Vec<String>)) {
    let host = subject.host();
    let subject = subject.at(host.dir());
    let container = subject.container(&host);
    container.sh("ip link add eth0 type veth peer name other0");
    let before = HostSnapshot::of(&host);
    let inside = HostSnapshot::inside(&container);
    let output = subject.call(&host, "ADD", "c-one", &container.path(), &[]);
    let faults = faults_of_error(&output);
    assert!(faults.is_empty(), "ADD of eth0, which exists: {}", faults.join("; "));
    let when = "in the container after an ADD that failed because eth0 exists";
    HostSnapshot::inside(&container).assert_unchanged_since(&inside, &[], when);
    look(HostSnapshot::of(&host).added_since(&before, &subject.shared));
}

/// CHECK passes at once after ADD; DEL succeeds, also when it is repeated; and neither prints anything.
pub fn prints_nothing_but_results(subject: &Subject) {
    let host = subject.host();
    let subject = subject.at(host.dir());
    let container = subject.container(&host);
    let result = subject.add(&host, "c-one", &container);
    let mut found = Vec::new();
    let mut verbs = vec!["DEL", "DEL"];
    if subject.speaks(Version::V0_4_0) {
        verbs.insert(0, "CHECK");
    }
    for (n, verb) in verbs.iter().enumerate() {
        let output = subject.call(&host, verb, "c-one", &container.path(), &[("prevResult", result.clone())]);
        found.extend(catch_panic(|| output.silent(&format!("{verb}, call {} after ADD", n + 1))).err());
    }
    assert_no_findings(&found);
}

/// STATUS succeeds without output on a host where ADD succeeds. It needs version 1.1.0.
pub fn reports_its_status(subject: &Subject) {
    let host = subject.host();
    let subject = subject.at(host.dir());
    subject.call(&host, "STATUS", "", "", &[]).silent("STATUS where ADD succeeds");
    let container = subject.container(&host);
    let result = subject.add(&host, "c-one", &container);
    subject.del(&host, "c-one", &container, &result);
}

/// GC with all running attachments in its list changes nothing. It needs version 1.1.0.
pub fn keeps_valid_attachments(subject: &Subject) {
    let host = subject.host();
    let subject = subject.at(host.dir());
    let containers = [subject.container(&host), subject.container(&host)];
    let ids = ["c-one", "c-two"];
    let results = [0, 1].map(|n| subject.add(&host, ids[n], &containers[n]));
    let before = HostSnapshot::of(&host);
    let inside = containers.each_ref().map(HostSnapshot::inside);
    subject.gc(&host, &ids).silent("GC with all attachments valid");
    HostSnapshot::of(&host).assert_unchanged_since(&before, &HINTS, "after a GC with all attachments valid");
    for n in [0, 1] {
        HostSnapshot::inside(&containers[n]).assert_unchanged_since(&inside[n], &[], "in a container after such a GC");
        subject.check(&host, ids[n], &containers[n], &results[n]).ok();
        subject.del(&host, ids[n], &containers[n], &results[n]);
    }
}

/// CHECK fails after each loss of what the result lists: the interface, an address, a route, and after the interface was set down.
pub fn notices_losses(subject: &Subject) {
    let mut found = Vec::new();
    let count = losses(&result_of_add(subject)).len();
    for n in 0..count {
        let id = format!("c-{n}");
        attached(subject, &id, |subject, (host, container), result| {
            // The addresses are not those of another container: a DHCP server gives each its own.
            let all = losses(result);
            let Some(line) = all.get(n) else {
                return found.push(format!("the result has less than that of another ADD: {result}"));
            };
            let (changed, printed) = container.try_sh(line);
            if !changed {
                return found.push(format!("`{line}` fails in the container, so the result is not true: {printed}"));
            }
            let output = subject.check(host, &id, container, result);
            if output.exit == 0 {
                return found.push(format!("CHECK passes after `{line}` in the container"));
            }
            let faults = faults_of_error(&output);
            found.extend(faults.iter().map(|fault| format!("CHECK after `{line}` in the container: {fault}")));
        });
    }
    assert_no_findings(&found);
}

/// Shell lines that remove in the container what a result says is there, each one thing.
fn losses(result: &Value) -> Vec<String> {
    let mut lines = vec!["ip link del eth0".to_owned(), "ip link set eth0 down".to_owned()];
    for (key, change) in [("ips", "address"), ("routes", "dst")] {
        for one in result[key].as_array().into_iter().flatten() {
            let Some(what) =
                one[change].as_str().filter(|what| what.chars().all(|c| c.is_ascii_hexdigit() || "./:".contains(c)))
            else {
                continue;
            };
            let family = if what.contains(':') { "-6" } else { "-4" };
            lines.push(match key {
                "ips" => format!("ip {family} address del {what} dev eth0"),
                _ => format!("ip {family} route del {what}"),
            });
        }
    }
    lines
}

/// The result of one ADD on a new host. Panics if it fails.
pub fn result_of_add(subject: &Subject) -> Value {
    attached(subject, "c-first", |_, _, result| result.clone())
}

/// Runs `work` on a new host with one attachment, given its result, and calls DEL after it. Panics if ADD fails.
pub fn attached<T>(subject: &Subject, id: &str, work: impl FnOnce(&Subject, (&Host, &Container), &Value) -> T) -> T {
    let host = subject.host();
    let container = subject.container(&host);
    let subject = subject.at(host.dir());
    let result = subject.add(&host, id, &container);
    let done = work(&subject, (&host, &container), &result);
    subject.call(&host, "DEL", id, &container.path(), &[("prevResult", result)]);
    done
}

/// A chain with one plugin more does not ignore the result of the plugins before: of its interfaces and addresses some are in it.
pub fn passes_on_results(shorter: &Subject, longer: &Subject) {
    let [before, after] = [shorter, longer].map(result_of_add);
    let count = |result: &Value| {
        ["interfaces", "ips"].map(|key| result[key].as_array().map_or(0, Vec::len)).iter().sum::<usize>()
    };
    assert!(count(&before) == 0 || count(&after) > 0, "the result of the plugins before is ignored: {before}; {after}");
}
