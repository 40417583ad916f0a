//! Upstream's cnitool with its libcni and ours on one node: one adds an attachment that the other checks and deletes.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::fs;
use std::path::{Path, PathBuf};

use cnikit_libcni::{Cache, Runtime, State};
use cnikit_testkit::{Container, Host};
use cnikit_tests::{bin, program, reference_tool, references};
use serde_json::{Map, Value, json};

/// The maker of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tool {
    Theirs,
    Ours,
}

use Tool::{Ours, Theirs};

/// The output of a tool.
#[derive(Debug, PartialEq, Eq)]
struct ToolOutput {
    status: String,
    stdout: String,
    stderr: String,
}

/// A host with one container, on which both tools use the same configurations, plugins and cache.
struct Node {
    host: Host,
    container: Container,
    /// `CNI_PATH`.
    plugins: PathBuf,
    /// Further variables for every call. Both tools are configured by upstream's variables only.
    env: Vec<(&'static str, String)>,
}

/// A mount namespace in which upstream's fixed cache directory is the node's.
const SETTLE: &str = "mount -t tmpfs tmpfs /var/lib\nmkdir /var/lib/cni\nmount --bind \"$DIR/cni\" /var/lib/cni\n";

impl Node {
    fn new(plugins: &Path) -> Node {
        let host = Host::new();
        ["cni", "net.d"].iter().for_each(|name| fs::create_dir(host.dir().join(name)).unwrap());
        let container = host.container();
        Node { host, container, plugins: plugins.to_owned(), env: Vec::new() }
    }

    fn dir(&self) -> &Path {
        self.host.dir()
    }

    /// Writes a configuration file, with reservations on this host.
    fn configure(&self, file: &str, document: &Value) {
        fs::write(self.dir().join("net.d").join(file), document.to_string()).unwrap();
    }

    fn bridge(&self) -> Value {
        let leases = self.dir().join("leases");
        let ipam = json!({"type": "host-local", "dataDir": leases, "ranges": [[{"subnet": "10.91.0.0/24"}]]});
        json!({"type": "bridge", "bridge": "interop0", "isGateway": true, "ipMasq": true, "ipam": ipam,
               "capabilities": {"mac": true, "ips": true}})
    }

    fn call(&self, tool: Tool, words: &str) -> ToolOutput {
        let program = if tool == Ours { program("cnitool") } else { reference_tool() };
        let dir = self.dir().display();
        let plugins = self.plugins.display();
        let set = self.env.iter().fold(String::new(), |set, (name, text)| set + &format!("export {name}='{text}'\n"));
        let script = format!(
            "set -e\nDIR='{dir}'\n{SETTLE}export NETCONFPATH='{dir}/net.d' CNI_PATH='{plugins}'\n{set}status=0\n\
             {} {words} >\"$DIR/stdout\" 2>\"$DIR/stderr\" || status=$?\necho $status\n",
            program.display()
        );
        fs::write(self.dir().join("call.sh"), script).unwrap();
        let status = self.host.sh(&format!("unshare --mount sh {dir}/call.sh")).trim().to_owned();
        let read = |name: &str| fs::read_to_string(self.dir().join(name)).unwrap();
        ToolOutput { status, stdout: read("stdout"), stderr: read("stderr") }
    }

    /// Runs a verb for the container, which has to succeed. Returns the output.
    fn done(&self, tool: Tool, verb: &str) -> String {
        let output = self.call(tool, &format!("{verb} net {}", self.container.path()));
        assert_eq!(output.status, "0", "{tool:?} {verb}: {output:?}");
        output.stdout
    }

    /// The only cached result: the name and the content of its file.
    fn cached_result(&self) -> (String, String) {
        let names = self.results();
        assert_eq!(names.len(), 1, "{names:?}");
        (names[0].clone(), fs::read_to_string(self.dir().join("cni/results").join(&names[0])).unwrap())
    }

    fn results(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir().join("cni/results")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Nothing is left of a container: no link, no address, no file.
    fn is_empty(&self) -> bool {
        let leases = fs::read_dir(self.dir().join("leases/net")).into_iter().flatten();
        let taken = leases.filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with("10."));
        self.results().is_empty() && taken.count() == 0 && !self.host.sh("ip -o link").contains("veth")
    }

