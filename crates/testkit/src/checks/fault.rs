//! Faults before every step of a plan.

use std::cell::Cell;
use std::fmt;
use std::path::Path;

use cnikit::plan::{ApplyContext, Drifts, Kind, Made, Plan, Resource};
use cnikit::types::NetConf;
use cnikit::{
    Addresses, AttachmentSpec, Chained, ChainedPlugin, CniResult, Error, Input, InterfacePlugin, InterfaceShape,
    Journal, Plugin, Plugins, Result, Source, Sources, Stdin, code, serve,
};
use serde::Deserialize;

use crate::campaign::{SummaryLine, assert_no_findings};
use crate::env::host::{Container, Host};
use crate::env::snapshot::{HINTS, HostSnapshot};
use crate::env::subject::Subject;
use crate::parallel::catch_panic;

thread_local! {
    /// The step of the current ADD before which the fault is inserted, counted over both plans.
    static FAULT: Cell<Option<usize>> = const { Cell::new(None) };
    /// The step before which a step is inserted that cannot be undone.
    static CANNOT_UNDO: Cell<Option<usize>> = const { Cell::new(None) };
    /// The number of steps of the link's plan. The steps of layer 3 are counted on from there.
    static LINK_STEPS: Cell<usize> = const { Cell::new(0) };
}

/// A plugin with faults inserted into its plans.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct Faulty<P>(P);

impl<P: InterfacePlugin> InterfacePlugin for Faulty<P> {
    const LINK: Kind = P::LINK;
    const KINDS: &'static [Kind] = P::KINDS;
    const SOURCES: Sources = P::SOURCES;
    const KNOWN_ARGS: Option<&'static [&'static str]> = P::KNOWN_ARGS;

    fn resolve(&self) -> Result<()> {
        self.0.resolve()
    }

    fn link(&self, at: &AttachmentSpec) -> Plan {
        let plan = self.0.link(at);
        LINK_STEPS.set(plan.len());
        with_faults(plan, 0)
    }

    fn source(conf: &NetConf) -> Source {
        P::source(conf)
    }

    fn complete(&self, addresses: &mut Addresses) -> Result<()> {
        self.0.complete(addresses)
    }

    fn layer3(&self, at: &AttachmentSpec, addresses: &Addresses) -> Plan {
        with_faults(self.0.layer3(at, addresses), LINK_STEPS.get() + 1)
    }
}

impl<P: ChainedPlugin> ChainedPlugin for Faulty<P> {
    const KINDS: &'static [Kind] = P::KINDS;
    const SOURCES: Sources = P::SOURCES;
    const KNOWN_ARGS: Option<&'static [&'static str]> = P::KNOWN_ARGS;

    fn plan(&self, at: &AttachmentSpec, prev: &CniResult) -> Result<Plan> {
        Ok(with_faults(self.0.plan(at, prev)?, 0))
    }

    fn amend(&self, at: &AttachmentSpec, answer: &mut CniResult) {
        self.0.amend(at, answer);
    }
}

/// Inserts the faults. Places are counted from 0 (before the first step) to the number of steps (after the last step).
fn with_faults(plan: Plan, first: usize) -> Plan {
    let last = first + plan.len();
    let mut plan = plan;
    if let Some(place) = FAULT.get()
        && (first..=last).contains(&place)
    {
        plan = plan.with_at(place - first, Fault);
    }
    if let Some(place) = CANNOT_UNDO.get()
        && (first..=last).contains(&place)
    {
        plan = plan.with_at(place - first, CannotUndo);
    }
    plan
}

/// A step that fails.
struct Fault;

/// A step that succeeds and cannot be undone.
struct CannotUndo;

impl Resource for Fault {
    fn kind(&self) -> Kind {
        Kind::goes_with_link("fault")
    }

    fn ensure(&self, _context: &ApplyContext, _journal: &mut Journal) -> Result<Made> {
        Err(Error::new(code::SYSTEM, "a fault put here by a test"))
    }

