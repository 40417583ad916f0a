//! The rules of this repository: dependencies between crates, licences, words, and files.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]
#![expect(clippy::disallowed_methods, reason = "it asks cargo about the workspace")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use cnikit_testkit::Host;
use serde_json::{Value, json};

/// The rows of the crates: a crate depends on crates of smaller rows only. Every other plugin is in row 7, every example for
/// authors in row 8.
const ROWS: [(&str, u8); 33] = [
    ("crates/memory", 0),
    ("crates/types", 0),
    ("crates/netns", 0),
    ("crates/store", 0),
    ("crates/process", 0),
    ("crates/netlink", 1),
    ("crates/tun", 1),
    ("crates/invoke", 1),
    ("crates/firewalld", 1),
    ("crates/launcher", 1),
    ("crates/reservations", 1),
    ("crates/nftables", 2),
    ("crates/conntrack", 2),
    ("crates/dhcp", 2),
    ("crates/pool", 2),
    ("crates/skel", 2),
    ("crates/libcni", 2),
    ("crates/dhcp-daemon", 3),
    ("crates/installer", 3),
    ("crates/plan", 3),
    ("crates/pool-protocol", 3),
    ("crates/testing", 3),
    ("crates/iptables", 3),
    ("crates/agent", 4),
    ("crates/resources", 4),
    ("crates/rules", 5),
    ("crates/cnikit", 6),
    ("plugins/all", 8),
    ("crates/cnitool", 8),
    ("crates/testkit", DEV),
    ("crates/conformance", DEV),
    ("crates/bench", DEV),
    ("crates/fuzz", DEV),
];

/// The row of crates that only tests depend on.
const DEV: u8 = 9;

/// Crates that other projects can use: the first page of each has an example.
const PUBLIC: [&str; 22] = [
    "cnikit",
    "dhcp",
    "dhcp-daemon",
    "firewalld",
    "invoke",
    "libcni",
    "netlink",
    "netns",
    "plan",
    "process",
    "reservations",
    "resources",
    "skel",
    "store",
    "testing",
    "testkit",
    "tun",
    "types",
    "conntrack",
    "iptables",
    "nftables",
    "rules",
];

/// The files and folders at the top.
const TOP: [&str; 21] = [
    ".cargo",
    ".ci",
    ".git",
    ".gitignore",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "Cargo.lock",
    "Cargo.toml",
    "LICENSE",
    "README.md",
    "SECURITY.md",
    "clippy.toml",
    "crates",
    "deny.toml",
    "docs",
    "plugins",
    "rust-toolchain.toml",
    "rustfmt.toml",
    "scripts",
    "tests",
];

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: impl AsRef<Path>) -> String {
    let path = top().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// `cargo metadata` for the target that these tests were built for.
fn metadata() -> &'static Value {
    static METADATA: OnceLock<Value> = OnceLock::new();
    METADATA.get_or_init(read_metadata)
}

fn read_metadata() -> Value {
    let target = cnikit_tests::built().parent().unwrap().file_name().unwrap().to_owned();
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(top()).args(["metadata", "--format-version", "1", "--locked", "--offline"]);
    let said = cargo.arg("--filter-platform").arg(target).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    serde_json::from_slice(&said.stdout).unwrap()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().unwrap()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap()
}

/// A package's folder, relative to the top; `None` if it is not one of ours.
fn folder(package: &Value) -> Option<String> {
    let manifest = Path::new(text(&package["manifest_path"]));
    let ours = manifest.parent()?.strip_prefix(top()).ok()?;
    Some(ours.display().to_string()).filter(|_| package["source"].is_null())
}

fn ours() -> BTreeMap<String, &'static Value> {
    let packages = list(&metadata()["packages"]).iter();
    packages.filter_map(|package| Some((folder(package)?, package))).collect()
}

fn row(folder: &str) -> u8 {
    for (listed, row) in ROWS {
        if listed == folder {
            return row;
        }
    }
    match folder.split_once('/') {
        Some(("plugins", name)) if name.starts_with("examples/") => 8,
        Some(("plugins", _)) => 7,
        None if folder == "tests" => DEV,
        _ => panic!("{folder} is in no row: add it to ROWS in this file and to the table of ARCHITECTURE.md"),
    }
}

/// Whether a package is an example for authors: it is not installed, and shows its code in the guide.
fn is_example(folder: &str) -> bool {
    folder.starts_with("plugins/examples/")
}

