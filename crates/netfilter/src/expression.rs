//! The instructions that a rule is made of, as the kernel runs them and as they go over the wire.
//!
//! All that we write load into one register and look at it, as those that nft(8) compiles do.

use crate::attribute::{Attributes, attributes, number, text, value};

/// The first register for values, 16 bytes wide.
#[doc(alias = "NFT_REG_1")]
const REGISTER: u32 = 1;
/// The register whose value decides about the packet.
#[doc(alias = "NFT_REG_VERDICT")]
const VERDICT_REGISTER: u32 = 0;
/// The element of the list that a rule keeps its expressions in.
#[doc(alias = "NFTA_LIST_ELEM")]
const ELEMENT: u16 = 1;
/// Name and data of an expression.
#[doc(alias = "NFTA_EXPR_NAME")]
const NAME: u16 = 1;
#[doc(alias = "NFTA_EXPR_DATA")]
const DATA: u16 = 2;
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

pub(crate) const DROP: i32 = 0;
pub(crate) const ACCEPT: i32 = 1;
pub(crate) const JUMP: i32 = -3;
pub(crate) const GOTO: i32 = -4;
pub(crate) const RETURN: i32 = -5;

/// From where payload is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    /// The start of the frame.
    #[doc(alias = "NFT_PAYLOAD_LL_HEADER")]
    Link = 0,
    /// The start of the packet.
    #[doc(alias = "NFT_PAYLOAD_NETWORK_HEADER")]
    Network = 1,
}

/// One instruction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Expression {
    /// Loads what the kernel knows about the packet.
    Meta(u32),
    /// Loads bytes of a header.
    Payload { header: Header, offset: u32, length: u32 },
    /// Keeps only these bits.
    Mask(Vec<u8>),
    /// Goes on only if the register holds this.
    Equal(Vec<u8>),
    /// Goes on only if it does not.
    NotEqual(Vec<u8>),
    /// Has the source address replaced.
    Masquerade,
    /// Decides; jumps name a chain.
    Verdict { code: i32, chain: Option<String> },
    /// One that we never write: name and whole element.
    Foreign { name: String, element: Vec<u8> },
}

/// The list of expressions, as a rule has it.
pub(crate) fn encode(expressions: &[Expression]) -> Attributes {
    expressions.iter().fold(Attributes::new(), |list, one| list.nested(ELEMENT, &element(one)))
}

fn element(expression: &Expression) -> Attributes {
    let (name, data) = match expression {
        Expression::Meta(key) => ("meta", Attributes::new().number(2, *key).number(1, REGISTER)),
        Expression::Payload { header, offset, length } => ("payload", payload(*header, *offset, *length)),
        Expression::Mask(mask) => ("bitwise", bitwise(mask)),
        Expression::Equal(bytes) => ("cmp", compare(0, bytes)),
        Expression::NotEqual(bytes) => ("cmp", compare(1, bytes)),
        Expression::Masquerade => ("masq", Attributes::new()),
        Expression::Verdict { code, chain } => ("immediate", immediate(*code, chain.as_deref())),
        Expression::Foreign { element, .. } => return Attributes::raw(element),
    };
    Attributes::new().text(NAME, name).nested(DATA, &data)
}

/// Register, base, offset and length: `NFTA_PAYLOAD_DREG` and the three that follow it.
fn payload(header: Header, offset: u32, length: u32) -> Attributes {
    Attributes::new().number(1, REGISTER).number(2, header as u32).number(3, offset).number(4, length)
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
pub(crate) fn decode(list: &[u8]) -> Vec<Expression> {
    attributes(list).map(|(_, element)| read(element).unwrap_or_else(|| foreign(element))).collect()
}

fn foreign(element: &[u8]) -> Expression {
    Expression::Foreign { name: text(element, NAME).unwrap_or("unnamed").to_owned(), element: element.to_vec() }
}

/// The expression, if it does no more and no less than one of ours.
fn read(element: &[u8]) -> Option<Expression> {
    let data = value(element, DATA)?;
    match text(element, NAME)? {
        "meta" => (number(data, 1)? == REGISTER).then_some(Expression::Meta(number(data, 2)?)),
        "payload" => read_payload(data),
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
    let header = [Header::Link, Header::Network].into_iter().find(|header| *header as u32 == base)?;
    let (offset, length) = (number(data, 3)?, number(data, 4)?);
    (number(data, 1)? == REGISTER).then_some(Expression::Payload { header, offset, length })
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
    let verdict = value(value(data, 2)?, VERDICT)?;
    let code = number(verdict, 1)?.cast_signed();
    let chain = text(verdict, 2).map(str::to_owned);
    (number(data, 1)? == VERDICT_REGISTER).then_some(Expression::Verdict { code, chain })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every() -> Vec<Expression> {
        vec![
            Expression::Meta(FAMILY),
            Expression::Payload { header: Header::Network, offset: 24, length: 8 },
            Expression::Payload { header: Header::Link, offset: 6, length: 6 },
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
            data(&Attributes::new().number(1, 2).number(2, FAMILY), "meta"),
            data(&Attributes::new().number(1, REGISTER).number(2, 2).number(3, 0).number(4, 1), "payload"),
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
