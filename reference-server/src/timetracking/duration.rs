//! Durations as people write them in comments.
//!
//! Money hangs on them, so nothing is guessed: what could mean two things is an error that says what to write.

mod error;
#[cfg(test)]
mod tests;

use std::fmt;

pub use self::error::DurationError;

/// A span of one entry: whole minutes, from one minute to 24 hours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Minutes(u16);

impl Minutes {
    /// The most that one entry holds.
    pub const MAX: u16 = 24 * 60;

    /// So many minutes, if an entry can hold them.
    #[must_use]
    pub fn new(minutes: u64) -> Option<Self> {
        let minutes = u16::try_from(minutes).ok()?;
        (1..=Self::MAX).contains(&minutes).then_some(Self(minutes))
    }

    /// The number of minutes.
    #[must_use]
    pub fn get(self) -> u16 {
        self.0
    }
}

/// The canonical form, as in `45m`, `2h`, `1h30m`: it parses to the same minutes.
impl fmt::Display for Minutes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_canonical(f, u64::from(self.0))
    }
}

/// A sum of entries, printed like one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Total(pub u64);

impl fmt::Display for Total {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_canonical(f, self.0)
    }
}

fn write_canonical(f: &mut fmt::Formatter<'_>, minutes: u64) -> fmt::Result {
    let text = match (minutes / 60, minutes % 60) {
        (0, minutes) => format!("{minutes}m"),
        (hours, 0) => format!("{hours}h"),
        (hours, minutes) => format!("{hours}h{minutes}m"),
    };
    f.pad(&text)
}

/// Reads a duration at the beginning of `text`, and returns it with the rest: the description, trimmed.
///
/// # Errors
///
/// [`DurationError`] if there is no duration, if it could be read in two ways, or if what follows looks like more of
/// it.
///
/// # Examples
///
/// ```
/// use hookclaim_server::timetracking::duration::parse;
///
/// let (minutes, rest) = parse("1h 30m pairing")?;
/// assert_eq!((minutes.get(), rest), (90, "pairing"));
/// assert!(parse("45").is_err());
/// # Ok::<(), hookclaim_server::timetracking::duration::DurationError>(())
/// ```
pub fn parse(text: &str) -> Result<(Minutes, &str), DurationError> {
    let text = text.trim();
    let first = text.chars().next().ok_or(DurationError::Missing)?;
    if is_sign(first) {
        return Err(DurationError::Signed(first_word(text)));
    }
    if !first.is_ascii_digit() {
        return Err(DurationError::NotADuration(first_word(text)));
    }
    let (minutes, rest) = quantity(text)?;
    let written = || text[..text.len() - rest.len()].trim_end().to_owned();
    if rest
        .chars()
        .next()
        .is_some_and(|next| !next.is_whitespace())
    {
        return Err(DurationError::Stuck(first_word(rest)));
    }
    let rest = rest.trim_start();
    reject_ambiguous(rest)?;
    match minutes {
        Some(0) => Err(DurationError::Zero(written())),
        Some(minutes) => Minutes::new(minutes)
            .map(|minutes| (minutes, rest))
            .ok_or_else(|| DurationError::TooLong(written())),
        None => Err(DurationError::TooLong(written())),
    }
}

/// The minutes of the duration (`None` if they overflow) and what follows it.
fn quantity(text: &str) -> Result<(Option<u64>, &str), DurationError> {
    let (digits, rest) = split_digits(text);
    if let Some(rest) = rest.strip_prefix(':') {
        return clock(text, digits, rest);
    }
    if let Some((fraction, rest)) = split_fraction(rest) {
        return decimal(text, digits, fraction, rest);
    }
    let Some((unit, rest)) = split_unit(rest) else {
        return Err(no_unit(text, digits, rest));
    };
    match unit {
        Unit::Minutes if continues(rest) => Err(DurationError::Order(first_word(text))),
        Unit::Minutes => Ok((value(digits), rest)),
        Unit::Hours => {
            let hours = value(digits).and_then(|hours| hours.checked_mul(60));
            let (minutes, rest) = minutes_after_hours(text, rest)?;
            let sum = hours
                .zip(minutes)
                .and_then(|(hours, minutes)| hours.checked_add(minutes));
            Ok((sum, rest))
        }
    }
}

/// `1:30`
fn clock<'a>(
    text: &str,
    hours: &str,
    rest: &'a str,
) -> Result<(Option<u64>, &'a str), DurationError> {
    let (minutes, rest) = split_digits(rest);
    if minutes.len() != 2 || continues(rest) || rest.starts_with(char::is_alphabetic) {
        return Err(DurationError::NotADuration(first_word(text)));
    }
    let minutes = value(minutes).filter(|minutes| *minutes < 60);
    let minutes = minutes.ok_or_else(|| DurationError::TooManyMinutes(first_word(text)))?;
    let sum = value(hours)
        .and_then(|hours| hours.checked_mul(60))
        .and_then(|hours| hours.checked_add(minutes));
    Ok((sum, rest))
}

/// `1.5h`, `1,5h`
fn decimal<'a>(
    text: &str,
    digits: &str,
    fraction: &str,
    rest: &'a str,
) -> Result<(Option<u64>, &'a str), DurationError> {
    let Some((unit, rest)) = split_unit(rest) else {
        return Err(no_unit(text, &text[..text.len() - rest.len()], rest));
    };
    // A minute is a sixtieth: no more than two decimals can make whole minutes, and three could be thousands.
    let hundredths = match fraction.len() {
        1 => value(fraction).map(|tenths| tenths * 10),
        2 => value(fraction),
        _ => None,
    };
    let sixtieths = hundredths.map(|hundredths| hundredths * 60);
    let (Unit::Hours, Some(sixtieths), false) = (unit, sixtieths, continues(rest)) else {
        return Err(DurationError::NotWhole(first_word(text)));
    };
    if sixtieths % 100 != 0 {
        return Err(DurationError::NotWhole(first_word(text)));
    }
    let sum = value(digits)
        .and_then(|hours| hours.checked_mul(60))
        .and_then(|hours| hours.checked_add(sixtieths / 100));
    Ok((sum, rest))
}

