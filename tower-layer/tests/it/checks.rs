//! The order of checks, and what each refusal looks like.

use hookclaim::State;

use crate::support::*;

#[tokio::test]
async fn a_delivery_runs_once_and_is_a_duplicate_afterwards() {
    let (store, runs) = (memory(), Runs::default());
    let service = ok_service(&store, &runs);
    let first = send(&service, signed(ID)).await;
    first.is(200, "completed");
    assert_eq!(first.text, "handled");
    send(&service, signed(ID)).await.is(200, "duplicate");
    assert_eq!(runs.count(), 1);
    assert_eq!(record(&store, ID).await.unwrap().state, State::Completed);
}

#[tokio::test]
async fn a_delivery_that_is_not_signed_is_refused_and_not_recorded() {
    let (store, runs) = (memory(), Runs::default());
    let service = ok_service(&store, &runs);
    let forged = signed_with("another secret", "issues", ID, BODY);
    send(&service, forged).await.is(401, "rejected");
    assert_eq!(runs.count(), 0);
    assert!(record(&store, ID).await.is_none());
}
