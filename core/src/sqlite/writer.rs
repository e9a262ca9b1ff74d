//! The one writer of a file.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::turn::Turn;
use super::{Seals, fails_alone, rows, taking, unavailable};
use crate::batch::{
    Answers, Asked, Batch, Decided, Keep, Outcomes, Pipeline, Plan, Taking, Terms, Verdict,
    Verdicts, rounds,
};
use crate::claim::{Claim, RetryGate};
use crate::error::StoreError;
use crate::inbox::{Announcer, EnqueueOutcome};
use crate::key::ClaimKey;
use crate::machine;
use crate::record::State;
use crate::seal::Sealer;
use crate::settle::{Settle, Settled};
use crate::time::{Clock, Timestamp, micros};

pub(super) const CLAIM: &str = include_str!("claim.sql");
pub(super) const ENQUEUE: &str = include_str!("enqueue.sql");
pub(super) const COVERED: &str = include_str!("covered.sql");
pub(super) const STANDING: &str = include_str!("standing.sql");
pub(super) const SETTLE: &str = include_str!("settle.sql");

/// Carries batches: each is one commit.
pub(super) struct Writer {
    turn: Turn,
    clock: Arc<dyn Clock>,
    seals: Seals,
    announcer: Announcer,
}

/// What one commit carries.
#[derive(Default)]
struct Work<'a> {
    settles: &'a [Settle],
    keeps: &'a [Keep],
    acquires: &'a [Taking],
    claims: &'a [Asked],
}

impl Writer {
    pub(super) fn new(
        turn: Turn,
        clock: Arc<dyn Clock>,
        seals: Seals,
        announcer: Announcer,
    ) -> Self {
        Self {
            turn,
            clock,
            seals,
            announcer,
        }
    }

    async fn write(&self, work: Work<'_>) -> Result<Answers, StoreError> {
        let mut tx = self.turn.begin().await?;
        let now = self.clock.now();
        let sealer = self.seals.current();
        // Settlements first: a renewal that waited behind a long transaction is not to find its lease taken over.
        // Payloads next, for the same reason. Claims are last: what they store is not to be missed by others.
        let answers = Answers {
            settles: settle(&mut tx, work.settles, now).await?,
            keeps: taking::keep(&mut tx, work.keeps, &sealer).await?,
            acquires: taking::acquire(&mut tx, work.acquires, now, &sealer).await?,
            claims: claim(&mut tx, work.claims, now, &sealer).await?,
        };
        tx.commit()
            .await
            .map_err(|error| unavailable("the batch could not be committed", error))?;
        Ok(answers)
    }
}

impl Pipeline for Writer {
    async fn carry(&mut self, batch: Batch) {
        let work = Work {
            settles: batch.settles(),
            keeps: batch.keeps(),
            acquires: batch.acquires(),
            claims: batch.claims(),
        };
        let answers = match self.write(work).await {
            Ok(answers) => answers,
            Err(error) => Answers::failed(&batch, &error),
        };
        let is_accepted =
            |outcome: &_| matches!(outcome, Ok(Decided::Stored(EnqueueOutcome::Accepted)));
        if answers.claims.iter().any(is_accepted) {
            self.announcer.announce();
        }
        let orphans = batch.answer(answers);
        if !orphans.is_empty() {
            let releases: Vec<Settle> = orphans
                .iter()
                .map(|held| Settle::release(held, Duration::ZERO))
                .collect();
            let work = Work {
                settles: &releases,
                ..Work::default()
            };
            // If this fails, the lease of the claim runs out.
            let _ = self.write(work).await;
        }
    }
}

