//! The published versions of the protocol.

use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

/// A published version of the CNI specification, oldest first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Version {
    /// 0.1.0: ADD and DEL. Also the version of a document without `cniVersion`.
    V0_1_0,
    /// 0.2.0: the VERSION verb; the result of 0.1.0.
    V0_2_0,
    /// 0.3.0: lists of plugins, and the result with lists of interfaces, addresses and routes.
    V0_3_0,
    /// 0.3.1: 0.3.0 with an error in its text corrected.
    V0_3_1,
    /// 0.4.0: the CHECK verb.
    V0_4_0,
    /// 1.0.0: addresses have no `version`, and `dns` may be absent.
    V1_0_0,
    /// 1.1.0: GC and STATUS, more members of interfaces and routes.
    V1_1_0,
}

impl Version {
    /// Every version, oldest first.
    pub const ALL: [Version; 7] = [
        Version::V0_1_0,
        Version::V0_2_0,
        Version::V0_3_0,
        Version::V0_3_1,
        Version::V0_4_0,
        Version::V1_0_0,
        Version::V1_1_0,
    ];

    /// The newest version, whose shape results have in memory.
    pub const NEWEST: Version = Version::V1_1_0;

    /// The text of the version in `cniVersion`.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::V0_1_0 => "0.1.0",
            Version::V0_2_0 => "0.2.0",
            Version::V0_3_0 => "0.3.0",
            Version::V0_3_1 => "0.3.1",
            Version::V0_4_0 => "0.4.0",
            Version::V1_0_0 => "1.0.0",
            Version::V1_1_0 => "1.1.0",
        }
    }

    /// The version with exactly this text; the empty text is 0.1.0.
    ///
    /// Support depends on the text, not on the numbers: `1.1` is not supported, although it compares equal to 1.1.0 as a
    /// [`Release`](crate::Release).
    pub fn exact(text: &str) -> Option<Version> {
        if text.is_empty() {
            return Some(Version::V0_1_0);
        }
        Version::ALL.into_iter().find(|version| version.as_str() == text)
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for Version {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Version, D::Error> {
        let text = String::deserialize(deserializer)?;
        Version::exact(&text).ok_or_else(|| D::Error::custom(format!("unsupported CNI version {text:?}")))
    }
}
