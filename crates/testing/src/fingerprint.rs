//! Fingerprints of what the kernel has in a network namespace: a snapshot runs no program to list what is as it was before.
//!
//! They are of the kernel's own messages, rtnetlink(7), which have more than any program prints, without what changes by itself. So
//! where they are the same, a program would print the same.

use std::hash::{DefaultHasher, Hasher};
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, recv, sendto, socket};

/// Objects of one kind that the kernel lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Objects {
    Links,
    /// Links by their indexes and names alone, which programs print beside other objects.
    Names,
    Addresses,
    Neighbours,
    Routes4,
    Routes6,
    Rules4,
    Rules6,
    Qdiscs,
    /// The VLANs of bridges and of their ports.
    BridgeVlans,
    /// All of nftables, by the number of its last change. Elements that end or that packets add are no such change.
    Ruleset,
}

/// The request that lists them: `RTM_GET...`, the family, the length of the head behind that of the message, and the attributes
/// that change by themselves.
struct Request {
    kind: u16,
    family: u8,
    head: usize,
    moving: &'static [u16],
}

const AF_INET: u8 = 2;
const AF_BRIDGE: u8 = 7;
const AF_INET6: u8 = 10;

impl Objects {
    fn request(self) -> Request {
        let request = |kind, family, head, moving| Request { kind, family, head, moving };
        match self {
            // IFLA_STATS and IFLA_STATS64
            Objects::Links => request(18, 0, 16, &[7, 23]),
            Objects::Names => request(18, 0, 16, &[]),
            Objects::BridgeVlans => request(18, AF_BRIDGE, 16, &[]),
            // IFA_CACHEINFO: how long it is valid
            Objects::Addresses => request(22, 0, 8, &[6]),
            // NDA_CACHEINFO and NDA_PROBES
            Objects::Neighbours => request(30, 0, 12, &[3, 4]),
            // RTA_CACHEINFO
            Objects::Routes4 => request(26, AF_INET, 12, &[12]),
            Objects::Routes6 => request(26, AF_INET6, 12, &[12]),
            Objects::Rules4 => request(34, AF_INET, 12, &[]),
            Objects::Rules6 => request(34, AF_INET6, 12, &[]),
            // TCA_STATS, TCA_XSTATS and TCA_STATS2
            Objects::Qdiscs => request(38, 0, 20, &[3, 4, 7]),
            // NFT_MSG_GETGEN of NFNL_SUBSYS_NFTABLES; NFTA_GEN_PROC_PID and NFTA_GEN_PROC_NAME
            Objects::Ruleset => request(10 << 8 | 16, 0, 4, &[2, 3]),
        }
    }
}

/// The length of `struct nlmsghdr`.
const HEAD: usize = 16;
const NLM_F_REQUEST: u16 = 0x1;
const NLM_F_DUMP: u16 = 0x300;
/// The list is not of one moment: something changed meanwhile.
const NLM_F_DUMP_INTR: u16 = 0x10;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// More than the kernel puts into one answer, in bytes.
const ANSWER: usize = 64 << 10;

const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_EXT_MASK: u16 = 29;
/// `RTEXT_FILTER_VF`, `RTEXT_FILTER_BRVLAN` and `RTEXT_FILTER_SKIP_STATS`.
const EXTENDED: u32 = 1 | 2 | 8;
/// Of `struct ndmsg`, where the state is, and the state of a neighbour that stays.
const NDM_STATE: usize = 8;
const NUD_PERMANENT: u16 = 0x80;

/// In `IFLA_LINKINFO`: the attribute that names a kind, the data of that kind, and the timers in it.
const TIMERS: [(u16, u16, &[u16]); 2] = [
    // IFLA_INFO_KIND and IFLA_INFO_DATA: IFLA_BR_HELLO_TIMER to IFLA_BR_GC_TIMER
    (1, 2, &[16, 17, 18, 19]),
    // IFLA_INFO_SLAVE_KIND and IFLA_INFO_SLAVE_DATA: IFLA_BRPORT_MESSAGE_AGE_TIMER to IFLA_BRPORT_HOLD_TIMER
    (4, 5, &[21, 22, 23]),
];

