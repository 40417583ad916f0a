//! Which namespaces are found alive, and by what they are held.

use std::fs;
use std::net::UdpSocket;

use cnikit_netns::{Fate, Living, Netns, Scope, make};

fn look() -> Living {
    Living::look(Scope::PidNamespace, |_, _| {})
}

#[test]
fn one_is_found_as_long_as_a_file_a_mount_or_a_socket_holds_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a name");
    let netns = make::fresh(&path).unwrap();
    let cookie = netns.cookie().unwrap();
    assert_eq!(look().fate(cookie), Fate::Lives, "a file and a mount hold it");
    let socket = netns.enter(|_| UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
    drop(netns);
    assert_eq!(look().fate(cookie), Fate::Lives, "a mount holds it, and a socket");
    make::remove(&path).unwrap();
    assert_eq!(look().fate(cookie), Fate::Lives, "a socket holds it");
    drop(socket);
    assert_eq!(look().fate(cookie), Fate::Dead, "nothing holds it");
}

#[test]
fn ones_own_is_alive_and_what_cannot_be_seen_is_said() {
    let own = Netns::own().unwrap().cookie().unwrap();
    let (narrow, wide) = (look(), Living::look(Scope::Machine, |_, _| {}));
    assert_eq!((narrow.fate(own), wide.fate(own)), (Fate::Lives, Fate::Lives));
    let first = fs::read_link("/proc/self/ns/pid").unwrap().to_str() == Some("pid:[4026531836]");
    let says = wide.unseen().any(|what| what.contains("PID namespace"));
    assert_eq!(says, !first, "{:?}", wide.unseen().collect::<Vec<_>>());
}
