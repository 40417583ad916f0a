//! The sockets of a client, opened inside the network namespace of its link. None of them ever blocks.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use cnikit_netlink::Mac;
use cnikit_netns::Netns;
use dhcproto::v4::{CLIENT_PORT, SERVER_PORT};
use nix::errno::Errno;
use nix::sys::socket::sockopt::{RcvBuf, ReuseAddr};
use nix::sys::socket::{
    AddressFamily, LinkAddr, MsgFlags, SockFlag, SockType, SockaddrIn, SockaddrIn6, bind, recvfrom, sendto, setsockopt,
    socket,
};
use serde::{Deserialize, Serialize};
use socket2::{SockFilter, SockRef};

use crate::v6::ALL_SERVERS;
use crate::{Error, Result, kernel, v6};

/// The hardware address of every host on the link.
const EVERYONE: Mac = Mac([0xff; 6]);
/// Room for the longest packet of a link with the usual MTU, and more; what is longer is cut, and then not a whole datagram.
const LONGEST: usize = 2_048;
/// The receive buffer of a socket that is not read; the kernel raises it to its least.
const LEAST_BUFFER: usize = 1;

/// A packet socket for one link: it sends IPv4 packets to hardware addresses, and receives the replies to one DHCP client, also
/// while the link has no address. See packet(7).
#[derive(Debug)]
pub struct LinkSocket {
    packets: PacketSocket,
    mac: Mac,
    /// The number of the exchange whose replies it receives.
    xid: Option<u32>,
}

/// A packet socket for one link that sends ARP packets, and receives those that concern one address.
#[derive(Debug)]
pub struct ArpSocket {
    packets: PacketSocket,
}

/// A packet socket for one link that sends IPv6 packets to hardware addresses, and receives the packets of neighbour discovery of
/// other hosts about some addresses.
#[derive(Debug)]
pub struct NeighborSocket {
    packets: PacketSocket,
    own: Mac,
    addresses: Vec<Ipv6Addr>,
}

/// A UDP socket on port 68 of a client's address: the kernel finds the way to the server, and no reply of its is refused by the
/// kernel as a datagram to a closed port. The replies are read from the [`LinkSocket`].
#[derive(Debug)]
pub struct RoutedSocket {
    socket: UdpSocket,
    link: String,
}

/// A UDP socket on port 546 of a link-local address: it sends to all servers and relays of the link, and receives what servers send
/// to that address.
#[derive(Debug)]
pub struct MulticastSocket {
    socket: UdpSocket,
    link: String,
    index: u32,
    /// The number of the exchange whose answers it receives.
    xid: Option<u32>,
}

/// A packet socket that only sends, by a link of the calling thread's namespace: for a client whose own link is gone.
#[derive(Debug)]
pub struct UplinkSocket {
    socket: OwnedFd,
    link: String,
    index: u32,
    tag: Option<VlanTag>,
}

/// The tag of a frame in a VLAN.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VlanTag {
    /// The ethertype: 0x8100 (802.1Q) or 0x88a8 (802.1ad).
    pub ethertype: u16,
    /// The VLAN's id.
    pub id: u16,
}

/// `AF_PACKET`, `SOCK_DGRAM`: the kernel writes and removes the header of the link.
#[derive(Debug)]
struct PacketSocket {
    socket: OwnedFd,
    protocol: i32,
    link: String,
    index: u32,
}

impl LinkSocket {
    /// Opens a socket for the link with this name, index and hardware address.
    ///
    /// # Errors
    /// The namespace cannot be entered, the link does not exist, or the kernel refuses the socket (it needs `CAP_NET_RAW`).
    pub fn open(netns: &Netns, link: &str, index: u32, mac: Mac) -> Result<Self> {
        let filter = kernel::reply_filter(mac, None);
        Ok(Self { packets: PacketSocket::open(netns, link, index, libc::ETH_P_IP, &filter)?, mac, xid: None })
    }

