//! System calls without a safe wrapper, and the filters that the kernel runs.
#![expect(unsafe_code, reason = "neither these socket options nor an address of a packet socket can be made otherwise")]

use std::io;
use std::mem::size_of;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd};
use std::ptr;

use cnikit_netlink::Mac;
use libc::{
    BPF_ABS, BPF_ALU, BPF_AND, BPF_B, BPF_H, BPF_IND, BPF_JA, BPF_JEQ, BPF_JMP, BPF_JSET, BPF_K, BPF_LD, BPF_LDX,
    BPF_MSH, BPF_RET, BPF_W,
};
use nix::sys::socket::{LinkAddr, SockaddrLike};
use socket2::SockFilter;

/// A statement of a filter: what it does, with which number, and how many statements it skips if the comparison holds and if not.
type Statement = (u32, u32, u8, u8);

/// Accepts the whole packet.
const ACCEPT: Statement = (BPF_RET | BPF_K, u32::MAX, 0, 0);
/// Drops the packet. A filter also does so if it reads behind the packet's end.
const DROP: Statement = (BPF_RET | BPF_K, 0, 0, 0);

/// Accepts whole UDP datagrams to port 68 with a reply to this client (`op`, `hlen`, `chaddr`) and, if it is given, to the request
/// with this number (`xid`). Replies to other clients of the link, which servers may broadcast, wake no process, and neither do
/// those of a host that has not seen the request.
pub(crate) fn reply_filter(mac: Mac, xid: Option<u32>) -> Vec<SockFilter> {
    let [first @ .., fifth, sixth] = mac.0;
    let compare = BPF_JMP | BPF_JEQ | BPF_K;
    let xid = match xid {
        Some(xid) => (compare, xid, 0, 1),
        None => (BPF_JMP | BPF_JA, 0, 0, 0), // the next statement
    };
    statements(&[
        (BPF_LD | BPF_B | BPF_ABS, 9, 0, 0),
        (compare, 17, 0, 16), // UDP
        (BPF_LD | BPF_H | BPF_ABS, 6, 0, 0),
        (BPF_JMP | BPF_JSET | BPF_K, 0x3fff, 14, 0), // a fragment
        (BPF_LDX | BPF_B | BPF_MSH, 0, 0, 0),        // X is now the length of the IPv4 header
        (BPF_LD | BPF_H | BPF_IND, 2, 0, 0),
        (compare, 68, 0, 11),
        (BPF_LD | BPF_B | BPF_IND, 8, 0, 0),
        (compare, 2, 0, 9), // BOOTREPLY
        (BPF_LD | BPF_B | BPF_IND, 10, 0, 0),
        (compare, 6, 0, 7), // the length of chaddr
        (BPF_LD | BPF_W | BPF_IND, 36, 0, 0),
        (compare, u32::from_be_bytes(first), 0, 5),
        (BPF_LD | BPF_H | BPF_IND, 40, 0, 0),
        (compare, u32::from_be_bytes([0, 0, fifth, sixth]), 0, 3),
        (BPF_LD | BPF_W | BPF_IND, 12, 0, 0),
        xid,
        ACCEPT,
        DROP,
    ])
}

/// Accepts the datagrams of `DHCPv6` in the exchange with this number. The filter of a UDP socket reads from the UDP header on.
pub(crate) fn answer_filter(xid: u32) -> Vec<SockFilter> {
    statements(&[
        (BPF_LD | BPF_W | BPF_ABS, 8, 0, 0),
        (BPF_ALU | BPF_AND | BPF_K, 0x00ff_ffff, 0, 0), // without the type of the message
        (BPF_JMP | BPF_JEQ | BPF_K, xid, 0, 1),
        ACCEPT,
        DROP,
    ])
}

/// Accepts ARP packets of Ethernet and IPv4 that name this address as their sender's or target's.
pub(crate) fn arp_filter(address: Ipv4Addr) -> Vec<SockFilter> {
    let compare = BPF_JMP | BPF_JEQ | BPF_K;
    statements(&[
        (BPF_LD | BPF_W | BPF_ABS, 14, 0, 0),
        (compare, address.into(), 2, 0),
        (BPF_LD | BPF_W | BPF_ABS, 24, 0, 0),
        (compare, address.into(), 0, 1),
        ACCEPT,
        DROP,
    ])
}

