//! The types of the values of a plugin's keys: their names, and whether a value has a type.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use cnikit_types::{Map, ReadError, Value, check_ifname, parse_cidr, read};

/// The type of the value of a key.
///
/// It is written as the documentation of a plugin writes it ([`FromStr`]):
///
/// | text | values |
/// |---|---|
/// | nothing | any |
/// | `boolean`, `object` | those of JSON |
/// | `object: strings` | an object whose values are strings |
/// | `integer`, `integer, at least 0`, `integer, 1 to 4094` | an integer in the range |
/// | `string` | any string |
/// | `string: address` | an IP address |
/// | `string: address/prefix` | an IP address with a prefix length |
/// | `string: address, address/prefix` | an IP address with or without a prefix length |
/// | `string: MAC` | the MAC address of an interface: six bytes, not zero, and not of a group |
/// | `string: interface name` | a name that Linux accepts for a network interface |
/// | ``string: `open`, `closed` `` | one of these words; with ` in any case` at the end, in upper or lower case |
/// | `list of integers`, `list of strings: address` | a list of values of that type |
///
/// A string may be empty, too, if the text ends in ` or empty`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ValueType {
    /// Any value.
    #[default]
    Any,
    /// `true` or `false`.
    Boolean,
    /// An integer.
    Integer {
        /// The least value.
        least: Option<i64>,
        /// The largest value.
        most: Option<i64>,
    },
    /// A string.
    String {
        /// What it contains.
        form: StringForm,
        /// The empty string is accepted, too.
        or_empty: bool,
    },
    /// An object.
    Object,
    /// An object whose values are strings.
    Strings,
    /// A list of values of this type.
    List(Box<ValueType>),
}

/// What a string contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StringForm {
    /// Any text.
    Text,
    /// An IP address.
    Address,
    /// An IP address with a prefix length.
    AddressPrefix,
    /// An IP address with or without a prefix length.
    AnyAddress,
    /// The MAC address of an interface: six bytes, not zero, and not of a group.
    Mac,
    /// The name of a network interface.
    InterfaceName,
    /// One of these words.
    Words {
        /// The words.
        words: Vec<String>,
        /// Their letters may be of either case.
        any_case: bool,
    },
}

impl ValueType {
    /// Checks a value.
    ///
    /// # Errors
    /// The value, or one inside of it, is not of this type.
    pub fn check(&self, value: &Value) -> Result<(), ReadError> {
        match self {
            ValueType::Any => Ok(()),
            ValueType::Boolean => match read::<bool>(value) {
                Ok(_) => Ok(()),
                Err(error) => {
                    let hint = "write true or false, without quotation marks".to_owned();
                    Err(ReadError { hint: Some(hint), ..error })
                }
            },
            ValueType::Integer { least, most } => in_range(value, *least, *most),
            ValueType::String { form, or_empty } => {
                let text = read::<String>(value)?;
                if text.is_empty() && *or_empty { Ok(()) } else { form.check(&text) }
            }
            ValueType::Object => read::<Map<String, Value>>(value).map(drop),
            ValueType::Strings => {
                for (name, value) in read::<Map<String, Value>>(value)? {
                    if !value.is_null() {
                        read::<String>(&value).map_err(|error| error.under(&name))?;
                    }
                }
                Ok(())
            }
            ValueType::List(of) => {
                for (index, element) in read::<Vec<Value>>(value)?.iter().enumerate() {
                    of.check(element).map_err(|error| error.at(index))?;
                }
                Ok(())
            }
        }
    }
}

fn in_range(value: &Value, least: Option<i64>, most: Option<i64>) -> Result<(), ReadError> {
    // A number that is larger than all of i64 is left to the plugin, except where the range says that it is too large.
    let number = match read::<i64>(value) {
        Ok(number) => number,
        Err(_) if most.is_none() && value.is_u64() => return Ok(()),
        Err(error) => return Err(error),
    };
    if least.is_some_and(|least| number < least) || most.is_some_and(|most| number > most) {
        let range = Range { least, most };
        return Err(ReadError::value(format!("expected an integer{range}, found {number}")));
    }
    Ok(())
}

/// The range of an integer, with the word before it.
struct Range {
    least: Option<i64>,
    most: Option<i64>,
}

impl fmt::Display for Range {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.least, self.most) {
            (Some(least), Some(most)) => write!(f, " from {least} to {most}"),
            (Some(least), None) => write!(f, " of at least {least}"),
            (None, Some(most)) => write!(f, " of at most {most}"),
            (None, None) => Ok(()),
        }
    }
}

