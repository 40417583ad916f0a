//! Long inputs made from short seeds. They show parsers whose time grows faster than the input.

use cnikit_fuzz::Target;

/// The depth of the most deeply nested input.
const DEEP: usize = 200_000;
/// The longest input that is made, in bytes, because debug builds are slow.
const LONG: usize = 1 << 18;

/// The length of the longest input for this target.
pub(crate) fn longest(target: &Target) -> usize {
    target.longest.min(LONG)
}

/// Chooses a few seeds of different lengths, and makes each of them as long as `length` in every way that fits.
pub(crate) fn inputs(target: &Target, length: usize) -> Vec<Vec<u8>> {
    let mut seeds = target.seeds();
    seeds.sort_by_key(Vec::len);
    seeds.dedup();
    let few = [seeds.len() / 4, seeds.len() / 2, seeds.len().saturating_sub(1)];
    let chosen = few.iter().filter_map(|place| seeds.get(*place));
    let grown = chosen.flat_map(|seed| [repeated(seed, length)].into_iter().chain(lists(seed, length)));
    grown.chain(deep(length)).collect()
}

/// Repeats the whole seed.
fn repeated(seed: &[u8], length: usize) -> Vec<u8> {
    seed.repeat((length / seed.len().max(1)).max(1))
}

/// Deeply nested brackets and quotation marks.
fn deep(length: usize) -> Vec<Vec<u8>> {
    ["[", "{\"ipam\":", "{\"prevResult\":", "{\"ips\":[", "\"", "\\\"", "\0\0\0\0\0\0{\"args\":"]
        .iter()
        .map(|text| text.repeat(DEEP.min(length / text.len())).into_bytes())
        .collect()
}

/// Fills some lists and objects of the seed with elements up to this length: with copies of their content, and with copies that
/// have other numbers or other names.
fn lists(seed: &[u8], length: usize) -> Vec<Vec<u8>> {
    let places = brackets(seed);
    let every = places.len().div_ceil(6).max(1);
    places.iter().step_by(every).flat_map(|(from, to)| grown(seed, *from, *to, length)).collect()
}

fn grown(seed: &[u8], from: usize, to: usize, length: usize) -> [Vec<u8>; 3] {
    let content = String::from_utf8_lossy(&seed[from + 1..to]).into_owned();
    let content = if content.trim().is_empty() { "\"a\":1".to_owned() } else { content };
    let count = length / (content.len() + 4);
    let whole = |content: String| [&seed[..=from], content.as_bytes(), &seed[to..]].concat();
    let same = vec![content.as_str(); count].join(",");
    let numbered: Vec<String> = (0..count).map(|n| renumbered(&content, n)).collect();
    let named: Vec<String> = (0..count).map(|n| content.replacen('"', &format!("\"{n}"), 1)).collect();
    // The first half has distinct names, and the second half repeats the first name.
    let again = [&named[..count / 2], &vec![named.first().cloned().unwrap_or_default(); count / 2]].concat();
    [same, numbered.join(","), again.join(",")].map(whole)
}

/// Replaces digits of addresses and names by digits of `n`.
fn renumbered(content: &str, n: usize) -> String {
    let high = (n >> 6) & 0xff;
    let low = (n << 2) & 0xff;
    let top = n >> 14;
    content
        .replace("10.", &format!("{}.", 10 + top))
        .replace(".0.0", &format!(".{high}.{low}"))
        .replace("eth0", &format!("eth{n}"))
}

/// Positions of the brackets of all lists and objects, outside of strings.
fn brackets(text: &[u8]) -> Vec<(usize, usize)> {
    let mut open = Vec::new();
    let mut found = Vec::new();
    let mut quoted = false;
    let mut escaped = false;
    for (at, byte) in text.iter().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b'[' | b'{' if !quoted => open.push(at),
            b']' | b'}' if !quoted => found.extend(open.pop().map(|from| (from, at))),
            _ => {}
        }
    }
    found
}
