//! A store on Postgres, for any number of processes.

mod acquires;
mod bell;
mod claims;
mod keeping;
mod link;
mod marks;
mod pipeline;
mod rows;
mod settles;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Postgres, Row as _, Transaction};
use tokio::sync::Mutex;

use self::bell::Bell;
use self::link::Link;
use self::pipeline::{CLAIM_PIPELINES, PgPipeline};
use crate::batch::Queue;
use crate::claim::{Claim, ClaimOutcome, Failed, Failure, Held, Renewal};
use crate::durable::{DurableStore, TransactionalDurableStore};
use crate::error::{StoreError, StoreErrorKind};
use crate::inbox::{Acquire, Acquisition, Backlog, Changes, Enqueue, EnqueueOutcome};
use crate::key::ClaimKey;
use crate::migrate::Migrations;
use crate::operator::{AuditEntry, Retried, Retry};
use crate::record::{Record, State};
use crate::request::StoredRequest;
use crate::seal::Sealer;
use crate::settle::{Settle, Settled};
use crate::store::{DeliveryStore, ListFilter, Pruned, Retention, Stats, TransactionalStore};
use crate::time::Clock;

const MIGRATIONS: Migrations = Migrations::new(
    "hookclaim_migrations",
    &[
        include_str!("postgres/schema_1.sql"),
        include_str!("postgres/schema_2.sql"),
    ],
);

const COMPLETE_IN: &str = include_str!("postgres/complete_in.sql");
const FENCE_IN: &str = include_str!("postgres/fence_in.sql");
const STATS: &str = include_str!("postgres/stats.sql");

/// Remembers deliveries in a Postgres database (13 or later) that any number of processes share.
///
/// The database's clock judges leases: the clocks of the processes do not matter. What one process writes travels
/// together, over connections of the store's own that are opened when they are needed: two for claims and deliveries to
/// be stored, and one each for settlements, for workers, for pruning and operators, and for telling and hearing of
/// changes. The pool serves handlers' transactions and reading, so that no pooled connection is held while a handler
/// runs without a transaction.
///
/// Processes tell each other of new deliveries by `NOTIFY` on the channel `hookclaim`; workers that miss it find them by
/// polling.
///
/// A store belongs to the tokio runtime that it was made in.
///
/// ```no_run
/// use hookclaim::PostgresStore;
///
/// # async fn example() -> Result<(), hookclaim::StoreError> {
/// let store = PostgresStore::connect("postgres://localhost/hooks").await?;
/// store.migrate().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    pool: PgPool,
    claims: Queue,
    settles: Queue,
    acquires: Queue,
    /// For pruning and operators, one at a time.
    operations: Arc<Mutex<Link>>,
    clock: Option<Arc<dyn Clock>>,
    sealer: Sealer,
    bell: Bell,
}

