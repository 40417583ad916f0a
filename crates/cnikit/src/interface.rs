//! The shape of a plugin that makes an interface in the container.

use cnikit_plan::{
    ApplyContext, GcContext, Kind, Made, Plan, ReleaseContext, apply, begin_release, preflight, restore, restore_all,
    sweep, verify,
};
use cnikit_skel::{
    Add, AttachmentSpec, Check, Del, DryRun, DryRunReport, Errors, Gc, Journal, Plugin, Result, Sources, Status,
};
use cnikit_types::{CniResult, Interface, Ip, NetConf};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::addresses::Addresses;
use crate::requested::{self, HostState};
use crate::source::{FoundDelegate, Source, taken_over, unavailable};

/// A plugin that makes an interface: its configuration, and what that configuration wants.
///
/// Required are the plan of the link and the kind of the link. The addresses come from the configured IPAM plugin, and the
/// answer, CHECK, DEL, GC, STATUS and the dry run follow. A link is made directly where and as it will be; `link` cannot
/// fail, for what may be wrong was refused when the configuration was read.
///
/// The whole of a plugin that gives a container one end of a veth pair, addresses from its IPAM plugin and routes by their
/// gateways:
///
/// ```rust,no_run
/// use cnikit::plan::{Kind, Plan};
/// use cnikit::resources::layer3::{self, Detection, Layer3};
/// use cnikit::resources::veth::{self, HostEnd, Veth};
/// use cnikit::{Addresses, AttachmentSpec, InterfaceShape, InterfacePlugin, keys::Mtu};
///
/// /// The keys, each with its type and its default.
/// #[derive(serde::Deserialize)]
/// struct Pair {
///     #[serde(default)]
///     mtu: Mtu,
/// }
///
/// impl InterfacePlugin for Pair {
///     const LINK: Kind = veth::KIND;
///
///     fn link(&self, at: &AttachmentSpec) -> Plan {
///         let ifname = at.tag.ifname.clone();
///         Plan::of(Veth { ifname, mac: None, mtu: self.mtu.0, queues: Some(1), host: HostEnd::Routed, shut: false })
///     }
///
///     fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
///         Plan::of(Layer3 {
///             ifname: at.tag.ifname.clone(),
///             addresses: addresses.networks(),
///             prefix_routes: true,
///             routes: layer3::routes(&addresses.ips, &addresses.routes),
///             detection: Detection::Off,
///             slaac: false,
///             announce: false,
///         })
///     }
/// }
///
/// fn main() -> std::process::ExitCode {
///     cnikit::main::<InterfaceShape<Pair>>()
/// }
/// ```
pub trait InterfacePlugin: DeserializeOwned {
    /// The kind of the link itself. It is released after every other kind, and its address after it.
    const LINK: Kind;
    /// Every other kind in the plans that outlives the link.
    const KINDS: &'static [Kind] = &[];
    /// As [`Plugin::SOURCES`].
    const SOURCES: Sources = &[];
    /// As [`Plugin::KNOWN_ARGS`].
    const KNOWN_ARGS: Option<&'static [&'static str]> = None;

    /// What makes the link. Pure.
    fn link(&self, at: &AttachmentSpec) -> Plan;

    /// From where the addresses come.
    fn source(conf: &NetConf) -> Source {
        Source::configured(conf)
    }

    /// Validates the addresses of the IPAM plugin, and fills in gateways and routes, which the result will contain. On CHECK it
    /// is called with the recorded addresses.
    ///
    /// # Errors
    /// The addresses cannot be used, for example because a family lacks a gateway.
    fn complete(&self, _addresses: &mut Addresses) -> Result<()> {
        Ok(())
    }

    /// What the host gets because of the addresses. For those that `runtimeConfig`, `args` or `CNI_ARGS` request, it gets that
    /// only in a subnet that the network's configuration names; else ADD is refused.
    fn host_state(&self) -> HostState {
        HostState::Nothing
    }

    /// What gives the link its layer 3. Pure.
    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan;

    /// Checks whether an ADD could be served, apart from the IPAM plugin, which has a STATUS of its own.
    ///
    /// # Errors
    /// It could not. The error is reported with code 50 whatever its code is, except 51.
    fn status(&self) -> Result<()> {
        Ok(())
    }
}

/// Makes an [`InterfacePlugin`] a [`Plugin`].
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct InterfaceShape<P>(P);

