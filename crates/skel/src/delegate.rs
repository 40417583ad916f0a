//! Delegates: plugins that a plugin runs, such as its IPAM plugin.

use std::fmt;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use cnikit_invoke as invoke;
use cnikit_launcher::{MAX_LENGTH, PROGRAM, is_launcher};
use cnikit_process::Deadline;
use cnikit_types::{CniError, CniResult, NetConf, Version, document};
use nix::fcntl::OFlag;

use crate::entry::{Entry, Plugins};
use crate::error::{Error, Result, code};
use crate::input::{Input, Stdin};
use crate::journal::Journal;
use crate::log;
use crate::node;
use crate::plugin::DryRunReport;
use crate::request::Call;
use crate::tag::AttachmentId;

/// The error of upstream's host-local for an attachment that holds an address already. It has no code of its own, as ours (104).
const DUPLICATE: &str = "duplicate allocation is not allowed";

/// A plugin that was found, with the input for it.
///
/// A plugin that is this program under another name (a link to it, or a launcher of it) is called in this process, with a journal
/// and an error object of its own; any other is executed. It gets the same environment except for `CNI_COMMAND`, and the same
/// stdin, byte for byte, unless it has a configuration of its own.
#[derive(Clone, Debug)]
pub struct Delegate {
    name: String,
    how: How,
    input: Input,
    plugins: Plugins,
    version: Version,
}

#[derive(Clone, Debug)]
enum How {
    /// Called in this process.
    Here(&'static Entry),
    /// Executed.
    There(PathBuf),
}

/// IPAM plugins that allocate addresses without the container's link.
///
/// Their address is allocated before the link is made and released only when the link is gone. Any other plugin, such as dhcp,
/// sends packets over the link, and so needs it both times.
const NEED_NO_LINK: [&str; 2] = ["host-local", "static"];

impl Call {
    /// Finds a plugin on `CNI_PATH`.
    ///
    /// # Errors
    /// `CNI_PATH` is empty (code 4), the name is not a plain name (code 7), or there is no such plugin, or the node's policy
    /// refuses it because any user may write to it (both code 103).
    pub fn delegate(&self, name: &str) -> Result<Delegate> {
        self.find(name, self.input.clone())
    }

    /// Finds the plugin that is the `type` of a delegate's configuration, to be called for this call's attachment.
    ///
    /// It gets that configuration with the keys that the runtime sends anew in every call: `cniVersion`, and a `prevResult`
    /// that can be parsed.
    ///
    /// # Errors
    /// As [`Call::delegate`], and `type` names the calling plugin itself (code 7).
    pub fn delegate_with(&self, conf: &NetConf) -> Result<Delegate> {
        let mut conf = conf.clone();
        if let Some(version) = self.conf.get("cniVersion") {
            conf.set("cniVersion", version.clone());
        }
        if let Some(prev) = self.conf.get("prevResult")
            && self.prev().is_ok()
        {
            conf.set("prevResult", prev.clone());
        }
        self.find_configured(&conf, self.input.clone())
    }

    /// As [`Call::delegate_with`], to be called for another attachment, whose `CNI_NETNS` and `CNI_ARGS` are not known.
    ///
    /// # Errors
    /// As [`Call::delegate_with`].
    pub fn delegate_of(&self, tag: &AttachmentId, conf: &NetConf) -> Result<Delegate> {
        let container_id = tag.container.clone();
        let ifname = tag.ifname.clone();
        let netns = String::new();
        let args = String::new();
        self.find_configured(conf, Input { container_id, netns, ifname, args, ..self.input.clone() })
    }

    fn find_configured(&self, conf: &NetConf, input: Input) -> Result<Delegate> {
        let mut conf = conf.clone();
        node::remove_stored_tenants_args(&input, &mut conf);
        let name = conf.plugin_type().unwrap_or_default();
        if name == self.plugin {
            return Err(Error::config(format!("{name} cannot delegate to itself"))
                .hint("set `type` of the delegate to another plugin"));
        }
        self.find(name, Input { stdin: Stdin::Given(conf.to_vec()), ..input })
    }