/// The fingerprint of objects of the calling thread's network namespace; `None` if the kernel does not list one of these kinds,
/// or if they changed meanwhile.
pub(crate) fn of(objects: &[Objects]) -> Option<u64> {
    let mut hasher = DefaultHasher::new();
    let mut route = None;
    for one in objects {
        hasher.write_u8(*one as u8);
        if *one == Objects::Ruleset {
            listed(&open(SockProtocol::NetlinkNetFilter).ok()?, *one, &mut hasher)?;
            continue;
        }
        if route.is_none() {
            route = Some(open(SockProtocol::NetlinkRoute).ok()?);
        }
        listed(route.as_ref()?, *one, &mut hasher)?;
    }
    Some(hasher.finish())
}

fn open(protocol: SockProtocol) -> nix::Result<OwnedFd> {
    socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)
}

/// Hashes what the kernel answers.
fn listed(socket: &OwnedFd, objects: Objects, hasher: &mut DefaultHasher) -> Option<()> {
    let request = objects.request();
    // Of the ruleset it has one answer, which is no list.
    let is_list = objects != Objects::Ruleset;
    sendto(socket.as_raw_fd(), &message(&request, is_list), &NetlinkAddr::new(0, 0), MsgFlags::empty()).ok()?;
    let mut answer = vec![0; ANSWER];
    loop {
        let length = match recv(socket.as_raw_fd(), &mut answer, MsgFlags::MSG_TRUNC) {
            Err(Errno::EINTR) => continue,
            received => received.ok().filter(|length| *length <= ANSWER)?,
        };
        let mut rest = &answer[..length];
        while rest.len() >= HEAD {
            let (kind, flags) = (u16_at(rest, 4)?, u16_at(rest, 6)?);
            let one = rest.get(HEAD..usize::try_from(u32_at(rest, 0)?).ok()?)?;
            if flags & NLM_F_DUMP_INTR != 0 {
                return None;
            }
            match kind {
                NLMSG_DONE => return Some(()),
                NLMSG_ERROR => return None,
                _ => hash(objects, &request, one, hasher)?,
            }
            if !is_list {
                return Some(());
            }
            rest = rest.get((HEAD + one.len()).next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

fn message(request: &Request, is_list: bool) -> Vec<u8> {
    let mut body = vec![0; request.head];
    body[0] = request.family;
    if request.kind == Objects::Links.request().kind {
        body.extend(8_u16.to_ne_bytes());
        body.extend(IFLA_EXT_MASK.to_ne_bytes());
        body.extend(EXTENDED.to_ne_bytes());
    }
    let flags = NLM_F_REQUEST | if is_list { NLM_F_DUMP } else { 0 };
    let mut message = Vec::new();
    message.extend(u32::try_from(HEAD + body.len()).unwrap().to_ne_bytes());
    message.extend(request.kind.to_ne_bytes());
    message.extend(flags.to_ne_bytes());
    message.extend([0; 8]); // the number of the request, and the port: nothing else is asked by this socket
    message.extend(body);
    message
}

/// Hashes one object.
fn hash(objects: Objects, request: &Request, object: &[u8], hasher: &mut DefaultHasher) -> Option<()> {
    let (head, attributes) = object.split_at_checked(request.head)?;
    if objects == Objects::Neighbours && u16_at(head, NDM_STATE)? & NUD_PERMANENT == 0 {
        return Some(());
    }
    let only: &[u16] = match objects {
        Objects::Names => &[IFLA_IFNAME],
        Objects::BridgeVlans => &[IFLA_IFNAME, IFLA_AF_SPEC],
        _ => &[],
    };
    // Of `struct ifinfomsg` the index.
    hasher.write(if only.is_empty() { head } else { &head[4..8] });
    for (kind, value) in Attributes(attributes) {
        if objects == Objects::Links && kind == IFLA_LINKINFO {
            hash_link_info(value, hasher);
        } else if !request.moving.contains(&kind) && (only.is_empty() || only.contains(&kind)) {
            hasher.write_u16(kind);
            hasher.write(value);
        }
    }
    Some(())
}

/// Hashes what a link has of its kind, and of that of the link above it, without the timers of a bridge.
fn hash_link_info(info: &[u8], hasher: &mut DefaultHasher) {
    let mut timers: &[u16] = &[];
    let mut data = 0;
    for (kind, value) in Attributes(info) {
        if kind == data {
            for (kind, value) in Attributes(value).filter(|(kind, _)| !timers.contains(kind)) {
                hasher.write_u16(kind);
                hasher.write(value);
            }
            continue;
        }
        hasher.write_u16(kind);
        hasher.write(value);
        if let Some(of_bridge) = TIMERS.iter().find(|(names, ..)| *names == kind)
            && value == b"bridge\0"
        {
            (_, data, timers) = *of_bridge;
        }
    }
}

/// The attributes in some bytes: kind and value. netlink(7)
struct Attributes<'a>(&'a [u8]);

impl<'a> Iterator for Attributes<'a> {
    type Item = (u16, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        /// `NLA_TYPE_MASK`: without the flags of the kind.
        const KIND: u16 = 0x3fff;
        let length = usize::from(u16_at(self.0, 0)?);
        let kind = u16_at(self.0, 2)? & KIND;
        let value = self.0.get(4..length)?;
        self.0 = self.0.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, in_own_namespaces};

    const ALL: [Objects; 11] = [
        Objects::Links,
        Objects::Names,
        Objects::Addresses,
        Objects::Neighbours,
        Objects::Routes4,
        Objects::Routes6,
        Objects::Rules4,
        Objects::Rules6,
        Objects::Qdiscs,
        Objects::BridgeVlans,
        Objects::Ruleset,
    ];

    fn all(host: &Host) -> Vec<u64> {
        host.enter(|| ALL.iter().map(|one| of(&[*one]).unwrap()).collect())
    }

    /// Each object tells of its changes, and of those of no other, as far as they are apart.
    #[test]
    fn a_change_of_any_object_changes_its_fingerprint() {
        in_own_namespaces(|| {
            let host = Host::new();
            // What the kernel does by itself after a while is not done.
            host.sh("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6");
            host.sh("ip link set lo up; ip link add br0 type bridge; ip link add v0 type veth peer name v1; ip link set v0 master br0 up");
            let changes: [(&str, &[Objects]); 14] = [
                ("ip link set br0 alias text", &[Objects::Links]),
                ("ip link set v1 name v2", &[Objects::Links, Objects::Names]),
                ("ip link set br0 type bridge ageing_time 1234", &[Objects::Links]),
                ("ip link set v0 type bridge_slave isolated on", &[Objects::Links]),
                ("ip link property add dev v2 altname another", &[Objects::Links]),
                ("ip address add 10.9.0.1/24 dev v0", &[Objects::Addresses, Objects::Routes4]),
                ("ip address change 10.9.0.1/24 dev v0 valid_lft 999 preferred_lft 999", &[Objects::Addresses]),
                ("ip neigh add 10.9.0.7 lladdr 02:00:00:00:00:07 dev v0 nud permanent", &[Objects::Neighbours]),
                ("ip neigh add 10.9.0.8 lladdr 02:00:00:00:00:08 dev v0 nud stale", &[]),
                ("ip route add 10.8.0.0/16 via 10.9.0.2 table 77", &[Objects::Routes4]),
                ("ip rule add from 10.9.0.1 table 77", &[Objects::Rules4]),
                ("ip -6 rule add from fd00::1 table 77", &[Objects::Rules6]),
                ("tc qdisc add dev v0 root tbf rate 1mbit burst 10k latency 10ms", &[Objects::Links, Objects::Qdiscs]),
                ("nft add table ip mine", &[Objects::Ruleset]),
            ];
            let mut before = all(&host);
            assert_eq!(all(&host), before);
            for (change, expected) in changes {
                host.sh(change);
                let after = all(&host);
                let changed: Vec<Objects> =
                    ALL.into_iter().enumerate().filter(|(n, _)| before[*n] != after[*n]).map(|(_, one)| one).collect();
                assert_eq!(changed, expected, "{change}");
                before = after;
            }
            host.sh("ip link add w0 type veth peer name w1; ip link set w0 up; ip link set w1 up; ip address add 10.7.0.1/24 dev w0");
            let before = all(&host);
            // Counters move, and nothing else.
            host.sh("ping -c 1 -W 1 10.7.0.9 >/dev/null || true; ping -c 1 10.7.0.1 >/dev/null");
            assert_eq!(all(&host), before);
        });
    }
}
