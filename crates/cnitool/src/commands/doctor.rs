//! `doctor`: looks at the whole node and says what is wrong, with what to do. Nothing is changed.

mod needs;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use cnikit_invoke::is_writable_by_others;
use cnikit_libcni::{
    AttachmentSummary, EXTENSIONS, NetworkList, NetworkSelector, SelectionPolicy, State, conf_files, list_from_file,
};
use cnikit_netlink::Netlink;
use cnikit_netns::{Netns, sysctl};
use cnikit_resources::alias;
use cnikit_skel::AttachmentId;
use cnikit_types::{NetConf, limit};
use serde_json::{Value, json};

use crate::cli::Doctor;
use crate::commands::ipam;
use crate::commands::rules::{Rules, program_output};
use crate::environment;
use crate::failure::{Failure, Result};
use crate::namespace::PathInspector;
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print, print_json};
use crate::output::text::Tone;

/// How many of many objects are named; the others are counted.
const NAMED: usize = 5;

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Level {
    Ok,
    Warning,
    Problem,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Ok => "ok",
            Level::Warning => "warning",
            Level::Problem => "problem",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Level::Ok => Tone::Good,
            Level::Warning => Tone::Doubtful,
            Level::Problem => Tone::Bad,
        }
    }
}

/// One thing that was inspected.
#[derive(Debug)]
struct Finding {
    level: Level,
    /// What was inspected: `configurations`, `plugins` and so on.
    area: &'static str,
    text: String,
    /// What to do; empty if nothing is to be done.
    hint: String,
}

/// The findings so far.
#[derive(Debug, Default)]
struct Report(Vec<Finding>);

impl Report {
    fn ok(&mut self, area: &'static str, text: impl Into<String>) {
        self.0.push(Finding { level: Level::Ok, area, text: text.into(), hint: String::new() });
    }

    fn warning(&mut self, area: &'static str, text: impl Into<String>, hint: impl Into<String>) {
        self.0.push(Finding { level: Level::Warning, area, text: text.into(), hint: hint.into() });
    }

    fn problem(&mut self, area: &'static str, text: impl Into<String>, hint: impl Into<String>) {
        self.0.push(Finding { level: Level::Problem, area, text: text.into(), hint: hint.into() });
    }

    fn is_healthy(&self) -> bool {
        self.0.iter().all(|finding| finding.level == Level::Ok)
    }
}

/// Inspects the node, and prints one line for each finding.
pub(crate) fn doctor(common: &Common, out: Output, args: &Doctor) -> Result {
    let mut report = Report::default();
    kernel(&mut report);
    let lists = configurations(common, &mut report);
    plugin_directories(common, &mut report);
    networks(common, &lists, &mut report);
    let attachments = attachments(common, &mut report);
    host_links(&attachments, &mut report);
    rules(&attachments, &mut report);
    addresses(common, args, &mut report);
    forwarding(&lists, &attachments, &mut report);
    forward_policy(&lists, &mut report);
    backends(&mut report);
    let is_healthy = report.is_healthy();
    if out.json {
        let findings: Vec<Value> = report.0.iter().map(document).collect();
        print_json(&json!({"healthy": is_healthy, "findings": findings}))?;
    } else {
        print(&report.0.iter().map(|finding| text(out, finding)).collect::<String>())?;
    }
    if is_healthy { Ok(()) } else { Err(Failure::found()) }
}

fn document(finding: &Finding) -> Value {
    let hint = if finding.hint.is_empty() { Value::Null } else { json!(finding.hint) };
    json!({"level": finding.level.word(), "area": finding.area, "text": finding.text, "hint": hint})
}

fn text(out: Output, finding: &Finding) -> String {
    let level = out.paint(&format!("{:8}", finding.level.word()), finding.level.tone());
    let hint = if finding.hint.is_empty() { String::new() } else { format!("        hint: {}\n", finding.hint) };
    format!("{level}{}: {}\n{hint}", finding.area, finding.text)
}

/// The oldest release of Linux that the plugins support.
const OLDEST_KERNEL: (u32, u32) = (5, 4);

