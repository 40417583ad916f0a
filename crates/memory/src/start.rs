//! The first instructions of a position-independent program with musl, on x86-64: they add the address that the kernel loaded
//! the program at to each pointer in its data (a relocation), and continue with the C library's.
//!
//! musl would do that too, and finds nothing left to do. It looks at every bit of the table of relocations, of which about half are
//! set, in an order that a processor does not predict, and each of the twenty pages that it writes to is a page fault. Without that
//! each call takes 0.05 to 0.08 ms less: docs/adr/0003-static-pie.md.

use std::arch::global_asm;

/// `MADV_POPULATE_WRITE` of linux/mman.h, since Linux 5.14. Older kernels refuse it, and each page is mapped when it is written.
const POPULATE: i32 = 23;
/// The number of madvise(2).
const MADVISE: i32 = 28;
const PAGE: i32 = 4096;

// Tags of entries of the dynamic section, elf.h: the length of the table of relocations, and where it is.
const DT_RELRSZ: i32 = 35;
const DT_RELR: i32 = 36;

/// The words that follow the one that an address in the table names, for each bitmap after it.
const WORDS_OF_A_BITMAP: i32 = 63;

global_asm!(
    include_str!("start.s"),
    populate = const POPULATE,
    madvise = const MADVISE,
    page = const PAGE,
    dt_relrsz = const DT_RELRSZ,
    dt_relr = const DT_RELR,
    of_a_bitmap = const WORDS_OF_A_BITMAP * 8,
);
