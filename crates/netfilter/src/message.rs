//! The messages to netfilter: what is asked for, and what is changed.

use crate::attribute::Attributes;
use crate::layout::{Chain, TableFamily, TableLayout};
use crate::set::Set;
use crate::{Result, userdata};

const REQUEST: u16 = 0x1;
const ACK: u16 = 0x4;
const DUMP: u16 = 0x300;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

/// Where a transaction begins and ends.
#[doc(alias = "NFNL_MSG_BATCH_BEGIN")]
const BEGIN: u16 = 0x10;
#[doc(alias = "NFNL_MSG_BATCH_END")]
const END: u16 = 0x11;
/// `nf_tables` among the parts of netfilter.
#[doc(alias = "NFNL_SUBSYS_NFTABLES")]
const NF_TABLES: u16 = 10;
const NEW_TABLE: u16 = NF_TABLES << 8;
const GET_TABLE: u16 = NF_TABLES << 8 | 1;
const DELETE_TABLE: u16 = NF_TABLES << 8 | 2;
const NEW_CHAIN: u16 = NF_TABLES << 8 | 3;
const GET_CHAIN: u16 = NF_TABLES << 8 | 4;
const DELETE_CHAIN: u16 = NF_TABLES << 8 | 5;
const NEW_RULE: u16 = NF_TABLES << 8 | 6;
const GET_RULE: u16 = NF_TABLES << 8 | 7;
const DELETE_RULE: u16 = NF_TABLES << 8 | 8;
const NEW_SET: u16 = NF_TABLES << 8 | 9;
const GET_SET: u16 = NF_TABLES << 8 | 0xa;
const NEW_ELEMENT: u16 = NF_TABLES << 8 | 0xc;
const GET_ELEMENT: u16 = NF_TABLES << 8 | 0xd;
const DELETE_ELEMENT: u16 = NF_TABLES << 8 | 0xe;
const GET_GENERATION: u16 = NF_TABLES << 8 | 16;
/// The tracking of flows among the parts of netfilter.
#[doc(alias = "NFNL_SUBSYS_CTNETLINK")]
const CONNTRACK: u16 = 1;
const GET_FLOW: u16 = CONNTRACK << 8 | 1;
const DELETE_FLOW: u16 = CONNTRACK << 8 | 2;

/// Attributes of a rule, for what reads them.
pub(crate) mod rule {
    pub(crate) const TABLE: u16 = 1;
    pub(crate) const CHAIN: u16 = 2;
    pub(crate) const HANDLE: u16 = 3;
    pub(crate) const EXPRESSIONS: u16 = 4;
    pub(crate) const USERDATA: u16 = 7;
}

/// Attributes of tables, chains, sets and generations, for what reads them.
pub(crate) mod object {
    pub(crate) const GENERATION_ID: u16 = 1;
    pub(crate) const TABLE_FLAGS: u16 = 2;
    pub(crate) const CHAIN_TABLE: u16 = 1;
    pub(crate) const CHAIN_NAME: u16 = 3;
    pub(crate) const CHAIN_HOOK: u16 = 4;
    pub(crate) const CHAIN_USE: u16 = 6;
    pub(crate) const CHAIN_TYPE: u16 = 7;
    pub(crate) const SET_KEY_TYPE: u16 = 4;
    pub(crate) const HOOK_NUMBER: u16 = 1;
    pub(crate) const HOOK_PRIORITY: u16 = 2;
}

/// The length of the header of a netlink message and that of netfilter behind it.
pub(crate) const HEADERS: usize = 20;

/// One message, without its sequence number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Message {
    kind: u16,
    flags: u16,
    family: u8,
    resource: u16,
    attributes: Attributes,
    /// What it does and with what, for an error.
    pub(crate) operation: &'static str,
    pub(crate) object: String,
}

/// A rule's expressions and user data, as they go over the wire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) expressions: Attributes,
    pub(crate) userdata: Vec<u8>,
}

impl Message {
    fn about(frame: &TableLayout, kind: u16, flags: u16, attributes: Attributes) -> Self {
        let (operation, object) = ("read", frame.to_string());
        Self { kind, flags: flags | REQUEST, family: frame.family.number(), resource: 0, attributes, operation, object }
    }

    /// Asks for all tracked flows of a family, or those that a filter names.
    pub(crate) fn flows(ipv4: bool, filter: Attributes) -> Self {
        Self::about_flows(ipv4, GET_FLOW, DUMP, filter).told("list", "tracked flows".to_owned())
    }

