//! The forms of a report.

use std::fmt::Write;

use serde_json::{Value, json};

use super::{CheckResult, Outcome, Report};

/// The most lines of a finding that a text shows.
const LINES: usize = 24;

impl Report {
    /// What is tested, as one line.
    pub(super) fn heading(&self) -> String {
        format!("{} in version {} of the specification\n", self.subject, self.version)
    }

    /// One result for people.
    pub(super) fn text_of(&self, n: usize) -> String {
        let CheckResult { check, outcome, seconds } = &self.results[n];
        let word = match outcome {
            Outcome::Passed => "ok",
            Outcome::Failed(_) => "FAILED",
            Outcome::Skipped(_) => "skipped",
        };
        let mut text = format!("{word:<8}{:<14}{:<11}{}", check.level, check.id, check.title);
        match outcome {
            Outcome::Passed => _ = writeln!(text, " ({seconds:.1} s)"),
            Outcome::Skipped(reason) => _ = writeln!(text, ": {reason}"),
            Outcome::Failed(found) => {
                let lines = without_settings(found);
                _ = writeln!(text, " ({seconds:.1} s)");
                lines.iter().take(LINES).for_each(|line| _ = writeln!(text, "        {line}"));
                if lines.len() > LINES {
                    _ = writeln!(text, "        and {} lines more: --format json has all", lines.len() - LINES);
                }
                _ = writeln!(text, "        {}\n        again: {}", check.source, self.again[n]);
            }
        }
        text
    }

    /// The counts, and the level that is met.
    pub(super) fn summary(&self) -> String {
        let count = |is: fn(&Outcome) -> bool| self.results.iter().filter(|result| is(&result.outcome)).count();
        let passed = count(|outcome| *outcome == Outcome::Passed);
        let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
        let skipped = count(|outcome| matches!(outcome, Outcome::Skipped(_)));
        let level = self.level().map_or("none".to_owned(), |level| level.to_string());
        format!("{passed} passed, {failed} failed, {skipped} do not apply; level: {level}\n")
    }

    /// Test Anything Protocol, version 14.
    pub(super) fn tap(&self) -> String {
        let mut text = format!("TAP version 14\n1..{}\n", self.results.len());
        for (n, CheckResult { check, outcome, .. }) in self.results.iter().enumerate() {
            let not = if matches!(outcome, Outcome::Failed(_)) { "not " } else { "" };
            _ = write!(text, "{not}ok {} - {} {}: {}", n + 1, check.level, check.id, check.title.replace('#', r"\#"));
            match outcome {
                Outcome::Passed => text += "\n",
                Outcome::Skipped(reason) => _ = writeln!(text, " # SKIP {reason}"),
                Outcome::Failed(found) => {
                    text += "\n  ---\n  finding: |\n";
                    found.lines().for_each(|line| _ = writeln!(text, "    {line}"));
                    // A JSON text is a YAML text.
                    _ = writeln!(text, "  source: {}\n  again: {}\n  ...", json!(check.source), json!(self.again[n]));
                }
            }
        }
        text
    }

    /// The XML that CI systems read.
    pub(super) fn junit(&self) -> String {
        let failures = self.results.iter().filter(|result| matches!(result.outcome, Outcome::Failed(_))).count();
        let skipped = self.results.iter().filter(|result| matches!(result.outcome, Outcome::Skipped(_))).count();
        let mut text = format!(
            "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"cni-conformance {}\" tests=\"{}\" failures=\"{failures}\" skipped=\"{skipped}\">\n",
            escaped(&self.subject),
            self.results.len()
        );
        for (n, CheckResult { check, outcome, seconds }) in self.results.iter().enumerate() {
            _ = write!(text, "  <testcase classname=\"{}\" name=\"{}\" time=\"{seconds:.3}\"", check.level, check.id);
            match outcome {
                Outcome::Passed => text += "/>\n",
                Outcome::Skipped(reason) => {
                    _ = writeln!(text, "><skipped message=\"{}\"/></testcase>", escaped(reason));
                }
                Outcome::Failed(found) => {
                    let more = format!("{found}\n{}\nagain: {}", check.source, self.again[n]);
                    let message = escaped(check.title);
                    _ = writeln!(
                        text,
                        "><failure message=\"not so: {message}\">{}</failure></testcase>",
                        escaped(&more)
                    );
                }
            }
        }
        text + "</testsuite>\n"
    }

