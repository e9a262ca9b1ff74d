//! What operators see and do, and what is forgotten.

use sqlx::Row as _;

use super::link::RESENDS;
use super::{PostgresStore, reading, rows, unavailable};
use crate::batch::pause;
use crate::error::{StoreError, StoreErrorKind};
use crate::inbox::Backlog;
use crate::key::ClaimKey;
use crate::operator::{AuditEntry, Retried, Retry};
use crate::record::{ClaimToken, Record, State};
use crate::request::StoredRequest;
use crate::store::{ListFilter, Position, Pruned, Retention};
use crate::time::Timestamp;

pub(super) const RETRY: &str = include_str!("retry.sql");
pub(super) const AUDIT: &str = include_str!("audit.sql");
pub(super) const STORED: &str = include_str!("stored.sql");
pub(super) const BACKLOG: &str = include_str!("backlog.sql");
pub(super) const LIST: &str = include_str!("list.sql");
pub(super) const PRUNE: &str = include_str!("prune.sql");
pub(super) const PRUNE_PAYLOADS: &str = include_str!("prune_payloads.sql");

impl PostgresStore {
    pub(super) async fn retry_now(
        &self,
        key: &ClaimKey,
        retry: &Retry,
    ) -> Result<Retried, StoreError> {
        let failed = |error| unavailable("the delivery could not be made to run again", error);
        let token = rows::uuid(ClaimToken::random());
        let mut link = self.operations.lock().await;
        let mut attempt = 0;
        loop {
            attempt += 1;
            let now = self.now();
            let found = link.run(|| {
                sqlx::query(RETRY)
                    .bind(key.source().as_str().to_owned())
                    .bind(key.key().to_owned())
                    .bind(token)
                    .bind(retry.force)
                    .bind(retry.actor.clone())
                    .bind(retry.reason.clone())
                    .bind(now)
            });
            let found = found.await.map_err(failed)?;
            let Some(row) = found.first() else {
                return Ok(Retried::Unknown);
            };
            let is = |column| row.try_get::<bool, _>(column).map_err(reading);
            if is("done")? {
                self.bell.ring();
                return Ok(if is("stored")? {
                    Retried::Due
                } else {
                    Retried::AwaitsRedelivery
                });
            }
            let state = State::from_code(row.try_get("state").map_err(reading)?);
            let state = state.ok_or_else(rows::corrupt)?;
            // It may run again, and its row is locked, or was changed since the statement began.
            if is("may")? && attempt <= RESENDS {
                tokio::time::sleep(pause(attempt)).await;
                continue;
            }
            return Ok(if state == State::Completed && !retry.force {
                Retried::Completed
            } else {
                Retried::InProgress
            });
        }
    }

    pub(super) async fn audit_of(&self, key: &ClaimKey) -> Result<Vec<AuditEntry>, StoreError> {
        let found = sqlx::query(AUDIT)
            .bind(key.source().as_str())
            .bind(key.key())
            .fetch_all(&self.pool)
            .await
            .map_err(reading)?;
        found
            .iter()
            .map(|row| {
                Ok(AuditEntry {
                    at: Timestamp::from_micros(row.try_get("at")?),
                    actor: row.try_get("actor")?,
                    action: row.try_get("action")?,
                    reason: row.try_get("reason")?,
                    key: key.clone(),
                })
            })
            .collect::<Result<_, sqlx::Error>>()
            .map_err(reading)
    }

    pub(super) async fn stored_of(
        &self,
        key: &ClaimKey,
    ) -> Result<Option<StoredRequest>, StoreError> {
        let found = sqlx::query(STORED)
            .bind(key.source().as_str())
            .bind(key.key())
            .fetch_optional(&self.pool)
            .await
            .map_err(reading)?;
        let Some(row) = found else { return Ok(None) };
        rows::request(&row, key, &self.sealer)?
            .map(Some)
            .map_err(|unreadable| {
                let context = "the stored request cannot be read";
                StoreError::new(StoreErrorKind::Corrupt, context).with_source(unreadable)
            })
    }

    pub(super) async fn backlog_now(&self) -> Result<Backlog, StoreError> {
        let now = self.now();
        let mut link = self.operations.lock().await;
        let found = link.run(|| sqlx::query(BACKLOG).bind(now)).await;
        let found = found.map_err(reading)?;
        let row = found.first().ok_or_else(rows::corrupt)?;
        let number = |column| -> Result<u64, StoreError> {
            let number: Option<i64> = row.try_get(column).map_err(reading)?;
            Ok(number.unwrap_or(0).unsigned_abs())
        };
        Ok(Backlog::new(
            number("waiting")?,
            std::time::Duration::from_micros(number("oldest_due")?),
            number("leased")?,
            number("overdue")?,
        ))
    }

    pub(super) async fn list_of(&self, filter: &ListFilter) -> Result<Vec<Record>, StoreError> {
        let states: Option<Vec<i16>> = (!filter.states.is_empty())
            .then(|| filter.states.iter().map(|state| state.code()).collect());
        let texts = [&filter.event, &filter.delivery_id, &filter.error];
        if texts.into_iter().flatten().any(|text| text.contains('\0')) {
            // Postgres has no NUL in text, so nothing has this.
            return Ok(Vec::new());
        }
        let after = filter.after.as_ref().map(Position::columns);
        let rows = sqlx::query(LIST)
            .bind(states)
            .bind(filter.source.as_ref().map(crate::Source::as_str))
            .bind(filter.event.as_deref())
            .bind(filter.delivery_id.as_deref())
            .bind(filter.since.map(Timestamp::as_micros))
            .bind(filter.until.map(Timestamp::as_micros))
            .bind(filter.error.as_deref())
            .bind(after.map(|(at, ..)| at))
            .bind(after.map(|(_, source, ..)| source))
            .bind(after.map(|(_, _, key, _)| key))
            .bind(after.map(|(.., delivery_id)| delivery_id))
            .bind(i64::from(filter.limit))
            .fetch_all(&self.pool)
            .await
            .map_err(reading)?;
        rows.iter().map(rows::record).collect()
    }

    pub(super) async fn prune_now(
        &self,
        retention: &Retention,
        limit: u32,
    ) -> Result<Pruned, StoreError> {
        let failed = |error| unavailable("old deliveries could not be pruned", error);
        let [completed, dead, payload] = retention.micros();
        let (limit, now) = (i64::from(limit), self.now());
        let mut link = self.operations.lock().await;
        let records = link.run(|| {
            sqlx::query(PRUNE)
                .bind(completed)
                .bind(dead)
                .bind(limit)
                .bind(now)
        });
        let records = rows::count(&records.await.map_err(failed)?)?;
        let payloads = link.run(|| {
            sqlx::query(PRUNE_PAYLOADS)
                .bind(payload)
                .bind(limit)
                .bind(now)
        });
        let payloads = rows::count(&payloads.await.map_err(failed)?)?;
        Ok(Pruned { records, payloads })
    }
}
