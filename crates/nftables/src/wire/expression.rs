//! The expressions of rules, encoded and decoded.
//!
//! As nft(8) does, our expressions load a value into the first register and compare it there. Further registers hold the other
//! parts of a concatenation, or the port of a `dnat`.

use cnikit_netlink::attribute::{Attributes, attributes, number, text, value};

/// The first register for values, 16 bytes wide.
#[doc(alias = "NFT_REG_1")]
pub const REGISTER: u32 = 1;
/// The second register, which holds the port of a `dnat`.
#[doc(alias = "NFT_REG_2")]
const SECOND: u32 = 2;
/// The register that holds the verdict.
#[doc(alias = "NFT_REG_VERDICT")]
const VERDICT_REGISTER: u32 = 0;
/// The type of an element in a list of expressions.
#[doc(alias = "NFTA_LIST_ELEM")]
const ELEMENT: u16 = 1;
/// The attribute with the name of an expression.
#[doc(alias = "NFTA_EXPR_NAME")]
const NAME: u16 = 1;
/// The attribute with the data of an expression.
#[doc(alias = "NFTA_EXPR_DATA")]
pub const DATA: u16 = 2;
/// The attributes for plain bytes and for a verdict, where an expression takes either.
#[doc(alias = "NFTA_DATA_VALUE")]
const VALUE: u16 = 1;
#[doc(alias = "NFTA_DATA_VERDICT")]
const VERDICT: u16 = 2;

/// `meta nfproto`: the family of the packet.
#[doc(alias = "NFT_META_NFPROTO")]
pub(crate) const FAMILY: u32 = 15;
/// `meta protocol`: the `EtherType` of the frame.
#[doc(alias = "NFT_META_PROTOCOL")]
pub(crate) const ETHER_TYPE: u32 = 1;
/// `meta iifname`: the name of the interface by which the packet enters, padded with zeros.
#[doc(alias = "NFT_META_IIFNAME")]
pub(crate) const FROM: u32 = 6;
/// `meta oifname`: the name of the interface by which the packet leaves.
#[doc(alias = "NFT_META_OIFNAME")]
pub(crate) const TO: u32 = 7;
/// `meta ibrname`: the bridge of the port by which the packet enters.
#[doc(alias = "NFT_META_BRI_IIFNAME")]
pub(crate) const INPUT_BRIDGE: u32 = 17;
/// `meta obrname`: the bridge of the port by which the packet leaves.
#[doc(alias = "NFT_META_BRI_OIFNAME")]
pub(crate) const OUTPUT_BRIDGE: u32 = 18;
/// `meta mark`, in host byte order.
#[doc(alias = "NFT_META_MARK")]
pub(crate) const MARK: u32 = 3;
/// `meta l4proto`: the number of the transport protocol.
#[doc(alias = "NFT_META_L4PROTO")]
pub(crate) const PROTOCOL: u32 = 16;
/// `ct state`, bits in host byte order.
#[doc(alias = "NFT_CT_STATE")]
pub(crate) const STATE: u32 = 0;
/// `ct status`, bits in host byte order.
#[doc(alias = "NFT_CT_STATUS")]
pub(crate) const STATUS: u32 = 2;
/// `ct original proto-dst`, in network byte order.
#[doc(alias = "NFT_CT_PROTO_DST")]
pub(crate) const ORIGINAL_DPORT: u32 = 12;
/// `fib daddr type`: the type of the destination address, such as local or broadcast.
#[doc(alias = "NFTA_FIB_F_DADDR")]
#[doc(alias = "NFT_FIB_RESULT_ADDRTYPE")]
pub(crate) const DESTINATION_TYPE: Load = Load::Fib { flags: 2, result: 3 };

/// The direction of a connection's first packet.
#[doc(alias = "IP_CT_DIR_ORIGINAL")]
const ORIGINAL: u8 = 0;
/// The flag of a lookup that continues if the set lacks the key.
#[doc(alias = "NFT_LOOKUP_F_INV")]
const INVERTED: u32 = 1;
/// The type of a translation of the destination.
#[doc(alias = "NFT_NAT_DNAT")]
const DESTINATION: u32 = 1;
/// The flag of a translation of the port. The kernel adds the one for the address.
#[doc(alias = "NF_NAT_RANGE_PROTO_SPECIFIED")]
const WITH_PORT: u32 = 2;
#[doc(alias = "NF_NAT_RANGE_MAP_IPS")]
const WITH_ADDRESS: u32 = 1;

