//! Bytes from bytes: small changes that keep most of what a reader understood.

use fastrand::Rng;

/// The longest that a mutation makes of anything.
const LONGEST: usize = 64 << 10;
/// Bytes at which readers change their mind.
const EDGES: [u8; 16] = [0, 1, 2, 3, 4, 8, 0x0a, 0x10, 0x20, 0x22, 0x5c, 0x7f, 0x80, 0xc3, 0xfe, 0xff];

/// A change of one of `seeds`, one to eight steps away from it; `words` are put in here and there.
pub fn mutate(seeds: &[Vec<u8>], words: &[&str], rng: &mut Rng) -> Vec<u8> {
    let mut data = rng.choice(seeds).cloned().unwrap_or_default();
    for _ in 0..rng.usize(1..=8) {
        step(&mut data, seeds, words, rng);
    }
    data.truncate(LONGEST);
    data
}

fn step(data: &mut Vec<u8>, seeds: &[Vec<u8>], words: &[&str], rng: &mut Rng) {
    let place = place(data, rng);
    match rng.u8(0..10) {
        0 => change(data, place.start, |byte| byte ^ (1 << rng.u8(0..8))),
        1 => change(data, place.start, |_| EDGES[rng.usize(0..EDGES.len())]),
        2 => change(data, place.start, |byte| byte.wrapping_add_signed(rng.i8(-4..=4))),
        3 => drop(data.drain(place)),
        4 => {
            let copy = data[place.clone()].to_vec();
            splice(data, place.start..place.start, &copy.repeat(rng.usize(1..=4)));
        }
        5 => {
            let piece = data[place].to_vec();
            let to = rng.usize(0..=data.len());
            splice(data, to..to, &piece);
        }
        6 | 7 => {
            let word = rng.choice(words).map_or(&[][..], |word| word.as_bytes());
            let over = if rng.bool() { place } else { place.start..place.start };
            splice(data, over, word);
        }
        8 => {
            let other = rng.choice(seeds).map_or(&[][..], Vec::as_slice);
            let from = self::place(other, rng);
            splice(data, place, &other[from]);
        }
        _ => data.truncate(place.start),
    }
}

/// A stretch of the data, short ones more often than long ones.
fn place(data: &[u8], rng: &mut Rng) -> std::ops::Range<usize> {
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
