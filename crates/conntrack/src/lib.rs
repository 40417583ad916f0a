//! Deletes flows of connection tracking that outlive the rules which created them.
//!
//! Parts, in reading order:
//!
//! - [`Flows`]: the flows to one published port.
//! - [`Conntrack`]: lists and deletes flows of a network namespace.
//!
//! Design decision: the destination of a flow is decided by its first packet, so a rule that changes takes effect only once the
//! flow is deleted. Flows are filtered by the kernel (`CTA_FILTER`, Linux 5.8) and deleted as they are listed, so memory does not
//! grow with their number.

mod flow;
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

/// As many entries are removed at once: their acknowledgements fit into the smallest queue that a socket has.
const AT_ONCE: usize = 100;
/// There where the kernel tracks flows, whatever it can be asked about them.
const TRACKED: &str = "/proc/sys/net/netfilter/nf_conntrack_count";
/// Ports are more than these from here on: one walk over all flows of the protocol costs less than one for each port.
const MANY_PORTS: usize = 8;

/// The flows to one port of the host, which leads to a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flows {
    /// The number of the protocol: 6 TCP, 17 UDP, 132 SCTP.
    #[doc(alias = "IPPROTO_UDP")]
    pub protocol: u8,
    /// The port that packets are sent to.
    pub port: u16,
    /// The address that packets are sent to; `None` is any of the host's.
    pub address: Option<IpAddr>,
    /// The container's address and port. Its family is that of the flows.
    pub target: SocketAddr,
}

/// The flows that the kernel tracks in one network namespace.
///
/// What is decided of a flow's first packet holds for all that follow: a client that goes on sending reaches whom it reached
/// before, or nobody, whatever rules there are by now, until its flow is forgotten. The next packet begins it anew.
///
/// The kernel picks the flows, as far as it can (`CTA_FILTER`, Linux 5.8), and they are judged as they come: memory does not
/// grow with their number. A walk takes 10 seconds at most.
#[doc(alias = "nf_conntrack")]
pub struct Conntrack {
    reading: Socket,
    /// Of its own, for what is removed while the walk goes on.
    removing: Socket,
}

impl Conntrack {
    /// The flows of the namespace that the calling thread is in.
    ///
    /// # Errors
    /// Without netfilter in the kernel one that is [`Error::unsupported`].
    pub fn here() -> Result<Self> {
        let socket = || Socket::here(NETFILTER).map(Socket::ending_slowly);
        Ok(Self { reading: socket()?, removing: socket()? })
    }

    /// The flows of this namespace; the calling thread stays where it is.
    ///
    /// # Errors
    /// As [`Conntrack::here`].
    pub fn inside(netns: &Netns) -> Result<Self> {
        let socket = || Socket::inside(netns, NETFILTER).map(Socket::ending_slowly);
        Ok(Self { reading: socket()?, removing: socket()? })
    }