/// The folders of our crates that a package depends on, except for its tests only.
fn internal_dependencies(package: &Value) -> Vec<String> {
    let edges = list(&package["dependencies"]).iter().filter(|edge| edge["kind"] != "dev");
    let paths = edges.filter_map(|edge| edge["path"].as_str());
    paths.map(|path| Path::new(path).strip_prefix(top()).unwrap().display().to_string()).collect()
}

#[test]
fn an_arrow_leads_only_to_a_smaller_row() {
    let mut edges = 0;
    for (from, package) in ours() {
        for to in internal_dependencies(package) {
            let between_tests = ["tests", "crates/conformance"].contains(&from.as_str()) && to == "crates/testkit";
            assert!(
                row(&to) < row(&from) || between_tests,
                "{from} (row {}) may not know {to} (row {})",
                row(&from),
                row(&to)
            );
            edges += 1;
        }
    }
    assert!(edges > 30, "cargo metadata named only {edges} edges");
}

#[test]
fn the_test_kit_depends_on_no_crate_above_the_shapes() {
    for to in internal_dependencies(ours()["crates/testkit"]) {
        assert!(row(&to) < 7, "crates/testkit may not know {to}");
    }
}

#[test]
fn architecture_shows_every_crate_in_its_row() {
    let table = read("ARCHITECTURE.md");
    for folder in ours().keys() {
        let (row, name) = match row(folder) {
            7 => ("7".to_owned(), "plugins/<name>"),
            8 if is_example(folder) => ("8".to_owned(), "plugins/examples/<name>"),
            DEV => ("dev".to_owned(), folder.as_str()),
            row => (row.to_string(), folder.as_str()),
        };
        let shown =
            table.lines().any(|line| line.starts_with(&format!("| {row} |")) && line.contains(&format!("`{name}`")));
        assert!(shown, "the table of ARCHITECTURE.md does not show {name} in row {row}");
    }
    assert!(table.lines().count() <= 150, "ARCHITECTURE.md has more than 150 lines");
}

#[test]
fn the_readme_names_every_plugin() {
    let readme = read("README.md");
    for folder in ours().keys().filter(|folder| row(folder) == 7) {
        let name = folder.trim_start_matches("plugins/");
        let is_row =
            |line: &str| line.contains(&format!("| `{name}` |")) && line.contains(&format!("](docs/{name}.md)"));
        assert!(readme.lines().any(is_row), "README.md's table of plugins does not name {name} with its page");
    }
}

#[test]
fn the_readme_names_the_version_and_the_oldest_rust() {
    let manifest = read("Cargo.toml");
    let value = |key: &str| {
        let line = manifest.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap();
        line.split('"').nth(1).unwrap().to_owned()
    };
    let readme = read("README.md");
    for text in [format!("Version {}.", value("version")), format!("CNI bridge plugin cnikit-{}", value("version"))] {
        assert!(readme.contains(&text), "README.md does not say {text:?}");
    }
    let newest = format!("## {} (", value("version"));
    let changelog = read("CHANGELOG.md");
    let section = changelog.lines().find(|line| line.starts_with("## ")).unwrap();
    assert!(section.starts_with(&newest), "the newest section of CHANGELOG.md is {section:?}, not {newest:?}");
    for page in ["README.md", "docs/migrate.md"] {
        let printed = read(page);
        for (position, _) in printed.match_indices("bridge plugin cnikit-") {
            let rest = &printed[position + "bridge plugin ".len()..];
            assert!(rest.starts_with(&format!("cnikit-{}", value("version"))), "{page} has another version");
        }
    }
    for page in ["README.md", "CONTRIBUTING.md"] {
        let text = format!("Rust {} or newer", value("rust-version"));
        assert!(read(page).contains(&text), "{page} does not say {text:?}");
    }
}

/// The README refers to no other maker for a plugin that this binary has.
#[test]
fn the_readme_asks_for_no_plugin_of_another_maker_that_is_here() {
    let text = read("README.md");
    let words: Vec<&str> = text.split_whitespace().collect();
    let readme = words.join(" ");
    let lacking = |line: &&str| line.starts_with("| not for |") || line.starts_with("- You need ");
    let lacking: Vec<&str> = text.lines().filter(lacking).collect();
    assert_eq!(lacking.len(), 2, "README.md says twice which plugins are missing");
    let lacking = lacking.join(" ");
    for folder in ours().keys().filter(|folder| row(folder) == 7) {
        let name = folder.trim_start_matches("plugins/");
        for maker in ["the reference's", "upstream's", "the upstream"] {
            assert!(!readme.contains(&format!("{maker} `{name}`")), "README asks for {maker} {name}");
        }
        assert!(!lacking.contains(&format!("`{name}`")), "README lists {name} among what is not here");
    }
}

