//! The arguments of execve(2), prepared before the child is made, in which nothing can be allocated.
#![expect(unsafe_code, reason = "raw pointers that execve(2) takes")]

use std::ffi::{CString, OsStr, c_char};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::ptr;

use crate::Program;

/// A path, arguments and an environment as execve(2) takes them.
///
/// The standard library would call execvp(3), which searches PATH for a path without a slash and, with glibc, runs a file that the
/// kernel does not recognise with the shell: an empty file, left by a broken installation, would *succeed*.
pub(crate) struct Image {
    path: CString,
    argv: Vec<*const c_char>,
    envp: Vec<*const c_char>,
    /// The strings that the pointers point to.
    _strings: [Vec<CString>; 2],
}

// SAFETY: the pointers point to strings that the image owns, on the heap, and that are never written to.
unsafe impl Send for Image {}
// SAFETY: as above.
unsafe impl Sync for Image {}

impl Image {
    /// Everything of the program that execve(2) needs; an error if it contains a NUL. `name` is `argv[0]`.
    pub(crate) fn new(program: &Program, name: &OsStr) -> io::Result<Self> {
        let path = CString::new(program.path.as_os_str().as_bytes())?;
        let mut args = vec![CString::new(name.as_bytes())?];
        for arg in &program.args {
            args.push(CString::new(arg.as_bytes())?);
        }
        let env = environment(program)?;
        Ok(Self { path, argv: pointers(&args), envp: pointers(&env), _strings: [args, env] })
    }

    /// Executes the program in this process; returns only an error. Allocates nothing.
    #[doc(alias = "execve")]
    pub(crate) fn exec(&self) -> io::Error {
        // SAFETY: path, and all that the two arrays point to, are NUL-terminated and live in `self`; both end with null.
        unsafe { libc::execve(self.path.as_ptr(), self.argv.as_ptr(), self.envp.as_ptr()) };
        io::Error::last_os_error()
    }
}

/// The program's environment as `NAME=value`.
fn environment(program: &Program) -> io::Result<Vec<CString>> {
    program
        .env
        .variables()
        .into_iter()
        .map(|(mut pair, value)| {
            pair.push("=");
            pair.push(value);
            Ok(CString::new(pair.into_vec())?)
        })
        .collect()
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}
