//! The pages in `docs/` are correct: their network lists work, their keys are the plugins' own, their links have targets.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

mod keys;

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use cnikit::types::NetConf;
use cnikit::{ChainedPlugin, Delegating, InterfacePlugin, InterfaceShape, Ipam, IpamPlugin, Plugin};
use cnikit_testkit::need::Need;
use cnikit_testkit::{Host, Subject};
use cnikit_tests::docs::{Example, Page, examples, page, pages};
use cnikit_tests::runtimes::{CONFLIST, files};
use cnikit_tests::schema::Schema;
use cnikit_tests::{built, dir_until_exit, subnet_env, write_pool_files};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use keys::Key;

/// The headings that a plugin's page must have, in this order. The paragraph before them says what the plugin does and when to
/// use it.
const HEADINGS: [&str; 9] = [
    "Example",
    "Keys",
    "What it creates",
    "CHECK",
    "DEL",
    "GC and STATUS",
    "Differences from upstream",
    "Limits",
    "Errors",
];

/// A plugin whose page is tested.
struct Documented {
    name: &'static str,
    /// The keys of its structs, and their other sources.
    keys: Vec<Key>,
    /// Parses a configuration, which must be valid, and prints the parsed value.
    read: fn(&Value) -> String,
    /// A small configuration that has each object with keys of its own.
    base: Value,
    /// The key under which the plugin's own stand.
    under: &'static str,
}

fn documented() -> Vec<Documented> {
    let host_local = json!({"type": "host-local", "subnet": "10.1.4.0/24", "ranges": [[{"subnet": "10.1.2.0/23"}]],
        "routes": [{"dst": "10.0.0.0/8"}]});
    let written =
        json!({"type": "static", "addresses": [{"address": "10.1.6.5/24"}], "routes": [{"dst": "10.0.0.0/8"}]});
    let more = ["runtimeConfig.ipRanges", "runtimeConfig.ips", "args.cni.ips"];
    vec![
        Documented {
            name: "loopback",
            keys: keys::of_plugin::<loopback::LoopbackPlugin>(&[], None),
            read: shown::<loopback::LoopbackPlugin>,
            base: json!({}),
            under: "",
        },
        of_interface::<bridge::BridgePlugin>("bridge", json!({"vlanTrunk": [{"minID": 400, "maxID": 409}]})),
        of_interface::<ptp::PtpPlugin>("ptp", json!({"ipam": host_local})),
        of_interface::<macvlan::MacvlanPlugin>("macvlan", json!({})),
        of_interface::<ipvlan::IpvlanPlugin>("ipvlan", json!({})),
        of_interface::<vlan::VlanPlugin>("vlan", json!({"vlanId": 7})),
        of_interface::<dummy::DummyPlugin>("dummy", json!({})),
        of_interface::<tap::TapPlugin>("tap", json!({})),
        // The other keys count before this one, and the runtime's device replaces it.
        of_interface::<host_device::HostDevicePlugin>("host-device", json!({"pciBusID": "0000:00:1d.0"})),
        // A directory for stored settings has an effect only if a setting is changed.
        of_chained::<tuning::TuningPlugin>("tuning", json!({"sysctl": {"net.core.somaxconn": "1"}, "mtu": 1450})),
        of_chained::<firewall::FirewallPlugin>("firewall", json!({})),
        of_chained::<vrf::VrfPlugin>("vrf", json!({"vrfname": "blue"})),
        // Each key makes a difference if there are addresses.
        of_chained::<sbr::SbrPlugin>(
            "sbr",
            json!({"prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.87.0.2/24", "gateway": "10.87.0.1"}]}}),
        ),
        // A rate has an effect only with a burst, and the runtime's only without the configuration's.
        of_chained::<bandwidth::BandwidthPlugin>("bandwidth", rates()),
        // A published port has an effect only if the container has an address.
        of_chained::<portmap::PortmapPlugin>(
            "portmap",
            json!({"runtimeConfig": {"portMappings": [{"hostPort": 80, "containerPort": 80, "protocol": "tcp"}]},
                "prevResult": {"cniVersion": "1.1.0", "ips": [{"address": "10.87.0.2/24"}]}}),
        ),
        of_ipam::<host_local::HostLocalPlugin>("host-local", &more, &host_local),
        Documented {
            name: "flannel",
            keys: keys::of_plugin::<flannel::FlannelPlugin>(&[], None),
            read: shown::<Delegating<flannel::FlannelPlugin>>,
            base: cnikit_tests::flannel().conf,
            under: "",
        },
        // Each key of an option makes a difference beside an option.
        of_ipam::<dhcp::DhcpPlugin>(
            "dhcp",
            &[],
            &json!({"type": "dhcp", "provide": [{"option": "60", "value": "v"}], "request": [{"option": "66"}]}),
        ),
        of_ipam::<pool::PoolPlugin>(
            "pool",
            &["runtimeConfig.ips", "args.cni.ips", "args.cni.pool", "args.cni.sticky"],
            &json!({"type": "pool", "pool": "blue", "allowedPools": ["red"], "routes": [{"dst": "10.0.0.0/8"}], "dataDir": pool_files()}),
        ),
        of_ipam::<static_ipam::StaticPlugin>("static", &["runtimeConfig.ips", "args.cni.ips"], &written),
    ]
}

