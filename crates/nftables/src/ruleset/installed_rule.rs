//! A rule as the kernel has it.

use std::borrow::Cow;
use std::fmt;

use cnikit_netlink::attribute::{Attributes, text, value};
use cnikit_netlink::nfnetlink::{HEADERS, NetfilterMessage};

use crate::rule::decompile::decompile;
use crate::rule::types::Rule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::message::{self, Body};
use crate::wire::attribute::rule;
use crate::wire::expression::{Expression, Load, decode};
use crate::wire::userdata::{self, Label};

/// A rule as the kernel has it, whichever program made it. It can be added again byte for byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstalledRule {
    pub(crate) chain: String,
    pub(crate) handle: u64,
    pub(crate) body: Body,
    expressions: Vec<Expression>,
    comment: Option<String>,
    owner: Option<String>,
    rule: Option<Rule>,
}

impl InstalledRule {
    /// The kernel's number for the rule, which no other rule of the table ever had.
    #[doc(alias = "NFTA_RULE_HANDLE")]
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// The comment.
    pub fn comment(&self) -> Option<&str> {
        self.comment.as_deref()
    }

    /// The owner that the rule names in its user data; `None` if it names none.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// The name of the rule's chain.
    pub fn chain(&self) -> &str {
        &self.chain
    }

    /// The rule as a value; `None` if it has an expression that this crate cannot read.
    pub fn rule(&self) -> Option<&Rule> {
        self.rule.as_ref()
    }

    /// Reads a rule in a message of a dump. `None` if its label is not selected: most rules of a chain belong to other owners, and
    /// decoding them takes time.
    ///
    /// `None` also if the rule is in another chain: old kernels ignore the filter and send the rules of all chains.
    pub(crate) fn read(
        message: &[u8],
        layout: &TableLayout,
        chain: &str,
        selects: impl Fn(&Label<'_>) -> bool,
    ) -> Option<Self> {
        let list = message.get(HEADERS..)?;
        let is_of_chain = message.get(16) == Some(&layout.family.number())
            && text(list, rule::TABLE) == Some(layout.table)
            && text(list, rule::CHAIN) == Some(chain);
        if !is_of_chain {
            return None;
        }
        let handle = u64::from_be_bytes(value(list, rule::HANDLE)?.try_into().ok()?);
        let userdata = value(list, rule::USERDATA).unwrap_or_default();
        let comment = userdata::comment(userdata);
        let owner = userdata::owner(userdata);
        if !selects(&Label { comment: comment.as_deref(), owner: owner.as_deref() }) {
            return None;
        }
        let encoded = value(list, rule::EXPRESSIONS).unwrap_or_default();
        let expressions = decode(encoded);
        let comment = comment.map(Cow::into_owned);
        Some(Self {
            chain: chain.to_owned(),
            handle,
            body: Body { expressions: Attributes::raw(encoded), userdata: userdata.to_vec() },
            rule: decompile(&expressions, comment.clone(), layout.family),
            expressions,
            comment,
            owner: owner.map(Cow::into_owned),
        })
    }

    /// The expressions of the rule.
    pub fn expressions(&self) -> &[Expression] {
        &self.expressions
    }

    /// The comment and the owner.
    pub(crate) fn label(&self) -> Label<'_> {
        Label { comment: self.comment(), owner: self.owner() }
    }

    /// The chain that it jumps or goes to.
    pub(crate) fn target(&self) -> Option<&str> {
        for expression in &self.expressions {
            if let Expression::Verdict { chain: Some(chain), .. } = expression {
                return Some(chain);
            }
        }
        None
    }

    /// Whether it has exactly these expressions. The comment is not compared.
    pub(crate) fn same_expressions(&self, expressions: &[Expression]) -> bool {
        self.expressions == expressions
    }

    /// Whether it has these expressions in succession.
    pub(crate) fn contains_expressions(&self, part: &[Expression]) -> bool {
        self.expressions.windows(part.len().max(1)).any(|window| window == part)
    }