    fn find(&self, name: &str, input: Input) -> Result<Delegate> {
        if input.path.is_empty() {
            let missing = Error::environment("required env variables [CNI_PATH] missing");
            return Err(missing
                .detail(format!("it is needed to find the plugin {name:?}"))
                .hint("set CNI_PATH to the directories with plugins, separated by colons"));
        }
        let path = invoke::find(name, &input.path)?;
        check_not_writable(&path, &input)?;
        let how = match self.plugins.iter().find(|entry| entry.name == name) {
            Some(entry) if leads_to_this_program(&path) => How::Here(entry),
            _ => How::There(path),
        };
        Ok(Delegate { name: name.to_owned(), how, input, plugins: self.plugins, version: self.version })
    }
}

impl Delegate {
    /// Whether the container's link has to exist when this plugin is run.
    pub fn needs_link(&self) -> bool {
        !NEED_NO_LINK.contains(&self.name.as_str())
    }

    /// Requests addresses. Its DEL is put in the journal first, and removed from it if the ADD was refused because this
    /// attachment already holds an address: that may be a running container's.
    ///
    /// # Errors
    /// The delegate's own error (its code and message), code 103 if it died, could not be started or returned an unreadable
    /// result or no address, and code 104 if this attachment holds an address already.
    pub fn add(&self, journal: &mut Journal) -> Result<CniResult> {
        let undo = if self.needs_link() {
            journal.undo(self, Delegate::del)
        } else {
            journal.undo_if_clean(self, Delegate::del)
        };
        let document = match self.run("ADD") {
            Ok(document) => document,
            Err(error) if holds_already(&error) => {
                journal.strike(undo);
                return Err(Error { code: code::HOLDS_ALREADY, ..error }
                    .hint("this attachment exists already: DEL it before you add it again"));
            }
            Err(error) => {
                if error.code == code::INCOMPATIBLE_VERSION {
                    journal.strike(undo); // it refused before it changed anything, and would refuse the DEL too
                }
                return Err(error);
            }
        };
        let result = self.read(&document)?;
        if result.ips.is_empty() {
            let text = format!("IPAM plugin returned missing IP config: {self} answered ADD without an address");
            return Err(Error::new(code::DELEGATE, text).hint("give the IPAM plugin a range of addresses"));
        }
        Ok(result)
    }

    /// Attaches the container with the delegate. Its DEL is put in the journal first, because the specification wants a failed
    /// delegate undone; and removed from it if the delegate refused because something exists already, which may be a running
    /// container's, or before it did anything.
    ///
    /// # Errors
    /// The delegate's own error (its code and message), and code 103 if it died, could not be started or returned an unreadable
    /// result.
    pub fn attach(&self, journal: &mut Journal) -> Result<CniResult> {
        let undo = journal.undo(self, Delegate::del);
        match self.run("ADD") {
            Ok(document) => self.read(&document),
            Err(error) => {
                if is_taken(&error) || error.code == code::INCOMPATIBLE_VERSION {
                    journal.strike(undo);
                }
                Err(error)
            }
        }
    }

    /// As [`Delegate::attach`], for an attachment that may be running: only an ADD that succeeded is undone.
    ///
    /// # Errors
    /// As [`Delegate::attach`].
    pub fn attach_again(&self, journal: &mut Journal) -> Result<CniResult> {
        let document = self.run("ADD")?;
        let _undo = journal.undo(self, Delegate::del);
        self.read(&document)
    }

    /// Calls its DEL for this attachment.
    ///
    /// # Errors
    /// The delegate's own error (its code and message), and code 103 if it died or could not be started.
    pub fn del(&self) -> Result<()> {
        self.run("DEL").map(drop)
    }

    /// Calls its CHECK for this attachment.
    ///
    /// # Errors
    /// As [`Delegate::del`].
    pub fn check(&self) -> Result<()> {
        self.run("CHECK").map(drop)
    }

    /// Calls its RESTORE for this attachment.
    ///
    /// # Errors
    /// As [`Delegate::del`].
    pub fn restore(&self) -> Result<()> {
        self.run("RESTORE").map(drop)
    }

    /// Calls its GC for this network.
    ///
    /// # Errors
    /// As [`Delegate::del`].
    pub fn gc(&self) -> Result<()> {
        self.run("GC").map(drop)
    }

    /// Calls its PLAN if it is in this binary; another program may not know the verb, and could do anything.
    pub fn plan(&self) -> Option<Result<DryRunReport>> {
        let How::Here(entry) = &self.how else { return None };
        Some(self.call(entry, "PLAN").and_then(|document| self.read_report(&document)))
    }

    fn read_report(&self, bytes: &[u8]) -> Result<DryRunReport> {
        let value = document::parse(bytes)?;
        let mut steps = Vec::new();
        for step in value["plan"].as_array().into_iter().flatten() {
            steps.extend(step.as_str().map(str::to_owned));
        }
        let (_, example) = CniResult::read(&value["example"], self.version)?;
        Ok(DryRunReport { steps, example })
    }