/// The strings of a list in deny.toml. The lists are there only, for this test and for cargo-deny.
fn listed(opening: &str) -> BTreeSet<String> {
    let file = read("deny.toml");
    let (_, rest) = file.split_once(opening).unwrap_or_else(|| panic!("deny.toml has no {opening:?}"));
    let (list, _) = rest.split_once("\n]").unwrap();
    list.split('"').skip(1).step_by(2).map(str::to_owned).collect()
}

/// Pieces of an SPDX expression between a word, brackets being of one piece.
fn pieces<'a>(expression: &'a str, word: &str) -> Vec<&'a str> {
    let mut depth = 0;
    let mut start = 0;
    let mut found = Vec::new();
    for (at, letter) in expression.char_indices() {
        depth += i32::from(letter == '(') - i32::from(letter == ')');
        if depth == 0 && at >= start && expression[at..].starts_with(word) {
            found.push(expression[start..at].trim());
            start = at + word.len();
        }
    }
    found.push(expression[start..].trim());
    found
}

/// Whether all parts of one alternative of the expression are allowed. A slash is an old way to write `OR`.
fn is_permissive(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let expression = expression.replace('/', " OR ");
    if let Some(inside) =
        expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')).filter(|rest| !rest.contains(')'))
    {
        return is_permissive(inside, allowed);
    }
    let either = pieces(&expression, " OR ");
    let all = pieces(&expression, " AND ");
    match (either.len(), all.len()) {
        (1, 1) => allowed.contains(expression.as_str()),
        (1, _) => all.iter().all(|piece| is_permissive(piece, allowed)),
        _ => either.iter().any(|piece| is_permissive(piece, allowed)),
    }
}

#[test]
fn every_licence_in_the_tree_is_permissive() {
    let allowed = listed("allow = [");
    assert!(allowed.contains("Apache-2.0") && allowed.iter().all(|one| !one.contains("GPL")), "{allowed:?}");
    let packages = list(&metadata()["packages"]);
    assert!(packages.len() > 30, "cargo metadata named only {} packages", packages.len());
    for package in packages {
        let licence = package["license"].as_str().unwrap_or("none");
        assert!(is_permissive(licence, &allowed), "{}: {licence}", text(&package["name"]));
    }
}

/// The identifiers of CVEs in a text.
fn cves(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for rest in text.split("CVE-").skip(1) {
        let number: String = rest.chars().take_while(|letter| letter.is_ascii_digit() || *letter == '-').collect();
        if !number.is_empty() {
            names.insert(format!("CVE-{number}"));
        }
    }
    names
}

#[test]
fn every_cve_that_the_adversary_suite_tests_is_explained() {
    let security = read("SECURITY.md");
    let table = security.split_once("## CVEs of upstream").unwrap().1.split_once("\n## ").unwrap().0;
    let rows = read("tests/tests/adversary/rows.rs");
    let explained: BTreeSet<String> = cves(table);
    for name in cves(&rows) {
        assert!(explained.contains(&name), "SECURITY.md does not explain {name}");
    }
    for name in explained {
        assert!(rows.contains(&name) || security.matches(&name).count() > 1, "nothing tests {name}");
    }
}

#[test]
fn licence_expressions_have_the_meaning_of_spdx() {
    let allowed = ["MIT", "Apache-2.0", "Unicode-3.0"].map(str::to_owned).into();
    for good in [
        "MIT",
        "MIT/Apache-2.0",
        "GPL-2.0 OR MIT",
        "(MIT OR Apache-2.0) AND Unicode-3.0",
        "MIT AND Apache-2.0",
        "GPL-2.0 OR (MIT AND Apache-2.0)",
    ] {
        assert!(is_permissive(good, &allowed), "{good}");
    }
    for bad in [
        "GPL-2.0",
        "MIT AND GPL-2.0",
        "(MIT OR Apache-2.0) AND GPL-2.0",
        "GPL-2.0 AND (MIT OR Apache-2.0)",
        "none",
        "LGPL-2.1 OR GPL-3.0",
    ] {
        assert!(!is_permissive(bad, &allowed), "{bad}");
    }
}

