//! Text for a terminal: control characters are escaped, and only this tool adds colours.

use std::borrow::Cow;

use anstyle::{AnsiColor, Reset, Style};
use cnikit_types::printable;

/// The meaning of a text, which decides its colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Tone {
    #[default]
    Plain,
    /// In order.
    Good,
    /// Possibly wrong.
    Doubtful,
    /// Wrong.
    Bad,
    /// The title of a column or of a tree.
    Head,
    /// Less important.
    Faint,
}

/// The placeholders for styles until the text is printed. They are Unicode noncharacters (U+FDD0 to U+FDEF), because everything
/// else in a text is escaped before it is printed, escape sequences included.
const STYLES: [(char, Style); 5] = [
    ('\u{fdd1}', AnsiColor::Green.on_default()),
    ('\u{fdd2}', AnsiColor::Yellow.on_default()),
    ('\u{fdd3}', AnsiColor::Red.on_default()),
    ('\u{fdd4}', Style::new().bold()),
    ('\u{fdd5}', Style::new().dimmed()),
];

/// The placeholder for the end of a style.
const RESET: char = '\u{fdd0}';

impl Tone {
    fn mark(self) -> Option<char> {
        match self {
            Tone::Plain => None,
            Tone::Good => Some('\u{fdd1}'),
            Tone::Doubtful => Some('\u{fdd2}'),
            Tone::Bad => Some('\u{fdd3}'),
            Tone::Head => Some('\u{fdd4}'),
            Tone::Faint => Some('\u{fdd5}'),
        }
    }
}

/// Appends a text with the marks of its tone, if it is not empty.
pub(crate) fn push_toned(text: &str, tone: Tone, onto: &mut String) {
    match tone.mark() {
        Some(mark) if !text.is_empty() => {
            onto.push(mark);
            onto.push_str(text);
            onto.push(RESET);
        }
        _ => onto.push_str(text),
    }
}

/// The text in one line, without marks that came with it.
pub(crate) fn one_line(text: Cow<'_, str>) -> Cow<'_, str> {
    if !text.contains('\n') && !has_mark(&text) {
        return text;
    }
    Cow::Owned(text.replace('\n', "\\n").replace(is_mark, "\u{fffd}"))
}

fn has_mark(text: &str) -> bool {
    !text.is_ascii() && text.contains(is_mark)
}

fn is_mark(letter: char) -> bool {
    letter == RESET || STYLES.iter().any(|(mark, _)| *mark == letter)
}

/// The text as it is printed: control characters escaped, then marks replaced by the terminal's escape sequences.
pub(crate) fn escaped(text: &str) -> Cow<'_, str> {
    let escaped = printable(text);
    if !has_mark(&escaped) {
        return escaped;
    }
    let mut styled = escaped.into_owned();
    for (mark, style) in STYLES {
        styled = styled.replace(mark, &style.render().to_string());
    }
    Cow::Owned(styled.replace(RESET, &Reset.render().to_string()))
}
