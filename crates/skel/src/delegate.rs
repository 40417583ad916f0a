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

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::io::Write;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use cnikit_launcher::MARK;
    use cnikit_types::Args;

    use super::*;
    use crate::about::Help;
    use crate::policy::NodePolicy;
    use crate::sources::Origins;

    static PLUGINS: [Entry; 1] =
        [Entry { name: "moody", serve: be_moody, help: Help { example: "", release: "moods-1" }, role: None }];

    /// A plugin that has a plan, and is not available.
    fn be_moody(name: &str, input: Input, _: Plugins, out: &mut dyn Write) -> u8 {
        let Input { command, container_id, .. } = input;
        let (status, document) = match command.as_str() {
            "PLAN" => {
                (0, r#"{"plan":["smile","wave"],"example":{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.7/24"}]}}"#)
            }
            "STATUS" => (1, r#"{"cniVersion":"1.1.0","code":50,"msg":"not in the mood"}"#),
            _ => (0, "{}"),
        };
        assert_eq!((name, container_id.as_str()), ("moody", "c1"));
        out.write_all(document.as_bytes()).unwrap();
        status
    }

    fn delegate(name: &str) -> Delegate {
        let mut input = Input::new("ADD", "{}");
        input.container_id = "c1".into();
        let how = if name == "moody" { How::Here(&PLUGINS[0]) } else { How::There("/nonexistent".into()) };
        Delegate { name: name.into(), how, input, plugins: &PLUGINS, version: Version::NEWEST }
    }

    #[test]
    fn a_plugin_of_this_program_is_called_in_this_process() {
        let moody = delegate("moody");
        assert_eq!(moody.to_string(), "moody");
        let report = moody.plan().unwrap().unwrap();
        assert_eq!(report.steps, ["smile", "wave"]);
        assert_eq!(report.example.ips[0].address.to_string(), "10.1.0.7/24");
        let refused = moody.status().unwrap_err();
        assert_eq!((refused.code, refused.msg.as_str()), (50, "not in the mood"));
        assert_eq!(moody.run("CHECK").unwrap(), b"{}");
        assert!(delegate("another").plan().is_none(), "another program may not know the verb");
    }

    #[test]
    fn a_delegate_is_called_here_only_if_its_file_leads_here_and_serves_another_attachment_if_told_so() {
        let dir = tempfile::tempdir().unwrap();
        symlink(std::env::current_exe().unwrap(), dir.path().join("moody")).unwrap();
        symlink(std::env::current_exe().unwrap(), dir.path().join("unknown")).unwrap();
        let elsewhere = tempfile::tempdir().unwrap();
        symlink("/bin/sh", elsewhere.path().join("moody")).unwrap();
        let input = |path: &Path| Input {
            path: path.to_str().unwrap().to_owned(),
            netns: "/run/netns/a".into(),
            args: "K8S_POD_NAME=a".into(),
            ..delegate("moody").input
        };
        let call = |path: &Path| Call {
            plugin: "outer".into(),
            input: input(path),
            conf: NetConf::default(),
            version: Version::NEWEST,
            args: Args::default(),
            plugins: &PLUGINS,
            origins: Origins::default(),
        };
        let conf = |name: &str| NetConf::parse(format!(r#"{{"name":"blue","type":"{name}"}}"#).as_bytes()).unwrap();
        let tag = AttachmentId { network: "blue".into(), container: "c2".into(), ifname: "eth1".into() };
        let found = call(dir.path()).delegate_of(&tag, &conf("moody")).unwrap();
        assert!(matches!(found.how, How::Here(_)));
        let Input { container_id, ifname, netns, args, .. } = &found.input;
        assert_eq!([container_id, ifname, netns, args], ["c2", "eth1", "", ""]);
        assert_eq!(found.input.stdin.so_far(), conf("moody").to_vec());
        let of = |path: &Path, name: &str| call(path).delegate_of(&tag, &conf(name));
        assert!(matches!(of(elsewhere.path(), "moody").unwrap().how, How::There(_)));
        assert!(matches!(of(dir.path(), "unknown").unwrap().how, How::There(_)));
        assert_eq!(of(dir.path(), "outer").unwrap_err().msg, "outer cannot delegate to itself");
    }

    #[test]
    fn an_ipam_plugin_that_sends_packets_needs_the_link() {
        assert_eq!(
            ["host-local", "static", "dhcp", "pool"].map(|name| delegate(name).needs_link()),
            [false, false, true, true]
        );
    }

    #[test]
    fn a_link_to_this_program_and_a_launcher_beside_it_lead_to_it_and_nothing_else_does() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let own = std::env::current_exe().unwrap();
        symlink(&own, at("link")).unwrap();
        symlink("/bin/sh", at("shell")).unwrap();
        fs::write(at("launcher"), [b"code ".as_slice(), &MARK, b" code"].concat()).unwrap();
        let leads = |name: &str| leads_to_this_program(&at(name));
        assert_eq!(
            [&own, &at("link"), &at("shell"), &at("none")].map(|path| leads_to_this_program(path)),
            [true, true, false, false]
        );
        assert!(!leads("launcher"), "no cni-plugins is beside it");

        symlink("/bin/sh", at(PROGRAM)).unwrap();
        assert!(!leads("launcher"), "it executes a shell");
        fs::remove_file(at(PROGRAM)).unwrap();
        symlink(&own, at(PROGRAM)).unwrap();
        assert!(leads("launcher"));
        assert!(!leads("shell") && !leads("none"));
    }

    #[test]
    fn a_launcher_is_a_short_regular_file_with_the_mark() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("launcher"), MARK).unwrap();
        fs::write(at("other"), "#!/bin/sh").unwrap();
        symlink(at("launcher"), at("link")).unwrap();
        let longest = [MARK.to_vec(), vec![0; usize::try_from(MAX_LENGTH).unwrap() - MARK.len()]].concat();
        fs::write(at("longest"), &longest).unwrap();
        fs::write(at("longer"), [longest, vec![0]].concat()).unwrap();
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
        let names = ["launcher", "longest", "other", "link", "longer", "fifo", "none", ""];
        assert_eq!(
            names.map(|name| is_launcher_file(&at(name))),
            [true, true, false, false, false, false, false, false]
        );
    }

    #[test]
    fn a_plugin_that_any_user_may_replace_is_refused_only_if_the_policy_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let plugin = dir.path().join("moody");
        fs::write(&plugin, "").unwrap();
        let mut input = Input::new("ADD", "{}");
        let mut check = |mode, refuse_writable_plugins| {
            fs::set_permissions(&plugin, Permissions::from_mode(mode)).unwrap();
            input.node = Some(NodePolicy { refuse_writable_plugins, ..NodePolicy::default() });
            check_not_writable(&plugin, &input)
        };
        check(0o755, true).unwrap();
        check(0o757, false).unwrap();
        let refused = check(0o757, true).unwrap_err();
        assert_eq!(refused.code, code::DELEGATE);
        assert!(
            refused
                .msg
                .ends_with(&format!("any user may write to {}, and the node refuses such plugins", plugin.display()))
        );
        input.node = None;
        check_not_writable(&plugin, &input).unwrap();
    }
}
