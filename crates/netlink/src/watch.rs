//! Waiting for a state of a link or of its addresses, by the kernel's events.

use nix::errno::Errno;
use socket2::SockFilter;

use crate::socket::Heard;
use crate::{Address, Error, Link, Netlink, Result, Socket};
use cnikit_process::Deadline;

/// `RTNLGRP_LINK` and `RTNLGRP_IPV6_IFADDR` of `linux/rtnetlink.h`.
const LINK_EVENTS: u32 = 1;
const IPV6_ADDRESS_EVENTS: u32 = 9;

/// The index that no link has, for events about any link.
const ANY: u32 = 0;
/// The positions in an event of its type (`nlmsg_type`), of the family and of the link's index; the last two are the same in
/// `ifinfomsg` and `ifaddrmsg`. And that of the receiver's port in an answer (`nlmsg_pid`).
const KIND: u8 = 4;
const FAMILY: u8 = 16;
const INDEX: u8 = 20;
const PORT: u8 = 12;

/// The results of a filter: the socket gets the message, or not. See `Documentation/networking/filter.rst` of the kernel.
const ACCEPT: SockFilter = SockFilter::new(RETURN, 0, 0, u32::MAX);
const DROP: SockFilter = SockFilter::new(RETURN, 0, 0, 0);
const RETURN: u16 = 0x06; // BPF_RET | BPF_K
const COMPARE: u16 = 0x15; // BPF_JMP | BPF_JEQ | BPF_K

/// The link that is waited for, the multicast groups of its events, and the operation for errors.
pub(crate) struct Subject {
    operation: &'static str,
    groups: &'static [u32],
    index: u32,
    /// Whether only the event that the link is gone is of interest.
    is_deletion: bool,
}

impl Subject {
    fn new(operation: &'static str, groups: &'static [u32], index: u32) -> Self {
        Self { operation, groups, index, is_deletion: false }
    }

    /// The end of a link.
    pub(crate) fn deletion(index: u32) -> Self {
        Self { is_deletion: true, ..Self::new("delete link", &[LINK_EVENTS], index) }
    }

    /// The bytes by which an event that is waited for is known, and their positions.
    fn signs(&self) -> Vec<(u8, Vec<u8>)> {
        let mut signs = Vec::new();
        if self.is_deletion {
            // A bridge reports earlier, with its own family, that the link has left it.
            signs.push((KIND, libc::RTM_DELLINK.to_ne_bytes().to_vec()));
            signs.push((FAMILY, vec![0])); // AF_UNSPEC
        }
        if self.index != ANY {
            signs.push((INDEX, self.index.to_ne_bytes().to_vec()));
        }
        signs
    }

    /// Whether one of the events is waited for.
    pub(crate) fn is_meant(&self, events: &[Vec<u8>]) -> bool {
        let signs = self.signs();
        let has = |event: &[u8], (at, sign): &(u8, Vec<u8>)| {
            event.get(usize::from(*at)..).is_some_and(|rest| rest.starts_with(sign))
        };
        events.iter().any(|event| signs.iter().all(|sign| has(event, sign)))
    }

    /// Accepts the answers to the socket with this port, and the events that are waited for; `None` if all are. Without it, each of
    /// several hundred calls that wait for a link of their own would be woken by the events of all.
    fn filter(&self, port: u32) -> Option<Vec<SockFilter>> {
        let signs = self.signs();
        if signs.is_empty() {
            return None;
        }
        let mut filter = Vec::from(comparison(PORT, &port.to_ne_bytes(), true, ACCEPT));
        for (at, sign) in signs {
            filter.extend(comparison(at, &sign, false, DROP));
        }
        filter.push(ACCEPT);
        Some(filter)
    }
}

/// Compares the bytes of a message at this position with the sign, and does `then` if they are equal or, with `equal` false, if
/// they are not. A filter reads a number as a big-endian one.
fn comparison(at: u8, sign: &[u8], equal: bool, then: SockFilter) -> [SockFilter; 3] {
    let load = match sign.len() {
        1 => 0x30, // BPF_LD | BPF_B | BPF_ABS
        2 => 0x28, // BPF_LD | BPF_H | BPF_ABS
        _ => 0x20, // BPF_LD | BPF_W | BPF_ABS
    };
    let number = sign.iter().fold(0, |number, byte| number << 8 | u32::from(*byte));
    let (if_equal, if_not) = if equal { (0, 1) } else { (1, 0) };
    [SockFilter::new(load, 0, 0, at.into()), SockFilter::new(COMPARE, if_equal, if_not, number), then]
}

impl Netlink {
    /// Waits for the kernel's events until `ready` accepts the link, and returns the link as it is then.
    ///
    /// The kernel sends no event when the alias of a link that is down changes.
    ///
    /// # Errors
    /// At the deadline, with `ETIMEDOUT` ([`Error::timed_out`](crate::Error::timed_out)) and the last state in the text; at
    /// once if the link is deleted ([`Error::is_absent`](crate::Error::is_absent)) or its socket fails.
    #[doc(alias = "RTNLGRP_LINK")]
    pub fn wait_link(&self, index: u32, deadline: Deadline, ready: impl Fn(&Link) -> bool) -> Result<Link> {
        let subject = Subject::new("wait for link", &[LINK_EVENTS], index);
        self.watch(&subject, deadline, || self.link_at(index), ready, describe_link)
    }

