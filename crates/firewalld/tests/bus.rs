//! Tests against a real bus and a real firewalld, which each test starts for itself, and against sockets that are not a bus.
#![expect(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};

use cnikit_firewalld::{Cause, Error, Firewalld};
use cnikit_process::Deadline;
use cnikit_testkit::{Host, firewalld};
use ipnetwork::IpNetwork;

const LONG: Duration = Duration::from_secs(30);
/// A line without an end.
static LINE: [u8; 100_000] = [b'x'; 100_000];
const SHORT: Duration = Duration::from_millis(200);

fn connect(address: &str) -> Firewalld {
    Firewalld::connect(Some(address), Deadline::after(LONG)).unwrap().unwrap()
}

fn net(text: &str) -> IpNetwork {
    text.parse().unwrap()
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, Error>, words: &[&str]) -> Error {
    let error = result.unwrap_err();
    for word in words {
        assert!(error.to_string().contains(word), "no {word:?} in: {error}");
    }
    error
}

#[test]
fn adding_and_removing_a_source_is_idempotent() {
    let host = Host::new();
    let bus = firewalld::Bus::start(&host);
    let _running = firewalld::FirewalldDaemon::start(&host, &bus);
    let mut firewalld = connect(&bus.address);
    for (network, rule) in [(net("10.0.0.2/32"), "ip saddr 10.0.0.2 "), (net("fd00::2/128"), "ip6 saddr fd00::2 ")] {
        assert!(!firewalld.query_source("trusted", network).unwrap());
        for _ in 0..2 {
            firewalld.add_source("trusted", network).unwrap();
            assert!(firewalld.query_source("trusted", network).unwrap());
            assert!(!firewalld.query_source("public", network).unwrap());
            assert!(host.sh("nft list ruleset").contains(rule));
        }
        for _ in 0..2 {
            firewalld.remove_source("trusted", network).unwrap();
            assert!(!firewalld.query_source("trusted", network).unwrap());
            assert!(!host.sh("nft list ruleset").contains(rule));
        }
    }
}

#[test]
fn a_source_of_another_zone_is_refused_with_the_zone() {
    let host = Host::new();
    let bus = firewalld::Bus::start(&host);
    let _running = firewalld::FirewalldDaemon::start(&host, &bus);
    let mut firewalld = connect(&bus.address);
    let network = net("10.0.0.2/32");
    firewalld.add_source("internal", network).unwrap();
    let error = refused(
        firewalld.add_source("trusted", network),
        &[
            "add the source 10.0.0.2/32 to zone \"trusted\" of firewalld: it belongs to zone \"internal\"",
            "firewall-cmd --zone=internal --remove-source",
        ],
    );
    assert!(matches!(error.cause, Cause::InZone(zone) if zone == "internal"));
    firewalld.remove_source("trusted", network).unwrap();
    assert!(firewalld.query_source("internal", network).unwrap());
    // `public` is the name of the default zone.
    firewalld.add_source("", net("10.0.0.3/32")).unwrap();
    assert!(firewalld.query_source("public", net("10.0.0.3/32")).unwrap());

    let unknown = ["zone \"nope\"", "INVALID_ZONE: nope", "org.fedoraproject.FirewallD1.Exception", "--get-zones"];
    refused(firewalld.add_source("nope", net("10.0.0.9/32")), &unknown);
    refused(firewalld.query_source("nope", net("10.0.0.9/32")), &unknown);
    firewalld.remove_source("nope", net("10.0.0.9/32")).unwrap();
    refused(firewalld.add_source("a\0b", network), &["contains a NUL"]);
    assert!(firewalld.is_running().unwrap(), "the bus has not hung up");
}

#[test]
fn a_stopped_firewalld_is_not_running_and_is_not_started() {
    let host = Host::new();
    let bus = firewalld::Bus::start(&host);
    let mut firewalld = connect(&bus.address);
    assert!(!firewalld.is_running().unwrap());
    let running = firewalld::FirewalldDaemon::start(&host, &bus);
    assert!(firewalld.is_running().unwrap());
    firewalld.add_source("trusted", net("10.0.0.2/32")).unwrap();
    drop(running);
    let deadline = Deadline::after(LONG);
    while firewalld.is_running().unwrap() {
        assert!(deadline.pause(Duration::from_millis(1)), "the bus does not notice that it is gone");
    }
    let words = ["10.0.0.2/32", "firewalld does not run: start it, or choose another backend"];
    assert!(refused(firewalld.add_source("trusted", net("10.0.0.2/32")), &words).is_absent());
    assert!(refused(firewalld.remove_source("trusted", net("10.0.0.2/32")), &words).is_absent());
    assert!(refused(firewalld.query_source("trusted", net("10.0.0.2/32")), &words).is_absent());
}

