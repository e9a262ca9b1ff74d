//! Keeping the lease while the handler works.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hookclaim::testing::ManualClock;
use hookclaim::{Attempt, Claim, DeliveryStore, LeasePolicy, MemoryStore, State};
use tokio::time::{Instant, sleep};
use tower::Layer;

use crate::store::Rigged;
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a_handler_three_leases_long_keeps_its_delivery_to_itself() {
    let (store, runs) = (Rigged::new(timed_memory()), Runs::default());
    let service = layer(&store)
        .ack_after(None)
        .layer(handler(&runs, |_, request| async move {
            let attempt: Attempt = request.extensions().get().cloned().unwrap();
            sleep(Duration::from_secs(95)).await;
            assert!(!attempt.is_cancelled());
            reply(200)
        }));
    let first = tokio::spawn({
        let service = service.clone();
        async move { send(&service, signed(ID)).await }
    });
    for _ in 0..9 {
        sleep(Duration::from_secs(10)).await;
        send(&service, signed(ID)).await.is(202, "in-progress");
    }
    first.await.unwrap().is(200, "completed");
    assert_eq!(runs.count(), 1);
    assert_eq!(store.rig.renewals.load(Ordering::SeqCst), 9);
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_before_a_lease_ends_that_cannot_be_renewed() {
    let (store, runs) = (Rigged::new(timed_memory()), Runs::default());
    store.rig.set(|rig| &rig.renew_down, true);
    let service = layer(&store)
        .ack_after(None)
        .layer(handler(&runs, |_, request| async move {
            let attempt: Attempt = request.extensions().get().cloned().unwrap();
            let begin = Instant::now();
            attempt.cancelled().await;
            assert_eq!(begin.elapsed().as_secs(), 27);
            reply(503)
        }));
    // The lease still holds, so that the attempt is recorded.
    send(&service, signed(ID)).await.is(503, "failed");
    assert_eq!(record(&store, ID).await.unwrap().state, State::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_store_that_comes_back_in_time_costs_nothing() {
    let (store, runs) = (Rigged::new(timed_memory()), Runs::default());
    store.rig.set(|rig| &rig.renew_down, true);
    let rig = store.rig.clone();
    let service = layer(&store)
        .ack_after(None)
        .layer(handler(&runs, move |_, request| {
            let rig = rig.clone();
            async move {
                let attempt: Attempt = request.extensions().get().cloned().unwrap();
                sleep(Duration::from_secs(20)).await;
                rig.set(|rig| &rig.renew_down, false);
                sleep(Duration::from_secs(60)).await;
                assert!(!attempt.is_cancelled());
                reply(200)
            }
        }));
    send(&service, signed(ID)).await.is(200, "completed");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_hangs_is_told_at_its_longest_hold_and_taken_over_from() {
    let (store, runs) = (Rigged::new(timed_memory()), Runs::default());
    let policy = LeasePolicy::default().max_hold(Duration::from_secs(60));
    let service = layer(&store)
        .lease(policy)
        .layer(handler(&runs, |run, request| async move {
            let attempt: Attempt = request.extensions().get().cloned().unwrap();
            if run == 1 {
                let begin = Instant::now();
                attempt.cancelled().await;
                assert!((50..60).contains(&begin.elapsed().as_secs()));
                std::future::pending::<()>().await;
            }
            reply(200)
        }));
    send(&service, signed(ID)).await.is(202, "accepted");
    sleep(Duration::from_secs(51)).await;
    send(&service, signed(ID)).await.is(202, "in-progress");
    sleep(Duration::from_secs(2)).await;
    send(&service, signed(ID)).await.is(200, "completed");
}

#[tokio::test(start_paused = true)]
async fn an_attempt_whose_lease_went_to_another_is_told_and_finishes_nothing() {
    let clock = ManualClock::new();
    let store = MemoryStore::with_clock(Arc::new(clock.clone()));
    let runs = Runs::default();
    let service = layer(&store)
        .ack_after(None)
        .layer(handler(&runs, |_, request| async move {
            let attempt: Attempt = request.extensions().get().cloned().unwrap();
            attempt.cancelled().await;
            reply(200)
        }));
    let first = tokio::spawn(async move { send(&service, signed(ID)).await });
    sleep(Duration::from_secs(1)).await;
    // As if this process had been stopped for longer than the lease: another claim takes over.
    let row = record(&store, ID).await.unwrap();
    let policy = LeasePolicy::default();
    let other = Claim::bare(
        row.key.clone(),
        row.delivery_id.clone(),
        row.event.clone(),
        policy,
    );
    clock.advance(Duration::from_secs(31));
    assert!(store.claim(other).await.unwrap().won().is_some());
    first.await.unwrap().is(202, "in-progress");
    assert_eq!(record(&store, ID).await.unwrap().state, State::Processing);
}
