//! The node's list of the sysctls that networks may set.

use std::fmt::Display;
use std::path::Path;
use std::{fs, io};

use cnikit_skel::{Error, Result, code};
use regex_lite::Regex;

/// The path of the list, the same as upstream's. Without a list every sysctl is allowed.
pub const LIST: &str = "/etc/cni/tuning/allowlist.conf";

/// A line that selects upstream's matching: a key is allowed if a regular expression matches any part of it.
const UNANCHORED: &str = "#unanchored";
/// The first character of a comment. No key contains it.
const COMMENT: char = '#';
/// The largest list that is read, in bytes.
const LIMIT: usize = 1 << 20;
/// How many lines an error lists.
const LISTED: usize = 8;

/// Checks that the list can be read, for STATUS. A list that does not exist is not an error.
///
/// # Errors
/// The file cannot be read or is too long, or a line of it is not a regular expression.
pub fn available() -> Result<()> {
    if let Some(text) = read(Path::new(LIST))? {
        lines(&text)?;
    }
    Ok(())
}

/// Checks that all of these keys, as they are written, are allowed.
pub(super) fn check<'a>(keys: impl Iterator<Item = &'a str>) -> Result<()> {
    let mut keys = keys.peekable();
    if keys.peek().is_none() {
        return Ok(());
    }
    let Some(text) = read(Path::new(LIST))? else { return Ok(()) };
    let lines = lines(&text)?;
    keys.try_for_each(|key| allowed(&lines, is_anchored(&text), key))
}

fn allowed(lines: &[(&str, Regex)], anchored: bool, key: &str) -> Result<()> {
    if lines.iter().any(|(_, line)| line.is_match(key)) {
        return Ok(());
    }
    let mut listed: Vec<String> = lines.iter().take(LISTED).map(|(text, _)| text.chars().take(80).collect()).collect();
    if lines.len() > LISTED {
        listed.push(format!("and {} more", lines.len() - LISTED));
    }
    let text = format!("Sysctl {key} is not allowed. Only the following sysctls are allowed: [{}]", listed.join(" "));
    let part = if anchored { "the whole key" } else { "a part of the key" };
    Err(Error::config(text).hint(format!(
        "each line of {LIST} is a regular expression that must match {part} as it is written; add a line, or remove the key"
    )))
}

fn is_anchored(text: &str) -> bool {
    text.lines().all(|line| line.trim() != UNANCHORED)
}

/// Each line that is not a comment, with its regular expression.
fn lines(text: &str) -> Result<Vec<(&str, Regex)>> {
    let anchored = is_anchored(text);
    let mut lines = Vec::new();
    for line in text.lines().map(str::trim) {
        if !line.is_empty() && !line.starts_with(COMMENT) {
            lines.push((line, expression(line, anchored)?));
        }
    }
    Ok(lines)
}

fn expression(line: &str, anchored: bool) -> Result<Regex> {
    let refused = |error: regex_lite::Error| {
        let text = format!("{LIST} has a line that is not a regular expression: {line:?}: {error}");
        Error::new(code::SYSTEM, text).hint("correct the line: until then no sysctl is allowed")
    };
    // The line is compiled alone first, because as `a)|(.*` it would close the group that it is put into.
    let unanchored = Regex::new(line).map_err(refused)?;
    if anchored { Regex::new(&format!(r"\A(?:{line})\z")).map_err(refused) } else { Ok(unanchored) }
}

/// The list if there is one. A list that exists and cannot be read is an error, so that it allows nothing.
fn read(list: &Path) -> Result<Option<String>> {
    match cnikit_store::read(list, LIMIT) {
        Err(error) if error.is_absent() => match is_absent(list) {
            Ok(true) => Ok(None),
            Ok(false) => Err(unreadable(list, &error)),
            Err(unknown) => Err(unreadable(list, &format_args!("look at {}: {unknown}", list.display()))),
        },
        Err(error) => Err(unreadable(list, &error)),
        Ok(content) => String::from_utf8(content).map(Some).map_err(|error| unreadable(list, &error)),
    }
}

fn unreadable(list: &Path, why: &dyn Display) -> Error {
    let text = format!("{} exists but cannot be read: {why}", list.display());
    Error::new(code::SYSTEM, text).hint("make it a text file that root can read: until then no sysctl is allowed")
}

