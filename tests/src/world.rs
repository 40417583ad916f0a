//! The networks around a host, pings and connections.

use std::io::Read;
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, Instant};

use cnikit_testkit::{Container, Host, Subject};

/// The addresses of [`world`], one a family.
pub const WORLD: [&str; 2] = ["192.0.2.2", "2001:db8:9::2"];

/// A third network, which the host reaches and which has no route to any container.
pub fn world(host: &Host) -> Container {
    let world = host.container();
    host.sh(&format!("ip link add world type veth peer name uplink netns {}", world.path()));
    host.sh("ip address add 192.0.2.1/24 dev world && ip address add 2001:db8:9::1/64 dev world nodad");
    world.sh("ip address add 192.0.2.2/24 dev uplink && ip address add 2001:db8:9::2/64 dev uplink nodad && ip link set uplink up");
    host.sh("echo 0 > /proc/sys/net/ipv6/conf/world/accept_dad; ip link set world up");
    assert!(WORLD.iter().all(|address| reaches(host, address)), "the world is there");
    world
}

/// Sooner or later.
fn reaches(host: &Host, address: &str) -> bool {
    host.try_sh(&format!("ping -n -q -c 1 -w 5 {address}")).0
}

/// One echo request, with ten seconds for the reply, because the machine may be busy.
pub fn ping(address: &str) -> String {
    format!("ping -n -q -c 1 -W 10 {address}")
}

/// One echo request, with one second for the reply: for an address that must not answer.
pub fn ping_once(address: &str) -> String {
    format!("ping -n -q -c 1 -W 1 {address}")
}

/// Two echo requests, for an address that may not answer: the first one is lost while a neighbour that is gone is resolved again.
pub fn ping_briefly(address: &str) -> String {
    format!("{0} || {0}", ping_once(address))
}

/// A shell line for a new namespace: duplicate address detection takes a second for each of so many probes.
pub fn detecting_with(probes: u32) -> String {
    format!("echo {probes} >/proc/sys/net/ipv6/conf/default/dad_transmits")
}

/// A container exchanges packets with an address without a loss, while `work` runs and after that.
pub fn undisturbed<T>(from: &Container, to: &str, work: impl FnOnce() -> T) -> T {
    from.sh(&ping(to));
    let done = thread::scope(|scope| {
        let talk = scope.spawn(|| from.sh(&format!("ping -n -q -i 0.01 -c 50 -W 1 {to}")));
        let done = work();
        let output = talk.join().unwrap();
        assert!(output.contains(" 0% packet loss"), "{output}");
        done
    });
    from.sh(&ping(to));
    done
}

/// Lets a script end that waits for this file, also if a test fails before.
pub struct Stop(pub PathBuf);

impl Drop for Stop {
    fn drop(&mut self) {
        let _ = std::fs::write(&self.0, "");
    }
}

/// A container's process holds the lock of its own network namespace while `work` runs. Its file is one that any process of the
/// namespace may open. `mode` is `--shared` or `--exclusive`.
fn while_it_locks_itself<T>(container: &Container, mode: &str, work: impl FnOnce() -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    let [held, stop] = ["held", "stop"].map(|name| dir.path().join(name));
    let line = format!(
        "flock --no-fork -n {mode} /proc/self/ns/net sh -c 'touch {}; timeout 300 sh -c \"until [ -e {} ]; do sleep 0.05; done\"'",
        held.display(),
        stop.display()
    );
    thread::scope(|scope| {
        let holder = scope.spawn(|| container.sh(&line));
        while !held.exists() && !holder.is_finished() {
            thread::yield_now();
        }
        let stop = Stop(stop);
        let done = work();
        let was_held = !holder.is_finished();
        drop(stop);
        holder.join().unwrap();
        assert!(was_held, "the lock was not held all the while");
        done
    })
}

/// Adds, checks and deletes an attachment while a process of its container holds the lock of their namespace. Returns how long that
/// took.
pub fn lives_while_locked(subject: &Subject, mode: &str) -> Duration {
    let host = subject.host();
    let subject = subject.at(host.dir());
    let container = subject.container(&host);
    while_it_locks_itself(&container, mode, || {
        let began = Instant::now();
        let result = subject.add(&host, "c-one", &container);
        subject.check(&host, "c-one", &container, &result).ok();
        subject.del(&host, "c-one", &container, &result);
        began.elapsed()
    })
}

/// Until no IPv6 address of a namespace is under duplicate address detection any more, and each has its local route: the kernel
/// adds the route after it has marked the address as usable, with `nodad` too (`addrconf_dad_completed`).
pub const UNTIL_DETECTED: &str = r#"timeout 20 sh -c '
    routed() {
        ip -6 -o address show up | sed -n "s|.* inet6 \([^/ ]*\).*|\1|p" | while read -r address; do
            ip -6 route show table all type local | grep -q "^local $address " || exit 1
        done
    }
    while ip -6 address show tentative | grep -q inet6 || ! routed; do sleep 0.05; done
'"#;

/// How often [`once_within`] tries.
const TRIES: usize = 5;

/// Whether the work takes less than this in one of several runs. For work that either waits so long in every run or not at all: a
/// busy machine can delay it, but never make it faster.
pub fn once_within(most: Duration, mut work: impl FnMut()) -> bool {
    for _ in 0..TRIES {
        let began = Instant::now();
        work();
        if began.elapsed() < most {
            return true;
        }
    }
    false
}

/// Connects to a server and reads until it closes the connection; `None` if that fails within two seconds.
pub fn read_all_from(server: SocketAddr) -> Option<String> {
    let mut stream = TcpStream::connect_timeout(&server, Duration::from_secs(2)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(2))).ok()?;
    let mut output = String::new();
    stream.read_to_string(&mut output).ok()?;
    Some(output)
}
