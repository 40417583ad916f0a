//! The nemesis: faults at random, one after the other in each of two threads.

use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use cnikit_agent::engine::{Engine, EngineError, EtcdEngine, Listing};
use cnikit_pool::{KeyOfEngine, NodeFiles, SessionRecord};
use cnikit_process::{CancellationToken, Deadline};
use fastrand::Rng;

use super::history::Verb;
use super::recorder::Recorder;
use super::workers::Record;
use super::world::{Member, Node, SESSION, World};
use crate::cluster::runtime;
use crate::plugin::{Called, Disturbance};
use crate::running::{eventually, has_own_clock, log_of, scaled};

/// The faults of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkFault {
    NodeCutOff,
    NodeUnheard,
    NodeDeaf,
    MemberCutOff,
    MemberUnheard,
    AnswersLost,
    /// A node is cut off until its session has ended, while its agent runs.
    SessionLost,
}

/// The faults of machines and processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MachineFault {
    MemberKilled,
    MemberStopped,
    AgentKilled,
    AgentStopped,
    /// An agent is stopped until its session has ended, and goes on.
    AgentAsleep,
    Compaction,
    DiskFull,
    MemberDiskFull,
    Reboot,
    /// A node boots without its files, and its former incarnation is fenced.
    Reimage,
    Clone,
    FenceInPartition,
    /// The clock of all machines is set to another time. Only in a virtual machine, whose clock nobody else has.
    ClockJump,
}

const NETWORK: [NetworkFault; 7] = [
    NetworkFault::NodeCutOff,
    NetworkFault::NodeUnheard,
    NetworkFault::NodeDeaf,
    NetworkFault::MemberCutOff,
    NetworkFault::MemberUnheard,
    NetworkFault::AnswersLost,
    NetworkFault::SessionLost,
];
const MACHINE: [MachineFault; 13] = [
    MachineFault::MemberKilled,
    MachineFault::MemberStopped,
    MachineFault::AgentKilled,
    MachineFault::AgentStopped,
    MachineFault::AgentAsleep,
    MachineFault::Compaction,
    MachineFault::DiskFull,
    MachineFault::MemberDiskFull,
    MachineFault::Reboot,
    MachineFault::Reimage,
    MachineFault::Clone,
    MachineFault::FenceInPartition,
    MachineFault::ClockJump,
];

/// By how many seconds a clock is set forward or back.
const JUMPS: [i64; 8] = [-400 * 86_400, -86_400, -3_600, -7, 7, 3_600, 86_400, 400 * 86_400];

pub(super) struct Nemesis<'a> {
    pub(super) world: &'a World,
    pub(super) record: &'a Record,
    pub(super) recorder: &'a Recorder,
    /// Held by a fault of the network, and by a clone or a fence, which have no other fault beside them.
    alone: Mutex<()>,
    /// Whether a clone or a fence waits for it.
    wants_alone: AtomicBool,
    pub(super) faults: AtomicUsize,
    /// How often each thread has had every fault.
    pub(super) rounds: [AtomicUsize; 2],
    /// How many sessions ended while their agents lived.
    pub(super) ended_sessions: AtomicUsize,
    log: Mutex<String>,
}

