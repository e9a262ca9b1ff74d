//! Stores: the contract on the databases themselves, and what databases do to those who use them.

use std::sync::Arc;
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use hookclaim::testing::{conformance, model};
use hookclaim::{
    ClaimOutcome, DeliveryStore, DurableStore, LeasePolicy, PostgresStore, State, StoreErrorKind,
    TransactionalDurableStore, TransactionalStore,
};
use hookclaim_tests::booking::BookingStore;
use hookclaim_tests::http::guid;
use hookclaim_tests::postgres::PgCluster;
use hookclaim_tests::process::Claimant;

use crate::stores::{Bench, claim, on_stores, record};
use crate::support::{App, Handler, Stack, delivery, reply};

on_stores! {
    the_contract_is_kept_clause_by_clause: sqlite postgres;
    random_histories_agree_with_the_machine: memory sqlite postgres;
    the_contract_of_durable_stores_is_kept_clause_by_clause: sqlite postgres;
    random_histories_of_workers_agree_with_the_machine: memory sqlite;
    transactional_handlers_book_once: sqlite postgres;
}

async fn the_contract_is_kept_clause_by_clause<St: TransactionalStore>(bench: Bench<St>) {
    conformance::check_transactional(&bench.store, &bench.clock).await;
}

async fn random_histories_agree_with_the_machine<St: DeliveryStore>(bench: Bench<St>) {
    for seed in 0..8 {
        model::play(&bench.store, &bench.clock, seed, 200).await;
    }
}

async fn the_contract_of_durable_stores_is_kept_clause_by_clause<St: TransactionalDurableStore>(
    bench: Bench<St>,
) {
    conformance::check_transactional_durable(&bench.store, &bench.clock).await;
}

async fn random_histories_of_workers_agree_with_the_machine<St: DurableStore>(bench: Bench<St>) {
    for seed in 0..8 {
        model::play_durable(&bench.store, &bench.clock, seed, 200).await;
    }
}

// F1: for as long as the case says if HOOKCLAIM_TESTS_FULL is set.
#[tokio::test(flavor = "multi_thread")]
async fn two_processes_write_one_sqlite_file_and_no_busy_error_surfaces() {
    let seconds = if std::env::var_os("HOOKCLAIM_TESTS_FULL").is_some() {
        90
    } else {
        3
    };
    let bench = crate::stores::real::sqlite().await;
    let mut writers: Vec<_> = (0..2)
        .map(|_| Claimant::start(&bench.url, Duration::from_secs(30)))
        .collect();
    for writer in &mut writers {
        writer.order(&format!("write {} 25", seconds * 1000));
    }
    let mut written = 0;
    for writer in &writers {
        let answer = writer.answer();
        assert!(answer.contains(" errors=0 "), "{answer}");
        let number = answer
            .strip_prefix("written=")
            .and_then(|rest| rest.split(' ').next());
        let number: u64 = number
            .and_then(|number| number.parse().ok())
            .expect("a number");
        assert!(number > 0, "nobody starves: {answer}");
        written += number;
    }
    let stats = bench.store.stats().await.unwrap();
    assert_eq!(stats.count(State::Completed), written);
    assert_eq!(stats.total(), written);
}

// F2
#[tokio::test(flavor = "multi_thread")]
async fn five_processes_start_at_once_on_an_empty_database() {
    let directory = tempfile::tempdir().unwrap();
    let sqlite = format!("sqlite:{}", directory.path().join("hooks.db").display());
    let postgres = PgCluster::shared().fresh_database().await;
    for url in [sqlite, postgres] {
        let starts: Vec<_> = (0..5)
            .map(|_| {
                let url = url.clone();
                std::thread::spawn(move || Claimant::start(&url, Duration::from_secs(30)))
            })
            .collect();
        let mut claimants: Vec<_> = starts
            .into_iter()
            .map(|start| {
                start
                    .join()
                    .unwrap_or_else(|_| panic!("one of five does not start on {url}"))
            })
            .collect();
        for (at, claimant) in claimants.iter_mut().enumerate() {
            assert_eq!(
                claimant.ask(&format!("claim k{at}")),
                "won 1 1 fresh",
                "{url}"
            );
            assert_eq!(claimant.ask(&format!("complete k{at}")), "ok", "{url}");
        }
    }
}

// F2
#[tokio::test(flavor = "multi_thread")]
async fn a_user_without_create_is_told_what_to_do() {
    let url = PgCluster::shared().fresh_database().await;
    let mut admin = PgConnection::connect(&url).await.unwrap();
    let role = format!("reader_{}", guid().replace('-', "_"));
    admin
        .execute(AssertSqlSafe(format!("create role {role} login")))
        .await
        .unwrap();
    admin
        .execute("revoke create on schema public from public")
        .await
        .unwrap();
    let options: PgConnectOptions = url.parse().unwrap();
    let pool = PgPool::connect_with(options.username(&role)).await.unwrap();
    let store = PostgresStore::new(pool);
    let error = store.migrate().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Refused);
    assert!(
        error.to_string().contains("may not create tables"),
        "{error}"
    );

    // Once somebody who may has made them, that user works with what it was granted.
    PostgresStore::connect(&url)
        .await
        .unwrap()
        .migrate()
        .await
        .unwrap();
    let grant =
        format!("grant select, insert, update, delete on all tables in schema public to {role}");
    admin.execute(AssertSqlSafe(grant)).await.unwrap();
    assert_eq!(store.migrate().await.unwrap(), 0);
    let held = store
        .claim(claim("k", LeasePolicy::default()))
        .await
        .unwrap()
        .won()
        .unwrap();
    store.complete(&held).await.unwrap();
}

