//! Deliveries that are stored and worked off, on real databases: D 4, 10, 14, E 4, 5, F 4, 6.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::http::{Method, Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::Full;
use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{PgPool, Row as _};
use tokio::sync::mpsc;
use tower::{Layer as _, Service, ServiceExt as _, service_fn};

use hookclaim::testing::{ManualClock, conformance, model, signed_headers};
use hookclaim::{
    Acquire, Attempt, Backoff, BusinessKey, ClaimKey, Delivery, DeliveryId, DeliveryStore,
    DurableStore, Enqueue, EnqueueOutcome, ErrorClass, EventName, Failure, KeyError, LeasePolicy,
    ListFilter, PostgresStore, Retention, Retry, SecretSet, Source, SqliteStore, State,
    StoreErrorKind, StoredRequest, TransactionalStore as _,
};
use hookclaim_tests::postgres::{PgCluster, PgOptions};
use hookclaim_tests::process::Claimant;
use tower_hookclaim::{Drain, GithubWebhookLayer, OUTCOME_HEADER, Worker};

use crate::stores::{Bench, claim, key, on_stores, record};

const SECRET: &str = "It's a Secret to Everybody";

/// Long enough for whatever a busy machine does.
const PATIENCE: Duration = Duration::from_secs(60);

type Reply = Response<Full<Bytes>>;

fn layer<St: DeliveryStore>(store: &St) -> GithubWebhookLayer<St> {
    let secrets = SecretSet::single(SECRET).expect("a secret");
    GithubWebhookLayer::new(secrets, store.clone()).backoff(quick())
}

fn quick() -> Backoff {
    Backoff::new(Duration::from_millis(1), Duration::from_millis(1))
}

fn signed(id: &str, body: &str) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::from(body.to_owned()));
    *request.method_mut() = Method::POST;
    *request.headers_mut() = signed_headers(SECRET.as_bytes(), "push", id, body.as_bytes());
    request
}

fn reply(status: StatusCode) -> Reply {
    let mut response = Response::new(Full::default());
    *response.status_mut() = status;
    response
}

async fn send<S, B>(service: &S, request: Request<Full<Bytes>>) -> (u16, String)
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>, Error = Infallible> + Clone,
{
    let answer = service.clone().oneshot(request).await.expect("it answers");
    let outcome = answer.headers()[OUTCOME_HEADER].to_str().expect("text");
    (answer.status().as_u16(), outcome.to_owned())
}

fn is(status: u16, outcome: &str) -> (u16, String) {
    (status, outcome.to_owned())
}

/// Waits until a condition holds that nobody announces.
async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let end = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < end, "never {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

async fn heard<T>(receiver: &mut mpsc::UnboundedReceiver<T>) -> T {
    let told = tokio::time::timeout(PATIENCE, receiver.recv()).await;
    told.expect("it is told in time").expect("somebody tells")
}

on_stores! { real
    /// CASES D4.
    a_duplicate_of_what_runs_is_told_so_and_what_fails_runs_again_by_itself: sqlite postgres;
    /// CASES D14.
    a_second_push_of_one_commit_is_covered_by_the_first: sqlite postgres;
    /// CASES E5.
    a_handler_that_kills_its_process_every_time_is_dead_after_its_attempts: sqlite postgres;
    /// CASES F4: 3 s, or 60 s with `HOOKCLAIM_TESTS_FULL`.
    everything_at_once_ends_in_no_error: sqlite postgres;
}

async fn a_duplicate_of_what_runs_is_told_so_and_what_fails_runs_again_by_itself<
    St: DurableStore,
