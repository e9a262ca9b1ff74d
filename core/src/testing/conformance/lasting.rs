//! What becomes of payloads, what operators do, and what is remembered of deliveries that others cover.

use std::time::Duration;

use super::{Bench, LEASE, assert_lost};
use crate::claim::{Claim, ClaimOutcome, Failure, Held};
use crate::delivery::EventName;
use crate::durable::DurableStore;
use crate::inbox::{Enqueue, EnqueueOutcome};
use crate::key::{BusinessKey, ClaimKey};
use crate::operator::{Retried, Retry};
use crate::record::State;
use crate::request::StoredRequest;
use crate::store::{ListFilter, Retention};
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

pub(super) async fn covered<St: DurableStore>(bench: &Bench<'_, St>) {
    let key = ClaimKey::business(bench.source(), &BusinessKey::new().text(bench.clause));
    let work = |name: &str| {
        let event = EventName::new(format!("event-{name}")).expect("a name");
        let request = StoredRequest::new(name.to_owned());
        Enqueue::work(key.clone(), bench.id(name), event, request).action(Some(name))
    };
    let listed = async |filter: ListFilter| {
        let found = bench.store.list(&filter.source(bench.source())).await;
        let found = found.expect("listed").into_iter();
        found
            .map(|record| {
                let prefix = format!("{}-", bench.clause);
                let name = record.delivery_id.as_str().replacen(&prefix, "", 1);
                (name, record.state, record.covered_by)
            })
            .collect::<Vec<_>>()
    };
    let first = Some(bench.id("first"));
    let start = bench.clock.now();
    assert_eq!(bench.enqueue(work("first")).await, EnqueueOutcome::Accepted);
    bench.clock.advance(Duration::from_secs(1));
    for _ in 0..2 {
        assert_eq!(
            bench.enqueue(work("second")).await,
            EnqueueOutcome::InProgress
        );
        assert_eq!(
            bench.enqueue(work("first")).await,
            EnqueueOutcome::InProgress
        );
    }
    bench.clock.advance(Duration::from_secs(1));
    let held = bench.take_one().await.held;
    assert_eq!((&held.key, &held.delivery_id), (&key, &bench.id("first")));
    bench.store.complete(&held).await.expect("completed");
    // One that is claimed inline is covered no less.
    let event = EventName::new("event-third").expect("a name");
    let claims = ["third", "first", "third"].map(|name| {
        Claim::bare(key.clone(), bench.id(name), event.clone(), bench.policy()).action(Some(name))
    });
    let outcomes = bench
        .store
        .claim_many(claims.into())
        .await
        .expect("decided");
    let is_completed = |outcome: &ClaimOutcome| matches!(outcome, ClaimOutcome::Completed);
    assert!(outcomes.iter().all(is_completed), "{outcomes:?}");
    let done = State::Completed;
    assert_eq!(
        listed(ListFilter::newest(9)).await,
        [
            ("third".to_owned(), done, first.clone()),
            ("second".to_owned(), done, first.clone()),
            ("first".to_owned(), done, None),
        ]
    );
    let second = ListFilter::newest(9)
        .delivery_id(bench.id("second").as_str())
        .source(bench.source());
    let second = bench.store.list(&second).await.expect("listed").remove(0);
    let row = bench
        .store
        .inspect(&key)
        .await
        .expect("read")
        .expect("it is there");
    let expected = crate::Record {
        delivery_id: bench.id("second"),
        event: EventName::new("event-second").expect("a name"),
        action: Some("second".to_owned()),
        received_at: start + Duration::from_secs(1),
        covered_by: first.clone(),
        ..row.clone()
    };
    assert_eq!(second, expected);
    assert_eq!(
        (row.delivery_id, row.received_at),
        (bench.id("first"), start)
    );
    assert_eq!(
        listed(ListFilter::newest(9).event("event-third"))
            .await
            .len(),
        1
    );
    assert_eq!(
        listed(ListFilter::newest(9).state(State::Received)).await,
        []
    );
    let until = ListFilter::newest(9).until(start + Duration::from_secs(1));
    assert_eq!(listed(until).await, [("first".to_owned(), done, None)]);
    let since = ListFilter::newest(9).since(start + Duration::from_secs(2));
    assert_eq!(listed(since).await, [("third".to_owned(), done, first)]);

    // Deliveries under keys of their own cover nothing.
    let count = bench.store.stats().await.expect("counted").total();
    assert_eq!(
        bench.enqueue(bench.work("own")).await,
        EnqueueOutcome::Accepted
    );
    assert_eq!(
        bench.store.stats().await.expect("counted").total(),
        count + 1
    );

    // They are forgotten with the work that covers them.
    let retention = Retention::default().completed_and_run_again_after(Duration::from_secs(3600));
    bench.clock.advance(Duration::from_secs(3601));
    while bench
        .store
        .prune(&retention, 500)
        .await
        .expect("pruned")
        .may_be_more(500)
    {}
    assert_eq!(
        listed(ListFilter::newest(9)).await,
        [("own".to_owned(), State::Received, None)]
    );
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

pub(super) async fn list<St: DurableStore>(bench: &Bench<'_, St>) {
    // Three at one instant each, and each three covered by one.
    for step in 0..4 {
        for at in 0..3 {
            let name = format!("{step}-{at}");
            let outcome = bench.enqueue(bench.work(&name)).await;
            assert_eq!(outcome, EnqueueOutcome::Accepted);
            let key = ClaimKey::business(bench.source(), &BusinessKey::new().int(step));
            let event = EventName::new("push").expect("a name");
            let id = bench.id(&format!("of-{step}-{at}"));
            let work = Enqueue::work(key, id, event, StoredRequest::new(""));
            bench.enqueue(work).await;
        }
        bench.clock.advance(Duration::from_secs(1));
    }
    let page = async |filter: ListFilter| {
        let found = bench.store.list(&filter.source(bench.source())).await;
        found.expect("listed")
    };
    let all = page(ListFilter::newest(100)).await;
    assert_eq!(all.len(), 24);
    let covered = all.iter().filter(|record| record.covered_by.is_some());
    assert_eq!(covered.count(), 8);
    assert!(all.is_sorted_by(|a, b| crate::Position::from(a) > crate::Position::from(b)));
    for size in [1, 5, 7] {
        let mut paged: Vec<crate::Record> = Vec::new();
        loop {
            let mut filter = ListFilter::newest(size);
            if let Some(last) = paged.last() {
                filter = filter.after(last);
            }
            let found = page(filter).await;
            if found.is_empty() {
                break;
            }
            assert!(found.len() <= size as usize);
            paged.extend(found);
        }
        assert_eq!(paged, all, "pages of {size}");
    }
    assert_eq!(page(ListFilter::newest(0)).await, []);

    let failures = [
        Failure::permanent("HTTP 404: no such Repository"),
        Failure::transient(
            "connection reset by 100% of peers",
            Duration::from_secs(600),
        ),
        Failure::panic("it panicked: permanently_broken", Duration::from_secs(600)),
    ];
    for (acquired, failure) in bench.take(3).await.iter().zip(&failures) {
        bench
            .store
            .fail(&acquired.held, failure)
            .await
            .expect("recorded");
    }
    for (error, expected) in [
        ("permanent", 2),
        ("Permanent", 2),
        ("PANIC", 1),
        ("no such repository", 1),
        ("100% of", 1),
        ("1%of", 0),
        ("permanently_", 1),
        ("p_rmanent", 0),
        ("never said", 0),
    ] {
        let found = page(ListFilter::newest(100).error(error)).await;
        let rows = found.iter().filter(|record| record.covered_by.is_none());
        assert_eq!(rows.count(), expected, "{error}");
    }
    let dead = page(ListFilter::newest(100).error("404").state(State::Dead)).await;
    let rows = dead.iter().filter(|record| record.covered_by.is_none());
    assert_eq!(rows.count(), 1);
}
