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
async fn no_statement_reads_the_whole_table() {
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
                    "USING INDEX hookclaim_deliveries_due",
                    "USING INDEX hookclaim_deliveries_leased",
                ],
            ),
            (
                inbox::PRUNE,
                &["USING INDEX hookclaim_deliveries_past (finished_at<?)"],
            ),
            (
                inbox::PRUNE_PAYLOADS,
                &["USING INDEX hookclaim_deliveries_kept (finished_at<?)"],
            ),
        ] {
            let steps = plan(&store, statement).await;
            for wanted in wanted {
                let found = steps.iter().any(|step| step.contains(wanted));
                assert!(found, "{wanted} is not in {steps:#?}");
            }
        }
        for statement in SqliteStore::statements() {
            // What counts and lists reads everything, and is asked by operators.
            if [include_str!("stats.sql"), include_str!("list.sql")].contains(statement) {
                continue;
            }
            let steps = plan(&store, statement).await;
            let scans = steps.iter().filter(|step| reads_the_table(step));
            assert_eq!(
                scans.collect::<Vec<_>>(),
                [""; 0],
                "{statement}\n{steps:#?}"
            );
        }
    }
}

/// Whether a step of a plan reads deliveries from first to last, and not by one of the small indexes.
fn reads_the_table(step: &str) -> bool {
    let Some(what) = step.strip_prefix("SCAN ") else {
        return false;
    };
    let name = what.split(' ').next().unwrap_or_default();
    // r, s and t are what was asked for; the others are read out of indexes in steps of their own.
    let small = [
        "r",
        "s",
        "t",
        "fresh",
        "waiting",
        "leased",
        "hookclaim_lease_lost",
        "CONSTANT",
    ];
    let is_step = name.starts_with("(subquery");
    let by_small_index = ["due", "leased", "kept", "order"]
        .iter()
        .any(|index| what.contains(&format!("INDEX hookclaim_deliveries_{index}")));
    !small.contains(&name) && !is_step && !by_small_index
}

#[tokio::test]
async fn a_delivery_that_the_database_refuses_fails_nobody_elses() {
    let (store, _clock, _directory) = store().await;
    let mut tx = store.begin().await.unwrap();
    sqlx::query(
        "create trigger refuse before insert on hookclaim_deliveries when new.key like 'bad%' \
         begin select raise(abort, 'as told'); end",
    )
    .execute(&mut *tx)
    .await
    .unwrap();
    tx.commit().await.unwrap();
    // While a transaction is open, all of them gather in one batch.
    let tx = store.begin().await.unwrap();
    let senders: Vec<_> = ["a", "bad1", "b", "c", "bad2"]
        .into_iter()
        .enumerate()
        .map(|(at, name)| {
            let store = store.clone();
            tokio::spawn(async move {
                let (key, id, event) = names(name);
                if at == 2 {
                    let claim = Claim::bare(key, id, event, LeasePolicy::default());
                    let won = store.claim(claim).await?.won();
                    return Ok(won.is_some());
                }
                let work = Enqueue::work(key, id, event, StoredRequest::new("{}"));
                let outcome = store.enqueue(work).await?;
                Ok::<_, StoreError>(outcome == EnqueueOutcome::Accepted)
            })
        })
        .collect();
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
    store.rollback(tx).await;
    let mut answers = Vec::new();
    for sender in senders {
        let answer = sender.await.expect("no panic");
        answers.push(answer.map_err(|error| error.kind()));
    }
    let refused = Err(StoreErrorKind::Refused);
    assert_eq!(answers, [Ok(true), refused, Ok(true), Ok(true), refused]);
}

fn names(name: &str) -> (ClaimKey, DeliveryId, EventName) {
    let id = DeliveryId::new(name).unwrap();
    let key = ClaimKey::delivery(Source::default(), &id);
    (key, id, EventName::new("push").unwrap())
}

#[cfg(feature = "seal")]
#[tokio::test]
async fn sealed_payloads_are_not_in_the_file_and_open_with_their_key_alone() {
    use crate::{SealKeys, TransactionalDurableStore, Unreadable};

    let (plain, clock, directory) = store().await;
    let path = directory.path().join("hooks.db");
    let (old, new) = ("1".repeat(64), "2".repeat(64));
    let keys = |text: &str| SealKeys::parse(text).unwrap();
    let open = async |keys: Option<SealKeys>| {
        let store = SqliteStore::open_with_clock(&path, Arc::new(clock.clone()));
        let store = store.await.unwrap();
        match keys {
            Some(keys) => store.seal(keys),
            None => store,
        }
    };
    let work = |name: &str| {
        let (key, id, event) = names(name);
        Enqueue::work(key, id, event, StoredRequest::new("a secret of GitHub's"))
    };
    let store = open(Some(keys(&old))).await;
    for name in ["stored", "moved"] {
        store.enqueue(work(name)).await.unwrap();
    }
    let mut tx = store.begin().await.unwrap();
    store.enqueue_in(&mut tx, work("within")).await.unwrap();
    store.commit(tx).await.unwrap();
    let (key, id, event) = names("kept");
    let claim = Claim::bare(key, id, event, LeasePolicy::default());
    let held = store.claim(claim).await.unwrap().won().unwrap();
    let request = StoredRequest::new("a secret of GitHub's");
    assert!(store.keep(&held, request.clone()).await.unwrap());
    plain.enqueue(work("plain")).await.unwrap();

    let payloads: Vec<(String, Vec<u8>, Option<String>)> =
        sqlx::query_as("select key, payload, sealed_with from hookclaim_deliveries")
            .fetch_all(store.readers())
            .await
            .unwrap();
    assert_eq!(payloads.len(), 5);
    for (key, payload, sealed_with) in payloads {
        let is_open = payload.windows(6).any(|part| part == b"secret");
        assert_eq!(is_open, key == "plain", "{key}");
        let name = (key != "plain").then(|| keys(&old).name().to_owned());
        assert_eq!(sealed_with, name, "{key}");
    }
    let mut tx = store.begin().await.unwrap();
    sqlx::query(
        "update hookclaim_deliveries set payload = \
         (select payload from hookclaim_deliveries where key = 'stored') where key = 'moved'",
    )
    .execute(&mut *tx)
    .await
    .unwrap();
    store.commit(tx).await.unwrap();

    // The key was replaced, and the old one is still known, or is not.
    let rotated = open(Some(keys(&new).previous(&old).unwrap())).await;
    for name in ["stored", "within", "kept", "plain"] {
        let found = rotated.stored(&names(name).0).await.unwrap();
        let body = found.as_ref().map(StoredRequest::body);
        assert_eq!(body, Some(request.body()), "{name}");
    }
    let error = rotated.stored(&names("moved").0).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Corrupt);
    for store in [&plain, &open(Some(keys(&new))).await] {
        let error = store.stored(&names("stored").0).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Refused);
    }
    // What cannot be read is taken all the same, so that its worker can tell.
    let acquire = Acquire::new(Source::default(), 9, LeasePolicy::default());
    let started = open(Some(keys(&new)))
        .await
        .acquire(acquire)
        .await
        .unwrap()
        .started;
    assert_eq!(started.len(), 4);
    for acquired in started {
        let missing = Unreadable::KeyMissing(keys(&old).name().to_owned());
        match acquired.held.key.key() {
            "plain" => assert!(acquired.delivery.is_ok()),
            _ => assert_eq!(acquired.delivery.unwrap_err(), missing),
        }
    }
}
