//! Asking another plugin: an IPAM plugin, or any that a plugin hands part of its work to.

use std::fmt;
use std::path::{Path, PathBuf};

use cnikit_invoke as invoke;
use cnikit_process::Deadline;
use cnikit_types::{CniError, CniResult, NetConf, Value, Version, document};

use crate::error::{Error, Result, code};
use crate::input::{Input, Stdin};
use crate::journal::Journal;
use crate::log;
use crate::node;
use crate::plugin::DryRunReport;
use crate::registry::{Entry, Plugins};
use crate::request::Call;
use crate::tag::AttachmentId;

/// What the reference's host-local says where we say code 104.
const DUPLICATE: &str = "duplicate allocation is not allowed";

/// Another plugin, found, and ready to be asked with what this call was given.
///
/// A plugin that is this very file (same device and inode) is called in this process, with a journal and an error object of
/// its own; any other is executed. It gets the same environment but for `CNI_COMMAND`, and the same stdin, byte for byte, unless
/// it has a configuration of its own.
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
    Here(&'static Entry),
    There(PathBuf),
}

/// IPAM plugins that keep an address by the attachment's name and never touch the container's link.
///
/// Their address is allocated before the link is made and freed only when it is gone; any other (dhcp) talks over the link
/// and so needs it there both times.
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
        let prev = self.conf.get("prevResult").filter(|_| self.prev().is_ok());
        for (key, said) in [("cniVersion", self.conf.get("cniVersion")), ("prevResult", prev)] {
            if let Some(said) = said {
                conf.set(key, said.clone());
            }
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
        let nothing = Input { netns: String::new(), args: String::new(), ..self.input.clone() };
        self.find_configured(conf, Input { container_id, ifname, ..nothing })
    }

    fn find_configured(&self, conf: &NetConf, input: Input) -> Result<Delegate> {
        let mut conf = conf.clone();
        node::shut_out_kept(&input, &mut conf);
        let name = conf.plugin_type().unwrap_or_default();
        if name == self.plugin {
            return Err(Error::config(format!("{name} cannot delegate to itself"))
                .hint("name another plugin as the `type` of the delegate"));
        }
        self.find(name, Input { stdin: Stdin::Given(conf.to_vec()), ..input })
    }

    fn find(&self, name: &str, input: Input) -> Result<Delegate> {
        if input.path.is_empty() {
            let missing = Error::environment("required env variables [CNI_PATH] missing");
            return Err(missing
                .detail(format!("it is needed to find the plugin {name:?}"))
                .hint("set CNI_PATH to the directories with plugins, a colon between them"));
        }
        let path = invoke::find(name, &input.path)?;
        judge_writable(&path, &input)?;
        let here = self.plugins.iter().find(|entry| entry.name == name).filter(|_| is_this_very_file(&path));
        let how = here.map_or(How::There(path), How::Here);
        Ok(Delegate { name: name.to_owned(), how, input, plugins: self.plugins, version: self.version })
    }
}

