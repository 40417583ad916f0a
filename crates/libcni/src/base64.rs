//! Base64, as the cache writes configurations (RFC 4648, section 4).

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of some bytes, padded to a multiple of four.
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.chunks(3).flat_map(group).collect()
}

/// The bytes of a text; `None` if it is no such text.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let padding = text.bytes().rev().take_while(|letter| *letter == b'=').count();
    let (letters, groups) = (text.trim_end_matches('='), text.len() / 4);
    if !text.len().is_multiple_of(4) || padding > 2 {
        return None;
    }
    let letters: Option<Vec<u32>> = letters.bytes().map(value).collect();
    let mut bytes = Vec::with_capacity(groups * 3);
    for chunk in letters?.chunks(4) {
        let bits = (0..4).fold(0, |bits, at| bits << 6 | chunk.get(at).copied().unwrap_or(0));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..]);
    }
    bytes.truncate((groups * 3).checked_sub(padding)?);
    Some(bytes)
}

fn value(letter: u8) -> Option<u32> {
    ALPHABET.iter().position(|known| *known == letter).and_then(|at| u32::try_from(at).ok())
}

fn group(chunk: &[u8]) -> [char; 4] {
    let byte = |at: usize| u32::from(chunk.get(at).copied().unwrap_or(0));
    let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
    let letter = |at: usize| {
        if at > chunk.len() { '=' } else { char::from(ALPHABET[(bits >> (18 - 6 * at) & 63) as usize]) }
    };
    [letter(0), letter(1), letter(2), letter(3)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_rfc_come_out_and_go_in() {
        let vectors =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (bytes, text) in vectors {
            assert_eq!(encode(bytes.as_bytes()), text);
            assert_eq!(decode(text).unwrap(), bytes.as_bytes());
        }
        assert_eq!(encode(&[0xfb, 0xff, 0xfe]), "+//+");
        assert_eq!(decode("+//+").unwrap(), [0xfb, 0xff, 0xfe]);
    }

    #[test]
    fn what_is_no_such_text_is_refused() {
        for text in ["Z", "Zm9", "Zm9v\n", "Z===", "====", "Zm=v", "Zm9-"] {
            assert_eq!(decode(text), None, "{text:?}");
        }
    }
}