// F3
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_meets_an_uncommitted_one_gets_a_definite_verdict() {
    for isolation in ["read committed", "repeatable read"] {
        for commits in [true, false] {
            let case = format!("{isolation}, commits: {commits}");
            let url = PgCluster::shared().fresh_database().await;
            let mut rival = PgConnection::connect(&url).await.unwrap();
            let name = url.rsplit('/').next().unwrap();
            rival
                .execute(AssertSqlSafe(format!(
                    "alter database {name} set default_transaction_isolation = '{isolation}'"
                )))
                .await
                .unwrap();
            let store = PostgresStore::connect(&url).await.unwrap();
            store.migrate().await.unwrap();
            let _template = store
                .claim(claim("template", LeasePolicy::default()))
                .await
                .unwrap();

            let insert = "insert into hookclaim_deliveries (received_at, claimed_at, renewed_at, lease_until, fence, \
                          claim_token, attempts, state, source, key, delivery_id, event) \
                          select received_at, claimed_at, renewed_at, lease_until, fence, gen_random_uuid(), attempts, \
                          state, source, 'contested', 'contested', event from hookclaim_deliveries where key = 'template'";
            let mut tx = rival.begin().await.unwrap();
            tx.execute(insert).await.unwrap();
            let racing = tokio::spawn({
                let store = store.clone();
                async move {
                    store
                        .claim(claim("contested", LeasePolicy::default()))
                        .await
                }
            });
            // The claim waits for the rival: that can be seen.
            let watcher = PgPool::connect(&url).await.unwrap();
            hookclaim_tests::eventually("the claim waits", || async {
                let waiting: i64 = sqlx::query_scalar(
                    "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
                )
                .fetch_one(&watcher)
                .await
                .unwrap();
                (waiting > 0 || racing.is_finished()).then_some(())
            })
            .await;
            // Others are not held up by it.
            let other = store.claim(claim("uncontested", LeasePolicy::default()));
            let other = tokio::time::timeout(hookclaim_tests::DEADLINE, other);
            if commits {
                tx.commit().await.unwrap();
            } else {
                tx.rollback().await.unwrap();
            }
            let outcome = racing.await.unwrap();
            match outcome.unwrap_or_else(|error| panic!("{case}: {error:?}")) {
                ClaimOutcome::InProgress { .. } => assert!(commits, "{case}"),
                ClaimOutcome::Won(held) => {
                    assert!(!commits, "{case}");
                    store.complete(&held).await.unwrap();
                }
                outcome => panic!("{case}: {outcome:?}"),
            }
            assert!(other.await.unwrap().unwrap().won().is_some(), "{case}");
        }
    }
}

// F3: many at once, so that races are lost within the statement.
#[tokio::test(flavor = "multi_thread")]
async fn racing_batches_that_overlap_have_one_winner_per_key_at_any_isolation() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let url = PgCluster::shared().fresh_database().await;
        let mut admin = PgConnection::connect(&url).await.unwrap();
        let name = url.rsplit('/').next().unwrap();
        let set =
            format!("alter database {name} set default_transaction_isolation = '{isolation}'");
        admin.execute(AssertSqlSafe(set)).await.unwrap();
        let first = PostgresStore::connect(&url).await.unwrap();
        first.migrate().await.unwrap();
        let mut stores = vec![first];
        for _ in 0..3 {
            stores.push(PostgresStore::connect(&url).await.unwrap());
        }
        let line = Arc::new(Barrier::new(stores.len()));
        let mut racers = JoinSet::new();
        for (at, store) in stores.into_iter().enumerate() {
            let line = Arc::clone(&line);
            racers.spawn(async move {
                let mut won = Vec::new();
                for round in 0..20 {
                    let mut names: Vec<_> = (0..30).map(|key| format!("r{round}-{key}")).collect();
                    // Each in another order, and some of them twice.
                    names.rotate_left(at * 7);
                    names.push(names[3].clone());
                    if at % 2 == 1 {
                        names.reverse();
                    }
                    line.wait().await;
                    let claims = names.iter().map(|name| claim(name, LeasePolicy::default()));
                    let outcomes = store.claim_many(claims.collect()).await.expect(isolation);
                    assert_eq!(outcomes.len(), names.len());
                    for (name, outcome) in names.into_iter().zip(outcomes) {
                        match outcome {
                            ClaimOutcome::Won(_) => won.push(name),
                            ClaimOutcome::InProgress { .. } => {}
                            outcome => panic!("{isolation}: {outcome:?}"),
                        }
                    }
                }
                won
            });
        }
        let mut won: Vec<_> = racers.join_all().await.concat();
        won.sort();
        let all = won.len();
        won.dedup();
        assert_eq!((won.len(), all), (600, 600), "{isolation}");
    }
}