    /// Has one tracked flow forgotten, which the attributes name.
    pub(crate) fn forget_flow(ipv4: bool, attributes: Attributes, shown: String) -> Self {
        Self::about_flows(ipv4, DELETE_FLOW, ACK, attributes).told("forget the flow", shown)
    }

    fn about_flows(ipv4: bool, kind: u16, flags: u16, attributes: Attributes) -> Self {
        let family = if ipv4 { TableFamily::Ip } else { TableFamily::Ip6 }.number();
        let (operation, object) = ("read", String::new());
        Self { kind, flags: flags | REQUEST, family, resource: 0, attributes, operation, object }
    }

    fn told(self, operation: &'static str, object: String) -> Self {
        Self { operation, object, ..self }
    }

    /// Asks for the number of the ruleset, which each change raises.
    pub(crate) fn generation(frame: &TableLayout) -> Self {
        Self::about(frame, GET_GENERATION, 0, Attributes::new())
    }

    /// Asks for the table.
    pub(crate) fn table(frame: &TableLayout) -> Self {
        Self::about(frame, GET_TABLE, 0, Attributes::new().text(1, frame.table))
    }

    /// Asks for one chain.
    pub(crate) fn chain(frame: &TableLayout, chain: &str) -> Self {
        Self::about(frame, GET_CHAIN, 0, Attributes::new().text(1, frame.table).text(3, chain))
            .told("read", place(frame, chain))
    }

    /// Asks for all chains of the family: the kernel does not choose among them by their table.
    pub(crate) fn chains(frame: &TableLayout) -> Self {
        Self::about(frame, GET_CHAIN, DUMP, Attributes::new()).told("read the chains of", frame.to_string())
    }

    /// Asks for all rules of one chain. Without table or chain there are none, and that is no error.
    pub(crate) fn rules(frame: &TableLayout, chain: &str) -> Self {
        Self::about(frame, GET_RULE, DUMP, Attributes::new().text(rule::TABLE, frame.table).text(rule::CHAIN, chain))
            .told("read the rules of", place(frame, chain))
    }

    /// Makes the table, or wakes it up if somebody made it dormant.
    pub(crate) fn new_table(frame: &TableLayout) -> Result<Self> {
        let attributes = commented(Attributes::new().text(1, frame.table).number(2, 0), 6, frame.table_comment)?;
        Ok(Self::about(frame, NEW_TABLE, CREATE, attributes).told("add", frame.to_string()))
    }

    /// Removes a table with all that is in it.
    pub(crate) fn delete_table(frame: &TableLayout) -> Self {
        let attributes = Attributes::new().text(1, frame.table);
        Self::about(frame, DELETE_TABLE, 0, attributes).told("delete", frame.to_string())
    }

    /// Makes a chain.
    pub(crate) fn new_chain(frame: &TableLayout, chain: &Chain) -> Result<Self> {
        let mut attributes = Attributes::new().text(1, frame.table).text(3, chain.name);
        if let Some(hook) = chain.hook {
            let place = Attributes::new()
                .number(object::HOOK_NUMBER, hook.hook.number())
                .bytes(object::HOOK_PRIORITY, &hook.priority.to_be_bytes());
            attributes = attributes.text(object::CHAIN_TYPE, hook.kind.name()).nested(object::CHAIN_HOOK, &place);
        }
        let attributes = commented(attributes, 12, chain.comment)?;
        Ok(Self::about(frame, NEW_CHAIN, CREATE, attributes).told("add", place(frame, chain.name)))
    }

    /// Makes a regular chain that must not be there yet (`EEXIST`).
    pub(crate) fn new_own_chain(frame: &TableLayout, chain: &str) -> Self {
        let attributes = Attributes::new().text(1, frame.table).text(3, chain);
        Self::about(frame, NEW_CHAIN, CREATE | EXCLUSIVE, attributes).told("add", place(frame, chain))
    }

    /// Removes a chain with its rules; while another rule leads to it, that is refused (`EBUSY`).
    pub(crate) fn delete_chain(frame: &TableLayout, chain: &str) -> Self {
        let attributes = Attributes::new().text(1, frame.table).text(3, chain);
        Self::about(frame, DELETE_CHAIN, 0, attributes).told("delete", place(frame, chain))
    }

    /// Adds a rule behind all others of its chain.
    pub(crate) fn append_rule(frame: &TableLayout, chain: &str, body: &Body, shown: &str) -> Self {
        Self::new_rule(frame, CREATE | APPEND, chain, body, shown)
    }