/// Names of everything that is built into a package, at any depth.
fn tree(id: &str) -> BTreeSet<String> {
    let nodes = list(&metadata()["resolve"]["nodes"]);
    let mut seen = BTreeSet::new();
    let mut next = vec![id.to_owned()];
    while let Some(id) = next.pop() {
        if !seen.insert(id.clone()) {
            continue;
        }
        let node = nodes.iter().find(|node| node["id"] == id).unwrap();
        let built_in = |edge: &&Value| list(&edge["dep_kinds"]).iter().any(|kind| kind["kind"] != "dev");
        next.extend(list(&node["deps"]).iter().filter(built_in).map(|edge| text(&edge["pkg"]).to_owned()));
    }
    let packages = list(&metadata()["packages"]).iter().filter(|package| seen.contains(text(&package["id"])));
    packages.map(|package| text(&package["name"]).to_owned()).collect()
}

/// The crates that are denied in deny.toml, each a line that begins with its name.
fn denied() -> BTreeSet<String> {
    let file = read("deny.toml");
    let (_, list) = file.split_once("\ndeny = [").unwrap();
    let names = list.lines().filter_map(|line| line.trim_start().strip_prefix("{ name = \"")?.split('"').next());
    names.map(str::to_owned).collect()
}

/// The crate that alone may have an async runtime and TLS.
const ASYNC: &str = "crates/agent";

#[test]
fn no_async_runtime_and_no_tls_is_in_any_crate_but_the_agent() {
    let denied = denied();
    for name in ["tokio", "async-io", "smol", "rustls", "ring", "native-tls", "openssl-sys", "aws-lc-sys"] {
        assert!(denied.contains(name), "deny.toml does not deny {name}: {denied:?}");
    }
    let packages = ours();
    for (folder, package) in &packages {
        let tree = tree(text(&package["id"]));
        let found: Vec<_> = tree.intersection(&denied).collect();
        if folder == ASYNC {
            assert_eq!(found, ["ring", "rustls", "tokio"], "{folder}");
            continue;
        }
        assert!(found.is_empty(), "{folder} has {found:?} built in");
        let to: Vec<&Value> =
            list(&package["dependencies"]).iter().filter(|edge| edge["name"] == "cnikit-agent").collect();
        assert!(to.is_empty(), "{folder} depends on {ASYNC}");
        assert!(tree.len() > 5 || !folder.starts_with("plugins/"), "{folder} is made of {tree:?} only");
    }
    assert!(packages.contains_key(ASYNC) && packages.len() > 40, "{:?}", packages.keys());
}

/// A plain `cargo build` builds all that a plugin's author needs, and no async runtime.
#[test]
fn the_agent_alone_is_no_default_member() {
    let default = list(&metadata()["workspace_default_members"]);
    for (folder, package) in ours() {
        assert_eq!(default.contains(&package["id"]), folder != ASYNC, "{folder}");
    }
}

/// The tables of crates in `docs/stability.md` have short names: `-plan` is `cnikit-plan`.
#[test]
fn the_promise_of_stability_names_each_published_crate() {
    let page = read("docs/stability.md");
    let (_, section) = page.split_once("## The SDK").unwrap();
    let named: BTreeSet<String> = section
        .lines()
        .filter(|line| line.starts_with("| `cnikit"))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .map(|name| if name.starts_with('-') { format!("cnikit{name}") } else { name.to_owned() })
        .collect();
    let published = ours().into_values().filter(|package| package["publish"].is_null());
    assert_eq!(named, published.map(|package| text(&package["name"]).to_owned()).collect());
}

/// What is compiled for a plugin that depends on `cnikit` with these features.
fn compiled_with(features: &str) -> BTreeSet<String> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.current_dir(top()).args([
        "tree",
        "--locked",
        "--offline",
        "--edges=normal",
        "--prefix=none",
        "--package=cnikit",
    ]);
    let printed = cargo.args(["--format={lib}", "--features", features]).output().unwrap();
    assert!(printed.status.success(), "{}", String::from_utf8_lossy(&printed.stderr));
    let lines = String::from_utf8(printed.stdout).unwrap();
    lines.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn no_item_is_shown_in_a_public_module_and_at_the_root() {
    let mut modules = 0;
    for file in sources("crates").into_iter().filter(|file| file.ends_with("src/lib.rs")) {
        let content = read(&file);
        let public: Vec<&str> = content.lines().filter_map(public_module).collect();
        let is_shown_twice = |line: &&str| re_exported(line).is_some_and(|(from, _)| public.contains(&from));
        let twice: Vec<&str> = content.lines().filter(is_shown_twice).collect();
        assert_eq!(twice, Vec::<&str>::new(), "{}: the module is public too", file.display());
        modules += public.len();
    }
    assert!(modules > 10, "only {modules} public modules were found");
}

