//! Elements of a table's sets: one for each key of a rule.

use std::collections::HashSet;

use cnikit_netlink::attribute::{Attributes, number};
use cnikit_netlink::nfnetlink::{HEADERS, NetfilterMessage};

use crate::rule::set::{Index, IndexBy, Key, Set, hash};
use crate::rule::types::{Concatenation, KeyValue};
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::message;
use crate::ruleset::owner_filter::OwnerFilter;
use crate::wire::attribute::object;
use crate::{Error, Result};

/// A key of one of the layout's indexes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Element {
    /// The position of the index in [`TableLayout::indexes`].
    pub(crate) index: usize,
    pub(crate) key: Key,
}

impl Element {
    /// The keys of installed rules, each once.
    pub(crate) fn all_of<'a>(layout: &TableLayout, rules: impl IntoIterator<Item = &'a InstalledRule>) -> Vec<Element> {
        let mut seen = HashSet::new();
        let mut elements = Vec::new();
        for rule in rules {
            for (position, index) in layout.indexes.iter().enumerate() {
                let Some(key) = index.key_of(rule) else { continue };
                let element = Element { index: position, key };
                if seen.insert(element.clone()) {
                    elements.push(element);
                }
            }
        }
        elements
    }

    /// The keys that these installed rules may have in the indexes.
    ///
    /// A rule of this owner that does not name the owner may have lost the name when the ruleset was saved and loaded with
    /// nft(8). It may be registered by any name of the owner, so all of them are included.
    pub(crate) fn possible_keys(layout: &TableLayout, filter: &OwnerFilter, rules: &[InstalledRule]) -> Vec<Element> {
        let mut elements = Element::all_of(layout, rules);
        if rules.iter().any(|rule| rule.owner().is_none() && filter.selects(rule)) {
            for name in Element::owner_keys(layout, filter) {
                if !elements.contains(&name) {
                    elements.push(name);
                }
            }
        }
        elements
    }

    /// The keys of an owner's names in the layout's index of owners; none if the layout has no such index.
    pub(crate) fn owner_keys(layout: &TableLayout, filter: &OwnerFilter) -> Vec<Element> {
        match layout.indexes.iter().position(|index| matches!(index.by, IndexBy::Owner)) {
            Some(index) => filter.names().map(|name| Element { index, key: hash(name) }).collect(),
            None => Vec::new(),
        }
    }

    fn set<'a>(&self, layout: &'a TableLayout) -> Option<&'a Set> {
        layout.indexes.get(self.index).map(|index| &index.set)
    }

    /// The attributes of a message about this element: table, set and key.
    ///
    /// # Errors
    /// The set has keys of another type; a name that no interface can have.
    fn attributes(&self, layout: &TableLayout) -> Result<Attributes> {
        let set = match self.set(layout) {
            Some(set) if self.key.iter().map(KeyValue::key_type).eq(set.key.iter().copied()) => set,
            _ => {
                let shown = format!("element {} to {layout}", Concatenation(&self.key));
                return Err(Error::ours("add", shown, "the set has keys of another type"));
            }
        };
        // Each part of a concatenation begins at a multiple of four bytes.
        let alignment = if self.key.len() > 1 { 4 } else { 1 };
        let mut key = Vec::new();
        for part in &self.key {
            key.extend(part.bytes()?);
            key.resize(key.len().next_multiple_of(alignment), 0);
        }
        let element = Attributes::new().nested(1, &Attributes::new().bytes(1, &key));
        Ok(Attributes::new().text(1, layout.table).text(2, set.name).nested(3, &Attributes::new().nested(1, &element)))
    }

    /// The message that adds the element. With `new` the kernel refuses it if the element exists (`EEXIST`).
    pub(crate) fn addition(&self, layout: &TableLayout, new: bool) -> Result<NetfilterMessage> {
        Ok(message::new_element(layout, new, self.attributes(layout)?, self.shown(layout)))
    }

    /// The message that deletes the element. The kernel refuses it if the element does not exist (`ENOENT`).
    pub(crate) fn deletion(&self, layout: &TableLayout) -> Result<NetfilterMessage> {
        Ok(message::delete_element(layout, self.attributes(layout)?, self.shown(layout)))
    }

    /// The message that reads the element.
    pub(crate) fn question(&self, layout: &TableLayout) -> Result<NetfilterMessage> {
        Ok(message::element(layout, self.attributes(layout)?, self.shown(layout)))
    }

    /// `element tcp . 80 of set s of table ip x`.
    pub(crate) fn shown(&self, layout: &TableLayout) -> String {
        let set = self.set(layout).map_or("?", |set| set.name);
        format!("element {} of set {set} of {layout}", Concatenation(&self.key))
    }
}

impl Index {
    /// The key of an installed rule; `None` if the rule has none, or is in a chain that is not indexed.
    pub(crate) fn key_of(&self, rule: &InstalledRule) -> Option<Key> {
        if !self.chains.contains(&rule.chain()) {
            return None;
        }
        self.key(rule.rule(), &rule.label())
    }
}

impl Set {
    /// Checks the set that the kernel has under this name. `message` is the kernel's answer.
    ///
    /// # Errors
    /// Its keys are of another type.
    pub(crate) fn refuse_other(&self, layout: &TableLayout, message: &[u8]) -> Result<()> {
        let key_type = message.get(HEADERS..).and_then(|list| number(list, object::SET_KEY_TYPE));
        if key_type == Some(self.key_type()) {
            return Ok(());
        }
        Err(Error::ours("use", self.shown(layout), format!("its keys are of another type, wanted `{self}`")))
    }
}
