//! Real programs, run with a deadline.
#![expect(clippy::unwrap_used, reason = "a helper of a test fails as the test does")]

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cnikit_process::{
    CancellationToken, Deadline, Ended, Env, Error, How, Labelled, Program, Stream, run, run_labelled, run_while,
};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::unistd::Pid;
use tempfile::tempdir;

const LONG: Duration = Duration::from_secs(30);
const SHORT: Duration = Duration::from_millis(200);

fn program(path: impl AsRef<Path>) -> Program {
    Program::new(path.as_ref(), Env::inherited(Vec::new())).grace(SHORT)
}

fn shell(script: &str) -> Program {
    program("/bin/sh").args(vec!["-c".into(), script.into()])
}

fn ended(program: &Program) -> Ended {
    run(program, Deadline::after(LONG)).unwrap()
}

fn stdout_of(program: &Program) -> String {
    let ended = ended(program);
    assert!(ended.how.is_success(), "{ended:?}");
    String::from_utf8(ended.stdout).unwrap().trim().to_owned()
}

fn runs(pid: i32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(") ").next().is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Deadline::after(LONG);
    while !done() {
        assert!(deadline.pause(Duration::from_millis(5)), "waited in vain: {what}");
    }
}

fn pid_in(file: &Path) -> i32 {
    let mut pid = None;
    wait_until("a process number in a file", || {
        let text = fs::read_to_string(file).unwrap_or_default();
        pid = text.strip_suffix('\n').and_then(|text| text.parse().ok());
        pid.is_some()
    });
    pid.unwrap()
}

#[test]
fn arguments_environment_and_stdin_arrive_and_all_that_it_wrote_comes_back() {
    let script = r#"cat; echo "$1 $COLOUR ${HOME:+home}"; echo trouble >&2; exit 7"#;
    let mut program = shell(script);
    program.args.extend([OsString::from("sh"), OsString::from("one two")]);
    program.env = Env::inherited(vec![("COLOUR".into(), "green".into())]);
    program.stdin = b"input\n".to_vec();
    let ended = ended(&program);
    let home = if std::env::vars_os().any(|(name, _)| name == "HOME") { "home" } else { "" };
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), format!("input\none two green {home}\n"));
    assert_eq!((ended.how, ended.stderr.as_slice()), (How::Exit(7), b"trouble\n".as_slice()));
}

#[test]
fn much_in_and_much_out_at_once_do_not_wait_for_each_other() {
    let stdin: Vec<u8> = (0..4_000_000_u32).map(|n| (n % 251) as u8).collect();
    let program = shell("tee /dev/stderr").stdin(stdin.clone()).limit(stdin.len());
    let ended = ended(&program);
    assert!(ended.stdout == stdin && ended.stderr == stdin);
}

#[test]
fn a_program_that_does_not_read_its_stdin_has_done_nothing_wrong() {
    let program = shell("exec <&-; echo done").stdin(vec![b'x'; 4_000_000]);
    assert_eq!(stdout_of(&program), "done");
}

#[test]
fn an_end_by_a_signal_is_named() {
    let killed = ended(&shell("kill -SEGV $$")).how;
    assert_eq!((killed, killed.to_string()), (How::Signal(11), "signal 11 (SIGSEGV)".to_owned()));
    let real_time = ended(&shell("kill -40 $$")).how;
    assert_eq!((real_time, real_time.to_string()), (How::Signal(40), "signal 40".to_owned()));
    assert_eq!(ended(&shell("exit 3")).how.to_string(), "exit status 3");
}

/// Runs a program until a deadline, which doubles until `had_begun` says of the error that the program had begun by then: on a busy
/// machine it may get no processor for long.
fn ended_after_its_start(program: &Program, had_begun: impl Fn(&Error) -> bool) -> Error {
    let mut limit = SHORT;
    loop {
        let begin = Instant::now();
        let error = run(program, Deadline::after(limit)).unwrap_err();
        assert!(matches!(error, Error::Deadline { .. }) && begin.elapsed() >= limit, "{error}");
        if had_begun(&error) {
            assert!(begin.elapsed() < LONG);
            return error;
        }
        limit *= 2;
        assert!(limit < LONG, "{error}");
    }
}

#[test]
fn at_the_deadline_a_program_gets_sigterm_and_its_output_is_read() {
    let script = "trap 'echo tidied up >&2; exit 0' TERM; echo begun >&2; sleep 300 & wait";
    let program = shell(script).grace(LONG);
    let error = ended_after_its_start(&program, |error| !error.stderr().is_empty());
    assert_eq!(error.stderr(), b"begun\ntidied up\n");
    let Error::Deadline { after, .. } = &error else { panic!("{error}") };
    let wanted = format!("/bin/sh did not finish in {:.1} s and was ended", after.as_secs_f64());
    assert!(error.to_string().starts_with(&wanted), "{error}");
}

