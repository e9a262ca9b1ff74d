//! How an attempt is recorded, and what the sender hears of it.

use std::time::Duration;

use bytes::Bytes;
use hookclaim::{DeliveryStore, ErrorClass, LeasePolicy, State};
use http::Request;
use http_body_util::Full;
use tower::{Layer, ServiceExt, service_fn};
use tower_hookclaim::{Rejection, Verdict};

use crate::store::Rigged;
use crate::support::*;

#[tokio::test]
async fn the_status_is_answered_and_recorded() {
    for (status, answered, outcome, state) in [
        (200, 200, "completed", State::Completed),
        (204, 204, "completed", State::Completed),
        (302, 302, "failed", State::Failed),
        (400, 400, "failed", State::Dead),
        (404, 404, "failed", State::Failed),
        (422, 422, "failed", State::Dead),
        (500, 500, "failed", State::Failed),
        (503, 503, "failed", State::Failed),
    ] {
        let (store, runs) = (memory(), Runs::default());
        let service = layer(&store).layer(answering(&runs, status));
        let seen = send(&service, signed(ID)).await;
        seen.is(answered, outcome);
        assert_eq!(seen.text, "handled");
        assert_eq!(record(&store, ID).await.unwrap().state, state, "{status}");
    }
}

#[tokio::test]
async fn a_verdict_overrides_the_status() {
    let rows = [
        (500, Verdict::Complete, 200, "completed", State::Completed),
        (201, Verdict::Complete, 201, "completed", State::Completed),
        (
            200,
            Verdict::transient("later"),
            500,
            "failed",
            State::Failed,
        ),
        (
            422,
            Verdict::transient("later"),
            422,
            "failed",
            State::Failed,
        ),
        (200, Verdict::permanent("never"), 500, "failed", State::Dead),
        (503, Verdict::permanent("never"), 503, "failed", State::Dead),
    ];
    for (status, verdict, answered, outcome, state) in rows {
        let (store, runs) = (memory(), Runs::default());
        let service = layer(&store).layer(handler(&runs, {
            let verdict = verdict.clone();
            move |_, _| {
                let mut response = reply(status);
                response.extensions_mut().insert(verdict.clone());
                std::future::ready(response)
            }
        }));
        let seen = send(&service, signed(ID)).await;
        seen.is(answered, outcome);
        assert!(seen.extensions.get::<Verdict>().is_none());
        let row = record(&store, ID).await.unwrap();
        assert_eq!(row.state, state, "{verdict:?}");
        if state != State::Completed {
            let said = ["later", "never"].map(Some);
            assert!(said.contains(&row.last_error.as_deref()), "{row:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_the_handler_asks_for_is_recorded() {
    let (store, runs) = (timed_memory(), Runs::default());
    let service = layer(&store).layer(handler(&runs, |_, _| {
        let mut response = reply(503);
        response.headers_mut().insert("retry-after", 90.into());
        std::future::ready(response)
    }));
    send(&service, signed(ID)).await.is(503, "failed");
    let row = record(&store, ID).await.unwrap();
    let wait = row.retry_at.unwrap().since(row.claimed_at.unwrap());
    assert_eq!(wait, Duration::from_secs(90));
}

#[tokio::test]
async fn a_failed_delivery_runs_again_when_it_is_sent_again() {
    let (store, runs) = (memory(), Runs::default());
    let service = layer(&store).layer(handler(&runs, |run, request| {
        let attempt: &hookclaim::Attempt = request.extensions().get().unwrap();
        assert_eq!(attempt.number() as usize, run);
        std::future::ready(reply(if run < 3 { 500 } else { 200 }))
    }));
    send(&service, signed(ID)).await.is(500, "failed");
    send(&service, signed(ID)).await.is(500, "failed");
    send(&service, signed(ID)).await.is(200, "completed");
    send(&service, signed(ID)).await.is(200, "duplicate");
}

#[tokio::test]
async fn a_delivery_that_is_dead_or_out_of_attempts_runs_no_more() {
    let (store, runs) = (memory(), Runs::default());
    let service = layer(&store).layer(answering(&runs, 422));
    send(&service, signed(ID)).await.is(422, "failed");
    send(&service, signed(ID)).await.is(202, "dead");
    assert_eq!(runs.count(), 1);

    let policy = LeasePolicy::default().max_attempts(2);
    let service = layer(&store).lease(policy).layer(answering(&runs, 500));
    for outcome in ["failed", "failed", "dead"] {
        assert_eq!(send(&service, signed("other")).await.outcome, outcome);
    }
}

#[tokio::test]
async fn an_error_of_the_inner_service_is_its_own_and_recorded() {
    let store = memory();
    let service = layer(&store).layer(service_fn(|_: Request<Full<Bytes>>| async {
        Err::<Reply, _>("it broke")
    }));
    assert_eq!(service.oneshot(signed(ID)).await.unwrap_err(), "it broke");
    let row = record(&store, ID).await.unwrap();
    assert_eq!((row.state, row.attempts), (State::Failed, 1));
    assert_eq!(row.error_class, Some(ErrorClass::Transient));
}

#[tokio::test]
async fn a_panic_is_recorded_and_handed_on() {
    let (store, runs) = (memory(), Runs::default());
    let in_call = service_fn(
        |_: Request<Full<Bytes>>| -> std::future::Ready<Result<Reply, ()>> {
            panic!("in the call")
        },
    );
    let in_future = handler(&runs, |run, _| async move { panic!("in run {run}") });
    let first = tokio::spawn(layer(&store).layer(in_call).oneshot(signed(ID))).await;
    assert!(first.unwrap_err().is_panic());
    assert_eq!(
        record(&store, ID).await.unwrap().last_error.as_deref(),
        Some("in the call")
    );
    let second = tokio::spawn(layer(&store).layer(in_future).oneshot(signed(ID))).await;
    let panic = second.unwrap_err().into_panic();
    assert_eq!(panic.downcast_ref::<String>().unwrap(), "in run 1");
    let row = record(&store, ID).await.unwrap();
    assert_eq!(row.error_class, Some(ErrorClass::Panic));
    assert_eq!((row.state, row.attempts), (State::Failed, 2));
    let third = ok_service(&store, &runs);
    send(&third, signed(ID)).await.is(200, "completed");
}

#[tokio::test]
async fn a_store_that_is_down_at_the_claim_lets_nothing_run() {
    let (store, runs) = (Rigged::new(memory()), Runs::default());
    store.rig.set(|rig| &rig.claim_down, true);
    let service = ok_service(&store, &runs);
    let seen = send(&service, signed(ID)).await;
    seen.is(503, "unavailable");
    assert_eq!(seen.extensions.get(), Some(&Rejection::Store));
    assert!(seen.headers.contains_key("retry-after"));
    assert_eq!(runs.count(), 0);
    store.rig.set(|rig| &rig.claim_down, false);
    send(&service, signed(ID)).await.is(200, "completed");
}

#[tokio::test(start_paused = true)]
async fn a_store_that_does_not_answer_the_claim_is_taken_for_down() {
    let (store, runs) = (Rigged::new(memory()), Runs::default());
    store.rig.set(|rig| &rig.claim_hangs, true);
    let service = ok_service(&store, &runs);
    let begin = tokio::time::Instant::now();
    send(&service, signed(ID)).await.is(503, "unavailable");
    assert_eq!(begin.elapsed().as_secs(), 8);
    assert_eq!(runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_at_the_end_lets_the_delivery_run_once_more() {
    for status in [200, 500] {
        let (store, runs) = (Rigged::new(timed_memory()), Runs::default());
        store.rig.set(|rig| &rig.settle_down, true);
        let service = layer(&store).layer(answering(&runs, status));
        send(&service, signed(ID)).await.is(503, "unavailable");
        store.rig.set(|rig| &rig.settle_down, false);
        send(&service, signed(ID)).await.is(202, "in-progress");
        tokio::time::sleep(Duration::from_secs(30)).await;
        send(&ok_service(&store, &runs), signed(ID))
            .await
            .is(200, "completed");
        assert_eq!(
            (runs.count(), record(&store, ID).await.unwrap().fence),
            (2, 2)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_down_for_a_moment_is_asked_again() {
    let (store, runs) = (Rigged::new(timed_memory()), Runs::default());
    store.rig.set(|rig| &rig.settle_down, true);
    let service = ok_service(&store, &runs);
    let answer = tokio::spawn(async move { send(&service, signed(ID)).await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    store.rig.set(|rig| &rig.settle_down, false);
    answer.await.unwrap().is(200, "completed");
}

#[tokio::test]
async fn an_attempt_that_lost_its_lease_finishes_nothing() {
    for status in [200, 500] {
        let (store, runs) = (memory(), Runs::default());
        let service = layer(&store).layer(handler(&runs, move |_, request| async move {
            let lease: &hookclaim::Lease<hookclaim::MemoryStore> =
                request.extensions().get().unwrap();
            let (store, held) = (lease.store(), lease.held());
            store.release(held, Duration::ZERO).await.unwrap();
            let again = hookclaim::Claim::bare(
                held.key.clone(),
                held.delivery_id.clone(),
                hookclaim::EventName::new("issues").unwrap(),
                held.policy,
            );
            assert!(store.claim(again).await.unwrap().won().is_some());
            reply(status)
        }));
        send(&service, signed(ID)).await.is(202, "in-progress");
        assert_eq!(record(&store, ID).await.unwrap().state, State::Processing);
    }
}
