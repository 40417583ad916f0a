//! The shape of an interface plugin, which makes an interface in the container.

use cnikit_plan::{
    ApplyContext, GcContext, Kind, Made, Plan, ReleaseContext, apply, begin_release, preflight, restore, restore_all,
    sweep, verify,
};
use cnikit_skel::{
    Add, AttachmentSpec, Check, Del, DryRun, DryRunReport, Errors, Gc, Journal, Plugin, Result, Role, Sources, Status,
    UnknownKeys,
};
use cnikit_types::{CniResult, Interface, Ip, NetConf};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::addresses::Addresses;
use crate::requested::{self, HostState};
use crate::source::{FoundDelegate, Source, take_addresses, unavailable};

/// An interface plugin: the type is its configuration, the methods are its plans.
///
/// The plan of the link and the kind of the link are required. The addresses come from the configured IPAM plugin; the result,
/// CHECK, DEL, GC, STATUS and the dry run are derived from the plans. A link is made in its final namespace and with its final
/// name. `link` cannot fail, because an invalid configuration was refused when it was read.
///
/// A complete plugin that gives a container one end of a veth pair, addresses from its IPAM plugin, and routes by their gateways:
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
///         Plan::of(Veth::new(ifname, HostEnd::Routed).mtu(self.mtu.0).queues(1))
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
    /// The kind of the link itself. It is released after every other kind, and its addresses after it.
    const LINK: Kind;
    /// Every other kind in the plans that outlives the link.
    const KINDS: &'static [Kind] = &[];
    /// As [`Plugin::SOURCES`].
    const SOURCES: Sources = &[];
    /// As [`Plugin::KNOWN_ARGS`].
    const KNOWN_ARGS: Option<&'static [&'static str]> = None;
    /// As [`Plugin::EXAMPLE`].
    const EXAMPLE: &'static str = cnikit_skel::about::EXAMPLE;
    /// As [`Plugin::RELEASE`].
    const RELEASE: &'static str = cnikit_skel::about::RELEASE;
    /// As [`Plugin::UNKNOWN_KEYS`].
    const UNKNOWN_KEYS: UnknownKeys = UnknownKeys::Ignored;
    /// As [`Plugin::ROLE`].
    const ROLE: Option<Role> = None;

    /// Looks up on this node what the plans depend on and the configuration does not tell. ADD, CHECK and the dry run call it
    /// before they make a plan; it changes nothing.
    ///
    /// # Errors
    /// The configuration does not fit to this node.
    fn resolve(&self) -> Result<()> {
        Ok(())
    }

    /// The plan of the link. It reads and changes nothing.
    fn link(&self, at: &AttachmentSpec) -> Plan;

    /// The source of the addresses.
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

    /// The state that the host gets because of the addresses. If `runtimeConfig`, `args` or `CNI_ARGS` request an address, the
    /// network's configuration has to name its subnet, otherwise ADD is refused.
    fn host_state(&self) -> HostState {
        HostState::Nothing
    }

    /// The plan of addresses and routes. It reads and changes nothing.
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
    const EXAMPLE: &'static str = P::EXAMPLE;
    const RELEASE: &'static str = P::RELEASE;
    const UNKNOWN_KEYS: UnknownKeys = P::UNKNOWN_KEYS;
    const ROLE: Option<Role> = P::ROLE;

    fn add(&self, add: &Add, journal: &mut Journal) -> Result<CniResult> {
        let InterfaceShape(plugin) = self;
        let at = &add.attachment;
        let context = ApplyContext::from(add);
        let kinds = kinds::<P>();
        plugin.resolve()?;
        let link = plugin.link(at);
        preflight(&link, &kinds, &context)?;
        let from = P::source(&at.conf);
        let source = from.find(&add.call)?;
        let mut before = add.prev.clone().unwrap_or_default();
        let early = if source.needs_link() { Some(apply(&link, &context, journal)?) } else { None };
        let mut addresses = match from {
            Source::PrevResult => take_addresses(&mut before),
            Source::Ipam(_) | Source::Nowhere => source.addresses(journal)?,
        };
        plugin.complete(&mut addresses)?;
        requested::check(at, plugin.host_state(), &addresses)?;
        let layer3 = plugin.layer3(at, &addresses);
        preflight(&layer3, &kinds, &context)?;
        let made = match early {
            Some(made) => made,
            None => apply(&link, &context, journal)?,
        };
        apply(&layer3, &context, journal)?;
        result(at, before, &context, made, addresses)
    }

    fn del(del: &Del) -> Result<()> {
        let context = ReleaseContext::from(del);
        let mut errors = begin_release(P::KINDS, &context);
        let release_link = || begin_release(&[P::LINK], &context).finish();
        match P::source(&del.call.conf).find(&del.call) {
            // A DHCP lease is released over the link, so the link is released last.
            Ok(source) if source.needs_link() => {
                errors.note(context.run_deferred().finish());
                errors.note(source.del());
                errors.note(release_link());
            }
            // No other attachment must get the address while the link may still have it.
            source => {
                let released = release_link();
                errors.note(context.run_deferred().finish());
                match released {
                    Ok(()) => errors.note(source.and_then(|source| source.del())),
                    Err(error) => errors.note(Err(error)),
                };
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
        plugin.resolve()?;
        errors.note(verify(&[&plugin.link(at), &plugin.layer3(at, &addresses)], &context));
        errors.finish()
    }

    fn restore(&self, asked: &Check, journal: &mut Journal) -> Result<()> {
        let [link, layer3] = as_attached(&self.0, asked)?;
        restore(&[&link, &layer3], &ApplyContext::from(asked), journal)
    }

    fn restore_all(all: Vec<(Self, Check)>) -> Vec<Result<()>> {
        let mut planned = Vec::with_capacity(all.len());
        for (InterfaceShape(plugin), asked) in all {
            let plans = as_attached(&plugin, &asked);
            planned.push(plans.map(|plans| (plans.into(), ApplyContext::from(&asked))));
        }
        restore_all(planned)
    }

    fn gc(gc: &Gc) -> Result<()> {
        let context = GcContext::from(gc);
        let mut errors = sweep(P::KINDS, &context);
        if errors.any_to_try_again() {
            // Otherwise rules would remain without their link and their address. The next GC still finds all of them.
            return errors.finish();
        }
        let source = P::source(&gc.call.conf).find(&gc.call);
        let released = errors.note(sweep(&[P::LINK], &context).finish());
        // A stale link that could not be removed still has its address.
        if released || source.as_ref().is_ok_and(FoundDelegate::needs_link) {
            errors.note(source.and_then(|source| source.gc()));
        }
        errors.finish()
    }

    fn status(&self, status: &Status) -> Result<()> {
        let source = P::source(&status.call.conf).find(&status.call).map_err(unavailable)?;
        self.0.status().map_err(unavailable)?;
        source.status()
    }

    fn plan(&self, dry_run: &DryRun) -> Result<DryRunReport> {
        let InterfaceShape(plugin) = self;
        let at = &dry_run.attachment;
        plugin.resolve()?;
        let link = plugin.link(at).lines();
        let mut steps = Vec::new();
        let source = P::source(&at.conf);
        let found = source.find(&dry_run.call)?;
        let mut before = dry_run.prev.clone().unwrap_or_default();
        let (given, mut addresses) = example_addresses(&source, &found, &mut before)?;
        steps.extend(if found.needs_link() { [link, given] } else { [given, link] }.concat());
        plugin.complete(&mut addresses)?;
        requested::check(at, plugin.host_state(), &addresses)?;
        steps.extend(plugin.layer3(at, &addresses).lines());
        Ok(DryRunReport { steps, example: example_result(at, before, addresses) })
    }
}

/// The result that ADD might have: that of the plugins before it, then the container's interface, whose MAC is not known yet, and
/// its addresses. Without `CNI_NETNS` the addresses belong to no interface, because an interface without a sandbox is the host's.
fn example_result(at: &AttachmentSpec, mut result: CniResult, addresses: Addresses) -> CniResult {
    let mut index = None;
    if !at.sandbox.is_empty() {
        index = i64::try_from(result.interfaces.len()).ok();
        let name = at.tag.ifname.clone();
        let sandbox = at.sandbox.clone();
        result.interfaces.push(Interface { name, sandbox, ..Interface::default() });
    }
    with_addresses(result, addresses, index)
}

/// The two plans that ADD applied.
fn as_attached<P: InterfacePlugin>(plugin: &P, asked: &Check) -> Result<[Plan; 2]> {
    let at = &asked.attachment;
    let (addresses, completed) = recorded(plugin, asked);
    completed?;
    Ok([plugin.link(at), plugin.layer3(at, &addresses)])
}

/// The recorded addresses, and whether [`InterfacePlugin::complete`] accepted them.
fn recorded<P: InterfacePlugin>(plugin: &P, check: &Check) -> (Addresses, Result<()>) {
    let mut addresses = Addresses::recorded(&check.prev, |interface| check.attachment.is_own(interface));
    let completed = plugin.complete(&mut addresses);
    (addresses, completed)
}

/// All kinds. The link is the first one, so that it is released last.
fn kinds<P: InterfacePlugin>() -> Vec<Kind> {
    [&[P::LINK], P::KINDS].concat()
}

/// The steps and the addresses that a dry run shows: those that the IPAM plugin would allocate next if it is part of this binary,
/// otherwise an address for documentation.
fn example_addresses(
    source: &Source,
    found: &FoundDelegate,
    before: &mut CniResult,
) -> Result<(Vec<String>, Addresses)> {
    let name = match source {
        Source::Ipam(name) => name,
        Source::PrevResult => return Ok((Vec::new(), take_addresses(before))),
        Source::Nowhere => return Ok((Vec::new(), Addresses::default())),
    };
    let (planned, addresses) = match found.plan() {
        Some(planned) => planned?,
        None => (vec!["assigns the addresses".to_owned()], documentation_address()),
    };
    let mut steps: Vec<String> = planned.into_iter().map(|step| format!("{name}: {step}")).collect();
    let examples: Vec<String> = addresses.networks().iter().map(ToString::to_string).collect();
    steps.push(format!("the next steps are with the example {}", examples.join(" and ")));
    Ok((steps, addresses))
}

/// An address for documentation (RFC 5737). A dry run shows it in place of one that only ADD would get.
fn documentation_address() -> Addresses {
    let mut addresses = Addresses::default();
    if let Ok(address) = "192.0.2.2/24".parse() {
        addresses.ips.push(Ip { gateway: "192.0.2.1".parse().ok(), ..Ip::new(address) });
    }
    addresses
}

/// The result of the plugins before this one, then the interfaces that were made, with the MACs and MTUs that the kernel reports,
/// and the addresses, which belong to the container's interface.
fn result(
    at: &AttachmentSpec,
    mut result: CniResult,
    context: &ApplyContext,
    made: Made,
    addresses: Addresses,
) -> Result<CniResult> {
    let before = result.interfaces.len();
    for interface in made.interfaces {
        result.interfaces.push(read_back(interface, context)?);
    }
    result.interfaces.extend(made.without_link);
    let own = result.interfaces[before..].iter().position(|one| at.is_own(one));
    let index = own.and_then(|own| i64::try_from(before + own).ok());
    Ok(with_addresses(result, addresses, index))
}

/// The result with these addresses of the interface with this index.
fn with_addresses(mut result: CniResult, addresses: Addresses, index: Option<i64>) -> CniResult {
    for ip in addresses.ips {
        result.ips.push(Ip { interface: index, ..ip });
    }
    result.routes.extend(addresses.routes);
    if !addresses.dns.is_empty() {
        result.dns = addresses.dns;
    }
    result
}

/// The interface with its MAC and MTU as the kernel reports them.
fn read_back(interface: Interface, context: &ApplyContext) -> Result<Interface> {
    let netlink = if interface.sandbox.is_empty() { context.host()? } else { context.container()? };
    let link = netlink.recent_link(&interface.name)?;
    let mac = link.mac.map(|mac| mac.to_string()).unwrap_or_default();
    Ok(Interface { mac, mtu: Some(link.mtu), ..interface })
}

#[cfg(test)]
pub(crate) mod tests {
    use cnikit_skel::AttachmentId;
    use cnikit_types::{Args, Dns, Version};

    use super::*;

    /// The attachment of `eth0` with this configuration and these `CNI_ARGS`.
    pub(crate) fn attachment(sandbox: &str, conf: &str, args: &str) -> AttachmentSpec {
        AttachmentSpec {
            tag: AttachmentId { network: "n".into(), container: "c".into(), ifname: "eth0".into() },
            sandbox: sandbox.into(),
            conf: NetConf::parse(conf.as_bytes()).unwrap(),
            version: Version::NEWEST,
            args: Args::parse(args).unwrap(),
            respelled: Vec::new(),
        }
    }

    fn before() -> CniResult {
        let interfaces = vec![Interface { name: "lo".into(), sandbox: "/n".into(), ..Interface::default() }];
        CniResult { interfaces, dns: Dns { domain: "before".into(), ..Dns::default() }, ..CniResult::default() }
    }

    #[test]
    fn an_example_has_the_interface_behind_those_before_it_and_its_addresses() {
        let example = example_result(&attachment("/n", "{}", ""), before(), documentation_address());
        let own = Interface { name: "eth0".into(), sandbox: "/n".into(), ..Interface::default() };
        assert_eq!(example.interfaces, [before().interfaces, vec![own]].concat());
        let [ip] = &example.ips[..] else { panic!("{example:?}") };
        assert_eq!((ip.address.to_string().as_str(), ip.interface), ("192.0.2.2/24", Some(1)));
        assert_eq!(ip.gateway, "192.0.2.1".parse().ok());
        let nowhere = example_result(&attachment("", "{}", ""), before(), documentation_address());
        assert_eq!((nowhere.interfaces, nowhere.ips[0].interface), (before().interfaces, None));
    }

    #[test]
    fn a_result_has_the_dns_of_its_addresses_or_that_of_the_result_before() {
        let with = |dns: Dns| with_addresses(before(), Addresses { dns, ..Addresses::default() }, None).dns;
        let own = Dns { domain: "own".into(), ..Dns::default() };
        assert_eq!([with(own.clone()), with(Dns::default())], [own, before().dns]);
    }

    #[test]
    fn a_dry_run_shows_what_the_result_before_has_or_nothing() {
        let addresses = documentation_address();
        let mut chained = with_addresses(before(), addresses.clone(), None);
        let shown =
            |source, before: &mut CniResult| example_addresses(&source, &FoundDelegate::none(), before).unwrap();
        assert_eq!(shown(Source::Nowhere, &mut chained), (Vec::new(), Addresses::default()));
        let taken = Addresses { dns: before().dns, ..addresses.clone() };
        assert_eq!(shown(Source::PrevResult, &mut chained), (Vec::new(), taken));
        assert!(chained.ips.is_empty() && chained.dns.is_empty());
        let steps = ["elsewhere: assigns the addresses", "the next steps are with the example 192.0.2.2/24"];
        let elsewhere = Source::Ipam("elsewhere".into());
        assert_eq!(shown(elsewhere, &mut chained), (steps.map(str::to_owned).to_vec(), addresses));
    }
}
