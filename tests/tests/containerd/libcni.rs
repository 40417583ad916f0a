//! Our libcni on a node: this program once more, entered there, for an attachment of containerd's.

use std::io;
use std::path::Path;
use std::process::ExitCode;

use cnikit_libcni::{Attachment, Cache, Runtime, load};
use cnikit_tests::runtimes::{Node, Sandbox};
use serde_json::{Map, Value, json};

/// Its commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Add,
    Del,
}

impl Verb {
    const NAMES: [(&'static str, Verb); 2] = [("libcni-add", Verb::Add), ("libcni-del", Verb::Del)];

    /// The verb that the first argument of this program names. Other arguments are those of the test harness.
    pub(crate) fn named(word: &str) -> Option<Verb> {
        Verb::NAMES.iter().find(|(name, _)| *name == word).map(|(_, verb)| *verb)
    }
}

/// Our libcni adds or deletes an attachment of containerd, with the same id, namespace, arguments and port.
pub(crate) fn ask(node: &Node, verb: Verb, pod: &Sandbox) {
    let (name, _) = Verb::NAMES.into_iter().find(|(_, one)| *one == verb).unwrap();
    let program = std::env::current_exe().unwrap();
    let stdin = json!({"id": pod.id, "netns": pod.netns}).to_string();
    node.run(program.to_str().unwrap(), &[name], stdin.as_bytes());
}

/// Executes the command in the node.
pub(crate) fn carry_out(verb: Verb) -> ExitCode {
    let asked: Value = serde_json::from_reader(io::stdin()).unwrap();
    let text = |key: &str| asked[key].as_str().unwrap().to_owned();
    let mapping = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let args = [("IgnoreUnknown", "1"), ("K8S_POD_NAMESPACE", "cnikit"), ("K8S_POD_NAME", "one")];
    let mut at = Attachment::new(text("id"), text("netns"));
    at.args = args.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
    at.capabilities = Map::from_iter([("portMappings".to_owned(), mapping)]);
    let runtime = Runtime::new("/opt/cni/bin", Cache::below(Path::new("/var/lib/cni")));
    let list = load(Path::new("/etc/cni/net.d"), "cnikit").unwrap();
    match verb {
        Verb::Add => drop(runtime.add(&list, &at).unwrap()),
        Verb::Del => drop(runtime.del(&list, &at).unwrap()),
    }
    ExitCode::SUCCESS
}
