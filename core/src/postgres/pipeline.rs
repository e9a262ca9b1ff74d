//! The connections over which claims and settlements travel.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnectOptions, PgRow};
use sqlx::query::Query;
use sqlx::{ConnectOptions, Connection, PgConnection, Postgres, Row as _};

use super::{rows, unavailable};
use crate::batch::{
    Answers, Asked, Batch, Outcomes, Pipeline, Plan, Terms, Verdict, Verdicts, pause, rounds,
};
use crate::claim::{Claim, RetryGate};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::ClaimKey;
use crate::machine;
use crate::record::State;
use crate::settle::{Settle, Settled};
use crate::time::{Clock, Timestamp, micros};

pub(super) const CLAIM: &str = include_str!("claim.sql");
pub(super) const SETTLE: &str = include_str!("settle.sql");

/// Two: while one batch waits for its commit, the next is computed. More make batches smaller and gain nothing.
pub(super) const CLAIM_PIPELINES: usize = 2;

/// How often a statement is sent again after a passing failure. Its tokens make that harmless.
const RESENDS: u32 = 3;

/// How long a connection may take to be opened.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the database may say nothing before a connection is given up. A network that forgets a connection does not
/// tell either side. Above the database's own limit for a statement.
const SILENCE: Duration = Duration::from_secs(6);

/// How many claims of one batch may wait in vain for a lock, one after another.
const HELD_UP: u32 = 3;

/// Settings of the connections that are the store's own.
///
/// The plans of these statements are made once. Made on an empty table they would read the whole table for ever, hence
/// no sequential scans; and planning a claim costs more than running it, hence the generic plan.
const SETTINGS: &str = "set enable_seqscan = off; \
     set plan_cache_mode = force_generic_plan; \
     set lock_timeout = '1s'; \
     set statement_timeout = '5s'; \
     set jit = off; \
     set default_transaction_isolation = 'read committed'";

pub(super) struct PgPipeline {
    options: Arc<PgConnectOptions>,
    clock: Option<Arc<dyn Clock>>,
    connection: Option<PgConnection>,
    /// Whether the last statement was sent more than once.
    resent: bool,
}

impl PgPipeline {
    pub(super) fn new(options: Arc<PgConnectOptions>, clock: Option<Arc<dyn Clock>>) -> Self {
        Self {
            options,
            clock,
            connection: None,
            resent: false,
        }
    }

    async fn connect(&self) -> Result<PgConnection, sqlx::Error> {
        let connect = async {
            let mut connection = self.options.connect().await?;
            sqlx::raw_sql(SETTINGS).execute(&mut connection).await?;
            Ok(connection)
        };
        tokio::time::timeout(CONNECT_TIMEOUT, connect)
            .await
            .unwrap_or_else(|_| Err(timed_out()))
    }

