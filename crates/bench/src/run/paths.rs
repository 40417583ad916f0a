//! The cost of published ports for packets: how long a connection to the first of a thousand ports takes, and to the last one.

use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use cnikit_netns::Netns;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use serde_json::json;

use crate::Result;
use crate::figures::{Ratio, median, short};
use crate::scenarios::stage::{PATH, netns, path, shell};
use crate::spawn::Ready;

/// How many containers, each with a port of the host's.
const CONTAINERS: u16 = 1_000;

/// How many connections to each of those that are compared.
const CONNECTIONS: usize = 300;

/// The number of ADDs at the beginning and at the end whose medians are reported.
const SOME: usize = 20;

const BACKENDS: [&str; 2] = ["nftables", "iptables"];

/// The address of the host for its peer outside.
const HOST: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);

/// The first container's address, in 10.97.0.0/16.
const FIRST: u32 = 0x0a61_0002;

/// The timeout of a connection.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A host between a peer outside and the containers. The containers share one namespace and differ by their address only: the path
/// through the host's rules is measured.
struct Node {
    host: Netns,
    outside: Netns,
    /// Where all containers listen.
    listener: TcpListener,
    containers: Netns,
}

/// The table, for portmap in that directory.
pub(crate) fn paths(bin: &Path) -> Result<String> {
    let mut text = format!(
        "{CONTAINERS} containers with a port each, by portmap of {}: medians of {SOME} ADDs, in milliseconds, and of {CONNECTIONS} connections \
         from outside, in microseconds.\n\n\
         | backend | first ADDs | last ADDs | a connection where one port is published | to the first of all | to the last | last by first |\n\
         | --- | ---: | ---: | ---: | ---: | ---: | --- |\n",
        bin.display()
    );
    for backend in BACKENDS {
        let _ = writeln!(text, "{}", line(bin, backend)?);
    }
    Ok(text)
}

fn line(bin: &Path, backend: &str) -> Result<String> {
    let node = Node::new()?;
    let mut took = vec![node.publish(bin, backend, 0)?];
    let [alone, _] = node.connect([0, 0])?;
    for n in 1..CONTAINERS {
        took.push(node.publish(bin, backend, n)?);
    }
    let [first, last] = node.connect([0, CONTAINERS - 1])?;
    let ratio = Ratio::of(&last, &first);
    let adds = [&took[..SOME], &took[took.len() - SOME..]].map(|some| short(median(some)));
    let connections = [alone, first, last].map(|some| short(median(&some) * 1e3));
    let cells = [&adds[..], &connections].concat();
    let ratio = [ratio.is, ratio.low, ratio.high].map(short);
    Ok(format!("| {backend} | {} | {} ({} – {}) |", cells.join(" | "), ratio[0], ratio[1], ratio[2]))
}

fn address(n: u16) -> Ipv4Addr {
    (FIRST + u32::from(n)).into()
}

fn port(n: u16) -> u16 {
    8_000 + n
}

impl Node {
    fn new() -> Result<Node> {
        let host = netns()?;
        let outside = netns()?;
        let containers = netns()?;
        let links = format!(
            "ip link add pods0 type veth peer name eth0 netns {}; ip link add outer0 type veth peer name eth0 netns {}; \
             ip addr add 10.97.0.1/16 dev pods0; ip addr add {HOST}/24 dev outer0; \
             ip link set lo up; ip link set pods0 up; ip link set outer0 up; echo 1 >/proc/sys/net/ipv4/ip_forward",
            path(&containers),
            path(&outside)
        );
        shell(&host, &links, "")?;
        shell(&outside, "ip addr add 192.0.2.2/24 dev eth0; ip link set eth0 up", "")?;
        let addresses: String =
            (0..CONTAINERS).fold(String::new(), |text, n| text + &format!("addr add {}/16 dev eth0\n", address(n)));
        shell(&containers, "ip link set eth0 up; ip -batch -; ip route add default via 10.97.0.1", &addresses)?;
        let listen = |_: &_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 80));
        let listener = containers.enter(listen).map_err(|error| error.to_string())?;
        let listener = listener.map_err(|error| format!("listen: {error}"))?;
        Ok(Node { host, outside, listener, containers })
    }

    /// Publishes the port of a container; how long the ADD took, in milliseconds.
    fn publish(&self, bin: &Path, backend: &str, n: u16) -> Result<f64> {
        let conf = json!({
            "cniVersion": "1.0.0", "name": "bench", "type": "portmap", "backend": backend,
            "capabilities": {"portMappings": true},
            "runtimeConfig": {"portMappings": [{"hostPort": port(n), "containerPort": 80, "protocol": "tcp"}]},
            "prevResult": {
                "cniVersion": "1.0.0",
                "interfaces": [{"name": "pods0"}, {"name": "eth0", "sandbox": "/run/netns/bench"}],
                "ips": [{"address": format!("{}/16", address(n)), "gateway": "10.97.0.1", "interface": 1}],
            },
        });
        let env = [
            ("PATH", PATH.to_owned()),
            ("CNI_COMMAND", "ADD".to_owned()),
            ("CNI_PATH", bin.display().to_string()),
            ("CNI_CONTAINERID", format!("bench-{n}")),
            ("CNI_IFNAME", "eth0".to_owned()),
            ("CNI_NETNS", path(&self.containers)),
        ]
        .map(|(key, value)| (key.to_owned(), value));
        let plugin = bin.join("portmap").display().to_string();
        let run = |_: &_| Ready::new(&[plugin], &env, conf.to_string().as_bytes()).and_then(Ready::run);
        let run = self.host.enter(run).map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
        match run.status {
            0 => Ok(run.took.as_secs_f64() * 1e3),
            _ => Err(format!("portmap, {backend}, container {n}: {}", String::from_utf8_lossy(&run.stdout))),
        }
    }

    /// The times of connections to these two, in turn, in milliseconds.
    fn connect(&self, both: [u16; 2]) -> Result<[Vec<f64>; 2]> {
        self.outside.enter(|_| self.connect_here(both)).map_err(|error| error.to_string())?
    }

    /// As [`Node::connect`], in the namespace outside.
    fn connect_here(&self, [first, second]: [u16; 2]) -> Result<[Vec<f64>; 2]> {
        let mut times_first = Vec::new();
        let mut times_second = Vec::new();
        for _ in 0..CONNECTIONS {
            times_first.push(self.connection(first)?);
            times_second.push(self.connection(second)?);
        }
        Ok([times_first, times_second])
    }

    /// One connection to the published port of a container. It must be the one that accepts it.
    fn connection(&self, n: u16) -> Result<f64> {
        let failed = |error: std::io::Error| format!("{HOST}:{}: {error}", port(n));
        let began = Instant::now();
        let stream = TcpStream::connect_timeout(&SocketAddrV4::new(HOST, port(n)).into(), TIMEOUT).map_err(failed)?;
        let took = began.elapsed();
        let mut waiting = [PollFd::new(self.listener.as_fd(), PollFlags::POLLIN)];
        let timeout = PollTimeout::try_from(TIMEOUT).unwrap_or(PollTimeout::MAX);
        if poll(&mut waiting, timeout).map_err(|error| failed(error.into()))? == 0 {
            return Err(format!("{HOST}:{} leads to none of the containers", port(n)));
        }
        let (taken, _) = self.listener.accept().map_err(failed)?;
        let by = taken.local_addr().map_err(failed)?.ip();
        drop(taken);
        drop(stream);
        if by == address(n) { Ok(took.as_secs_f64() * 1e3) } else { Err(format!("{HOST}:{} leads to {by}", port(n))) }
    }
}