    fn verify(&self, _context: &ApplyContext, _drifts: &mut Drifts) -> Result<()> {
        Ok(())
    }
}

impl Resource for CannotUndo {
    fn kind(&self) -> Kind {
        Kind::goes_with_link("stubborn thing")
    }

    fn ensure(&self, _context: &ApplyContext, journal: &mut Journal) -> Result<Made> {
        let _ = journal.undo(&"a stubborn thing", |_| Err(Error::new(code::SYSTEM, "it cannot be undone")));
        Ok(Made::nothing())
    }

    fn verify(&self, _context: &ApplyContext, _drifts: &mut Drifts) -> Result<()> {
        Ok(())
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a fault")
    }
}

impl fmt::Display for CannotUndo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a stubborn thing")
    }
}

/// Checks that a fault before every step of the plans leaves nothing of the attachment. If an earlier step cannot be undone either,
/// nothing is released that the rest still uses, and a DEL leaves nothing. Returns the number of places that were tried.
///
/// The plugin runs in this process, with its IPAM plugin from `plugins`. One line reports how many faults and pairs of faults were
/// tried; the first failure ends the test.
pub fn leaves_nothing<P: InterfacePlugin>(subject: &Subject, plugins: Plugins) -> usize {
    inject_faults::<InterfaceShape<Faulty<P>>>(subject, plugins)
}

/// As [`leaves_nothing`], for a plugin that changes what other plugins made.
pub fn changes_nothing<P: ChainedPlugin>(subject: &Subject) -> usize {
    inject_faults::<Chained<Faulty<P>>>(subject, &[])
}

fn inject_faults<P: Plugin>(subject: &Subject, plugins: Plugins) -> usize {
    let host = subject.host();
    let mut subject = subject.at(host.dir());
    subject.bin = plugin_directory(&host, plugins);
    let running = subject.container(&host);
    assert_eq!(call::<P>(&subject, &host, "ADD", "c-other", &running, plugins).0, 0, "the ADD of another container");
    let mut counts = FaultCounts::default();
    let result = catch_panic(|| try_all_places::<P>(&subject, &host, plugins, &mut counts));
    let found: Vec<String> = result.err().into_iter().collect();
    let what = format!("steps {}", subject.title);
    let FaultCounts { places, pairs, .. } = counts;
    let tried = places + pairs + found.len();
    let of = places + places * (places + 1) / 2;
    SummaryLine { tried, of: of.max(tried), found: found.len(), ..SummaryLine::new(what, "faults") }.print();
    assert_no_findings(&found);
    places
}

/// The numbers of faults, and of pairs of faults, that were tried.
#[derive(Default)]
struct FaultCounts {
    places: usize,
    pairs: usize,
    /// The containers so far. What other plugins made for one on the host goes at some time after it, and would be a change.
    containers: Vec<Container>,
}

/// Tries a fault at every place, then every pair of places. Panics at the first failure.
fn try_all_places<P: Plugin>(subject: &Subject, host: &Host, plugins: Plugins, counts: &mut FaultCounts) {
    HostSnapshot::stable(host);
    loop {
        counts.containers.push(subject.container(host));
        if !fails_at::<P>(subject, host, counts, plugins) {
            break;
        }
        counts.places += 1;
    }
    assert!(counts.places > 1, "no step of the plan was reached");
    for place in 0..counts.places {
        for cannot_undo in 0..=place {
            let container = subject.container(host);
            fails_twice::<P>(subject, host, &container, [cannot_undo, place], plugins);
            counts.containers.push(container);
            counts.pairs += 1;
        }
    }
}