    /// From now on it receives the replies to the exchange with this number only: the kernel drops what another host sends without
    /// having seen the request.
    ///
    /// # Errors
    /// The kernel refuses the filter.
    pub fn expect(&mut self, xid: u32) -> Result<()> {
        if self.xid != Some(xid) {
            let filter = kernel::reply_filter(self.mac, Some(xid));
            let failed = |source| Error::new(format!("filter the packets of {}", self.packets.link), source);
            SockRef::from(&self.packets.socket).attach_filter(&filter).map_err(failed)?;
            self.xid = Some(xid);
        }
        Ok(())
    }

    /// Sends an IPv4 packet in a frame to this hardware address.
    ///
    /// # Errors
    /// sendto(2) fails: the link is down or gone, or its queue is full.
    pub fn send(&self, to: Mac, packet: &[u8]) -> Result<()> {
        self.packets.send(to, packet)
    }

    /// The next packet, and the hardware address that it came from; `None` if there is none.
    ///
    /// # Errors
    /// recvfrom(2) fails: the link went down or is gone.
    pub fn receive(&self) -> Result<Option<(Mac, Vec<u8>)>> {
        self.packets.receive()
    }
}

impl ArpSocket {
    /// Opens a socket for the link with this name and index, and for packets that name this address.
    ///
    /// # Errors
    /// As [`LinkSocket::open`].
    pub fn open(netns: &Netns, link: &str, index: u32, address: Ipv4Addr) -> Result<Self> {
        let filter = kernel::arp_filter(address);
        Ok(Self { packets: PacketSocket::open(netns, link, index, libc::ETH_P_ARP, &filter)? })
    }

    /// Sends an ARP packet to every host of the link.
    ///
    /// # Errors
    /// As [`LinkSocket::send`].
    pub fn send(&self, packet: &[u8]) -> Result<()> {
        self.packets.send(EVERYONE, packet)
    }

    /// The next packet; `None` if there is none.
    ///
    /// # Errors
    /// As [`LinkSocket::receive`].
    pub fn receive(&self) -> Result<Option<Vec<u8>>> {
        Ok(self.packets.receive()?.map(|(_, packet)| packet))
    }
}

impl NeighborSocket {
    /// Opens a socket for the link with this name, index and hardware address, and for packets about these addresses.
    ///
    /// # Errors
    /// As [`LinkSocket::open`].
    pub fn open(netns: &Netns, link: &str, index: u32, own: Mac, addresses: Vec<Ipv6Addr>) -> Result<Self> {
        let filter = kernel::neighbor_filter(&addresses);
        Ok(Self { packets: PacketSocket::open(netns, link, index, libc::ETH_P_IPV6, &filter)?, own, addresses })
    }

    /// The addresses whose packets it receives.
    pub fn addresses(&self) -> &[Ipv6Addr] {
        &self.addresses
    }

    /// Sends an IPv6 packet in a frame to this hardware address.
    ///
    /// # Errors
    /// As [`LinkSocket::send`].
    pub fn send(&self, to: Mac, packet: &[u8]) -> Result<()> {
        self.packets.send(to, packet)
    }

    /// The next packet of another host, and the hardware address that it came from; `None` if there is none.
    ///
    /// # Errors
    /// As [`LinkSocket::receive`].
    pub fn receive(&self) -> Result<Option<(Mac, Vec<u8>)>> {
        loop {
            match self.packets.receive()? {
                Some((from, _)) if from == self.own => {}
                other => return Ok(other),
            }
        }
    }
}

impl RoutedSocket {
    /// Opens a socket on port 68 of this address, for the link with this name and index only.
    ///
    /// # Errors
    /// The namespace cannot be entered, the link does not exist or has not got the address, or another socket has the port.
    pub fn open(netns: &Netns, link: &str, index: u32, address: Ipv4Addr) -> Result<Self> {
        let operation = format!("open a UDP socket on {address}:{CLIENT_PORT} of {link}");
        let socket = inside(netns, &operation, || routed(index, address))?;
        Ok(Self { socket, link: link.to_owned() })
    }

    /// Sends a datagram to port 67 of the server.
    ///
    /// # Errors
    /// sendto(2) fails: there is no route to the server, or the link is down.
    pub fn send(&self, server: Ipv4Addr, payload: &[u8]) -> Result<()> {
        let sent = self.socket.send_to(payload, SocketAddrV4::new(server, SERVER_PORT));
        let failed = |source| Error::new(format!("send a datagram to {server} by {}", self.link), source);
        sent.map(drop).map_err(failed)
    }
}

