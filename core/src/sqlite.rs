//! A store in one SQLite file.

mod inbox;
mod rows;
mod taking;
#[cfg(all(test, feature = "test-util"))]
mod tests;
mod turn;
mod writer;

use std::fmt;
use std::future::{Future as _, poll_fn};
use std::io;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::Poll;
use std::time::Duration;

use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};
use sqlx::{Row as _, Sqlite, SqlitePool, Transaction};

use self::turn::Turn;
use self::writer::Writer;
use crate::batch::Queue;
use crate::claim::{Claim, ClaimOutcome, Failed, Failure, Held, Renewal};
use crate::error::{StoreError, StoreErrorKind};
use crate::inbox::Announcer;
use crate::key::ClaimKey;
use crate::migrate::Migrations;
use crate::operator::{AuditEntry, Retried, Retry};
use crate::record::{Record, State};
use crate::request::StoredRequest;
use crate::seal::Sealer;
use crate::settle::{Settle, Settled};
use crate::store::{
    DeliveryStore, ListFilter, Position, Pruned, Retention, Stats, TransactionalStore,
};
use crate::time::{Clock, SystemClock};

const MIGRATIONS: Migrations = Migrations::new(
    "hookclaim_migrations",
    &[
        include_str!("sqlite/schema_1.sql"),
        include_str!("sqlite/schema_2.sql"),
    ],
);

/// How long SQLite itself waits for another process. [`Turn`] goes on asking after that.
const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a caller waits for the one write connection.
const TURN_TIMEOUT: Duration = Duration::from_secs(60);

const READERS: u32 = 4;

/// Remembers deliveries in one SQLite file (WAL, every commit on disk), for one process or a few on one machine.
///
/// A file has one writer at a time. The store has one write connection: its own writes travel in batches of one commit
/// each, and handlers' transactions ([`begin`](TransactionalStore::begin)) take turns with them in the order of
/// asking. Reads have connections of their own and never wait.
///
/// A store belongs to the tokio runtime that it was opened in.
///
/// ```no_run
/// use hookclaim::SqliteStore;
///
/// # async fn example() -> Result<(), hookclaim::StoreError> {
/// let store = SqliteStore::open("hooks.db").await?;
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SqliteStore {
    path: Arc<Path>,
    turn: Turn,
    readers: SqlitePool,
    queue: Queue,
    clock: Arc<dyn Clock>,
    seals: Seals,
    announcer: Announcer,
}

/// What payloads are sealed with. The writer reads it for each batch, so that keys can be set once it runs.
#[derive(Clone, Debug, Default)]
struct Seals(Arc<RwLock<Sealer>>);

impl Seals {
    fn current(&self) -> Sealer {
        self.0
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    #[cfg(feature = "seal")]
    fn replace(&self, sealer: Sealer) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = sealer;
    }
}

impl SqliteStore {
    /// Opens a file, or creates it, readable and writable for its owner alone.
    ///
    /// # Errors
    ///
    /// [`Refused`](StoreErrorKind::Refused) if the file cannot be created or is no database.
    pub async fn open(path: impl AsRef<Path>) -> Result<Self, StoreError> {
        Self::start(path.as_ref(), Arc::new(SystemClock)).await
    }

