//! Durations as people write them: `2m`, `1h30m`, `500ms`.
//!
//! Read here rather than by a crate, because a setting must never be taken for something its author did not write: the
//! usual parsers read `5M` as five months and `1 2m` as twelve minutes, and can panic near their upper bound.

use std::time::Duration;

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The longest duration that is read: what fits a signed 64-bit count of microseconds, as Postgres keeps its intervals.
pub const MAX: Duration = Duration::from_micros(i64::MAX.unsigned_abs());

/// Why a text is not a duration. The text itself is left to the caller, who knows where it was read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Nothing but blanks.
    #[error("is empty; write a duration such as 2m, or 0")]
    Empty,
    /// Below zero.
    #[error("is negative; a duration is 0 or more")]
    Negative,
    /// A number other than 0 that no unit follows, such as `90`.
    #[error("has a number without a unit; write the unit, such as 90s or 2m")]
    NoUnit,
    /// A place where a number was due, such as the start of `abc` or `NaN`.
    #[error("is not a duration; write a number and a unit, such as 2m or 1h30m")]
    NoNumber,
    /// A unit that is none of ours.
    #[error("has the unknown unit `{0}`; the units are us, ms, s, m, h, d and w")]
    UnknownUnit(String),
    /// More than [`MAX`].
    #[error("is too long a time")]
    TooLong,
}

/// Reads numbers with units (`us`, `ms`, `s`, `m`, `h`, `d`, `w`), largest first by custom and not by rule; the sum counts.
///
/// A lone `0` needs no unit. Numbers may have a fraction (`1.5s`). Blanks are allowed round the whole and between the
/// parts, never inside a number. What is finer than a microsecond is cut off.
///
/// # Errors
///
/// When the text is empty, negative, lacks a unit, or is longer than [`MAX`].
pub fn parse(text: &str) -> Result<Duration, ParseError> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(ParseError::Empty);
    }
    if rest.starts_with('-') {
        return Err(ParseError::Negative);
    }
    if rest == "0" {
        return Ok(Duration::ZERO);
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        let (part, after) = part(rest)?;
        nanos = nanos.checked_add(part).ok_or(ParseError::TooLong)?;
        rest = after.trim_start();
    }
    let micros = u64::try_from(nanos / 1_000).map_err(|_| ParseError::TooLong)?;
    Some(Duration::from_micros(micros)).filter(|duration| *duration <= MAX).ok_or(ParseError::TooLong)
}

/// Nanoseconds of the first number with its unit, and the text after it.
fn part(text: &str) -> Result<(u128, &str), ParseError> {
    let (whole, rest) = digits(text);
    let (fraction, rest) = rest.strip_prefix('.').map_or(("", rest), digits);
    if whole.is_empty() || (fraction.is_empty() && text[whole.len()..].starts_with('.')) {
        return Err(ParseError::NoNumber);
    }
    let unit_end = rest.find(|c: char| c.is_ascii_digit() || c.is_whitespace()).unwrap_or(rest.len());
    let (unit, rest) = rest.split_at(unit_end);
    let unit = unit_nanos(unit)?;
    let whole: u128 = whole.parse().map_err(|_| ParseError::TooLong)?;
    let mut nanos = whole.checked_mul(unit).ok_or(ParseError::TooLong)?;
    // Each digit is worth a tenth of the place before it; a digit worth less than a nanosecond adds nothing.
    let mut worth = unit;
    for digit in fraction.bytes() {
        nanos = nanos.checked_add(u128::from(digit - b'0') * worth / 10).ok_or(ParseError::TooLong)?;
        worth /= 10;
    }
    Ok((nanos, rest))
}

fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()))
}

fn unit_nanos(unit: &str) -> Result<u128, ParseError> {
    Ok(match unit {
        "ns" => 1,
        "us" | "µs" | "μs" => 1_000,
        "ms" => 1_000_000,
        "s" => NANOS_PER_SECOND,
        "m" => 60 * NANOS_PER_SECOND,
        "h" => 3_600 * NANOS_PER_SECOND,
        "d" => 86_400 * NANOS_PER_SECOND,
        "w" => 7 * 86_400 * NANOS_PER_SECOND,
        "" => return Err(ParseError::NoUnit),
        other => return Err(ParseError::UnknownUnit(other.to_owned())),
    })
}

