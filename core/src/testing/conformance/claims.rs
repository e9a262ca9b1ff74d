use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use super::{Bench, LEASE, assert_lost, begin_and_drop};
use crate::claim::{Claim, ClaimKind, ClaimOutcome, Failure, RetryGate};
use crate::delivery::{DeliveryId, EventName};
use crate::key::{BusinessKey, ClaimKey, Source};
use crate::record::{ErrorClass, State};
use crate::signature::Fingerprint;
use crate::store::DeliveryStore;
use crate::time::Clock;

pub(super) async fn new_key<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let now = bench.clock.now();
    let claim = bench.ask("a").action(Some("created"));
    let held = bench
        .store
        .claim(claim)
        .await
        .expect("decided")
        .won()
        .expect("won");
    assert_eq!(
        (held.attempt, held.fence, held.kind),
        (1, 1, ClaimKind::Fresh)
    );
    let row = bench.row("a").await;
    assert_eq!(
        (row.state, row.attempts, row.fence),
        (State::Processing, 1, 1)
    );
    assert_eq!(
        (row.event.as_str(), row.action.as_deref()),
        ("issue_comment", Some("created"))
    );
    assert_eq!(row.token, held.token);
    assert_eq!((row.received_at, row.claimed_at), (now, Some(now)));
    assert_eq!(row.lease_until, Some(now + LEASE));
    assert_eq!(
        (row.retry_at, row.finished_at, row.error_class),
        (None, None, None)
    );
    assert_eq!(
        bench
            .store
            .inspect(&bench.key("never-claimed"))
            .await
            .expect("read"),
        None
    );
}

pub(super) async fn leased<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let held = bench.win("a").await;
    let before = bench.row("a").await;
    bench.clock.advance(Duration::from_secs(10));
    let outcome = bench.claim("a").await;
    let ClaimOutcome::InProgress { lease_left } = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!(lease_left, LEASE - Duration::from_secs(10));
    assert_eq!(bench.row("a").await, before);
    bench.store.complete(&held).await.expect("completed");
}

pub(super) async fn resent<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let claim = bench.ask("a");
    let first = bench
        .store
        .claim(claim.clone())
        .await
        .expect("decided")
        .won()
        .expect("won");
    let before = bench.row("a").await;
    let again = bench
        .store
        .claim(claim)
        .await
        .expect("decided")
        .won()
        .expect("won again");
    assert_eq!(
        (first.token, first.fence, first.attempt),
        (again.token, again.fence, again.attempt)
    );
    assert_eq!(bench.row("a").await, before);
    // Nor does its own lease that has run out meanwhile make it another claim.
    let claim = bench.ask("b");
    let first = bench
        .store
        .claim(claim.clone())
        .await
        .expect("decided")
        .won()
        .expect("won");
    bench.clock.advance(LEASE);
    let again = bench
        .store
        .claim(claim)
        .await
        .expect("decided")
        .won()
        .expect("won again");
    assert_eq!((first.token, first.fence), (again.token, again.fence));
}

pub(super) async fn completed<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let held = bench.win("a").await;
    bench.clock.advance(Duration::from_secs(1));
    bench.store.complete(&held).await.expect("completed");
    let row = bench.row("a").await;
    assert_eq!(
        (row.state, row.finished_at),
        (State::Completed, Some(bench.clock.now()))
    );
    assert_eq!((row.lease_until, row.retry_at), (None, None));
    bench.clock.advance(Duration::from_secs(71 * 3600));
    assert!(matches!(bench.claim("a").await, ClaimOutcome::Completed));
    assert_eq!(bench.row("a").await, row, "a duplicate writes nothing");
    let row_then = bench
        .store
        .claim_many(vec![bench.ask("a"), bench.ask("a")])
        .await
        .expect("decided");
    assert!(
        row_then
            .iter()
            .all(|outcome| matches!(outcome, ClaimOutcome::Completed)),
        "{row_then:?}"
    );
}

