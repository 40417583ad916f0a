//! Base64, as the cache writes configurations (RFC 4648, section 4).

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// The text of some bytes, padded to a multiple of four.
pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.chunks(3).flat_map(group).collect()
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
    fn the_vectors_of_the_rfc_come_out() {
        let vectors =
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foob", "Zm9vYg=="), ("fooba", "Zm9vYmE=")];
        for (bytes, text) in vectors {
            assert_eq!(encode(bytes.as_bytes()), text);
        }
        assert_eq!(encode(&[0xfb, 0xff, 0xfe]), "+//+");
    }
}