impl<P: InterfacePlugin> Plugin for InterfaceShape<P> {
    const SOURCES: Sources = P::SOURCES;
    const KNOWN_ARGS: Option<&'static [&'static str]> = P::KNOWN_ARGS;

    fn add(&self, add: &Add, journal: &mut Journal) -> Result<CniResult> {
        let InterfaceShape(plugin) = self;
        let at = &add.attachment;
        let context = ApplyContext::from(add);
        let kinds = kinds::<P>();
        let link = plugin.link(at);
        preflight(&link, &kinds, &context)?;
        let from = P::source(&at.conf);
        let source = from.find(&add.call)?;
        let mut before = add.prev.clone().unwrap_or_default();
        let early = if source.needs_link() { Some(apply(&link, &context, journal)?) } else { None };
        let mut addresses =
            if from == Source::PrevResult { taken_over(&mut before) } else { source.addresses(journal)? };
        plugin.complete(&mut addresses)?;
        requested::check(at, plugin.host_state(), &addresses)?;
        let layer3 = plugin.layer3(at, &addresses);
        preflight(&layer3, &kinds, &context)?;
        let made = match early {
            Some(made) => made,
            None => apply(&link, &context, journal)?,
        };
        apply(&layer3, &context, journal)?;
        answer(at, before, &context, made, addresses)
    }

    fn del(del: &Del) -> Result<()> {
        let context = ReleaseContext::from(del);
        let mut errors = begin_release(P::KINDS, &context);
        let link = || begin_release(&[P::LINK], &context).finish();
        let source = P::source(&del.call.conf).find(&del.call);
        match source {
            // A lease is released over the link, so the link goes last.
            Ok(source) if source.needs_link() => {
                errors.note(context.run_deferred().finish());
                errors.note(source.del());
                errors.note(link());
            }
            // While the link may still carry the address, nobody else must get it.
            source => {
                let gone = link();
                errors.note(context.run_deferred().finish());
                errors.note(gone.and_then(|()| source?.del()));
            }
        }
        errors.finish()
    }

    fn check(&self, check: &Check) -> Result<()> {
        let InterfaceShape(plugin) = self;
        let at = &check.attachment;
        let context = ApplyContext::from(check);
        let mut errors = Errors::default();
        errors.note(P::source(&at.conf).find(&check.call).and_then(|source| source.check()));
        let (addresses, completed) = recorded(plugin, check);
        errors.note(completed);
        errors.note(verify(&[&plugin.link(at), &plugin.layer3(at, &addresses)], &context));
        errors.finish()
    }

    fn restore(&self, asked: &Check, journal: &mut Journal) -> Result<()> {
        let [link, layer3] = as_attached(&self.0, asked)?;
        restore(&[&link, &layer3], &ApplyContext::from(asked), journal)
    }

    fn restore_all(all: Vec<(Self, Check)>) -> Vec<Result<()>> {
        let planned = |(InterfaceShape(plugin), asked): (Self, Check)| {
            Ok((as_attached(&plugin, &asked)?.into(), ApplyContext::from(&asked)))
        };
        restore_all(all.into_iter().map(planned).collect())
    }

    fn gc(gc: &Gc) -> Result<()> {
        let context = GcContext::from(gc);
        let mut errors = sweep(P::KINDS, &context);
        if errors.any_to_try_again() {
            // Rules without their link and their address would be left. All of it is there for the next GC.
            return errors.finish();
        }
        let source = P::source(&gc.call.conf).find(&gc.call);
        let gone = errors.note(sweep(&[P::LINK], &context).finish());
        // A stale link that could not be removed still carries its address.
        if gone || source.as_ref().is_ok_and(FoundDelegate::needs_link) {
            errors.note(source.and_then(|source| source.gc()));
        }
        errors.finish()
    }

    fn status(&self, status: &Status) -> Result<()> {
        let source = P::source(&status.call.conf).find(&status.call).map_err(unavailable)?;
        self.0.status().map_err(unavailable)?;
        source.status()
    }

    fn plan(&self, preview: &DryRun) -> Result<DryRunReport> {
        let InterfaceShape(plugin) = self;
        let at = &preview.attachment;
        let link = plugin.link(at).lines();
        let mut steps = Vec::new();
        let source = P::source(&at.conf);
        let found = source.find(&preview.call)?;
        let mut before = preview.prev.clone().unwrap_or_default();
        let (given, mut addresses) = preview_addresses(&source, &found, &mut before)?;
        steps.extend(if found.needs_link() { [link, given] } else { [given, link] }.concat());
        plugin.complete(&mut addresses)?;
        requested::check(at, plugin.host_state(), &addresses)?;
        steps.extend(plugin.layer3(at, &addresses).lines());
        Ok(DryRunReport { steps, example: example_result(at, before, addresses) })
    }
}