    /// Forgets the flows that the rules for these ports would send elsewhere by now: those to the host itself (`netlink` is
    /// to be of the same namespace) that do not lead to the target. Returns how many there were.
    ///
    /// To be called when the rules are live. Flows that lead to the target already, that are merely forwarded through, and
    /// those of other ports, addresses, protocols and families stay.
    ///
    /// # Errors
    /// The kernel's refusals, and that it tracks flows but knows no way to forget one.
    pub fn forget_stale(&mut self, flows: &[Flows], netlink: &Netlink) -> Result<usize> {
        self.forget(flows, |family| {
            let mut own = None;
            move |meant: &[&Flows], entry: &Entry<'_>| {
                if meant.iter().any(|flows| flows.target == entry.answers) {
                    return Ok(false);
                }
                let own = match &mut own {
                    Some(own) => own,
                    none => none.insert(Own::of(netlink, family)?),
                };
                Ok(own.holds(entry.to.ip()))
            }
        })
    }

    /// Forgets the flows to these ports that lead to the target. Returns how many there were.
    ///
    /// To be called when the rules are gone; until then, the next packet would be led there again.
    ///
    /// # Errors
    /// As [`Conntrack::forget_stale`].
    pub fn forget_led(&mut self, flows: &[Flows]) -> Result<usize> {
        self.forget(flows, |_| {
            |meant: &[&Flows], entry: &Entry<'_>| Ok(meant.iter().any(|flows| flows.target == entry.answers))
        })
    }

    /// Forgets those of the flows that `judge`, made for each family, says have to go.
    fn forget<J>(&mut self, flows: &[Flows], judge: impl Fn(Family) -> J) -> Result<usize>
    where
        J: FnMut(&[&Flows], &Entry<'_>) -> Result<bool>,
    {
        let mut gone = 0;
        for (family, ipv4) in [(Family::V4, true), (Family::V6, false)] {
            let flows: Vec<&Flows> = flows.iter().filter(|flows| flows.target.is_ipv4() == ipv4).collect();
            let mut judge = judge(family);
            for walk in walks(&flows) {
                gone += self.walk(ipv4, &walk, &mut judge)?;
            }
        }
        Ok(gone)
    }

    fn walk<J>(&mut self, ipv4: bool, flows: &[&Flows], judge: &mut J) -> Result<usize>
    where
        J: FnMut(&[&Flows], &Entry<'_>) -> Result<bool>,
    {
        let ports = by_port(flows);
        let mut sweep = Sweep { socket: &mut self.removing, waiting: Vec::new(), gone: 0 };
        let mut met = |(): &mut (), message: &[u8]| {
            let Some(entry) = Entry::read(message).filter(|entry| entry.to.is_ipv4() == ipv4) else { return Ok(()) };
            let at_port = ports.get(&(entry.protocol, entry.to.port())).map(Vec::as_slice).unwrap_or_default();
            let here = |flows: &&Flows| flows.address.is_none_or(|address| address == entry.to.ip());
            let meant: Vec<&Flows> = at_port.iter().copied().filter(here).collect();
            if !meant.is_empty() && judge(&meant, &entry)? { sweep.remove(&entry) } else { Ok(()) }
        };
        let mut failed = None;
        let mut take = |taken: &mut (), message: &[u8]| {
            if failed.is_none() {
                failed = met(taken, message).err();
            }
        };
        let told = match self.reading.dump_into(&question(ipv4, Some(flows)), &mut take) {
            // A kernel that cannot filter by this sends all of the family.
            Err(error) if is_lacking(&error) => self.reading.dump_into(&question(ipv4, None), &mut take),
            told => told,
        };
        match told {
            Err(error) if is_lacking(&error) && !Path::new(TRACKED).exists() => return Ok(0),
            Err(error) if is_lacking(&error) => return Err(unasked()),
            told => told.map_err(|error| error.during("list", "tracked flows"))?,
        }
        match failed {
            Some(error) => Err(error),
            None => sweep.finish(),
        }
    }
}

/// The walks over the kernel's table that these flows take: each port its own, or one for all ports of a protocol. A walk
/// costs the kernel little for an entry that it passes over, and ten times that for one which it sends.
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

fn by_port<'a>(flows: &[&'a Flows]) -> BTreeMap<(u8, u16), Vec<&'a Flows>> {
    let mut ports: BTreeMap<_, Vec<&Flows>> = BTreeMap::new();
    for flows in flows {
        ports.entry((flows.protocol, flows.port)).or_default().push(flows);
    }
    ports
}

/// Asks for the entries of a family; of those, for what the flows of one walk have in common.
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

/// What netfilter calls invalid is a part of it that the kernel has not got, or something that this part does not know.
fn is_lacking(error: &Error) -> bool {
    error.errno == libc::EINVAL || error.unsupported()
}

fn unasked() -> Error {
    let why = "the kernel tracks flows, but has no nf_conntrack_netlink to forget one by; load that module";
    Error::ours("list", "tracked flows", why)
}

/// Entries on their way out.
struct Sweep<'a> {
    socket: &'a mut Socket,
    waiting: Vec<NetfilterMessage>,
    gone: usize,
}

impl Sweep<'_> {
    fn remove(&mut self, entry: &Entry<'_>) -> Result<()> {
        self.waiting.push(entry.deletion());
        if self.waiting.len() < AT_ONCE { Ok(()) } else { self.send() }
    }

    fn finish(mut self) -> Result<usize> {
        self.send()?;
        Ok(self.gone)
    }

    /// What is gone by itself meanwhile, or has become another flow under its addresses, is no matter.
    fn send(&mut self) -> Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let waiting = std::mem::take(&mut self.waiting);
        let sequences: Vec<u32> = waiting.iter().map(|_| self.socket.next_sequence()).collect();
        let datagram = NetfilterMessage::encode_all(waiting.iter().zip(&sequences));
        let exchanged = self.socket.exchange(&datagram, &sequences)?;
        let refused = exchanged.errors.iter().find(|(_, refusal)| refusal.errno != libc::ENOENT);
        if let Some((sequence, refusal)) = refused {
            let place = sequences.iter().position(|own| own == sequence).unwrap_or_default();
            return Err(Error::refused(waiting[place].operation, waiting[place].object.as_str(), refusal));
        }
        self.gone += waiting.len() - exchanged.errors.len();
        Ok(())
    }
}

/// What the host takes as its own: addresses, which may be thousands, and networks.
struct Own {
    addresses: BTreeSet<IpAddr>,
    networks: Vec<IpNetwork>,
}

impl Own {
    fn of(netlink: &Netlink, family: Family) -> Result<Self> {
        let longest = if family == Family::V4 { 32 } else { 128 };
        let (single, networks): (Vec<_>, _) =
            netlink.own_networks(family)?.into_iter().partition(|network| network.prefix() == longest);
        Ok(Self { addresses: single.iter().map(IpNetwork::ip).collect(), networks })
    }

    fn holds(&self, address: IpAddr) -> bool {
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
