//! pool: its life with the files of a node, and what it says to an agent, which is a small server of this test.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;
use std::time::{Duration, Instant};

use cnikit_pool::{
    AgentConnection, AgentError, AgentListener, AgentReply, AgentRequest, BlockState, Incarnation, LocalBlock,
    LocalNode, LocalPools, NodeFiles, NodeState, PoolDefinition, PoolFamily, Want, tell_agent,
};
use cnikit_testkit::snapshot::HINTS;
use cnikit_testkit::{Container, Host, HostSnapshot, Subject, life};
use cnikit_tests::{POOL_FILES, bin, pool, pooled, references, subject};
use serde_json::{Value, json};

/// The calls of a runtime for one network of a node that has blocks of /29 and /125.
struct Node {
    host: Host,
    container: Container,
    files: NodeFiles,
    subject: Subject,
}

/// Blocks of eight addresses, of which the first has network address and gateway.
const POOL: &str = r#"{"name":"blue","ranges":[{"subnet":"10.77.0.0/24"},{"subnet":"fd00:77::/64"}],"blockSize4":29,"blockSize6":125,
    "static":[{"subnet":"10.77.0.0/24","rangeStart":"10.77.0.240"}],"cooldown":0}"#;

fn block(cidr: &str, state: BlockState) -> LocalBlock {
    let is_static = cidr.ends_with("/32");
    LocalBlock { pool: "blue".into(), cidr: cidr.parse().unwrap(), is_static, epoch: 1, state }
}

fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

/// The last part of the addresses of a result, such as `10 a`.
fn addresses(result: &Value) -> Vec<String> {
    let ips = result["ips"].as_array().into_iter().flatten();
    ips.map(|ip| ip["address"].as_str().unwrap().split('/').next().unwrap().to_owned()).collect()
}

impl Node {
    /// A node whose agent has written its files, with these blocks.
    fn new(blocks: &[(&str, BlockState)]) -> Node {
        let node = Node::bare();
        node.serve_pool(POOL, &[]);
        node.write_node(NodeState::Serving, &boot());
        node.write_blocks("testnet", blocks);
        node
    }

    /// A node on which no agent has ever run.
    fn bare() -> Node {
        let host = Host::new();
        let files = NodeFiles::new(host.dir().join("leases"));
        let subject = subject("pool", json!({"ipam": pooled()})).at(host.dir());
        let container = host.container();
        let mut node = Node { host, container, files, subject };
        node.set("families", json!(["v4"]));
        node.set("timeout", json!(2));
        node
    }

    fn set(&mut self, key: &str, value: Value) {
        self.subject.conf["ipam"][key] = value;
    }

    fn serve_pool(&self, pool: &str, select: &[(&str, &str)]) {
        let pool = PoolDefinition::parse(pool.as_bytes()).unwrap();
        let select: BTreeMap<String, String> =
            select.iter().map(|(namespace, pool)| ((*namespace).to_owned(), (*pool).to_owned())).collect();
        self.files.write_pools(&LocalPools { pools: vec![pool.config().clone()], select }).unwrap();
    }

    fn write_node(&self, state: NodeState, boot: &str) {
        let node = LocalNode { node: "node-1".into(), incarnation: Incarnation::of(10), boot: boot.to_owned(), state };
        self.files.write_node(&node).unwrap();
    }

    fn write_blocks(&self, network: &str, blocks: &[(&str, BlockState)]) {
        let blocks: Vec<LocalBlock> = blocks.iter().map(|(cidr, state)| block(cidr, *state)).collect();
        self.files.network(network, Duration::from_secs(10), |_| {}).lock().unwrap().write_blocks(&blocks).unwrap();
    }

    fn socket(&self) -> PathBuf {
        self.host.dir().join("agent.sock")
    }

    fn add(&self, id: &str) -> Result<Vec<String>, (u64, String)> {
        self.add_with(id, "", &[])
    }

    fn add_with(&self, id: &str, args: &str, more: &[(&str, Value)]) -> Result<Vec<String>, (u64, String)> {
        let mut conf = self.subject.conf.clone();
        for (key, value) in more {
            conf[*key] = value.clone();
        }
        let stdin = conf.to_string();
        let path = self.container.path();
        let output = self.subject.call_raw(&self.host, "ADD", id, &path, stdin.as_bytes(), &[("CNI_ARGS", args)]);
        if output.exit == 0 { Ok(addresses(&output.ok())) } else { Err(output.refused()) }
    }

    fn del(&self, id: &str) {
        self.subject.call(&self.host, "DEL", id, "", &[]).ok();
    }

    fn status(&self) -> Result<(), (u64, String)> {
        let output = self.subject.call(&self.host, "STATUS", "", "", &[]);
        if output.exit == 0 { Ok(()) } else { Err(output.refused()) }
    }

