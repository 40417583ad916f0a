//! The attachment that saved settings belong to, and the namespace that they came from.

use cnikit_netns::{Netns, boot_id};
use cnikit_plan::{ApplyContext, GcContext, may_be_there};
use cnikit_skel::{AttachmentId, NetnsLookup, Result};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

/// The attachment and its namespace.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pub(crate) network: String,
    pub(crate) container: String,
    pub(crate) ifname: String,
    /// The boot id. Boot id and cookie together identify the namespace.
    pub(super) boot: String,
    /// The namespace's cookie; None on kernels before 5.14.
    pub(super) cookie: Option<u64>,
    /// `CNI_NETNS` of the ADD.
    pub(super) netns: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) sysctls: Vec<(String, String)>,
}

impl Owner {
    pub(crate) fn of(context: &ApplyContext) -> Result<Owner> {
        let AttachmentId { network, container, ifname } = context.tag.clone();
        let boot = boot_id()?;
        let cookie = cookie(&context.netns)?;
        let netns = context.sandbox.clone();
        Ok(Owner { network, container, ifname, boot, cookie, netns, sysctls: Vec::new() })
    }

    pub(crate) fn tag(&self) -> AttachmentId {
        AttachmentId { network: self.network.clone(), container: self.container.clone(), ifname: self.ifname.clone() }
    }

    pub(crate) fn is(&self, tag: &AttachmentId) -> bool {
        (&self.network, &self.container, &self.ifname) == (&tag.network, &tag.container, &tag.ifname)
    }

    /// Whether both are the same attachment in the same namespace. Without cookies the paths are compared.
    pub(crate) fn is_same(&self, other: &Owner) -> bool {
        let of = |one: &Owner| one.cookie.ok_or_else(|| one.netns.clone());
        (&self.boot, of(self)) == (&other.boot, of(other))
    }

    /// Whether the machine has not been booted since.
    pub(crate) fn is_of_this_boot(&self) -> Result<bool> {
        Ok(boot_id()? == self.boot)
    }

    /// The namespace if it still exists, at the path that DEL was given or at the path of the ADD. It is an error if that cannot be
    /// determined, because a later DEL may still restore the values.
    pub(crate) fn namespace(&self, given: &NetnsLookup) -> Result<Option<Netns>> {
        if !self.is_of_this_boot()? {
            return Ok(None);
        }
        self.among(given, &self.found())
    }

    /// Whether there is a namespace at the path of the ADD, but no cookie to tell whether it is the same one.
    fn is_doubtful(&self) -> Result<bool> {
        if self.cookie.is_some() || !self.is_of_this_boot()? {
            return Ok(false);
        }
        Ok(matches!(self.found(), NetnsLookup::Present(_) | NetnsLookup::Own(_)))
    }

    /// Whether GC removes what is stored for the attachment: it is of this network and not valid any more, and its namespace can be
    /// told from another one. If it cannot, DEL is given the namespace.
    pub(crate) fn is_swept(&self, context: &GcContext) -> Result<bool> {
        let is_stale = self.network == context.network && !context.valid.has(&self.container, &self.ifname);
        Ok(is_stale && !self.is_doubtful()?)
    }

    fn found(&self) -> NetnsLookup {
        cnikit_netns::find(&self.netns)
    }

    fn among(&self, given: &NetnsLookup, recorded: &NetnsLookup) -> Result<Option<Netns>> {
        for found in [given, recorded] {
            if let NetnsLookup::Present(netns) | NetnsLookup::Own(netns) = found
                && self.cookie.is_some()
                && cookie(netns)? == self.cookie
            {
                return Ok(Some(netns.clone()));
            }
        }
        match (self.cookie, given, recorded) {
            // Without a cookie only the path that the runtime gave DEL counts. The path of the ADD may lead to another namespace by
            // now, even to the host's own if the kernel gave the PID to another process.
            (None, NetnsLookup::Present(netns), _) => Ok(Some(netns.clone())),
            (_, NetnsLookup::Unknown { path, why }, _) | (_, _, NetnsLookup::Unknown { path, why }) => {
                Err(may_be_there(path, why))
            }
            _ => Ok(None),
        }
    }
}

/// The namespace's cookie; None if the kernel has no cookies.
fn cookie(netns: &Netns) -> Result<Option<u64>> {
    match netns.cookie() {
        Err(error) if error.errno() == Some(Errno::ENOPROTOOPT as i32) => Ok(None),
        cookie => Ok(Some(cookie?)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(cookie: Option<u64>) -> Owner {
        let [network, container, ifname, netns] = ["n", "c", "eth0", ""].map(str::to_owned);
        Owner { network, container, ifname, boot: boot_id().unwrap(), cookie, netns, sysctls: Vec::new() }
    }

    #[test]
    fn a_namespace_that_cannot_be_opened_is_not_treated_as_gone() {
        let unknown = NetnsLookup::Unknown { path: "/run/netns/x".into(), why: "Too many open files".into() };
        for cookie in [Some(1), None] {
            for (given, recorded) in
                [(&unknown, &NetnsLookup::Gone), (&NetnsLookup::Empty, &unknown), (&NetnsLookup::Gone, &unknown)]
            {
                let error = owner(cookie).among(given, recorded).unwrap_err();
                assert!(error.msg.contains("may exist, but cannot be opened: Too many open files"), "{error}");
            }
            assert!(owner(cookie).among(&NetnsLookup::Empty, &NetnsLookup::Gone).unwrap().is_none());
        }
        let there = cnikit_netns::make::anonymous().unwrap();
        let found = owner(cookie(&there).unwrap()).among(&unknown, &NetnsLookup::Present(there)).unwrap();
        assert!(found.is_some(), "it was found all the same");
    }

    #[test]
    fn without_a_cookie_the_namespace_is_that_of_the_path_of_the_del() {
        let own = Netns::own().unwrap();
        let other = cnikit_netns::make::anonymous().unwrap();
        let present = NetnsLookup::Present(other);
        let here = NetnsLookup::Own(own.clone());
        for (given, recorded, is_found) in [
            (&present, &NetnsLookup::Gone, true),
            (&here, &NetnsLookup::Gone, false),
            (&NetnsLookup::Empty, &here, false),
            (&NetnsLookup::Empty, &present, false),
        ] {
            assert_eq!(owner(None).among(given, recorded).unwrap().is_some(), is_found, "{given:?} {recorded:?}");
        }
        assert!(owner(cookie(&own).unwrap()).among(&here, &NetnsLookup::Gone).unwrap().is_some(), "it is proven");
        assert!(owner(Some(1)).among(&present, &here).unwrap().is_none());
    }

    #[test]
    fn without_a_cookie_an_existing_path_of_the_add_is_doubtful() {
        let at = |netns: &str, cookie| Owner { netns: netns.into(), ..owner(cookie) }.is_doubtful().unwrap();
        assert!(at("/proc/self/ns/net", None));
        assert!(!at("/proc/self/ns/net", Some(1)) && !at("/nowhere", None) && !at("", None));
    }
}
