//! Fuzz target: D-Bus messages and D-Bus addresses.

use cnikit_firewalld::wire;

/// The parser rejects longer messages.
const LONGEST: usize = 1 << 20;
/// The serial number of our call.
const SERIAL: u32 = 7;

/// Parses the same bytes as a message and as a list of addresses, and sends them as the arguments of a call.
pub(crate) fn run(bytes: &[u8]) {
    let length = wire::length(bytes);
    assert!(length.is_none_or(|length| (16..=LONGEST).contains(&length)));
    if let Some((_, reply)) = wire::answer(bytes) {
        assert_eq!(length, Some(bytes.len()), "a message is neither more nor less than its length");
        assert!(reply.len() <= bytes.len());
    }
    // The remaining bytes belong to the next message.
    if let Some(message) = length.and_then(|length| bytes.get(..length)) {
        assert_eq!(wire::length(message), length);
        wire::answer(message);
    }
    let text = String::from_utf8_lossy(bytes);
    assert!(wire::usable(&text) <= text.matches("unix:").count());
    let texts: Vec<&str> = text.split('\0').take(200).collect();
    let call = wire::call(SERIAL, &texts);
    assert!(call.len() > LONGEST || wire::length(&call) == Some(call.len()), "what we send can be read");
    assert!(wire::answer(&call).is_none(), "a call is no answer");
}
