//! The directory of configurations: which file counts, and what is wrong with any.

use std::path::{Path, PathBuf};

use cnikit_libcni::{
    Finding, NetworkSelector, PluginKeys, RoutedSubnet, Selection, SelectionPolicy, Severity, SkippedFile, Validator,
};
use cnikit_netlink::{Family, Netlink};
use serde_json::{Value, json};

use crate::cli::Chooses;
use crate::environment;
use crate::failure::{Failure, Result};
use crate::options::Common;
use crate::output::format::Output;
use crate::output::print::{print, print_json};
use crate::output::text::Tone;

/// The pages of our plugins. Their tables of keys are held to the plugins themselves by the tests. Not flannel's: which keys and
/// capabilities its delegate takes, nobody knows.
const PAGES: [(&str, &str); 10] = [
    ("bridge", include_str!("../../../../docs/bridge.md")),
    ("ptp", include_str!("../../../../docs/ptp.md")),
    ("macvlan", include_str!("../../../../docs/macvlan.md")),
    ("ipvlan", include_str!("../../../../docs/ipvlan.md")),
    ("loopback", include_str!("../../../../docs/loopback.md")),
    ("host-local", include_str!("../../../../docs/host-local.md")),
    ("static", include_str!("../../../../docs/static.md")),
    ("portmap", include_str!("../../../../docs/portmap.md")),
    ("tuning", include_str!("../../../../docs/tuning.md")),
    ("firewall", include_str!("../../../../docs/firewall.md")),
];

fn directory(common: &Common, dir: Option<&Path>) -> PathBuf {
    dir.map_or_else(|| environment::configurations(common), Path::to_owned)
}

/// Which file a runtime takes for its default network, and why none of the others.
pub(crate) fn explain(common: &Common, out: Output, dir: Option<&Path>, by: Chooses) -> Result {
    let dir = directory(common, dir);
    let runtime = Some(environment::runtime(common));
    let rule = match by {
        Chooses::Containerd => SelectionPolicy::FirstFiles(1),
        Chooses::CriO => SelectionPolicy::FirstOfEachName(None),
        Chooses::CriDockerd => SelectionPolicy::FirstValid,
    };
    let chosen = NetworkSelector { dir: dir.clone(), policy: rule, runtime }.select()?;
    if out.json {
        print_json(&document(&dir, &chosen))?;
    } else {
        print(&words(out, &dir, &chosen))?;
    }
    if chosen.default_network().is_some() { Ok(()) } else { Err(Failure::found()) }
}

fn document(dir: &Path, chosen: &Selection) -> Value {
    let default = chosen.default_network().map(|network| {
        json!({"file": network.file.display().to_string(), "network": network.list.name, "version": network.list.version})
    });
    let other = |other: &SkippedFile| json!({"file": other.file.display().to_string(), "why": other.to_string()});
    let others: Vec<Value> = chosen.skipped.iter().map(other).collect();
    json!({"directory": dir.display().to_string(), "default": default, "passedOver": others})
}

fn words(out: Output, dir: &Path, chosen: &Selection) -> String {
    let first = match chosen.default_network() {
        Some(network) => {
            out.paint(&format!("{}: network {} is the default", network.file.display(), network.list.name), Tone::Good)
        }
        None => out.paint(&format!("{}: no file can be the default network", dir.display()), Tone::Bad),
    };
    let others = chosen.skipped.iter().map(|other| format!("  {other}\n"));
    format!("{first}\n{}", others.collect::<String>())
}

