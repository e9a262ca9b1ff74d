//! A connection of the store's own.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgArguments, PgConnectOptions, PgRow};
use sqlx::query::Query;
use sqlx::{ConnectOptions, Connection, PgConnection, Postgres};

use super::rows;
use crate::batch::pause;
use crate::error::{StoreError, StoreErrorKind};
use crate::key::ClaimKey;
use crate::record::Record;

/// How often a statement is sent again after a passing failure. Its tokens make that harmless.
pub(super) const RESENDS: u32 = 3;

/// How long a connection may take to be opened.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the database may say nothing before a connection is given up. A network that forgets a connection does not
/// tell either side. Above the database's own limit for a statement.
pub(super) const SILENCE: Duration = Duration::from_secs(6);

/// Settings of the connections that are the store's own.
///
/// The plans of these statements are made once. Made on an empty table they would read the whole table for ever, hence
/// no sequential scans, and no bitmaps, which read all that is due before the first row is there; and planning a claim
/// costs more than running it, hence the generic plan.
pub(super) const SETTINGS: &str = "set enable_seqscan = off; \
     set enable_bitmapscan = off; \
     set plan_cache_mode = force_generic_plan; \
     set lock_timeout = '1s'; \
     set statement_timeout = '5s'; \
     set idle_in_transaction_session_timeout = '5s'; \
     set jit = off; \
     set default_transaction_isolation = 'read committed'";

/// Begins a transaction in which nobody else starts deliveries that have an order: `hookclao` in ASCII. Whoever waits
/// for it holds nothing, and its holder waits for nobody. What follows sees all that was done under it before.
const GUARD: &str = "begin isolation level read committed; \
     select pg_advisory_xact_lock(7525356009379619183)";

pub(super) type Statement = Query<'static, Postgres, PgArguments>;

/// A connection that is opened when it is needed, and again when it broke.
pub(super) struct Link {
    options: Arc<PgConnectOptions>,
    connection: Option<PgConnection>,
    /// Whether the last statement was sent more than once.
    pub(super) resent: bool,
}

impl Link {
    pub(super) fn new(options: Arc<PgConnectOptions>) -> Self {
        Self {
            options,
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
    pub(super) async fn run(
        &mut self,
        statement: impl Fn() -> Statement,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        let mut attempt = 0;
        loop {
            attempt += 1;
            self.resent = attempt > 1;
            let error = match self.once(&statement, false).await {
                Ok(rows) => return Ok(rows),
                Err(error) => error,
            };
            if !is_passing(&error) || attempt > RESENDS {
                return Err(error);
            }
            tokio::time::sleep(pause(attempt)).await;
        }
    }

    /// Runs a statement once, under the guard of orders if it says so. A connection that broke, or says nothing any
    /// more, is not used again.
    pub(super) async fn once(
        &mut self,
        statement: &impl Fn() -> Statement,
        guarded: bool,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        // Whoever drops this future half-way drops the connection too, and with it what is open there.
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect().await?,
        };
        let answer = async {
            if !guarded {
                return statement().fetch_all(&mut connection).await;
            }
            sqlx::raw_sql(GUARD).execute(&mut connection).await?;
            let rows = statement().fetch_all(&mut connection).await?;
            sqlx::raw_sql("commit").execute(&mut connection).await?;
            Ok(rows)
        };
        let answer = tokio::time::timeout(SILENCE, answer).await;
        let answer = answer.unwrap_or_else(|_| Err(timed_out()));
        let lives = match &answer {
            Ok(_) => true,
            // The database is well and said no; after its shutdown the connection is of no use, and one that is within
            // a transaction is not used for another.
            Err(error) => {
                !guarded && super::code(error).is_some_and(|code| !code.starts_with("57P"))
            }
        };
        if lives {
            self.connection = Some(connection);
        } else {
            let _ = tokio::time::timeout(CONNECT_TIMEOUT, connection.close_hard()).await;
        }
        answer
    }

    /// The records of these keys, in their order, from the connection that the last statement went over.
    pub(super) async fn inspect(
        &mut self,
        keys: &[&ClaimKey],
    ) -> Result<Vec<Option<Record>>, StoreError> {
        let Some(mut connection) = self.connection.take() else {
            return Err(StoreError::new(
                StoreErrorKind::Unavailable,
                "the connection to the database was lost",
            ));
        };
        let records = tokio::time::timeout(SILENCE, rows::inspect(&mut connection, keys));
        let records = records
            .await
            .unwrap_or_else(|_| Err(super::reading(timed_out())));
        if records.is_ok() {
            self.connection = Some(connection);
        }
        records
    }
}

/// Whether repeating helps. What a broken connection did is not known: the statement is sent again under the same
/// tokens.
pub(super) fn is_passing(error: &sqlx::Error) -> bool {
    super::code(error)
        .as_deref()
        .is_none_or(|code| matches!(code, "40001" | "40P01") || code.starts_with("57P"))
}

pub(super) fn timed_out() -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())
}
