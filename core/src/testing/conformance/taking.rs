//! Taking what is due.

use std::collections::HashSet;
use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use super::{Bench, LEASE, begin_and_drop};
use crate::claim::{ClaimKind, Failure};
use crate::delivery::EventName;
use crate::durable::DurableStore;
use crate::inbox::{Acquired, Enqueue, EnqueueOutcome, Lane, Order};
use crate::key::{ClaimKey, Scope, Source};
use crate::record::{ErrorClass, State};
use crate::request::StoredRequest;
use crate::time::Clock;

pub(super) async fn oldest_first<St: DurableStore>(bench: &Bench<'_, St>) {
    bench.put(&["c", "a", "d", "b", "e"]).await;
    assert_eq!(bench.names(&bench.take(0).await), [""; 0]);
    let first = bench.take(2).await;
    assert_eq!(bench.names(&first), ["c", "a"]);
    // A failed one stands where its retry says.
    let failure = Failure::transient("later", Duration::ZERO);
    bench
        .store
        .fail(&first[0].held, &failure)
        .await
        .expect("recorded");
    assert_eq!(bench.names(&bench.take(3).await), ["d", "b", "e"]);
    assert_eq!(bench.names(&bench.take(3).await), ["c"]);
    assert!(bench.acquire(bench.asking(3)).await.is_empty());
    assert_eq!(bench.names(&first), ["c", "a"]);
}

pub(super) async fn counted<St: DurableStore>(bench: &Bench<'_, St>) {
    bench.put(&["a"]).await;
    let now = bench.clock.now();
    let acquired = bench.take_one().await;
    let held = &acquired.held;
    assert_eq!(
        (held.attempt, held.fence, held.kind),
        (1, 1, ClaimKind::Fresh)
    );
    assert_eq!(
        (&held.key, &held.delivery_id),
        (&bench.place("a"), &bench.id("a"))
    );
    assert_eq!(held.policy, bench.policy());
    let row = bench.placed("a").await;
    assert_eq!(
        (row.state, row.attempts, row.fence),
        (State::Processing, 1, 1)
    );
    assert_eq!(row.token, held.token);
    assert_eq!((row.claimed_at, row.renewed_at), (Some(now), Some(now)));
    assert_eq!((row.lease_until, row.retry_at), (Some(now + LEASE), None));
    assert!(row.has_payload);
    let failure = Failure::transient("later", Duration::ZERO);
    bench.store.fail(held, &failure).await.expect("recorded");
    let retried = bench.take_one().await.held;
    assert_eq!(
        (retried.attempt, retried.fence, retried.kind),
        (2, 2, ClaimKind::Retry)
    );
    super::assert_lost(bench.store.complete(held).await);
    bench.clock.advance(LEASE);
    let taken_over = bench.take_one().await.held;
    let kind = (taken_over.attempt, taken_over.fence, taken_over.kind);
    assert_eq!(kind, (3, 3, ClaimKind::Takeover));
    let row = bench.placed("a").await;
    assert_eq!(row.error_class, Some(ErrorClass::LeaseExpired));
    assert_eq!(
        row.last_error.as_deref(),
        Some(crate::machine::LEASE_EXPIRED)
    );
    super::assert_lost(bench.store.complete(&retried).await);
    bench.store.complete(&taken_over).await.expect("completed");
    // A release takes its attempt back, and the next is a retry.
    bench.put(&["b"]).await;
    let held = bench.take_one().await.held;
    bench
        .store
        .release(&held, Duration::ZERO)
        .await
        .expect("released");
    let held = bench.take_one().await.held;
    assert_eq!(
        (held.attempt, held.fence, held.kind),
        (1, 2, ClaimKind::Retry)
    );
}

