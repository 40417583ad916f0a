//! What people and programs are shown: tables, colours, documents, progress.

pub(crate) mod progress;
pub(crate) mod time;

use std::borrow::Cow;
use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use cnikit_types::printable;
use serde::Serialize;
use serde_json::Value;
use serde_json::ser::{PrettyFormatter, Serializer};

use crate::cli::{Common, When};
use crate::environment;
use crate::failure::{Failure, Result};

/// How long a work may take before it says how far it is.
const SILENCE: Duration = Duration::from_secs(1);
/// How often it says so.
pub(crate) const PACE: Duration = Duration::from_millis(100);

/// Where everything goes that a command says.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// A document for a program, instead of text for people.
    pub(crate) json: bool,
    colour: bool,
}

/// What a text means; the colour follows from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    /// As it should be.
    Good,
    /// Wants a look.
    Doubtful,
    /// Wants mending.
    Bad,
    /// The head of a table, or of a tree.
    Head,
    /// Of less interest.
    Faint,
}

/// What a colour is until it is printed, by characters that Unicode assigns to nobody: all other text is escaped on its way out.
const MARKS: [(char, &str); 6] = [
    ('\u{fdd0}', "\x1b[0m"),
    ('\u{fdd1}', "\x1b[32m"),
    ('\u{fdd2}', "\x1b[33m"),
    ('\u{fdd3}', "\x1b[31m"),
    ('\u{fdd4}', "\x1b[1m"),
    ('\u{fdd5}', "\x1b[2m"),
];

/// One cell of a table.
#[derive(Clone, Debug)]
pub(crate) struct Cell<'t> {
    text: Cow<'t, str>,
    tone: Tone,
}

impl<'t> Cell<'t> {
    pub(crate) fn toned(text: impl Into<Cow<'t, str>>, tone: Tone) -> Cell<'t> {
        Cell { text: one_line(text.into()), tone }
    }
}

impl<'t, T: Into<Cow<'t, str>>> From<T> for Cell<'t> {
    fn from(text: T) -> Cell<'t> {
        Cell::toned(text, Tone::Plain)
    }
}

impl Output {
    /// As flags, environment and terminal want it.
    pub(crate) fn of(common: &Common) -> Output {
        let colour = match common.color {
            When::Always => true,
            When::Never => false,
            When::Auto => io::stdout().is_terminal() && environment::wants_colour(),
        };
        Output { json: common.json, colour }
    }

