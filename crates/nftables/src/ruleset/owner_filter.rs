//! Which installed rules belong to an owner.

use std::net::IpAddr;

use crate::ruleset::installed_rule::InstalledRule;
use crate::wire::userdata::Label;

/// Selects the installed rules of an owner. A rule that is added gets the comment or the owner that the filter selects by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OwnerFilter {
    /// Rules whose comment begins with this prefix. A rule that is added must have such a comment.
    Commented(String),
    /// Rules that name this owner in a field of their user data, which nft(8) ignores and does not show. A rule that is added
    /// gets the field.
    Owned {
        /// The prefix of the field; in a rule that is added, the whole field. At most 123 bytes.
        owner: String,
        /// Rules that name no owner are selected too if this is their comment: another program made them.
        comment: Option<String>,
    },
    /// As [`OwnerFilter::Owned`], where the comment is not unique: a rule that names no owner is selected only if it is also about
    /// one of these addresses.
    Attached {
        /// As in [`OwnerFilter::Owned`].
        owner: String,
        /// As in [`OwnerFilter::Owned`].
        comment: String,
        /// A source or destination that the rule matches, or the target of its `dnat`.
        addresses: Vec<IpAddr>,
    },
}

impl OwnerFilter {
    /// The text by which a label is selected, the owner or the comment; `None` if it is not selected.
    pub(crate) fn matching_text<'a>(&self, label: &Label<'a>) -> Option<&'a str> {
        match self {
            OwnerFilter::Commented(prefix) => match label.comment {
                Some(comment) if comment.starts_with(prefix) => Some(comment),
                _ => None,
            },
            OwnerFilter::Owned { owner, comment } => matching_owner(label, owner, comment.as_deref()),
            OwnerFilter::Attached { owner, comment, .. } => matching_owner(label, owner, Some(comment)),
        }
    }

    /// Whether a rule with this label may be selected. [`OwnerFilter::selects_addresses`] is the other condition.
    pub(crate) fn selects_label(&self, label: &Label<'_>) -> bool {
        self.matching_text(label).is_some()
    }

    /// Whether a rule whose label is selected meets the condition on its addresses.
    pub(crate) fn selects_addresses(&self, rule: &InstalledRule) -> bool {
        let OwnerFilter::Attached { addresses, .. } = self else { return true };
        if rule.owner().is_some() {
            return true;
        }
        rule.rule().is_some_and(|value| value.addresses().any(|address| addresses.contains(&address)))
    }

    /// Whether the rule belongs to this owner.
    pub(crate) fn selects(&self, rule: &InstalledRule) -> bool {
        self.selects_label(&rule.label()) && self.selects_addresses(rule)
    }

    /// Whether a label names another owner.
    pub(crate) fn is_others(&self, label: &Label<'_>) -> bool {
        label.owner.is_some() && !self.selects_label(label)
    }

    /// The names of the owner in an index of owners: the owner itself, and the comment of rules that name none.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let comment = match self {
            OwnerFilter::Commented(_) => None,
            OwnerFilter::Owned { comment, .. } => comment.as_deref(),
            OwnerFilter::Attached { comment, .. } => Some(comment.as_str()),
        };
        self.owner().into_iter().chain(comment)
    }

    /// The owner that a rule names which is added; `None` if it names none.
    pub(crate) fn owner(&self) -> Option<&str> {
        match self {
            OwnerFilter::Commented(_) => None,
            OwnerFilter::Owned { owner, .. } | OwnerFilter::Attached { owner, .. } => Some(owner),
        }
    }
}

/// The owner of a label if it has this prefix; of a label without owner, its comment if it is this one.
fn matching_owner<'a>(label: &Label<'a>, prefix: &str, comment: Option<&str>) -> Option<&'a str> {
    match label.owner {
        Some(owner) if owner.starts_with(prefix) => Some(owner),
        None if label.comment == comment => label.comment,
        _ => None,
    }
}

/// Selects by a prefix of comments.
impl From<&str> for OwnerFilter {
    fn from(prefix: &str) -> Self {
        OwnerFilter::Commented(prefix.to_owned())
    }
}

/// Selects by a prefix of comments.
impl From<&String> for OwnerFilter {
    fn from(prefix: &String) -> Self {
        OwnerFilter::Commented(prefix.clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn label<'a>(comment: Option<&'a str>, owner: Option<&'a str>) -> Label<'a> {
        Label { comment, owner }
    }

    #[test]
    fn an_owner_that_is_named_decides_and_the_comment_only_where_none_is() {
        let mine = OwnerFilter::Owned { owner: "n1:a".into(), comment: Some("c".into()) };
        assert_eq!(mine.matching_text(&label(Some("other"), Some("n1:a"))), Some("n1:a"));
        assert_eq!(mine.matching_text(&label(Some("c"), None)), Some("c"));
        for other in [label(Some("c"), Some("n2:a")), label(Some("cc"), None), label(None, None)] {
            assert_eq!(mine.matching_text(&other), None);
        }
        assert!(mine.is_others(&label(Some("c"), Some("n2:a"))));
        assert!(!mine.is_others(&label(Some("cc"), None)));
    }

    #[test]
    fn a_network_filter_matches_owners_by_prefix_and_no_missing_owner() {
        let network = OwnerFilter::Owned { owner: "n1:".into(), comment: None };
        assert_eq!(network.matching_text(&label(None, Some("n1:a"))), Some("n1:a"));
        assert_eq!(network.matching_text(&label(Some("n1:"), None)), None);
    }
}