pub(super) async fn when_due<St: DurableStore>(bench: &Bench<'_, St>) {
    let delay = Duration::from_secs(60);
    let moment = Duration::from_micros(1);
    let delayed = bench.work("a").delay(delay);
    assert_eq!(bench.enqueue(delayed).await, EnqueueOutcome::Accepted);
    for round in 1..=3 {
        bench.clock.advance(delay - moment);
        assert!(bench.acquire(bench.asking(9)).await.is_empty(), "{round}");
        bench.clock.advance(moment);
        let held = bench.take_one().await.held;
        assert_eq!(held.fence, round);
        if round == 2 {
            bench.store.release(&held, delay).await.expect("released");
        } else {
            let failure = Failure::transient("later", delay);
            bench.store.fail(&held, &failure).await.expect("recorded");
        }
    }
}

pub(super) async fn nobody_elses<St: DurableStore>(bench: &Bench<'_, St>) {
    // Without a payload there is nothing to run.
    let held = bench
        .store
        .claim(bench.inline("failed"))
        .await
        .expect("decided")
        .won();
    let failure = Failure::transient("inline", Duration::ZERO);
    bench
        .store
        .fail(&held.expect("won"), &failure)
        .await
        .expect("recorded");
    let held = bench
        .store
        .claim(bench.inline("expired"))
        .await
        .expect("decided")
        .won();
    assert!(held.is_some());
    bench.clock.advance(LEASE);
    assert!(bench.acquire(bench.asking(9)).await.is_empty());

    let source = |rest: &str| Source::new(format!("{}{rest}", bench.clause)).expect("a name");
    let event = EventName::new("push").expect("a name");
    for rest in ["", "x", "/hook/7", "/hook/8", "/other", "x/hook/9"] {
        let key = ClaimKey::delivery(source(rest), &bench.id("a"));
        let work = Enqueue::work(key, bench.id("a"), event.clone(), StoredRequest::new(rest));
        assert_eq!(bench.enqueue(work).await, EnqueueOutcome::Accepted);
        bench.clock.advance(Duration::from_micros(1));
    }
    let sources = |started: Vec<Acquired>| -> Vec<String> {
        let name = |acquired: &Acquired| acquired.held.key.source().as_str().to_owned();
        started.iter().map(name).collect()
    };
    let of_hooks = bench.acquire(bench.asking(9).scope(Scope::HookId)).await;
    let names = sources(of_hooks.started);
    assert_eq!(
        names,
        ["/hook/7", "/hook/8"].map(|rest| source(rest).to_string())
    );
    let names = sources(bench.take(9).await);
    assert_eq!(names, [source("").to_string()]);
    let percent = bench.asking(9);
    let percent = crate::Acquire {
        source: Source::new("%").expect("a name"),
        ..percent
    };
    assert!(bench.acquire(percent.scope(Scope::HookId)).await.is_empty());
}

pub(super) async fn expired<St: DurableStore>(bench: &Bench<'_, St>) {
    bench.put(&["a", "b"]).await;
    let taken = bench.take(2).await;
    bench.clock.advance(LEASE - Duration::from_micros(1));
    assert!(bench.acquire(bench.asking(9)).await.is_empty());
    bench.store.renew(&taken[1].held).await.expect("renewed");
    bench.clock.advance(Duration::from_micros(1));
    assert!(
        bench
            .acquire(bench.asking(9).expired(false))
            .await
            .is_empty()
    );
    bench.put(&["c"]).await;
    // What is to be taken over comes before what is due, so that a queue without an end does not keep it waiting.
    let started = bench.take(1).await;
    assert_eq!(bench.names(&started), ["a"]);
    assert_eq!(started[0].held.kind, ClaimKind::Takeover);
    assert!(started[0].delivery.is_ok());
    assert_eq!(bench.names(&bench.take(9).await), ["c"]);
    // A clock that was set back blocks nothing.
    bench.clock.set_back(Duration::from_secs(3600));
    let started = bench.take(9).await;
    let names: HashSet<String> = bench.names(&started).into_iter().collect();
    assert_eq!(names, ["a", "b", "c"].map(str::to_owned).into());
    bench.clock.advance(Duration::from_secs(3600));
}