    /// The addresses that have a file.
    fn reserved(&self) -> BTreeSet<String> {
        let dir = self.files.data_dir().join("testnet");
        let names =
            fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.parse::<IpAddr>().is_ok()).collect()
    }

    /// Fills the block 10.77.0.8/29.
    fn fill(&self) {
        for n in 8..16 {
            assert_eq!(self.add(&format!("c-{n}")).unwrap(), [format!("10.77.0.{n}")]);
        }
    }

    /// Runs `work` while an agent handles each request with `serve`; returns the requests too.
    fn with_agent<T>(
        &self,
        serve: impl Fn(&Want) -> Option<AgentReply> + Sync,
        work: impl FnOnce() -> T,
    ) -> (T, Vec<Want>) {
        let listener = AgentListener::bind(&self.socket()).unwrap();
        let asked = Mutex::new(Vec::new());
        let done = thread::scope(|scope| {
            scope.spawn(|| {
                loop {
                    let connection = listener.accept(Duration::from_secs(10)).unwrap();
                    let AgentRequest::Want(want) = connection.request().unwrap() else { unreachable!() };
                    if want.network == END {
                        break;
                    }
                    let reply = serve(&want);
                    asked.lock().unwrap().push(want);
                    reply_or_drop(&connection, reply.as_ref());
                }
            });
            let done = work();
            end(&self.socket());
            done
        });
        fs::remove_file(self.socket()).unwrap();
        (done, asked.into_inner().unwrap())
    }
}

fn reply_or_drop(connection: &AgentConnection, reply: Option<&AgentReply>) {
    if let Some(reply) = reply {
        connection.reply(reply).unwrap();
    }
}

/// The network of the last request to the agent of [`Node::with_agent`]. The kernel keeps the order of the connections: all
/// requests that nothing waited for come before it.
const END: &str = "the-end";

fn end(socket: &Path) {
    let nothing = Want {
        network: END.to_owned(),
        pool: String::new(),
        families: Vec::new(),
        free: 0,
        addresses: Vec::new(),
        attachment: None,
    };
    tell_agent(socket, &AgentRequest::Want(nothing)).unwrap();
}

const ACTIVE: [(&str, BlockState); 2] = [("10.77.0.8/29", BlockState::Active), ("fd00:77::8/125", BlockState::Active)];

#[test]
fn an_attachment_leaves_no_trace_and_del_succeeds_in_all_poor_forms() {
    let bridged = subject("bridge", json!({"isDefaultGateway": true, "ipMasq": true, "ipam": pooled()})).on(POOL_FILES);
    for subject in [pool(bin()), bridged] {
        life::leaves_no_trace(&subject);
        life::survives_incomplete_dels(&subject);
    }
}

#[test]
fn addresses_come_from_the_own_blocks_only_in_turn_and_of_each_family() {
    let mut node = Node::new(&ACTIVE);
    node.set("families", json!([]));
    assert_eq!(node.add("c-1").unwrap(), ["10.77.0.8", "fd00:77::8"]);
    assert_eq!(node.add("c-2").unwrap(), ["10.77.0.9", "fd00:77::9"]);
    node.del("c-1");
    assert_eq!(node.add("c-3").unwrap(), ["10.77.0.10", "fd00:77::a"], "not the one that was just released");
    let again = node.add("c-3").unwrap_err();
    assert!(again.0 == 104 && again.1.contains("duplicate allocation is not allowed"), "{again:?}");
    node.set("families", json!(["v6"]));
    assert_eq!(node.add("c-4").unwrap(), ["fd00:77::b"]);
    let result = node.subject.call(&node.host, "ADD", "c-5", &node.container.path(), &[]).ok();
    assert_eq!(result["ips"][0], json!({"address": "fd00:77::c/64", "gateway": "fd00:77::1"}), "of the pool's subnet");
}

#[test]
fn a_network_without_a_free_address_is_told_so_with_pool_and_blocks_and_status_does_not_fail() {
    let node = Node::new(&[ACTIVE[0], ("10.77.0.64/29", BlockState::Sealed)]);
    node.fill();
    let before = HostSnapshot::of(&node.host);
    let (code, text) = node.add("c-late").unwrap_err();
    assert_eq!(code, 11);
    for says in [
        "pool blue has no free address for network testnet",
        "10.77.0.8/29 (active), 10.77.0.64/29 (being given back)",
        "8 of 8 are reserved",
        "no agent listens on",
        "hint: start cnikit-agent on this node",
    ] {
        assert!(text.contains(says), "{says}: {text}");
    }
    HostSnapshot::of(&node.host).assert_unchanged_since(&before, &HINTS, "after the refused ADD");
    node.status().unwrap();
    node.del("c-9");
    assert_eq!(node.add("c-late").unwrap(), ["10.77.0.9"]);
}

