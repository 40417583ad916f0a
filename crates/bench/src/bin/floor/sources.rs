//! Routing by source as sbr sets it up: a rule for each address, and its routes in a table of their own instead of the main table.

use std::net::IpAddr;

use libc::{NLM_F_DUMP, RTM_DELROUTE, RTM_DELRULE, RTM_GETROUTE, RTM_NEWROUTE, RTM_NEWRULE};
use nix::sys::socket::SockProtocol;

use crate::links::{index, link};
use crate::netlink::{ACK, CREATE, Message, Socket, attribute};
use crate::{IFNAME, Result};

/// The table of the first address.
const FIRST_TABLE: u8 = 100;

/// `struct rtmsg` and `struct fib_rule_hdr` have twelve bytes, among which are the family and the table.
const HEADER: usize = 12;
const FAMILY: usize = 0;
const TABLE: usize = 4;

/// What describes a route, besides its header.
const PARTS: [u16; 5] = [libc::RTA_DST, libc::RTA_OIF, libc::RTA_GATEWAY, libc::RTA_PRIORITY, libc::RTA_PREFSRC];
/// `FRA_SRC` and `FR_ACT_TO_TBL` of `linux/fib_rules.h`.
const FROM: u16 = 2;
const TO_TABLE: u8 = 1;

/// The verb.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Add,
    Delete,
}

/// Moves the routes of the interface, and adds or deletes the rules.
pub(crate) fn change(change: Change, addresses: &[IpAddr]) -> Result<()> {
    let inside = Socket::new(SockProtocol::NetlinkRoute)?;
    let of = index(&link(&inside, IFNAME)?);
    let mut messages = Vec::new();
    for (address, table) in addresses.iter().zip(FIRST_TABLE..) {
        let family = if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
        let family = u8::try_from(family).unwrap_or_default();
        let (from, to) = match change {
            Change::Add => (libc::RT_TABLE_MAIN, table),
            Change::Delete => (table, libc::RT_TABLE_MAIN),
        };
        let mut header = [0; HEADER];
        header[FAMILY] = family;
        let all = Message::new(RTM_GETROUTE, NLM_F_DUMP, &header).with(libc::RTA_OIF, &of.to_ne_bytes());
        let all = inside.ask(&[all])?;
        let routes = all.iter().filter(|route| route[TABLE] == from && !is_link_local(route));
        // Those with a gateway are added last: it has to be on the link.
        let (by_gateway, on_link): (Vec<_>, Vec<_>) =
            routes.partition(|route| attribute(route, HEADER, libc::RTA_GATEWAY).is_some());
        for route in on_link.iter().chain(&by_gateway) {
            messages.push(moved(RTM_NEWROUTE, CREATE, route, to));
        }
        for route in by_gateway.iter().chain(&on_link) {
            messages.push(moved(RTM_DELROUTE, ACK, route, from));
        }
        messages.push(rule(change, family, *address, table));
    }
    inside.ask(&messages).map(drop)
}

/// Whether it leads to the addresses that each link needs in the main table.
fn is_link_local(route: &[u8]) -> bool {
    attribute(route, HEADER, libc::RTA_DST).is_some_and(|to| to.starts_with(&[0xfe, 0x80]))
}

fn moved(kind: u16, flags: i32, route: &[u8], table: u8) -> Message {
    let mut header = route[..HEADER].to_vec();
    header[TABLE] = table;
    PARTS.into_iter().fold(Message::new(kind, flags, &header), |message, part| match attribute(route, HEADER, part) {
        Some(value) => message.with(part, value),
        None => message,
    })
}

fn rule(change: Change, family: u8, from: IpAddr, table: u8) -> Message {
    let (kind, flags) = match change {
        Change::Add => (RTM_NEWRULE, CREATE),
        Change::Delete => (RTM_DELRULE, ACK),
    };
    let address = match from {
        IpAddr::V4(from) => from.octets().to_vec(),
        IpAddr::V6(from) => from.octets().to_vec(),
    };
    let bits = u8::try_from(8 * address.len()).unwrap_or_default();
    Message::new(kind, flags, &[family, 0, bits, 0, table, 0, 0, TO_TABLE, 0, 0, 0, 0]).with(FROM, &address)
}
