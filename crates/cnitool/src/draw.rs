//! Attachments as a picture: in Mermaid's language, or as SVG.
//!
//! Both are made of the same boxes: on the left what is in the container, in the middle the host's end, then what that is a
//! port of, and the rules below it.

use crate::show::{Shown, described};

/// One box.
struct Item {
    /// Which column, from 0.
    column: usize,
    lines: Vec<String>,
    /// The box that it hangs on, by its number, and how.
    on: Option<(usize, &'static str)>,
}

/// The boxes of all attachments; a bridge that several share is one.
fn items(shown: &[Shown]) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    for one in shown {
        let kept = &one.kept;
        let mut lines = vec![
            format!("{}/{}", kept.network, kept.at.ifname),
            format!("container {}", kept.at.container_id),
            format!("namespace {} ({})", kept.at.netns, one.standing.word()),
        ];
        lines.extend(one.inside_lines());
        let container = items.len();
        items.push(Item { column: 0, lines, on: None });
        let mut last = container;
        if let Some(peer) = &one.peer {
            last = items.len();
            items.push(Item { column: 1, lines: vec![described(peer)], on: Some((container, "pair")) });
        }
        if let Some((bridge, addresses)) = &one.bridge {
            let addresses = addresses.iter().map(|address| format!("address {address}"));
            let lines: Vec<String> = std::iter::once(described(bridge)).chain(addresses).collect();
            items.push(Item { column: 2, lines, on: Some((last, "port")) });
        }
        if !one.rules.is_empty() {
            items.push(Item { column: 2, lines: one.rules.clone(), on: Some((container, "rules")) });
        }
    }
    items
}

/// A flow chart; see Mermaid's documentation of `flowchart`.
pub(crate) fn mermaid(shown: &[Shown]) -> String {
    let mut text = vec!["flowchart LR\n".to_owned()];
    for (number, item) in items(shown).iter().enumerate() {
        let label: Vec<String> = item.lines.iter().map(|line| escaped(line)).collect();
        text.push(format!("    n{number}[\"{}\"]\n", label.join("<br/>")));
        if let Some((on, how)) = item.on {
            text.push(format!("    n{on} ---|{how}| n{number}\n"));
        }
    }
    text.concat()
}

/// Width of a letter, height of a line, and the room around boxes, in pixels.
const LETTER: usize = 7;
const LINE: usize = 18;
const ROOM: usize = 24;

/// A picture that needs nothing else to be seen.
pub(crate) fn svg(shown: &[Shown]) -> String {
    let items = items(shown);
    let width = |item: &Item| item.lines.iter().map(|line| line.chars().count()).max().unwrap_or(0) * LETTER + ROOM;
    let height = |item: &Item| item.lines.len() * LINE + ROOM / 2;
    let column = |at: usize| items.iter().filter(|item| item.column == at).map(width).max().unwrap_or(0);
    let widths = [column(0), column(1), column(2)];
    let left: Vec<usize> =
        (0..3).map(|at| ROOM + widths[..at].iter().map(|width| width + 3 * ROOM).sum::<usize>()).collect();
    let mut next = [ROOM; 3];
    let mut tops = Vec::new();
    for item in &items {
        // No box stands above the one that it hangs on.
        let above = item.on.map_or(ROOM, |(on, _)| tops[on]);
        let top = above.max(next[item.column]);
        // A container begins a row of its own.
        let top = if item.column == 0 { top.max(next.into_iter().max().unwrap_or(top)) } else { top };
        next[item.column] = top + height(item) + ROOM;
        tops.push(top);
    }
    let (wide, high) = (left[2] + widths[2] + ROOM, next.into_iter().max().unwrap_or(ROOM));
    let mut text = vec![format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{wide}\" height=\"{high}\" font-family=\"monospace\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    )];
    for (item, top) in items.iter().zip(&tops) {
        let (x, wide, high) = (left[item.column], widths[item.column], height(item));
        if let Some((on, how)) = item.on {
            let (from, from_top) = (left[items[on].column] + widths[items[on].column], tops[on] + LINE);
            let to_top = top + LINE;
            text.push(format!("<path d=\"M{from} {from_top} L{x} {to_top}\" stroke=\"black\" fill=\"none\"/>\n"));
            text.push(format!("<text x=\"{}\" y=\"{}\">{how}</text>\n", x - 2 * ROOM, to_top - 4));
        }
        text.push(format!(
            "<rect x=\"{x}\" y=\"{top}\" width=\"{wide}\" height=\"{high}\" rx=\"4\" fill=\"#eef\" stroke=\"black\"/>\n"
        ));
        for (at, line) in item.lines.iter().enumerate() {
            let y = top + (at + 1) * LINE;
            text.push(format!("<text x=\"{}\" y=\"{y}\">{}</text>\n", x + ROOM / 2, escaped(line)));
        }
    }
    text.concat() + "</svg>\n"
}

/// A text within markup.
fn escaped(text: &str) -> String {
    let pairs = [("&", "&amp;"), ("<", "&lt;"), (">", "&gt;"), ("\"", "&quot;")];
    pairs.iter().fold(text.to_owned(), |text, (plain, entity)| text.replace(plain, entity))
}
