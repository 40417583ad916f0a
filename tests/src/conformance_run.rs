//! Runs of the program `cni-conformance`.

use std::ffi::OsString;
use std::time::Duration;

use cnikit_process::{Deadline, Env, How, Program};
use cnikit_testkit::{CallOutput, Host};
use serde_json::Value;

use crate::program;

/// Long enough for an emulated machine.
const TIMEOUT: Duration = Duration::from_mins(15);

/// A run of the program in a host's directory, with these files of JSON there.
pub struct Run {
    /// The host with the directory.
    pub host: Host,
}

impl Run {
    /// Writes the files.
    pub fn with(files: &[(&str, Value)]) -> Run {
        let host = Host::new();
        for (name, content) in files {
            std::fs::write(host.dir().join(name), content.to_string()).unwrap();
        }
        Run { host }
    }

    /// Runs it. An option that names a file of the directory gets its path.
    pub fn run(&self, options: &[&str]) -> CallOutput {
        let mut args = Vec::new();
        for option in options {
            let file = self.host.dir().join(option);
            args.push(if file.is_file() { file.into() } else { OsString::from(option) });
        }
        let program = Program::new(program("cni-conformance"), Env::inherited(Vec::new())).args(args).limit(64 << 20);
        let ended = cnikit_process::run(&program, Deadline::after(TIMEOUT)).unwrap();
        let exit = match ended.how {
            How::Exit(status) => status,
            How::Signal(signal) => -signal,
        };
        CallOutput::from((exit, ended.stdout, ended.stderr))
    }

    /// The outcome of each test of a JSON report.
    pub fn outcomes(&self, options: &[&str]) -> Vec<(String, String)> {
        let output = self.run(&[options, &["--format", "json"]].concat());
        let report: Value = serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"));
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        report["tests"].as_array().unwrap().iter().map(|test| (text(&test["id"]), text(&test["outcome"]))).collect()
    }

    /// The names of the tests that fail.
    pub fn failed(&self, options: &[&str]) -> Vec<String> {
        let outcomes = self.outcomes(options);
        assert!(outcomes.iter().any(|(_, outcome)| outcome == "passed"), "nothing passed: {outcomes:?}");
        outcomes.into_iter().filter(|(_, outcome)| outcome == "failed").map(|(id, _)| id).collect()
    }
}
