//! What `cni-plugins` and cnitool have in place of the C library's: the allocator, with musl memcmp(3), and with musl on x86-64
//! memcpy(3), memmove(3) and the entry point.
//!
//! The allocator has lists of free blocks by size, the first memory in the binary's own data, and dlmalloc for the rest, behind a
//! lock of one word.
//!
//! musl's allocator takes a page, by a system call, for each size of object; dlmalloc takes 64 KiB at once. `GlobalDlmalloc`
//! locks it by a mutex of the C library, which was 15 % of the instructions of an ADD of sbr. Here an allocation without other
//! threads, as nearly all are, costs one atomic exchange.
//!
//! dlmalloc splits and joins neighbours in each call, which keeps the memory of a program together that runs for days. A plugin
//! allocates some thousand small objects and ends: to take a block from a list and put it back there is a fraction of the
//! instructions.
//! A block stays in the list of its size, so the daemon of dhcp has as many as it once needed at the same time.
//!
//! A call of a plugin needs 30 to 100 kB. It gets them from `FirstMemory`, which is mapped when the program is executed: the
//! blocks are next to each other, without headers, so a call touches fewer pages than with dlmalloc, and makes no system calls for
//! memory.
#![expect(unsafe_code, reason = "the interface of allocators is unsafe")]
#![expect(clippy::cast_ptr_alignment, reason = "small blocks are aligned for addresses")]

