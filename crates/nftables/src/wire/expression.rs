//! The instructions that a rule is made of, as the kernel runs them and as they go over the wire.
//!
//! All that we write load into the first register and look at it, as those that nft(8) compiles do; further registers hold
//! what is looked up together, or where a packet goes.

use cnikit_netlink::attribute::{Attributes, attributes, number, text, value};

/// The first register for values, 16 bytes wide.
#[doc(alias = "NFT_REG_1")]
pub const REGISTER: u32 = 1;
/// The second one, which holds the port that a packet goes to.
#[doc(alias = "NFT_REG_2")]
const SECOND: u32 = 2;
/// The register whose value decides about the packet.
#[doc(alias = "NFT_REG_VERDICT")]
const VERDICT_REGISTER: u32 = 0;
/// The element of the list that a rule keeps its expressions in.
#[doc(alias = "NFTA_LIST_ELEM")]
const ELEMENT: u16 = 1;
/// Name and data of an expression.
#[doc(alias = "NFTA_EXPR_NAME")]
const NAME: u16 = 1;
/// The attribute of an expression that has its data.
#[doc(alias = "NFTA_EXPR_DATA")]
pub const DATA: u16 = 2;
/// Plain bytes, or a verdict, where an expression takes either.
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
/// `meta iifname`: the name of the interface by which the packet came, filled up with zeros.
#[doc(alias = "NFT_META_IIFNAME")]
pub(crate) const FROM: u32 = 6;
/// `meta oifname`: the same of the one by which it leaves.
#[doc(alias = "NFT_META_OIFNAME")]
pub(crate) const TO: u32 = 7;
/// `meta ibrname`: the bridge that the port is of by which it came.
#[doc(alias = "NFT_META_BRI_IIFNAME")]
pub(crate) const FROM_BRIDGE: u32 = 17;
/// `meta obrname`: the same of the one by which it leaves.
#[doc(alias = "NFT_META_BRI_OIFNAME")]
pub(crate) const TO_BRIDGE: u32 = 18;
/// `meta mark`, in the order of bytes of the host.
#[doc(alias = "NFT_META_MARK")]
pub(crate) const MARK: u32 = 3;
/// `meta l4proto`: the number of the transport protocol.
#[doc(alias = "NFT_META_L4PROTO")]
pub(crate) const PROTOCOL: u32 = 16;
/// `ct state`, bits in the order of bytes of the host.
#[doc(alias = "NFT_CT_STATE")]
pub(crate) const STATE: u32 = 0;
/// `ct status`, bits in the order of bytes of the host.
#[doc(alias = "NFT_CT_STATUS")]
pub(crate) const STATUS: u32 = 2;
/// `ct original proto-dst`, in the order of bytes of the network.
#[doc(alias = "NFT_CT_PROTO_DST")]
pub(crate) const ASKED_PORT: u32 = 12;
/// `fib daddr type`: whether the destination is an address of the host, and what else it could be.
#[doc(alias = "NFTA_FIB_F_DADDR")]
#[doc(alias = "NFT_FIB_RESULT_ADDRTYPE")]
pub(crate) const TYPE_OF_DESTINATION: Load = Load::Fib { flags: 2, result: 3 };

/// The direction of a connection's first packet.
#[doc(alias = "IP_CT_DIR_ORIGINAL")]
const ORIGINAL: u8 = 0;
/// The look-up goes on where the set has not got it.
#[doc(alias = "NFT_LOOKUP_F_INV")]
const INVERTED: u32 = 1;
/// It is the destination that is replaced.
#[doc(alias = "NFT_NAT_DNAT")]
const DESTINATION: u32 = 1;
/// The port is replaced too; the kernel says beside it that the address is.
#[doc(alias = "NF_NAT_RANGE_PROTO_SPECIFIED")]
const WITH_PORT: u32 = 2;
#[doc(alias = "NF_NAT_RANGE_MAP_IPS")]
const WITH_ADDRESS: u32 = 1;

