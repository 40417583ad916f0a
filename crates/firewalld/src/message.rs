//! Encode method calls and parse the answers. See the D-Bus specification, "Message Protocol".

/// The length of a header before its array of fields, including the length of that array.
pub(crate) const HEADER: usize = 16;
/// The longest message that is accepted, in bytes. The answers of firewalld have a few hundred.
const LONGEST: usize = 1 << 20;

const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;
/// The flag that keeps the bus from starting a program to answer the call.
const NO_AUTO_START: u8 = 2;
const VERSION: u8 = 1;

// The codes of the header fields.
const PATH: u8 = 1;
const INTERFACE: u8 = 2;
const MEMBER: u8 = 3;
const ERROR_NAME: u8 = 4;
const REPLY_SERIAL: u8 = 5;
const DESTINATION: u8 = 6;
const SIGNATURE: u8 = 8;

/// A method call whose arguments are strings, without NUL bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) destination: &'a str,
    pub(crate) path: &'a str,
    pub(crate) interface: &'a str,
    pub(crate) member: &'a str,
    pub(crate) arguments: &'a [&'a str],
}

impl Call<'_> {
    pub(crate) fn encode(&self, serial: u32) -> Vec<u8> {
        let mut body = Encoder::default();
        self.arguments.iter().for_each(|argument| body.text(argument));
        let signature = "s".repeat(self.arguments.len());
        let mut fields = Encoder::default();
        for (field, kind, value) in [
            (PATH, "o", self.path),
            (DESTINATION, "s", self.destination),
            (INTERFACE, "s", self.interface),
            (MEMBER, "s", self.member),
            (SIGNATURE, "g", signature.as_str()),
        ] {
            fields.align(8);
            fields.0.push(field);
            fields.signature(kind);
            if kind == "g" { fields.signature(value) } else { fields.text(value) }
        }
        let mut whole = Encoder(vec![b'l', CALL, NO_AUTO_START, VERSION]);
        whole.number(body.0.len());
        whole.0.extend(serial.to_le_bytes());
        whole.number(fields.0.len());
        // The fields begin at a multiple of eight bytes, so their inner alignment stays correct.
        whole.0.extend(fields.0);
        whole.align(8);
        whole.0.extend(body.0);
        whole.0
    }
}

/// Encodes values in little endian.
#[derive(Default)]
struct Encoder(Vec<u8>);

impl Encoder {
    fn align(&mut self, to: usize) {
        self.0.resize(self.0.len().next_multiple_of(to), 0);
    }

    fn number(&mut self, value: usize) {
        self.align(4);
        self.0.extend(u32::try_from(value).unwrap_or(u32::MAX).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }

    fn signature(&mut self, text: &str) {
        self.0.push(u8::try_from(text.len()).unwrap_or(u8::MAX));
        self.0.extend(text.as_bytes());
        self.0.push(0);
    }
}

/// The first argument of an answer; `Other` if there is none or its type is none of those that our calls return.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Truth(bool),
    Other,
}

/// The error in the answer to a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ErrorReply {
    pub(crate) name: String,
    pub(crate) message: String,
}

/// The answer to a method call: the serial of the call, and its value or error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) to: u32,
    pub(crate) result: std::result::Result<Value, ErrorReply>,
}

/// The length of the message that begins with these bytes; `None` if it is not a message of this protocol version or too long.
pub(crate) fn length(header: &[u8]) -> Option<usize> {
    let header = header.get(..HEADER)?;
    let mut read = Read { bytes: header, place: 4, big: big(header[0])? };
    let body = read.number()? as usize;
    let _serial = read.number()?;
    let fields = read.number()? as usize;
    let length = HEADER.checked_add(fields)?.checked_next_multiple_of(8)?.checked_add(body)?;
    (header[3] == VERSION && length <= LONGEST).then_some(length)
}

fn big(mark: u8) -> Option<bool> {
    match mark {
        b'l' => Some(false),
        b'B' => Some(true),
        _ => None,
    }
}

/// The error for bytes that are not a valid message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Unreadable;

/// Parses a complete message; `None` if it is neither a method return nor an error.
pub(crate) fn answer(message: &[u8]) -> std::result::Result<Option<Reply>, Unreadable> {
    let (kind, to, result) = read(message).ok_or(Unreadable)?;
    match (kind, to) {
        (RETURN | ERROR, Some(to)) => Ok(Some(Reply { to, result })),
        (RETURN | ERROR, None) => Err(Unreadable),
        _ => Ok(None),
    }
}

