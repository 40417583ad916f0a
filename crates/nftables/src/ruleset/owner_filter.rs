//! By what rules are told apart.

use std::net::IpAddr;

use crate::ruleset::installed_rule::InstalledRule;
use crate::wire::userdata::Label;

/// Which rules are meant, and what those bear that are added.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum OwnerFilter {
    /// Those whose comment begins so. A rule that is added has to have such a comment.
    Commented(String),
    /// Those that name this owner, in a field beside the comment that nft(8) neither shows nor minds; a rule that is
    /// added gets it.
    Owned {
        /// What the field begins with; all of it in a rule that is added, at most 123 bytes.
        owner: String,
        /// Rules that name no owner are meant too if this is their comment: another program made them.
        comment: Option<String>,
    },
    /// As [`OwnerFilter::Owned`], where a comment says too little: of rules that name no owner only those are meant that are about
    /// one of these addresses.
    Attached {
        /// As there.
        owner: String,
        /// As there.
        comment: String,
        /// A packet comes from such a one, goes to it, or is sent there by the rule.
        addresses: Vec<IpAddr>,
    },
}

impl OwnerFilter {
    /// The text by which a rule is found; `None` if it is not meant. A rule with neither text is nobody's.
    pub(crate) fn finds<'a>(&self, label: &Label<'a>) -> Option<&'a str> {
        match self {
            OwnerFilter::Commented(prefix) => label.comment.filter(|comment| comment.starts_with(prefix)),
            OwnerFilter::Owned { owner, comment } => owned(label, owner, comment.as_deref()),
            OwnerFilter::Attached { owner, comment, .. } => owned(label, owner, Some(comment)),
        }
    }

    /// Whether a rule whose label is meant is meant itself.
    pub(crate) fn means(&self, found: &InstalledRule) -> bool {
        let OwnerFilter::Attached { addresses, .. } = self else { return true };
        found.owner().is_some() || found.rule().is_some_and(|rule| rule.addresses().any(|one| addresses.contains(&one)))
    }

    /// Whether a rule is meant.
    pub(crate) fn is_of(&self, found: &InstalledRule) -> bool {
        self.finds(&found.label()).is_some() && self.means(found)
    }

    /// Whether a rule names an owner, and it is somebody else.
    pub(crate) fn is_anothers(&self, label: &Label<'_>) -> bool {
        label.owner.is_some() && self.finds(label).is_none()
    }

    /// By what a register knows those whose rules are meant: the owner, and the comment of rules that name none.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        let comment = match self {
            OwnerFilter::Commented(_) => None,
            OwnerFilter::Owned { comment, .. } => comment.as_deref(),
            OwnerFilter::Attached { comment, .. } => Some(comment.as_str()),
        };
        self.owner().into_iter().chain(comment)
    }

    /// What a rule that is added names as its owner.
    pub(crate) fn owner(&self) -> Option<&str> {
        match self {
            OwnerFilter::Commented(_) => None,
            OwnerFilter::Owned { owner, .. } | OwnerFilter::Attached { owner, .. } => Some(owner),
        }
    }
}

fn owned<'a>(label: &Label<'a>, owner: &str, comment: Option<&str>) -> Option<&'a str> {
    match label.owner {
        Some(found) => Some(found).filter(|found| found.starts_with(owner)),
        None => label.comment.filter(|found| Some(*found) == comment),
    }
}

/// A prefix of comments.
impl From<&str> for OwnerFilter {
    fn from(prefix: &str) -> Self {
        OwnerFilter::Commented(prefix.to_owned())
    }
}

/// A prefix of comments.
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
        assert_eq!(mine.finds(&label(Some("other"), Some("n1:a"))), Some("n1:a"));
        assert_eq!(mine.finds(&label(Some("c"), None)), Some("c"));
        for other in [label(Some("c"), Some("n2:a")), label(Some("cc"), None), label(None, None)] {
            assert_eq!(mine.finds(&other), None);
        }
        assert!(mine.is_anothers(&label(Some("c"), Some("n2:a"))));
        assert!(!mine.is_anothers(&label(Some("cc"), None)));
    }

    #[test]
    fn a_whole_network_is_meant_by_what_its_owners_begin_with_and_nobody_without_owner() {
        let network = OwnerFilter::Owned { owner: "n1:".into(), comment: None };
        assert_eq!(network.finds(&label(None, Some("n1:a"))), Some("n1:a"));
        assert_eq!(network.finds(&label(Some("n1:"), None)), None);
    }
}
