//! Events as structured log lines.

use hookclaim::Failed;
use tracing::{debug, error, info, warn};

use super::{Claimed, Event, Observer, Settlement};
use crate::outcome::Outcome;
use crate::rejection::Rejection;

/// Writes a line for every event that an operator may want to read, with the [`tracing`](::tracing) facade.
///
/// What ends well is `info`, what is tried again `warn`, what somebody has to look at `error`; what anybody can cause
/// without a secret is `debug`, so that nobody can flood the log. Fields are `delivery.id`, `delivery.event`,
/// `attempt`, `outcome`, `error.class` and times in milliseconds. No payload, signature or secret is written.
#[derive(Clone, Copy, Debug, Default)]
pub struct TracingObserver;

impl TracingObserver {
    /// An observer.
    #[must_use]
    pub const fn new() -> Self {
        Self
    }
}

impl Observer for TracingObserver {
    fn on(&self, event: &Event<'_>) {
        match *event {
            Event::Verified { id, event, secret } => {
                debug!(delivery.id = %id, delivery.event = %event, secret.name = secret, "delivery verified");
            }
            Event::Claimed {
                delivery,
                verdict: verdict @ Claimed::BodyMismatch(_),
            } => warn!(
                delivery.id = %delivery.id(),
                delivery.event = %delivery.event(),
                claim = verdict.as_str(),
                "delivery came with another body than before"
            ),
            Event::Claimed { delivery, verdict } => debug!(
                delivery.id = %delivery.id(),
                delivery.event = %delivery.event(),
                delivery.action = delivery.action(),
                claim = verdict.as_str(),
                "delivery claimed"
            ),
            Event::Stored {
                error: Some(error),
                id,
                operation,
                took,
            } => {
                // Told by events of their own.
                if !error.is_lease_lost() && !error.is_busy() {
                    error!(
                        delivery.id = id.map(tracing::field::display),
                        operation = operation.as_str(),
                        took_ms = millis(took),
                        error = error as &dyn std::error::Error,
                        "store failed"
                    );
                }
            }
            Event::Stored { error: None, .. } => {}
            Event::Acquired {
                attempt,
                delivery,
                kind,
                age,
            } => debug!(
                delivery.id = %delivery.id(),
                delivery.event = %delivery.event(),
                delivery.action = delivery.action(),
                attempt = attempt.number(),
                claim = ?kind,
                age_ms = millis(age),
                "delivery taken"
            ),
            Event::Retired { retired } => error!(
                delivery.id = %retired.delivery_id,
                delivery.event = %retired.event,
                attempt = retired.attempts,
                "delivery is dead: its attempts are used up, and the last one did not say how it ended"
            ),
            Event::Unreadable { id, error } => error!(
                delivery.id = %id,
                error = error as &dyn std::error::Error,
                "payload cannot be read"
            ),
            Event::Stopped { attempt } => error!(
                delivery.id = %attempt.delivery_id(),
                attempt = attempt.number(),
                "handler stopped: it was still running when its lease was over"
            ),
            Event::Panicked { attempt, message } => error!(
                delivery.id = %attempt.delivery_id(),
                attempt = attempt.number(),
                panic = message,
                "handler panicked"
            ),
            Event::LeaseLost { attempt } => warn!(
                delivery.id = %attempt.delivery_id(),
                attempt = attempt.number(),
                "lease lost to another attempt"
            ),
            Event::LeaseExpiring { attempt } => warn!(
                delivery.id = %attempt.delivery_id(),
                attempt = attempt.number(),
                "lease could not be renewed and is about to run out"
            ),
            Event::Detached { id, cause } => debug!(
                delivery.id = %id,
                cause = ?cause,
                "attempt goes on without its request"
            ),
            Event::Settled {
                attempt,
                delivery,
                settlement,
                ran,
            } => {
                let (id, event) = (delivery.id(), delivery.event());
                let (attempt, ran_ms) = (attempt.number(), millis(ran));
                match settlement {
                    Settlement::Completed => {
                        info!(delivery.id = %id, delivery.event = %event, attempt, ran_ms, "delivery completed");
                    }
                    Settlement::Failed {
                        class,
                        message,
                        next: Failed::Retry { .. },
                    } => warn!(
                        delivery.id = %id,
                        delivery.event = %event,
                        attempt,
                        ran_ms,
                        error.class = class.as_str(),
                        error.message = message,
                        "attempt failed"
                    ),
                    Settlement::Failed {
                        class,
                        message,
                        next: Failed::Dead,
                    } => error!(
                        delivery.id = %id,
                        delivery.event = %event,
                        attempt,
                        ran_ms,
                        error.class = class.as_str(),
                        error.message = message,
                        "delivery failed for good"
                    ),
                    Settlement::Released => {
                        info!(delivery.id = %id, delivery.event = %event, attempt, ran_ms, "delivery handed back");
                    }
                    Settlement::LeaseLost | Settlement::Unknown => warn!(
                        delivery.id = %id,
                        delivery.event = %event,
                        attempt,
                        ran_ms,
                        settlement = settlement.as_str(),
                        "attempt ended without a record"
                    ),
                }
            }
            Event::Answered {
                id,
                event,
                outcome,
                rejection,
                status,
                took,
            } => {
                let id = id.map(tracing::field::display);
                let event = event.map(tracing::field::display);
                let rejection = rejection.map(Rejection::as_str);
                let (status, took_ms) = (status.as_u16(), millis(took));
                if outcome == Outcome::Unavailable {
                    warn!(
                        delivery.id = id,
                        delivery.event = event,
                        outcome = outcome.as_str(),
                        rejection,
                        status,
                        took_ms,
                        "delivery turned away"
                    );
                } else {
                    debug!(
                        delivery.id = id,
                        delivery.event = event,
                        outcome = outcome.as_str(),
                        rejection,
                        status,
                        took_ms,
                        "delivery answered"
                    );
                }
            }
        }
    }
}

fn millis(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
