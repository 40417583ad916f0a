//! Fuzz target: the parser of `CNI_ARGS`.

use cnikit_types::Args;

pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Args::parse(&text) {
        Ok(args) => check_round_trip(&args),
        Err(refusal) => {
            let mut wrong = text.split(';').filter(|piece| piece.matches('=').count() != 1);
            assert!(wrong.any(|piece| refusal.ends_with(&format!("{piece:?}"))), "{refusal} of {text:?}");
        }
    }
}

/// Checks that the pairs are the same after they have been written and parsed again. `unknown` leaves out `IgnoreUnknown`, so that
/// pair is added.
fn check_round_trip(args: &Args) {
    let mut pairs = args.unknown(&[]);
    if let Some(value) = args.get("IgnoreUnknown") {
        pairs.push(format!("IgnoreUnknown={value}"));
    }
    let again = Args::parse(&pairs.join(";")).expect("pairs that were read are pairs");
    for pair in &pairs {
        let (key, value) = pair.split_once('=').expect("a pair has a sign of equality");
        assert_eq!((args.get(key), again.get(key)), (Some(value), Some(value)));
        assert!(key == "IgnoreUnknown" || !args.unknown(&[key]).contains(pair), "{pair} is known");
    }
    assert_eq!(again.unknown(&[]), args.unknown(&[]));
    if let Err(refusal) = args.ignore_unknown() {
        assert!(refusal.contains("IgnoreUnknown"), "{refusal}");
    }
}
