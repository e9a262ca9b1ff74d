//! The one write connection of a file, and how those who write take turns with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqlitePoolOptions};
use sqlx::{Sqlite, SqlitePool, Transaction};
use tokio::time::Instant;

use super::{primary_code, unavailable};
use crate::batch::pause;
use crate::error::StoreError;

/// How often it is looked whether a handler's transaction has the write connection.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The write connection of a file. There is one: whoever asks first has it first.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pool: SqlitePool,
    patience: Duration,
    /// Whether a handler's transaction has it at the moment.
    with_handler: Arc<AtomicBool>,
    /// Whether work was stored in the transaction that has it.
    with_work: Arc<AtomicBool>,
}

impl Turn {
    pub(super) async fn open(
        options: SqliteConnectOptions,
        patience: Duration,
    ) -> Result<Self, StoreError> {
        let with_handler = Arc::new(AtomicBool::new(false));
        let with_work = Arc::new(AtomicBool::new(false));
        let free = [Arc::clone(&with_handler), Arc::clone(&with_work)];
        let new = free.clone();
        let clear = |flags: &[Arc<AtomicBool>; 2]| {
            for flag in flags {
                flag.store(false, Ordering::Release);
            }
        };
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .after_release(move |_, _| {
                clear(&free);
                Box::pin(async { Ok(true) })
            })
            // One that broke is never released.
            .after_connect(move |_, _| {
                clear(&new);
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
            with_work,
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

    /// Remembers that work was stored in the transaction that has the connection.
    pub(super) fn has_work(&self) {
        self.with_work.store(true, Ordering::Release);
    }

    /// Whether work was stored in the transaction that has the connection. The next one has none.
    pub(super) fn take_work(&self) -> bool {
        self.with_work.swap(false, Ordering::AcqRel)
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
    // 5 busy, 6 locked.
    matches!(primary_code(error), Some(5 | 6))
}
