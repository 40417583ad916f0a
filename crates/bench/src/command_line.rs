//! The command line: commands and options.

use std::path::PathBuf;

use crate::Result;
use crate::scenarios::stage::{OURS, Side};

/// The text of `--help`.
pub(crate) const HELP: &str = "\
cnikit-bench measures plugins side by side. scripts/bench and scripts/profile start it as it has to be: in namespaces.

Usage:
  cnikit-bench measure --ours DIR [--tool FILE] [--peer NAME=DIR [--tool FILE] [--only PLUGIN]]... [--floor DIR] [--out DIR] [--rows WORDS] [--short] [--assert] [--guard] [--publish]
  cnikit-bench profile --ours DIR [--tool FILE] [--rows WORDS]
  cnikit-bench paths --ours DIR
  cnikit-bench scenarios

measure plays every scenario with all sides in turn, prints a row each, and writes bench.md and bench.csv into --out.
profile says where ours spends the time of a scenario, step by step.
paths says how long a connection to a published port takes, to the first of a thousand and to the last.
scenarios lists the scenarios.

  --tool FILE    the cnitool of the side before it; without, that side has none
  --only PLUGIN  the side before it is there for this plugin alone
  --floor DIR    plugins with nothing in them but what the kernel has to do (cnikit-floor); ours is compared with them too
  --rows WORDS   only scenarios with one of these words, divided by commas, in their names
  --exact NAME   only the scenario of this name; may be said again
  --short        few rounds, and nothing huge
  --assert       exit status 1 if a target is missed, by more than the noise, or was not measured, or a call of ours fails
  --guard        exit status 1 if something is surely only half as good as it usually is, was not measured, or fails
  --publish      for readers: waits before each scenario until the machine is quiet, repeats those whose rows are too noisy up to twice,
                 writes no targets, and writes nothing if more than a tenth of the rows are still too noisy
  --rounds N     at most so many of each scenario
";

/// The subcommand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum What {
    #[default]
    Help,
    Scenarios,
    Measure,
    Profile,
    Paths,
    /// What `measure` starts to read every file of some directories.
    Read(Vec<PathBuf>),
    /// A program that `measure` starts: it sets up containers at once, or removes them.
    Pods(bool, Vec<String>),
}

/// All of it.
#[derive(Debug, Default)]
pub(crate) struct Asked {
    pub(crate) what: What,
    /// Ours first.
    pub(crate) sides: Vec<Side>,
    /// The floor.
    pub(crate) floor: Option<Side>,
    pub(crate) out: Option<PathBuf>,
    pub(crate) rows: Vec<String>,
    pub(crate) exact: Vec<String>,
    pub(crate) short: bool,
    pub(crate) assert: bool,
    pub(crate) guard: bool,
    pub(crate) publish: bool,
    pub(crate) rounds: Option<usize>,
}

/// Reads the arguments, without the program's name.
pub(crate) fn read(mut arguments: impl Iterator<Item = String>) -> Result<Asked> {
    let what = match arguments.next().as_deref() {
        None | Some("-h" | "--help") => What::Help,
        Some("scenarios") => What::Scenarios,
        Some("measure") => What::Measure,
        Some("profile") => What::Profile,
        Some("paths") => What::Paths,
        Some("read") => What::Read(arguments.by_ref().map(PathBuf::from).collect()),
        Some(word @ ("setup" | "remove")) => What::Pods(word == "setup", arguments.by_ref().collect()),
        Some(other) => return Err(usage(other)),
    };
    let mut asked = Asked { what, ..Asked::default() };
    let mut last = 0; // the side that was named last
    while let Some(flag) = arguments.next() {
        let mut value = || arguments.next().ok_or_else(|| format!("{flag} needs a value"));
        match flag.as_str() {
            "--ours" => {
                asked.sides.insert(0, side(OURS, &value()?));
                last = 0;
            }
            "--peer" => {
                asked.sides.push(peer(&value()?));
                last = asked.sides.len() - 1;
            }
            "--tool" => {
                let side = asked.sides.get_mut(last).ok_or_else(|| usage("--tool before a side"))?;
                side.tool = Some(value()?.into());
            }
            "--only" => {
                let side = asked.sides.get_mut(last).ok_or_else(|| usage("--only before a side"))?;
                side.only = Some(value()?);
            }
            "--floor" => asked.floor = Some(side("floor", &value()?)),
            "--out" => asked.out = Some(value()?.into()),
            "--rows" => asked.rows.extend(value()?.split(',').map(str::to_owned)),
            "--exact" => asked.exact.push(value()?),
            "--rounds" => asked.rounds = Some(value()?.parse().map_err(|error| format!("--rounds: {error}"))?),
            "--short" => asked.short = true,
            "--assert" => asked.assert = true,
            "--guard" => asked.guard = true,
            "--publish" => asked.publish = true,
            "-h" | "--help" => asked.what = What::Help,
            other => return Err(usage(other)),
        }
    }
    match asked.sides.first() {
        Some(ours) if ours.name == OURS => Ok(asked),
        _ if !matches!(asked.what, What::Measure | What::Profile | What::Paths) => Ok(asked),
        _ => Err(usage("--ours is missing")),
    }
}

/// `NAME=DIR`, or a directory, whose path is the name too.
fn peer(text: &str) -> Side {
    let (name, bin) = text.split_once('=').unwrap_or((text, text));
    side(name, bin)
}

fn side(name: &str, bin: &str) -> Side {
    Side { name: name.to_owned(), bin: bin.into(), tool: None, only: None }
}

fn usage(what: &str) -> String {
    format!("{what}: not understood; cnikit-bench --help shows how to call it")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(line: &str) -> Result<Asked> {
        read(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn cnikit_is_the_first_side_in_any_order_of_options() {
        let asked = of("measure --peer 1.9.1=/a --short --peer /b --ours /c --rows x,y").unwrap();
        let names: Vec<_> = asked.sides.iter().map(|side| side.name.as_str()).collect();
        assert_eq!(names, ["cnikit", "1.9.1", "/b"]);
        assert_eq!(asked.rows, ["x", "y"]);
        assert!(asked.short && !asked.assert);
        let asked = of("measure --peer /b --tool /y --ours /c --tool /x --peer /d").unwrap();
        let tools: Vec<_> = asked.sides.iter().map(|side| side.tool.clone()).collect();
        assert_eq!(tools, [Some("/x".into()), Some("/y".into()), None]);
        let asked = of("measure --ours /c --peer /b --only flannel --peer /d").unwrap();
        let only: Vec<_> = asked.sides.iter().map(|side| side.only.as_deref()).collect();
        assert_eq!(only, [None, Some("flannel"), None]);
    }

    #[test]
    fn an_invalid_command_line_is_an_error_with_the_word() {
        for (line, word) in [
            ("frob", "frob"),
            ("measure --ours /c --frob", "--frob"),
            ("measure", "--ours"),
            ("profile --out", "--out"),
            ("paths", "--ours"),
        ] {
            assert!(of(line).unwrap_err().contains(word), "{line}");
        }
        assert_eq!(of("").unwrap().what, What::Help);
    }
}
