//! The shape of a chained plugin, which changes an interface that an earlier plugin of the chain made.

use cnikit_plan::{
    ApplyContext, GcContext, Kind, Plan, ReleaseContext, apply, preflight, release, restore, restore_all, sweep, verify,
};
use cnikit_skel::{
    Add, AttachmentSpec, Check, Del, DryRun, DryRunReport, Error, Gc, Journal, Plugin, Result, Sources, Status,
    UnknownKeys,
};
use cnikit_types::CniResult;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::source::unavailable;

/// A chained plugin: the type is its configuration, the methods are its plan.
///
/// The plan and its kinds are required. ADD returns the result of the plugins before it, amended where the plan changes something;
/// CHECK, DEL, GC, STATUS and the dry run are derived from them. DEL and GC use the kinds alone, because the configuration and
/// prevResult may be missing by then.
///
/// A complete plugin that sets the MTU of the container's interface, restores it on DEL, and amends the result:
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
///     fn amend(&self, at: &AttachmentSpec, result: &mut CniResult) {
///         for own in result.interfaces.iter_mut().filter(|one| at.is_own(one)) {
///             own.mtu = self.mtu.0.or(own.mtu);
///         }
///     }
/// }
///
/// fn main() -> std::process::ExitCode {
///     cnikit::main::<Chained<Narrow>>()
/// }
/// ```
pub trait ChainedPlugin: DeserializeOwned {
    /// Every kind in the plan that outlives the link, in the reverse order of their release.
    const KINDS: &'static [Kind];
    /// As [`Plugin::SOURCES`].
    const SOURCES: Sources = &[];
    /// As [`Plugin::KNOWN_ARGS`].
    const KNOWN_ARGS: Option<&'static [&'static str]> = None;
    /// As [`Plugin::EXAMPLE`].
    const EXAMPLE: &'static str = cnikit_skel::about::CHAINED_EXAMPLE;
    /// As [`Plugin::RELEASE`].
    const RELEASE: &'static str = cnikit_skel::about::RELEASE;
    /// As [`Plugin::UNKNOWN_KEYS`].
    const UNKNOWN_KEYS: UnknownKeys = UnknownKeys::Ignored;

    /// The plan of this attachment; computed without I/O. `prev` is the result of the plugins before it, on CHECK the result of
    /// the whole chain.
    ///
    /// # Errors
    /// The configuration cannot be applied to this attachment, for example because `prev` lacks an interface or an address that
    /// it needs.
    fn plan(&self, at: &AttachmentSpec, prev: &CniResult) -> Result<Plan>;

    /// Changes the result of the plugins before it to what the plan makes.
    fn amend(&self, _at: &AttachmentSpec, _result: &mut CniResult) {}

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
    const EXAMPLE: &'static str = P::EXAMPLE;
    const RELEASE: &'static str = P::RELEASE;
    const UNKNOWN_KEYS: UnknownKeys = P::UNKNOWN_KEYS;

    fn add(&self, add: &Add, journal: &mut Journal) -> Result<CniResult> {
        let Chained(plugin) = self;
        let at = &add.attachment;
        let context = ApplyContext::from(add);
        let Some(mut result) = add.prev.clone() else {
            return Err(Error::config("Required prevResult missing")
                .hint("this plugin changes what other plugins made: put it after them in the network's list"));
        };
        let plan = plugin.plan(at, &result)?;
        preflight(&plan, P::KINDS, &context)?;
        result.interfaces.extend(apply(&plan, &context, journal)?.interfaces);
        plugin.amend(at, &mut result);
        Ok(result)
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
        let mut planned = Vec::with_capacity(all.len());
        for (Chained(plugin), asked) in all {
            let plan = plugin.plan(&asked.attachment, &asked.prev);
            planned.push(plan.map(|plan| (vec![plan], ApplyContext::from(&asked))));
        }
        restore_all(planned)
    }

    fn gc(gc: &Gc) -> Result<()> {
        sweep(P::KINDS, &GcContext::from(gc)).finish()
    }

    fn status(&self, status: &Status) -> Result<()> {
        self.0.status(status).map_err(unavailable)
    }

    /// Without a prevResult, as when a person calls the plugin, the result before it is empty.
    fn plan(&self, dry_run: &DryRun) -> Result<DryRunReport> {
        let mut example = dry_run.prev.clone().unwrap_or_default();
        let mut steps = self.0.plan(&dry_run.attachment, &example)?.lines();
        if steps.is_empty() {
            steps.push("no change: nothing is configured".to_owned());
        }
        self.0.amend(&dry_run.attachment, &mut example);
        Ok(DryRunReport { steps, example })
    }
}
