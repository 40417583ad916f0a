//! What a failed call has to say of its failure.

use std::io;

use nix::errno::Errno;

/// Words that name no operation, whoever says them.
const GENERIC_WORDS: [&str; 6] = ["error", "failed", "failure", "plugin", "network", "interface"];

/// What is missing in a text that tells of an error number: the kernel's words for it, or before them, in the same clause,
/// what was tried. Whoever was asked, which `who` names, is no operation.
pub(super) fn missing(text: &str, errno: Errno, names: &[&str]) -> Option<String> {
    let glibc = io::Error::from_raw_os_error(errno as i32).to_string();
    let glibc = glibc.split(" (os").next().unwrap_or_default();
    let before: Vec<&str> =
        [glibc, in_musl(errno)].iter().flat_map(|words| text.match_indices(words).map(|(at, _)| &text[..at])).collect();
    if before.is_empty() {
        return Some(format!("it does not say {glibc:?}"));
    }
    let named = before.iter().any(|before| names_an_operation(before, names));
    (!named).then(|| format!("it says {glibc:?}, but not what was tried"))
}

/// The clause that ends here.
fn names_an_operation(before: &str, names: &[&str]) -> bool {
    let clause = [": ", " ("].iter().find_map(|end| before.strip_suffix(end)).unwrap_or(before);
    let clause = ["; ", ": "].iter().fold(clause, |clause, end| clause.rsplit(end).next().unwrap_or_default());
    let words = clause.split_whitespace().map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()));
    words
        .filter(|word| word.contains(char::is_alphabetic))
        .any(|word| !names.contains(&word) && !GENERIC_WORDS.iter().any(|empty| word.eq_ignore_ascii_case(empty)))
}

/// What musl calls an error, where its words are not glibc's.
fn in_musl(errno: Errno) -> &'static str {
    match errno {
        Errno::EBUSY => "Resource busy",
        Errno::EIO => "I/O error",
        Errno::EMFILE => "No file descriptors available",
        other => other.desc(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHO: [&str; 3] = ["bridge", "ADD", "c-00001"];

    #[test]
    fn the_kernels_words_and_what_was_tried_suffice_in_either_c_library() {
        for text in [
            "write /var/lib/cni/x: Input/output error (os error 5)",
            "bridge ADD: cannot list links: I/O error; details",
            "add address \"fd00::1/64\": I/O error (the kernel says: no)",
            "I/O error; open /x: I/O error",
        ] {
            assert_eq!(missing(text, Errno::EIO, &WHO), None, "{text}");
        }
    }

    #[test]
    fn the_kernels_words_alone_do_not_nor_does_who_was_asked() {
        for text in [
            "Input/output error (os error 5)",
            "bridge ADD: I/O error",
            "bridge ADD c-00001: error: I/O error",
            "write /x; I/O error",
        ] {
            let missing = missing(text, Errno::EIO, &WHO).unwrap_or_default();
            assert!(missing.ends_with("but not what was tried"), "{text}: {missing}");
        }
        assert!(missing("write /x: no", Errno::EIO, &WHO).is_some_and(|what| what.contains("does not say")));
    }
}