pub(super) async fn takeover<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let old = bench.win("a").await;
    let first = bench.row("a").await;
    bench.clock.advance(LEASE - Duration::from_micros(1));
    assert!(matches!(
        bench.claim("a").await,
        ClaimOutcome::InProgress { .. }
    ));
    bench.clock.advance(Duration::from_micros(1));
    let new = bench.win("a").await;
    assert_eq!(
        (new.attempt, new.fence, new.kind),
        (2, 2, ClaimKind::Takeover)
    );
    assert!(new.token != old.token);
    let row = bench.row("a").await;
    assert_eq!(row.error_class, Some(ErrorClass::LeaseExpired));
    assert_eq!(
        (row.received_at, &row.delivery_id, &row.event, &row.action),
        (
            first.received_at,
            &first.delivery_id,
            &first.event,
            &first.action
        ),
        "what names it never changes"
    );
    assert_lost(bench.store.complete(&old).await);
    assert_lost(bench.store.fail(&old, &Failure::permanent("late")).await);
    assert_lost(bench.store.release(&old, Duration::ZERO).await);
    assert_lost(bench.store.renew(&old).await);
    assert_eq!(bench.row("a").await, row);
    bench.store.complete(&new).await.expect("completed");
    assert_lost(bench.store.fail(&old, &Failure::permanent("later")).await);
    assert_lost(bench.store.complete(&old).await);
}

pub(super) async fn gate<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let delay = Duration::from_secs(60);
    for (name, gate) in [("a", RetryGate::Open), ("b", RetryGate::WhenDue)] {
        let held = bench.win(name).await;
        bench
            .store
            .fail(&held, &Failure::transient("later", delay))
            .await
            .expect("recorded");
        let retry_at = bench.clock.now() + delay;
        let row = bench.row(name).await;
        assert_eq!((row.state, row.retry_at), (State::Failed, Some(retry_at)));
        assert_eq!(
            (row.error_class, row.last_error.as_deref()),
            (Some(ErrorClass::Transient), Some("later"))
        );
        let early = bench
            .store
            .claim(bench.ask(name).gate(gate))
            .await
            .expect("decided");
        match gate {
            RetryGate::Open => {
                let held = early.won().expect("won through the open gate");
                assert_eq!(
                    (held.attempt, held.fence, held.kind),
                    (2, 2, ClaimKind::Retry)
                );
            }
            RetryGate::WhenDue => {
                assert!(
                    matches!(early, ClaimOutcome::NotDue { retry_at: at } if at == retry_at),
                    "{early:?}"
                );
                bench.clock.advance(delay);
                let due = bench
                    .store
                    .claim(bench.ask(name).gate(gate))
                    .await
                    .expect("decided");
                assert_eq!(due.won().expect("won when due").attempt, 2);
                assert_eq!(bench.row(name).await.retry_at, None);
            }
        }
    }
}

pub(super) async fn dead<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let held = bench.win("a").await;
    bench
        .store
        .fail(&held, &Failure::permanent("never"))
        .await
        .expect("recorded");
    let row = bench.row("a").await;
    assert_eq!(
        (row.state, row.error_class),
        (State::Dead, Some(ErrorClass::Permanent))
    );
    assert_eq!(
        (row.finished_at, row.retry_at),
        (Some(bench.clock.now()), None)
    );
    assert!(matches!(bench.claim("a").await, ClaimOutcome::Dead));
    assert_eq!(bench.row("a").await, row);
}

pub(super) async fn crash_loop<St: DeliveryStore>(bench: &Bench<'_, St>) {
    for attempt in 1..=3 {
        assert_eq!(bench.win("a").await.attempt, attempt);
        bench.clock.advance(LEASE);
    }
    assert!(matches!(bench.claim("a").await, ClaimOutcome::Dead));
    let row = bench.row("a").await;
    assert_eq!((row.state, row.attempts, row.fence), (State::Dead, 3, 3));
    assert_eq!(row.error_class, Some(ErrorClass::LeaseExpired));
    assert!(row.last_error.is_some() && row.finished_at.is_some());
}

