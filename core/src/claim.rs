//! Asking for a delivery, and what comes back.

use std::fmt;
use std::time::{Duration, Instant};

use crate::delivery::{Delivery, DeliveryId, EventName};
use crate::inbox::Kept;
use crate::key::ClaimKey;
use crate::record::{ClaimToken, ErrorClass, State};
use crate::signature::Fingerprint;
use crate::time::{LONGEST, Timestamp};

/// The longest error text that a store keeps, in characters.
const MAX_ERROR: usize = 2000;

/// How long a claim holds, and how often one may be tried.
///
/// ```
/// use std::time::Duration;
/// use hookclaim::LeasePolicy;
///
/// let policy = LeasePolicy::default().lease(Duration::from_secs(60)).max_attempts(3);
/// assert_eq!(policy.renew_every(), Duration::from_secs(20));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasePolicy {
    pub(crate) lease: Duration,
    pub(crate) max_hold: Duration,
    pub(crate) max_attempts: u32,
    pub(crate) keep_payload: bool,
}

impl LeasePolicy {
    /// The shortest lease: renewals need time to travel.
    pub const MIN_LEASE: Duration = Duration::from_millis(100);

    /// How long a claim holds without a renewal: 30 s by default, [`MIN_LEASE`](Self::MIN_LEASE) at least, a year at most. It is
    /// renewed every third of that.
    #[must_use]
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease.clamp(Self::MIN_LEASE, LONGEST);
        self
    }

    /// How long a claim holds with renewals: 15 minutes by default. A handler that hangs cannot hold on for ever.
    #[must_use]
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.max_hold = max_hold.min(LONGEST);
        self
    }

    /// How many attempts there are before a delivery is dead: 8 by default, 1 at least. Attempts are counted when they
    /// begin, so that a handler that takes the process down with it is counted too.
    #[must_use]
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = attempts.max(1);
        self
    }

    /// Sets whether a stored payload stays when its delivery is completed, so that an operator can run it again: it is
    /// dropped by default. What stays is pruned by [`Retention::payload`](crate::Retention::payload).
    #[must_use]
    pub fn keep_payload(mut self, keep: bool) -> Self {
        self.keep_payload = keep;
        self
    }

    /// The interval of renewals: a third of the lease, so that two may be lost.
    #[must_use]
    pub fn renew_every(&self) -> Duration {
        self.lease / 3
    }

    /// How long a claim holds without a renewal.
    #[must_use]
    pub fn lease_length(&self) -> Duration {
        self.lease
    }

    /// How long a claim holds with renewals.
    #[must_use]
    pub fn longest_hold(&self) -> Duration {
        self.max_hold
    }

    /// How many attempts there are.
    #[must_use]
    pub fn attempts(&self) -> u32 {
        self.max_attempts
    }
}

impl Default for LeasePolicy {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            max_hold: Duration::from_secs(15 * 60),
            max_attempts: 8,
            keep_payload: false,
        }
    }
}

/// Whether a claim takes a failed delivery before its retry is due.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RetryGate {
    /// It does. Without a worker, a redelivery is the only retry there is.
    #[default]
    Open,
    /// It waits until the retry is due.
    WhenDue,
}

/// A request to work on a delivery.
#[derive(Clone, Debug)]
pub struct Claim {
    pub(crate) key: ClaimKey,
    pub(crate) delivery_id: DeliveryId,
    pub(crate) event: EventName,
    pub(crate) action: Option<Box<str>>,
    pub(crate) fingerprint: Option<Fingerprint>,
    pub(crate) token: ClaimToken,
    pub(crate) policy: LeasePolicy,
    pub(crate) gate: RetryGate,
    /// With this it is stored for later instead of begun.
    pub(crate) kept: Option<Box<Kept>>,
}

impl Claim {
    /// Claims a verified delivery under `key`.
    #[must_use]
    pub fn new(delivery: &Delivery, key: ClaimKey, policy: LeasePolicy) -> Self {
        Self {
            delivery_id: delivery.id().clone(),
            event: delivery.event().clone(),
            action: delivery.action().map(Into::into),
            fingerprint: Some(delivery.verified().fingerprint()),
            ..Self::bare(key, delivery.id().clone(), delivery.event().clone(), policy)
        }
    }

    /// Claims work that is not a delivery of this process, such as in a test of a store.
    #[must_use]
    pub fn bare(
        key: ClaimKey,
        delivery_id: DeliveryId,
        event: EventName,
        policy: LeasePolicy,
    ) -> Self {
        Self {
            key,
            delivery_id,
            event,
            action: None,
            fingerprint: None,
            token: ClaimToken::random(),
            policy,
            gate: RetryGate::Open,
            kept: None,
        }
    }

    /// Sets what to compare bodies by.
    #[must_use]
    pub fn fingerprint(mut self, fingerprint: Option<Fingerprint>) -> Self {
        self.fingerprint = fingerprint;
        self
    }

    /// Sets the action.
    #[must_use]
    pub fn action(mut self, action: Option<&str>) -> Self {
        self.action = action.map(Into::into);
        self
    }

    /// Sets whether a failed delivery is taken before its retry is due.
    #[must_use]
    pub fn gate(mut self, gate: RetryGate) -> Self {
        self.gate = gate;
        self
    }

