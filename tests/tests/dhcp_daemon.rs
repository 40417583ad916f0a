//! The DHCP daemon against dnsmasq: its leases, what they survive, and its socket.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cnikit_dhcp_daemon::{
    CallError, LeaseFamily, LeaseOrder, LeaseRecords, LeaseReply, LeaseReport, LeaseRequest, call,
};
use cnikit_process::{Deadline, Env, How, Program, find_program};
use cnikit_testkit::{Container, Host};
use cnikit_tests::dhcp_servers::{DhcpServer, ServerMaker};
use cnikit_tests::dnsmasq::{DHCP_BRIDGE, DHCP_SERVER, Dnsmasq, connect, dhcp_bridge, dhcp_site};
use cnikit_tests::lease_daemon::{
    LeaseDaemon, assert_confined, assert_threads, assert_waits, configure, lease_records, order, owner,
};
use cnikit_tests::running_server::RunningServer;
use cnikit_tests::udhcpd::udhcpd;
use cnikit_tests::{installed, references, subject};
use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

const RANGE: &str = "10.99.0.10,10.99.0.200";

fn host() -> Host {
    let host = Host::new();
    dhcp_bridge(&host);
    host
}

fn container(host: &Host, number: usize) -> Container {
    let container = host.container();
    connect(host, &container, &format!("port{number}"), "eth0");
    container
}

/// As a daemon in a container, which sees the host's files below a directory (`-hostprefix`), and asks servers for replies to all
/// (`-broadcast`).
#[test]
fn the_flags_of_upstreams_daemon_have_their_effects() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &["--log-dhcp"]);
    let dir = host.dir().display();
    let prefix = host.dir().join("prefix");
    // The socket is below it, too.
    host.sh(&format!("mkdir -p {0}$(dirname {dir}) && ln -s {dir} {0}{dir}", prefix.display()));
    let daemon = LeaseDaemon::start(&host, &["-hostprefix", &prefix.display().to_string(), "-broadcast"]);
    let container = container(&host, 1);
    let below = prefix.join("elsewhere");
    host.sh(&format!("mkdir -p {0} && touch {0}/one && mount --bind {1} {0}/one", below.display(), container.path()));
    let order = LeaseOrder { netns: "/elsewhere/one".to_owned(), ..order(&container, "one") };
    let reply = daemon.try_call(&LeaseRequest::Add(order));
    host.sh(&format!("umount {}/one", below.display()));
    assert!(matches!(reply, Ok(LeaseReply::Lease { .. })), "{reply:?}");
    assert!(server.log().contains("broadcast response"), "{}", server.log());
    daemon.del("one");
}

/// Other users may be able to write to the directory of the file.
#[test]
fn a_pidfile_that_is_no_regular_file_is_refused_and_stays_as_it_is() {
    let host = host();
    let at = |name: &str| host.dir().join(name);
    std::fs::write(at("victim"), "stays").unwrap();
    std::fs::write(at("regular"), "a longer text than the number of a process").unwrap();
    host.sh(&format!("cd {} && ln -s victim link && ln -s absent dangling && mkfifo fifo", host.dir().display()));
    let await_that = |what: &str, is_so: &dyn Fn() -> bool| {
        let deadline = Deadline::after(Duration::from_secs(30));
        while !is_so() {
            assert!(deadline.pause(Duration::from_millis(10)), "{what}");
        }
    };
    let refused = |path: &Path, why: &str| {
        let daemon = LeaseDaemon::begin(&host, &["-pidfile", &path.display().to_string()]);
        await_that(&format!("{} does not end", path.display()), &|| daemon.has_ended());
        let ended = daemon.finish();
        assert_eq!(ended.how, How::Exit(1));
        let log = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(log.contains(&format!("Error writing pidfile {path:?}: {why}")), "{log}");
    };
    refused(&at("link"), "it is a symbolic link, and none is followed");
    refused(&at("dangling"), "it is a symbolic link, and none is followed");
    refused(&at("fifo"), "it is not a regular file");
    let reader = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(at("fifo")).unwrap();
    refused(&at("fifo"), "it is not a regular file");
    drop(reader);
    refused(Path::new("/dev/null"), "it is not a regular file");
    refused(host.dir(), "Is a directory");
    assert_eq!(std::fs::read_to_string(at("victim")).unwrap(), "stays");
    assert!(!at("absent").exists());

    let daemon = LeaseDaemon::begin(&host, &["-pidfile", &at("regular").display().to_string()]);
    let has_number = || std::fs::read_to_string(at("regular")).is_ok_and(|text| text.parse::<i32>().is_ok());
    await_that("it writes its number", &has_number);
    await_that("it serves", &|| daemon.try_call(&LeaseRequest::Status).is_ok());
    daemon.stop();
    assert!(!at("regular").exists());
}

/// How many descriptors a process has open that are sockets.
fn sockets(pid: i32) -> usize {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap();
    let links = files.filter_map(|file| std::fs::read_link(file.unwrap().path()).ok());
    links.filter(|link| link.to_string_lossy().starts_with("socket:")).count()
}

/// Waits until the daemon has its own socket only: no caller any more, and none in a namespace.
fn await_one_socket(daemon: &LeaseDaemon) {
    let deadline = Deadline::after(Duration::from_secs(30));
    while sockets(daemon.pid().unwrap()) != 1 {
        assert!(deadline.pause(Duration::from_millis(10)), "{} sockets", sockets(daemon.pid().unwrap()));
    }
}

/// The kernel closes a packet socket after a grace period: in the event loop, the last of 16 callers would wait for 16 of them.
#[test]
fn the_event_loop_closes_no_packet_socket() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &[]);
    let trace = host.dir().join("trace").display().to_string();
    let starter = ["strace", "-D", "-f", "-yy", "-o", &trace, "-e", "trace=close"].map(str::to_owned);
    let daemon = LeaseDaemon::begin_by(&host, &starter, &[]).serving();
    let event_loop = format!("{} ", daemon.pid().unwrap());
    let container = container(&host, 1);
    configure(&container, &daemon.add(&container, "one"));
    daemon.del("one");
    await_one_socket(&daemon);
    daemon.stop();
    let trace = std::fs::read_to_string(&trace).unwrap();
    // strace shows no kind of those of another network namespace.
    let is_packet = |call: &&str| call.contains("<PACKET:") || call.contains("<socket:");
    let closed: Vec<&str> = trace.lines().filter(is_packet).collect();
    assert_eq!(closed.len(), 3, "that of the exchange and that of the probes of ADD, and that of DEL: {trace}");
    assert!(trace.contains(&event_loop) && !closed.iter().any(|call| call.starts_with(&event_loop)), "{trace}");
}

#[test]
fn a_lease_is_got_checked_and_given_back() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &["--dhcp-option=option:mtu,1400"]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = container(&host, 1);
    container.sh("ip link set eth0 down");
    assert_confined(daemon.pid().unwrap());
    let lease = daemon.add(&container, "one");
    assert!(container.sh("ip link show eth0").contains("mtu 1400"), "the MTU of the server");
    assert_eq!(daemon.add(&container, "one"), lease, "a second ADD reports the same lease");
    let found = daemon.check(&container, "one");
    assert_eq!(found, [format!("eth0 does not have {}/24, the address of the lease", lease.address)]);
    configure(&container, &lease);
    assert_eq!(daemon.check(&container, "one"), [] as [String; 0]);
    container.sh("ip link set eth0 mtu 1500");
    assert_eq!(daemon.check(&container, "one"), ["eth0 has an MTU of 1500, and the server of the lease wants 1400"]);
    let other = host.container();
    let found = daemon.check(&other, "one");
    assert!(found.iter().any(|one| one.contains("another network namespace")), "{found:?}");

    let list = daemon.list();
    assert_eq!((list.len(), list[0].lease.as_ref(), &list[0].owner), (1, Some(&lease), &owner("one")));
    assert!(list[0].seconds_left.is_some_and(|left| left <= 120) && list[0].hindrance.is_none(), "{list:?}");
    await_one_socket(&daemon);

    daemon.del("one");
    daemon.del("one");
    server.await_leases("the lease is given back", <[String]>::is_empty);
    assert!(daemon.list().is_empty());
    assert_eq!(daemon.check(&container, "one"), ["the DHCP daemon has no lease of one/net/eth0"]);
    assert!(lease_records(&host).is_empty());
}

