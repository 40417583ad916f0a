//! The name of a new plugin, which is also the name of a crate, a binary and a directory.

use crate::plugin_pages::PAGES;

/// The longest name, in characters: longer lines of the templates would not be formatted as rustfmt formats them.
const LONGEST: usize = 32;

/// Names that cargo refuses, or that a file or a dependency of the crate has.
const TAKEN: [&str; 22] = [
    "alloc",
    "attach",
    "build",
    "ci",
    "cnikit",
    "cnikit-store",
    "cnikit-testkit",
    "core",
    "deps",
    "dlmalloc",
    "examples",
    "incremental",
    "ipnetwork",
    "kernel",
    "main",
    "proc-macro",
    "serde",
    "serde-json",
    "src",
    "std",
    "target",
    "test",
];

/// Words of Rust: the library of the plugin could not be named in a path.
const KEYWORDS: [&str; 51] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "crate", "do", "dyn", "else",
    "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let", "loop", "macro", "match", "mod",
    "move", "mut", "override", "priv", "pub", "ref", "return", "self", "static", "struct", "super", "trait", "true",
    "try", "type", "typeof", "unsafe", "unsized", "use", "virtual", "where", "while", "yield",
];

/// Checks that a plugin and its crate can have this name.
///
/// # Errors
/// What is wrong with it, and a hint.
pub(super) fn check_plugin_name(name: &str) -> Result<(), String> {
    let refused = |why: &str| Err(format!("a plugin cannot be called {name:?}: {why}"));
    let of_letters = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    let begins = name.starts_with(|c: char| c.is_ascii_lowercase());
    if !of_letters || !begins || name.ends_with('-') || name.contains("--") {
        return refused("hint: use lower-case letters, digits and single dashes, a letter first");
    }
    if name.len() > LONGEST {
        return refused(&format!("it is longer than {LONGEST} characters"));
    }
    if PAGES.iter().any(|page| page.plugin == name) {
        return refused("cnikit has a plugin of that name, and nodes run plugins by their names");
    }
    if TAKEN.contains(&name) {
        return refused("its crate, or a part of it, would have the name of another one");
    }
    if KEYWORDS.contains(&name) {
        return refused("it is a word of Rust");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_one_of_a_plugin_and_of_a_crate() {
        for name in ["a", "vxlan", "my-plugin", "x25", "a2345678901234567890123456789012"] {
            assert_eq!(check_plugin_name(name), Ok(()));
        }
        for (name, why) in [
            ("", "lower-case"),
            ("..", "lower-case"),
            ("a/b", "lower-case"),
            ("a_b", "lower-case"),
            ("Vxlan", "lower-case"),
            ("-a", "lower-case"),
            ("a-", "lower-case"),
            ("a--b", "lower-case"),
            ("2a", "lower-case"),
            ("ä", "lower-case"),
            ("a23456789012345678901234567890123", "longer than 32"),
            ("bridge", "cnikit has a plugin of that name"),
            ("serde", "the name of another one"),
            ("loop", "a word of Rust"),
        ] {
            let error = check_plugin_name(name).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