impl StringForm {
    fn check(&self, text: &str) -> Result<(), ReadError> {
        let (is_valid, expected) = match self {
            StringForm::Text => return Ok(()),
            StringForm::Address => (text.parse::<IpAddr>().is_ok(), "an IP address"),
            StringForm::AddressPrefix => (parse_cidr(text).is_ok(), "an IP address with a prefix length"),
            StringForm::AnyAddress => (text.parse::<IpAddr>().is_ok() || parse_cidr(text).is_ok(), "an IP address"),
            StringForm::Mac => (is_interface_mac(text), "the MAC address of an interface"),
            StringForm::InterfaceName => (check_ifname(text).is_ok(), "the name of an interface"),
            StringForm::Words { words, any_case } => {
                let is_same = |word: &&String| **word == text || (*any_case && word.eq_ignore_ascii_case(text));
                if words.iter().any(|word| is_same(&word)) {
                    return Ok(());
                }
                let expected = format!("expected one of {}, found {text:?}", words.join(", "));
                return Err(ReadError::value(expected));
            }
        };
        if is_valid { Ok(()) } else { Err(ReadError::value(format!("expected {expected}, found {text:?}"))) }
    }
}

/// Whether a text is the MAC address of an interface: not zero, and not of a group. It is written as pairs of hexadecimal digits
/// between `:` or `-`, or as three groups of four between `.`.
fn is_interface_mac(text: &str) -> bool {
    let forms = [(':', 6, 2), ('-', 6, 2), ('.', 3, 4)];
    let Some((separator, count, digits)) = forms.into_iter().find(|(separator, ..)| text.contains(*separator)) else {
        return false;
    };
    let groups: Vec<&str> = text.split(separator).collect();
    let is_group = |group: &&str| group.len() == digits && group.bytes().all(|byte| byte.is_ascii_hexdigit());
    if groups.len() != count || !groups.iter().all(is_group) {
        return false;
    }
    let is_zero = groups.iter().all(|group| group.bytes().all(|digit| digit == b'0'));
    // The second digit has the bit of groups.
    let is_of_group = u8::from_str_radix(&groups[0][..2], 16).is_ok_and(|first| first & 1 == 1);
    !is_zero && !is_of_group
}

/// A text that is not the name of a type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnknownType(String);

impl fmt::Display for UnknownType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} is not the name of a type", self.0)
    }
}

impl std::error::Error for UnknownType {}

impl FromStr for ValueType {
    type Err = UnknownType;

    fn from_str(text: &str) -> Result<ValueType, UnknownType> {
        let unknown = || UnknownType(text.to_owned());
        if let Some(of) = text.strip_prefix("list of ") {
            // `list of lists of objects`, `list of strings: address`.
            let (word, rest) = of.split_at(of.find([' ', ':', ',']).unwrap_or(of.len()));
            let one = word.strip_suffix('s').ok_or_else(unknown)?;
            let of = format!("{one}{rest}").parse().map_err(|_| unknown())?;
            return Ok(ValueType::List(Box::new(of)));
        }
        if let Some(range) = text.strip_prefix("integer") {
            return integer(range).ok_or_else(unknown);
        }
        match text {
            "" => Ok(ValueType::Any),
            "boolean" => Ok(ValueType::Boolean),
            "object" => Ok(ValueType::Object),
            "object: strings" => Ok(ValueType::Strings),
            "string" => Ok(ValueType::String { form: StringForm::Text, or_empty: true }),
            _ => {
                let form = text.strip_prefix("string: ").ok_or_else(unknown)?;
                let or_empty = form.ends_with(" or empty");
                let form = string_form(form.trim_end_matches(" or empty")).ok_or_else(unknown)?;
                Ok(ValueType::String { form, or_empty })
            }
        }
    }
}

fn integer(range: &str) -> Option<ValueType> {
    if range.is_empty() {
        return Some(ValueType::Integer { least: None, most: None });
    }
    let range = range.strip_prefix(", ")?;
    if let Some(least) = range.strip_prefix("at least ") {
        return Some(ValueType::Integer { least: Some(least.parse().ok()?), most: None });
    }
    if let Some(most) = range.strip_prefix("at most ") {
        return Some(ValueType::Integer { least: None, most: Some(most.parse().ok()?) });
    }
    let (least, most) = range.split_once(" to ")?;
    Some(ValueType::Integer { least: Some(least.parse().ok()?), most: Some(most.parse().ok()?) })
}