pub(super) async fn used_up<St: DurableStore>(bench: &Bench<'_, St>) {
    bench.put(&["a", "b"]).await;
    for _ in 0..3 {
        assert_eq!(bench.take(9).await.len(), 2);
        bench.clock.advance(LEASE);
    }
    bench.put(&["c"]).await;
    let acquisition = bench.acquire(bench.asking(9)).await;
    assert_eq!(bench.names(&acquisition.started), ["c"]);
    let mut retired: Vec<_> = acquisition.retired.iter().collect();
    retired.sort_by_key(|retired| retired.key.clone());
    assert_eq!(retired.len(), 2);
    for (name, retired) in ["a", "b"].into_iter().zip(retired) {
        assert_eq!(
            (&retired.key, &retired.delivery_id),
            (&bench.place(name), &bench.id(name))
        );
        assert_eq!((retired.event.as_str(), retired.attempts), ("push", 3));
        let row = bench.placed(name).await;
        assert_eq!((row.state, row.attempts, row.fence), (State::Dead, 3, 3));
        assert_eq!(row.error_class, Some(ErrorClass::LeaseExpired));
        assert_eq!(row.finished_at, Some(bench.clock.now()));
        assert!(row.has_payload && bench.stored(name).await.is_some());
    }
    // Failed ones, where the limit was lowered: however many they are, those behind them get their turn.
    let names: Vec<String> = (0..7).map(|number| format!("d{number}")).collect();
    bench
        .put(&names.iter().map(String::as_str).collect::<Vec<_>>())
        .await;
    for acquired in bench.take(9).await {
        let failure = Failure::transient("x", Duration::ZERO);
        bench
            .store
            .fail(&acquired.held, &failure)
            .await
            .expect("recorded");
    }
    bench.put(&["e"]).await;
    let few = bench.policy().max_attempts(1);
    let (mut retired, mut started) = (0, Vec::new());
    for _ in 0..9 {
        let acquire = crate::Acquire {
            policy: few,
            ..bench.asking(2)
        };
        let acquisition = bench.acquire(acquire).await;
        assert!(acquisition.started.len() + acquisition.retired.len() <= 2);
        retired += acquisition.retired.len();
        started.extend(acquisition.started);
    }
    assert_eq!((retired, bench.names(&started)), (7, vec!["e".to_owned()]));
}

pub(super) async fn fresh_lane<St: DurableStore>(bench: &Bench<'_, St>) {
    let window = Duration::from_secs(10);
    let lane = |flood| Lane::Fresh { window, flood };
    bench.put(&["old", "tried"]).await;
    for acquired in bench.take(2).await {
        let is_old = bench.names(std::slice::from_ref(&acquired)) == ["old"];
        let failure = Failure::transient("x", Duration::ZERO);
        if is_old {
            bench
                .store
                .release(&acquired.held, Duration::ZERO)
                .await
                .expect("released");
        } else {
            bench
                .store
                .fail(&acquired.held, &failure)
                .await
                .expect("recorded");
        }
    }
    bench.put(&["waited"]).await;
    bench.clock.advance(window);
    let acquire = |limit, flood| bench.acquire(bench.asking(limit).lane(lane(flood)));
    assert!(acquire(9, 9).await.is_empty(), "none is fresh");
    bench.put(&["a", "b", "c"]).await;
    assert!(acquire(9, 2).await.is_empty(), "that is a queue");
    assert_eq!(bench.names(&acquire(2, 3).await.started), ["c", "b"]);
    let later = bench.work("later").delay(Duration::from_secs(5));
    assert_eq!(bench.enqueue(later).await, EnqueueOutcome::Accepted);
    assert_eq!(bench.names(&acquire(9, 3).await.started), ["a"]);
    bench.clock.advance(Duration::from_secs(5) + LEASE);
    assert!(
        acquire(9, 3).await.is_empty(),
        "it has been due for long; leases are not looked for"
    );
    assert_eq!(bench.take(9).await.len(), 7);
}