pub(super) async fn other_body<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let one = Some(Fingerprint::from_bytes(*b"key1the one body"));
    let other = Some(Fingerprint::from_bytes(*b"key1another body"));
    let other_secret = Some(Fingerprint::from_bytes(*b"key2another body"));
    let held = bench
        .store
        .claim(bench.ask("a").fingerprint(one))
        .await
        .expect("decided")
        .won()
        .expect("won");
    let states = [
        State::Processing,
        State::Failed,
        State::Processing,
        State::Completed,
    ];
    for (step, state) in states.into_iter().enumerate() {
        let row = bench.row("a").await;
        assert_eq!(row.state, state);
        let outcome = bench
            .store
            .claim(bench.ask("a").fingerprint(other))
            .await
            .expect("decided");
        assert!(
            matches!(outcome, ClaimOutcome::BodyMismatch { state: found } if found == state),
            "{state}: {outcome:?}"
        );
        assert_eq!(bench.row("a").await, row);
        match step {
            0 => drop(
                bench
                    .store
                    .fail(&held, &Failure::transient("x", Duration::ZERO))
                    .await
                    .expect("failed"),
            ),
            1 => {
                let claim = bench.ask("a").fingerprint(other_secret);
                let held = bench.store.claim(claim).await.expect("decided");
                let held = held
                    .won()
                    .expect("bodies under different secrets cannot be told apart");
                assert_eq!(
                    bench.row("a").await.fingerprint,
                    one,
                    "the stored fingerprint stays"
                );
                bench.clock.advance(LEASE);
                assert!(matches!(
                    bench
                        .store
                        .claim(bench.ask("a").fingerprint(other))
                        .await
                        .expect("decided"),
                    ClaimOutcome::BodyMismatch {
                        state: State::Processing
                    }
                ));
                bench.store.renew(&held).await.expect("nobody took it over");
            }
            2 => {
                bench.clock.advance(LEASE);
                let held = bench
                    .store
                    .claim(bench.ask("a").fingerprint(one))
                    .await
                    .expect("decided");
                bench
                    .store
                    .complete(&held.won().expect("the right body takes over"))
                    .await
                    .expect("completed");
            }
            _ => {}
        }
    }
    // Two events of one matter have two bodies.
    let key = ClaimKey::business(Source::default(), &BusinessKey::new().text(bench.clause));
    let event = EventName::new("push").expect("a name");
    let ask = |print| {
        Claim::bare(key.clone(), bench.id("b"), event.clone(), bench.policy()).fingerprint(print)
    };
    let held = bench
        .store
        .claim(ask(one))
        .await
        .expect("decided")
        .won()
        .expect("won");
    assert!(matches!(
        bench.store.claim(ask(other)).await.expect("decided"),
        ClaimOutcome::InProgress { .. }
    ));
    bench.store.complete(&held).await.expect("completed");
    assert!(matches!(
        bench.store.claim(ask(other)).await.expect("decided"),
        ClaimOutcome::Completed
    ));
}

pub(super) async fn apart<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let event = EventName::new("push").expect("a name");
    let odd = "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~";
    let ids = ["a", "A", "a'", "a%", odd].map(|name| bench.id(name));
    let long = DeliveryId::new("x".repeat(DeliveryId::MAX_LEN)).expect("visible ASCII");
    for source in ["github", "github/hook/7", "GitHub"] {
        for id in ids.iter().chain([&long]) {
            let key = ClaimKey::delivery(Source::new(source).expect("a name"), id);
            let claim = Claim::bare(key, id.clone(), event.clone(), bench.policy());
            assert!(
                bench
                    .store
                    .claim(claim)
                    .await
                    .expect("decided")
                    .won()
                    .is_some(),
                "{source} {id}"
            );
        }
    }
    for (part, text) in [
        ("long", "ü".repeat(120)),
        ("odd", "\u{1f4a5} a\0b \u{2028}".to_owned()),
    ] {
        let key = ClaimKey::business(
            Source::default(),
            &BusinessKey::new().text(bench.clause).text(text),
        );
        let held = bench.store.claim(Claim::bare(
            key.clone(),
            bench.id(part),
            event.clone(),
            bench.policy(),
        ));
        assert!(held.await.expect("decided").won().is_some(), "{part}");
        assert!(
            bench.store.inspect(&key).await.expect("read").is_some(),
            "{part}"
        );
    }
}

