//! The one writer of a file, and how others take turns with it.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::Serialize;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions, SqliteRow};
use sqlx::{Row as _, Sqlite, SqliteConnection, SqlitePool, Transaction};
use tokio::time::Instant;

use super::{rows, unavailable};
use crate::batch::{
    Answers, Asked, Batch, Outcomes, Pipeline, Plan, Verdict, Verdicts, pause, rounds,
};
use crate::claim::{Claim, RetryGate};
use crate::error::StoreError;
use crate::key::ClaimKey;
use crate::machine;
use crate::record::State;
use crate::settle::{Settle, Settled};
use crate::time::{Clock, Timestamp, micros};

pub(super) const CLAIM: &str = include_str!("claim.sql");
pub(super) const STANDING: &str = include_str!("standing.sql");
pub(super) const SETTLE: &str = include_str!("settle.sql");

/// How often it is looked whether a handler's transaction has the write connection.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The write connection of a file. There is one: whoever asks first has it first.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pool: SqlitePool,
    patience: Duration,
    /// Whether a handler's transaction has it at the moment.
    with_handler: Arc<AtomicBool>,
}

impl Turn {
    pub(super) async fn open(
        options: SqliteConnectOptions,
        patience: Duration,
    ) -> Result<Self, StoreError> {
        let with_handler = Arc::new(AtomicBool::new(false));
        let is_free = Arc::clone(&with_handler);
        let is_new = Arc::clone(&with_handler);
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .after_release(move |_, _| {
                is_free.store(false, Ordering::Release);
                Box::pin(async { Ok(true) })
            })
            // One that broke is never released.
            .after_connect(move |_, _| {
                is_new.store(false, Ordering::Release);
                Box::pin(async { Ok(()) })
            })
            .acquire_timeout(patience)
            .idle_timeout(None)
            .max_lifetime(None)
            .test_before_acquire(false)
            .connect_lazy_with(options);
        let turn = Self {
            pool,
            patience,
            with_handler,
        };
        // Switching a new file to WAL needs it for oneself for a moment, and does not wait for others by itself.
        turn.patiently(|pool| async move { pool.acquire().await.map(drop) })
            .await
            .map_err(|error| unavailable("cannot open the database file", error))?;
        Ok(turn)
    }

    /// Begins a transaction that may write, when its turn has come.
    pub(super) async fn begin(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        self.patiently(|pool| async move { pool.begin_with("begin immediate").await })
            .await
            .map_err(|error| unavailable("no transaction could be begun", error))
    }

    /// The same for a handler, who may keep it for as long as it works.
    pub(super) async fn begin_for_handler(
        &self,
    ) -> Result<Transaction<'static, Sqlite>, StoreError> {
        let tx = self.begin().await?;
        self.with_handler.store(true, Ordering::Release);
        Ok(tx)
    }

    /// Another process may hold the file for longer than SQLite waits, and SQLite serves those who wait in no order.
    async fn patiently<T, F>(&self, attempt: impl Fn(SqlitePool) -> F) -> Result<T, sqlx::Error>
    where
        F: Future<Output = Result<T, sqlx::Error>>,
    {
        let deadline = Instant::now() + self.patience;
        let mut attempts = 0;
        loop {
            match attempt(self.pool.clone()).await {
                Err(error) if is_busy(&error) && Instant::now() < deadline => {
                    attempts += 1;
                    tokio::time::sleep(pause(attempts)).await;
                }
                done => return done,
            }
        }
    }

    /// Waits until a handler's transaction is seen to have the connection.
    pub(super) async fn is_with_a_handler(&self) {
        loop {
            tokio::time::sleep(LOOK_EVERY).await;
            if self.with_handler.load(Ordering::Acquire) {
                return;
            }
        }
    }
}

fn is_busy(error: &sqlx::Error) -> bool {
    // The low byte of SQLite's extended codes is the primary one: 5 busy, 6 locked.
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code);
    code.and_then(|code| code.parse::<u32>().ok())
        .is_some_and(|code| matches!(code & 0xff, 5 | 6))
}

