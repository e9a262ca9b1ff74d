//! The inbox in an SQLite file: what is particular to a file.

use std::collections::HashSet;
use std::pin::{Pin, pin};
use std::task::Poll;

use hookclaim::{
    Acquire, DeliveryId, DeliveryStore, DurableStore, Enqueue, EnqueueOutcome, EventName,
    LeasePolicy, Source, SqliteStore, State, StoredRequest, TransactionalDurableStore,
    TransactionalStore,
};

use crate::stores::{Bench, Reopen, key, record, sqlite};

fn work(name: &str, body: impl Into<Vec<u8>>) -> Enqueue {
    Enqueue::work(
        key(name),
        DeliveryId::new(name).expect("an id"),
        EventName::new("push").expect("an event"),
        StoredRequest::new(body.into()),
    )
}

fn due(limit: u32) -> Acquire {
    Acquire::new(Source::default(), limit, LeasePolicy::default())
}

fn wal_length(bench: &Bench<SqliteStore>) -> u64 {
    let mut path = bench.store.path().as_os_str().to_owned();
    path.push("-wal");
    std::fs::metadata(path).map_or(0, |file| file.len())
}

#[tokio::test(flavor = "multi_thread")]
async fn the_largest_payloads_come_back_and_the_log_of_writes_stays_bounded() {
    const MIB: usize = 1024 * 1024;
    let bench = sqlite().await;
    let body = |number: u8| {
        let bytes = (0..25 * MIB).map(|at| (at % 251) as u8 ^ number);
        bytes.collect::<Vec<u8>>()
    };
    // Some of them in one batch.
    let tx = bench.store.begin().await.unwrap();
    let senders: Vec<_> = (0..3)
        .map(|number| {
            let store = bench.store.clone();
            let work = work(&format!("large-{number}"), body(number));
            tokio::spawn(async move { store.enqueue(work).await })
        })
        .collect();
    bench.store.rollback(tx).await;
    for sender in senders {
        let outcome = sender.await.unwrap().unwrap();
        assert_eq!(outcome, EnqueueOutcome::Accepted);
    }
    let one = bench.store.stored(&key("large-1")).await.unwrap().unwrap();
    assert!(*one.body() == body(1));
    let started = bench.store.acquire(due(9)).await.unwrap().started;
    assert_eq!(started.len(), 3);
    for acquired in started {
        let name = acquired.held.delivery_id.as_str();
        let number = name.strip_prefix("large-").unwrap().parse().unwrap();
        assert!(*acquired.delivery.unwrap().raw() == body(number), "{name}");
        bench.store.renew(&acquired.held).await.unwrap();
        bench.store.complete(&acquired.held).await.unwrap();
    }
    for round in 0..6 {
        let name = format!("again-{round}");
        bench.store.enqueue(work(&name, body(9))).await.unwrap();
        let held = bench
            .store
            .acquire(due(1))
            .await
            .unwrap()
            .started
            .remove(0)
            .held;
        bench.store.complete(&held).await.unwrap();
    }
    // Three payloads in one commit and then some, and not the four hundred MiB that were written.
    let length = wal_length(&bench);
    assert!(length < 128 * MIB as u64, "{length} bytes");
}

#[tokio::test(flavor = "multi_thread")]
async fn two_stores_on_one_file_share_what_is_due() {
    let bench = sqlite().await;
    let stores = [bench.store.clone(), SqliteStore::reopen(&bench).await];
    let count = 200;
    let senders: Vec<_> = (0..count)
        .map(|number| {
            let store = stores[number % 2].clone();
            tokio::spawn(async move { store.enqueue(work(&format!("k{number}"), "{}")).await })
        })
        .collect();
    for sender in senders {
        assert_eq!(sender.await.unwrap().unwrap(), EnqueueOutcome::Accepted);
    }
    let workers: Vec<_> = stores
        .iter()
        .cycle()
        .take(4)
        .cloned()
        .map(|store| {
            tokio::spawn(async move {
                let mut taken = Vec::new();
                loop {
                    let acquisition = store.acquire(due(7)).await.unwrap();
                    if acquisition.is_empty() {
                        return taken;
                    }
                    for acquired in acquisition.started {
                        store.complete(&acquired.held).await.unwrap();
                        taken.push(acquired.held.key);
                    }
                }
            })
        })
        .collect();
    let mut taken = Vec::new();
    for worker in workers {
        taken.extend(worker.await.unwrap());
    }
    let distinct: HashSet<_> = taken.iter().collect();
    assert_eq!((taken.len(), distinct.len()), (count, count));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_accepted_is_there_when_the_file_is_opened_again() {
    let bench = sqlite().await;
    let outcome = bench.store.enqueue(work("k", "{\"n\":1}")).await.unwrap();
    assert_eq!(outcome, EnqueueOutcome::Accepted);
    let again = SqliteStore::reopen(&bench).await;
    drop(bench.store);
    let mut started = again.acquire(due(9)).await.unwrap().started;
    assert_eq!(started.len(), 1);
    let delivery = started.remove(0).delivery.unwrap();
    assert_eq!(delivery.raw().as_ref(), b"{\"n\":1}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handlers_follow_up_work_is_announced_by_its_own_commit_alone() {
    let bench = sqlite().await;
    let store = &bench.store;
    let mut changes = store.changes();
    let mut tx = store.begin().await.unwrap();
    store
        .enqueue_in(&mut tx, work("rolled-back", ""))
        .await
        .unwrap();
    store.rollback(tx).await;
    // Nor does the next transaction announce what the one before it had.
    let tx = store.begin().await.unwrap();
    store.commit(tx).await.unwrap();
    assert!(
        !is_ready(pin!(changes.changed())).await,
        "there is nothing to tell"
    );
    let mut tx = store.begin().await.unwrap();
    store
        .enqueue_in(&mut tx, work("committed", ""))
        .await
        .unwrap();
    assert!(!is_ready(pin!(changes.changed())).await);
    store.commit(tx).await.unwrap();
    assert!(is_ready(pin!(changes.changed())).await);
    assert_eq!(record(store, "committed").await.state, State::Received);
}

/// Whether a future is ready at once.
async fn is_ready(mut future: Pin<&mut impl Future<Output = ()>>) -> bool {
    std::future::poll_fn(|context| Poll::Ready(future.as_mut().poll(context).is_ready())).await
}