impl<'a> Nemesis<'a> {
    pub(super) fn new(world: &'a World, record: &'a Record, recorder: &'a Recorder) -> Nemesis<'a> {
        let (faults, rounds) = (AtomicUsize::new(0), [AtomicUsize::new(0), AtomicUsize::new(0)]);
        Nemesis {
            world,
            record,
            recorder,
            alone: Mutex::new(()),
            wants_alone: AtomicBool::new(false),
            faults,
            rounds,
            ended_sessions: AtomicUsize::new(0),
            log: Mutex::new(String::new()),
        }
    }

    /// What was done, to look at after a failure.
    pub(super) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub(super) fn note(&self, text: impl std::fmt::Display) {
        let milliseconds = self.record.now() / 1_000;
        let _ = writeln!(self.log.lock().unwrap(), "{milliseconds} ms: {text}");
    }

    pub(super) fn disturb_network(&self, mut rng: Rng, stop: &AtomicBool) {
        let mut faults = NETWORK;
        while !stop.load(Ordering::SeqCst) {
            rng.shuffle(&mut faults);
            for fault in faults {
                while self.wants_alone.load(Ordering::SeqCst) {
                    Deadline::never().pause(Duration::from_millis(10));
                }
                let _held = self.alone.lock().unwrap();
                self.network_fault(fault, &mut rng);
                self.faults.fetch_add(1, Ordering::SeqCst);
                if stop.load(Ordering::SeqCst) {
                    return;
                }
            }
            self.rounds[0].fetch_add(1, Ordering::SeqCst);
        }
    }

    pub(super) fn disturb_machines(&self, mut rng: Rng, stop: &AtomicBool) {
        let mut faults = Vec::from(MACHINE);
        faults.retain(|fault| *fault != MachineFault::ClockJump || has_own_clock());
        while !stop.load(Ordering::SeqCst) {
            rng.shuffle(&mut faults);
            for fault in faults.iter().copied() {
                self.machine_fault(fault, &mut rng);
                self.faults.fetch_add(1, Ordering::SeqCst);
                // Load goes from node to node, so that blocks do.
                let node = &self.world.nodes[rng.usize(..self.world.nodes.len())];
                node.wanted.store([0, 2, 8, 20, 40][rng.usize(..5)], Ordering::Relaxed);
                if stop.load(Ordering::SeqCst) {
                    return;
                }
            }
            self.rounds[1].fetch_add(1, Ordering::SeqCst);
        }
    }

    fn network_fault(&self, fault: NetworkFault, rng: &mut Rng) {
        let world = self.world;
        let node = &world.nodes[rng.usize(..world.nodes.len())];
        let member = &world.members[rng.usize(..world.members.len())].machine;
        let members = world.machines_of_members();
        match fault {
            NetworkFault::NodeCutOff
            | NetworkFault::NodeUnheard
            | NetworkFault::NodeDeaf
            | NetworkFault::AnswersLost
            | NetworkFault::SessionLost => {
                self.note(format_args!("{fault:?} {}", node.name));
            }
            _ => self.note(format_args!("{fault:?} {}", member.address)),
        }
        let unheard = |machine| world.others(machine).into_iter().for_each(|other| other.lose_from(&[machine]));
        match fault {
            NetworkFault::NodeCutOff => {
                node.machine.lose_from(&members);
                unheard(&node.machine);
            }
            NetworkFault::SessionLost => {
                self.wait_for_session(node);
                node.machine.lose_from(&members);
                unheard(&node.machine);
                self.wait_until_session_has_ended(node);
            }
            NetworkFault::NodeUnheard => unheard(&node.machine),
            NetworkFault::NodeDeaf => node.machine.lose_from(&members),
            NetworkFault::MemberCutOff => {
                member.lose_from(&world.others(member));
                unheard(member);
            }
            NetworkFault::MemberUnheard => unheard(member),
            NetworkFault::AnswersLost => node.proxy.lose_answers(true),
        }
        pause(rng, 400..1_500);
        node.proxy.lose_answers(false);
        self.heal_network();
        self.note("the network is healed");
        pause(rng, 100..600);
    }

    pub(super) fn heal_network(&self) {
        let world = self.world;
        for machine in world.machines_of_members().into_iter().chain(world.nodes.iter().map(|node| &node.machine)) {
            machine.lose_nothing();
        }
    }

    fn machine_fault(&self, fault: MachineFault, rng: &mut Rng) {
        let world = self.world;
        let node = &world.nodes[rng.usize(..world.nodes.len())];
        let member = &world.members[rng.usize(..world.members.len())];
        self.note(format_args!("{fault:?} {} or {}", node.name, member.machine.address));
        match fault {
            MachineFault::MemberKilled => {
                member.kill();
                pause(rng, 200..1_500);
                member.start(&world.members);
            }
            MachineFault::MemberStopped => {
                member.signal("STOP");
                pause(rng, 200..1_500);
                member.signal("CONT");
            }
            MachineFault::AgentKilled => {
                node.kill_agent();
                pause(rng, 0..2_000);
                node.start_agent();
            }
            MachineFault::AgentStopped => {
                node.signal_agent("STOP");
                pause(rng, 200..2_000);
                node.signal_agent("CONT");
            }
            MachineFault::AgentAsleep => self.sleep(node, rng),
            MachineFault::Compaction => self.compact(member),
            MachineFault::DiskFull => self.fill(&node.store(), rng),
            MachineFault::MemberDiskFull => {
                self.fill(&member.data(), rng);
                // It has ended if it could not write.
                member.kill();
                member.start(&world.members);
            }
            MachineFault::ClockJump => self.set_clock(rng),
            MachineFault::Reboot => {
                node.power_off();
                self.record.gone(node);
                pause(rng, 0..500);
                node.power_on();
            }
            MachineFault::Reimage => self.reimage(node),
            MachineFault::Clone => {
                let _alone = self.without_others();
                self.clone(node);
            }
            MachineFault::FenceInPartition => {
                let _alone = self.without_others();
                self.fence(node, rng);
            }
        }
        self.note("the machines are well");
        pause(rng, 50..400);
    }

    /// Stops an agent until its session has ended.
    fn sleep(&self, node: &Node, rng: &mut Rng) {
        self.wait_for_session(node);
        // An agent that is stopped before it has its lock leaves that to the plugins, whose claims go on with the session.
        eventually("the agent does not listen", || node.agent_listens());
        node.signal_agent("STOP");
        self.wait_until_session_has_ended(node);
        pause(rng, 0..1_000);
        node.signal_agent("CONT");
    }

    /// Leaves no space in a file system for some time.
    fn fill(&self, directory: &Path, rng: &mut Rng) {
        let filler = directory.join("filler");
        self.world.switch.try_sh(&format!("head -c 1G /dev/zero >{}", filler.display()));
        pause(rng, 300..2_000);
        std::fs::remove_file(filler).unwrap();
    }

    /// Sets the clock to another time, at which it goes on.
    fn set_clock(&self, rng: &mut Rng) {
        let seconds = JUMPS[rng.usize(..JUMPS.len())];
        self.world.set_clock(seconds);
        self.note(format_args!("the clock is {seconds} s off"));
        pause(rng, 500..3_000);
    }

    /// Waits until the network is healed; it stays so as long as the value exists.
    fn without_others(&self) -> MutexGuard<'_, ()> {
        self.wants_alone.store(true, Ordering::SeqCst);
        let held = self.alone.lock();
        self.wants_alone.store(false, Ordering::SeqCst);
        held.unwrap()
    }

