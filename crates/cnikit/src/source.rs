//! The source of an attachment's addresses.

use cnikit_skel::{Call, Delegate, Error, Journal, Result, code};
use cnikit_types::{CniResult, NetConf, Value};

use crate::addresses::Addresses;

/// The source of an attachment's addresses. It is a value, so that a plan can be shown without running a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The IPAM plugin of this name.
    Ipam(String),
    /// The result of the plugins before this one in the chain. Its addresses become this interface's.
    PrevResult,
    /// No addresses: layer 2 only.
    Nowhere,
}

impl Source {
    /// The source that `ipam.type` of the configuration names; without it, layer 2. A value that is not a text names no plugin: DEL
    /// then removes everything else, and reports that an address may remain reserved.
    pub fn configured(conf: &NetConf) -> Source {
        match conf.at(&["ipam", "type"]) {
            None => Source::Nowhere,
            Some(Value::String(name)) if name.is_empty() => Source::Nowhere,
            Some(Value::String(name)) => Source::Ipam(name.clone()),
            Some(other) => Source::Ipam(other.to_string()),
        }
    }

    /// The same source; if none is configured, the result of the plugins before this one.
    #[must_use]
    pub fn or_prev_result(self) -> Source {
        if self == Source::Nowhere { Source::PrevResult } else { self }
    }

    /// Finds the plugin, before anything is made.
    pub(crate) fn find(&self, call: &Call) -> Result<FoundDelegate> {
        match self {
            Source::Ipam(name) => Ok(FoundDelegate(Some(call.delegate(name)?))),
            Source::PrevResult | Source::Nowhere => Ok(FoundDelegate::none()),
        }
    }
}

/// Takes all addresses, routes and DNS out of the result of the plugins before this one.
pub(crate) fn take_addresses(before: &mut CniResult) -> Addresses {
    use std::mem::take;
    Addresses { ips: take(&mut before.ips), routes: take(&mut before.routes), dns: take(&mut before.dns) }
}

/// The IPAM plugin of a source, found; `None` if the source has none.
pub(crate) struct FoundDelegate(Option<Delegate>);

impl FoundDelegate {
    /// That of a source which has no IPAM plugin.
    pub(crate) fn none() -> FoundDelegate {
        FoundDelegate(None)
    }

    /// Whether the link has to exist when addresses are allocated and when they are released.
    pub(crate) fn needs_link(&self) -> bool {
        self.0.as_ref().is_some_and(Delegate::needs_link)
    }

    /// Runs the IPAM plugin's ADD. Without a plugin there are no addresses.
    pub(crate) fn addresses(&self, journal: &mut Journal) -> Result<Addresses> {
        let Some(ipam) = &self.0 else { return Ok(Addresses::default()) };
        let result = ipam.add(journal)?;
        if let Err(error) = result.check_size() {
            return Err(error.under("result of the IPAM plugin").into());
        }
        Ok(Addresses::from(result))
    }

    /// The steps and the example addresses of the plugin's dry run, if it is part of this binary. Any other plugin may not know the
    /// verb.
    pub(crate) fn plan(&self) -> Option<Result<(Vec<String>, Addresses)>> {
        let report = self.0.as_ref()?.plan()?;
        Some(report.map(|report| (report.steps, Addresses::from(report.example))))
    }

    pub(crate) fn del(&self) -> Result<()> {
        self.run(Delegate::del)
    }

    pub(crate) fn check(&self) -> Result<()> {
        self.run(Delegate::check)
    }

    pub(crate) fn gc(&self) -> Result<()> {
        self.run(Delegate::gc)
    }

    pub(crate) fn status(&self) -> Result<()> {
        self.run(Delegate::status)
    }

    fn run(&self, verb: fn(&Delegate) -> Result<()>) -> Result<()> {
        match &self.0 {
            Some(delegate) => verb(delegate),
            None => Ok(()),
        }
    }
}

/// The error as STATUS reports it: with code 50, or 51 if it has that already.
pub(crate) fn unavailable(mut error: Error) -> Error {
    if error.code != code::LIMITED {
        error.code = code::UNAVAILABLE;
    }
    error
}

#[cfg(test)]
mod tests {
    use cnikit_types::{Dns, Ip, Route};

    use super::*;

    #[test]
    fn the_type_of_ipam_names_the_source() {
        for (conf, source) in [
            ("{}", Source::Nowhere),
            (r#"{"ipam":{}}"#, Source::Nowhere),
            (r#"{"ipam":{"type":""}}"#, Source::Nowhere),
            (r#"{"ipam":{"type":"static"}}"#, Source::Ipam("static".into())),
            (r#"{"ipam":{"type":7}}"#, Source::Ipam("7".into())),
        ] {
            assert_eq!(Source::configured(&NetConf::parse(conf.as_bytes()).unwrap()), source, "{conf}");
        }
        let named = Source::Ipam("static".into());
        assert_eq!(named.clone().or_prev_result(), named);
        assert_eq!(Source::Nowhere.or_prev_result(), Source::PrevResult);
    }

    #[test]
    fn addresses_routes_and_dns_are_taken_out_of_a_result() {
        let address = "10.1.0.2/24".parse().unwrap();
        let all = Addresses {
            ips: vec![Ip::new(address)],
            routes: vec![Route::to(address)],
            dns: Dns { domain: "d".into(), ..Dns::default() },
        };
        let mut before = CniResult::from(all.clone());
        assert_eq!(take_addresses(&mut before), all);
        assert_eq!(before, CniResult::default());
    }

    #[test]
    fn a_source_without_a_plugin_has_no_addresses_and_succeeds() {
        let none = FoundDelegate::none();
        assert!(!none.needs_link() && none.plan().is_none());
        assert_eq!([none.del(), none.check(), none.gc(), none.status()], [Ok(()), Ok(()), Ok(()), Ok(())]);
    }

    #[test]
    fn status_reports_unavailable_or_limited() {
        for (code, reported) in
            [(code::SYSTEM, code::UNAVAILABLE), (code::UNAVAILABLE, code::UNAVAILABLE), (code::LIMITED, code::LIMITED)]
        {
            assert_eq!(unavailable(Error::new(code, "why")).code, reported);
        }
    }
}