#[test]
fn a_released_address_cools_down_and_the_longest_idle_one_is_next() {
    let node = Node::new(&ACTIVE);
    node.fill();
    for id in ["c-12", "c-9"] {
        node.del(id);
    }
    node.serve_pool(&POOL.replace("\"cooldown\":0", "\"cooldown\":3600"), &[]);
    let (code, text) = node.add("c-late").unwrap_err();
    assert!(code == 11 && text.contains("2 are not given again yet because they were just released"), "{text}");
    let (code, text) = node.add_with("c-late", "IP=10.77.0.12", &[]).unwrap_err();
    assert!(code == 11 && text.contains("10.77.0.12 was released by another attachment a short while ago"), "{text}");
    assert_eq!(node.add_with("c-12", "IP=10.77.0.12", &[]).unwrap(), ["10.77.0.12"], "the same attachment");
    node.del("c-12");
    node.serve_pool(POOL, &[]);
    assert_eq!(node.add("c-late").unwrap(), ["10.77.0.9"], "12 was released after 9 by now");
    assert_eq!(node.add("c-later").unwrap(), ["10.77.0.12"]);
}

#[test]
fn gc_frees_what_is_not_valid_and_starts_its_cooldown() {
    let node = Node::new(&ACTIVE);
    node.add("c-kept").unwrap();
    node.add("c-stale").unwrap();
    node.subject.gc(&node.host, &["c-kept"]).ok();
    assert_eq!(node.reserved(), ["10.77.0.8".to_owned()].into());
    let cooling = fs::read_to_string(node.files.path().join("testnet.cooling")).unwrap();
    assert!(cooling.contains(" 10.77.0.9 ") && !cooling.contains(" 10.77.0.8 "), "{cooling}");
}

#[test]
fn only_blocks_that_serve_give_addresses_and_a_reboot_makes_them_wait_for_a_confirmation() {
    use BlockState::{Active, Lost, Sealed, Unconfirmed};
    for state in [Unconfirmed, Sealed, Lost] {
        let node = Node::new(&[("10.77.0.8/29", state)]);
        assert_eq!(node.add("c-1").unwrap_err().0, 11, "{state:?}");
    }
    let node = Node::new(&[("10.77.0.8/29", Active), ("10.77.0.16/29", Unconfirmed)]);
    node.add("c-1").unwrap();
    node.write_node(NodeState::Serving, "00000000-0000-0000-0000-000000000000");
    let (code, text) = node.add("c-2").unwrap_err();
    assert!(code == 11 && text.contains("10.77.0.16/29 (unconfirmed since the reboot)"), "{text}");
    node.status().unwrap();
    node.del("c-1");
    assert_eq!(node.reserved(), BTreeSet::new());
    node.serve_pool(&POOL.replace("\"cooldown\":0", "\"cooldown\":0,\"afterBoot\":\"serve\""), &[]);
    assert_eq!(node.add("c-2").unwrap(), ["10.77.0.9"]);
}

#[test]
fn a_fenced_node_allocates_nothing_and_releases_everything() {
    let node = Node::new(&ACTIVE);
    let result = node.subject.call(&node.host, "ADD", "c-1", &node.container.path(), &[]).ok();
    node.subject.check(&node.host, "c-1", &node.container, &result).ok();
    node.write_node(NodeState::Fenced, &boot());
    node.write_blocks("testnet", &[("10.77.0.8/29", BlockState::Lost)]);
    let (code, text) = node.add("c-2").unwrap_err();
    assert!(code == 11 && text.contains("this node was fenced"), "{text}");
    let (code, text) = node.status().unwrap_err();
    assert!(code == 51 && text.contains("this node was fenced"), "{code} {text}");
    let (code, text) = node.subject.check(&node.host, "c-1", &node.container, &result).refused();
    assert!(code == 102 && text.contains("10.77.0.8: its block 10.77.0.8/29 was lost"), "{text}");
    // Each difference is named, not the first alone.
    fs::remove_file(node.files.data_dir().join("testnet/10.77.0.8")).unwrap();
    let (code, text) = node.subject.check(&node.host, "c-1", &node.container, &result).refused();
    assert!(code == 102 && text.contains("10.77.0.8/29 was lost") && text.contains("; also: "), "{text}");
    node.del("c-1");
    assert_eq!(node.reserved(), BTreeSet::new());
}

#[test]
fn check_names_an_address_that_another_attachment_has() {
    let node = Node::new(&ACTIVE);
    let result = node.subject.call(&node.host, "ADD", "c-1", &node.container.path(), &[]).ok();
    fs::write(node.files.data_dir().join("testnet/10.77.0.8"), "c-2\r\neth0").unwrap();
    let (code, text) = node.subject.check(&node.host, "c-1", &node.container, &result).refused();
    assert!(code == 102 && text.contains("Failed to find address added by container ID: c-1/eth0"), "{text}");
    assert!(!text.contains("host-local"), "{text}");
    fs::write(node.files.data_dir().join("testnet/10.77.0.9"), "c-1\r\neth0").unwrap();
    let (code, text) = node.subject.check(&node.host, "c-1", &node.container, &result).refused();
    assert!(code == 102 && text.contains("10.77.0.8: wanted held by c-1/eth0, found held by c-2/eth0"), "{text}");
    fs::remove_file(node.files.path().join("testnet.blocks")).unwrap();
    node.subject.check(&node.host, "c-1", &node.container, &result).ok();
}

