//! The ratios as a picture: bars on a logarithmic scale, in the colours of whoever looks at it.

use std::fmt::Write;

use crate::measure::Row;
use crate::verdict::{short, target};

const LEFT: f64 = 300.0;
const WIDTH: f64 = 620.0;
const LINE: f64 = 24.0;
const TOP: f64 = 58.0;
/// The scale's ends, as powers of ten.
const ENDS: (f64, f64) = (-0.5, 3.5);

const STYLE: &str = "text{font:13px system-ui,sans-serif;fill:#1f2328}.head{font-size:16px;font-weight:600}\
    .bar{fill:#2f7fd8}.slow{fill:#c4622d}.span{stroke:#1f2328;stroke-width:1.5}.target{stroke:#c0392b;stroke-width:2}\
    .grid{stroke:#d0d7de}.one{stroke:#57606a}.end{text-anchor:end}.middle{text-anchor:middle}.ground{fill:#ffffff}\
    @media(prefers-color-scheme:dark){text{fill:#e6edf3}.bar{fill:#4493f8}.slow{fill:#e0823d}.span{stroke:#e6edf3}\
    .target{stroke:#ff7b72}.grid{stroke:#30363d}.one{stroke:#9198a1}.ground{fill:#0d1117}}";

/// An SVG document of every row that can be compared.
pub(crate) fn svg(rows: &[Row], title: &str) -> String {
    let rows: Vec<_> = rows.iter().filter_map(|row| Some((row, row.ratio()?))).collect();
    let lines = u32::try_from(rows.len()).map_or(0.0, f64::from);
    let (width, bottom) = (LEFT + WIDTH + 80.0, TOP + lines * LINE);
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {}\" role=\"img\" aria-label=\"{title}\">\n\
         <style>{STYLE}</style>\n<rect class=\"ground\" width=\"100%\" height=\"100%\"/>\n\
         <text class=\"head\" x=\"12\" y=\"24\">{title}</text>\n",
        bottom + 16.0
    );
    for (power, label) in [(0, "1×"), (1, "10×"), (2, "100×"), (3, "1,000×")] {
        let (at, class) = (place(10_f64.powi(power)), if power == 0 { "one" } else { "grid" });
        let _ = writeln!(text, "<line class=\"{class}\" x1=\"{at:.1}\" y1=\"{TOP}\" x2=\"{at:.1}\" y2=\"{bottom}\"/>");
        let _ = writeln!(text, "<text class=\"middle\" x=\"{at:.1}\" y=\"{}\">{label}</text>", TOP - 8.0);
    }
    let mut top = TOP;
    for (row, ratio) in rows {
        let (one, end, middle) = (place(1.0), place(ratio.is), top + LINE / 2.0);
        let class = if ratio.is < 1.0 { "slow" } else { "bar" };
        let (left, length) = (one.min(end), (end - one).abs().max(1.0));
        let _ = writeln!(text, "<text class=\"end\" x=\"{}\" y=\"{}\">{}</text>", LEFT - 10.0, middle + 4.0, row.name);
        let _ = writeln!(
            text,
            "<rect class=\"{class}\" x=\"{left:.1}\" y=\"{}\" width=\"{length:.1}\" height=\"{}\" rx=\"2\"/>",
            top + 4.0,
            LINE - 8.0
        );
        let (low, high) = (place(ratio.low), place(ratio.high));
        let _ =
            writeln!(text, "<line class=\"span\" x1=\"{low:.1}\" y1=\"{middle}\" x2=\"{high:.1}\" y2=\"{middle}\"/>");
        if let Some(target) = target(&row.name).map(|target| target.times) {
            let at = place(target);
            let _ = writeln!(
                text,
                "<line class=\"target\" x1=\"{at:.1}\" y1=\"{top}\" x2=\"{at:.1}\" y2=\"{}\"/>",
                top + LINE
            );
        }
        let label = end.max(high) + 8.0;
        let _ = writeln!(text, "<text x=\"{label:.1}\" y=\"{}\">{}</text>", middle + 4.0, short(ratio.is));
        top += LINE;
    }
    text + "</svg>\n"
}

/// Where a ratio stands.
fn place(ratio: f64) -> f64 {
    let (low, high) = ENDS;
    LEFT + WIDTH * (ratio.log10().clamp(low, high) - low) / (high - low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::{Noise, Outcome, Samples};

    #[test]
    fn a_bar_is_as_long_as_the_ratio_on_a_logarithmic_scale() {
        let samples = |ms: f64| Outcome::Measured(Samples { took: vec![ms; 3], ..Samples::default() });
        let row = Row {
            name: "bridge ADD".to_owned(),
            sides: vec![samples(1.0), samples(10.0)],
            noise: Noise { unrest: 1.0, others: 0.0 },
        };
        let text = svg(&[row], "Side by side");
        assert!(text.contains("width=\"155.0\" height=\"16\""), "{text}");
        assert!(text.contains("class=\"target\"") && text.contains(">10.0</text>"), "{text}");
    }

    #[test]
    fn what_leaves_the_scale_stays_in_the_picture() {
        assert!((place(1e9) - LEFT - WIDTH).abs() < 1e-9 && (place(1e-9) - LEFT).abs() < 1e-9);
    }
}