pub(crate) const DROP: i32 = 0;
pub(crate) const ACCEPT: i32 = 1;
pub(crate) const JUMP: i32 = -3;
pub(crate) const GOTO: i32 = -4;
pub(crate) const RETURN: i32 = -5;

/// From where payload is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Header {
    /// The start of the frame.
    #[doc(alias = "NFT_PAYLOAD_LL_HEADER")]
    Link = 0,
    /// The start of the packet.
    #[doc(alias = "NFT_PAYLOAD_NETWORK_HEADER")]
    Network = 1,
    /// The start of what it carries.
    #[doc(alias = "NFT_PAYLOAD_TRANSPORT_HEADER")]
    Transport = 2,
}

/// What can be loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Load {
    /// What the kernel knows about the packet.
    Meta(u32),
    /// Bytes of a header.
    Payload {
        /// From where `offset` is counted.
        header: Header,
        /// Of the first byte.
        offset: u32,
        /// In bytes.
        length: u32,
    },
    /// What is known about the connection.
    Connection(u32),
    /// What its first packet said.
    Asked(u32),
    /// What the routes say.
    Fib {
        /// `NFTA_FIB_F_*`: what is looked up.
        flags: u32,
        /// `NFT_FIB_RESULT_*`: what is loaded of the route.
        result: u32,
    },
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Expression {
    /// Loads into a register.
    Load(Load, u32),
    /// Keeps only these bits.
    Mask(Vec<u8>),
    /// Goes on only if the register holds this.
    Equal(Vec<u8>),
    /// Goes on only if it does not.
    NotEqual(Vec<u8>),
    /// Goes on only if the register is in this set, or only if it is not.
    Lookup {
        /// The name of the set.
        set: String,
        /// False: goes on only if it is not in the set.
        inside: bool,
    },
    /// Has a register hold this.
    Value(u32, Vec<u8>),
    /// Has the source address replaced.
    Masquerade,
    /// Has the destination replaced by address and port in the first registers, of this family.
    Destination(u32),
    /// Decides; jumps name a chain.
    Verdict {
        /// `NF_*` or `NFT_*`.
        code: i32,
        /// The name of the chain, for jumps.
        chain: Option<String>,
    },
    /// One that we never write: name and whole element.
    Foreign {
        /// The kernel's name of the expression.
        name: String,
        /// Its attributes, encoded.
        element: Vec<u8>,
    },
}

/// The list of expressions, as a rule has it.
pub(crate) fn encode(expressions: &[Expression]) -> Attributes {
    expressions.iter().fold(Attributes::new(), |list, one| list.nested(ELEMENT, &element(one)))
}

fn element(expression: &Expression) -> Attributes {
    let (name, data) = match expression {
        Expression::Load(from, register) => load(*from, *register),
        Expression::Mask(mask) => ("bitwise", bitwise(mask)),
        Expression::Equal(bytes) => ("cmp", compare(0, bytes)),
        Expression::NotEqual(bytes) => ("cmp", compare(1, bytes)),
        Expression::Lookup { set, inside } => ("lookup", lookup(set, *inside)),
        Expression::Value(register, bytes) => {
            ("immediate", Attributes::new().number(1, *register).nested(2, &Attributes::new().bytes(VALUE, bytes)))
        }
        Expression::Masquerade => ("masq", Attributes::new()),
        Expression::Destination(family) => ("nat", destination(*family)),
        Expression::Verdict { code, chain } => ("immediate", immediate(*code, chain.as_deref())),
        Expression::Foreign { element, .. } => return Attributes::raw(element),
    };
    Attributes::new().text(NAME, name).nested(DATA, &data)
}

