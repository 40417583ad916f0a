//! What a macvlan and an ipvlan have in common: the container's interface is on top of another.

use std::fmt;

use cnikit_netlink::{Link, LinkChange, Mac, Netlink, NewUpper, UpperKind};
use cnikit_netns::{Netns, NetnsLookup, find, mounted};
use cnikit_plan::{ApplyContext, Drifts, GcContext, Made, Plan, ReleaseContext};
use cnikit_skel::{AttachmentId, Error, Errors, Journal, Result, code};
use cnikit_types::{Interface, Ip, Route};

use crate::address::layer3::{self, Detection, Layer3};
use crate::identity::alias::{self, AliasOwner, Marks};
use crate::identity::recorded;
use crate::link::bring_up::BringUp;
use crate::link::delete_links::{delete, delete_all};
use crate::link::parent::Master;

/// The container's interface on top of a master. It is made where and as it will be; nothing is renamed, nothing moved.
#[derive(Clone, Debug)]
pub struct StackedLink {
    /// The container's interface.
    pub ifname: String,
    /// What it is on top of.
    pub master: Master,
    /// In bytes, at most the master's; absent: the master's.
    pub mtu: Option<u32>,
    /// It is up from the first moment; else whoever gives it addresses brings it up.
    pub up: bool,
}

impl StackedLink {
    /// Looks whether the master, which it returns, is there and bears that MTU, and the name is free.
    pub(crate) fn preflight(&self, context: &ApplyContext) -> Result<Link> {
        let sandbox = &context.sandbox;
        let master = self.master.find(context)?;
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu > master.mtu) {
            let text = format!("invalid MTU {mtu}, must be [0, master MTU({})]", master.mtu);
            return Err(Error::config(text).hint(format!("lower `mtu`, or raise that of {}", master.name)));
        }
        let taken = context.container()?.find_link(&self.ifname)?;
        taken.map_or(Ok(master), |_| {
            Err(Error::conflict(format!("interface {:?} already exists in {sandbox}", self.ifname))
                .hint("DEL the attachment that made it, or choose another CNI_IFNAME"))
        })
    }

    /// Makes it, with this MAC or one of the kernel's choice, and marks it.
    pub(crate) fn make(
        &self,
        sort: UpperKind,
        mac: Option<Mac>,
        context: &ApplyContext,
        journal: &mut Journal,
    ) -> Result<Made> {
        let master = self.master.find(context)?;
        let container = context.container()?;
        // In the host's namespace the request names the container's, for the other way round old kernels make it here and
        // move it.
        let (netlink, netns) =
            if self.master.in_container { (container, None) } else { (context.host()?, Some(context.netns.clone())) };
        let tag = &context.tag;
        let name = self.ifname.clone();
        let kind = kind_name(sort);
        let StackedLink { mtu, up, .. } = *self;
        let lower = master.index;
        let group = group_of(tag);
        let wanted = NewUpper { name, index: None, lower, netns, mac, mtu, group, up, upper: sort };
        let own = OwnLink { container: container.clone(), kind, tag: tag.clone() };
        create(netlink, &wanted, &own)
            .map_err(|error| clean_up_failed_create(&own, error, || at_odds(netlink, &master)))?;
        let _ = journal.undo(&own, OwnLink::delete);
        let link = container.link(&self.ifname)?;
        // One after the other: of one message, or of one batch, the kernel may do the second and refuse the first, and a link
        // that bears neither is not found by the roll-back.
        container.change(link.index, &LinkChange { alias: Some(alias::of(tag)), ..LinkChange::default() })?;
        container.change(link.index, &LinkChange { group: Some(0), ..LinkChange::default() })?;
        Ok(Made::one(Interface { name: link.name, sandbox: context.sandbox.clone(), ..Interface::default() }))
    }

    /// Compares what both kinds have in common. What is particular to its own, the caller compares: `None` if it is not of it.
    pub(crate) fn verify(&self, kind: &str, context: &ApplyContext, drifts: &mut Drifts) -> Result<Option<UpperKind>> {
        let ifname = &self.ifname;
        let Some(link) = context.container()?.find_link(ifname)? else {
            drifts.unless(false, || format!("interface {ifname}: wanted {kind}, found none in {}", context.sandbox));
            return Ok(None);
        };
        drifts.compare(format!("kind of {ifname}"), kind, link.kind.as_deref().unwrap_or("none"));
        if !is(kind, &link) {
            return Ok(None);
        }
        // Other implementations write no alias.
        drifts.unless(owner(&link, &context.tag) != AliasOwner::Another, || {
            format!("{ifname}: wanted the interface of {}, found the alias {:?}", context.tag, link.alias)
        });
        drifts.unless(!self.up || link.up, || format!("{ifname}: wanted up, found down"));
        drifts.unless(link.upper.is_some(), || format!("mode of {ifname}: found one that no plugin sets"));
        recorded::verify(context, ifname, self.mtu, &link, drifts);
        self.master.verify(context, &link, drifts)?;
        Ok(link.upper)
    }
}

