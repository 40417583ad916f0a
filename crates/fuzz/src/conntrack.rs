//! Flows that the kernel tracks.

use cnikit_conntrack::testing;

/// The length of the headers of a message of netfilter's.
const HEADERS: usize = 20;
/// Where a message has its type, and the family that it is about.
const TYPE: std::ops::Range<usize> = 4..6;
const FAMILY: usize = 16;
/// Has a flow forgotten; without its tuple, all flows of the family.
const DELETE: u16 = 0x102;

/// A message as the kernel might send it. What is sent to have its flow forgotten names that very flow.
pub(crate) fn run(message: &[u8]) {
    let Some(flow) = testing::flow(message) else {
        assert!(testing::deletion(message).is_none(), "what cannot be read is not forgotten");
        return;
    };
    let (_, to, answers) = flow;
    assert_eq!(to.is_ipv4(), answers.is_ipv4());
    let deletion = testing::deletion(message).expect("what can be read can be forgotten");
    assert_eq!((&deletion[TYPE], deletion[FAMILY]), (&DELETE.to_ne_bytes()[..], message[FAMILY]));
    assert_eq!(u32::from_ne_bytes([deletion[0], deletion[1], deletion[2], deletion[3]]) as usize, deletion.len());
    // Of two attributes the first counts: those of the deletion, and behind them who answers, which it has not got.
    assert_eq!(testing::flow(&[&deletion, &message[HEADERS..]].concat()), Some(flow));
    assert!(testing::flow(&deletion).is_none(), "who answers is not needed to find it");
}
