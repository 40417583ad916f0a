//! The contexts of resources and kinds: the attachment or network, what is known about it, and the sockets.

use std::cell::{OnceCell, RefCell};
use std::path::Path;

use cnikit_netlink::Netlink;
use cnikit_netns::Netns;
use cnikit_skel::{Add, AttachmentId, Check, Del, Error, Errors, Gc, NetnsLookup, Result, ValidSet, code, log};
use cnikit_types::{CniResult, Interface, NetConf};

use crate::shared::Shared;

/// The context of ADD and CHECK, in which everything is known.
pub struct ApplyContext {
    /// The attachment.
    pub tag: AttachmentId,
    /// The container's namespace.
    pub netns: Netns,
    /// The text of `CNI_NETNS`.
    pub sandbox: String,
    /// The recorded result: on CHECK that of the whole chain, on ADD that of the plugins before this one.
    pub record: CniResult,
    host: OnceCell<Netlink>,
    container: OnceCell<Netlink>,
    shared: Shared,
}

impl ApplyContext {
    /// A netlink handle on the host: the namespace of this process. The socket is opened at the first use.
    ///
    /// # Errors
    /// The socket cannot be opened, see [`Netlink::here`].
    pub fn host(&self) -> Result<&Netlink> {
        opened(&self.host, || Ok(Netlink::here()?))
    }

    /// A netlink handle on the container's namespace.
    ///
    /// # Errors
    /// The namespace cannot be entered or the socket cannot be opened, see [`Netlink::inside`].
    pub fn container(&self) -> Result<&Netlink> {
        opened(&self.container, || Ok(Netlink::inside(&self.netns)?))
    }

    /// The values that several resources use, such as a socket; see [`Shared::get`].
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The container's interface in the recorded result.
    pub fn recorded(&self) -> Option<&Interface> {
        self.record.interfaces.iter().find(|one| one.name == self.tag.ifname && one.sandbox == self.sandbox)
    }

    fn of(tag: &AttachmentId, sandbox: &str, netns: &Netns, record: CniResult) -> ApplyContext {
        let host = OnceCell::new();
        let container = OnceCell::new();
        let shared = Shared::default();
        ApplyContext {
            tag: tag.clone(),
            netns: netns.clone(),
            sandbox: sandbox.to_owned(),
            record,
            host,
            container,
            shared,
        }
    }
}

impl From<&Add> for ApplyContext {
    fn from(add: &Add) -> ApplyContext {
        let record = add.prev.clone().unwrap_or_default();
        ApplyContext::of(&add.attachment.tag, &add.attachment.sandbox, &add.netns, record)
    }
}

impl From<&Check> for ApplyContext {
    fn from(check: &Check) -> ApplyContext {
        ApplyContext::of(&check.attachment.tag, &check.attachment.sandbox, &check.netns, check.prev.clone())
    }
}

/// The context of DEL, in which only the tag is certain.
pub struct ReleaseContext {
    /// The attachment to remove.
    pub tag: AttachmentId,
    /// The outcome of the look-up of the container's namespace.
    pub netns: NetnsLookup,
    /// The text of `CNI_NETNS`.
    pub sandbox: String,
    /// The result of the ADD (`prevResult`), if there is one and it can be parsed.
    pub prev: Option<CniResult>,
    /// The current configuration, which may differ from that of the ADD and may be invalid.
    pub conf: NetConf,
    host: OnceCell<Netlink>,
    shared: Shared,
    rest: RefCell<Vec<Deferred>>,
}