/// The end of a line that begins with what is particular.
impl fmt::Display for StackedLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.mtu.iter().try_for_each(|mtu| write!(f, ", mtu {mtu}"))?;
        write!(f, ", on {}", self.master)?;
        f.write_str(if self.up { ", up" } else { "" })
    }
}

fn kind_name(sort: UpperKind) -> &'static str {
    match sort {
        UpperKind::Macvlan { .. } => "macvlan",
        UpperKind::Ipvlan(_) => "ipvlan",
    }
}

/// Makes it in one message, under a number of its own if its name is only taken where the socket is: kernels before 6.15 look
/// for it there, and containers' interfaces are called as many a host's.
fn create(netlink: &Netlink, wanted: &NewUpper, own: &OwnLink) -> cnikit_netlink::Result<()> {
    let Err(error) = netlink.create_upper(wanted) else { return Ok(()) };
    let is_taken_here = wanted.netns.is_some() && error.exists() && own.container.find_link(&wanted.name)?.is_none();
    if !is_taken_here {
        return Err(error);
    }
    netlink.create_upper(&NewUpper { index: Some(high_index(&own.tag)), ..wanted.clone() })
}

/// One of 2²⁹, above all that the kernel counts up to.
fn high_index(tag: &AttachmentId) -> u32 {
    (group_of(tag) >> 3) | (1 << 29)
}

/// The kernel may have made it all the same, and its answer been lost. That the name is taken, since it was looked at, is
/// somebody else's doing.
fn clean_up_failed_create(own: &OwnLink, error: cnikit_netlink::Error, at_odds: impl Fn() -> String) -> Error {
    let taken = error.exists();
    let error = if error.unsupported() {
        unknown(own.kind).detail(error.to_string())
    } else if error.is_at_odds() {
        Error::from(error).hint(at_odds())
    } else {
        Error::from(error)
    };
    if taken {
        return error;
    }
    match own.delete() {
        Ok(()) => error,
        Err(second) => error.detail(second.to_string()),
    }
}

/// What can be done where it does not go with what the master is.
fn at_odds(netlink: &Netlink, master: &Link) -> String {
    let owner = master.master.and_then(|index| netlink.find_link_at(index).ok().flatten());
    match owner.filter(|owner| !is("vrf", owner)) {
        Some(owner) => format!("{} is a port of {}: choose that as `master`, or take it out", master.name, owner.name),
        None => {
            "a master bears either macvlans or ipvlans, one alone with `passthru`; it is no loopback: choose another \
                 `master` or `mode`"
                .to_owned()
        }
    }
}

fn unknown(kind: &str) -> Error {
    let error = Error::new(code::SYSTEM, format!("this kernel has no {kind}"));
    error.hint(format!("`modprobe {kind}`, or boot a kernel that has it"))
}

/// Checks that this kernel can make such a link, and that its master exists.
///
/// # Errors
/// The kernel lacks the kind of link, the master does not exist, or either cannot be determined.
pub fn available(sort: UpperKind, master: &Master) -> Result<()> {
    let host = Netlink::here()?;
    if host.knows_upper(sort)? { master.available(&host) } else { Err(unknown(kind_name(sort))) }
}

