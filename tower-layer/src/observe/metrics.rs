//! Events as metrics.

use hookclaim::{ClaimKind, Failed, State};
use metrics::{Unit, counter, describe_counter, describe_histogram, histogram};

use super::{Claimed, Event, Observer, Settlement};

/// Counts every event with the [`metrics`](::metrics) facade.
///
/// | metric | labels | counts |
/// |---|---|---|
/// | `hookclaim_received_total` | `event`, `outcome` | requests that were answered |
/// | `hookclaim_rejected_total` | `reason` | requests that were refused or turned away |
/// | `hookclaim_verified_total` | `secret` | signed bodies, by the name of the secret |
/// | `hookclaim_claims_total` | `result` | claims of requests: `won`, `retry`, `takeover`, `accepted`, `duplicate`, `in_progress`, `retry_later`, `dead` |
/// | `hookclaim_acquired_total` | `kind` | deliveries that a worker took: `fresh`, `retry`, `takeover` |
/// | `hookclaim_duplicates_total` | | deliveries that were completed before |
/// | `hookclaim_body_mismatches_total` | | delivery ids that came with another body before |
/// | `hookclaim_attempts_total` | `result` | attempts by how they ended |
/// | `hookclaim_dead_total` | `event` | deliveries that failed for good |
/// | `hookclaim_lease_lost_total` | | attempts that another one took over from |
/// | `hookclaim_panics_total` | | panics of the handler |
/// | `hookclaim_detached_total` | | attempts that went on without their request |
/// | `hookclaim_stopped_total` | | handlers of a worker that were dropped because their lease was over |
/// | `hookclaim_unreadable_total` | | payloads that a worker could not read |
/// | `hookclaim_start_seconds` | | how long fresh deliveries waited for a worker |
/// | `hookclaim_handler_seconds` | `event` | how long the handler ran |
/// | `hookclaim_response_seconds` | | how long senders waited |
/// | `hookclaim_store_seconds` | `operation` | how long the store took |
/// | `hookclaim_store_errors_total` | `operation` | operations of the store that failed |
///
/// Labels are bounded whatever is sent: events that GitHub does not document are `other`.
#[derive(Clone, Copy, Debug)]
pub struct MetricsObserver(());

impl MetricsObserver {
    /// An observer. Describes its metrics to the recorder that is installed at that time.
    #[must_use]
    pub fn new() -> Self {
        for (name, text) in [
            (
                RECEIVED,
                "Requests that were answered, by event and outcome",
            ),
            (
                REJECTED,
                "Requests that were refused or turned away, by reason",
            ),
            (VERIFIED, "Signed bodies, by the name of the secret"),
            (CLAIMS, "Claims, by result"),
            (DUPLICATES, "Deliveries that were completed before"),
            (
                MISMATCHES,
                "Delivery ids that came with another body before",
            ),
            (ATTEMPTS, "Attempts, by how they ended"),
            (DEAD, "Deliveries that failed for good, by event"),
            (LEASE_LOST, "Attempts that another one took over from"),
            (PANICS, "Panics of the handler"),
            (DETACHED, "Attempts that went on without their request"),
            (STORE_ERRORS, "Operations of the store that failed"),
            (
                ACQUIRED,
                "Deliveries that a worker took from the store, by how",
            ),
            (
                STOPPED,
                "Handlers that were dropped because their lease was over",
            ),
            (UNREADABLE, "Payloads that a worker could not read"),
        ] {
            describe_counter!(name, text);
        }
        for (name, text) in [
            (
                START_SECONDS,
                "How long fresh deliveries waited for a worker",
            ),
            (HANDLER_SECONDS, "How long the handler ran, by event"),
            (RESPONSE_SECONDS, "How long senders waited for an answer"),
            (STORE_SECONDS, "How long the store took, by operation"),
        ] {
            describe_histogram!(name, Unit::Seconds, text);
        }
        Self(())
    }
}

impl Default for MetricsObserver {
    fn default() -> Self {
        Self::new()
    }
}

