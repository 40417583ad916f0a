//! Several changes in one system call.

use std::net::IpAddr;

use crate::netlink::{Forgives, Request};
use crate::{
    Error, FilterRule, HtbClass, KernelRoute, LinkChange, Netlink, NewAddress, QdiscPlace, Result, Tbf, VlanRange,
    filter, htb, neighbour, qdisc, vlan,
};

/// Changes that go to the kernel in one datagram, in order.
///
/// A batch saves system calls, but is not a transaction: when the kernel refuses a change, the earlier changes stay in effect
/// and the later ones are still attempted.
#[derive(Debug, Default)]
#[must_use = "nothing is sent before Netlink::send"]
pub struct Batch {
    requests: Vec<Request>,
    /// The error of the first change that cannot be expressed in a message. If there is one, nothing is sent.
    invalid: Option<Error>,
}

impl Batch {
    /// An empty batch, which is sent without a system call.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.invalid.is_none()
    }

    /// Changes a link's settings. See [`Netlink::change`].
    pub fn set_link(&mut self, index: u32, change: &LinkChange) {
        self.requests.push(change.request(index));
    }

    /// Changes a link's settings; a link that does not exist is not an error.
    pub fn set_link_if_present(&mut self, index: u32, change: &LinkChange) {
        self.requests.push(Request { forgives: Forgives::Absent, ..change.request(index) });
    }

    /// Adds an address; an address that exists already is an error.
    pub fn add_address(&mut self, index: u32, address: &NewAddress) {
        self.requests.push(address.request(index));
    }

    /// Adds an address unless it exists already, whatever flags it has.
    pub fn add_address_if_absent(&mut self, index: u32, address: &NewAddress) {
        self.requests.push(Request { forgives: Forgives::Present, ..address.request(index) });
    }

    /// Adds a route; an existing route to the same destination with the same priority is an error.
    ///
    /// If `route` mixes address families in a way that no message can express, [`Netlink::send`] sends nothing and returns that
    /// error.
    pub fn add_route(&mut self, route: &KernelRoute) {
        self.push(route.addition());
    }

    /// Adds a route even if one to the same destination with the same priority exists, as long as that one has another gateway
    /// or link; an existing route with the same gateway and link is an error. Of two such routes the newer one is used (IPv4),
    /// or they share the traffic (IPv6).
    pub fn add_route_beside(&mut self, route: &KernelRoute) {
        self.push(route.addition_beside());
    }

    /// Adds a route, and replaces one to the same destination with the same priority.
    pub fn replace_route(&mut self, route: &KernelRoute) {
        self.push(route.replacement());
    }

    /// Removes a route; a route that does not exist is not an error.
    pub fn delete_route(&mut self, route: &KernelRoute) {
        self.push(route.deletion().map(|request| Request { forgives: Forgives::Absent, ..request }));
    }

    /// Removes a neighbour; a neighbour that does not exist is not an error.
    pub fn delete_neighbour(&mut self, index: u32, address: IpAddr) {
        self.requests.push(neighbour::deletion(index, address));
    }

    /// Adds a bridge port to all of these VLANs in one message. If the port is in a VLAN already, its flags there are changed.
    ///
    /// The kernel adds the VLANs one by one: if it refuses one, those before it stay.
    #[doc(alias = "IFLA_BRIDGE_VLAN_INFO")]
    pub fn add_vlans(&mut self, port: u32, ranges: &[VlanRange]) {
        self.push(vlan::addition(port, ranges));
    }

    /// Removes a bridge port from all VLANs of a range in one message, whatever their flags. VLANs that the port is not in are
    /// not an error.
    pub fn delete_vlans(&mut self, port: u32, range: VlanRange) {
        self.push(vlan::deletion(port, range));
    }

    /// Makes a token bucket filter with the handle `1:` the root of a link. If the root is such a filter already, its options are
    /// changed, and its queue and statistics stay. A root with another handle is replaced.
    #[doc(alias = "RTM_NEWQDISC")]
    pub fn set_tbf(&mut self, link: u32, tbf: &Tbf) {
        self.requests.push(qdisc::tbf(link, tbf));
    }

    /// Makes an `htb` with the handle `1:` the root of a link, which must not have a root of its own. Packets that no filter
    /// assigns to a class belong to the class `default`; if that does not exist, they are sent at once.
    pub fn add_htb(&mut self, link: u32, default: u16) {
        self.requests.push(qdisc::htb(link, default));
    }

    /// Makes the class `1:1` of the `htb` at the root of a link, or changes it.
    #[doc(alias = "RTM_NEWTCLASS")]
    pub fn set_htb_class(&mut self, link: u32, class: &HtbClass) {
        self.requests.push(htb::class(link, class));
    }

    /// Replaces the queue of the root's class `1:1`, such as that of a [`Tbf`], by a discipline of this kind with its default
    /// options.
    pub fn set_qdisc_below_root(&mut self, link: u32, kind: &str) {
        self.requests.push(qdisc::below_root(link, kind));
    }

    /// Replaces the queue of the root's class `1:1` by one of so many bytes.
    pub fn set_fifo_below_root(&mut self, link: u32, limit: u32) {
        self.requests.push(qdisc::fifo_below_root(link, limit));
    }

    /// Adds an ingress to a link; an ingress that exists already is an error.
    pub fn add_ingress(&mut self, link: u32) {
        self.requests.push(qdisc::ingress(link));
    }

    /// Deletes the discipline at this place of a link, and its filters; one that does not exist is not an error. A root with
    /// another handle than `1:` is not deleted, and is an error.
    pub fn delete_qdisc(&mut self, link: u32, place: QdiscPlace) {
        self.requests.push(qdisc::deletion(link, place));
    }

    /// Adds a filter to the discipline at this place of a link, behind those of its preference. They must all have one protocol.
    #[doc(alias = "RTM_NEWTFILTER")]
    pub fn add_filter(&mut self, link: u32, place: QdiscPlace, rule: &FilterRule) {
        self.requests.push(filter::addition(link, place, rule));
    }

    /// All requests.
    ///
    /// # Errors
    /// The first change that cannot be expressed in a message.
    pub(crate) fn into_requests(self) -> Result<Vec<Request>> {
        match self.invalid {
            Some(error) => Err(error),
            None => Ok(self.requests),
        }
    }

    pub(crate) fn add(&mut self, request: Request) {
        self.requests.push(request);
    }

    fn push(&mut self, request: Result<Request>) {
        match request {
            Ok(request) => self.requests.push(request),
            Err(error) if self.invalid.is_none() => self.invalid = Some(error),
            Err(_) => {}
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