#[test]
fn no_damage_of_a_file_fails_a_del_or_a_gc_and_add_names_the_file() {
    for name in ["node.json", "pools.json", "testnet.blocks", "testnet.cooling"] {
        for damage in ["", "{", "[]", "{\"version\":9}", "\0\0\0"] {
            let node = Node::new(&ACTIVE);
            for id in ["c-1", "c-2", "c-3"] {
                node.add(id).unwrap();
            }
            node.del("c-3");
            fs::write(node.files.path().join(name), damage).unwrap();
            node.del("c-1");
            node.subject.gc(&node.host, &[]).ok();
            assert_eq!(node.reserved(), BTreeSet::new(), "{name}: {damage:?}");
            let added = node.add("c-4");
            if name == "testnet.cooling" {
                assert!(added.is_ok(), "{added:?}");
                continue;
            }
            let (code, text) = added.unwrap_err();
            assert!(code == 100 && text.contains(name), "{name}: {damage:?}: {code} {text}");
            let (code, text) = node.status().unwrap_err();
            assert!(code == 50 && text.contains(name), "{name}: {damage:?}: {code} {text}");
            assert_eq!(node.reserved(), BTreeSet::new(), "{name}: {damage:?}");
        }
    }
}

#[test]
fn a_missing_file_is_a_question_to_the_agent() {
    for name in ["node.json", "pools.json", "testnet.blocks"] {
        let node = Node::new(&ACTIVE);
        let path = node.files.path().join(name);
        let content = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let repair = |_: &Want| {
            fs::write(&path, &content).unwrap();
            Some(AgentReply::Done(true))
        };
        let (added, asked) = node.with_agent(repair, || node.add("c-1"));
        assert_eq!(added.unwrap(), ["10.77.0.8"], "{name}");
        assert_eq!(asked.len(), 1, "{name}");
    }
}

#[test]
fn an_empty_network_asks_the_agent_once_and_takes_what_it_got() {
    let node = Node::bare();
    let claim = |want: &Want| {
        assert_eq!(
            (want.network.as_str(), want.pool.as_str(), want.families.as_slice()),
            ("testnet", "blue", &[PoolFamily::V4][..])
        );
        assert!(want.free >= 1 && want.addresses.is_empty() && want.attachment.is_none());
        node.serve_pool(POOL, &[]);
        node.write_node(NodeState::Serving, &boot());
        node.write_blocks("testnet", &ACTIVE);
        Some(AgentReply::Done(true))
    };
    let (added, asked) = node.with_agent(claim, || node.add("c-1"));
    assert_eq!(added.unwrap(), ["10.77.0.8"]);
    assert_eq!(asked.len(), 1);
}

#[test]
fn sixty_four_at_once_on_an_empty_network_get_sixty_four_addresses() {
    let mut node = Node::new(&[]);
    node.set("timeout", json!(60));
    let next = Mutex::new(1_u8);
    // One block of eight addresses for each request, so that most are too late for what was claimed for them.
    let claim = |_: &Want| {
        let mut next = next.lock().unwrap();
        let blocks: Vec<(String, BlockState)> =
            (1..=*next).map(|n| (format!("10.77.0.{}/29", u16::from(n) * 8), BlockState::Active)).collect();
        let blocks: Vec<(&str, BlockState)> = blocks.iter().map(|(cidr, state)| (cidr.as_str(), *state)).collect();
        node.write_blocks("testnet", &blocks);
        *next = (*next + 1).min(20);
        Some(AgentReply::Done(true))
    };
    let (given, _) = node.with_agent(claim, || {
        thread::scope(|scope| {
            let node = &node;
            let calls: Vec<_> = (0..64).map(|n| scope.spawn(move || node.add(&format!("c-{n}")).unwrap())).collect();
            calls.into_iter().map(|call| call.join().unwrap().remove(0)).collect::<BTreeSet<String>>()
        })
    });
    assert_eq!(given.len(), 64);
    assert_eq!(node.reserved(), given);
}

