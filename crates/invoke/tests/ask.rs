//! Plugins that succeed, refuse, die and hang.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use cnikit_invoke::{EXEC_TIMEOUT, Environment, Error, PluginOutput, exec};
use cnikit_process::{Deadline, Env, Program, run};
use tempfile::{TempDir, tempdir};

/// A plugin in a directory of its own, which is removed with this value.
struct Plugin(TempDir);

impl Plugin {
    fn new(script: &str) -> Self {
        let plugin = Self(tempdir().unwrap());
        fs::write(plugin.file(), script).unwrap();
        fs::set_permissions(plugin.file(), fs::Permissions::from_mode(0o755)).unwrap();
        plugin
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("plugin")
    }

    fn ask(&self) -> Result<PluginOutput, Error> {
        exec(&self.file(), &Environment::default(), b"{}", Deadline::after(EXEC_TIMEOUT))
    }
}

fn script(body: &str) -> Plugin {
    Plugin::new(&format!("#!/bin/sh\n{body}\n"))
}

#[test]
fn a_plugin_gets_all_parameters_and_the_configuration_byte_for_byte() {
    let plugin = script("env | grep -E '^(CNI_|TRACE)' | sort; cat; echo log >&2");
    let environment = Environment {
        command: "ADD".into(),
        container_id: "c1".into(),
        netns: String::new(),
        ifname: "eth0".into(),
        args: "A=b=c".into(),
        path: "/one:/two".into(),
        extra: vec![("TRACEPARENT".into(), "00-1".into())],
        ..Environment::default()
    };
    let output = exec(&plugin.file(), &environment, b"{ \"odd\":\xff}", Deadline::after(EXEC_TIMEOUT)).unwrap();
    let wanted =
        b"CNI_ARGS=A=b=c\nCNI_COMMAND=ADD\nCNI_CONTAINERID=c1\nCNI_IFNAME=eth0\nCNI_NETNS=\nCNI_PATH=/one:/two\n\
        TRACEPARENT=00-1\n{ \"odd\":\xff}";
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (wanted.as_slice(), b"log\n".as_slice()));
}

#[test]
fn an_error_object_is_returned_with_stderr_as_its_details() {
    let plugin = script(r#"echo '{"cniVersion":"1.0.0","code":11,"msg":"full","details":"256 taken"}'; exit 1"#);
    let Err(Error::Refused(error)) = plugin.ask() else { panic!("not refused") };
    assert_eq!((error.code, error.msg.as_str(), error.details.as_deref()), (11, "full", Some("256 taken")));

    let plugin = script(r#"echo why >&2; echo '{"code":7,"msg":"bad"}'; exit 1"#);
    let Err(Error::Refused(error)) = plugin.ask() else { panic!("not refused") };
    assert_eq!((error.code, error.details.as_deref()), (7, Some("stderr: why")));
}

#[test]
fn without_an_error_object_the_error_has_the_exit_status_and_output() {
    let cases = [
        ("echo last words >&2; exit 3", "exit status 3; stderr: last words"),
        ("kill -SEGV $$", "signal 11 (SIGSEGV)"),
        ("echo Usage: plugin; exit 1", "exit status 1; stdout: Usage: plugin"),
        (r#"echo '{"ips":[]}'; exit 1"#, r#"exit status 1; stdout: {"ips":[]}"#),
        ("echo '[1]'; exit 1", "exit status 1; stdout: [1]"),
    ];
    for (body, wanted) in cases {
        let plugin = script(body);
        let error = plugin.ask().unwrap_err();
        assert!(matches!(error, Error::Died { .. }), "{error}");
        let file = plugin.file();
        assert_eq!(error.to_string(), format!("plugin {} died without an error object: {wanted}", file.display()));
    }
}

#[test]
fn a_plugin_that_hangs_is_ended_at_the_deadline_with_its_stderr() {
    let plugin = script("echo waiting for a lease >&2; exec sleep 300");
    // On a busy machine it may get no processor for a second; then it has longer.
    for limit in 1..30 {
        let begin = Instant::now();
        let deadline = Deadline::after(Duration::from_millis(1000 * limit + 100));
        let error = exec(&plugin.file(), &Environment::default(), b"{}", deadline).unwrap_err();
        let Error::Deadline { seconds, .. } = &error else { panic!("{error}") };
        assert!((limit..=begin.elapsed().as_secs()).contains(seconds), "{error}");
        let text = error.to_string();
        let (_, end) = text.split_once(&format!(" did not finish in {seconds} s and was ended")).unwrap();
        if !end.is_empty() {
            assert_eq!(end, "; stderr: waiting for a lease");
            return;
        }
    }
    panic!("it wrote nothing in 29 seconds");
}

#[test]
fn a_plugin_that_writes_too_much_is_ended_with_an_error() {
    let plugin = script("exec yes");
    let error = plugin.ask().unwrap_err();
    assert!(error.to_string().contains("wrote more than 16777216 bytes to stdout and was ended"), "{error}");
}

#[test]
fn a_plugin_that_cannot_be_started_differs_from_a_missing_one() {
    let plugin = Plugin::new("#!/no/such/interpreter\n");
    let error = plugin.ask().unwrap_err().to_string();
    assert!(
        error.ends_with("(os error 2), reported for its interpreter or loader, because the file itself exists"),
        "{error}"
    );
    let empty = Plugin::new("");
    let error = empty.ask().unwrap_err();
    assert!(matches!(&error, Error::NotStarted { source, .. } if source.raw_os_error() == Some(8)), "{error}");
}

/// The test plays two parts: started by itself, with `PLUGIN` set, it is the process whose stderr is checked.
#[test]
fn the_log_of_a_plugin_is_passed_on_also_if_it_fails() {
    if let Some((_, file)) = std::env::vars_os().find(|(name, _)| name == "PLUGIN") {
        assert!(exec(file.as_ref(), &Environment::default(), b"{}", Deadline::never()).is_err());
        return;
    }
    let plugin = script("echo a line of the log >&2; exit 1");
    let program =
        Program::new(std::env::current_exe().unwrap(), Env::inherited(vec![("PLUGIN".into(), plugin.file().into())]))
            .args(vec!["--exact".into(), "the_log_of_a_plugin_is_passed_on_also_if_it_fails".into()])
            .grace(Duration::ZERO);
    let ended = run(&program, Deadline::after(EXEC_TIMEOUT)).unwrap();
    assert!(ended.how.is_success());
    assert!(String::from_utf8(ended.stderr).unwrap().contains("a line of the log\n"));
}