/// Carries batches: each is one commit.
pub(super) struct Writer {
    turn: Turn,
    clock: Arc<dyn Clock>,
}

impl Writer {
    pub(super) fn new(turn: Turn, clock: Arc<dyn Clock>) -> Self {
        Self { turn, clock }
    }

    async fn write(
        &self,
        claims: &[Asked],
        settles: &[Settle],
    ) -> Result<(Outcomes, Vec<Result<Settled, StoreError>>), StoreError> {
        let mut tx = self.turn.begin().await?;
        let now = self.clock.now();
        // Settlements first: a renewal that waited behind a long transaction is not to find its lease taken over.
        let settles = settle(&mut tx, settles, now).await?;
        let claims = claim(&mut tx, claims, now).await?;
        tx.commit()
            .await
            .map_err(|error| unavailable("the batch could not be committed", error))?;
        Ok((claims, settles))
    }
}

impl Pipeline for Writer {
    async fn carry(&mut self, batch: Batch) {
        let answers = match self.write(batch.claims(), batch.settles()).await {
            Ok((claims, settles)) => Answers {
                claims,
                settles,
                acquires: Vec::new(),
                keeps: Vec::new(),
            },
            Err(error) => Answers::failed(&batch, &error),
        };
        let orphans = batch.answer(answers);
        if !orphans.is_empty() {
            let releases: Vec<Settle> = orphans
                .iter()
                .map(|held| Settle::release(held, Duration::ZERO))
                .collect();
            // If this fails, the lease of the claim runs out.
            let _ = self.write(&[], &releases).await;
        }
    }
}

async fn claim(
    connection: &mut SqliteConnection,
    claims: &[Asked],
    now: Timestamp,
) -> Result<Outcomes, StoreError> {
    if claims.is_empty() {
        return Ok(Vec::new());
    }
    let failed = |error| unavailable("the claim could not be decided", error);
    let plan = Plan::new(claims);
    let mut verdicts: Verdicts = vec![None; claims.len()];
    for (terms, group) in plan.by_terms(claims) {
        let wanted: Vec<_> = group
            .iter()
            .map(|&at| requested(&claims[at].claim))
            .collect();
        let changed = sqlx::query(CLAIM)
            .bind(json(&wanted)?)
            .bind(micros(terms.policy.lease))
            .bind(i64::from(terms.policy.max_attempts))
            .bind(terms.gate == RetryGate::Open)
            .bind(now.as_micros())
            .bind(machine::LEASE_EXPIRED)
            .fetch_all(&mut *connection)
            .await
            .map_err(failed)?;
        let positions: HashMap<(&str, &str), usize> = group
            .iter()
            .map(|&at| (name(&claims[at].claim.key), at))
            .collect();
        let mut take = |rows: &[SqliteRow]| -> Result<(), StoreError> {
            for row in rows {
                let at = *positions.get(&rows::name(row)?).ok_or_else(rows::corrupt)?;
                let standing = rows::standing(row);
                verdicts[at] = Some(standing.map(|standing| Verdict::Row {
                    standing,
                    busy: false,
                    now,
                }));
            }
            Ok(())
        };
        take(&changed)?;
        if changed.len() < group.len() {
            // Read whole: a row that was changed above is as it was returned.
            let names: Vec<_> = group
                .iter()
                .map(|&at| name(&claims[at].claim.key))
                .collect();
            let standing = sqlx::query(STANDING)
                .bind(json(&names)?)
                .fetch_all(&mut *connection)
                .await
                .map_err(failed)?;
            take(&standing)?;
        }
    }
    Ok(plan.outcomes(claims, &verdicts))
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

fn name(key: &ClaimKey) -> (&str, &str) {
    (key.source().as_str(), key.key())
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

fn hex(bytes: [u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(bytes))
}

fn json(value: &impl Serialize) -> Result<String, StoreError> {
    serde_json::to_string(value).map_err(|error| rows::corrupt().with_source(error))
}
