//! Settings of an interface that others made, and of the container's kernel.
//!
//! It stands behind the plugin that makes the interface. What the interface was set to before is kept in a file, and given
//! back by DEL and GC; of sysctls only where `restoreSysctls` asks for it. The keys are those of [`Keys`].
#![forbid(unsafe_code)]

mod keys;

pub use keys::Keys;

use cnikit::plan::{Kind, Plan};
use cnikit::resources::lent;
use cnikit::resources::link_settings::{self, LinkSettings, Settings};
use cnikit::resources::sysctls::{self, Sysctl, Sysctls};
use cnikit::{Answer, Attachment, ChainedPlugin, Error, Result, Said, Sources, Status};
use serde::Deserialize;

/// tuning's configuration, checked.
#[derive(Debug, Deserialize)]
#[serde(try_from = "Keys")]
pub struct Tuning {
    /// Keys as they are written, with their values, in the order in which they are set.
    sysctls: Vec<(String, String)>,
    /// Those of `args.cni`.
    overlaid: Vec<(String, String)>,
    restores_sysctls: bool,
    settings: Settings,
}

impl ChainedPlugin for Tuning {
    const KINDS: &'static [Kind] = &[sysctls::KIND, link_settings::KIND];
    const SOURCES: Sources = &[
        ("mac", &[Said::ArgsCni("mac"), Said::Runtime("mac"), Said::CniArg("MAC"), Said::Key]),
        ("mtu", &[Said::ArgsCni("mtu"), Said::Key]),
        ("promisc", &[Said::ArgsCni("promisc"), Said::Key]),
        ("allmulti", &[Said::ArgsCni("allmulti"), Said::Key]),
        ("txQLen", &[Said::ArgsCni("txQLen"), Said::Key]),
    ];
    const KNOWN_ARGS: Option<&'static [&'static str]> = Some(&["MAC"]);

    fn plan(&self, at: &Attachment, _prev: &Answer) -> Result<Plan> {
        let (ifname, kept_in) = (at.tag.ifname.clone(), lent::kept_in(&at.conf));
        let settings = overlaid(read(&self.sysctls, &ifname)?, read(&self.overlaid, &ifname)?);
        let sysctls = Sysctls { settings, kept_in: self.restores_sysctls.then(|| kept_in.clone()) };
        let link = LinkSettings { ifname, settings: self.settings.clone(), kept_in };
        Ok(Plan::default()
            .and_each((!sysctls.settings.is_empty()).then_some(sysctls))
            .and_each((link.settings != Settings::default()).then_some(link)))
    }

    fn amend(&self, at: &Attachment, answer: &mut Answer) {
        let Settings { mac, mtu, .. } = self.settings;
        for own in answer.interfaces.iter_mut().filter(|one| at.is_own(one)) {
            if let Some(mac) = mac {
                own.mac = mac.to_string();
            }
            own.mtu = mtu.or(own.mtu);
        }
    }

    fn status(&self, status: &Status) -> Result<()> {
        if self.restores_sysctls || self.settings != Settings::default() {
            lent::available(&lent::kept_in(&status.call.conf))?;
        }
        if self.sysctls.is_empty() && self.overlaid.is_empty() { Ok(()) } else { sysctls::available() }
    }
}

/// Each once: of two values for one setting, nobody could say which is meant.
fn read(sysctls: &[(String, String)], ifname: &str) -> Result<Vec<Sysctl>> {
    let mut settings: Vec<Sysctl> = Vec::new();
    for (written, value) in sysctls {
        let one = Sysctl::read(written, value, ifname);
        let one = one.map_err(|text| Error::config(text).remedy("correct this key of `sysctl`"))?;
        if let Some(other) = settings.iter().find(|other| other.key == one.key) {
            let text = format!("duplicated sysctl keys are not allowed: {:?} and {written:?}", other.written);
            return Err(Error::config(text).remedy(format!("drop one of them: both are {}", one.key)));
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
