//! What a look for due deliveries finds, and what it reads for that.

use std::str::FromStr;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, Executor, PgConnection};

use hookclaim::{Acquire, DeliveryStore, DurableStore, PostgresStore, Scope, Source, State};

use super::{ask, count, policy, stock, stock_due};
use crate::stores::real;

#[tokio::test(flavor = "multi_thread")]
async fn deliveries_without_attempts_left_hide_no_others() {
    let bench = real::postgres().await;
    let columns = "key, delivery_id, state, attempts, retry_at";
    let values = "'worn-' || n, 'worn-' || n, 3, 3, now - 7200000000 + n";
    stock(&bench.url, 1000, "github", columns, values).await;
    stock_due(&bench.url, 5, "github").await;
    let (mut retired, mut started) = (0, 0);
    while started < 5 {
        let taken = bench.store.acquire(ask(100)).await.unwrap();
        assert!(
            !taken.is_empty(),
            "{retired} were retired before nothing was found"
        );
        assert!(taken.retired.len() + taken.started.len() <= 100);
        assert!(taken.retired.iter().all(|one| one.attempts == 3));
        retired += taken.retired.len();
        started += taken.started.len();
    }
    assert_eq!((retired, started), (1000, 5));
    assert_eq!(count(&bench.url, State::Dead).await, 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_over_is_found_at_once_behind_ten_thousand_that_are_not() {
    let bench = real::postgres().await;
    let columns = "key, delivery_id, state, attempts, claimed_at, renewed_at, lease_until";
    let live = "'live-' || n, 'live-' || n, 1, 1, now - 60000000 + n, now, now + 3600000000";
    stock(&bench.url, 10_000, "github", columns, live).await;
    let over = "'over', 'over', 1, 1, now - 1000, now - 1000, now - 1";
    stock(&bench.url, 1, "github", columns, over).await;
    let without = bench.store.acquire(ask(10).expired(false)).await.unwrap();
    assert!(without.is_empty());
    let taken = bench.store.acquire(ask(10)).await.unwrap().started;
    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].held.key.key(), "over");
    assert_eq!(taken[0].held.attempt, 2);
    assert_eq!(count(&bench.url, State::Processing).await, 10_001);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_belongs_to_other_sources_is_not_touched() {
    let bench = real::postgres().await;
    let others = [
        "githu",
        "github2",
        "github/hook",
        "github/hook/",
        "github/hook/7/x",
        "github/hookx",
        "GITHUB",
    ];
    let columns = "key, delivery_id, state, attempts, claimed_at, renewed_at, lease_until";
    let over = "'over', 'over', 1, 9, now - 1000, now - 1000, now - 1";
    for source in others {
        stock_due(&bench.url, 3, source).await;
        stock(&bench.url, 1, source, columns, over).await;
    }
    let fingerprint =
        "select md5(string_agg(d::text, '' order by source, key)) from hookclaim_deliveries d";
    let mut connection = PgConnection::connect(&bench.url).await.unwrap();
    let before: String = sqlx::query_scalar(fingerprint)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert!(bench.store.acquire(ask(100)).await.unwrap().is_empty());
    let after: String = sqlx::query_scalar(fingerprint)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    assert_eq!(before, after);

    let of_hooks = || ask(100).scope(Scope::HookId);
    let taken = bench.store.acquire(of_hooks()).await.unwrap();
    let mut sources: Vec<_> = taken
        .started
        .iter()
        .map(|one| one.held.key.source().to_string())
        .collect();
    sources.sort();
    sources.dedup();
    assert_eq!(sources, ["github/hook/", "github/hook/7/x"]);
    assert_eq!((taken.started.len(), taken.retired.len()), (6, 2));
    for one in &taken.started {
        assert!(of_hooks().takes(one.held.key.source()));
    }
    for source in ["githu", "github2", "GITHUB"] {
        let source = Source::new(source).unwrap();
        let taken = bench
            .store
            .acquire(Acquire::new(source, 100, policy()))
            .await
            .unwrap();
        assert_eq!((taken.started.len(), taken.retired.len()), (3, 1));
    }
}

/// How many entries of the index of what is due were read by `looks` looks of one store.
async fn entries_read(url: &str, looks: u32) -> i64 {
    let name = format!("looker-{looks}");
    let options = PgConnectOptions::from_str(url)
        .unwrap()
        .application_name(&name);
    let pool = PgPoolOptions::new().connect_with(options).await.unwrap();
    let read = "select idx_tup_read from pg_stat_user_indexes where indexrelname = 'hookclaim_deliveries_due'";
    let mut connection = PgConnection::connect(url).await.unwrap();
    let before: i64 = sqlx::query_scalar(read)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    let store = PostgresStore::new(pool.clone()).without_notifications();
    for _ in 0..looks {
        assert!(store.acquire(ask(10)).await.unwrap().is_empty());
    }
    drop(store);
    pool.close().await;
    // A backend counts what it read before it goes.
    hookclaim_tests::eventually("the store's connections end", || async {
        let mut connection = PgConnection::connect(url).await.unwrap();
        let there: i64 =
            sqlx::query_scalar("select count(*) from pg_stat_activity where application_name = $1")
                .bind(&name)
                .fetch_one(&mut connection)
                .await
                .unwrap();
        (there == 0).then_some(())
    })
    .await;
    let mut connection = PgConnection::connect(url).await.unwrap();
    let after: i64 = sqlx::query_scalar(read)
        .fetch_one(&mut connection)
        .await
        .unwrap();
    after - before
}

#[tokio::test(flavor = "multi_thread")]
async fn an_old_snapshot_does_not_make_every_look_read_what_was_taken_long_ago() {
    let bench = real::postgres().await;
    let mut old = PgConnection::connect(&bench.url).await.unwrap();
    old.execute("begin isolation level repeatable read")
        .await
        .unwrap();
    old.execute("select count(*) from hookclaim_deliveries")
        .await
        .unwrap();
    stock_due(&bench.url, 20_000, "github").await;
    let mut connection = PgConnection::connect(&bench.url).await.unwrap();
    connection
        .execute(
            "update hookclaim_deliveries set state = 2, retry_at = null, finished_at = received_at, request = null, \
             payload = null",
        )
        .await
        .unwrap();
    let one = entries_read(&bench.url, 1).await;
    assert!(
        one >= 20_000,
        "a whole look passes what the snapshot may see: {one}"
    );
    let thirty = entries_read(&bench.url, 30).await;
    assert!(
        thirty < 6 * one,
        "{thirty} entries were read by 30 looks, {one} by one"
    );
    old.execute("rollback").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_becomes_due_in_the_past_is_found_all_the_same() {
    let bench = real::postgres().await;
    // Looks that begin where nothing was due.
    for _ in 0..3 {
        assert!(bench.store.acquire(ask(10)).await.unwrap().is_empty());
    }
    // As by a transaction that began long ago.
    stock_due(&bench.url, 3, "github").await;
    hookclaim_tests::eventually("they are found", || async {
        let taken = bench.store.acquire(ask(10)).await.unwrap();
        (taken.started.len() == 3).then_some(())
    })
    .await;
    // What is handed back or made to run again is due now, which a look never passes.
    stock_due(&bench.url, 0, "github").await;
    let columns = "key, delivery_id, state, attempts, finished_at";
    stock(
        &bench.url,
        1,
        "github",
        columns,
        "'dead', 'dead', 4, 3, now - 1000",
    )
    .await;
    assert!(bench.store.acquire(ask(10)).await.unwrap().is_empty());
    let retry = hookclaim::Retry::by("operator");
    let told = bench
        .store
        .retry(&super::key("dead"), &retry)
        .await
        .unwrap();
    assert_eq!(told, hookclaim::Retried::Due);
    let taken = bench.store.acquire(ask(10)).await.unwrap().started;
    assert_eq!(taken.len(), 1);
    bench
        .store
        .release(&taken[0].held, Duration::ZERO)
        .await
        .unwrap();
    assert_eq!(bench.store.acquire(ask(10)).await.unwrap().started.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn large_payloads_are_taken_in_several_answers_and_none_is_left_behind() {
    let bench = real::postgres().await;
    for number in 0..6 {
        let body = vec![b'x'; 7 * 1024 * 1024];
        let request = hookclaim::StoredRequest::new(body);
        let enqueue = super::work(&format!("large-{number}"), request);
        bench.store.enqueue(enqueue).await.unwrap();
    }
    let started = bench.store.acquire(ask(5)).await.unwrap().started;
    let names: Vec<_> = started.iter().map(|one| one.held.key.key()).collect();
    let expected = ["large-0", "large-1", "large-2", "large-3", "large-4"];
    assert_eq!(names, expected);
    let tokens: std::collections::HashSet<_> = started.iter().map(|one| one.held.token).collect();
    assert_eq!(tokens.len(), 5);
}