const RECEIVED: &str = "hookclaim_received_total";
const REJECTED: &str = "hookclaim_rejected_total";
const VERIFIED: &str = "hookclaim_verified_total";
const CLAIMS: &str = "hookclaim_claims_total";
const DUPLICATES: &str = "hookclaim_duplicates_total";
const MISMATCHES: &str = "hookclaim_body_mismatches_total";
const ATTEMPTS: &str = "hookclaim_attempts_total";
const DEAD: &str = "hookclaim_dead_total";
const LEASE_LOST: &str = "hookclaim_lease_lost_total";
const PANICS: &str = "hookclaim_panics_total";
const DETACHED: &str = "hookclaim_detached_total";
const STORE_ERRORS: &str = "hookclaim_store_errors_total";
const ACQUIRED: &str = "hookclaim_acquired_total";
const STOPPED: &str = "hookclaim_stopped_total";
const UNREADABLE: &str = "hookclaim_unreadable_total";
const START_SECONDS: &str = "hookclaim_start_seconds";
const HANDLER_SECONDS: &str = "hookclaim_handler_seconds";
const RESPONSE_SECONDS: &str = "hookclaim_response_seconds";
const STORE_SECONDS: &str = "hookclaim_store_seconds";

impl Observer for MetricsObserver {
    fn on(&self, event: &Event<'_>) {
        match *event {
            Event::Verified { secret, .. } => {
                counter!(VERIFIED, "secret" => secret.to_owned()).increment(1);
            }
            Event::Claimed { verdict, .. } => {
                counter!(CLAIMS, "result" => verdict.as_str()).increment(1);
                if let Claimed::BodyMismatch(_) = verdict {
                    counter!(MISMATCHES).increment(1);
                }
                if let Claimed::Standing(State::Completed) = verdict {
                    counter!(DUPLICATES).increment(1);
                }
            }
            Event::Stored {
                operation,
                took,
                error,
                ..
            } => {
                histogram!(STORE_SECONDS, "operation" => operation.as_str()).record(took);
                // A lost lease is an answer, and so is a locked row.
                if error.is_some_and(|error| !error.is_lease_lost() && !error.is_busy()) {
                    counter!(STORE_ERRORS, "operation" => operation.as_str()).increment(1);
                }
            }
            Event::Acquired { kind, age, .. } => {
                let kind = match kind {
                    ClaimKind::Fresh => "fresh",
                    ClaimKind::Retry => "retry",
                    ClaimKind::Takeover => "takeover",
                };
                counter!(ACQUIRED, "kind" => kind).increment(1);
                if kind == "fresh" {
                    histogram!(START_SECONDS).record(age);
                }
            }
            Event::Retired { retired } => {
                counter!(DEAD, "event" => retired.event.label()).increment(1);
            }
            Event::Unreadable { .. } => counter!(UNREADABLE).increment(1),
            Event::Stopped { .. } => counter!(STOPPED).increment(1),
            Event::Panicked { .. } => counter!(PANICS).increment(1),
            Event::LeaseLost { .. } => counter!(LEASE_LOST).increment(1),
            Event::LeaseExpiring { .. } => {}
            Event::Detached { .. } => counter!(DETACHED).increment(1),
            Event::Settled {
                delivery,
                settlement,
                ran,
                ..
            } => {
                let event = delivery.event().label();
                counter!(ATTEMPTS, "result" => settlement.as_str()).increment(1);
                histogram!(HANDLER_SECONDS, "event" => event).record(ran);
                if let Settlement::Failed {
                    next: Failed::Dead, ..
                } = settlement
                {
                    counter!(DEAD, "event" => event).increment(1);
                }
            }
            Event::Answered {
                event,
                outcome,
                rejection,
                took,
                ..
            } => {
                let event = event.map_or("unknown", |event| event.label());
                counter!(RECEIVED, "event" => event, "outcome" => outcome.as_str()).increment(1);
                histogram!(RESPONSE_SECONDS).record(took);
                if let Some(rejection) = rejection {
                    counter!(REJECTED, "reason" => rejection.as_str()).increment(1);
                }
            }
        }
    }
}