    /// The session of a node and its revision, if etcd answers and has one.
    fn session(&self, node: &Node) -> Result<Option<(i64, SessionRecord)>, EngineError> {
        let key = KeyOfEngine::Session(node.name.clone());
        let host = &self.world.operator.host;
        let runtime = host.enter(runtime);
        let engine = host.enter(|| EtcdEngine::new(self.world.settings()).unwrap());
        let sessions = host.enter(|| runtime.block_on(engine.list(&Listing::Sessions)))?;
        let mut of_node = sessions.into_iter().filter(|(found, _)| *found == key);
        Ok(of_node.next().and_then(|(_, stored)| Some((stored.revision, stored.record()?))))
    }

    /// Waits until a node's agent has a session of this boot. Returns its revision.
    fn wait_for_session(&self, node: &Node) -> i64 {
        let deadline = Deadline::after(scaled(Duration::from_mins(1)));
        loop {
            if let Ok(Some((revision, found))) = self.session(node)
                && found.boot.starts_with(&node.boot())
            {
                return revision;
            }
            let log = || log_of(node.machine.host.dir(), "agent");
            assert!(deadline.pause(Duration::from_millis(20)), "{} has no session\n{}", node.name, log());
        }
    }

    /// Waits until a session of a node has outlived its lease: its agent renews it. Faults before may have kept the agent from
    /// that, and then the session would end in the next moment.
    fn wait_for_renewed_session(&self, node: &Node) {
        let deadline = Deadline::after(scaled(Duration::from_mins(1)));
        // etcd looks for ended leases twice a second.
        let lease = scaled(Duration::from_secs(u64::from(SESSION) + 1));
        loop {
            let before = self.wait_for_session(node);
            let log = || log_of(node.machine.host.dir(), "agent");
            assert!(deadline.pause(lease), "the session of {} is not renewed\n{}", node.name, log());
            if self.wait_for_session(node) == before {
                return;
            }
        }
    }