/// Decides on claims, and on deliveries that are to be stored for later.
pub(super) async fn claim(
    connection: &mut SqliteConnection,
    claims: &[Asked],
    now: Timestamp,
    sealer: &Sealer,
) -> Result<Outcomes, StoreError> {
    if claims.is_empty() {
        return Ok(Vec::new());
    }
    let failed = |error| unavailable("the claim could not be decided", error);
    let plan = Plan::new(claims);
    let mut verdicts: Verdicts = vec![None; claims.len()];
    let mut groups = plan.by_terms(claims);
    while let Some((terms, group)) = groups.pop() {
        let changed = if terms.stored {
            store(connection, claims, &group, terms, now, sealer).await
        } else {
            begin(connection, claims, &group, terms, now).await
        };
        let changed = match changed {
            Ok(changed) => changed,
            Err(Failed::Alone(error)) => {
                if let [at] = group[..] {
                    verdicts[at] = Some(Err(error));
                } else {
                    // One of them is at fault; each is asked for itself.
                    groups.extend(group.into_iter().map(|at| (terms, vec![at])));
                }
                continue;
            }
            Err(Failed::Whole(error)) => return Err(error),
        };
        let positions: HashMap<(&str, &str), usize> = group
            .iter()
            .map(|&at| (name(&claims[at].claim.key), at))
            .collect();
        let place = |row| -> Result<usize, StoreError> {
            let at = positions.get(&rows::name(row)?);
            at.copied().ok_or_else(rows::corrupt)
        };
        let verdict = |standing| Verdict::Row {
            standing,
            busy: false,
            now,
        };
        for row in &changed {
            let at = place(row)?;
            verdicts[at] = Some(rows::changed(row, &claims[at].claim, now).map(verdict));
        }
        if changed.len() < group.len() {
            let names: Vec<_> = group
                .iter()
                .filter(|&&at| verdicts[at].is_none())
                .map(|&at| name(&claims[at].claim.key))
                .collect();
            let standing = sqlx::query(STANDING)
                .bind(json(&names)?)
                .fetch_all(&mut *connection)
                .await
                .map_err(failed)?;
            for row in &standing {
                verdicts[place(row)?] = Some(rows::standing(row).map(verdict));
            }
        }
    }
    let covered: Vec<_> = plan
        .maybe_covered(claims, &verdicts)
        .into_iter()
        .map(|at| named(&claims[at].claim))
        .collect();
    if !covered.is_empty() {
        sqlx::query(COVERED)
            .bind(json(&covered)?)
            .bind(now.as_micros())
            .execute(&mut *connection)
            .await
            .map_err(failed)?;
    }
    Ok(plan.outcomes(claims, &verdicts))
}

/// A statement that failed.
enum Failed {
    /// And nothing but it: the transaction goes on.
    Alone(StoreError),
    /// And its batch with it.
    Whole(StoreError),
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self::Whole(error)
    }
}

fn sort(error: sqlx::Error) -> Failed {
    let alone = fails_alone(&error);
    let error = unavailable("the claim could not be decided", error);
    if alone {
        Failed::Alone(error)
    } else {
        Failed::Whole(error)
    }
}

async fn begin(
    connection: &mut SqliteConnection,
    claims: &[Asked],
    group: &[usize],
    terms: Terms,
    now: Timestamp,
) -> Result<Vec<SqliteRow>, Failed> {
    let wanted: Vec<_> = group
        .iter()
        .map(|&at| requested(&claims[at].claim))
        .collect();
    sqlx::query(CLAIM)
        .bind(json(&wanted)?)
        .bind(micros(terms.policy.lease))
        .bind(i64::from(terms.policy.max_attempts))
        .bind(terms.gate == RetryGate::Open)
        .bind(now.as_micros())
        .bind(machine::LEASE_EXPIRED)
        .fetch_all(&mut *connection)
        .await
        .map_err(sort)
}

