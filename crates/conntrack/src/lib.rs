//! Delete flows of connection tracking that outlive the rules that created them.
//!
//! Parts, in reading order:
//!
//! - [`Flows`]: the flows to one published port.
//! - [`Conntrack`]: lists and deletes flows of a network namespace.
//!
//! ```no_run
//! use cnikit_conntrack::{Conntrack, Flows};
//!
//! // Port 8080 of the host was published for a container. Its rules are removed, so its flows are deleted too.
//! let target = "10.0.0.2:80".parse()?;
//! let flows = Flows { protocol: 6, port: 8080, address: None, target };
//! let deleted = Conntrack::here()?.forget_led(&[flows])?;
//! println!("{deleted} flows are deleted");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Design decision: the destination of a flow is decided by its first packet, so a rule that changes takes effect only once the
//! flow is deleted. Flows are filtered by the kernel (`CTA_FILTER`, Linux 5.8) and deleted as they are listed, so memory does not
//! grow with their number.

mod flow;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod testing;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use cnikit_netlink::nfnetlink::{NETFILTER, NetfilterMessage};
use cnikit_netlink::{Error, Family, Netlink, Result, Socket};
use cnikit_netns::Netns;
use ipnetwork::IpNetwork;

use crate::flow::Entry;

/// The entries that are deleted at once: their acknowledgements fit into the smallest receive buffer of a socket.
const DELETIONS_AT_ONCE: usize = 100;
/// A file that exists if the kernel tracks flows, with or without `nf_conntrack_netlink`.
const TRACKING: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
/// From this number of ports on, one walk over all flows of a protocol costs less than one walk per port.
const MANY_PORTS: usize = 8;

/// The flows to one port of the host that is published for a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flows {
    /// The number of the transport protocol: 6 TCP, 17 UDP, 132 SCTP.
    #[doc(alias = "IPPROTO_UDP")]
    pub protocol: u8,
    /// The port that packets are sent to.
    pub port: u16,
    /// The address that packets are sent to; `None` for any address of the host.
    pub address: Option<IpAddr>,
    /// The container's address and port. Its family is that of the flows.
    pub target: SocketAddr,
}

/// The flows that the kernel tracks in one network namespace.
///
/// The rules that matched the first packet of a flow are applied to all its packets. A client that keeps sending reaches the former
/// target, or none, whatever rules there are by now, until its flow is deleted. The next packet begins a new flow.
///
/// The kernel filters the flows as far as it can (`CTA_FILTER`, Linux 5.8), and each flow is checked as it is received: memory
/// does not grow with their number. A walk takes 10 seconds at most.
#[doc(alias = "nf_conntrack")]
pub struct Conntrack {
    reading: Socket,
    /// Another socket, because flows are deleted while a dump is read.
    deleting: Socket,
}

/// Which flows to a published port are deleted.
#[derive(Clone, Copy)]
enum Selection<'a> {
    /// Those to the host's own addresses that do not reach the target.
    Stale(&'a Netlink),
    /// Those that reach the target.
    ToTarget,
}

impl Conntrack {
    /// The flows of the namespace that the calling thread is in.
    ///
    /// # Errors
    /// The kernel has no netfilter ([`Error::unsupported`]), or refuses a socket.
    pub fn here() -> Result<Self> {
        let socket = || Socket::here(NETFILTER).map(Socket::ending_slowly);
        Ok(Self { reading: socket()?, deleting: socket()? })
    }

    /// The flows of this namespace. The calling thread does not change its namespace.
    ///
    /// # Errors
    /// As [`Conntrack::here`].
    pub fn inside(netns: &Netns) -> Result<Self> {
        let socket = || Socket::inside(netns, NETFILTER).map(Socket::ending_slowly);
        Ok(Self { reading: socket()?, deleting: socket()? })
    }

    /// Deletes the flows to these ports of the host's own addresses that do not reach the target, and returns their number.
    /// `netlink` must be a socket of the same namespace; it reads these addresses.
    ///
    /// Call it once the rules are installed. Flows that reach the target already, that are merely forwarded, and those of other
    /// ports, addresses, protocols and families stay.
    ///
    /// # Errors
    /// The kernel's refusals; the kernel tracks flows but has no `nf_conntrack_netlink` to delete them by.
    pub fn forget_stale(&mut self, flows: &[Flows], netlink: &Netlink) -> Result<usize> {
        self.forget(flows, Selection::Stale(netlink))
    }

