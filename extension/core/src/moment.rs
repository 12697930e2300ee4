//! A moment as clients write it down: ISO 8601 with a time zone, to the microsecond.

use std::fmt;
use std::str::FromStr;

/// Microseconds since 2000-01-01 00:00 UTC, as PostgreSQL keeps a `timestamptz`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(pub i64);

/// A text that is no moment, with the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseMomentError {
    why: &'static str,
}

const FORM: &str = "expected YYYY-MM-DD HH:MM:SS[.ffffff] and a time zone such as +00 or Z";
const ZONE: &str = "the time zone is missing or is none: write +00, -03:30 or Z behind the time";
const RANGE: &str = "there is no such date or time";

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;
/// Days from 0000-03-01 to 2000-01-01 in the proleptic Gregorian calendar.
const DAYS_TO_2000: i64 = 730_425;

/// The form that PostgreSQL prints and its relatives: `2024-01-01 10:00:00.123456+02`, `T` between
/// date and time, `Z` or `UTC` for the zone, seconds and minutes of the offset. A time without a
/// zone is refused: whose clock it is would be a guess.
impl FromStr for Moment {
    type Err = ParseMomentError;

    fn from_str(text: &str) -> Result<Self, ParseMomentError> {
        let mut rest = text.trim();
        let form = ParseMomentError { why: FORM };
        let year = digits(&mut rest, 4..=6).ok_or(form)?;
        let month = after(&mut rest, "-", 1..=2).ok_or(form)?;
        let day = after(&mut rest, "-", 1..=2).ok_or(form)?;
        rest = match rest.strip_prefix(['T', 't']) {
            Some(time) => time,
            None => match rest.trim_start() {
                time if time.len() < rest.len() => time,
                _ => return Err(form),
            },
        };
        let hour = digits(&mut rest, 1..=2).ok_or(form)?;
        let minute = after(&mut rest, ":", 2..=2).ok_or(form)?;
        let second = optional(&mut rest, ":").ok_or(form)?;
        let fraction = match rest.strip_prefix('.') {
            Some(fraction) => {
                rest = fraction;
                microseconds(&mut rest).ok_or(form)?
            }
            None => 0,
        };
        let offset = offset(rest.trim_start()).ok_or(ParseMomentError { why: ZONE })?;
        let in_range = (1..=12).contains(&month)
            && (1..=days_of(year, month)).contains(&day)
            && (hour < 24 && minute < 60 && second <= 60)
            && (1..=294_000).contains(&year);
        if !in_range {
            return Err(ParseMomentError { why: RANGE });
        }
        let days = days_since_2000(year, month, day);
        let time = (hour * 3600 + minute * 60 + second) * SECOND + fraction;
        Ok(Moment(days * DAY + time - offset))
    }
}

/// In UTC, with as many digits as it takes: `2024-01-01 08:00:00.123456+00`.
impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (year, month, day) = date(self.0.div_euclid(DAY));
        let time = self.0.rem_euclid(DAY);
        let (seconds, fraction) = (time / SECOND, time % SECOND);
        let (hour, minute) = (seconds / 3600, seconds / 60 % 60);
        write!(f, "{year:04}-{month:02}-{day:02} ")?;
        write!(f, "{hour:02}:{minute:02}:{:02}", seconds % 60)?;
        if fraction > 0 {
            let digits = format!("{fraction:06}");
            write!(f, ".{}", digits.trim_end_matches('0'))?;
        }
        f.write_str("+00")
    }
}

impl fmt::Display for ParseMomentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.why)
    }
}

impl std::error::Error for ParseMomentError {}

fn digits(rest: &mut &str, count: std::ops::RangeInclusive<usize>) -> Option<i64> {
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (number, behind) = rest.split_at(end);
    *rest = behind;
    count.contains(&number.len()).then(|| number.parse().ok())?
}

fn after(rest: &mut &str, mark: &str, count: std::ops::RangeInclusive<usize>) -> Option<i64> {
    *rest = rest.strip_prefix(mark)?;
    digits(rest, count)
}

/// Two digits behind a mark; 0 without the mark, none if something else follows it.
fn optional(rest: &mut &str, mark: &str) -> Option<i64> {
    match rest.starts_with(mark) {
        true => after(rest, mark, 2..=2),
        false => Some(0),
    }
}

/// A fraction of a second, rounded to the microsecond as PostgreSQL does.
fn microseconds(rest: &mut &str) -> Option<i64> {
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (number, behind) = rest.split_at(end);
    *rest = behind;
    let all = format!("{number:0<7}");
    let exact: i64 = all.get(..6)?.parse().ok()?;
    let more = all.as_bytes()[6] >= b'5';
    (!number.is_empty()).then_some(exact + i64::from(more))
}