/// The public module that a line declares, in a file of its own.
fn public_module(line: &str) -> Option<&str> {
    line.strip_prefix("pub mod ")?.strip_suffix(';')
}

/// The crates that only some plugins need, each with the feature of `cnikit` that brings it.
const OPTIONAL: [(&str, &str); 2] = [("cnikit_firewalld", "firewall"), ("cnikit_conntrack", "portmap")];

#[test]
fn a_plugin_compiles_only_what_it_asks_for() {
    let least = compiled_with("");
    assert!(least.contains("cnikit_rules") && least.len() > 10, "{least:?}");
    for (_, chosen) in OPTIONAL {
        let compiled = compiled_with(chosen);
        let added: Vec<_> = compiled.difference(&least).map(String::as_str).collect();
        let expected: Vec<_> =
            OPTIONAL.iter().filter(|(_, feature)| *feature == chosen).map(|(name, _)| *name).collect();
        assert_eq!(added, expected, "by the feature {chosen}");
    }
}

#[test]
fn no_plugin_has_the_tests_namespaces_built_in() {
    let kit = [tree(text(&ours()["crates/testkit"]["id"])), tree(text(&ours()["crates/testing"]["id"]))];
    assert!(kit.iter().all(|tree| tree.contains("cnikit-testing")), "{kit:?}");
    for (folder, package) in ours().into_iter().filter(|(folder, _)| folder.starts_with("plugins/")) {
        assert!(!tree(text(&package["id"])).contains("cnikit-testing"), "{folder} has the feature `testing`");
    }
}

/// Every Rust file below a folder.
fn sources(folder: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(top().join(folder)).unwrap() {
        let path = entry.unwrap().path();
        let below = path.strip_prefix(top()).unwrap().to_owned();
        if path.is_dir() {
            found.extend(sources(&below.display().to_string()));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(below);
        }
    }
    found
}

/// Whether the line has this word. Underscores separate words. The name of this project and of a bridge (`cni0`) do not count.
fn mentions(line: &str, word: &str) -> bool {
    let plain = line.to_lowercase().replace("cnikit", "");
    plain.split(|c: char| !c.is_alphanumeric()).any(|one| one == word)
}

#[test]
fn general_crates_do_not_mention_cni() {
    for folder in ["netns", "store", "process", "netlink", "nftables", "iptables", "conntrack", "dhcp"] {
        for file in sources(&format!("crates/{folder}/src")) {
            let content = read(&file);
            let line = content.lines().find(|line| mentions(line, "cni"));
            assert_eq!(line, None, "{}", file.display());
        }
    }
    assert!(
        mentions("a CNI plugin", "cni")
            && mentions("cni_plugins", "cni")
            && !mentions("use cnikit_netns::picnic;", "cni")
    );
}

#[test]
fn every_package_takes_the_lints_of_the_workspace() {
    for folder in ours().keys() {
        let manifest = read(format!("{folder}/Cargo.toml"));
        assert!(manifest.contains("[lints]\nworkspace = true\n"), "{folder} does not");
    }
}

/// An example that rustdoc compiles, and runs unless it needs privileges.
#[test]
fn the_first_page_of_a_public_crate_has_an_example() {
    let opens_example = |line: &str| ["//! ```", "//! ```no_run", "//! ```rust,no_run"].contains(&line);
    for name in PUBLIC {
        let page = read(format!("crates/{name}/src/lib.rs"));
        assert!(page.lines().any(opens_example), "crates/{name}/src/lib.rs: its first page has no example");
    }
}

#[test]
fn nothing_is_unfinished_and_every_exception_has_its_reason() {
    let banned =
        [concat!("to", "do!("), concat!("unimplemen", "ted!("), concat!("#[al", "low("), concat!("#![al", "low(")];
    let files = ["crates", "plugins", "tests"].map(sources).concat();
    assert!(files.len() > 100, "only {} files were found", files.len());
    for file in files {
        let content = read(&file);
        for word in banned {
            assert!(!content.contains(word), "{} has {word}", file.display());
        }
    }
}

