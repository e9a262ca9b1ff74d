//! Attempts that outlive their request.

use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};
use std::time::Duration;

use hookclaim::{ErrorClass, State};
use http::Request;
use tokio::time::{Instant, sleep};
use tower::{Layer, Service, ServiceExt};
use tower_hookclaim::Drain;

use crate::store::Rigged;
use crate::support::*;

#[tokio::test(start_paused = true)]
async fn a_slow_handler_is_answered_for_and_goes_on() {
    let (store, runs, drain) = (timed_memory(), Runs::default(), Drain::new());
    let service = layer(&store)
        .drain(&drain)
        .layer(handler(&runs, |_, _| async {
            sleep(Duration::from_secs(12)).await;
            reply(200)
        }));
    let begin = Instant::now();
    send(&service, signed(ID)).await.is(202, "accepted");
    assert_eq!(begin.elapsed().as_secs(), 8);
    send(&service, signed(ID)).await.is(202, "in-progress");
    assert_eq!(drain.running(), 1);
    drain.idle().await;
    assert_eq!(begin.elapsed().as_secs(), 12);
    assert_eq!(record(&store, ID).await.unwrap().state, State::Completed);
    send(&layer(&store).layer(answering(&runs, 200)), signed(ID))
        .await
        .is(200, "duplicate");
    assert_eq!(runs.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_time_that_the_body_took_counts_towards_the_answer() {
    let runs = Runs::default();
    let service = layer(&timed_memory())
        .ack_after(Duration::ZERO)
        .layer(handler(&runs, |_, _| async {
            sleep(Duration::from_secs(1)).await;
            reply(200)
        }));
    let begin = Instant::now();
    send(&service, signed(ID)).await.is(202, "accepted");
    assert!(begin.elapsed() < Duration::from_millis(10));
    // What is ready at once is answered as it is.
    let service = layer(&memory())
        .ack_after(Duration::ZERO)
        .layer(answering(&runs, 200));
    send(&service, signed(ID)).await.is(200, "completed");
}

#[tokio::test(start_paused = true)]
async fn how_a_detached_attempt_ends_is_recorded() {
    for (ending, state) in [
        ("fails", State::Failed),
        ("panics", State::Failed),
        ("completes", State::Completed),
    ] {
        for acknowledged in [true, false] {
            let (store, runs, drain) = (timed_memory(), Runs::default(), Drain::new());
            let service =
                layer(&store)
                    .drain(&drain)
                    .layer(handler(&runs, move |_, _| async move {
                        sleep(Duration::from_secs(9)).await;
                        match ending {
                            "fails" => reply(500),
                            "panics" => panic!("nobody waits"),
                            _ => reply(200),
                        }
                    }));
            if acknowledged {
                send(&service, signed(ID)).await.is(202, "accepted");
            } else {
                let hangs_up =
                    tokio::time::timeout(Duration::from_secs(1), send(&service, signed(ID)));
                assert!(hangs_up.await.is_err());
            }
            drain.idle().await;
            assert_eq!(record(&store, ID).await.unwrap().state, state, "{ending}");
            assert_eq!(runs.count(), 1, "{ending}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_detached_attempt_keeps_its_lease() {
    let (store, runs, drain) = (Rigged::new(timed_memory()), Runs::default(), Drain::new());
    let service = layer(&store)
        .drain(&drain)
        .layer(handler(&runs, |_, _| async {
            sleep(Duration::from_secs(100)).await;
            reply(200)
        }));
    send(&service, signed(ID)).await.is(202, "accepted");
    sleep(Duration::from_secs(60)).await;
    send(&service, signed(ID)).await.is(202, "in-progress");
    drain.idle().await;
    assert_eq!(record(&store, ID).await.unwrap().state, State::Completed);
    assert!(store.rig.renewals.load(Ordering::SeqCst) >= 9);
}

#[tokio::test(start_paused = true)]
async fn what_a_shutdown_cuts_off_is_handed_back_and_does_not_count() {
    let (store, runs, drain) = (timed_memory(), Runs::default(), Drain::new());
    let service = layer(&store)
        .drain(&drain)
        .layer(handler(&runs, |_, _| std::future::pending()));
    send(&service, signed("detached")).await.is(202, "accepted");
    let waiting = tokio::spawn(async move { send(&service, signed("waiting")).await });
    sleep(Duration::from_secs(1)).await;
    drain.begin();
    assert_eq!(drain.running(), 2);
    drain.hand_back();
    drain.idle().await;
    waiting.await.unwrap().is(503, "unavailable");
    for id in ["detached", "waiting"] {
        let row = record(&store, id).await.unwrap();
        assert_eq!((row.state, row.attempts), (State::Failed, 0));
        assert_eq!(row.error_class, Some(ErrorClass::Released));
        let next = send(&ok_service(&store, &runs), signed(id)).await;
        next.is(200, "completed");
    }
}

#[tokio::test(start_paused = true)]
async fn a_caller_may_go_away_at_every_moment() {
    let mut ends = [0, 0];
    for polls in 0.. {
        let (store, runs, drain) = (Rigged::new(timed_memory()), Runs::default(), Drain::new());
        store.rig.set(|rig| &rig.slow, true);
        let mut service = layer(&store)
            .drain(&drain)
            .layer(handler(&runs, |_, _| async {
                for _ in 0..3 {
                    tokio::task::yield_now().await;
                }
                reply(200)
            }));
        let request = signed(ID).map(|_| Chunks::of(BODY, 10));
        let mut future = ServiceExt::<Request<Chunks>>::ready(&mut service)
            .await
            .unwrap()
            .call(request);
        let mut cx = Context::from_waker(Waker::noop());
        let answered = (0..polls).any(|_| Pin::new(&mut future).poll(&mut cx).is_ready());
        drop(future);
        drain.idle().await;
        let left = record(&store, ID).await.map(|row| row.state);
        match left {
            None => assert_eq!(runs.count(), 0, "after {polls} polls"),
            Some(state) => assert_eq!(state, State::Completed, "after {polls} polls"),
        }
        ends[usize::from(left.is_some())] += 1;
        let again = send(&ok_service(&store, &runs), signed(ID)).await;
        again.is(
            200,
            if left.is_some() {
                "duplicate"
            } else {
                "completed"
            },
        );
        assert_eq!(runs.count(), 1, "after {polls} polls");
        if answered {
            break;
        }
    }
    assert!(ends[0] > 4 && ends[1] > 4, "{ends:?}");
}
