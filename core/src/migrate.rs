//! Tables that are made and changed as versions go by.

use crate::error::{StoreError, StoreErrorKind};

/// A row of steps that lead from an empty database to the current tables.
///
/// Steps only go forward and are applied once, in order, each within the transaction that records it in a bookkeeping
/// table of its own. Any number of processes may start at once: one of them applies, the others wait and find it done.
/// A database that is further than this version knows is left as it is.
///
/// ```
/// use hookclaim::Migrations;
///
/// const TABLES: Migrations = Migrations::new("bookings_migrations", &["create table bookings (id integer)"]);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Migrations {
    table: &'static str,
    steps: &'static [&'static str],
}

impl Migrations {
    /// Steps that are recorded in the table `table`. A step may have several statements.
    ///
    /// # Panics
    ///
    /// If `table` is not made of lower-case letters, digits and underscores.
    #[must_use]
    pub const fn new(table: &'static str, steps: &'static [&'static str]) -> Self {
        let bytes = table.as_bytes();
        let mut at = 0;
        while at < bytes.len() {
            assert!(
                matches!(bytes[at], b'a'..=b'z' | b'0'..=b'9' | b'_'),
                "a table's name is lower case"
            );
            at += 1;
        }
        Self { table, steps }
    }

    fn pending(&self, applied: i64) -> impl Iterator<Item = (i64, &'static str)> {
        (1..)
            .zip(self.steps.iter().copied())
            .skip_while(move |(version, _)| *version <= applied)
    }

    /// The number of steps.
    #[must_use]
    pub fn version(&self) -> usize {
        self.steps.len()
    }

    fn failed(&self, step: i64, error: sqlx::Error) -> StoreError {
        let table = self.table;
        let context = match error
            .as_database_error()
            .and_then(sqlx::error::DatabaseError::code)
            .as_deref()
        {
            Some("42501") => format!(
                "the database user may not create tables (step {step} of {table}); let a user that may run the \
                 migrations once, or grant create on the schema"
            ),
            _ => format!("step {step} of {table} failed"),
        };
        StoreError::new(StoreErrorKind::Refused, context).with_source(error)
    }
}

#[cfg(feature = "postgres")]
mod postgres {
    use sqlx::{AssertSqlSafe, PgPool, Row as _};

    use super::{Migrations, StoreError};
    use crate::postgres::unavailable;

    /// Held while steps are applied: `hookclai` in ASCII.
    const LOCK: i64 = 0x686f_6f6b_636c_6169;

    impl Migrations {
        /// Applies the steps that a Postgres database lacks, and says how many those were.
        ///
        /// # Errors
        ///
        /// [`StoreError`] if the database cannot be reached or a step fails; that step has changed nothing then.
        ///
        /// # Cancel safety
        ///
        /// The steps are applied all the same.
        ///
        /// # Panics
        ///
        /// Outside of a tokio runtime.
        pub async fn run_postgres(&self, pool: &PgPool) -> Result<usize, StoreError> {
            let (migrations, pool) = (*self, pool.clone());
            // In a task of its own: a caller who goes away must not leave a connection within a transaction behind.
            tokio::spawn(async move { migrations.apply(&pool).await })
                .await
                .unwrap_or_else(|error| {
                    let kind = crate::StoreErrorKind::Unavailable;
                    Err(StoreError::new(kind, "the migrations were stopped").with_source(error))
                })
        }

        async fn apply(&self, pool: &PgPool) -> Result<usize, StoreError> {
            let reach =
                |error| unavailable("the database cannot be reached for its migrations", error);
            let mut connection = pool.acquire().await.map_err(reach)?;
            if self
                .pending(self.applied(&mut connection).await?)
                .next()
                .is_none()
            {
                return Ok(0);
            }
            let mut applied = 0;
            loop {
                // Another default would see the database as it was before the lock was waited for.
                let begin = "begin isolation level read committed";
                let mut tx = sqlx::Connection::begin_with(&mut *connection, begin)
                    .await
                    .map_err(reach)?;
                sqlx::query("select pg_advisory_xact_lock($1)")
                    .bind(LOCK)
                    .execute(&mut *tx)
                    .await
                    .map_err(reach)?;
                let Some((version, step)) = self.pending(self.applied(&mut tx).await?).next()
                else {
                    return Ok(applied);
                };
                let table = self.table;
                if version == 1 {
                    let create = format!(
                        "create table {table} (version bigint primary key, applied_at timestamptz not null)"
                    );
                    sqlx::raw_sql(AssertSqlSafe(create))
                        .execute(&mut *tx)
                        .await
                        .map_err(|error| self.failed(version, error))?;
                }
                sqlx::raw_sql(step)
                    .execute(&mut *tx)
                    .await
                    .map_err(|error| self.failed(version, error))?;
                let record =
                    format!("insert into {table} (version, applied_at) values ($1, now())");
                sqlx::query(AssertSqlSafe(record))
                    .bind(version)
                    .execute(&mut *tx)
                    .await
                    .map_err(reach)?;
                tx.commit().await.map_err(reach)?;
                applied += 1;
            }
        }

