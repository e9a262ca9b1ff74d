//! Many at once.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};
use tokio::task::JoinSet;

use hookclaim::{
    BusinessKey, Claim, ClaimKey, DeliveryId, DeliveryStore, DurableStore, Enqueue, EnqueueOutcome,
    EventName, Failure, LeasePolicy, Retention, Retry, Source, State, StoreError, StoredRequest,
    TransactionalDurableStore, TransactionalStore,
};

use super::{ask, count, isolate, stock_due, stores, work};
use crate::stores::real;

/// Settles an attempt whose row a worker may have locked who found it taken.
async fn settled<T, F>(mut settle: impl FnMut() -> F)
where
    F: Future<Output = Result<T, StoreError>>,
{
    loop {
        match settle().await {
            Err(error) if error.is_busy() => tokio::task::yield_now().await,
            settled => {
                settled.unwrap();
                return;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn racing_workers_never_get_a_delivery_twice_nor_more_than_they_asked_for() {
    for isolation in ["read committed", "serializable"] {
        let (url, stores) = stores(4).await;
        isolate(&url, isolation).await;
        let name = url.rsplit('/').next().unwrap();
        // A limit that holds whatever way rows are joined.
        let joins = format!("alter database {name} set enable_hashjoin = off");
        let mut admin = PgConnection::connect(&url).await.unwrap();
        admin.execute(AssertSqlSafe(joins)).await.unwrap();
        stock_due(&url, 600, "github").await;
        let taken = Arc::new(AtomicUsize::new(0));
        let mut workers = JoinSet::new();
        for store in stores {
            let taken = Arc::clone(&taken);
            workers.spawn(async move {
                let mut keys = Vec::new();
                while taken.load(Ordering::SeqCst) < 600 {
                    let started = store.acquire(ask(7)).await.unwrap().started;
                    assert!(started.len() <= 7);
                    taken.fetch_add(started.len(), Ordering::SeqCst);
                    keys.extend(started.into_iter().map(|one| one.held.key));
                }
                keys
            });
        }
        let keys = workers.join_all().await.concat();
        assert_eq!(keys.len(), 600, "{isolation}");
        let different: HashSet<_> = keys.iter().collect();
        assert_eq!(different.len(), 600, "{isolation}");
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let once: i64 = sqlx::query_scalar(
            "select count(*) from hookclaim_deliveries where state = 1 and attempts = 1 and fence = 2",
        )
        .fetch_one(&mut connection)
        .await
        .unwrap();
        assert_eq!(once, 600, "{isolation}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_is_reached_exactly() {
    let bench = real::postgres().await;
    stock_due(&bench.url, 20, "github").await;
    for expected in [7, 7, 6, 0] {
        let started = bench.store.acquire(ask(7)).await.unwrap().started;
        assert_eq!(started.len(), expected);
    }
    assert!(bench.store.acquire(ask(0)).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn each_of_a_crowd_of_deliveries_with_duplicates_has_its_own_answer() {
    let bench = real::postgres().await;
    let mut senders = JoinSet::new();
    for number in 0..500 {
        let store = bench.store.clone();
        senders.spawn(async move {
            let name = format!("k{}", number % 463);
            let body = format!("{{\"n\":\"{name}\"}}");
            store.enqueue(work(&name, StoredRequest::new(body))).await
        });
    }
    let outcomes = senders.join_all().await;
    let of = |outcome| {
        outcomes
            .iter()
            .filter(|one| *one.as_ref().unwrap() == outcome)
            .count()
    };
    assert_eq!(of(EnqueueOutcome::Accepted), 463);
    assert_eq!(of(EnqueueOutcome::InProgress), 37);
    assert_eq!(count(&bench.url, State::Received).await, 463);
    let mut left = 463;
    while left > 0 {
        for one in bench.store.acquire(ask(500)).await.unwrap().started {
            let name = one.held.key.key().to_owned();
            let body = one.delivery.unwrap().raw().clone();
            assert_eq!(body, format!("{{\"n\":\"{name}\"}}"));
            left -= 1;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_one_ordering_key_only_one_runs_at_a_time_whoever_races() {
    let (_, stores) = stores(3).await;
    for number in 0..60 {
        let name = format!("o{number}");
        let order = format!("order-{}", number % 4);
        let enqueue = work(&name, StoredRequest::new("{}")).ordering_key(order);
        stores[0].enqueue(enqueue).await.unwrap();
    }
    let running = Arc::new(Mutex::new(HashSet::new()));
    let done = Arc::new(AtomicUsize::new(0));
    let mut workers = JoinSet::new();
    for store in stores
        .iter()
        .flat_map(|store| [store.clone(), store.clone()])
    {
        let (running, done) = (Arc::clone(&running), Arc::clone(&done));
        workers.spawn(async move {
            while done.load(Ordering::SeqCst) < 60 {
                let started = store.acquire(ask(3)).await.unwrap().started;
                for one in &started {
                    let record = store.inspect(&one.held.key).await.unwrap().unwrap();
                    let order = record.ordering_key.unwrap();
                    let alone = running.lock().unwrap().insert(order.clone());
                    assert!(alone, "{order}");
                }
                tokio::task::yield_now().await;
                for one in started {
                    let record = store.inspect(&one.held.key).await.unwrap().unwrap();
                    running
                        .lock()
                        .unwrap()
                        .remove(&record.ordering_key.unwrap());
                    // The first attempt fails for a moment, in which others step in.
                    if one.held.attempt == 1 {
                        let failure = Failure::transient("later", Duration::from_micros(300));
                        settled(|| store.fail(&one.held, &failure)).await;
                    } else {
                        settled(|| store.complete(&one.held)).await;
                        done.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
        });
    }
    workers.join_all().await;
}

/// Everything at once, on few keys: whoever waits for a lock must not hold one that its holder waits for.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_is_done_at_once_deadlocks() {
    let (url, stores) = stores(3).await;
    let policy = LeasePolicy::default()
        .lease(LeasePolicy::MIN_LEASE)
        .max_attempts(2)
        .keep_payload(true);
    let mut crowd = JoinSet::new();
    for (at, store) in stores.iter().enumerate() {
        for task in 0..7 {
            let store = store.clone();
            crowd.spawn(async move {
                for round in 0..60_usize {
                    let name = |number: usize| format!("c{}", (number * 7 + at) % 13);
                    let business = |number: usize| {
                        let key = BusinessKey::new().text(name(number));
                        ClaimKey::business(Source::default(), &key)
                    };
                    let id = DeliveryId::new(format!("{at}-{task}-{round}")).unwrap();
                    let event = EventName::new("push").unwrap();
                    let done: Result<(), StoreError> = match task {
                        0 => {
                            let claims = (0..9).map(|number| {
                                let key = business(round + number);
                                Claim::bare(key, id.clone(), event.clone(), policy)
                            });
                            store.claim_many(claims.collect()).await.map(drop)
                        }
                        1 => {
                            let key = business(round);
                            let request = StoredRequest::new("{}");
                            let enqueue = Enqueue::work(key, id, event, request);
                            store.enqueue(enqueue.policy(policy)).await.map(drop)
                        }
                        2 | 3 => match store.acquire(ask(5)).await {
                            Ok(taken) => {
                                for one in taken.started {
                                    let _ = store.renew(&one.held).await;
                                    let _ = if round % 3 == 0 {
                                        store.release(&one.held, Duration::ZERO).await
                                    } else {
                                        store.complete(&one.held).await
                                    };
                                }
                                Ok(())
                            }
                            Err(error) => Err(error),
                        },
                        4 => {
                            let retry = Retry::by("operator").force(true);
                            store.retry(&business(round), &retry).await.map(drop)
                        }
                        5 => {
                            let retention = Retention::default()
                                .completed_and_run_again_after(Duration::ZERO)
                                .dead(Duration::ZERO)
                                .payload(Duration::ZERO);
                            store.prune(&retention, 3).await.map(drop)
                        }
                        _ => {
                            let mut tx = store.begin().await.unwrap();
                            let key = business(round);
                            let request = StoredRequest::new("{}");
                            let enqueue = Enqueue::work(key, id, event, request);
                            match store.enqueue_in(&mut tx, enqueue).await {
                                Ok(_) if round % 2 == 0 => store.commit(tx).await,
                                Ok(_) => {
                                    store.rollback(tx).await;
                                    Ok(())
                                }
                                Err(error) => Err(error),
                            }
                        }
                    };
                    done.unwrap_or_else(|error| panic!("task {task}: {error:?}"));
                }
            });
        }
    }
    crowd.join_all().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let deadlocks: i64 = sqlx::query_scalar(
        "select deadlocks from pg_stat_database where datname = current_database()",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(deadlocks, 0);
}
