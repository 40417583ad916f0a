//! `CNI_ARGS`.

use cnikit_types::Args;

pub(crate) fn run(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match Args::parse(&text) {
        Ok(args) => read(&args),
        Err(refusal) => {
            let mut wrong = text.split(';').filter(|piece| piece.matches('=').count() != 1);
            assert!(wrong.any(|piece| refusal.ends_with(&format!("{piece:?}"))), "{refusal} of {text:?}");
        }
    }
}

/// What was read is written, with the one key that `unknown` leaves out, and read again the same.
fn read(args: &Args) {
    let switch = args.get("IgnoreUnknown").map(|value| format!("IgnoreUnknown={value}"));
    let pairs: Vec<String> = args.unknown(&[]).into_iter().chain(switch).collect();
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
