//! The shape of a plugin that changes what the plugins before it in a chain have made.

use cnikit_plan::{
    ApplyContext, GcContext, Kind, Plan, ReleaseContext, apply, preflight, release, restore, restore_all, sweep, verify,
};
use cnikit_skel::{
    Add, AttachmentSpec, Check, Del, DryRun, DryRunReport, Error, Gc, Journal, Plugin, Result, Sources, Status,
};
use cnikit_types::CniResult;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::source::unavailable;

/// A plugin that stands behind others in a chain: its configuration, and what that wants of what they made.
///
/// Required are the plan and its kinds. ADD passes on the result of the plugins before it, amended where the plan changes
/// what it says; CHECK, DEL, GC, STATUS and the dry run follow. DEL and GC walk the kinds: by then neither the configuration
/// nor prevResult may be there.
///
/// The whole of a plugin that sets the MTU of the container's interface, gives it back, and says so in the result:
///
/// ```rust,no_run
/// use cnikit::plan::{Kind, Plan};
/// use cnikit::resources::saved_settings;
/// use cnikit::resources::link_settings::{self, LinkSettings, LinkValues};
/// use cnikit::{CniResult, AttachmentSpec, Chained, ChainedPlugin, Result, keys::Mtu};
///
/// /// The keys, each with its type and its default.
/// #[derive(serde::Deserialize)]
/// struct Narrow {
///     #[serde(default)]
///     mtu: Mtu,
/// }
///
/// impl ChainedPlugin for Narrow {
///     const KINDS: &'static [Kind] = &[link_settings::KIND];
///
///     fn plan(&self, at: &AttachmentSpec, _prev: &CniResult) -> Result<Plan> {
///         let settings = LinkValues { mtu: self.mtu.0, ..LinkValues::default() };
///         Ok(Plan::of(LinkSettings { ifname: at.tag.ifname.clone(), settings, data_dir: saved_settings::data_dir(&at.conf) }))
///     }
///
///     fn amend(&self, at: &AttachmentSpec, answer: &mut CniResult) {
///         let own = answer.interfaces.iter_mut().filter(|one| at.is_own(one));
///         own.for_each(|one| one.mtu = self.mtu.0.or(one.mtu));
///     }
/// }
///
/// fn main() -> std::process::ExitCode {
///     cnikit::main::<Chained<Narrow>>()
/// }
/// ```
pub trait ChainedPlugin: DeserializeOwned {
    /// Every kind in the plan that outlives the link, the one that is released last first.
    const KINDS: &'static [Kind];
    /// As [`Plugin::SOURCES`].
    const SOURCES: Sources = &[];
    /// As [`Plugin::KNOWN_ARGS`].
    const KNOWN_ARGS: Option<&'static [&'static str]> = None;

    /// The plan of this attachment; computed without I/O. `prev` is the result of the plugins before it, on CHECK the result of
    /// the whole chain.
    ///
    /// # Errors
    /// The configuration cannot be applied to this attachment, for example because `prev` lacks an interface or an address that
    /// it needs.
    fn plan(&self, at: &AttachmentSpec, prev: &CniResult) -> Result<Plan>;

    /// Brings the answer of the plugins before it up to date.
    fn amend(&self, _at: &AttachmentSpec, _answer: &mut CniResult) {}

    /// Checks whether an ADD could be served.
    ///
    /// # Errors
    /// It could not. The error is reported with code 50 whatever its code is, except 51.
    fn status(&self, _status: &Status) -> Result<()> {
        Ok(())
    }
}

/// Makes a [`ChainedPlugin`] a [`Plugin`].
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct Chained<P>(P);

impl<P: ChainedPlugin> Plugin for Chained<P> {
    const SOURCES: Sources = P::SOURCES;
    const KNOWN_ARGS: Option<&'static [&'static str]> = P::KNOWN_ARGS;

    fn add(&self, add: &Add, journal: &mut Journal) -> Result<CniResult> {
        let Chained(plugin) = self;
        let missing = || {
            Error::config("Required prevResult missing")
                .hint("this plugin changes what others made: put it behind them in the network's list")
        };
        let at = &add.attachment;
        let context = ApplyContext::from(add);
        let mut answer = add.prev.clone().ok_or_else(missing)?;
        let plan = plugin.plan(at, &answer)?;
        preflight(&plan, P::KINDS, &context)?;
        answer.interfaces.extend(apply(&plan, &context, journal)?.interfaces);
        plugin.amend(at, &mut answer);
        Ok(answer)
    }

    fn del(del: &Del) -> Result<()> {
        release(P::KINDS, &ReleaseContext::from(del)).finish()
    }

    fn check(&self, check: &Check) -> Result<()> {
        let plan = self.0.plan(&check.attachment, &check.prev)?;
        verify(&[&plan], &ApplyContext::from(check))
    }

    fn restore(&self, asked: &Check, journal: &mut Journal) -> Result<()> {
        let plan = self.0.plan(&asked.attachment, &asked.prev)?;
        restore(&[&plan], &ApplyContext::from(asked), journal)
    }

    fn restore_all(all: Vec<(Self, Check)>) -> Vec<Result<()>> {
        let planned = |(Chained(plugin), asked): (Self, Check)| {
            Ok((vec![plugin.plan(&asked.attachment, &asked.prev)?], ApplyContext::from(&asked)))
        };
        restore_all(all.into_iter().map(planned).collect())
    }

    fn gc(gc: &Gc) -> Result<()> {
        sweep(P::KINDS, &GcContext::from(gc)).finish()
    }

    fn status(&self, status: &Status) -> Result<()> {
        self.0.status(status).map_err(unavailable)
    }

    /// Without a prevResult, as a person may ask, nothing was made before.
    fn plan(&self, preview: &DryRun) -> Result<DryRunReport> {
        let mut example = preview.prev.clone().unwrap_or_default();
        let mut steps = self.0.plan(&preview.attachment, &example)?.lines();
        if steps.is_empty() {
            steps.push("nothing, for nothing is asked for".to_owned());
        }
        self.0.amend(&preview.attachment, &mut example);
        Ok(DryRunReport { steps, example })
    }
}