    /// Whether it has the same expressions, comment and owner. The kernel may encode the same expressions in other bytes.
    pub(crate) fn is_same(&self, body: &Body) -> bool {
        self.body.userdata == body.userdata && self.same_expressions(&decode(body.expressions.as_bytes()))
    }

    /// The message that deletes it.
    pub(crate) fn deletion(&self, layout: &TableLayout) -> NetfilterMessage {
        message::delete_rule(layout, &self.chain, self.handle, &self.to_string())
    }
}

/// As nft(8) shows it; if this crate cannot read the rule, the names of its expressions.
impl fmt::Display for InstalledRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(rule) = &self.rule {
            return write!(f, "{rule}");
        }
        f.write_str("[")?;
        self.expressions.iter().try_for_each(|one| write!(f, " {}", name(one)))?;
        f.write_str(" ]")?;
        match &self.comment {
            Some(comment) => write!(f, " comment \"{comment}\""),
            None => Ok(()),
        }
    }
}

/// The kernel's name for an expression.
fn name(expression: &Expression) -> &str {
    match expression {
        Expression::Load(Load::Meta(_), _) => "meta",
        Expression::Load(Load::Payload { .. }, _) => "payload",
        Expression::Load(Load::Ct(_) | Load::CtOriginal(_), _) => "ct",
        Expression::Load(Load::Fib { .. }, _) => "fib",
        Expression::Lookup { .. } => "lookup",
        Expression::Bitwise(_) => "bitwise",
        Expression::Equal(_) | Expression::NotEqual(_) => "cmp",
        Expression::Masquerade => "masq",
        Expression::Verdict { .. } | Expression::Immediate(..) => "immediate",
        Expression::Dnat(_) => "nat",
        Expression::Foreign { name, .. } => name,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rule::types::TableFamily;
    use crate::rule::types::Verdict;
    use crate::wire::expression::encode;

    fn layout() -> TableLayout {
        TableLayout { rule_chains: vec!["c"], ..TableLayout::of(TableFamily::Inet, "t") }
    }

    /// A message as a dump has it: `accept comment "k"`.
    fn message(family: TableFamily, table: &str, chain: &str) -> Vec<u8> {
        let accept = Expression::Verdict { code: 1, chain: None };
        let list = Attributes::new()
            .text(rule::TABLE, table)
            .text(rule::CHAIN, chain)
            .bytes(rule::HANDLE, &7_u64.to_be_bytes())
            .nested(rule::EXPRESSIONS, &encode(&[accept]))
            .bytes(rule::USERDATA, &userdata::encode("k").unwrap());
        [&[0; 16][..], &[family.number(), 0, 0, 0], list.as_bytes()].concat()
    }

    #[test]
    fn a_rule_is_read_with_handle_and_comment() {
        let found = InstalledRule::read(&message(TableFamily::Inet, "t", "c"), &layout(), "c", |_| true).unwrap();
        assert_eq!((found.handle(), found.comment()), (7, Some("k")));
        assert_eq!(found.rule().map(|rule| rule.verdict.clone()), Some(Verdict::Accept));
    }

    #[test]
    fn a_rule_of_another_family_table_or_chain_is_not_ours() {
        let others = [(TableFamily::Ip, "t", "c"), (TableFamily::Inet, "u", "c"), (TableFamily::Inet, "t", "d")];
        for (family, table, chain) in others {
            assert_eq!(InstalledRule::read(&message(family, table, chain), &layout(), "c", |_| true), None);
        }
        assert_eq!(InstalledRule::read(&message(TableFamily::Inet, "t", "c"), &layout(), "c", |_| false), None);
    }

    #[test]
    fn a_message_that_is_cut_off_is_no_rule() {
        let whole = message(TableFamily::Inet, "t", "c");
        for end in 0..HEADERS + 28 {
            assert_eq!(InstalledRule::read(&whole[..end], &layout(), "c", |_| true), None);
        }
    }
}
