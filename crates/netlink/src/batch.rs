//! Several changes in one system call.

use std::net::IpAddr;

use crate::netlink::{Forgives, Request};
use crate::{Error, KernelRoute, LinkChange, Netlink, NewAddress, Result, VlanRange, neighbour, vlan};

/// Changes that go to the kernel in one datagram, in order, each with its own acknowledgement.
///
/// One system call instead of many; no transaction: what was done before a refusal stays done, and what comes after it
/// is tried all the same.
#[derive(Debug, Default)]
#[must_use = "nothing is sent before Netlink::send"]
pub struct Batch {
    requests: Vec<Request>,
    /// The first change that no message can say; then nothing is sent.
    unspeakable: Option<Error>,
}

impl Batch {
    /// An empty one, which is sent without a system call.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.unspeakable.is_none()
    }

    /// Changes a link's settings. See [`Netlink::change`].
    pub fn set_link(&mut self, index: u32, change: &LinkChange) {
        self.requests.push(change.request(index));
    }

    /// Changes a link's settings; that there is no such link is success.
    pub fn set_link_if_present(&mut self, index: u32, change: &LinkChange) {
        self.requests.push(Request { forgives: Forgives::Absent, ..change.request(index) });
    }

    /// Adds an address; one that is there already is a refusal.
    pub fn add_address(&mut self, index: u32, address: &NewAddress) {
        self.requests.push(address.request(index));
    }

    /// Adds an address unless it is there already, whatever its flags.
    pub fn add_address_if_absent(&mut self, index: u32, address: &NewAddress) {
        self.requests.push(Request { forgives: Forgives::Present, ..address.request(index) });
    }

    /// Adds a route; one to the same destination with the same priority is a refusal.
    ///
    /// If `route` mixes address families in a way that no message can say, [`Netlink::send`] sends nothing and says so.
    pub fn add_route(&mut self, route: &KernelRoute) {
        self.push(route.addition());
    }

    /// Adds a route, beside one to the same destination with the same priority that leads elsewhere; one that leads to the
    /// same gateway over the same link is a refusal. Of two such routes the newer wins (IPv4), or they share (IPv6).
    pub fn add_route_beside(&mut self, route: &KernelRoute) {
        self.push(route.addition_beside());
    }

    /// Adds a route, in place of one to the same destination with the same priority.
    pub fn replace_route(&mut self, route: &KernelRoute) {
        self.push(route.replacement());
    }

    /// Removes a route; that there is none is success.
    pub fn delete_route(&mut self, route: &KernelRoute) {
        self.push(route.deletion().map(|request| Request { forgives: Forgives::Absent, ..request }));
    }

    /// Forgets a neighbour; that it is not known is success.
    pub fn delete_neighbour(&mut self, index: u32, address: IpAddr) {
        self.requests.push(neighbour::deletion(index, address));
    }

    /// Puts a bridge port into all of these VLANs, in one message; one that it is in already is changed to what is said here.
    ///
    /// The kernel takes them one by one: with a refusal, those before it stay.
    #[doc(alias = "IFLA_BRIDGE_VLAN_INFO")]
    pub fn add_vlans(&mut self, port: u32, ranges: &[VlanRange]) {
        self.push(vlan::addition(port, ranges));
    }

    /// Takes a bridge port out of all VLANs from the first to the last of a range, however it is in them, in one message;
    /// that it is not in some or any of them is success.
    pub fn delete_vlans(&mut self, port: u32, range: VlanRange) {
        self.push(vlan::deletion(port, range));
    }

    /// All requests.
    ///
    /// # Errors
    /// The first change that no message can say.
    pub(crate) fn into_requests(self) -> Result<Vec<Request>> {
        self.unspeakable.map_or(Ok(self.requests), Err)
    }

    fn push(&mut self, request: Result<Request>) {
        match request {
            Ok(request) => self.requests.push(request),
            Err(error) => self.unspeakable = self.unspeakable.take().or(Some(error)),
        }
    }
}

impl Netlink {
    /// Sends a batch.
    ///
    /// # Errors
    /// The first change that the kernel refuses, or that cannot be expressed in a message; in the latter case nothing is sent.
    /// The error names that change; all other changes of a sent batch are in effect.
    pub fn send(&self, batch: Batch) -> Result<()> {
        self.carry_out(&batch.into_requests()?).map(drop)
    }
}
