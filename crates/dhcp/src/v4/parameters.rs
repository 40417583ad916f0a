//! What a server configures: the options of its reply as checked values.

use std::net::Ipv4Addr;

use dhcproto::v4::borrowed::DhcpOptionIterator;
use dhcproto::v4::{DhcpOption, OptionCode};
use ipnetwork::Ipv4Network;
use serde::{Deserialize, Serialize};

use super::options::code;
use super::reply::Options;

/// The most routes that are used of a reply.
pub const MAX_ROUTES: usize = 128;
/// The most domains that are searched.
const MAX_SEARCH: usize = 32;
/// The smallest MTU that is used: what every host can receive (RFC 791). With less, a server could make a link useless.
const MIN_MTU: u16 = 576;
/// The longest name of a domain as text, in bytes.
const MAX_DOMAIN: usize = 253;
/// The longest label of a domain name, in bytes.
const MAX_LABEL: usize = 63;

/// The parameters of a lease. Each value is one that can be used: what is not is left out, and its option is in
/// [`Parameters::ignored`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Parameters {
    /// The length of the subnet's prefix (option 1).
    pub prefix: Option<u8>,
    /// The routers of the subnet, the preferred one first (option 3).
    pub routers: Vec<Ipv4Addr>,
    /// The routes: those of option 121, or else of 249, or else those of option 33 and a default route by the first router.
    pub routes: Vec<LeaseRoute>,
    /// The DNS servers (option 6).
    pub dns: Vec<Ipv4Addr>,
    /// The domain (option 15).
    pub domain: Option<String>,
    /// The domains that are searched (option 119).
    pub search: Vec<String>,
    /// The host's name (option 12).
    pub host_name: Option<String>,
    /// The MTU of the link in bytes, at least 576 (option 26).
    pub mtu: Option<u16>,
    /// The NTP servers (option 42).
    pub ntp: Vec<Ipv4Addr>,
    /// The codes of the options above that are malformed or have values that cannot be used.
    pub ignored: Vec<u8>,
}

/// A route of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaseRoute {
    /// The destination, without host bits.
    pub destination: Ipv4Network,
    /// The router; `None` if the destination is on the link itself.
    pub gateway: Option<Ipv4Addr>,
}

impl Parameters {
    /// Reads the options of a reply.
    pub(crate) fn of(options: &Options) -> Parameters {
        let mut reader = Reader { options, ignored: Vec::new() };
        let routers = reader.addresses(code::ROUTERS);
        let mut parameters = Parameters {
            prefix: reader.read(code::SUBNET_MASK, prefix),
            routes: reader.routes(routers.first().copied()),
            routers,
            dns: reader.addresses(code::DNS_SERVERS),
            domain: reader.read(code::DOMAIN_NAME, domain),
            search: reader.read(code::DOMAIN_SEARCH, search).unwrap_or_default(),
            host_name: reader.read(code::HOST_NAME, domain),
            mtu: reader.read(code::INTERFACE_MTU, mtu),
            ntp: reader.addresses(code::NTP_SERVERS),
            ignored: Vec::new(),
        };
        parameters.ignored = reader.ignored;
        parameters
    }
}

/// Reads options, and records those that cannot be used.
struct Reader<'a> {
    options: &'a Options,
    ignored: Vec<u8>,
}

impl Reader<'_> {
    fn read<T>(&mut self, code: u8, parse: fn(&[u8]) -> Option<T>) -> Option<T> {
        let value = parse(self.options.get(&code)?);
        if value.is_none() {
            self.ignored.push(code);
        }
        value
    }

    fn addresses(&mut self, code: u8) -> Vec<Ipv4Addr> {
        self.read(code, addresses).unwrap_or_default()
    }

    fn routes(&mut self, router: Option<Ipv4Addr>) -> Vec<LeaseRoute> {
        for code in [code::CLASSLESS_ROUTES, code::CLASSLESS_ROUTES_OLD] {
            match self.read(code, classless_routes) {
                Some(routes) if !routes.is_empty() => return routes,
                _ => {}
            }
        }
        let mut routes = self.read(code::STATIC_ROUTES, static_routes).unwrap_or_default();
        if let Some(router) = router {
            let everything = Ipv4Network::from(Ipv4Addr::UNSPECIFIED);
            let destination = Ipv4Network::new(everything.ip(), 0).unwrap_or(everything);
            routes.push(LeaseRoute { destination, gateway: Some(router) });
        }
        routes
    }
}

/// Whether the address can be one host's: it is not of the blocks 0, 127 and 224 to 255.
pub(crate) fn is_host(address: Ipv4Addr) -> bool {
    !matches!(address.octets()[0], 0 | 127 | 224..)
}

/// Whether packets can be routed there: hosts, or everything.
fn is_destination(network: Ipv4Network) -> bool {
    network.prefix() == 0 || is_host(network.ip())
}

pub(crate) fn address(bytes: &[u8]) -> Option<Ipv4Addr> {
    let octets: [u8; 4] = bytes.try_into().ok()?;
    Some(Ipv4Addr::from(octets)).filter(|address| is_host(*address))
}