#[test]
fn leases_survive_a_kill_and_are_renewed_by_the_next_daemon() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let containers: Vec<Container> = (0..3).map(|number| container(&host, number)).collect();
    let leases: Vec<_> = (0..3).map(|number| daemon.add(&containers[number], &format!("c{number}"))).collect();
    containers.iter().zip(&leases).for_each(|(container, lease)| configure(container, lease));
    daemon.kill();
    assert!(host.dir().join("dhcp.sock").exists(), "the socket of a daemon that was killed is still there");

    let daemon = LeaseDaemon::start(&host, &[]);
    let is_renewed = |number: usize, report: &cnikit_dhcp_daemon::LeaseReport| {
        report
            .lease
            .as_ref()
            .is_some_and(|lease| lease.address == leases[number].address && lease.since > leases[number].since)
    };
    daemon.await_list("all leases are confirmed by the server", |list| {
        list.len() == 3 && list.iter().enumerate().all(|(number, report)| is_renewed(number, report))
    });
    assert_eq!(server.log().matches("DHCPDISCOVER(").count(), 3, "no lease was got anew: {}", server.log());
    assert_eq!(daemon.check(&containers[0], "c0"), [] as [String; 0]);
    (0..3).for_each(|number| daemon.del(&format!("c{number}")));
    server.await_leases("the leases are given back", <[String]>::is_empty);
}

#[test]
fn what_is_gone_while_no_daemon_runs_is_made_good() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let [released, removed, deleted] = [0, 1, 2].map(|number| container(&host, number));
    for (container, id) in [(&released, "released"), (&removed, "removed"), (&deleted, "deleted")] {
        configure(container, &daemon.add(container, id));
    }
    daemon.kill();
    let records = LeaseRecords::open(&host.dir().join("dhcp-leases")).unwrap();
    records.note_release(&owner("released")).unwrap();
    removed.sh("ip link delete eth0");
    drop(deleted);
    let daemon = LeaseDaemon::start(&host, &[]);
    assert!(daemon.list().is_empty(), "{:?}", daemon.list());
    assert_eq!(lease_records(&host).len(), 0);
    let log = daemon.stop();
    assert!(log.contains("released/net/eth0: its DEL came while no daemon ran"), "{log}");
    assert!(log.contains("removed/net/eth0: its network namespace or interface is gone"), "{log}");
    assert!(log.contains("deleted/net/eth0: its network namespace or interface is gone"), "{log}");
    server.await_leases("one lease is given back; two have no interface any more", |leases| leases.len() == 2);
}

/// What CHECK finds. A daemon that takes over between the reply to ADD and the address on the interface asks the server about the
/// lease first, and has no lease until it answers.
fn found_at_last(check: impl Fn() -> LeaseReply, goes_on: impl Fn() -> bool) -> LeaseReply {
    let mut found = check();
    while matches!(&found, LeaseReply::Drift { differences } if differences[0].contains("at the moment")) && goes_on() {
        found = check();
    }
    found
}

#[test]
fn a_daemon_takes_over_from_another_and_no_call_fails() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let mut daemon = LeaseDaemon::start(&host, &[]);
    let lasting = container(&host, 1);
    let lease = daemon.add(&lasting, "one");
    configure(&lasting, &lease);
    let others: Vec<Container> = (2..5).map(|number| container(&host, number)).collect();
    let socket = host.dir().join("dhcp.sock");
    let ask = |request: &LeaseRequest| call(&socket, request, Duration::from_secs(30)).unwrap();
    let is_over = AtomicBool::new(false);
    let deadline = Deadline::after(Duration::from_mins(2));
    let goes_on = || !is_over.load(Ordering::Relaxed) && deadline.remaining().is_some_and(|left| !left.is_zero());
    let lives = |container: &Container, id: &str| {
        let mut count = 0;
        while goes_on() {
            let reply = ask(&LeaseRequest::Add(order(container, id)));
            let LeaseReply::Lease { lease, .. } = reply else { panic!("{id}: {reply:?}") };
            configure(container, &lease);
            let (owner, netns, families) = (owner(id), container.path(), vec![LeaseFamily::V4]);
            let check = LeaseRequest::Check { owner: owner.clone(), netns, reported: None, families };
            let found = found_at_last(|| ask(&check), goes_on);
            assert!(found == LeaseReply::Done || !goes_on(), "{id}: {found:?}");
            assert_eq!(ask(&LeaseRequest::Del { owner }), LeaseReply::Done, "{id}");
            container.sh("ip address flush dev eth0");
            count += 1;
        }
        count
    };
    let daemon = thread::scope(|scope| {
        let status = scope.spawn(|| {
            while goes_on() {
                assert_eq!(ask(&LeaseRequest::Status), LeaseReply::Done);
            }
        });
        let id = |number: usize| format!("life{number}");
        let mut loops = Vec::new();
        for (number, container) in others.iter().enumerate() {
            loops.push(scope.spawn(move || lives(container, &id(number))));
        }
        for _ in 0..12 {
            let next = LeaseDaemon::start(&host, &[]);
            let ended = daemon.finish();
            assert!(ended.how.is_success(), "{}", String::from_utf8_lossy(&ended.stderr));
            daemon = next;
        }
        is_over.store(true, Ordering::Relaxed);
        status.join().unwrap();
        for one in loops {
            let count: usize = one.join().unwrap();
            assert!(count > 0, "no whole life meanwhile");
        }
        daemon
    });
    daemon.await_list("the lease is there", |list| list.len() == 1 && list[0].lease.is_some());
    assert_eq!(daemon.add(&lasting, "one").address, lease.address);
    server.await_leases("the others are given back", |leases| leases.len() == 1);
}

#[test]
fn an_order_without_an_answer_names_packet_and_link() {
    let host = host();
    let daemon = LeaseDaemon::start(&host, &["-timeout", "200ms"]);
    let container = container(&host, 1);
    let order = LeaseOrder { timeout_ms: 1_500, ..order(&container, "one") };
    let LeaseReply::Failed { message } = daemon.call(&LeaseRequest::Add(order)) else { panic!("a lease") };
    assert!(message.starts_with("no lease for eth0: DHCPDISCOVER got no answer: it was sent "), "{message}");
    assert!(message.ends_with(" on eth0"), "{message}");
    assert!(daemon.list().is_empty());
}

#[test]
fn an_order_whose_caller_is_gone_is_given_up() {
    let host = host();
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = container(&host, 1);
    let mut caller = UnixStream::connect(host.dir().join("dhcp.sock")).unwrap();
    let request = serde_json::json!({"version": 1, "message": LeaseRequest::Add(order(&container, "one"))});
    caller.write_all(format!("{request}\n").as_bytes()).unwrap();
    daemon.await_list("the order is there", |list| list.len() == 1);
    assert!(daemon.list()[0].hindrance.as_ref().unwrap().contains("DHCPDISCOVER"), "{:?}", daemon.list());
    drop(caller);
    daemon.await_list("it is given up", <[_]>::is_empty);
    await_one_socket(&daemon);
}

#[test]
fn an_order_whose_container_is_gone_is_given_up() {
    let host = host();
    let daemon = LeaseDaemon::start(&host, &["-timeout", "200ms"]);
    let container = container(&host, 1);
    let order = order(&container, "one");
    let reply = thread::scope(|scope| {
        let caller = scope.spawn(|| daemon.call(&LeaseRequest::Add(order)));
        daemon.await_list("the order is there", |list| list.len() == 1);
        // Killed while it waits for an offer: its namespace ends with it.
        drop(container);
        caller.join().unwrap()
    });
    assert!(matches!(&reply, LeaseReply::Failed { message } if message.ends_with("is gone")), "{reply:?}");
    assert!(daemon.list().is_empty());
    await_one_socket(&daemon);
}

#[test]
fn an_order_that_cannot_be_served_says_why() {
    let host = host();
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = host.container();
    let failed = |order: LeaseOrder| match daemon.call(&LeaseRequest::Add(order)) {
        LeaseReply::Failed { message } => message,
        other => panic!("{other:?}"),
    };
    let with = |netns: &str| LeaseOrder { netns: netns.to_owned(), ..order(&container, "one") };
    assert!(failed(order(&container, "one")).contains("eth0"), "there is no such link");
    assert_eq!(failed(with("/nowhere")), "there is no network namespace at /nowhere");
    assert!(failed(with("/etc/passwd")).starts_with("/etc/passwd is not a network namespace"));
    assert_eq!(failed(with("")), "no network namespace is named");
    assert!(failed(with("/proc/self/ns/net")).contains("is the daemon's own network namespace"));
}

#[test]
fn garbage_collection_gives_back_what_is_not_valid() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let containers = [0, 1].map(|number| container(&host, number));
    daemon.add(&containers[0], "valid");
    daemon.add(&containers[1], "stale");
    let gc = |network: &str, valid: &[&str]| {
        let valid = valid.iter().map(|id| ((*id).to_owned(), "eth0".to_owned())).collect();
        assert_eq!(daemon.call(&LeaseRequest::Gc { network: network.to_owned(), valid }), LeaseReply::Done);
    };
    gc("other", &[]);
    assert_eq!(daemon.list().len(), 2, "they are of another network");
    gc("net", &["valid"]);
    assert_eq!(daemon.list().iter().map(|one| one.owner.clone()).collect::<Vec<_>>(), [owner("valid")]);
    server.await_leases("the stale one is given back", |leases| leases.len() == 1);
}

