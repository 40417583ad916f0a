//! The start of the process by the C library: with glibc, which cannot be left out of a static program, and on architectures on
//! which the other start has not been tested.

use core::ffi::{c_char, c_int, c_long};

use crate::{Strings, launch};

/// Called by the C library.
#[unsafe(no_mangle)]
unsafe extern "C" fn main(_count: c_int, arguments: Strings, environment: Strings) -> c_int {
    // SAFETY: AT_EXECFN is the address of a string that lives as long as the process, or 0; the lists are those of main(3).
    unsafe { launch(libc::getauxval(libc::AT_EXECFN) as *const c_char, arguments, environment) };
    1
}

/// A system call: see syscall(2). The result is negative if it failed.
///
/// # Safety
///
/// That of the system call.
pub(crate) unsafe fn call(number: c_long, [first, second, third, fourth]: [usize; 4]) -> isize {
    // SAFETY: as above.
    unsafe { libc::syscall(number, first, second, third, fourth) as isize }
}
