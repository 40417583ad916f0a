//! The shape of an IPAM plugin, which allocates addresses.

use cnikit_skel::{
    Add, AttachmentSpec, Check, Del, DryRun, DryRunReport, Error, Gc, Journal, Plugin, Result, Role, Status,
};
use cnikit_types::{CniResult, Version};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::addresses::Addresses;
use crate::source::unavailable;

/// An IPAM plugin: the type is the configuration under `ipam`, the methods allocate and release addresses.
///
/// An ADD that is refused must not leave an allocation. The journal records each allocated address, so that a roll-back never
/// releases an address that an earlier ADD of the same attachment holds. If that is the reason for the refusal, the code is
/// [`cnikit_skel::code::HOLDS_ALREADY`].
pub trait IpamPlugin: DeserializeOwned {
    /// As [`Plugin::KNOWN_ARGS`].
    const KNOWN_ARGS: Option<&'static [&'static str]> = None;
    /// As [`Plugin::EXAMPLE`].
    const EXAMPLE: &'static str = cnikit_skel::about::EXAMPLE;
    /// As [`Plugin::RELEASE`].
    const RELEASE: &'static str = cnikit_skel::about::RELEASE;
    /// As [`Plugin::ENTERS_NETNS`].
    const ENTERS_NETNS: bool = true;
    /// As [`Plugin::ROLE`].
    const ROLE: Option<Role> = None;

    /// Allocates addresses for an attachment. What is allocated gets an undo step in the journal.
    ///
    /// # Errors
    /// No address can be allocated.
    fn acquire(&self, at: &AttachmentSpec, journal: &mut Journal) -> Result<Addresses>;

    /// Releases the addresses of an attachment. It succeeds if the attachment has none.
    ///
    /// # Errors
    /// An address could not be released.
    fn release(del: &Del) -> Result<()>;

    /// Checks that the addresses of the attachment are still reserved for it.
    ///
    /// # Errors
    /// They are not (code 102), or that cannot be determined.
    fn confirm(&self, _check: &Check) -> Result<()> {
        Ok(())
    }

    /// Releases the addresses of attachments that are no longer valid.
    ///
    /// # Errors
    /// An address could not be released; all others are released.
    fn sweep(_gc: &Gc) -> Result<()> {
        Ok(())
    }

    /// Checks whether addresses could be allocated.
    ///
    /// # Errors
    /// They could not. STATUS reports the error with code 50, or 51 if it has that code.
    fn status(&self, _status: &Status) -> Result<()> {
        Ok(())
    }

    /// The steps of [`IpamPlugin::acquire`] as text, and the addresses that it would allocate if none were allocated yet. It
    /// changes nothing.
    ///
    /// # Errors
    /// The request would be refused.
    fn preview(&self, at: &AttachmentSpec) -> Result<(Vec<String>, Addresses)> {
        Ok((vec![format!("addresses for {}", at.tag)], Addresses::default()))
    }
}

/// Checks that a result of this version can contain the addresses: before 0.3.0 it has one address per family. The iterator
/// says for each address whether it is IPv4.
///
/// # Errors
/// There are two addresses of one family, and `version` is older than 0.3.0.
pub fn one_address_a_family(version: Version, are_ipv4: impl Iterator<Item = bool>) -> Result<()> {
    let mut ipv4 = 0;
    let mut ipv6 = 0;
    for is_ipv4 in are_ipv4 {
        *(if is_ipv4 { &mut ipv4 } else { &mut ipv6 }) += 1;
    }
    if version >= Version::V0_3_0 || ipv4.max(ipv6) <= 1 {
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
    const EXAMPLE: &'static str = P::EXAMPLE;
    const RELEASE: &'static str = P::RELEASE;
    const ENTERS_NETNS: bool = P::ENTERS_NETNS;
    const ROLE: Option<Role> = P::ROLE;

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

    fn plan(&self, dry_run: &DryRun) -> Result<DryRunReport> {
        let (steps, example) = self.ipam.preview(&dry_run.attachment)?;
        Ok(DryRunReport { steps, example: example.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::interface::tests::attachment;

    /// Allocates nothing.
    #[derive(Deserialize)]
    struct Empty {}

    impl IpamPlugin for Empty {
        fn acquire(&self, _at: &AttachmentSpec, _journal: &mut Journal) -> Result<Addresses> {
            Ok(Addresses::default())
        }

        fn release(_del: &Del) -> Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_dry_run_that_a_plugin_does_not_implement_names_the_attachment() {
        let at = attachment("/run/netns/c", r#"{"cniVersion": "1.1.0", "name": "n", "type": "empty"}"#, "");
        assert_eq!(Empty {}.preview(&at), Ok((vec![format!("addresses for {}", at.tag)], Addresses::default())));
    }

    #[test]
    fn an_old_result_has_one_address_of_each_family() {
        let is_accepted = |version, families: &[bool]| one_address_a_family(version, families.iter().copied()).is_ok();
        for families in [&[][..], &[true], &[false], &[true, false]] {
            assert!(is_accepted(Version::V0_2_0, families), "{families:?}");
        }
        for families in [&[true, true][..], &[false, false], &[false, true, false]] {
            assert!(!is_accepted(Version::V0_2_0, families), "{families:?}");
            assert!(is_accepted(Version::V0_3_0, families) && is_accepted(Version::NEWEST, families), "{families:?}");
        }
    }
}