/// Accepts neighbour solicitations and advertisements for these addresses, of which there are at most thirty.
pub(crate) fn neighbor_filter(addresses: &[Ipv6Addr]) -> Vec<SockFilter> {
    let compare = BPF_JMP | BPF_JEQ | BPF_K;
    let word = BPF_LD | BPF_W | BPF_ABS;
    let mut program = vec![
        (BPF_LD | BPF_B | BPF_ABS, 6, 0, 0),
        (compare, 58, 1, 0), // ICMPv6
        DROP,
        (BPF_LD | BPF_B | BPF_ABS, 40, 0, 0),
        (compare, 135, 2, 0), // a solicitation
        (compare, 136, 1, 0), // an advertisement
        DROP,
    ];
    for address in addresses {
        // The target, a word at a time. If one differs, the rest of this address is skipped.
        for (at, part) in address.octets().chunks_exact(4).enumerate() {
            let (at, rest) = (u8::try_from(at).unwrap_or_default(), u32::try_from(at * 4).unwrap_or_default());
            let value = u32::from_be_bytes(<[u8; 4]>::try_from(part).unwrap_or_default());
            program.push((word, 48 + rest, 0, 0));
            program.push((compare, value, 0, 7 - 2 * at));
        }
        program.push(ACCEPT);
    }
    program.push(DROP);
    statements(&program)
}

fn statements(statements: &[Statement]) -> Vec<SockFilter> {
    let mut filter = Vec::new();
    for (code, k, jt, jf) in statements {
        let code = u16::try_from(*code).unwrap_or_default(); // each is smaller than 256
        filter.push(SockFilter::new(code, *jt, *jf, *k));
    }
    filter
}

/// The socket sends and receives by the link with this index only, whatever its name is; see socket(7).
#[doc(alias = "SO_BINDTOIFINDEX")]
pub(crate) fn bind_to_link(socket: impl AsFd, index: u32) -> io::Result<()> {
    let index = i32::try_from(index).map_err(io::Error::other)?;
    set_number(socket, libc::SOL_SOCKET, libc::SO_BINDTOIFINDEX, index)
}

/// A packet socket receives what other hosts send, and not what its own link sends; see packet(7).
#[doc(alias = "PACKET_IGNORE_OUTGOING")]
pub(crate) fn ignore_outgoing(socket: impl AsFd) -> io::Result<()> {
    set_number(socket, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, 1)
}

fn set_number(socket: impl AsFd, level: i32, option: i32, value: i32) -> io::Result<()> {
    let size = u32::try_from(size_of::<i32>()).map_err(io::Error::other)?;
    // SAFETY: the socket is open, and the pointer is to a live number of this size, which the kernel copies.
    let result =
        unsafe { libc::setsockopt(socket.as_fd().as_raw_fd(), level, option, ptr::from_ref(&value).cast(), size) };
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The address of a packet socket: a link by its index, a protocol of `linux/if_ether.h`, and a hardware address; see packet(7).
#[doc(alias = "sockaddr_ll")]
pub(crate) fn link_address(index: u32, protocol: i32, mac: Mac) -> io::Result<LinkAddr> {
    let mut hardware = [0; 8];
    hardware[..6].copy_from_slice(&mac.0);
    let raw = libc::sockaddr_ll {
        sll_family: u16::try_from(libc::AF_PACKET).map_err(io::Error::other)?,
        sll_protocol: u16::try_from(protocol).map_err(io::Error::other)?.to_be(),
        sll_ifindex: i32::try_from(index).map_err(io::Error::other)?,
        sll_hatype: 0,
        sll_pkttype: 0,
        sll_halen: 6,
        sll_addr: hardware,
    };
    let size = u32::try_from(size_of::<libc::sockaddr_ll>()).map_err(io::Error::other)?;
    // SAFETY: the pointer is to a whole `sockaddr_ll` of this size, which is copied.
    let address = unsafe { LinkAddr::from_raw(ptr::from_ref(&raw).cast(), Some(size)) };
    address.ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))
}