impl MulticastSocket {
    /// Opens a socket on this link-local address of the link with this name and index.
    ///
    /// # Errors
    /// The namespace cannot be entered, the link does not exist or has not got the address, the address is under duplicate address
    /// detection, or another socket has the port.
    pub fn open(netns: &Netns, link: &str, index: u32, address: Ipv6Addr) -> Result<Self> {
        let operation = format!("open a UDP socket on port {} of {address}%{link}", v6::CLIENT_PORT);
        let socket = inside(netns, &operation, || multicast(address, index))?;
        Ok(Self { socket, link: link.to_owned(), index, xid: None })
    }

    /// As [`LinkSocket::expect`].
    ///
    /// # Errors
    /// The kernel refuses the filter.
    pub fn expect(&mut self, xid: u32) -> Result<()> {
        if self.xid != Some(xid) {
            let failed = |source| Error::new(format!("filter the datagrams of {}", self.link), source);
            SockRef::from(&self.socket).attach_filter(&kernel::answer_filter(xid)).map_err(failed)?;
            self.xid = Some(xid);
        }
        Ok(())
    }

    /// Sends a datagram to all servers and relays of the link.
    ///
    /// # Errors
    /// sendto(2) fails: the link is down or gone.
    pub fn send(&self, payload: &[u8]) -> Result<()> {
        let to = SocketAddrV6::new(ALL_SERVERS, v6::SERVER_PORT, 0, self.index);
        let failed = |source| Error::new(format!("send a datagram to {ALL_SERVERS}%{}", self.link), source);
        self.socket.send_to(payload, to).map(drop).map_err(failed)
    }

    /// The next datagram; `None` if there is none.
    ///
    /// # Errors
    /// recvfrom(2) fails.
    pub fn receive(&self) -> Result<Option<Vec<u8>>> {
        let mut buffer = vec![0; LONGEST];
        loop {
            match self.socket.recv(&mut buffer) {
                Ok(length) => {
                    buffer.truncate(length);
                    return Ok(Some(buffer));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(Error::new(format!("receive datagrams by {}", self.link), error)),
            }
        }
    }
}

impl UplinkSocket {
    /// Opens a socket for the link with this name and index.
    ///
    /// # Errors
    /// The kernel refuses the socket (it needs `CAP_NET_RAW`).
    pub fn open(link: &str, index: u32, tag: Option<VlanTag>) -> Result<Self> {
        let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
        let failed = |errno| Error::new(format!("open a packet socket for {link}"), errno);
        // Without a protocol it receives nothing.
        let socket = socket(AddressFamily::Packet, SockType::Datagram, flags, None).map_err(failed)?;
        Ok(Self { socket, link: link.to_owned(), index, tag })
    }

    /// Sends an IPv4 or IPv6 packet in a frame to this hardware address.
    ///
    /// # Errors
    /// As [`LinkSocket::send`].
    pub fn send(&self, to: Mac, packet: &[u8]) -> Result<()> {
        let failed = |source| Error::new(format!("send a packet by {}", self.link), source);
        let is_ipv6 = packet.first().is_some_and(|first| first >> 4 == 6);
        let protocol = if is_ipv6 { libc::ETH_P_IPV6 } else { libc::ETH_P_IP };
        let protocol = u16::try_from(protocol).map_err(|error| failed(io::Error::other(error)))?;
        let mut content = Vec::new();
        let mut ethertype = protocol;
        if let Some(tag) = self.tag {
            ethertype = tag.ethertype;
            content.extend(tag.id.to_be_bytes());
            content.extend(protocol.to_be_bytes());
        }
        content.extend(packet);
        let to = kernel::link_address(self.index, i32::from(ethertype), to).map_err(failed)?;
        let sent = sendto(self.socket.as_raw_fd(), &content, &to, MsgFlags::empty());
        sent.map(drop).map_err(|errno| failed(errno.into()))
    }
}

impl PacketSocket {
    fn open(netns: &Netns, link: &str, index: u32, protocol: i32, filter: &[SockFilter]) -> Result<PacketSocket> {
        let work = || -> io::Result<OwnedFd> {
            // Without a protocol it receives nothing: no packet comes in before there is a filter, and a link.
            let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
            let socket = socket(AddressFamily::Packet, SockType::Datagram, flags, None)?;
            SockRef::from(&socket).attach_filter(filter)?;
            kernel::ignore_outgoing(&socket)?;
            bind(socket.as_raw_fd(), &kernel::link_address(index, protocol, EVERYONE)?)?;
            Ok(socket)
        };
        let socket = inside(netns, &format!("open a packet socket for {link}"), work)?;
        Ok(PacketSocket { socket, protocol, link: link.to_owned(), index })
    }

