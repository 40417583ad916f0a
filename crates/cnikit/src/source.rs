//! From where an attachment has its addresses.

use cnikit_skel::{Call, Delegate, Error, Journal, Result, code};
use cnikit_types::{CniResult, NetConf, Value};

use crate::addresses::Addresses;

/// From where an attachment has its addresses: a value, so that a plan can be shown without asking anybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// An IPAM plugin of this name.
    Ipam(String),
    /// What the plugins before this one in the chain gave, if anything: it becomes this interface's.
    PrevResult,
    /// It has none: layer 2 only.
    Nowhere,
}

impl Source {
    /// What the configuration's `ipam.type` says; absent or empty is layer 2. One that is no text names no plugin that could
    /// be found: DEL does all it can without, and then says that an address may be kept.
    pub fn configured(conf: &NetConf) -> Source {
        match conf.at(&["ipam", "type"]) {
            None => Source::Nowhere,
            Some(Value::String(name)) if name.is_empty() => Source::Nowhere,
            Some(Value::String(name)) => Source::Ipam(name.clone()),
            Some(other) => Source::Ipam(other.to_string()),
        }
    }

    /// The same, but what came before in the chain serves where nothing is configured.
    #[must_use]
    pub fn or_prev_result(self) -> Source {
        if self == Source::Nowhere { Source::PrevResult } else { self }
    }

    /// Looks the plugin up, before anything is made.
    pub(crate) fn find(&self, call: &Call) -> Result<FoundDelegate> {
        match self {
            Source::Ipam(name) => Ok(FoundDelegate(Some(call.delegate(name)?))),
            Source::PrevResult | Source::Nowhere => Ok(FoundDelegate(None)),
        }
    }
}

/// What an interface takes over of what came before it in a chain: all its addresses, routes and DNS, of which the record
/// keeps none.
pub(crate) fn taken_over(before: &mut CniResult) -> Addresses {
    use std::mem::take;
    Addresses { ips: take(&mut before.ips), routes: take(&mut before.routes), dns: take(&mut before.dns) }
}

/// A source, found.
pub(crate) struct FoundDelegate(Option<Delegate>);

impl FoundDelegate {
    /// Must the link be there before addresses are asked for, and still be there when they are given back?
    pub(crate) fn needs_link(&self) -> bool {
        self.0.as_ref().is_some_and(Delegate::needs_link)
    }

    /// What an IPAM plugin gives; nothing without one.
    pub(crate) fn addresses(&self, journal: &mut Journal) -> Result<Addresses> {
        let Some(ipam) = &self.0 else { return Ok(Addresses::default()) };
        let answer = ipam.add(journal)?;
        answer.check_size().map_err(|error| Error::from(error.under("result of the IPAM plugin")))?;
        Ok(Addresses::from(answer))
    }

    /// What the plugin would do and give, if it lives in this program: no other is asked for what it may not know.
    pub(crate) fn preview(&self) -> Option<Result<(Vec<String>, Addresses)>> {
        let outline = self.0.as_ref()?.plan()?;
        Some(outline.map(|outline| (outline.steps, Addresses::from(outline.example))))
    }

    pub(crate) fn del(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), Delegate::del)
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), Delegate::check)
    }

    pub(crate) fn gc(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), Delegate::gc)
    }

    pub(crate) fn status(&self) -> Result<()> {
        self.0.as_ref().map_or(Ok(()), Delegate::status)
    }
}

/// An ADD could not be served: that is what STATUS is for (code 50, or 51 if somebody knows that it is worse).
pub(crate) fn unavailable(error: Error) -> Error {
    let code = if error.code == code::LIMITED { code::LIMITED } else { code::UNAVAILABLE };
    Error { code, ..error }
}
