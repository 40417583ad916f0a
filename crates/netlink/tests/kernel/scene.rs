//! Fresh namespaces with links, and ip(8) to check their state.

#![expect(clippy::unwrap_used, reason = "a test whose scene cannot be set has failed")]

use std::os::fd::{AsFd, AsRawFd};

use cnikit_netlink::{Batch, Link, LinkChange, Netlink, NewAddress, NewVeth, Peer};
use cnikit_netns::{Netns, make};
use ipnetwork::IpNetwork;

pub(crate) fn netns() -> Netns {
    make::anonymous().unwrap()
}

pub(crate) fn inside() -> (Netns, Netlink) {
    let netns = netns();
    let netlink = Netlink::inside(&netns).unwrap();
    (netns, netlink)
}

pub(crate) fn veth(name: &str, peer: &str, netns: &Netns) -> NewVeth {
    let peer = Peer::new(peer, netns.clone());
    NewVeth::new(name, peer)
}

/// A veth pair `near` and `far` in one namespace.
pub(crate) fn pair(netns: &Netns, netlink: &Netlink) -> (Link, Link) {
    let near = netlink.create_veth(&veth("near", "far", netns)).unwrap();
    (near, netlink.link("far").unwrap())
}

/// A veth pair in one namespace, both ends up.
pub(crate) fn pair_up(netns: &Netns, netlink: &Netlink) -> (Link, Link) {
    let (near, far) = pair(netns, netlink);
    let mut batch = Batch::new();
    batch.set_link(near.index, &up());
    batch.set_link(far.index, &up());
    netlink.send(batch).unwrap();
    (near, far)
}

pub(crate) fn up() -> LinkChange {
    LinkChange::default().up(true)
}

pub(crate) fn net(text: &str) -> IpNetwork {
    text.parse().unwrap()
}

pub(crate) fn address(text: &str) -> NewAddress {
    NewAddress::from(net(text))
}

/// Runs ip(8) inside `netns` and returns its output; it must succeed.
#[expect(clippy::disallowed_methods, reason = "the crate that starts programs is no part of what is tested here")]
pub(crate) fn ip(netns: &Netns, arguments: &str) -> String {
    let net = format!("--net=/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd());
    let output = std::process::Command::new("nsenter").args([&net, "ip"]).args(arguments.split(' ')).output().unwrap();
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}