    /// Runs a statement, on a new connection where the old one is broken, and again where repeating helps.
    async fn run(
        &mut self,
        statement: impl Fn() -> Query<'static, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            self.resent = attempt > 1;
            let error = match self.attempt(&statement).await {
                Ok(rows) => return Ok(rows),
                Err(error) => error,
            };
            let code = super::code(&error);
            // What a broken connection did is not known: the statement is sent again under the same tokens.
            let passing = code
                .as_deref()
                .is_none_or(|code| matches!(code, "40001" | "40P01") || code.starts_with("57P"));
            if !passing || attempt > RESENDS {
                return Err(error);
            }
            tokio::time::sleep(pause(attempt)).await;
        }
    }

    /// Runs a statement once. A connection that broke, or says nothing any more, is not used again.
    async fn attempt(
        &mut self,
        statement: &impl Fn() -> Query<'static, Postgres, PgArguments>,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let answer = tokio::time::timeout(SILENCE, statement().fetch_all(&mut connection)).await;
        let answer = answer.unwrap_or_else(|_| Err(timed_out()));
        let lives = match &answer {
            Ok(_) => true,
            // The database is well and said no; after its shutdown the connection is of no use.
            Err(error) => super::code(error).is_some_and(|code| !code.starts_with("57P")),
        };
        if lives {
            self.connection = Some(connection);
        } else {
            let _ = tokio::time::timeout(CONNECT_TIMEOUT, connection.close_hard()).await;
        }
        answer
    }

    async fn claims(&mut self, claims: &[Asked]) -> Outcomes {
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
        plan.outcomes(claims, &verdicts)
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
        let mut resent = self.resent;
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
            resent |= self.resent;
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
        let now = self.clock.as_ref().map(|clock| clock.now().as_micros());
        let columns = Columns::new(group.iter().map(|&at| &claims[at].claim));
        let rows = self
            .run(|| {
                sqlx::query(CLAIM)
                    .bind(&columns.sources)
                    .bind(&columns.keys)
                    .bind(&columns.delivery_ids)
                    .bind(&columns.events)
                    .bind(&columns.actions)
                    .bind(&columns.tokens)
                    .bind(&columns.fingerprints)
                    .bind(micros(terms.policy.lease))
                    .bind(i32::try_from(terms.policy.max_attempts).unwrap_or(i32::MAX))
                    .bind(terms.gate == RetryGate::Open)
                    .bind(now)
                    .bind(machine::LEASE_EXPIRED)
            })
            .await
            .map_err(|error| unavailable("the claim could not be decided", error))?;
        for &at in group {
            verdicts[at] = Some(Ok(Verdict::Outrun));
        }
        let by_token: HashMap<uuid::Uuid, usize> = columns
            .tokens
            .iter()
            .copied()
            .zip(group.iter().copied())
            .collect();
        for row in &rows {
            let token: uuid::Uuid = row.try_get("token").map_err(super::reading)?;
            let at = *by_token.get(&token).ok_or_else(rows::corrupt)?;
            verdicts[at] = Some(read_verdict(row));
        }
        Ok(())
    }

    async fn settles(
        &mut self,
        settles: &[Settle],
    ) -> Result<Vec<Result<Settled, StoreError>>, StoreError> {
        let mut answers: Vec<Option<Result<Settled, StoreError>>> =
            settles.iter().map(|_| None).collect();
        for round in rounds(settles) {
            let of = |at: usize| &settles[at];
            let sources: Vec<&str> = round
                .iter()
                .map(|&at| of(at).key.source().as_str())
                .collect();
            let keys: Vec<&str> = round.iter().map(|&at| of(at).key.key()).collect();
            let tokens: Vec<_> = round.iter().map(|&at| rows::uuid(of(at).token)).collect();
            let codes: Vec<i16> = round.iter().map(|&at| of(at).code()).collect();
            let spans: Vec<i64> = round.iter().map(|&at| of(at).span()).collect();
            let bounds: Vec<i64> = round.iter().map(|&at| of(at).bound()).collect();
            let classes: Vec<Option<&str>> = round.iter().map(|&at| of(at).class()).collect();
            let messages: Vec<Option<&str>> = round.iter().map(|&at| of(at).message()).collect();
            let now = self.clock.as_ref().map(|clock| clock.now().as_micros());
            let changed = self
                .run(|| {
                    sqlx::query(SETTLE)
                        .bind(&sources)
                        .bind(&keys)
                        .bind(&tokens)
                        .bind(&codes)
                        .bind(&spans)
                        .bind(&bounds)
                        .bind(&classes)
                        .bind(&messages)
                        .bind(now)
                })
                .await
                .map_err(|error| unavailable("the attempt could not be settled", error))?;
            for row in &changed {
                let ord: i64 = row.try_get("ord").map_err(super::reading)?;
                let at = usize::try_from(ord - 1)
                    .ok()
                    .and_then(|at| round.get(at))
                    .copied();
                let at = at.ok_or_else(rows::corrupt)?;
                answers[at] = Some(read_change(&settles[at], row));
            }
            let unchanged: Vec<usize> = round
                .into_iter()
                .filter(|&at| answers[at].is_none())
                .collect();
            if unchanged.is_empty() {
                continue;
            }
            let keys: Vec<&ClaimKey> = unchanged.iter().map(|&at| &settles[at].key).collect();
            let connection = self.connection.as_mut().ok_or_else(|| {
                StoreError::new(
                    StoreErrorKind::Unavailable,
                    "the connection to the database was lost",
                )
            })?;
            let records = tokio::time::timeout(SILENCE, rows::inspect(connection, &keys));
            let records = records
                .await
                .unwrap_or_else(|_| Err(super::reading(timed_out())));
            if records.is_err() {
                self.connection = None;
            }
            let records = records?;
            for (at, record) in unchanged.into_iter().zip(records) {
                answers[at] = Some(settles[at].unchanged(record.as_ref()));
            }
        }
        Ok(answers
            .into_iter()
            .map(|answer| answer.unwrap_or_else(|| Err(rows::corrupt())))
            .collect())
    }
}

fn timed_out() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())
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

fn read_change(settle: &Settle, row: &PgRow) -> Result<Settled, StoreError> {
    let time = |column| -> Result<Option<Timestamp>, StoreError> {
        Ok(row
            .try_get::<Option<i64>, _>(column)
            .map_err(super::reading)?
            .map(Timestamp::from_micros))
    };
    let state = State::from_code(row.try_get("state").map_err(super::reading)?)
        .ok_or_else(rows::corrupt)?;
    let now = time("now")?.ok_or_else(rows::corrupt)?;
    Ok(settle.changed(state, time("lease_until")?, time("retry_at")?, now))
}

impl Pipeline for PgPipeline {
    async fn carry(&mut self, batch: Batch) {
        let mut answers = Answers::failed(
            &batch,
            &StoreError::new(StoreErrorKind::Refused, "not there yet"),
        );
        if !batch.claims().is_empty() {
            answers.claims = self.claims(batch.claims()).await;
        }
        if !batch.settles().is_empty() {
            answers.settles = match self.settles(batch.settles()).await {
                Ok(settles) => settles,
                Err(error) => batch.settles().iter().map(|_| Err(error.clone())).collect(),
            };
        }
        let orphans = batch.answer(answers);
        if !orphans.is_empty() {
            let releases: Vec<Settle> = orphans
                .iter()
                .map(|held| Settle::release(held, Duration::ZERO))
                .collect();
            // If this fails too, the lease of the claim runs out.
            let _ = self.settles(&releases).await;
        }
    }
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
}