/// The longest line of a comment, in columns, because rustfmt does not wrap comments: 120 for the text, and 12 for what precedes
/// it.
const WIDEST: usize = 132;

#[test]
fn no_line_of_comment_is_wider_than_a_screen() {
    for file in ["crates", "plugins", "tests"].map(sources).concat() {
        let content = read(&file);
        let row = |line: &str| line.starts_with("//! |") || line.starts_with("/// |");
        let comments = content.lines().filter(|line| line.trim_start().starts_with("//") && !row(line));
        let wide: Vec<&str> = comments.filter(|line| line.chars().count() > WIDEST).collect();
        assert_eq!(wide, Vec::<&str>::new(), "{}", file.display());
    }
}

/// Every crate has its own error type, as is usual: `cnikit_netlink::Error`.
const EACH_CRATES_OWN: [&str; 2] = ["Error", "Result"];

/// The public types that a file declares, and those of crates that are not ours that it re-exports, by their names.
fn public_types<'a>(content: &'a str, foreign: &BTreeSet<String>) -> Vec<&'a str> {
    let mut found = Vec::new();
    for line in content.lines() {
        found.extend(public_type(line));
        if let Some((from, names)) = re_exported(line)
            && foreign.contains(from)
        {
            found
                .extend(names.trim_matches(['{', '}']).split(", ").filter(|name| name.starts_with(char::is_uppercase)));
        }
    }
    found
}

/// The crate or module that a line re-exports from, and what.
fn re_exported(line: &str) -> Option<(&str, &str)> {
    line.trim_start().strip_prefix("pub use ")?.strip_suffix(';')?.split_once("::")
}

/// The names, in paths, of the packages that are not ours.
fn foreign_crates() -> BTreeSet<String> {
    let packages = list(&metadata()["packages"]).iter();
    packages
        .filter(|package| folder(package).is_none())
        .map(|package| text(&package["name"]).replace('-', "_"))
        .collect()
}

/// The public type that a line declares.
fn public_type(line: &str) -> Option<&str> {
    let declared = line.trim_start().strip_prefix("pub ")?;
    let (keyword, rest) = declared.split_once(' ')?;
    if !["struct", "enum", "union", "trait", "type"].contains(&keyword) {
        return None;
    }
    rest.split(|c: char| !c.is_alphanumeric() && c != '_').next()
}

#[test]
fn no_two_public_types_share_a_name() {
    let foreign = foreign_crates();
    assert!(foreign.contains("serde_json") && !foreign.contains("cnikit"), "{foreign:?}");
    let mut first_in: BTreeMap<String, PathBuf> = BTreeMap::new();
    for file in ["crates", "plugins", "tests/src"].map(sources).concat() {
        for name in public_types(&read(&file), &foreign) {
            if EACH_CRATES_OWN.contains(&name) {
                continue;
            }
            if let Some(earlier) = first_in.insert(name.to_owned(), file.clone()) {
                panic!("{name} is declared in {} and in {}", earlier.display(), file.display());
            }
        }
    }
    assert!(first_in.len() > 200, "only {} public types were found", first_in.len());
    let declared = "pub struct A<T>;\n    pub trait B: C {\nstruct D;\npub(crate) enum E {}\npub fn f()\n\
                    pub use serde_json::{F, g};\npub use serde_json::H;\npub use module::I;";
    assert_eq!(public_types(declared, &foreign), ["A", "B", "F", "H"]);
}

#[test]
fn every_error_is_an_error_of_the_standard_library() {
    let mut found = 0;
    for file in sources("crates") {
        let content = read(&file);
        let declares = |keyword: &str| content.lines().any(|line| line == format!("pub {keyword} Error {{"));
        if !declares("struct") && !declares("enum") {
            continue;
        }
        // That of skel is what `?` makes of all others.
        let is_error = content.contains("\nimpl std::error::Error for Error {");
        assert!(is_error || file.ends_with("crates/skel/src/error.rs"), "{}", file.display());
        found += 1;
    }
    assert!(found > 10, "only {found} errors were found");
}

