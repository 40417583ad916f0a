//! Parse and encode messages without a bus, for the fuzzers. Not part of the public API.

use crate::address::addresses;
use crate::message::{self, Call, Reply, Value};

/// The number of addresses in a list whose transport is supported.
pub fn usable(list: &str) -> usize {
    addresses(list).len()
}

/// The length of the message that begins with these bytes.
pub fn length(bytes: &[u8]) -> Option<usize> {
    message::length(bytes)
}

/// Parses an answer: the serial of the call, and the value as a text, which for an error is its name and message separated by a
/// colon. `None` if the message is not an answer.
pub fn answer(message: &[u8]) -> Option<(u32, String)> {
    let Reply { to, result } = message::answer(message).ok()??;
    let result = match result {
        Ok(Value::Text(text)) => text,
        Ok(Value::Truth(truth)) => truth.to_string(),
        Ok(Value::Other) => String::new(),
        Err(error) => format!("{}:{}", error.name, error.message),
    };
    Some((to, result))
}

/// Encodes a method call with these arguments.
pub fn call(serial: u32, arguments: &[&str]) -> Vec<u8> {
    Call { destination: "d.d", path: "/p", interface: "i.i", member: "m", arguments }.encode(serial)
}
