//! The allocator of the binary: dlmalloc behind a lock of one word.
//!
//! musl's allocator takes a page, by a system call, for each size of object; dlmalloc takes 64 KiB at once. `GlobalDlmalloc`
//! locks it by a mutex of the C library, which was 15 % of the instructions of an ADD of sbr. Here an allocation without other
//! threads, as nearly all are, costs one atomic exchange.
#![expect(unsafe_code, reason = "the interface of allocators is unsafe")]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dlmalloc::Dlmalloc;

/// dlmalloc, and whether a thread is in it.
pub(crate) struct Allocator {
    is_locked: AtomicBool,
    dlmalloc: UnsafeCell<Dlmalloc>,
}

// SAFETY: `dlmalloc` is used by `locked` only, one thread at a time.
unsafe impl Sync for Allocator {}

impl Allocator {
    pub(crate) const fn new() -> Allocator {
        Allocator { is_locked: AtomicBool::new(false), dlmalloc: UnsafeCell::new(Dlmalloc::new()) }
    }

    /// Runs `work` when no other thread is in dlmalloc. `work` allocates nothing by way of Rust and does not panic.
    fn locked<T>(&self, work: impl FnOnce(&mut Dlmalloc) -> T) -> T {
        while self.is_locked.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
        // SAFETY: the flag was false and is true now, so no other thread has this reference until it is false again.
        let result = work(unsafe { &mut *self.dlmalloc.get() });
        self.is_locked.store(false, Ordering::Release);
        result
    }
}

// SAFETY: each call is passed on to dlmalloc, whose memory is as `GlobalAlloc` requires it, with the caller's layout.
unsafe impl GlobalAlloc for Allocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees that the size is not zero.
        self.locked(|dlmalloc| unsafe { dlmalloc.malloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees that the memory is from this allocator and has this layout.
        self.locked(|dlmalloc| unsafe { dlmalloc.free(pointer, layout.size(), layout.align()) });
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        self.locked(|dlmalloc| unsafe { dlmalloc.calloc(layout.size(), layout.align()) })
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as for `dealloc`, and the caller guarantees that the new size is not zero.
        self.locked(|dlmalloc| unsafe { dlmalloc.realloc(pointer, layout.size(), layout.align(), size) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The allocator of this test program is the one of the binary, so any test uses it; this one from several threads at once.
    #[test]
    fn threads_that_allocate_at_once_do_not_share_memory() {
        let workers: Vec<_> = (0..8_u8)
            .map(|number| {
                thread::spawn(move || {
                    for size in 1..2_000 {
                        let mut bytes = vec![number; size];
                        thread::yield_now();
                        bytes.resize(2 * size, number);
                        assert!(bytes.iter().all(|byte| *byte == number));
                        assert!(vec![0_u8; size].iter().all(|byte| *byte == 0));
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
    }
}
