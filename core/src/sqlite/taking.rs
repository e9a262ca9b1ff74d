//! Taking what is due, and attaching payloads.

use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::writer::{hex, json};
use super::{fails_alone, rows, unavailable};
use crate::batch::{Keep, Taking};
use crate::error::StoreError;
use crate::inbox::{Acquire, Acquired, Acquisition, Lane, Order, Retired};
use crate::key::Scope;
use crate::machine;
use crate::record::{ClaimToken, State};
use crate::seal::Sealer;
use crate::time::{Timestamp, micros};

pub(super) const DUE: &str = concat!(
    include_str!("due.sql"),
    include_str!("in_turn.sql"),
    "order by d.retry_at, d.source, d.key limit ?5"
);
pub(super) const FRESH: &str = concat!(
    include_str!("fresh.sql"),
    include_str!("in_turn.sql"),
    "order by d.retry_at desc limit ?5"
);
pub(super) const EXPIRED: &str = concat!(
    include_str!("expired.sql"),
    include_str!("in_turn.sql"),
    "order by d.claimed_at, d.source, d.key limit ?5"
);
pub(super) const TAKE: &str = include_str!("take.sql");
pub(super) const KEEP: &str = include_str!("keep.sql");

/// Takes what is due for each caller. What one gets, the next does not find any more.
pub(super) async fn acquire(
    connection: &mut SqliteConnection,
    takings: &[Taking],
    now: Timestamp,
    sealer: &Sealer,
) -> Result<Vec<Result<Acquisition, StoreError>>, StoreError> {
    let mut answers = Vec::with_capacity(takings.len());
    for taking in takings {
        let found = find(connection, &taking.acquire, now).await?;
        // A row that cannot be read fails the one who would have got it, before anything is changed.
        match begin(&found, taking, now, sealer) {
            Ok((acquisition, taken)) => {
                if !taken.is_empty() {
                    let policy = taking.acquire.policy;
                    sqlx::query(TAKE)
                        .bind(json(&taken)?)
                        .bind(now.as_micros())
                        .bind(micros(policy.lease))
                        .bind(i64::from(policy.max_attempts))
                        .bind(machine::LEASE_EXPIRED)
                        .execute(&mut *connection)
                        .await
                        .map_err(failed)?;
                }
                answers.push(Ok(acquisition));
            }
            Err(error) => answers.push(Err(error)),
        }
    }
    Ok(answers)
}

/// The rows whose turn it is.
async fn find(
    connection: &mut SqliteConnection,
    acquire: &Acquire,
    now: Timestamp,
) -> Result<Vec<SqliteRow>, StoreError> {
    let limit = acquire.limit as usize;
    if limit == 0 {
        return Ok(Vec::new());
    }
    let source = match acquire.scope {
        Scope::Endpoint => acquire.source.as_str().to_owned(),
        Scope::HookId => format!("{}/hook/", acquire.source),
    };
    let asked = |statement: &'static str, limit: usize| {
        sqlx::query(statement)
            .bind(source.clone())
            .bind(acquire.scope == Scope::HookId)
            .bind(now.as_micros())
            .bind(acquire.order == Order::Strict)
            .bind(i64::try_from(limit).unwrap_or(i64::MAX))
    };
    if let Lane::Fresh { window, flood } = acquire.lane {
        return asked(FRESH, limit)
            .bind((now - window).as_micros())
            .bind(i64::from(flood))
            .fetch_all(&mut *connection)
            .await
            .map_err(failed);
    }
    let mut found = Vec::new();
    if acquire.expired {
        // First: they were begun before all others, and would wait for ever behind a queue that does not end.
        let expired = asked(EXPIRED, limit);
        found = expired.fetch_all(&mut *connection).await.map_err(failed)?;
    }
    if found.len() < limit {
        let due = asked(DUE, limit - found.len());
        let due = due.fetch_all(&mut *connection).await.map_err(failed)?;
        found.extend(due);
    }
    Ok(found)
}

/// The names of the rows that begin an attempt, each with its new token.
type Taken = Vec<(i64, String)>;

fn begin(
    found: &[SqliteRow],
    taking: &Taking,
    now: Timestamp,
    sealer: &Sealer,
) -> Result<(Acquisition, Taken), StoreError> {
    let policy = taking.acquire.policy;
    let mut acquisition = Acquisition::default();
    let mut taken = Vec::with_capacity(found.len());
    for row in found {
        let record = rows::record(row)?;
        let token = ClaimToken::random();
        let Some(next) = machine::acquire(&record, token, &policy, now) else {
            continue;
        };
        let id = row.try_get("id").map_err(failed)?;
        taken.push((id, hex(token.to_bytes())));
        if next.state == State::Dead {
            acquisition.retired.push(Retired {
                key: next.key,
                delivery_id: next.delivery_id,
                event: next.event,
                attempts: next.attempts,
            });
        } else {
            let (key, id) = (next.key.clone(), next.delivery_id.clone());
            let held = machine::held((&next).into(), key, id, policy, now, taking.sent);
            acquisition.started.push(Acquired::new(
                held,
                next.event,
                next.fingerprint,
                rows::request(row, &next.key, sealer)?,
                now.since(next.received_at),
                next.ordering_key.is_some(),
            ));
        }
    }
    Ok((acquisition, taken))
}

/// Attaches payloads, each by itself: there are few, and each may be large.
pub(super) async fn keep(
    connection: &mut SqliteConnection,
    keeps: &[Keep],
    sealer: &Sealer,
) -> Result<Vec<Result<(), StoreError>>, StoreError> {
    let mut answers = Vec::with_capacity(keeps.len());
    for keep in keeps {
        let (payload, sealed_with) = sealer.seal(&keep.key, keep.request.body());
        let held = sqlx::query(KEEP)
            .bind(keep.key.source().as_str().to_owned())
            .bind(keep.key.key().to_owned())
            .bind(keep.token.to_bytes().to_vec())
            .bind(keep.request.envelope_json())
            .bind(sealed_with.map(ToOwned::to_owned))
            .bind(payload.to_vec())
            .fetch_all(&mut *connection)
            .await;
        answers.push(match held {
            Ok(held) if held.is_empty() => Err(StoreError::lease_lost()),
            Ok(_) => Ok(()),
            Err(error) => {
                let alone = fails_alone(&error);
                let error = unavailable("the payload could not be stored", error);
                if !alone {
                    return Err(error);
                }
                Err(error)
            }
        });
    }
    Ok(answers)
}

fn failed(error: sqlx::Error) -> StoreError {
    unavailable("what is due could not be taken", error)
}
