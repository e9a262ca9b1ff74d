//! What only the store's own statements show.

use sqlx::Row as _;
use tempfile::TempDir;

use super::*;
use crate::inbox::{Acquire, Enqueue, EnqueueOutcome};
use crate::testing::{ManualClock, conformance, model};
use crate::{DeliveryId, DurableStore, EventName, LeasePolicy, Source};

async fn store() -> (SqliteStore, ManualClock, TempDir) {
    let directory = tempfile::tempdir().expect("a directory");
    let clock = ManualClock::new();
    let path = directory.path().join("hooks.db");
    let store = SqliteStore::open_with_clock(path, Arc::new(clock.clone()))
        .await
        .expect("it opens");
    store.migrate().await.expect("it migrates");
    (store, clock, directory)
}

#[tokio::test]
async fn the_store_conforms() {
    let (store, clock, _directory) = store().await;
    conformance::check_transactional_durable(&store, &clock).await;
}

#[tokio::test]
async fn the_store_plays_like_the_machine_for_workers_too() {
    let (store, clock, _directory) = store().await;
    for seed in 0..20 {
        model::play_durable(&store, &clock, seed, 150).await;
    }
}

/// The plan of a statement, a line per step.
async fn plan(store: &SqliteStore, statement: &'static str) -> Vec<String> {
    let explained = sqlx::AssertSqlSafe(format!("explain query plan {statement}"));
    let rows = sqlx::query(explained)
        .fetch_all(store.readers())
        .await
        .expect(statement);
    rows.iter().map(|row| row.get("detail")).collect()
}

async fn fill(store: &SqliteStore, count: u32) {
    let event = EventName::new("push").unwrap();
    let mut senders = Vec::new();
    for number in 0..count {
        let id = DeliveryId::new(format!("d{number}")).unwrap();
        let key = ClaimKey::delivery(Source::default(), &id);
        let mut work = Enqueue::work(key, id, event.clone(), StoredRequest::new("{}"));
        if number % 2 == 0 {
            work = work.ordering_key(format!("o{}", number % 20));
        }
        let store = store.clone();
        senders.push(tokio::spawn(async move { store.enqueue(work).await }));
    }
    for sender in senders {
        let outcome = sender.await.expect("no panic").expect("decided");
        assert_eq!(outcome, EnqueueOutcome::Accepted);
    }
}

#[tokio::test]
async fn workers_read_what_waits_or_is_leased_and_nothing_else() {
    let (store, _clock, _directory) = store().await;
    // With statistics of a store that is in use, and without any.
    for full in [false, true] {
        if full {
            fill(&store, 300).await;
            let acquire = Acquire::new(Source::default(), 40, LeasePolicy::default());
            for acquired in store.acquire(acquire).await.unwrap().started {
                store.complete(&acquired.held).await.unwrap();
            }
            let mut tx = store.begin().await.unwrap();
            sqlx::query("analyze").execute(&mut *tx).await.unwrap();
            tx.commit().await.unwrap();
        }
        let order = "SEARCH o USING INDEX hookclaim_deliveries_order (ordering_key=? AND source=? AND state=?";
        for (statement, wanted) in [
            (
                taking::DUE,
                &[
                    "SEARCH d USING INDEX hookclaim_deliveries_due (retry_at<?",
                    order,
                ][..],
            ),
            (
                taking::FRESH,
                &[
                    "SEARCH f USING INDEX hookclaim_deliveries_due (retry_at>? AND retry_at<?",
                    "SEARCH d USING INTEGER PRIMARY KEY (rowid=?)",
                    order,
                ],
            ),
            (
                taking::EXPIRED,
                &["SCAN d USING INDEX hookclaim_deliveries_leased", order],
            ),
            (
                taking::TAKE,
                &["SEARCH d USING INTEGER PRIMARY KEY (rowid=?)"],
            ),
            (
                inbox::BACKLOG,
                &[
                    "USING COVERING INDEX hookclaim_deliveries_due",
                    "USING INDEX hookclaim_deliveries_leased",
                ],
            ),
            (
                inbox::PRUNE,
                &["USING INDEX hookclaim_deliveries_past (finished_at<?)"],
            ),
            (
                inbox::PRUNE_PAYLOADS,
                &["USING COVERING INDEX hookclaim_deliveries_kept (finished_at<?)"],
            ),
        ] {
            let steps = plan(&store, statement).await;
            for wanted in wanted {
                let found = steps.iter().any(|step| step.contains(wanted));
                assert!(found, "{wanted} is not in {steps:#?}");
            }
            let scans = steps.iter().filter(|step| {
                step.starts_with("SCAN")
                    && !step.contains("hookclaim_deliveries_")
                    && ["hookclaim_deliveries", "SCAN d", "SCAN o", "SCAN f"]
                        .iter()
                        .any(|table| step.contains(table))
            });
            assert_eq!(scans.collect::<Vec<_>>(), [""; 0], "{steps:#?}");
        }
    }
}
