//! Mutations: small random changes of an input that leave most of it valid.

use fastrand::Rng;

/// The length to which a mutation is cut.
const LONGEST: usize = 64 << 10;
/// Bytes that mean something to some parser: limits of ranges, quotation marks, invalid UTF-8.
const EDGES: [u8; 16] = [0, 1, 2, 3, 4, 8, 0x0a, 0x10, 0x20, 0x22, 0x5c, 0x7f, 0x80, 0xc3, 0xfe, 0xff];

/// Returns one of `seeds` after one to eight random changes, some of which insert one of `words`.
pub fn mutate(seeds: &[Vec<u8>], words: &[&str], rng: &mut Rng) -> Vec<u8> {
    let mut data = rng.choice(seeds).cloned().unwrap_or_default();
    for _ in 0..rng.usize(1..=8) {
        step(&mut data, seeds, words, rng);
    }
    data.truncate(LONGEST);
    data
}

fn step(data: &mut Vec<u8>, seeds: &[Vec<u8>], words: &[&str], rng: &mut Rng) {
    let range = random_range(data, rng);
    match rng.u8(0..10) {
        0 => change(data, range.start, |byte| byte ^ (1 << rng.u8(0..8))),
        1 => change(data, range.start, |_| EDGES[rng.usize(0..EDGES.len())]),
        2 => change(data, range.start, |byte| byte.wrapping_add_signed(rng.i8(-4..=4))),
        3 => drop(data.drain(range)),
        4 => {
            let copy = data[range.clone()].to_vec();
            splice(data, range.start..range.start, &copy.repeat(rng.usize(1..=4)));
        }
        5 => {
            let piece = data[range].to_vec();
            let to = rng.usize(0..=data.len());
            splice(data, to..to, &piece);
        }
        6 | 7 => {
            let word = rng.choice(words).map_or(&[][..], |word| word.as_bytes());
            let over = if rng.bool() { range } else { range.start..range.start };
            splice(data, over, word);
        }
        8 => {
            let other = rng.choice(seeds).map_or(&[][..], Vec::as_slice);
            let from = random_range(other, rng);
            splice(data, range, &other[from]);
        }
        _ => data.truncate(range.start),
    }
}

/// A random range of the data; short ranges are more likely.
fn random_range(data: &[u8], rng: &mut Rng) -> std::ops::Range<usize> {
    let start = rng.usize(0..=data.len());
    let most = (data.len() - start).min(1 << rng.u8(0..12));
    start..start + rng.usize(0..=most)
}

fn change(data: &mut [u8], at: usize, new: impl FnOnce(u8) -> u8) {
    if let Some(byte) = data.get_mut(at) {
        *byte = new(*byte);
    }
}

fn splice(data: &mut Vec<u8>, over: std::ops::Range<usize>, with: &[u8]) {
    data.splice(over, with.iter().copied());
}
