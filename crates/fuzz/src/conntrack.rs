//! Fuzz target: conntrack messages.

use cnikit_conntrack::testing;

/// The length of the netlink header and the nfnetlink header, in bytes.
const HEADERS: usize = 20;
/// Positions of the message type and of the address family in a message.
const TYPE: std::ops::Range<usize> = 4..6;
const FAMILY: usize = 16;
/// The type of a message that deletes a flow (`IPCTNL_MSG_CT_DELETE`). Without a tuple it would delete all flows of the family.
const DELETE: u16 = 0x102;

/// Parses a message as the kernel might send it, and checks that the deletion of that flow names exactly that flow.
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
    // The parser uses the first of two equal attributes. Here these are the attributes of the deletion, followed by the reply tuple
    // from the message, which a deletion lacks.
    assert_eq!(testing::flow(&[&deletion, &message[HEADERS..]].concat()), Some(flow));
    assert!(testing::flow(&deletion).is_none(), "who answers is not needed to find it");
}
