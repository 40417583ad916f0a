//! Encodes and decodes netlink attributes: length and type in host byte order, a value, padding to four bytes.
//!
//! The messages of rtnetlink have typed attributes in netlink-packet-route. These lists are for the protocols of netfilter.

/// The length of an attribute's header.
const HEADER: usize = 4;
/// The flag of a type that says that the value is a list of attributes.
#[doc(alias = "NLA_F_NESTED")]
pub(crate) const NESTED: u16 = 1 << 15;
/// The bits of a type that are not flags.
#[doc(alias = "NLA_TYPE_MASK")]
const TYPE: u16 = 0x3fff;

/// A list of attributes in the bytes of a netlink message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes(Vec<u8>);

/// The initial capacity of a list, in bytes. Most of the thirty lists of a rule fit into it.
const CAPACITY: usize = 64;

impl Attributes {
    /// An empty list.
    #[inline]
    pub fn new() -> Self {
        Self(Vec::with_capacity(CAPACITY))
    }

    /// A list from its encoded bytes, such as a received one.
    #[inline]
    pub fn raw(list: &[u8]) -> Self {
        Self(list.to_vec())
    }

    /// Appends an attribute with these bytes as its value.
    #[inline]
    #[must_use]
    pub fn bytes(self, kind: u16, value: &[u8]) -> Self {
        self.parts(kind, &[value])
    }

    /// Appends a string, with the NUL that the kernel expects.
    #[inline]
    #[must_use]
    pub fn text(self, kind: u16, value: &str) -> Self {
        self.parts(kind, &[value.as_bytes(), &[0]])
    }

    /// Appends an attribute whose value has several parts.
    #[inline]
    fn parts(mut self, kind: u16, parts: &[&[u8]]) -> Self {
        let length = HEADER + parts.iter().map(|part| part.len()).sum::<usize>();
        let end = self.0.len() + length.next_multiple_of(4);
        self.0.reserve(end - self.0.len());
        // No value here is longer than a rule's expressions, which the kernel limits to far less than 64 KiB.
        self.0.extend(u16::try_from(length).unwrap_or(u16::MAX).to_ne_bytes());
        self.0.extend(kind.to_ne_bytes());
        for part in parts {
            self.0.extend_from_slice(part);
        }
        self.0.resize(end, 0);
        self
    }

    /// Appends a number in network byte order, which `nf_tables` uses for all numbers.
    #[inline]
    #[must_use]
    pub fn number(self, kind: u16, value: u32) -> Self {
        self.bytes(kind, &value.to_be_bytes())
    }

    /// Appends a list of attributes as the value of one.
    #[inline]
    #[must_use]
    pub fn nested(self, kind: u16, inner: &Attributes) -> Self {
        self.bytes(kind | NESTED, &inner.0)
    }

    /// The bytes of the list.
    #[inline]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The bytes of the list.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

/// The attributes of a list: type without flags, and value. Ends at the first attribute that does not fit, as the kernel's parser
/// does.
///
/// Attributes are read one by one instead of as whole typed messages, so that attributes which a newer kernel adds or changes
/// elsewhere in a message do not make it unreadable. The iterator of netlink-packet-core takes a fifth more instructions for a
/// chain of 100 rules.
#[inline]
pub fn attributes(mut list: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (header, _) = list.split_first_chunk::<HEADER>()?;
        let length = usize::from(u16::from_ne_bytes([header[0], header[1]]));
        let kind = u16::from_ne_bytes([header[2], header[3]]) & TYPE;
        let value = list.get(HEADER..length)?;
        list = list.get(length.next_multiple_of(4)..).unwrap_or_default();
        Some((kind, value))
    })
}

/// The value of the first attribute of this type.
#[inline]
pub fn value(list: &[u8], kind: u16) -> Option<&[u8]> {
    let (_, value) = attributes(list).find(|(attribute, _)| *attribute == kind)?;
    Some(value)
}

/// The value of the first attribute of this type, as a number in network byte order.
#[inline]
pub fn number(list: &[u8], kind: u16) -> Option<u32> {
    Some(u32::from_be_bytes(value(list, kind)?.try_into().ok()?))
}

/// The value of the first attribute of this type, as a string without its NUL.
#[inline]
pub fn text(list: &[u8], kind: u16) -> Option<&str> {
    let value = value(list, kind)?;
    std::str::from_utf8(value.strip_suffix(&[0]).unwrap_or(value)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_attributes_are_read_again() {
        let inner = Attributes::new().number(2, 7);
        let list = Attributes::new().text(1, "ab").nested(3, &inner).bytes(4, &[]);
        assert_eq!(text(list.as_bytes(), 1), Some("ab"));
        assert_eq!(value(list.as_bytes(), 3).and_then(|inner| number(inner, 2)), Some(7));
        assert_eq!(value(list.as_bytes(), 4), Some(&[][..]));
        assert_eq!(value(list.as_bytes(), 5), None);
    }

    #[test]
    fn each_attribute_is_padded_to_four_bytes_that_its_length_does_not_count() {
        let list = Attributes::new().text(1, "abcd");
        assert_eq!(list.as_bytes(), [&9_u16.to_ne_bytes()[..], &1_u16.to_ne_bytes(), b"abcd\0\0\0\0"].concat());
    }

    #[test]
    fn a_list_of_attributes_ends_at_an_invalid_length() {
        let whole = Attributes::new().number(1, 1).number(2, 2);
        for end in 0..whole.as_bytes().len() {
            let fit = attributes(&whole.as_bytes()[..end]).count();
            assert_eq!(fit, end / 8);
        }
        assert_eq!(attributes(&[3, 0, 1, 0, 0, 0, 0, 0]).count(), 0);
        assert_eq!(attributes(&[0; 64]).count(), 0);
    }
}