pub(super) async fn in_order<St: DurableStore>(bench: &Bench<'_, St>) {
    for (name, key) in [
        ("a1", "a"),
        ("b1", "b"),
        ("a2", "a"),
        ("a3", "a"),
        ("b2", "b"),
        ("free", ""),
    ] {
        let work = bench.work(name);
        let work = if key.is_empty() {
            work
        } else {
            work.ordering_key(key)
        };
        assert_eq!(bench.enqueue(work).await, EnqueueOutcome::Accepted);
        bench.clock.advance(Duration::from_micros(1));
    }
    let complete = async |started: &[Acquired], name: &str| {
        let at = bench.names(started).iter().position(|other| other == name);
        let held = &started[at.expect("it was started")].held;
        bench.store.complete(held).await.expect("completed");
    };
    let first = bench.take(9).await;
    assert_eq!(bench.names(&first), ["a1", "b1", "free"]);
    assert!(bench.acquire(bench.asking(9)).await.is_empty());
    complete(&first, "b1").await;
    let second = bench.take(9).await;
    assert_eq!(bench.names(&second), ["b2"]);
    complete(&first, "a1").await;
    let third = bench.take(9).await;
    assert_eq!(bench.names(&third), ["a2"], "one at a time");
    // One whose lease is over is taken over before those behind it.
    bench.clock.advance(LEASE);
    assert!(
        bench
            .acquire(bench.asking(9).expired(false))
            .await
            .is_empty()
    );
    let fourth = bench.take(9).await;
    let names: HashSet<String> = bench.names(&fourth).into_iter().collect();
    assert_eq!(names, ["a2", "b2", "free"].map(str::to_owned).into());
    complete(&fourth, "a2").await;
    assert_eq!(bench.names(&bench.take(9).await), ["a3"]);
    // The key of another source is another key.
    let source = Source::new(format!("{}x", bench.clause)).expect("a name");
    let key = ClaimKey::delivery(source.clone(), &bench.id("a4"));
    let event = EventName::new("push").expect("a name");
    let work = Enqueue::work(key, bench.id("a4"), event, StoredRequest::new("")).ordering_key("a");
    assert_eq!(bench.enqueue(work).await, EnqueueOutcome::Accepted);
    let elsewhere = crate::Acquire {
        source,
        ..bench.asking(9)
    };
    assert_eq!(bench.names(&bench.acquire(elsewhere).await.started), ["a4"]);
}

pub(super) async fn failing_head<St: DurableStore>(bench: &Bench<'_, St>) {
    for name in ["1", "2", "3"] {
        let work = bench.work(name).ordering_key("k");
        assert_eq!(bench.enqueue(work).await, EnqueueOutcome::Accepted);
        bench.clock.advance(Duration::from_micros(1));
    }
    let delay = Duration::from_secs(5);
    let failure = Failure::transient("x", delay);
    let head = bench.take_one().await;
    bench
        .store
        .fail(&head.held, &failure)
        .await
        .expect("recorded");
    let strict = || bench.acquire(bench.asking(9).order(Order::Strict));
    assert!(strict().await.is_empty(), "those behind it wait");
    let second = bench.take_one().await;
    assert_eq!(
        bench.names(std::slice::from_ref(&second)),
        ["2"],
        "it steps aside"
    );
    bench.store.complete(&second.held).await.expect("completed");
    // Once it is due, it comes first again.
    bench.clock.advance(delay);
    let head = bench.take_one().await;
    assert_eq!(bench.names(std::slice::from_ref(&head)), ["1"]);
    let dead = Failure::permanent("x");
    bench.store.fail(&head.held, &dead).await.expect("recorded");
    assert_eq!(
        bench.names(&strict().await.started),
        ["3"],
        "the dead stand in nobody's way"
    );

    // Two whose leases are over do not stand in each other's way, nor does one that nobody can take over.
    for name in ["x", "y", "z"] {
        let work = bench.work(name).ordering_key("l");
        assert_eq!(bench.enqueue(work).await, EnqueueOutcome::Accepted);
        bench.clock.advance(Duration::from_micros(1));
    }
    for name in ["x", "y"] {
        let held = bench
            .store
            .claim(bench.inline(name))
            .await
            .expect("decided")
            .won();
        assert!(held.is_some(), "an inline claim asks for no order");
    }
    bench.clock.advance(LEASE);
    let acquire = async || {
        let started = bench.acquire(bench.asking(9)).await.started;
        let of_l = |acquired: &Acquired| bench.names(std::slice::from_ref(acquired))[0] != "3";
        started.into_iter().filter(of_l).collect::<Vec<_>>()
    };
    for name in ["x", "y", "z"] {
        let started = acquire().await;
        assert_eq!(bench.names(&started), [name]);
        bench
            .store
            .complete(&started[0].held)
            .await
            .expect("completed");
    }
}

