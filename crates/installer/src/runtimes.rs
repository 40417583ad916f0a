//! The directories of plugins and of network lists, as the node's runtimes are configured.
//!
//! Sources: `LoadConfigWithPlugins` and `resolveImports` of containerd 2 (`cmd/containerd/server/config/config.go`), its
//! migration of `cri` (`plugins/cri/runtime/plugin.go`); `UpdateFromPath` of CRI-O (`pkg/config/config.go`), crio.conf.d(5).

use std::collections::{BTreeSet, VecDeque};
use std::path::{Path, PathBuf};

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::presets::Preset;
use crate::root::{Absent, Root, Trust};

/// The longest configuration file that is read.
const LONGEST: u64 = 1 << 22;
/// The most files that one configuration consists of.
const MOST_FILES: usize = 256;
/// The directories that every runtime uses unless it is configured otherwise.
pub(crate) const PLUGINS: &str = "/opt/cni/bin";
pub(crate) const NETWORKS: &str = "/etc/cni/net.d";

const CONTAINERD: &str = "/etc/containerd/config.toml";
const CRIO: &str = "/etc/crio/crio.conf";
const CRIO_MORE: &str = "/etc/crio/crio.conf.d";

/// The directories of one runtime.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directories {
    pub(crate) plugins: PathBuf,
    pub(crate) networks: PathBuf,
}

impl Directories {
    fn new(plugins: Option<String>, networks: Option<String>, preset: &Preset) -> Directories {
        Directories {
            plugins: plugins.map_or_else(|| preset.plugins.into(), PathBuf::from),
            networks: networks.map_or_else(|| preset.networks.into(), PathBuf::from),
        }
    }
}

/// The directories of each runtime of the node; those of the preset if no runtime is configured.
pub(crate) fn find(root: &Root, preset: &Preset) -> Result<Vec<Directories>, String> {
    let mut found = Vec::new();
    let containerd = preset.containerd.unwrap_or(CONTAINERD);
    if let Some(directories) = containerd_directories(root, Path::new(containerd), preset)? {
        found.push(directories);
    }
    if preset.containerd.is_none()
        && let Some(directories) = crio_directories(root, preset)?
    {
        found.push(directories);
    }
    if found.is_empty() {
        found.push(Directories::new(None, None, preset));
    }
    for one in &found {
        for path in [&one.plugins, &one.networks] {
            if !path.is_absolute() {
                return Err(format!("the runtime's directory {} is not an absolute path", path.display()));
            }
        }
    }
    found.dedup();
    Ok(found)
}

/// Reads containerd's configuration and what it imports; `None` if there is none, or its CRI plugin is disabled.
fn containerd_directories(root: &Root, path: &Path, preset: &Preset) -> Result<Option<Directories>, String> {
    let mut pending = VecDeque::from([path.to_owned()]);
    let mut read = BTreeSet::new();
    let (mut plugins, mut networks) = (None, None);
    let mut first_version = None;
    let mut is_disabled = false;
    while let Some(path) = pending.pop_front() {
        if !read.insert(path.clone()) {
            continue;
        }
        if read.len() > MOST_FILES {
            return Err(format!("{}: it imports more than {MOST_FILES} files", root.shown(&path).display()));
        }
        let Some(text) = read_text(root, &path)? else {
            if read.len() == 1 {
                return Ok(None);
            }
            // An import without a pattern has to exist: containerd does not start without it.
            return Err(format!("read {}: it is imported and does not exist", root.shown(&path).display()));
        };
        let document = parse(root, &path, &text)?;
        let table = document.get_ref();
        let version = match table.get("version").map(Spanned::get_ref) {
            Some(DeValue::Integer(number)) => number.as_str().parse().unwrap_or(0),
            _ => first_version.unwrap_or(1),
        };
        first_version.get_or_insert(version);
        let failed = |why: String| format!("{}: {why}", root.shown(&path).display());
        let plugin = match version {
            0 | 1 => "cri",
            2 => "io.containerd.grpc.v1.cri",
            3 | 4 => "io.containerd.cri.v1.runtime",
            other => return Err(failed(format!("version {other} of containerd's configuration is not known"))),
        };
        is_disabled |= strings(table, "disabled_plugins").map_err(failed)?.iter().any(|name| is_cri(name));
        if let Some(cni) = table_at(table, &["plugins", plugin, "cni"]) {
            // containerd 2.1 and later prefer the list.
            let list = strings(cni, "bin_dirs").map_err(failed)?;
            if let Some(dir) = list.into_iter().find(|dir| !dir.is_empty()).or(string(cni, "bin_dir").map_err(failed)?)
            {
                plugins = Some(dir);
            }
            networks = string(cni, "conf_dir").map_err(failed)?.or(networks);
        }
        for import in strings(table, "imports").map_err(failed)? {
            pending.extend(imported(root, &path, &import)?);
        }
    }
    if is_disabled {
        return Ok(None);
    }
    Ok(Some(Directories::new(plugins, networks, preset)))
}