// F7
#[tokio::test(flavor = "multi_thread")]
async fn a_pool_of_one_serves_many_transactional_handlers() {
    let url = PgCluster::shared().fresh_database().await;
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(Duration::from_secs(30))
        .connect(&url)
        .await
        .unwrap();
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.unwrap();
    store.make_bookings().await;
    let together = Arc::new(Barrier::new(4));
    let handler = Handler::new({
        let together = Arc::clone(&together);
        move |run: crate::support::Run, lease: hookclaim::Lease<PostgresStore>| {
            let (together, pool) = (Arc::clone(&together), pool.clone());
            async move {
                // All four run at once, and the only connection is free.
                together.wait().await;
                drop(pool.acquire().await.expect("no claim holds it"));
                let mut tx = lease.begin().await.expect("it begins");
                PostgresStore::book(&mut tx, run.delivery.id().as_str()).await;
                lease.commit(tx).await.expect("it commits");
                reply(200, "booked")
            }
        }
    });
    let app = App::with(Stack::Http1, store, handler).await;
    let mut senders = JoinSet::new();
    for _ in 0..4 {
        let (client, url) = (app.client.clone(), app.webhook());
        senders.spawn(async move {
            let id = guid();
            (client.deliver(&url, &delivery("push", &id, "{}")).await, id)
        });
    }
    for (answer, id) in senders.join_all().await {
        assert_eq!(answer.is(), (200, "completed"));
        assert_eq!(app.store.booked(&id).await, 1);
    }
}

async fn transactional_handlers_book_once<St: BookingStore>(bench: Bench<St>) {
    bench.store.make_bookings().await;
    // What the handler does in its first attempt is the name of the case.
    let handler = Handler::new(
        |run: crate::support::Run, lease: hookclaim::Lease<St>| async move {
            let case = String::from_utf8(run.body.to_vec()).unwrap();
            let case = case.trim_matches('"');
            let mut tx = lease.begin().await.unwrap();
            St::book(&mut tx, run.delivery.id().as_str()).await;
            match (run.attempt, case) {
                (1, "rolls back") => {
                    lease.complete_in(&mut tx).await.unwrap();
                    lease.store().rollback(tx).await;
                    reply(200, "done")
                }
                (1, "never commits") => {
                    lease.complete_in(&mut tx).await.unwrap();
                    drop(tx);
                    reply(200, "done")
                }
                (1, "commits and panics") => {
                    lease.commit(tx).await.unwrap();
                    panic!("as told")
                }
                (1, "commits and fails") => {
                    lease.commit(tx).await.unwrap();
                    reply(500, "broken")
                }
                _ => {
                    lease.commit(tx).await.unwrap();
                    reply(200, "done")
                }
            }
        },
    );
    let app = App::with(Stack::Http1, bench.store.clone(), handler).await;
    for (case, first, attempts) in [
        ("commits", (200, "completed"), 1),
        ("rolls back", (500, "failed"), 2),
        ("never commits", (500, "failed"), 2),
        ("commits and fails", (200, "completed"), 1),
        ("commits and panics", (0, ""), 1),
    ] {
        let id = guid();
        let sent = delivery("push", &id, format!("\"{case}\""));
        if let Ok(answer) = app.client.try_send(sent.to(&app.webhook())).await {
            assert_eq!(answer.is(), first, "{case}");
        }
        let again = app.deliver(&sent).await;
        let expected = if attempts == 1 {
            "duplicate"
        } else {
            "completed"
        };
        assert_eq!(again.is(), (200, expected), "{case}");
        assert_eq!(bench.store.booked(&id).await, 1, "{case}");
        let record = record(&bench.store, &id).await;
        assert_eq!(
            (record.state, record.attempts),
            (State::Completed, attempts),
            "{case}"
        );
    }
}

// F9
#[tokio::test(flavor = "multi_thread")]
async fn what_is_unique_is_the_source_with_the_key_and_nothing_else() {
    let postgres = crate::stores::real::postgres().await;
    let unique: Vec<Vec<String>> = sqlx::query_scalar(
        "select array_agg(a.attname::text order by a.attname) \
         from pg_index i \
         cross join lateral unnest(i.indkey) with ordinality as k (attnum, n) \
         join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.attnum \
         where i.indrelid = 'hookclaim_deliveries'::regclass and i.indisunique \
         group by i.indexrelid",
    )
    .fetch_all(postgres.store.pool())
    .await
    .unwrap();
    assert_eq!(unique, [["key", "source"]]);

    let sqlite = crate::stores::real::sqlite().await;
    let unique: Vec<String> = sqlx::query_scalar(
        "select group_concat(c.name, ',' order by c.name) \
         from pragma_index_list('hookclaim_deliveries') i, pragma_index_info(i.name) c \
         where i.\"unique\" group by i.name",
    )
    .fetch_all(sqlite.store.readers())
    .await
    .unwrap();
    assert_eq!(unique, ["key,source"]);
}
