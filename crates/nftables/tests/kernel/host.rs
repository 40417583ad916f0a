//! A network namespace of a test's own, with nft(8) in it as the oracle.
#![expect(clippy::disallowed_methods, reason = "the oracle is a program, and a test starts it")]

use std::io::Write;
use std::process::{Command, Output, Stdio};

use cnikit_netns::{Netns, make};
use cnikit_nftables::Nftables;

pub(crate) struct Host {
    pub(crate) netns: Netns,
}

impl Host {
    pub(crate) fn new() -> Self {
        Self { netns: make::anonymous().unwrap() }
    }

    pub(crate) fn nftables(&self) -> Nftables {
        Nftables::inside(&self.netns).unwrap()
    }

    /// Runs a program inside.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Output {
        self.feed(program, arguments, "")
    }

    fn feed(&self, program: &str, arguments: &[&str], input: &str) -> Output {
        let run = || {
            let mut command = Command::new(program);
            let command = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut child = command.spawn().unwrap();
            child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
            child.wait_with_output().unwrap()
        };
        self.netns.enter(|_| run()).unwrap()
    }

    /// Runs a program inside that has to succeed, and returns what it printed.
    #[track_caller]
    pub(crate) fn stdout_of(&self, program: &str, arguments: &[&str]) -> String {
        stdout_of(&self.run(program, arguments))
    }

    /// Has nft carry out a script.
    #[track_caller]
    pub(crate) fn nft(&self, script: &str) {
        stdout_of(&self.feed("nft", &["-f", "-"], script));
    }

    /// The ruleset as nft prints it.
    #[track_caller]
    pub(crate) fn listing(&self) -> String {
        self.stdout_of("nft", &["list", "ruleset"])
    }

    /// The ruleset with handles, which change when a rule is made anew.
    #[track_caller]
    pub(crate) fn handles(&self) -> String {
        self.stdout_of("nft", &["--handle", "list", "ruleset"])
    }

    /// The ruleset with the expressions and the user data that the kernel holds, but without handles.
    #[track_caller]
    pub(crate) fn bytes(&self) -> String {
        let listing = self.stdout_of("nft", &["--debug=netlink", "list", "ruleset"]);
        let rules =
            listing.lines().map(|line| if line.starts_with(char::is_alphabetic) { unnumbered(line) } else { line });
        rules.collect::<Vec<_>>().join("\n")
    }
}

/// `inet table chain 7 6` without handle and position.
fn unnumbered(line: &str) -> &str {
    line.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == ' ')
}

#[track_caller]
fn stdout_of(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}