impl Delegate {
    /// Must the container's link be there when this plugin is asked?
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
        let said = match self.ask("ADD") {
            Ok(said) => said,
            Err(error) if holds_already(&error) => {
                journal.strike(undo);
                return Err(Error { code: code::HOLDS_ALREADY, ..error }
                    .hint("this attachment exists already: DEL it before it is added again"));
            }
            Err(error) => {
                if error.code == code::INCOMPATIBLE_VERSION {
                    journal.strike(undo); // it refused before it did anything, and would refuse the DEL too
                }
                return Err(error);
            }
        };
        let answer = self.read(&said)?;
        if answer.ips.is_empty() {
            let text = format!("IPAM plugin returned missing IP config: {self} answered ADD without an address");
            return Err(Error::new(code::DELEGATE, text).hint("give the IPAM plugin a range to take addresses from"));
        }
        Ok(answer)
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
        let asked = self.ask("ADD");
        if asked.as_ref().is_err_and(|error| is_taken(error) || error.code == code::INCOMPATIBLE_VERSION) {
            journal.strike(undo);
        }
        self.read(&asked?)
    }

    /// As [`Delegate::attach`], for an attachment that may be running: only an ADD that succeeded is undone.
    ///
    /// # Errors
    /// As [`Delegate::attach`].
    pub fn attach_again(&self, journal: &mut Journal) -> Result<CniResult> {
        let said = self.ask("ADD")?;
        let _undo = journal.undo(self, Delegate::del);
        self.read(&said)
    }

    /// Calls its DEL for this attachment.
    ///
    /// # Errors
    /// The delegate's own error (its code and message), and code 103 if it died or could not be started.
    pub fn del(&self) -> Result<()> {
        self.ask("DEL").map(drop)
    }

    /// Calls its CHECK for this attachment.
    ///
    /// # Errors
    /// As [`Delegate::del`].
    pub fn check(&self) -> Result<()> {
        self.ask("CHECK").map(drop)
    }

    /// Calls its RESTORE for this attachment.
    ///
    /// # Errors
    /// As [`Delegate::del`].
    pub fn restore(&self) -> Result<()> {
        self.ask("RESTORE").map(drop)
    }

    /// Calls its GC for this network.
    ///
    /// # Errors
    /// As [`Delegate::del`].
    pub fn gc(&self) -> Result<()> {
        self.ask("GC").map(drop)
    }

    /// Asks it for a dry run, if it lives in this program; another one may not know the verb, and do who knows what.
    pub fn plan(&self) -> Option<Result<DryRunReport>> {
        let How::Here(entry) = &self.how else { return None };
        Some(self.call(entry, "PLAN").and_then(|said| self.read_outline(&said)))
    }

    fn read_outline(&self, said: &[u8]) -> Result<DryRunReport> {
        let value = document::parse(said)?;
        let steps = value["plan"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let (_, example) = CniResult::read(&value["example"], self.version)?;
        Ok(DryRunReport { steps: steps.map(str::to_owned).collect(), example })
    }

    /// Calls its STATUS: whether it could serve an ADD.
    ///
    /// # Errors
    /// As [`Delegate::del`].
    pub fn status(&self) -> Result<()> {
        self.ask("STATUS").map(drop)
    }

    fn ask(&self, verb: &str) -> Result<Vec<u8>> {
        log::step(format_args!("{self} {verb}"), || match &self.how {
            How::Here(entry) => self.call(entry, verb),
            How::There(path) => self.execute(path, verb),
        })
    }

    fn call(&self, entry: &Entry, verb: &str) -> Result<Vec<u8>> {
        let mut said = Vec::new();
        let mut input = Input { command: verb.to_owned(), ..self.input.clone() };
        input.observe.traceparent = log::traceparent();
        match (entry.serve)(entry.name, input, self.plugins, &mut said) {
            0 => Ok(said),
            _ => Err(serde_json::from_slice::<CniError>(&said)?.into()),
        }
    }

    fn execute(&self, path: &Path, verb: &str) -> Result<Vec<u8>> {
        let Input { container_id, netns, ifname, args, path: cni_path, .. } = self.input.clone();
        let traceparent = log::traceparent().map(|value| ("TRACEPARENT".to_owned(), value));
        let environment = invoke::Environment {
            command: verb.to_owned(),
            container_id,
            netns,
            ifname,
            args,
            path: cni_path,
            extra: traceparent.into_iter().collect(),
            caller: invoke::Caller::Plugin,
        };
        let asked = invoke::exec(path, &environment, self.stdin(), Deadline::after(invoke::TIMEOUT))?;
        Ok(asked.stdout)
    }

    fn stdin(&self) -> &[u8] {
        self.input.stdin.so_far()
    }

    fn read(&self, said: &[u8]) -> Result<CniResult> {
        let refused = |text: String| {
            Error::new(code::DELEGATE, format!("{self} answered ADD with what is no result: {text}"))
                .hint("this is a defect of that plugin: install another version of it, or report it with this text")
        };
        let value = document::parse(said).map_err(|error| refused(error.to_string()))?;
        let (_, answer) = CniResult::read(&value, self.version).map_err(|error| refused(error.to_string()))?;
        Ok(answer)
    }
}

/// A plugin that any user may replace: the node's policy decides whether it runs. Without one it is a warning, since on some mounts
/// every file has such a mode.
fn judge_writable(plugin: &Path, input: &Input) -> Result<()> {
    let refused = input.node.is_some_and(|policy| policy.refuse_writable_plugins);
    if !refused && !log::is_on() {
        return Ok(());
    }
    let Some(writable) = invoke::writable_by_anyone(plugin) else { return Ok(()) };
    let why = format!("any user may write to {}", writable.display());
    if !refused {
        log::warn(format_args!("plugin {}: {why}", plugin.display()));
        return Ok(());
    }
    let text = format!("plugin {} is not run: {why}, and the node refuses such plugins", plugin.display());
    Err(Error::new(code::DELEGATE, text).hint(format!(
        "`chmod o-w {}` once its plugins are known to be the right ones, or take `refuseWritablePlugins` out of \
         /etc/cnikit/node.json",
        writable.display()
    )))
}

/// The delegate's name.
impl fmt::Display for Delegate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Whether a delegate refused an ADD because it has something of this very attachment already, in our words or the reference's.
pub fn holds_already(error: &Error) -> bool {
    error.code == code::HOLDS_ALREADY || error.msg.contains(DUPLICATE)
}

fn is_taken(error: &Error) -> bool {
    error.code == code::CONFLICT || holds_already(error)
}

/// Same device and inode as the file this process was started from: hard links and symbolic links count, a copy does not.
fn is_this_very_file(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |path: &Path| path.metadata().map(|file| (file.dev(), file.ino())).ok();
    identity(path).is_some_and(|file| identity(Path::new("/proc/self/exe")) == Some(file))
}
