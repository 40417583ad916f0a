//! The launcher: executes `cni-plugins` in its own directory, with the arguments and the environment that it has.
//!
//! Runtimes wait for it in every call. As it is released, it runs in place of the C library's initialization and calls the kernel
//! directly: see docs/adr/0023-launchers.md for what that saves.
#![no_main]
#![no_builtins] // no loop becomes a call of memcpy(3), which a C library may choose for the processor when it is initialized
#![expect(unsafe_code, reason = "the start of a process, and system calls")]
#![expect(clippy::cast_sign_loss, clippy::cast_possible_truncation, reason = "what a system call takes are words")]

use core::ffi::{CStr, c_char};
use core::mem::MaybeUninit;
use core::slice;

use cnikit_launcher::{MARK, PROGRAM};
use start::call;

/// Kept in the file: by it a launcher is recognised.
#[used]
static MARKED: [u8; MARK.len()] = MARK;

/// Longer paths cannot be executed.
const PATH_MAX: usize = libc::PATH_MAX as usize;

/// The longest directory whose path is on a page of the stack that the process has anyway. Another page would cost a fault.
const USUAL: usize = 500;

/// The error of a launcher without its binary. An I/O failure of the CNI specification.
const MISSING: &[u8] = br#"{"code":5,"msg":"the program cni-plugins cannot be executed; hint: it belongs into the directory of this plugin, which is a launcher of it: install cnikit again"}
"#;

/// What execve(2) takes: addresses, and a null pointer behind them.
type Strings = *const *const c_char;

#[cfg_attr(all(target_env = "musl", any(target_arch = "x86_64", target_arch = "aarch64")), path = "direct.rs")]
#[cfg_attr(
    not(all(target_env = "musl", any(target_arch = "x86_64", target_arch = "aarch64"))),
    path = "initialized.rs"
)]
mod start;

/// Executes the program beside the launcher, or says that it cannot. `executed` is the path by which this program was executed, or
/// null.
///
/// # Safety
///
/// The path is a string, and the lists are those of execve(2).
unsafe fn launch(executed: *const c_char, arguments: Strings, environment: Strings) {
    // SAFETY: see above; write(2) reads the bytes of the message.
    unsafe {
        if !executed.is_null() {
            execute_beside(CStr::from_ptr(executed).to_bytes(), arguments, environment);
        }
        execute_beside_target(arguments, environment);
        call(libc::SYS_write, [libc::STDOUT_FILENO as usize, MISSING.as_ptr() as usize, MISSING.len(), 0]);
    }
}

/// The same for a launcher that was executed by a symbolic link from another directory, or by a descriptor.
///
/// # Safety
///
/// The lists are those of execve(2).
#[inline(never)]
unsafe fn execute_beside_target(arguments: Strings, environment: Strings) {
    let mut own = [const { MaybeUninit::<u8>::uninit() }; PATH_MAX];
    let link = c"/proc/self/exe".as_ptr() as usize;
    // SAFETY: readlinkat(2) writes at most the length of the buffer, and returns how much it wrote.
    unsafe {
        let length = call(libc::SYS_readlinkat, [libc::AT_FDCWD as usize, link, own.as_mut_ptr() as usize, PATH_MAX]);
        if let Ok(length) = usize::try_from(length) {
            execute_beside(slice::from_raw_parts(own.as_ptr().cast(), length), arguments, environment);
        }
    }
}

/// Executes the program in the directory of `path`. Returns only if that failed.
///
/// # Safety
///
/// The lists are those of execve(2).
unsafe fn execute_beside(path: &[u8], arguments: Strings, environment: Strings) {
    let name = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let directory = path.get(..name.min(PATH_MAX)).unwrap_or_default();
    // SAFETY: as above.
    unsafe {
        if directory.len() <= USUAL {
            execute::<{ USUAL + PROGRAM.len() + 1 }>(directory, arguments, environment);
        } else {
            execute::<{ PATH_MAX + PROGRAM.len() + 1 }>(directory, arguments, environment);
        }
    }
}

/// Executes the program in a directory, whose path is shorter than `LENGTH` by the name and a zero.
///
/// # Safety
///
/// The lists are those of execve(2).
#[inline(never)]
unsafe fn execute<const LENGTH: usize>(directory: &[u8], arguments: Strings, environment: Strings) {
    let mut program = [const { MaybeUninit::<u8>::uninit() }; LENGTH];
    let bytes = directory.iter().chain(PROGRAM.as_bytes()).chain(b"\0");
    for (to, from) in program.iter_mut().zip(bytes) {
        to.write(*from);
    }
    // SAFETY: the path ends with a zero; the lists are as above.
    unsafe { call(libc::SYS_execve, [program.as_ptr() as usize, arguments as usize, environment as usize, 0]) };
}