    /// Opens a file with a store that reads the time from `clock`.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    #[cfg(feature = "test-util")]
    pub async fn open_with_clock(
        path: impl AsRef<Path>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StoreError> {
        Self::start(path.as_ref(), clock).await
    }

    async fn start(path: &Path, clock: Arc<dyn Clock>) -> Result<Self, StoreError> {
        let path = create(path)?;
        let options = SqliteConnectOptions::new()
            .filename(&path)
            .busy_timeout(BUSY_TIMEOUT)
            .foreign_keys(true)
            .optimize_on_close(true, 400)
            .pragma("journal_size_limit", "67108864");
        let write = options
            .clone()
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            // The rows of a whole batch, so that SQLite's thread need not wait for their reader.
            .row_buffer_size(512);
        let turn = Turn::open(write, TURN_TIMEOUT).await?;
        let readers = SqlitePoolOptions::new()
            .max_connections(READERS)
            .test_before_acquire(false)
            .connect_lazy_with(options.read_only(true));
        let seals = Seals::default();
        let announcer = Announcer::new();
        let queue = Queue::start([Writer::new(
            turn.clone(),
            Arc::clone(&clock),
            seals.clone(),
            announcer.clone(),
        )]);
        Ok(Self {
            path: path.into(),
            turn,
            readers,
            queue,
            clock,
            seals,
            announcer,
        })
    }

    /// Seals the payloads that are stored from now on with the first of these keys, and opens those that any of them
    /// sealed. Clones of this store do the same.
    #[cfg(feature = "seal")]
    #[must_use]
    pub fn seal(self, keys: crate::SealKeys) -> Self {
        self.seals.replace(Sealer::new(keys));
        self
    }

    /// Makes or updates the tables, and says how many steps that took. Safe while other processes do the same.
    ///
    /// # Errors
    ///
    /// [`Refused`](StoreErrorKind::Refused) if a step fails.
    pub async fn migrate(&self) -> Result<usize, StoreError> {
        MIGRATIONS.run_sqlite(self).await
    }

    /// Connections for reading. They see what is committed.
    #[must_use]
    pub fn readers(&self) -> &SqlitePool {
        &self.readers
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every statement of the store, for a test that prepares each.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn statements() -> &'static [&'static str] {
        &[
            writer::CLAIM,
            writer::ENQUEUE,
            writer::COVERED,
            writer::STANDING,
            writer::SETTLE,
            taking::DUE,
            taking::FRESH,
            taking::EXPIRED,
            taking::TAKE,
            taking::KEEP,
            inbox::STORED,
            inbox::BACKLOG,
            inbox::RETRY,
            inbox::AUDITED,
            inbox::AUDIT,
            inbox::PRUNE,
            inbox::PRUNE_PAYLOADS,
            include_str!("sqlite/complete_in.sql"),
            include_str!("sqlite/fence_in.sql"),
            include_str!("sqlite/poison.sql"),
            include_str!("sqlite/list.sql"),
            include_str!("sqlite/stats.sql"),
        ]
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Makes sure that the file is there, for its owner alone, and returns its absolute path.
fn create(path: &Path) -> Result<PathBuf, StoreError> {
    let refused = |error: io::Error| {
        StoreError::new(
            StoreErrorKind::Refused,
            format!("cannot open the database file {}", path.display()),
        )
        .with_source(error)
    };
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    match options.open(path) {
        Ok(_) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(refused(error)),
    }
    path.canonicalize().map_err(refused)
}

impl DeliveryStore for SqliteStore {
    async fn claim(&self, claim: Claim) -> Result<ClaimOutcome, StoreError> {
        self.queue.claim(claim).await
    }

    async fn claim_many(&self, claims: Vec<Claim>) -> Result<Vec<ClaimOutcome>, StoreError> {
        self.queue.claim_many(claims).await
    }

    async fn complete(&self, held: &Held) -> Result<(), StoreError> {
        self.queue.settle(Settle::complete(held)).await.map(drop)
    }

    async fn fail(&self, held: &Held, failure: &Failure) -> Result<Failed, StoreError> {
        self.queue
            .settle(Settle::fail(held, failure))
            .await
            .and_then(Settled::failed)
    }

    async fn renew(&self, held: &Held) -> Result<Renewal, StoreError> {
        // While a handler's transaction has the write connection, a renewal would wait for it in vain: it may be this
        // very handler's. Nobody else can write meanwhile either, so that nothing can be taken over.
        let mut settled = pin!(self.queue.settle(Settle::renew(held)));
        let mut handler = pin!(self.turn.is_with_a_handler());
        poll_fn(|context| match settled.as_mut().poll(context) {
            Poll::Ready(settled) => Poll::Ready(settled.and_then(Settled::renewal)),
            Poll::Pending => handler.as_mut().poll(context).map(|()| Ok(Renewal::Busy)),
        })
        .await
    }

    async fn release(&self, held: &Held, delay: Duration) -> Result<(), StoreError> {
        self.queue
            .settle(Settle::release(held, delay))
            .await
            .map(drop)
    }

    async fn keep(&self, held: &Held, request: StoredRequest) -> Result<bool, StoreError> {
        self.queue.keep(held, request).await.map(|()| true)
    }

    async fn retry(&self, key: &ClaimKey, retry: &Retry) -> Result<Retried, StoreError> {
        self.run_again(key, retry).await
    }

    async fn audit(&self, key: &ClaimKey) -> Result<Vec<AuditEntry>, StoreError> {
        self.orders(key).await
    }

    async fn inspect(&self, key: &ClaimKey) -> Result<Option<Record>, StoreError> {
        let wanted = serde_json::json!([[key.source().as_str(), key.key()]]).to_string();
        let rows = sqlx::query(writer::STANDING)
            .bind(wanted)
            .fetch_all(&self.readers)
            .await
            .map_err(reading)?;
        rows.first().map(rows::record).transpose()
    }

    async fn list(&self, filter: &ListFilter) -> Result<Vec<Record>, StoreError> {
        let states = (!filter.states.is_empty()).then(|| {
            serde_json::Value::from_iter(filter.states.iter().map(|state| state.code())).to_string()
        });
        let source = filter.source.as_ref();
        let after = filter.after.as_ref().map(Position::columns);
        let text = |text: &str| text.to_owned();
        let rows = sqlx::query(include_str!("sqlite/list.sql"))
            .bind(states)
            .bind(source.map(|source| source.as_str().to_owned()))
            .bind(filter.event.clone())
            .bind(filter.delivery_id.clone())
            .bind(filter.since.map(crate::Timestamp::as_micros))
            .bind(filter.until.map(crate::Timestamp::as_micros))
            .bind(filter.error.clone())
            .bind(after.map(|(at, ..)| at))
            .bind(after.map(|(_, source, ..)| text(source)))
            .bind(after.map(|(_, _, key, _)| text(key)))
            .bind(after.map(|(.., id)| text(id)))
            .bind(i64::from(filter.limit))
            .fetch_all(&self.readers)
            .await
            .map_err(reading)?;
        rows.iter().map(rows::listed).collect()
    }

    async fn prune(&self, retention: &Retention, limit: u32) -> Result<Pruned, StoreError> {
        self.forget(retention, limit).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let rows = sqlx::query(include_str!("sqlite/stats.sql"))
            .fetch_all(&self.readers)
            .await
            .map_err(reading)?;
        let mut stats = Stats::default();
        for row in rows {
            let state = State::from_code(row.try_get("state").map_err(reading)?)
                .ok_or_else(rows::corrupt)?;
            let count: i64 = row.try_get("count").map_err(reading)?;
            stats = stats.with(state, count.unsigned_abs());
        }
        Ok(stats)
    }
}

impl TransactionalStore for SqliteStore {
    type Tx = Transaction<'static, Sqlite>;

    async fn begin(&self) -> Result<Self::Tx, StoreError> {
        let turn = self.turn.clone();
        // In a task of its own: a caller who goes away half-way must not leave the connection within a transaction.
        match tokio::spawn(async move { turn.begin_for_handler().await }).await {
            Ok(begun) => begun,
            Err(error) => Err(not_begun(error)),
        }
    }

    async fn fence_in(&self, tx: &mut Self::Tx, held: &Held) -> Result<(), StoreError> {
        let found = sqlx::query(include_str!("sqlite/fence_in.sql"))
            .bind(held.key.source().as_str().to_owned())
            .bind(held.key.key().to_owned())
            .bind(held.token.to_bytes().to_vec())
            .fetch_all(&mut **tx)
            .await
            .map_err(|error| unavailable("the delivery could not be locked", error))?;
        if found.is_empty() {
            Err(poison(tx).await)
        } else {
            Ok(())
        }
    }

    async fn complete_in(&self, tx: &mut Self::Tx, held: &Held) -> Result<(), StoreError> {
        let found = sqlx::query(include_str!("sqlite/complete_in.sql"))
            .bind(held.key.source().as_str().to_owned())
            .bind(held.key.key().to_owned())
            .bind(held.token.to_bytes().to_vec())
            .bind(self.clock.now().as_micros())
            .bind(held.policy.keep_payload)
            .fetch_all(&mut **tx)
            .await
            .map_err(|error| unavailable("the delivery could not be completed", error))?;
        if found.is_empty() {
            Err(poison(tx).await)
        } else {
            Ok(())
        }
    }

    async fn commit(&self, tx: Self::Tx) -> Result<(), StoreError> {
        let has_work = self.turn.take_work();
        tx.commit().await.map_err(|error| {
            unavailable("the transaction did not commit, as far as is known", error)
        })?;
        if has_work {
            self.announcer.announce();
        }
        Ok(())
    }

    async fn rollback(&self, tx: Self::Tx) {
        // A connection on which this fails is closed, which rolls back too.
        let _ = tx.rollback().await;
    }
}

/// Makes a transaction whose lease is lost uncommittable, so that an error that is overlooked books nothing.
async fn poison(tx: &mut Transaction<'static, Sqlite>) -> StoreError {
    let _ = sqlx::query(include_str!("sqlite/poison.sql"))
        .execute(&mut **tx)
        .await;
    StoreError::lease_lost()
}

fn not_begun(error: tokio::task::JoinError) -> StoreError {
    let kind = StoreErrorKind::Unavailable;
    StoreError::new(kind, "no transaction could be begun").with_source(error)
}

fn reading(error: sqlx::Error) -> StoreError {
    unavailable("deliveries could not be read", error)
}

/// Sorts what SQLite said.
pub(crate) fn unavailable(
    context: impl Into<std::borrow::Cow<'static, str>>,
    error: sqlx::Error,
) -> StoreError {
    let context = context.into();
    let (kind, context) = match error.as_database_error() {
        Some(said) if said.message().contains("no such table") => (
            StoreErrorKind::Refused,
            format!("{context}: the tables are not there; run the migrations first").into(),
        ),
        // Corrupt, not a database, read-only, or what would not be written at another time either. Full is not: space
        // may be made.
        Some(_) if matches!(primary_code(&error), Some(8 | 11 | 18 | 19 | 20 | 26)) => {
            (StoreErrorKind::Refused, context)
        }
        _ => (StoreErrorKind::Unavailable, context),
    };
    StoreError::new(kind, context).with_source(error)
}

/// The low byte of SQLite's extended codes is the primary one.
fn primary_code(error: &sqlx::Error) -> Option<u32> {
    let code = error
        .as_database_error()
        .and_then(sqlx::error::DatabaseError::code)?;
    code.parse::<u32>().ok().map(|code| code & 0xff)
}

/// Whether only the statement failed, and the transaction around it is as it was: 18 too big, 19 constraint,
/// 20 mismatch.
fn fails_alone(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(18..=20))
}
