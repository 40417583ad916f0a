//! The start of the process without the C library's initialization, with musl.

use core::ffi::{c_char, c_int, c_long};

use crate::{Strings, launch};

/// An entry of the auxiliary vector: see getauxval(3). The last one has the kind 0.
#[repr(C)]
struct Auxiliary {
    kind: usize,
    value: *const c_char,
}

/// Replaces the function of musl that initializes it and calls main(3). The first instructions of a program call it with these
/// arguments, among others. Behind the program's arguments the kernel places the environment and the auxiliary vector.
#[unsafe(no_mangle)]
unsafe extern "C" fn __libc_start_main(_main: *const (), count: c_int, arguments: Strings) -> ! {
    // SAFETY: the kernel ends each of the three lists with a zero, and the next one begins behind it.
    unsafe {
        let environment = arguments.offset(count as isize + 1);
        let mut end = environment;
        while !(*end).is_null() {
            end = end.add(1);
        }
        let mut entry: *const Auxiliary = end.add(1).cast();
        while (*entry).kind != 0 && (*entry).kind != libc::AT_EXECFN as usize {
            entry = entry.add(1);
        }
        let executed = if (*entry).kind == 0 { core::ptr::null() } else { (*entry).value };
        launch(executed, arguments, environment);
        loop {
            call(libc::SYS_exit_group, [1, 0, 0, 0]);
        }
    }
}

/// The first instructions of a program name it. Nothing calls it.
#[unsafe(no_mangle)]
extern "C" fn main() {}

/// A system call: see syscall(2). The result is negative if it failed.
///
/// # Safety
///
/// That of the system call.
pub(crate) unsafe fn call(number: c_long, [first, second, third, fourth]: [usize; 4]) -> isize {
    // SAFETY: as above.
    unsafe { syscalls::raw::syscall4(number as usize, first, second, third, fourth).cast_signed() }
}