    /// What is claimed.
    #[must_use]
    pub fn key(&self) -> &ClaimKey {
        &self.key
    }

    /// The fingerprint that stores compare: none under a business key, where bodies differ rightly.
    pub(crate) fn compared_fingerprint(&self) -> Option<Fingerprint> {
        if self.key.is_business() {
            None
        } else {
            self.fingerprint
        }
    }
}

/// What a claim led to.
///
/// Exhaustive on purpose: whoever answers a sender has to answer each of these.
#[derive(Clone, Debug)]
#[must_use = "a won claim that nobody settles blocks the delivery until its lease runs out"]
pub enum ClaimOutcome {
    /// This caller works on the delivery now, and has to settle it.
    Won(Held),
    /// It was done before.
    Completed,
    /// Somebody works on it; the lease runs out after this time unless it is renewed.
    InProgress {
        /// What is left of the lease. Zero if the row is locked by its handler's own transaction.
        lease_left: Duration,
    },
    /// It failed and is not due yet, or waits for a worker.
    NotDue {
        /// When another attempt is due.
        retry_at: Timestamp,
    },
    /// It failed for good.
    Dead,
    /// The same delivery id came with other bytes before. Nothing was changed and nothing was won.
    BodyMismatch {
        /// Where the delivery with the other body stands.
        state: State,
    },
}

impl ClaimOutcome {
    /// The claim, if it was won.
    pub fn won(self) -> Option<Held> {
        match self {
            Self::Won(held) => Some(held),
            Self::Completed
            | Self::InProgress { .. }
            | Self::NotDue { .. }
            | Self::Dead
            | Self::BodyMismatch { .. } => None,
        }
    }
}

/// A won claim: what its attempt names in every write.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Held {
    /// What was claimed.
    pub key: ClaimKey,
    /// The delivery that was claimed.
    pub delivery_id: DeliveryId,
    /// The claim's token: a store refuses writes that name another.
    pub token: ClaimToken,
    /// How often this key was claimed, this time included. Only grows.
    pub fence: u64,
    /// The number of this attempt, from 1.
    pub attempt: u32,
    /// How this claim came about.
    pub kind: ClaimKind,
    /// Until when the lease surely holds, on this process's own monotonic clock.
    pub deadline: Instant,
    /// The policy it was claimed under.
    pub policy: LeasePolicy,
}

/// How a claim came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimKind {
    /// The delivery had not been seen.
    Fresh,
    /// An earlier attempt failed or was handed back.
    Retry,
    /// The lease of an earlier attempt had run out.
    Takeover,
}

/// How an attempt failed.
///
/// The message is for operators. It must hold no secret and no payload; it is cut after 2000 characters.
#[derive(Clone, PartialEq, Eq)]
pub struct Failure {
    pub(crate) class: ErrorClass,
    pub(crate) message: String,
    pub(crate) delay: Duration,
}

impl Failure {
    /// A failure that may not happen again: another attempt is due after `delay` (a year at most), if attempts are left.
    ///
    /// [`Backoff`](crate::Backoff) computes the delay.
    #[must_use]
    pub fn transient(message: impl Into<String>, delay: Duration) -> Self {
        Self::of_class(ErrorClass::Transient, message, delay)
    }

    /// A failure that will happen again however often it is tried: the delivery is dead.
    #[must_use]
    pub fn permanent(message: impl Into<String>) -> Self {
        Self::of_class(ErrorClass::Permanent, message, Duration::ZERO)
    }

    /// A panic: transient, under its own name.
    #[must_use]
    pub fn panic(message: impl Into<String>, delay: Duration) -> Self {
        Self::of_class(ErrorClass::Panic, message, delay)
    }

    fn of_class(class: ErrorClass, message: impl Into<String>, delay: Duration) -> Self {
        let mut message: String = message.into();
        if let Some((cut, _)) = message.char_indices().nth(MAX_ERROR) {
            message.truncate(cut);
        }
        // Postgres has no NUL in text.
        let message = if message.contains('\0') {
            message.replace('\0', "\u{fffd}")
        } else {
            message
        };
        Self {
            class,
            message,
            delay: delay.min(LONGEST),
        }
    }

    /// Its class.
    #[must_use]
    pub fn class(&self) -> ErrorClass {
        self.class
    }

    /// What the operator reads.
    #[must_use]
    pub fn message(&self) -> &str {
        &self.message
    }

    /// How long after the failure another attempt is due.
    #[must_use]
    pub fn delay(&self) -> Duration {
        self.delay
    }
}

impl fmt::Debug for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Failure")
            .field("class", &self.class)
            .field("message", &self.message)
            .field("delay", &self.delay)
            .finish()
    }
}

/// What a recorded failure led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// Another attempt is due at this instant.
    Retry {
        /// When.
        at: Timestamp,
    },
    /// There is none: the failure was permanent, or the attempts are used up.
    Dead,
}

/// What came of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease holds for this long from the moment the request was sent.
    Renewed {
        /// How long.
        lease_left: Duration,
    },
    /// The row is locked, as by the handler's own transaction. Nobody else can take it meanwhile.
    Busy,
}
