//! The nemesis: faults at random, one after the other in each of two threads.

use std::fmt::Write;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use cnikit_agent::engine::{Engine, EtcdEngine, Listing};
use cnikit_pool::{KeyOfEngine, SessionRecord};
use cnikit_process::{CancellationToken, Deadline};
use fastrand::Rng;

use super::history::Verb;
use super::recorder::Recorder;
use super::workers::Record;
use super::world::{Member, Node, World};
use crate::cluster::runtime;
use crate::plugin::{Called, Disturbance};
use crate::running::{eventually, log_of};

/// The faults of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NetworkFault {
    NodeCutOff,
    NodeUnheard,
    NodeDeaf,
    MemberCutOff,
    MemberUnheard,
    AnswersLost,
}

/// The faults of machines and processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum MachineFault {
    MemberKilled,
    MemberStopped,
    AgentKilled,
    AgentStopped,
    Compaction,
    DiskFull,
    Reboot,
    Clone,
    FenceInPartition,
}

const NETWORK: [NetworkFault; 6] = [
    NetworkFault::NodeCutOff,
    NetworkFault::NodeUnheard,
    NetworkFault::NodeDeaf,
    NetworkFault::MemberCutOff,
    NetworkFault::MemberUnheard,
    NetworkFault::AnswersLost,
];
const MACHINE: [MachineFault; 9] = [
    MachineFault::MemberKilled,
    MachineFault::MemberStopped,
    MachineFault::AgentKilled,
    MachineFault::AgentStopped,
    MachineFault::Compaction,
    MachineFault::DiskFull,
    MachineFault::Reboot,
    MachineFault::Clone,
    MachineFault::FenceInPartition,
];

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
        let mut faults = MACHINE;
        while !stop.load(Ordering::SeqCst) {
            rng.shuffle(&mut faults);
            for fault in faults {
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
            | NetworkFault::AnswersLost => {
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
            MachineFault::Compaction => self.compact(member),
            MachineFault::DiskFull => {
                let filler = node.store().join("filler");
                world.switch.try_sh(&format!("head -c 64M /dev/zero >{}", filler.display()));
                pause(rng, 300..2_000);
                std::fs::remove_file(filler).unwrap();
            }
            MachineFault::Reboot => {
                node.power_off();
                self.record.gone(node);
                pause(rng, 0..500);
                node.power_on();
            }
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

    /// Waits until the network is healed; it stays so as long as the value exists.
    fn without_others(&self) -> MutexGuard<'_, ()> {
        self.wants_alone.store(true, Ordering::SeqCst);
        let held = self.alone.lock();
        self.wants_alone.store(false, Ordering::SeqCst);
        held.unwrap()
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
        let runtime = world.operator.host.enter(runtime);
        let engine = world.operator.host.enter(|| EtcdEngine::new(world.settings()).unwrap());
        let key = KeyOfEngine::Session(node.name.clone());
        let has_session = || {
            let sessions = world.operator.host.enter(|| runtime.block_on(engine.list(&Listing::Sessions)));
            let mut of_node = sessions.unwrap_or_default().into_iter().filter(|(found, _)| *found == key);
            let record = of_node.next().and_then(|(_, stored)| stored.record::<SessionRecord>());
            record.is_some_and(|session| session.boot.starts_with(&node.boot()))
        };
        let deadline = Deadline::after(Duration::from_mins(1));
        while !has_session() {
            let log = || log_of(node.machine.host.dir(), "agent");
            assert!(deadline.pause(Duration::from_millis(20)), "{} has no session\n{}", node.name, log());
        }
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
    Deadline::never().pause(Duration::from_millis(rng.u64(milliseconds)));
}