        async fn applied(&self, connection: &mut sqlx::PgConnection) -> Result<i64, StoreError> {
            let reach = |error| unavailable("the bookkeeping of migrations cannot be read", error);
            let table = self.table;
            // Who has just waited for the lock may have a cached answer of before, which naming a table renews.
            let there = "select exists (select from pg_catalog.pg_class where oid = to_regclass($1)) as there";
            let exists = sqlx::query(there)
                .bind(table)
                .fetch_one(&mut *connection)
                .await
                .map_err(reach)?;
            if !exists.try_get::<bool, _>("there").map_err(reach)? {
                return Ok(0);
            }
            let newest = format!("select coalesce(max(version), 0) as version from {table}");
            let row = sqlx::query(AssertSqlSafe(newest))
                .fetch_one(&mut *connection)
                .await
                .map_err(reach)?;
            row.try_get("version").map_err(reach)
        }
    }
}

#[cfg(feature = "sqlite")]
mod sqlite {
    use sqlx::{AssertSqlSafe, Row as _, SqliteConnection};

    use super::{Migrations, StoreError};
    use crate::sqlite::{SqliteStore, unavailable};
    use crate::store::TransactionalStore;

    impl Migrations {
        /// Applies the steps that a SQLite database lacks, and says how many those were.
        ///
        /// # Errors
        ///
        /// [`StoreError`] if the file cannot be written or a step fails; that step has changed nothing then.
        ///
        /// # Cancel safety
        ///
        /// The step under way is rolled back.
        pub async fn run_sqlite(&self, store: &SqliteStore) -> Result<usize, StoreError> {
            let reach = |error| unavailable("the database file cannot be migrated", error);
            let mut applied = 0;
            loop {
                let mut tx = store.begin().await?;
                let Some((version, step)) = self.pending(self.applied_in(&mut tx).await?).next()
                else {
                    return Ok(applied);
                };
                let table = self.table;
                if version == 1 {
                    let create = format!(
                        "create table {table} (version integer primary key, applied_at text not null) strict"
                    );
                    sqlx::raw_sql(AssertSqlSafe(create))
                        .execute(&mut *tx)
                        .await
                        .map_err(|error| self.failed(version, error))?;
                }
                sqlx::raw_sql(step)
                    .execute(&mut *tx)
                    .await
                    .map_err(|error| self.failed(version, error))?;
                let record = format!(
                    "insert into {table} (version, applied_at) values (?1, datetime('now'))"
                );
                sqlx::query(AssertSqlSafe(record))
                    .bind(version)
                    .execute(&mut *tx)
                    .await
                    .map_err(reach)?;
                tx.commit().await.map_err(reach)?;
                applied += 1;
            }
        }

        async fn applied_in(&self, connection: &mut SqliteConnection) -> Result<i64, StoreError> {
            let reach = |error| unavailable("the bookkeeping of migrations cannot be read", error);
            let table = self.table;
            let exists = sqlx::query(
                "select count(*) as there from sqlite_schema where type = 'table' and name = ?1",
            )
            .bind(table)
            .fetch_all(&mut *connection)
            .await
            .map_err(reach)?;
            if exists
                .first()
                .map_or(Ok(0), |row| row.try_get::<i64, _>("there"))
                .map_err(reach)?
                == 0
            {
                return Ok(0);
            }
            let newest = format!("select coalesce(max(version), 0) as version from {table}");
            let rows = sqlx::query(AssertSqlSafe(newest))
                .fetch_all(&mut *connection)
                .await
                .map_err(reach)?;
            rows.first()
                .map_or(Ok(0), |row| row.try_get("version"))
                .map_err(reach)
        }
    }
}
