//! Tables: each column is as wide as its widest cell, with two spaces between columns.

use std::borrow::Cow;

use crate::failure::Result;
use crate::output::format::Output;
use crate::output::print::print;
use crate::output::text::{Tone, one_line};

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
    /// Prints a table with a head.
    pub(crate) fn table<const N: usize>(self, titles: [&str; N], rows: &[[Cell<'_>; N]]) -> Result {
        let head = titles.map(|title| Cell::toned(title, Tone::Head));
        let mut widths = [0; N];
        for row in std::iter::once(&head).chain(rows) {
            for (width, cell) in widths.iter_mut().zip(row) {
                *width = cell.text.chars().count().max(*width);
            }
        }
        let mut text = String::with_capacity((rows.len() + 1) * (widths.iter().sum::<usize>() + 2 * N));
        self.push_row(&head, &widths, &mut text);
        for row in rows {
            self.push_row(row, &widths, &mut text);
        }
        print(&text)
    }

    /// Appends a row, without spaces at its end.
    fn push_row(self, row: &[Cell<'_>], widths: &[usize], text: &mut String) {
        let last = row.iter().rposition(|cell| !cell.text.is_empty()).unwrap_or(0);
        for (at, cell) in row.iter().enumerate().take(last + 1) {
            self.push(&cell.text, cell.tone, text);
            let gap = if at == last { 0 } else { widths[at] + 2 - cell.text.chars().count() };
            text.extend(std::iter::repeat_n(' ', gap));
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::text::escaped;

    #[test]
    fn a_row_is_as_wide_as_its_columns_and_has_no_spaces_at_its_end() {
        let plain = Output { json: false, colour: false };
        let row = ["é".into(), "b".into(), "".into()];
        let mut text = String::new();
        plain.push_row(&row, &[3, 4, 5], &mut text);
        assert_eq!(text, "é    b\n");
    }

    #[test]
    fn text_from_elsewhere_neither_moves_the_cursor_nor_colours_nor_ends_a_line() {
        let on = Output { json: false, colour: true };
        let hostile = "\x1b[2J\u{fdd3}red\u{fdd0}\nError: forged\u{202e}";
        let row = [Cell::toned(hostile, Tone::Good), "b".into()];
        let mut text = String::new();
        on.push_row(&row, &[60, 1], &mut text);
        let printed = escaped(&text);
        assert_eq!(printed.matches('\x1b').count(), 2, "{printed}");
        let expected = "\x1b[32m\\u001b[2J\u{fffd}red\u{fffd}\\nError: forged\\u202e\x1b[0m";
        assert!(printed.starts_with(expected), "{printed}");
        assert_eq!(printed.lines().count(), 1);
    }
}
