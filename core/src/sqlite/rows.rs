//! Reading rows.

use sqlx::Row;
use sqlx::sqlite::SqliteRow;

use crate::claim::Claim;
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

pub(super) fn corrupt() -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "a delivery's row holds what this version cannot read",
    )
}

fn unreadable(error: sqlx::Error) -> StoreError {
    corrupt().with_source(error)
}

/// The source and the key of a row.
pub(super) fn name(row: &SqliteRow) -> Result<(&str, &str), StoreError> {
    Ok((
        row.try_get("source").map_err(unreadable)?,
        row.try_get("key").map_err(unreadable)?,
    ))
}

pub(super) fn standing(row: &SqliteRow) -> Result<Standing, StoreError> {
    read_standing(row).map_err(unreadable)?.ok_or_else(corrupt)
}

fn read_standing(row: &SqliteRow) -> Result<Option<Standing>, sqlx::Error> {
    let state = State::from_code(row.try_get("state")?);
    let fingerprint: Option<&[u8]> = row.try_get("fingerprint")?;
    let error_class: Option<&str> = row.try_get("error_class")?;
    let token: &[u8] = row.try_get("claim_token")?;
    let (Some(state), Ok(token)) = (state, token.try_into()) else {
        return Ok(None);
    };
    Ok(Some(Standing {
        state,
        token: ClaimToken::from_bytes(token),
        fence: row.try_get::<i64, _>("fence")?.unsigned_abs(),
        attempts: row.try_get::<u32, _>("attempts")?,
        fingerprint: fingerprint
            .and_then(|bytes| bytes.try_into().ok())
            .map(Fingerprint::from_bytes),
        lease_until: time(row, "lease_until")?,
        retry_at: time(row, "retry_at")?,
        error_class: error_class.and_then(ErrorClass::from_name),
    }))
}

/// How a row stands that this claim has just changed: what the statement decided, and otherwise as the claim asked.
pub(super) fn changed(
    row: &SqliteRow,
    claim: &Claim,
    now: Timestamp,
) -> Result<Standing, StoreError> {
    let state = State::from_code(row.try_get(2).map_err(unreadable)?).ok_or_else(corrupt)?;
    let error_class: Option<&str> = row.try_get(5).map_err(unreadable)?;
    Ok(Standing {
        state,
        fence: row.try_get::<i64, _>(3).map_err(unreadable)?.unsigned_abs(),
        attempts: row.try_get(4).map_err(unreadable)?,
        error_class: error_class.and_then(ErrorClass::from_name),
        ..Standing::fresh(claim, now)
    })
}

pub(super) fn time(row: &SqliteRow, column: &str) -> Result<Option<Timestamp>, sqlx::Error> {
    Ok(row
        .try_get::<Option<i64>, _>(column)?
        .map(Timestamp::from_micros))
}

pub(super) fn record(row: &SqliteRow) -> Result<Record, StoreError> {
    let standing = standing(row)?;
    let (source, key) = name(row)?;
    let delivery_id: &str = row.try_get("delivery_id").map_err(unreadable)?;
    let event: &str = row.try_get("event").map_err(unreadable)?;
    let source = Source::new(source).map_err(|_| corrupt())?;
    Ok(Record {
        key: ClaimKey::parse(source, key).map_err(|_| corrupt())?,
        delivery_id: DeliveryId::new(delivery_id).map_err(|_| corrupt())?,
        event: EventName::new(event).map_err(|_| corrupt())?,
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
        has_payload: row.try_get("has_payload").map_err(unreadable)?,
        covered_by: None,
    })
}

/// A row of a list, which may be a delivery that another covers.
pub(super) fn listed(row: &SqliteRow) -> Result<Record, StoreError> {
    let covered_by: Option<&str> = row.try_get("covered_by").map_err(unreadable)?;
    let covered_by = covered_by.map(DeliveryId::new).transpose();
    Ok(Record {
        covered_by: covered_by.map_err(|_| corrupt())?,
        ..record(row)?
    })
}

/// What was kept of a request. A payload that cannot be read back is no reason to give up its row.
pub(super) fn request(
    row: &SqliteRow,
    key: &ClaimKey,
    sealer: &Sealer,
) -> Result<Result<StoredRequest, Unreadable>, StoreError> {
    let envelope: &str = row.try_get("request").map_err(unreadable)?;
    let sealed_with: Option<&str> = row.try_get("sealed_with").map_err(unreadable)?;
    let payload: Vec<u8> = row.try_get("payload").map_err(unreadable)?;
    let opened = sealer.open(key, payload, sealed_with);
    Ok(opened
        .and_then(|body| StoredRequest::from_parts(envelope, body).ok_or(Unreadable::Malformed)))
}
