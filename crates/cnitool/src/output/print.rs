//! Writes to stdout and stderr. Everything that the tool prints goes through here.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

use crate::failure::Result;
use crate::output::text::escaped;

/// Writes a text to stdout. A closed pipe is not an error.
pub(crate) fn print(text: &str) -> Result {
    print_unescaped(&escaped(text))
}

/// Writes a text that comes from this tool alone, so that nothing in it has to be escaped.
pub(crate) fn print_unescaped(text: &str) -> Result {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!("stdout: {error}").into()),
        _ => Ok(()),
    }
}

/// Writes a document and a newline to stdout.
pub(crate) fn print_json(document: &Value) -> Result {
    print(&(indented(document)? + "\n"))
}

/// A document as upstream's cnitool prints a result: indented by four spaces, no newline at the end.
pub(crate) fn indented(document: &Value) -> Result<String> {
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"    "));
    document.serialize(&mut serializer).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Writes a text to stderr in one call, so that the output of a plugin cannot be mixed with it.
pub(crate) fn write_to_stderr(text: &str) -> io::Result<()> {
    write_to_stderr_unescaped(&escaped(text))
}

/// As [`write_to_stderr`], for a text that is escaped already.
pub(crate) fn write_to_stderr_unescaped(text: &str) -> io::Result<()> {
    io::stderr().write_all(text.as_bytes())
}

/// Writes a line to stderr. An error is ignored: there is nowhere left to report it.
pub(crate) fn print_to_stderr(line: &str) {
    let _ = write_to_stderr(&format!("{line}\n"));
}

/// Writes warnings to stderr, each in a line of its own.
pub(crate) fn warn(warnings: &[String]) {
    for warning in warnings {
        print_to_stderr(&format!("Warning: {warning}"));
    }
}
