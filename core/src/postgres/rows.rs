//! Reading rows.

use sqlx::postgres::PgRow;
use sqlx::{PgConnection, Row};
use uuid::Uuid;

use crate::delivery::{DeliveryId, EventName};
use crate::error::{StoreError, StoreErrorKind};
use crate::inbox::Unreadable;
use crate::key::{ClaimKey, Source};
use crate::machine::Standing;
use crate::record::{ClaimToken, ErrorClass, Record, State};
use crate::request::StoredRequest;
use crate::seal::Sealer;
use crate::signature::Fingerprint;
use crate::time::Timestamp;

pub(super) const INSPECT: &str = include_str!("inspect.sql");

pub(super) fn uuid(token: ClaimToken) -> Uuid {
    Uuid::from_bytes(token.to_bytes())
}

pub(super) fn corrupt() -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "a delivery's row holds what this version cannot read",
    )
}

fn unreadable(error: sqlx::Error) -> StoreError {
    corrupt().with_source(error)
}

/// The records of these keys, in their order.
pub(super) async fn inspect(
    connection: &mut PgConnection,
    keys: &[&ClaimKey],
) -> Result<Vec<Option<Record>>, StoreError> {
    let sources: Vec<&str> = keys.iter().map(|key| key.source().as_str()).collect();
    let names: Vec<&str> = keys.iter().map(|key| key.key()).collect();
    let rows = sqlx::query(INSPECT)
        .bind(sources)
        .bind(names)
        .fetch_all(connection)
        .await
        .map_err(super::reading)?;
    let mut records: Vec<Option<Record>> = vec![None; keys.len()];
    for row in rows {
        let ord: i64 = row.try_get("ord").map_err(unreadable)?;
        let slot = usize::try_from(ord - 1)
            .ok()
            .and_then(|at| records.get_mut(at))
            .ok_or_else(corrupt)?;
        *slot = Some(record(&row)?);
    }
    Ok(records)
}

pub(super) fn standing(row: &PgRow) -> Result<Standing, StoreError> {
    read_standing(row).map_err(unreadable)?.ok_or_else(corrupt)
}

fn read_standing(row: &PgRow) -> Result<Option<Standing>, sqlx::Error> {
    let state = State::from_code(row.try_get("state")?);
    let fingerprint: Option<&[u8]> = row.try_get("fingerprint")?;
    let error_class: Option<&str> = row.try_get("error_class")?;
    let Some(state) = state else { return Ok(None) };
    Ok(Some(Standing {
        state,
        token: ClaimToken::from_bytes(row.try_get::<Uuid, _>("claim_token")?.into_bytes()),
        fence: row.try_get::<i64, _>("fence")?.unsigned_abs(),
        attempts: row.try_get::<i32, _>("attempts")?.unsigned_abs(),
        fingerprint: fingerprint
            .and_then(|bytes| bytes.try_into().ok())
            .map(Fingerprint::from_bytes),
        lease_until: time(row, "lease_until")?,
        retry_at: time(row, "retry_at")?,
        error_class: error_class.and_then(ErrorClass::from_name),
    }))
}

fn time(row: &PgRow, column: &str) -> Result<Option<Timestamp>, sqlx::Error> {
    Ok(row
        .try_get::<Option<i64>, _>(column)?
        .map(Timestamp::from_micros))
}

/// What a row is about.
pub(super) struct Name {
    pub(super) key: ClaimKey,
    pub(super) delivery_id: DeliveryId,
    pub(super) event: EventName,
}

pub(super) fn name(row: &PgRow) -> Result<Name, StoreError> {
    let source: &str = row.try_get("source").map_err(unreadable)?;
    let key: &str = row.try_get("key").map_err(unreadable)?;
    let delivery_id: &str = row.try_get("delivery_id").map_err(unreadable)?;
    let event: &str = row.try_get("event").map_err(unreadable)?;
    let source = Source::new(source).map_err(|_| corrupt())?;
    Ok(Name {
        key: ClaimKey::parse(source, key).map_err(|_| corrupt())?,
        delivery_id: DeliveryId::new(delivery_id).map_err(|_| corrupt())?,
        event: EventName::new(event).map_err(|_| corrupt())?,
    })
}

/// The stored request of a row, or why it cannot be read.
pub(super) fn request(
    row: &PgRow,
    key: &ClaimKey,
    sealer: &Sealer,
) -> Result<Result<StoredRequest, Unreadable>, StoreError> {
    let request: &str = row.try_get("request").map_err(unreadable)?;
    let payload: Vec<u8> = row.try_get("payload").map_err(unreadable)?;
    let sealed_with: Option<&str> = row.try_get("sealed_with").map_err(unreadable)?;
    Ok(sealer
        .open(key, payload, sealed_with)
        .and_then(|body| StoredRequest::from_parts(request, body).ok_or(Unreadable::Malformed)))
}

/// The single number that a statement returned.
pub(super) fn count(rows: &[PgRow]) -> Result<u64, StoreError> {
    let row = rows.first().ok_or_else(corrupt)?;
    let count: i64 = row.try_get("count").map_err(unreadable)?;
    Ok(count.unsigned_abs())
}

pub(super) fn record(row: &PgRow) -> Result<Record, StoreError> {
    let name = name(row)?;
    let standing = standing(row)?;
    let covered_by: Option<&str> = row.try_get("covered_by").map_err(unreadable)?;
    let covered_by = covered_by.map(DeliveryId::new).transpose();
    Ok(Record {
        key: name.key,
        delivery_id: name.delivery_id,
        event: name.event,
        action: row.try_get("action").map_err(unreadable)?,
        ordering_key: row.try_get("ordering_key").map_err(unreadable)?,
        state: standing.state,
        attempts: standing.attempts,
        fence: standing.fence,
        token: standing.token,
        fingerprint: standing.fingerprint,
        received_at: Timestamp::from_micros(row.try_get("received_at").map_err(unreadable)?),
        claimed_at: time(row, "claimed_at").map_err(unreadable)?,
        renewed_at: time(row, "renewed_at").map_err(unreadable)?,
        lease_until: standing.lease_until,
        retry_at: standing.retry_at,
        finished_at: time(row, "finished_at").map_err(unreadable)?,
        error_class: standing.error_class,
        last_error: row.try_get("last_error").map_err(unreadable)?,
        has_payload: row.try_get("stored").map_err(unreadable)?,
        covered_by: covered_by.map_err(|_| corrupt())?,
    })
}
