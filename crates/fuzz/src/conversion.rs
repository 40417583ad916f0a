//! Results of every version, and each way from one to another.

use cnikit_types::{CniResult, Value, Version, document};

/// Longer ones are converted from their own version only, which is much enough.
const LONG: usize = 64 << 10;

/// The first byte chooses the version that a document without one has; the rest is the document.
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

/// From one version to each other. What one shape cannot say is dropped once, and nothing more on any further way.
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