    /// Waits for the kernel's events about any link until `look` finds something, and returns that; `None` at the deadline.
    ///
    /// # Errors
    /// That of `look`, or the socket fails.
    #[doc(alias = "RTNLGRP_LINK")]
    pub fn wait_for<T>(&self, deadline: Deadline, look: impl Fn() -> Result<Option<T>>) -> Result<Option<T>> {
        let subject = Subject::new("wait for a link", &[LINK_EVENTS], ANY);
        match self.watch(&subject, deadline, look, Option::is_some, |_| String::new()) {
            Err(error) if error.timed_out() => Ok(None),
            found => found,
        }
    }

    /// Waits until `ready` accepts the addresses of a link, and returns them as they are then.
    ///
    /// `ready` is called again after events about the link itself, which `ready` may read, and about its IPv6 addresses, which take
    /// time to become usable. Changes of IPv4 addresses do not wake it up.
    ///
    /// # Errors
    /// As [`Netlink::wait_link`].
    #[doc(alias = "RTNLGRP_IPV6_IFADDR")]
    #[doc(alias = "DAD")]
    pub fn wait_addresses(
        &self,
        index: u32,
        deadline: Deadline,
        ready: impl Fn(&[Address]) -> bool,
    ) -> Result<Vec<Address>> {
        let subject = Subject::new("wait for addresses of link", &[IPV6_ADDRESS_EVENTS, LINK_EVENTS], index);
        let describe = |addresses: &Vec<Address>| describe_addresses(index, addresses);
        self.watch(&subject, deadline, || self.addresses(index), |addresses: &Vec<Address>| ready(addresses), describe)
    }

    /// Reads the state, and again after each event about the link, until `ready` accepts it.
    ///
    /// The subscription begins before the decisive reading, so that no change between the two is missed. Events that were queued
    /// before a reading are discarded: their changes are part of that reading.
    fn watch<T>(
        &self,
        subject: &Subject,
        deadline: Deadline,
        read: impl Fn() -> Result<T>,
        ready: impl Fn(&T) -> bool,
        describe: impl Fn(&T) -> String,
    ) -> Result<T> {
        // Usually there is nothing to wait for.
        let state = read()?;
        if ready(&state) {
            return Ok(state);
        }
        let _subscription = Subscription::new(self, subject)?;
        loop {
            self.with_socket(Socket::drain);
            let state = read()?;
            if ready(&state) {
                return Ok(state);
            }
            if !self.hear_of(subject, deadline)? {
                return Err(Error::new(subject.operation, describe(&state), Errno::ETIMEDOUT));
            }
        }
    }

    /// Waits for an event about the link. Returns true also if such an event may have been lost, and false at the deadline.
    fn hear_of(&self, subject: &Subject, deadline: Deadline) -> Result<bool> {
        loop {
            match self.with_socket(|socket| socket.listen(deadline))? {
                Heard::Nothing => return Ok(false),
                Heard::Lost => return Ok(true),
                Heard::Events(events) if subject.is_meant(&events) => return Ok(true),
                Heard::Events(_) => {}
            }
        }
    }
}

/// Membership of multicast groups, which ends when this is dropped.
pub(crate) struct Subscription<'a> {
    netlink: &'a Netlink,
    groups: &'static [u32],
}

impl<'a> Subscription<'a> {
    pub(crate) fn new(netlink: &'a Netlink, subject: &Subject) -> Result<Self> {
        let failed = |source| Error::new(subject.operation, format!("number {}", subject.index), source);
        let subscription = Self { netlink, groups: subject.groups };
        let set_filter = |socket: &mut Socket| socket.filter(subject.filter(socket.port).as_deref());
        netlink.with_socket(set_filter).map_err(failed)?;
        subject
            .groups
            .iter()
            .try_for_each(|group| netlink.with_socket(|socket| socket.join(*group)))
            .map_err(failed)?;
        Ok(subscription)
    }
}

impl Drop for Subscription<'_> {
    fn drop(&mut self) {
        // If leaving a group fails, its events keep arriving, and every exchange ignores them.
        self.groups.iter().for_each(|group| drop(self.netlink.with_socket(|socket| socket.leave(*group))));
        self.netlink.with_socket(Socket::drain);
    }
}

fn describe_link(link: &Link) -> String {
    let wanted = if link.up { "set up" } else { "set down" };
    format!("{} ({wanted}, state {})", link.name, link.operstate)
}

fn describe_addresses(index: u32, addresses: &[Address]) -> String {
    let states: Vec<String> = addresses.iter().map(describe_address).collect();
    format!("number {index} ({})", states.join(", "))
}

fn describe_address(address: &Address) -> String {
    let state = match (address.dad_failed, address.tentative) {
        (true, _) => " duplicate",
        (false, true) => " tentative",
        (false, false) => "",
    };
    format!("{}{state}", address.address)
}
