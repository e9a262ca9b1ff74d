//! Claims that begin, claims that are stored for later, and what they cover.

use std::collections::HashMap;

use bytes::Bytes;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::link::{RESENDS, Statement};
use super::pipeline::PgPipeline;
use super::{rows, unavailable};
use crate::batch::{Asked, Decided, Outcomes, Plan, Terms, Verdict, Verdicts, pause};
use crate::claim::{Claim, ClaimOutcome, RetryGate};
use crate::error::StoreError;
use crate::inbox::EnqueueOutcome;
use crate::machine;
use crate::seal::Sealer;
use crate::time::{Timestamp, micros};

pub(super) const CLAIM: &str = include_str!("claim.sql");
pub(super) const ENQUEUE: &str = include_str!("enqueue.sql");
pub(super) const COVERED: &str = include_str!("covered.sql");

/// How many claims of one batch may wait in vain for a lock, one after another.
const HELD_UP: u32 = 3;

impl PgPipeline {
    pub(super) async fn claims(&mut self, claims: &[Asked]) -> Outcomes {
        let plan = Plan::new(claims);
        let mut verdicts: Verdicts = vec![None; claims.len()];
        for (terms, group) in plan.by_terms(claims) {
            let Err(error) = self.claim_group(claims, terms, &group, &mut verdicts).await else {
                continue;
            };
            let mut patience = if is_held_up(&error) { HELD_UP } else { 0 };
            for at in group {
                if patience == 0 {
                    verdicts[at] = Some(Err(error.clone()));
                    continue;
                }
                // Somebody inserts one of these keys in a transaction that takes its time. The others need not wait
                // for it. Many that wait are another matter: the table itself is locked.
                if let Err(error) = self.claim_group(claims, terms, &[at], &mut verdicts).await {
                    patience -= 1;
                    verdicts[at] = Some(Err(error));
                }
            }
        }
        let maybe_covered = plan.maybe_covered(claims, &verdicts);
        let mut outcomes = plan.outcomes(claims, &verdicts);
        self.cover(claims, &maybe_covered, &mut outcomes).await;
        let stored = |outcome: &Result<Decided, StoreError>| {
            matches!(outcome, Ok(Decided::Stored(EnqueueOutcome::Accepted)))
        };
        if outcomes.iter().any(stored) {
            self.bell.ring();
        }
        outcomes
    }

    /// Writes down deliveries that are covered by another's work, before anybody is told so. Whoever cannot be told
    /// that it is written down is told of the failure, and asks again. Whoever won is told that all the same: the work
    /// matters more than its mention.
    async fn cover(&mut self, claims: &[Asked], positions: &[usize], outcomes: &mut Outcomes) {
        if positions.is_empty() {
            return;
        }
        let Err(error) = self.cover_once(claims, positions).await else {
            return;
        };
        let mut patience = if is_held_up(&error) { HELD_UP } else { 0 };
        for &at in positions {
            let failed = if patience == 0 {
                Err(error.clone())
            } else {
                self.cover_once(claims, &[at]).await
            };
            let Err(error) = failed else { continue };
            patience = patience.saturating_sub(1);
            match &outcomes[at] {
                Ok(
                    Decided::Claimed(ClaimOutcome::Won(_))
                    | Decided::Stored(EnqueueOutcome::Accepted),
                )
                | Err(_) => {}
                Ok(_) => outcomes[at] = Err(error),
            }
        }
    }

    async fn cover_once(
        &mut self,
        claims: &[Asked],
        positions: &[usize],
    ) -> Result<(), StoreError> {
        let now = self.now();
        let claims = positions.iter().map(|&at| &claims[at].claim);
        let columns = Columns::new(claims);
        self.link
            .run(|| columns.covered(now))
            .await
            .map(drop)
            .map_err(not_covered)
    }

    /// Claims under the same terms. What was sent twice is looked at again where the second sending met the first.
    async fn claim_group(
        &mut self,
        claims: &[Asked],
        terms: Terms,
        group: &[usize],
        verdicts: &mut Verdicts,
    ) -> Result<(), StoreError> {
        self.claim_once(claims, terms, group, verdicts).await?;
        let mut resent = self.link.resent;
        for round in 1..=RESENDS {
            let met: Vec<usize> = group
                .iter()
                .copied()
                .filter(|&at| {
                    let verdict = &verdicts[at];
                    matches!(
                        verdict,
                        Some(Ok(Verdict::Outrun | Verdict::Row { busy: true, .. }))
                    )
                })
                .collect();
            if !resent || met.is_empty() {
                break;
            }
            tokio::time::sleep(pause(round)).await;
            self.claim_once(claims, terms, &met, verdicts).await?;
            resent |= self.link.resent;
        }
        Ok(())
    }