    /// Adds a rule before all others of its chain.
    pub(crate) fn prepend_rule(frame: &TableLayout, chain: &str, body: &Body, shown: &str) -> Self {
        Self::new_rule(frame, CREATE, chain, body, shown)
    }

    fn new_rule(frame: &TableLayout, flags: u16, chain: &str, body: &Body, shown: &str) -> Self {
        let attributes = Attributes::new()
            .text(rule::TABLE, frame.table)
            .text(rule::CHAIN, chain)
            .nested(rule::EXPRESSIONS, &body.expressions);
        let attributes = match body.userdata.as_slice() {
            [] => attributes,
            userdata => attributes.bytes(rule::USERDATA, userdata),
        };
        Self::about(frame, NEW_RULE, flags, attributes)
            .told("add rule", format!("`{shown}` to {}", place(frame, chain)))
    }

    /// Removes a rule by its handle, the number that no other rule of the table ever had.
    pub(crate) fn delete_rule(frame: &TableLayout, chain: &str, handle: u64, shown: &str) -> Self {
        let attributes = Attributes::new()
            .text(rule::TABLE, frame.table)
            .text(rule::CHAIN, chain)
            .bytes(rule::HANDLE, &handle.to_be_bytes());
        Self::about(frame, DELETE_RULE, 0, attributes)
            .told("delete rule", format!("`{shown}` from {}", place(frame, chain)))
    }

    /// Asks for a set.
    pub(crate) fn set(frame: &TableLayout, set: &Set) -> Self {
        Self::about(frame, GET_SET, 0, Attributes::new().text(1, frame.table).text(2, set.name))
            .told("read", set.shown(frame))
    }

    /// Makes a set; the number tells it from others of one transaction.
    pub(crate) fn new_set(frame: &TableLayout, set: &Set, number: u32) -> Result<Self> {
        Ok(Self::about(frame, NEW_SET, CREATE, set.attributes(frame, number)?).told("add", set.shown(frame)))
    }

    /// Asks for an element of a set.
    pub(crate) fn element(frame: &TableLayout, element: Attributes, shown: String) -> Self {
        Self::about(frame, GET_ELEMENT, 0, element).told("read", shown)
    }

    /// Adds an element to a set. `new`: it must not be there yet (`EEXIST`).
    pub(crate) fn new_element(frame: &TableLayout, new: bool, element: Attributes, shown: String) -> Self {
        let flags = if new { CREATE | EXCLUSIVE } else { CREATE };
        Self::about(frame, NEW_ELEMENT, flags, element).told("add", shown)
    }

    /// Removes an element from a set.
    pub(crate) fn delete_element(frame: &TableLayout, element: Attributes, shown: String) -> Self {
        Self::about(frame, DELETE_ELEMENT, 0, element).told("delete", shown)
    }

    /// Opens a transaction; with a guard it fails with `ERESTART` unless the ruleset still has that number.
    pub(crate) fn begin(guard: Option<u32>) -> Self {
        let attributes = guard.into_iter().fold(Attributes::new(), |list, generation| list.number(1, generation));
        Self { attributes, ..Self::bracket(BEGIN) }
    }

    /// Has the transaction carried out.
    pub(crate) fn end() -> Self {
        Self::bracket(END)
    }

    fn bracket(kind: u16) -> Self {
        let (operation, object) = ("change", "the ruleset".to_owned());
        let (flags, family, resource) = (REQUEST, 0, NF_TABLES);
        Self { kind, flags, family, resource, attributes: Attributes::new(), operation, object }
    }

    /// The same, and the kernel says when it is done.
    pub(crate) fn acknowledged(self) -> Self {
        Self { flags: self.flags | ACK, ..self }
    }

    /// Removes all rules of a chain.
    pub(crate) fn flush_chain(frame: &TableLayout, chain: &str) -> Self {
        let attributes = Attributes::new().text(rule::TABLE, frame.table).text(rule::CHAIN, chain);
        Self::about(frame, DELETE_RULE, 0, attributes).told("delete the rules of", place(frame, chain))
    }

    /// How many bytes it is.
    pub(crate) fn length(&self) -> usize {
        HEADERS + self.attributes.as_bytes().len()
    }