#[test]
fn few_free_addresses_are_told_to_the_agent_and_nothing_waits_for_it() {
    let mut node = Node::new(&ACTIVE);
    node.set("minFree", json!(7));
    let (added, asked) = node.with_agent(|_| None, || (node.add("c-1"), node.add("c-2")));
    assert!(added.0.is_ok() && added.1.is_ok());
    assert_eq!(asked.len(), 1, "after the first one 7 are free");
    assert_eq!((asked[0].free, asked[0].families.as_slice()), (7, &[PoolFamily::V4][..]));
    // An agent that accepts nothing.
    let _listener = AgentListener::bind(&node.socket()).unwrap();
    let began = Instant::now();
    assert!(node.add("c-3").is_ok());
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
}

#[test]
fn the_agents_refusal_is_the_reason_of_the_add() {
    let node = Node::new(&ACTIVE);
    node.fill();
    let error = AgentError {
        code: 11,
        msg: "pool blue has no free block".into(),
        hint: Some("add a range to the pool".into()),
    };
    let (added, asked) = node.with_agent(|_| Some(AgentReply::Error(error.clone())), || node.add("c-late"));
    let (code, text) = added.unwrap_err();
    assert!(code == 11 && text.contains("10.77.0.8/29 (active)"), "{text}");
    assert!(text.contains("pool blue has no free block") && text.contains("hint: add a range to the pool"), "{text}");
    assert_eq!(asked.len(), 1);
    // One that says that it is done, and has done nothing, is not asked for ever.
    let (added, asked) = node.with_agent(|_| Some(AgentReply::Done(true)), || node.add("c-late"));
    assert_eq!((added.unwrap_err().0, asked.len()), (11, 16));
}

#[test]
fn an_agent_that_is_slow_dies_or_talks_nonsense_costs_the_timeout_at_most() {
    let mut node = Node::new(&ACTIVE);
    node.fill();
    node.set("timeout", json!(1));
    let refused = |says: &str| {
        let began = Instant::now();
        let (code, text) = node.add("c-late").unwrap_err();
        assert!(code == 11 && text.contains(says), "{says}: {text}");
        assert!(text.contains("pool blue has no free address") && began.elapsed() < Duration::from_secs(5), "{text}");
    };
    // It dies before it replies.
    node.with_agent(|_| None, || refused("ended without a reply"));
    // It is stopped.
    let listener = AgentListener::bind(&node.socket()).unwrap();
    refused("did not answer in time");
    drop(listener);
    // It dies in between, and its socket stays.
    refused("no agent listens on");
}

