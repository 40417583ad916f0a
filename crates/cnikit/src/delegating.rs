//! The shape of a delegating plugin, which makes the configuration of another plugin and runs that.

use std::path::PathBuf;

use cnikit_plan::ReleaseContext;
use cnikit_skel::{
    Add, Check, Del, Delegate, DryRun, DryRunReport, Error, Errors, Gc, Journal, Plugin, Result, Sources, Status,
    UnknownKeys, code, holds_already, log,
};
use cnikit_types::{CniResult, NetConf};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::delegate_store::{DelegateStore, Saved};
use crate::source::unavailable;

/// A plugin that makes the configuration of another one, the delegate, and runs the delegate for every verb.
///
/// The configuration that ADD made is stored until the delegate's DEL has succeeded, because it may be impossible to make it again
/// by then. DEL, CHECK and GC use the stored one. The delegate's results and errors are returned unchanged.
///
/// A complete plugin that attaches every container of a network to one bridge:
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
///     fn data_dir(_: &NetConf) -> std::path::PathBuf {
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
    /// As [`Plugin::EXAMPLE`].
    const EXAMPLE: &'static str = cnikit_skel::about::EXAMPLE;
    /// As [`Plugin::RELEASE`].
    const RELEASE: &'static str = cnikit_skel::about::RELEASE;
    /// As [`Plugin::UNKNOWN_KEYS`].
    const UNKNOWN_KEYS: UnknownKeys = UnknownKeys::Ignored;

    /// The directory of the stored configurations. The rest of `conf` may be invalid or missing.
    fn data_dir(conf: &NetConf) -> PathBuf;

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
    const EXAMPLE: &'static str = P::EXAMPLE;
    const RELEASE: &'static str = P::RELEASE;
    const UNKNOWN_KEYS: UnknownKeys = P::UNKNOWN_KEYS;

    fn add(&self, add: &Add, journal: &mut Journal) -> Result<CniResult> {
        let tag = &add.attachment.tag;
        let conf = self.0.config_for_delegate(&add.call.conf)?;
        let delegate = add.call.delegate_with(&conf)?;
        let store = store::<P>(&add.call.conf, &tag.network);
        let before = store.find(tag)?;
        let mut undo = None;
        if !before.iter().any(|saved| saved.names_attachment() && saved.conf == conf) {
            undo = Some(journal.undo_if_clean(&store.save(tag, &conf)?, Saved::remove));
        }
        if before.is_empty() {
            let attached = delegate.attach(journal);
            // A power cut may have lost the stored configuration, but not all state of the delegate. Then DEL needs the new one.
            if attached.as_ref().is_err_and(holds_already)
                && let Some(undo) = undo
            {
                journal.strike(undo);
            }
            return attached;
        }
        // The attachment may be running. It is not changed unless the delegate finds that it is not. Until then DEL has both
        // configurations.
        let result = delegate.attach_again(journal)?;
        store.remove_others(tag, &conf)?;
        Ok(result)
    }

    fn del(del: &Del) -> Result<()> {
        let found = store::<P>(&del.call.conf, &del.tag.network).find_readable(&del.tag)?;
        if found.is_empty() {
            log::info(format_args!("no configuration of {} is stored: there is nothing to delete", del.tag));
        }
        let mut errors = Errors::default();
        for saved in found {
            errors.note(delete(del, &saved));
        }
        errors.finish()
    }

    fn check(&self, check: &Check) -> Result<()> {
        attached::<P>(check)?.check()
    }

    fn restore(&self, asked: &Check, _journal: &mut Journal) -> Result<()> {
        attached::<P>(asked)?.restore()
    }

    /// Files may be lost, and those of upstream do not name the interface. So the delegate gets the GC of the network too.
    fn gc(gc: &Gc) -> Result<()> {
        let all = store::<P>(&gc.call.conf, &gc.network).all()?;
        let mut delegates: Vec<NetConf> = made_now::<P>(&gc.call.conf).into_iter().collect();
        let mut errors = Errors::default();
        for saved in all {
            errors.note(saved.and_then(|saved| sweep(gc, &saved, &mut delegates)));
        }
        for conf in delegates {
            errors.note(pass_on_gc(gc, conf));
        }
        errors.finish()
    }

    fn status(&self, status: &Status) -> Result<()> {
        let conf = &status.call.conf;
        let of_delegate = self.0.config_for_delegate(conf).map_err(unavailable)?;
        store::<P>(conf, conf.name().unwrap_or_default()).probe().map_err(unavailable)?;
        status.call.delegate_with(&of_delegate).map_err(unavailable)?.status()
    }

    fn plan(&self, dry_run: &DryRun) -> Result<DryRunReport> {
        let conf = self.0.config_for_delegate(&dry_run.call.conf)?;
        let delegate = dry_run.call.delegate_with(&conf)?;
        let mut steps = vec![format!("hand to {delegate}: {}", String::from_utf8_lossy(&conf.to_vec()))];
        let planned = match delegate.plan() {
            Some(planned) => planned?,
            None => DryRunReport::default(),
        };
        for step in &planned.steps {
            steps.push(format!("{delegate}: {step}"));
        }
        Ok(DryRunReport { steps, example: planned.example })
    }
}