    /// Claims under the same terms, in one statement.
    async fn claim_once(
        &mut self,
        claims: &[Asked],
        terms: Terms,
        group: &[usize],
        verdicts: &mut Verdicts,
    ) -> Result<(), StoreError> {
        let now = self.now();
        let columns = Columns::new(group.iter().map(|&at| &claims[at].claim));
        let rows = if terms.stored {
            let payloads = Payloads::new(group.iter().map(|&at| &claims[at].claim), &self.sealer);
            let statement = || columns.enqueue(&payloads, &terms, now);
            let rows = self.link.run(statement).await;
            rows.map_err(|error| unavailable("the delivery could not be stored", error))?
        } else {
            let rows = self.link.run(|| columns.claim(&terms, now)).await;
            rows.map_err(|error| unavailable("the claim could not be decided", error))?
        };
        for &at in group {
            verdicts[at] = Some(Ok(Verdict::Outrun));
        }
        read_verdicts(&rows, &columns, group, verdicts)
    }
}

/// Reads what a statement said of each claim of a group.
fn read_verdicts(
    rows: &[PgRow],
    columns: &Columns<'_>,
    group: &[usize],
    verdicts: &mut Verdicts,
) -> Result<(), StoreError> {
    let by_token: HashMap<uuid::Uuid, usize> = columns
        .tokens
        .iter()
        .copied()
        .zip(group.iter().copied())
        .collect();
    for row in rows {
        let token: uuid::Uuid = row.try_get("token").map_err(super::reading)?;
        let at = *by_token.get(&token).ok_or_else(rows::corrupt)?;
        verdicts[at] = Some(read_verdict(row));
    }
    Ok(())
}

/// Stores one claim for later within a transaction.
pub(super) async fn enqueue_in(
    connection: &mut sqlx::PgConnection,
    claim: Claim,
    sealer: &Sealer,
    now: Option<i64>,
) -> Result<EnqueueOutcome, StoreError> {
    let asked = [Asked::now(claim)];
    let plan = Plan::new(&asked);
    let columns = Columns::new(std::iter::once(&asked[0].claim));
    let payloads = Payloads::new(std::iter::once(&asked[0].claim), sealer);
    let mut verdicts: Verdicts = vec![Some(Ok(Verdict::Outrun))];
    for (terms, group) in plan.by_terms(&asked) {
        let rows = columns.enqueue(&payloads, &terms, now);
        let rows = rows.fetch_all(&mut *connection).await;
        let rows = rows.map_err(|error| unavailable("the work could not be stored", error))?;
        read_verdicts(&rows, &columns, &group, &mut verdicts)?;
    }
    if !plan.maybe_covered(&asked, &verdicts).is_empty() {
        let covered = columns.covered(now).execute(connection).await;
        covered.map_err(not_covered)?;
    }
    let outcome = plan.outcomes(&asked, &verdicts).pop();
    outcome.unwrap_or_else(|| Err(rows::corrupt()))?.stored()
}

fn not_covered(error: sqlx::Error) -> StoreError {
    unavailable("the covered delivery could not be written down", error)
}

/// Whether a statement gave up waiting for a lock.
fn is_held_up(error: &StoreError) -> bool {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref());
    cause.and_then(super::code).as_deref() == Some("55P03")
}

fn read_verdict(row: &PgRow) -> Result<Verdict, StoreError> {
    if row
        .try_get::<Option<i16>, _>("state")
        .map_err(super::reading)?
        .is_none()
    {
        return Ok(Verdict::Fresh);
    }
    Ok(Verdict::Row {
        standing: rows::standing(row)?,
        busy: row.try_get("busy").map_err(super::reading)?,
        now: Timestamp::from_micros(row.try_get("now").map_err(super::reading)?),
    })
}

