//! Routing policy rules: which packets are routed by which table.

use ipnetwork::IpNetwork;
use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL, parse_ip, parse_u32};
use netlink_packet_route::route::RouteProtocol;
use netlink_packet_route::rule::{RuleAction, RuleAttribute, RuleFlags, RuleHeader, RuleMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::attribute::attributes;
use crate::frame::HEADER;
use crate::netlink::{Forgives, Request};
use crate::{Batch, Family, Netlink, Result};

// The attributes that are read here, from `linux/fib_rules.h`.
const SOURCE: u16 = 2;
const PRIORITY: u16 = 6;
const SUPPRESS_IFGROUP: u16 = 13;
const SUPPRESS_PREFIXLEN: u16 = 14;
const TABLE: u16 = 15;
const PAD: u16 = 18;
const L3MDEV: u16 = 19;
const PROTOCOL: u16 = 21;

/// Length of a `fib_rule_hdr`.
const RULE_HEADER: usize = 12;
/// The value of a limit (`suppress_prefixlength`) that is not set.
const UNLIMITED: u32 = u32::MAX;

/// A routing policy rule. See ip-rule(8).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "fib_rule_hdr")]
pub struct RoutingRule {
    /// The family of the packets.
    pub family: Family,
    /// Rules are tried in the order of their priorities, the lowest first.
    #[doc(alias = "FRA_PRIORITY")]
    pub priority: u32,
    /// The packets' source; `None` is any.
    #[doc(alias = "from")]
    pub source: Option<IpNetwork>,
    /// The table that the packets are routed by; 0 if the rule does something else.
    #[doc(alias = "lookup")]
    pub table: u32,
    /// Who added it: 0 unknown, 2 the kernel, 3 ip(8).
    #[doc(alias = "FRA_PROTOCOL")]
    pub protocol: u8,
    /// The packets of each VRF are routed by the table of that VRF.
    #[doc(alias = "FRA_L3MDEV")]
    pub is_of_vrfs: bool,
    /// It has selectors, limits or an action that this type lacks. It can be read, but not be added or deleted.
    pub has_more: bool,
}

impl RoutingRule {
    /// A rule by which packets from `source` are routed by `table`.
    pub fn from_source(source: IpNetwork, table: u32, priority: u32, protocol: u8) -> Self {
        let family = if source.is_ipv4() { Family::V4 } else { Family::V6 };
        Self { family, priority, source: Some(source), table, protocol, is_of_vrfs: false, has_more: false }
    }
}

impl Netlink {
    /// The routing policy rules of both families, those of each in the order in which they are tried.
    ///
    /// # Errors
    /// The dump fails, see [`Socket::dump`](crate::Socket::dump). A kernel without this family or without rules has none.
    #[doc(alias = "RTM_GETRULE")]
    pub fn rules(&self) -> Result<Vec<RoutingRule>> {
        let mut message = RuleMessage::default();
        // One dump has the rules of all families. Those of multicast routing are left out.
        message.header.family = AddressFamily::Unspec;
        let listed = self.dump(&RouteNetlinkMessage::GetRule(message), "list routing rules", "");
        let messages = match listed {
            Err(error) if error.unsupported() => return Ok(Vec::new()),
            listed => listed?,
        };
        Ok(messages.iter().filter_map(|message| RoutingRule::parse(message)).collect())
    }
}

impl Batch {
    /// Adds a routing policy rule; one with the same properties is an error.
    #[doc(alias = "RTM_NEWRULE")]
    pub fn add_rule(&mut self, rule: &RoutingRule) {
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        self.add(rule.request("add routing rule", flags, RouteNetlinkMessage::NewRule, Forgives::Nothing));
    }

    /// Removes a routing policy rule; a rule that does not exist is not an error.
    #[doc(alias = "RTM_DELRULE")]
    pub fn delete_rule(&mut self, rule: &RoutingRule) {
        self.add(rule.request("delete routing rule", 0, RouteNetlinkMessage::DelRule, Forgives::Absent));
    }
}

impl RoutingRule {
    fn request(
        &self,
        operation: &'static str,
        flags: u16,
        wrap: fn(RuleMessage) -> RouteNetlinkMessage,
        forgives: Forgives,
    ) -> Request {
        let source = self.source.map_or_else(|| "all".to_owned(), |source| source.to_string());
        let object = format!("from {source} lookup {} priority {}", self.table, self.priority);
        Request { message: wrap(self.message()).into(), flags, operation, object: object.into(), link: None, forgives }
    }

    fn message(&self) -> RuleMessage {
        let mut message = RuleMessage::default();
        message.header.family = address_family(self.family);
        message.header.action = RuleAction::ToTable;
        if let Some(source) = self.source {
            message.header.src_len = source.prefix();
            message.attributes.push(RuleAttribute::Source(source.ip()));
        }
        message.attributes.push(RuleAttribute::Priority(self.priority));
        message.attributes.push(RuleAttribute::Table(self.table));
        message.attributes.push(RuleAttribute::Protocol(RouteProtocol::from(self.protocol)));
        message
    }

    /// Reads an `RTM_NEWRULE` message; `None` if it is something else.
    pub(crate) fn parse(message: &[u8]) -> Option<Self> {
        let body = message.get(HEADER..)?;
        let header = RuleHeader::parse(body).ok()?;
        let family = match header.family {
            AddressFamily::Inet => Family::V4,
            AddressFamily::Inet6 => Family::V6,
            _ => return None,
        };
        let mut rule = Self {
            family,
            priority: 0,
            source: None,
            table: header.table.into(),
            protocol: 0,
            is_of_vrfs: false,
            has_more: header.tos != 0
                || header.dst_len != 0
                || header.action != RuleAction::ToTable
                || header.flags.contains(RuleFlags::Invert),
        };
        for (kind, value) in attributes(body.get(RULE_HEADER..)?) {
            rule.take(kind, value, header.src_len);
        }
        Some(rule)
    }

    fn take(&mut self, kind: u16, value: &[u8], source_prefix: u8) {
        match kind {
            SOURCE => self.source = parse_ip(value).ok().and_then(|ip| IpNetwork::new(ip, source_prefix).ok()),
            PRIORITY => self.priority = parse_u32(value).unwrap_or_default(),
            TABLE => self.table = parse_u32(value).unwrap_or(self.table),
            PROTOCOL => self.protocol = value.first().copied().unwrap_or_default(),
            L3MDEV => {
                self.is_of_vrfs = value.first().is_some_and(|flag| *flag != 0);
                self.has_more |= self.is_of_vrfs;
            }
            SUPPRESS_IFGROUP | SUPPRESS_PREFIXLEN => self.has_more |= parse_u32(value).ok() != Some(UNLIMITED),
            PAD => {}
            _ => self.has_more = true,
        }
    }
}

fn address_family(family: Family) -> AddressFamily {
    match family {
        Family::V4 => AddressFamily::Inet,
        Family::V6 => AddressFamily::Inet6,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire;

    #[test]
    fn a_rule_is_read_as_it_was_written() {
        for source in ["10.0.0.2/32", "fd00::2/128"] {
            let rule = RoutingRule::from_source(source.parse().unwrap(), 100, 32765, 7);
            let mut batch = Batch::new();
            batch.add_rule(&rule);
            assert_eq!(wire::rule(&wire::messages(batch).unwrap()[0]), Some(rule));
        }
    }

    #[test]
    fn a_rule_with_anything_else_is_marked() {
        let mut message = RoutingRule::from_source("10.0.0.2/32".parse().unwrap(), 100, 1, 7).message();
        message.attributes.push(RuleAttribute::FwMark(3));
        let request = Request {
            message: RouteNetlinkMessage::NewRule(message).into(),
            flags: 0,
            operation: "",
            object: "".into(),
            link: None,
            forgives: Forgives::Nothing,
        };
        assert!(RoutingRule::parse(&request.pack(1)).unwrap().has_more);
    }
}
