//! Where kinds act: the sockets, whose state it is, what is known.

use std::cell::{OnceCell, RefCell};
use std::path::Path;

use cnikit_netfilter::Nftables;
use cnikit_netlink::Netlink;
use cnikit_netns::Netns;
use cnikit_skel::{Add, Check, Del, Error, Errors, Found, Gc, Result, Tag, Valid, code, log};
use cnikit_types::{Answer, Interface, NetConf};

/// ADD and CHECK: everything is known.
pub struct Scene {
    /// Whose state it is.
    pub tag: Tag,
    /// The container's namespace.
    pub netns: Netns,
    /// `CNI_NETNS` as it was given.
    pub sandbox: String,
    /// What is recorded of it: on CHECK the answer of the whole chain, on ADD that of the plugins before this one.
    pub record: Answer,
    host: OnceCell<Netlink>,
    container: OnceCell<Netlink>,
}

impl Scene {
    /// The host's links: the namespace of this process. The socket is opened at the first use.
    pub fn host(&self) -> Result<&Netlink> {
        opened(&self.host, || Ok(Netlink::here()?))
    }

    /// The container's links, seen from here.
    pub fn container(&self) -> Result<&Netlink> {
        opened(&self.container, || Ok(Netlink::inside(&self.netns)?))
    }

    /// What is recorded of the container's interface.
    pub fn recorded(&self) -> Option<&Interface> {
        self.record.interfaces.iter().find(|one| one.name == self.tag.ifname && one.sandbox == self.sandbox)
    }

    fn of(tag: &Tag, sandbox: &str, netns: &Netns, record: Answer) -> Scene {
        let (host, container) = (OnceCell::new(), OnceCell::new());
        Scene { tag: tag.clone(), netns: netns.clone(), sandbox: sandbox.to_owned(), record, host, container }
    }
}

impl From<&Add> for Scene {
    fn from(add: &Add) -> Scene {
        let record = add.prev.clone().unwrap_or_default();
        Scene::of(&add.attachment.tag, &add.attachment.sandbox, &add.netns, record)
    }
}

impl From<&Check> for Scene {
    fn from(check: &Check) -> Scene {
        Scene::of(&check.attachment.tag, &check.attachment.sandbox, &check.netns, check.prev.clone())
    }
}

/// DEL: what is left, of which nothing but the tag is sure.
pub struct Remains {
    /// Whose state is to go.
    pub tag: Tag,
    /// The container's namespace, or what was found in its place.
    pub netns: Found,
    /// `CNI_NETNS` as it was given.
    pub sandbox: String,
    /// The answer of the ADD, where it came and could be read.
    pub prev: Option<Answer>,
    /// The configuration of today, which may not be that of the ADD, nor valid.
    pub conf: NetConf,
    host: OnceCell<Netlink>,
    filter: Filter,
    rest: RefCell<Vec<Rest>>,
}

/// The host's packet filter, none where the kernel has no netfilter. Once opened it stays open: the kernel frees what was
/// removed when such a socket is closed, which takes as long as the removal of a link, and is done meanwhile.
type Filter = OnceCell<Option<Nftables>>;

/// What is left to do of the kind of this name.
type Rest = (&'static str, Box<dyn FnOnce(&Remains) -> Result<()>>);

impl Remains {
    /// The host's links.
    pub fn host(&self) -> Result<&Netlink> {
        opened(&self.host, || Ok(Netlink::here()?))
    }

    /// The host's packet filter, opened at the first use; none where the kernel has no netfilter.
    pub fn nftables(&self) -> Result<Option<&Nftables>> {
        filter(&self.filter)
    }

    /// Puts off what a kind has started and need not wait for yet, until other kinds have been released.
    pub fn later(&self, kind: &'static str, rest: impl FnOnce(&Remains) -> Result<()> + 'static) {
        self.rest.borrow_mut().push((kind, Box::new(rest)));
    }

    /// Brings to its end what was put off, each whatever became of those before it.
    pub fn settle(&self) -> Errors {
        let settled = |(kind, rest): Rest| {
            let done = log::step(format_args!("release {kind}, the rest"), || rest(self));
            done.map_err(|error| error.while_doing(format_args!("release {kind}")))
        };
        self.rest.take().into_iter().map(settled).collect()
    }

    /// The container's links, if there is a namespace that is its own.
    pub fn container(&self) -> Result<Option<Netlink>> {
        match &self.netns {
            Found::Present(netns) => Ok(Some(Netlink::inside(netns)?)),
            Found::Unknown { path, why } => Err(may_be_there(path, why)),
            _ => Ok(None),
        }
    }
}

impl From<&Del> for Remains {
    fn from(del: &Del) -> Remains {
        Remains {
            tag: del.tag.clone(),
            netns: del.netns.clone(),
            sandbox: del.call.input.netns.clone(),
            prev: del.prev.clone(),
            conf: del.call.conf.clone(),
            host: OnceCell::new(),
            filter: OnceCell::new(),
            rest: RefCell::default(),
        }
    }
}

/// GC: whatever of this network is not valid.
pub struct Stale {
    /// The network.
    pub network: String,
    /// What is to stay.
    pub valid: Valid,
    /// The configuration of today.
    pub conf: NetConf,
    host: OnceCell<Netlink>,
    filter: Filter,
}

impl Stale {
    /// The host's links.
    pub fn host(&self) -> Result<&Netlink> {
        opened(&self.host, || Ok(Netlink::here()?))
    }

    /// The host's packet filter, opened at the first use; none where the kernel has no netfilter.
    pub fn nftables(&self) -> Result<Option<&Nftables>> {
        filter(&self.filter)
    }

    /// The tags that are to stay.
    pub fn tags(&self) -> impl Iterator<Item = Tag> {
        self.valid.iter().map(|(container, ifname)| Tag {
            network: self.network.clone(),
            container: container.to_owned(),
            ifname: ifname.to_owned(),
        })
    }
}

impl From<&Gc> for Stale {
    fn from(gc: &Gc) -> Stale {
        let (network, valid, conf) = (gc.network.clone(), gc.valid.clone(), gc.call.conf.clone());
        Stale { network, valid, conf, host: OnceCell::new(), filter: OnceCell::new() }
    }
}

/// Nobody can tell whether a namespace is at this path, so that what it has may still have to go.
pub fn may_be_there(path: &Path, why: &str) -> Error {
    let text = format!("the network namespace {} may be there, but cannot be opened: {why}", path.display());
    Error::new(code::SYSTEM, text).remedy("try again, or remove the namespace")
}

fn filter(cell: &Filter) -> Result<Option<&Nftables>> {
    Ok(opened(cell, || Ok(Nftables::if_any()?))?.as_ref())
}

fn opened<T>(cell: &OnceCell<T>, open: impl FnOnce() -> Result<T>) -> Result<&T> {
    if cell.get().is_none() {
        let _ = cell.set(open()?);
    }
    Ok(cell.get_or_init(|| unreachable!("it was set a line above")))
}