>(
    bench: Bench<St>,
) {
    let (started, mut starts) = mpsc::unbounded_channel();
    let (go, gate) = tokio::sync::watch::channel(false);
    let handler = service_fn(move |request: Request<Full<Bytes>>| {
        let (started, mut gate) = (started.clone(), gate.clone());
        async move {
            let attempt: &Attempt = request.extensions().get().expect("it is there");
            started.send(attempt.number()).expect("somebody listens");
            let failed = attempt.number() == 1;
            gate.wait_for(|open| *open).await.expect("it opens");
            Ok::<_, Infallible>(reply(if failed {
                StatusCode::BAD_GATEWAY
            } else {
                StatusCode::OK
            }))
        }
    });
    let drain = Drain::new();
    let layer = layer(&bench.store);
    let worker = tokio::spawn(layer.worker(handler.clone()).drain(&drain).run());
    let service = layer.durable().layer(handler);
    let sent = || signed("push-1", "{}");
    assert_eq!(send(&service, sent()).await, is(202, "accepted"));
    assert_eq!(heard(&mut starts).await, 1);
    for _ in 0..3 {
        assert_eq!(send(&service, sent()).await, is(202, "in-progress"));
    }
    go.send_replace(true);
    assert_eq!(heard(&mut starts).await, 2, "nobody sent it again");
    until("completed", async || {
        record(&bench.store, "push-1").await.state == State::Completed
    })
    .await;
    assert_eq!(send(&service, sent()).await, is(200, "duplicate"));
    drain.begin();
    worker.await.expect("it ends");
    assert!(starts.try_recv().is_err(), "it ran twice and no more");
}

