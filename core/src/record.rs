//! What a store remembers of a delivery.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::delivery::{DeliveryId, EventName};
use crate::key::ClaimKey;
use crate::signature::Fingerprint;
use crate::time::Timestamp;

/// Where a delivery stands. The [machine](crate::machine) has the chart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum State {
    /// Stored with its payload; nobody works on it yet.
    Received,
    /// Leased to one attempt.
    Processing,
    /// Done, and remembered for its retention.
    Completed,
    /// The last attempt failed; another may follow.
    Failed,
    /// Failed for good, or out of attempts.
    Dead,
}

impl State {
    /// All states, in the order of their codes.
    pub const ALL: [Self; 5] = [
        Self::Received,
        Self::Processing,
        Self::Completed,
        Self::Failed,
        Self::Dead,
    ];

    /// The name used in outputs: `received`, `processing`, `completed`, `failed`, `dead`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Received => "received",
            Self::Processing => "processing",
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Dead => "dead",
        }
    }

    /// The number that the stores write.
    #[must_use]
    pub const fn code(self) -> i16 {
        match self {
            Self::Received => 0,
            Self::Processing => 1,
            Self::Completed => 2,
            Self::Failed => 3,
            Self::Dead => 4,
        }
    }

    /// The state with this number.
    #[must_use]
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.get(usize::try_from(code).ok()?).copied()
    }

    /// Whether nothing more happens by itself: completed or dead.
    #[must_use]
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Completed | Self::Dead)
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for State {
    type Err = UnknownState;

    fn from_str(name: &str) -> Result<Self, UnknownState> {
        Self::ALL
            .into_iter()
            .find(|state| state.as_str() == name)
            .ok_or(UnknownState)
    }
}

/// A name that is not that of a [`State`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a state is one of received, processing, completed, failed, dead")]
pub struct UnknownState;

/// Why an attempt ended without completing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorClass {
    /// It may work next time.
    Transient,
    /// It will never work.
    Permanent,
    /// The handler panicked.
    Panic,
    /// The lease ran out and nobody said anything: a crash, most likely.
    LeaseExpired,
    /// It was handed back, as at a shutdown. Not counted as an attempt.
    Released,
}

impl ErrorClass {
    const ALL: [Self; 5] = [
        Self::Transient,
        Self::Permanent,
        Self::Panic,
        Self::LeaseExpired,
        Self::Released,
    ];

    /// The name used in outputs and stores.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::Panic => "panic",
            Self::LeaseExpired => "lease_expired",
            Self::Released => "released",
        }
    }

    /// The class with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|class| class.as_str() == name)
    }
}

/// Names one claim. Random and never used again, so that it fences every write of its attempt.
///
/// `Debug` does not show it: whoever knows it can settle the delivery.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimToken(Uuid);

impl ClaimToken {
    /// A new token.
    ///
    /// # Panics
    ///
    /// If the operating system has no randomness to give.
    #[must_use]
    pub fn random() -> Self {
        Self(Uuid::new_v4())
    }

    /// As a store keeps it.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0.into_bytes()
    }

    /// From what a store kept.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }
}

impl fmt::Debug for ClaimToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClaimToken(..)")
    }
}

/// The row of one claim key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Record {
    /// What was claimed.
    pub key: ClaimKey,
    /// The delivery that came first under this key.
    pub delivery_id: DeliveryId,
    /// Its event.
    pub event: EventName,
    /// Its action, if the payload names one.
    pub action: Option<String>,
    /// Deliveries with the same ordering key start in the order of their arrival.
    pub ordering_key: Option<String>,
    /// Where it stands.
    pub state: State,
    /// Attempts that count, the running one included.
    pub attempts: u32,
    /// How often it was claimed. Only grows, also where attempts do not count: other systems can fence by it.
    pub fence: u64,
    /// The last claim.
    pub token: ClaimToken,
    /// Tells its body from others.
    pub fingerprint: Option<Fingerprint>,
    /// When it was first seen.
    pub received_at: Timestamp,
    /// When it was last claimed.
    pub claimed_at: Option<Timestamp>,
    /// When the lease was last begun or renewed; with a lease only.
    pub renewed_at: Option<Timestamp>,
    /// When the lease runs out; with a lease only.
    pub lease_until: Option<Timestamp>,
    /// When another attempt is due; in `failed` and `received`.
    pub retry_at: Option<Timestamp>,
    /// When it became completed or dead.
    pub finished_at: Option<Timestamp>,
    /// How the last attempt failed.
    pub error_class: Option<ErrorClass>,
    /// What the last failed attempt said.
    pub last_error: Option<String>,
    /// Whether its payload is stored, so that a worker can run it.
    pub has_payload: bool,
    /// The delivery whose work covers this one: it came later, under the same business key. State and times are those
    /// of the work then.
    pub covered_by: Option<DeliveryId>,
}
