//! What becomes of payloads, and what operators do.

use std::time::Duration;

use super::{Bench, LEASE, assert_lost};
use crate::claim::{Claim, Failure, Held};
use crate::delivery::EventName;
use crate::durable::DurableStore;
use crate::inbox::{Enqueue, EnqueueOutcome};
use crate::key::{BusinessKey, ClaimKey};
use crate::operator::{Retried, Retry};
use crate::record::State;
use crate::request::StoredRequest;
use crate::store::Retention;
use crate::time::Clock;

pub(super) async fn payload<St: DurableStore>(bench: &Bench<'_, St>) {
    let keeping = bench.policy().keep_payload(true);
    for (name, policy) in [("dropped", bench.policy()), ("kept", keeping)] {
        bench.put(&[name]).await;
        let acquire = crate::Acquire {
            policy,
            ..bench.asking(1)
        };
        let held = bench.acquire(acquire).await.started.remove(0).held;
        assert_eq!(held.policy, policy);
        bench.store.complete(&held).await.expect("completed");
        let row = bench.placed(name).await;
        assert_eq!(
            (row.state, row.has_payload),
            (State::Completed, name == "kept")
        );
        let request = (name == "kept").then(|| bench.work(name).request().clone());
        assert_eq!(bench.stored(name).await, request);
        bench.store.complete(&held).await.expect("completed before");
        assert_eq!(bench.placed(name).await, row);
    }
    bench.put(&["failed", "released", "dead"]).await;
    for acquired in bench.take(3).await {
        let (store, held) = (bench.store, &acquired.held);
        let delay = Duration::from_secs(600);
        match bench.names(std::slice::from_ref(&acquired))[0].as_str() {
            "failed" => {
                let failure = Failure::transient("x", delay);
                store
                    .fail(held, &failure)
                    .await
                    .map(drop)
                    .expect("recorded");
            }
            "released" => store.release(held, delay).await.expect("released"),
            _ => {
                let failure = Failure::permanent("x");
                store
                    .fail(held, &failure)
                    .await
                    .map(drop)
                    .expect("recorded");
            }
        }
    }
    for name in ["failed", "released", "dead"] {
        assert!(bench.placed(name).await.has_payload, "{name}");
        let request = bench.work(name).request().clone();
        assert_eq!(bench.stored(name).await, Some(request), "{name}");
    }
    // One that is claimed inline leaves its payload when it is completed too.
    let claim = bench.inline("failed");
    let held = bench
        .store
        .claim(claim)
        .await
        .expect("decided")
        .won()
        .expect("won");
    bench.store.complete(&held).await.expect("completed");
    assert!(!bench.placed("failed").await.has_payload);
    assert_eq!(bench.stored("failed").await, None);
}

pub(super) async fn keep<St: DurableStore>(bench: &Bench<'_, St>) {
    let claim = async |name: &str| -> Held {
        let claim = bench.inline(name);
        let outcome = bench.store.claim(claim).await.expect("decided");
        outcome.won().expect("won")
    };
    let request = |text: &str| StoredRequest::new(text.to_owned()).path_of("/kept");
    let held = claim("a").await;
    let before = bench.placed("a").await;
    assert!(bench.store.keep(&held, request("one")).await.expect("kept"));
    let row = bench.placed("a").await;
    assert_eq!(
        row,
        crate::Record {
            has_payload: true,
            ..before
        }
    );
    assert_eq!(bench.stored("a").await, Some(request("one")));
    assert!(
        bench
            .store
            .keep(&held, request("two"))
            .await
            .expect("kept before")
    );
    assert_eq!(bench.placed("a").await, row);
    assert_eq!(
        bench.stored("a").await,
        Some(request("one")),
        "the first one stays"
    );
    // Now a worker can take it over.
    bench.clock.advance(LEASE);
    let taken = bench.take_one().await;
    assert_eq!(
        (taken.held.attempt, taken.held.fence, taken.path.as_str()),
        (2, 2, "/kept")
    );
    assert_eq!(
        taken.delivery.expect("it can be read").raw().as_ref(),
        b"one"
    );
    assert_lost(bench.store.keep(&held, request("three")).await);
    bench.store.complete(&taken.held).await.expect("completed");
    assert_lost(bench.store.keep(&taken.held, request("four")).await);
    assert_eq!(bench.stored("a").await, None);

    let held = claim("failed").await;
    let failure = Failure::transient("x", Duration::ZERO);
    bench.store.fail(&held, &failure).await.expect("recorded");
    assert_lost(bench.store.keep(&held, request("late")).await);
    assert!(!bench.placed("failed").await.has_payload);
    let mut stranger = claim("b").await;
    stranger.token = crate::ClaimToken::random();
    assert_lost(bench.store.keep(&stranger, request("no")).await);
    assert!(!bench.placed("b").await.has_payload);
    stranger.key = bench.place("never-claimed");
    assert_lost(bench.store.keep(&stranger, request("no")).await);
    // A lease that is over is no obstacle while nobody took it over.
    let held = claim("late").await;
    bench.clock.advance(LEASE * 2);
    assert!(
        bench
            .store
            .keep(&held, request("late"))
            .await
            .expect("kept")
    );
}

