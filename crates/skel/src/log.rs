//! Structured logging, if the operator configured it.
//!
//! `CNI_LOG=info` logs one line per call, `debug` one per step as well. Each line is a JSON object with a duration, on stderr or at
//! the end of `CNI_LOG_FILE`. That has to be a regular file of this user or of root; otherwise stderr gets the lines and the
//! reason. `TRACEPARENT` is continued: a call is a span of its own, and delegates are its children. The default is off, and then a
//! step only reads a thread-local.

use std::cell::RefCell;
use std::fmt::Display;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::mem::ManuallyDrop;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cnikit_types::printable;
use nix::fcntl::OFlag;
use nix::unistd::geteuid;
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::error::Result;
use crate::input::{Input, LogLevel};

thread_local! {
    /// The calls in progress on this thread: a delegate in this process is a call within another one. The list is empty when the
    /// thread ends, and its memory is released with the last call. Registering a destructor would cost every plugin more time than
    /// all its reads of this.
    static CALLS: RefCell<ManuallyDrop<Vec<Context>>> = const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

struct Context {
    level: LogLevel,
    file: Option<PathBuf>,
    /// Whether it has been logged why stderr is used instead of the file.
    gave_reason: bool,
    fields: Map<String, Value>,
    traceparent: Option<String>,
}

/// Runs one call, and logs it if logging is on.
pub(crate) fn call<T>(plugin: &str, input: &Input, work: impl FnOnce() -> Result<T>) -> Result<T> {
    if input.observe.level == LogLevel::Off && input.observe.traceparent.is_none() {
        return work();
    }
    CALLS.with_borrow_mut(|calls| calls.push(Context::of(plugin, input)));
    let done = timed(LogLevel::Info, "call", work);
    CALLS.with_borrow_mut(|calls| {
        calls.pop();
        calls.shrink_to_fit();
    });
    done
}

/// Adds the network's name to the call in progress, once it is known.
pub(crate) fn network(name: &str) {
    CALLS.with_borrow_mut(|calls| {
        if let Some(context) = calls.last_mut() {
            context.fields.insert("network".into(), name.into());
        }
    });
}

/// Runs one step; at the level `debug` it logs the step, its duration and its outcome.
///
/// # Errors
/// The error of `work`, unchanged.
pub fn step<T>(what: impl Display, work: impl FnOnce() -> Result<T>) -> Result<T> {
    if listens(LogLevel::Debug) { timed(LogLevel::Debug, &what.to_string(), work) } else { work() }
}

/// Logs a failure that does not fail the call.
pub fn warn(what: impl Display) {
    if listens(LogLevel::Info) {
        line("warn", &[("msg", what.to_string().into())]);
    }
}

/// Logs an event.
pub fn info(what: impl Display) {
    if listens(LogLevel::Info) {
        line("info", &[("msg", what.to_string().into())]);
    }
}

/// The trace context for delegates of this call.
pub(crate) fn traceparent() -> Option<String> {
    CALLS.with_borrow(|calls| calls.last().and_then(|context| context.traceparent.clone()))
}

/// Whether [`warn`] and [`info`] log anything.
pub(crate) fn is_on() -> bool {
    listens(LogLevel::Info)
}

fn listens(level: LogLevel) -> bool {
    CALLS.with_borrow(|calls| calls.last().is_some_and(|context| context.level >= level))
}

fn timed<T>(level: LogLevel, what: &str, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let began = Instant::now();
    let done = work();
    if listens(level) {
        let mut fields = vec![("step", what.into()), ("ms", milliseconds(began.elapsed()).into())];
        match &done {
            Ok(_) => line(name(level), &fields),
            Err(error) => {
                fields.push(("error", error.to_string().into()));
                line("error", &fields);
            }
        }
    }
    done
}

fn name(level: LogLevel) -> &'static str {
    if level == LogLevel::Debug { "debug" } else { "info" }
}

/// With three decimal places.
fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

/// Writes one line with one call, so that lines of parallel plugins do not run into each other.
fn line(level: &str, more: &[(&str, Value)]) {
    let Some((text, file)) = CALLS.with_borrow(|calls| calls.last().map(|c| (c.line(level, more), c.file.clone())))
    else {
        return;
    };
    // A log that cannot be written must not make a call fail.
    let _ = match file {
        Some(path) => write_to_file(&path, &text),
        None => io::stderr().write_all(text.as_bytes()),
    };
}

