//! The shape of a plugin that gives addresses.

use cnikit_skel::{Add, AttachmentSpec, Check, Del, DryRun, DryRunReport, Error, Gc, Journal, Plugin, Result, Status};
use cnikit_types::{CniResult, Version};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::addresses::Addresses;
use crate::source::unavailable;

/// A plugin that gives addresses: the configuration under `ipam`, and how it takes and gives back.
///
/// An ADD that is refused must have kept nothing: what was taken is noted in the journal by name, so that a roll-back never
/// frees what an earlier ADD of the same attachment holds. Where that is why it is refused, the code is
/// [`cnikit_skel::code::HOLDS_ALREADY`].
pub trait IpamPlugin: DeserializeOwned {
    /// As [`Plugin::KNOWN_ARGS`].
    const KNOWN_ARGS: Option<&'static [&'static str]> = None;
    /// As [`Plugin::ENTERS_NETNS`].
    const ENTERS_NETNS: bool = true;

    /// Takes addresses for an attachment.
    fn acquire(&self, at: &AttachmentSpec, journal: &mut Journal) -> Result<Addresses>;

    /// Gives back what the attachment holds. That it holds nothing is success.
    fn release(del: &Del) -> Result<()>;

    /// Says whether the attachment still holds what it was given.
    fn confirm(&self, _check: &Check) -> Result<()> {
        Ok(())
    }

    /// Gives back what attachments hold that are no longer valid.
    fn sweep(_gc: &Gc) -> Result<()> {
        Ok(())
    }

    /// Says whether addresses could be given. An error has code 50, whatever it has here, but for 51.
    fn status(&self, _status: &Status) -> Result<()> {
        Ok(())
    }

    /// What [`IpamPlugin::acquire`] would do, in words, and what it would give were nothing given yet. Touches nothing.
    fn preview(&self, at: &AttachmentSpec) -> Result<(Vec<String>, Addresses)> {
        Ok((vec![format!("addresses for {}", at.tag)], Addresses::default()))
    }
}

/// Refuses what a result of this version cannot say: before 0.3.0 it has one address a family. Of each address: is it IPv4?
pub fn one_address_a_family(version: Version, are_ipv4: impl Iterator<Item = bool>) -> Result<()> {
    let (ipv4, ipv6): (Vec<bool>, Vec<bool>) = are_ipv4.partition(|is_ipv4| *is_ipv4);
    if version >= Version::V0_3_0 || ipv4.len().max(ipv6.len()) <= 1 {
        return Ok(());
    }
    Err(Error::config(format!("CNI version {version} does not support more than 1 address per family"))
        .hint("raise `cniVersion` to 0.3.0 or later"))
}

/// Makes an [`IpamPlugin`] a [`Plugin`].
#[derive(Debug, Deserialize)]
pub struct Ipam<P> {
    ipam: P,
}

impl<P: IpamPlugin> Plugin for Ipam<P> {
    const KNOWN_ARGS: Option<&'static [&'static str]> = P::KNOWN_ARGS;
    const ENTERS_NETNS: bool = P::ENTERS_NETNS;

    fn add(&self, add: &Add, journal: &mut Journal) -> Result<CniResult> {
        self.ipam.acquire(&add.attachment, journal).map(CniResult::from)
    }

    fn del(del: &Del) -> Result<()> {
        P::release(del)
    }

    fn check(&self, check: &Check) -> Result<()> {
        self.ipam.confirm(check)
    }

    fn gc(gc: &Gc) -> Result<()> {
        P::sweep(gc)
    }

    fn status(&self, status: &Status) -> Result<()> {
        self.ipam.status(status).map_err(unavailable)
    }

    fn plan(&self, preview: &DryRun) -> Result<DryRunReport> {
        let (steps, example) = self.ipam.preview(&preview.attachment)?;
        Ok(DryRunReport { steps, example: example.into() })
    }
}
