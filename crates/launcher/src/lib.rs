//! The launcher: a small program that is installed under each plugin's name and executes `cni-plugins` in the same directory.
//!
//! Hard links to one binary would be one file: `cp` over one of them writes through to all. See docs/adr/0023-launchers.md.

/// The binary of all plugins, in the directory of the launchers.
pub const PROGRAM: &str = "cni-plugins";

/// The bytes by which a launcher is recognised. They change only if launchers do something else.
pub const MARK: [u8; 28] = *b"cnikit launcher: cni-plugins";

/// The longest launcher, in bytes: with glibc for PowerPC it has 1.2 MB. A longer file is none. scripts/release reads this line.
pub const MAX_LENGTH: u64 = 1 << 21;

/// How far the mark is from its next possible place, by the byte below its end (Horspool's search). A launcher is read in each call
/// that delegates, and most of its bytes are none of the mark's.
const STEPS: [u8; 256] = {
    let mut step = 28;
    assert!(MARK.len() == step as usize);
    let mut steps = [step; 256];
    let mut index = 0;
    while step > 1 {
        step -= 1;
        steps[MARK[index] as usize] = step;
        index += 1;
    }
    steps
};

/// Whether a file with this content is a launcher.
pub fn is_launcher(content: &[u8]) -> bool {
    let mut start = 0;
    while let Some(window) = content.get(start..start + MARK.len()) {
        if window == MARK {
            return true;
        }
        start += usize::from(STEPS[usize::from(window[MARK.len() - 1])]);
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mark_is_found_at_every_place_and_nothing_else_is_taken_for_it() {
        for before in 0..200 {
            for filler in [0, b'c', b'n', b's', b' '] {
                let mut content = vec![filler; before];
                content.extend(MARK);
                assert!(is_launcher(&content), "{before} {filler}");
                content.extend([filler; 40]);
                assert!(is_launcher(&content), "{before} {filler}");
                content[before + before % MARK.len()] ^= 1;
                assert!(!is_launcher(&content), "{before} {filler}");
            }
        }
        // A part of the mark before the whole of it.
        for part in 0..=MARK.len() {
            assert!(is_launcher(&[&MARK[part..], &MARK[..]].concat()), "{part}");
            assert!(is_launcher(&[&MARK[..part], &MARK[..]].concat()), "{part}");
        }
        for short in 0..MARK.len() {
            assert!(!is_launcher(&MARK[..short]), "{short}");
        }
    }
}
