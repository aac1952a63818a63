//! Sizes, rates and durations as files write them.

use std::time::Duration;

const SIZE_UNITS: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

const TIME_UNITS: [(&str, u64); 5] = [
    ("ms", 1),
    ("s", 1_000),
    ("m", 60_000),
    ("h", 3_600_000),
    ("d", 86_400_000),
];

/// Bytes of `"64 KiB"`, with at most one space before the unit. Powers of 1,024 only: `KB` means two things.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let (digits, factor) = SIZE_UNITS
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    let digits = digits.strip_suffix(' ').unwrap_or(digits);
    parse_digits(digits)?.checked_mul(*factor)
}

/// Bytes per second of `"16 KiB/s"`.
pub(crate) fn parse_rate(text: &str) -> Option<u64> {
    parse_size(text.strip_suffix("/s")?)
}

/// A duration with its unit, such as `"500ms"`, `"30s"`, `"5m"`; a bare number has none.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let (digits, factor) = TIME_UNITS
        .iter()
        .find_map(|(unit, factor)| Some((parse_digits(text.strip_suffix(unit)?)?, *factor)))?;
    digits.checked_mul(factor).map(Duration::from_millis)
}

/// The shortest text that [`parse_size`] reads back as `bytes`.
pub(crate) fn show_size(bytes: u64) -> String {
    let exact = |unit: &&(&str, u64)| bytes >= unit.1 && bytes.is_multiple_of(unit.1);
    let (unit, factor) = SIZE_UNITS.iter().find(exact).unwrap_or(&("B", 1));
    format!("{} {unit}", bytes / factor)
}

/// A text that [`parse_duration`] reads back as `duration`, which is whole milliseconds: hours where they are exact,
/// minutes from five on, else seconds or milliseconds.
pub(crate) fn show_duration(duration: Duration) -> String {
    let millis = duration.as_millis();
    let fits = |unit: u128, from: u128| millis >= from && millis.is_multiple_of(unit);
    if fits(3_600_000, 3_600_000) {
        format!("{}h", millis / 3_600_000)
    } else if fits(60_000, 300_000) {
        format!("{}m", millis / 60_000)
    } else if fits(1_000, 0) {
        format!("{}s", millis / 1_000)
    } else {
        format!("{millis}ms")
    }
}

/// Decimal digits and nothing else: no sign, no separator.
fn parse_digits(digits: &str) -> Option<u64> {
    let plain = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_sizes() {
        assert_eq!(parse_size("64 KiB"), Some(65_536));
        assert_eq!(parse_size("4MiB"), Some(4 << 20));
        assert_eq!(parse_size("1 B"), Some(1));
        for bad in [
            "",
            "64",
            "KiB",
            "64 KB",
            "64  KiB",
            "-1 KiB",
            "+1 KiB",
            "1.5 MiB",
            "64 kib",
            "99999999999 TiB",
        ] {
            assert_eq!(parse_size(bad), None, "{bad}");
        }
    }

    #[test]
    fn reads_durations() {
        assert_eq!(parse_duration("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(parse_duration("30s"), Some(Duration::from_secs(30)));
        assert_eq!(parse_duration("5m"), Some(Duration::from_secs(300)));
        assert_eq!(parse_duration("1h"), Some(Duration::from_secs(3600)));
        for bad in [
            "",
            "30",
            "s",
            "30 s",
            "1.5s",
            "-1s",
            "30S",
            "1h30m",
            "99999999999999999999s",
        ] {
            assert_eq!(parse_duration(bad), None, "{bad}");
        }
    }

    #[test]
    fn shows_what_it_reads() {
        for bytes in [1, 1000, 1024, 65_536, 64 << 20, 3 << 40] {
            assert_eq!(parse_size(&show_size(bytes)), Some(bytes));
        }
        assert_eq!(show_size(64 << 20), "64 MiB");
        for millis in [0, 1, 500, 30_000, 90_000, 300_000, 3_600_000] {
            let duration = Duration::from_millis(millis);
            assert_eq!(parse_duration(&show_duration(duration)), Some(duration));
        }
        assert_eq!(show_duration(Duration::from_secs(90)), "90s");
    }
}
