use std::time::Duration;

use super::{Bench, LEASE, assert_lost, begin_and_drop};
use crate::claim::{ClaimOutcome, Failed, Failure};
use crate::durable::TransactionalDurableStore;
use crate::inbox::EnqueueOutcome;
use crate::lease::{Fate, Lease};
use crate::record::State;
use crate::store::TransactionalStore;
use crate::time::Clock;

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

pub(super) async fn once<St: TransactionalStore>(bench: &Bench<'_, St>) {
    let lease = Lease::new(bench.store.clone(), bench.win("a").await);
    let tx = lease.begin().await.expect("begun");
    lease.commit(tx).await.expect("committed");
    // The handler did not hear that it was, and tries again: the completion of another delivery stands for what it
    // writes.
    let effect = bench.win("effect").await;
    let mut tx = bench.store.begin().await.expect("begun");
    bench
        .store
        .complete_in(&mut tx, &effect)
        .await
        .expect("completed");
    assert_lost(lease.commit(tx).await);
    assert_lost(lease.begin().await.map(drop));
    assert_eq!(bench.row("effect").await.state, State::Processing);
    assert_eq!(bench.row("a").await.state, State::Completed);
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

pub(super) async fn enqueue_commits<St: TransactionalDurableStore>(bench: &Bench<'_, St>) {
    let lease = Lease::new(bench.store.clone(), bench.win("a").await);
    let mut tx = lease.begin().await.expect("begun");
    let follow_up = bench.work("follow-up").ordering_key("k");
    let request = follow_up.request().clone();
    let outcome = bench.store.enqueue_in(&mut tx, follow_up).await;
    assert_eq!(outcome.expect("decided"), EnqueueOutcome::Accepted);
    let seen = bench.store.inspect(&bench.place("follow-up")).await;
    assert_eq!(seen.expect("read"), None, "not before it commits");
    lease.commit(tx).await.expect("committed");
    assert_eq!(bench.row("a").await.state, State::Completed);
    let row = bench.placed("follow-up").await;
    assert_eq!(
        (row.state, row.attempts, row.fence),
        (State::Received, 0, 0)
    );
    assert_eq!(row.ordering_key.as_deref(), Some("k"));
    assert_eq!(bench.stored("follow-up").await, Some(request));
    assert_eq!(bench.take_one().await.held.fence, 1);
}

pub(super) async fn enqueue_rolls_back<St: TransactionalDurableStore>(bench: &Bench<'_, St>) {
    for (name, by_drop) in [("rolled-back", false), ("dropped", true)] {
        let mut tx = bench.store.begin().await.expect("begun");
        let outcome = bench.store.enqueue_in(&mut tx, bench.work(name)).await;
        assert_eq!(outcome.expect("decided"), EnqueueOutcome::Accepted);
        if by_drop {
            drop(tx);
        } else {
            bench.store.rollback(tx).await;
        }
        // It is as new as it was.
        let outcome = bench.enqueue(bench.work(name)).await;
        assert_eq!(outcome, EnqueueOutcome::Accepted, "{name}");
    }
    // A lost lease takes it along.
    let old = Lease::new(bench.store.clone(), bench.win("a").await);
    bench.clock.advance(LEASE);
    let new = bench.win("a").await;
    let mut tx = bench.store.begin().await.expect("begun");
    let outcome = bench
        .store
        .enqueue_in(&mut tx, bench.work("overlooked"))
        .await;
    assert_eq!(outcome.expect("decided"), EnqueueOutcome::Accepted);
    assert_lost(old.commit(tx).await);
    let seen = bench.store.inspect(&bench.place("overlooked")).await;
    assert_eq!(seen.expect("read"), None);
    bench.store.complete(&new).await.expect("completed");
}

pub(super) async fn enqueue_told<St: TransactionalDurableStore>(bench: &Bench<'_, St>) {
    bench.put(&["waiting", "leased", "done", "dead"]).await;
    for acquired in bench.take(4).await {
        let (store, held) = (bench.store, &acquired.held);
        match bench.names(std::slice::from_ref(&acquired))[0].as_str() {
            "done" => store.complete(held).await.expect("completed"),
            "dead" => {
                let failure = Failure::permanent("x");
                store
                    .fail(held, &failure)
                    .await
                    .map(drop)
                    .expect("recorded");
            }
            "waiting" => {
                let failure = Failure::transient("x", Duration::from_secs(60));
                store
                    .fail(held, &failure)
                    .await
                    .map(drop)
                    .expect("recorded");
            }
            _ => {}
        }
    }
    let retry_at = bench.clock.now() + Duration::from_secs(60);
    let mut tx = bench.store.begin().await.expect("begun");
    let new = bench.work("new");
    for (work, expected) in [
        (bench.work("done"), EnqueueOutcome::Completed),
        (bench.work("dead"), EnqueueOutcome::Dead),
        (bench.work("leased"), EnqueueOutcome::InProgress),
        (bench.work("waiting"), EnqueueOutcome::NotDue { retry_at }),
        (new.clone(), EnqueueOutcome::Accepted),
        (new, EnqueueOutcome::Accepted),
        (bench.work("new"), EnqueueOutcome::InProgress),
    ] {
        let name = work.key().key().to_owned();
        let outcome = bench.store.enqueue_in(&mut tx, work).await;
        assert_eq!(outcome.expect("decided"), expected, "{name}");
    }
    // The transaction is well all the same.
    bench.store.commit(tx).await.expect("committed");
    assert_eq!(bench.placed("new").await.state, State::Received);
    assert_eq!(bench.placed("leased").await.state, State::Processing);
}

pub(super) async fn enqueue_announces<St: TransactionalDurableStore>(bench: &Bench<'_, St>) {
    let mut changes = bench.store.changes();
    let mut tx = bench.store.begin().await.expect("begun");
    let outcome = bench.store.enqueue_in(&mut tx, bench.work("a")).await;
    assert_eq!(outcome.expect("decided"), EnqueueOutcome::Accepted);
    bench.store.commit(tx).await.expect("committed");
    // Whoever is told finds it there: there was no earlier reason to be told.
    bench
        .told(&mut changes, "a transaction with work in it committed")
        .await;
    assert_eq!(bench.names(&bench.take(9).await), ["a"]);
}

pub(super) async fn payload<St: TransactionalDurableStore>(bench: &Bench<'_, St>) {
    let keeping = bench.policy().keep_payload(true);
    for (name, policy) in [("dropped", bench.policy()), ("kept", keeping)] {
        bench.put(&[name]).await;
        let acquire = crate::Acquire {
            policy,
            ..bench.asking(1)
        };
        let held = bench.acquire(acquire).await.started.remove(0).held;
        let lease = Lease::new(bench.store.clone(), held);
        let tx = lease.begin().await.expect("begun");
        lease.commit(tx).await.expect("committed");
        let row = bench.placed(name).await;
        assert_eq!(
            (row.state, row.has_payload),
            (State::Completed, name == "kept")
        );
        assert_eq!(bench.stored(name).await.is_some(), name == "kept");
    }
}

pub(super) async fn not_taken<St: TransactionalDurableStore>(bench: &Bench<'_, St>) {
    bench.put(&["a"]).await;
    let lease = Lease::new(bench.store.clone(), bench.take_one().await.held);
    let tx = lease.begin().await.expect("begun");
    bench.clock.advance(LEASE * 2);
    let (store, acquire) = (bench.store.clone(), bench.asking(9));
    // Some stores answer at once, others when the transaction has ended.
    let worker = tokio::spawn(async move { store.acquire(acquire).await });
    tokio::time::sleep(Duration::from_millis(50)).await;
    lease.commit(tx).await.expect("committed");
    let acquisition = worker.await.expect("no panic").expect("decided");
    assert!(acquisition.is_empty(), "{acquisition:?}");
    assert_eq!(bench.placed("a").await.fence, 1);
}