    fn send(&self, to: Mac, packet: &[u8]) -> Result<()> {
        let failed = |source| Error::new(format!("send a packet by {}", self.link), source);
        let to = kernel::link_address(self.index, self.protocol, to).map_err(failed)?;
        let sent = sendto(self.socket.as_raw_fd(), packet, &to, MsgFlags::empty());
        sent.map(drop).map_err(|errno| failed(errno.into()))
    }

    fn receive(&self) -> Result<Option<(Mac, Vec<u8>)>> {
        let mut buffer = vec![0; LONGEST];
        loop {
            match recvfrom::<LinkAddr>(self.socket.as_raw_fd(), &mut buffer) {
                Ok((length, from)) => {
                    buffer.truncate(length);
                    let from = from.and_then(|from| from.addr()).unwrap_or_default();
                    return Ok(Some((Mac(from), buffer)));
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(None),
                Err(errno) => return Err(Error::new(format!("receive packets by {}", self.link), errno)),
            }
        }
    }
}

impl From<LinkSocket> for OwnedFd {
    fn from(socket: LinkSocket) -> OwnedFd {
        socket.packets.socket
    }
}

impl From<ArpSocket> for OwnedFd {
    fn from(socket: ArpSocket) -> OwnedFd {
        socket.packets.socket
    }
}

impl From<NeighborSocket> for OwnedFd {
    fn from(socket: NeighborSocket) -> OwnedFd {
        socket.packets.socket
    }
}

impl From<UplinkSocket> for OwnedFd {
    fn from(socket: UplinkSocket) -> OwnedFd {
        socket.socket
    }
}

impl AsFd for LinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.packets.socket.as_fd()
    }
}

impl AsFd for ArpSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.packets.socket.as_fd()
    }
}

impl AsFd for NeighborSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.packets.socket.as_fd()
    }
}

impl AsFd for MulticastSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

fn multicast(address: Ipv6Addr, index: u32) -> io::Result<UdpSocket> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet6, SockType::Datagram, flags, None)?;
    setsockopt(&socket, ReuseAddr, &true)?;
    bind(socket.as_raw_fd(), &SockaddrIn6::from(SocketAddrV6::new(address, v6::CLIENT_PORT, 0, index)))?;
    Ok(socket.into())
}

fn routed(index: u32, address: Ipv4Addr) -> io::Result<UdpSocket> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Inet, SockType::Datagram, flags, None)?;
    setsockopt(&socket, ReuseAddr, &true)?;
    setsockopt(&socket, RcvBuf, &LEAST_BUFFER)?;
    kernel::bind_to_link(&socket, index)?;
    bind(socket.as_raw_fd(), &SockaddrIn::from(SocketAddrV4::new(address, CLIENT_PORT)))?;
    Ok(socket.into())
}

/// Runs `work` inside the namespace. A failure to enter is one of the operation.
fn inside<T: Send>(netns: &Netns, operation: &str, work: impl FnOnce() -> io::Result<T> + Send) -> Result<T> {
    let failed = |source: io::Error| Error::new(operation, source);
    let outside = |error: cnikit_netns::Error| match error.errno() {
        Some(errno) => failed(io::Error::from_raw_os_error(errno)),
        None => failed(io::Error::other(error)),
    };
    netns.enter(|_| work()).map_err(outside)?.map_err(failed)
}