/// The directory of a node that has pools and blocks.
fn pool_files() -> PathBuf {
    static DIR: LazyLock<PathBuf> = LazyLock::new(|| {
        let dir = dir_until_exit(built());
        write_pool_files(&dir, "testnet");
        dir
    });
    DIR.join("leases")
}

/// Low rates of both directions.
fn rates() -> Value {
    json!({"ingressRate": 8_000, "ingressBurst": 8_000, "egressRate": 8_000, "egressBurst": 8_000})
}

fn of_interface<P: InterfacePlugin + Debug>(name: &'static str, base: Value) -> Documented {
    let sources = InterfaceShape::<P>::SOURCES;
    let args = InterfaceShape::<P>::KNOWN_ARGS;
    Documented { name, keys: keys::of_plugin::<P>(sources, args), read: shown::<P>, base, under: "" }
}

fn of_chained<P: ChainedPlugin + Debug>(name: &'static str, base: Value) -> Documented {
    Documented { name, keys: keys::of_plugin::<P>(P::SOURCES, P::KNOWN_ARGS), read: shown::<P>, base, under: "" }
}

/// `more` are keys outside of `ipam`.
fn of_ipam<P: IpamPlugin + Debug>(name: &'static str, more: &[&str], ipam: &Value) -> Documented {
    let mut keys = keys::of_plugin::<P>(&[], P::KNOWN_ARGS);
    keys.extend(more.iter().copied().map(Key::elsewhere));
    Documented { name, keys, read: shown::<Ipam<P>>, base: json!({"ipam": ipam}), under: "ipam" }
}

fn shown<P: DeserializeOwned + Debug>(conf: &Value) -> String {
    let read = NetConf::parse(conf.to_string().as_bytes()).unwrap().read::<P>();
    format!("{:?}", read.unwrap_or_else(|error| panic!("{conf}: {error}")))
}

/// One line of a page's tables of keys.
#[derive(Debug)]
struct Row {
    key: String,
    kind: String,
    default: String,
    example: String,
}

impl Documented {
    fn page(&self) -> Page {
        page(format!("docs/{}.md", self.name))
    }

    fn rows(&self) -> Vec<Row> {
        let row = |cells: Vec<String>| match &cells[..] {
            [key, kind, default, example, _meaning] => {
                Row { key: code(key).into(), kind: kind.clone(), default: default.clone(), example: example.clone() }
            }
            other => panic!("{}: {other:?} is no line of five cells", self.name),
        };
        tables(&self.page().text, "key").into_iter().map(row).collect()
    }