async fn a_second_push_of_one_commit_is_covered_by_the_first<St: DurableStore>(bench: Bench<St>) {
    for durable in [false, true] {
        let source = Source::new(if durable { "stored" } else { "inline" }).expect("a name");
        let (ran, mut runs) = mpsc::unbounded_channel();
        let handler = service_fn(move |request: Request<Full<Bytes>>| {
            let attempt: &Attempt = request.extensions().get().expect("it is there");
            ran.send(attempt.number()).expect("somebody listens");
            let failed = attempt.number() == 1;
            async move {
                Ok::<_, Infallible>(reply(if failed {
                    StatusCode::BAD_GATEWAY
                } else {
                    StatusCode::OK
                }))
            }
        });
        let layer = layer(&bench.store).source(source.clone()).key(by_commit);
        let first = signed("guid-1", r#"{"after":"6dcb09b5","repository":{"id":7}}"#);
        // The same commit in other words.
        let second = || signed("guid-2", r#"{"repository":{"id":7},"after":"6dcb09b5"}"#);
        let drain = Drain::new();
        if durable {
            let service = layer.clone().durable().layer(handler.clone());
            assert_eq!(send(&service, first).await, is(202, "accepted"));
            assert_eq!(send(&service, second()).await, is(202, "in-progress"));
            let worker = tokio::spawn(layer.worker(handler).drain(&drain).run());
            assert_eq!(heard(&mut runs).await, 1);
            assert_eq!(heard(&mut runs).await, 2, "the first one failed");
            let all = ListFilter::newest(9).source(source.clone());
            until("completed", async || {
                let rows = bench.store.list(&all).await.expect("listed");
                rows.iter().all(|row| row.state == State::Completed)
            })
            .await;
            assert_eq!(send(&service, second()).await, is(200, "duplicate"));
            drain.begin();
            worker.await.expect("it ends");
        } else {
            let service = layer.layer(handler);
            assert_eq!(send(&service, first).await, is(502, "failed"));
            assert_eq!(send(&service, second()).await, is(200, "completed"));
            assert_eq!(send(&service, second()).await, is(200, "duplicate"));
            assert_eq!((heard(&mut runs).await, heard(&mut runs).await), (1, 2));
        }
        assert!(runs.try_recv().is_err(), "one piece of work");
        let rows = bench
            .store
            .list(&ListFilter::newest(9).source(source))
            .await
            .expect("listed");
        let covers: Vec<_> = rows
            .iter()
            .map(|row| {
                (
                    row.delivery_id.as_str(),
                    row.covered_by.as_ref().map(DeliveryId::as_str),
                )
            })
            .collect();
        assert_eq!(covers, [("guid-2", Some("guid-1")), ("guid-1", None)]);
        assert!(rows.iter().all(|row| row.state == State::Completed));
    }
}

fn by_commit(delivery: &Delivery) -> Result<BusinessKey, KeyError> {
    let payload: serde_json::Value = serde_json::from_slice(delivery.json())
        .map_err(|_| KeyError::Refused("no JSON".to_owned()))?;
    Ok(BusinessKey::new()
        .int(payload["repository"]["id"].as_i64().unwrap_or_default())
        .text(payload["after"].as_str().unwrap_or_default()))
}

async fn a_handler_that_kills_its_process_every_time_is_dead_after_its_attempts<
    St: DurableStore,
>(
    bench: Bench<St>,
) {
    let attempts = LeasePolicy::default().attempts();
    let lease = Duration::from_millis(300);
    put(&bench.store, "poison").await;
    for attempt in 1..=attempts {
        let mut victim = Claimant::start(&bench.url, lease);
        victim.order("work-and-abort");
        victim.process().wait();
        let row = record(&bench.store, "poison").await;
        assert_eq!((row.state, row.attempts), (State::Processing, attempt));
    }
    let drain = Drain::new();
    let (ran, mut runs) = mpsc::unbounded_channel();
    let handler = service_fn(move |_: Request<Full<Bytes>>| {
        let told = ran.send(());
        async move {
            told.expect("somebody listens");
            Ok::<_, Infallible>(reply(StatusCode::OK))
        }
    });
    let worker = Worker::new(bench.store.clone(), handler)
        .lease(LeasePolicy::default().lease(lease))
        .poll_interval(Duration::from_millis(50))
        .drain(&drain);
    let worker = tokio::spawn(worker.run());
    until("dead", async || {
        record(&bench.store, "poison").await.state == State::Dead
    })
    .await;
    drain.begin();
    worker.await.expect("it ends");
    let row = record(&bench.store, "poison").await;
    assert_eq!(
        (row.attempts, row.error_class),
        (attempts, Some(ErrorClass::LeaseExpired))
    );
    assert!(
        row.last_error.is_some() && row.has_payload,
        "an operator can look at it"
    );
    assert!(runs.try_recv().is_err());
}

async fn put<St: DurableStore>(store: &St, name: &str) {
    let id = DeliveryId::new(name).expect("a delivery id");
    let event = EventName::new("push").expect("an event");
    let outcome = store
        .enqueue(Enqueue::work(
            key(name),
            id,
            event,
            StoredRequest::new("{}"),
        ))
        .await
        .expect("stored");
    assert_eq!(outcome, EnqueueOutcome::Accepted);
}

async fn everything_at_once_ends_in_no_error<St: DurableStore>(bench: Bench<St>) {
    let full = std::env::var_os("HOOKCLAIM_TESTS_FULL").is_some();
    let end = Instant::now() + Duration::from_secs(if full { 60 } else { 3 });
    let mut tasks = tokio::task::JoinSet::new();
    let drain = Drain::new();
    for worker in 0..3 {
        let handler = service_fn(move |request: Request<Full<Bytes>>| {
            let attempt: &Attempt = request.extensions().get().expect("it is there");
            let fails = (attempt.fence() + worker).is_multiple_of(3);
            async move {
                Ok::<_, Infallible>(reply(if fails {
                    StatusCode::BAD_GATEWAY
                } else {
                    StatusCode::OK
                }))
            }
        });
        let worker = Worker::new(bench.store.clone(), handler)
            .backoff(quick())
            .poll_interval(Duration::from_millis(20))
            .lease(LeasePolicy::default().max_attempts(3).keep_payload(true))
            .drain(&drain);
        tasks.spawn(worker.run());
    }
    for writer in 0..8_u32 {
        let store = bench.store.clone();
        tasks.spawn(async move {
            let mut number = 0_u32;
            while Instant::now() < end {
                number += 1;
                // Few names, so that everybody meets everybody.
                let name = format!("both-{}", (number * 7 + writer) % 40);
                let policy = LeasePolicy::default();
                let done = match (number + writer) % 5 {
                    0 | 1 => {
                        let id = DeliveryId::new(&name).expect("a delivery id");
                        let event = EventName::new("push").expect("an event");
                        let work = StoredRequest::new(vec![b'x'; 3000]);
                        let work = Enqueue::work(key(&name), id, event, work)
                            .ordering_key(format!("{}", number % 5));
                        store.enqueue(work).await.map(drop)
                    }
                    2 => match store.claim(claim(&name, policy)).await {
                        Ok(outcome) => match outcome.won() {
                            Some(held) if number.is_multiple_of(2) => store.complete(&held).await,
                            Some(held) => {
                                let failure = Failure::transient("x", Duration::ZERO);
                                store.fail(&held, &failure).await.map(drop)
                            }
                            None => Ok(()),
                        },
                        Err(error) => Err(error),
                    },
                    3 => {
                        let retry = Retry::by("operator").force(true);
                        store.retry(&key(&name), &retry).await.map(drop)
                    }
                    _ => {
                        let everything = Retention::default()
                            .completed_and_run_again_after(Duration::ZERO)
                            .dead(Duration::ZERO)
                            .payload(Duration::ZERO);
                        store.prune(&everything, 10).await.map(drop)
                    }
                };
                if let Err(error) = done {
                    // A delivery that an operator or another one took is an answer.
                    assert!(error.is_lease_lost() || error.is_busy(), "{error:?}");
                }
            }
        });
    }
    while Instant::now() < end {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    drain.begin();
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no error surfaces");
    }
}

/// CASES D10.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_while_a_delivery_is_stored_leaves_nothing_behind_on_postgres() {
    let bench = crate::stores::real::postgres().await;
    let pool = bench.store.pool();
    let run = async |statement: &'static str| {
        sqlx::raw_sql(statement)
            .execute(pool)
            .await
            .expect("it runs");
    };
    run(
        "create function fail() returns trigger language plpgsql as \
         'begin raise exception ''the disk is full''; end'",
    )
    .await;
    run("create trigger fail after insert on hookclaim_deliveries for each row execute function fail()")
        .await;
    nothing_is_left_of_what_failed(&bench.store).await;
    run("drop trigger fail on hookclaim_deliveries").await;
    it_can_be_sent_again(&bench.store).await;
    // What is received has its payload: the table itself refuses anything else.
    let refused = sqlx::query("update hookclaim_deliveries set request = null, payload = null")
        .execute(pool)
        .await;
    let refused = refused.expect_err("it is refused").to_string();
    assert!(
        refused.contains("hookclaim_deliveries_received"),
        "{refused}"
    );
}

