use std::time::Duration;

use super::{Bench, LEASE, assert_lost, begin_and_drop};
use crate::claim::{ClaimOutcome, Failed, Failure};
use crate::lease::{Fate, Lease};
use crate::record::State;
use crate::store::TransactionalStore;

pub(super) async fn commit<St: TransactionalStore>(bench: &Bench<'_, St>) {
    let lease = Lease::new(bench.store.clone(), bench.win("a").await);
    let tx = lease.begin().await.expect("begun");
    assert_eq!(lease.fate(), Fate::Untouched);
    lease.commit(tx).await.expect("committed");
    assert_eq!(lease.fate(), Fate::Committed);
    assert_eq!(bench.row("a").await.state, State::Completed);
    bench
        .store
        .complete(lease.held())
        .await
        .expect("completed before");

    // The low-level form.
    let lease = Lease::new(bench.store.clone(), bench.win("b").await);
    let mut tx = bench.store.begin().await.expect("begun");
    lease.complete_in(&mut tx).await.expect("completed");
    assert_eq!(
        bench.row("b").await.state,
        State::Processing,
        "not before it commits"
    );
    bench.store.commit(tx).await.expect("committed");
    assert_eq!(lease.fate(), Fate::InStore);
    assert_eq!(bench.row("b").await.state, State::Completed);
}

pub(super) async fn rollback<St: TransactionalStore>(bench: &Bench<'_, St>) {
    for (name, by_drop) in [("rolled back", false), ("dropped", true)] {
        let name = name.replace(' ', "-");
        let lease = Lease::new(bench.store.clone(), bench.win(&name).await);
        let mut tx = lease.begin().await.expect("begun");
        lease.complete_in(&mut tx).await.expect("completed");
        if by_drop {
            drop(tx);
        } else {
            bench.store.rollback(tx).await;
        }
        assert_eq!(bench.row(&name).await.state, State::Processing);
        let failed = loop {
            // A transaction that is dropped is rolled back a moment later.
            match bench
                .store
                .fail(lease.held(), &Failure::transient("no", Duration::ZERO))
                .await
            {
                Err(error) if error.is_busy() => tokio::task::yield_now().await,
                failed => break failed.expect("recorded"),
            }
        };
        assert!(matches!(failed, Failed::Retry { .. }));
    }
}

pub(super) async fn lost<St: TransactionalStore>(bench: &Bench<'_, St>) {
    let old = Lease::new(bench.store.clone(), bench.win("a").await);
    let tx = bench.store.begin().await.expect("begun");
    bench.store.rollback(tx).await;
    bench.clock.advance(LEASE);
    let new = bench.win("a").await;
    let tx = bench.store.begin().await.expect("begun");
    assert_lost(old.commit(tx).await);
    assert_lost(old.begin().await.map(drop));
    let row = bench.row("a").await;
    assert_eq!((row.state, row.token), (State::Processing, new.token));
    bench
        .store
        .complete(&new)
        .await
        .expect("the successor completes");
    let tx = bench.store.begin().await.expect("begun");
    assert_lost(old.commit(tx).await);
}

pub(super) async fn overlooked<St: TransactionalStore>(bench: &Bench<'_, St>) {
    let old = bench.win("a").await;
    bench.clock.advance(LEASE);
    bench.win("a").await;
    // The completion of another delivery stands for whatever the handler wrote.
    let effect = bench.win("effect").await;
    let mut tx = bench.store.begin().await.expect("begun");
    bench
        .store
        .complete_in(&mut tx, &effect)
        .await
        .expect("completed");
    assert_lost(bench.store.complete_in(&mut tx, &old).await);
    let _overlooked = bench.store.commit(tx).await;
    assert_eq!(bench.row("effect").await.state, State::Processing);
    let mut tx = bench.store.begin().await.expect("the connection is well");
    bench
        .store
        .complete_in(&mut tx, &effect)
        .await
        .expect("completed");
    bench.store.commit(tx).await.expect("committed");
}

pub(super) async fn locked<St: TransactionalStore>(bench: &Bench<'_, St>) {
    let lease = Lease::new(bench.store.clone(), bench.win("a").await);
    let tx = lease.begin().await.expect("begun");
    bench.clock.advance(LEASE * 2);
    let (store, claim) = (bench.store.clone(), bench.ask("a"));
    // Some stores answer at once, others when the transaction has ended.
    let claimer = tokio::spawn(async move { store.claim(claim).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    lease.commit(tx).await.expect("committed");
    let outcome = claimer.await.expect("no panic").expect("decided");
    assert!(
        matches!(
            outcome,
            ClaimOutcome::InProgress { .. } | ClaimOutcome::Completed
        ),
        "{outcome:?}"
    );
    assert_eq!(bench.row("a").await.fence, 1);
}

pub(super) async fn abandoned_begin<St: TransactionalStore>(bench: &Bench<'_, St>) {
    for round in 0..20 {
        begin_and_drop(bench.store.begin()).await;
        let held = bench.win(&format!("k{round}")).await;
        let mut tx = bench.store.begin().await.expect("begun");
        bench
            .store
            .complete_in(&mut tx, &held)
            .await
            .expect("completed");
        bench.store.commit(tx).await.expect("committed");
        assert_eq!(
            bench.row(&format!("k{round}")).await.state,
            State::Completed,
            "seen by others at once"
        );
    }
}