/// Parses a complete message: its type, the serial of the call that it answers, and its value or error.
fn read(message: &[u8]) -> Option<(u8, Option<u32>, std::result::Result<Value, ErrorReply>)> {
    let body = length(message).filter(|length| *length == message.len())?;
    let mut read = Read { bytes: message, place: 4, big: big(message[0])? };
    let body = body - read.number()? as usize;
    read.place += 4;
    let end = read.number()? as usize + HEADER;
    let mut to = None;
    let mut name = None;
    let mut signature = "";
    while read.place < end {
        read.align(8);
        let field = read.byte()?;
        match (field, read.signature()?) {
            (SIGNATURE, "g") => signature = read.signature()?,
            (_, "g") => drop(read.signature()?),
            (REPLY_SERIAL, "u") => to = Some(read.number()?),
            (_, "u") => drop(read.number()?),
            (ERROR_NAME, "s") => name = Some(read.text()?.to_owned()),
            (_, "s" | "o") => drop(read.text()?),
            _ => return None,
        }
    }
    read.place = body;
    let first = match signature.chars().next() {
        Some('s' | 'o') => Value::Text(read.text()?.to_owned()),
        Some('b') => Value::Truth(read.number()? != 0),
        _ => Value::Other,
    };
    let kind = *message.get(1)?;
    let result = match (kind, first) {
        (ERROR, Value::Text(message)) => Err(ErrorReply { name: name?, message }),
        (ERROR, _) => Err(ErrorReply { name: name?, message: String::new() }),
        (_, first) => Ok(first),
    };
    Some((kind, to, result))
}

/// Decodes a message from its beginning.
struct Read<'a> {
    bytes: &'a [u8],
    place: usize,
    big: bool,
}

impl<'a> Read<'a> {
    fn align(&mut self, to: usize) {
        self.place = self.place.next_multiple_of(to);
    }

    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let taken = self.bytes.get(self.place..self.place.checked_add(length)?)?;
        self.place += length;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1)?.first().copied()
    }

    fn number(&mut self) -> Option<u32> {
        self.align(4);
        let bytes = self.take(4)?.try_into().ok()?;
        Some(if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn text(&mut self) -> Option<&'a str> {
        let length = self.number()? as usize;
        self.nul_terminated(length)
    }

    fn signature(&mut self) -> Option<&'a str> {
        let length = usize::from(self.byte()?);
        self.nul_terminated(length)
    }

    /// A string of this many bytes and the NUL after it.
    fn nul_terminated(&mut self, length: usize) -> Option<&'a str> {
        let text = std::str::from_utf8(self.take(length)?).ok()?;
        (self.byte()? == 0).then_some(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_has_its_fields_and_arguments_at_their_places() {
        let arguments = ["trusted", "10.0.0.2/32"];
        let destination = "org.a";
        let path = "/a";
        let interface = "org.a.b";
        let member = "m";
        let call = Call { destination, path, interface, member, arguments: &arguments }.encode(7);
        let mut expected = b"l\x01\x02\x01\x20\0\0\0\x07\0\0\0\x4f\0\0\0".to_vec();
        expected.extend(b"\x01\x01o\0\x02\0\0\0/a\0\0\0\0\0\0\x06\x01s\0\x05\0\0\0org.a\0\0\0");
        expected.extend(b"\x02\x01s\0\x07\0\0\0org.a.b\0\x03\x01s\0\x01\0\0\0m\0\0\0\0\0\0\0\x08\x01g\0\x02ss\0");
        expected.resize(expected.len().next_multiple_of(8), 0);
        let fields = expected.len();
        expected.extend(b"\x07\0\0\0trusted\0\x0b\0\0\x0010.0.0.2/32\0");
        expected[4] = u8::try_from(expected.len() - fields).unwrap();
        expected[12] = call[12];
        assert_eq!(call, expected);
        assert_eq!(length(&call), Some(call.len()));
        assert_eq!(answer(&call), Ok(None));
    }

    /// An answer with a boolean body, which is the number 1, in either byte order.
    fn sent(big: bool) -> Vec<u8> {
        let number = |value: u32| if big { value.to_be_bytes() } else { value.to_le_bytes() };
        let fields = [&[5, 1, b'u', 0][..], &number(7), &[8, 1, b'g', 0, 1, b'b', 0]].concat();
        let start = [if big { b'B' } else { b'l' }, RETURN, 1, VERSION];
        [&start[..], &number(4), &number(3), &number(15), &fields, &[0], &number(1)].concat()
    }

    #[test]
    fn an_answer_is_read_in_either_order_of_bytes() {
        for big in [false, true] {
            let message = sent(big);
            assert_eq!((length(&message), message.len()), (Some(36), 36));
            assert_eq!(answer(&message), Ok(Some(Reply { to: 7, result: Ok(Value::Truth(true)) })));
            for end in 0..message.len() {
                assert_eq!(answer(&message[..end]), Err(Unreadable), "{end}");
            }
        }
    }

    #[test]
    fn a_message_that_is_too_long_has_no_length() {
        let mut message = sent(false);
        message[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        assert_eq!(length(&message), None);
        message[4..8].copy_from_slice(&(2_u32 << 20).to_le_bytes());
        assert_eq!(length(&message), None);
    }
}