mod compare;
#[cfg(target_arch = "x86_64")]
mod copy;
#[cfg(all(target_arch = "x86_64", target_env = "musl"))]
mod start;

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr::{copy_nonoverlapping, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dlmalloc::Dlmalloc;

/// The alignment of all small blocks; their sizes are its multiples.
const UNIT: usize = 16;
/// The largest small block.
const LARGEST: usize = 1024;
const SIZES: usize = LARGEST / UNIT;
/// The longest block of the first memory. Those that are longer than small ones have a power of two: 2 KiB and so on.
const LONGEST: usize = 64 << 10;
const POWERS: usize = (LONGEST / LARGEST).ilog2() as usize;
/// New small blocks are cut from a piece of this many bytes where the first memory is used up.
const PIECE: usize = 16 << 10;
/// The length of the first memory. What is not used of it costs nothing.
const FIRST: usize = 256 << 10;

/// The memory that blocks are cut from first.
#[repr(align(16))]
struct FirstMemory(UnsafeCell<[u8; FIRST]>);

// SAFETY: only the bounds of this memory are used here. Its blocks are given to one caller at a time.
unsafe impl Sync for FirstMemory {}

// Apart from `Allocator`, of which some bytes are not zero: the file would have all of them.
static FIRST_MEMORY: FirstMemory = FirstMemory(UnsafeCell::new([0; FIRST]));

impl FirstMemory {
    fn start(&self) -> *mut u8 {
        self.0.get().cast()
    }

    fn has(&self, block: *mut u8) -> bool {
        (block.addr().wrapping_sub(self.start().addr())) < FIRST
    }
}

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::new();

/// The memory, and whether a thread is in it.
struct Allocator {
    is_locked: AtomicBool,
    memory: UnsafeCell<Memory>,
}

// SAFETY: `memory` is used by `locked` only, one thread at a time.
unsafe impl Sync for Allocator {}

impl Allocator {
    const fn new() -> Allocator {
        let memory = Memory {
            free: [null_mut(); SIZES + POWERS],
            used: 0,
            piece: null_mut(),
            left: 0,
            dlmalloc: Dlmalloc::new(),
        };
        Allocator { is_locked: AtomicBool::new(false), memory: UnsafeCell::new(memory) }
    }

    /// Runs `work` when no other thread is in the memory. `work` allocates nothing by way of Rust and does not panic.
    #[inline]
    fn locked<T>(&self, work: impl FnOnce(&mut Memory) -> T) -> T {
        while self.is_locked.swap(true, Ordering::Acquire) {
            thread::yield_now();
        }
        // SAFETY: the flag was false and is true now, so no other thread has this reference until it is false again.
        let result = work(unsafe { &mut *self.memory.get() });
        self.is_locked.store(false, Ordering::Release);
        result
    }
}

/// A free block of a list begins with the address of the next one.
struct Memory {
    free: [*mut u8; SIZES + POWERS],
    /// How much of the first memory was cut.
    used: usize,
    /// The rest of the piece that is cut.
    piece: *mut u8,
    left: usize,
    dlmalloc: Dlmalloc,
}

/// The list of the small blocks for this layout; `None` if it is not one of theirs. The size is not zero.
#[inline]
fn small_list(size: usize, align: usize) -> Option<usize> {
    (size <= LARGEST && align <= UNIT).then(|| (size - 1) / UNIT)
}

/// The list for this layout, and the length of its blocks; `None` if blocks of this layout are dlmalloc's. The size is not zero.
fn list_of(size: usize, align: usize) -> Option<(usize, usize)> {
    if let Some(list) = small_list(size, align) {
        return Some((list, (list + 1) * UNIT));
    }
    if size > LONGEST || align > UNIT {
        return None;
    }
    let length = size.next_power_of_two();
    Some((SIZES + (length / LARGEST).ilog2() as usize - 1, length))
}

impl Memory {
    #[inline]
    fn take(&mut self, size: usize, align: usize) -> *mut u8 {
        match small_list(size, align) {
            Some(list) => self.take_from(list, (list + 1) * UNIT),
            None => self.take_long(size, align),
        }
    }

    #[inline(never)]
    fn take_long(&mut self, size: usize, align: usize) -> *mut u8 {
        match list_of(size, align) {
            Some((list, length)) => self.take_from(list, length),
            // SAFETY: the size is not zero, and the alignment is that of a layout.
            None => unsafe { self.dlmalloc.malloc(size, align) },
        }
    }

    #[inline]
    fn take_from(&mut self, list: usize, length: usize) -> *mut u8 {
        let first = self.free[list];
        if first.is_null() {
            return self.cut(length);
        }
        // SAFETY: a block in a list begins with the address of the next one, and blocks are aligned for addresses.
        self.free[list] = unsafe { first.cast::<*mut u8>().read() };
        first
    }

    /// A new block of a list.
    #[inline(never)]
    fn cut(&mut self, length: usize) -> *mut u8 {
        if length <= FIRST - self.used {
            // SAFETY: the block ends within the first memory, or with it.
            let block = unsafe { FIRST_MEMORY.start().add(self.used) };
            self.used += length;
            return block;
        }
        if length > LARGEST {
            // SAFETY: the length is not zero, and the alignment is a power of two.
            return unsafe { self.dlmalloc.malloc(length, UNIT) };
        }
        // What is left of a piece that is too short is not used.
        if self.left < length {
            // SAFETY: as above.
            let piece = unsafe { self.dlmalloc.malloc(PIECE, UNIT) };
            if piece.is_null() {
                return piece;
            }
            (self.piece, self.left) = (piece, PIECE);
        }
        let block = self.piece;
        self.left -= length;
        // SAFETY: the block ends within the piece, or with it.
        self.piece = unsafe { block.add(length) };
        block
    }

    /// # Safety
    ///
    /// `block` was taken with this size and alignment, and is not used any more.
    #[inline]
    unsafe fn give_back(&mut self, block: *mut u8, size: usize, align: usize) {
        match small_list(size, align) {
            // SAFETY: the block is of this list, and is nobody's now.
            Some(list) => unsafe { self.add_to(list, block) },
            // SAFETY: as for this function.
            None => unsafe { self.give_back_long(block, size, align) },
        }
    }

    /// # Safety
    ///
    /// As for `give_back`.
    #[inline(never)]
    unsafe fn give_back_long(&mut self, block: *mut u8, size: usize, align: usize) {
        match list_of(size, align) {
            // SAFETY: as in `give_back`.
            Some((list, _)) if FIRST_MEMORY.has(block) => unsafe { self.add_to(list, block) },
            // SAFETY: the block is dlmalloc's, which got this length.
            Some((_, length)) => unsafe { self.dlmalloc.free(block, length, UNIT) },
            // SAFETY: the block is dlmalloc's, with this layout.
            None => unsafe { self.dlmalloc.free(block, size, align) },
        }
    }

    /// # Safety
    ///
    /// `block` has the length of the blocks of this list, and is not used any more.
    #[inline]
    unsafe fn add_to(&mut self, list: usize, block: *mut u8) {
        // SAFETY: the block has at least `UNIT` bytes, is aligned for addresses, and is nobody's now.
        unsafe { block.cast::<*mut u8>().write(self.free[list]) };
        self.free[list] = block;
    }

    /// # Safety
    ///
    /// As for `give_back`, except that the block is used until this returns; the new size is not zero.
    unsafe fn resize(&mut self, block: *mut u8, old: usize, align: usize, new: usize) -> *mut u8 {
        let lists = (list_of(old, align), list_of(new, align));
        if lists == (None, None) {
            // SAFETY: the block is dlmalloc's, with this layout.
            return unsafe { self.dlmalloc.realloc(block, old, align, new) };
        }
        if lists.0 == lists.1 {
            return block;
        }
        let larger = self.take(new, align);
        if !larger.is_null() {
            // SAFETY: both blocks have as many bytes, and the new one is no part of the old one.
            unsafe {
                copy_nonoverlapping(block, larger, old.min(new));
                self.give_back(block, old, align);
            }
        }
        larger
    }
}

// SAFETY: a block is given to one caller at a time, with at least the size and the alignment of the layout: those of lists are cut
// from memory that overlaps nothing, or are dlmalloc's as the others are.
unsafe impl GlobalAlloc for Allocator {
    // Not inlined: what calls them is most of the code.
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.locked(|memory| memory.take(layout.size(), layout.align()))
    }

    #[inline(never)]
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees that the memory is from this allocator and has this layout.
        self.locked(|memory| unsafe { memory.give_back(pointer, layout.size(), layout.align()) });
    }

    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let (size, align) = (layout.size(), layout.align());
        if list_of(size, align).is_none() {
            // SAFETY: the caller guarantees that the size is not zero.
            return self.locked(|memory| unsafe { memory.dlmalloc.calloc(size, align) });
        }
        let block = self.locked(|memory| memory.take(size, align));
        if !block.is_null() {
            // SAFETY: the block has so many bytes.
            unsafe { block.write_bytes(0, size) };
        }
        block
    }

    #[inline(never)]
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as for `dealloc`, and the caller guarantees that the new size is not zero.
        self.locked(|memory| unsafe { memory.resize(pointer, layout.size(), layout.align(), size) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The allocator of this program is the one above, so any test uses it; this one from several threads at once.
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

    #[test]
    fn blocks_of_all_sizes_are_apart_and_keep_their_bytes_when_they_grow_and_shrink() {
        let mut live: Vec<(u8, Vec<u8>)> = Vec::new();
        for round in 0..4_000_usize {
            let number = u8::try_from(round % 251).unwrap();
            // Some are longer than the blocks of lists, and all together than the first memory.
            let size = (1 + round * 37 % (3 * LARGEST)) * if round % 41 == 0 { 40 } else { 1 };
            live.push((number, vec![number; size]));
            let (own, mut other) = live.swap_remove(round * 7919 % live.len());
            assert!(other.iter().all(|byte| *byte == own), "{round}");
            if round % 3 == 0 {
                other.truncate(1 + size % 50);
                other.shrink_to_fit();
                other.resize(size + 20, own);
                assert!(other.iter().all(|byte| *byte == own), "{round}");
            }
            if live.len() < 200 {
                live.push((own, other));
            }
            let zeroed = vec![0_u8; size];
            assert!(zeroed.iter().all(|byte| *byte == 0), "{round}");
            assert_eq!(zeroed.as_ptr().align_offset(if size >= UNIT { UNIT } else { 1 }), 0);
        }
    }

    #[test]
    fn large_alignments_are_met() {
        for align in [32, 64, 4096] {
            let layout = Layout::from_size_align(48, align).unwrap();
            // SAFETY: the size is not zero, and the block is given back with its layout.
            unsafe {
                let block = std::alloc::alloc(layout);
                assert_eq!(block.align_offset(align), 0);
                std::alloc::dealloc(block, layout);
            }
        }
    }
}