/// The result that ADD might have: what came before, then the container's interface, whose MAC nobody knows yet, and its addresses.
/// Without `CNI_NETNS` the addresses are those of no interface, for one without a sandbox would be the host's.
fn example_result(at: &AttachmentSpec, mut answer: CniResult, addresses: Addresses) -> CniResult {
    let mut index = None;
    if !at.sandbox.is_empty() {
        index = i64::try_from(answer.interfaces.len()).ok();
        let name = at.tag.ifname.clone();
        let sandbox = at.sandbox.clone();
        answer.interfaces.push(Interface { name, sandbox, ..Interface::default() });
    }
    with_addresses(answer, addresses, index)
}

/// The two plans as they were carried out.
fn as_attached<P: InterfacePlugin>(plugin: &P, asked: &Check) -> Result<[Plan; 2]> {
    let at = &asked.attachment;
    let (addresses, completed) = recorded(plugin, asked);
    completed?;
    Ok([plugin.link(at), plugin.layer3(at, &addresses)])
}

/// The addresses of the ADD, and whether they could be completed as they were then.
fn recorded<P: InterfacePlugin>(plugin: &P, check: &Check) -> (Addresses, Result<()>) {
    let mut addresses = Addresses::recorded(&check.prev, |interface| check.attachment.is_own(interface));
    let completed = plugin.complete(&mut addresses);
    (addresses, completed)
}

/// The link first, so that it is released last.
fn kinds<P: InterfacePlugin>() -> Vec<Kind> {
    [&[P::LINK], P::KINDS].concat()
}

/// In what words a dry run says from where the addresses come, and what stands for them: what the IPAM plugin would give
/// next if it lives in this program, else an address of nobody's.
fn preview_addresses(
    source: &Source,
    found: &FoundDelegate,
    before: &mut CniResult,
) -> Result<(Vec<String>, Addresses)> {
    let name = match source {
        Source::Ipam(name) => name,
        Source::PrevResult => return Ok((Vec::new(), taken_over(before))),
        Source::Nowhere => return Ok((Vec::new(), Addresses::default())),
    };
    let (steps, addresses) = match found.preview() {
        Some(outline) => outline?,
        None => (vec![format!("addresses from {name}")], example()),
    };
    let stand_ins: Vec<String> = addresses.networks().iter().map(ToString::to_string).collect();
    let mut steps: Vec<String> = steps.into_iter().map(|step| format!("{name}: {step}")).collect();
    steps.push(format!("from here on with {}, as an example", stand_ins.join(" and ")));
    Ok((steps, addresses))
}

/// An address that a dry run shows in place of one that only ADD would get (RFC 5737).
fn example() -> Addresses {
    let stand_in = |address| Ip { gateway: "192.0.2.1".parse().ok(), ..Ip::new(address) };
    Addresses { ips: "192.0.2.2/24".parse().map(stand_in).into_iter().collect(), ..Addresses::default() }
}

/// What came before in the chain, then what was made, its MACs and MTUs read back once; every address tied to our end.
fn answer(
    at: &AttachmentSpec,
    mut answer: CniResult,
    context: &ApplyContext,
    made: Made,
    addresses: Addresses,
) -> Result<CniResult> {
    let before = answer.interfaces.len();
    for interface in made.interfaces {
        answer.interfaces.push(read_back(interface, context)?);
    }
    let ours = answer.interfaces[before..].iter().position(|one| at.is_own(one));
    let index = ours.and_then(|place| i64::try_from(before + place).ok());
    Ok(with_addresses(answer, addresses, index))
}

/// The answer with these addresses of the interface with this index.
fn with_addresses(mut answer: CniResult, addresses: Addresses, index: Option<i64>) -> CniResult {
    answer.ips.extend(addresses.ips.into_iter().map(|ip| Ip { interface: index, ..ip }));
    answer.routes.extend(addresses.routes);
    if !addresses.dns.is_empty() {
        answer.dns = addresses.dns;
    }
    answer
}

fn read_back(interface: Interface, context: &ApplyContext) -> Result<Interface> {
    let netlink = if interface.sandbox.is_empty() { context.host()? } else { context.container()? };
    let link = netlink.recent_link(&interface.name)?;
    let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    Ok(Interface { mac, mtu: Some(link.mtu), ..interface })
}