pub(super) async fn retry<St: DurableStore>(bench: &Bench<'_, St>) {
    let order = Retry::by("ann").because("the database was down: caf\u{e9}");
    let retry = async |name: &str, order: &Retry| {
        let told = bench.store.retry(&bench.place(name), order).await;
        told.expect("decided")
    };
    let audit = async |name: &str| {
        let found = bench.store.audit(&bench.place(name)).await;
        found.expect("the store can be read")
    };
    assert_eq!(retry("never-seen", &order).await, Retried::Unknown);
    assert_eq!(audit("never-seen").await, []);

    bench.put(&["dead"]).await;
    let held = bench.take_one().await.held;
    bench
        .store
        .fail(&held, &Failure::permanent("x"))
        .await
        .expect("recorded");
    bench.clock.advance(Duration::from_secs(60));
    let now = bench.clock.now();
    assert_eq!(retry("dead", &order).await, Retried::Due);
    let row = bench.placed("dead").await;
    assert_eq!(
        (row.state, row.attempts, row.fence),
        (State::Received, 0, 1)
    );
    assert_eq!((row.retry_at, row.finished_at), (Some(now), None));
    assert_eq!(
        row.last_error.as_deref(),
        Some("x"),
        "what happened stays readable"
    );
    let lines = audit("dead").await;
    assert_eq!(lines.len(), 1);
    assert_eq!((lines[0].at, lines[0].actor.as_str()), (now, "ann"));
    assert_eq!(
        (lines[0].action.as_str(), &lines[0].key),
        ("retry", &bench.place("dead"))
    );
    assert_eq!(
        lines[0].reason.as_deref(),
        Some("the database was down: caf\u{e9}")
    );
    let again = bench.take_one().await.held;
    assert_eq!((again.attempt, again.fence), (1, 2));

    // Whoever works on it is left alone, until the lease is over.
    assert_eq!(retry("dead", &order).await, Retried::InProgress);
    assert_eq!(
        audit("dead").await.len(),
        1,
        "what changed nothing is not written down"
    );
    bench.store.complete(&again).await.expect("it holds on");
    let row = bench.placed("dead").await;
    assert_eq!(retry("dead", &order).await, Retried::Completed);
    assert_eq!(bench.placed("dead").await, row);
    bench.clock.advance(Duration::from_secs(1));
    let by_force = Retry::by("bob").force(true);
    assert_eq!(retry("dead", &by_force).await, Retried::AwaitsRedelivery);
    let row = bench.placed("dead").await;
    assert_eq!(
        (row.state, row.attempts, row.finished_at),
        (State::Failed, 0, None)
    );
    assert_eq!(row.retry_at, Some(bench.clock.now()));
    let lines = audit("dead").await;
    assert_eq!(lines.len(), 2, "oldest first");
    assert_eq!(
        (lines[1].actor.as_str(), lines[1].action.as_str()),
        ("bob", "force")
    );
    assert_eq!(lines[1].reason, None);
    assert!(
        bench.acquire(bench.asking(9)).await.is_empty(),
        "there is nothing to run"
    );
    assert_eq!(
        bench.enqueue(bench.work("dead")).await,
        EnqueueOutcome::Accepted
    );
    let held = bench.take_one().await.held;
    bench.store.complete(&held).await.expect("completed");

    // Completed with its payload, waiting, and without payload.
    bench.put(&["kept"]).await;
    let policy = bench.policy().keep_payload(true);
    let acquire = crate::Acquire {
        policy,
        ..bench.asking(1)
    };
    let held = bench.acquire(acquire).await.started.remove(0).held;
    bench.store.complete(&held).await.expect("completed");
    assert_eq!(retry("kept", &by_force).await, Retried::Due);
    assert_eq!(bench.take_one().await.held.fence, 2);
    bench.clock.advance(LEASE);
    assert_eq!(
        retry("kept", &order).await,
        Retried::Due,
        "its lease is over"
    );
    let waiting = bench.placed("kept").await;
    assert_eq!((waiting.renewed_at, waiting.lease_until), (None, None));
    let held = bench.take_one().await.held;
    let failure = Failure::transient("x", Duration::from_secs(3600));
    bench.store.fail(&held, &failure).await.expect("recorded");
    assert_eq!(
        retry("kept", &order).await,
        Retried::Due,
        "sooner than it would be"
    );
    let held = bench.take_one().await.held;
    bench.store.complete(&held).await.expect("completed");
    let held = bench
        .store
        .claim(bench.inline("inline"))
        .await
        .expect("decided")
        .won();
    let failure = Failure::permanent("x");
    bench
        .store
        .fail(&held.expect("won"), &failure)
        .await
        .expect("recorded");
    assert_eq!(retry("inline", &order).await, Retried::AwaitsRedelivery);
    let held = bench
        .store
        .claim(bench.inline("inline"))
        .await
        .expect("decided")
        .won();
    assert_eq!(held.expect("it runs when it is delivered again").attempt, 1);
}

