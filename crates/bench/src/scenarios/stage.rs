//! The environment in which one side's plugins are called: a host, containers and a directory of its own.

use std::fs;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cnikit_netns::{Netns, make};
use cnikit_process::{Deadline, Env, Program};
use serde_json::{Map, Value, json};
use tempfile::{Builder, TempDir};

use crate::Result;
use crate::scenarios::runtime;
use crate::scenarios::{Foreign, LACKING, Scenario, Verb};
use crate::spawn::{self, Ready, Run};

/// The binary of all our plugins, beside their launchers.
pub(crate) const BINARY: &str = "cni-plugins";

/// A directory of plugins to be measured.
#[derive(Clone, Debug)]
pub(crate) struct Side {
    pub(crate) name: String,
    /// The directory that they are in.
    pub(crate) bin: PathBuf,
    /// Its cnitool.
    pub(crate) tool: Option<PathBuf>,
    /// The only plugin of this directory that is measured; `None`: all of them.
    pub(crate) only: Option<String>,
}

/// A host and containers, made for one scenario and removed after it.
#[derive(Debug)]
pub(crate) struct Stage<'a> {
    side: &'a Side,
    scenario: &'a Scenario,
    host: Netns,
    containers: Vec<Container>,
    /// It is removed with the `TMPDIR` of the script and not after the scenario: ext4 skips every recently freed inode before it
    /// allocates one, so the removal of thousands of files here would slow down the ADDs of the next scenario.
    dir: TempDir,
    /// Set over the environment of every call.
    pub(crate) env: Vec<(String, String)>,
    /// The program that starts the plugin, with its arguments; empty, or a tracer that is given a file to write to.
    through: Vec<String>,
}

#[derive(Debug)]
struct Container {
    netns: Netns,
    /// The result of ADD.
    prev: Option<Value>,
}

/// One verb in one round: the time until all containers were done, and the cost of each call.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) verb: Verb,
    pub(crate) took: Duration,
    pub(crate) runs: Vec<Run>,
    /// The error message of a DEL that failed. It is measured all the same; whatever it left behind makes the next ADD fail.
    pub(crate) complaint: Option<String>,
}

/// In the reason why something was not measured, the place of the names of the sides that it is true of.
pub(crate) const SIDE: &str = "<side>";

/// The name of our side.
pub(crate) const OURS: &str = "cnikit";

/// The search path on which plugins find iptables and nft.
pub(crate) const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// The longest time for a command that prepares a scenario.
const TIMEOUT: Duration = Duration::from_mins(2);

/// Why a cold start cannot be measured: a matter of the file system, as with tmpfs, and not of the plugin's.
pub(crate) const WARM: &str = "the binary could not be dropped from the page cache";

/// The first of the addresses that are reserved beforehand, in 10.97.0.0/16.
const FIRST: u32 = 0x0a61_0002;

