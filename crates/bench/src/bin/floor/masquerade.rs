//! A masquerade rule of `nf_tables` for each container.

use std::io;
use std::net::Ipv4Addr;

use libc::{NLM_F_CREATE, NLM_F_DUMP};
use nix::sys::socket::SockProtocol;

use crate::netlink::{ACK, Message, Socket, attribute};
use crate::{PREFIX, Result};

const TABLE: &str = "cni_plugins_masquerade";
const CHAIN: &str = "floor";

/// `struct nfgenmsg`: family, version, resource. Tables of `inet` have rules of both families.
const INET: [u8; 4] = [1, 0, 0, 0];
/// `NFPROTO_IPV4`.
const IPV4: u8 = 2;

// Types of messages: the subsystem, and its numbers of linux/netfilter/nf_tables.h.
const NF_TABLES: u16 = 10;
const NEW_TABLE: u16 = 0;
const NEW_CHAIN: u16 = 3;
const NEW_RULE: u16 = 6;
const GET_RULE: u16 = 7;
const DELETE_RULE: u16 = 8;
const BATCH_BEGIN: u16 = 16;
const BATCH_END: u16 = 17;

// Attributes of the same file. The table is the first one of chains and rules.
const OF_TABLE: u16 = 1;
const CHAIN_NAME: u16 = 3;
const CHAIN_HOOK: u16 = 4;
const CHAIN_TYPE: u16 = 7;
const HOOK_NUMBER: u16 = 1;
const HOOK_PRIORITY: u16 = 2;
const RULE_CHAIN: u16 = 2;
const RULE_HANDLE: u16 = 3;
const RULE_EXPRESSIONS: u16 = 4;
const RULE_USERDATA: u16 = 7;
const LIST_ELEMENT: u16 = 1;
const EXPRESSION_NAME: u16 = 1;
const EXPRESSION_DATA: u16 = 2;
const DATA_VALUE: u16 = 1;

/// Where the addresses are in a header of IPv4, in bytes.
const SOURCE: u32 = 12;
const DESTINATION: u32 = 16;

/// `NFT_PAYLOAD_NETWORK_HEADER`, `NFT_REG_1` and `NFT_META_NFPROTO`.
const NETWORK_HEADER: u32 = 1;
const REGISTER: u32 = 1;
const FAMILY: u32 = 15;
/// `NFT_CMP_EQ` and `NFT_CMP_NEQ`.
const EQUAL: u32 = 0;
const NOT_EQUAL: u32 = 1;

/// The hook `postrouting`, and the priority of source NAT; nft(8).
const POSTROUTING: u32 = 4;
const SOURCE_NAT: u32 = 100;

/// Adds the rule, and before the first one the table and the chain.
pub(crate) fn add(address: Ipv4Addr, container: &str) -> Result<()> {
    match batch([rule(address, container)]) {
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => {
            let [table, chain] = parents();
            batch([table, chain, rule(address, container)])
        }
        done => done,
    }
}

fn parents() -> [Message; 2] {
    let table = message(NEW_TABLE, NLM_F_CREATE).text(OF_TABLE, TABLE);
    let chain = message(NEW_CHAIN, NLM_F_CREATE)
        .text(OF_TABLE, TABLE)
        .text(CHAIN_NAME, CHAIN)
        .nest(CHAIN_HOOK, |hook| number(number(hook, HOOK_NUMBER, POSTROUTING), HOOK_PRIORITY, SOURCE_NAT))
        .text(CHAIN_TYPE, "nat");
    [table, chain]
}

fn rule(address: Ipv4Addr, container: &str) -> Message {
    let subnet = (u32::from(address) >> (32 - PREFIX) << (32 - PREFIX)).to_be_bytes();
    of_chain(message(NEW_RULE, NLM_F_CREATE | libc::NLM_F_APPEND | ACK))
        .nest(RULE_EXPRESSIONS, |list| {
            let list = expression(list, "meta", |data| number(number(data, 1, REGISTER), 2, FAMILY));
            let list = compared(list, EQUAL, &[IPV4]);
            let list = compared(loaded(list, SOURCE, 4), EQUAL, &address.octets());
            // The prefix of the subnet is whole bytes.
            let bytes = usize::from(PREFIX / 8);
            let list = compared(loaded(list, DESTINATION, u32::from(PREFIX / 8)), NOT_EQUAL, &subnet[..bytes]);
            expression(list, "masq", |data| data)
        })
        .with(RULE_USERDATA, container.as_bytes())
}

/// The handle of the container's rule.
pub(crate) fn find(container: &str) -> Result<Option<Vec<u8>>> {
    let rules = socket()?.ask(&[of_chain(message(GET_RULE, NLM_F_DUMP))])?;
    let part = |rule: &[u8], wanted| attribute(rule, INET.len(), wanted).map(<[u8]>::to_vec);
    let own = rules.iter().find(|rule| part(rule, RULE_USERDATA).as_deref() == Some(container.as_bytes()));
    Ok(own.and_then(|rule| part(rule, RULE_HANDLE)))
}

pub(crate) fn delete(container: &str) -> Result<()> {
    let handle = find(container)?.ok_or_else(|| io::Error::other("the rule is missing"))?;
    batch([of_chain(message(DELETE_RULE, ACK)).with(RULE_HANDLE, &handle)])
}

fn socket() -> Result<Socket> {
    Socket::new(SockProtocol::NetlinkNetFilter)
}

fn message(kind: u16, flags: i32) -> Message {
    Message::new(NF_TABLES << 8 | kind, flags, &INET)
}

fn of_chain(message: Message) -> Message {
    message.text(OF_TABLE, TABLE).text(RULE_CHAIN, CHAIN)
}

/// Sends messages that take effect together.
fn batch(messages: impl IntoIterator<Item = Message>) -> Result<()> {
    let [high, low] = NF_TABLES.to_be_bytes();
    let end = |kind| Message::new(kind, 0, &[0, 0, high, low]);
    let mut all = vec![end(BATCH_BEGIN)];
    all.extend(messages);
    all.push(end(BATCH_END));
    socket()?.ask(&all).map(drop)
}

/// Adds a number, in network byte order as all of `nf_tables`.
fn number(message: Message, kind: u16, value: u32) -> Message {
    message.with(kind, &value.to_be_bytes())
}

fn expression(list: Message, name: &str, data: impl FnOnce(Message) -> Message) -> Message {
    list.nest(LIST_ELEMENT, |element| element.text(EXPRESSION_NAME, name).nest(EXPRESSION_DATA, data))
}

/// Loads bytes of the network header into register 1.
fn loaded(list: Message, offset: u32, length: u32) -> Message {
    expression(list, "payload", |data| {
        let data = number(number(data, 1, REGISTER), 2, NETWORK_HEADER);
        number(number(data, 3, offset), 4, length)
    })
}

/// Compares register 1 with a value.
fn compared(list: Message, operation: u32, value: &[u8]) -> Message {
    expression(list, "cmp", |data| {
        let data = number(number(data, 1, REGISTER), 2, operation);
        data.nest(3, |data| data.with(DATA_VALUE, value))
    })
}