#[test]
fn a_bus_that_stops_is_an_error_and_a_new_connection_finds_none() {
    let host = Host::new();
    let bus = firewalld::Bus::start(&host);
    let mut firewalld = connect(&bus.address);
    let address = bus.address.clone();
    drop(bus);
    refused(firewalld.is_running(), &["ask whether firewalld runs"]);
    // The socket file still exists, but no program listens on it.
    assert!(Firewalld::connect(Some(&address), Deadline::after(LONG)).unwrap().is_none());
    let nowhere = format!("unix:path={}", host.dir().join("nothing").display());
    assert!(Firewalld::connect(Some(&nowhere), Deadline::after(LONG)).unwrap().is_none());
    refused(
        Firewalld::connect(Some("tcp:host=localhost"), Deadline::after(LONG)),
        &["tcp:host=localhost", "unix:path="],
    );
}

#[test]
fn the_first_of_several_addresses_where_one_listens_is_taken() {
    let host = Host::new();
    let bus = firewalld::Bus::listening(&host, "unix:abstract=cnikit%20test");
    let list = format!("tcp:host=localhost,port=1;unix:path={};{}", host.dir().join("none").display(), bus.address);
    // An abstract socket exists in one network namespace only.
    let mut firewalld = host.enter(|| connect(&list));
    assert!(!firewalld.is_running().unwrap());
    assert!(Firewalld::connect(Some(&list), Deadline::after(LONG)).unwrap().is_none());
}

/// Connects to a socket that `answer` serves, which has to fail, at the latest after `limit`.
/// Returns the error and the time that it took.
fn met(limit: Duration, answer: impl FnOnce(UnixListener) + Send + 'static) -> (Error, Duration) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bus");
    let listener = UnixListener::bind(&path).unwrap();
    let other = std::thread::spawn(move || answer(listener));
    let began = Instant::now();
    let address = format!("unix:path={}", path.display());
    let error = Firewalld::connect(Some(&address), Deadline::after(limit)).unwrap_err();
    let took = began.elapsed();
    other.join().unwrap();
    assert!(error.to_string().contains(&address), "{error}");
    (error, took)
}

/// Reads until the other side closes the connection.
fn until_the_end(mut stream: impl Read) {
    drop(stream.read_to_end(&mut Vec::new()));
}

#[test]
fn a_bus_that_does_not_answer_times_out_at_the_deadline() {
    let silent: fn(UnixListener) = |listener| until_the_end(listener.accept().unwrap().0);
    let half: fn(UnixListener) = |listener| {
        let mut stream = listener.accept().unwrap().0;
        // If this thread gets no processor before the deadline, the client has closed the connection.
        drop(stream.write_all(b"DATA\r\nOK 0a\r\nl\x02\x01\x01"));
        until_the_end(stream);
    };
    for answer in [silent, half] {
        let (error, took) = met(SHORT, answer);
        assert!(error.timed_out() && error.to_string().contains("no answer in time"), "{error}");
        assert!((SHORT..LONG).contains(&took), "{took:?}");
    }
}

#[test]
fn a_bus_that_does_not_accept_times_out_at_the_deadline() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bus");
    let listener = UnixListener::bind(&path).unwrap();
    let address = format!("unix:path={}", path.display());
    // Once the listen queue is full, connect(2) itself waits.
    nix::sys::socket::listen(&listener, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    let queued: Vec<_> = (0..1).map(|_| std::os::unix::net::UnixStream::connect(&path).unwrap()).collect();
    let began = Instant::now();
    let error = Firewalld::connect(Some(&address), Deadline::after(SHORT)).unwrap_err();
    assert!(error.timed_out() && (SHORT..LONG).contains(&began.elapsed()), "{error} after {:?}", began.elapsed());
    drop(queued);
}

#[test]
fn a_peer_that_is_not_a_bus_differs_from_a_bus_that_refuses_us() {
    let says = |words: &'static [u8]| {
        met(LONG, move |listener| {
            let mut stream = listener.accept().unwrap().0;
            // The client may have closed the connection by then.
            drop(stream.write_all(words));
            until_the_end(stream);
        })
        .0
        .to_string()
    };
    assert!(says(b"REJECTED EXTERNAL\r\n").contains("\"REJECTED EXTERNAL\""));
    assert!(says(b"HTTP/1.1 400 Bad Request\r\n\r\n").contains("\"HTTP/1.1 400 Bad Request\""));
    assert!(says(&LINE).contains("not a bus"));
    assert!(says(b"DATA\r\nOK 0a\r\nthis is no message").contains("not a D-Bus message"));
    let hangs_up = met(LONG, |listener| drop(listener.accept().unwrap())).0.to_string();
    assert!(["hung up", "Broken pipe", "reset"].iter().any(|word| hangs_up.contains(word)), "{hangs_up}");
}
