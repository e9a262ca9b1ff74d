//! What happens in the layer, for logs and metrics.

#[cfg(feature = "metrics")]
mod metrics;
#[cfg(feature = "tracing")]
mod tracing;

use std::fmt;
use std::time::Duration;

use hookclaim::{
    Attempt, ClaimKind, Delivery, DeliveryId, ErrorClass, EventName, Failed, Retired, State,
    StoreError, Unreadable,
};
use http::StatusCode;

#[cfg(feature = "metrics")]
pub use self::metrics::MetricsObserver;
#[cfg(feature = "tracing")]
pub use self::tracing::TracingObserver;
use crate::outcome::Outcome;
use crate::rejection::Rejection;

/// Is told what happens in a [`GithubWebhookLayer`](crate::GithubWebhookLayer) and its
/// [`Worker`](crate::Worker).
///
/// It is called in the middle of requests: it must be quick and must not block or panic. Two observers are one as a
/// tuple, and `()` observes nothing.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use tower_hookclaim::{Event, Observer, Outcome};
///
/// #[derive(Default)]
/// struct Duplicates(AtomicU64);
///
/// impl Observer for Duplicates {
///     fn on(&self, event: &Event<'_>) {
///         if let Event::Answered { outcome: Outcome::Duplicate, .. } = event {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Something happened.
    fn on(&self, event: &Event<'_>);
}

impl Observer for () {
    fn on(&self, _: &Event<'_>) {}
}

impl<A: Observer, B: Observer> Observer for (A, B) {
    fn on(&self, event: &Event<'_>) {
        self.0.on(event);
        self.1.on(event);
    }
}

impl<O: Observer + ?Sized> Observer for std::sync::Arc<O> {
    fn on(&self, event: &Event<'_>) {
        (**self).on(event);
    }
}

/// Something that happened.
///
/// No event holds a secret or a signature. [`EventName::label`] bounds what an unverified sender can do to metrics.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A body was found to be signed.
    #[non_exhaustive]
    Verified {
        /// The delivery id.
        id: &'a DeliveryId,
        /// Its event.
        event: &'a EventName,
        /// The name of the secret that signed it: follow a rotation by it.
        secret: &'a str,
    },
    /// The store decided on a claim.
    #[non_exhaustive]
    Claimed {
        /// The delivery.
        delivery: &'a Delivery,
        /// What it led to.
        verdict: Claimed,
    },
    /// A worker took a delivery from the store.
    #[non_exhaustive]
    Acquired {
        /// The attempt that begins.
        attempt: &'a Attempt,
        /// The delivery.
        delivery: &'a Delivery,
        /// How it was taken.
        kind: ClaimKind,
        /// The time since the delivery was first seen.
        age: Duration,
    },
    /// A worker found a delivery whose attempts are used up: it is dead.
    #[non_exhaustive]
    Retired {
        /// The delivery.
        retired: &'a Retired,
    },
    /// A worker cannot read the payload of a delivery that it took. It is tried again like one that failed.
    #[non_exhaustive]
    Unreadable {
        /// The delivery id.
        id: &'a DeliveryId,
        /// Why.
        error: &'a Unreadable,
    },
    /// A handler of a worker was still running when its lease was over, and was dropped.
    #[non_exhaustive]
    Stopped {
        /// The attempt.
        attempt: &'a Attempt,
    },
    /// An operation of the store ended.
    #[non_exhaustive]
    Stored {
        /// The delivery id, if the operation is about one.
        id: Option<&'a DeliveryId>,
        /// The operation.
        operation: Operation,
        /// How long it took.
        took: Duration,
        /// What went wrong. A lost lease is told apart by [`StoreError::is_lease_lost`], a locked row by
        /// [`StoreError::is_busy`].
        error: Option<&'a StoreError>,
    },
    /// The inner service panicked. The attempt counts as failed.
    #[non_exhaustive]
    Panicked {
        /// The attempt.
        attempt: &'a Attempt,
        /// The panic's message.
        message: &'a str,
    },
    /// Another attempt holds the delivery. The inner service was told if it was still running.
    #[non_exhaustive]
    LeaseLost {
        /// The attempt that lost it.
        attempt: &'a Attempt,
    },
    /// The lease could not be renewed and is about to run out. The inner service was told.
    #[non_exhaustive]
    LeaseExpiring {
        /// The attempt.
        attempt: &'a Attempt,
    },
    /// An attempt goes on without its request.
    #[non_exhaustive]
    Detached {
        /// The delivery id.
        id: &'a DeliveryId,
        /// Why.
        cause: Detached,
    },
    /// An attempt ended.
    #[non_exhaustive]
    Settled {
        /// The attempt.
        attempt: &'a Attempt,
        /// The delivery.
        delivery: &'a Delivery,
        /// How it ended.
        settlement: Settlement<'a>,
        /// How long the inner service ran.
        ran: Duration,
    },
    /// A request was answered. It comes once for every request whose caller waited for the answer, and not
    /// for an error or a panic of the inner service, which have no response.
    #[non_exhaustive]
    Answered {
        /// The delivery id, unless the request was refused for its headers. Not verified if it was rejected.
        id: Option<&'a DeliveryId>,
        /// The event, likewise.
        event: Option<&'a EventName>,
        /// What came of it.
        outcome: Outcome,
        /// Why it was refused.
        rejection: Option<Rejection>,
        /// The status of the response.
        status: StatusCode,
        /// The time since the request's head was there.
        took: Duration,
    },
}