/// What may follow hours: `30m`, ` 30m`, or `30` with nothing in between.
fn minutes_after_hours<'a>(
    text: &str,
    rest: &'a str,
) -> Result<(Option<u64>, &'a str), DurationError> {
    let none = Ok((Some(0), rest));
    let glued = !rest.starts_with(char::is_whitespace);
    let (digits, after) = split_digits(rest.trim_start());
    if digits.is_empty() {
        return none;
    }
    let (minutes, after) = match split_unit(after) {
        Some((Unit::Minutes, after)) => (digits, after),
        Some((Unit::Hours, _)) => return Err(DurationError::Order(first_two_words(text, glued))),
        None if glued && (after.is_empty() || after.starts_with(char::is_whitespace)) => {
            (digits, after)
        }
        None if glued => return Err(DurationError::UnknownUnit(first_word(text))),
        None => return none,
    };
    if after.starts_with(|next: char| next.is_ascii_digit()) {
        return Err(DurationError::UnknownUnit(first_word(text)));
    }
    match value(minutes) {
        Some(minutes @ 0..60) => Ok((Some(minutes), after)),
        _ => Err(DurationError::TooManyMinutes(first_two_words(text, glued))),
    }
}

/// An error for a first word of the description that may be more of the duration, or a date.
fn reject_ambiguous(rest: &str) -> Result<(), DurationError> {
    let word = first_word(rest);
    let bare = word.trim_end_matches([':', '.', ',', ';']);
    if is_date(bare) {
        return Err(DurationError::LooksLikeDate(word));
    }
    let unsigned = bare.trim_start_matches(is_sign);
    if !unsigned.is_empty() && is_duration_like(unsigned) {
        return Err(DurationError::LooksLikeDuration(word));
    }
    Ok(())
}

fn is_date(word: &str) -> bool {
    if word.eq_ignore_ascii_case("today") || word.eq_ignore_ascii_case("yesterday") {
        return true;
    }
    let parts: Vec<_> = word.split(['-', '/', '.']).collect();
    parts.len() == 3
        && parts
            .iter()
            .all(|part| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Digits with separators, then nothing or a unit, once or more.
fn is_duration_like(word: &str) -> bool {
    let mut rest = word;
    while !rest.is_empty() {
        let (digits, after) = split_digits(rest);
        if digits.is_empty() {
            return false;
        }
        let after = after.strip_prefix([':', '.', ',']).unwrap_or(after);
        let letters = after.len() - after.trim_start_matches(char::is_alphabetic).len();
        let (word, after) = after.split_at(letters);
        let other = [
            "s", "sec", "secs", "second", "seconds", "d", "day", "days", "w",
        ];
        let known = word.is_empty()
            || unit(word).is_some()
            || other.iter().any(|name| word.eq_ignore_ascii_case(name));
        if !known {
            return false;
        }
        rest = after;
    }
    true
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    Hours,
    Minutes,
}

fn unit(word: &str) -> Option<Unit> {
    let is = |names: &[&str]| names.iter().any(|name| word.eq_ignore_ascii_case(name));
    if is(&["h", "hr", "hrs", "hour", "hours"]) {
        Some(Unit::Hours)
    } else if is(&["m", "min", "mins", "minute", "minutes"]) {
        Some(Unit::Minutes)
    } else {
        None
    }
}

/// A unit at the beginning of `rest`, after white space if there is any.
fn split_unit(rest: &str) -> Option<(Unit, &str)> {
    let rest = rest.trim_start();
    let letters = rest.len() - rest.trim_start_matches(char::is_alphabetic).len();
    let (word, after) = rest.split_at(letters);
    unit(word).map(|unit| (unit, after))
}

fn split_fraction(rest: &str) -> Option<(&str, &str)> {
    let (digits, after) = split_digits(rest.strip_prefix(['.', ','])?);
    (!digits.is_empty()).then_some((digits, after))
}

fn split_digits(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text.split_at(end)
}

fn value(digits: &str) -> Option<u64> {
    digits.parse().ok()
}

/// Whether a digit is stuck to what was read.
fn continues(rest: &str) -> bool {
    rest.starts_with(|next: char| next.is_ascii_digit())
}

fn no_unit(text: &str, number: &str, rest: &str) -> DurationError {
    if rest.is_empty() || rest.starts_with(char::is_whitespace) {
        DurationError::NoUnit(number.to_owned())
    } else if rest.starts_with(char::is_alphabetic) {
        DurationError::UnknownUnit(first_word(text))
    } else {
        DurationError::NotADuration(first_word(text))
    }
}

fn is_sign(c: char) -> bool {
    matches!(c, '-' | '+' | '\u{2212}' | '\u{2013}' | '\u{2014}')
}

/// The first word, cut so that an answer stays readable.
fn first_word(text: &str) -> String {
    let word = text.split_whitespace().next().unwrap_or_default();
    word.chars().take(40).collect()
}

fn first_two_words(text: &str, one: bool) -> String {
    let words = text.split_whitespace().take(if one { 1 } else { 2 });
    let words: Vec<_> = words.map(first_word).collect();
    words.join(" ")
}