    /// Waits until etcd has deleted a node's session, whose agent cannot renew it.
    fn wait_until_session_has_ended(&self, node: &Node) {
        let deadline = Deadline::after(scaled(Duration::from_mins(1)));
        while !self.session(node).is_ok_and(|found| found.is_none()) {
            assert!(deadline.pause(Duration::from_millis(100)), "the session of {} does not end", node.name);
        }
        self.ended_sessions.fetch_add(1, Ordering::SeqCst);
        self.note(format_args!("the session of {} has ended", node.name));
    }

    /// Boots a node with an empty disk, and fences the incarnation that it had.
    fn reimage(&self, node: &Node) {
        node.power_off();
        self.record.gone(node);
        let former = NodeFiles::new(node.files()).node().unwrap();
        // There are none if its power was cut before its agent had written any.
        if node.files().exists() {
            std::fs::remove_dir_all(node.files()).unwrap();
        }
        node.power_on();
        let Some(former) = former else { return };
        let fence = format!("fence {} --incarnation {} --by nemesis --why 'a new disk'", node.name, former.incarnation);
        let mut printed = String::new();
        let is_done = || {
            let (is_done, text) = self.world.operate(&fence);
            printed = text;
            is_done
        };
        eventually("a former incarnation cannot be fenced", is_done);
        self.note(&printed);
    }

    /// Compacts the history of etcd up to what the recorder has seen, so that reads of an earlier revision fail.
    fn compact(&self, member: &Member) {
        let revision = self.recorder.revision();
        let etcdctl = format!("ETCDCTL_API=3 etcdctl --endpoints {}", member.endpoint());
        self.world.operator.host.try_sh(&format!("{etcdctl} compact {revision}; {etcdctl} defrag"));
    }

    /// Fences a node that is cut off and whose power is cut, and boots it while it is still cut off.
    fn fence(&self, node: &Node, rng: &mut Rng) {
        let world = self.world;
        let members = world.machines_of_members();
        node.machine.lose_from(&members);
        world.others(&node.machine).into_iter().for_each(|other| other.lose_from(&[&node.machine]));
        pause(rng, 0..800);
        node.power_off();
        self.record.gone(node);
        let command = format!("fence {} --by nemesis --why 'its power is cut' --force", node.name);
        let mut printed = String::new();
        eventually("it cannot be fenced", || {
            let (is_done, text) = world.operate(&command);
            printed = text;
            is_done || printed.contains("there is no node")
        });
        self.note(&printed);
        pause(rng, 300..1_500);
        let before = self.record.now();
        node.power_on();
        pause(rng, 500..2_000);
        let given = self.record.given_since(node, before);
        assert!(given.is_empty(), "{} is fenced and cut off, and gave {given:?} after its boot", node.name);
        self.heal_network();
    }

    /// Starts a machine with a copy of a node's files and its name, while the node and its agent run.
    fn clone(&self, node: &Node) {
        let (world, clone) = (self.world, &self.world.clone);
        self.wait_for_renewed_session(node);
        let (from, to) = (node.files(), clone.files());
        world.switch.try_sh(&format!("rm -rf {1}; cp -a {0} {1}", from.display(), to.display()));
        let config = clone.machine.host.dir().join("agent.json");
        let text = std::fs::read_to_string(&config).unwrap();
        let mut parsed: serde_json::Value = serde_json::from_str(&text).unwrap();
        parsed["node"] = node.name.as_str().into();
        std::fs::write(&config, parsed.to_string()).unwrap();
        clone.start_agent();
        let network = clone.network(&[]);
        let token = CancellationToken::new().unwrap();
        let host = &clone.machine.host;
        let called = host.with_mounted(&[], || {
            clone.mount_boot();
            let add = |n| {
                let attachment = format!("clone-{}-{n}", self.record.now());
                self.record.call(clone, &network, Verb::Add, &attachment, Disturbance::None, &token)
            };
            (0..2).map(add).collect::<Vec<Called>>()
        });
        clone.kill_agent();
        let is_refused = called.iter().all(|called| matches!(called, Called::Failed(11, _)));
        assert!(is_refused, "a clone of {}: {called:?}\n{}", node.name, log_of(host.dir(), "agent"));
    }
}

fn pause(rng: &mut Rng, milliseconds: std::ops::Range<u64>) {
    Deadline::never().pause(scaled(Duration::from_millis(rng.u64(milliseconds))));
}
