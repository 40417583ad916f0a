//! The launcher: executes `cni-plugins` in its own directory, with the arguments and the environment that it has.
//!
//! It uses the C library only: a node has one for each plugin, and the standard library's start would take longer than the rest.
#![no_main]
#![expect(unsafe_code, reason = "main(3), readlink(2), getauxval(3), execve(2) and write(2) by their C interface")]

use core::ffi::{CStr, c_char, c_int};

use cnikit_launcher::{MARK, PROGRAM};

/// Kept in the file: by it a launcher is recognised.
#[used]
static MARKED: [u8; MARK.len()] = MARK;

/// Longer paths cannot be executed.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// The error of a launcher without its binary. An I/O failure of the CNI specification.
const MISSING: &[u8] = br#"{"code":5,"msg":"the program cni-plugins cannot be executed; hint: it belongs into the directory of this plugin, which is a launcher of it: install cnikit again"}
"#;

/// Called by the C library's start-up code.
#[unsafe(no_mangle)]
extern "C" fn main(_count: c_int, arguments: *const *const c_char, environment: *const *const c_char) -> c_int {
    let mut own = [0; PATH_MAX];
    // SAFETY: readlink(2) writes at most the length of the buffer.
    let length = unsafe { libc::readlink(c"/proc/self/exe".as_ptr(), own.as_mut_ptr().cast(), PATH_MAX) };
    if let Some(path) = usize::try_from(length).ok().and_then(|length| own.get(..length)) {
        execute_beside(path, arguments, environment);
    }
    // Without /proc, or behind a symbolic link whose target has gone: the path that was executed.
    // SAFETY: AT_EXECFN is the address of a string that lives as long as the process, or 0.
    let executed = unsafe { libc::getauxval(libc::AT_EXECFN) } as *const c_char;
    if !executed.is_null() {
        // SAFETY: see above.
        execute_beside(unsafe { CStr::from_ptr(executed) }.to_bytes(), arguments, environment);
    }
    // SAFETY: write(2) reads the bytes of the message.
    unsafe { libc::write(libc::STDOUT_FILENO, MISSING.as_ptr().cast(), MISSING.len()) };
    1
}

/// Executes the program in the directory of `path`. Returns only if that failed.
fn execute_beside(path: &[u8], arguments: *const *const c_char, environment: *const *const c_char) {
    let name = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let mut program = [0; PATH_MAX + PROGRAM.len() + 1];
    for (to, from) in program.iter_mut().zip(path.iter().take(name).chain(PROGRAM.as_bytes())) {
        *to = *from;
    }
    // SAFETY: the path ends with a zero, because it is shorter than the buffer; the arrays are those of main(3).
    unsafe { libc::execve(program.as_ptr().cast(), arguments, environment) };
}
