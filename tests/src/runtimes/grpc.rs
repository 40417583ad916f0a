//! As much of gRPC as a client of CRI needs: messages by field numbers, carried by curl, which speaks HTTP/2.
//!
//! A message is a sequence of fields, each a number with the field and its encoding, followed by the value; see
//! protobuf.dev/programming-guides/encoding. The field numbers are those of CRI's `api.proto`.

use super::Node;

/// A message that is being put together.
#[derive(Clone, Debug, Default)]
pub(super) struct Message(Vec<u8>);

impl Message {
    /// Adds a number.
    pub(super) fn number(mut self, field: u8, value: u64) -> Message {
        self.0.push(field << 3);
        varint(&mut self.0, value);
        self
    }

    /// Adds a text.
    pub(super) fn text(self, field: u8, value: &str) -> Message {
        self.bytes(field, value.as_bytes())
    }

    /// Adds a message.
    pub(super) fn message(self, field: u8, value: &Message) -> Message {
        self.bytes(field, &value.0)
    }

    fn bytes(mut self, field: u8, value: &[u8]) -> Message {
        self.0.push(field << 3 | 2);
        varint(&mut self.0, value.len() as u64);
        self.0.extend(value);
        self
    }
}

fn varint(into: &mut Vec<u8>, mut value: u64) {
    while value > 0x7f {
        into.push(value.to_le_bytes()[0] | 0x80);
        value >>= 7;
    }
    into.push(value.to_le_bytes()[0]);
}

/// A field that was received: its number, a value that is one, and one that is bytes.
pub(super) type Field<'a> = (u64, u64, &'a [u8]);

/// Parses a message.
pub(super) fn fields(mut message: &[u8]) -> Vec<Field<'_>> {
    let mut found = Vec::new();
    while !message.is_empty() {
        let key = take(&mut message);
        let value = take(&mut message);
        let bytes = match key & 7 {
            0 => &[],
            2 => message.split_off(..usize::try_from(value).unwrap()).expect("a field ends before its message"),
            form => panic!("field {} has the form {form}, which CRI does not use", key >> 3),
        };
        found.push((key >> 3, value, bytes));
    }
    found
}

fn take(message: &mut &[u8]) -> u64 {
    let mut value = 0;
    let mut shift = 0;
    loop {
        let byte = *message.split_off_first().expect("a number ends before its message");
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
        shift += 7;
    }
}

/// The bytes at the end of a path of fields, the first of each number; empty where one is absent, as the format has it.
pub(super) fn at<'a>(message: &'a [u8], path: &[u64]) -> &'a [u8] {
    path.iter().fold(message, |message, field| all(message, *field).into_iter().next().unwrap_or_default())
}

/// The bytes of every field of a number.
pub(super) fn all(message: &[u8], field: u64) -> Vec<&[u8]> {
    fields(message).into_iter().filter(|(number, ..)| *number == field).map(|(.., bytes)| bytes).collect()
}

/// A field that is a number; 0 where it is absent.
pub(super) fn number(message: &[u8], field: u64) -> u64 {
    fields(message).into_iter().find(|(number, ..)| *number == field).map_or(0, |(_, value, _)| value)
}

/// A text.
pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Calls a method over a socket of the node. Returns the reply or the error message.
pub(super) fn call(node: &Node, socket: &str, method: &str, message: &Message) -> Result<Vec<u8>, String> {
    let mut body = vec![0];
    body.extend(u32::try_from(message.0.len()).unwrap().to_be_bytes());
    body.extend(&message.0);
    let url = format!("http://localhost/{method}");
    let args = ["-sS", "--http2-prior-knowledge", "--unix-socket", socket, "-H", "content-type: application/grpc"];
    let more = ["-H", "te: trailers", "--data-binary", "@-", "-D", "/dev/stderr", &url];
    let (how, answer, headers) = node.try_run("/usr/bin/curl", &[&args[..], &more[..]].concat(), &body);
    let headers = text(&headers);
    if !how.is_success() {
        return Err(format!("{method}: curl: {how}: {headers}"));
    }
    let header = |name: &str| {
        let mut values = headers.lines().filter_map(|line| line.split_once(": ")).filter(|(key, _)| *key == name);
        values.next_back().map(|(_, value)| value.trim().to_owned())
    };
    match header("grpc-status").as_deref() {
        Some("0") => Ok(answer[5..].to_vec()),
        status => Err(format!("{method}: status {status:?}: {}", header("grpc-message").unwrap_or(headers))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_message_is_decoded() {
        let inner = Message::default().number(1, 300).text(2, "é");
        let Message(bytes) = Message::default().text(3, "a").message(4, &inner).text(3, "b");
        assert_eq!(bytes, b"\x1a\x01a\x22\x07\x08\xac\x02\x12\x02\xc3\xa9\x1a\x01b");
        assert_eq!(all(&bytes, 3), [b"a", b"b"]);
        assert_eq!((number(at(&bytes, &[4]), 1), text(at(&bytes, &[4, 2]))), (300, "é".into()));
        assert_eq!(at(&bytes, &[7, 2]), b"");
    }
}