fn is_cri(plugin: &str) -> bool {
    ["cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"].contains(&plugin)
}

/// The files that an import names: relative to the file's directory, with `*` and `?` in the last name.
fn imported(root: &Root, from: &Path, import: &str) -> Result<Vec<PathBuf>, String> {
    let path = from.parent().unwrap_or(Path::new("/")).join(import);
    let is_pattern = |text: &str| text.contains(['*', '?', '[']);
    if !is_pattern(import) {
        return Ok(vec![path]);
    }
    let dir = path.parent().unwrap_or(Path::new("/"));
    let pattern = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if pattern.contains('[') || is_pattern(&dir.to_string_lossy()) {
        return Err(format!(
            "{}: the import {import:?} has a pattern that is not supported; hint: --plugin-dir and --conf-dir",
            root.shown(from).display()
        ));
    }
    let mut found = Vec::new();
    for name in list(root, dir)? {
        if matches(pattern.as_bytes(), name.as_bytes()) {
            found.push(dir.join(name));
        }
    }
    Ok(found)
}

/// Whether a name matches a pattern of `*` and `?`.
fn matches(pattern: &[u8], name: &[u8]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            matches(rest, name) || name.split_first().is_some_and(|(_, name)| matches(pattern, name))
        }
        (Some((b'?', rest)), Some((_, name))) => matches(rest, name),
        (Some((letter, rest)), Some((found, name))) => letter == found && matches(rest, name),
        _ => false,
    }
}

/// Reads CRI-O's configuration: the main file, then every file of the directory, of which the last decides.
fn crio_directories(root: &Root, preset: &Preset) -> Result<Option<Directories>, String> {
    let mut paths = vec![PathBuf::from(CRIO)];
    for name in list(root, Path::new(CRIO_MORE))? {
        paths.push(Path::new(CRIO_MORE).join(name));
    }
    let (mut plugins, mut networks) = (None, None);
    let mut is_there = false;
    for path in paths {
        let Some(text) = read_text(root, &path)? else { continue };
        is_there = true;
        let document = parse(root, &path, &text)?;
        let failed = |why: String| format!("{}: {why}", root.shown(&path).display());
        if let Some(network) = table_at(document.get_ref(), &["crio", "network"]) {
            let list = strings(network, "plugin_dirs").map_err(failed)?;
            let dir = list.into_iter().find(|dir| !dir.is_empty());
            if let Some(dir) = dir.or(string(network, "plugin_dir").map_err(failed)?) {
                plugins = Some(dir);
            }
            networks = string(network, "network_dir").map_err(failed)?.or(networks);
        }
    }
    Ok(is_there.then(|| Directories::new(plugins, networks, preset)))
}