/// Writes a duration the way Go's `time.Duration` prints: `2m0s`, `168h0m0s`, `1.5s`, `500ms`, `0s`.
///
/// Exact to the nanosecond; [`parse`] reads it back (cut to microseconds).
#[must_use]
pub fn text(duration: Duration) -> String {
    let seconds = duration.as_secs();
    let nanos = duration.subsec_nanos();
    match (seconds, nanos) {
        (0, 0) => "0s".to_owned(),
        (0, 1..1_000) => format!("{nanos}ns"),
        (0, 1_000..1_000_000) => format!("{}µs", decimal(u64::from(nanos), 3)),
        (0, _) => format!("{}ms", decimal(u64::from(nanos), 6)),
        _ => {
            let last = decimal(seconds % 60 * 1_000_000_000 + u64::from(nanos), 9);
            match (seconds / 3_600, seconds / 60 % 60) {
                (0, 0) => format!("{last}s"),
                (0, minutes) => format!("{minutes}m{last}s"),
                (hours, minutes) => format!("{hours}h{minutes}m{last}s"),
            }
        }
    }
}

/// `value` divided by ten to the power of `places`, without closing zeros.
fn decimal(value: u64, places: u32) -> String {
    let one = 10_u64.pow(places);
    let fraction = format!("{:0width$}", value % one, width = places as usize);
    let fraction = fraction.trim_end_matches('0');
    let point = if fraction.is_empty() { "" } else { "." };
    format!("{}{point}{fraction}", value / one)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn reads_what_people_write() {
        for (written, millis) in [
            ("0", 0),
            ("0s", 0),
            ("2m", 120_000),
            (" 90s ", 90_000),
            ("1h30m", 5_400_000),
            ("1h 30m", 5_400_000),
            ("2m0s", 120_000),
            ("500ms", 500),
            ("7d", 604_800_000),
            ("1w", 604_800_000),
            ("1.5s", 1_500),
            ("0.1d", 8_640_000),
        ] {
            assert_eq!(parse(written), Ok(Duration::from_millis(millis)), "{written}");
        }
    }

    #[test]
    fn cuts_what_is_finer_than_a_microsecond() {
        assert_eq!(parse("1.0000019s"), Ok(Duration::from_micros(1_000_001)));
        assert_eq!(parse("1999ns"), Ok(Duration::from_micros(1)));
    }

    #[test]
    fn refuses_what_is_no_duration_and_says_why() {
        let unknown = |unit: &str| ParseError::UnknownUnit(unit.to_owned());
        for (written, error) in [
            ("", ParseError::Empty),
            ("  ", ParseError::Empty),
            ("-1s", ParseError::Negative),
            ("-0", ParseError::Negative),
            ("90", ParseError::NoUnit),
            ("1m30", ParseError::NoUnit),
            ("1 2m", ParseError::NoUnit),
            ("9223372036854775807", ParseError::NoUnit),
            ("NaN", ParseError::NoNumber),
            ("inf", ParseError::NoNumber),
            ("+1s", ParseError::NoNumber),
            (".5s", ParseError::NoNumber),
            ("1.s", ParseError::NoNumber),
            ("soon", ParseError::NoNumber),
            ("1e308", unknown("e")),
            ("5M", unknown("M")),
            ("1s-1s", unknown("s-")),
            ("9223372036854775807s", ParseError::TooLong),
            ("1000000000000h", ParseError::TooLong),
            ("18446744073709551615s1000000000ns", ParseError::TooLong),
            ("99999999999999999999999999999999999999999s", ParseError::TooLong),
        ] {
            assert_eq!(parse(written), Err(error), "{written}");
        }
    }

    #[test]
    fn writes_like_go() {
        for (millis, written) in [
            (0, "0s"),
            (500, "500ms"),
            (1_500, "1.5s"),
            (2_000, "2s"),
            (120_000, "2m0s"),
            (600_000, "10m0s"),
            (3_600_000, "1h0m0s"),
            (604_800_000, "168h0m0s"),
        ] {
            assert_eq!(text(Duration::from_millis(millis)), written);
        }
        assert_eq!(text(Duration::from_micros(1_500)), "1.5ms");
        assert_eq!(text(Duration::from_micros(15)), "15µs");
        assert_eq!(text(Duration::from_nanos(1_050)), "1.05µs");
        assert_eq!(text(Duration::from_nanos(7)), "7ns");
    }

    proptest! {
        #[test]
        fn what_is_written_is_read_back(micros in 0..30 * 86_400 * 1_000_000_u64) {
            let duration = Duration::from_micros(micros);
            prop_assert_eq!(parse(&text(duration)), Ok(duration));
        }

        #[test]
        fn small_ones_are_read_back_too(micros in 0..3_000_000_u64) {
            let duration = Duration::from_micros(micros);
            prop_assert_eq!(parse(&text(duration)), Ok(duration));
        }

        #[test]
        fn no_text_makes_it_panic(written in ".*") {
            let _ = parse(&written);
        }

        #[test]
        fn no_near_miss_makes_it_panic(written in "[-+ ]?([0-9]{1,40}[.]?[0-9]{0,40} ?(ns|us|µs|ms|s|m|h|d|w|e|M|)){0,4}") {
            if let Ok(duration) = parse(&written) {
                prop_assert!(duration <= MAX);
            }
        }
    }
}
