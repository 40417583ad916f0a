//! The shape of a plugin that has another one do the work.

use std::path::PathBuf;

use cnikit_plan::ReleaseContext;
use cnikit_skel::{
    Add, Check, Del, Delegate, DryRun, DryRunReport, Error, Errors, Gc, Journal, Plugin, Result, Sources, Status, code,
    holds_already, log,
};
use cnikit_types::{CniResult, NetConf};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::delegate_store::{DelegateStore, Saved};
use crate::source::unavailable;

/// A plugin that makes the configuration of another one, the delegate, and hands it every verb.
///
/// What ADD handed over is kept until the delegate's DEL has succeeded, for by then it could not be made again: DEL, CHECK
/// and GC work from it. The delegate's answers and errors are passed on as they are.
///
/// The whole of a plugin that puts every container of a network on one bridge, whatever else the network says:
///
/// ```rust,no_run
/// use cnikit::types::NetConf;
/// use cnikit::{Delegating, DelegatingPlugin, Result};
///
/// /// The one key of its own.
/// #[derive(serde::Deserialize)]
/// struct Site {
///     site: String,
/// }
///
/// impl DelegatingPlugin for Site {
///     fn kept_in(_: &NetConf) -> std::path::PathBuf {
///         "/var/lib/cni/site".into()
///     }
///
///     fn config_for_delegate(&self, conf: &NetConf) -> Result<NetConf> {
///         let mut delegate = conf.clone();
///         delegate.set("type", "bridge".into());
///         delegate.set("bridge", format!("br-{}", self.site).into());
///         Ok(delegate)
///     }
/// }
///
/// fn main() -> std::process::ExitCode {
///     cnikit::main::<Delegating<Site>>()
/// }
/// ```
pub trait DelegatingPlugin: DeserializeOwned {
    /// As [`Plugin::SOURCES`].
    const SOURCES: Sources = &[];
    /// As [`Plugin::KNOWN_ARGS`].
    const KNOWN_ARGS: Option<&'static [&'static str]> = None;

    /// The directory in which configurations wait for their DEL, whatever else of this one is wrong or gone.
    fn kept_in(conf: &NetConf) -> PathBuf;

    /// The delegate's configuration, with its `type` and the network's `name`, built from this plugin's configuration. It
    /// changes nothing.
    ///
    /// # Errors
    /// A file or a key that it is built from is missing or invalid.
    fn config_for_delegate(&self, conf: &NetConf) -> Result<NetConf>;
}

/// Makes a [`DelegatingPlugin`] a [`Plugin`].
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct Delegating<P>(P);

impl<P: DelegatingPlugin> Plugin for Delegating<P> {
    const SOURCES: Sources = P::SOURCES;
    const KNOWN_ARGS: Option<&'static [&'static str]> = P::KNOWN_ARGS;

    fn add(&self, add: &Add, journal: &mut Journal) -> Result<CniResult> {
        let tag = &add.attachment.tag;
        let conf = self.0.config_for_delegate(&add.call.conf)?;
        let delegate = add.call.delegate_with(&conf)?;
        let kept = kept::<P>(&add.call.conf, &tag.network);
        let before = kept.find(tag)?;
        let known = before.iter().any(|saved| saved.says_whose() && saved.conf == conf);
        let saved = (!known).then(|| kept.save(tag, &conf)).transpose()?;
        let undo = saved.map(|saved| journal.undo_if_clean(&saved, Saved::remove));
        if before.is_empty() {
            let attached = delegate.attach(journal);
            // What was kept before a power cut may be lost, and not all that the delegate had. DEL needs this to reach it.
            if attached.as_ref().is_err_and(holds_already) {
                undo.into_iter().for_each(|undo| journal.strike(undo));
            }
            return attached;
        }
        // It may be running. Nothing of it is touched, unless the delegate finds that it is not. Until then DEL has both.
        let answer = delegate.attach_again(journal)?;
        kept.remove(tag, &conf)?;
        Ok(answer)
    }

    fn del(del: &Del) -> Result<()> {
        let kept = kept::<P>(&del.call.conf, &del.tag.network);
        let found = kept.find(&del.tag)?;
        if found.is_empty() {
            log::info(format_args!("no configuration of {} is kept: nothing is left to delete", del.tag));
        }
        let delete = |saved: Saved| {
            let stays = !saved.says_whose() && may_be_anothers(del)?;
            del.call.delegate_with(&saved.conf)?.del()?;
            if stays {
                log::info(format_args!("{saved} stays, for {} is gone and another interface runs", del.tag));
                return Ok(());
            }
            saved.remove()
        };
        found.into_iter().map(delete).collect::<Errors>().finish()
    }

    fn check(&self, check: &Check) -> Result<()> {
        attached::<P>(check)?.check()
    }

    fn restore(&self, asked: &Check, _journal: &mut Journal) -> Result<()> {
        attached::<P>(asked)?.restore()
    }

    /// Files may be lost, and one of the reference's does not say enough: so the delegate looks for itself, too.
    fn gc(gc: &Gc) -> Result<()> {
        let kept = kept::<P>(&gc.call.conf, &gc.network).all()?;
        let mut delegates: Vec<NetConf> = made_now::<P>(&gc.call.conf).into_iter().collect();
        let mut errors = Errors::default();
        for saved in kept {
            errors.note(saved.and_then(|saved| sweep(gc, &saved, &mut delegates)));
        }
        for conf in delegates {
            errors.note(look_for_itself(gc, conf));
        }
        errors.finish()
    }

    fn status(&self, status: &Status) -> Result<()> {
        let conf = &status.call.conf;
        let of_delegate = self.0.config_for_delegate(conf).map_err(unavailable)?;
        kept::<P>(conf, conf.name().unwrap_or_default()).probe().map_err(unavailable)?;
        status.call.delegate_with(&of_delegate).map_err(unavailable)?.status()
    }

    fn plan(&self, preview: &DryRun) -> Result<DryRunReport> {
        let conf = self.0.config_for_delegate(&preview.call.conf)?;
        let delegate = preview.call.delegate_with(&conf)?;
        let mut steps = vec![format!("hand to {delegate}: {}", String::from_utf8_lossy(&conf.to_vec()))];
        let planned = delegate.plan().transpose()?.unwrap_or_default();
        steps.extend(planned.steps.iter().map(|step| format!("{delegate}: {step}")));
        Ok(DryRunReport { steps, example: planned.example })
    }
}