/// The release of the kernel. Features that a network needs are checked by STATUS of its plugins.
fn kernel(report: &mut Report) {
    const AREA: &str = "kernel";
    let Ok(text) = fs::read_to_string("/proc/sys/kernel/osrelease") else {
        return report.warning(AREA, "its release cannot be read", "is /proc mounted?");
    };
    let release = text.trim();
    match release_numbers(release) {
        Some(numbers) if numbers < OLDEST_KERNEL => report.problem(
            AREA,
            format!("Linux {release} is older than {}.{}", OLDEST_KERNEL.0, OLDEST_KERNEL.1),
            "the plugins need features of newer kernels: update it",
        ),
        _ => report.ok(AREA, format!("Linux {release}")),
    }
}

/// The first two numbers of a release such as `6.12.5-amd64`.
fn release_numbers(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The backend that rules get where the configuration names none: iptables if its program works, otherwise nftables.
fn backends(report: &mut Report) {
    const AREA: &str = "backends";
    match program_output("iptables", &["--version"]) {
        Ok(version) => report.ok(AREA, format!("{}, the default for rules", version.trim())),
        Err(why) => report.ok(AREA, format!("nftables is used for rules, because iptables cannot be used: {why}")),
    }
}

/// Rules of the host that name a container without a cached result.
fn rules(attachments: &[AttachmentSummary], report: &mut Report) {
    const AREA: &str = "rules";
    let known: BTreeSet<&str> = attachments.iter().map(|one| one.container_id.as_str()).collect();
    let mut rules = Rules::default();
    let named = rules.containers();
    let unknown: Vec<String> = named.iter().filter(|id| !known.contains(id.as_str())).cloned().collect();
    if unknown.is_empty() {
        report.ok(AREA, format!("rules of the host name {} containers, and all are known", named.len()));
    } else {
        let text = format!("rules name {} containers that are not known: {}", unknown.len(), first_of(&unknown));
        let hint = "--cache-dir names the cache of another runtime; if a container is gone, its runtime's GC or DEL removes its rules";
        report.warning(AREA, text, hint);
    }
}

/// The directory of configurations: whether it has a default network, and which files cannot be read. Returns the readable ones.
fn configurations(common: &Common, report: &mut Report) -> Vec<NetworkList> {
    const AREA: &str = "configurations";
    let dir = environment::configurations(common);
    if let Some(why) = writable_by_others(&dir) {
        report.problem(AREA, why, format!("`chmod go-w {0}; chown root {0}`", dir.display()));
    }
    let policy = SelectionPolicy::FirstFiles(1);
    let selector = NetworkSelector { dir: dir.clone(), policy, runtime: None };
    match selector.select() {
        Ok(selection) => match selection.default_network() {
            Some(found) => {
                let text = format!("network {} of {} is containerd's default", found.list.name, found.file.display());
                report.ok(AREA, text);
            }
            None => report.problem(
                AREA,
                format!("containerd finds no default network in {}", dir.display()),
                "`cnitool config explain` says why; `cnitool init` writes a network",
            ),
        },
        Err(error) => report.problem(AREA, error.to_string(), "create the directory, or name another with --conf-dir"),
    }
    let mut lists = Vec::new();
    for file in conf_files(&dir, &EXTENSIONS).unwrap_or_default() {
        match list_from_file(&file) {
            Ok(list) => lists.push(list),
            Err(error) => report.problem(AREA, error.to_string(), "`cnitool validate` names the line"),
        }
    }
    lists
}

/// Why another user than root can change what is at this path; `None` if only root can, or if there is nothing.
fn writable_by_others(path: &Path) -> Option<String> {
    let found = fs::metadata(path).ok()?;
    if found.uid() != 0 {
        return Some(format!("{} belongs to uid {}, and root runs what it contains", path.display(), found.uid()));
    }
    if is_writable_by_others(&found, false) {
        let mode = found.mode() & 0o7777;
        return Some(format!("{} has mode {mode:04o}, and root runs what other users can write there", path.display()));
    }
    None
}

/// The directories of plugins: whether they exist, and who may write there.
fn plugin_directories(common: &Common, report: &mut Report) {
    const AREA: &str = "plugins";
    for dir in environment::plugin_directories(common) {
        if !dir.is_dir() {
            report.warning(AREA, format!("there is no directory {}", dir.display()), "`scripts/install` creates it");
        } else if let Some(why) = writable_by_others(&dir) {
            report.problem(AREA, why, format!("`chmod go-w {0}; chown root {0}`", dir.display()));
        } else {
            let files = fs::read_dir(&dir).map(Iterator::count).unwrap_or_default();
            report.ok(AREA, format!("{} has {files} files", dir.display()));
        }
    }
}

/// Each network: whether its plugins exist and support its version, what they report to STATUS, and whether the node has what they
/// need. Runtimes ask for STATUS from version 1.1.0 on, so the needs are checked here whatever the version is.
fn networks(common: &Common, lists: &[NetworkList], report: &mut Report) {
    let runtime = environment::runtime(common);
    for list in lists {
        let name = &list.name;
        let unmet = needs::unmet(list);
        let status = runtime.validate(list).and_then(|_| runtime.status(list));
        if unmet.is_empty() && status.is_ok() {
            report.ok("networks", format!("the plugins of {name} are there and ready"));
        }
        if let Err(error) = status {
            let text = error.to_string();
            // STATUS of our plugins reports the same in the same words.
            if !unmet.iter().any(|need| text.contains(&need.text)) {
                report.problem("networks", format!("{name}: {text}"), "`cnitool status` repeats the question");
            }
        }
        for need in unmet {
            report.problem("networks", format!("{name}: {}: {}", need.plugin, need.text), need.hint);
        }
    }
}

/// The cached attachments: which cannot be read, were interrupted, or have lost their namespace. Returns all of them.
fn attachments(common: &Common, report: &mut Report) -> Vec<AttachmentSummary> {
    const AREA: &str = "attachments";
    let all = match environment::cache(common).list() {
        Ok(all) => all,
        Err(error) => {
            report.problem(AREA, error.to_string(), "");
            return Vec::new();
        }
    };
    let inspector = PathInspector::new();
    let mut lost = Vec::new();
    let mut damaged = Vec::new();
    for one in &all {
        let name = format!("{}/{}/{}", one.network, one.container_id, one.ifname);
        match one.state {
            State::Unreadable => damaged.push(one.file.display().to_string()),
            State::Interrupted => damaged.push(format!("{name} (interrupted)")),
            State::Attached | State::Adding if inspector.attachment(&one.netns, &one.metadata).is_lost() => {
                lost.push(name);
            }
            State::Attached | State::Adding => {}
        }
    }
    if !damaged.is_empty() {
        let text = format!("{} cannot be read or were interrupted: {}", damaged.len(), first_of(&damaged));
        report.warning(AREA, text, "`cnitool list` shows them; a DEL or `cnitool gc NETWORK` removes them");
    }
    if !lost.is_empty() {
        let text = format!("{} have no namespace any longer: {}", lost.len(), first_of(&lost));
        report.warning(AREA, text, "`cnitool gc NETWORK` deletes what is left of them, if the runtime does not");
    }
    if lost.is_empty() && damaged.is_empty() {
        report.ok(AREA, format!("{} are known, and each has its namespace", all.len()));
    }
    all
}

/// The first of some names, and how many more there are.
fn first_of(names: &[String]) -> String {
    limit::first_few(names, NAMED, ", ")
}

/// Links of the host that a plugin of ours made for an attachment that no cached result mentions.
fn host_links(attachments: &[AttachmentSummary], report: &mut Report) {
    const AREA: &str = "links";
    let links = match Netlink::here().and_then(|netlink| netlink.links()) {
        Ok(links) => links,
        Err(error) => return report.problem(AREA, error.to_string(), ""),
    };
    let mut known = BTreeSet::new();
    for one in attachments {
        known.insert(alias::mark_of(&AttachmentId {
            network: one.network.clone(),
            container: one.container_id.clone(),
            ifname: one.ifname.clone(),
        }));
    }
    let mut tagged = 0;
    let mut unknown = Vec::new();
    for link in &links {
        let Some(mark) = link.alias.as_deref().and_then(alias::mark) else { continue };
        tagged += 1;
        if !known.contains(mark) {
            let owner = alias::clear_text(link).unwrap_or("an attachment that its alias does not name");
            unknown.push(format!("{} of {owner}", link.name));
        }
    }
    if unknown.is_empty() {
        report.ok(AREA, format!("{tagged} links of the host belong to known attachments"));
    } else {
        let text = format!("{} links belong to no known attachment: {}", unknown.len(), first_of(&unknown));
        let hint = "--cache-dir names the cache of another runtime; if the container is gone, its runtime's GC or DEL removes the link";
        report.warning(AREA, text, hint);
    }
}

/// The addresses of host-local and pools that no container has any longer, and those of pools that a container has without a
/// reservation.
fn addresses(common: &Common, args: &Doctor, report: &mut Report) {
    const AREA: &str = "addresses";
    match ipam::leak_counts(common, args.sight) {
        Ok(counts) => {
            for one in &counts {
                let text = format!("network {}: {} leaked, {} suspected", one.network, one.leaked, one.suspected);
                if one.leaked > 0 {
                    report.problem(AREA, text, "`cnitool ipam reclaim` frees the leaked ones");
                } else if one.suspected > 0 {
                    report.warning(AREA, text, "`cnitool ipam leaks` gives the reason for each");
                }
            }
            if counts.iter().all(|one| one.leaked == 0 && one.suspected == 0) {
                report.ok(AREA, format!("no address of {} networks of host-local and pool is leaked", counts.len()));
            }
        }
        Err(failure) => report.problem(AREA, failure.text, ""),
    }
    match ipam::unreserved_addresses(common, args.sight) {
        Ok(unreserved) => {
            for (text, hint) in unreserved {
                report.problem(AREA, text, hint);
            }
        }
        Err(failure) => report.problem(AREA, failure.text, ""),
    }
}

/// Whether the host forwards, where containers are attached that need it, and does not filter replies by their path.
fn forwarding(lists: &[NetworkList], attachments: &[AttachmentSummary], report: &mut Report) {
    const AREA: &str = "forwarding";
    let routed: BTreeSet<&str> = lists.iter().filter(|list| is_routed(list)).map(|list| list.name.as_str()).collect();
    let is_needed = attachments.iter().any(|one| routed.contains(one.network.as_str()));
    let Ok(own) = Netns::own() else { return };
    let read = |key: &'static str| own.enter(|inside| sysctl::read(inside, key)).ok()?.ok();
    match read("net/ipv4/ip_forward").as_deref() {
        Some("0") if is_needed => report.problem(
            AREA,
            "net.ipv4.ip_forward is 0, and containers are attached whose packets the host has to forward",
            "another program switched it off: `sysctl -w net.ipv4.ip_forward=1`, and remove it from /etc/sysctl.d",
        ),
        Some("0") => report.ok(AREA, "net.ipv4.ip_forward is 0; the first container that needs it switches it on"),
        Some(value) => report.ok(AREA, format!("net.ipv4.ip_forward is {value}")),
        None => report.warning(AREA, "net.ipv4.ip_forward cannot be read", "is /proc/sys mounted?"),
    }
    if read("net/ipv4/conf/all/rp_filter").as_deref() == Some("1") {
        report.warning(
            AREA,
            "net.ipv4.conf.all.rp_filter is 1: packets that arrive by another interface than the route back are dropped",
            "2 is enough for hosts with several uplinks: `sysctl -w net.ipv4.conf.all.rp_filter=2`",
        );
    }
}

/// Whether the host routes the packets of this network's containers. A bridge without a gateway on the host is only a switch.
fn is_routed(list: &NetworkList) -> bool {
    let Some(first) = list.plugins.first() else { return false };
    match first.plugin.as_str() {
        "bridge" => {
            let conf = NetConf::parse(first.text.as_bytes()).unwrap_or_default();
            ["isGateway", "isDefaultGateway"].iter().any(|key| conf.get(key) == Some(&Value::Bool(true)))
        }
        "ptp" | "flannel" => true,
        _ => false,
    }
}

/// Chains that drop what is forwarded unless a rule accepts it, where no plugin of a network adds such rules.
fn forward_policy(lists: &[NetworkList], report: &mut Report) {
    const AREA: &str = "packet filter";
    let mut unprotected = Vec::new();
    for list in lists {
        if is_routed(list) && !list.plugins.iter().any(|plugin| plugin.plugin == "firewall") {
            unprotected.push(list.name.clone());
        }
    }
    let mut dropping = Vec::new();
    let mut unread = Vec::new();
    match program_output("iptables-save", &["-t", "filter"]) {
        Ok(text) if text.lines().any(|line| line.starts_with(":FORWARD DROP")) => {
            dropping.push("chain FORWARD of iptables".to_owned());
        }
        Ok(_) => {}
        Err(why) => unread.push(format!("iptables: {why}")),
    }
    match program_output("nft", &["list", "chains"]) {
        Ok(text) => dropping.extend(dropping_chains(&text)),
        Err(why) => unread.push(format!("nft: {why}")),
    }
    if !dropping.is_empty() && !unprotected.is_empty() {
        let text = format!("{} drops forwarded packets, also those of {}", dropping.join(", "), first_of(&unprotected));
        report.problem(AREA, text, "add the plugin `firewall` to the list, after the plugin that gives the addresses");
    } else if dropping.is_empty() && unread.len() < 2 {
        report.ok(AREA, "no chain drops forwarded packets by its policy");
    } else if dropping.is_empty() {
        report.warning(AREA, format!("the rules cannot be read: {}", unread.join("; ")), "run this as root");
    } else {
        report.ok(AREA, format!("{} drops forwarded packets, and every network has `firewall`", dropping.join(", ")));
    }
}

/// The table of nftables that iptables writes, where it is the variant for `nf_tables`.
const IPTABLES_TABLE: &str = "ip filter";

/// The base chains at hook forward with the policy drop, except that of iptables, in the output of `nft list chains`.
fn dropping_chains(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut table = "";
    let mut chain = "";
    for line in text.lines() {
        let line = line.trim().trim_end_matches(" {");
        if let Some(name) = line.strip_prefix("table ") {
            table = name;
        } else if let Some(name) = line.strip_prefix("chain ") {
            chain = name;
        } else if line.contains("hook forward") && line.contains("policy drop") && table != IPTABLES_TABLE {
            found.push(format!("chain {chain} of nftables table {table}"));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_that_drops_is_found_and_that_of_iptables_is_not_repeated() {
        let text = "table inet fw {\n\tchain in {\n\t\ttype filter hook input priority filter; policy drop;\n\t}\n\
                    \tchain fwd {\n\t\ttype filter hook forward priority filter; policy drop;\n\t}\n}\n\
                    table ip filter {\n\tchain FORWARD {\n\t\ttype filter hook forward priority 0; policy drop;\n\t}\n}\n";
        assert_eq!(dropping_chains(text), ["chain fwd of nftables table inet fw"]);
        assert_eq!(dropping_chains("table inet fw {\n\tchain fwd {\n\t}\n}\n"), [""; 0]);
    }

    #[test]
    fn a_release_of_linux_is_compared_by_its_first_two_numbers() {
        let cases =
            [("6.12.95+deb12-amd64", Some((6, 12))), ("5.4", Some((5, 4))), ("4.19.0", Some((4, 19))), ("x", None)];
        for (release, numbers) in cases {
            assert_eq!(release_numbers(release), numbers, "{release}");
        }
        assert!(release_numbers("4.19.0").is_some_and(|numbers| numbers < OLDEST_KERNEL));
    }

    #[test]
    fn many_names_are_counted() {
        let names: Vec<String> = (0..7).map(|n| format!("n{n}")).collect();
        assert_eq!(first_of(&names), "n0, n1, n2, n3, n4, and 2 more");
        assert_eq!(first_of(&names[..1]), "n0");
    }

    #[test]
    fn a_directory_that_other_users_can_write_is_named_with_its_mode() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let why = writable_by_others(dir.path()).unwrap();
        assert!(why.contains("0777") || why.contains("belongs to uid"), "{why}");
        assert_eq!(writable_by_others(Path::new("/proc/none")), None);
    }
}
