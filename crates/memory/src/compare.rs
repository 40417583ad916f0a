//! memcmp(3) in place of musl's, which compares byte by byte. Names of files and keys of JSON are often alike at their beginning.

use std::cmp::Ordering;

/// The bytes that are compared at once.
const WORD: usize = size_of::<u64>();

/// `int memcmp(const void *one, const void *other, size_t length)`
#[cfg(all(target_env = "musl", not(test)))]
#[unsafe(no_mangle)]
unsafe extern "C" fn memcmp(one: *const u8, other: *const u8, length: usize) -> i32 {
    // SAFETY: the caller guarantees that both ranges may be read.
    unsafe { compare(one, other, length) as i32 }
}

/// The order of two ranges of bytes.
///
/// # Safety
///
/// The caller may read from both.
#[cfg_attr(not(any(target_env = "musl", test)), expect(dead_code, reason = "other C libraries have a fast one"))]
unsafe fn compare(one: *const u8, other: *const u8, length: usize) -> Ordering {
    // SAFETY: the caller may read `length` bytes of both. Nothing is read that ends behind them.
    unsafe {
        let mut at = 0;
        while length - at >= WORD {
            let [first, second] =
                [one, other].map(|bytes| u64::from_be_bytes(bytes.add(at).cast::<[u8; WORD]>().read_unaligned()));
            if first != second {
                return first.cmp(&second);
            }
            at += WORD;
        }
        while at < length {
            let [first, second] = [one, other].map(|bytes| bytes.add(at).read());
            if first != second {
                return first.cmp(&second);
            }
            at += 1;
        }
        Ordering::Equal
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every length up to some words, with a smaller or larger byte at every place, and what is behind it the other way round.
    #[test]
    fn the_first_byte_that_differs_decides() {
        for length in 0..40_usize {
            let same = vec![0x80_u8; length];
            // SAFETY: both have this length.
            assert_eq!(unsafe { compare(same.as_ptr(), same.clone().as_ptr(), length) }, Ordering::Equal);
            for place in 0..length {
                for (byte, later) in [(0x7f, 0xff), (0, 0xff), (0x81, 0), (0xff, 0)] {
                    let mut changed = same.clone();
                    changed[place + 1..].fill(later);
                    changed[place] = byte;
                    for (one, other) in [(&same, &changed), (&changed, &same)] {
                        // SAFETY: both have this length.
                        let found = unsafe { compare(one.as_ptr(), other.as_ptr(), length) };
                        assert_eq!(found, one.cmp(other), "{byte} at {place} of {length}");
                    }
                }
            }
        }
    }
}