    /// Calls its STATUS: whether it could serve an ADD.
    ///
    /// # Errors
    /// As [`Delegate::del`].
    pub fn status(&self) -> Result<()> {
        self.run("STATUS").map(drop)
    }

    fn run(&self, verb: &str) -> Result<Vec<u8>> {
        log::step(format_args!("{self} {verb}"), || match &self.how {
            How::Here(entry) => self.call(entry, verb),
            How::There(path) => self.execute(path, verb),
        })
    }

    fn call(&self, entry: &Entry, verb: &str) -> Result<Vec<u8>> {
        let mut document = Vec::new();
        let mut input = Input { command: verb.to_owned(), ..self.input.clone() };
        input.observe.traceparent = log::traceparent();
        match (entry.serve)(entry.name, input, self.plugins, &mut document) {
            0 => Ok(document),
            _ => Err(serde_json::from_slice::<CniError>(&document)?.into()),
        }
    }

    fn execute(&self, path: &Path, verb: &str) -> Result<Vec<u8>> {
        let Input { container_id, netns, ifname, args, path: cni_path, .. } = self.input.clone();
        let mut extra = Vec::new();
        if let Some(value) = log::traceparent() {
            extra.push(("TRACEPARENT".to_owned(), value));
        }
        let environment = invoke::Environment {
            command: verb.to_owned(),
            container_id,
            netns,
            ifname,
            args,
            path: cni_path,
            extra,
            caller: invoke::Caller::Plugin,
        };
        let stdin = self.input.stdin.so_far();
        let output = invoke::exec(path, &environment, stdin, Deadline::after(invoke::EXEC_TIMEOUT))?;
        Ok(output.stdout)
    }

    fn read(&self, document: &[u8]) -> Result<CniResult> {
        let refused = |text: String| {
            Error::new(code::DELEGATE, format!("{self} answered ADD with something that is not a result: {text}"))
                .hint("this is a defect of that plugin: install another version of it, or report it with this text")
        };
        let value = document::parse(document).map_err(|error| refused(error.to_string()))?;
        let (_, result) = CniResult::read(&value, self.version).map_err(|error| refused(error.to_string()))?;
        Ok(result)
    }
}

/// Refuses a plugin that any user may replace, if the node's policy says so. Otherwise it is logged as a warning, because on some
/// mounts every file has such a mode.
fn check_not_writable(plugin: &Path, input: &Input) -> Result<()> {
    let is_refused = input.node.is_some_and(|policy| policy.refuse_writable_plugins);
    if !is_refused && !log::is_on() {
        return Ok(());
    }
    let Some(writable) = invoke::writable_by_anyone(plugin) else { return Ok(()) };
    let why = format!("any user may write to {}", writable.display());
    if !is_refused {
        log::warn(format_args!("plugin {}: {why}", plugin.display()));
        return Ok(());
    }
    let text = format!("plugin {} is not run: {why}, and the node refuses such plugins", plugin.display());
    Err(Error::new(code::DELEGATE, text).hint(format!(
        "check that its plugins are the right ones and run `chmod o-w {}`, or remove `refuseWritablePlugins` from /etc/cnikit/node.json",
        writable.display()
    )))
}

/// The delegate's name.
impl fmt::Display for Delegate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Whether a delegate refused an ADD because this attachment holds something already, by our code or upstream's message.
pub fn holds_already(error: &Error) -> bool {
    error.code == code::HOLDS_ALREADY || error.msg.contains(DUPLICATE)
}

fn is_taken(error: &Error) -> bool {
    error.code == code::CONFLICT || holds_already(error)
}

/// Whether to execute a path is to execute this process's program: the path is a link to it, or a launcher beside it.
fn leads_to_this_program(path: &Path) -> bool {
    let identity = |path: &Path| path.metadata().map(|file| (file.dev(), file.ino())).ok();
    let Some(own) = identity(Path::new("/proc/self/exe")) else { return false };
    identity(path) == Some(own) || identity(&path.with_file_name(PROGRAM)) == Some(own) && is_launcher_file(path)
}

/// Whether a path is a launcher, and not a symbolic link to one, which would execute what is beside its target.
fn is_launcher_file(path: &Path) -> bool {
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let Ok(mut file) = File::options().read(true).custom_flags(flags.bits()).open(path) else { return false };
    let mut content = Vec::new();
    let is_short = file.metadata().is_ok_and(|found| found.is_file() && found.len() <= MAX_LENGTH);
    is_short && file.read_to_end(&mut content).is_ok() && is_launcher(&content)
}
