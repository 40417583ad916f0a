//! Checks the text of an error after a system call was made to fail.

use std::io;

use nix::errno::Errno;

/// Words that do not name an operation.
const GENERIC_WORDS: [&str; 6] = ["error", "failed", "failure", "plugin", "network", "interface"];

/// Returns what is missing in an error text: the text for the error number, or before it, in the same clause, the operation. The
/// words in `names` (plugin, verb, container and so on) do not count as an operation.
pub(super) fn missing(text: &str, errno: Errno, names: &[&str]) -> Option<String> {
    let error = io::Error::from_raw_os_error(errno as i32).to_string();
    let glibc = error.split(" (os").next().unwrap_or_default();
    let mut found = false;
    // On a socket with SO_RCVTIMEO that is how the end of the time is reported: socket(7).
    let timed_out = (errno == Errno::EAGAIN).then_some("did not answer within");
    for words in [glibc, in_musl(errno)].into_iter().chain(timed_out) {
        // Other libraries, as that of Go, begin with a small letter.
        for (at, _) in text.to_ascii_lowercase().match_indices(&words.to_ascii_lowercase()) {
            if names_an_operation(&text[..at], names) {
                return None;
            }
            found = true;
        }
    }
    if !found {
        return Some(format!("it does not say {glibc:?}"));
    }
    Some(format!("it says {glibc:?}, but not what was tried"))
}

/// Whether the clause at the end of this text names an operation.
fn names_an_operation(before: &str, names: &[&str]) -> bool {
    let mut clause = before.strip_suffix(": ").or_else(|| before.strip_suffix(" (")).unwrap_or(before);
    for end in ["; ", ": "] {
        clause = clause.rsplit(end).next().unwrap_or_default();
    }
    for text in clause.split_whitespace() {
        let word = text.trim_matches(|c: char| !c.is_alphanumeric());
        let is_generic = GENERIC_WORDS.iter().any(|generic| word.eq_ignore_ascii_case(generic));
        if word.contains(char::is_alphabetic) && !names.contains(&word) && !is_generic {
            return true;
        }
    }
    false
}

/// The text of an error in musl, where it differs from glibc's.
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
    fn an_error_with_the_kernels_text_and_the_operation_is_complete() {
        for text in [
            "write /var/lib/cni/x: Input/output error (os error 5)",
            "bridge ADD: cannot list links: I/O error; details",
            "add address \"fd00::1/64\": I/O error (the kernel says: no)",
            "I/O error; open /x: I/O error",
            "open /x: input/output error",
        ] {
            assert_eq!(missing(text, Errno::EIO, &WHO), None, "{text}");
        }
    }

    #[test]
    fn the_end_of_a_sockets_time_is_named_as_such() {
        let text = "the DHCP daemon did not answer within 20 s";
        assert_eq!(missing(text, Errno::EAGAIN, &WHO), None);
        assert!(missing(text, Errno::EIO, &WHO).is_some());
        assert!(missing("bridge did not answer within 20 s", Errno::EAGAIN, &WHO).is_some());
    }

    #[test]
    fn an_error_needs_more_than_the_kernels_text_and_the_plugin() {
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