/// Claims as the columns of `unnest`.
struct Columns<'a> {
    sources: Vec<&'a str>,
    keys: Vec<&'a str>,
    delivery_ids: Vec<&'a str>,
    events: Vec<&'a str>,
    actions: Vec<Option<&'a str>>,
    tokens: Vec<uuid::Uuid>,
    fingerprints: Vec<Option<[u8; 16]>>,
}

impl<'a> Columns<'a> {
    fn new(claims: impl ExactSizeIterator<Item = &'a Claim>) -> Self {
        let len = claims.len();
        let mut columns = Self {
            sources: Vec::with_capacity(len),
            keys: Vec::with_capacity(len),
            delivery_ids: Vec::with_capacity(len),
            events: Vec::with_capacity(len),
            actions: Vec::with_capacity(len),
            tokens: Vec::with_capacity(len),
            fingerprints: Vec::with_capacity(len),
        };
        for claim in claims {
            columns.sources.push(claim.key.source().as_str());
            columns.keys.push(claim.key.key());
            columns.delivery_ids.push(claim.delivery_id.as_str());
            columns.events.push(claim.event.as_str());
            columns.actions.push(claim.action.as_deref());
            columns.tokens.push(rows::uuid(claim.token));
            columns.fingerprints.push(
                claim
                    .compared_fingerprint()
                    .map(crate::Fingerprint::to_bytes),
            );
        }
        columns
    }

    fn claim(&self, terms: &Terms, now: Option<i64>) -> Statement {
        sqlx::query(CLAIM)
            .bind(&self.sources)
            .bind(&self.keys)
            .bind(&self.delivery_ids)
            .bind(&self.events)
            .bind(&self.actions)
            .bind(&self.tokens)
            .bind(&self.fingerprints)
            .bind(micros(terms.policy.lease))
            .bind(attempts(terms.policy.max_attempts))
            .bind(terms.gate == RetryGate::Open)
            .bind(now)
            .bind(machine::LEASE_EXPIRED)
    }

    fn enqueue(&self, payloads: &Payloads<'_>, terms: &Terms, now: Option<i64>) -> Statement {
        sqlx::query(ENQUEUE)
            .bind(&self.sources)
            .bind(&self.keys)
            .bind(&self.delivery_ids)
            .bind(&self.events)
            .bind(&self.actions)
            .bind(&self.tokens)
            .bind(&self.fingerprints)
            .bind(&payloads.ordering_keys)
            .bind(&payloads.sealed_with)
            .bind(&payloads.delays)
            .bind(&payloads.requests)
            .bind(
                payloads
                    .bodies
                    .iter()
                    .map(|body| &body[..])
                    .collect::<Vec<_>>(),
            )
            .bind(attempts(terms.policy.max_attempts))
            .bind(now)
            .bind(machine::LEASE_EXPIRED)
    }

    fn covered(&self, now: Option<i64>) -> Statement {
        sqlx::query(COVERED)
            .bind(&self.sources)
            .bind(&self.keys)
            .bind(&self.delivery_ids)
            .bind(&self.events)
            .bind(&self.actions)
            .bind(now)
    }
}

/// A number of attempts as the statements take it.
pub(super) fn attempts(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

/// What claims that are stored for later take along, as columns.
struct Payloads<'a> {
    ordering_keys: Vec<Option<&'a str>>,
    sealed_with: Vec<Option<&'a str>>,
    delays: Vec<i64>,
    requests: Vec<String>,
    bodies: Vec<Bytes>,
}

impl<'a> Payloads<'a> {
    fn new(claims: impl ExactSizeIterator<Item = &'a Claim>, sealer: &'a Sealer) -> Self {
        let len = claims.len();
        let mut payloads = Self {
            ordering_keys: Vec::with_capacity(len),
            sealed_with: Vec::with_capacity(len),
            delays: Vec::with_capacity(len),
            requests: Vec::with_capacity(len),
            bodies: Vec::with_capacity(len),
        };
        for claim in claims {
            let Some(kept) = claim.kept.as_deref() else {
                continue;
            };
            let (body, sealed_with) = sealer.seal(&claim.key, kept.request.body());
            payloads.ordering_keys.push(kept.ordering_key.as_deref());
            payloads.sealed_with.push(sealed_with);
            payloads.delays.push(micros(kept.delay));
            payloads.requests.push(kept.request.envelope_json());
            payloads.bodies.push(body);
        }
        payloads
    }
}
