//! Changes settings of the container's interface and sysctls of its network namespace.
//!
//! A chained plugin, which comes after the plugin that makes the interface. The settings from before are stored in a file, and DEL
//! and GC restore them; sysctls only with `restoreSysctls`. The keys are those of [`TuningKeys`].
#![forbid(unsafe_code)]

mod keys;

pub use keys::TuningKeys;

use cnikit::plan::{Kind, Plan};
use cnikit::resources::link_settings::{self, LinkSettings, LinkValues};
use cnikit::resources::saved_settings;
use cnikit::resources::sysctls::{self, Sysctl, Sysctls};
use cnikit::{AttachmentSpec, ChainedPlugin, CniResult, Error, KeySource, Result, Sources, Status};
use serde::Deserialize;

/// tuning's configuration, validated.
#[derive(Debug, Deserialize)]
#[serde(try_from = "TuningKeys")]
pub struct TuningPlugin {
    /// The sysctls with their values, in the order in which they are set.
    sysctls: Vec<(String, String)>,
    /// The sysctls of `args.cni`.
    overriding: Vec<(String, String)>,
    restores_sysctls: bool,
    settings: LinkValues,
}

impl ChainedPlugin for TuningPlugin {
    const KINDS: &'static [Kind] = &[sysctls::KIND, link_settings::KIND];
    const EXAMPLE: &'static str = r#""mtu":1400,"sysctl":{"net.core.somaxconn":"500"}"#;
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
        let settings = merged(read(&self.sysctls, &ifname)?, read(&self.overriding, &ifname)?);
        let sysctls = Sysctls { settings, data_dir: self.restores_sysctls.then(|| data_dir.clone()) };
        let link = LinkSettings { ifname, settings: self.settings.clone(), data_dir };
        Ok(Plan::default()
            .and_each((!sysctls.settings.is_empty()).then_some(sysctls))
            .and_each((link.settings != LinkValues::default()).then_some(link)))
    }

    fn amend(&self, at: &AttachmentSpec, result: &mut CniResult) {
        let LinkValues { mac, mtu, .. } = self.settings;
        for own in result.interfaces.iter_mut().filter(|one| at.is_own(one)) {
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
        if self.sysctls.is_empty() && self.overriding.is_empty() { Ok(()) } else { sysctls::available() }
    }
}

/// Parses the sysctls. A sysctl with two values is refused.
fn read(sysctls: &[(String, String)], ifname: &str) -> Result<Vec<Sysctl>> {
    let mut settings: Vec<Sysctl> = Vec::new();
    for (written, value) in sysctls {
        let one = match Sysctl::read(written, value, ifname) {
            Ok(one) => one,
            Err(text) => return Err(Error::config(text).hint("correct this key of `sysctl`")),
        };
        if let Some(other) = settings.iter().find(|other| other.key == one.key) {
            let text = format!("duplicated sysctl keys are not allowed: {:?} and {written:?}", other.written);
            return Err(Error::config(text).hint(format!("remove one of them: both are {}", one.key)));
        }
        settings.push(one);
    }
    Ok(settings)
}

/// Replaces the values of sysctls that the others have too, and appends the rest.
fn merged(mut settings: Vec<Sysctl>, others: Vec<Sysctl>) -> Vec<Sysctl> {
    for other in others {
        match settings.iter_mut().find(|one| one.key == other.key) {
            Some(one) => *one = other,
            None => settings.push(other),
        }
    }
    settings
}
