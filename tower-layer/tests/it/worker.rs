//! Workers: what is stored runs until it is completed or dead.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hookclaim::{
    Acquire, Attempt, Backoff, Delivery, DeliveryStore, DurableStore, ErrorClass, Lease,
    LeasePolicy, MemoryStore, Order, Source, State,
};
use http::Method;
use http_body_util::BodyExt;
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout};
use tower::Layer;
use tower::limit::ConcurrencyLimitLayer;
use tower_hookclaim::{Drain, Verdict, Worker};

use crate::store::Rigged;
use crate::support::*;

/// Stores deliveries as a durable layer does.
async fn store_all<St: DurableStore>(store: &St, ids: &[&str]) {
    let service = layer(store)
        .durable()
        .layer(answering(&Runs::default(), 200));
    for id in ids {
        send(&service, signed(id)).await.is(202, "accepted");
    }
}

/// No jitter to speak of, so that times can be told.
fn quick() -> Backoff {
    Backoff::new(Duration::from_millis(1), Duration::from_millis(1))
}

async fn state<St: DeliveryStore>(store: &St, id: &str) -> State {
    record(store, id).await.unwrap().state
}

/// Waits on the paused clock until a delivery is where it should be.
async fn until<St: DeliveryStore>(store: &St, id: &str, wanted: State) {
    let reached = async {
        while state(store, id).await != wanted {
            sleep(Duration::from_millis(50)).await;
        }
    };
    let reached = timeout(Duration::from_secs(4 * 3600), reached).await;
    assert!(reached.is_ok(), "{:?}", record(store, id).await);
}

#[tokio::test(start_paused = true)]
async fn the_handler_gets_the_delivery_as_it_came() {
    let store = timed_memory();
    let runs = Runs::default();
    let durable = layer(&store).durable();
    let service = handler(&runs, |_, request| async move {
        assert_eq!(request.method(), Method::POST);
        assert_eq!(request.uri(), "/hooks/github");
        let headers = request.headers();
        assert_eq!(headers["x-github-event"], "issues");
        assert_eq!(headers["x-github-delivery"], ID);
        assert_eq!(headers["content-type"], "application/json");
        assert!(!headers.contains_key("x-hub-signature-256"));
        let extensions = request.extensions();
        let delivery: &Delivery = extensions.get().unwrap();
        assert_eq!(
            (delivery.id().as_str(), delivery.action()),
            (ID, Some("opened"))
        );
        let attempt: &Attempt = extensions.get().unwrap();
        assert_eq!((attempt.number(), attempt.fence()), (1, 1));
        assert!(extensions.get::<Lease<MemoryStore>>().is_some());
        let body = request.into_body().collect().await.unwrap().to_bytes();
        assert_eq!(body, BODY);
        reply(200)
    });
    let mut request = signed(ID);
    *request.uri_mut() = "/hooks/github".parse().unwrap();
    let receiver = durable.layer(service.clone());
    send(&receiver, request).await.is(202, "accepted");
    let drain = Drain::new();
    let worker = tokio::spawn(durable.worker(service).drain(&drain).run());
    until(&store, ID, State::Completed).await;
    send(&receiver, signed(ID)).await.is(200, "duplicate");
    drain.begin();
    worker.await.unwrap();
    assert_eq!(runs.count(), 1);
    assert!(!record(&store, ID).await.unwrap().has_payload);
}

#[tokio::test(start_paused = true)]
async fn what_fails_is_tried_again_until_it_is_dead() {
    for ending in ["fails", "panics", "errors"] {
        let (store, runs, drain) = (timed_memory(), Runs::default(), Drain::new());
        store_all(&store, &[ID]).await;
        let service = handler(&runs, move |_, _| async move {
            match ending {
                "panics" => panic!("as told"),
                "fails" => reply(500),
                _ => reply(418),
            }
        });
        let worker = Worker::new(store.clone(), service)
            .lease(LeasePolicy::default().max_attempts(3))
            .backoff(quick())
            .drain(&drain);
        let worker = tokio::spawn(worker.run());
        until(&store, ID, State::Dead).await;
        drain.begin();
        worker.await.unwrap();
        let row = record(&store, ID).await.unwrap();
        assert_eq!((runs.count(), row.attempts), (3, 3), "{ending}");
        assert!(row.has_payload, "a dead delivery can be looked at");
    }
}

