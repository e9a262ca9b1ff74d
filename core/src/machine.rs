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

use crate::claim::{Claim, ClaimKind, ClaimOutcome, Failed, Failure, Held, LeasePolicy, RetryGate};
use crate::delivery::DeliveryId;
use crate::inbox::{Enqueue, EnqueueOutcome, Order};
use crate::key::ClaimKey;
use crate::operator::Retried;
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
    let resent = record.state == State::Processing && record.token == claim.token;
    if body_differs(record.fingerprint, claim) || resent || !is_claimable(record, claim.gate, now) {
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
    Some(begun(next, claim.token, &claim.policy, now))
}

/// The next attempt at a delivery begins.
fn begun(mut next: Record, token: ClaimToken, policy: &LeasePolicy, now: Timestamp) -> Record {
    next.state = State::Processing;
    next.token = token;
    next.fence += 1;
    next.attempts += 1;
    next.claimed_at = Some(now);
    next.renewed_at = Some(now);
    next.lease_until = Some(now + policy.lease);
    next.retry_at = None;
    next
}

/// What storing a delivery for later changes; `None` if nothing.
///
/// A delivery that has its payload runs by itself. One that failed without it, or whose lease is over, gets it now.
#[must_use]
pub fn enqueue(record: Option<&Record>, enqueue: &Enqueue, now: Timestamp) -> Option<Record> {
    let claim = &enqueue.claim;
    let kept = claim.kept.as_deref()?;
    let received = |mut next: Record| {
        next.state = State::Received;
        next.token = claim.token;
        next.has_payload = true;
        next.ordering_key.clone_from(&kept.ordering_key);
        next.renewed_at = None;
        next.lease_until = None;
        next.retry_at = Some(now + kept.delay);
        next
    };
    let Some(record) = record else {
        let mut next = received(fresh(claim, now));
        next.attempts = 0;
        next.fence = 0;
        next.claimed_at = None;
        return Some(next);
    };
    let resent = record.token == claim.token;
    if record.has_payload
        || resent
        || body_differs(record.fingerprint, claim)
        || !is_claimable(record, RetryGate::Open, now)
    {
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
    Some(received(next))
}

/// The answer to an [`enqueue`], read off the row as it left it. `busy` says that the row was locked by somebody else.
#[must_use]
pub fn enqueued(row: Standing, enqueue: &Enqueue, busy: bool, now: Timestamp) -> EnqueueOutcome {
    stored(row, &enqueue.claim, busy, now)
}

pub(crate) fn stored(row: Standing, claim: &Claim, busy: bool, now: Timestamp) -> EnqueueOutcome {
    if row.token == claim.token && row.state == State::Received {
        return EnqueueOutcome::Accepted;
    }
    if body_differs(row.fingerprint, claim) {
        return EnqueueOutcome::BodyMismatch { state: row.state };
    }
    match row.state {
        _ if busy => EnqueueOutcome::InProgress,
        State::Received | State::Processing => EnqueueOutcome::InProgress,
        State::Completed => EnqueueOutcome::Completed,
        State::Dead => EnqueueOutcome::Dead,
        State::Failed => EnqueueOutcome::NotDue {
            retry_at: row.retry_at.unwrap_or(now),
        },
    }
}

/// What a worker that takes this delivery changes; `None` if it is not to be had. The record is dead afterwards if its
/// attempts are used up.
#[must_use]
pub fn acquire(
    record: &Record,
    token: ClaimToken,
    policy: &LeasePolicy,
    now: Timestamp,
) -> Option<Record> {
    if !record.has_payload || !is_claimable(record, RetryGate::WhenDue, now) {
        return None;
    }
    let mut next = record.clone();
    if record.state == State::Processing {
        next.error_class = Some(ErrorClass::LeaseExpired);
        next.last_error = Some(LEASE_EXPIRED.to_owned());
    }
    if record.attempts >= policy.max_attempts {
        return Some(finished(next, State::Dead, now));
    }
    Some(begun(next, token, policy, now))
}

/// Whether `other` keeps `record` from starting, both of one source and ordering key.
///
/// One that runs does. So does one that arrived earlier and is due, or, in strict order, will be. One whose lease is
/// over is due: it would otherwise keep those from starting that nobody takes over before it.
#[must_use]
pub fn goes_first(other: &Record, record: &Record, order: Order, now: Timestamp) -> bool {
    let earlier = (other.received_at, &other.key) < (record.received_at, &record.key);
    match other.state {
        State::Processing if is_lease_over(other, now) => earlier && other.has_payload,
        State::Processing => other.key != record.key,
        State::Received | State::Failed => {
            earlier
                && other.has_payload
                && (order == Order::Strict || other.retry_at.is_none_or(|at| at <= now))
        }
        State::Completed | State::Dead => false,
    }
}

/// What an operator's order to run a delivery again changes, and what it is told.
#[must_use]
pub fn retry(
    record: Option<&Record>,
    token: ClaimToken,
    force: bool,
    now: Timestamp,
) -> (Retried, Option<Record>) {
    let Some(record) = record else {
        return (Retried::Unknown, None);
    };
    match record.state {
        State::Processing if !is_lease_over(record, now) => return (Retried::InProgress, None),
        State::Completed if !force => return (Retried::Completed, None),
        _ => {}
    }
    let mut next = record.clone();
    next.state = if record.has_payload {
        State::Received
    } else {
        State::Failed
    };
    // Whoever held it before settles nothing any more.
    next.token = token;
    next.attempts = 0;
    next.renewed_at = None;
    next.lease_until = None;
    next.finished_at = None;
    next.retry_at = Some(now);
    let told = if record.has_payload {
        Retried::Due
    } else {
        Retried::AwaitsRedelivery
    };
    (told, Some(next))
}

/// Whether a delivery is covered by the work that stands under its key: another delivery came first.
#[must_use]
pub fn is_covered(record: &Record, claim: &Claim) -> bool {
    claim.key.is_business() && record.delivery_id != claim.delivery_id
}

/// Attaches a payload to a claim that is held, so that a worker can take it over. `None` if it has one.
///
/// # Errors
///
/// [`LeaseLost`] if `token` does not hold the delivery.
pub fn keep(record: Option<&Record>, token: ClaimToken) -> Result<Option<Record>, LeaseLost> {
    let record = owned(record, token)?;
    match record.state {
        State::Processing if record.has_payload => Ok(None),
        State::Processing => {
            let mut next = record.clone();
            next.has_payload = true;
            Ok(Some(next))
        }
        // It was settled meanwhile: there is nothing left to take over.
        State::Completed | State::Failed | State::Dead | State::Received => Err(LeaseLost),
    }
}

fn body_differs(stored: Option<Fingerprint>, claim: &Claim) -> bool {
    match (stored, claim.compared_fingerprint()) {
        (Some(stored), Some(offered)) => stored.differs_from(offered),
        _ => false,
    }
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
        has_payload: false,
        covered_by: None,
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
        let stored = claim.kept.is_some();
        Self {
            state: if stored {
                State::Received
            } else {
                State::Processing
            },
            token: claim.token,
            fence: u64::from(!stored),
            attempts: u32::from(!stored),
            fingerprint: claim.compared_fingerprint(),
            lease_until: (!stored).then(|| now + claim.policy.lease),
            retry_at: claim.kept.as_ref().map(|kept| now + kept.delay),
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
        return ClaimOutcome::Won(held(
            row,
            claim.key.clone(),
            claim.delivery_id.clone(),
            claim.policy,
            now,
            sent,
        ));
    }
    if body_differs(row.fingerprint, claim) {
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

/// The claim that a leased row belongs to.
pub(crate) fn held(
    row: Standing,
    key: ClaimKey,
    delivery_id: DeliveryId,
    policy: LeasePolicy,
    now: Timestamp,
    sent: std::time::Instant,
) -> Held {
    let lease_left = row
        .lease_until
        .map_or(Duration::ZERO, |until| until.since(now));
    Held {
        key,
        delivery_id,
        token: row.token,
        fence: row.fence,
        attempt: row.attempts,
        kind: match (row.fence, row.error_class) {
            (0 | 1, _) => ClaimKind::Fresh,
            (_, Some(ErrorClass::LeaseExpired)) => ClaimKind::Takeover,
            _ => ClaimKind::Retry,
        },
        deadline: sent + lease_left,
        policy,
    }
}

/// Completes an attempt. Completing again changes nothing and is no error.
///
/// A lease that is over is no obstacle as long as nobody took the delivery over. A stored payload is dropped unless it
/// is to be kept.
///
/// # Errors
///
/// [`LeaseLost`] if `token` does not hold the delivery.
pub fn complete(
    record: Option<&Record>,
    token: ClaimToken,
    keep_payload: bool,
    now: Timestamp,
) -> Result<Option<Record>, LeaseLost> {
    let record = owned(record, token)?;
    match record.state {
        State::Processing => {
            let mut next = finished(record.clone(), State::Completed, now);
            next.has_payload &= keep_payload;
            Ok(Some(next))
        }
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
