//! The state machine of a delivery, as pure functions.
//!
//! Each function takes what is remembered, what is asked and the time, and says what has to be remembered afterwards.
//! Stores say the same in SQL; the model test (feature `test-util`) holds them to it.
//!
//! ```text
//!                 claim (new key)
//!        ┌──────────────────────────────┐
//!        │                              ▼
//!        ·  enqueue   ┌────────┐ acquire ┌────────────┐ complete  ┌───────────┐
//!        └──────────▶ │received│ ──────▶ │ processing │ ────────▶ │ completed │ ── prune ▶ ·
//!                     └────────┘         └────────────┘           └───────────┘
//!                         claim, acquire ▲   │    │ ▲ └┐ lease over: claim or acquire
//!                          once due      │   │    │ └──┘ takes over with a new token
//!                                   ┌────┴───┐    │ fail (permanent, or no attempts left),
//!             fail (transient), or  │ failed │    │ or lease over and no attempts left
//!             release ─────────────▶└────────┘    ▼
//!                                              ┌──────┐
//!                                              │ dead │ ── prune ▶ ·
//!                                              └──────┘
//! ```
//!
//! - A **claim token** names one claim. Whoever lost the claim has an old token, and every write of it is refused.
//! - A **fence** counts claims and never goes back; other systems can refuse what carries a lower one.
//! - **Attempts** count claims against the limit, when they begin. A release takes its attempt back.
//! - A **lease** is over when its end has come, or when its begin lies in the future: then the clock was set back.

use std::time::Duration;

use crate::claim::{Claim, ClaimKind, ClaimOutcome, Failed, Failure, Held, RetryGate};
use crate::record::{ClaimToken, ErrorClass, Record, State};
use crate::signature::Fingerprint;
use crate::time::{LONGEST, Timestamp};

/// How far in the future the begin of a lease may lie before the clock is known to have been set back.
pub const CLOCK_TOLERANCE: Duration = Duration::from_secs(1);

/// What the operator reads of an attempt that never said how it ended.
pub const LEASE_EXPIRED: &str = "the lease ran out before the attempt was settled";

/// The claim that a write names is not, or no longer, the one that holds the delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the lease was lost: another attempt holds the delivery, or it was settled already")]
pub struct LeaseLost;

/// What a claim changes; `None` if nothing. [`outcome`] reads the verdict off the row that is there afterwards.
#[must_use]
pub fn claim(record: Option<&Record>, claim: &Claim, now: Timestamp) -> Option<Record> {
    let Some(record) = record else {
        return Some(fresh(claim, now));
    };
    let body_differs = match (record.fingerprint, claim.compared_fingerprint()) {
        (Some(stored), Some(offered)) => stored.differs_from(offered),
        _ => false,
    };
    let resent = record.state == State::Processing && record.token == claim.token;
    if body_differs || resent || !is_claimable(record, claim.gate, now) {
        return None;
    }
    let mut next = record.clone();
    if record.state == State::Processing {
        next.error_class = Some(ErrorClass::LeaseExpired);
        next.last_error = Some(LEASE_EXPIRED.to_owned());
    }
    if record.attempts >= claim.policy.max_attempts {
        return Some(finished(next, State::Dead, now));
    }
    next.state = State::Processing;
    next.token = claim.token;
    next.fence += 1;
    next.attempts += 1;
    next.claimed_at = Some(now);
    next.renewed_at = Some(now);
    next.lease_until = Some(now + claim.policy.lease);
    next.retry_at = None;
    Some(next)
}

fn fresh(claim: &Claim, now: Timestamp) -> Record {
    Record {
        key: claim.key.clone(),
        delivery_id: claim.delivery_id.clone(),
        event: claim.event.clone(),
        action: claim.action.as_deref().map(ToOwned::to_owned),
        ordering_key: None,
        state: State::Processing,
        attempts: 1,
        fence: 1,
        token: claim.token,
        fingerprint: claim.compared_fingerprint(),
        received_at: now,
        claimed_at: Some(now),
        renewed_at: Some(now),
        lease_until: Some(now + claim.policy.lease),
        retry_at: None,
        finished_at: None,
        error_class: None,
        last_error: None,
    }
}