/// CASES D10.
#[tokio::test(flavor = "multi_thread")]
async fn a_failure_while_a_delivery_is_stored_leaves_nothing_behind_on_sqlite() {
    let bench = crate::stores::real::sqlite().await;
    let run = async |statement: &'static str| {
        let mut tx = bench.store.begin().await.expect("its turn comes");
        let ran = sqlx::raw_sql(statement).execute(&mut *tx).await;
        tx.commit().await.expect("committed");
        ran.map(drop)
    };
    run("create trigger fail after insert on hookclaim_deliveries \
         begin select raise(abort, 'the disk is full'); end")
    .await
    .expect("it runs");
    nothing_is_left_of_what_failed(&bench.store).await;
    run("drop trigger fail").await.expect("it runs");
    it_can_be_sent_again(&bench.store).await;
    let refused = run("update hookclaim_deliveries set request = null, payload = null").await;
    let refused = refused.expect_err("it is refused").to_string();
    assert!(refused.contains("CHECK constraint failed"), "{refused}");
}

fn unused()
-> impl Service<Request<Full<Bytes>>, Response = Reply, Error = Infallible, Future: Send> + Clone + Send
{
    service_fn(async |_| Ok::<_, Infallible>(reply(StatusCode::OK)))
}

async fn nothing_is_left_of_what_failed<St: DurableStore>(store: &St) {
    let service = layer(store).durable().layer(unused());
    let answer = send(&service, signed("push-1", "{}")).await;
    assert_eq!(answer, is(503, "unavailable"));
    assert_eq!(store.inspect(&key("push-1")).await.expect("read"), None);
    let acquire = Acquire::new(Source::default(), 9, LeasePolicy::default());
    assert!(store.acquire(acquire).await.expect("asked").is_empty());
}