pub(crate) fn seconds(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

/// The usable ones of a list of addresses; `None` if it is malformed or none is usable.
fn addresses(bytes: &[u8]) -> Option<Vec<Ipv4Addr>> {
    if !bytes.len().is_multiple_of(4) {
        return None;
    }
    let usable: Vec<Ipv4Addr> = bytes.chunks(4).filter_map(address).collect();
    if usable.is_empty() { None } else { Some(usable) }
}

fn prefix(bytes: &[u8]) -> Option<u8> {
    let mask = u32::from_be_bytes(bytes.try_into().ok()?);
    let prefix = u8::try_from(mask.leading_ones()).ok()?;
    if prefix > 0 && mask.count_ones() == mask.leading_ones() { Some(prefix) } else { None }
}

fn mtu(bytes: &[u8]) -> Option<u16> {
    let mtu = u16::from_be_bytes(bytes.try_into().ok()?);
    if mtu >= MIN_MTU { Some(mtu) } else { None }
}

/// A domain name of the characters that host names have, and the underscore. It is written into files such as resolv.conf, so a
/// name with any other character, a line feed above all, is refused.
fn domain(bytes: &[u8]) -> Option<String> {
    let text = std::str::from_utf8(bytes).ok()?;
    let name = text.trim_end_matches('\0').trim_end_matches('.');
    let is_label = |label: &str| {
        let has_letters = label.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
        has_letters && !label.is_empty() && label.len() <= MAX_LABEL && !label.starts_with('-')
    };
    let is_name = name.len() <= MAX_DOMAIN && name.split('.').all(is_label);
    is_name.then(|| name.to_owned())
}

/// An option with this code and value, decoded by dhcproto.
fn decode(code: OptionCode, value: &[u8]) -> Option<DhcpOption> {
    let mut wire = Vec::new();
    for part in value.chunks(usize::from(u8::MAX)) {
        wire.extend([u8::from(code), u8::try_from(part.len()).ok()?]);
        wire.extend(part);
    }
    DhcpOptionIterator::new(&wire).next()?.into_option().ok()
}

fn search(bytes: &[u8]) -> Option<Vec<String>> {
    let DhcpOption::DomainSearch(names) = decode(OptionCode::DomainSearch, bytes)? else { return None };
    let mut domains = Vec::new();
    for name in names.iter().take(MAX_SEARCH) {
        domains.push(domain(name.to_ascii().as_bytes())?);
    }
    if domains.is_empty() { None } else { Some(domains) }
}

fn classless_routes(bytes: &[u8]) -> Option<Vec<LeaseRoute>> {
    let DhcpOption::ClasslessStaticRoute(decoded) = decode(OptionCode::ClasslessStaticRoute, bytes)? else {
        return None;
    };
    // dhcproto stops at what it cannot decode. Half of the routes could lead packets astray, so none is used then.
    let length = |prefix: u8| 1 + usize::from(prefix).div_ceil(8) + 4;
    if decoded.iter().map(|(destination, _)| length(destination.prefix_len())).sum::<usize>() != bytes.len() {
        return None;
    }
    let mut routes = Vec::new();
    for (destination, gateway) in decoded {
        let destination = Ipv4Network::new(destination.network(), destination.prefix_len()).ok()?;
        let gateway = if gateway.is_unspecified() { None } else { Some(gateway) };
        routes.push(LeaseRoute { destination, gateway });
    }
    checked(routes)
}

/// The pairs of option 33, with the prefix that belongs to the class of each address.
fn static_routes(bytes: &[u8]) -> Option<Vec<LeaseRoute>> {
    if !bytes.len().is_multiple_of(8) {
        return None;
    }
    let mut routes = Vec::new();
    for pair in bytes.chunks(8) {
        let (destination, gateway) = (address(&pair[..4])?, address(&pair[4..])?);
        let prefix = match destination.octets()[0] {
            ..128 => 8,
            128..192 => 16,
            192.. => 24,
        };
        let network = Ipv4Network::new(destination, prefix).ok()?.network();
        let destination = Ipv4Network::new(network, prefix).ok()?;
        routes.push(LeaseRoute { destination, gateway: Some(gateway) });
    }
    checked(routes)
}

/// The routes, if all can be used and there are not too many.
fn checked(routes: Vec<LeaseRoute>) -> Option<Vec<LeaseRoute>> {
    let is_usable = |route: &LeaseRoute| is_destination(route.destination) && route.gateway.is_none_or(is_host);
    if routes.len() <= MAX_ROUTES && routes.iter().all(is_usable) { Some(routes) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(options: &[(u8, &[u8])]) -> Parameters {
        Parameters::of(&options.iter().map(|(code, value)| (*code, value.to_vec())).collect())
    }

    fn route(destination: &str, gateway: Option<&str>) -> LeaseRoute {
        LeaseRoute { destination: destination.parse().unwrap(), gateway: gateway.map(|one| one.parse().unwrap()) }
    }

    #[test]
    fn each_option_is_read() {
        let parameters = of(&[
            (1, &[255, 255, 255, 0]),
            (3, &[10, 0, 0, 1, 10, 0, 0, 2]),
            (6, &[10, 0, 0, 53]),
            (12, b"host"),
            (15, b"example.com\0"),
            (26, &[5, 0]),
            (42, &[10, 0, 0, 123]),
            (119, b"\x01a\x07example\x03com\0\x01b\xc0\x02"),
        ]);
        assert_eq!(parameters.prefix, Some(24));
        assert_eq!(parameters.routers, ["10.0.0.1", "10.0.0.2"].map(|one| one.parse::<Ipv4Addr>().unwrap()));
        assert_eq!(parameters.routes, [route("0.0.0.0/0", Some("10.0.0.1"))]);
        assert_eq!(parameters.dns, [Ipv4Addr::new(10, 0, 0, 53)]);
        assert_eq!(
            (parameters.host_name.as_deref(), parameters.domain.as_deref()),
            (Some("host"), Some("example.com"))
        );
        assert_eq!((parameters.mtu, parameters.ntp), (Some(1280), vec![Ipv4Addr::new(10, 0, 0, 123)]));
        assert_eq!(parameters.search, ["a.example.com", "b.example.com"]);
        assert_eq!(parameters.ignored, []);
    }

    #[test]
    fn classless_routes_take_the_place_of_static_ones_and_of_the_router() {
        let classless: &[u8] = &[0, 10, 0, 0, 9, 24, 10, 1, 2, 0, 0, 0, 0, 9, 10, 128, 10, 0, 0, 8];
        let others: [(u8, &[u8]); 2] =
            [(3, &[10, 0, 0, 1]), (33, &[10, 7, 0, 1, 10, 0, 0, 7, 192, 0, 2, 1, 10, 0, 0, 7])];
        let wanted =
            [route("0.0.0.0/0", Some("10.0.0.9")), route("10.1.2.0/24", None), route("10.128.0.0/9", Some("10.0.0.8"))];
        assert_eq!(of(&[others[0], others[1], (121, classless)]).routes, wanted);
        assert_eq!(of(&[others[0], others[1], (249, classless)]).routes, wanted);
        let classful = [
            route("10.0.0.0/8", Some("10.0.0.7")),
            route("192.0.2.0/24", Some("10.0.0.7")),
            route("0.0.0.0/0", Some("10.0.0.1")),
        ];
        assert_eq!(of(&others).routes, classful);
        let broken = of(&[others[0], others[1], (121, &classless[..classless.len() - 1])]);
        assert_eq!((broken.routes, broken.ignored), (classful.to_vec(), vec![121]));
        assert_eq!(of(&[others[0], (121, &[33, 10, 0, 0, 0, 1, 10, 0, 0, 1])]).ignored, [121]);
    }

    #[test]
    fn what_cannot_be_used_is_ignored_and_named() {
        let cases: &[(u8, &[u8])] = &[
            (1, &[255, 0, 255, 0]),
            (1, &[0; 4]),
            (1, &[255, 255, 255]),
            (3, &[10, 0, 0]),
            (3, &[127, 0, 0, 1]),
            (6, &[224, 0, 0, 1]),
            (12, b"a b"),
            (15, b"example.com\nnameserver 192.0.2.1"),
            (15, b"a..b"),
            (15, b""),
            (15, b"-a.com"),
            (15, &[b'a'; 64]),
            (15, b"\xff\xfe"),
            (26, &[2, 0]),
            (26, &[5]),
            (33, &[10, 0, 0, 1, 10, 0, 0]),
            (33, &[0, 0, 0, 0, 10, 0, 0, 1]),
            (42, &[]),
            (119, b"\x04a\nbc\0"),
            (119, b"\xc0\x00"),
            (119, b""),
            (121, &[8, 127, 10, 0, 0, 1]),
            (121, &[4, 224, 10, 0, 0, 1]),
            (121, &[24, 10, 1, 2, 127, 0, 0, 1]),
        ];
        for (code, value) in cases {
            let parameters = of(&[(*code, value)]);
            assert_eq!(parameters, Parameters { ignored: vec![*code], ..Parameters::default() }, "{code} {value:?}");
        }
    }

    #[test]
    fn a_route_has_no_host_bits_and_there_are_not_too_many() {
        assert_eq!(of(&[(121, &[16, 10, 1, 10, 0, 0, 1])]).routes, [route("10.1.0.0/16", Some("10.0.0.1"))]);
        assert_eq!(of(&[(121, &[9, 10, 255, 10, 0, 0, 1])]).routes, [route("10.128.0.0/9", Some("10.0.0.1"))]);
        let many = [8, 10, 10, 0, 0, 1].repeat(MAX_ROUTES);
        assert_eq!(of(&[(121, &many)]).routes.len(), MAX_ROUTES);
        let more = [8, 10, 10, 0, 0, 1].repeat(MAX_ROUTES + 1);
        assert_eq!(of(&[(121, &more)]).ignored, [121]);
    }
}
