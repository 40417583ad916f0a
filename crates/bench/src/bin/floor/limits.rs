//! Limits of rates as bandwidth sets them: a shaper at the host end, and one at an ifb that what the host end receives goes to.

use std::io;

use libc::{
    IFF_UP, IFLA_IFNAME, NLM_F_DUMP, NLM_F_ECHO, RTM_DELLINK, RTM_DELQDISC, RTM_GETQDISC, RTM_NEWLINK, RTM_NEWQDISC,
    RTM_NEWTFILTER,
};
use nix::sys::socket::SockProtocol;

use crate::Result;
use crate::links::{LINK_HEADER, index, link, link_at};
use crate::netlink::{ACK, CREATE, Message, Socket, attribute, link_header};

/// The rates of the scenario in bytes per second, with the bursts in ticks of 64 ns, and the bytes that may wait, by tc-tbf(8).
const TO_CONTAINER: Shaper = Shaper { rate: 1_000_000, limit: 125_000, buffer: 1_562_500 };
const FROM_CONTAINER: Shaper = Shaper { rate: 2_000_000, limit: 70_000, buffer: 156_250 };

/// `struct tcmsg` has twenty bytes.
const HEADER: usize = 20;
/// `TC_H_ROOT`, `TC_H_INGRESS`, and the handle of an ingress.
const ROOT: u32 = 0xffff_ffff;
const INGRESS: u32 = 0xffff_fff1;
const INGRESS_HANDLE: u32 = 0xffff_0000;
/// `1:`
const HANDLE: u32 = 1 << 16;
/// Filters of priority 1 for packets of all protocols: `ETH_P_ALL` in network byte order.
const FIRST_OF_ALL: u32 = 1 << 16 | 0x0300;

// Attributes of linux/rtnetlink.h, linux/pkt_sched.h, linux/pkt_cls.h and linux/tc_act/tc_mirred.h.
const KIND: u16 = 1;
const OPTIONS: u16 = 2;
const TBF_PARAMETERS: u16 = 1;
const U32_CLASS: u16 = 1;
const U32_SELECTOR: u16 = 5;
const U32_ACTIONS: u16 = 7;
const ACTION_KIND: u16 = 1;
const ACTION_OPTIONS: u16 = 2;
const MIRRED_PARAMETERS: u16 = 2;
/// `TC_ACT_STOLEN` and `TCA_EGRESS_REDIR`.
const STOLEN: u32 = 4;
const REDIRECT: u32 = 1;

struct Shaper {
    rate: u32,
    limit: u32,
    buffer: u32,
}

/// Sets both limits of the link whose other end this is. Returns the MAC of the ifb, which gets this name.
pub(crate) fn add(host: &Socket, end: u32, name: &str) -> Result<Vec<u8>> {
    let make = Message::new(RTM_NEWLINK, CREATE | NLM_F_ECHO, &link_header(0, IFF_UP))
        .text(IFLA_IFNAME, name)
        .nest(libc::IFLA_LINKINFO, |info| info.text(libc::IFLA_INFO_KIND, "ifb"));
    let made = host.ask(&[make])?.into_iter().next().ok_or_else(|| io::Error::other("the ifb has no answer"))?;
    let ifb = index(&made);
    let ingress = discipline(RTM_NEWQDISC, CREATE, end, INGRESS_HANDLE, INGRESS, 0).text(KIND, "ingress");
    host.ask(&[FROM_CONTAINER.at(ifb), ingress, redirection(end, ifb), TO_CONTAINER.at(end)])?;
    Ok(attribute(&made, LINK_HEADER, libc::IFLA_ADDRESS).unwrap_or_default().to_vec())
}

/// Whether both links have their shapers, and what one receives goes to the other.
pub(crate) fn check(host: &Socket, end: u32, name: &str) -> Result<()> {
    link_at(host, end)?;
    let ifb = index(&link(host, name)?);
    for of in [end, ifb] {
        let found = host.ask(&[discipline(RTM_GETQDISC, ACK | NLM_F_ECHO, of, 0, ROOT, 0)])?;
        if !found.iter().any(|one| attribute(one, HEADER, KIND).is_some_and(|kind| kind.starts_with(b"tbf"))) {
            return Err(io::Error::other("a limit is missing"));
        }
    }
    let filters = host.ask(&[discipline(libc::RTM_GETTFILTER, NLM_F_DUMP, end, 0, INGRESS_HANDLE, 0)])?;
    if filters.is_empty() { Err(io::Error::other("the redirection is missing")) } else { Ok(()) }
}

/// Removes both limits.
pub(crate) fn delete(host: &Socket, end: u32, name: &str) -> Result<()> {
    let root = discipline(RTM_DELQDISC, ACK, end, 0, ROOT, 0);
    let ingress = discipline(RTM_DELQDISC, ACK, end, 0, INGRESS, 0);
    let ifb = Message::new(RTM_DELLINK, ACK, &link_header(0, 0)).text(IFLA_IFNAME, name);
    host.ask(&[root, ingress, ifb]).map(drop)
}

/// The socket in the namespace of the host.
pub(crate) fn socket() -> Result<Socket> {
    Socket::new(SockProtocol::NetlinkRoute)
}

impl Shaper {
    /// `struct tc_tbf_qopt`: a rate and its peak, each of twelve bytes that end with the rate; limit, buffer, MTU.
    fn at(&self, link: u32) -> Message {
        let words = [0, 0, self.rate, 0, 0, 0, self.limit, self.buffer, 0];
        discipline(RTM_NEWQDISC, CREATE, link, HANDLE, ROOT, 0)
            .text(KIND, "tbf")
            .nest(OPTIONS, |options| options.with(TBF_PARAMETERS, &bytes(&words)))
    }
}

/// A filter of u32 that selects all packets by one key without bits, and redirects them.
fn redirection(end: u32, ifb: u32) -> Message {
    // `struct tc_u32_sel` with one `struct tc_u32_key`: the first byte has the flag for a terminal filter, the third the number of
    // keys.
    let mut selector = [0; 32];
    selector[0] = 1;
    selector[2] = 1;
    // `struct tc_mirred`
    let mirred = bytes(&[0, 0, STOLEN, 0, 0, REDIRECT, ifb]);
    discipline(RTM_NEWTFILTER, CREATE, end, 0, INGRESS_HANDLE, FIRST_OF_ALL).text(KIND, "u32").nest(
        OPTIONS,
        |options| {
            options.with(U32_CLASS, &(HANDLE | 1).to_ne_bytes()).with(U32_SELECTOR, &selector).nest(
                U32_ACTIONS,
                |actions| {
                    actions.nest(1, |first| {
                        first
                            .text(ACTION_KIND, "mirred")
                            .nest(ACTION_OPTIONS, |options| options.with(MIRRED_PARAMETERS, &mirred))
                    })
                },
            )
        },
    )
}

/// A message with `struct tcmsg`: family, index, handle, parent, information.
fn discipline(kind: u16, flags: i32, link: u32, handle: u32, parent: u32, info: u32) -> Message {
    Message::new(kind, flags, &bytes(&[0, link, handle, parent, info]))
}

fn bytes(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}