#[test]
fn a_cancelled_call_ends_the_program_and_its_children_at_once() {
    let dir = tempdir().unwrap();
    let child = dir.path().join("child");
    let script = "trap 'echo tidied up >&2; exit 0' TERM; sleep 300 & echo $! >$CHILD; wait";
    let program = Program::new("/bin/sh", Env::inherited(vec![("CHILD".into(), child.clone().into())]))
        .args(shell(script).args)
        .grace(LONG);
    let cancel = CancellationToken::new().unwrap();
    assert!(!cancel.is_cancelled());
    let begin = Instant::now();
    let error = thread::scope(|scope| {
        let running = scope.spawn(|| run_while(&program, Deadline::never(), &cancel).unwrap_err());
        pid_in(&child);
        cancel.cancel();
        cancel.cancel();
        running.join().unwrap()
    });
    assert!(matches!(&error, Error::Cancelled { .. }) && begin.elapsed() < LONG, "{error}");
    assert_eq!(error.stderr(), b"tidied up\n");
    let child = pid_in(&child);
    wait_until("the end of what it started", || !runs(child));
    fs::remove_file(dir.path().join("child")).unwrap();
    assert!(cancel.clone().is_cancelled());
    assert!(matches!(run_while(&program, Deadline::never(), &cancel), Err(Error::Cancelled { .. })));
    assert!(!dir.path().join("child").exists(), "it was not even started");
}

#[test]
fn a_program_that_is_not_cancelled_runs_to_its_end() {
    let ended = run_while(&shell("echo done"), Deadline::after(LONG), &CancellationToken::new().unwrap()).unwrap();
    assert_eq!((ended.how, ended.stdout.as_slice()), (How::Exit(0), b"done\n".as_slice()));
}

#[test]
fn a_program_that_ignores_sigterm_is_killed_with_its_children() {
    let dir = tempdir().unwrap();
    let [own, child] = ["own", "child"].map(|name| dir.path().join(name));
    let script = "trap '' TERM; echo $$ >$OWN; sleep 300 & echo $! >$CHILD; wait";
    let env = Env::inherited(vec![("OWN".into(), own.clone().into()), ("CHILD".into(), child.clone().into())]);
    let program = Program::new("/bin/sh", env).args(shell(script).args);
    let error = ended_after_its_start(&program, |_| fs::read_to_string(&child).is_ok_and(|text| text.ends_with('\n')));
    assert!(matches!(error, Error::Deadline { after, .. } if after >= 2 * SHORT), "{error}");
    assert_eq!(kill(Pid::from_raw(pid_in(&own)), None), Err(Errno::ESRCH), "it is not reaped");
    let child = pid_in(&child);
    wait_until("the end of what it started", || !runs(child));
}

#[test]
fn a_program_that_writes_without_end_is_ended_on_either_stream() {
    for (script, wanted) in [("yes", Stream::Stdout), ("echo begin >&2; yes >&2", Stream::Stderr)] {
        let begin = Instant::now();
        let program = shell(script).limit(1000).grace(LONG);
        let error = run(&program, Deadline::after(LONG)).unwrap_err();
        assert!(begin.elapsed() < LONG, "its grace was used up");
        assert!(matches!(error, Error::TooMuch { stream, limit: 1000, .. } if stream == wanted), "{error}");
        assert!(error.stderr().len() <= 1000);
    }
}

#[test]
fn exactly_what_is_allowed_may_be_written() {
    let script = "printf 12345; printf 12345 >&2";
    assert_eq!(stdout_of(&shell(script).limit(5)), "12345");
    let error = run(&shell(script).limit(4), Deadline::after(LONG)).unwrap_err();
    assert_eq!(error.to_string(), "/bin/sh wrote more than 4 bytes to stdout and was ended");
}

#[test]
fn a_daemon_that_holds_the_streams_open_is_not_waited_for() {
    let begin = Instant::now();
    let pid: i32 = stdout_of(&shell("sleep 300 & echo $!")).parse().unwrap();
    assert!(begin.elapsed() < LONG);
    assert!(runs(pid));
    kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
}

#[test]
fn a_file_that_is_just_being_written_is_tried_again() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("program");
    fs::copy("/bin/true", &path).unwrap();
    let open = OpenOptions::new().append(true).open(&path).unwrap();
    let writer = thread::spawn(move || {
        Deadline::never().pause(SHORT);
        drop(open);
    });
    assert!(ended(&program(&path)).how.is_success());
    writer.join().unwrap();
}

#[test]
fn a_file_that_stays_busy_is_tried_until_the_deadline_and_no_longer() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("program");
    fs::copy("/bin/true", &path).unwrap();
    let _open = OpenOptions::new().append(true).open(&path).unwrap();
    let begin = Instant::now();
    let error = run(&program(&path), Deadline::after(SHORT)).unwrap_err();
    assert!(begin.elapsed() >= SHORT && begin.elapsed() < LONG);
    let Error::NotStarted { source, .. } = error else { panic!("{error}") };
    assert_eq!(source.kind(), io::ErrorKind::ExecutableFileBusy);
}

