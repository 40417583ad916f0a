//! A fault before every step.

use std::cell::Cell;
use std::fmt;
use std::path::Path;

use cnikit::plan::{ApplyContext, Drifts, Kind, Made, Plan, Resource};
use cnikit::types::NetConf;
use cnikit::{
    Addresses, AttachmentSpec, Chained, ChainedPlugin, CniResult, Error, Input, InterfacePlugin, InterfaceShape,
    Journal, Plugin, Plugins, Result, Source, Sources, code, input::Stdin, serve,
};
use serde::Deserialize;

use crate::campaign::{SummaryLine, assert_no_findings};
use crate::env::host::{Container, Host};
use crate::env::snapshot::{HINTS, HostSnapshot};
use crate::env::subject::Subject;
use crate::parallel::catch_panic;

thread_local! {
    /// Before which step of the ADD under way on this thread the fault is, counted over both plans.
    static FAULT: Cell<Option<usize>> = const { Cell::new(None) };
    /// Before which step something is made that cannot be undone.
    static CANNOT_UNDO: Cell<Option<usize>> = const { Cell::new(None) };
    /// How many steps the plan of the link has; that of layer 3 counts on from there.
    static LINK_STEPS: Cell<usize> = const { Cell::new(0) };
}

/// A plugin with a fault put into its plans.
#[derive(Debug, Deserialize)]
#[serde(transparent)]
pub struct Faulty<P>(P);

impl<P: InterfacePlugin> InterfacePlugin for Faulty<P> {
    const LINK: Kind = P::LINK;
    const KINDS: &'static [Kind] = P::KINDS;
    const SOURCES: Sources = P::SOURCES;
    const KNOWN_ARGS: Option<&'static [&'static str]> = P::KNOWN_ARGS;

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

/// Places count from 0 before the first step to the number of steps, after the last.
fn with_faults(plan: Plan, first: usize) -> Plan {
    let last = first + plan.len();
    let here = |place: Option<usize>| place.filter(|place| (first..=last).contains(place)).map(|place| place - first);
    let plan = match here(FAULT.get()) {
        Some(place) => plan.with_at(place, Fault),
        None => plan,
    };
    match here(CANNOT_UNDO.get()) {
        Some(place) => plan.with_at(place, CannotUndo),
        None => plan,
    }
}

/// A step that fails.
struct Fault;

/// A step whose undoing fails.
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

/// A fault before every step of the plans leaves nothing of the attachment; with something before it that cannot be undone,
/// nothing is given away that the rest still uses, and a DEL leaves nothing. How many places were tried.
///
/// The plugin runs in this process, with its IPAM plugin from the list beside it. One line says how many faults and pairs of
/// them were tried; nothing is tried after the first that leaves something.
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
    assert_eq!(call::<P>(&subject, &host, "ADD", "c-other", &running, plugins).0, 0, "the first ADD sets the stage");
    let mut places = 0;
    let mut pairs = 0;
    let went = catch_panic(|| {
        HostSnapshot::stable(&host);
        while fails_at::<P>(&subject, &host, places, plugins) {
            places += 1;
        }
        assert!(places > 1, "no step of the plan was reached");
        let before = HostSnapshot::of(&host);
        for (cannot_undo, place) in
            (0..places).flat_map(|place| (0..=place).map(move |cannot_undo| (cannot_undo, place)))
        {
            fails_twice::<P>(&subject, &host, &before, [cannot_undo, place], plugins);
            pairs += 1;
        }
    });
    let found: Vec<String> = went.err().into_iter().collect();
    let what = format!("steps {}", subject.title);
    let tried = places + pairs + found.len();
    let of = places + places * (places + 1) / 2;
    SummaryLine { tried, of: of.max(tried), found: found.len(), ..SummaryLine::new(what, "faults") }.print();
    assert_no_findings(&found);
    places
}

/// Whether there was such a step.
fn fails_at<P: Plugin>(subject: &Subject, host: &Host, place: usize, plugins: Plugins) -> bool {
    let container = subject.container(host);
    let before = HostSnapshot::of(host);
    let inside = HostSnapshot::inside(&container);
    let (exit, said) =
        with_fault_at(Some(place), None, || call::<P>(subject, host, "ADD", "c-fault", &container, plugins));
    if exit == 0 {
        let (exit, said) = call::<P>(subject, host, "DEL", "c-fault", &container, plugins);
        assert_eq!(exit, 0, "{said}");
        return false;
    }
    assert!(said.contains("a fault put here by a test"), "{said}");
    let when = format!("a fault before step {place}");
    HostSnapshot::of(host).assert_unchanged_since(&before, &HINTS, &when);
    HostSnapshot::inside(&container).assert_unchanged_since(&inside, &[], &when);
    true
}

/// A fault at the second place, and at the first something that the roll-back cannot undo.
fn fails_twice<P: Plugin>(subject: &Subject, host: &Host, before: &HostSnapshot, places: [usize; 2], plugins: Plugins) {
    let [cannot_undo, place] = places;
    let container = subject.container(host);
    let (exit, said) = with_fault_at(Some(place), Some(cannot_undo), || {
        call::<P>(subject, host, "ADD", "c-fault", &container, plugins)
    });
    assert_eq!(exit, 1, "{said}");
    let (exit, said) = call::<P>(subject, host, "DEL", "c-fault", &container, plugins);
    assert_eq!(exit, 0, "DEL after two faults ({cannot_undo}, {place}): {said}");
    let when = format!("DEL after a fault before step {place} and a stubborn thing before step {cannot_undo}");
    HostSnapshot::of(host).assert_unchanged_since(before, &HINTS, &when);
}

/// Calls the plugin in this process, on a thread that is on the host.
fn call<P: Plugin>(
    subject: &Subject,
    host: &Host,
    verb: &str,
    id: &str,
    container: &Container,
    plugins: Plugins,
) -> (u8, String) {
    let input = Input {
        command: verb.into(),
        container_id: id.into(),
        netns: container.path(),
        ifname: "eth0".into(),
        path: subject.bin.display().to_string(),
        stdin: Stdin::Given(subject.conf_of(verb, &container.path()).to_string().into_bytes()),
        ..Input::default()
    };
    let fault = FAULT.get();
    let cannot_undo = CANNOT_UNDO.get();
    host.enter(|| {
        FAULT.set(fault);
        CANNOT_UNDO.set(cannot_undo);
        let mut said = Vec::new();
        let exit = serve::<P>(&subject.plugin, input, plugins, &mut said);
        (exit, String::from_utf8_lossy(&said).into_owned())
    })
}

fn with_fault_at<T>(fault: Option<usize>, cannot_undo: Option<usize>, work: impl FnOnce() -> T) -> T {
    FAULT.set(fault);
    CANNOT_UNDO.set(cannot_undo);
    let done = work();
    FAULT.set(None);
    CANNOT_UNDO.set(None);
    done
}

/// A plugin directory in which every plugin of the list is this very program, so that it is called in this process.
fn plugin_directory(host: &Host, plugins: Plugins) -> std::path::PathBuf {
    let dir = host.dir().join("bin");
    std::fs::create_dir_all(&dir).unwrap();
    let us: std::path::PathBuf = std::fs::read_link(Path::new("/proc/self/exe")).unwrap();
    plugins.iter().for_each(|entry| std::os::unix::fs::symlink(&us, dir.join(entry.name)).unwrap());
    dir
}
