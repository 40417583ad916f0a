//! Fingerprints of what the kernel has in a network namespace: a snapshot runs no program to list what is as it was before.
//!
//! They are of the kernel's own messages, rtnetlink(7), which have more than any program prints, without what changes by itself. So
//! where they are the same, a program would print the same.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher, Hash, Hasher};

use cnikit_netlink::Socket;
use cnikit_netlink::attribute::{Attributes, attributes, number, text};
use cnikit_netlink::nfnetlink::{HEADERS, NETFILTER, NetfilterMessage};

/// Objects of one kind, which the kernel lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Objects {
    Links,
    /// Links by their indexes and names alone, which programs print beside other objects.
    Names,
    Addresses,
    /// Permanent neighbours.
    Neighbours,
    Routes4,
    Routes6,
    Rules4,
    Rules6,
    Qdiscs,
    /// The VLANs of bridges and of their ports.
    BridgeVlans,
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
const GET_LINK: u16 = 18;

/// `NETLINK_ROUTE`.
const ROUTE: isize = 0;
/// The length of `struct nlmsghdr`.
const HEAD: usize = 16;
/// `NLM_F_REQUEST` and `NLM_F_DUMP`.
const LIST: u16 = 0x301;

const IFLA_IFNAME: u16 = 3;
const IFLA_LINKINFO: u16 = 18;
const IFLA_AF_SPEC: u16 = 26;
const IFLA_EXT_MASK: u16 = 29;
/// `RTEXT_FILTER_VF`, `RTEXT_FILTER_BRVLAN` and `RTEXT_FILTER_SKIP_STATS`.
const EXTENDED: u32 = 1 | 2 | 8;
/// The place of the index in `struct ifinfomsg`.
const INDEX: std::ops::Range<usize> = 4..8;
/// The place of the state in `struct ndmsg`, and `NUD_PERMANENT`.
const STATE: std::ops::Range<usize> = 8..10;
const PERMANENT: u16 = 0x80;

/// In `IFLA_LINKINFO`: the attribute that names a kind, the data of that kind, and the timers in it if it is a bridge.
const TIMERS: [(u16, u16, &[u16]); 2] = [
    // IFLA_INFO_KIND and IFLA_INFO_DATA: IFLA_BR_HELLO_TIMER to IFLA_BR_GC_TIMER
    (1, 2, &[16, 17, 18, 19]),
    // IFLA_INFO_SLAVE_KIND and IFLA_INFO_SLAVE_DATA: IFLA_BRPORT_MESSAGE_AGE_TIMER to IFLA_BRPORT_HOLD_TIMER
    (4, 5, &[21, 22, 23]),
];

/// `NFT_MSG_GETGEN` of `NFNL_SUBSYS_NFTABLES`, and `NFTA_GEN_ID` of its answer.
const GET_GENERATION: u16 = 10 << 8 | 16;
const GENERATION_ID: u16 = 1;

/// The fingerprint of objects of the calling thread's network namespace; `None` if the kernel cannot list them.
pub(crate) fn of(objects: &[Objects]) -> Option<u64> {
    let mut socket = Socket::here(ROUTE).ok()?;
    let listed: Option<Vec<u64>> = objects.iter().map(|one| one.listed(&mut socket)).collect();
    Some(BuildHasherDefault::<DefaultHasher>::default().hash_one(listed?))
}

/// The number of the last change of nftables in the calling thread's network namespace; `None` if the kernel has no nftables.
/// Elements of sets that expire, and those that packets add, do not change it.
pub(crate) fn of_ruleset() -> Option<u64> {
    let mut socket = Socket::here(NETFILTER).ok()?;
    let sequence = socket.next_sequence();
    let request = NetfilterMessage::request(GET_GENERATION, 0, 0, Attributes::new());
    let answer = socket.exchange(&request.encode(sequence), &[sequence]).ok()?;
    number(answer.messages.first()?.get(HEADERS..)?, GENERATION_ID).map(u64::from)
}

impl Objects {
    fn request(self) -> Request {
        let request = |kind, family, head, moving| Request { kind, family, head, moving };
        match self {
            // IFLA_STATS and IFLA_STATS64
            Objects::Links => request(GET_LINK, 0, 16, &[7, 23]),
            Objects::Names => request(GET_LINK, 0, 16, &[]),
            Objects::BridgeVlans => request(GET_LINK, AF_BRIDGE, 16, &[]),
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
        }
    }

    /// The hash of all of them.
    fn listed(self, socket: &mut Socket) -> Option<u64> {
        let request = self.request();
        let hash = |hasher: &mut DefaultHasher, message: &[u8]| self.hash(&request, message, hasher);
        socket.dump_into(&request.encode(), hash).ok().map(|hasher| hasher.finish())
    }

    /// Hashes one of them.
    fn hash(self, request: &Request, message: &[u8], hasher: &mut DefaultHasher) {
        let Some((head, list)) = message.get(HEAD..).and_then(|body| body.split_at_checked(request.head)) else {
            return message.hash(hasher);
        };
        match self {
            Objects::Names => return (&head[INDEX], text(list, IFLA_IFNAME)).hash(hasher),
            Objects::Neighbours if u16::from_ne_bytes([head[STATE.start], head[STATE.start + 1]]) & PERMANENT == 0 => {
                return;
            }
            Objects::BridgeVlans => head[INDEX].hash(hasher),
            _ => head.hash(hasher),
        }
        for (kind, value) in attributes(list).filter(|(kind, _)| !request.moving.contains(kind)) {
            match self {
                Objects::BridgeVlans if ![IFLA_IFNAME, IFLA_AF_SPEC].contains(&kind) => {}
                Objects::Links if kind == IFLA_LINKINFO => hash_link_info(value, hasher),
                _ => (kind, value).hash(hasher),
            }
        }
    }
}

