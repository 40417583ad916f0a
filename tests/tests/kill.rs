//! Killed at every system call, at any moment, for want of memory: a DEL leaves nothing.

use cnikit_testkit::campaign::case_limit;
use cnikit_testkit::syscall_trace::{self, SyscallVerdict};
use cnikit_testkit::{Container, Host, kill};
use cnikit_tests::{bin, each_subject, is_chosen, script, subject};
use serde_json::json;

/// So many calls of a verb, in the short form.
const CALLS: usize = 2;
/// So many moments of each plugin, in the short form; 50 in the whole.
const MOMENTS: usize = 2;
/// So many limits of a verb, in the short form.
const LIMITS: usize = 1;

macro_rules! kills {
    ($($name:ident: $subject:expr $(, $more:ident)*;)+) => {$(
        mod $name {
            #[test]
            fn is_killed_at_every_call() {
                let subject = $subject;
                if super::is_chosen(&format!("kill {}", subject.title)) {
                    super::kill::at_every_call(&subject, super::CALLS);
                }
            }

            $($more!($subject);)*
        }
    )+};
}

macro_rules! moments {
    ($subject:expr) => {
        #[test]
        fn is_terminated_at_any_moment() {
            let subject = $subject;
            if super::is_chosen(&format!("end {}", subject.title)) {
                super::kill::at_moments(&subject, super::case_limit(super::MOMENTS).min(50));
            }
        }
    };
}

macro_rules! limits {
    ($subject:expr) => {
        #[test]
        fn lacks_memory_or_files() {
            let subject = $subject;
            if super::is_chosen(&format!("limit {}", subject.title)) {
                super::kill::with_resource_limits(&subject, super::LIMITS);
            }
        }
    };
}

each_subject!(kills);

/// The environment of an ADD of loopback.
fn environment(container: &Container) -> Vec<(String, String)> {
    let netns = container.path();
    let bin = bin().display().to_string();
    let known = [("COMMAND", "ADD"), ("CONTAINERID", "c-one"), ("NETNS", &netns), ("IFNAME", "lo"), ("PATH", &bin)];
    known.map(|(key, value)| (format!("CNI_{key}"), value.to_owned())).to_vec()
}

/// The number of calls to try is the same as in other tests.
#[test]
fn the_calls_of_an_undisturbed_run_are_those_that_strace_sees() {
    let host = Host::new();
    let program = bin().join("loopback");
    let first = host.container();
    let second = host.container();
    let conf = subject("loopback", json!({})).conf.to_string();
    let watched = host
        .enter(|| syscall_trace::run(&program, &environment(&first), conf.as_bytes(), &[], |_| SyscallVerdict::GoOn));
    let ours: Vec<String> = watched.unwrap().1.calls().map(|(_, _, number)| syscall_trace::name(number)).collect();

    let input = host.dir().join("conf");
    let output = host.dir().join("calls");
    std::fs::write(&input, conf).unwrap();
    let set: Vec<String> = environment(&second).iter().map(|(key, value)| format!("{key}={value}")).collect();
    let line = format!("setarch -R strace -f -o {} {} <{}", output.display(), program.display(), input.display());
    host.sh(&format!("{} {line}", set.join(" ")));
    let reply = std::fs::read_to_string(output).unwrap();
    let name = |line: &str| Some(line.split_whitespace().nth(1)?.split_once('(')?.0.to_owned());
    let theirs: Vec<String> = reply.lines().filter_map(name).skip_while(|name| name == "execve").collect();
    assert_eq!(ours, theirs);
}

/// It renames its link in a second step, and DEL does not remove the first name.
const HALF: &str = r"
case $CNI_COMMAND in
ADD) ip link add a$CNI_CONTAINERID type bridge && ip link set a$CNI_CONTAINERID name b$CNI_CONTAINERID && echo '{}' ;;
DEL) ip link del b$CNI_CONTAINERID 2>/dev/null || true ;;
esac
";

#[test]
fn a_plugin_that_forgets_what_it_made_half_is_found() {
    let (_bin, half) = script(HALF, json!({}));
    let reports = kill::reports_at_every_call(&half, 6 * CALLS, |report| report);
    let found: Vec<String> = reports.into_iter().flat_map(|report| report.findings).collect();
    assert!(found.iter().any(|text| text.contains("left on the host")), "{found:?}");
}
