//! The guide for authors, `docs/guide-*.md`: its code is that of `plugins/examples`, and its commands print what it shows.
#![expect(clippy::unwrap_used, reason = "a test panics: that is how it fails")]

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use cnikit_testkit::Host;
use cnikit_testkit::need::Need;
use cnikit_tests::docs::{Page, pages};
use cnikit_tests::program;

/// The first and the last line of a part of a source that the guide shows.
const BEGIN: &str = "// guide: ";
const END: &str = "// guide: end";
/// The line before a block of code names its source: a path, or a path and a part.
const SOURCE: &str = "<!-- from ";
/// The line before a block of commands that the test does not run says why.
const NOT_RUN: &str = "<!-- not run: ";
/// In a chapter whose commands need VXLAN.
const NEEDS_VXLAN: &str = "<!-- needs vxlan -->";
/// Any text, in the output that a page shows.
const ANYTHING: char = '…';

/// A block of code: the line before it, the language, and the text.
struct Block {
    place: String,
    before: String,
    language: String,
    text: String,
}

fn guide() -> Vec<Page> {
    let is_guide = |page: &Page| page.path.file_name().is_some_and(|name| name.to_str().unwrap().starts_with("guide-"));
    let found: Vec<Page> = pages().into_iter().filter(is_guide).collect();
    assert_eq!(found.len(), 6, "six chapters");
    found
}

fn blocks(page: &Page) -> Vec<Block> {
    let mut found = Vec::new();
    let mut before = "";
    let mut lines = page.text.lines().enumerate();
    while let Some((number, line)) = lines.next() {
        if let Some(language) = line.strip_prefix("```") {
            let inside: Vec<&str> = lines.by_ref().map(|(_, line)| line).take_while(|line| *line != "```").collect();
            found.push(Block {
                place: format!("{}:{}", page.path.display(), number + 1),
                before: before.to_owned(),
                language: language.to_owned(),
                text: inside.join("\n"),
            });
        }
        before = line;
    }
    found
}

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// The text of a source, `PATH` or `PATH: PART`, without the indentation that its lines have in common.
fn source(named: &str) -> String {
    let (path, part) = named.split_once(": ").unwrap_or((named, ""));
    let text = std::fs::read_to_string(top().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut lines: Vec<&str> = text.lines().collect();
    if !part.is_empty() {
        let begin = format!("{BEGIN}{part}");
        let first =
            lines.iter().position(|line| line.trim() == begin).unwrap_or_else(|| panic!("{path}: no part {part}"));
        lines.drain(..=first);
        let last =
            lines.iter().position(|line| line.trim() == END).unwrap_or_else(|| panic!("{path}: {part} has no end"));
        lines.truncate(last);
    }
    let indented = lines.iter().filter(|line| !line.is_empty()).map(|line| line.len() - line.trim_start().len()).min();
    let shown: Vec<&str> = lines.iter().map(|line| line.get(indented.unwrap_or(0)..).unwrap_or_default()).collect();
    shown.join("\n")
}

#[test]
fn every_block_of_code_is_that_of_a_compiled_source() {
    let mut compared = 0;
    for Block { place, before, language, text } in guide().iter().flat_map(blocks) {
        match language.as_str() {
            "rust" | "toml" => {
                let named = before.strip_prefix(SOURCE).and_then(|rest| rest.strip_suffix(" -->"));
                let named = named.unwrap_or_else(|| panic!("{place}: the line before it names no source: {before:?}"));
                assert_eq!(text, source(named), "{place} (left) is not {named} (right)");
                compared += 1;
            }
            "console" => {}
            "sh" => assert!(before.starts_with(NOT_RUN), "{place}: nothing runs it, and no line says why"),
            other => panic!("{place}: a block of {other:?}, which nothing compares or runs"),
        }
    }
    assert!(compared > 20, "only {compared} blocks were compared");
}

/// The parts of the sources below a folder, as a page names them.
fn parts(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() {
            found.extend(parts(&entry));
        } else if entry.extension().is_some_and(|end| end == "rs") {
            let path = entry.strip_prefix(top()).unwrap().display().to_string();
            let text = std::fs::read_to_string(&entry).unwrap();
            let names = text.lines().filter_map(|line| line.trim().strip_prefix(BEGIN)).filter(|name| *name != "end");
            found.extend(names.map(|name| format!("{path}: {name}")));
        }
    }
    found
}