fn is_claimable(record: &Record, gate: RetryGate, now: Timestamp) -> bool {
    match record.state {
        State::Processing => is_lease_over(record, now),
        State::Received | State::Failed => {
            gate == RetryGate::Open || record.retry_at.is_none_or(|at| at <= now)
        }
        State::Completed | State::Dead => false,
    }
}

fn is_lease_over(record: &Record, now: Timestamp) -> bool {
    record.lease_until.is_none_or(|until| until <= now)
        || record
            .renewed_at
            .is_none_or(|since| since > now + CLOCK_TOLERANCE)
}

fn finished(mut record: Record, state: State, now: Timestamp) -> Record {
    record.state = state;
    record.renewed_at = None;
    record.lease_until = None;
    record.retry_at = None;
    record.finished_at = Some(now);
    record
}

/// The part of a row that a claim is answered from.
#[derive(Clone, Copy, Debug)]
pub struct Standing {
    /// Where it stands.
    pub state: State,
    /// Its last claim.
    pub token: ClaimToken,
    /// Its fence.
    pub fence: u64,
    /// Its attempts.
    pub attempts: u32,
    /// Its body.
    pub fingerprint: Option<Fingerprint>,
    /// The end of its lease.
    pub lease_until: Option<Timestamp>,
    /// When another attempt is due.
    pub retry_at: Option<Timestamp>,
    /// How the last attempt failed.
    pub error_class: Option<ErrorClass>,
}

impl Standing {
    /// How the row of a new key stands after this claim.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn fresh(claim: &Claim, now: Timestamp) -> Self {
        Self {
            state: State::Processing,
            token: claim.token,
            fence: 1,
            attempts: 1,
            fingerprint: claim.compared_fingerprint(),
            lease_until: Some(now + claim.policy.lease),
            retry_at: None,
            error_class: None,
        }
    }
}

impl From<&Record> for Standing {
    fn from(record: &Record) -> Self {
        Self {
            state: record.state,
            token: record.token,
            fence: record.fence,
            attempts: record.attempts,
            fingerprint: record.fingerprint,
            lease_until: record.lease_until,
            retry_at: record.retry_at,
            error_class: record.error_class,
        }
    }
}

/// The answer to a claim, read off the row as the claim left it.
///
/// `busy` says that the row could have been claimed and was locked by somebody else. `sent` is an instant before the
/// claim was sent: the local deadline is counted from there, so that it errs on the safe side.
pub fn outcome(
    row: Standing,
    claim: &Claim,
    busy: bool,
    now: Timestamp,
    sent: std::time::Instant,
) -> ClaimOutcome {
    if row.state == State::Processing && row.token == claim.token {
        return ClaimOutcome::Won(Held {
            key: claim.key.clone(),
            delivery_id: claim.delivery_id.clone(),
            token: row.token,
            fence: row.fence,
            attempt: row.attempts,
            kind: match (row.fence, row.error_class) {
                (0 | 1, _) => ClaimKind::Fresh,
                (_, Some(ErrorClass::LeaseExpired)) => ClaimKind::Takeover,
                _ => ClaimKind::Retry,
            },
            deadline: sent
                + row
                    .lease_until
                    .map_or(Duration::ZERO, |until| until.since(now)),
            policy: claim.policy,
        });
    }
    if let (Some(stored), Some(offered)) = (row.fingerprint, claim.compared_fingerprint())
        && stored.differs_from(offered)
    {
        return ClaimOutcome::BodyMismatch { state: row.state };
    }
    match row.state {
        _ if busy => ClaimOutcome::InProgress {
            lease_left: Duration::ZERO,
        },
        State::Processing => {
            let lease_left = row
                .lease_until
                .map_or(Duration::ZERO, |until| until.since(now));
            ClaimOutcome::InProgress { lease_left }
        }
        State::Completed => ClaimOutcome::Completed,
        State::Dead => ClaimOutcome::Dead,
        State::Received | State::Failed => ClaimOutcome::NotDue {
            retry_at: row.retry_at.unwrap_or(now),
        },
    }
}