#[test]
fn a_process_of_another_user_is_no_agent_and_no_plugin() {
    let node = Node::new(&ACTIVE);
    node.fill();
    let dir = node.host.dir();
    fs::set_permissions(dir, PermissionsExt::from_mode(0o755)).unwrap();
    let open = dir.join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
    let foreign = open.join("agent.sock");
    // It listens until it has a connection.
    let script = format!(
        "setpriv --reuid 65534 --clear-groups /usr/bin/python3 -c '
import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.bind(\"{0}\")
s.listen()
open(\"{0}.ready\", \"w\").close()
c, _ = s.accept()
try: c.send(b\"{{\\\"done\\\":true}}\")
except OSError: pass
'",
        foreign.display()
    );
    let mut subject = node.subject.clone();
    subject.conf["ipam"]["agentSocket"] = json!(foreign);
    thread::scope(|scope| {
        let host = &node.host;
        scope.spawn(move || host.sh(&script));
        node.host.sh(&format!("until [ -e {}.ready ]; do sleep 0.01; done", foreign.display()));
        let (code, text) = subject.call(&node.host, "ADD", "c-late", &node.container.path(), &[]).refused();
        assert!(code == 11 && text.contains("of user 65534, which is not root, listens on"), "{text}");
    });

    let listener = AgentListener::bind(&node.socket()).unwrap();
    fs::set_permissions(node.socket(), PermissionsExt::from_mode(0o666)).unwrap();
    node.host.sh(&format!(
        "setpriv --reuid 65534 --clear-groups /usr/bin/python3 -c '
import socket
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(\"{}\")
s.send(b\"{{}}\")'",
        node.socket().display()
    ));
    let error = listener.accept(Duration::from_secs(10)).unwrap().request().unwrap_err();
    assert!(error.text.contains("of user 65534 is not root's"), "{error}");
}

#[test]
fn without_an_agent_its_program_is_run_once_for_all_that_wait() {
    let mut node = Node::new(&[]);
    node.set("timeout", json!(60));
    let dir = node.host.dir().to_owned();
    let program = dir.join("cnikit-agent");
    let blocks = r#"{"version":1,"blocks":[{"pool":"blue","cidr":"10.77.0.8/29","epoch":1,"state":"active"}]}"#;
    let script = format!(
        "#!/bin/sh\nenv >{0}/env\necho \"$@\" >>{0}/claims\n[ -e {0}/fails ] && {{ echo no engine >&2; exit 3; }}\n\
         [ -e {0}/refuses ] && {{ echo '{{\"error\":{{\"code\":7,\"msg\":\"pool blue is closed\"}}}}'; exit 1; }}\n\
         echo '{blocks}' >{1}/new.$$ && mv {1}/new.$$ {1}/testnet.blocks\necho '{{\"done\":true}}'\n",
        dir.display(),
        node.files.path().display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    node.set("agent", json!(program));
    let (_, text) = node.add("c-0").unwrap_err();
    assert!(text.contains("no agent listens on"), "without a configuration it is not run: {text}");
    node.set("agentConfig", json!(dir.join("agent.json")));
    fs::write(dir.join("agent.json"), "{}").unwrap();

    fs::write(dir.join("fails"), "").unwrap();
    let (code, text) = node.add("c-0").unwrap_err();
    assert!(code == 11 && text.contains("cnikit-agent claim ended with exit status 3: no engine"), "{text}");
    fs::rename(dir.join("fails"), dir.join("refuses")).unwrap();
    let (code, text) = node.add("c-0").unwrap_err();
    assert!(code == 7 && text.contains("pool blue is closed"), "{text}");
    fs::remove_file(dir.join("refuses")).unwrap();
    fs::remove_file(dir.join("claims")).unwrap();

    thread::scope(|scope| {
        let node = &node;
        (0..8).for_each(|n| drop(scope.spawn(move || node.add(&format!("c-{n}")).unwrap())));
    });
    let claims = fs::read_to_string(dir.join("claims")).unwrap();
    let request = r#"{"want":{"network":"testnet","pool":"blue","families":["v4"],"free":2}}"#;
    let expected = format!("claim --request {request} --config {}\n", dir.join("agent.json").display());
    assert_eq!(claims, expected, "once");
    let env = fs::read_to_string(dir.join("env")).unwrap();
    assert!(!env.contains("CNI_"), "{env}");
    assert_eq!(node.add("c-8").unwrap_err().0, 11);
}

#[test]
fn a_requested_address_is_taken_from_an_own_block_or_the_agent_says_whose_it_is() {
    let mut node = Node::new(&ACTIVE);
    assert_eq!(node.add_with("c-1", "IP=10.77.0.13", &[]).unwrap(), ["10.77.0.13"]);
    let args = |ips: Value| [("args", json!({"cni": {"ips": ips}}))];
    assert_eq!(node.add_with("c-2", "", &args(json!(["10.77.0.12/8"]))).unwrap(), ["10.77.0.12"]);
    let runtime = [("runtimeConfig", json!({"ips": ["10.77.0.11"]}))];
    assert_eq!(node.add_with("c-3", "", &runtime).unwrap(), ["10.77.0.11"]);
    let (code, text) = node.add_with("c-4", "IP=10.77.0.13", &[]).unwrap_err();
    assert!(code == 11 && text.contains("requested IP address 10.77.0.13 is not available"), "{text}");

    for (address, says) in [
        ("10.77.0.1", "no address for containers in pool blue"),
        ("10.99.0.1", "no address for containers in pool blue"),
        ("fd00:77::9", "the network gets no IPv6 of pool blue"),
    ] {
        let (code, text) = node.add_with("c-5", &format!("IP={address}"), &[]).unwrap_err();
        assert!(code == 7 && text.contains(says), "{address}: {text}");
    }
    let two = args(json!(["10.77.0.14", "10.77.0.15"]));
    assert!(node.add_with("c-5", "", &two).unwrap_err().1.contains("more than one address of IPv4 is requested"));

    let (code, text) = node.add_with("c-5", "IP=10.77.0.50", &[]).unwrap_err();
    assert!(
        code == 11 && text.contains("10.77.0.50 of pool blue is requested, and is not network testnet's"),
        "{text}"
    );
    let owned = AgentError { code: 101, msg: "10.77.0.48/29 belongs to node-2".into(), hint: None };
    let (added, asked) =
        node.with_agent(|_| Some(AgentReply::Error(owned.clone())), || node.add_with("c-5", "IP=10.77.0.50", &[]));
    let (code, text) = added.unwrap_err();
    assert!(code == 101 && text.contains("10.77.0.48/29 belongs to node-2"), "{text}");
    assert_eq!(asked[0].addresses, ["10.77.0.50".parse::<IpAddr>().unwrap()]);
    assert_eq!(asked[0].attachment.as_deref(), Some("c-5/eth0"));

    let (added, asked) =
        node.with_agent(|_| Some(AgentReply::Done(true)), || node.add_with("c-5", "IP=10.77.0.50", &[]));
    assert_eq!((added.unwrap_err().0, asked.len()), (11, 1), "an agent that has not got it is not asked again");
    let claim = |_: &Want| {
        node.write_blocks("testnet", &[ACTIVE[0], ("10.77.0.48/29", BlockState::Active), ACTIVE[1]]);
        Some(AgentReply::Done(true))
    };
    let (added, _) = node.with_agent(claim, || node.add_with("c-5", "IP=10.77.0.50", &[]));
    assert_eq!(added.unwrap(), ["10.77.0.50"]);
    node.set("families", json!([]));
    assert_eq!(
        node.add_with("c-6", "IP=10.77.0.51", &[]).unwrap(),
        ["10.77.0.51", "fd00:77::8"],
        "and any of the other family"
    );
}

#[test]
fn a_static_address_is_given_on_request_only() {
    let node = Node::new(&ACTIVE);
    let (code, text) = node.add_with("c-1", "IP=10.77.0.250", &[]).unwrap_err();
    assert!(code == 11 && text.contains("is requested, and is not"), "{text}");
    node.write_blocks("testnet", &[("10.77.0.250/32", BlockState::Active)]);
    assert_eq!(node.add("c-1").unwrap_err().0, 11, "not one of many");
    assert_eq!(node.add_with("c-1", "IP=10.77.0.250", &[]).unwrap(), ["10.77.0.250"]);
    node.del("c-1");
    assert_eq!(node.reserved(), BTreeSet::new());
}

#[test]
fn the_pool_is_that_of_the_namespace_and_args_choose_only_what_is_allowed() {
    let mut node = Node::new(&ACTIVE);
    let red = r#"{"name":"red","ranges":[{"subnet":"10.78.0.0/24"}],"blockSize4":29,"cooldown":0}"#;
    let pools = [POOL, red].map(|pool| PoolDefinition::parse(pool.as_bytes()).unwrap().config().clone());
    let select = BTreeMap::from([("team-a".to_owned(), "red".to_owned())]);
    node.files.write_pools(&LocalPools { pools: pools.to_vec(), select }).unwrap();
    let in_red = LocalBlock { pool: "red".into(), ..block("10.78.0.8/29", BlockState::Active) };
    let blocks = [block("10.77.0.8/29", BlockState::Active), in_red];
    node.files.network("testnet", Duration::from_secs(10), |_| {}).lock().unwrap().write_blocks(&blocks).unwrap();
    assert_eq!(node.add("c-1").unwrap(), ["10.77.0.8"]);
    let of_team = "IgnoreUnknown=1;K8S_POD_NAMESPACE=team-a;K8S_POD_NAME=web";
    assert_eq!(node.add_with("c-2", of_team, &[]).unwrap(), ["10.78.0.8"]);
    let args = [("args", json!({"cni": {"pool": "red"}}))];
    let (code, text) = node.add_with("c-3", "", &args).unwrap_err();
    assert!(code == 7 && text.contains("pool \"red\" is not one that this network allows"), "{text}");
    node.set("allowedPools", json!(["red"]));
    assert_eq!(node.add_with("c-3", "", &args).unwrap(), ["10.78.0.9"]);
    assert_eq!(node.reserved().len(), 3);
    for id in ["c-1", "c-2", "c-3"] {
        node.del(id);
    }
    assert_eq!(node.reserved(), BTreeSet::new(), "a DEL needs no pool");
}

#[test]
fn a_pods_own_name_counts_and_none_that_its_tenant_writes() {
    let mut node = Node::new(&ACTIVE);
    node.set("sticky", json!(true));
    let of_another = json!({"cni": {"sticky": {"namespace": "db", "name": "pg-0"}}});
    let listener = AgentListener::bind(&node.socket()).unwrap();
    let asked_by = |args: &str, more: &[(&str, Value)]| {
        thread::scope(|scope| {
            let agent = scope.spawn(|| {
                let connection = listener.accept(Duration::from_secs(10)).unwrap();
                let AgentRequest::Sticky(want) = connection.request().unwrap() else { panic!("it is about a name") };
                let refusal = AgentError { code: 11, msg: "it belongs to node-2".into(), hint: None };
                connection.reply(&AgentReply::Error(refusal)).unwrap();
                want
            });
            let (code, text) = node.add_with("c-1", args, more).unwrap_err();
            let want = agent.join().unwrap();
            assert!(code == 11 && text.contains("it belongs to node-2"), "{text}");
            (want.pool, want.namespace, want.name)
        })
    };
    let name = |pool: &str, namespace: &str, name: &str| (pool.to_owned(), namespace.to_owned(), name.to_owned());
    let of_pod = "IgnoreUnknown=1;K8S_POD_NAMESPACE=team-a;K8S_POD_NAME=web-0";
    let args = |more: Value| [("args", more)];
    assert_eq!(asked_by(of_pod, &args(of_another.clone())), name("blue", "team-a", "web-0"));
    // A runtime without pods has its names in `args`.
    assert_eq!(asked_by("", &args(of_another.clone())), name("blue", "db", "pg-0"));
    // Neither has the name another pool, nor an address of the tenant's choice.
    let mut of_pool = of_another.clone();
    of_pool["cni"]["pool"] = json!("red");
    let (code, text) = node.add_with("c-1", of_pod, &args(of_pool)).unwrap_err();
    assert!(code == 7 && text.contains("is not one that this network allows"), "{text}");
    let mut with_address = of_another;
    with_address["cni"]["ips"] = json!(["10.77.0.250"]);
    let (code, text) = node.add_with("c-1", of_pod, &args(with_address)).unwrap_err();
    assert!(code == 7 && text.contains("an address is requested, and addresses stay with a name"), "{text}");
    assert_eq!(node.reserved(), BTreeSet::new());
}

#[test]
fn status_needs_no_pool_if_each_namespace_has_one() {
    let mut node = Node::new(&[("10.77.0.8/29", BlockState::Active)]);
    node.set("pool", json!(""));
    let (code, text) = node.status().unwrap_err();
    assert!(code == 50 && text.contains("no pool is configured"), "{text}");
    node.serve_pool(POOL, &[("team-a", "blue")]);
    node.status().unwrap();
    assert_eq!(node.add_with("c-1", "K8S_POD_NAMESPACE=team-a", &[]).unwrap(), ["10.77.0.8"]);
    let (code, text) = node.add_with("c-2", "K8S_POD_NAMESPACE=team-b", &[]).unwrap_err();
    assert!(code == 7 && text.contains("namespace team-b has none"), "{text}");
    node.write_node(NodeState::Fenced, &boot());
    assert_eq!(node.status().unwrap_err().0, 51);
}

#[test]
fn status_fails_only_if_nothing_can_be_allocated_for_good() {
    let node = Node::bare();
    let (code, text) = node.status().unwrap_err();
    assert!(code == 50 && text.contains("network testnet has no block of pool blue, and no agent runs"), "{text}");
    let listener = AgentListener::bind(&node.socket()).unwrap();
    node.status().unwrap();
    drop(listener);
    fs::remove_file(node.socket()).unwrap();
    let mut node = Node::new(&ACTIVE);
    node.status().unwrap();
    node.set("pool", json!(""));
    let (code, text) = node.status().unwrap_err();
    assert!(code == 50 && text.contains("no pool is configured"), "{text}");
}

#[test]
fn a_dry_run_makes_nothing_and_says_where_the_address_comes_from() {
    let node = Node::new(&ACTIVE);
    let planned = |node: &Node| {
        let before = HostSnapshot::of(&node.host);
        let plan = node.subject.call(&node.host, "PLAN", "c-1", "", &[]).ok();
        HostSnapshot::of(&node.host).assert_unchanged_since(&before, &[], "after PLAN");
        plan
    };
    let plan = planned(&node);
    let steps = plan["plan"].to_string();
    assert!(steps.contains("reserve the address that is free for the longest time of 10.77.0.8-10.77.0.15"), "{steps}");
    assert_eq!(addresses(&plan["example"]), ["10.77.0.8"]);
    let bare = planned(&Node::bare());
    assert!(bare["plan"].to_string().contains("ask the agent at"), "{bare}");
    assert_eq!(addresses(&bare["example"]), ["192.0.2.2"]);
}

/// Upstream's plugin and ours, with the blocks as ranges, on the same directory.
#[test]
fn host_local_of_ours_and_of_upstream_continues_with_the_same_reservations_and_gives_them_back() {
    for directory in [bin().to_owned(), references()[0].clone()] {
        let node = Node::new(&ACTIVE);
        for n in 1..=3 {
            node.add(&format!("c-{n}")).unwrap();
        }
        let ranges = json!([[{"subnet": "10.77.0.0/24", "rangeStart": "10.77.0.8", "rangeEnd": "10.77.0.15", "gateway": "10.77.0.1"}]]);
        let ipam = json!({"type": "host-local", "ranges": ranges, "dataDir": node.files.data_dir()});
        let mut host_local = Subject::new(&directory, "host-local", json!({"ipam": ipam}));
        // Debian's release knows no newer version.
        host_local.conf["cniVersion"] = json!("1.0.0");
        let call = |verb: &str, id: &str| host_local.call(&node.host, verb, id, &node.container.path(), &[]);
        assert_eq!(
            addresses(&call("ADD", "c-4").ok()),
            ["10.77.0.11"],
            "it continues in turn: {}",
            directory.display()
        );
        let (_, text) = call("ADD", "c-2").refused();
        assert!(text.contains("duplicate allocation is not allowed"), "{text}");
        call("DEL", "c-1").ok();
        assert_eq!(node.reserved(), ["10.77.0.9", "10.77.0.10", "10.77.0.11"].map(str::to_owned).into());
        assert_eq!(node.add("c-5").unwrap(), ["10.77.0.12"], "and back");
        for id in ["c-2", "c-3", "c-4", "c-5"] {
            node.del(id);
        }
        assert_eq!(node.reserved(), BTreeSet::new());
    }
}
