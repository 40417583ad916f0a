//! Fuzz target: network configurations in a directory.

use std::fs;
use std::path::Path;

use cnikit_libcni::{
    ConfigError, Error, Finding, NetworkList, NetworkSelector, PluginKey, PluginKeys, Reason, SelectionPolicy,
    Severity, Validator, conf_files, list_from_file, load,
};
use cnikit_types::document;
use tempfile::TempDir;

/// The name of the network that is loaded.
const NAME: &str = "net";

/// Writes three files, with a NUL between their contents: a list, a configuration of one plugin, and a plugin in the list's
/// directory. An empty one is not written.
pub(crate) fn run(data: &[u8]) {
    let dir = TempDir::new().expect("there is a temporary directory");
    let mut fields = data.splitn(3, |byte| *byte == 0);
    fs::create_dir(dir.path().join(NAME)).expect("it can be written to");
    for file in ["20-list.conflist", "10-one.conf", "net/30-more.conf"] {
        let text = fields.next().unwrap_or_default();
        if !text.is_empty() {
            fs::write(dir.path().join(file), text).expect("it can be written to");
        }
    }
    let read = load(dir.path(), NAME);
    check_selection(dir.path(), read.as_ref().ok());
    check_validation(dir.path());
    match read {
        Ok(list) => check_list(dir.path(), &list),
        Err(Error::NoConfigurations { .. }) => {}
        Err(Error::NoNetwork { name, skipped, .. }) => {
            assert_eq!(name, NAME);
            skipped.iter().for_each(|defect| check_location(dir.path(), defect));
        }
        Err(Error::Configuration(defect)) => check_location(dir.path(), &defect),
        Err(other) => panic!("loading fails for its files alone: {other}"),
    }
}

fn choose(dir: &Path, rule: SelectionPolicy) -> cnikit_libcni::Selection {
    NetworkSelector { dir: dir.to_owned(), policy: rule, runtime: None }.select().expect("the directory can be listed")
}

/// Checks the selection of networks. By name it finds the same list as `load`. Every other policy reports each file: as used, or as
/// skipped with the reason.
fn check_selection(dir: &Path, loaded: Option<&NetworkList>) {
    let by_name = choose(dir, SelectionPolicy::ByName(NAME.to_owned()));
    let list = by_name.default_network().map(|network| (&network.list.name, &network.list.plugins));
    assert_eq!(list, loaded.map(|list| (&list.name, &list.plugins)));
    let mut all = conf_files(dir, &["conflist", "conf"]).expect("the directory can be listed");
    all.sort();
    for rule in [
        SelectionPolicy::FirstValid,
        SelectionPolicy::FirstOfEachName(None),
        SelectionPolicy::FirstOfEachName(Some(NAME.to_owned())),
    ] {
        let chosen = choose(dir, rule);
        let used = chosen.networks.iter().map(|network| &network.file);
        let mut told: Vec<_> = used.chain(chosen.skipped.iter().map(|file| &file.file)).cloned().collect();
        told.sort();
        assert_eq!(told, all);
        for file in &chosen.skipped {
            assert!(!file.to_string().contains('\n'), "{file}");
            if let Reason::Invalid(defect) = &file.reason {
                check_location(dir, defect);
            }
        }
    }
    let strict = choose(dir, SelectionPolicy::FirstFiles(0));
    assert!(strict.networks.is_empty() || strict.networks.len() == all.len(), "{strict:?}");
}

/// Checks validation: a file has findings that are errors exactly if it cannot be loaded; each finding has a location, and their
/// number is limited.
fn check_validation(dir: &Path) {
    let keys = ["bridge", "mtu", "vlanTrunk[].minID", "ranges[][].subnet", "runtimeConfig.mac"].map(PluginKey::from);
    let plugins = ["bridge", "host-local", "t"].map(|plugin| PluginKeys { plugin: plugin.into(), keys: keys.to_vec() });
    let validator = Validator { dir: dir.to_owned(), plugins: plugins.to_vec(), ..Validator::default() };
    let findings = validator.validate().expect("the directory can be listed");
    assert!(findings.len() <= 3 * 20, "{} findings", findings.len());
    for finding in &findings {
        check_location(dir, &finding.error);
    }
    let files = conf_files(dir, &["conflist", "conf"]).expect("the directory can be listed");
    let all_load = files.iter().all(|file| list_from_file(file).is_ok());
    // A duplicate key is an error of the plugin, which the loader of the list does not report.
    let is_loaded =
        |finding: &Finding| finding.severity == Severity::Warning || finding.error.message == "is given more than once";
    assert_eq!(all_load, findings.iter().all(is_loaded), "{findings:?}");
}

/// Checks that an error names an existing file, a position in it, and a hint.
fn check_location(dir: &Path, defect: &ConfigError) {
    let text = fs::read(&defect.file).expect("the file is one that was written");
    let text = String::from_utf8_lossy(&text);
    let place = defect.location.expect("only a text can be wrong here");
    let line = text.split('\n').nth(place.line as usize - 1).expect("the line is there");
    assert!((1..=line.chars().count() + 1).contains(&(place.column as usize)), "{defect}");
    assert!(defect.file.starts_with(dir) && !defect.message.is_empty() && !defect.hint.is_empty(), "{defect}");
}

/// Whether the document itself has plugins, and not only the directory beside it.
fn inlined(list: &NetworkList) -> bool {
    document::parse(&list.bytes).is_ok_and(|document| document.get("plugins").is_some())
}

/// Checks a loaded list: its name, its plugins, and that its document alone gives the same list.
fn check_list(dir: &Path, list: &NetworkList) {
    assert_eq!(list.name, NAME);
    assert!(!list.plugins.is_empty() && list.warnings.iter().all(|text| !text.is_empty()));
    let alone = dir.join("alone");
    fs::create_dir(&alone)
        .and_then(|()| fs::write(alone.join("net.conflist"), &list.bytes))
        .expect("it can be written to");
    if !inlined(list) {
        return;
    }
    let again = load(&alone, NAME).expect("the document of a list is one");
    let names = |list: &NetworkList| list.plugins.iter().map(|listed| listed.plugin.clone()).collect::<Vec<_>>();
    assert_eq!((&again.version, again.disable_check), (&list.version, list.disable_check));
    assert!(names(list).starts_with(&names(&again)), "{:?} of {:?}", names(&again), names(list));
    assert_eq!(again.bytes, list.bytes);
}
