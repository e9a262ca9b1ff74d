//! Deliveries that are stored before they run.

use std::convert::Infallible;
use std::future::Ready;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hookclaim::{Acquire, DeliveryStore, DurableStore, Failure, LeasePolicy, Retry, Source, State};
use http::Request;
use http_body_util::Full;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt};
use tower_hookclaim::{Drain, Rejection};

use crate::store::Rigged;
use crate::support::*;

#[tokio::test]
async fn a_delivery_is_stored_and_answered_and_nothing_runs_in_its_request() {
    let (store, runs) = (memory(), Runs::default());
    let service = layer(&store).durable().layer(answering(&runs, 200));
    let mut request = signed(ID);
    *request.uri_mut() = "/hooks/github?token=hidden".parse().unwrap();
    request
        .headers_mut()
        .insert("x-github-encoded-secret", "bGVha2Vk".parse().unwrap());
    send(&service, request).await.is(202, "accepted");
    assert_eq!(runs.count(), 0);
    let row = record(&store, ID).await.unwrap();
    assert_eq!(
        (row.state, row.attempts, row.has_payload),
        (State::Received, 0, true)
    );
    let stored = store.stored(&row.key).await.unwrap().unwrap();
    assert_eq!(
        (stored.body().as_ref(), stored.path()),
        (BODY.as_bytes(), "/hooks/github")
    );
    // What is kept of the headers is a list of what is wanted.
    let shown = format!("{stored:?}");
    for hidden in ["bGVha2Vk", "hidden", "sha256"] {
        assert!(!shown.contains(hidden), "{shown}");
    }
}

#[tokio::test]
async fn a_duplicate_is_answered_by_where_the_delivery_stands() {
    let (store, runs) = (memory(), Runs::default());
    let service = layer(&store).durable().layer(answering(&runs, 200));
    let take = async || {
        let acquire = Acquire::new(Source::default(), 1, LeasePolicy::default().max_attempts(2));
        let mut taken = store.acquire(acquire).await.unwrap();
        taken.started.pop().expect("it is due").held
    };
    send(&service, signed(ID)).await.is(202, "accepted");
    send(&service, signed(ID)).await.is(202, "in-progress");
    let held = take().await;
    send(&service, signed(ID)).await.is(202, "in-progress");
    let failure = Failure::transient("down", Duration::from_secs(60));
    store.fail(&held, &failure).await.unwrap();
    send(&service, signed(ID)).await.is(202, "retry-later");
    store
        .retry(&held.key, &Retry::by("operator"))
        .await
        .unwrap();
    let held = take().await;
    store
        .fail(&held, &Failure::permanent("gone"))
        .await
        .unwrap();
    send(&service, signed(ID)).await.is(202, "dead");
    store
        .retry(&held.key, &Retry::by("operator"))
        .await
        .unwrap();
    let held = take().await;
    store.complete(&held).await.unwrap();
    send(&service, signed(ID)).await.is(200, "duplicate");
    let other = signed_with(SECRET, "issues", ID, "{}");
    send(&service, other).await.is(200, "duplicate");
    assert_eq!(runs.count(), 0);
}

/// Never ready, and never called.
#[derive(Clone)]
struct Closed;

impl Service<Request<Full<Bytes>>> for Closed {
    type Response = Reply;
    type Error = Infallible;
    type Future = Ready<Result<Reply, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Pending
    }

    fn call(&mut self, _: Request<Full<Bytes>>) -> Self::Future {
        panic!("a durable layer calls no inner service")
    }
}

#[tokio::test]
async fn an_inner_service_that_is_never_ready_holds_up_no_delivery() {
    let service = layer(&memory()).durable().layer(Closed);
    let answer = service.oneshot(signed(ID)).await.unwrap();
    assert_eq!(answer.status(), 202);
}