fn string_form(form: &str) -> Option<StringForm> {
    match form {
        "address" => return Some(StringForm::Address),
        "address, address/prefix" => return Some(StringForm::AnyAddress),
        "address/prefix" => return Some(StringForm::AddressPrefix),
        "MAC" => return Some(StringForm::Mac),
        "interface name" => return Some(StringForm::InterfaceName),
        _ => {}
    }
    let any_case = form.ends_with(" in any case");
    let mut words = Vec::new();
    for word in form.trim_end_matches(" in any case").split(", ") {
        let word = word.strip_prefix('`')?.strip_suffix('`')?;
        words.push(word.to_owned());
    }
    Some(StringForm::Words { words, any_case })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refusal(name: &str, value: &Value) -> Option<String> {
        let value_type: ValueType = name.parse().unwrap_or_else(|error| panic!("{error}"));
        value_type.check(value).err().map(|error| error.to_string())
    }

    #[test]
    fn values_of_a_type_are_accepted() {
        let cases = [
            ("", json!([1])),
            ("boolean", json!(false)),
            ("integer", json!(-5)),
            ("integer", json!(u64::MAX)),
            ("integer, at least 0", json!(u64::MAX)),
            ("integer, at least 0", json!(0)),
            ("integer, 1 to 4094", json!(1)),
            ("integer, 1 to 4094", json!(4094)),
            ("integer, at most 65535", json!(-1)),
            ("string", json!("")),
            ("string: address", json!("fd00::1")),
            ("string: address/prefix", json!("10.1.2.3/24")),
            ("list of strings: address, address/prefix", json!(["10.0.0.1", "fd00::/8"])),
            ("string: address or empty", json!("")),
            ("string: MAC", json!("0a58.0a01.0002")),
            ("string: MAC", json!("0A-58-0a-01-00-02")),
            ("string: `open`, `shut`", json!("shut")),
            ("string: `tcp`, `udp` in any case", json!("UDP")),
            ("object: strings", json!({"a": "b", "c": null})),
            ("list of lists of objects", json!([[{}], []])),
            ("list of strings: address/prefix", json!(["10.0.0.0/8"])),
        ];
        for (name, value) in cases {
            assert_eq!(refusal(name, &value), None, "{name}: {value}");
        }
    }

    #[test]
    fn a_value_of_another_type_is_refused_with_its_path() {
        let cases = [
            ("boolean", json!("yes"), "expected true or false, found the text \"yes\""),
            ("integer, 1 to 4094", json!(4095), "expected an integer from 1 to 4094, found 4095"),
            ("integer, at least 0", json!(-1), "expected an integer of at least 0, found -1"),
            ("integer, at most 65535", json!(65_536), "expected an integer of at most 65535, found 65536"),
            ("string: address or empty", json!("none"), "expected an IP address, found \"none\""),
            ("string: address", json!("10.0.0.1/8"), "expected an IP address, found \"10.0.0.1/8\""),
            (
                "string: address/prefix",
                json!("10.0.0.1"),
                "expected an IP address with a prefix length, found \"10.0.0.1\"",
            ),
            ("string: MAC", json!("0a:58"), "expected the MAC address of an interface, found \"0a:58\""),
            (
                "string: MAC",
                json!("01:00:5e:00:00:01"),
                "expected the MAC address of an interface, found \"01:00:5e:00:00:01\"",
            ),
            (
                "string: MAC",
                json!("03:00:00:00:00:01"),
                "expected the MAC address of an interface, found \"03:00:00:00:00:01\"",
            ),
            (
                "string: MAC",
                json!("00:00:00:00:00:00"),
                "expected the MAC address of an interface, found \"00:00:00:00:00:00\"",
            ),
            (
                "string: MAC",
                json!("0a:58:0a:01:00:0g"),
                "expected the MAC address of an interface, found \"0a:58:0a:01:00:0g\"",
            ),
            ("string: interface name", json!("a/b"), "expected the name of an interface, found \"a/b\""),
            ("string: `open`, `shut`", json!("Open"), "expected one of open, shut, found \"Open\""),
            ("object: strings", json!({"a": 1}), "a: expected a text, found 1"),
            ("list of lists of objects", json!([[{}], [5]]), "[1][0]: expected an object, found 5"),
            ("list of strings: address", json!(["10.0.0.1", ""]), "[1]: expected an IP address, found \"\""),
        ];
        for (name, value, why) in cases {
            assert_eq!(refusal(name, &value).as_deref(), Some(why), "{name}: {value}");
        }
    }

    #[test]
    fn an_integer_that_is_too_large_is_left_to_the_plugin_only_without_a_largest_value() {
        assert!(refusal("integer, at most 65535", &json!(u64::MAX)).is_some());
        assert!(refusal("integer, 1 to 4094", &json!(u64::MAX)).is_some());
        assert!(refusal("integer", &json!("5")).is_some());
        assert!(refusal("integer", &json!(1.5)).is_some());
    }

    #[test]
    fn other_names_are_unknown() {
        for name in ["number", "integer 5", "integer, 1 to x", "list of string", "string: open", "list of nothings"] {
            let error = name.parse::<ValueType>().unwrap_err();
            assert_eq!(error.to_string(), format!("{name:?} is not the name of a type"));
        }
    }
}