    /// Deletes the flows to these ports that reach the target, and returns their number.
    ///
    /// Call it once the rules are removed: before that, the next packet would begin the same flow again.
    ///
    /// # Errors
    /// As [`Conntrack::forget_stale`].
    pub fn forget_led(&mut self, flows: &[Flows]) -> Result<usize> {
        self.forget(flows, Selection::ToTarget)
    }

    fn forget(&mut self, flows: &[Flows], selection: Selection<'_>) -> Result<usize> {
        let mut deleted = 0;
        for (family, ipv4) in [(Family::V4, true), (Family::V6, false)] {
            let of_family: Vec<&Flows> = flows.iter().filter(|flows| flows.target.is_ipv4() == ipv4).collect();
            let mut selector = Selector { selection, family, host: None };
            for flows in walks(&of_family) {
                deleted += self.walk(ipv4, &flows, &mut selector)?;
            }
        }
        Ok(deleted)
    }

    /// Walks over the flows of one dump and deletes the selected ones. Returns their number.
    fn walk(&mut self, ipv4: bool, flows: &[&Flows], selector: &mut Selector<'_>) -> Result<usize> {
        let deletions = Deletions { socket: &mut self.deleting, pending: Vec::new(), deleted: 0 };
        let mut walk = Walk { ipv4, ports: by_port(flows), selector, deletions, error: None };
        let mut receive = |(): &mut (), message: &[u8]| walk.receive(message);
        let dumped = match self.reading.dump_into(&question(ipv4, Some(flows)), &mut receive) {
            // A kernel that cannot filter by these attributes sends all flows of the family.
            Err(error) if is_lacking(&error) => self.reading.dump_into(&question(ipv4, None), &mut receive),
            dumped => dumped,
        };
        match dumped {
            Err(error) if is_lacking(&error) && matches!(Path::new(TRACKING).try_exists(), Ok(false)) => return Ok(0),
            Err(error) if is_lacking(&error) => return Err(cannot_delete()),
            dumped => dumped.map_err(|error| error.during("list", "tracked flows"))?,
        }
        match walk.error {
            Some(error) => Err(error),
            None => walk.deletions.finish(),
        }
    }
}

/// One walk over the kernel's flows.
struct Walk<'a, 'n> {
    ipv4: bool,
    /// By protocol and port.
    ports: BTreeMap<(u8, u16), Vec<&'a Flows>>,
    selector: &'a mut Selector<'n>,
    deletions: Deletions<'a>,
    /// The first error. The rest of the dump is ignored.
    error: Option<Error>,
}

impl Walk<'_, '_> {
    fn receive(&mut self, message: &[u8]) {
        if self.error.is_none() {
            self.error = self.visit(message).err();
        }
    }

    fn visit(&mut self, message: &[u8]) -> Result<()> {
        let Some(entry) = Entry::read(message) else { return Ok(()) };
        if entry.to.is_ipv4() != self.ipv4 {
            return Ok(());
        }
        let Some(at_port) = self.ports.get(&(entry.protocol, entry.to.port())) else { return Ok(()) };
        let mut targets = Vec::new();
        for flows in at_port {
            if flows.address.is_none_or(|address| address == entry.to.ip()) {
                targets.push(flows.target);
            }
        }
        if !targets.is_empty() && self.selector.selects(&targets, &entry)? {
            self.deletions.add(&entry)?;
        }
        Ok(())
    }
}

/// Selects flows of one family.
struct Selector<'n> {
    selection: Selection<'n>,
    family: Family,
    /// The addresses of the host, once they are read: only stale flows need them.
    host: Option<HostAddresses>,
}

impl Selector<'_> {
    /// Whether a flow to a published port with these targets is deleted.
    fn selects(&mut self, targets: &[SocketAddr], entry: &Entry<'_>) -> Result<bool> {
        let reaches_target = targets.contains(&entry.reply_from);
        let Selection::Stale(netlink) = self.selection else { return Ok(reaches_target) };
        if reaches_target {
            return Ok(false);
        }
        let host = match &mut self.host {
            Some(host) => host,
            empty => empty.insert(HostAddresses::read(netlink, self.family)?),
        };
        Ok(host.contains(entry.to.ip()))
    }
}

/// The walks over the kernel's table that these flows need: one per port, or one per protocol if there are many ports. In a walk
/// an entry that the kernel filters out costs little, an entry that it sends ten times as much.
fn walks<'a>(flows: &[&'a Flows]) -> Vec<Vec<&'a Flows>> {
    let ports = by_port(flows);
    if ports.len() < MANY_PORTS {
        return ports.into_values().collect();
    }
    let mut protocols: BTreeMap<u8, Vec<&Flows>> = BTreeMap::new();
    for flows in flows {
        protocols.entry(flows.protocol).or_default().push(flows);
    }
    protocols.into_values().collect()
}