pub(crate) const DROP: i32 = 0;
pub(crate) const ACCEPT: i32 = 1;
pub(crate) const JUMP: i32 = -3;
pub(crate) const GOTO: i32 = -4;
pub(crate) const RETURN: i32 = -5;

/// The header that the offset of a payload is counted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Header {
    /// The link layer header.
    #[doc(alias = "NFT_PAYLOAD_LL_HEADER")]
    Link = 0,
    /// The network header.
    #[doc(alias = "NFT_PAYLOAD_NETWORK_HEADER")]
    Network = 1,
    /// The transport header.
    #[doc(alias = "NFT_PAYLOAD_TRANSPORT_HEADER")]
    Transport = 2,
}

/// The source of a value that is loaded into a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    /// Metadata of the packet: `NFT_META_*`.
    Meta(u32),
    /// Bytes of the packet.
    Payload {
        /// The header that `offset` is counted from.
        header: Header,
        /// The offset of the first byte.
        offset: u32,
        /// The number of bytes.
        length: u32,
    },
    /// Data of the connection: `NFT_CT_*`.
    Ct(u32),
    /// Data of the connection in its original direction: `NFT_CT_*`.
    CtOriginal(u32),
    /// The result of a route lookup.
    Fib {
        /// `NFTA_FIB_F_*`: the key of the lookup.
        flags: u32,
        /// `NFT_FIB_RESULT_*`: the result that is loaded.
        result: u32,
    },
}

/// An expression of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expression {
    /// Loads a value into this register.
    Load(Load, u32),
    /// Clears the bits of the first register that the mask lacks.
    Bitwise(Vec<u8>),
    /// Continues only if the first register is equal to this value.
    Equal(Vec<u8>),
    /// Continues only if the first register is not equal to this value.
    NotEqual(Vec<u8>),
    /// Continues only if the set has the key in the registers, or only if it lacks it.
    Lookup {
        /// The name of the set.
        set: String,
        /// False: continues only if the set lacks the key.
        inside: bool,
    },
    /// Loads this value into a register.
    Immediate(u32, Vec<u8>),
    /// Replaces the source address by that of the outgoing interface.
    Masquerade,
    /// Replaces the destination by the address and the port in the first two registers. The family is `NFPROTO_*`.
    Dnat(u32),
    /// A verdict.
    Verdict {
        /// `NF_*` or `NFT_*`.
        code: i32,
        /// The target of a jump or a goto.
        chain: Option<String>,
    },
    /// An expression that this crate does not write.
    Foreign {
        /// The kernel's name of the expression.
        name: String,
        /// Its attributes, encoded.
        element: Vec<u8>,
    },
}

/// Encodes the expressions of a rule.
pub(crate) fn encode(expressions: &[Expression]) -> Attributes {
    expressions.iter().fold(Attributes::new(), |list, one| list.nested(ELEMENT, &element(one)))
}

fn element(expression: &Expression) -> Attributes {
    let (name, data) = match expression {
        Expression::Load(from, register) => load(*from, *register),
        Expression::Bitwise(mask) => ("bitwise", bitwise(mask)),
        Expression::Equal(bytes) => ("cmp", compare(0, bytes)),
        Expression::NotEqual(bytes) => ("cmp", compare(1, bytes)),
        Expression::Lookup { set, inside } => ("lookup", lookup(set, *inside)),
        Expression::Immediate(register, bytes) => {
            ("immediate", Attributes::new().number(1, *register).nested(2, &Attributes::new().bytes(VALUE, bytes)))
        }
        Expression::Masquerade => ("masq", Attributes::new()),
        Expression::Dnat(family) => ("nat", destination(*family)),
        Expression::Verdict { code, chain } => ("immediate", immediate(*code, chain.as_deref())),
        Expression::Foreign { element, .. } => return Attributes::raw(element),
    };
    Attributes::new().text(NAME, name).nested(DATA, &data)
}