/// What is loaded and the register, in the order in which nft(8) sends them: of a payload `NFTA_PAYLOAD_DREG` and the three
/// that follow it, of all others the register comes last.
fn load(from: Load, register: u32) -> (&'static str, Attributes) {
    match from {
        Load::Meta(key) => ("meta", Attributes::new().number(2, key).number(1, register)),
        Load::Connection(key) => ("ct", Attributes::new().number(2, key).number(1, register)),
        Load::Asked(key) => ("ct", Attributes::new().number(2, key).number(1, register).bytes(3, &[ORIGINAL])),
        Load::Fib { flags, result } => {
            ("fib", Attributes::new().number(3, flags).number(2, result).number(1, register))
        }
        Load::Payload { header, offset, length } => {
            let place = Attributes::new().number(1, register).number(2, header as u32);
            ("payload", place.number(3, offset).number(4, length))
        }
    }
}

/// Register, name of the set, and whether it is not to be there: `NFTA_LOOKUP_SREG`, `_SET`, `_FLAGS`.
fn lookup(set: &str, inside: bool) -> Attributes {
    let asked = Attributes::new().number(2, REGISTER).text(1, set);
    if inside { asked } else { asked.number(5, INVERTED) }
}

/// Which of both addresses, its family, the registers of address and port, and that the port counts: `NFTA_NAT_TYPE`,
/// `_FAMILY`, `_REG_ADDR_MIN`, `_REG_PROTO_MIN`, `_FLAGS`.
fn destination(family: u32) -> Attributes {
    let address = Attributes::new().number(1, DESTINATION).number(2, family).number(3, REGISTER);
    address.number(5, SECOND).number(7, WITH_PORT)
}

/// Both registers, length, mask and what is then flipped, which is nothing: `NFTA_BITWISE_SREG` to `_XOR`.
fn bitwise(mask: &[u8]) -> Attributes {
    let length = u32::try_from(mask.len()).unwrap_or(u32::MAX);
    Attributes::new()
        .number(1, REGISTER)
        .number(2, REGISTER)
        .number(3, length)
        .nested(4, &Attributes::new().bytes(VALUE, mask))
        .nested(5, &Attributes::new().bytes(VALUE, &vec![0; mask.len()]))
}

/// Register, operation (0 equal, 1 not equal) and what to compare with: `NFTA_CMP_SREG`, `_OP`, `_DATA`.
fn compare(operation: u32, bytes: &[u8]) -> Attributes {
    Attributes::new().number(1, REGISTER).number(2, operation).nested(3, &Attributes::new().bytes(VALUE, bytes))
}

/// Register and verdict, which is a code and perhaps a chain: `NFTA_IMMEDIATE_DREG`, `_DATA`, `NFTA_VERDICT_CODE`, `_CHAIN`.
fn immediate(code: i32, chain: Option<&str>) -> Attributes {
    let verdict = Attributes::new().bytes(1, &code.to_be_bytes());
    let verdict = chain.into_iter().fold(verdict, |verdict, chain| verdict.text(2, chain));
    Attributes::new().number(1, VERDICT_REGISTER).nested(2, &Attributes::new().nested(VERDICT, &verdict))
}

/// The expressions in a rule's list, whoever wrote it.
pub fn decode(list: &[u8]) -> Vec<Expression> {
    attributes(list).map(|(_, element)| read(element).unwrap_or_else(|| foreign(element))).collect()
}

fn foreign(element: &[u8]) -> Expression {
    Expression::Foreign { name: text(element, NAME).unwrap_or("unnamed").to_owned(), element: element.to_vec() }
}

/// The expression, if it does no more and no less than one of ours.
fn read(element: &[u8]) -> Option<Expression> {
    let data = value(element, DATA)?;
    match text(element, NAME)? {
        // One that sets something has no register to load into.
        "meta" => Some(Expression::Load(Load::Meta(number(data, 2)?), number(data, 1)?)),
        "ct" => {
            let key = number(data, 2)?;
            let from = match value(data, 3) {
                None => Load::Connection(key),
                Some([ORIGINAL]) => Load::Asked(key),
                Some(_) => return None,
            };
            Some(Expression::Load(from, number(data, 1)?))
        }
        "fib" => {
            let from = Load::Fib { flags: number(data, 3)?, result: number(data, 2)? };
            Some(Expression::Load(from, number(data, 1)?))
        }
        "payload" => read_payload(data),
        "lookup" => read_lookup(data),
        "nat" => read_destination(data),
        "bitwise" => read_bitwise(data),
        "cmp" => read_compare(data),
        // With flags or ports it would be another one than ours.
        "masq" => data.is_empty().then_some(Expression::Masquerade),
        "immediate" => read_immediate(data),
        _ => None,
    }
}