/// The delegate that attached the container, with the configuration that it was given.
fn attached<P: DelegatingPlugin>(check: &Check) -> Result<Delegate> {
    let tag = &check.attachment.tag;
    if let Some(saved) = store::<P>(&check.call.conf, &tag.network).find(tag)?.first() {
        return check.call.delegate_with(&saved.conf);
    }
    let missing = format!("the configuration that ADD stored of {tag} is gone, and DEL can delete nothing without it");
    Err(Error::new(code::DRIFT, missing).hint("DEL, then ADD again; remove by hand what the delegate made"))
}

fn store<P: DelegatingPlugin>(conf: &NetConf, network: &str) -> DelegateStore {
    DelegateStore::new(P::data_dir(conf), network)
}

/// Has the delegate delete an attachment, and removes its configuration.
fn delete(del: &Del, saved: &Saved) -> Result<()> {
    let stays = !saved.names_attachment() && may_be_anothers(del)?;
    del.call.delegate_with(&saved.conf)?.del()?;
    if stays {
        log::info(format_args!("{saved} stays: {} is gone and another interface of the container exists", del.tag));
        return Ok(());
    }
    saved.remove()
}

/// Whether a configuration that upstream stored may belong to another interface of the container: upstream does not name the
/// interface, this one is gone, and another one is up. The DEL of that one will need the configuration.
fn may_be_anothers(del: &Del) -> Result<bool> {
    let Some(container) = ReleaseContext::from(del).container()? else { return Ok(false) };
    let links = container.links()?;
    Ok(links.iter().all(|link| link.name != del.tag.ifname) && links.iter().any(|link| link.up && link.name != "lo"))
}

/// The delegate's configuration, if it can be made. Otherwise GC goes on with the stored ones.
fn made_now<P: DelegatingPlugin>(conf: &NetConf) -> Option<NetConf> {
    let made = conf.read::<P>().map_err(Error::from).and_then(|plugin| plugin.config_for_delegate(conf));
    match made {
        Ok(made) => Some(made),
        Err(why) => {
            log::info(format_args!("the delegate is run only for stored attachments: {why}"));
            None
        }
    }
}

/// Deletes an attachment unless it is valid. If the file does not name the interface, the attachment can only be left to the
/// delegate's GC, which may do nothing; so the file stays.
fn sweep(gc: &Gc, saved: &Saved, delegates: &mut Vec<NetConf>) -> Result<()> {
    if saved.is_valid(&gc.valid) {
        return Ok(());
    }
    if let Some(tag) = saved.tag() {
        gc.call.delegate_of(&tag, &saved.conf)?.del()?;
        return saved.remove();
    }
    log::warn(format_args!("{saved} stays: it does not name the interface; DEL the attachment, or remove the file"));
    if !delegates.contains(&saved.conf) {
        delegates.push(saved.conf.clone());
    }
    Ok(())
}

/// Runs the delegate for the GC of the network.
fn pass_on_gc(gc: &Gc, mut conf: NetConf) -> Result<()> {
    let valid = gc.valid.iter().map(|(container, ifname)| json!({"containerID": container, "ifname": ifname}));
    conf.set("cni.dev/valid-attachments", valid.collect());
    gc.call.delegate_with(&conf)?.gc()
}
