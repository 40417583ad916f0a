//! Times and ages, as people and programs read them.

use std::fmt::Write;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A moment as RFC 3339 writes it, in UTC: `2026-11-21T21:28:10Z`.
pub(crate) fn moment(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let (year, month, day) = date(seconds / 86_400);
    let (hour, minute, second) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day of so many days after the epoch. Counted in eras of 400 years that begin in March, so that the day
/// that some years have more is the last one.
fn date(days: u64) -> (u64, u64, u64) {
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year_of_era, if month < 10 { month + 3 } else { month - 9 });
    (year + u64::from(month <= 2), month, day)
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