/// The name and the attributes of an expression that loads a value, in the order of nft(8): in a payload expression the destination
/// register is the first attribute, in all others the last.
fn load(from: Load, register: u32) -> (&'static str, Attributes) {
    match from {
        Load::Meta(key) => ("meta", Attributes::new().number(2, key).number(1, register)),
        Load::Ct(key) => ("ct", Attributes::new().number(2, key).number(1, register)),
        Load::CtOriginal(key) => ("ct", Attributes::new().number(2, key).number(1, register).bytes(3, &[ORIGINAL])),
        Load::Fib { flags, result } => {
            ("fib", Attributes::new().number(3, flags).number(2, result).number(1, register))
        }
        Load::Payload { header, offset, length } => {
            let place = Attributes::new().number(1, register).number(2, header as u32);
            ("payload", place.number(3, offset).number(4, length))
        }
    }
}

/// `NFTA_LOOKUP_SREG`, `_SET`, and `_FLAGS` if the set must lack the key.
fn lookup(set: &str, inside: bool) -> Attributes {
    let asked = Attributes::new().number(2, REGISTER).text(1, set);
    if inside { asked } else { asked.number(5, INVERTED) }
}

/// `NFTA_NAT_TYPE`, `_FAMILY`, `_REG_ADDR_MIN`, `_REG_PROTO_MIN`, `_FLAGS`.
fn destination(family: u32) -> Attributes {
    let address = Attributes::new().number(1, DESTINATION).number(2, family).number(3, REGISTER);
    address.number(5, SECOND).number(7, WITH_PORT)
}

/// `NFTA_BITWISE_SREG`, `_DREG`, `_LEN`, `_MASK`, and `_XOR`, which is zero.
fn bitwise(mask: &[u8]) -> Attributes {
    let length = u32::try_from(mask.len()).unwrap_or(u32::MAX);
    Attributes::new()
        .number(1, REGISTER)
        .number(2, REGISTER)
        .number(3, length)
        .nested(4, &Attributes::new().bytes(VALUE, mask))
        .nested(5, &Attributes::new().bytes(VALUE, &vec![0; mask.len()]))
}

/// `NFTA_CMP_SREG`, `_OP` (0 equal, 1 not equal), `_DATA`.
fn compare(operation: u32, bytes: &[u8]) -> Attributes {
    Attributes::new().number(1, REGISTER).number(2, operation).nested(3, &Attributes::new().bytes(VALUE, bytes))
}

/// `NFTA_IMMEDIATE_DREG`, and `_DATA` with `NFTA_VERDICT_CODE` and perhaps `_CHAIN`.
fn immediate(code: i32, chain: Option<&str>) -> Attributes {
    let mut verdict = Attributes::new().bytes(1, &code.to_be_bytes());
    if let Some(chain) = chain {
        verdict = verdict.text(2, chain);
    }
    Attributes::new().number(1, VERDICT_REGISTER).nested(2, &Attributes::new().nested(VERDICT, &verdict))
}

/// Decodes the expressions of a rule, whichever program made it.
pub fn decode(list: &[u8]) -> Vec<Expression> {
    attributes(list).map(|(_, element)| read(element).unwrap_or_else(|| foreign(element))).collect()
}

/// An expression that this crate does not write.
fn foreign(element: &[u8]) -> Expression {
    Expression::Foreign { name: text(element, NAME).unwrap_or("unnamed").to_owned(), element: element.to_vec() }
}

/// Decodes an expression; `None` if it is not equivalent to one of ours.
fn read(element: &[u8]) -> Option<Expression> {
    let data = value(element, DATA)?;
    match text(element, NAME)? {
        // A meta expression that sets a value has a source register instead of a destination register.
        "meta" => Some(Expression::Load(Load::Meta(number(data, 2)?), number(data, 1)?)),
        "ct" => {
            let key = number(data, 2)?;
            let source = match value(data, 3) {
                None => Load::Ct(key),
                Some([ORIGINAL]) => Load::CtOriginal(key),
                Some(_) => return None,
            };
            Some(Expression::Load(source, number(data, 1)?))
        }
        "fib" => {
            let source = Load::Fib { flags: number(data, 3)?, result: number(data, 2)? };
            Some(Expression::Load(source, number(data, 1)?))
        }
        "payload" => read_payload(data),
        "lookup" => read_lookup(data),
        "nat" => read_destination(data),
        "bitwise" => read_bitwise(data),
        "cmp" => read_compare(data),
        // We write neither flags nor ports.
        "masq" => data.is_empty().then_some(Expression::Masquerade),
        "immediate" => read_immediate(data),
        _ => None,
    }
}