/// Microseconds east of UTC.
fn offset(text: &str) -> Option<i64> {
    if ["z", "utc", "gmt"].contains(&text.to_ascii_lowercase().as_str()) {
        return Some(0);
    }
    let (sign, mut rest) = match text.split_at_checked(1)? {
        ("+", rest) => (1, rest),
        ("-", rest) => (-1, rest),
        _ => return None,
    };
    let long = rest.len();
    let first = digits(&mut rest, 1..=4)?;
    let (hours, minutes) = match long - rest.len() {
        4 if rest.is_empty() => (first / 100, first % 100),
        1 | 2 => (first, optional(&mut rest, ":")?),
        _ => return None,
    };
    let seconds = optional(&mut rest, ":")?;
    let fits = hours < 16 && minutes < 60 && seconds < 60 && rest.is_empty();
    fits.then_some(sign * (hours * 3600 + minutes * 60 + seconds) * SECOND)
}

fn days_of(year: i64, month: i64) -> i64 {
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 => 28 + i64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Years are counted from March here, so that the leap day is the last one.
fn days_since_2000(year: i64, month: i64, day: i64) -> i64 {
    let years = if month > 2 { year } else { year - 1 };
    let months = (month + 9) % 12;
    let leap_days = years.div_euclid(4) - years.div_euclid(100) + years.div_euclid(400);
    years * 365 + leap_days + (months * 153 + 2) / 5 + day - 1 - DAYS_TO_2000
}

fn date(days_since_2000: i64) -> (i64, i64, i64) {
    let days = days_since_2000 + DAYS_TO_2000;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let years = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * years + years / 4 - years / 100);
    let months = (5 * of_year + 2) / 153;
    let day = of_year - (153 * months + 2) / 5 + 1;
    let month = if months < 10 { months + 3 } else { months - 9 };
    let year = years + era * 400 + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn moment(text: &str) -> Moment {
        text.parse().unwrap_or_else(|why| panic!("{text}: {why}"))
    }

    #[test]
    fn the_spelling_of_a_moment_does_not_matter() {
        let utc = moment("2024-01-01 08:00:00.123456Z");
        assert_eq!(utc, Moment(757_411_200_123_456));
        for text in [
            "2024-01-01 10:00:00.123456+02",
            "2024-01-01T10:00:00.123456+02:00",
            " 2024-1-1 4:30:00.123456-0330 ",
            "2024-01-01 08:00:00.1234559999 UTC",
            "2024-01-01 08:00:00.123456 +00:00:00",
        ] {
            assert_eq!(moment(text), utc, "{text}");
        }
        assert_eq!(utc.to_string(), "2024-01-01 08:00:00.123456+00");
        assert_eq!(moment("2000-01-01 00:00+00"), Moment(0));
        assert_eq!(
            moment("1999-12-31 23:59:59.5Z").to_string(),
            "1999-12-31 23:59:59.5+00"
        );
        assert_eq!(
            moment("2024-02-29 00:00:00Z").to_string(),
            "2024-02-29 00:00:00+00"
        );
    }

    #[test]
    fn what_is_no_moment_is_refused() {
        for text in [
            "",
            "now",
            "infinity",
            "2024-01-01",
            "2024-01-01 10:00:00",
            "2024-13-01 10:00:00Z",
            "2023-02-29 10:00:00Z",
            "2024-01-01 24:00:00Z",
            "2024-01-01 10:60:00Z",
            "2024-01-01 10:00:00.Z",
            "2024-01-01 10:00:00+",
            "2024-01-01 10:00:00+20",
            "2024-01-01 10:00:5Z",
            "2024-01-01 10:00:005Z",
            "2024-01-01 10:00:Z",
            "2024-01-01 10:00:00+02:3",
            "2024-01-01 10:00:00+02:",
            "2024-01-01 10:00:00+02:00:1",
            "2024-01-01 10:00:00+002",
            "2024-01-01 10:00:00+0200:30",
            "2024-01-01 10:00:00+02 x",
            "2024-01-01 10:00:00 Europe/Berlin",
            "24-01-01 10:00:00Z",
            "2024-01-0110:00:00Z",
            "+2024-01-01 10:00:00Z",
        ] {
            assert!(text.parse::<Moment>().is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn moments_survive_the_text_form(s in -50_000_000_000i64..20_000_000_000, us in 0..SECOND) {
            let us = s * SECOND + us;
            let text = Moment(us).to_string();
            prop_assert_eq!(text.parse(), Ok(Moment(us)), "{}", text);
        }

        #[test]
        fn no_text_panics(text in "[-0-9:. TZ+é]{0,30}|.{0,20}") {
            let _ = text.parse::<Moment>();
        }
    }
}
