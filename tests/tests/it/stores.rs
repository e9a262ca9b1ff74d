//! The stores, each of them fresh.

use std::sync::Arc;

use sqlx::PgPool;
use tempfile::TempDir;

use hookclaim::testing::ManualClock;
use hookclaim::{
    Claim, ClaimKey, DeliveryId, DeliveryStore, EventName, LeasePolicy, MemoryStore, PostgresStore,
    Record, Source, SqliteStore,
};
use hookclaim_tests::postgres::PgCluster;

/// A fresh store and what it stands on.
pub(crate) struct Bench<St> {
    pub(crate) store: St,
    /// The clock that it reads, unless it was made with the real one.
    pub(crate) clock: ManualClock,
    /// Where it can be opened once more.
    pub(crate) url: String,
    _directory: Option<TempDir>,
}

pub(crate) async fn memory() -> Bench<MemoryStore> {
    let clock = ManualClock::new();
    Bench {
        store: MemoryStore::with_clock(Arc::new(clock.clone())),
        clock,
        url: String::new(),
        _directory: None,
    }
}

pub(crate) async fn sqlite() -> Bench<SqliteStore> {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("hooks.db");
    let clock = ManualClock::new();
    let store = SqliteStore::open_with_clock(&path, Arc::new(clock.clone()))
        .await
        .expect("it opens");
    store.migrate().await.expect("it migrates");
    Bench {
        store,
        clock,
        url: format!("sqlite:{}", path.display()),
        _directory: Some(directory),
    }
}

pub(crate) async fn postgres() -> Bench<PostgresStore> {
    let url = PgCluster::shared().fresh_database().await;
    let clock = ManualClock::new();
    let pool = PgPool::connect(&url).await.expect("it answers");
    let store = PostgresStore::with_clock(pool, Arc::new(clock.clone()));
    store.migrate().await.expect("it migrates");
    Bench {
        store,
        clock,
        url,
        _directory: None,
    }
}

/// The same with the clocks that they have in production.
pub(crate) mod real {
    use super::{Bench, ManualClock};
    use hookclaim::{MemoryStore, PostgresStore, SqliteStore};
    use hookclaim_tests::postgres::PgCluster;

    pub(crate) async fn memory() -> Bench<MemoryStore> {
        Bench {
            store: MemoryStore::new(),
            clock: ManualClock::new(),
            url: String::new(),
            _directory: None,
        }
    }

    pub(crate) async fn sqlite() -> Bench<SqliteStore> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("hooks.db");
        let store = SqliteStore::open(&path).await.expect("it opens");
        store.migrate().await.expect("it migrates");
        Bench {
            store,
            clock: ManualClock::new(),
            url: format!("sqlite:{}", path.display()),
            _directory: Some(directory),
        }
    }

    pub(crate) async fn postgres() -> Bench<PostgresStore> {
        let url = PgCluster::shared().fresh_database().await;
        let store = PostgresStore::connect(&url).await.expect("it answers");
        store.migrate().await.expect("it migrates");
        Bench {
            store,
            clock: ManualClock::new(),
            url,
            _directory: None,
        }
    }
}

/// A store that can be opened once more, as after a restart or by a second replica.
pub(crate) trait Reopen: DeliveryStore {
    fn reopen(bench: &Bench<Self>) -> impl Future<Output = Self> + Send;
}

impl Reopen for SqliteStore {
    async fn reopen(bench: &Bench<Self>) -> Self {
        let path = bench.url.strip_prefix("sqlite:").expect("it is of SQLite");
        Self::open_with_clock(path, Arc::new(bench.clock.clone()))
            .await
            .expect("it opens again")
    }
}

impl Reopen for PostgresStore {
    async fn reopen(bench: &Bench<Self>) -> Self {
        let pool = PgPool::connect(&bench.url).await.expect("it answers");
        Self::with_clock(pool, Arc::new(bench.clock.clone()))
    }
}

/// Makes a module of tests out of a function over any store: a test per store that is named.
macro_rules! on_stores {
    ($($(#[$doc:meta])* $name:ident: $($store:ident)+;)*) => {
        $(
            $(#[$doc])*
            mod $name {
                $(
                    #[tokio::test(flavor = "multi_thread")]
                    async fn $store() {
                        super::$name(crate::stores::$store().await).await;
                    }
                )+
            }
        )*
    };
    (real $($(#[$doc:meta])* $name:ident: $($store:ident)+;)*) => {
        $(
            $(#[$doc])*
            mod $name {
                $(
                    #[tokio::test(flavor = "multi_thread")]
                    async fn $store() {
                        super::$name(crate::stores::real::$store().await).await;
                    }
                )+
            }
        )*
    };
}
pub(crate) use on_stores;

pub(crate) fn key(name: &str) -> ClaimKey {
    let id = DeliveryId::new(name).expect("a delivery id");
    ClaimKey::delivery(Source::default(), &id)
}

pub(crate) fn claim(name: &str, policy: LeasePolicy) -> Claim {
    Claim::bare(
        key(name),
        DeliveryId::new(name).expect("a delivery id"),
        EventName::new("push").expect("an event"),
        policy,
    )
}

pub(crate) async fn record(store: &impl DeliveryStore, name: &str) -> Record {
    let found = store.inspect(&key(name)).await.expect("it can be read");
    found.expect("it is there")
}
