//! Times and ages, as people and programs read them.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// The last second of the year 9999, which is the last that RFC 3339 can write.
const LAST: Duration = Duration::from_secs(253_402_300_799);

/// A time in UTC as RFC 3339 writes it: `2026-11-21T21:28:10Z`. A file may have any time; one that RFC 3339 cannot write is
/// shown as the nearest that it can.
pub(crate) fn moment(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time.clamp(UNIX_EPOCH, UNIX_EPOCH + LAST)).to_string()
}

/// How long, in its two largest units: `3d4h`, `5m10s`, `0s`.
pub(crate) fn age(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let parts = [(seconds / 86_400, 'd'), (seconds / 3600 % 24, 'h'), (seconds / 60 % 60, 'm'), (seconds % 60, 's')];
    let first = parts.iter().position(|(count, _)| *count > 0).unwrap_or(3);
    let shown = parts.iter().skip(first).take(2).filter(|(count, unit)| *count > 0 || (first == 3 && *unit == 's'));
    shown.fold(String::new(), |mut text, (count, unit)| {
        let _ = write!(text, "{count}{unit}"); // a String takes all
        text
    })
}

/// How long ago that was; nothing of a moment that is to come.
pub(crate) fn ago(time: SystemTime) -> Duration {
    SystemTime::now().duration_since(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_written_as_date_writes_it() {
        let cases = [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_704_067_199, "2023-12-31T23:59:59Z"),
            (1_795_296_490, "2026-11-21T21:28:10Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ];
        for (seconds, text) in cases {
            assert_eq!(moment(UNIX_EPOCH + Duration::from_secs(seconds)), text);
        }
        assert_eq!(moment(UNIX_EPOCH - Duration::from_secs(1)), "1970-01-01T00:00:00Z");
        assert_eq!(moment(UNIX_EPOCH + LAST * 2), "9999-12-31T23:59:59Z");
    }

    #[test]
    fn an_age_is_told_in_two_units() {
        let cases =
            [(0, "0s"), (59, "59s"), (60, "1m"), (310, "5m10s"), (90_000, "1d1h"), (86_400, "1d"), (3_601, "1h")];
        for (seconds, text) in cases {
            assert_eq!(age(Duration::from_secs(seconds)), text);
        }
    }
}
