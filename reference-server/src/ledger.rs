//! The entries that comments have booked.
//!
//! An entry is written in the transaction that completes its delivery: both are there, or neither. It is keyed by its
//! place in its comment as well, so that a comment that comes again under another delivery id (two hooks, say) books
//! nothing more.

mod postgres;
mod sqlite;
#[cfg(test)]
mod tests;

use std::future::Future;

use hookclaim::{StoreError, TransactionalDurableStore};
use jiff::civil::Date;
use serde::Serialize;

use crate::timetracking::duration::Minutes;
use crate::timetracking::payload::SourceComment;

/// The bookkeeping table of the ledger's migrations.
const MIGRATIONS_TABLE: &str = "hookclaim_server_migrations";

/// The kind of comment that issues and pull requests have at their end.
pub const ISSUE_COMMENT: &str = "issue_comment";

/// An entry to be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewEntry {
    /// Its place among the commands of its comment, from 0.
    pub position: u16,
    /// The day it is booked on.
    pub date: Date,
    /// How long.
    pub minutes: Minutes,
    /// What for; may be empty.
    pub description: String,
}

/// An entry as it is shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Entry {
    /// Its number.
    pub id: i64,
    /// The day it is booked on, as `2026-11-27`.
    pub date: String,
    /// When it was written.
    pub created_at: jiff::Timestamp,
    /// Who worked.
    pub github_user_id: i64,
    /// Their login when they booked it.
    pub github_username: String,
    /// The repository's name at that time.
    pub repository: String,
    /// The issue's number.
    pub issue_number: i64,
    /// How long.
    pub duration_minutes: u16,
    /// What for.
    pub description: String,
    /// Whom for; not assigned yet.
    pub client_id: Option<i64>,
    /// The issue's labels when it was booked.
    pub labels: Vec<String>,
    /// Whether it counts.
    pub status: &'static str,
    /// The entry that replaced it.
    pub superseded_by: Option<i64>,
    /// The comment that booked it.
    pub source_comment_url: String,
}

/// Which entries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EntryFilter {
    /// Of this repository, as `owner/name`.
    pub repository: Option<String>,
    /// Of this person, by login.
    pub username: Option<String>,
    /// From this day on.
    pub from: Option<Date>,
    /// Up to this day.
    pub to: Option<Date>,
}

/// A store of deliveries that keeps entries beside them.
pub trait Ledger: TransactionalDurableStore {
    /// Makes or updates all tables, and says how many steps that took. Safe while other processes do the same.
    ///
    /// # Errors
    ///
    /// [`StoreError`] if a step fails.
    fn migrate_all(&self) -> impl Future<Output = Result<usize, StoreError>> + Send;

    /// Writes an entry unless its comment has one in its place already, and says whether it did.
    ///
    /// # Errors
    ///
    /// [`sqlx::Error`] if the database refuses; `tx` is to be rolled back then.
    fn book(
        &self,
        tx: &mut Self::Tx,
        comment: &SourceComment,
        entry: &NewEntry,
    ) -> impl Future<Output = Result<bool, sqlx::Error>> + Send;

    /// The entries that pass the filter, by day and number.
    ///
    /// # Errors
    ///
    /// [`sqlx::Error`] if the database cannot be read.
    fn entries(
        &self,
        filter: &EntryFilter,
    ) -> impl Future<Output = Result<Vec<Entry>, sqlx::Error>> + Send;

    /// Whether the database answers.
    ///
    /// # Errors
    ///
    /// [`sqlx::Error`] if it does not.
    fn ping(&self) -> impl Future<Output = Result<(), sqlx::Error>> + Send;
}

fn labels_json(labels: &[String]) -> String {
    serde_json::Value::from(labels).to_string()
}

/// An entry from a row of `list.sql`, in the order of its columns.
fn entry<R>(row: &R) -> Result<Entry, sqlx::Error>
where
    R: sqlx::Row,
    usize: sqlx::ColumnIndex<R>,
    for<'r> i64: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
    for<'r> String: sqlx::Decode<'r, R::Database> + sqlx::Type<R::Database>,
{
    let decode = |error: Box<dyn std::error::Error + Send + Sync>| sqlx::Error::Decode(error);
    let labels: String = row.try_get(9)?;
    Ok(Entry {
        id: row.try_get(0)?,
        date: row.try_get(1)?,
        created_at: jiff::Timestamp::from_microsecond(row.try_get(2)?)
            .map_err(|error| decode(error.into()))?,
        github_user_id: row.try_get(3)?,
        github_username: row.try_get(4)?,
        repository: row.try_get(5)?,
        issue_number: row.try_get(6)?,
        duration_minutes: u16::try_from(row.try_get::<i64, _>(7)?)
            .map_err(|error| decode(error.into()))?,
        description: row.try_get(8)?,
        client_id: None,
        labels: serde_json::from_str(&labels).map_err(|error| decode(error.into()))?,
        status: "active",
        superseded_by: None,
        source_comment_url: row.try_get(10)?,
    })
}
