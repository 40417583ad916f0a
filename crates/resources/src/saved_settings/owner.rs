//! Whose a record is, and of which namespace it speaks.

use cnikit_netns::{Netns, boot_id};
use cnikit_plan::{ApplyContext, may_be_there};
use cnikit_skel::{AttachmentId, NetnsLookup, Result};
use nix::errno::Errno;
use serde::{Deserialize, Serialize};

/// Whose it is, and where.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pub(super) network: String,
    pub(super) container: String,
    pub(super) ifname: String,
    /// Boot and cookie recognise the namespace; kernels before 5.14 give none.
    pub(super) boot: String,
    pub(super) cookie: Option<u64>,
    /// `CNI_NETNS` of the ADD.
    pub(super) netns: String,
    #[serde(default)]
    pub(super) sysctls: Vec<(String, String)>,
}

impl Owner {
    pub(super) fn of(context: &ApplyContext) -> Result<Owner> {
        let AttachmentId { network, container, ifname } = context.tag.clone();
        let boot = boot_id()?;
        let cookie = cookie(&context.netns)?;
        let netns = context.sandbox.clone();
        Ok(Owner { network, container, ifname, boot, cookie, netns, sysctls: Vec::new() })
    }

    pub(crate) fn tag(&self) -> AttachmentId {
        AttachmentId { network: self.network.clone(), container: self.container.clone(), ifname: self.ifname.clone() }
    }

    pub(super) fn is(&self, tag: &AttachmentId) -> bool {
        (&self.network, &self.container, &self.ifname) == (&tag.network, &tag.container, &tag.ifname)
    }

    /// Is it the same attachment in the same namespace? Without a cookie the path has to serve.
    pub(super) fn is_same(&self, other: &Owner) -> bool {
        let of = |one: &Owner| one.cookie.ok_or_else(|| one.netns.clone());
        (&self.boot, of(self)) == (&other.boot, of(other))
    }

    /// The namespace, if it still is: at the path that DEL was given, or at that of the ADD. That nobody could tell is an
    /// error: what it has may still be given back.
    pub(super) fn namespace(&self, given: &NetnsLookup) -> Result<Option<Netns>> {
        if boot_id()? == self.boot { self.among(given, &self.found()) } else { Ok(None) }
    }

    /// Something is at the path of the ADD, and nothing says whether it is the same.
    pub(super) fn is_doubtful(&self) -> Result<bool> {
        let is_there = || matches!(self.found(), NetnsLookup::Present(_) | NetnsLookup::Own(_));
        Ok(self.cookie.is_none() && boot_id()? == self.boot && is_there())
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
            // The runtime's word. A path may lead to another by now, and to the host's own, by a number given to a second process.
            (None, NetnsLookup::Present(netns), _) => Ok(Some(netns.clone())),
            (_, NetnsLookup::Unknown { path, why }, _) | (_, _, NetnsLookup::Unknown { path, why }) => {
                Err(may_be_there(path, why))
            }
            _ => Ok(None),
        }
    }
}

/// None where the kernel knows none.
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
    fn a_namespace_that_cannot_be_looked_at_is_not_taken_for_one_that_is_gone() {
        let unknown = NetnsLookup::Unknown { path: "/run/netns/x".into(), why: "Too many open files".into() };
        for cookie in [Some(1), None] {
            for (given, recorded) in
                [(&unknown, &NetnsLookup::Gone), (&NetnsLookup::Empty, &unknown), (&NetnsLookup::Gone, &unknown)]
            {
                let error = owner(cookie).among(given, recorded).unwrap_err();
                assert!(error.msg.contains("may be there, but cannot be opened: Too many open files"), "{error}");
            }
            assert!(owner(cookie).among(&NetnsLookup::Empty, &NetnsLookup::Gone).unwrap().is_none());
        }
        let there = cnikit_netns::make::anonymous().unwrap();
        let found = owner(cookie(&there).unwrap()).among(&unknown, &NetnsLookup::Present(there)).unwrap();
        assert!(found.is_some(), "it was found all the same");
    }

    #[test]
    fn without_a_cookie_only_the_runtimes_word_is_taken_and_never_for_the_own_namespace() {
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
    fn without_a_cookie_whatever_is_at_the_path_of_the_add_is_in_doubt() {
        let at = |netns: &str, cookie| Owner { netns: netns.into(), ..owner(cookie) }.is_doubtful().unwrap();
        assert!(at("/proc/self/ns/net", None));
        assert!(!at("/proc/self/ns/net", Some(1)) && !at("/nowhere", None) && !at("", None));
    }
}