#[tokio::test(start_paused = true)]
async fn the_handlers_verdict_and_wait_are_kept() {
    let (store, runs, drain) = (timed_memory(), Runs::default(), Drain::new());
    store_all(&store, &["permanent", "refused", "waits"]).await;
    let service = handler(&runs, |_, request| async move {
        let attempt: &Attempt = request.extensions().get().unwrap();
        match (attempt.delivery_id().as_str(), attempt.number()) {
            ("permanent", _) => {
                let mut response = reply(500);
                response
                    .extensions_mut()
                    .insert(Verdict::permanent("closed"));
                response
            }
            ("refused", _) => reply(422),
            ("waits", 1) => {
                let mut response = reply(503);
                response
                    .headers_mut()
                    .insert("retry-after", "600".parse().unwrap());
                response
            }
            _ => reply(200),
        }
    });
    let begin = Instant::now();
    let worker = tokio::spawn(Worker::new(store.clone(), service).drain(&drain).run());
    until(&store, "permanent", State::Dead).await;
    until(&store, "refused", State::Dead).await;
    until(&store, "waits", State::Failed).await;
    let row = record(&store, "permanent").await.unwrap();
    assert_eq!(
        (row.attempts, row.error_class),
        (1, Some(ErrorClass::Permanent))
    );
    assert_eq!(row.last_error.as_deref(), Some("closed"));
    until(&store, "waits", State::Completed).await;
    assert_eq!(begin.elapsed().as_secs() / 10, 60);
    drain.begin();
    worker.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn polling_alone_finds_what_nobody_announced() {
    let (store, runs, drain) = (Rigged::new(timed_memory()), Runs::default(), Drain::new());
    store.rig.set(|rig| &rig.silent, true);
    let worker = Worker::new(store.clone(), answering(&runs, 200))
        .poll_interval(Duration::from_secs(5))
        .drain(&drain);
    let worker = tokio::spawn(worker.run());
    sleep(Duration::from_secs(30)).await;
    let begin = Instant::now();
    store_all(&store, &[ID]).await;
    until(&store, ID, State::Completed).await;
    assert!(
        begin.elapsed() <= Duration::from_secs(6),
        "{:?}",
        begin.elapsed()
    );
    drain.begin();
    worker.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_is_asked_again() {
    let (store, runs, drain) = (Rigged::new(timed_memory()), Runs::default(), Drain::new());
    store_all(&store, &[ID]).await;
    store.rig.set(|rig| &rig.acquire_down, true);
    let worker = Worker::new(store.clone(), answering(&runs, 200)).drain(&drain);
    let worker = tokio::spawn(worker.run());
    sleep(Duration::from_secs(600)).await;
    let calls = store.rig.calls.load(Ordering::SeqCst);
    assert!(calls < 2000, "{calls} questions in ten minutes");
    store.rig.set(|rig| &rig.acquire_down, false);
    until(&store, ID, State::Completed).await;
    drain.begin();
    worker.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn no_more_run_at_a_time_than_there_are_places() {
    let (store, runs, drain) = (timed_memory(), Runs::default(), Drain::new());
    let ids: Vec<String> = (0..40).map(|number| format!("id-{number}")).collect();
    store_all(&store, &ids.iter().map(String::as_str).collect::<Vec<_>>()).await;
    let now = Arc::new(AtomicUsize::new(0));
    let most = Arc::new(AtomicUsize::new(0));
    let service = handler(&runs, {
        let (now, most) = (Arc::clone(&now), Arc::clone(&most));
        move |_, _| {
            let (now, most) = (Arc::clone(&now), Arc::clone(&most));
            async move {
                most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                sleep(Duration::from_secs(3)).await;
                now.fetch_sub(1, Ordering::SeqCst);
                reply(200)
            }
        }
    });
    // An inner limit is waited for under the lease.
    let service = ConcurrencyLimitLayer::new(4).layer(service);
    let worker = Worker::new(store.clone(), service)
        .concurrency(6)
        .drain(&drain);
    let worker = tokio::spawn(worker.run());
    for id in &ids {
        until(&store, id, State::Completed).await;
    }
    drain.begin();
    worker.await.unwrap();
    assert_eq!((runs.count(), most.load(Ordering::SeqCst)), (40, 4));
}

/// CASES E9.
#[tokio::test(start_paused = true)]
async fn a_fresh_delivery_starts_at_once_behind_a_long_queue() {
    let (store, runs, drain) = (timed_memory(), Runs::default(), Drain::new());
    let service = layer(&store).durable().layer(answering(&runs, 200));
    for number in 0..10_000 {
        let seen = send(&service, signed(&format!("slow-{number}"))).await;
        seen.is(202, "accepted");
    }
    let started: Arc<Mutex<HashMap<String, Instant>>> = Arc::default();
    let work = handler(&runs, {
        let started = Arc::clone(&started);
        move |_, request| {
            let id = request
                .extensions()
                .get::<Delivery>()
                .unwrap()
                .id()
                .to_string();
            started.lock().unwrap().insert(id, Instant::now());
            async {
                sleep(Duration::from_secs(120)).await;
                reply(200)
            }
        }
    });
    let worker = Worker::new(store.clone(), work)
        .concurrency(8)
        .drain(&drain);
    let worker = tokio::spawn(worker.run());
    sleep(Duration::from_secs(10)).await;
    assert_eq!(runs.count(), 6, "two places are kept");
    for id in ["fresh-1", "fresh-2"] {
        let sent = Instant::now();
        send(&service, signed(id)).await.is(202, "accepted");
        sleep(Duration::from_secs(1)).await;
        let started = started.lock().unwrap().get(id).copied();
        let waited = started.expect("it has started") - sent;
        assert!(waited < Duration::from_secs(1), "{waited:?}");
    }
    drain.hand_back();
    worker.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn deliveries_with_one_ordering_key_run_one_by_one_as_they_came() {
    for (order, expected) in [
        (Order::StepAside, ["a1", "b1", "a2", "a3", "a1"]),
        (Order::Strict, ["a1", "b1", "a1", "a2", "a3"]),
    ] {
        let (store, runs, drain) = (timed_memory(), Runs::default(), Drain::new());
        let durable = layer(&store)
            .durable()
            .ordering_key(|delivery| Some(delivery.id().as_str()[..1].to_owned()));
        let service = durable.layer(answering(&runs, 200));
        for id in ["a1", "a2", "b1", "a3"] {
            send(&service, signed(id)).await.is(202, "accepted");
            sleep(Duration::from_millis(1)).await;
        }
        let log: Arc<Mutex<Vec<String>>> = Arc::default();
        let work = handler(&runs, {
            let log = Arc::clone(&log);
            move |run, request| {
                let id = request
                    .extensions()
                    .get::<Delivery>()
                    .unwrap()
                    .id()
                    .to_string();
                log.lock().unwrap().push(id);
                async move {
                    sleep(Duration::from_secs(1)).await;
                    reply(if run == 1 { 500 } else { 200 })
                }
            }
        });
        let minute = Backoff::new(Duration::from_secs(60), Duration::from_secs(60));
        let worker = Worker::new(store.clone(), work)
            .order(order)
            .backoff(minute)
            .drain(&drain);
        let worker = tokio::spawn(worker.run());
        for id in ["a1", "a2", "a3", "b1"] {
            until(&store, id, State::Completed).await;
        }
        drain.begin();
        worker.await.unwrap();
        assert_eq!(*log.lock().unwrap(), expected, "{order:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_delivery_whose_worker_died_is_taken_over_when_its_lease_is_over() {
    let (store, runs, drain) = (timed_memory(), Runs::default(), Drain::new());
    store_all(&store, &[ID]).await;
    // A worker that takes it and is never heard of again.
    let acquire = Acquire::new(Source::default(), 1, LeasePolicy::default());
    assert_eq!(store.acquire(acquire).await.unwrap().started.len(), 1);
    let begin = Instant::now();
    let worker = Worker::new(store.clone(), answering(&runs, 200)).drain(&drain);
    let worker = tokio::spawn(worker.run());
    until(&store, ID, State::Completed).await;
    let waited = begin.elapsed().as_secs();
    assert!((30..=38).contains(&waited), "{waited}");
    assert_eq!(record(&store, ID).await.unwrap().attempts, 2);
    drain.begin();
    worker.await.unwrap();
}

/// CASES E1: a handler three leases long runs once.
#[tokio::test(start_paused = true)]
async fn a_long_handler_keeps_its_lease() {
    let (store, runs, drain) = (timed_memory(), Runs::default(), Drain::new());
    store_all(&store, &[ID]).await;
    let service = handler(&runs, |_, _| async {
        sleep(Duration::from_secs(95)).await;
        reply(200)
    });
    let workers: Vec<_> = (0..3)
        .map(|_| {
            let worker = Worker::new(store.clone(), service.clone()).drain(&drain);
            tokio::spawn(worker.run())
        })
        .collect();
    until(&store, ID, State::Completed).await;
    drain.begin();
    for worker in workers {
        worker.await.unwrap();
    }
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_told_and_then_dropped_and_its_delivery_dies() {
    let (store, runs, drain) = (timed_memory(), Runs::default(), Drain::new());
    store_all(&store, &[ID]).await;
    let told: Arc<Mutex<Vec<Duration>>> = Arc::default();
    let service = handler(&runs, {
        let told = Arc::clone(&told);
        move |_, request| {
            let told = Arc::clone(&told);
            async move {
                let begin = Instant::now();
                let attempt: &Attempt = request.extensions().get().unwrap();
                attempt.cancelled().await;
                told.lock().unwrap().push(begin.elapsed());
                std::future::pending().await
            }
        }
    });
    let policy = LeasePolicy::default()
        .max_hold(Duration::from_secs(100))
        .max_attempts(2);
    let worker = Worker::new(store.clone(), service)
        .concurrency(1)
        .lease(policy)
        .backoff(quick())
        .drain(&drain);
    let begin = Instant::now();
    let worker = tokio::spawn(worker.run());
    until(&store, ID, State::Dead).await;
    let waited = begin.elapsed().as_secs();
    assert!((200..=206).contains(&waited), "{waited}");
    let told = told.lock().unwrap().clone();
    assert_eq!(told.len(), 2);
    for told in told {
        assert!((85..=98).contains(&told.as_secs()), "told after {told:?}");
    }
    let row = record(&store, ID).await.unwrap();
    assert!(
        row.last_error.unwrap().contains("still running"),
        "a reason is there"
    );
    // Its place is free again.
    store_all(&store, &["next"]).await;
    sleep(Duration::from_secs(2)).await;
    assert_eq!(state(&store, "next").await, State::Processing);
    drain.hand_back();
    worker.await.unwrap();
}

/// CASES E4.
#[tokio::test(start_paused = true)]
async fn a_handler_is_told_and_dropped_when_the_store_is_gone_for_a_lease() {
    let (store, runs, drain) = (Rigged::new(timed_memory()), Runs::default(), Drain::new());
    store_all(&store, &[ID]).await;
    let ends: Arc<Mutex<Vec<(&str, Duration)>>> = Arc::default();
    /// Notes when it is dropped.
    struct Ends(Instant, Arc<Mutex<Vec<(&'static str, Duration)>>>);
    impl Drop for Ends {
        fn drop(&mut self) {
            self.1.lock().unwrap().push(("dropped", self.0.elapsed()));
        }
    }
    let service = handler(&runs, {
        let ends = Arc::clone(&ends);
        move |run, request| {
            let ends = Ends(Instant::now(), Arc::clone(&ends));
            async move {
                if run > 1 {
                    return reply(200);
                }
                request
                    .extensions()
                    .get::<Attempt>()
                    .unwrap()
                    .cancelled()
                    .await;
                ends.1.lock().unwrap().push(("told", ends.0.elapsed()));
                std::future::pending().await
            }
        }
    });
    store.rig.set(|rig| &rig.renew_down, true);
    store.rig.set(|rig| &rig.settle_down, true);
    let worker = Worker::new(store.clone(), service).drain(&drain);
    let worker = tokio::spawn(worker.run());
    sleep(Duration::from_secs(31)).await;
    let (told, dropped) = {
        let ends = ends.lock().unwrap();
        assert!(ends.len() >= 2, "{ends:?}");
        (ends[0], ends[1])
    };
    assert_eq!((told.0, dropped.0), ("told", "dropped"));
    assert!((26..30).contains(&told.1.as_secs()), "{told:?}");
    assert!((29..=30).contains(&dropped.1.as_secs()), "{dropped:?}");
    store.rig.set(|rig| &rig.renew_down, false);
    store.rig.set(|rig| &rig.settle_down, false);
    until(&store, ID, State::Completed).await;
    // Another attempt may have begun before the store was back.
    assert!(record(&store, ID).await.unwrap().attempts >= 2);
    drain.begin();
    worker.await.unwrap();
}

/// CASES E6.
#[tokio::test(start_paused = true)]
async fn a_shutdown_lets_attempts_finish_and_hands_back_what_does_not() {
    let (store, runs, drain) = (timed_memory(), Runs::default(), Drain::new());
    store_all(&store, &["short", "long"]).await;
    let service = handler(&runs, |_, request| async move {
        let id = request
            .extensions()
            .get::<Delivery>()
            .unwrap()
            .id()
            .to_string();
        sleep(Duration::from_secs(if id == "short" { 5 } else { 500 })).await;
        reply(200)
    });
    let worker = Worker::new(store.clone(), service.clone()).drain(&drain);
    let worker = tokio::spawn(worker.run());
    sleep(Duration::from_secs(1)).await;
    drain.begin();
    store_all(&store, &["late"]).await;
    sleep(Duration::from_secs(20)).await;
    assert_eq!(state(&store, "short").await, State::Completed);
    assert_eq!(
        state(&store, "late").await,
        State::Received,
        "nothing begins any more"
    );
    assert!(!worker.is_finished());
    drain.hand_back();
    worker.await.unwrap();
    let row = record(&store, "long").await.unwrap();
    assert_eq!((row.state, row.attempts), (State::Failed, 0));
    assert_eq!(row.error_class, Some(ErrorClass::Released));

    let drain = Drain::new();
    let worker = Worker::new(store.clone(), answering(&runs, 200)).drain(&drain);
    let worker = tokio::spawn(worker.run());
    until(&store, "long", State::Completed).await;
    until(&store, "late", State::Completed).await;
    drain.begin();
    worker.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_leaves_other_sources_alone() {
    let (store, runs, drain) = (timed_memory(), Runs::default(), Drain::new());
    let elsewhere = layer(&store)
        .source(Source::new("elsewhere").unwrap())
        .durable();
    let service = elsewhere.layer(answering(&runs, 200));
    send(&service, signed(ID)).await.is(202, "accepted");
    let worker = Worker::new(store.clone(), answering(&runs, 200)).drain(&drain);
    let worker = tokio::spawn(worker.run());
    sleep(Duration::from_secs(600)).await;
    assert_eq!(runs.count(), 0);
    let own = tokio::spawn(elsewhere.worker(answering(&runs, 200)).drain(&drain).run());
    sleep(Duration::from_secs(2)).await;
    assert_eq!(runs.count(), 1);
    drain.begin();
    worker.await.unwrap();
    own.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_is_dropped_begins_nothing_more_and_its_attempts_end() {
    let (store, runs) = (timed_memory(), Runs::default());
    store_all(&store, &["first", "second"]).await;
    let gate = Arc::new(Semaphore::new(0));
    let service = handler(&runs, {
        let gate = Arc::clone(&gate);
        move |_, _| {
            let gate = Arc::clone(&gate);
            async move {
                let _passed = gate.acquire().await;
                reply(200)
            }
        }
    });
    let worker = Worker::new(store.clone(), service).concurrency(1);
    let worker = tokio::spawn(worker.run());
    sleep(Duration::from_secs(1)).await;
    worker.abort();
    let _ = worker.await;
    gate.add_permits(1);
    until(&store, "first", State::Completed).await;
    sleep(Duration::from_secs(60)).await;
    assert_eq!(state(&store, "second").await, State::Received);
    assert_eq!(runs.count(), 1);
}