async fn it_can_be_sent_again<St: DurableStore>(store: &St) {
    let service = layer(store).durable().layer(unused());
    let answer = send(&service, signed("push-1", "{}")).await;
    assert_eq!(answer, is(202, "accepted"));
    assert_eq!(record(store, "push-1").await.state, State::Received);
}

/// CASES E4.
#[tokio::test(flavor = "multi_thread")]
async fn a_handler_is_told_before_its_lease_ends_when_the_database_is_gone() {
    let cluster = Arc::new(PgCluster::start(PgOptions { fsync: false }));
    let store = PostgresStore::connect(&cluster.fresh_database().await)
        .await
        .expect("it answers");
    store.migrate().await.expect("it migrates");
    put(&store, "long").await;
    let lease = Duration::from_secs(3);
    let (told, mut tells) = mpsc::unbounded_channel();
    let handler = service_fn(move |request: Request<Full<Bytes>>| {
        let told = told.clone();
        async move {
            let attempt: &Attempt = request.extensions().get().expect("it is there");
            if attempt.number() == 1 {
                told.send(("started", Instant::now()))
                    .expect("somebody listens");
                attempt.cancelled().await;
                told.send(("told", Instant::now()))
                    .expect("somebody listens");
                std::future::pending::<()>().await;
            }
            Ok::<_, Infallible>(reply(StatusCode::OK))
        }
    });
    let drain = Drain::new();
    let worker = Worker::new(store.clone(), handler)
        .lease(LeasePolicy::default().lease(lease))
        .poll_interval(Duration::from_millis(100))
        .backoff(quick())
        .drain(&drain);
    let worker = tokio::spawn(worker.run());
    assert_eq!(heard(&mut tells).await.0, "started");
    let stopping = Arc::clone(&cluster);
    let gone = tokio::task::spawn_blocking(move || {
        stopping.crash();
        Instant::now()
    });
    let gone = gone.await.expect("it stops");
    let (what, when) = heard(&mut tells).await;
    // The last renewal was answered before the database was gone, and the lease was begun before that.
    assert_eq!(what, "told");
    assert!(when < gone + lease, "told {:?} after", when - gone);
    // Back only when the lease is over: then the worker has dropped the handler, which would not end by itself.
    tokio::time::sleep_until((gone + lease).into()).await;
    let starting = Arc::clone(&cluster);
    tokio::task::spawn_blocking(move || starting.resume())
        .await
        .expect("it starts");
    until("completed", async || {
        matches!(
            store.inspect(&key("long")).await,
            Ok(Some(row)) if row.state == State::Completed
        )
    })
    .await;
    drain.begin();
    worker.await.expect("it ends");
}

/// CASES F6: what a pooler in transaction mode takes away.
#[tokio::test(flavor = "multi_thread")]
async fn without_prepared_statements_and_notifications_the_contract_is_kept() {
    let url = PgCluster::shared().fresh_database().await;
    let options: PgConnectOptions = url.parse().expect("a URL");
    let pool = PgPoolOptions::new()
        .connect_with(options.statement_cache_capacity(0))
        .await
        .expect("it answers");
    let clock = ManualClock::new();
    let store = PostgresStore::with_clock(PgPool::clone(&pool), Arc::new(clock.clone()))
        .without_notifications();
    store.migrate().await.expect("it migrates");
    conformance::check_transactional_durable(&store, &clock).await;
    model::play_durable(&store, &clock, 1, 100).await;
}

/// CASES F5, the second half: `inbox_postgres` has the payloads and the lost listener.
#[tokio::test(flavor = "multi_thread")]
async fn without_notifications_a_worker_finds_by_asking_what_another_process_stored() {
    let url = PgCluster::shared().fresh_database().await;
    let receiver = PostgresStore::connect(&url).await.expect("it answers");
    receiver.migrate().await.expect("it migrates");
    let working = PostgresStore::connect(&url)
        .await
        .expect("it answers")
        .without_notifications();
    let drain = Drain::new();
    let worker = Worker::new(working, unused())
        .poll_interval(Duration::from_millis(100))
        .drain(&drain);
    let worker = tokio::spawn(worker.run());
    put(&receiver, "unheard").await;
    until("completed", async || {
        record(&receiver, "unheard").await.state == State::Completed
    })
    .await;
    drain.begin();
    worker.await.expect("it ends");
}