impl PostgresStore {
    /// Connects with a pool of the store's own, of up to 10 connections.
    ///
    /// # Errors
    ///
    /// [`Refused`](StoreErrorKind::Refused) if the URL cannot be read,
    /// [`Unavailable`](StoreErrorKind::Unavailable) if the database cannot be reached.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        let options: PgConnectOptions = url.parse().map_err(|error: sqlx::Error| {
            StoreError::new(StoreErrorKind::Refused, "the database URL cannot be read")
                .with_source(error)
        })?;
        let pool = PgPoolOptions::new()
            .acquire_timeout(Duration::from_secs(10))
            .connect_with(options)
            .await
            .map_err(|error| unavailable("the database cannot be reached", error))?;
        Ok(Self::new(pool))
    }

    /// A store on a pool of the application's. The store's own connections are opened with the same options when they
    /// are first needed.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn new(pool: PgPool) -> Self {
        Self::start(pool, None, Sealer::default(), true)
    }

    /// A store that reads the time from `clock` instead of the database.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn with_clock(pool: PgPool, clock: Arc<dyn Clock>) -> Self {
        Self::start(pool, Some(clock), Sealer::default(), true)
    }

    /// Seals the payloads that it stores with the first of these keys, and opens those that were sealed with any.
    /// Clones that were made before do neither.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[cfg(feature = "seal")]
    #[must_use]
    pub fn seal(self, keys: crate::seal::SealKeys) -> Self {
        let across = self.bell.is_across();
        Self::start(self.pool, self.clock, Sealer::new(keys), across)
    }

    /// Tells other processes nothing of changes, and does not listen to them: for databases behind a pooler that does
    /// not carry `NOTIFY`. Workers of other processes find new deliveries by polling.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    #[must_use]
    pub fn without_notifications(self) -> Self {
        Self::start(self.pool, self.clock, self.sealer, false)
    }

    fn start(pool: PgPool, clock: Option<Arc<dyn Clock>>, sealer: Sealer, across: bool) -> Self {
        let bell = Bell::new(pool.connect_options(), across);
        let link = || Link::new(pool.connect_options());
        let pipeline = || PgPipeline::new(link(), clock.clone(), sealer.clone(), bell.clone());
        Self {
            claims: Queue::start((0..CLAIM_PIPELINES).map(|_| pipeline())),
            settles: Queue::start([pipeline()]),
            acquires: Queue::start([pipeline()]),
            operations: Arc::new(Mutex::new(link())),
            pool,
            clock,
            sealer,
            bell,
        }
    }

    /// Makes or updates the tables, and says how many steps that took. Safe while other processes do the same.
    ///
    /// # Errors
    ///
    /// [`Refused`](StoreErrorKind::Refused) if the user may not, and there is something to do.
    pub async fn migrate(&self) -> Result<usize, StoreError> {
        MIGRATIONS.run_postgres(&self.pool).await
    }

    /// Every statement of the store, for a test that prepares each.
    #[cfg(feature = "test-util")]
    #[must_use]
    pub fn statements() -> &'static [&'static str] {
        &[
            claims::CLAIM,
            claims::ENQUEUE,
            claims::COVERED,
            acquires::DUE,
            acquires::FRESH,
            acquires::ACQUIRED,
            settles::SETTLE,
            settles::KEEP,
            keeping::RETRY,
            keeping::AUDIT,
            keeping::STORED,
            keeping::BACKLOG,
            keeping::LIST,
            keeping::PRUNE,
            keeping::PRUNE_PAYLOADS,
            rows::INSPECT,
            bell::NOTIFY,
            COMPLETE_IN,
            FENCE_IN,
            STATS,
        ]
    }

    /// The pool.
    #[must_use]
    pub fn pool(&self) -> &PgPool {
        &self.pool
    }

    fn now(&self) -> Option<i64> {
        self.clock.as_ref().map(|clock| clock.now().as_micros())
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let options = self.pool.connect_options();
        f.debug_struct("PostgresStore")
            .field("host", &options.get_host())
            .field("database", &options.get_database())
            .finish_non_exhaustive()
    }
}

impl DeliveryStore for PostgresStore {
    async fn claim(&self, claim: Claim) -> Result<ClaimOutcome, StoreError> {
        self.claims.claim(claim).await
    }

    async fn claim_many(&self, claims: Vec<Claim>) -> Result<Vec<ClaimOutcome>, StoreError> {
        self.claims.claim_many(claims).await
    }

    async fn complete(&self, held: &Held) -> Result<(), StoreError> {
        self.settles.settle(Settle::complete(held)).await.map(drop)
    }

    async fn fail(&self, held: &Held, failure: &Failure) -> Result<Failed, StoreError> {
        self.settles
            .settle(Settle::fail(held, failure))
            .await
            .and_then(Settled::failed)
    }

    async fn renew(&self, held: &Held) -> Result<Renewal, StoreError> {
        match self.settles.settle(Settle::renew(held)).await {
            Ok(settled) => settled.renewal(),
            Err(error) if error.is_busy() => Ok(Renewal::Busy),
            Err(error) => Err(error),
        }
    }

    async fn release(&self, held: &Held, delay: Duration) -> Result<(), StoreError> {
        self.settles
            .settle(Settle::release(held, delay))
            .await
            .map(drop)
    }

    async fn keep(&self, held: &Held, request: StoredRequest) -> Result<bool, StoreError> {
        self.settles.keep(held, request).await.map(|()| true)
    }

    async fn retry(&self, key: &ClaimKey, retry: &Retry) -> Result<Retried, StoreError> {
        self.retry_now(key, retry).await
    }

    async fn audit(&self, key: &ClaimKey) -> Result<Vec<AuditEntry>, StoreError> {
        self.audit_of(key).await
    }

    async fn inspect(&self, key: &ClaimKey) -> Result<Option<Record>, StoreError> {
        let mut connection = self.pool.acquire().await.map_err(reading)?;
        let found = rows::inspect(&mut connection, &[key]).await?;
        Ok(found.into_iter().next().flatten())
    }

    async fn list(&self, filter: &ListFilter) -> Result<Vec<Record>, StoreError> {
        self.list_of(filter).await
    }

    async fn prune(&self, retention: &Retention, limit: u32) -> Result<Pruned, StoreError> {
        self.prune_now(retention, limit).await
    }