/// Appends a line to the file, or writes it to stderr with the reason if the file cannot be opened.
fn write_to_file(path: &Path, text: &str) -> io::Result<()> {
    match open(path) {
        Ok(mut file) => file.write_all(text.as_bytes()),
        Err(error) => {
            let reason = reason_for_stderr(path, &error).unwrap_or_default();
            io::stderr().write_all((reason + text).as_bytes())
        }
    }
}

/// Opens a log to append to it. It may be in a directory where other users can write. So symbolic links are not followed, opening a
/// FIFO does not wait, and a file that belongs to another user or has another name is refused.
fn open(path: &Path) -> io::Result<File> {
    let refused = |text| io::Error::new(io::ErrorKind::InvalidInput, text);
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let opened = OpenOptions::new().create(true).append(true).mode(0o600).custom_flags(flags.bits()).open(path);
    let file = opened.map_err(|error| match error.raw_os_error() {
        Some(nix::libc::ELOOP) => refused("it is a symbolic link"),
        Some(nix::libc::ENXIO) => refused("it is not a regular file"),
        _ => error,
    })?;
    let found = file.metadata()?;
    if !found.is_file() {
        return Err(refused("it is not a regular file"));
    }
    if found.nlink() > 1 {
        return Err(refused("the file has another name too"));
    }
    if ![0, geteuid().as_raw()].contains(&found.uid()) {
        return Err(refused("it belongs to another user"));
    }
    Ok(file)
}

/// The line that says why stderr is used. It is written once, for a call and its delegates in this process.
fn reason_for_stderr(path: &Path, error: &io::Error) -> Option<String> {
    CALLS.with_borrow_mut(|calls| {
        if std::mem::replace(&mut calls.first_mut()?.gave_reason, true) {
            return None;
        }
        let context = calls.last()?;
        let reason = format!("CNI_LOG_FILE {} is not written, the log goes to stderr: {error}", path.display());
        Some(context.line("warn", &[("msg", reason.into())]))
    })
}

impl Context {
    fn of(plugin: &str, input: &Input) -> Context {
        let mut fields = Map::new();
        let known = [
            ("plugin", plugin),
            ("verb", &input.command),
            ("container", &input.container_id),
            ("ifname", &input.ifname),
        ];
        for (key, value) in known {
            if !value.is_empty() {
                fields.insert(key.into(), value.into());
            }
        }
        let parent = input.observe.traceparent.as_deref();
        let traceparent = parent.and_then(child_span);
        if let (Some([_, parent]), Some([trace, span])) = (parent.and_then(ids), traceparent.as_deref().and_then(ids)) {
            fields.insert("trace_id".into(), trace.into());
            fields.insert("span_id".into(), span.into());
            fields.insert("parent_id".into(), parent.into());
        }
        let file = input.observe.file.clone();
        Context { level: input.observe.level, file, gave_reason: false, fields, traceparent }
    }

    fn line(&self, level: &str, more: &[(&str, Value)]) -> String {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64());
        let mut object = Map::new();
        object.insert("time".into(), time.into());
        object.insert("level".into(), level.into());
        object.extend(self.fields.clone());
        for (key, value) in more {
            object.insert((*key).to_owned(), value.clone());
        }
        format!("{}\n", printable(&Value::Object(object).to_string()))
    }
}

/// The same trace with a span id for this call (W3C Trace Context: `00-TRACE-SPAN-FLAGS`).
fn child_span(parent: &str) -> Option<String> {
    let [trace, span] = ids(parent)?;
    let flags = parent.rsplit('-').next()?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?.as_nanos();
    let seed = Sha256::digest(format!("{span}{}{now}", std::process::id()));
    let own = seed.iter().take(8).fold(0_u64, |span, byte| (span << 8) | u64::from(*byte));
    Some(format!("00-{trace}-{own:016x}-{flags}"))
}

