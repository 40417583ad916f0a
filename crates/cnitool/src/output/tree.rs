//! Trees: a title, and branches below it.

use crate::output::format::Output;
use crate::output::text::Tone;

/// One line of a tree, and the lines below it.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    pub(crate) text: String,
    pub(crate) below: Vec<Branch>,
}

impl Branch {
    /// A line with leaves below it.
    pub(crate) fn over(text: impl Into<String>, leaves: impl IntoIterator<Item = String>) -> Branch {
        let leaves = leaves.into_iter().map(|leaf| Branch { text: leaf, below: Vec::new() });
        Branch { text: text.into(), below: leaves.collect() }
    }

    /// The tree as text, this line as its title.
    pub(crate) fn drawn(&self, out: Output) -> String {
        let mut lines = vec![out.paint(&self.text, Tone::Head) + "\n"];
        self.draw_below("", &mut lines);
        lines.concat()
    }

    fn draw_below(&self, indent: &str, lines: &mut Vec<String>) {
        for (at, branch) in self.below.iter().enumerate() {
            let is_last = at + 1 == self.below.len();
            let (edge, more) = if is_last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            lines.push(format!("{indent}{edge}{}\n", branch.text));
            branch.draw_below(&format!("{indent}{more}"), lines);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_drawn_with_its_edges() {
        let tree = Branch { text: "a".into(), below: vec![Branch::over("b", ["c".into()]), Branch::over("d", [])] };
        let mut lines = Vec::new();
        tree.draw_below("", &mut lines);
        assert_eq!(lines.concat(), "├─ b\n│  └─ c\n└─ d\n");
    }
}