/// What a claim led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Claimed {
    /// It was won.
    Won {
        /// How.
        kind: ClaimKind,
        /// The number of the attempt that begins.
        attempt: u32,
    },
    /// It was stored, for a worker to run.
    Accepted,
    /// It stands there already.
    Standing(State),
    /// It stands there already, and the same delivery id came with other bytes before.
    BodyMismatch(State),
}

impl Claimed {
    /// A short name in lower case: a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Won {
                kind: ClaimKind::Fresh,
                ..
            } => "won",
            Self::Won {
                kind: ClaimKind::Retry,
                ..
            } => "retry",
            Self::Won {
                kind: ClaimKind::Takeover,
                ..
            } => "takeover",
            Self::Accepted => "accepted",
            Self::Standing(state) | Self::BodyMismatch(state) => match state {
                State::Completed => "duplicate",
                State::Received | State::Processing => "in_progress",
                State::Failed => "retry_later",
                State::Dead => "dead",
            },
        }
    }
}

/// An operation of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Operation {
    /// Claiming.
    Claim,
    /// Storing a delivery for a worker.
    Enqueue,
    /// Taking what is due.
    Acquire,
    /// Storing the payload of a delivery that is being worked on.
    Keep,
    /// Renewing a lease.
    Renew,
    /// Completing an attempt.
    Complete,
    /// Recording a failure.
    Fail,
    /// Handing a delivery back.
    Release,
    /// Reading a record.
    Inspect,
}

impl Operation {
    /// A short name in lower case: a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Claim => "claim",
            Self::Enqueue => "enqueue",
            Self::Acquire => "acquire",
            Self::Keep => "keep",
            Self::Renew => "renew",
            Self::Complete => "complete",
            Self::Fail => "fail",
            Self::Release => "release",
            Self::Inspect => "inspect",
        }
    }
}

impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Why an attempt goes on without its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Detached {
    /// It took longer than [`ack_after`](crate::GithubWebhookLayer::ack_after), and the sender was answered.
    AckAfter,
    /// The caller went away.
    HungUp,
}

/// How an attempt ended.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Settlement<'a> {
    /// It completed the delivery.
    Completed,
    /// It failed.
    Failed {
        /// How.
        class: ErrorClass,
        /// What the store keeps of it.
        message: &'a str,
        /// What follows.
        next: Failed,
    },
    /// It was handed back at a shutdown, and does not count.
    Released,
    /// Another attempt holds the delivery, or somebody else settled it.
    LeaseLost,
    /// The store could not be told. The lease runs out, and another attempt may follow.
    Unknown,
}

impl Settlement<'_> {
    /// A short name in lower case: a metric label.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed { class, .. } => class.as_str(),
            Self::Released => "released",
            Self::LeaseLost => "lease_lost",
            Self::Unknown => "unknown",
        }
    }
}
