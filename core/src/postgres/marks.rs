//! Where looking for due deliveries begins.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How long a look may rely on what an earlier one saw. A delivery that became due in the past, as by a transaction
/// that took its time, is found after this at the latest.
const WHOLE_EVERY: Duration = Duration::from_secs(5);

/// How far a mark stays behind, for statements that commit after later ones, in microseconds.
const MARGIN: i64 = 1_000_000;

/// Low-water marks, per range of sources.
///
/// A delivery that is taken leaves its entry in the index of what is due, and for as long as anybody holds an old
/// snapshot nobody may clear it away. A look from the beginning would pass all of these each time. So it begins at a
/// mark before which nothing was due at the last look, and now and then at the beginning.
#[derive(Default)]
pub(super) struct Marks {
    marks: HashMap<(String, String), Mark>,
    /// The latest time that the database told.
    seen: Option<i64>,
}

struct Mark {
    at: i64,
    whole: Instant,
    /// Whether the last look met deliveries that have an order.
    ordered: bool,
}

impl Marks {
    /// The mark for a look, unless it has to be a whole one.
    pub(super) fn at(&self, range: &(String, String)) -> Option<i64> {
        let mark = self.marks.get(range)?;
        (mark.whole.elapsed() < WHOLE_EVERY).then_some(mark.at)
    }

    /// Whether a look will meet deliveries that have an order, as far as is known.
    pub(super) fn ordered(&self, range: &(String, String)) -> bool {
        self.marks.get(range).is_some_and(|mark| mark.ordered)
    }

    /// What a look found: the time, and the oldest one that was due or will be. False if the clock was set back, so
    /// that what marks say is worth nothing.
    pub(super) fn looked(
        &mut self,
        range: &(String, String),
        whole: bool,
        now: i64,
        oldest: Option<i64>,
        ordered: bool,
    ) -> bool {
        if self.seen.is_some_and(|seen| now < seen) {
            self.marks.clear();
            self.seen = Some(now);
            if !whole {
                return false;
            }
        }
        self.seen = Some(now);
        let at = oldest.unwrap_or(now).min(now).saturating_sub(MARGIN);
        match self.marks.get_mut(range) {
            Some(mark) => {
                mark.at = at;
                mark.ordered = ordered;
                if whole {
                    mark.whole = Instant::now();
                }
            }
            None => {
                let whole = Instant::now();
                let mark = Mark { at, whole, ordered };
                self.marks.insert(range.clone(), mark);
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_stays_behind_the_oldest_and_behind_now_and_is_dropped_when_the_clock_is_set_back() {
        let range = ("a".to_owned(), "a".to_owned());
        let mut marks = Marks::default();
        assert_eq!(marks.at(&range), None);
        assert!(marks.looked(&range, true, 10 * MARGIN, Some(7 * MARGIN), false));
        assert_eq!(marks.at(&range), Some(6 * MARGIN));
        // What is due later than now is no reason to begin later than now.
        assert!(marks.looked(&range, false, 11 * MARGIN, Some(50 * MARGIN), true));
        assert_eq!(marks.at(&range), Some(10 * MARGIN));
        assert!(marks.ordered(&range));
        assert!(!marks.looked(&range, false, 3 * MARGIN, None, false));
        assert_eq!(marks.at(&range), None);
        assert!(marks.looked(&range, true, 3 * MARGIN, None, false));
        assert_eq!(marks.at(&range), Some(2 * MARGIN));
        let other = ("b".to_owned(), "b".to_owned());
        assert_eq!(marks.at(&other), None);
    }
}
