//! Databases that keep their callers waiting: nobody is told that somebody else works who does not.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, PgPool};
use tokio::task::JoinSet;

use hookclaim::{
    ClaimOutcome, DeliveryStore, Failed, Failure, LeasePolicy, PostgresStore, Renewal,
    StoreErrorKind, TransactionalStore,
};
use hookclaim_tests::postgres::PgCluster;

use crate::stores::{Bench, claim, on_stores, postgres, sqlite};

on_stores! {
    spans_without_end_spoil_nothing: memory sqlite postgres;
}

fn policy() -> LeasePolicy {
    LeasePolicy::default().lease(Duration::from_secs(30))
}

/// Spans that no database could add to an instant.
async fn spans_without_end_spoil_nothing<St: DeliveryStore>(bench: Bench<St>) {
    let endless = LeasePolicy::default()
        .lease(Duration::MAX)
        .max_hold(Duration::MAX);
    let store = &bench.store;
    let held = store.claim(claim("a", endless)).await.unwrap();
    let held = held.won().expect("a new key is won");
    assert!(matches!(
        store.renew(&held).await.unwrap(),
        Renewal::Renewed { .. }
    ));
    let failure = Failure::transient("never again", Duration::MAX);
    assert!(matches!(
        store.fail(&held, &failure).await.unwrap(),
        Failed::Retry { .. }
    ));
    let held = store.claim(claim("a", endless)).await.unwrap();
    let held = held.won().expect("it is won through the open gate");
    store.release(&held, Duration::MAX).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_table_that_is_locked_is_an_error_and_no_delivery_is_taken_for_in_progress() {
    let bench = postgres().await;
    let mut operator = PgConnection::connect(&bench.url).await.unwrap();
    let mut maintenance = operator.begin().await.unwrap();
    maintenance
        .execute("lock table hookclaim_deliveries in share mode")
        .await
        .unwrap();
    let claims = (0..20)
        .map(|number| claim(&format!("k{number}"), policy()))
        .collect();
    let refused = bench.store.claim_many(claims).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Unavailable, "{refused:?}");
    let refused = bench.store.claim(claim("k0", policy())).await.unwrap_err();
    assert_eq!(refused.kind(), StoreErrorKind::Unavailable, "{refused:?}");
    maintenance.rollback().await.unwrap();
    let outcome = bench.store.claim(claim("k0", policy())).await.unwrap();
    assert!(matches!(outcome, ClaimOutcome::Won(_)), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_a_long_transaction_inserts_holds_up_no_other() {
    let bench = postgres().await;
    bench
        .store
        .claim(claim("template", policy()))
        .await
        .unwrap()
        .won()
        .unwrap();
    let mut rival = PgConnection::connect(&bench.url).await.unwrap();
    let mut long = rival.begin().await.unwrap();
    long.execute(
        "insert into hookclaim_deliveries (received_at, claimed_at, renewed_at, lease_until, fence, claim_token, \
         attempts, state, source, key, delivery_id, event) \
         select received_at, claimed_at, renewed_at, lease_until, fence, gen_random_uuid(), attempts, state, source, \
         'held', 'held', event from hookclaim_deliveries where key = 'template'",
    )
    .await
    .unwrap();
    let mut claimers = JoinSet::new();
    for name in ["free-1", "held", "free-2"] {
        let store = bench.store.clone();
        claimers.spawn(async move { (name, store.claim(claim(name, policy())).await) });
    }
    while let Some(done) = claimers.join_next().await {
        match done.unwrap() {
            ("held", outcome) => {
                let refused = outcome.expect_err("whether it is taken is not known");
                assert_eq!(refused.kind(), StoreErrorKind::Unavailable, "{refused:?}");
            }
            (name, outcome) => assert!(outcome.unwrap().won().is_some(), "{name}"),
        }
    }
    long.rollback().await.unwrap();
    let outcome = bench.store.claim(claim("held", policy())).await.unwrap();
    assert!(matches!(outcome, ClaimOutcome::Won(_)), "{outcome:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn migrations_that_start_together_succeed_whatever_the_default_isolation() {
    for isolation in ["repeatable read", "serializable"] {
        let url = PgCluster::shared().fresh_database().await;
        let name = url.rsplit('/').next().unwrap();
        let mut connection = PgConnection::connect(&url).await.unwrap();
        let default =
            format!("alter database {name} set default_transaction_isolation = '{isolation}'");
        connection.execute(AssertSqlSafe(default)).await.unwrap();
        let mut starting = JoinSet::new();
        for _ in 0..5 {
            let url = url.clone();
            starting.spawn(async move {
                let store = PostgresStore::new(PgPool::connect(&url).await.unwrap());
                store.migrate().await
            });
        }
        let mut steps = 0;
        while let Some(started) = starting.join_next().await {
            steps += started
                .unwrap()
                .unwrap_or_else(|error| panic!("{isolation}: {error:?}"));
        }
        assert_eq!(steps, 2, "{isolation}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_behind_a_long_transaction_comes_before_a_claim_behind_it() {
    let bench = sqlite().await;
    let held = bench.store.claim(claim("a", policy())).await.unwrap();
    let held = held.won().expect("a new key is won");
    let long = bench.store.begin().await.unwrap();
    bench.clock.advance(Duration::from_secs(20));
    // Asked in time; it waits where it is put, and the answer meanwhile is that nobody can take the delivery.
    assert_eq!(bench.store.renew(&held).await.unwrap(), Renewal::Busy);
    let (store, again) = (bench.store.clone(), claim("a", policy()));
    let mut redelivery = Box::pin(async move { store.claim(again).await });
    let asked = std::future::poll_fn(|context| {
        std::task::Poll::Ready(redelivery.as_mut().poll(context).is_pending())
    });
    assert!(asked.await, "the file is held by the transaction");
    bench.clock.advance(Duration::from_secs(11));
    bench.store.rollback(long).await;
    let outcome = redelivery.await.unwrap();
    assert!(
        matches!(outcome, ClaimOutcome::InProgress { .. }),
        "{outcome:?}"
    );
    bench.store.complete(&held).await.unwrap();
}
