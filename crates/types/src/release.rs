//! Compare versions as numbers.

/// A `cniVersion` as three numbers, ordered by major, minor and micro.
///
/// It is more lenient than [`Version::exact`](crate::Version::exact), because it decides whether a configuration is new enough for
/// a verb even if that version was never published.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub struct Release {
    /// The first number.
    pub major: i64,
    /// The second number, 0 if it is missing.
    pub minor: i64,
    /// The third number, 0 if it is missing.
    pub micro: i64,
}

impl Release {
    /// Parses one to three integers separated by dots; the empty text is 0.1.0.
    ///
    /// # Errors
    /// The text has more than three parts, or a part is not an integer. The error names the part.
    pub fn parse(text: &str) -> Result<Release, String> {
        if text.is_empty() {
            return Ok(Release { major: 0, minor: 1, micro: 0 });
        }
        let parts: Vec<&str> = text.split('.').collect();
        if parts.len() > 3 {
            return Err(format!("invalid version {text:?}: too many parts"));
        }
        let number = |index: usize, name| match parts.get(index) {
            Some(part) => integer(name, part),
            None => Ok(0),
        };
        Ok(Release { major: number(0, "major")?, minor: number(1, "minor")?, micro: number(2, "micro")? })
    }
}

fn integer(name: &str, part: &str) -> Result<i64, String> {
    part.parse().map_err(|error| format!("failed to convert {name} version part {part:?}: {error}"))
}

impl From<crate::Version> for Release {
    fn from(version: crate::Version) -> Release {
        use crate::Version;
        let (major, minor, micro) = match version {
            Version::V0_1_0 => (0, 1, 0),
            Version::V0_2_0 => (0, 2, 0),
            Version::V0_3_0 => (0, 3, 0),
            Version::V0_3_1 => (0, 3, 1),
            Version::V0_4_0 => (0, 4, 0),
            Version::V1_0_0 => (1, 0, 0),
            Version::V1_1_0 => (1, 1, 0),
        };
        Release { major, minor, micro }
    }
}