impl<'a> Stage<'a> {
    /// Sets the scenario: its reservations and foreign rules are there when this returns.
    pub(crate) fn new(side: &'a Side, scenario: &'a Scenario) -> Result<Stage<'a>> {
        if let Some(only) = side.only.as_ref().filter(|only| *only != scenario.plugin) {
            return Err(format!("of {SIDE} only {only} is measured"));
        }
        if !side.bin.join(scenario.plugin).exists() {
            return Err(format!("{SIDE} has no plugin {}", scenario.plugin));
        }
        let container = |_| Ok(Container { netns: netns()?, prev: None });
        let containers = (0..scenario.at_once).map(container).collect::<Result<_>>()?;
        let dir = Builder::new().disable_cleanup(true).tempdir();
        let dir = dir.map_err(|error| format!("a temporary directory: {error}"))?;
        let env = Vec::new();
        let through = Vec::new();
        let stage = Stage { side, scenario, host: netns()?, containers, dir, env, through };
        stage.sh("ip link set lo up", "")?;
        stage.sh(&stage.placed(scenario.before), "").map_err(lacking)?;
        stage.prepare_containers(scenario.inside)?;
        stage.reserve().map_err(|error| format!("{}: {error}", stage.leases().display()))?;
        stage.write_list()?;
        if scenario.kept {
            runtime::keep(stage.dir(), (0..scenario.reserved).map(|n| (owner(n), reserved(n))))?;
        }
        stage.add_foreign_rules()?;
        Ok(stage)
    }

    fn prepare_containers(&self, line: &str) -> Result<()> {
        let line = line.replace("HOST", &path(&self.host));
        self.containers.iter().try_for_each(|one| shell(&one.netns, &line, "").map(drop))
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The verbs of a round.
    pub(crate) fn verbs(&self) -> &'a [Verb] {
        self.scenario.steps
    }

    /// Runs a shell line on the host; it has to succeed.
    pub(crate) fn sh(&self, line: &str, input: &str) -> Result<String> {
        shell(&self.host, line, input)
    }

    /// One round: every verb of the scenario, each for all containers at once.
    pub(crate) fn round(&mut self) -> Result<Vec<Step>> {
        self.scenario.steps.iter().map(|verb| self.step(*verb)).collect()
    }

    /// As [`Stage::round`], and checks that the side does the work of the scenario.
    pub(crate) fn first_round(&mut self) -> Result<()> {
        let (proven, line) = self.scenario.proof;
        for verb in self.scenario.steps {
            let step = self.step(*verb)?;
            if self.scenario.cold && step.runs.iter().any(|run| run.faults.1 == 0) {
                return Err(WARM.to_owned());
            }
            if *verb == proven {
                self.sh(&self.placed(line), "").map_err(|_| {
                    let plugin = self.scenario.plugin;
                    let verb = verb.name();
                    format!("with {SIDE}, {plugin} does not do what this row measures: after {verb}, `{line}` fails")
                })?;
            }
        }
        Ok(())
    }

    /// One verb, for all containers at once.
    pub(crate) fn step(&mut self, verb: Verb) -> Result<Step> {
        let who = if verb.is_of_a_container() { 0..self.containers.len() } else { 0..1 };
        if self.scenario.cold {
            evict(&self.plugin())?;
        }
        let ready: Vec<Ready> = who.map(|index| self.ready(verb, index)).collect::<Result<_>>()?;
        let (took, runs) = self.on_host(|| run(ready))?.map_err(|error| format!("{}: {error}", self.side.name))?;
        Deadline::never().pause(self.scenario.pause);
        let complaint = runs.iter().find(|run| run.status != 0).map(|run| self.complaint(verb, run));
        if !verb.takes_down()
            && let Some(complaint) = complaint
        {
            return Err(complaint);
        }
        if verb == Verb::Add {
            self.remember(&runs);
        }
        if verb == Verb::Del && self.scenario.is_renewed {
            self.prepare_containers(&format!("ip link delete eth0; {}", self.scenario.inside))?;
        }
        Ok(Step { verb, took, runs, complaint })
    }

    /// As [`Stage::step`], but each call is started through a program, which is given a file to write to after these arguments.
    /// Returns the content of that file for each call.
    pub(crate) fn step_through(&mut self, program: &[&str], verb: Verb) -> Result<Vec<String>> {
        let _ = (0..self.containers.len()).try_for_each(|index| fs::remove_file(self.said(index))); // none before the first
        self.through = program.iter().map(|word| (*word).to_owned()).collect();
        let step = self.step(verb);
        self.through.clear();
        let read = |index| {
            let file = self.said(index);
            fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()))
        };
        (0..step?.runs.len()).map(read).collect()
    }

    /// Where the program that a call is started through writes to.
    fn said(&self, index: usize) -> PathBuf {
        self.dir().join(format!("said-{index}"))
    }

    fn on_host<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T> {
        self.host.enter(|_| work()).map_err(|error| error.to_string())
    }

    /// The error message of the plugin, which is on stdout.
    fn complaint(&self, verb: Verb, run: &Run) -> String {
        let error: Value = serde_json::from_slice(&run.stdout).unwrap_or_default();
        let said = [&error["msg"], &error["details"]].map(|part| part.as_str().unwrap_or_default());
        let stderr = String::from_utf8_lossy(&run.stderr);
        let first_line = stderr.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim();
        let said = [said[0], said[1], first_line].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>();
        let name = verb.name();
        // The name of a command begins with that of cnitool.
        let call = if verb.command().is_some() { name.to_owned() } else { format!("{} {name}", self.scenario.plugin) };
        format!("with {SIDE}, {call} fails: {}", said.join("; "))
    }

    fn remember(&mut self, runs: &[Run]) {
        for (container, run) in self.containers.iter_mut().zip(runs) {
            container.prev = serde_json::from_slice(&run.stdout).ok();
        }
    }

    /// A text of the scenario, with the directory instead of `DIR`.
    fn placed(&self, text: &str) -> String {
        let text = text.replace("BIN", &self.side.bin.display().to_string());
        text.replace("DIR", &self.dir().display().to_string())
    }

    fn plugin(&self) -> PathBuf {
        self.side.bin.join(self.scenario.plugin)
    }

    fn ready(&self, verb: Verb, index: usize) -> Result<Ready> {
        let container = &self.containers[index];
        let pairs = [
            ("PATH", PATH.to_owned()),
            ("CNI_COMMAND", verb.of_plugin().to_owned()),
            ("CNI_PATH", self.side.bin.display().to_string()),
            ("CNI_CONTAINERID", format!("bench-{index}")),
            ("CNI_IFNAME", if self.scenario.plugin == "loopback" { "lo" } else { "eth0" }.to_owned()),
            ("CNI_NETNS", path(&container.netns)),
            // Upstream has no variable for the directory of the cache: scripts/bench puts that directory on the same disk.
            ("CNI_CACHE_DIR", self.dir().join("state").display().to_string()),
            ("NETCONFPATH", self.dir().join("net.d").display().to_string()),
        ];
        // A strict plugin refuses variables that its verb does not use.
        let of_a_container = |key: &str| ["CNI_CONTAINERID", "CNI_IFNAME", "CNI_NETNS"].contains(&key);
        let pairs = pairs.into_iter().filter(|(key, _)| verb.is_of_a_container() || !of_a_container(key));
        let of_scenario = self.scenario.env.iter().map(|(key, value)| ((*key).to_owned(), self.placed(value)));
        let capabilities = self.scenario.capabilities().map(|asked| ("CAP_ARGS".to_owned(), asked.to_string()));
        let pairs = pairs.map(|(key, value)| (key.to_owned(), value)).chain(capabilities);
        let env: Vec<_> = pairs.chain(of_scenario).chain(self.env.iter().cloned()).collect();
        let file = (!self.through.is_empty()).then(|| self.said(index).display().to_string());
        let called = self.words(verb, container)?;
        let words: Vec<_> = self.through.iter().cloned().chain(file).chain(called.iter().cloned()).collect();
        let input = Value::Object(self.conf(verb, container)?).to_string();
        let ready = Ready::new(&words, &env, input.as_bytes());
        let ready = if verb.is_talkative() { ready.and_then(Ready::talkative) } else { ready };
        ready.map_err(|error| format!("{}: {error}", called[0]))
    }

    /// The program and its arguments.
    fn words(&self, verb: Verb, container: &Container) -> Result<Vec<String>> {
        let (program, words) = if let Some(words) = verb.command() {
            let tool = self.side.tool.as_ref().ok_or_else(|| format!("{SIDE} has no cnitool"))?;
            (tool.clone(), words.replace("NETNS", &path(&container.netns)))
        } else if let Some(words) = verb.own_words() {
            if self.side.tool.is_none() || self.side.name != OURS {
                return Err("only cnikit has the program that this row measures".to_owned());
            }
            (std::env::current_exe().map_err(|error| error.to_string())?, self.placed(words))
        } else if verb == Verb::VersionLinked {
            (self.linked()?, String::new())
        } else {
            (self.plugin(), String::new())
        };
        let words = words.split(' ').filter(|word| !word.is_empty()).map(str::to_owned);
        let mut all: Vec<String> = std::iter::once(program.display().to_string()).chain(words).collect();
        if verb.is_of_all_containers() {
            all.push(self.side.bin.display().to_string());
            all.extend(self.containers.iter().map(|container| path(&container.netns)));
        }
        Ok(all)
    }

    /// The plugin as a hard link to the binary of all.
    fn linked(&self) -> Result<PathBuf> {
        if self.side.name != OURS {
            return Err(format!("{SIDE} has no launchers"));
        }
        let link = self.dir().join(self.scenario.plugin);
        if !link.exists() {
            let binary = self.side.bin.join(BINARY);
            fs::hard_link(&binary, &link).map_err(|error| format!("{}: {error}", binary.display()))?;
        }
        Ok(link)
    }

    /// Writes the network list for cnitool and a runtime.
    fn write_list(&self) -> Result<()> {
        let speaks = self.scenario.steps.iter().map(|verb| verb.spoken_since()).max().unwrap_or_default();
        let text = self.placed(self.scenario.conf);
        let mut first: Map<String, Value> = serde_json::from_str(&text).map_err(|error| format!("{text}: {error}"))?;
        first.insert("type".to_owned(), self.scenario.plugin.into());
        let version = first.remove("cniVersion").unwrap_or(speaks.into());
        let then = self
            .scenario
            .then
            .iter()
            .map(|text| serde_json::from_str(text).map_err(|error| format!("{text}: {error}")));
        let plugins: Vec<Value> = std::iter::once(Ok(first.into())).chain(then).collect::<Result<_>>()?;
        let dir = self.dir().join("net.d");
        let list = json!({"cniVersion": version, "name": "bench", "plugins": plugins});
        let written = fs::create_dir_all(&dir).and_then(|()| fs::write(dir.join("bench.conflist"), list.to_string()));
        written.map_err(|error| format!("{}: {error}", dir.display()))
    }

    fn conf(&self, verb: Verb, container: &Container) -> Result<Map<String, Value>> {
        let text = self.placed(self.scenario.conf);
        let mut conf: Map<String, Value> = serde_json::from_str(&text).map_err(|error| format!("{text}: {error}"))?;
        let version = verb.spoken_since();
        let name = "bench";
        conf.extend([("name".to_owned(), name.into()), ("type".to_owned(), self.scenario.plugin.into())]);
        conf.entry("cniVersion").or_insert(version.into());
        conf.extend(self.scenario.capabilities().map(|asked| ("runtimeConfig".to_owned(), asked)));
        if let (Some(prev), true) = (&container.prev, verb.takes_prev()) {
            conf.insert("prevResult".to_owned(), prev.clone());
        }
        if verb == Verb::Gc {
            let valid = |n: u32| json!({"containerID": owner(n), "ifname": "eth0"});
            conf.insert("cni.dev/valid-attachments".to_owned(), (0..self.scenario.reserved).map(valid).collect());
        }
        Ok(conf)
    }

    fn leases(&self) -> PathBuf {
        self.dir().join("leases/bench")
    }

    /// Reservations in the format of upstream's host-local.
    fn reserve(&self) -> std::io::Result<()> {
        let dir = self.leases();
        let address = |n| reserved(n).to_string();
        fs::create_dir_all(&dir)?;
        for n in 0..self.scenario.reserved {
            fs::write(dir.join(address(n)), format!("{}\r\neth0", owner(n)))?;
        }
        match self.scenario.reserved.checked_sub(1) {
            Some(last) => fs::write(dir.join("last_reserved_ip.0"), address(last)),
            None => Ok(()),
        }
    }

    fn add_foreign_rules(&self) -> Result<()> {
        let address = |n: u32| std::net::Ipv4Addr::from(0x0b00_0000 + n);
        let rule = |n| format!("ip saddr {} counter accept\n", address(n));
        let line = |n| format!("-A THEIRS -s {} -j ACCEPT\n", address(n));
        let (program, text) = match self.scenario.foreign_rules {
            Foreign::Nftables(0) | Foreign::Iptables(0) => return Ok(()),
            Foreign::Nftables(count) => {
                let rules: String = (0..count).map(rule).collect();
                ("nft -f -", format!("table inet foreign {{\nchain theirs {{\n{rules}}}\n}}\n"))
            }
            Foreign::Iptables(count) => {
                let rules: String = (0..count).map(line).collect();
                ("iptables-restore --noflush", format!("*nat\n:THEIRS - [0:0]\n{rules}COMMIT\n"))
            }
        };
        self.sh(program, &text).map(drop)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        if !self.scenario.after.is_empty() {
            let _ = self.sh(&self.placed(self.scenario.after), ""); // what did not start has no number
        }
    }
}

