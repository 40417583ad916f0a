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
    /// Without a cookie: the inode number of the namespace, and since when it has been held; see [`Netns::hold`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) hold: Option<(u64, u64)>,
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
        let hold = match cookie {
            Some(_) => None,
            None => Some(context.netns.hold()?),
        };
        let netns = context.sandbox.clone();
        Ok(Owner { network, container, ifname, boot, cookie, hold, netns, sysctls: Vec::new() })
    }

    pub(crate) fn tag(&self) -> AttachmentId {
        AttachmentId { network: self.network.clone(), container: self.container.clone(), ifname: self.ifname.clone() }
    }

    pub(crate) fn is(&self, tag: &AttachmentId) -> bool {
        (&self.network, &self.container, &self.ifname) == (&tag.network, &tag.container, &tag.ifname)
    }

    /// Whether both are the same attachment in the same namespace. Without cookies the paths are compared, unless [`Netns::hold`]
    /// tells it.
    pub(crate) fn is_same(&self, other: &Owner) -> bool {
        if self.boot != other.boot || self.cookie.is_some() || other.cookie.is_some() {
            return self.boot == other.boot && self.cookie == other.cookie;
        }
        self.is_held_as(other.hold).unwrap_or(self.netns == other.netns)
    }

    /// Whether a namespace that is held so is the recorded one; `None` if that cannot be told.
    fn is_held_as(&self, other: Option<(u64, u64)>) -> Option<bool> {
        let (inode, since) = self.hold?;
        let (other_inode, other_since) = other?;
        if inode != other_inode {
            return Some(false);
        }
        // A namespace that nothing held meanwhile is held since later.
        if since == other_since { Some(true) } else { None }
    }

    /// Whether this is the namespace of the attachment, if that is of this boot; `None` if it cannot be told.
    fn is_in(&self, netns: &Netns) -> Result<Option<bool>> {
        match self.cookie {
            Some(_) => Ok(Some(cookie(netns)? == self.cookie)),
            None => Ok(self.is_held_as(Some(netns.hold()?))),
        }
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

    /// Whether there is a namespace at the path of the ADD, and it cannot be told whether it is the same one.
    fn is_doubtful(&self) -> Result<bool> {
        if self.cookie.is_some() || !self.is_of_this_boot()? {
            return Ok(false);
        }
        match self.found() {
            NetnsLookup::Present(netns) | NetnsLookup::Own(netns) => Ok(self.is_in(&netns)?.is_none()),
            _ => Ok(false),
        }
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
                && self.is_in(netns)? == Some(true)
            {
                return Ok(Some(netns.clone()));
            }
        }
        // Without a proof only the path that the runtime gave DEL counts. The path of the ADD may lead to another namespace by now,
        // even to the host's own if the kernel gave the PID to another process.
        if let NetnsLookup::Present(netns) = given
            && self.is_in(netns)?.is_none()
        {
            return Ok(Some(netns.clone()));
        }
        match (given, recorded) {
            (NetnsLookup::Unknown { path, why }, _) | (_, NetnsLookup::Unknown { path, why }) => {
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
        let boot = boot_id().unwrap();
        Owner { network, container, ifname, boot, cookie, hold: None, netns, sysctls: Vec::new() }
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
    fn without_a_cookie_a_namespace_that_was_held_all_the_time_is_recognised() {
        let there = cnikit_netns::make::anonymous().unwrap();
        let (inode, since) = there.hold().unwrap();
        let present = NetnsLookup::Present(there);
        let held = |inode, since| Owner { hold: Some((inode, since)), ..owner(None) };
        for (owner, by_given, by_recorded) in [
            (held(inode, since), true, true),
            (held(inode, since - 1), true, false),
            (held(inode + 1, since), false, false),
        ] {
            let is_found = |given, recorded| owner.among(given, recorded).unwrap().is_some();
            assert_eq!(is_found(&present, &NetnsLookup::Gone), by_given, "{:?}", owner.hold);
            assert_eq!(is_found(&NetnsLookup::Empty, &present), by_recorded, "{:?}", owner.hold);
        }
        let elsewhere = Owner { netns: "/elsewhere".into(), ..held(inode, since) };
        assert!(held(inode, since).is_same(&elsewhere) && !held(inode, since - 1).is_same(&elsewhere));
        assert!(held(inode, since - 1).is_same(&held(inode, since)), "the path is the same");
        assert!(!held(inode + 1, since).is_same(&held(inode, since)));
        assert!(!owner(Some(1)).is_same(&held(inode, since)) && owner(Some(1)).is_same(&owner(Some(1))));
    }

    #[test]
    fn without_a_cookie_an_existing_path_of_the_add_is_doubtful() {
        let at = |netns: &str, cookie| Owner { netns: netns.into(), ..owner(cookie) }.is_doubtful().unwrap();
        assert!(at("/proc/self/ns/net", None));
        assert!(!at("/proc/self/ns/net", Some(1)) && !at("/nowhere", None) && !at("", None));
        let earlier = Owner { netns: "/proc/self/ns/net".into(), boot: "an earlier one".into(), ..owner(None) };
        assert!(!earlier.is_doubtful().unwrap(), "no namespace lasts longer than a boot");
        let own = Netns::own().unwrap();
        let netns = own.path().to_str().unwrap();
        let held = |hold| Owner { netns: netns.into(), hold: Some(hold), ..owner(None) }.is_doubtful().unwrap();
        let (inode, since) = own.hold().unwrap();
        assert!(!held((inode, since)) && held((inode, since - 1)) && !held((inode + 1, since)));
    }
}
