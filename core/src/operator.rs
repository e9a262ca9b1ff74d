//! What an operator decides by hand, and the record of it.

use crate::key::ClaimKey;
use crate::time::Timestamp;

/// The longest actor or reason that is kept, in characters.
const MAX_TEXT: usize = 500;

/// An operator's order to run a delivery again.
///
/// It is written down together with what it changes: who, when, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Retry {
    pub(crate) actor: String,
    pub(crate) reason: Option<String>,
    pub(crate) force: bool,
}

impl Retry {
    /// By whom: a name that tells people apart.
    #[must_use]
    pub fn by(actor: impl Into<String>) -> Self {
        Self {
            actor: cut(&actor.into()),
            reason: None,
            force: false,
        }
    }

    /// Why.
    #[must_use]
    pub fn because(mut self, reason: impl Into<String>) -> Self {
        self.reason = Some(cut(&reason.into()));
        self
    }

    /// Whether a delivery that is completed runs again. What it did is done twice then, unless its handler knows
    /// better.
    #[must_use]
    pub fn force(mut self, force: bool) -> Self {
        self.force = force;
        self
    }
}

fn cut(text: &str) -> String {
    let text = text.replace('\0', "\u{fffd}");
    match text.char_indices().nth(MAX_TEXT) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

/// What came of an order to run a delivery again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retried {
    /// It is due now, and a worker will run it. Its attempts begin at zero.
    Due,
    /// It may run again, and no payload is stored: it runs when it is delivered again.
    AwaitsRedelivery,
    /// Somebody works on it. Nothing was changed.
    InProgress,
    /// It is completed, and this was not to be forced. Nothing was changed.
    Completed,
    /// No such delivery is remembered.
    Unknown,
}

/// One line of the record of what operators did.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct AuditEntry {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// What: `retry`, or `force` for one that was completed.
    pub action: String,
    /// Why.
    pub reason: Option<String>,
    /// To which delivery.
    pub key: ClaimKey,
}

impl AuditEntry {
    /// The action that is written for an order.
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "postgres", test)),
        allow(dead_code)
    )]
    pub(crate) fn action(forced: bool) -> &'static str {
        if forced { "force" } else { "retry" }
    }
}
