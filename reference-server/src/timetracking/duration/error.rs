/// What an error suggests when nothing better is known.
const EXAMPLES: &str = "write a duration such as `45m`, `2h` or `1h30m`";

/// Why a text does not begin with a duration. `Display` says what to write instead.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DurationError {
    /// There is nothing.
    #[error("the duration is missing; {EXAMPLES}")]
    Missing,
    /// It does not begin with a digit.
    #[error("`{0}` is not a duration; {EXAMPLES}")]
    NotADuration(String),
    /// It has a sign.
    #[error("`{0}` has a sign; write the duration without one")]
    Signed(String),
    /// A number without a unit.
    #[error("`{0}` has no unit; write `{0}m` for minutes or `{0}h` for hours")]
    NoUnit(String),
    /// A unit that is neither hours nor minutes.
    #[error("`{0}` has a unit that is not known here; write hours and minutes, such as `1h30m`")]
    UnknownUnit(String),
    /// Units twice, or minutes before hours.
    #[error("`{0}` does not name hours once and then minutes once; write it like `1h30m`")]
    Order(String),
    /// Not whole minutes, or a fraction where there can be none.
    #[error("`{0}` is not a whole number of minutes; write it like `1h30m`")]
    NotWhole(String),
    /// 60 minutes or more beside hours.
    #[error("`{0}` has more than 59 minutes beside its hours; carry them over to the hours")]
    TooManyMinutes(String),
    /// Nothing at all.
    #[error("`{0}` is no time at all; one entry is at least `1m`")]
    Zero(String),
    /// More than an entry holds.
    #[error("`{0}` is more than one entry holds; 24h is the most, write several entries")]
    TooLong(String),
    /// Something is stuck to the duration.
    #[error("`{0}` follows the duration without a space; put one between them")]
    Stuck(String),
    /// A second duration, or a number that may have been meant as one.
    #[error(
        "`{0}` after the duration could be part of it; write the whole duration as one word, or begin the description \
         with another word"
    )]
    LooksLikeDuration(String),
    /// A date.
    #[error(
        "`{0}` after the duration looks like a date, and entries are booked on the day of their comment for now; \
         leave it out"
    )]
    LooksLikeDate(String),
}