/// Completes an attempt. Completing again changes nothing and is no error.
///
/// A lease that is over is no obstacle as long as nobody took the delivery over.
///
/// # Errors
///
/// [`LeaseLost`] if `token` does not hold the delivery.
pub fn complete(
    record: Option<&Record>,
    token: ClaimToken,
    now: Timestamp,
) -> Result<Option<Record>, LeaseLost> {
    let record = owned(record, token)?;
    match record.state {
        State::Processing => Ok(Some(finished(record.clone(), State::Completed, now))),
        State::Completed => Ok(None),
        State::Received | State::Failed | State::Dead => Err(LeaseLost),
    }
}

/// Records that an attempt failed. Doing so again changes nothing and has the same answer.
///
/// # Errors
///
/// [`LeaseLost`] if `token` does not hold the delivery.
pub fn fail(
    record: Option<&Record>,
    token: ClaimToken,
    failure: &Failure,
    max_attempts: u32,
    now: Timestamp,
) -> Result<(Failed, Option<Record>), LeaseLost> {
    let record = owned(record, token)?;
    match record.state {
        State::Processing => {
            let mut next = record.clone();
            next.error_class = Some(failure.class);
            next.last_error = Some(failure.message.clone());
            if failure.class == ErrorClass::Permanent || record.attempts >= max_attempts {
                return Ok((Failed::Dead, Some(finished(next, State::Dead, now))));
            }
            let at = now + failure.delay;
            Ok((Failed::Retry { at }, Some(waiting(next, at))))
        }
        State::Failed => Ok((
            Failed::Retry {
                at: record.retry_at.unwrap_or(now),
            },
            None,
        )),
        State::Dead => Ok((Failed::Dead, None)),
        State::Received | State::Completed => Err(LeaseLost),
    }
}

/// Hands a delivery back. The attempt does not count, the fence stays.
///
/// # Errors
///
/// [`LeaseLost`] if `token` does not hold the delivery.
pub fn release(
    record: Option<&Record>,
    token: ClaimToken,
    delay: Duration,
    now: Timestamp,
) -> Result<Option<Record>, LeaseLost> {
    let record = owned(record, token)?;
    match record.state {
        State::Processing => {
            let mut next = record.clone();
            next.attempts = next.attempts.saturating_sub(1);
            next.error_class = Some(ErrorClass::Released);
            next.last_error = None;
            Ok(Some(waiting(next, now + delay.min(LONGEST))))
        }
        State::Failed if record.error_class == Some(ErrorClass::Released) => Ok(None),
        State::Failed | State::Received | State::Completed | State::Dead => Err(LeaseLost),
    }
}

/// Begins the lease anew, within the longest hold since the claim.
///
/// # Errors
///
/// [`LeaseLost`] if `token` does not hold the delivery.
pub fn renew(
    record: Option<&Record>,
    token: ClaimToken,
    lease: Duration,
    max_hold: Duration,
    now: Timestamp,
) -> Result<Record, LeaseLost> {
    let record = owned(record, token)?;
    if record.state != State::Processing {
        return Err(LeaseLost);
    }
    let mut next = record.clone();
    let cap = record.claimed_at.unwrap_or(now) + max_hold;
    next.renewed_at = Some(now);
    next.lease_until = Some((now + lease).min(cap));
    Ok(next)
}

fn waiting(mut record: Record, retry_at: Timestamp) -> Record {
    record.state = State::Failed;
    record.renewed_at = None;
    record.lease_until = None;
    record.retry_at = Some(retry_at);
    record
}

fn owned(record: Option<&Record>, token: ClaimToken) -> Result<&Record, LeaseLost> {
    record
        .filter(|record| record.token == token)
        .ok_or(LeaseLost)
}
