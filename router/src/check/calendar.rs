//! Times for people.

/// Seconds of a day.
pub(crate) const DAY: i64 = 86_400;

/// A Unix second in UTC, such as `2026-12-01T04:20:46Z`. RFC 3339.
pub(crate) fn utc(unix: i64) -> String {
    let (days, second) = (unix.div_euclid(DAY), unix.rem_euclid(DAY));
    // From days to a date, counting years from March so that the leap day is the last of a year, in cycles of 400 years.
    let days = days + 719_468;
    let (cycle, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = cycle * 400 + year + i64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z",
        second / 3_600,
        second / 60 % 60,
        second % 60
    )
}

/// A length of time in whole days, hours, minutes or seconds, whichever is the largest that fills one.
pub(crate) fn length(seconds: i64) -> String {
    let seconds = seconds.abs();
    let (count, unit) = match seconds {
        DAY.. => (seconds / DAY, "day"),
        3_600.. => (seconds / 3_600, "hour"),
        60.. => (seconds / 60, "minute"),
        _ => (seconds, "second"),
    };
    format!("{count} {unit}{}", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tells_dates_as_the_calendar_does() {
        for (unix, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_164_800, "2024-02-29T00:00:00Z"),
            (1_796_098_846, "2026-12-01T04:20:46Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(unix), text);
        }
    }

    #[test]
    fn tells_lengths_in_one_unit() {
        assert_eq!(length(2 * DAY + 5), "2 days");
        assert_eq!(length(-3_700), "1 hour");
        assert_eq!(length(59), "59 seconds");
    }
}