/// Whether the list really does not exist: the part of its path that exists consists of directories, and neither the list nor a
/// directory above it is a dangling symbolic link.
fn is_absent(list: &Path) -> io::Result<bool> {
    for above in list.ancestors() {
        if present(fs::symlink_metadata(above))?.is_some() {
            let leads_to = present(fs::metadata(above))?;
            return Ok(above != list && leads_to.is_some_and(|found| found.is_dir()));
        }
    }
    Ok(false)
}

/// `None` if there is no such file; an error if that cannot be determined.
fn present(metadata: io::Result<fs::Metadata>) -> io::Result<Option<fs::Metadata>> {
    match metadata {
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        metadata => metadata.map(Some),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn allows(list: &str, key: &str) -> bool {
        allowed(&lines(list).unwrap(), is_anchored(list), key).is_ok()
    }

    #[test]
    fn a_line_matches_the_whole_key_as_it_is_written() {
        let list =
            "\n  ^net\\.ipv4\\.conf\\.[a-z0-9]+\\.arp_notify$  \nnet.core.so|net/core/.*\n# net.ipv4.ip_forward\n";
        for (key, is_allowed) in [
            ("net.ipv4.conf.eth0.arp_notify", true),
            ("net.ipv4.conf.IFNAME.arp_notify", false),
            ("net/core/somaxconn", true),
            ("net.core.so", true),
            ("net.core.somaxconn", false),
            ("xnet.core.so", false),
            ("net.ipv4.ip_forward", false),
            ("", false),
        ] {
            assert_eq!(allows(list, key), is_allowed, "{key}");
        }
        assert!(!allows("", "net.core.somaxconn"), "an empty list allows nothing");
        assert!(!allows("net.core.so", "net.core.so\nnet.core.somaxconn"));
    }

    #[test]
    fn only_the_list_itself_can_select_upstreams_matching() {
        assert!(allows("net.core.so\n#unanchored", "net.core.somaxconn"));
        assert!(!allows("net.core.so\n# unanchored", "net.core.somaxconn"));
        assert!(!allows("net.core.so\n#unanchored", "net.ipv4.ip_forward"));
    }

    #[test]
    fn a_refusal_explains_how_the_list_is_matched_and_is_short() {
        let refused = |list: &str| allowed(&lines(list).unwrap(), is_anchored(list), "net.x").unwrap_err().to_string();
        assert!(refused("a\n").contains("allowed: [a]") && refused("a\n").contains("must match the whole key"));
        assert!(refused("a\n#unanchored").contains("must match a part of the key"));
        let long = format!("{}\n", "a".repeat(1000)).repeat(100);
        assert!(refused(&long).len() < 1000 && refused(&long).contains(" and 92 more]"), "{}", refused(&long));
        assert!(refused(&"a\n".repeat(LISTED)).contains(" a]"), "all are listed");
    }

    #[test]
    fn a_line_that_is_not_an_expression_refuses_the_whole_list() {
        for broken in ["net.core.so\n(", "a)|(.*", "*", "(?x)a # b)"] {
            let refused = lines(broken).unwrap_err();
            assert!(refused.msg.contains("has a line that is not a regular expression"), "{refused}");
        }
    }

    #[test]
    fn a_list_that_cannot_be_read_allows_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for absent in ["absent", "absent/list"] {
            assert_eq!(read(&at(absent)).unwrap(), None);
        }
        std::os::unix::fs::symlink(at("absent"), at("dangling")).unwrap();
        std::os::unix::fs::symlink("/nowhere/at/all", at("away")).unwrap();
        fs::create_dir(at("directory")).unwrap();
        nix::unistd::mkfifo(&at("fifo"), nix::sys::stat::Mode::S_IRUSR).unwrap();
        fs::write(at("binary"), [0xff, 0xfe]).unwrap();
        fs::write(at("long"), " ".repeat((1 << 20) + 1)).unwrap();
        for name in ["dangling", "away/list", "away/below/list", "directory", "fifo", "binary", "long"] {
            let refused = read(&at(name)).unwrap_err();
            assert!(refused.msg.contains("exists but cannot be read"), "{name}: {refused}");
        }
        fs::write(at("list"), "a\n").unwrap();
        std::os::unix::fs::symlink(at("list"), at("link")).unwrap();
        assert_eq!(read(&at("link")).unwrap().as_deref(), Some("a\n"));
    }
}