/// The delegate that attached the container, with the configuration that it was handed.
fn attached<P: DelegatingPlugin>(check: &Check) -> Result<Delegate> {
    let tag = &check.attachment.tag;
    let saved = kept::<P>(&check.call.conf, &tag.network).find(tag)?.into_iter().next().ok_or_else(|| {
        let missing =
            format!("the configuration that ADD kept of {tag} is gone, and DEL can delete nothing without it");
        Error::new(code::DRIFT, missing)
            .hint("DEL, then ADD again; what the delegate made may have to be removed by hand")
    })?;
    check.call.delegate_with(&saved.conf)
}

fn kept<P: DelegatingPlugin>(conf: &NetConf, network: &str) -> DelegateStore {
    DelegateStore::new(P::kept_in(conf), network)
}

/// What the reference kept does not say the interface. Where this one is gone and another one runs, it may be that one's, whose
/// DEL will need it.
fn may_be_anothers(del: &Del) -> Result<bool> {
    let Some(container) = ReleaseContext::from(del).container()? else { return Ok(false) };
    let links = container.links()?;
    Ok(links.iter().all(|link| link.name != del.tag.ifname) && links.iter().any(|link| link.up && link.name != "lo"))
}

/// The delegate's configuration, where there is enough to make it: GC goes on without.
fn made_now<P: DelegatingPlugin>(conf: &NetConf) -> Option<NetConf> {
    let made = conf.read::<P>().map_err(Error::from).and_then(|plugin| plugin.config_for_delegate(conf));
    made.inspect_err(|why| log::info(format_args!("the delegate is asked only for what is kept: {why}"))).ok()
}

/// Deletes an attachment unless it is valid. Where nobody knows which interface it was, it can only be left to the delegate,
/// which may do nothing on GC: so the file stays.
fn sweep(gc: &Gc, saved: &Saved, delegates: &mut Vec<NetConf>) -> Result<()> {
    if saved.is_valid(&gc.valid) {
        return Ok(());
    }
    if let Some(tag) = saved.tag() {
        gc.call.delegate_of(&tag, &saved.conf)?.del()?;
        return saved.remove();
    }
    log::warn(format_args!("{saved} stays, for it does not say the interface: DEL the attachment, or remove the file"));
    if !delegates.contains(&saved.conf) {
        delegates.push(saved.conf.clone());
    }
    Ok(())
}

/// Hands a delegate the GC of the network.
fn look_for_itself(gc: &Gc, mut conf: NetConf) -> Result<()> {
    let valid = gc.valid.iter().map(|(container, ifname)| json!({"containerID": container, "ifname": ifname}));
    conf.set("cni.dev/valid-attachments", valid.collect());
    gc.call.delegate_with(&conf)?.gc()
}
