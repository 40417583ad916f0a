//! Fuzz target: results of every CNI version and the conversions between them.

use cnikit_types::{CniResult, Value, Version, document};

/// Longer results are converted from their own version only. That bounds the time.
const LONG: usize = 64 << 10;

/// The first byte selects the version of a document that has none; the rest is the document.
pub(crate) fn run(data: &[u8]) {
    let Some((choice, text)) = data.split_first() else { return };
    let fallback = Version::ALL[usize::from(*choice) % Version::ALL.len()];
    let Ok(value) = document::parse(text) else { return };
    assert_eq!(sent(&value), value, "a document that was read is written and read the same");
    match CniResult::read(&value, fallback) {
        Ok((own, answer)) if text.len() <= LONG => {
            Version::ALL.into_iter().for_each(|from| convert(own, &answer, from));
        }
        Ok((own, answer)) => convert(own, &answer, own),
        Err(error) => assert!(!error.message.is_empty(), "{error:?}"),
    }
}

fn sent(document: &Value) -> Value {
    document::parse(document.to_string().as_bytes()).expect("what we wrote is JSON")
}

fn read(document: &Value, version: Version) -> CniResult {
    let (own, answer) = CniResult::read(&sent(document), Version::NEWEST).expect("what we wrote is a result");
    assert_eq!(own, version, "and says its version");
    answer
}

/// Converts a result to version `from`, and from there to every version and back. The first conversion may drop fields that the
/// version does not have; no later conversion drops more.
fn convert(own: Version, answer: &CniResult, from: Version) {
    let written = answer.write(from);
    assert_eq!(read(&answer.write(own), own).write(from), written, "{own} to {from}");
    let first = read(&written, from);
    assert_eq!(first.write(from), written, "{from} to itself");
    for to in Version::ALL {
        let converted = first.write(to);
        let second = read(&converted, to);
        assert_eq!(second.write(to), converted, "{from} to {to}");
        if to >= from {
            assert_eq!(second.write(from), written, "{from} to {to} and back");
        }
    }
}
