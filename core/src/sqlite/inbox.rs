//! The side of the store that keeps deliveries for workers.

use sqlx::{Row as _, Sqlite, Transaction};

use super::{SqliteStore, not_begun, reading, rows, unavailable, writer};
use crate::batch::{Asked, Decided};
use crate::durable::{DurableStore, TransactionalDurableStore};
use crate::error::{StoreError, StoreErrorKind};
use crate::inbox::{Acquire, Acquisition, Backlog, Changes, Enqueue, EnqueueOutcome, Unreadable};
use crate::key::ClaimKey;
use crate::machine;
use crate::operator::{AuditEntry, Retried, Retry};
use crate::record::{ClaimToken, State};
use crate::request::StoredRequest;
use crate::store::{Pruned, Retention};
use crate::time::Timestamp;

pub(super) const STORED: &str = include_str!("stored.sql");
pub(super) const BACKLOG: &str = include_str!("backlog.sql");
pub(super) const PRUNE: &str = include_str!("prune.sql");
pub(super) const PRUNE_PAYLOADS: &str = include_str!("prune_payloads.sql");
pub(super) const RETRY: &str = include_str!("retry.sql");
pub(super) const AUDITED: &str = include_str!("audited.sql");
pub(super) const AUDIT: &str = include_str!("audit.sql");

impl DurableStore for SqliteStore {
    async fn enqueue(&self, enqueue: Enqueue) -> Result<EnqueueOutcome, StoreError> {
        self.queue.enqueue(enqueue.claim).await
    }

    async fn acquire(&self, acquire: Acquire) -> Result<Acquisition, StoreError> {
        self.queue.acquire(acquire).await
    }

    /// Tells what this store and its clones did, and of transactions those that were committed through it. What other
    /// processes do on the same file is found by polling.
    fn changes(&self) -> Changes {
        self.announcer.changes()
    }

    async fn stored(&self, key: &ClaimKey) -> Result<Option<StoredRequest>, StoreError> {
        let (source, name) = writer::name(key);
        let found = sqlx::query(STORED)
            .bind(source.to_owned())
            .bind(name.to_owned())
            .fetch_optional(&self.readers)
            .await
            .map_err(reading)?;
        let Some(row) = found else {
            return Ok(None);
        };
        let sealer = self.seals.current();
        let request = rows::request(&row, key, &sealer)?;
        request.map(Some).map_err(|error| {
            let kind = match error {
                Unreadable::KeyMissing(_) => StoreErrorKind::Refused,
                Unreadable::SealBroken | Unreadable::Malformed => StoreErrorKind::Corrupt,
            };
            StoreError::new(kind, "a stored request cannot be read").with_source(error)
        })
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        let now = self.clock.now();
        let row = sqlx::query(BACKLOG)
            .bind(now.as_micros())
            .fetch_one(&self.readers)
            .await
            .map_err(reading)?;
        let count = |column: &str| -> Result<u64, StoreError> {
            let count: i64 = row.try_get(column).map_err(reading)?;
            Ok(count.unsigned_abs())
        };
        let oldest = rows::time(&row, "oldest").map_err(reading)?;
        Ok(Backlog::new(
            count("waiting")?,
            oldest.map_or_else(Default::default, |at| now.since(at)),
            count("leased")?,
            count("overdue")?,
        ))
    }
}

impl TransactionalDurableStore for SqliteStore {
    async fn enqueue_in(
        &self,
        tx: &mut Self::Tx,
        enqueue: Enqueue,
    ) -> Result<EnqueueOutcome, StoreError> {
        let asked = [Asked::now(enqueue.claim)];
        let sealer = self.seals.current();
        let mut outcomes = writer::claim(tx, &asked, self.clock.now(), &sealer).await?;
        match outcomes.pop() {
            Some(Ok(Decided::Stored(outcome))) => {
                if outcome == EnqueueOutcome::Accepted {
                    self.turn.has_work();
                }
                Ok(outcome)
            }
            Some(Err(error)) => Err(error),
            Some(Ok(Decided::Claimed(_))) | None => Err(rows::corrupt()),
        }
    }
}

impl SqliteStore {
    /// Begins a transaction for the store itself.
    async fn begin_writing(&self) -> Result<Transaction<'static, Sqlite>, StoreError> {
        let turn = self.turn.clone();
        // In a task of its own, as for handlers.
        tokio::spawn(async move { turn.begin().await })
            .await
            .unwrap_or_else(|error| Err(not_begun(error)))
    }

    pub(super) async fn run_again(
        &self,
        key: &ClaimKey,
        retry: &Retry,
    ) -> Result<Retried, StoreError> {
        let failed = |error| unavailable("the order could not be written", error);
        let (source, name) = writer::name(key);
        let mut tx = self.begin_writing().await?;
        let now = self.clock.now();
        let found = sqlx::query(writer::STANDING)
            .bind(writer::json(&[(source, name)])?)
            .fetch_all(&mut *tx)
            .await
            .map_err(failed)?;
        let record = found.first().map(rows::record).transpose()?;
        let forced = record
            .as_ref()
            .is_some_and(|record| record.state == State::Completed);
        let (told, next) = machine::retry(record.as_ref(), ClaimToken::random(), retry.force, now);
        let Some(next) = next else {
            let _ = tx.rollback().await;
            return Ok(told);
        };
        sqlx::query(RETRY)
            .bind(source.to_owned())
            .bind(name.to_owned())
            .bind(next.state.code())
            .bind(next.token.to_bytes().to_vec())
            .bind(now.as_micros())
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        sqlx::query(AUDITED)
            .bind(now.as_micros())
            .bind(retry.actor.clone())
            .bind(AuditEntry::action(forced))
            .bind(retry.reason.clone())
            .bind(source.to_owned())
            .bind(name.to_owned())
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        tx.commit().await.map_err(failed)?;
        self.announcer.announce();
        Ok(told)
    }

    pub(super) async fn orders(&self, key: &ClaimKey) -> Result<Vec<AuditEntry>, StoreError> {
        let (source, name) = writer::name(key);
        let rows = sqlx::query(AUDIT)
            .bind(source.to_owned())
            .bind(name.to_owned())
            .fetch_all(&self.readers)
            .await
            .map_err(reading)?;
        rows.iter()
            .map(|row| {
                Ok(AuditEntry {
                    at: Timestamp::from_micros(row.try_get("at").map_err(reading)?),
                    actor: row.try_get("actor").map_err(reading)?,
                    action: row.try_get("action").map_err(reading)?,
                    reason: row.try_get("reason").map_err(reading)?,
                    key: key.clone(),
                })
            })
            .collect()
    }

    pub(super) async fn forget(
        &self,
        retention: &Retention,
        limit: u32,
    ) -> Result<Pruned, StoreError> {
        let failed = |error| unavailable("old deliveries could not be pruned", error);
        let mut tx = self.begin_writing().await?;
        let [completed, dead, payload] = retention.cutoffs(self.clock.now());
        let records = sqlx::query(PRUNE)
            .bind(completed.as_micros())
            .bind(dead.as_micros())
            .bind(i64::from(limit))
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        let payloads = sqlx::query(PRUNE_PAYLOADS)
            .bind(payload.as_micros())
            .bind(i64::from(limit))
            .execute(&mut *tx)
            .await
            .map_err(failed)?;
        tx.commit().await.map_err(failed)?;
        Ok(Pruned {
            records: records.rows_affected(),
            payloads: payloads.rows_affected(),
        })
    }
}
