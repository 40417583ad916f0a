//! Times and ages as text.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The last second of the year 9999, the latest time of RFC 3339.
const LAST: Duration = Duration::from_secs(253_402_300_799);

/// A time in UTC in the format of RFC 3339: `2026-11-21T21:28:10Z`. A file may have any time; one outside of the format's limits is
/// replaced by the nearest limit.
pub(crate) fn rfc3339(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time.clamp(UNIX_EPOCH, UNIX_EPOCH + LAST)).to_string()
}

/// A duration in its two largest units: `3d4h`, `5m10s`, `0s`.
pub(crate) fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = [(seconds / 86_400, 'd'), (seconds / 3600 % 24, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let mut text = String::new();
    for (count, unit) in &parts[first..=(first + 1).min(3)] {
        if *count > 0 || text.is_empty() {
            // Writing to a String cannot fail.
            let _ = write!(text, "{count}{unit}");
        }
    }
    text
}

/// The time since then; zero for a time in the future.
pub(crate) fn ago(time: SystemTime) -> Duration {
    SystemTime::now().duration_since(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_written_as_date_writes_it() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_704_067_199, "2023-12-31T23:59:59Z"),
            (1_795_296_490, "2026-11-21T21:28:10Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, text) in cases {
            assert_eq!(rfc3339(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        assert_eq!(rfc3339(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00Z");
        assert_eq!(rfc3339(UNIX_EPOCH + LAST * 2), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn an_age_has_two_units() {
        let cases =
            [(0, "0s"), (59, "59s"), (60, "1m"), (310, "5m10s"), (90_000, "1d1h"), (86_400, "1d"), (3_601, "1h")];
        for (seconds, text) in cases {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