/// Adds the last container, with a fault before the next step. Returns false if there is no such step.
fn fails_at<P: Plugin>(subject: &Subject, host: &Host, counts: &FaultCounts, plugins: Plugins) -> bool {
    let place = counts.places;
    let container = &counts.containers[place];
    let before = HostSnapshot::of(host);
    let inside = HostSnapshot::inside(container);
    let (exit, output) =
        with_fault_at(Some(place), None, || call::<P>(subject, host, "ADD", "c-fault", container, plugins));
    if exit == 0 {
        let (exit, output) = call::<P>(subject, host, "DEL", "c-fault", container, plugins);
        assert_eq!(exit, 0, "{output}");
        return false;
    }
    assert!(output.contains("a fault put here by a test"), "{output}");
    let when = format!("a fault before step {place}");
    HostSnapshot::of(host).assert_unchanged_since(&before, &HINTS, &when);
    HostSnapshot::inside(container).assert_unchanged_since(&inside, &[], &when);
    true
}

/// Adds with a step that cannot be undone at the first place and a fault at the second.
fn fails_twice<P: Plugin>(subject: &Subject, host: &Host, container: &Container, places: [usize; 2], plugins: Plugins) {
    let [cannot_undo, place] = places;
    let before = HostSnapshot::of(host);
    let (exit, output) = with_fault_at(Some(place), Some(cannot_undo), || {
        call::<P>(subject, host, "ADD", "c-fault", container, plugins)
    });
    assert_eq!(exit, 1, "{output}");
    let (exit, output) = call::<P>(subject, host, "DEL", "c-fault", container, plugins);
    assert_eq!(exit, 0, "DEL after two faults ({cannot_undo}, {place}): {output}");
    let when = format!("DEL after a fault before step {place} and a stubborn thing before step {cannot_undo}");
    HostSnapshot::of(host).assert_unchanged_since(&before, &HINTS, &when);
}

/// Calls the plugin in this process, on a thread in the host's namespace.
fn call<P: Plugin>(
    subject: &Subject,
    host: &Host,
    verb: &str,
    id: &str,
    container: &Container,
    plugins: Plugins,
) -> (u8, String) {
    let env = subject.environment(verb, id, &container.path(), &[]);
    let variable =
        |key: &str| env.iter().rfind(|(one, _)| one == key).map(|(_, value)| value.clone()).unwrap_or_default();
    let conf = subject.conf_of(verb, &container.path()).to_string();
    let input = Input::from_variables(variable, Stdin::Given(conf.into_bytes()));
    let faults = [FAULT.get(), CANNOT_UNDO.get()];
    host.enter(|| serve_with_faults::<P>(&subject.plugin, input, plugins, faults))
}

/// Serves a call on this thread, which gets the faults of the calling thread. Returns exit status and stdout.
fn serve_with_faults<P: Plugin>(
    plugin: &str,
    input: Input,
    plugins: Plugins,
    faults: [Option<usize>; 2],
) -> (u8, String) {
    let [fault, cannot_undo] = faults;
    FAULT.set(fault);
    CANNOT_UNDO.set(cannot_undo);
    let mut stdout = Vec::new();
    let exit = serve::<P>(plugin, input, plugins, &mut stdout);
    (exit, String::from_utf8_lossy(&stdout).into_owned())
}

/// Runs `work` with faults inserted at these places.
fn with_fault_at<T>(fault: Option<usize>, cannot_undo: Option<usize>, work: impl FnOnce() -> T) -> T {
    FAULT.set(fault);
    CANNOT_UNDO.set(cannot_undo);
    let done = work();
    FAULT.set(None);
    CANNOT_UNDO.set(None);
    done
}

/// Makes a plugin directory in which every plugin of the list is a link to this program, so that it is called in this process.
fn plugin_directory(host: &Host, plugins: Plugins) -> std::path::PathBuf {
    let dir = host.dir().join("bin");
    std::fs::create_dir_all(&dir).unwrap();
    let us: std::path::PathBuf = std::fs::read_link(Path::new("/proc/self/exe")).unwrap();
    plugins.iter().for_each(|entry| std::os::unix::fs::symlink(&us, dir.join(entry.name)).unwrap());
    dir
}