impl Request {
    fn encode(&self) -> Vec<u8> {
        let mut body = vec![0; self.head];
        body[0] = self.family;
        if self.kind == GET_LINK {
            body.extend_from_slice(Attributes::new().bytes(IFLA_EXT_MASK, &EXTENDED.to_ne_bytes()).as_bytes());
        }
        let length = u32::try_from(HEAD + body.len()).unwrap();
        let head = [&length.to_ne_bytes()[..], &self.kind.to_ne_bytes(), &LIST.to_ne_bytes(), &[0; 8]];
        [&head.concat()[..], &body].concat()
    }
}

/// Hashes a link's `IFLA_LINKINFO`, which has data of its kind and of the link above it, without the timers of a bridge.
fn hash_link_info(info: &[u8], hasher: &mut DefaultHasher) {
    for (kind, value) in attributes(info) {
        let of_bridge = |(name, data, _): &&(u16, u16, _)| *data == kind && text(info, *name) == Some("bridge");
        match TIMERS.iter().find(of_bridge) {
            Some((_, _, timers)) => {
                attributes(value).filter(|(kind, _)| !timers.contains(kind)).for_each(|one| one.hash(hasher));
            }
            None => (kind, value).hash(hasher),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Host, in_own_namespaces};

    const ALL: [Objects; 10] = [
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
    ];

    /// Each with its name.
    fn all(host: &Host) -> Vec<(String, u64)> {
        let of_objects = || ALL.iter().map(|one| (format!("{one:?}"), of(&[*one]).unwrap()));
        host.enter(|| of_objects().chain([("Ruleset".to_owned(), of_ruleset().unwrap())]).collect())
    }

    #[test]
    fn a_change_of_any_object_changes_its_fingerprint() {
        in_own_namespaces(|| {
            let host = Host::new();
            // Without IPv6 the kernel adds no addresses and routes after a while.
            host.sh("echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6; echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6");
            host.sh("ip link set lo up; ip link add br0 type bridge; ip link add v0 type veth peer name v1; ip link set v0 master br0 up");
            let changes: [(&str, &[&str]); 14] = [
                ("ip link set br0 alias text", &["Links"]),
                ("ip link set v1 name v2", &["Links", "Names"]),
                ("ip link set br0 type bridge ageing_time 1234", &["Links"]),
                ("ip link set v0 type bridge_slave isolated on", &["Links"]),
                ("ip link property add dev v2 altname another", &["Links"]),
                ("ip address add 10.9.0.1/24 dev v0", &["Addresses", "Routes4"]),
                ("ip address change 10.9.0.1/24 dev v0 valid_lft 999 preferred_lft 999", &["Addresses"]),
                ("ip neigh add 10.9.0.7 lladdr 02:00:00:00:00:07 dev v0 nud permanent", &["Neighbours"]),
                ("ip neigh add 10.9.0.8 lladdr 02:00:00:00:00:08 dev v0 nud stale", &[]),
                ("ip route add 10.8.0.0/16 via 10.9.0.2 table 77", &["Routes4"]),
                ("ip rule add from 10.9.0.1 table 77", &["Rules4"]),
                ("ip -6 rule add from fd00::1 table 77", &["Rules6"]),
                ("tc qdisc add dev v0 root tbf rate 1mbit burst 10k latency 10ms", &["Links", "Qdiscs"]),
                ("nft add table ip mine", &["Ruleset"]),
            ];
            let mut before = all(&host);
            assert_eq!(all(&host), before);
            for (change, expected) in changes {
                host.sh(change);
                let after = all(&host);
                let changed: Vec<&str> =
                    after.iter().filter(|one| !before.contains(one)).map(|(name, _)| name.as_str()).collect();
                assert_eq!(changed, expected, "{change}");
                before = after;
            }
            host.sh("ip link add w0 type veth peer name w1; ip link set w0 up; ip link set w1 up; ip address add 10.7.0.1/24 dev w0");
            // The kernel reports in the background that they have a carrier.
            host.sh("for end in w0 w1; do until ip link show $end | grep -q 'state UP'; do sleep 0.01; done; done");
            let before = all(&host);
            // Counters change, and nothing else.
            host.sh("ping -c 1 -W 1 10.7.0.9 >/dev/null || true; ping -c 1 10.7.0.1 >/dev/null");
            assert_eq!(all(&host), before);
        });
    }

    #[test]
    fn the_timers_of_a_bridge_do_not_count_and_those_numbers_of_other_kinds_do() {
        let of = |name: u16, kind: &str, data: u16, timer: u16, value: u8| {
            let data_of_kind = Attributes::new().bytes(1, &[7]).bytes(timer, &[value]);
            let info = Attributes::new().text(name, kind).bytes(data, data_of_kind.as_bytes());
            let mut hasher = DefaultHasher::new();
            hash_link_info(info.as_bytes(), &mut hasher);
            hasher.finish()
        };
        for (name, data, timers) in TIMERS {
            for timer in timers {
                assert_eq!(of(name, "bridge", data, *timer, 1), of(name, "bridge", data, *timer, 2));
                assert_ne!(of(name, "vxlan", data, *timer, 1), of(name, "vxlan", data, *timer, 2));
            }
            assert_ne!(of(name, "bridge", data, 99, 1), of(name, "bridge", data, 99, 2));
        }
    }
}
