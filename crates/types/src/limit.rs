//! Size limits for all input: far above what real networks need, and low enough that no input keeps a node busy.
//!
//! docs/errors.md has the same table. Input above a limit is refused at once, before anything is made.

use serde_json::{Map, Value};

use crate::ReadError;

/// Size of the document on stdin, in bytes.
pub const STDIN: u64 = 16 << 20;
/// Members of each list or object of that document, port mappings and attachments included.
pub const MEMBERS: usize = 16_384;
/// Values in one JSON document: the members of all its lists and objects. Each of them takes memory, even if its text is short.
pub const VALUES: usize = 1 << 19;
/// Interfaces, addresses and routes of a result, and addresses that one attachment requests: the limit for each of these.
pub const RESULT: usize = 2_048;
/// Range sets of host-local; an attachment gets one address of each.
pub const RANGE_SETS: usize = 256;
/// Ranges of all range sets together.
pub const RANGES: usize = 4_096;
/// Rules per family for the port mappings of one attachment: one rule per port, and one more per port for each network of the
/// container's addresses.
pub const PORT_RULES: usize = 65_536;
/// Size of all attachments of one RESTORE together, each counted with the configuration that they share, in bytes.
pub const RESTORED: usize = 16 << 20;
/// Plugins of one network list; each is a program that is run.
pub const PLUGINS: usize = 256;
/// Size of `msg` and of `details` in an error, in bytes. A longer text loses its middle.
pub const ERROR: usize = 16 << 10;
/// Differences or further errors that one error names. It adds the number of the others.
pub const NAMED: usize = 100;

/// Checks the size of each list and object in a document.
///
/// # Errors
/// The first one that has more than [`MEMBERS`] members.
pub fn check(document: &Value) -> Result<(), ReadError> {
    match document {
        Value::Array(list) => {
            count("entries", list.len(), MEMBERS)?;
            for (index, value) in list.iter().enumerate() {
                check(value).map_err(|error| error.at(index))?;
            }
            Ok(())
        }
        Value::Object(object) => check_object(object),
        _ => Ok(()),
    }
}

/// As [`check`], for an object.
pub(crate) fn check_object(object: &Map<String, Value>) -> Result<(), ReadError> {
    count("members", object.len(), MEMBERS)?;
    for (key, value) in object {
        check(value).map_err(|error| error.under(key))?;
    }
    Ok(())
}

/// Counts the values of a document in its text, before any memory is allocated for them.
///
/// # Errors
/// The document has more than [`VALUES`] values.
pub(crate) fn check_text(text: &[u8]) -> Result<(), ReadError> {
    if text.len() <= VALUES || values(text) <= VALUES {
        return Ok(());
    }
    Err(ReadError::value(format!("has more than {VALUES} values, which is the limit")))
}

/// The number of values in a JSON text: each is the first one of a list or an object, or follows a comma.
fn values(text: &[u8]) -> usize {
    let mut count = 0;
    let mut bytes = text.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' | b',' => count += 1,
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => {
                            bytes.next();
                        }
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    count
}

/// Checks one number against its limit.
///
/// # Errors
/// `found` is greater than `most`: `has 5000 routes, and at most 4096 are served`.
pub fn count(what: &str, found: usize, most: usize) -> Result<(), ReadError> {
    if found <= most {
        return Ok(());
    }
    Err(ReadError::value(format!("has {found} {what}, and at most {most} are allowed")))
}

/// Shortens a text to at most [`ERROR`] bytes. It removes the middle, because an error begins with what failed and ends with
/// why.
pub fn shortened(text: String) -> String {
    if text.len() <= ERROR {
        return text;
    }
    let head = text.floor_char_boundary(ERROR / 2);
    let tail = text.ceil_char_boundary(text.len() - ERROR / 4);
    format!("{} … ({} bytes omitted) … {}", &text[..head], tail - head, &text[tail..])
}

/// Joins the first [`NAMED`] of these texts, and adds how many more there are.
pub fn first(texts: &[String], separator: &str) -> String {
    first_few(texts, NAMED, separator)
}

/// Joins the first of these texts, `most` at most, and adds how many more there are.
pub fn first_few(texts: &[String], most: usize, separator: &str) -> String {
    if texts.len() <= most {
        return texts.join(separator);
    }
    format!("{}{separator}and {} more", texts[..most].join(separator), texts.len() - most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_is_too_long_is_named_by_its_path() {
        let many = vec![Value::Null; MEMBERS + 1];
        assert_eq!(check(&serde_json::json!({"a": [{"b": many[1..]}]})), Ok(()));
        let error = check(&serde_json::json!({"a": [{"b": many}]})).unwrap_err();
        assert_eq!(error.to_string(), "a[0].b: has 16385 entries, and at most 16384 are allowed");
        let object = (0..=MEMBERS).map(|n| (n.to_string(), Value::Null)).collect();
        assert!(check(&Value::Object(object)).unwrap_err().to_string().starts_with("has 16385 members"));
    }

    #[test]
    fn values_are_counted_wherever_they_are_and_not_in_texts() {
        assert_eq!(values(br#"{"a":[1,2,[3]],"b":{"c":"[[[,,,\",[","d":1}}"#), 1 + 4 + 1 + 2);
        assert_eq!(values(br#""[,{\\",1"#), 1, "a backslash that is escaped escapes nothing");
        let text = |count: usize| format!("[{}0]", "0,".repeat(count - 1));
        assert_eq!(check_text(text(VALUES).as_bytes()), Ok(()));
        assert_eq!(check_text(format!("[\"{}\"]", "[".repeat(2 * VALUES)).as_bytes()), Ok(()));
        let error = check_text(text(VALUES + 1).as_bytes()).unwrap_err();
        assert_eq!(error.to_string(), "has more than 524288 values, which is the limit");
    }

    #[test]
    fn an_error_that_is_too_long_is_cut_in_the_middle() {
        let short = shortened(format!("first {} last", "ü".repeat(ERROR)));
        assert!(short.starts_with("first ü") && short.ends_with("ü last"), "{short}");
        assert!(short.len() < ERROR && short.contains("bytes omitted"), "{}", short.len());
        assert_eq!(shortened("short".into()), "short");
    }

    #[test]
    fn the_first_of_many_texts_are_named_and_the_rest_counted() {
        let texts = |count: usize| (0..count).map(|n| n.to_string()).collect::<Vec<_>>();
        assert_eq!(first(&texts(3), "; "), "0; 1; 2");
        assert!(first(&texts(NAMED + 7), "; ").ends_with("; 99; and 7 more"));
    }
}