fn read_payload(data: &[u8]) -> Option<Expression> {
    let base = number(data, 2)?;
    let headers = [Header::Link, Header::Network, Header::Transport];
    let header = headers.into_iter().find(|header| *header as u32 == base)?;
    let source = Load::Payload { header, offset: number(data, 3)?, length: number(data, 4)? };
    // A payload expression that changes the packet has a source register instead of a destination register.
    Some(Expression::Load(source, number(data, 1)?))
}

fn read_lookup(data: &[u8]) -> Option<Expression> {
    let flags = number(data, 5).unwrap_or(0);
    // A lookup in a map has a destination register.
    let is_map = value(data, 3).is_some();
    if number(data, 2)? != REGISTER || is_map || flags > INVERTED {
        return None;
    }
    Some(Expression::Lookup { set: text(data, 1)?.to_owned(), inside: flags != INVERTED })
}

fn read_destination(data: &[u8]) -> Option<Expression> {
    let flags = number(data, 7).unwrap_or(0);
    let has_address = is_single_register(data, 3, 4, REGISTER);
    let has_port = is_single_register(data, 5, 6, SECOND) && flags & !WITH_ADDRESS == WITH_PORT;
    if number(data, 1)? != DESTINATION || !has_address || !has_port {
        return None;
    }
    Some(Expression::Dnat(number(data, 2)?))
}

/// Whether a range of addresses or ports begins and ends with this register. The kernel sends both ends, we send one.
fn is_single_register(data: &[u8], first: u16, last: u16, register: u32) -> bool {
    number(data, first) == Some(register) && number(data, last).is_none_or(|last| last == register)
}

fn read_bitwise(data: &[u8]) -> Option<Expression> {
    let is_in_place = number(data, 1)? == REGISTER && number(data, 2)? == REGISTER;
    // Kernels before 5.6 have no other operation and do not send it.
    let is_mask = number(data, 6).unwrap_or(0) == 0;
    let has_xor = value(value(data, 5)?, VALUE)?.iter().any(|byte| *byte != 0);
    if !is_in_place || !is_mask || has_xor {
        return None;
    }
    Some(Expression::Bitwise(value(value(data, 4)?, VALUE)?.to_vec()))
}

fn read_compare(data: &[u8]) -> Option<Expression> {
    let bytes = value(value(data, 3)?, VALUE)?.to_vec();
    match (number(data, 1)?, number(data, 2)?) {
        (REGISTER, 0) => Some(Expression::Equal(bytes)),
        (REGISTER, 1) => Some(Expression::NotEqual(bytes)),
        _ => None,
    }
}

