//! The options of a message as they are in it.
//!
//! dhcproto's parser is not used for what a server sends: it subtracts lengths without a check, and ignores those of some options.

use std::net::Ipv6Addr;

use dhcproto::v6::OptionCode;

/// The length of the code and the length of an option, in bytes.
const HEADER: usize = 4;

/// Options in the order of the message (RFC 8415, section 21.1). They end where one is truncated.
#[derive(Clone, Debug)]
pub(crate) struct RawOptions<'m>(&'m [u8]);

impl<'m> RawOptions<'m> {
    pub(crate) fn new(bytes: &'m [u8]) -> Self {
        Self(bytes)
    }

    /// The value of the first option with this code.
    pub(crate) fn value_of(&self, code: OptionCode) -> Option<&'m [u8]> {
        let mut options = self.clone();
        options.find(|(found, _)| *found == code).map(|(_, value)| value)
    }
}

impl<'m> Iterator for RawOptions<'m> {
    type Item = (OptionCode, &'m [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (header, rest) = self.0.split_at_checked(HEADER)?;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        let (value, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((OptionCode::from(u16::from_be_bytes([header[0], header[1]])), value))
    }
}

/// The number in the first four bytes; 0 if there are fewer.
pub(crate) fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |first| u32::from_be_bytes(*first))
}

/// The address in the first sixteen bytes; `::` if there are fewer.
pub(crate) fn address(bytes: &[u8]) -> Ipv6Addr {
    bytes.first_chunk().map_or(Ipv6Addr::UNSPECIFIED, |first: &[u8; 16]| Ipv6Addr::from(*first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_end_where_one_is_truncated() {
        let bytes = [0, 14, 0, 0, 0, 7, 0, 1, 9, 0, 13, 0, 5, 0, 2];
        let options: Vec<_> = RawOptions::new(&bytes).collect();
        assert_eq!(options, [(OptionCode::RapidCommit, &[][..]), (OptionCode::Preference, &[9])]);
        assert_eq!(RawOptions::new(&bytes).value_of(OptionCode::Preference), Some(&[9][..]));
        assert_eq!(RawOptions::new(&bytes).value_of(OptionCode::StatusCode), None);
        for length in 0..4 {
            assert_eq!(RawOptions::new(&bytes[..length]).count(), 0);
        }
    }
}