/// The names in a directory, sorted; none if it does not exist.
fn list(root: &Root, path: &Path) -> Result<Vec<String>, String> {
    let Some(directory) = root.directory(path, Absent::Report, Trust::GroupToo)? else {
        return Ok(Vec::new());
    };
    let mut names = Vec::new();
    for name in directory.list().map_err(|error| error.to_string())? {
        if let Ok(name) = name.into_string() {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

fn read_text(root: &Root, path: &Path) -> Result<Option<String>, String> {
    let Some(content) = root.read(path, LONGEST)? else { return Ok(None) };
    let text = String::from_utf8(content);
    text.map(Some).map_err(|_| format!("read {}: it is not UTF-8", root.shown(path).display()))
}

fn parse<'t>(root: &Root, path: &Path, text: &'t str) -> Result<Spanned<DeTable<'t>>, String> {
    DeTable::parse(text).map_err(|error| {
        let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].lines().count().max(1));
        format!(
            "{}:{line}: {}; hint: --plugin-dir and --conf-dir need no runtime's configuration",
            root.shown(path).display(),
            error.message()
        )
    })
}

fn table_at<'t, 'a>(table: &'t DeTable<'a>, path: &[&str]) -> Option<&'t DeTable<'a>> {
    let mut here = table;
    for key in path {
        here = here.get(*key)?.get_ref().as_table()?;
    }
    Some(here)
}

/// A string; an empty one is as good as none.
fn string(table: &DeTable<'_>, key: &str) -> Result<Option<String>, String> {
    match table.get(key).map(Spanned::get_ref) {
        None => Ok(None),
        Some(DeValue::String(text)) if text.is_empty() => Ok(None),
        Some(DeValue::String(text)) => Ok(Some(text.to_string())),
        Some(other) => Err(format!("{key} is of type {}, and should be a string", other.type_str())),
    }
}

