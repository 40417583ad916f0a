//! The format of a command's output: text with or without colours, or one JSON document.

use serde_json::Value;

use crate::failure::{Failure, Result};
use crate::output::print::print_json;
use crate::output::text::{Tone, one_line, push_toned};

/// The format of a command's output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    /// One JSON document instead of text.
    pub(crate) json: bool,
    /// Text in colour.
    pub(crate) colour: bool,
}

impl Output {
    /// Ends a command that has already printed its text: prints the document if `--json` is given, and returns all failures as one.
    pub(crate) fn finish(self, document: Value, failures: Vec<Failure>) -> Result {
        if !failures.is_empty() {
            return Err(Failure::of(failures).beside(document));
        }
        if self.json { print_json(&document) } else { Ok(()) }
    }

    /// One line of text in the colour of its tone, if there are colours.
    pub(crate) fn paint(self, text: &str, tone: Tone) -> String {
        let mut painted = String::new();
        self.push(&one_line(text.into()), tone, &mut painted);
        painted
    }

    /// Appends a text in the colour of its tone, if there are colours.
    pub(crate) fn push(self, text: &str, tone: Tone, onto: &mut String) {
        push_toned(text, if self.colour { tone } else { Tone::Plain }, onto);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::text::escaped;

    #[test]
    fn text_is_coloured_only_if_colours_are_wanted() {
        let on = Output { json: false, colour: true };
        assert_eq!(escaped(&on.paint("x", Tone::Bad)), "\x1b[31mx\x1b[0m");
        assert_eq!(Output { colour: false, ..on }.paint("x", Tone::Bad), "x");
    }

    #[test]
    fn every_tone_has_the_escape_sequence_of_console_codes() {
        let on = Output { json: false, colour: true };
        let codes = [
            (Tone::Good, "\x1b[32m"),
            (Tone::Doubtful, "\x1b[33m"),
            (Tone::Bad, "\x1b[31m"),
            (Tone::Head, "\x1b[1m"),
            (Tone::Faint, "\x1b[2m"),
        ];
        for (tone, code) in codes {
            assert_eq!(escaped(&on.paint("x", tone)), format!("{code}x\x1b[0m"));
        }
        assert_eq!(escaped(&on.paint("x", Tone::Plain)), "x");
    }
}