    /// The path of a key of the page in the configuration.
    fn path<'k>(&'k self, key: &'k str) -> Vec<&'k str> {
        let is_own = !key.starts_with("runtimeConfig.") && !key.starts_with("args.");
        let under = Some(self.under).filter(|under| is_own && !under.is_empty());
        under.into_iter().chain(key.split('.')).collect()
    }

    /// A dry run with this configuration and these `CNI_ARGS`: its report, or the error.
    fn plan(&self, host: &Host, conf: &Value, args: &str) -> Result<String, String> {
        let subject = Subject::new(cnikit_tests::bin(), self.name, conf.clone());
        let output =
            subject.call_raw(host, "PLAN", "c1", "", subject.conf.to_string().as_bytes(), &[("CNI_ARGS", args)]);
        if output.exit == 0 { Ok(output.stdout) } else { Err(output.stdout) }
    }
}

/// The cells of every table whose first column has this heading, without the heading.
fn tables(text: &str, head: &str) -> Vec<Vec<String>> {
    let cells =
        |line: &str| -> Vec<String> { line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect() };
    let mut rows = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.starts_with('|') && cells(line)[0] == head {
            rows.extend(lines.by_ref().skip(1).take_while(|line| line.starts_with('|')).map(cells));
        }
    }
    rows
}

/// The literal text of a cell: between its first two backticks, or all of it.
fn code(cell: &str) -> &str {
    cell.split('`').nth(1).unwrap_or(cell)
}

/// Sets a value at the end of a path. Of every list on the path the first element is used.
fn put(at: &mut Value, path: &[&str], value: Option<&Value>) {
    let [key, below @ ..] = path else {
        *at = value.cloned().unwrap_or_default();
        return;
    };
    let (name, lists) = key.split_once('[').map_or((*key, 0), |(name, lists)| (name, lists.matches(']').count()));
    if below.is_empty() && value.is_none() {
        at.as_object_mut().map(|object| object.remove(name));
        return;
    }
    let mut inner = &mut at[name];
    for _ in 0..lists {
        inner = &mut inner[0];
    }
    put(inner, below, value);
}

fn with(base: &Value, path: &[&str], value: Option<&Value>) -> Value {
    let mut conf = base.clone();
    put(&mut conf, path, value);
    conf
}

#[test]
fn every_network_list_of_every_page_works() {
    let tried = examples(None);
    assert!(tried.len() + 5 >= documented().len(), "each page but those of dummy, ipvlan, tap, vlan and vrf has one");
    tried.iter().for_each(Example::try_out);
}

