//! The shape of a plugin that changes what the plugins before it in a chain have made.

use cnikit_plan::{Kind, Plan, Remains, Scene, Stale, apply, judge, release, restore, restore_all, sweep, verify};
use cnikit_skel::{Add, Attachment, Check, Del, Error, Gc, Journal, Outline, Plugin, Preview, Result, Sources, Status};
use cnikit_types::Answer;
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
/// use cnikit::resources::lent;
/// use cnikit::resources::link_settings::{self, LinkSettings, Settings};
/// use cnikit::{Answer, Attachment, Chained, ChainedPlugin, Result, keys::Mtu};
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
///     fn plan(&self, at: &Attachment, _prev: &Answer) -> Result<Plan> {
///         let settings = Settings { mtu: self.mtu.0, ..Settings::default() };
///         Ok(Plan::of(LinkSettings { ifname: at.tag.ifname.clone(), settings, kept_in: lent::kept_in(&at.conf) }))
///     }
///
///     fn amend(&self, at: &Attachment, answer: &mut Answer) {
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

    /// What is wanted: pure. `prev` is what the plugins before it answered, on CHECK the answer of the whole chain.
    fn plan(&self, at: &Attachment, prev: &Answer) -> Result<Plan>;

    /// Brings the answer of the plugins before it up to date.
    fn amend(&self, _at: &Attachment, _answer: &mut Answer) {}

    /// Says whether an ADD could be served. An error has code 50, whatever it has here, but for 51.
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

    fn add(&self, add: &Add, journal: &mut Journal) -> Result<Answer> {
        let Chained(plugin) = self;
        let missing = || {
            Error::config("Required prevResult missing")
                .remedy("this plugin changes what others made: put it behind them in the network's list")
        };
        let (at, scene, mut answer) = (&add.attachment, Scene::from(add), add.prev.clone().ok_or_else(missing)?);
        let plan = plugin.plan(at, &answer)?;
        judge(&plan, P::KINDS, &scene)?;
        answer.interfaces.extend(apply(&plan, &scene, journal)?.interfaces);
        plugin.amend(at, &mut answer);
        Ok(answer)
    }

    fn del(del: &Del) -> Result<()> {
        release(P::KINDS, &Remains::from(del)).finish()
    }

    fn check(&self, check: &Check) -> Result<()> {
        let plan = self.0.plan(&check.attachment, &check.prev)?;
        verify(&[&plan], &Scene::from(check))
    }

    fn restore(&self, asked: &Check, journal: &mut Journal) -> Result<()> {
        let plan = self.0.plan(&asked.attachment, &asked.prev)?;
        restore(&[&plan], &Scene::from(asked), journal)
    }

    fn restore_all(all: Vec<(Self, Check)>) -> Vec<Result<()>> {
        let planned = |(Chained(plugin), asked): (Self, Check)| {
            Ok((vec![plugin.plan(&asked.attachment, &asked.prev)?], Scene::from(&asked)))
        };
        restore_all(all.into_iter().map(planned).collect())
    }

    fn gc(gc: &Gc) -> Result<()> {
        sweep(P::KINDS, &Stale::from(gc)).finish()
    }

    fn status(&self, status: &Status) -> Result<()> {
        self.0.status(status).map_err(unavailable)
    }

    /// Without a prevResult, as a person may ask, nothing was made before.
    fn plan(&self, preview: &Preview) -> Result<Outline> {
        let mut example = preview.prev.clone().unwrap_or_default();
        let mut steps = self.0.plan(&preview.attachment, &example)?.lines();
        if steps.is_empty() {
            steps.push("nothing, for nothing is asked for".to_owned());
        }
        self.0.amend(&preview.attachment, &mut example);
        Ok(Outline { steps, example })
    }
}
