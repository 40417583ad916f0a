//! Both ways of the wire without a bus: what its bytes are read as, and those that it would be sent.
//!
//! For a fuzzer, which has bytes and no bus; not part of what this crate promises.

use crate::address::addresses;
use crate::message::{self, Call, Reply, Value};

/// How many addresses of a list we could connect to.
pub fn usable(list: &str) -> usize {
    addresses(list).len()
}

/// How long the message is that begins so.
pub fn length(bytes: &[u8]) -> Option<usize> {
    message::length(bytes)
}

/// What a message answers: to which call, and a text; an error's name and message with a colon between. `None` if it is none.
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

/// The message of a call with these arguments.
pub fn call(serial: u32, arguments: &[&str]) -> Vec<u8> {
    Call { destination: "d.d", path: "/p", interface: "i.i", member: "m", arguments }.encode(serial)
}