/// The error, reduced to what the kernel lacks if that is its cause.
fn lacking(why: String) -> String {
    match why.rfind(LACKING) {
        Some(at) => format!("{}: `scripts/bench --vm` has one that does not", why[at..].trim()),
        None => why,
    }
}

/// Runs a shell line in a network namespace with an input. It has to succeed. Returns its output.
pub(crate) fn shell(netns: &Netns, line: &str, input: &str) -> Result<String> {
    let program = Program::new("/bin/sh", Env::inherited(vec![("PATH".into(), PATH.into())]))
        .args(["-c", line].map(Into::into).into())
        .stdin(input.as_bytes().to_vec())
        .limit(64 << 20)
        .grace(Duration::ZERO);
    let run = |_: &_| cnikit_process::run(&program, Deadline::after(TIMEOUT));
    let ended = netns.enter(run).map_err(|error| error.to_string())?.map_err(|error| error.to_string())?;
    let stderr = String::from_utf8_lossy(&ended.stderr);
    if ended.how.is_success() {
        Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
    } else {
        Err(format!("{line}: {}", stderr.trim()))
    }
}

pub(crate) fn netns() -> Result<Netns> {
    make::anonymous().map_err(|error| error.to_string())
}

/// A path that any process in our process namespace can open while we live.
pub(crate) fn path(netns: &Netns) -> String {
    format!("/proc/{}/fd/{}", std::process::id(), netns.as_fd().as_raw_fd())
}

/// The addresses that are reserved beforehand.
fn reserved(n: u32) -> std::net::Ipv4Addr {
    (FIRST + n).into()
}

/// The owner of a reservation.
fn owner(n: u32) -> String {
    format!("earlier-{n}")
}

fn run(mut ready: Vec<Ready>) -> std::io::Result<(Duration, Vec<Run>)> {
    match (ready.pop(), ready.is_empty()) {
        (Some(only), true) => only.run().map(|run| (run.took, vec![run])),
        (last, _) => spawn::at_once(ready.into_iter().chain(last).collect()),
    }
}

/// Drops a file from the page cache; see `posix_fadvise(2)`. A file that is being executed stays there.
fn evict(file: &Path) -> Result<()> {
    let advice = nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED;
    fs::File::open(file)
        .and_then(|open| Ok(nix::fcntl::posix_fadvise(&open, 0, 0, advice)?))
        .map_err(|error| format!("{}: {error}", file.display()))
}
