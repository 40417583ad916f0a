//! Messages to `nf_tables` that read and change tables, chains, rules and sets.

use cnikit_netlink::attribute::Attributes;
use cnikit_netlink::nfnetlink::NetfilterMessage;

use crate::Result;
use crate::rule::compile::compile;
use crate::rule::set::Set;
use crate::rule::types::Rule;
use crate::ruleset::layout::{Chain, TableLayout};
use crate::wire::attribute::{object, rule};
use crate::wire::batch::NF_TABLES;
use crate::wire::{expression, userdata};

const DUMP: u16 = 0x300;
const EXCLUSIVE: u16 = 0x200;
const CREATE: u16 = 0x400;
const APPEND: u16 = 0x800;

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

/// A rule's expressions and user data, encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Body {
    pub(crate) expressions: Attributes,
    pub(crate) userdata: Vec<u8>,
}

/// A request about a table, described as "read table ...".
fn about(layout: &TableLayout, kind: u16, flags: u16, attributes: Attributes) -> NetfilterMessage {
    NetfilterMessage::request(kind, flags, layout.family.number(), attributes).described("read", layout.to_string())
}

/// Reads the generation of the ruleset, a number that each change increments.
pub(crate) fn generation(layout: &TableLayout) -> NetfilterMessage {
    about(layout, GET_GENERATION, 0, Attributes::new())
}

/// Reads a table.
pub(crate) fn table(layout: &TableLayout) -> NetfilterMessage {
    about(layout, GET_TABLE, 0, Attributes::new().text(1, layout.table))
}

/// Reads a chain.
pub(crate) fn chain(layout: &TableLayout, chain: &str) -> NetfilterMessage {
    about(layout, GET_CHAIN, 0, Attributes::new().text(1, layout.table).text(3, chain))
        .described("read", describe_chain(layout, chain))
}

/// Reads all chains of the family: the kernel does not filter them by table.
pub(crate) fn chains(layout: &TableLayout) -> NetfilterMessage {
    about(layout, GET_CHAIN, DUMP, Attributes::new()).described("read the chains of", layout.to_string())
}

/// Reads all rules of a chain. If the table or the chain does not exist there are none, and that is not an error.
pub(crate) fn rules(layout: &TableLayout, chain: &str) -> NetfilterMessage {
    about(layout, GET_RULE, DUMP, Attributes::new().text(rule::TABLE, layout.table).text(rule::CHAIN, chain))
        .described("read the rules of", describe_chain(layout, chain))
}

/// Adds the table, or clears its `dormant` flag.
pub(crate) fn new_table(layout: &TableLayout) -> Result<NetfilterMessage> {
    let attributes = commented(Attributes::new().text(1, layout.table).number(2, 0), 6, layout.table_comment)?;
    Ok(about(layout, NEW_TABLE, CREATE, attributes).described("add", layout.to_string()))
}

/// Deletes a table with its content.
pub(crate) fn delete_table(layout: &TableLayout) -> NetfilterMessage {
    let attributes = Attributes::new().text(1, layout.table);
    about(layout, DELETE_TABLE, 0, attributes).described("delete", layout.to_string())
}

/// Adds a chain.
pub(crate) fn new_chain(layout: &TableLayout, chain: &Chain) -> Result<NetfilterMessage> {
    let mut attributes = Attributes::new().text(1, layout.table).text(3, chain.name);
    if let Some(hook) = chain.hook {
        let hook_attributes = Attributes::new()
            .number(object::HOOK_NUMBER, hook.hook.number())
            .bytes(object::HOOK_PRIORITY, &hook.priority.to_be_bytes());
        attributes = attributes.text(object::CHAIN_TYPE, hook.kind.name()).nested(object::CHAIN_HOOK, &hook_attributes);
    }
    let attributes = commented(attributes, 12, chain.comment)?;
    Ok(about(layout, NEW_CHAIN, CREATE, attributes).described("add", describe_chain(layout, chain.name)))
}

/// Adds a regular chain. The kernel refuses it if the chain exists (`EEXIST`).
pub(crate) fn new_regular_chain(layout: &TableLayout, chain: &str) -> NetfilterMessage {
    let attributes = Attributes::new().text(1, layout.table).text(3, chain);
    about(layout, NEW_CHAIN, CREATE | EXCLUSIVE, attributes).described("add", describe_chain(layout, chain))
}

/// Deletes a chain with its rules. The kernel refuses it if another rule jumps to the chain (`EBUSY`).
pub(crate) fn delete_chain(layout: &TableLayout, chain: &str) -> NetfilterMessage {
    let attributes = Attributes::new().text(1, layout.table).text(3, chain);
    about(layout, DELETE_CHAIN, 0, attributes).described("delete", describe_chain(layout, chain))
}

/// Adds a rule at the end of its chain.
pub(crate) fn append_rule(layout: &TableLayout, chain: &str, body: &Body, shown: &str) -> NetfilterMessage {
    new_rule(layout, CREATE | APPEND, chain, body, shown)
}

/// Adds a rule at the beginning of its chain.
pub(crate) fn prepend_rule(layout: &TableLayout, chain: &str, body: &Body, shown: &str) -> NetfilterMessage {
    new_rule(layout, CREATE, chain, body, shown)
}