/// Layer 3 of an interface on its master's wire; one without addresses is brought up, unless it `is_up` from the first moment.
pub fn layer3(ifname: &str, ips: &[Ip], routes: &[Route], dad: bool, slaac: bool, is_up: bool) -> Plan {
    match layer3::on_segment(ifname, ips, routes, Detection::wished(dad)) {
        Some(layer3) => Plan::of(Layer3 { slaac, ..layer3 }),
        None => Plan::default().and_each((!is_up).then(|| BringUp { ifname: ifname.to_owned(), slaac })),
    }
}

/// An interface of ours in a container, for undoing.
#[derive(Clone)]
struct OwnLink {
    container: Netlink,
    kind: &'static str,
    tag: AttachmentId,
}

impl OwnLink {
    fn delete(&self) -> Result<()> {
        let link = self.container.find_link(&self.tag.ifname)?;
        let link = link.filter(|link| is(self.kind, link) && owner(link, &self.tag) == AliasOwner::This);
        link.map_or(Ok(()), |link| delete(&self.container, &link))
    }
}

impl fmt::Display for OwnLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.tag.ifname)
    }
}

fn is(kind: &str, link: &Link) -> bool {
    link.kind.as_deref() == Some(kind)
}

/// What a link bears from its first moment until the alias, which the kernel does not take earlier: the number of a group,
/// which is the tag's. Any but 0, which is that of all links that are in none.
fn group_of(tag: &AttachmentId) -> u32 {
    let hash = tag.hash();
    u32::from_be_bytes([hash[0], hash[1], hash[2], hash[3]]).max(1)
}

/// Whose it is. Another number than the tag's is of somebody who is at work on it.
fn owner(link: &Link, tag: &AttachmentId) -> AliasOwner {
    match alias::owner(link, tag) {
        AliasOwner::Unknown if link.group == group_of(tag) => AliasOwner::This,
        AliasOwner::Unknown if link.group != 0 => AliasOwner::Another,
        owner => owner,
    }
}

/// Removes what bears the tag, whatever it is called by now. One that bears nobody's (another implementation made it) goes only
/// if it has the attachment's name and the MAC that was recorded: the path may by now be another container's namespace. All
/// ipvlans of a master have one MAC: of them an address that was recorded has to tell.
pub(crate) fn release(kind: &str, context: &ReleaseContext) -> Result<()> {
    let Some(container) = context.container()? else { return Ok(()) };
    let tag = &context.tag;
    let record = context.prev.as_ref();
    let is_recorded = |link: &Link| -> Result<bool> {
        let shares_mac = matches!(link.upper, Some(UpperKind::Ipvlan(_)));
        let has_both = link.name == tag.ifname && recorded::has_mac_of(record, &tag.ifname, link);
        Ok(has_both && (!shares_mac || recorded::has_address_of(record, &container, link)?))
    };
    let release_one = |link: Link| match owner(&link, tag) {
        AliasOwner::This => delete(&container, &link),
        AliasOwner::Another => Ok(()),
        AliasOwner::Unknown => {
            if is_recorded(&link)? {
                delete(&container, &link)
            } else {
                Ok(())
            }
        }
    };
    container.links_of_kind(kind)?.into_iter().map(release_one).collect::<Errors>().finish()
}

/// Looks through the namespaces that a runtime has given a name: no other is known, and one without a name goes with its last
/// process.
pub(crate) fn sweep(kind: &str, context: &GcContext) -> Result<()> {
    let marks = Marks::of(context);
    let paths = mounted().map_err(|error| Error::from(error).context("look for mounted namespaces"))?;
    let swept = |path: std::path::PathBuf| match find(&path.to_string_lossy()) {
        NetnsLookup::Present(netns) => sweep_in(kind, &marks, &netns),
        NetnsLookup::Unknown { path, why } => {
            let text = format!("the network namespace {} cannot be looked at: {why}", path.display());
            Err(Error::new(code::SYSTEM, text).hint("try again, or remove it"))
        }
        _ => Ok(()),
    };
    paths.into_iter().map(swept).collect::<Errors>().finish()
}

fn sweep_in(kind: &str, marks: &Marks, netns: &Netns) -> Result<()> {
    let container = Netlink::inside(netns)?;
    let is_meant = |link: &Link| is(kind, link) && marks.is_stale(link);
    let links: Vec<Link> = container.links_of_kind(kind)?.into_iter().filter(is_meant).collect();
    delete_all(&container, &links, is_meant)
}