fn read_payload(data: &[u8]) -> Option<Expression> {
    let base = number(data, 2)?;
    let known = [Header::Link, Header::Network, Header::Transport];
    let header = known.into_iter().find(|header| *header as u32 == base)?;
    let (offset, length) = (number(data, 3)?, number(data, 4)?);
    // One that writes has a register to read from, and no other.
    Some(Expression::Load(Load::Payload { header, offset, length }, number(data, 1)?))
}

fn read_lookup(data: &[u8]) -> Option<Expression> {
    let flags = number(data, 5).unwrap_or(0);
    // A look-up that loads what the set maps to is another one than ours.
    let plain = number(data, 2)? == REGISTER && value(data, 3).is_none() && flags <= INVERTED;
    plain.then_some(Expression::Lookup { set: text(data, 1)?.to_owned(), inside: flags != INVERTED })
}

fn read_destination(data: &[u8]) -> Option<Expression> {
    let flags = number(data, 7).unwrap_or(0);
    // The kernel says both ends of a range, where we say one.
    let one = |first, last, register| {
        number(data, first) == Some(register) && number(data, last).is_none_or(|last| last == register)
    };
    let plain = number(data, 1)? == DESTINATION && one(3, 4, REGISTER) && one(5, 6, SECOND);
    (plain && flags & !WITH_ADDRESS == WITH_PORT).then_some(Expression::Destination(number(data, 2)?))
}

fn read_bitwise(data: &[u8]) -> Option<Expression> {
    let registers = number(data, 1)? == REGISTER && number(data, 2)? == REGISTER;
    // Kernels before 5.6 do not say the operation: they know this one only.
    let operation = number(data, 6).unwrap_or(0) == 0;
    let flips = value(value(data, 5)?, VALUE)?.iter().any(|byte| *byte != 0);
    (registers && operation && !flips).then_some(Expression::Mask(value(value(data, 4)?, VALUE)?.to_vec()))
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
    let (register, held) = (number(data, 1)?, value(data, 2)?);
    if register != VERDICT_REGISTER {
        return Some(Expression::Value(register, value(held, VALUE)?.to_vec()));
    }
    let verdict = value(held, VERDICT)?;
    let code = number(verdict, 1)?.cast_signed();
    let chain = text(verdict, 2).map(str::to_owned);
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
            Expression::Load(Load::Connection(STATE), REGISTER),
            Expression::Load(Load::Asked(ASKED_PORT), REGISTER),
            Expression::Load(TYPE_OF_DESTINATION, REGISTER),
            Expression::Lookup { set: "s".to_owned(), inside: true },
            Expression::Lookup { set: "s".to_owned(), inside: false },
            Expression::Value(SECOND, vec![0x1f, 0x90]),
            Expression::Destination(2),
            Expression::Mask(vec![255, 192]),
            Expression::Equal(vec![1, 2, 3]),
            Expression::NotEqual(vec![4]),
            Expression::Masquerade,
            Expression::Verdict { code: GOTO, chain: Some("there".to_owned()) },
            Expression::Verdict { code: DROP, chain: None },
        ]
    }

    #[test]
    fn every_expression_is_read_as_it_was_written() {
        assert_eq!(decode(encode(&every()).as_bytes()), every());
    }

    #[test]
    fn what_differs_in_anything_is_foreign_and_written_as_it_was_read() {
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
        assert_eq!(read_bitwise(plain.as_bytes()), Some(Expression::Mask(vec![255])));
    }
}