pub(super) async fn old_token<St: DurableStore>(bench: &Bench<'_, St>) {
    bench.put(&["a"]).await;
    let old = bench.take_one().await.held;
    bench.clock.advance(LEASE);
    let told = bench
        .store
        .retry(&bench.place("a"), &Retry::by("ann"))
        .await;
    assert_eq!(told.expect("decided"), Retried::Due);
    let row = bench.placed("a").await;
    assert_lost(bench.store.complete(&old).await);
    assert_lost(bench.store.fail(&old, &Failure::permanent("late")).await);
    assert_lost(bench.store.release(&old, Duration::ZERO).await);
    assert_lost(bench.store.renew(&old).await);
    assert_lost(bench.store.keep(&old, StoredRequest::new("late")).await);
    assert_eq!(bench.placed("a").await, row);
}

pub(super) async fn prune<St: DurableStore>(bench: &Bench<'_, St>) {
    let day = Duration::from_secs(24 * 3600);
    // Whatever the clauses before this one left behind.
    let everything = Retention::default()
        .completed_and_run_again_after(Duration::ZERO)
        .dead(Duration::ZERO)
        .payload(Duration::ZERO);
    bench.clock.advance(day);
    while bench
        .store
        .prune(&everything, 500)
        .await
        .expect("pruned")
        .may_be_more(500)
    {}

    let policy = bench.policy().keep_payload(true);
    let complete = async |names: &[&str]| {
        bench.put(names).await;
        let acquire = crate::Acquire {
            policy,
            ..bench.asking(9)
        };
        for acquired in bench.acquire(acquire).await.started {
            bench
                .store
                .complete(&acquired.held)
                .await
                .expect("completed");
        }
    };
    bench.put(&["dead"]).await;
    let held = bench.take_one().await.held;
    bench
        .store
        .fail(&held, &Failure::permanent("x"))
        .await
        .expect("recorded");
    complete(&["a", "b", "c", "d", "e"]).await;
    bench.clock.advance(day * 3);
    complete(&["young"]).await;
    bench.put(&["waiting"]).await;
    let retention = Retention::default().payload(day * 2);
    let mut steps = Vec::new();
    for _ in 0..4 {
        let step = bench.store.prune(&retention, 2).await.expect("pruned");
        assert_eq!(step.may_be_more(2), step.payloads == 2);
        steps.push((step.records, step.payloads));
    }
    assert_eq!(steps, [(0, 2), (0, 2), (0, 1), (0, 0)]);
    for name in ["a", "b", "c", "d", "e"] {
        let row = bench.placed(name).await;
        assert_eq!(
            (row.state, row.has_payload),
            (State::Completed, false),
            "{name}"
        );
        assert_eq!(bench.stored(name).await, None);
    }
    for name in ["dead", "young", "waiting"] {
        assert!(bench.placed(name).await.has_payload, "{name}");
        assert!(bench.stored(name).await.is_some(), "{name}");
    }
    // Records go with their payloads, which are not counted twice.
    bench.clock.advance(day * 365);
    let rest = bench.store.prune(&retention, 500).await.expect("pruned");
    assert_eq!((rest.records, rest.payloads), (7, 0));
    assert!(
        bench.placed("waiting").await.has_payload,
        "what is not done is never forgotten"
    );
    assert_eq!(bench.stored("dead").await, None);
}

pub(super) async fn whose_body<St: DurableStore>(bench: &Bench<'_, St>) {
    // A delivery fails without its payload, and another of the same business key brings one.
    let key = ClaimKey::business(bench.source(), &BusinessKey::new().text(bench.clause));
    let event = |name| EventName::new(name).expect("a name");
    let claim = Claim::bare(key.clone(), bench.id("a"), event("push"), bench.policy());
    let held = bench.store.claim(claim).await.expect("decided").won();
    let failure = Failure::transient("inline", Duration::ZERO);
    let failed = bench.store.fail(&held.expect("won"), &failure).await;
    failed.expect("recorded");
    let request = StoredRequest::new("{}");
    let work = Enqueue::work(key, bench.id("b"), event("release"), request);
    assert_eq!(bench.enqueue(work).await, EnqueueOutcome::Accepted);
    let acquired = bench.take_one().await;
    assert_eq!(acquired.held.delivery_id, bench.id("a"));
    let delivery = acquired.delivery.expect("it can be read");
    assert_eq!(*delivery.id(), bench.id("b"));
    assert_eq!(*delivery.event(), event("release"));
}