fn strings(table: &DeTable<'_>, key: &str) -> Result<Vec<String>, String> {
    let values = match table.get(key).map(Spanned::get_ref) {
        None => return Ok(Vec::new()),
        Some(DeValue::Array(values)) => values,
        Some(other) => return Err(format!("{key} is of type {}, and should be a list", other.type_str())),
    };
    let mut found = Vec::new();
    for value in values {
        let text = value.get_ref().as_str().ok_or_else(|| format!("{key} should be a list of strings"))?;
        found.push(text.to_owned());
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::presets;

    fn node(files: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, content) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, content).unwrap();
        }
        dir
    }

    fn found(files: &[(&str, &str)], preset: &str) -> Result<Vec<(String, String)>, String> {
        let dir = node(files);
        let root = Root::open(dir.path(), None).unwrap();
        let found = find(&root, presets::by_name(preset).unwrap())?;
        let text = |path: &Path| path.display().to_string();
        Ok(found.iter().map(|one| (text(&one.plugins), text(&one.networks))).collect())
    }

    fn pair(plugins: &str, networks: &str) -> Vec<(String, String)> {
        vec![(plugins.into(), networks.into())]
    }

    const MAIN: &str = "etc/containerd/config.toml";

    #[test]
    fn every_version_of_containerds_configuration_is_read() {
        let usual = pair("/opt/cni/bin", "/etc/cni/net.d");
        assert_eq!(found(&[], "default").unwrap(), usual);
        assert_eq!(found(&[(MAIN, "version = 2\n")], "default").unwrap(), usual);
        for text in [
            "[plugins.cri.cni]\nbin_dir = '/b'\nconf_dir = '/n'\n",
            "version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '/b'\nconf_dir = '/n'\n",
            "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dir = '/b'\nconf_dir = '/n'\n",
            "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['/b', '/c']\nconf_dir = '/n'\n",
            "version = 3\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '/x'\n\
             [plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['/b']\nbin_dir = ''\nconf_dir = '/n'\n",
        ] {
            assert_eq!(found(&[(MAIN, text)], "default").unwrap(), pair("/b", "/n"), "{text}");
        }
    }

    #[test]
    fn imports_override_the_main_file_in_their_order() {
        let main = "version = 2\nimports = ['conf.d/*.toml', '/etc/last.toml']\n\
                    [plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '/main'\nconf_dir = '/n'\n";
        let of = |dir: &str| format!("version = 2\n[plugins.'io.containerd.grpc.v1.cri'.cni]\nbin_dir = '{dir}'\n");
        let files = [
            (MAIN, main),
            ("etc/containerd/conf.d/20.toml", &of("/second")),
            ("etc/containerd/conf.d/10.toml", &of("/first")),
            ("etc/containerd/conf.d/90.bak", &of("/not-read")),
            ("etc/last.toml", "imports = ['containerd/config.toml']\n"),
        ];
        assert_eq!(found(&files, "default").unwrap(), pair("/second", "/n"));
        let error = found(&files[..1], "default").unwrap_err();
        assert!(error.contains("etc/last.toml: it is imported"), "{error}");
    }

    #[test]
    fn the_last_file_of_crio_decides() {
        let main = "[crio.network]\nplugin_dirs = ['/usr/libexec/cni', '/opt/cni/bin']\nnetwork_dir = '/n'\n";
        let files = [
            ("etc/crio/crio.conf", main),
            ("etc/crio/crio.conf.d/00-default", "[crio.network]\nplugin_dirs = ['/var/lib/cni/bin']\n"),
            ("etc/crio/crio.conf.d/10-other.conf", "[crio.runtime]\n"),
        ];
        assert_eq!(found(&files, "default").unwrap(), pair("/var/lib/cni/bin", "/n"));
        let both = [files[0], (MAIN, "version = 2\n")];
        assert_eq!(found(&both, "default").unwrap().len(), 2);
        let disabled = [files[0], (MAIN, "disabled_plugins = ['cri']\n")];
        assert_eq!(found(&disabled, "default").unwrap(), pair("/usr/libexec/cni", "/n"));
    }

    #[test]
    fn a_preset_has_its_own_configuration_file() {
        let k3s = "var/lib/rancher/k3s/agent/etc/containerd/config.toml";
        assert_eq!(found(&[(MAIN, "broken")], "k3s").unwrap()[0].0, "/var/lib/rancher/k3s/data/cni");
        let text = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.cni]\nbin_dirs = ['/elsewhere']\n";
        assert_eq!(found(&[(k3s, text)], "k3s").unwrap()[0].0, "/elsewhere");
    }

    #[test]
    fn what_cannot_be_read_is_an_error_with_the_files_name() {
        for (path, text, says) in [
            (MAIN, "version = 2\nplugins = [", "etc/containerd/config.toml:2:"),
            (MAIN, "version = 9\n", "version 9 of containerd's configuration"),
            (MAIN, "[plugins.cri.cni]\nbin_dir = 7\n", "bin_dir is of type integer"),
            (MAIN, "[plugins.cri.cni]\nbin_dir = 'opt'\n", "directory opt is not an absolute path"),
            (MAIN, "imports = ['*/x.toml']\n", "pattern that is not supported"),
            ("etc/crio/crio.conf.d/x", "[crio", "etc/crio/crio.conf.d/x:1:"),
        ] {
            let error = found(&[(path, text)], "default").unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }

    #[test]
    fn a_link_in_the_node_leads_to_the_node() {
        let dir = node(&[("usr/share/c.toml", "[plugins.cri.cni]\nbin_dir = '/b'\n")]);
        std::fs::create_dir_all(dir.path().join("etc/containerd")).unwrap();
        std::os::unix::fs::symlink("/../../usr/share/c.toml", dir.path().join(MAIN)).unwrap();
        let root = Root::open(dir.path(), None).unwrap();
        let preset = presets::by_name("default").unwrap();
        assert_eq!(find(&root, preset).unwrap()[0].plugins, Path::new("/b"));
        std::fs::remove_file(dir.path().join(MAIN)).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", dir.path().join(MAIN)).unwrap();
        assert_eq!(find(&root, preset).unwrap()[0].plugins, Path::new(PLUGINS), "the host's file is not there");
    }
}
