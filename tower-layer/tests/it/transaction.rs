//! Handlers that complete their attempt in a transaction of their own: the store's row decides.

use std::time::Duration;

use hookclaim::{DeliveryStore, ErrorClass, Lease, State, TransactionalStore};
use http::Request;
use tower::{Layer, ServiceExt};
use tower_hookclaim::Drain;

use crate::store::Rigged;
use crate::support::*;

fn lease<B>(request: &Request<B>) -> Lease<Rigged> {
    request.extensions().get::<Lease<Rigged>>().unwrap().clone()
}

#[tokio::test]
async fn what_was_committed_is_completed_whatever_the_status() {
    for (status, answered) in [(200, 200), (500, 200), (422, 200)] {
        let (store, runs) = (Rigged::new(memory()), Runs::default());
        let service = layer(&store).layer(handler(&runs, move |_, request| async move {
            let lease = lease(&request);
            let tx = lease.begin().await.unwrap();
            lease.commit(tx).await.unwrap();
            reply(status)
        }));
        send(&service, signed(ID)).await.is(answered, "completed");
        assert_eq!(record(&store, ID).await.unwrap().state, State::Completed);
        send(&service, signed(ID)).await.is(200, "duplicate");
    }
}

#[tokio::test]
async fn a_panic_after_the_commit_leaves_the_delivery_completed() {
    let (store, runs) = (Rigged::new(memory()), Runs::default());
    let service = layer(&store).layer(handler(&runs, |_, request| async move {
        let lease = lease(&request);
        let tx = lease.begin().await.unwrap();
        lease.commit(tx).await.unwrap();
        panic!("after the commit")
    }));
    let task = tokio::spawn(service.oneshot(signed(ID)));
    assert!(task.await.unwrap_err().is_panic());
    assert_eq!(record(&store, ID).await.unwrap().state, State::Completed);
}

#[tokio::test]
async fn what_was_rolled_back_failed_whatever_the_status() {
    for (status, answered) in [(200, 500), (422, 422), (500, 500)] {
        let (store, runs) = (Rigged::new(memory()), Runs::default());
        let service = layer(&store).layer(handler(&runs, move |_, request| async move {
            let lease = lease(&request);
            let mut tx = lease.begin().await.unwrap();
            lease.complete_in(&mut tx).await.unwrap();
            drop(tx);
            reply(status)
        }));
        send(&service, signed(ID)).await.is(answered, "failed");
        let row = record(&store, ID).await.unwrap();
        assert_eq!(row.state, State::Failed, "{status}");
        assert_eq!(row.error_class, Some(ErrorClass::Transient), "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_is_still_open_is_waited_for() {
    for commits in [true, false] {
        let (store, runs) = (Rigged::new(timed_memory()), Runs::default());
        let service = layer(&store).layer(handler(&runs, move |_, request| async move {
            let lease = lease(&request);
            let mut tx = lease.begin().await.unwrap();
            lease.complete_in(&mut tx).await.unwrap();
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(3)).await;
                if commits {
                    lease.store().commit(tx).await.unwrap();
                }
            });
            reply(200)
        }));
        let (status, outcome) = if commits {
            (200, "completed")
        } else {
            (500, "failed")
        };
        send(&service, signed(ID)).await.is(status, outcome);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_whose_own_transaction_locks_the_row_is_not_told_to_stop() {
    let (store, runs) = (Rigged::new(timed_memory()), Runs::default());
    let service = layer(&store)
        .ack_after(None)
        .layer(handler(&runs, |_, request| async move {
            let attempt: hookclaim::Attempt = request.extensions().get().cloned().unwrap();
            let lease = lease(&request);
            let tx = lease.begin().await.unwrap();
            tokio::time::sleep(Duration::from_secs(100)).await;
            assert!(!attempt.is_cancelled());
            lease.commit(tx).await.unwrap();
            reply(200)
        }));
    send(&service, signed(ID)).await.is(200, "completed");
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_goes_on_after_its_commit_has_lost_nothing() {
    for committed_by_lease in [true, false] {
        let (store, runs) = (Rigged::new(timed_memory()), Runs::default());
        let service =
            layer(&store)
                .ack_after(None)
                .layer(handler(&runs, move |_, request| async move {
                    let attempt: hookclaim::Attempt = request.extensions().get().cloned().unwrap();
                    let lease = lease(&request);
                    let mut tx = lease.begin().await.unwrap();
                    if committed_by_lease {
                        lease.commit(tx).await.unwrap();
                    } else {
                        lease.complete_in(&mut tx).await.unwrap();
                        lease.store().commit(tx).await.unwrap();
                    }
                    tokio::time::sleep(Duration::from_secs(100)).await;
                    assert!(!attempt.is_cancelled());
                    reply(200)
                }));
        send(&service, signed(ID)).await.is(200, "completed");
    }
}

#[tokio::test]
async fn a_transaction_of_an_attempt_that_lost_its_lease_cannot_commit() {
    let (store, runs) = (Rigged::new(memory()), Runs::default());
    let service = layer(&store).layer(handler(&runs, |_, request| async move {
        let lease = lease(&request);
        let tx = lease.store().begin().await.unwrap();
        let held = lease.held();
        lease.store().release(held, Duration::ZERO).await.unwrap();
        assert!(lease.commit(tx).await.unwrap_err().is_lease_lost());
        reply(200)
    }));
    // It was handed back, so that the row is still this attempt's and waits for its next one.
    send(&service, signed(ID)).await.is(202, "in-progress");
    assert_eq!(record(&store, ID).await.unwrap().state, State::Failed);
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_a_shutdown_cuts_off_is_rolled_back_and_handed_back() {
    for commits in [true, false] {
        let (store, runs, drain) = (Rigged::new(timed_memory()), Runs::default(), Drain::new());
        let service =
            layer(&store)
                .drain(&drain)
                .layer(handler(&runs, move |_, request| async move {
                    let lease = lease(&request);
                    let mut tx = lease.begin().await.unwrap();
                    lease.complete_in(&mut tx).await.unwrap();
                    if commits {
                        lease.store().commit(tx).await.unwrap();
                    }
                    std::future::pending().await
                }));
        // Where its own transaction locks the row, its payload cannot be stored: nothing is promised.
        let (status, outcome) = if commits {
            (202, "accepted")
        } else {
            (503, "unavailable")
        };
        send(&service, signed(ID)).await.is(status, outcome);
        drain.hand_back();
        drain.idle().await;
        let row = record(&store, ID).await.unwrap();
        let expected = if commits {
            State::Completed
        } else {
            State::Failed
        };
        assert_eq!(row.state, expected);
    }
}
