use proptest::prelude::*;

use super::*;

#[test]
fn durations_are_read_with_what_follows_them() {
    let rows = [
        ("1h30m", 90, ""),
        ("1h 30m", 90, ""),
        ("1h30", 90, ""),
        ("1h05", 65, ""),
        ("90m", 90, ""),
        ("1.5h", 90, ""),
        ("1,5h", 90, ""),
        ("1.25 hours", 75, ""),
        ("1:30", 90, ""),
        ("0:45 standup", 45, "standup"),
        ("2 hours", 120, ""),
        ("2hours", 120, ""),
        ("2 hours 15 minutes review", 135, "review"),
        ("30min", 30, ""),
        ("30 mins", 30, ""),
        ("1 hour", 60, ""),
        ("1hr", 60, ""),
        ("2HRS", 120, ""),
        ("1H30M", 90, ""),
        ("  1h\u{a0}30m\u{a0}pairing ", 90, "pairing"),
        ("1h\tfix", 60, "fix"),
        ("24h", 1440, ""),
        ("1440m", 1440, ""),
        ("1m", 1, ""),
        ("0h30m", 30, ""),
        ("1h0m", 60, ""),
        ("2h meeting at 3", 120, "meeting at 3"),
        ("2h 2nd review", 120, "2nd review"),
        ("1h #12", 60, "#12"),
        ("1h - notes", 60, "- notes"),
        ("1h todays work", 60, "todays work"),
    ];
    for (text, minutes, rest) in rows {
        let parsed = parse(text).map(|(minutes, rest)| (minutes.get(), rest));
        assert_eq!(parsed, Ok((minutes, rest)), "{text:?}");
    }
}

#[test]
fn what_could_be_misread_is_an_error_that_says_what_to_write() {
    use DurationError as E;
    let word = |text: &str| text.to_owned();
    let rows = [
        ("", E::Missing),
        (" \u{a0}", E::Missing),
        ("pairing", E::NotADuration(word("pairing"))),
        (".5h", E::NotADuration(word(".5h"))),
        ("-3h", E::Signed(word("-3h"))),
        ("+3h", E::Signed(word("+3h"))),
        ("\u{2212}3h", E::Signed(word("\u{2212}3h"))),
        ("45", E::NoUnit(word("45"))),
        ("120", E::NoUnit(word("120"))),
        ("1.5", E::NoUnit(word("1.5"))),
        ("2 hamburgers", E::NoUnit(word("2"))),
        ("2d", E::UnknownUnit(word("2d"))),
        ("90s", E::UnknownUnit(word("90s"))),
        ("2hx", E::UnknownUnit(word("2hx"))),
        ("1h30x", E::UnknownUnit(word("1h30x"))),
        ("30m1h", E::Order(word("30m1h"))),
        ("1h2h", E::Order(word("1h2h"))),
        ("1h 2h", E::Order(word("1h 2h"))),
        ("1h30m15s", E::UnknownUnit(word("1h30m15s"))),
        ("2h30m15s", E::UnknownUnit(word("2h30m15s"))),
        ("1.5h30m", E::NotWhole(word("1.5h30m"))),
        ("1.33h", E::NotWhole(word("1.33h"))),
        ("1,500h", E::NotWhole(word("1,500h"))),
        ("1.5m", E::NotWhole(word("1.5m"))),
        ("1h60m", E::TooManyMinutes(word("1h60m"))),
        ("1:75", E::TooManyMinutes(word("1:75"))),
        ("1:5", E::NotADuration(word("1:5"))),
        ("1:30:00", E::Stuck(word(":00"))),
        ("0m", E::Zero(word("0m"))),
        ("0h", E::Zero(word("0h"))),
        ("0:00", E::Zero(word("0:00"))),
        ("30h", E::TooLong(word("30h"))),
        ("24h1m", E::TooLong(word("24h1m"))),
        (
            "307445734561825861h",
            E::TooLong(word("307445734561825861h")),
        ),
        (
            "99999999999999999999999m",
            E::TooLong(word("99999999999999999999999m")),
        ),
        ("2h: fix", E::Stuck(word(":"))),
        ("2h,fix", E::Stuck(word(",fix"))),
        ("30m 1h", E::LooksLikeDuration(word("1h"))),
        ("1h 30", E::LooksLikeDuration(word("30"))),
        ("1h30m 15s", E::LooksLikeDuration(word("15s"))),
        ("2h 3d", E::LooksLikeDuration(word("3d"))),
        ("1h -30m", E::LooksLikeDuration(word("-30m"))),
        ("1h 2026-11-27 fix", E::LooksLikeDate(word("2026-11-27"))),
        ("1h Yesterday", E::LooksLikeDate(word("Yesterday"))),
    ];
    for (text, error) in rows {
        assert_eq!(parse(text), Err(error), "{text:?}");
    }
}

#[test]
fn the_canonical_form_is_short() {
    let rows = [
        (1, "1m"),
        (45, "45m"),
        (60, "1h"),
        (90, "1h30m"),
        (1440, "24h"),
    ];
    for (minutes, text) in rows {
        assert_eq!(Minutes::new(minutes).unwrap().to_string(), text);
    }
    assert_eq!(Total(100 * 60 + 5).to_string(), "100h5m");
    assert_eq!(Minutes::new(0), None);
    assert_eq!(Minutes::new(1441), None);
}

proptest! {
    #[test]
    fn what_is_printed_parses_to_the_same(minutes in 1u64..=1440) {
        let minutes = Minutes::new(minutes).unwrap();
        let text = minutes.to_string();
        prop_assert_eq!(parse(&text), Ok((minutes, "")));
    }

    #[test]
    fn no_text_panics(text in "\\PC*") {
        let _ = parse(&text);
    }

    #[test]
    fn no_text_of_the_grammars_own_characters_panics(text in "[0-9hms:., \u{a0}+-]{0,12}") {
        if let Ok((minutes, _)) = parse(&text) {
            prop_assert!((1..=1440).contains(&minutes.get()));
        }
    }
}
