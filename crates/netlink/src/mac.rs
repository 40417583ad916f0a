//! Hardware addresses of Ethernet links.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A MAC address of 48 bits; as text `aa:bb:cc:dd:ee:ff`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

/// The error for a text that is not a MAC address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotAMac(String);

impl Mac {
    /// Whether it is a multicast or broadcast address. The kernel refuses such an address for a link.
    pub fn is_multicast(self) -> bool {
        self.0[0] & 1 == 1
    }

    /// Whether it is `00:00:00:00:00:00`, which the kernel refuses for all links except loopback.
    pub fn is_zero(self) -> bool {
        self.0 == [0; 6]
    }
}

impl FromStr for Mac {
    type Err = NotAMac;

    /// Parses six bytes of two hexadecimal digits each, separated by `:` or by `-`, or three groups of four digits, separated by
    /// `.`.
    fn from_str(text: &str) -> Result<Self, NotAMac> {
        let separator = ['-', '.'].into_iter().find(|separator| text.contains(*separator)).unwrap_or(':');
        let halves = |word| if separator == '.' { halves(word) } else { vec![word] };
        let bytes: Option<Vec<u8>> = text.split(separator).flat_map(halves).map(byte).collect();
        let bytes = bytes.and_then(|bytes| <[u8; 6]>::try_from(bytes).ok());
        bytes.map(Self).ok_or_else(|| NotAMac(text.to_owned()))
    }
}

/// Splits a group of four digits into its two bytes. For a group of another length [`byte`] fails on one of the parts.
fn halves(word: &str) -> Vec<&str> {
    match word.split_at_checked(2) {
        Some((first, second)) => vec![first, second],
        None => vec![word],
    }
}

/// Parses one byte of two digits; `from_str_radix` alone would accept a sign too.
fn byte(text: &str) -> Option<u8> {
    let digits = text.len() == 2 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    digits.then(|| u8::from_str_radix(text, 16).ok())?
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [first, others @ ..] = self.0;
        write!(f, "{first:02x}")?;
        others.iter().try_for_each(|byte| write!(f, ":{byte:02x}"))
    }
}

impl fmt::Display for NotAMac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" is not a MAC address; write six bytes, such as 0a:58:0a:01:00:02", self.0)
    }
}

impl std::error::Error for NotAMac {}

impl Serialize for Mac {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Mac {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: Mac = Mac([0x0a, 0x58, 0, 0xff, 1, 2]);

    #[test]
    fn all_separators_and_both_cases_are_read() {
        for text in ["0a:58:00:ff:01:02", "0A:58:00:FF:01:02", "0a-58-00-ff-01-02", "0a58.00FF.0102"] {
            assert_eq!(text.parse(), Ok(MAC), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_not_six_bytes_is_refused_with_the_text() {
        let long = "0a:58:00:ff:01:02:03:04";
        for text in [
            "",
            "zz",
            "0a:58:00:ff:01",
            long,
            "0a:58:00:ff:01:",
            "0a:58-00:ff:01:02",
            "+a:58:00:ff:01:02",
            "a:58:0:ff:1:2",
            "0a5800ff0102",
            "0a58.00ff.01",
            "0a58.00ff.010203",
            "0a.58.00.ff.01.02",
        ] {
            let error = text.parse::<Mac>().unwrap_err().to_string();
            assert!(error.starts_with(&format!("\"{text}\" is not a MAC address")), "{error}");
        }
    }

    #[test]
    fn a_mac_is_written_in_lower_case_with_colons() {
        assert_eq!(MAC.to_string(), "0a:58:00:ff:01:02");
        assert_eq!(serde_json::to_string(&MAC).unwrap(), "\"0a:58:00:ff:01:02\"");
        assert_eq!(serde_json::from_str::<Mac>("\"0A-58-00-FF-01-02\"").unwrap(), MAC);
        assert!(serde_json::from_str::<Mac>("\"zz\"").unwrap_err().to_string().contains("is not a MAC address"));
    }

    #[test]
    fn groups_and_zero_are_recognised() {
        assert!(Mac([1, 0, 0x5e, 0, 0, 1]).is_multicast() && Mac([0xff; 6]).is_multicast() && !MAC.is_multicast());
        assert!(Mac([0; 6]).is_zero() && !MAC.is_zero());
    }
}