#[test]
fn every_kind_of_resource_is_in_the_list() {
    let list = read("crates/resources/src/lib.rs");
    for file in sources("crates/resources/src") {
        let resources = read(&file).matches("\nimpl Resource for ").count();
        let module = if file.ends_with("mod.rs") { file.parent().unwrap() } else { &file };
        let kind = format!(" {}::KIND,", module.file_stem().unwrap().display());
        assert_eq!(
            list.contains(&kind),
            resources == 1,
            "{}: one resource and one kind a file, in ALL",
            file.display()
        );
    }
}

#[test]
fn the_top_directory_has_only_listed_entries() {
    let entries = std::fs::read_dir(top()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let strange: Vec<_> = entries.filter(|name| !TOP.contains(&name.as_str()) && name != "target").collect();
    assert!(strange.is_empty(), "{strange:?}");
}

#[test]
fn the_manifests_name_the_image_of_this_version() {
    for name in ["install", "uninstall"] {
        let manifest = read(format!("plugins/all/kubernetes/{name}/kustomization.yaml"));
        assert!(manifest.contains(&format!("    newTag: {}\n", env!("CARGO_PKG_VERSION"))), "{name}");
    }
}

#[test]
fn a_plugins_main_is_one_statement() {
    for folder in ours().keys().filter(|folder| folder.starts_with("plugins/") && !is_example(folder)) {
        let main = read(format!("{folder}/src/main.rs"));
        assert_eq!(main.matches("fn ").count(), 1, "{folder}: a function beside main");
        let (_, body) = main.split_once("fn main").unwrap();
        let (_, body) = body.split_once('{').unwrap();
        let (body, rest) = body.rsplit_once('}').unwrap();
        assert!(rest.trim().is_empty() && !body.contains(';') && !body.trim().is_empty(), "{folder}: {body}");
    }
}

/// The fenced blocks of the README in a language.
fn blocks(language: &str) -> Vec<String> {
    let readme = read("README.md");
    let opening = format!("```{language}\n");
    readme.split(&opening).skip(1).map(|rest| rest.split_once("```").unwrap().0.to_owned()).collect()
}

#[test]
fn the_readmes_network_works_as_pasted() {
    let networks: Vec<Value> = blocks("json").iter().map(|block| serde_json::from_str(block).unwrap()).collect();
    let networks: Vec<Value> = networks.into_iter().filter(|block| block.get("plugins").is_some()).collect();
    assert!(!networks.is_empty(), "README.md shows no network");
    networks.into_iter().for_each(two_containers_talk);
}

/// Two containers on a pasted network, with nothing changed but where the leases are.
fn two_containers_talk(mut network: Value) {
    let host = Host::new();
    let alice = Host::new().container();
    let bob = Host::new().container();
    network["plugins"][0]["ipam"]["dataDir"] = json!(host.dir().join("leases"));
    std::fs::write(host.dir().join("10-cnikit.conflist"), network.to_string()).unwrap();
    let name = text(&network["name"]);
    let tool = |verb: &str, path: String| {
        let dir = host.dir().display();
        let bin = cnikit_tests::bin().display();
        let tool = cnikit_tests::program("cnitool");
        let env = format!("CNI_PATH={bin} NETCONFPATH={dir} CNI_CACHE_DIR={dir}/cache");
        host.sh(&format!("{env} {} {verb} {name} {path}", tool.display()))
    };
    tool("add", alice.path());
    let result: Value = serde_json::from_str(&tool("add", bob.path())).unwrap();
    let addresses: Vec<&str> = list(&result["ips"]).iter().map(|ip| text(&ip["address"])).collect();
    assert_eq!(addresses.len(), 2, "{addresses:?}");
    for address in addresses {
        let (address, _) = address.split_once('/').unwrap();
        assert!(alice.reaches(address), "alice does not reach bob at {address}");
    }
    for verb in ["check", "del"] {
        tool(verb, alice.path());
        tool(verb, bob.path());
    }
    assert!(!host.sh("ip -o link").contains("veth"));
}

#[test]
fn the_readmes_dry_run_works_as_pasted() {
    let lines = blocks("sh").into_iter().find(|block| block.contains("CNI_COMMAND=PLAN"));
    let line =
        lines.expect("README.md shows no dry run").replace("/opt/cni/bin", &cnikit_tests::bin().display().to_string());
    let plan: Value = serde_json::from_str(&Host::new().sh(&line)).unwrap();
    assert!(list(&plan["plan"]).len() > 3, "{plan}");
}