/// Everything that is wrong, or looks wrong, with the files of a directory.
pub(crate) fn validate(common: &Common, out: Output, dir: Option<&Path>) -> Result {
    let dir = directory(common, dir);
    if !dir.is_dir() {
        return Err(format!("{} is no directory", dir.display()).into());
    }
    let plugins = PAGES.iter().map(|(plugin, page)| keys(plugin, page)).collect();
    let runtime = Some(environment::runtime(common));
    let capabilities = environment::capabilities()?.into_iter().map(|(name, _)| name).collect();
    let validator = Validator { dir: dir.clone(), runtime, plugins, capabilities, routes: routes() };
    let findings = validator.validate()?;
    let is_wrong = findings.iter().any(|finding| finding.severity == Severity::Error);
    if out.json {
        let told: Vec<Value> = findings.iter().map(finding).collect();
        print_json(&json!({"directory": dir.display().to_string(), "valid": !is_wrong, "findings": told}))?;
    } else if findings.is_empty() {
        print(&format!("{}: nothing is wrong\n", dir.display()))?;
    } else {
        print(&findings.iter().map(|finding| line(out, finding)).collect::<String>())?;
    }
    if is_wrong { Err(Failure::found()) } else { Ok(()) }
}

fn line(out: Output, finding: &Finding) -> String {
    let tone = if finding.severity == Severity::Error { Tone::Bad } else { Tone::Doubtful };
    out.paint(&finding.to_string(), tone) + "\n"
}

fn finding(finding: &Finding) -> Value {
    let defect = &finding.error;
    json!({
        "severity": if finding.severity == Severity::Error { "error" } else { "warning" },
        "file": defect.file.display().to_string(),
        "line": defect.location.map(|place| place.line),
        "column": defect.location.map(|place| place.column),
        "key": defect.key,
        "code": defect.code,
        "why": defect.message,
        "hint": defect.hint,
    })
}

/// The keys that a page's tables show: the first column of each that is headed so.
fn keys(plugin: &str, page: &str) -> PluginKeys {
    let mut keys = Vec::new();
    let mut is_table = false;
    for line in page.lines() {
        let first = line.strip_prefix("| ").and_then(|rest| rest.split(" |").next());
        match first {
            Some("key") => is_table = true,
            Some(cell) if is_table => keys.extend(cell.split('`').nth(1).map(str::to_owned)),
            None if !line.starts_with('|') => is_table = false,
            _ => {}
        }
    }
    keys.retain(|key: &String| !key.starts_with("CNI_ARGS "));
    PluginKeys { plugin: plugin.to_owned(), keys }
}

/// Where the host has routes to; none if it cannot be asked.
fn routes() -> Vec<RoutedSubnet> {
    let Ok(netlink) = Netlink::here() else { return Vec::new() };
    let links = netlink.links().unwrap_or_default();
    let name = |index: Option<u32>| links.iter().find(|link| Some(link.index) == index).map(|link| link.name.clone());
    let all = [Family::V4, Family::V6].map(|family| netlink.routes(family).unwrap_or_default());
    let main = all.into_iter().flatten().filter(|route| route.is_ordinary() && !route.is_default());
    main.filter_map(|route| Some(RoutedSubnet { network: route.dst, device: name(route.index)? })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_keys_of_every_plugin_of_ours_are_known() {
        let mut plugins: Vec<String> = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../plugins"))
            .unwrap()
            .map(|plugin| plugin.unwrap().file_name().into_string().unwrap())
            .filter(|plugin| !["all", "flannel"].contains(&plugin.as_str()))
            .collect();
        plugins.sort();
        let mut known = PAGES.map(|(plugin, _)| plugin);
        known.sort_unstable();
        assert_eq!(plugins, known);
    }

    #[test]
    fn every_page_shows_its_keys() {
        for (plugin, page) in PAGES.into_iter().filter(|(plugin, _)| *plugin != "loopback") {
            let (keys, least) = (keys(plugin, page).keys, if plugin == "firewall" { 4 } else { 6 });
            assert!(keys.len() >= least && keys.iter().all(|key| !key.contains([' ', '|'])), "{plugin}: {keys:?}");
        }
        assert!(keys("bridge", PAGES[0].1).keys.contains(&"isGateway".to_owned()));
    }
}