fn read_immediate(data: &[u8]) -> Option<Expression> {
    let register = number(data, 1)?;
    let content = value(data, 2)?;
    if register != VERDICT_REGISTER {
        return Some(Expression::Immediate(register, value(content, VALUE)?.to_vec()));
    }
    let verdict = value(content, VERDICT)?;
    let code = number(verdict, 1)?.cast_signed();
    let chain = match value(verdict, 2) {
        // A name that is not UTF-8 cannot be written again.
        Some(_) => Some(text(verdict, 2)?.to_owned()),
        None => None,
    };
    Some(Expression::Verdict { code, chain })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every() -> Vec<Expression> {
        vec![
            Expression::Load(Load::Meta(FAMILY), REGISTER),
            Expression::Load(Load::Payload { header: Header::Network, offset: 24, length: 8 }, REGISTER),
            Expression::Load(Load::Payload { header: Header::Link, offset: 6, length: 6 }, REGISTER),
            Expression::Load(Load::Payload { header: Header::Transport, offset: 2, length: 2 }, 9),
            Expression::Load(Load::Ct(STATE), REGISTER),
            Expression::Load(Load::CtOriginal(ORIGINAL_DPORT), REGISTER),
            Expression::Load(DESTINATION_TYPE, REGISTER),
            Expression::Lookup { set: "s".to_owned(), inside: true },
            Expression::Lookup { set: "s".to_owned(), inside: false },
            Expression::Immediate(SECOND, vec![0x1f, 0x90]),
            Expression::Dnat(2),
            Expression::Bitwise(vec![255, 192]),
            Expression::Equal(vec![1, 2, 3]),
            Expression::NotEqual(vec![4]),
            Expression::Masquerade,
            Expression::Verdict { code: GOTO, chain: Some("there".to_owned()) },
            Expression::Verdict { code: DROP, chain: None },
        ]
    }

    #[test]
    fn a_jump_to_a_chain_whose_name_is_not_utf8_is_foreign() {
        let verdict = Attributes::new().bytes(1, &JUMP.to_be_bytes()).bytes(2, b"\xff\0");
        let data =
            Attributes::new().number(1, VERDICT_REGISTER).nested(2, &Attributes::new().nested(VERDICT, &verdict));
        let element = Attributes::new().text(NAME, "immediate").nested(DATA, &data);
        let list = Attributes::new().nested(ELEMENT, &element);
        let read = decode(list.as_bytes());
        assert_eq!(read, [Expression::Foreign { name: "immediate".to_owned(), element: element.as_bytes().to_vec() }]);
        assert_eq!(encode(&read), list);
    }

    #[test]
    fn every_expression_is_read_as_it_was_written() {
        assert_eq!(decode(encode(&every()).as_bytes()), every());
    }

    #[test]
    fn an_unknown_expression_is_written_as_it_was_read() {
        let data = |data: &Attributes, name| Attributes::new().text(NAME, name).nested(DATA, data);
        let others = [
            data(&Attributes::new().number(4, 2).number(2, FAMILY), "meta"),
            data(&Attributes::new().number(1, REGISTER).number(2, 3).number(3, 0).number(4, 1), "payload"),
            data(&Attributes::new().number(5, REGISTER).number(2, 2).number(3, 0).number(4, 1), "payload"),
            data(&lookup("s", true).number(3, REGISTER), "lookup"),
            data(&Attributes::new().number(2, 9).text(1, "s"), "lookup"),
            data(&Attributes::new().number(2, 0).number(1, REGISTER).bytes(3, &[1]), "ct"),
            data(
                &Attributes::new().number(1, 0).number(2, 2).number(3, REGISTER).number(5, SECOND).number(7, 2),
                "nat",
            ),
            data(&Attributes::new().number(1, 1).number(2, 2).number(3, REGISTER).number(7, 0), "nat"),
            data(&destination(2).number(6, 3), "nat"),
            data(&Attributes::new().number(1, 1).number(2, 2).number(3, 1).number(5, 2).number(7, 6), "nat"),
            data(&Attributes::new().number(1, 1), "masq"),
            data(&Attributes::new().number(2, 1), "counter"),
            Attributes::new().text(NAME, "nameless data"),
            Attributes::new(),
        ];
        for other in others {
            let list = Attributes::new().nested(ELEMENT, &other);
            let decoded = decode(list.as_bytes());
            assert!(matches!(decoded[..], [Expression::Foreign { .. }]), "{decoded:?}");
            assert_eq!(encode(&decoded), list);
        }
    }

    #[test]
    fn a_bitwise_that_flips_or_shifts_is_not_a_mask() {
        let flip = Attributes::new().bytes(VALUE, &[1]);
        let mask = Attributes::new().bytes(VALUE, &[255]);
        let registers = Attributes::new().number(1, 1).number(2, 1).number(3, 1).nested(4, &mask);
        let zero = Attributes::new().bytes(VALUE, &[0]);
        assert_eq!(read_bitwise(registers.clone().nested(5, &flip).as_bytes()), None);
        assert_eq!(read_bitwise(registers.clone().nested(5, &zero).number(6, 1).as_bytes()), None);
        let plain = registers.nested(5, &zero).number(6, 0);
        assert_eq!(read_bitwise(plain.as_bytes()), Some(Expression::Bitwise(vec![255])));
    }
}
