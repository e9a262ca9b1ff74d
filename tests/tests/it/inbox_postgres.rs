//! The durable inbox on Postgres: the contract, and what many workers, old snapshots, broken connections and lost
//! notifications do to those who take from it.

mod crowds;
mod looks;
mod plans;
mod wires;

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool};

use hookclaim::testing::{conformance, model};
use hookclaim::{
    Acquire, ClaimKey, DeliveryId, DeliveryStore, DurableStore, Enqueue, EnqueueOutcome, EventName,
    LeasePolicy, PostgresStore, SealKeys, Source, State, StoredRequest,
};
use hookclaim_tests::postgres::PgCluster;

use crate::stores::{postgres, real};

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_is_kept_clause_by_clause() {
    let bench = postgres().await;
    conformance::check_transactional_durable(&bench.store, &bench.clock).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn random_histories_agree_with_the_machine() {
    let bench = postgres().await;
    for seed in 0..8 {
        model::play_durable(&bench.store, &bench.clock, seed, 200).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_contract_is_kept_whatever_the_default_isolation() {
    let bench = postgres().await;
    isolate(&bench.url, "serializable").await;
    let clock = bench.clock.clone();
    let pool = PgPool::connect(&bench.url).await.unwrap();
    let store = PostgresStore::with_clock(pool, std::sync::Arc::new(clock.clone()));
    conformance::check_durable(&store, &clock).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_payload_comes_back_as_it_went_sealed_or_not() {
    // 25 MB is what GitHub delivers at most. No byte of it is of use to a compressor.
    let body: Vec<u8> = (0..25 * 1024 * 1024_u64)
        .map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()[1])
        .collect();
    let keys = SealKeys::parse(&"5e".repeat(32)).unwrap();
    for sealed in [false, true] {
        let bench = real::postgres().await;
        let store = bench.store.clone();
        let store = if sealed {
            store.seal(keys.clone())
        } else {
            store
        };
        let request = StoredRequest::new(body.clone()).path_of("/hooks");
        let outcome = store.enqueue(work("large", request)).await.unwrap();
        assert_eq!(outcome, EnqueueOutcome::Accepted);
        let mut taken = store.acquire(ask(10)).await.unwrap().started;
        assert_eq!(taken.len(), 1);
        let acquired = taken.remove(0);
        assert_eq!(acquired.path, "/hooks");
        let delivery = acquired.delivery.expect("it can be read");
        assert!(delivery.raw()[..] == body[..], "sealed: {sealed}");
        let stored = store.stored(&acquired.held.key).await.unwrap();
        assert!(stored.unwrap().body()[..] == body[..], "sealed: {sealed}");
        // Without the key there is nothing to read, and an error that says so.
        let other = PostgresStore::connect(&bench.url).await.unwrap();
        let read = other.stored(&acquired.held.key).await;
        assert_eq!(read.is_err(), sealed);
        store.complete(&acquired.held).await.unwrap();
        assert_eq!(store.stored(&acquired.held.key).await.unwrap(), None);
    }
}

fn key(name: &str) -> ClaimKey {
    ClaimKey::delivery(Source::default(), &DeliveryId::new(name).unwrap())
}

fn work(name: &str, request: StoredRequest) -> Enqueue {
    let id = DeliveryId::new(name).unwrap();
    Enqueue::work(key(name), id, EventName::new("push").unwrap(), request)
}

fn policy() -> LeasePolicy {
    LeasePolicy::default()
        .lease(Duration::from_secs(600))
        .max_attempts(3)
}

fn ask(limit: u32) -> Acquire {
    Acquire::new(Source::default(), limit, policy())
}

/// Makes rows out of nothing: `columns` and their `values` for each `n` from 1 to `count`, with `now` in µs.
async fn stock(url: &str, count: u32, source: &str, columns: &str, values: &str) {
    let insert = format!(
        "insert into hookclaim_deliveries (received_at, fence, claim_token, source, event, request, payload, {columns}) \
         select now, 1, gen_random_uuid(), '{source}', 'push', '{{\"path\":\"/\"}}', '\\x7b7d', {values} \
         from generate_series(1, {count}) as n \
         cross join (select (extract(epoch from statement_timestamp()) * 1000000)::bigint as now) c"
    );
    let mut connection = PgConnection::connect(url).await.unwrap();
    connection.execute(AssertSqlSafe(insert)).await.unwrap();
}

/// Deliveries that have been due for an hour.
async fn stock_due(url: &str, count: u32, source: &str) {
    let columns = "key, delivery_id, state, attempts, retry_at";
    let values = "'due-' || n, 'due-' || n, 0, 0, now - 3600000000 + n";
    stock(url, count, source, columns, values).await;
}

async fn isolate(url: &str, isolation: &str) {
    let name = url.rsplit('/').next().unwrap();
    let set = format!("alter database {name} set default_transaction_isolation = '{isolation}'");
    let mut admin = PgConnection::connect(url).await.unwrap();
    admin.execute(AssertSqlSafe(set)).await.unwrap();
}

async fn count(url: &str, state: State) -> i64 {
    let mut connection = PgConnection::connect(url).await.unwrap();
    sqlx::query_scalar("select count(*) from hookclaim_deliveries where state = $1")
        .bind(state.code())
        .fetch_one(&mut connection)
        .await
        .unwrap()
}

/// Stores on one database that share nothing in this process.
async fn stores(count: usize) -> (String, Vec<PostgresStore>) {
    let url = PgCluster::shared().fresh_database().await;
    let mut stores = Vec::new();
    for _ in 0..count {
        let store = PostgresStore::connect(&url).await.unwrap();
        store.migrate().await.unwrap();
        stores.push(store);
    }
    (url, stores)
}