#[test]
fn every_network_list_of_every_page_is_valid_by_the_schema() {
    let schema = Schema::of(None);
    let mut tried = 0;
    for example in pages().into_iter().chain([page("README.md")]).flat_map(|page| page.examples()) {
        assert_eq!(schema.errors(&example.list), "", "{}", example.place);
        tried += 1;
    }
    assert!(tried > 15, "{tried} lists");
    for wrong in [
        json!({}),
        json!({"cniVersion": "1.1.0", "name": "n", "plugins": []}),
        json!({"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "bridge", "isGatway": true}]}),
        json!({"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "bridge", "isGateway": "yes"}]}),
        json!({"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "sub": "x"}}]}),
        json!({"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "theirs", "prevResult": {}}]}),
        json!({"cniVersion": "1.1", "name": "n", "plugins": [{"type": "theirs"}]}),
        json!({"cniVersion": "1.1.0", "name": "a/b", "plugins": [{"type": "theirs"}]}),
    ] {
        assert_ne!(schema.errors(&wrong), "", "{wrong}");
    }
    let theirs = json!({"cniVersion": "1.1.0", "name": "n", "plugins": [{"type": "theirs", "any": [1]}], "_remark": 1});
    assert_eq!(schema.errors(&theirs), "");
}

#[test]
fn every_kernel_need_of_an_example_exists_in_the_ring() {
    let known: Vec<&str> = Need::ALL.iter().map(Need::name).collect();
    for need in pages().iter().flat_map(Page::examples).filter_map(|example| example.need) {
        assert!(known.contains(&need.as_str()), "{need}: {known:?}");
    }
}

#[test]
fn every_plugin_has_a_page_and_every_page_all_its_parts() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folders = std::fs::read_dir(top.join("plugins")).unwrap().map(|entry| entry.unwrap());
    let folders: BTreeSet<String> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    let looked_at: BTreeSet<String> = documented().iter().map(|plugin| plugin.name.to_owned()).collect();
    let ours = folders.iter().filter(|name| !["all", "examples"].contains(&name.as_str()));
    assert_eq!(ours.cloned().collect::<BTreeSet<_>>(), looked_at);
    let index = page("docs/README.md").text;
    for plugin in documented() {
        let Page { text, .. } = plugin.page();
        assert!(index.contains(&format!("]({}.md)", plugin.name)), "docs/README.md does not name {}", plugin.name);
        let headings: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(headings, HEADINGS, "docs/{}.md", plugin.name);
        let own = plugin.page().examples().into_iter();
        let is_it = |one: &Value| one["type"] == plugin.name || one["ipam"]["type"] == plugin.name;
        let shows = |plugins: &Value| plugins.as_array().unwrap().iter().any(is_it);
        assert!(own.clone().any(|example| shows(&example.list["plugins"])), "docs/{}.md: its list", plugin.name);
    }
}

#[test]
fn the_tables_have_the_keys_that_the_plugins_take_with_their_types() {
    for plugin in documented() {
        let taken: BTreeSet<(String, String)> =
            plugin.keys.iter().map(|key| (key.path.clone(), key.kind.clone())).collect();
        // The type of JSON; after it is what the value must be, which other tests compare with the plugin.
        let json_type = |kind: &str| kind.split([',', ':']).next().unwrap().to_owned();
        let rows = plugin.rows().into_iter();
        let keys: Vec<(String, String)> = rows.map(|row| (row.key, json_type(&row.kind))).collect();
        let is_typed = |path: &str| plugin.keys.iter().any(|key| key.path == path && key.kind.is_empty());
        let typed = |(key, kind): (String, String)| (key.clone(), if is_typed(&key) { String::new() } else { kind });
        let said_once: BTreeSet<(String, String)> = keys.iter().cloned().map(typed).collect();
        assert_eq!(said_once, taken, "docs/{}.md, left, and the plugin, right", plugin.name);
        assert_eq!(keys.len(), said_once.len(), "docs/{}.md has a key twice", plugin.name);
    }
}

#[test]
fn the_documented_default_equals_an_absent_key() {
    let host = Host::new();
    for plugin in documented() {
        for row in plugin.rows() {
            let path = plugin.path(&row.key);
            let place = format!("docs/{}.md, {}", plugin.name, row.key);
            let absent = with(&plugin.base, &path, None);
            match row.default.as_str() {
                "–" => {}
                "required" => {
                    let planned = plugin.plan(&host, &absent, "");
                    assert!(planned.is_err(), "{place} is not required: {planned:?}");
                }
                default => {
                    let value: Value =
                        serde_json::from_str(code(default)).unwrap_or_else(|_| panic!("{place}: {default}"));
                    let given = with(&plugin.base, &path, Some(&value));
                    // The default directory can only be seen when it is used.
                    let seen = |conf| {
                        if plugin.under.is_empty() {
                            (plugin.read)(conf)
                        } else {
                            format!("{:?}", plugin.plan(&host, conf, ""))
                        }
                    };
                    assert_eq!(seen(&given), seen(&absent), "{place}");
                }
            }
        }
    }
}

#[test]
fn an_example_is_taken_and_makes_a_difference() {
    let host = Host::new();
    // The paths on the page of flannel. The tests have a /run of their own.
    std::fs::create_dir_all("/run/flannel/second").unwrap();
    std::fs::write("/run/flannel/second/subnet.env", subnet_env(["10.79.0.1/24", "fd00:79::1/64"], 1400)).unwrap();
    for plugin in documented() {
        let schema = Schema::of(Some(plugin.name));
        for row in plugin.rows() {
            let place = format!("docs/{}.md, {}", plugin.name, row.key);
            let example = code(&row.example);
            if let Some(name) = row.key.strip_prefix("CNI_ARGS ") {
                assert!(example.starts_with(&format!("{name}=")), "{place}");
                let mut base = plugin.base.clone();
                if name == "K8S_POD_NAME" {
                    base["ipam"]["sticky"] = true.into(); // the name matters only then
                }
                let planned = |args: &str| plugin.plan(&host, &base, args).unwrap();
                assert_ne!(planned(example), planned(""), "{place}");
                continue;
            }
            let value: Value = serde_json::from_str(example).unwrap_or_else(|_| panic!("{place}: {example}"));
            let path = plugin.path(&row.key);
            let mut base = plugin.base.clone();
            if row.key == "ipspoofchk" && base["ipam"].is_null() {
                base["ipam"] = json!({"type": "host-local", "subnet": "10.1.4.0/24"}); // without addresses it is refused
            }
            if row.key == "args.cni.sticky" {
                base["ipam"]["sticky"] = true.into(); // the name matters only then
            }
            if row.key.starts_with("runtimeConfig.bandwidth") {
                base = json!({"runtimeConfig": {"bandwidth": rates()}}); // not used if the configuration has rates
            }
            let [given, absent] = [Some(&value), None].map(|value| with(&base, &path, value));
            let planned = plugin.plan(&host, &given, "").unwrap_or_else(|refused| panic!("{place}: {refused}"));
            let mut whole = given.clone();
            whole["name"] = json!("n");
            assert_eq!(schema.errors(&whole), "", "{place}");
            let differs =
                || Ok(planned) != plugin.plan(&host, &absent, "") || (plugin.read)(&given) != (plugin.read)(&absent);
            assert!(row.default == "required" || differs(), "{place}: nothing becomes of {example}");
        }
    }
}

#[test]
fn an_error_is_quoted_as_the_sources_have_it() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let sources: String = ["crates", "plugins"].iter().map(|folder| sources(&top.join(folder))).collect();
    for Page { path, text } in documented().iter().map(Documented::page).chain([page("docs/README.md")]) {
        let rows = tables(&text, "code");
        assert!(!rows.is_empty(), "{} has no table of errors", path.display());
        for piece in rows.iter().flat_map(|row| code(&row[1]).split('…')) {
            let quoted = piece.trim_matches([' ', ':', ',', '"']);
            assert!(sources.contains(quoted), "{}: no error says {quoted:?}", path.display());
        }
    }
}

/// All sources below a folder, with string literals of several lines joined and quotation marks unescaped.
fn sources(folder: &Path) -> String {
    let mut all = String::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            all += &sources(&entry);
        } else if entry.extension().is_some_and(|end| end == "rs") {
            let text = std::fs::read_to_string(&entry).unwrap();
            let mut lines = text.split("\\\n");
            all += lines.next().unwrap_or_default();
            lines.for_each(|line| all += line.trim_start());
        }
    }
    all.replace("\\\"", "\"")
}

/// Tests start two of the runtimes with the configuration of the page; the page has the same values for the others.
#[test]
fn every_runtime_page_has_the_same_directories() {
    let mut runtimes = 0;
    for (path, text) in files().into_iter().filter(|(path, _)| path != CONFLIST) {
        let quoted = text.split('"').skip(1).step_by(2).filter(|quoted| quoted.starts_with('/'));
        let directories: BTreeSet<&str> = quoted.map(|quoted| quoted.trim_end_matches('/')).collect();
        let [networks, plugins] = ["/etc/cni/net.d", "/opt/cni/bin"];
        assert!(directories.contains(plugins), "{path}: {text}");
        assert!(directories.is_subset(&[networks, plugins].into()), "{path}: {text}");
        runtimes += 1;
    }
    assert_eq!(runtimes, 4);
}

#[test]
fn every_link_of_a_page_leads_somewhere() {
    let others = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md"].map(page);
    let mut links = 0;
    for from in pages().into_iter().chain(others) {
        for link in targets(&from.text) {
            let (path, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let to: PathBuf = if path.is_empty() { from.path.clone() } else { from.path.with_file_name(path) };
            let is_folder = path.ends_with('/');
            let text = if is_folder { page(to.join("README.md")).text } else { page(&to).text };
            assert!(anchor.is_empty() || anchors(&text).contains(anchor), "{}: {link}", from.path.display());
            links += 1;
        }
    }
    assert!(links > 10, "{links} links were found");
}

/// `scripts/docs` builds the site from this list.
#[test]
fn the_site_has_every_page_once() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join("docs");
    let mut all = BTreeSet::new();
    for (dir, prefix) in [(folder.clone(), ""), (folder.join("adr"), "adr/"), (folder.join(".."), "../")] {
        for entry in std::fs::read_dir(dir).unwrap() {
            let file = entry.unwrap().path();
            let name = file.file_name().unwrap().to_str().unwrap();
            if file.extension().is_some_and(|end| end == "md") && name != "SUMMARY.md" {
                all.insert(format!("{prefix}{name}"));
            }
        }
    }
    let listed = targets(&page("docs/SUMMARY.md").text);
    assert_eq!(
        listed.iter().cloned().collect::<BTreeSet<String>>(),
        all,
        "docs/SUMMARY.md, left, and the files, right"
    );
    assert_eq!(listed.len(), all.len(), "a page is in docs/SUMMARY.md twice");
}

#[test]
fn every_page_shows_the_same_first_network() {
    let network: Value = serde_json::from_str(&cnikit_tests::runtimes::file(CONFLIST)).unwrap();
    let name = CONFLIST.rsplit_once('/').unwrap().1;
    let mut shown = 0;
    for Page { path, text } in pages().into_iter().chain([page("README.md")]) {
        for (_, after) in text.match_indices(name).map(|(at, _)| text.split_at(at)) {
            let Some((between, block)) = after.split_once("```json") else { continue };
            if between.len() > 200 {
                continue; // another block
            }
            let block = block.split_once('\n').unwrap().1.split_once("```").unwrap().0;
            let block: Value =
                serde_json::from_str(block).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert_eq!(block, network, "{}: another network after {between:?}", path.display());
            shown += 1;
        }
    }
    assert!(shown >= 2, "{shown} pages show {name}");
}

/// Where the musl target is not available, the binary is an eighth larger.
/// What stands before our version: in names of files, of the image, and in what a plugin prints.
const BEFORE_VERSIONS: [&str; 6] = ["amd64-v", "cnikit-v", "cnikit_", "cnikit-", "cnikit:", "newTag: "];

/// The manifests that name the image.
const KUSTOMIZATIONS: [&str; 2] =
    ["plugins/all/kubernetes/install/kustomization.yaml", "plugins/all/kubernetes/uninstall/kustomization.yaml"];

#[test]
fn the_version_in_every_command_and_manifest_is_that_of_this_release() {
    let mut texts = pages();
    texts.extend(["README.md", KUSTOMIZATIONS[0], KUSTOMIZATIONS[1]].map(page));
    let mut found = 0;
    for Page { path, text } in &texts {
        for before in BEFORE_VERSIONS {
            for (at, _) in text.match_indices(before) {
                let rest = &text[at + before.len()..];
                let version = rest
                    .split(|letter: char| !letter.is_ascii_digit() && letter != '.')
                    .next()
                    .unwrap()
                    .trim_end_matches('.');
                if version.split('.').count() == 3 {
                    assert_eq!(
                        version,
                        env!("CARGO_PKG_VERSION"),
                        "{}: {}",
                        path.display(),
                        rest.lines().next().unwrap()
                    );
                    found += 1;
                }
            }
        }
    }
    assert!(found >= 15, "only {found}");
}

#[test]
fn the_readme_says_how_large_the_installed_binary_is() {
    let readme = page("README.md").text;
    let words = readme.split_once("All plugins are one static binary of ").unwrap().1;
    let (whole, tenths) = words.split_once(" MB").unwrap().0.split_once('.').unwrap();
    let tenths: u64 = format!("{whole}{tenths}").parse().unwrap();
    let bytes = std::fs::metadata(cnikit_tests::installed().join("cni-plugins")).unwrap().len();
    let range = tenths * 95_000..tenths * 115_000;
    assert!(range.contains(&bytes), "README.md says {tenths} tenths of a megabyte, and it has {bytes} bytes");
}

#[test]
fn the_targets_of_the_readme_match_the_benchmarks() {
    let readme = page("README.md").text;
    let benchmarks = page("docs/benchmarks.md").text;
    let block = |text: &str, name: &str| {
        let after = text.split_once(&format!("<!-- begin {name} -->\n")).unwrap().1;
        after.split_once(&format!("<!-- end {name} -->")).unwrap().0.to_owned()
    };
    let targets = block(&readme, "targets");
    let measured = block(&benchmarks, "bench");
    let rows: Vec<&str> = targets.lines().filter(|line| !line.is_empty()).collect();
    assert!(rows.len() > 10, "{} lines are between the marks of README.md", rows.len());
    let head = measured.lines().find(|line| line.starts_with("| row |")).expect("a table");
    let columns: Vec<usize> =
        (1..).zip(head.split('|').skip(1)).filter(|(_, name)| is_in_readme(name)).map(|(at, _)| at).collect();
    let measured: Vec<String> = measured.lines().map(|line| readme_row(line, &columns)).collect();
    rows.iter().for_each(|row| assert!(measured.iter().any(|line| line == *row), "not in docs/benchmarks.md: {row}"));
}

/// Whether README.md has this column of the table of benchmarks.
fn is_in_readme(column: &str) -> bool {
    ["row", "cnikit", "1.9.1", "faster by", "of the floor", "memory"].contains(&column.trim())
}

/// A line of the table of benchmarks as README.md has it: some of its columns, without the numbers of notes.
fn readme_row(line: &str, columns: &[usize]) -> String {
    let cells: Vec<&str> = line.split('|').collect();
    if cells.len() < columns.len() {
        return line.to_owned();
    }
    let mut row = "|".to_owned();
    for column in columns {
        row += cells.get(*column).copied().unwrap_or_default();
        row += "|";
    }
    for note in 1..100 {
        row = row.replace(&format!(" [{note}] "), " ");
    }
    row
}

/// The targets of the links of a text, except URLs.
fn targets(text: &str) -> Vec<String> {
    let after = text.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    after.map(|(target, _)| target.to_owned()).filter(|target| !target.contains("://")).collect()
}

/// The names under which the headings of a text can be linked to.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    headings.map(|heading| heading.chars().filter_map(in_anchor).collect()).collect()
}

/// The letter in an anchor for a letter of a heading, if there is one.
fn in_anchor(letter: char) -> Option<char> {
    match letter {
        ' ' => Some('-'),
        '-' | '_' => Some(letter),
        letter if letter.is_alphanumeric() => Some(letter.to_ascii_lowercase()),
        _ => None,
    }
}