/// The name of a kind, and its deferred work.
type Deferred = (&'static str, Box<dyn FnOnce(&ReleaseContext) -> Result<()>>);

impl ReleaseContext {
    /// A netlink handle on the host. The socket is opened at the first use.
    ///
    /// # Errors
    /// The socket cannot be opened, see [`Netlink::here`].
    pub fn host(&self) -> Result<&Netlink> {
        opened(&self.host, || Ok(Netlink::here()?))
    }

    /// The values that several kinds use, such as a socket; see [`Shared::get`].
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// Defers work that a kind has started and need not wait for, until the other kinds have been released.
    pub fn defer(&self, kind: &'static str, rest: impl FnOnce(&ReleaseContext) -> Result<()> + 'static) {
        self.rest.borrow_mut().push((kind, Box::new(rest)));
    }

    /// Completes all deferred work. A failed part does not prevent the following ones.
    pub fn run_deferred(&self) -> Errors {
        let mut errors = Errors::default();
        for (kind, rest) in self.rest.take() {
            let done = log::step(format_args!("release {kind}, the rest"), || rest(self));
            errors.note(done.map_err(|error| error.context(format_args!("release {kind}"))));
        }
        errors
    }

    /// A netlink handle on the container's namespace; `None` if it does not exist or is not the container's own.
    ///
    /// # Errors
    /// The namespace may exist but cannot be opened ([`may_be_there`]), or the socket cannot be opened.
    pub fn container(&self) -> Result<Option<Netlink>> {
        match &self.netns {
            NetnsLookup::Present(netns) => Ok(Some(Netlink::inside(netns)?)),
            NetnsLookup::Unknown { path, why } => Err(may_be_there(path, why)),
            _ => Ok(None),
        }
    }
}

impl From<&Del> for ReleaseContext {
    fn from(del: &Del) -> ReleaseContext {
        ReleaseContext {
            tag: del.tag.clone(),
            netns: del.netns.clone(),
            sandbox: del.call.input.netns.clone(),
            prev: del.prev.clone(),
            conf: del.call.conf.clone(),
            host: OnceCell::new(),
            shared: Shared::default(),
            rest: RefCell::default(),
        }
    }
}

/// The context of GC for one network.
pub struct GcContext {
    /// The network.
    pub network: String,
    /// The valid attachments, which GC leaves alone.
    pub valid: ValidSet,
    /// The current configuration.
    pub conf: NetConf,
    host: OnceCell<Netlink>,
    shared: Shared,
}

impl GcContext {
    /// A netlink handle on the host. The socket is opened at the first use.
    ///
    /// # Errors
    /// The socket cannot be opened, see [`Netlink::here`].
    pub fn host(&self) -> Result<&Netlink> {
        opened(&self.host, || Ok(Netlink::here()?))
    }

    /// The values that several kinds use, such as a socket; see [`Shared::get`].
    pub fn shared(&self) -> &Shared {
        &self.shared
    }

    /// The tags of the valid attachments.
    pub fn tags(&self) -> impl Iterator<Item = AttachmentId> {
        self.valid.iter().map(|(container, ifname)| AttachmentId {
            network: self.network.clone(),
            container: container.to_owned(),
            ifname: ifname.to_owned(),
        })
    }
}

impl From<&Gc> for GcContext {
    fn from(gc: &Gc) -> GcContext {
        let network = gc.network.clone();
        let valid = gc.valid.clone();
        let conf = gc.call.conf.clone();
        GcContext { network, valid, conf, host: OnceCell::new(), shared: Shared::default() }
    }
}

/// The error for a namespace that may exist at this path but cannot be opened, so that its resources may still have to be removed.
pub fn may_be_there(path: &Path, why: &str) -> Error {
    let text = format!("the network namespace {} may exist, but cannot be opened: {why}", path.display());
    Error::new(code::SYSTEM, text).hint("try again, or remove the namespace")
}

fn opened<T>(cell: &OnceCell<T>, open: impl FnOnce() -> Result<T>) -> Result<&T> {
    if cell.get().is_none() {
        let _ = cell.set(open()?);
    }
    Ok(cell.get_or_init(|| unreachable!("it was set a line above")))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn tag() -> AttachmentId {
        AttachmentId { network: "pods".to_owned(), container: "c1".to_owned(), ifname: "eth0".to_owned() }
    }

    /// The context of a call whose container has the namespace `/run/netns/c1`, which no test enters.
    pub(crate) fn applying(record: CniResult) -> ApplyContext {
        ApplyContext::of(&tag(), "/run/netns/c1", &Netns::unopened("/run/netns/c1").unwrap(), record)
    }

    pub(crate) fn releasing(netns: NetnsLookup) -> ReleaseContext {
        ReleaseContext {
            tag: tag(),
            netns,
            sandbox: "/run/netns/c1".to_owned(),
            prev: None,
            conf: NetConf::default(),
            host: OnceCell::new(),
            shared: Shared::default(),
            rest: RefCell::default(),
        }
    }

    pub(crate) fn sweeping(valid: ValidSet) -> GcContext {
        let conf = NetConf::default();
        GcContext { network: "pods".to_owned(), valid, conf, host: OnceCell::new(), shared: Shared::default() }
    }

    fn interface(name: &str, sandbox: &str) -> Interface {
        Interface { name: name.to_owned(), sandbox: sandbox.to_owned(), ..Interface::default() }
    }

    #[test]
    fn the_recorded_interface_has_the_name_and_the_namespace_of_the_attachment() {
        let own = interface("eth0", "/run/netns/c1");
        let others =
            vec![interface("eth0", ""), interface("net1", "/run/netns/c1"), interface("eth0", "/run/netns/c2")];
        let mut record = CniResult { interfaces: others, ..CniResult::default() };
        assert_eq!(applying(record.clone()).recorded(), None);
        record.interfaces.push(own.clone());
        assert_eq!(applying(record).recorded(), Some(&own));
    }

    #[test]
    fn a_namespace_that_is_gone_is_none_and_one_that_cannot_be_entered_is_an_error() {
        assert!(releasing(NetnsLookup::Gone).container().unwrap().is_none());
        assert!(releasing(NetnsLookup::Empty).container().unwrap().is_none());
        let present = NetnsLookup::Present(Netns::unopened("/run/netns/c1").unwrap());
        assert!(releasing(present).container().is_err());
        let unknown = NetnsLookup::Unknown { path: "/run/netns/c1".into(), why: "no descriptor is free".to_owned() };
        let Err(error) = releasing(unknown).container() else { panic!("it may be there") };
        assert_eq!(error.code, code::SYSTEM);
        assert!(error.msg.contains("/run/netns/c1 may exist, but cannot be opened: no descriptor is free"), "{error}");
    }

    #[test]
    fn each_valid_attachment_has_a_tag_of_the_network() {
        let pairs =
            [("c1", "eth0"), ("c2", "net1")].map(|(container, ifname)| (container.to_owned(), ifname.to_owned()));
        let mut tags: Vec<AttachmentId> = sweeping(pairs.into_iter().collect()).tags().collect();
        tags.sort();
        let second = AttachmentId { network: "pods".to_owned(), container: "c2".to_owned(), ifname: "net1".to_owned() };
        assert_eq!(tags, [tag(), second]);
    }

    #[test]
    fn the_kinds_of_one_verb_share_their_values() {
        let apply = applying(CniResult::default());
        let release = releasing(NetnsLookup::Gone);
        let gc = sweeping(ValidSet::default());
        for value in [1_u8, 2] {
            let made = || Ok(value);
            let values = [apply.shared().get(made), release.shared().get(made), gc.shared().get(made)];
            assert_eq!(values.map(|shared| *shared.unwrap()), [1, 1, 1], "made at the first use");
        }
    }
}