/// The trace id and the span id.
fn ids(traceparent: &str) -> Option<[&str; 2]> {
    let parts: Vec<&str> = traceparent.split('-').collect();
    let [version, trace, span, _flags] = parts[..] else { return None };
    let is_hex = |text: &str, length| text.len() == length && text.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_hex(version, 2) && is_hex(trace, 32) && is_hex(span, 16)).then_some([trace, span])
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use cnikit_process::Deadline;
    use nix::sys::stat::Mode;
    use nix::unistd::mkfifo;

    use super::*;
    use crate::error::Error;

    const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    /// The input of an ADD of the attachment `c1/eth0` that is logged at a level into a file.
    fn logged(level: LogLevel, file: &Path) -> Input {
        let mut input = Input::new("ADD", "{}");
        input.container_id = "c1".into();
        input.ifname = "eth0".into();
        input.observe.level = level;
        input.observe.file = Some(file.to_owned());
        input
    }

    /// A call with an event, a failure that does not fail it, and two steps of which the second fails.
    fn eventful_call(input: &Input) -> Result<()> {
        call("moody", input, || {
            network("blue");
            info("begins");
            warn("goes on");
            step("first", || Ok(()))?;
            step("second", || Err(Error::config("no mood")))
        })
    }

    /// The lines of a log without their time, and their durations by step.
    fn lines_of(file: &Path) -> (Vec<Value>, Vec<f64>) {
        let mut durations = Vec::new();
        let text = std::fs::read_to_string(file).unwrap();
        let lines = text.lines().map(|line| {
            let mut line: Map<String, Value> = serde_json::from_str(line).unwrap();
            assert!(line.remove("time").unwrap().as_f64().unwrap() > 1.7e9, "seconds since 1970: {line:?}");
            durations.extend(line.remove("ms").map(|duration| duration.as_f64().unwrap()));
            Value::Object(line)
        });
        (lines.collect(), durations)
    }

    #[test]
    fn a_line_names_the_call_and_says_what_happened_at_each_level() {
        let dir = tempfile::tempdir().unwrap();
        let attached = |level: &str, more: Value| {
            let mut line = serde_json::json!({
                "level": level, "plugin": "moody", "verb": "ADD", "container": "c1", "ifname": "eth0", "network": "blue"
            });
            line.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            line
        };
        let begins = attached("info", serde_json::json!({"msg": "begins"}));
        let goes_on = attached("warn", serde_json::json!({"msg": "goes on"}));
        let first = attached("debug", serde_json::json!({"step": "first"}));
        let second = attached("error", serde_json::json!({"step": "second", "error": "no mood"}));
        let ended = attached("error", serde_json::json!({"step": "call", "error": "no mood"}));

        let file = dir.path().join("info.log");
        eventful_call(&logged(LogLevel::Info, &file)).unwrap_err();
        assert_eq!(lines_of(&file).0, [begins.clone(), goes_on.clone(), ended.clone()]);
        let file = dir.path().join("debug.log");
        eventful_call(&logged(LogLevel::Debug, &file)).unwrap_err();
        assert_eq!(lines_of(&file).0, [begins, goes_on, first, second, ended]);
        let file = dir.path().join("off.log");
        eventful_call(&logged(LogLevel::Off, &file)).unwrap_err();
        assert!(!file.exists());
    }

    #[test]
    fn a_call_that_succeeds_has_its_duration_in_milliseconds() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log");
        let work = || {
            Deadline::never().pause(Duration::from_millis(20));
            Ok(())
        };
        call("moody", &logged(LogLevel::Info, &file), work).unwrap();
        let (lines, durations) = lines_of(&file);
        assert_eq!(lines[0]["level"], "info");
        assert!((20.0..20_000.0).contains(&durations[0]), "{durations:?}");
    }

    #[test]
    fn a_delegate_of_this_process_is_logged_with_the_span_of_its_caller_as_parent() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("log");
        let mut input = logged(LogLevel::Info, &file);
        input.observe.traceparent = Some(PARENT.to_owned());
        assert_eq!((traceparent(), is_on()), (None, false));
        call("outer", &input, || {
            assert!(is_on());
            let mut inner = input.clone();
            inner.observe.traceparent = traceparent();
            call("inner", &inner, || Ok(()))
        })
        .unwrap();
        let (lines, _) = lines_of(&file);
        assert_eq!([&lines[0]["plugin"], &lines[1]["plugin"]], ["inner", "outer"]);
        assert_eq!(lines[0]["parent_id"], lines[1]["span_id"]);
        assert_eq!(lines[1]["parent_id"], "b7ad6b7169203331");
        assert_eq!(lines[0]["trace_id"], "0af7651916cd43dd8448eb211c80319c");
    }

    #[test]
    fn a_trace_context_with_a_part_of_another_length_or_without_digits_is_none() {
        let [version, trace, span] = ["00", "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"];
        assert_eq!(ids(&format!("{version}-{trace}-{span}-01")), Some([trace, span]));
        let broken = [
            ["0", trace, span],
            ["0x", trace, span],
            [version, span, span],
            [version, trace, trace],
            [version, trace, ""],
        ];
        for parts in broken {
            assert_eq!(ids(&format!("{}-01", parts.join("-"))), None, "{parts:?}");
        }
    }

    #[test]
    fn a_log_is_a_regular_file_with_one_name_and_anything_else_is_neither_followed_nor_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        open(&at("log")).unwrap().write_all(b"first\n").unwrap();
        open(&at("log")).unwrap().write_all(b"second\n").unwrap();
        assert_eq!(std::fs::read_to_string(at("log")).unwrap(), "first\nsecond\n");
        assert_eq!(std::fs::metadata(at("log")).unwrap().permissions().mode() & 0o777, 0o600);

        symlink(at("log"), at("symlink")).unwrap();
        mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
        // With a reader it can be opened.
        mkfifo(&at("read"), Mode::S_IRWXU).unwrap();
        let _reader = OpenOptions::new().read(true).custom_flags(OFlag::O_NONBLOCK.bits()).open(at("read")).unwrap();
        let reason = |name: &str| open(&at(name)).unwrap_err().to_string();
        assert_eq!(reason("symlink"), "it is a symbolic link");
        assert_eq!(reason("fifo"), "it is not a regular file");
        assert_eq!(reason("read"), "it is not a regular file");
        assert_eq!(open(dir.path()).unwrap_err().raw_os_error(), Some(nix::libc::EISDIR));
        std::fs::hard_link(at("log"), at("other")).unwrap();
        assert_eq!(reason("log"), "the file has another name too");
    }

    #[test]
    fn the_reason_for_stderr_is_given_once_in_a_call_and_its_delegates() {
        let dir = tempfile::tempdir().unwrap();
        let mut input = logged(LogLevel::Off, dir.path());
        // A call with a trace context is known though nothing is logged.
        input.observe.traceparent = Some(PARENT.to_owned());
        let reason = || reason_for_stderr(dir.path(), &io::Error::other("it is a directory"));
        assert_eq!(reason(), None);
        call("outer", &input, || {
            call("inner", &input, || {
                let text = reason().unwrap();
                assert!(text.contains("is not written, the log goes to stderr: it is a directory"), "{text}");
                assert!(text.contains(r#""level":"warn","plugin":"inner""#) && text.ends_with("}\n"), "{text}");
                Ok(())
            })?;
            assert_eq!(reason(), None);
            Ok(())
        })
        .unwrap();
    }

    #[test]
    fn a_thread_frees_all_memory_of_a_finished_call() {
        let mut input = Input::default();
        input.observe.traceparent = Some(PARENT.to_owned());
        call("outer", &input, || call("inner", &input, || Ok(()))).unwrap();
        assert_eq!(CALLS.with_borrow(|calls| calls.capacity()), 0);
    }

    #[test]
    fn a_duration_is_rounded_to_microseconds() {
        assert_eq!(milliseconds(Duration::from_nanos(2_001_234_567)).to_string(), "2001.235");
    }

    #[test]
    fn a_trace_is_continued_with_a_span_of_our_own() {
        let child = child_span(PARENT).unwrap();
        assert!(child.starts_with("00-0af7651916cd43dd8448eb211c80319c-") && child.ends_with("-01"), "{child}");
        let span = ids(&child).unwrap()[1];
        assert_ne!(span, "b7ad6b7169203331");
        assert!(u64::from_str_radix(span, 16).unwrap() > u64::from(u8::MAX), "one byte is not random enough: {child}");
        assert_eq!(child_span("garbage"), None);
    }
}