    fn cache(&self) -> Cache {
        Cache::below(&self.dir().join("cni"))
    }
}

/// What an ADD left: its output, and the name and content of the file in the cache.
struct Added {
    printed: String,
    file: String,
    cached_result: String,
}

impl Added {
    /// The same without the random parts of upstream's results: name and MAC of the host end.
    fn without_random_parts(self) -> Added {
        let result: Value = serde_json::from_str(&self.printed).unwrap();
        let mut hidden = self;
        for key in ["name", "mac"] {
            let random = result["interfaces"][1][key].as_str().unwrap();
            hidden.printed = hidden.printed.replace(random, "RANDOM");
            hidden.cached_result = hidden.cached_result.replace(random, "RANDOM");
        }
        hidden
    }
}

/// One tool adds an attachment that the other checks and deletes; then vice versa, for the same container.
fn both_ways(node: &Node) -> [Added; 2] {
    [one_way(node, Theirs, Ours), one_way(node, Ours, Theirs)]
}

fn one_way(node: &Node, adder: Tool, other: Tool) -> Added {
    let printed = node.done(adder, "add");
    let (file, cached_result) = node.cached_result();
    for tool in [adder, other] {
        assert_eq!(node.done(tool, "check"), "", "{tool:?} after {adder:?}");
    }
    assert_eq!(node.done(other, "del"), "", "{other:?} after {adder:?}");
    assert!(node.is_empty(), "{other:?} after {adder:?}");
    for tool in [adder, other] {
        assert_eq!(node.done(tool, "del"), "", "there is nothing: {tool:?}");
    }
    Added { printed, file, cached_result }
}

/// Both outputs are equal except for the order of members, and both cached results except for our own member.
fn are_alike([theirs, ours]: [Added; 2]) {
    // Upstream sorts the members of a result in some cases.
    let lines = |text: &str| {
        let mut lines: Vec<String> = text.split('\n').map(|line| line.trim_end_matches(',').to_owned()).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines(&ours.printed), lines(&theirs.printed), "printed");
    let parse = |text: &str| -> Map<String, Value> { serde_json::from_str(text).unwrap() };
    assert_eq!(parse(&ours.printed), parse(&theirs.printed), "printed");
    assert_eq!(ours.file, theirs.file, "the file's name");
    let mut ours = parse(&ours.cached_result);
    let theirs = parse(&theirs.cached_result);
    assert_eq!(ours.keys().next_back().unwrap(), "cnikit");
    ours.shift_remove("cnikit").unwrap();
    let keys = |map: &Map<String, Value>| map.keys().cloned().collect::<Vec<String>>();
    assert_eq!(keys(&ours), keys(&theirs), "kept");
    assert_eq!(ours, theirs, "kept");
}

#[test]
fn both_tools_check_delete_print_and_cache_each_others_networks() {
    let theirs = &references()[1];
    for (version, plugins) in [("0.4.0", bin()), ("1.0.0", theirs), ("1.1.0", bin()), ("1.1.0", theirs)] {
        let mut node = Node::new(plugins);
        node.env = vec![
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=web".to_owned()),
            ("CAP_ARGS", r#"{"ips":["10.91.0.9/24"],"mac":"02:00:00:00:91:09","portMappings":[]}"#.to_owned()),
            ("CNI_IFNAME", "net7".to_owned()),
        ];
        let plugins = json!([node.bridge(), {"type": "loopback"}]);
        node.configure("10-net.conflist", &json!({"cniVersion": version, "name": "net", "plugins": plugins}));
        let both = both_ways(&node);
        let printed: Value = serde_json::from_str(&both[0].printed).unwrap();
        let cached_result: Value = serde_json::from_str(&both[0].cached_result).unwrap();
        let name = &both[0].file;
        assert_eq!(printed["ips"][0]["address"], "10.91.0.9/24");
        assert_eq!((&cached_result["ifName"], &cached_result["cniArgs"][1][1]), (&json!("net7"), &json!("web")));
        assert!(name.starts_with("net-cnitool-") && name.ends_with("-net7"), "{name}");
        are_alike(both.map(Added::without_random_parts));
    }
}

#[test]
fn both_tools_handle_each_others_single_configuration() {
    let node = Node::new(bin());
    let mut conf = node.bridge();
    conf["cniVersion"] = "1.0.0".into();
    conf["name"] = "net".into();
    node.configure("10-net.conf", &conf);
    both_ways(&node);
}

#[test]
fn our_libcni_deletes_what_upstream_added_by_its_cache() {
    let mut node = Node::new(bin());
    node.env = vec![("CAP_ARGS", r#"{"mac":"02:00:00:00:91:0a"}"#.to_owned())];
    node.configure("10-net.conflist", &json!({"cniVersion": "1.1.0", "name": "net", "plugins": [node.bridge()]}));
    node.done(Theirs, "add");
    let cached_result = node.cache().attachments().unwrap().remove(0);
    assert_eq!(
        (cached_result.state, &cached_result.problems[..], &*cached_result.network),
        (State::Attached, &[][..], "net")
    );
    assert_eq!(cached_result.addresses(), ["10.91.0.2/24"]);
    assert_eq!(cached_result.at.capabilities["mac"], "02:00:00:00:91:0a");
    let runtime = Runtime::new(node.plugins.display().to_string(), node.cache());
    node.host.enter(|| {
        runtime.check(&cached_result.list().unwrap(), &cached_result.at).unwrap();
        runtime.del_cached(&cached_result).unwrap();
    });
    assert!(node.is_empty());
}

#[test]
fn upstreams_gc_deletes_what_our_tool_added() {
    let node = Node::new(bin());
    node.configure("10-net.conflist", &json!({"cniVersion": "1.1.0", "name": "net", "plugins": [node.bridge()]}));
    node.done(Ours, "add");
    // Upstream's cnitool passes no list of valid attachments. So our plugins refuse the GC; the DELs of all cached attachments are
    // done by then.
    let output = node.call(Theirs, &format!("gc net {}", node.container.path()));
    assert!(
        output.status == "1" && output.stderr.contains("required key `cni.dev/valid-attachments` missing"),
        "{output:?}"
    );
    assert!(node.is_empty());
    assert_eq!(node.cache().attachments().unwrap().len(), 0);
}

#[test]
fn both_end_with_the_same_status_and_print_the_same_whatever_is_wrong() {
    let mut node = Node::new(bin());
    node.configure("10-net.conflist", &json!({"cniVersion": "1.1.0", "name": "net", "plugins": [node.bridge()]}));
    node.configure("20-old.conflist", &json!({"cniVersion": "0.3.1", "name": "old", "plugins": [node.bridge()]}));
    node.configure("30-gone.conflist", &json!({"cniVersion": "1.1.0", "name": "gone", "plugins": [{"type": "gone"}]}));
    let netns = node.container.path();
    let alike = |node: &Node, words: &str| {
        let [theirs, ours] = [Theirs, Ours].map(|tool| node.call(tool, words));
        let heard = |output: &ToolOutput| (output.status.clone(), output.stdout.clone(), output.stderr.is_empty());
        assert_eq!(heard(&ours), heard(&theirs), "{words}: {ours:?} {theirs:?}");
        ours.status
    };
    let lines = [
        ("status net /none", "0"),
        ("check net NETNS", "1"),
        ("check old NETNS", "1"),
        ("del net NETNS", "0"),
        ("del old NETNS", "0"),
        ("add nobodys NETNS", "1"),
        ("add gone NETNS", "1"),
        ("check gone NETNS", "1"),
        ("del gone NETNS", "1"),
        ("status gone NETNS", "1"),
        ("add net /none", "1"),
        ("del net /none", "0"),
        ("add net", "1"),
    ];
    for (words, status) in lines {
        assert_eq!(alike(&node, &words.replace("NETNS", &netns)), status, "{words}");
    }
    node.done(Ours, "add");
    assert_eq!(alike(&node, &format!("add net {netns}")), "1", "it is there");
    node.done(Theirs, "check");
    node.done(Theirs, "del");
    for (name, text) in [("CNI_ARGS", "a=b=c"), ("CNI_ARGS", "a=1;"), ("CAP_ARGS", "{"), ("CAP_ARGS", "[]")] {
        node.env = vec![(name, text.to_owned())];
        assert_eq!(alike(&node, &format!("add net {netns}")), "1", "{name}={text}");
    }
    assert!(node.is_empty());
}