#[test]
fn every_part_of_the_examples_is_shown() {
    let shown: BTreeSet<String> = guide().iter().flat_map(blocks).map(|block| block.before).collect();
    for part in parts(&top().join("plugins/examples")) {
        assert!(shown.contains(&format!("{SOURCE}{part} -->")), "no chapter shows {part}");
    }
}

/// A command of a block, and the output that the page shows for it.
struct Command {
    line: String,
    output: String,
}

/// The commands of a block: `$ ` begins one, `> ` goes on with it, and all else is output.
fn commands(block: &str) -> Vec<Command> {
    let mut found: Vec<Command> = Vec::new();
    for line in block.lines() {
        if let Some(begun) = line.strip_prefix("$ ") {
            found.push(Command { line: begun.to_owned(), output: String::new() });
            continue;
        }
        let last = found.last_mut().unwrap_or_else(|| panic!("output before any command: {line}"));
        match line.strip_prefix("> ") {
            Some(more) => last.line.extend(["\n", more]),
            None => last.output.extend([line, "\n"]),
        }
    }
    found
}

/// Whether a text is what a page shows, in which [`ANYTHING`] stands for any text.
fn matches(shown: &str, printed: &str) -> bool {
    let mut rest = printed.trim_end();
    let mut pieces = shown.trim_end().split(ANYTHING).peekable();
    let first = pieces.next().unwrap_or_default();
    let Some(after) = rest.strip_prefix(first) else { return false };
    rest = after;
    while let Some(piece) = pieces.next() {
        if pieces.peek().is_none() {
            return rest.ends_with(piece);
        }
        let Some((_, after)) = rest.split_once(piece) else { return false };
        rest = after;
    }
    rest.is_empty()
}

/// Runs the commands of a chapter one after the other in a directory of their own, on a host of their own. Returns their number.
fn run(page: &Page) -> usize {
    if page.text.contains(NEEDS_VXLAN)
        && let Some(lacking) = Need::VXLAN.unmet()
    {
        let text = format!("not run: {}: {lacking}\n", page.path.display());
        std::io::stderr().write_all(text.as_bytes()).unwrap(); // the harness does not hide it
        return 0;
    }
    let host = Host::new();
    let bin = program("vxlan").parent().unwrap().display().to_string();
    let dir = host.dir().display().to_string();
    let set = format!(
        "cd {dir}; export CNI_PATH={bin} NETCONFPATH={dir} CNI_CACHE_DIR={dir}/cache; PATH={bin}:$PATH:/usr/sbin:/sbin"
    );
    let mut count = 0;
    let mut differences = String::new();
    for block in blocks(page).iter().filter(|block| block.language == "console") {
        for Command { line, output } in commands(&block.text) {
            let (_, printed) = host.try_sh(&format!("{set}; exec 2>&1; {line}"));
            if !matches(&output, &printed) {
                writeln!(differences, "{}: $ {line}\nprints\n{printed}\nand not\n{output}", block.place).unwrap();
            }
            count += 1;
        }
    }
    assert!(differences.is_empty(), "{differences}");
    count
}

/// Runs one of the chapters.
fn run_chapter(number: usize, least: usize) {
    let count = run(&guide()[number - 1]);
    assert!(count >= least || Need::VXLAN.unmet().is_some(), "only {count} commands were found");
}

#[test]
fn the_commands_of_chapter_1_print_what_it_shows() {
    run_chapter(1, 10);
}

#[test]
fn the_commands_of_chapter_2_print_what_it_shows() {
    run_chapter(2, 6);
}

#[test]
fn the_commands_of_chapter_3_print_what_it_shows() {
    run_chapter(3, 15);
}

#[test]
fn the_commands_of_chapter_4_print_what_it_shows() {
    run_chapter(4, 8);
}

#[test]
fn the_commands_of_chapter_5_print_what_it_shows() {
    run_chapter(5, 10);
}

#[test]
fn anything_matches_only_where_the_page_says_so() {
    assert!(matches("a … c\n", "a b c"));
    assert!(matches("a…", "abc\n"));
    assert!(!matches("a … c", "a b d"));
    assert!(!matches("a", "ab"));
    let two = commands("$ cat <<E\n> x\n> E\nx\n$ true");
    assert_eq!((two[0].line.as_str(), two[0].output.as_str(), two[1].output.as_str()), ("cat <<E\nx\nE", "x\n", ""));
}