#[test]
fn a_lost_address_is_replaced_on_the_interface() {
    let host = host();
    let server = Dnsmasq::start(&host, "10.99.0.10,10.99.0.20", &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = container(&host, 1);
    let lease = daemon.add(&container, "one");
    configure(&container, &lease);
    daemon.kill();
    drop(server);
    std::fs::remove_file(host.dir().join("dnsmasq/leases")).unwrap();
    let _server = Dnsmasq::start(&host, "10.99.0.30,10.99.0.40", &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    daemon.await_list("it has an address of the new range", |list| {
        list[0].lease.as_ref().is_some_and(|lease| (30..=40).contains(&lease.address.octets()[3]))
    });
    assert_eq!(daemon.check(&container, "one"), [] as [String; 0]);
    let addresses = container.sh("ip -4 -o address show dev eth0");
    assert!(!addresses.contains(&format!("{}/", lease.address)) && addresses.lines().count() == 1, "{addresses}");
    assert!(container.sh("ip route").contains("default via 10.99.0.1"));
    let log = daemon.stop();
    assert!(log.contains(&format!("one/net/eth0: {} is lost: 10.99.0.1 refused to renew it", lease.address)), "{log}");
}

#[test]
fn a_hundred_orders_at_once_get_a_hundred_addresses_without_a_thread_each() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let containers: Vec<Container> = (0..100).map(|number| container(&host, number)).collect();
    let mut addresses = thread::scope(|scope| {
        let add = |number: usize| daemon.add(&containers[number], &format!("c{number}")).address;
        let threads: Vec<_> = (0..100).map(|number| scope.spawn(move || add(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    addresses.sort();
    addresses.dedup();
    assert_eq!((addresses.len(), server.leases().len(), daemon.list().len()), (100, 100, 100));
    assert_threads(&daemon);
}

/// The memory of a process, in kilobytes, without the pages of its program: how many of those are mapped depends on the page cache.
fn memory(pid: i32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// The most memory of the daemon with a thousand leases, in kilobytes, without the pages of its program.
const MOST_MEMORY: usize = 6_000;

/// A host whose bridge has room for many leases. Several owners on one interface are several clients, by their identifiers.
fn large_host() -> Host {
    let host = host();
    host.sh(&format!(
        "ip address del {DHCP_SERVER}/24 dev {DHCP_BRIDGE}; ip address add {DHCP_SERVER}/16 dev {DHCP_BRIDGE}"
    ));
    host
}

/// Its server. dnsmasq would offer one address to all that ask at one time from one interface.
fn large_server(host: &Host) -> DhcpServer {
    let pool = ["10.99.1.1", "10.99.8.250"].map(str::to_owned);
    DhcpServer::start_in(host, ServerMaker::Kea, 7_200, ["10.99.0.0", "16", "255.255.0.0"], &pool)
}

/// Has the daemon get leases with these numbers, by so many callers at a time.
fn add_many(daemon: &LeaseDaemon, container: &Container, numbers: Range<usize>, callers: usize) {
    thread::scope(|scope| {
        for part in 0..callers {
            let numbers = numbers.clone().skip(part).step_by(callers);
            scope.spawn(move || numbers.for_each(|number| drop(daemon.add(container, &format!("c{number}")))));
        }
    });
}

/// The daemon is the one that is installed.
#[test]
fn a_thousand_leases_need_six_megabytes_and_no_thread_each() {
    const LEASES: usize = 1_000;
    let host = large_host();
    let _server = large_server(&host);
    let records = host.dir().join("dhcp-leases").display().to_string();
    let daemon = LeaseDaemon::begin_in(&host, installed(), &[], &["-datadir", &records], &host.dir().join("dhcp.sock"))
        .serving();
    let container = container(&host, 1);
    daemon.add(&container, "c0");
    let first = memory(daemon.pid().unwrap());
    add_many(&daemon, &container, 1..LEASES, 50);
    assert_threads(&daemon);
    let all = memory(daemon.pid().unwrap());
    println!("{first} kB with 1 lease, {all} kB with {LEASES} leases");
    assert!(all < MOST_MEMORY, "{first} kB with 1 lease, {all} kB with {LEASES}");
    let leases = daemon.list().into_iter().filter_map(|one| one.lease.map(|lease| lease.address));
    assert_eq!(leases.collect::<BTreeSet<_>>().len(), LEASES);
    // Reporting all of them takes memory too, for a moment.
    let after = memory(daemon.pid().unwrap());
    assert!(after < MOST_MEMORY * 3 / 2, "{after} kB after a report of all leases");
}

/// Many leases of before a restart: a server and a link are asked about them one after another.
#[test]
fn two_hundred_leases_are_confirmed_a_few_at_a_time() {
    const LEASES: usize = 200;
    let host = large_host();
    let server = large_server(&host);
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = container(&host, 1);
    add_many(&daemon, &container, 0..LEASES, 20);
    let before = daemon.list();
    let mut lines = Vec::new();
    for one in &before {
        lines.push(format!("address add {}/16 dev eth0", one.lease.as_ref().unwrap().address));
    }
    let batch = host.dir().join("addresses");
    std::fs::write(&batch, lines.join("\n")).unwrap();
    container.sh(&format!("ip -batch {}", batch.display()));
    let begun_before = before.iter().map(|one| one.lease.as_ref().unwrap().since).max().unwrap();
    daemon.kill();
    server.stop();

    // Without a server: each exchange has a socket, and no more of them begin before the first ones are given up.
    let daemon = LeaseDaemon::start(&host, &[]);
    let pid = daemon.pid().unwrap();
    let deadline = Deadline::after(Duration::from_secs(30));
    while sockets(pid) < 30 {
        assert!(deadline.pause(Duration::from_millis(50)), "{} sockets", sockets(pid));
    }
    let deadline = Deadline::after(Duration::from_secs(2));
    while deadline.pause(Duration::from_millis(50)) {
        assert!(sockets(pid) <= 40, "{} sockets", sockets(pid));
    }
    let is_in_use = |one: &LeaseReport| one.lease.is_some();
    assert!(daemon.list().iter().all(is_in_use), "each is used meanwhile");
    daemon.kill();

    let _server = large_server(&host);
    let daemon = LeaseDaemon::start(&host, &[]);
    let since = |one: &LeaseReport| one.lease.as_ref().map(|lease| lease.since).unwrap();
    daemon.await_list("all are confirmed", |list| list.iter().all(|one| since(one) > begun_before));
    let list = daemon.list();
    assert_eq!(list.len(), LEASES);
    for (one, former) in list.iter().zip(&before) {
        assert_eq!(one.lease.as_ref().unwrap().address, former.lease.as_ref().unwrap().address);
    }
    let mut times: Vec<Duration> = list.iter().map(since).collect();
    times.sort();
    let in_a_second =
        |from: Duration| times.iter().filter(|at| (from..from + Duration::from_secs(1)).contains(at)).count();
    let most = times.iter().map(|at| in_a_second(*at)).max().unwrap();
    let all = times[LEASES - 1].checked_sub(times[0]).unwrap();
    println!("{LEASES} leases confirmed in {all:?}, at most {most} requests in a second");
    assert!(most <= 100 && all > Duration::from_secs(2), "{most} in a second, {all:?}");
}

#[test]
fn only_root_is_served_and_another_program_on_the_socket_is_named() {
    let host = host();
    let daemon = LeaseDaemon::start(&host, &[]);
    let socket = host.dir().join("dhcp.sock");
    assert_eq!(std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777, 0o600);
    std::fs::set_permissions(host.dir(), PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&socket, PermissionsExt::from_mode(0o666)).unwrap();
    let reply = host.sh(&format!(
        "setpriv --reuid 65534 --clear-groups /usr/bin/python3 -c '
import socket
s = socket.socket(socket.AF_UNIX)
s.connect(\"{}\")
print(s.recv(1000).decode())'",
        socket.display()
    ));
    assert!(reply.contains("only root may call the DHCP daemon, not user 65534"), "{reply}");
    daemon.stop();
    assert!(!socket.exists());
    assert!(matches!(call(&socket, &LeaseRequest::Status, Duration::from_secs(1)), Err(CallError::NotRunning { .. })));
}

/// Those of Debian and of the newest release.
#[test]
fn upstreams_daemon_on_the_socket_is_named_by_plugin_and_daemon() {
    let host = host();
    let socket = host.dir().join("dhcp.sock");
    let container = container(&host, 1);
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let ipam = json!({"type": "dhcp", "daemonSocketPath": socket, "dataDir": host.dir().join("dhcp-leases")});
    let dhcp = subject("dhcp", json!({"ipam": ipam}));
    dhcp.call(&host, "ADD", "c-one", &container.path(), &[]).ok();
    daemon.kill();
    std::fs::remove_file(&socket).unwrap();
    drop(server);
    for bin in references() {
        let theirs = LeaseDaemon::begin_in(&host, &bin, &[], &[], &socket);
        let deadline = Deadline::after(Duration::from_secs(30));
        while UnixStream::connect(&socket).is_err() {
            assert!(!theirs.has_ended() && deadline.pause(Duration::from_millis(10)), "upstream's does not serve");
        }
        let error = call(&socket, &LeaseRequest::Status, Duration::from_secs(30)).unwrap_err();
        assert!(error.to_string().contains("a daemon that speaks HTTP, as upstream's does"), "{error}");
        let mut dhcp = subject("dhcp", json!({"ipam": {"type": "dhcp", "daemonSocketPath": socket}}));
        for daemon in ["", "auto"] {
            dhcp.conf["ipam"]["daemon"] = json!(daemon);
            let refused = dhcp.call(&host, "ADD", "c-one", &container.path(), &[]).json();
            let (msg, details) = (refused["msg"].as_str().unwrap(), refused["details"].as_str().unwrap());
            assert!(msg.contains("belongs to a daemon that speaks HTTP, as upstream's does"), "{refused}");
            assert!(details.contains("stop that program and start `dhcp daemon`"), "{refused}");
        }
        // Containers end nevertheless, and what our daemon had is noted for the next one.
        dhcp.conf["ipam"]["dataDir"] = json!(host.dir().join("dhcp-leases"));
        for verb in ["DEL", "GC"] {
            dhcp.call(&host, verb, "c-one", &container.path(), &[("cni.dev/valid-attachments", json!([]))]).ok();
            let records = lease_records(&host);
            let note = records.iter().find(|path| path.to_string_lossy().ends_with(".released"));
            std::fs::remove_file(note.unwrap_or_else(|| panic!("{verb}: {records:?}"))).unwrap();
        }
        let ended = LeaseDaemon::begin(&host, &[]).finish();
        let log = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.how, How::Exit(1));
        let wanted = "a daemon that speaks HTTP, as upstream's does; hint: stop it (`systemctl disable --now";
        assert!(log.contains(wanted), "{log}");
        assert!(UnixStream::connect(&socket).is_ok(), "upstream's serves on");
        theirs.stop();
        let _ = std::fs::remove_file(&socket); // which that of Debian leaves there
    }
}

/// One that is killed and started again at once finds the socket of the process that has not ended yet.
#[test]
fn a_daemon_whose_takeover_is_cut_off_by_a_kill_binds_the_socket() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &[]);
    let container = container(&host, 1);
    let first = LeaseDaemon::start(&host, &[]);
    let lease = first.add(&container, "c-one");
    kill(Pid::from_raw(first.pid().unwrap()), Signal::SIGSTOP).unwrap();
    let next = LeaseDaemon::begin(&host, &[]);
    // It has asked for the socket, and waits for the reply.
    assert_waits(|| next.has_ended());
    first.kill();
    let next = next.serving();
    assert_eq!(next.add(&container, "c-one").address, lease.address);
    next.del("c-one");
}

/// A daemon that has the request and does not get to it.
#[test]
fn del_and_gc_succeed_if_the_daemon_is_killed_meanwhile_and_the_next_one_gives_the_lease_back() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let container = container(&host, 1);
    let ipam = json!({"type": "dhcp", "daemonSocketPath": host.dir().join("dhcp.sock"), "dataDir": host.dir().join("dhcp-leases")});
    let dhcp = subject("dhcp", json!({"ipam": ipam}));
    for verb in ["DEL", "GC"] {
        let daemon = LeaseDaemon::start(&host, &[]);
        dhcp.call(&host, "ADD", "c-one", &container.path(), &[]).ok();
        let pid = Pid::from_raw(daemon.pid().unwrap());
        kill(pid, Signal::SIGSTOP).unwrap();
        thread::scope(|scope| {
            let call = scope.spawn(|| {
                let valid = [("cni.dev/valid-attachments", json!([]))];
                dhcp.call(&host, verb, "c-one", &container.path(), &valid).ok();
            });
            // The request is in the daemon's socket: the plugin waits for the reply.
            assert_waits(|| call.is_finished());
            daemon.kill();
            call.join().unwrap();
        });
        assert_eq!(server.leases().len(), 1, "{verb}");
        let daemon = LeaseDaemon::start(&host, &[]);
        server.await_leases("the next one gives it back", <[String]>::is_empty);
        assert!(daemon.list().is_empty() && lease_records(&host).is_empty(), "{verb}");
        daemon.stop();
    }
}

/// Renewed beyond its end by the name and the hardware address that the interface has then.
#[test]
fn an_interface_that_was_renamed_or_has_another_mac_keeps_its_lease() {
    for change in [
        "ip link set eth0 down; ip link set eth0 name lan0; ip link set lan0 up",
        "ip link set eth0 address 02:00:00:00:99:07",
    ] {
        let host = host();
        let server = DhcpServer::start(&host, ServerMaker::Kea, 8, [10, 20]);
        let daemon = LeaseDaemon::start(&host, &["-timeout", "500ms", "-resendmax", "2s"]);
        let container = container(&host, 1);
        let lease = daemon.add(&container, "one");
        configure(&container, &lease);
        container.sh(change);
        let is_renewed = |since: Duration, list: &[LeaseReport]| {
            list.len() == 1
                && list[0].lease.as_ref().is_some_and(|one| one.address == lease.address && one.since >= since)
        };
        let end = lease.expires_at().unwrap();
        daemon.await_list("it is renewed beyond its end", |list| is_renewed(end, list));
        let found = daemon.check(&container, "one");
        assert_eq!(found, [] as [String; 0], "{change}");
        daemon.kill();
        let daemon = LeaseDaemon::start(&host, &["-timeout", "500ms", "-resendmax", "2s"]);
        let since = daemon.list()[0].lease.as_ref().unwrap().since;
        daemon.await_list("the next daemon renews it", |list| is_renewed(since + Duration::from_millis(1), list));
        assert_eq!(daemon.check(&container, "one"), [] as [String; 0], "{change}");
        daemon.del("one");
        server.await_free(&lease.address.to_string());
    }
}

/// The root of a container may give its interface a name that a terminal obeys, or that is not UTF-8.
#[test]
fn a_name_of_any_bytes_is_printable_in_the_log_and_in_check() {
    let host = host();
    let _server = DhcpServer::start(&host, ServerMaker::Kea, 8, [10, 20]);
    let daemon = LeaseDaemon::start(&host, &["-timeout", "500ms", "-resendmax", "2s"]);
    let container = container(&host, 1);
    let ipam = json!({"type": "dhcp", "daemonSocketPath": host.dir().join("dhcp.sock"), "dataDir": host.dir().join("dhcp-leases")});
    let dhcp = subject("dhcp", json!({"ipam": ipam}));
    let result = dhcp.call(&host, "ADD", "c-one", &container.path(), &[]).json();
    let lease = daemon.list()[0].lease.clone().unwrap();
    configure(&container, &lease);
    let name = r"name=$(printf '\033[2J\302\233\377')";
    container.sh(&format!(
        "{name}; ip link set eth0 down; ip link set eth0 name \"$name\"; ip link set \"$name\" address 02:00:00:00:99:07 up"
    ));
    daemon.await_list("it is renewed", |list| list[0].lease.as_ref().is_some_and(|one| one.since > lease.since));
    container.sh(&format!("{name}; ip address flush dev \"$name\""));
    let checked = dhcp.call(&host, "CHECK", "c-one", &container.path(), &[("prevResult", result)]);
    let printed = "\\u001b[2J\\u009b\u{fffd}";
    let (code, msg) = checked.refused();
    assert!(code == 102 && msg.starts_with(&format!("{printed} does not have 10.99.0.")), "{checked:?}");
    let log = daemon.stop();
    assert!(log.contains(&format!(": {printed} has the hardware address 02:00:00:00:99:07 now\n")), "{log}");
    for text in [&checked.stdout, &checked.stderr, &log, &msg] {
        assert!(!text.chars().any(|letter| letter.is_control() && !matches!(letter, '\n' | '\t')), "{text:?}");
    }
}

/// A second daemon on another socket would renew the same leases and give them back.
#[test]
fn two_daemons_do_not_serve_the_same_leases() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = container(&host, 1);
    let lease = daemon.add(&container, "one");
    let records = host.dir().join("dhcp-leases").display().to_string();
    let other = host.dir().join("other.sock");
    let ended = LeaseDaemon::begin_in(&host, cnikit_tests::bin(), &[], &["-datadir", &records], &other).finish();
    let log = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert_eq!(ended.how, How::Exit(1));
    assert!(log.contains(&format!("process {} serves the leases of {records}", daemon.pid().unwrap())), "{log}");
    assert_eq!(daemon.add(&container, "one"), lease);
}

#[test]
fn an_order_that_waits_does_not_keep_another_daemon_from_taking_over() {
    let host = host();
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = container(&host, 1);
    let order = order(&container, "one");
    let reply = thread::scope(|scope| {
        let caller = scope.spawn(|| daemon.call(&LeaseRequest::Add(order)));
        daemon.await_list("the order is there", |list| list.len() == 1);
        let began = Instant::now();
        let next = LeaseDaemon::start(&host, &[]);
        assert!(began.elapsed() < Duration::from_secs(20), "callers give up after 20 s: {:?}", began.elapsed());
        next.del("one");
        caller.join().unwrap()
    });
    assert!(
        matches!(&reply, LeaseReply::Failed { message } if message.contains("is being replaced, try again")),
        "{reply:?}"
    );
}

/// A runtime may remove the path that its ADD has named: a process in the namespace shows that the container runs.
#[test]
fn a_lease_survives_the_path_of_its_namespace() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = container(&host, 1);
    let path = host.dir().join("netns");
    std::os::unix::fs::symlink(container.path(), &path).unwrap();
    let order = LeaseOrder { netns: path.display().to_string(), ..order(&container, "one") };
    let LeaseReply::Lease { lease, .. } = daemon.call(&LeaseRequest::Add(order)) else { panic!("no lease") };
    configure(&container, &lease);
    let process: i32 = container.sh("sleep 300 >/dev/null 2>&1 </dev/null & echo $!").trim().parse().unwrap();
    daemon.kill();
    std::fs::remove_file(&path).unwrap();
    let daemon = LeaseDaemon::start(&host, &[]);
    daemon.await_list("the server confirms it", |list| {
        list.len() == 1 && list[0].lease.as_ref().is_some_and(|one| one.since > lease.since)
    });
    assert_eq!(server.leases().len(), 1);
    // With its last process it is gone.
    daemon.kill();
    kill(Pid::from_raw(process), Signal::SIGKILL).unwrap();
    drop(container);
    let deadline = Deadline::after(Duration::from_secs(30));
    while Path::new(&format!("/proc/{process}/ns/net")).exists() && deadline.pause(Duration::from_millis(10)) {}
    let daemon = LeaseDaemon::start(&host, &[]);
    assert!(daemon.list().is_empty() && lease_records(&host).is_empty(), "{:?}", daemon.list());
}

/// Smaller, larger, and none any more: never larger than the interface had.
#[test]
fn another_router_and_another_mtu_of_the_server_reach_the_interface() {
    let host = host();
    let container = container(&host, 1);
    let restarted = |options: &[&str]| (Dnsmasq::start(&host, RANGE, options), LeaseDaemon::start(&host, &[]));
    let (server, daemon) = restarted(&["--dhcp-option=option:mtu,1400"]);
    let lease = daemon.add(&container, "one");
    configure(&container, &lease);
    let mut running = (server, daemon);
    let mut since = lease.since;
    let steps: [(&[&str], &str, u32, &str); 4] = [
        (
            &["--dhcp-option=option:mtu,1450", "--dhcp-option=option:router,10.99.0.7"],
            "10.99.0.7",
            1450,
            "the routers from 10.99.0.1 to 10.99.0.7",
        ),
        (&["--dhcp-option=option:mtu,1300"], "10.99.0.1", 1300, "the MTU from 1450 to 1300"),
        (&["--dhcp-option=option:mtu,9000"], "10.99.0.1", 1500, "the MTU from 1300 to 9000"),
        (&[], "10.99.0.1", 1500, "the MTU from 9000 to none"),
    ];
    for (options, router, mtu, logged) in steps {
        running.1.kill();
        drop(running.0);
        running = restarted(options);
        let daemon = &running.1;
        daemon.await_list("it is renewed", |list| list[0].lease.as_ref().is_some_and(|one| one.since > since));
        since = daemon.list()[0].lease.as_ref().unwrap().since;
        let routes = container.sh("ip route show default");
        assert_eq!(routes.trim(), format!("default via {router} dev eth0"), "{options:?}");
        let link = container.sh("ip link show eth0");
        assert!(link.contains(&format!(" mtu {mtu} ")), "{options:?}: {link}");
        assert_eq!(daemon.check(&container, "one"), [] as [String; 0]);
        let (server, daemon) = running;
        let log = daemon.stop();
        assert!(log.contains(logged), "{log}");
        running = (server, LeaseDaemon::start(&host, &[]));
        let again = since;
        running.1.await_list("it is renewed", |list| list[0].lease.as_ref().is_some_and(|one| one.since > again));
        since = running.1.list()[0].lease.as_ref().unwrap().since;
    }
}

#[test]
fn the_lease_of_a_namespace_that_is_gone_is_given_back_by_the_bridge() {
    let (host, site) = dhcp_site();
    let server = Dnsmasq::start(&site, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let [one, two, three] = [0, 1, 2].map(|number| container(&host, number));
    for (container, id) in [(&one, "one"), (&two, "two"), (&three, "three")] {
        configure(container, &daemon.add(container, id));
    }
    drop(one);
    daemon.del("one");
    server.await_leases("DEL gives it back", |leases| leases.len() == 2);
    // The daemon finds out by itself when it starts.
    daemon.kill();
    drop(two);
    let daemon = LeaseDaemon::start(&host, &[]);
    server.await_leases("the next daemon gives it back", |leases| leases.len() == 1);
    assert_eq!(daemon.list().len(), 1);
    assert_eq!(daemon.check(&three, "three"), [] as [String; 0]);
    let log = daemon.stop();
    assert!(
        log.contains("two/net/eth0: its network namespace or interface is gone: the lease is given back by br-dhcp"),
        "{log}"
    );
}

#[test]
fn the_lease_of_a_macvlan_that_is_gone_is_given_back_by_its_master() {
    let (host, site) = dhcp_site();
    host.sh("ip link set uplink nomaster");
    let server = Dnsmasq::start(&site, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = host.container();
    host.sh(&format!(
        "ip link add link uplink name mac0 type macvlan mode bridge && ip link set mac0 netns {}",
        container.path()
    ));
    container.sh("ip link set mac0 name eth0 && ip link set eth0 up");
    configure(&container, &daemon.add(&container, "one"));
    assert_eq!(server.leases().len(), 1);
    drop(container);
    daemon.del("one");
    server.await_leases("DEL gives it back", <[String]>::is_empty);
}

#[test]
fn after_a_reboot_a_container_gets_its_address_again_and_garbage_is_given_back() {
    let (host, site) = dhcp_site();
    let server = Dnsmasq::start(&site, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let [one, two, three] = [0, 1, 2].map(|number| container(&host, number));
    let leases = [(&one, "one"), (&two, "two"), (&three, "three")].map(|(container, id)| daemon.add(container, id));
    daemon.kill();
    // The records are as those of a boot before this one.
    for path in lease_records(&host) {
        let mut record: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
        record["place"]["boot"] = serde_json::json!("00000000-0000-4000-8000-000000000000");
        std::fs::write(&path, record.to_string()).unwrap();
    }
    drop((one, two, three));
    let daemon = LeaseDaemon::start(&host, &[]);
    assert!(daemon.list().is_empty() && server.leases().len() == 3, "their containers may come back");
    let again = container(&host, 7);
    assert_eq!(daemon.add(&again, "one").address, leases[0].address);
    let log = server.log();
    assert!(log.contains(&format!("DHCPREQUEST({DHCP_BRIDGE}) {} {} ", leases[0].address, mac_of(&again))), "{log}");
    assert_eq!(log.matches("DHCPDISCOVER(").count(), 3, "INIT-REBOOT needs none: {log}");
    daemon.del("two");
    let valid = vec![("one".to_owned(), "eth0".to_owned())];
    assert_eq!(daemon.call(&LeaseRequest::Gc { network: "net".to_owned(), valid }), LeaseReply::Done);
    server.await_leases("the others are given back", |leases| leases.len() == 1);
    assert_eq!(lease_records(&host).len(), 1);
}

/// The hardware address of a container's `eth0`.
fn mac_of(container: &Container) -> String {
    container.sh("ip -br link show eth0 | awk '{print $3}'").trim().to_owned()
}

/// The units that are shipped.
fn unit(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../plugins/dhcp/systemd").join(name)
}

/// The values of a setting of the service, as words.
fn setting(key: &str) -> Vec<String> {
    let text = std::fs::read_to_string(unit("cni-dhcp.service")).unwrap();
    let of_key = |line: &str| Some(line.strip_prefix(key)?.strip_prefix('=')?.to_owned());
    let lines: Vec<String> = text.lines().filter_map(of_key).collect();
    assert!(!lines.is_empty(), "the service has no {key}");
    lines.iter().flat_map(|line| line.split_whitespace()).map(str::to_owned).collect()
}

/// Gets a lease and gives it back.
fn serves_a_life(host: &Host, daemon: &LeaseDaemon, number: usize) {
    let container = container(host, number);
    let id = format!("life{number}");
    let lease = daemon.add(&container, &id);
    configure(&container, &lease);
    assert_eq!(daemon.check(&container, &id), [] as [String; 0]);
    daemon.del(&id);
}

#[test]
fn systemd_passes_the_socket_on_and_keeps_it() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &[]);
    let socket = host.dir().join("dhcp.sock");
    let starter = ["systemd-socket-activate".to_owned(), "-l".to_owned(), socket.display().to_string()];
    let daemon = LeaseDaemon::begin_by(&host, &starter, &[]);
    let deadline = Deadline::after(Duration::from_secs(30));
    while !socket.exists() {
        assert!(deadline.pause(Duration::from_millis(10)), "systemd-socket-activate makes no socket");
    }
    // The daemon is started by this call, which waits for it.
    serves_a_life(&host, &daemon, 1);
    // A daemon that is started by hand takes it over, and knows whose the socket is.
    let by_hand = LeaseDaemon::start(&host, &[]);
    let log = String::from_utf8_lossy(&daemon.finish().stderr).into_owned();
    assert!(log.contains("dhcp: daemon: serves on "), "{log}");
    by_hand.stop();
    assert!(socket.exists(), "the socket is systemd's to remove: {log}");
    let two = ["-l".to_owned(), host.dir().join("second.sock").display().to_string()];
    let daemon = LeaseDaemon::begin_by(&host, &[starter.as_slice(), &two].concat(), &[]);
    let refused = loop {
        match daemon.try_call(&LeaseRequest::Status) {
            Err(CallError::NotRunning { .. }) if deadline.pause(Duration::from_millis(10)) => {}
            other => break other,
        }
    };
    assert!(refused.is_err(), "{refused:?}");
    let ended = daemon.finish();
    let log = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(log.contains("systemd has passed on 2 sockets"), "{log}");
}

#[test]
fn the_capabilities_of_the_unit_are_all_that_the_daemon_needs() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &[]);
    let mut set = vec!["-all".to_owned()];
    for capability in setting("CapabilityBoundingSet") {
        set.push(capability.replacen("CAP_", "+", 1).to_lowercase());
    }
    let set = set.join(",");
    let starter = ["setpriv", "--no-new-privs", "--inh-caps=-all", &format!("--bounding-set={set}")].map(str::to_owned);
    let daemon = LeaseDaemon::begin_by(&host, &starter, &[]).serving();
    let status = std::fs::read_to_string(format!("/proc/{}/status", daemon.pid().unwrap())).unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:\t")).unwrap();
    let count = u64::from_str_radix(effective, 16).unwrap().count_ones();
    assert_eq!(count as usize, setting("CapabilityBoundingSet").len(), "{status}");
    serves_a_life(&host, &daemon, 1);
}

#[test]
fn the_unit_allows_every_system_call_of_the_daemon_and_little_else() {
    let host = host();
    let server = udhcpd(&host, 8);
    let calls = host.dir().join("calls");
    let starter = ["strace", "-f", "-qq", "-o", &calls.display().to_string()].map(str::to_owned);
    let daemon = LeaseDaemon::begin_by(&host, &starter, &["-timeout", "500ms", "-resendmax", "2s"]).serving();
    let container = container(&host, 1);
    let lease = daemon.add(&container, "one");
    configure(&container, &lease);
    daemon.await_list("it is renewed", |list| list[0].lease.as_ref().is_some_and(|one| one.since > lease.since));
    drop(server);
    daemon.await_list("it ends", |list| list[0].lease.is_none());
    daemon.del("one");
    daemon.stop();

    let mut allowed = BTreeSet::new();
    let groups = |name: &str| -> BTreeSet<String> {
        let text = host.sh(&format!("systemd-analyze --no-pager syscall-filter {name}"));
        let names = text.lines().skip(1).map(|line| line.trim().to_owned()).filter(|name| !name.starts_with('#'));
        names.collect()
    };
    let expanded = |name: &str| {
        let mut found = BTreeSet::new();
        let mut open = vec![name.to_owned()];
        while let Some(name) = open.pop() {
            if name.starts_with('@') {
                open.extend(groups(&name));
            } else {
                found.insert(name);
            }
        }
        found
    };
    let mut refused = false;
    for word in setting("SystemCallFilter") {
        refused |= word.starts_with('~'); // the line with it is the last one
        let names = expanded(word.trim_start_matches('~'));
        if refused { allowed.retain(|name| !names.contains(name)) } else { allowed.extend(names) }
    }
    assert!(allowed.len() > 100 && !allowed.contains("mount") && !allowed.contains("ptrace"), "{allowed:?}");
    let text = std::fs::read_to_string(calls).unwrap();
    let used = text.lines().filter_map(|line| line.split_once(' ')?.1.trim().split_once('(').map(|(name, _)| name));
    let used: BTreeSet<&str> = used.filter(|name| name.chars().all(|c| c.is_alphanumeric() || c == '_')).collect();
    assert!(used.contains("setns") && used.contains("bind") && used.contains("fsync"), "{used:?}");
    // What the daemon does before it serves, and what it can do without.
    let optional = ["execve", "prlimit64"];
    let missing: Vec<&&str> =
        used.iter().filter(|name| !allowed.contains(**name) && !optional.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_units_are_valid_and_hardened() {
    let host = Host::new();
    let units = host.dir().join("units");
    std::fs::create_dir(&units).unwrap();
    let text = std::fs::read_to_string(unit("cni-dhcp.service")).unwrap();
    let here = cnikit_tests::bin().join("dhcp").display().to_string();
    std::fs::write(units.join("cni-dhcp.service"), text.replace("/opt/cni/bin/dhcp", &here)).unwrap();
    std::fs::copy(unit("cni-dhcp.socket"), units.join("cni-dhcp.socket")).unwrap();
    let dir = units.display();
    let (valid, said) = host.try_sh(&format!("systemd-analyze verify {dir}/cni-dhcp.service {dir}/cni-dhcp.socket"));
    assert!(valid && said.trim().is_empty(), "{said}");
    // 10 is no protection at all; without any setting the score is 9.6.
    let (hardened, said) = host
        .try_sh(&format!("systemd-analyze security --offline=yes --no-pager --threshold=31 {dir}/cni-dhcp.service"));
    assert!(hardened, "{said}");
}

/// How a script of a server begins: with its socket.
const ROGUE_SOCKET: &str = r#"
import os, random, socket, struct
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
s.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, b"rogue0")
s.bind(("", 67))
"#;

/// Answers every DISCOVER and REQUEST with garbage, packets to others, offers without end of options, and floods.
const ROGUE: &str = r#"
def say(data):
    try: s.sendto(data, ("255.255.255.255", 68))
    except OSError: pass
print("ready", flush=True)
while True:
    asked = s.recv(2000)
    if len(asked) < 240: continue
    xid, mac = asked[4:8], asked[28:44]
    def reply(xid, mac, options, hlen=6):
        head = struct.pack("!BBBB", 2, 1, hlen, 0) + xid + bytes(8) + socket.inet_aton("10.99.0.99")
        return head + bytes(8) + mac + bytes(192) + b"\x63\x82\x53\x63" + options + b"\xff"
    kind = lambda number: bytes([53, 1, number]) + bytes([54, 4]) + socket.inet_aton("10.99.0.66")
    say(os.urandom(random.randrange(600)))
    say(reply(os.urandom(4), mac, kind(5)))
    say(reply(xid, os.urandom(16), kind(5)))
    say(reply(xid, mac, kind(5), 255))
    say(reply(xid, mac, kind(2)[:4]))
    say(reply(xid, mac, bytes([53, 255]) + os.urandom(9)))
    say(reply(xid, mac, kind(6) + bytes([121, 3, 33, 1, 1])))
    say(reply(xid, mac, b"".join(bytes([random.randrange(1, 255), 1, 0]) for _ in range(400))))
    say(reply(xid, mac, b"".join(bytes([random.randrange(1, 255), 0]) for _ in range(600))))
    say(reply(xid, mac, b"".join(bytes([random.randrange(1, 255), 1, 0]) for _ in range(1500))))
    for _ in range(300): say(reply(os.urandom(4), mac, kind(2)))
"#;

/// Its offers and acknowledgements are valid, for leases of eight seconds. The first lease comes with one route more than a lease
/// may have, and a renewal with a route to the addresses of the loopback; both name a router.
const ROGUE_THAT_WINS: &str = r#"
address = socket.inet_aton
def option(code, value):
    parts = [value[at:at + 255] for at in range(0, len(value), 255)]
    return b"".join(bytes([code, len(part)]) + part for part in parts)
many = b"".join(bytes([24, 10, 5, number]) + address("10.99.0.66") for number in range(129))
loopback = bytes([8, 127]) + address("10.99.0.66") + bytes([16, 10, 7]) + address("10.99.0.66")
acknowledged = 0
while True:
    asked = s.recv(2000)
    asked_for = asked.find(b"\x35\x01", 240) + 2 # option 53 of one byte
    if asked_for < 2 or asked[asked_for] not in (1, 3): continue
    kind = 2 if asked[asked_for] == 1 else 5
    acknowledged += kind == 5
    routes, router = (many, "10.99.0.66") if acknowledged <= 1 else (loopback, "10.99.0.67")
    head = bytes([2, 1, 6, 0]) + asked[4:8] + bytes(8) + address("10.99.0.99") + bytes(8) + asked[28:44] + bytes(192)
    options = bytes([53, 1, kind]) + option(54, address("10.99.0.66")) + option(51, struct.pack("!I", 8))
    options += option(1, address("255.255.255.0")) + option(3, address(router)) + option(121, routes)
    s.sendto(head + b"\x63\x82\x53\x63" + options + b"\xff", ("255.255.255.255", 68))
"#;

/// A server of this script in a container, on a port of its own as another container has one.
fn rogue(host: &Host, script: &str) -> (Container, RunningServer) {
    let rogue = host.container();
    host.sh(&format!("ip link add rport type veth peer name rogue0 netns {}", rogue.path()));
    host.sh(&format!("ip link set rport master {DHCP_BRIDGE} up"));
    rogue.sh("ip address add 10.99.0.66/24 dev rogue0 && ip link set rogue0 up");
    let file = host.dir().join("rogue.py");
    std::fs::write(&file, format!("{ROGUE_SOCKET}{script}")).unwrap();
    let program = Program::new(find_program("nsenter").unwrap(), Env::Clean(&[])).args(vec![
        format!("--net={}", rogue.path()).into(),
        "python3".into(),
        file.into(),
    ]);
    let server = RunningServer::start(host, program);
    rogue.sh("timeout 30 sh -c 'until ss -Hlun | grep -q :67; do sleep 0.05; done'");
    (rogue, server)
}

/// What a server could have changed outside the interface of its lease: on the host, and in another container.
fn around(host: &Host, other: &Container) -> [String; 2] {
    let shown =
        "ip -4 -o address; ip -4 route show table all; ip rule; ip -o link | sed 's/ state .*//'; cat /etc/resolv.conf
        cd /proc/sys/net/ipv4 && grep -rs . ip_forward conf";
    [host.sh(shown), other.sh(shown)]
}

/// Nor does it make the daemon write outside the interface.
#[test]
fn a_rogue_server_keeps_no_container_from_its_lease() {
    let host = host();
    let (_rogue, rogue_server) = rogue(&host, ROGUE);
    // The rogue is a second faster.
    let _server = Dnsmasq::start(&host, RANGE, &["--dhcp-reply-delay=1"]);
    let daemon = LeaseDaemon::start(&host, &["-timeout", "500ms"]);
    let [container, other] = [1, 2].map(|number| container(&host, number));
    configure(&other, &daemon.add(&other, "other"));
    let before = around(&host, &other);
    let lease = daemon.add(&container, "one");
    assert_eq!(lease.server.to_string(), "10.99.0.1");
    assert_eq!(around(&host, &other), before);
    configure(&container, &lease);
    assert_eq!(daemon.check(&container, "one"), [] as [String; 0]);
    assert!(!rogue_server.has_ended(), "it attacked to the end");
    let received = host.sh("ip -j -s link show rport | python3 -c 'import json, sys; print(json.load(sys.stdin)[0][\"stats64\"][\"rx\"][\"packets\"])'");
    assert!(received.trim().parse::<u32>().unwrap() > 600, "{received}");
    assert_threads(&daemon);
}

#[test]
fn a_rogue_server_that_wins_gets_no_route_of_its_own_and_reaches_nothing_else() {
    let host = host();
    let daemon = LeaseDaemon::start(&host, &["-timeout", "500ms"]);
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let [container, other] = [1, 2].map(|number| container(&host, number));
    configure(&other, &daemon.add(&other, "other"));
    drop(server);
    let (_rogue, _rogue_server) = rogue(&host, ROGUE_THAT_WINS);
    let before = around(&host, &other);
    let lease = daemon.add(&container, "one");
    assert_eq!((lease.server.to_string(), lease.address.to_string()), ("10.99.0.66".into(), "10.99.0.99".into()));
    assert_eq!(lease.parameters.ignored, [121], "129 routes");
    configure(&container, &lease);
    let routes = |router: &str| {
        format!("default via {router} dev eth0 \n10.99.0.0/24 dev eth0 proto kernel scope link src 10.99.0.99 \n")
    };
    assert_eq!(container.sh("ip route"), routes("10.99.0.66"));
    daemon.await_list("it is renewed", |list| {
        list.iter()
            .any(|one| one.owner == owner("one") && one.lease.as_ref().is_some_and(|one| one.since > lease.since))
    });
    assert_eq!(container.sh("ip route"), routes("10.99.0.67"), "the renewal has reached the interface");
    assert!(!container.sh("ip route show table all").contains("127."), "nothing of the loopback");
    assert_eq!(around(&host, &other), before);
    let log = daemon.stop();
    assert!(log.contains("one/net/eth0: the server has changed the routers from 10.99.0.66 to 10.99.0.67"), "{log}");
}

#[test]
fn requests_that_are_none_are_refused_and_harm_nothing() {
    let host = host();
    let daemon = LeaseDaemon::start(&host, &[]);
    let socket = host.dir().join("dhcp.sock");
    let say = |text: &[u8]| {
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(text).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    assert!(say(b"GET / HTTP/1.0\n").contains("it is not JSON"));
    assert!(say(b"{\"version\":9}\n").contains("version 9 of the protocol"));
    assert!(say(b"{\"version\":1,\"message\":{\"add\":{}}}\n").contains("missing field"));
    // One request a connection: whatever follows it, at once or while the first one waits, has no reply and no effect.
    let status = json!({"version": 1, "message": LeaseRequest::Status}).to_string();
    let is_one = |reply: &str| reply.matches('\n').count() == 1 && reply.ends_with('\n');
    let reply = say(format!("{status}\n{{\"version\":9}}\n").as_bytes());
    assert!(is_one(&reply) && reply.contains("done"), "{reply}");
    let container = container(&host, 1);
    let order = LeaseOrder { timeout_ms: 1_500, ..order(&container, "one") };
    let mut stream = UnixStream::connect(&socket).unwrap();
    let line = json!({"version": 1, "message": LeaseRequest::Add(order)});
    stream.write_all(format!("{line}\n").as_bytes()).unwrap();
    daemon.await_list("the order is there", |list| list.len() == 1);
    stream.write_all(format!("{status}\n").as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    assert!(is_one(&reply) && reply.contains("no lease for eth0"), "{reply}");
    let mut endless = UnixStream::connect(&socket).unwrap();
    let chunk = vec![b' '; 1 << 20];
    while endless.write_all(&chunk).is_ok() {}
    let silent: Vec<UnixStream> = (0..600).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    assert_eq!(daemon.call(&LeaseRequest::Status), LeaseReply::Done, "silent callers are dropped after a while");
    drop(silent);
}

#[test]
fn a_lease_of_seconds_is_renewed_and_its_address_goes_with_the_server_and_comes_back() {
    let host = host();
    let server = udhcpd(&host, 8);
    let daemon = LeaseDaemon::start(&host, &["-timeout", "500ms", "-resendmax", "2s"]);
    let container = container(&host, 1);
    let lease = daemon.add(&container, "one");
    configure(&container, &lease);
    let end = lease.expires_at().unwrap();
    daemon.await_list("it is renewed beyond its end", |list| {
        list[0].lease.as_ref().is_some_and(|lease| lease.since >= end)
    });
    assert_eq!(daemon.check(&container, "one"), [] as [String; 0]);
    drop(server);
    daemon.await_list("it ends", |list| list[0].lease.is_none());
    assert_eq!(container.sh("ip -4 -o address show dev eth0"), "", "the address may not be used any more");
    let found = daemon.check(&container, "one");
    assert!(found[0].starts_with("eth0 has no lease at the moment: DHCPDISCOVER got no answer"), "{found:?}");
    let _server = udhcpd(&host, 8);
    daemon.await_list("it has a lease again", |list| list[0].lease.is_some());
    assert_eq!(daemon.check(&container, "one"), [] as [String; 0]);
    assert!(container.sh("ip route").contains("default via 10.99.0.1"));
    let log = daemon.stop();
    assert!(log.contains("is lost: no server renewed it in time"), "{log}");
}

/// What a process has used of a processor, in hundredths of a second.
fn processor_time(pid: i32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum()
}

#[test]
fn without_free_descriptors_it_waits_without_work_says_why_and_keeps_its_leases() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &[]);
    let starter = ["prlimit", "--nofile=32:32"].map(str::to_owned);
    let daemon = LeaseDaemon::begin_by(&host, &starter, &[]).serving();
    let (one, two) = (container(&host, 1), container(&host, 2));
    let lease = daemon.add(&one, "one");
    configure(&one, &lease);
    let socket = host.dir().join("dhcp.sock");
    // The first of them is accepted before the table is full.
    let mut caller = UnixStream::connect(&socket).unwrap();
    let silent: Vec<UnixStream> = (0..60).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let pid = daemon.pid().unwrap();
    let deadline = Deadline::after(Duration::from_secs(8));
    while std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() < 32 {
        assert!(deadline.pause(Duration::from_millis(5)), "the table is not full");
    }
    let before = processor_time(pid);
    let full = Deadline::after(Duration::from_secs(2));
    while full.pause(Duration::from_millis(100)) {}
    let used = processor_time(pid) - before;
    assert!(used <= 40, "{used} hundredths of a second of two seconds");
    let request = json!({"version": 1, "message": LeaseRequest::Add(order(&two, "two"))});
    caller.write_all(format!("{request}\n").as_bytes()).unwrap();
    let mut reply = String::new();
    caller.read_to_string(&mut reply).unwrap();
    assert!(reply.contains("os error 24"), "{reply}");
    drop(silent);
    assert_eq!(daemon.list().iter().filter(|one| one.lease.as_ref() == Some(&lease)).count(), 1);
    assert_eq!(daemon.check(&one, "one"), [] as [String; 0]);
    daemon.add(&two, "two");
    let log = daemon.stop();
    assert!(log.contains("no connection is accepted for a moment: "), "{log}");
}

/// A plugin of another release of the same protocol: it sends no member that was added later, and one that is not known yet.
#[test]
fn a_request_of_another_release_is_served() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &[]);
    let daemon = LeaseDaemon::start(&host, &[]);
    let container = container(&host, 1);
    let lease = daemon.add(&container, "one");
    configure(&container, &lease);
    let say = |message: serde_json::Value| {
        let mut stream = UnixStream::connect(host.dir().join("dhcp.sock")).unwrap();
        let line = json!({"version": 1, "message": message, "later": 1});
        stream.write_all(format!("{line}\n").as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        serde_json::from_str::<serde_json::Value>(&reply).unwrap()
    };
    let owner = serde_json::to_value(owner("one")).unwrap();
    let check = json!({"check": {"owner": owner, "netns": container.path(), "later": []}});
    assert_eq!(say(check), json!({"version": 1, "message": "done"}));
    let options = order(&container, "one").options;
    let add = json!({"add": {"owner": owner, "netns": container.path(), "options": options, "later": true}});
    assert_eq!(say(add)["message"]["lease"]["lease"]["address"], json!(lease.address));
}

#[test]
fn on_a_full_disk_an_order_fails_and_its_lease_is_given_back() {
    let host = host();
    let server = Dnsmasq::start(&host, RANGE, &[]);
    let records = host.dir().join("dhcp-leases").display().to_string();
    host.sh(&format!("mkdir {records} && mount -t tmpfs -o size=64k,mode=0700 disk {records}"));
    let daemon = LeaseDaemon::start(&host, &[]);
    let (one, two) = (container(&host, 1), container(&host, 2));
    configure(&one, &daemon.add(&one, "one"));
    host.sh(&format!("dd if=/dev/zero of={records}/full bs=4k 2>/dev/null || true"));
    let LeaseReply::Failed { message } = daemon.call(&LeaseRequest::Add(order(&two, "two"))) else { panic!("a lease") };
    assert!(message.contains("the lease cannot be recorded") && message.contains("No space left"), "{message}");
    server.await_leases("the second one is given back", |leases| leases.len() == 1);
    assert_eq!(daemon.check(&one, "one"), [] as [String; 0]);
    daemon.del("one");
    server.await_leases("the first one too", <[String]>::is_empty);
    host.sh(&format!("rm {records}/full"));
    daemon.add(&two, "two");
    daemon.del("two");
    assert!(lease_records(&host).is_empty());
    daemon.stop();
    host.sh(&format!("umount {records}"));
}

/// The order of its system calls: a power cut between any two of them loses no lease that was reported.
#[test]
fn a_lease_and_the_directory_of_its_record_are_on_the_disk_before_it_is_reported() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &[]);
    let records = host.dir().join("new/records");
    let calls = host.dir().join("calls");
    let traced = "trace=fsync,fdatasync,rename,renameat,renameat2,mkdir,mkdirat,write,pwrite64,sendto";
    let starter =
        ["strace", "-f", "-qq", "-y", "-s", "64", "-e", traced, "-o", &calls.display().to_string()].map(str::to_owned);
    let daemon = LeaseDaemon::begin_by(&host, &starter, &["-datadir", &records.display().to_string()]).serving();
    daemon.add(&container(&host, 1), "one");
    daemon.stop();
    let text = std::fs::read_to_string(calls).unwrap();
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains(" = -1 ")).collect();
    let after = |from: usize, what: &str, words: &[&str]| {
        let is_it = |line: &&str| words.iter().all(|word| line.contains(word));
        let found = lines[from..].iter().position(is_it);
        from + found.unwrap_or_else(|| panic!("{what}: {text}"))
    };
    let synced = |from: usize, path: &Path| after(from, "fsync", &["fsync(", &format!("<{}>", path.display())]);
    let reply = after(0, "the reply", &["sendto(", r#"\"message\":{\"lease\""#]);
    let named = after(0, "the record gets its name", &["rename", ".json\""]);
    let content = after(0, "the content", &["write", r#""{\"version\":1,\"owner\""#]);
    let written = after(content, "the content is synced", &["fsync(", &format!("<{}/", records.display())]);
    let in_directory = synced(named, &records);
    assert!(content < written && written < named && named < in_directory && in_directory < reply, "{text}");
    for made in [records.parent().unwrap(), &records] {
        let at = after(0, "the directory is made", &["mkdir", &format!("\"{}\"", made.display())]);
        assert!(synced(at, made.parent().unwrap()) < reply, "{made:?}: {text}");
    }
}

#[test]
fn under_umask_0_no_other_user_can_read_or_write_what_the_daemon_makes() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &[]);
    let starter = ["sh", "-c", "umask 0; exec \"$@\"", "sh"].map(str::to_owned);
    let daemon = LeaseDaemon::begin_by(&host, &starter, &[]).serving();
    let container = container(&host, 1);
    daemon.add(&container, "one");
    let dir = host.dir().display();
    let open =
        host.sh(&format!("find {dir}/dhcp-leases {dir}/dhcp.sock* -perm /077; find {dir}/dhcp/ -type f -perm /022"));
    assert_eq!(open, "");
    assert_eq!(host.sh(&format!("ls {dir}/dhcp-leases | wc -l")).trim(), "1");
    daemon.del("one");
}

#[test]
fn the_daemon_enters_network_namespaces_alone_and_all_its_descriptors_are_closed_on_exec() {
    let host = host();
    let _server = Dnsmasq::start(&host, RANGE, &[]);
    let calls = host.dir().join("calls");
    let traced =
        "setns,unshare,open,openat,openat2,socket,socketpair,accept,accept4,pipe,pipe2,dup,dup2,memfd_create,signalfd4";
    let starter = ["strace", "-f", "-qq", "-e", traced, "-o", &calls.display().to_string()].map(str::to_owned);
    let daemon = LeaseDaemon::begin_by(&host, &starter, &[]).serving();
    serves_a_life(&host, &daemon, 1);
    daemon.stop();
    let text = std::fs::read_to_string(calls).unwrap();
    assert!(text.contains("setns(") && text.contains("socket(AF_PACKET"), "{text}");
    for line in text.lines().filter(|line| line.contains('(')) {
        let holds = if line.contains("setns(") { line.contains("CLONE_NEWNET") } else { line.contains("CLOEXEC") };
        assert!(holds && !line.contains("ns/mnt"), "{line}");
    }
}