pub(super) async fn race<St: DurableStore>(bench: &Bench<'_, St>) {
    let names: Vec<String> = (0..60).map(|number| format!("k{number}")).collect();
    let mut senders = Vec::new();
    for (at, name) in names.iter().enumerate() {
        // Every third has an ordering key, four to each.
        let work = bench.work(name);
        let work = if at % 3 == 0 {
            work.ordering_key(format!("o{}", at % 5))
        } else {
            work
        };
        let store = bench.store.clone();
        senders.push(tokio::spawn(async move { store.enqueue(work).await }));
    }
    for sender in senders {
        let outcome = sender.await.expect("no panic").expect("decided");
        assert_eq!(outcome, EnqueueOutcome::Accepted);
    }
    let mut workers = Vec::new();
    for _ in 0..8 {
        let (store, acquire) = (bench.store.clone(), bench.asking(7));
        workers.push(tokio::spawn(async move {
            let mut taken = Vec::new();
            let mut idle = 0;
            while idle < 50 {
                let acquisition = store.acquire(acquire.clone()).await.expect("decided");
                assert_eq!(acquisition.retired, []);
                idle = if acquisition.started.is_empty() {
                    idle + 1
                } else {
                    0
                };
                for acquired in acquisition.started {
                    store
                        .complete(&acquired.held)
                        .await
                        .expect("its holder completes it");
                    taken.push((acquired.held.key.clone(), acquired.held.fence));
                }
                tokio::task::yield_now().await;
            }
            taken
        }));
    }
    let mut taken = Vec::new();
    for worker in workers {
        taken.extend(worker.await.expect("no panic"));
    }
    assert_eq!(taken.len(), names.len());
    let keys: HashSet<_> = taken.iter().map(|(key, _)| key).collect();
    assert_eq!(keys.len(), names.len(), "each once");
    assert!(taken.iter().all(|(_, fence)| *fence == 1));
}

pub(super) async fn abandoned<St: DurableStore>(bench: &Bench<'_, St>) {
    bench.put(&["a", "b"]).await;
    begin_and_drop(bench.store.acquire(bench.asking(1))).await;
    // Gone after it was taken, and before the caller looked.
    let mut unread = Box::pin(bench.store.acquire(bench.asking(9)));
    let first = std::future::poll_fn(|context| Poll::Ready(unread.as_mut().poll(context))).await;
    let is_told_at_once = first.is_ready();
    let mut looks = 0;
    while !is_told_at_once && bench.placed("b").await.state == State::Received {
        looks += 1;
        assert!(looks < 1000, "it is never taken");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    drop(unread);
    let mut free = HashSet::new();
    let mut tries = 0;
    while free.len() < 2 {
        for acquired in bench.take(9).await {
            assert!(acquired.held.fence <= 3, "fence {}", acquired.held.fence);
            free.insert(acquired.held.key.clone());
        }
        tries += 1;
        // A store that is done when first polled has told its caller; a lease ends such a claim.
        if tries == 100 && is_told_at_once {
            bench.clock.advance(LEASE);
        }
        assert!(tries < 200, "it is stuck");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
