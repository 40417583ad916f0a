//! A rule that stands in the kernel.

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

/// A rule as it was found, whoever wrote it: with all that is needed to put it back byte for byte.
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
    /// The kernel's number for it, never given twice in one table.
    #[doc(alias = "NFTA_RULE_HANDLE")]
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Its comment.
    pub fn comment(&self) -> Option<&str> {
        self.comment.as_deref()
    }

    /// Whose it is, if it says so.
    pub fn owner(&self) -> Option<&str> {
        self.owner.as_deref()
    }

    /// The chain it stands in.
    pub fn chain(&self) -> &str {
        &self.chain
    }

    /// The rule as a value; `None` if it does something for which this crate has no word.
    pub fn rule(&self) -> Option<&Rule> {
        self.rule.as_ref()
    }

    /// Reads a message of a dump, if its label is `wanted`; most rules of a chain are somebody else's.
    ///
    /// `None` also if it is about another chain, as old kernels, which do not filter, send them.
    pub(crate) fn read(
        message: &[u8],
        layout: &TableLayout,
        chain: &str,
        wanted: impl Fn(&Label<'_>) -> bool,
    ) -> Option<Self> {
        let list = message.get(HEADERS..)?;
        let here = message.get(16) == Some(&layout.family.number())
            && text(list, rule::TABLE) == Some(layout.table)
            && text(list, rule::CHAIN) == Some(chain);
        let userdata = value(list, rule::USERDATA).unwrap_or_default();
        let (comment, owner) = (userdata::comment(userdata), userdata::owner(userdata));
        let handle = u64::from_be_bytes(value(list, rule::HANDLE)?.try_into().ok()?);
        (here && wanted(&Label { comment: comment.as_deref(), owner: owner.as_deref() })).then(|| {
            let raw = value(list, rule::EXPRESSIONS).unwrap_or_default();
            let expressions = decode(raw);
            let comment = comment.map(Cow::into_owned);
            let rule = decompile(&expressions, comment.clone(), layout.family);
            let body = Body { expressions: Attributes::raw(raw), userdata: userdata.to_vec() };
            let (chain, owner) = (chain.to_owned(), owner.map(Cow::into_owned));
            Self { chain, handle, body, expressions, comment, owner, rule }
        })
    }

    /// The expressions of which it consists.
    pub fn expressions(&self) -> &[Expression] {
        &self.expressions
    }

    /// By what it is told apart.
    pub(crate) fn label(&self) -> Label<'_> {
        Label { comment: self.comment(), owner: self.owner() }
    }

    /// The chain it leads to.
    pub(crate) fn target(&self) -> Option<&str> {
        self.expressions.iter().find_map(|one| match one {
            Expression::Verdict { chain, .. } => chain.as_deref(),
            _ => None,
        })
    }

    /// Whether it does the same, whatever its comment.
    pub(crate) fn same_expressions(&self, expressions: &[Expression]) -> bool {
        self.expressions == expressions
    }

    /// Whether it looks at this among what it does.
    pub(crate) fn contains_expressions(&self, at: &[Expression]) -> bool {
        self.expressions.windows(at.len().max(1)).any(|some| some == at)
    }

    /// Whether it does the same and bears the same comment and owner. The kernel may have written it in other bytes.
    pub(crate) fn is(&self, body: &Body) -> bool {
        self.body.userdata == body.userdata && self.same_expressions(&decode(body.expressions.as_bytes()))
    }

    /// Whether it does the same under the same comment, whoever wrote it.
    pub(crate) fn serves(&self, expressions: &[Expression], comment: Option<&str>) -> bool {
        self.same_expressions(expressions) && self.comment() == comment
    }

    /// The message that removes it.
    pub(crate) fn deletion(&self, layout: &TableLayout) -> NetfilterMessage {
        message::delete_rule(layout, &self.chain, self.handle, &self.to_string())
    }
}

/// As nft(8) writes it, as far as this crate has the words.
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

/// The kernel's word for an expression.
fn name(expression: &Expression) -> &str {
    match expression {
        Expression::Load(Load::Meta(_), _) => "meta",
        Expression::Load(Load::Payload { .. }, _) => "payload",
        Expression::Load(Load::Connection(_) | Load::Asked(_), _) => "ct",
        Expression::Load(Load::Fib { .. }, _) => "fib",
        Expression::Lookup { .. } => "lookup",
        Expression::Mask(_) => "bitwise",
        Expression::Equal(_) | Expression::NotEqual(_) => "cmp",
        Expression::Masquerade => "masq",
        Expression::Verdict { .. } | Expression::Value(..) => "immediate",
        Expression::Destination(_) => "nat",
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