/// INBOX: a `begin` that is dropped half-way must not leave its connection within a transaction.
#[tokio::test(flavor = "multi_thread")]
async fn a_storm_of_abandoned_begins_leaves_clean_connections() {
    let url = PgCluster::shared().fresh_database().await;
    let pool = PgPoolOptions::new()
        .max_connections(2)
        .connect(&url)
        .await
        .expect("it answers");
    let store = PostgresStore::new(pool.clone());
    store.migrate().await.expect("it migrates");
    for micros in 0..200 {
        let begin = tokio::time::timeout(Duration::from_micros(micros * 10), store.begin());
        if let Ok(Ok(tx)) = begin.await {
            store.rollback(tx).await;
        }
        // In one message, so that both are of one moment unless a transaction was begun before it.
        let outside = sqlx::raw_sql("select now() = statement_timestamp()")
            .fetch_one(&pool)
            .await
            .expect("it answers");
        let outside: bool = outside.get(0);
        assert!(outside, "the connection is within a transaction");
    }
}

/// INBOX: a `returning` whose rows are not read to the end must be committed all the same.
#[tokio::test(flavor = "multi_thread")]
async fn what_sqlite_answered_is_seen_by_another_connection_at_once() {
    let bench = crate::stores::real::sqlite().await;
    let path = bench.url.strip_prefix("sqlite:").expect("a file");
    let other = SqliteStore::open(path).await.expect("it opens");
    for number in 0..300 {
        let name = format!("seen-{number}");
        put(&bench.store, &name).await;
        assert_eq!(record(&other, &name).await.state, State::Received);
        let acquire = Acquire::new(Source::default(), 1, LeasePolicy::default());
        let taken = bench.store.acquire(acquire).await.expect("asked").started;
        assert_eq!(record(&other, &name).await.state, State::Processing);
        bench.store.complete(&taken[0].held).await.expect("done");
        assert_eq!(record(&other, &name).await.state, State::Completed);
    }
}

/// INBOX: a worker of another release must not settle what was taken over, and leaves the row as it is.
#[tokio::test(flavor = "multi_thread")]
async fn a_stale_worker_changes_not_one_byte_of_the_row() {
    for postgres in [false, true] {
        if postgres {
            stale(crate::stores::postgres().await).await;
        } else {
            stale(crate::stores::sqlite().await).await;
        }
    }
}

async fn stale<St: DurableStore>(bench: Bench<St>) {
    put(&bench.store, "contested").await;
    let acquire = || Acquire::new(Source::default(), 1, LeasePolicy::default());
    let mut first = bench.store.acquire(acquire()).await.expect("asked").started;
    let old = first.pop().expect("it is due").held;
    bench.clock.advance(Duration::from_secs(31));
    let second = bench.store.acquire(acquire()).await.expect("asked").started;
    assert_eq!(second.len(), 1);
    let before = record(&bench.store, "contested").await;
    let failure = Failure::permanent("too late");
    let store = &bench.store;
    let kinds = [
        store.complete(&old).await.expect_err("lost").kind(),
        store.fail(&old, &failure).await.expect_err("lost").kind(),
        store.renew(&old).await.expect_err("lost").kind(),
        store
            .release(&old, Duration::ZERO)
            .await
            .expect_err("lost")
            .kind(),
        store
            .keep(&old, StoredRequest::new("other"))
            .await
            .expect_err("lost")
            .kind(),
    ];
    assert_eq!(kinds, [StoreErrorKind::LeaseLost; 5]);
    assert_eq!(record(&bench.store, "contested").await, before);
    let stored = store
        .stored(&ClaimKey::clone(&before.key))
        .await
        .expect("read");
    assert_eq!(stored.expect("it is there").body(), "{}");
}