#[test]
fn a_program_that_cannot_be_started_has_the_kernels_error() {
    let dir = tempdir().unwrap();
    let path = dir.path().join("program");
    let failure = |path: &Path| run(&program(path), Deadline::never()).unwrap_err().to_string();
    assert!(failure(&path).ends_with("program: No such file or directory (os error 2)"), "{}", failure(&path));
    File::create(&path).unwrap();
    assert!(failure(&path).ends_with("program: Permission denied (os error 13)"), "{}", failure(&path));
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    for content in ["", "exit 0", "\x7fELF"] {
        fs::write(&path, content).unwrap();
        assert!(failure(&path).ends_with("program: Exec format error (os error 8)"), "{}", failure(&path));
    }
    assert!(failure(Path::new("true")).contains("cannot start true: No such file"), "no search on PATH");
    assert!(failure(Path::new("a\0b")).contains("nul"), "{}", failure(Path::new("a\0b")));
}

#[test]
fn a_program_inherits_no_descriptor_and_leads_its_own_group() {
    let dir = tempdir().unwrap();
    let _open = File::create(dir.path().join("precious")).unwrap();
    let mut own = fs::read_dir("/proc/self/fd").unwrap().filter_map(|fd| fs::read_link(fd.ok()?.path()).ok());
    assert!(own.any(|file| file.ends_with("precious")));
    let open = stdout_of(&shell("exec ls -l /proc/self/fd"));
    assert!(open.contains("pipe:") && !open.contains("precious"), "{open}");
    let ids = stdout_of(&shell("read -r pid name state parent group rest </proc/$$/stat; echo $pid $group"));
    let (pid, group) = ids.split_once(' ').unwrap();
    assert_eq!(pid, group);
}

#[test]
fn the_program_hears_sigpipe_and_the_signals_that_the_caller_blocks() {
    let deaf: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    let before = deaf.thread_swap_mask(SigmaskHow::SIG_BLOCK).unwrap();
    let states = stdout_of(&shell("sed -n 's/^Sig[BI][lg][kn]:.//p' /proc/self/status"));
    before.thread_set_mask().unwrap();
    let sets: Vec<u64> = states.lines().map(|set| u64::from_str_radix(set, 16).unwrap()).collect();
    let [blocked, ignored] = sets[..] else { panic!("{states}") };
    assert_eq!(blocked, 0);
    assert_eq!(ignored & 1 << (Signal::SIGPIPE as u64 - 1), 0, "Rust's programs ignore it, others do not expect that");
}

#[test]
fn many_runs_leave_no_descriptor_open() {
    let count = || fs::read_dir("/proc/self/fd").unwrap().count();
    let before = count();
    for _ in 0..200 {
        assert!(ended(&program("/bin/true")).how.is_success());
        assert!(run(&program("/no/such/program"), Deadline::never()).is_err());
    }
    assert!(count() < before + 200, "{before} before, {} after", count());
}

#[test]
fn fifty_at_once_each_get_their_own_answer() {
    thread::scope(|scope| {
        for number in 0..50 {
            scope.spawn(move || {
                let stdin = format!("{number} ").repeat(20_000).into_bytes();
                assert!(ended(&program("/bin/cat").stdin(stdin.clone())).stdout == stdin);
            });
        }
    });
}

/// The test plays two parts: started by itself, with `PIDS` set, it is the process that runs a program and is killed.
#[test]
fn a_program_dies_with_the_process_that_runs_it() {
    const NAME: &str = "a_program_dies_with_the_process_that_runs_it";
    let pids = std::env::vars_os().find(|(name, _)| name == "PIDS").map(|(_, value)| value);
    if let Some(dir) = pids {
        fs::write(Path::new(&dir).join("middle"), format!("{}\n", std::process::id())).unwrap();
        run(&shell("echo $$ >$PIDS/inner; exec sleep 300"), Deadline::never()).unwrap();
        return;
    }
    let dir = tempdir().unwrap();
    let mut middle = program(std::env::current_exe().unwrap());
    middle.args = vec!["--exact".into(), NAME.into()];
    middle.env = Env::inherited(vec![("PIDS".into(), dir.path().into())]);
    let runner = thread::spawn(move || ended(&middle));
    let inner = pid_in(&dir.path().join("inner"));
    assert!(runs(inner));
    kill(Pid::from_raw(pid_in(&dir.path().join("middle"))), Signal::SIGKILL).unwrap();
    assert_eq!(runner.join().unwrap().how, How::Signal(9));
    wait_until("the end of the orphan", || !runs(inner));
}

/// Neither SELinux with any policy nor a kernel without it takes this for a label.
#[test]
fn a_program_does_not_start_under_a_label_that_the_kernel_refuses() {
    let file = std::fs::File::open("/dev/null").unwrap();
    let labelled = Labelled { name: "sh", label: "no such label", stdin: file.as_fd() };
    let error = run_labelled(&shell("true"), &labelled, Deadline::after(LONG)).unwrap_err();
    assert!(matches!(error, Error::NotStarted { .. }), "{error}");
}