pub(super) async fn together<St: DeliveryStore>(bench: &Bench<'_, St>) {
    assert!(
        bench
            .store
            .claim_many(Vec::new())
            .await
            .expect("decided")
            .is_empty()
    );
    let done = bench.win("done").await;
    bench.store.complete(&done).await.expect("completed");
    let gone = bench.win("dead").await;
    bench
        .store
        .fail(&gone, &Failure::permanent("never"))
        .await
        .expect("recorded");
    let names = ["z", "done", "b", "z", "a", "dead", "b"];
    let outcomes = bench
        .store
        .claim_many(names.iter().map(|name| bench.ask(name)).collect())
        .await
        .expect("decided");
    let view: Vec<&str> = outcomes
        .iter()
        .map(|outcome| match outcome {
            ClaimOutcome::Won(_) => "won",
            ClaimOutcome::Completed => "completed",
            ClaimOutcome::InProgress { .. } => "in progress",
            ClaimOutcome::Dead => "dead",
            ClaimOutcome::NotDue { .. } | ClaimOutcome::BodyMismatch { .. } => "other",
        })
        .collect();
    assert_eq!(
        view,
        [
            "won",
            "completed",
            "won",
            "in progress",
            "won",
            "dead",
            "in progress"
        ]
    );
    for (name, outcome) in names.iter().zip(outcomes) {
        if let ClaimOutcome::Won(held) = outcome {
            assert_eq!(held.key, bench.key(name));
            bench.store.complete(&held).await.expect("completed");
        }
    }
}

pub(super) async fn race<St: DeliveryStore>(bench: &Bench<'_, St>) {
    // Fresh keys, and keys whose lease is over.
    for round in ["fresh", "over"] {
        let mut claimers = Vec::new();
        for racer in 0..64 {
            let (store, claim) = (bench.store.clone(), bench.ask(&format!("k{}", racer % 4)));
            claimers.push(tokio::spawn(async move { store.claim(claim).await }));
        }
        let mut won = [0; 4];
        for (racer, claimer) in claimers.into_iter().enumerate() {
            match claimer.await.expect("no panic").expect("decided") {
                ClaimOutcome::Won(_) => won[racer % 4] += 1,
                ClaimOutcome::InProgress { .. } => {}
                other => panic!("{round}: {other:?}"),
            }
        }
        assert_eq!(won, [1; 4], "{round}");
        bench.clock.advance(LEASE);
    }
    assert_eq!(bench.row("k0").await.fence, 2);
}

pub(super) async fn abandoned<St: DeliveryStore>(bench: &Bench<'_, St>) {
    begin_and_drop(bench.store.claim(bench.ask("a"))).await;
    begin_and_drop(bench.store.claim_many(vec![bench.ask("b"), bench.ask("c")])).await;
    // Gone after the claim was decided, and before the caller looked.
    let mut unread = Box::pin(bench.store.claim(bench.ask("d")));
    let first = std::future::poll_fn(|context| Poll::Ready(unread.as_mut().poll(context))).await;
    let is_told_at_once = first.is_ready();
    let mut looks = 0;
    while !is_told_at_once
        && bench
            .store
            .inspect(&bench.key("d"))
            .await
            .expect("read")
            .is_none()
    {
        looks += 1;
        assert!(looks < 1000, "the claim is never decided");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    // The answer follows the row within moments.
    tokio::time::sleep(Duration::from_millis(50)).await;
    drop(unread);
    for name in ["a", "b", "c", "d"] {
        // A store whose claims are done when first polled has told its caller; a lease ends such a claim.
        let mut tries = 0;
        loop {
            if let Some(held) = bench.claim(name).await.won() {
                assert!(held.fence <= 2, "fence {}", held.fence);
                break;
            }
            tries += 1;
            if tries == 100 && is_told_at_once {
                bench.clock.advance(LEASE);
            }
            assert!(tries < 200, "{name} is stuck");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

pub(super) async fn clock_set_back<St: DeliveryStore>(bench: &Bench<'_, St>) {
    bench.win("a").await;
    let renewed = bench.win("b").await;
    bench.clock.set_back(Duration::from_secs(3600));
    // An owner who is alive says so at its next renewal.
    bench.store.renew(&renewed).await.expect("renewed");
    assert!(matches!(
        bench.claim("b").await,
        ClaimOutcome::InProgress { .. }
    ));
    bench.clock.advance(LEASE);
    for name in ["a", "b"] {
        assert_eq!(bench.win(name).await.kind, ClaimKind::Takeover, "{name}");
    }
    bench.clock.advance(Duration::from_secs(3600));
}