    /// One JSON document.
    pub(super) fn json(&self) -> String {
        let mut tests = Vec::new();
        for (n, CheckResult { check, outcome, seconds }) in self.results.iter().enumerate() {
            let mut one =
                json!({"id": check.id, "level": check.level.to_string(), "title": check.title, "seconds": seconds});
            match outcome {
                Outcome::Passed => one["outcome"] = json!("passed"),
                Outcome::Skipped(reason) => {
                    one["outcome"] = json!("skipped");
                    one["reason"] = json!(reason);
                }
                Outcome::Failed(found) => {
                    one["outcome"] = json!("failed");
                    one["finding"] = json!(found);
                    one["source"] = json!(check.source);
                    one["again"] = json!(self.again[n]);
                }
            }
            tests.push(one);
        }
        let level = self.level().map_or(Value::Null, |level| json!(level.to_string()));
        let document = json!({"subject": self.subject, "cniVersion": self.version, "level": level, "tests": tests});
        format!("{document:#}\n")
    }
}

/// The lines of a finding. Each link comes and goes with many settings in `/proc/sys/net`: of those only the first is shown.
fn without_settings(found: &str) -> Vec<&str> {
    let is_setting = |line: &str| line.trim_start().starts_with("\"sysctl: ");
    let mut lines: Vec<&str> = found.lines().collect();
    lines.dedup_by(|next, line| is_setting(next) && is_setting(line));
    lines
}

/// A text in XML: characters that mean something there, or that XML 1.0 does not allow, are replaced.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for c in text.chars() {
        match c {
            '&' => escaped += "&amp;",
            '<' => escaped += "&lt;",
            '>' => escaped += "&gt;",
            '"' => escaped += "&quot;",
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::{CHECKS, Level, UNKNOWN};

    /// A test of each outcome; the second is of the second level.
    fn report() -> Report {
        let robust = CHECKS.iter().position(|check| check.level == Level::Robust).unwrap();
        let result = |n: usize, outcome| CheckResult { check: &CHECKS[n], outcome, seconds: 0.25 };
        Report {
            subject: "x & y".to_owned(),
            version: "1.1.0".to_owned(),
            results: vec![
                result(0, Outcome::Passed),
                result(robust, Outcome::Failed("left: <eth0>\nand \u{1b}more".to_owned())),
                result(robust + 1, Outcome::Skipped("no")),
            ],
            again: vec!["a".to_owned(), "b \"c\"".to_owned(), String::new()],
            line: None,
        }
    }

    #[test]
    fn the_text_names_finding_source_and_command() {
        let report = report();
        let text = report.heading() + &report.text_of(0) + &report.text_of(1) + &report.summary();
        for part in [
            "ok      specification version ",
            "FAILED  robust",
            "        left: <eth0>\n",
            "again: b \"c\"",
            "1 passed, 1 failed, 1 do not apply; level: none",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn tap_junit_and_json_have_the_same_outcomes() {
        let tap = report().tap();
        assert!(
            tap.starts_with("TAP version 14\n1..3\nok 1 - ")
                && tap.contains("\nnot ok 2 - ")
                && tap.contains(" # SKIP no\n"),
            "{tap}"
        );
        assert!(tap.contains("  again: \"b \\\"c\\\"\"\n"), "{tap}");
        let xml = report().junit();
        assert!(xml.contains("name=\"cni-conformance x &amp; y\" tests=\"3\" failures=\"1\" skipped=\"1\""), "{xml}");
        assert!(xml.contains("left: &lt;eth0&gt;\nand \u{fffd}more"), "{xml}");
        let json: Value = serde_json::from_str(&report().json()).unwrap();
        assert_eq!(json["level"], Value::Null);
        assert_eq!(json["tests"][1]["outcome"], "failed");
        assert_eq!(json["tests"][2]["reason"], "no");
    }

    #[test]
    fn a_level_is_met_if_all_tests_up_to_it_ran_and_passed() {
        let all = |outcome: fn(&'static crate::checks::Check) -> Outcome| {
            let results = CHECKS.iter().map(|check| CheckResult { check, outcome: outcome(check), seconds: 0.0 });
            Report { results: results.collect(), ..Report::default() }.level()
        };
        assert_eq!(all(|_| Outcome::Passed), Some(Level::Excellent));
        assert_eq!(
            all(|check| if check.id == "gc" { Outcome::Failed(String::new()) } else { Outcome::Passed }),
            Some(Level::Specification)
        );
        assert_eq!(
            all(|check| if check.id == "add" { Outcome::Failed(String::new()) } else { Outcome::Skipped(UNKNOWN[0]) }),
            None
        );
        assert_eq!(all(|_| Outcome::Skipped("it does not apply")), Some(Level::Excellent));
        assert_eq!(report().level(), None, "most tests were left out");
        assert!(report().is_met(Level::Specification) && !report().is_met(Level::Robust));
    }
}
