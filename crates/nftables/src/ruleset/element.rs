//! Elements of the sets of a table, one for each key of a rule.

use std::collections::HashSet;

use cnikit_netlink::attribute::{Attributes, number};
use cnikit_netlink::nfnetlink::{HEADERS, NetfilterMessage};

use crate::rule::set::{Index, IndexBy, Key, Set, hash};
use crate::rule::types::{Joined, Value};
use crate::ruleset::installed_rule::InstalledRule;
use crate::ruleset::layout::TableLayout;
use crate::ruleset::message;
use crate::ruleset::owner_filter::OwnerFilter;
use crate::wire::attribute::object;
use crate::{Error, Result};

/// A key of one of the layout's indexes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Element {
    /// The place of the index in the frame.
    pub(crate) index: usize,
    pub(crate) key: Key,
}

impl Element {
    /// The keys of rules that were found, each once.
    pub(crate) fn all_of<'a>(layout: &TableLayout, found: impl IntoIterator<Item = &'a InstalledRule>) -> Vec<Element> {
        let mut seen = HashSet::new();
        let mut elements = Vec::new();
        for rule in found {
            for (index, one) in layout.indexes.iter().enumerate() {
                let element = one.key_of(rule).map(|key| Element { index, key });
                elements.extend(element.filter(|element| seen.insert(element.clone())));
            }
        }
        elements
    }

    /// The keys by which rules that were found may be registered: their own, and where they name no owner but are this one's
    /// all that he may be registered by. They may have named him until somebody saved and loaded them.
    pub(crate) fn known_by(layout: &TableLayout, filter: &OwnerFilter, found: &[InstalledRule]) -> Vec<Element> {
        let mut elements = Element::all_of(layout, found);
        if found.iter().any(|found| found.owner().is_none() && filter.is_of(found)) {
            let more: Vec<_> = Element::names(layout, filter).filter(|name| !elements.contains(name)).collect();
            elements.extend(more);
        }
        elements
    }

    /// By what the layout's index of owners knows this one, if it has such an index.
    pub(crate) fn names<'a>(layout: &TableLayout, filter: &'a OwnerFilter) -> impl Iterator<Item = Element> + use<'a> {
        let index = layout.indexes.iter().position(|index| matches!(index.by, IndexBy::Owner));
        index.into_iter().flat_map(|index| filter.names().map(move |name| Element { index, key: hash(name) }))
    }

    fn set<'a>(&self, layout: &'a TableLayout) -> Option<&'a Set> {
        layout.indexes.get(self.index).map(|index| &index.set)
    }

    /// The set and the element in it, as they go over the wire.
    fn attributes(&self, layout: &TableLayout) -> Result<Attributes> {
        let of_type = |set: &&Set| self.key.iter().map(Value::key_type).eq(set.key.iter().copied());
        let shown = || format!("element {} to {layout}", Joined(&self.key));
        let set = self.set(layout).filter(of_type);
        let set = set.ok_or_else(|| Error::ours("add", shown(), "the set has keys of another type"))?;
        let mut key = Vec::new();
        for part in &self.key {
            key.extend(part.bytes()?);
            key.resize(key.len().next_multiple_of(if self.key.len() > 1 { 4 } else { 1 }), 0);
        }
        let element = Attributes::new().nested(1, &Attributes::new().bytes(1, &key));
        Ok(Attributes::new().text(1, layout.table).text(2, set.name).nested(3, &Attributes::new().nested(1, &element)))
    }

    /// The message that adds it. `new`: it must not be there yet (`EEXIST`).
    pub(crate) fn addition(&self, layout: &TableLayout, new: bool) -> Result<NetfilterMessage> {
        Ok(message::new_element(layout, new, self.attributes(layout)?, self.shown(layout)))
    }

    /// The message that removes it; that it is gone is refused (`ENOENT`).
    pub(crate) fn deletion(&self, layout: &TableLayout) -> Result<NetfilterMessage> {
        Ok(message::delete_element(layout, self.attributes(layout)?, self.shown(layout)))
    }

    /// Asks for it.
    pub(crate) fn question(&self, layout: &TableLayout) -> Result<NetfilterMessage> {
        Ok(message::element(layout, self.attributes(layout)?, self.shown(layout)))
    }

    /// `element tcp . 80 of set s of table ip x`.
    pub(crate) fn shown(&self, layout: &TableLayout) -> String {
        let set = self.set(layout).map_or("?", |set| set.name);
        format!("element {} of set {set} of {layout}", Joined(&self.key))
    }
}

impl Index {
    /// The key of a rule that was found.
    pub(crate) fn key_of(&self, found: &InstalledRule) -> Option<Key> {
        self.chains.contains(&found.chain()).then(|| self.key(found.rule(), &found.label())).flatten()
    }
}

impl Set {
    /// Validates the set that has this name.
    ///
    /// # Errors
    /// Its keys are of another type.
    pub(crate) fn refuse_other(&self, layout: &TableLayout, message: &[u8]) -> Result<()> {
        let found = message.get(HEADERS..).and_then(|list| number(list, object::SET_KEY_TYPE));
        if found == Some(self.key_type()) {
            return Ok(());
        }
        Err(Error::ours("use", self.shown(layout), format!("its keys are of another type, wanted `{self}`")))
    }
}
