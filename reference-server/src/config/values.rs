//! How the values of options are written.

use std::net::SocketAddr;
use std::time::Duration;

/// `30s`, `5m`, `1m30s`, `250ms`, `12h`, `30d`, and `10min` as well as `10m`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Some(value) if value <= LONGEST => Ok(value),
        _ => Err(format!("`{text}` is too long; a year is the most")),
    }
}

/// The same, up to ten years.
pub(super) fn long_duration(text: &str) -> Result<Duration, String> {
    match parse(text)? {
        Some(value) if value <= 10 * LONGEST => Ok(value),
        _ => Err(format!("`{text}` is too long; ten years are the most")),
    }
}

/// `None` if it is longer than can be told.
fn parse(text: &str) -> Result<Option<Duration>, String> {
    let problem = || format!("`{text}` is not a duration; write one such as 30s, 5m, 12h or 30d");
    let mut rest = text;
    let mut total = Some(Duration::ZERO);
    if rest.is_empty() {
        return Err(problem());
    }
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit());
        let (unit, after) = split(after, |c| c.is_ascii_alphabetic());
        let number: u64 = number.parse().map_err(|_| problem())?;
        let part = match unit {
            "ms" => Some(Duration::from_millis(number)),
            "s" => Some(Duration::from_secs(number)),
            "m" | "min" => number.checked_mul(60).map(Duration::from_secs),
            "h" => number.checked_mul(3600).map(Duration::from_secs),
            "d" => number.checked_mul(86_400).map(Duration::from_secs),
            _ => return Err(problem()),
        };
        total = total
            .zip(part)
            .and_then(|(total, part)| total.checked_add(part));
        rest = after;
    }
    Ok(total)
}

/// Far beyond use, and far from overflowing when added to an instant.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// A duration of at least `least`.
pub(super) fn duration_from(least: Duration) -> impl FnOnce(&str) -> Result<Duration, String> {
    move |text| {
        let value = duration(text)?;
        if value < least {
            return Err(format!("`{text}` is too short; {least:?} is the least"));
        }
        Ok(value)
    }
}

/// `25MiB`, `64kB`, `1048576`.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let problem = || format!("`{text}` is not a size; write one such as 25MiB");
    let (number, unit) = split(text, |c| c.is_ascii_digit());
    let number: u64 = number.parse().map_err(|_| problem())?;
    let factor: u64 = match unit.trim_start().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        "kb" => 1_000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        _ => return Err(problem()),
    };
    let size = number.checked_mul(factor).filter(|size| *size <= 1 << 40);
    match size {
        Some(0) => Err(format!(
            "`{text}` is no size at all; write one such as 25MiB"
        )),
        Some(size) => Ok(size),
        None => Err(format!("`{text}` is too much; 1024GiB is the most")),
    }
}

/// A duration of exactly zero, or of at least `least`.
pub(super) fn zero_or_from(least: Duration) -> impl FnOnce(&str) -> Result<Duration, String> {
    move |text| match duration(text)? {
        Duration::ZERO => Ok(Duration::ZERO),
        value if value < least => Err(format!(
            "`{text}` is too short; {least:?} is the least, and 0s switches it off"
        )),
        value => Ok(value),
    }
}

/// A whole number, zero included.
pub(super) fn number(text: &str) -> Result<u64, String> {
    text.parse()
        .map_err(|_| format!("`{text}` is not a whole number"))
}

/// A whole number from one to `most`.
pub(super) fn count(most: u32) -> impl FnOnce(&str) -> Result<u32, String> {
    move |text| match text.parse() {
        Ok(number) if (1..=most).contains(&number) => Ok(number),
        _ => Err(format!("`{text}` is not a whole number from 1 to {most}")),
    }
}

/// `true` or `false`.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    match text.to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" | "1" => Ok(true),
        "false" | "no" | "off" | "0" => Ok(false),
        _ => Err(format!("`{text}` is neither true nor false")),
    }
}

/// `127.0.0.1:3000`, `[::]:3000`, `localhost:3000`.
pub(super) fn address(text: &str) -> Result<SocketAddr, String> {
    let numeric = text
        .strip_prefix("localhost:")
        .map(|port| format!("127.0.0.1:{port}"));
    numeric.as_deref().unwrap_or(text).parse().map_err(|_| {
        format!(
            "`{text}` is not an address; write an IP address and a port, such as 127.0.0.1:3000 or 0.0.0.0:3000"
        )
    })
}

fn split(text: &str, take: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !take(c)).unwrap_or(text.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_units() {
        let rows = [
            ("30s", Some(30_000)),
            ("5m", Some(300_000)),
            ("1m30s", Some(90_000)),
            ("250ms", Some(250)),
            ("1h", Some(3_600_000)),
            ("10min", Some(600_000)),
            ("30d", Some(30 * 86_400_000)),
            ("1d12h", Some(36 * 3_600_000)),
            ("0s", Some(0)),
            ("30", None),
            ("", None),
            ("-1s", None),
            ("1.5s", None),
            ("s", None),
            ("30 s", None),
            ("99999999999999999999s", None),
            ("18446744073709551615h", None),
            ("367d", None),
        ];
        for (text, millis) in rows {
            let value = duration(text).ok();
            assert_eq!(value, millis.map(Duration::from_millis), "{text:?}");
        }
        let second = Duration::from_secs(1);
        assert!(duration_from(second)("10ms").is_err());
        assert!(zero_or_from(second)("10ms").is_err());
        assert_eq!(zero_or_from(second)("0ms"), Ok(Duration::ZERO));
        assert_eq!(zero_or_from(second)("1s"), Ok(second));
    }

    #[test]
    fn sizes_have_units_or_are_bytes() {
        let rows = [
            ("25MiB", Some(25 << 20)),
            ("25 mib", Some(25 << 20)),
            ("64kB", Some(64_000)),
            ("1024", Some(1024)),
            ("0", None),
            ("25M", None),
            ("MiB", None),
            ("-1", None),
            ("18446744073709551615KiB", None),
        ];
        for (text, bytes) in rows {
            assert_eq!(size(text).ok(), bytes, "{text:?}");
        }
    }

    #[test]
    fn addresses_have_a_port() {
        assert_eq!(
            address("localhost:80").unwrap(),
            ([127, 0, 0, 1], 80).into()
        );
        assert!(address("[::]:3000").is_ok());
        for text in ["", "3000", ":3000", "127.0.0.1", "example.org:80"] {
            assert!(address(text).is_err(), "{text:?}");
        }
    }
}
