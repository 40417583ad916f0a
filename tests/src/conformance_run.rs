//! Runs of the program `cni-conformance`.

use std::path::PathBuf;

use cnikit_testkit::{CallOutput, Host};
use serde_json::Value;

use crate::program;

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
        let mut words = vec!["exec".to_owned(), program("cni-conformance").display().to_string()];
        for option in options {
            let file = self.host.dir().join(option);
            let word = if file.is_file() { file.display().to_string() } else { (*option).to_owned() };
            words.push(format!("'{word}'"));
        }
        let shell = [("LINE".to_owned(), words.join(" "))];
        CallOutput::from(self.host.run(&self.script(), &shell, b""))
    }

    /// A program that runs the line in its variable.
    fn script(&self) -> PathBuf {
        let path = self.host.dir().join("script");
        if !path.exists() {
            self.host.sh(&format!("printf '#!/bin/sh\\neval \"$LINE\"\\n' > {0} && chmod 755 {0}", path.display()));
        }
        path
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
