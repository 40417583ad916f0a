//! The table of hints: what to do about an error of a library.

use std::error::Error as StdError;
use std::io;

use cnikit_invoke as invoke;
use cnikit_types::ReadError;
use nix::errno::Errno;

/// The hint of the first cause that has one. Code that knows more sets its own with [`Error::hint`](crate::Error::hint).
pub(crate) fn of(error: &(dyn StdError + 'static)) -> Option<String> {
    causes(error).find_map(of_cause)
}

fn of_cause(cause: &(dyn StdError + 'static)) -> Option<String> {
    if let Some(delegate) = cause.downcast_ref::<invoke::Error>() {
        return delegate.hint();
    }
    if let Some(error) = cause.downcast_ref::<ReadError>() {
        return Some(of_key(error));
    }
    if cause.is::<serde_json::Error>() {
        return Some("correct the JSON at that position".to_owned());
    }
    let errno = cause.downcast_ref::<io::Error>()?.raw_os_error()?;
    of_errno(errno).map(str::to_owned)
}

fn of_key(error: &ReadError) -> String {
    match &error.hint {
        Some(hint) => hint.clone(),
        None if error.path.is_empty() => "correct the network's configuration".to_owned(),
        None => "correct this key of the network's configuration".to_owned(),
    }
}

/// The error and its causes.
pub(crate) fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |&error: &&'a (dyn StdError + 'static)| error.source())
}

/// The hint for an error number, see errno(3).
fn of_errno(raw: i32) -> Option<&'static str> {
    Some(match Errno::from_raw(raw) {
        Errno::EPERM | Errno::EACCES => "run it as root: CAP_NET_ADMIN and CAP_SYS_ADMIN are needed",
        Errno::ENODEV | Errno::ENXIO | Errno::ENOENT | Errno::ESRCH => {
            "something that is needed does not exist, or was removed meanwhile: DEL, then ADD again"
        }
        Errno::EEXIST | Errno::EADDRINUSE => {
            "something with that name or address exists: DEL the attachment that made it"
        }
        Errno::ENOSPC => "a file system or a table of the kernel is full: free space or inodes on it, then try again",
        Errno::EROFS => "the file system is read-only: remount it, or use another directory in the configuration",
        Errno::ENOBUFS | Errno::ENOMEM => "try again; the system is short of memory",
        Errno::EMFILE | Errno::ENFILE => "try again; the system is short of file descriptors",
        Errno::EAGAIN | Errno::EBUSY | Errno::EINTR | Errno::ETIMEDOUT => {
            "try again; what is needed is in use, or the system is short of time"
        }
        Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::EAFNOSUPPORT | Errno::ENOSYS => {
            "the kernel lacks the feature: load its module, or remove it from the configuration"
        }
        Errno::EINVAL | Errno::ERANGE | Errno::EADDRNOTAVAIL | Errno::ENETUNREACH | Errno::EHOSTUNREACH => {
            "the kernel does not accept this value: correct it in the network's configuration"
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error of a library, whose cause is the kernel's.
    #[derive(Debug)]
    struct Failed(io::Error);

    impl std::fmt::Display for Failed {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("cannot do it")
        }
    }

    impl StdError for Failed {
        fn source(&self) -> Option<&(dyn StdError + 'static)> {
            Some(&self.0)
        }
    }

    #[test]
    fn the_hint_is_chosen_by_the_errno_inside_the_error() {
        let said = |errno: Errno| of(&Failed(io::Error::from(errno))).unwrap_or_default();
        for (errno, word) in [
            (Errno::EPERM, "CAP_NET_ADMIN"),
            (Errno::EACCES, "root"),
            (Errno::ENODEV, "DEL, then ADD again"),
            (Errno::EEXIST, "DEL the attachment that made it"),
            (Errno::ENOSPC, "inodes"),
            (Errno::EROFS, "read-only"),
            (Errno::ENOMEM, "memory"),
            (Errno::EMFILE, "file descriptors"),
            (Errno::EBUSY, "try again"),
            (Errno::EAFNOSUPPORT, "kernel lacks"),
            (Errno::EINVAL, "correct it"),
        ] {
            assert!(said(errno).contains(word), "{errno}: {}", said(errno));
        }
        assert_eq!(said(Errno::EXDEV), "", "nothing is better than a guess");
    }

    #[test]
    fn a_delegate_that_cannot_be_started_is_no_matter_of_what_the_kernel_lacks() {
        let source = io::Error::from(Errno::ENOENT);
        let hint = of(&invoke::Error::NotStarted { plugin: "/x".into(), source }).unwrap();
        assert!(hint.contains("program for this machine"), "{hint}");
    }

    #[test]
    fn the_hint_speaks_of_a_key_if_the_error_names_one() {
        let of_document = ReadError::value("x");
        assert_eq!(of(&of_document).as_deref(), Some("correct the network's configuration"));
        let of_key = of_document.under("mtu");
        assert_eq!(of(&of_key).as_deref(), Some("correct this key of the network's configuration"));
        let with_hint: ReadError = serde::de::Error::custom("x is wrong; hint: write y");
        assert_eq!((with_hint.message.as_str(), of(&with_hint).as_deref()), ("x is wrong", Some("write y")));
    }
}