    /// Writes a table: columns as wide as their widest cell, two spaces between.
    pub(crate) fn table<const N: usize>(self, head: [&str; N], rows: &[[Cell<'_>; N]]) -> Result {
        let head = head.map(|title| Cell::toned(title, Tone::Head));
        let all = || std::iter::once(&head).chain(rows);
        let width = |column: usize| all().map(|row| row[column].text.chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..N).map(width).collect();
        let mut text = String::with_capacity((rows.len() + 1) * (widths.iter().sum::<usize>() + 2 * N));
        all().for_each(|row| self.line(row, &widths, &mut text));
        print(&text)
    }

    /// Ends a command that has told people already what it did.
    pub(crate) fn finish(self, document: Value, failed: Vec<Failure>) -> Result {
        match (failed.is_empty(), self.json) {
            (true, true) => print_json(&document),
            (true, false) => Ok(()),
            (false, _) => Err(Failure::of(failed).beside(document)),
        }
    }

    fn line(self, row: &[Cell<'_>], widths: &[usize], text: &mut String) {
        let last = row.iter().rposition(|cell| !cell.text.is_empty()).unwrap_or(0);
        for (at, cell) in row.iter().enumerate().take(last + 1) {
            self.put(&cell.text, cell.tone, text);
            let gap = if at == last { 0 } else { widths[at] + 2 - cell.text.chars().count() };
            text.extend(std::iter::repeat_n(' ', gap));
        }
        text.push('\n');
    }

    /// A text in the colour of its meaning, if there are colours.
    pub(crate) fn paint(self, text: &str, tone: Tone) -> String {
        let mut painted = String::new();
        self.put(&one_line(text.into()), tone, &mut painted);
        painted
    }

    /// See `console_codes(4)`.
    fn put(self, text: &str, tone: Tone, onto: &mut String) {
        let mark = match tone {
            Tone::Plain => None,
            Tone::Good => Some('\u{fdd1}'),
            Tone::Doubtful => Some('\u{fdd2}'),
            Tone::Bad => Some('\u{fdd3}'),
            Tone::Head => Some('\u{fdd4}'),
            Tone::Faint => Some('\u{fdd5}'),
        };
        match mark {
            Some(mark) if self.colour && !text.is_empty() => {
                onto.push(mark);
                onto.push_str(text);
                onto.push('\u{fdd0}');
            }
            _ => onto.push_str(text),
        }
    }
}

/// A text that stays in its line, in which nobody else has put a colour.
fn one_line(text: Cow<'_, str>) -> Cow<'_, str> {
    let is_ours_alone = |letter: char| letter == '\n' || MARKS.iter().any(|(mark, _)| *mark == letter);
    if !text.chars().any(is_ours_alone) {
        return text;
    }
    Cow::Owned(text.replace('\n', "\\n").replace(is_ours_alone, "\u{fffd}"))
}

/// The text as a terminal may have it: escaped, then coloured. Everything that this tool prints goes through here.
fn shown(text: &str) -> String {
    let mut shown = printable(text).into_owned();
    for (mark, code) in MARKS {
        if shown.contains(mark) {
            shown = shown.replace(mark, code);
        }
    }
    shown
}

/// Writes a text. That nobody reads on is no error.
pub(crate) fn print(text: &str) -> Result {
    print_as_it_is(&shown(text))
}

/// Writes a text that has nothing of others in it.
pub(crate) fn print_as_it_is(text: &str) -> Result {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(format!("stdout: {error}").into()),
        _ => Ok(()),
    }
}

/// Writes a document, and a newline.
pub(crate) fn print_json(document: &Value) -> Result {
    print(&(indented(document)? + "\n"))
}

/// As the reference prints a result: four spaces, no newline at the end.
pub(crate) fn indented(document: &Value) -> Result<String> {
    let mut text = Vec::new();
    let mut serializer = Serializer::with_formatter(&mut text, PrettyFormatter::with_indent(b"    "));
    document.serialize(&mut serializer).map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Writes a text to stderr at once, so that nothing of a plugin's, or of what is typed, comes in between.
pub(crate) fn tell(text: &str) -> io::Result<()> {
    tell_as_it_is(&shown(text))
}

fn tell_as_it_is(text: &str) -> io::Result<()> {
    io::stderr().write_all(text.as_bytes())
}

/// Says a line on stderr. Nobody is left to tell if that is gone.
pub(crate) fn say(line: &str) {
    let _ = tell(&format!("{line}\n"));
}

/// How far a work is, on a terminal, once it takes longer than a second.
#[derive(Debug)]
pub(crate) struct Progress {
    what: String,
    began: Instant,
    said: Option<Instant>,
    is_terminal: bool,
}

impl Progress {
    pub(crate) fn of(what: &str) -> Progress {
        Progress::since(Instant::now(), what.to_owned())
    }

    /// Of something that began before.
    pub(crate) fn since(began: Instant, what: String) -> Progress {
        Progress { what, began, said: None, is_terminal: io::stderr().is_terminal() }
    }

    /// Whether there is anybody who could see it.
    pub(crate) fn is_seen(&self) -> bool {
        self.is_terminal
    }

    /// So many of so many are done.
    pub(crate) fn at(&mut self, done: usize, of: usize) {
        self.say(|_| format!("{done} of {of}"));
    }

    /// It is still going on.
    pub(crate) fn goes_on(&mut self) {
        self.say(|began| format!("{} s", began.elapsed().as_secs()));
    }

    fn say(&mut self, how_far: impl FnOnce(Instant) -> String) {
        let is_due = self.said.map_or(self.began.elapsed() > SILENCE, |said| said.elapsed() > PACE);
        if self.is_terminal && is_due {
            let _ = tell_as_it_is(&format!("\r\x1b[K{}: {}", shown(&self.what), how_far(self.began)));
            self.said = Some(Instant::now());
        }
    }

    /// Takes its line away again.
    pub(crate) fn end(self) {
        if self.said.is_some() {
            let _ = tell_as_it_is("\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_as_wide_as_its_columns_and_has_no_blanks_at_its_end() {
        let plain = Output { json: false, colour: false };
        let row = ["é".into(), "b".into(), "".into()];
        let mut text = String::new();
        plain.line(&row, &[3, 4, 5], &mut text);
        assert_eq!(text, "é    b\n");
    }

    #[test]
    fn colours_are_only_where_they_are_wanted() {
        let on = Output { json: false, colour: true };
        assert_eq!(shown(&on.paint("x", Tone::Bad)), "\x1b[31mx\x1b[0m");
        assert_eq!(Output { colour: false, ..on }.paint("x", Tone::Bad), "x");
    }

    #[test]
    fn text_of_others_neither_moves_the_cursor_nor_colours_nor_ends_a_line() {
        let on = Output { json: false, colour: true };
        let hostile = "\x1b[2J\u{fdd3}red\u{fdd0}\nError: forged\u{202e}";
        let row = [Cell::toned(hostile, Tone::Good), "b".into()];
        let mut text = String::new();
        on.line(&row, &[60, 1], &mut text);
        let text = shown(&text);
        assert_eq!(text.matches('\x1b').count(), 2, "{text}");
        assert!(text.starts_with("\x1b[32m\\u001b[2J\u{fffd}red\u{fffd}\\nError: forged\\u202e\x1b[0m"), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}