async fn store(
    connection: &mut SqliteConnection,
    claims: &[Asked],
    group: &[usize],
    terms: Terms,
    now: Timestamp,
    sealer: &Sealer,
) -> Result<Vec<SqliteRow>, Failed> {
    let size = |&at: &usize| {
        let kept = claims[at].claim.kept.as_ref();
        kept.map_or(0, |kept| kept.request.body().len() + 64)
    };
    // In one piece, and not as digits among the rest: they are most of what is written.
    let mut payloads: Vec<u8> = Vec::with_capacity(group.iter().map(size).sum());
    let mut wanted = Vec::with_capacity(group.len());
    for &at in group {
        let claim = &claims[at].claim;
        let kept = claim.kept.as_ref().ok_or_else(rows::corrupt)?;
        let (payload, sealed_with) = sealer.seal(&claim.key, kept.request.body());
        wanted.push((
            claim.key.source().as_str(),
            claim.key.key(),
            claim.delivery_id.as_str(),
            claim.event.as_str(),
            claim.action.as_deref(),
            hex(claim.token.to_bytes()),
            claim
                .compared_fingerprint()
                .map(|print| hex(print.to_bytes())),
            kept.ordering_key.as_deref(),
            micros(kept.delay),
            kept.request.envelope_json(),
            sealed_with,
            payloads.len() + 1,
            payload.len(),
        ));
        payloads.extend_from_slice(&payload);
    }
    sqlx::query(ENQUEUE)
        .bind(json(&wanted)?)
        .bind(payloads)
        .bind(i64::from(terms.policy.max_attempts))
        .bind(now.as_micros())
        .bind(machine::LEASE_EXPIRED)
        .fetch_all(&mut *connection)
        .await
        .map_err(sort)
}

async fn settle(
    connection: &mut SqliteConnection,
    settles: &[Settle],
    now: Timestamp,
) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
    let failed = |error| unavailable("the attempt could not be settled", error);
    let mut answers: Vec<Option<Result<Settled, StoreError>>> =
        settles.iter().map(|_| None).collect();
    for round in rounds(settles) {
        let positions: HashMap<(&str, &str), usize> = round
            .iter()
            .map(|&at| (name(&settles[at].key), at))
            .collect();
        let wanted: Vec<_> = round
            .iter()
            .map(|&at| requested_settlement(&settles[at]))
            .collect();
        let changed = sqlx::query(SETTLE)
            .bind(json(&wanted)?)
            .bind(now.as_micros())
            .fetch_all(&mut *connection)
            .await
            .map_err(failed)?;
        for row in &changed {
            let at = *positions.get(&rows::name(row)?).ok_or_else(rows::corrupt)?;
            let state = row.try_get("state").map_err(failed)?;
            let state = State::from_code(state).ok_or_else(rows::corrupt)?;
            let lease_until = rows::time(row, "lease_until").map_err(failed)?;
            let retry_at = rows::time(row, "retry_at").map_err(failed)?;
            answers[at] = Some(Ok(settles[at].changed(state, lease_until, retry_at, now)));
        }
        let unchanged: Vec<usize> = round
            .into_iter()
            .filter(|&at| answers[at].is_none())
            .collect();
        if unchanged.is_empty() {
            continue;
        }
        let names: Vec<_> = unchanged.iter().map(|&at| name(&settles[at].key)).collect();
        let found = sqlx::query(STANDING)
            .bind(json(&names)?)
            .fetch_all(&mut *connection)
            .await
            .map_err(failed)?;
        for row in &found {
            let at = *positions.get(&rows::name(row)?).ok_or_else(rows::corrupt)?;
            answers[at] = Some(settles[at].unchanged(Some(&rows::record(row)?)));
        }
    }
    Ok(answers
        .into_iter()
        .map(|answer| answer.unwrap_or_else(|| Err(StoreError::lease_lost())))
        .collect())
}

pub(super) fn name(key: &ClaimKey) -> (&str, &str) {
    (key.source().as_str(), key.key())
}

/// What names a delivery.
fn named(claim: &Claim) -> impl Serialize {
    (
        claim.key.source().as_str(),
        claim.key.key(),
        claim.delivery_id.as_str(),
        claim.event.as_str(),
        claim.action.as_deref(),
    )
}

fn requested(claim: &Claim) -> impl Serialize {
    (
        claim.key.source().as_str(),
        claim.key.key(),
        claim.delivery_id.as_str(),
        claim.event.as_str(),
        claim.action.as_deref(),
        hex(claim.token.to_bytes()),
        claim
            .compared_fingerprint()
            .map(|print| hex(print.to_bytes())),
    )
}

fn requested_settlement(settle: &Settle) -> impl Serialize {
    let (source, key) = name(&settle.key);
    (
        source,
        key,
        hex(settle.token.to_bytes()),
        settle.code(),
        settle.span(),
        settle.bound(),
        settle.class(),
        settle.message(),
    )
}

pub(super) fn hex(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}

pub(super) fn json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| rows::corrupt().with_source(error))
}