    async fn stats(&self) -> Result<Stats, StoreError> {
        let rows = sqlx::query(STATS)
            .fetch_all(&self.pool)
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

impl DurableStore for PostgresStore {
    async fn enqueue(&self, enqueue: Enqueue) -> Result<EnqueueOutcome, StoreError> {
        self.claims.enqueue(enqueue.claim).await
    }

    async fn acquire(&self, acquire: Acquire) -> Result<Acquisition, StoreError> {
        self.acquires.acquire(acquire).await
    }

    fn changes(&self) -> Changes {
        self.bell.changes()
    }

    async fn stored(&self, key: &ClaimKey) -> Result<Option<StoredRequest>, StoreError> {
        self.stored_of(key).await
    }

    async fn backlog(&self) -> Result<Backlog, StoreError> {
        self.backlog_now().await
    }
}

/// Whoever stores the same key in another transaction waits until this one ends. Several keys should be stored in one
/// order everywhere. At an isolation level above read committed, a key that another transaction stored meanwhile is a
/// serialization failure.
impl TransactionalDurableStore for PostgresStore {
    async fn enqueue_in(
        &self,
        tx: &mut Self::Tx,
        enqueue: Enqueue,
    ) -> Result<EnqueueOutcome, StoreError> {
        let stored = claims::enqueue_in(tx, enqueue.claim, &self.sealer, self.now()).await?;
        if stored == EnqueueOutcome::Accepted {
            self.bell.follow_up();
        }
        Ok(stored)
    }
}

impl TransactionalStore for PostgresStore {
    type Tx = Transaction<'static, Postgres>;

    async fn begin(&self) -> Result<Self::Tx, StoreError> {
        let pool = self.pool.clone();
        // In a task of its own: a caller who goes away half-way must not leave a connection behind in the pool that
        // is within a transaction.
        let begun = tokio::spawn(async move { pool.begin().await }).await;
        match begun {
            Ok(Ok(tx)) => Ok(tx),
            Ok(Err(error)) => Err(unavailable("no transaction could be begun", error)),
            Err(error) => Err(StoreError::new(
                StoreErrorKind::Unavailable,
                "no transaction could be begun",
            )
            .with_source(error)),
        }
    }

    async fn fence_in(&self, tx: &mut Self::Tx, held: &Held) -> Result<(), StoreError> {
        let found = sqlx::query(FENCE_IN)
            .bind(held.key.source().as_str())
            .bind(held.key.key())
            .bind(rows::uuid(held.token))
            .fetch_optional(&mut **tx)
            .await
            .map_err(|error| unavailable("the delivery could not be locked", error))?;
        if found.is_some() {
            Ok(())
        } else {
            Err(poison(tx).await)
        }
    }

    async fn complete_in(&self, tx: &mut Self::Tx, held: &Held) -> Result<(), StoreError> {
        let found = sqlx::query(COMPLETE_IN)
            .bind(held.key.source().as_str())
            .bind(held.key.key())
            .bind(rows::uuid(held.token))
            .bind(self.now())
            .bind(held.policy.keep_payload)
            .fetch_optional(&mut **tx)
            .await
            .map_err(|error| unavailable("the delivery could not be completed", error))?;
        if found.is_some() {
            Ok(())
        } else {
            Err(poison(tx).await)
        }
    }

    async fn commit(&self, tx: Self::Tx) -> Result<(), StoreError> {
        let committed = tx.commit().await;
        // If it did after all, somebody should look.
        self.bell.committed();
        committed.map_err(|error| {
            unavailable("the transaction did not commit, as far as is known", error)
        })
    }

    async fn rollback(&self, tx: Self::Tx) {
        // A connection on which this fails is closed, which rolls back too.
        let _ = tx.rollback().await;
    }
}

/// Makes a transaction whose lease is lost uncommittable, so that an error that is overlooked books nothing.
async fn poison(tx: &mut Transaction<'static, Postgres>) -> StoreError {
    let _ = sqlx::query("select ('hookclaim: the lease was lost' || pg_backend_pid())::integer")
        .execute(&mut **tx)
        .await;
    StoreError::lease_lost()
}

fn reading(error: sqlx::Error) -> StoreError {
    unavailable("deliveries could not be read", error)
}

/// The SQLSTATE of what the database said.
fn code(error: &sqlx::Error) -> Option<String> {
    let said = error.as_database_error()?;
    said.code().map(std::borrow::Cow::into_owned)
}

/// Sorts what the database or the way to it said.
pub(crate) fn unavailable(
    context: impl Into<std::borrow::Cow<'static, str>>,
    error: sqlx::Error,
) -> StoreError {
    let context = context.into();
    let code = code(&error);
    let (kind, context) = match code.as_deref() {
        Some("42P01") => (
            StoreErrorKind::Refused,
            format!("{context}: the tables are not there; run the migrations first").into(),
        ),
        Some("42501") => (
            StoreErrorKind::Refused,
            format!("{context}: the database user lacks a privilege").into(),
        ),
        Some("28000" | "28P01" | "3D000") => (StoreErrorKind::Refused, context),
        _ => (StoreErrorKind::Unavailable, context),
    };
    StoreError::new(kind, context).with_source(error)
}