/// The flows by protocol and port.
fn by_port<'a>(flows: &[&'a Flows]) -> BTreeMap<(u8, u16), Vec<&'a Flows>> {
    let mut ports: BTreeMap<_, Vec<&Flows>> = BTreeMap::new();
    for flows in flows {
        ports.entry((flows.protocol, flows.port)).or_default().push(flows);
    }
    ports
}

/// The message that lists the entries of a family; with `flows` only those with the protocol, and the port if they share one.
fn question(ipv4: bool, flows: Option<&[&Flows]>) -> Vec<u8> {
    let filter = match flows {
        Some(flows @ [first, ..]) => {
            let port = flows.iter().all(|flows| flows.port == first.port).then_some(first.port);
            flow::filter(first.protocol, port)
        }
        _ => flow::no_filter(),
    };
    flow::list(ipv4, filter).encode(0)
}

/// Whether the kernel lacks `nf_conntrack_netlink` or an attribute of the question: netfilter answers both with `EINVAL`.
fn is_lacking(error: &Error) -> bool {
    error.errno == libc::EINVAL || error.unsupported()
}

/// The kernel tracks flows but cannot delete one.
fn cannot_delete() -> Error {
    let why = "the kernel tracks flows, but cannot delete them without nf_conntrack_netlink: load that module";
    Error::ours("list", "tracked flows", why)
}

/// Entries to delete, some at a time.
struct Deletions<'a> {
    socket: &'a mut Socket,
    pending: Vec<NetfilterMessage>,
    deleted: usize,
}

impl Deletions<'_> {
    fn add(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.pending.push(entry.deletion());
        if self.pending.len() < DELETIONS_AT_ONCE { Ok(()) } else { self.send() }
    }

    fn finish(mut self) -> Result<usize> {
        self.send()?;
        Ok(self.deleted)
    }

    /// Deletes the pending entries. An entry that has expired meanwhile, or whose addresses belong to another flow by now, is
    /// ignored.
    fn send(&mut self) -> Result<()> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let messages = std::mem::take(&mut self.pending);
        let sequences: Vec<u32> = messages.iter().map(|_| self.socket.next_sequence()).collect();
        let datagram = NetfilterMessage::encode_all(messages.iter().zip(&sequences));
        let exchanged = self.socket.exchange(&datagram, &sequences)?;
        for (sequence, refusal) in &exchanged.errors {
            if refusal.errno != libc::ENOENT {
                let position = sequences.iter().position(|own| own == sequence).unwrap_or_default();
                let refused = &messages[position];
                return Err(Error::refused(refused.operation, refused.object.as_str(), refusal));
            }
        }
        self.deleted += messages.len() - exchanged.errors.len();
        Ok(())
    }
}

/// The addresses that the host accepts packets to: single addresses, which may be thousands, and networks.
struct HostAddresses {
    addresses: BTreeSet<IpAddr>,
    networks: Vec<IpNetwork>,
}

impl HostAddresses {
    fn read(netlink: &Netlink, family: Family) -> Result<Self> {
        let single = if family == Family::V4 { 32 } else { 128 };
        let mut host = Self { addresses: BTreeSet::new(), networks: Vec::new() };
        for network in netlink.own_networks(family)? {
            if network.prefix() == single {
                host.addresses.insert(network.ip());
            } else {
                host.networks.push(network);
            }
        }
        Ok(host)
    }

    fn contains(&self, address: IpAddr) -> bool {
        self.addresses.contains(&address) || self.networks.iter().any(|network| network.contains(address))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flows(protocol: u8, port: u16) -> Flows {
        Flows { protocol, port, address: None, target: SocketAddr::from(([10, 0, 0, 2], 80)) }
    }

    #[test]
    fn few_ports_are_walked_one_by_one_and_many_by_their_protocol() {
        let few: Vec<Flows> = [flows(17, 1), flows(17, 1), flows(132, 1), flows(17, 2)].to_vec();
        let lengths =
            |flows: &[Flows]| walks(&flows.iter().collect::<Vec<_>>()).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(lengths(&few), [2, 1, 1]);
        let many: Vec<Flows> = (1..=1000).map(|port| flows(17, port)).chain([flows(132, 1)]).collect();
        assert_eq!(lengths(&many), [1000, 1]);
        assert_eq!(lengths(&[]), [0; 0]);
    }
}