fn new_rule(layout: &TableLayout, flags: u16, chain: &str, body: &Body, shown: &str) -> NetfilterMessage {
    let attributes = Attributes::new()
        .text(rule::TABLE, layout.table)
        .text(rule::CHAIN, chain)
        .nested(rule::EXPRESSIONS, &body.expressions);
    let attributes =
        if body.userdata.is_empty() { attributes } else { attributes.bytes(rule::USERDATA, &body.userdata) };
    about(layout, NEW_RULE, flags, attributes)
        .described("add rule", format!("`{shown}` to {}", describe_chain(layout, chain)))
}

/// Deletes a rule by its handle, the number that no other rule of the table ever had.
pub(crate) fn delete_rule(layout: &TableLayout, chain: &str, handle: u64, shown: &str) -> NetfilterMessage {
    let attributes = Attributes::new()
        .text(rule::TABLE, layout.table)
        .text(rule::CHAIN, chain)
        .bytes(rule::HANDLE, &handle.to_be_bytes());
    about(layout, DELETE_RULE, 0, attributes)
        .described("delete rule", format!("`{shown}` from {}", describe_chain(layout, chain)))
}

/// Reads a set.
pub(crate) fn set(layout: &TableLayout, set: &Set) -> NetfilterMessage {
    about(layout, GET_SET, 0, Attributes::new().text(1, layout.table).text(2, set.name))
        .described("read", set.shown(layout))
}

/// Adds a set. The number identifies it within the transaction.
pub(crate) fn new_set(layout: &TableLayout, set: &Set, number: u32) -> Result<NetfilterMessage> {
    Ok(about(layout, NEW_SET, CREATE, set.attributes(layout.table, number)?).described("add", set.shown(layout)))
}

/// Reads an element of a set.
pub(crate) fn element(layout: &TableLayout, element: Attributes, shown: String) -> NetfilterMessage {
    about(layout, GET_ELEMENT, 0, element).described("read", shown)
}

/// Adds an element to a set. With `new` the kernel refuses it if the element exists (`EEXIST`).
pub(crate) fn new_element(layout: &TableLayout, new: bool, element: Attributes, shown: String) -> NetfilterMessage {
    let flags = if new { CREATE | EXCLUSIVE } else { CREATE };
    about(layout, NEW_ELEMENT, flags, element).described("add", shown)
}

/// Deletes an element of a set.
pub(crate) fn delete_element(layout: &TableLayout, element: Attributes, shown: String) -> NetfilterMessage {
    about(layout, DELETE_ELEMENT, 0, element).described("delete", shown)
}

/// Deletes all rules of a chain.
pub(crate) fn flush_chain(layout: &TableLayout, chain: &str) -> NetfilterMessage {
    let attributes = Attributes::new().text(rule::TABLE, layout.table).text(rule::CHAIN, chain);
    about(layout, DELETE_RULE, 0, attributes).described("delete the rules of", describe_chain(layout, chain))
}

/// Encodes a rule of this owner.
///
/// # Errors
/// A rule that could never match; a comment or an owner that is too long.
pub(crate) fn body(rule: &Rule, layout: &TableLayout, owner: Option<&str>) -> Result<Body> {
    let expressions: Attributes = expression::encode(&compile(rule, layout.family)?);
    let userdata = userdata::of_rule(rule.comment.as_deref(), owner)?;
    Ok(Body { expressions, userdata })
}

fn commented(attributes: Attributes, kind: u16, comment: Option<&str>) -> Result<Attributes> {
    Ok(match comment {
        Some(comment) => attributes.bytes(kind, &userdata::encode(comment)?),
        None => attributes,
    })
}

/// `chain masq_checks of table inet x`.
pub(crate) fn describe_chain(layout: &TableLayout, chain: &str) -> String {
    format!("chain {chain} of {layout}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::types::Match;
    use crate::rule::types::TableFamily;
    use crate::rule::types::Verdict;
    use crate::ruleset::layout::Hook;
    use crate::ruleset::layout::HookKind;
    use crate::ruleset::layout::HookPoint;

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

    fn layout() -> TableLayout {
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
    fn a_rule_is_encoded_as_nft_encodes_it() {
        let rule = Rule {
            matches: vec![
                Match::Source("10.0.0.2".parse().unwrap()),
                Match::DestinationNotIn("10.0.0.0/22".parse().unwrap()),
            ],
            verdict: Verdict::Masquerade,
            comment: Some("k, net: n".to_owned()),
        };
        let message = append_rule(&layout(), "c", &body(&rule, &layout(), None).unwrap(), "");
        let bytes = message.encode(9);
        assert_eq!(bytes.len(), 416);
        assert_eq!(hex(&bytes[..4]), hex(&416_u32.to_ne_bytes()));
        assert_eq!(hex(&bytes[16..]), RULE_BY_NFT);
    }

    #[test]
    fn a_chain_is_encoded_as_nft_encodes_it() {
        let hook = Hook { kind: HookKind::Nat, hook: HookPoint::Postrouting, priority: -7 };
        let chain = Chain { name: "p", comment: Some("x"), hook: Some(hook) };
        assert_eq!(hex(&new_chain(&layout(), &chain).unwrap().encode(1)[16..]), CHAIN_BY_NFT);
    }
}