    /// The bytes: `nlmsghdr`, `nfgenmsg`, attributes.
    pub(crate) fn encode(&self, sequence: u32) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.length());
        self.write(sequence, &mut bytes);
        bytes
    }

    /// The bytes of many, one behind the other, each with its sequence number.
    pub(crate) fn encode_all<'a>(messages: impl IntoIterator<Item = (&'a Message, &'a u32)>) -> Vec<u8> {
        let mut bytes = Vec::new();
        messages.into_iter().for_each(|(message, sequence)| message.write(*sequence, &mut bytes));
        bytes
    }

    fn write(&self, sequence: u32, bytes: &mut Vec<u8>) {
        let attributes = self.attributes.as_bytes();
        let length = u32::try_from(self.length()).unwrap_or(u32::MAX);
        bytes.extend(length.to_ne_bytes());
        bytes.extend(self.kind.to_ne_bytes());
        bytes.extend(self.flags.to_ne_bytes());
        bytes.extend(sequence.to_ne_bytes());
        bytes.extend([0, 0, 0, 0, self.family, 0]);
        bytes.extend(self.resource.to_be_bytes());
        bytes.extend_from_slice(attributes);
    }
}

fn commented(attributes: Attributes, kind: u16, comment: Option<&str>) -> Result<Attributes> {
    Ok(match comment {
        Some(comment) => attributes.bytes(kind, &userdata::encode(comment)?),
        None => attributes,
    })
}

/// `chain masq_checks of table inet x`.
pub(crate) fn place(frame: &TableLayout, chain: &str) -> String {
    format!("chain {chain} of {frame}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Hook, HookKind, HookPoint};
    use crate::rule::{Match, Rule, Verdict};
    use crate::state::body;

    /// What nft 1.0.6 sent, without the first header, for
    /// `add rule inet t c ip saddr 10.0.0.2 ip daddr != 10.0.0.0/22 masquerade comment "k, net: n"`.
    const RULE_BY_NFT: &str = "\
        01000000060001007400000006000200630000006c01048024000180090001006d657461000000001400028008000200\
        0000000f08000100000000012c00018008000100636d700020000280080001000000000108000200000000000c000380\
        0500010002000000340001800c0001007061796c6f616400240002800800010000000001080002000000000108000300\
        0000000c08000400000000042c00018008000100636d700020000280080001000000000108000200000000000c000380\
        080001000a000002340001800c0001007061796c6f616400240002800800010000000001080002000000000108000300\
        000000100800040000000004440001800c00010062697477697365003400028008000100000000010800020000000001\
        08000300000000040c00048008000100fffffc000c00058008000100000000002c00018008000100636d700020000280\
        080001000000000108000200000000010c000380080001000a00000014000180090001006d6173710000000004000280\
        10000700000a6b2c206e65743a206e00";
    /// The same for `add chain inet t p { type nat hook postrouting priority -7; comment "x"; }`.
    const CHAIN_BY_NFT: &str = "\
        0100000006000100740000000600030070000000080007006e61740014000480080001000000000408000200fffffff9\
        08000c0000027800";

    fn frame() -> TableLayout {
        TableLayout { rule_chains: vec!["c"], ..TableLayout::of(TableFamily::Inet, "t") }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes
            .iter()
            .flat_map(|byte| [byte >> 4, byte & 15])
            .map(|digit| format!("{digit:x}"))
            .collect::<Vec<_>>()
            .concat()
    }

    #[test]
    fn a_rule_goes_over_the_wire_as_nft_sends_it() {
        let rule = Rule {
            matches: vec![
                Match::Source("10.0.0.2".parse().unwrap()),
                Match::DestinationNotIn("10.0.0.0/22".parse().unwrap()),
            ],
            verdict: Verdict::Masquerade,
            comment: Some("k, net: n".to_owned()),
        };
        let message = Message::append_rule(&frame(), "c", &body(&rule, &frame(), None).unwrap(), "");
        let bytes = message.encode(9);
        assert_eq!(bytes.len(), 416);
        assert_eq!(hex(&bytes[..4]), hex(&416_u32.to_ne_bytes()));
        assert_eq!(hex(&bytes[16..]), RULE_BY_NFT);
    }

    #[test]
    fn a_chain_goes_over_the_wire_as_nft_sends_it() {
        let hook = Hook { kind: HookKind::Nat, hook: HookPoint::Postrouting, priority: -7 };
        let chain = Chain { name: "p", comment: Some("x"), hook: Some(hook) };
        assert_eq!(hex(&Message::new_chain(&frame(), &chain).unwrap().encode(1)[16..]), CHAIN_BY_NFT);
    }
}
