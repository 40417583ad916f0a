//! Settings of an interface that others made, and of the container's kernel.
//!
//! It stands behind the plugin that makes the interface. What the interface was set to before is kept in a file, and given
//! back by DEL and GC; of sysctls only where `restoreSysctls` asks for it. The keys are those of [`TuningKeys`].
#![forbid(unsafe_code)]

mod keys;

pub use keys::TuningKeys;

use cnikit::plan::{Kind, Plan};
use cnikit::resources::link_settings::{self, LinkSettings, LinkValues};
use cnikit::resources::saved_settings;
use cnikit::resources::sysctls::{self, Sysctl, Sysctls};
use cnikit::{AttachmentSpec, ChainedPlugin, CniResult, Error, KeySource, Result, Sources, Status};
use serde::Deserialize;

/// tuning's configuration, checked.
#[derive(Debug, Deserialize)]
#[serde(try_from = "TuningKeys")]
pub struct TuningPlugin {
    /// Keys as they are written, with their values, in the order in which they are set.
    sysctls: Vec<(String, String)>,
    /// Those of `args.cni`.
    overlaid: Vec<(String, String)>,
    restores_sysctls: bool,
    settings: LinkValues,
}

impl ChainedPlugin for TuningPlugin {
    const KINDS: &'static [Kind] = &[sysctls::KIND, link_settings::KIND];
    const SOURCES: Sources = &[
        ("mac", &[KeySource::ArgsCni("mac"), KeySource::Runtime("mac"), KeySource::CniArg("MAC"), KeySource::Key]),
        ("mtu", &[KeySource::ArgsCni("mtu"), KeySource::Key]),
        ("promisc", &[KeySource::ArgsCni("promisc"), KeySource::Key]),
        ("allmulti", &[KeySource::ArgsCni("allmulti"), KeySource::Key]),
        ("txQLen", &[KeySource::ArgsCni("txQLen"), KeySource::Key]),
    ];
    const KNOWN_ARGS: Option<&'static [&'static str]> = Some(&["MAC"]);

    fn plan(&self, at: &AttachmentSpec, _prev: &CniResult) -> Result<Plan> {
        let ifname = at.tag.ifname.clone();
        let data_dir = saved_settings::data_dir(&at.conf);
        let settings = overlaid(read(&self.sysctls, &ifname)?, read(&self.overlaid, &ifname)?);
        let sysctls = Sysctls { settings, data_dir: self.restores_sysctls.then(|| data_dir.clone()) };
        let link = LinkSettings { ifname, settings: self.settings.clone(), data_dir };
        Ok(Plan::default()
            .and_each((!sysctls.settings.is_empty()).then_some(sysctls))
            .and_each((link.settings != LinkValues::default()).then_some(link)))
    }

    fn amend(&self, at: &AttachmentSpec, answer: &mut CniResult) {
        let LinkValues { mac, mtu, .. } = self.settings;
        for own in answer.interfaces.iter_mut().filter(|one| at.is_own(one)) {
            if let Some(mac) = mac {
                own.mac = mac.to_string();
            }
            own.mtu = mtu.or(own.mtu);
        }
    }

    fn status(&self, status: &Status) -> Result<()> {
        if self.restores_sysctls || self.settings != LinkValues::default() {
            saved_settings::available(&saved_settings::data_dir(&status.call.conf))?;
        }
        if self.sysctls.is_empty() && self.overlaid.is_empty() { Ok(()) } else { sysctls::available() }
    }
}

/// Each once: of two values for one setting, nobody could say which is meant.
fn read(sysctls: &[(String, String)], ifname: &str) -> Result<Vec<Sysctl>> {
    let mut settings: Vec<Sysctl> = Vec::new();
    for (written, value) in sysctls {
        let one = Sysctl::read(written, value, ifname);
        let one = one.map_err(|text| Error::config(text).hint("correct this key of `sysctl`"))?;
        if let Some(other) = settings.iter().find(|other| other.key == one.key) {
            let text = format!("duplicated sysctl keys are not allowed: {:?} and {written:?}", other.written);
            return Err(Error::config(text).hint(format!("drop one of them: both are {}", one.key)));
        }
        settings.push(one);
    }
    Ok(settings)
}

/// The others take the place of those for the same settings, however they are written, or come behind them.
fn overlaid(mut settings: Vec<Sysctl>, others: Vec<Sysctl>) -> Vec<Sysctl> {
    for other in others {
        match settings.iter_mut().find(|one| one.key == other.key) {
            Some(one) => *one = other,
            None => settings.push(other),
        }
    }
    settings
}