#[tokio::test]
async fn what_cannot_be_stored_is_not_accepted() {
    let (store, runs) = (Rigged::new(memory()), Runs::default());
    let service = layer(&store).durable().layer(answering(&runs, 200));
    store.rig.set(|rig| &rig.enqueue_down, true);
    let seen = send(&service, signed(ID)).await;
    seen.is(503, "unavailable");
    assert_eq!(seen.headers["retry-after"], "5");
    assert!(record(&store, ID).await.is_none());
    store.rig.set(|rig| &rig.enqueue_down, false);
    send(&service, signed(ID)).await.is(202, "accepted");

    // No memory for its body.
    let service = layer(&store)
        .memory_budget(BODY.len() as u64 - 1)
        .durable()
        .layer(answering(&runs, 200));
    send(&service, signed("no-memory"))
        .await
        .is(503, "unavailable");
    assert!(record(&store, "no-memory").await.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_backlog_at_its_limit_turns_deliveries_away_until_there_is_room() {
    let (store, runs) = (timed_memory(), Runs::default());
    let durable = layer(&store).durable().backlog_limit(2);
    let service = durable.layer(answering(&runs, 200));
    send(&service, signed("a")).await.is(202, "accepted");
    send(&service, signed("b")).await.is(202, "accepted");
    for _ in 0..3 {
        let seen = send(&service, signed("c")).await;
        seen.is(503, "unavailable");
        assert_eq!(seen.extensions.get(), Some(&Rejection::Backlog));
        assert!(record(&store, "c").await.is_none());
        sleep(Duration::from_secs(2)).await;
    }
    let drain = Drain::new();
    let worker = durable.worker(answering(&runs, 200)).drain(&drain);
    let worker = tokio::spawn(worker.run());
    sleep(Duration::from_secs(2)).await;
    send(&service, signed("c")).await.is(202, "accepted");
    drain.begin();
    worker.await.unwrap();
}

#[tokio::test]
async fn a_draining_layer_stores_nothing() {
    let (store, runs, drain) = (memory(), Runs::default(), Drain::new());
    let service = layer(&store)
        .durable()
        .drain(&drain)
        .layer(answering(&runs, 200));
    drain.begin();
    send(&service, signed(ID)).await.is(503, "unavailable");
    assert!(record(&store, ID).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_inline_attempt_has_its_payload_stored_before_it_is_answered_early() {
    let (store, runs) = (timed_memory(), Runs::default());
    let inline = layer(&store);
    let service = inline.layer(handler(&runs, |_, _| async {
        sleep(Duration::from_secs(12)).await;
        reply(500)
    }));
    let begin = Instant::now();
    send(&service, signed(ID)).await.is(202, "accepted");
    assert_eq!(begin.elapsed().as_secs(), 8);
    let row = record(&store, ID).await.unwrap();
    assert_eq!((row.state, row.has_payload), (State::Processing, true));
    // It fails, and a worker runs it again without anybody sending it.
    let drain = Drain::new();
    let again = Runs::default();
    let worker = inline.worker(answering(&again, 200)).drain(&drain);
    let worker = tokio::spawn(worker.run());
    sleep(Duration::from_secs(60)).await;
    drain.begin();
    worker.await.unwrap();
    let row = record(&store, ID).await.unwrap();
    assert_eq!((row.state, row.attempts), (State::Completed, 2));
    assert_eq!((runs.count(), again.count()), (1, 1));
}

#[tokio::test(start_paused = true)]
async fn an_early_answer_whose_payload_cannot_be_stored_promises_nothing() {
    let (store, runs, drain) = (Rigged::new(timed_memory()), Runs::default(), Drain::new());
    let service = layer(&store)
        .drain(&drain)
        .layer(handler(&runs, |_, _| async {
            sleep(Duration::from_secs(12)).await;
            reply(200)
        }));
    store.rig.set(|rig| &rig.keep_down, true);
    let begin = Instant::now();
    send(&service, signed(ID)).await.is(503, "unavailable");
    assert_eq!(begin.elapsed().as_secs(), 8);
    drain.idle().await;
    let row = record(&store, ID).await.unwrap();
    assert_eq!(
        row.state,
        State::Completed,
        "the attempt goes on all the same"
    );
    assert_eq!(runs.count(), 1);
}
