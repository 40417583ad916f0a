//! One ADD, CHECK or STATUS with the backend that is configured or found.

use cnikit_plan::{ApplyContext, Drifts, Resource};
use cnikit_skel::{Journal, Result, log};

use crate::backend::{AbsentReport, Backend, Comparison, RuleBackend};
use crate::iptables::{Opened, Opening};

/// The backend of one ADD.
pub(crate) enum ChosenBackend {
    /// iptables, with the tables that have been read.
    Iptables(Opened),
    Nftables,
}

impl RuleBackend {
    /// Chooses the backend. `prefetched` are the tables that programs have been reading since preflight; without, `open` starts
    /// reading them.
    ///
    /// # Errors
    /// iptables is configured and cannot be used; a failure that may not happen again.
    pub(crate) fn choose(
        self,
        configured: Backend,
        prefetched: Option<Opening>,
        open: impl FnOnce() -> Result<Opening>,
    ) -> Result<ChosenBackend> {
        if configured == Backend::Nftables {
            return Ok(ChosenBackend::Nftables);
        }
        let opening = match prefetched {
            Some(opening) => opening,
            None => open()?,
        };
        if configured == Backend::Iptables {
            return opening.finish().map(ChosenBackend::Iptables);
        }
        match opening.finish_if_usable()? {
            Ok(opened) => Ok(ChosenBackend::Iptables(opened)),
            Err(unusable) => {
                log::info(format_args!("{} with nftables: {unusable}", self.kind));
                Ok(ChosenBackend::Nftables)
            }
        }
    }

    /// Compares the rules of the backend that has any of this attachment: ADD may have chosen another backend than it would choose
    /// today. nftables is asked first, since a rule of nftables names its attachment; a chain of iptables may be of another
    /// interface.
    ///
    /// # Errors
    /// Those of the comparison, and without any rules those of trying iptables.
    pub(crate) fn compare(
        self,
        configured: Backend,
        nftables: impl FnOnce() -> Result<Comparison>,
        iptables: impl FnOnce() -> Result<Comparison>,
    ) -> Result<Comparison> {
        match configured {
            Backend::Iptables => return iptables(),
            Backend::Nftables => return nftables(),
            Backend::Automatic => {}
        }
        let by_nftables = nftables();
        if by_nftables.as_ref().is_ok_and(|found| found.any) {
            return by_nftables;
        }
        let by_iptables = iptables()?;
        if by_iptables.any {
            return Ok(by_iptables);
        }
        let is_usable = self.usable()?.is_ok();
        match self.absent {
            AbsentReport::EachRule if is_usable => Ok(by_iptables),
            AbsentReport::EachRule => by_nftables,
            AbsentReport::Once => {
                if !is_usable {
                    by_nftables?;
                }
                let drift = "neither iptables nor nftables has rules of this attachment";
                Ok(Comparison { drifts: vec![drift.to_owned()], ..Comparison::default() })
            }
        }
    }

    /// Checks for STATUS that this host can have such rules. `try_nftables` tries them with nftables.
    ///
    /// # Errors
    /// This host cannot have such rules.
    pub(crate) fn available(self, configured: Backend, try_nftables: fn() -> Result<()>) -> Result<()> {
        match configured {
            Backend::Automatic => self.usable()?.or_else(|_| try_nftables()),
            Backend::Iptables => self.usable()?.map_err(|error| self.explained(error)),
            Backend::Nftables => try_nftables(),
        }
    }
}

impl Backend {
    /// The backend that makes missing rules again. Without a configured one it is that of the rules that are left: of two backends
    /// with a part each, none would ever have all. `left_in_nftables` is whether nftables has any.
    ///
    /// # Errors
    /// Those of asking nftables.
    pub(crate) fn of_restore(self, left_in_nftables: impl FnOnce() -> Result<bool>) -> Result<Backend> {
        match self {
            Backend::Automatic if left_in_nftables()? => Ok(Backend::Nftables),
            backend => Ok(backend),
        }
    }
}

/// Makes rules again, as `again` has them, if any is missing or different. Otherwise nothing is done, and the backend is not chosen
/// again.
///
/// # Errors
/// Those of CHECK and ADD.
pub(crate) fn restore<R: Resource>(
    rules: &R,
    context: &ApplyContext,
    journal: &mut Journal,
    again: impl FnOnce() -> Result<R>,
) -> Result<()> {
    let mut drifts = Drifts::default();
    rules.verify(context, &mut drifts)?;
    if drifts.texts().is_empty() {
        return Ok(());
    }
    let again = again()?;
    again.preflight(context)?;
    again.ensure(context, journal).map(drop)
}

#[cfg(test)]
mod tests {
    use cnikit_skel::Error;

    use super::*;
    use crate::backend::TRIED;

    fn found(any: bool, drift: &str) -> Comparison {
        Comparison { any, drifts: vec![drift.to_owned()], ..Comparison::default() }
    }

    fn refused() -> Result<Comparison> {
        Err(Error::new(11, "it cannot be asked"))
    }

    fn drifts(compared: Result<Comparison>) -> Vec<String> {
        compared.unwrap().drifts
    }

    #[test]
    fn nftables_that_is_configured_is_chosen_without_a_look_at_iptables() {
        let chosen = TRIED.choose(Backend::Nftables, None, || panic!("iptables is read"));
        assert!(matches!(chosen, Ok(ChosenBackend::Nftables)));
    }

    #[test]
    fn the_configured_backend_alone_is_compared() {
        let of = |configured| TRIED.compare(configured, || Ok(found(true, "nftables")), || Ok(found(true, "iptables")));
        assert_eq!(drifts(of(Backend::Nftables)), ["nftables"]);
        assert_eq!(drifts(of(Backend::Iptables)), ["iptables"]);
    }

    #[test]
    fn without_a_configured_one_the_backend_is_compared_that_has_rules_of_the_attachment_nftables_first() {
        let of = |nftables, iptables| TRIED.compare(Backend::Automatic, || nftables, || iptables);
        assert_eq!(drifts(of(Ok(found(true, "nftables")), refused())), ["nftables"]);
        assert_eq!(drifts(of(Ok(found(false, "nftables")), Ok(found(true, "iptables")))), ["iptables"]);
        assert_eq!(drifts(of(refused(), Ok(found(true, "iptables")))), ["iptables"]);
        assert!(of(Ok(found(false, "nftables")), refused()).is_err());
    }

    #[test]
    fn without_a_configured_one_rules_are_made_again_where_some_are_left() {
        assert_eq!(Backend::Automatic.of_restore(|| Ok(true)).unwrap(), Backend::Nftables);
        assert_eq!(Backend::Automatic.of_restore(|| Ok(false)).unwrap(), Backend::Automatic);
        assert_eq!(Backend::Iptables.of_restore(|| panic!("nftables is asked")).unwrap(), Backend::Iptables);
    }

    #[test]
    fn nftables_that_is_configured_is_tried_for_status() {
        TRIED.available(Backend::Nftables, || Ok(())).unwrap();
        let refused = TRIED.available(Backend::Nftables, || Err(Error::new(11, "it cannot be used"))).unwrap_err();
        assert!(refused.to_string().contains("it cannot be used"), "{refused}");
    }
}
