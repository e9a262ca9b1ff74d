use std::time::Duration;

use super::{Bench, LEASE, assert_lost};
use crate::claim::{ClaimKind, ClaimOutcome, Failed, Failure, Renewal};
use crate::record::{ClaimToken, ErrorClass, State};
use crate::store::DeliveryStore;
use crate::time::Clock;

pub(super) async fn complete_twice<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let held = bench.win("a").await;
    bench.store.complete(&held).await.expect("completed");
    let row = bench.row("a").await;
    bench.clock.advance(Duration::from_secs(1));
    bench.store.complete(&held).await.expect("completed before");
    assert_eq!(bench.row("a").await, row);
    assert_lost(bench.store.fail(&held, &Failure::permanent("late")).await);
    assert_lost(bench.store.release(&held, Duration::ZERO).await);
    assert_lost(bench.store.renew(&held).await);
    assert_eq!(bench.row("a").await, row);
}

pub(super) async fn late_owner<St: DeliveryStore>(bench: &Bench<'_, St>) {
    for name in ["complete", "fail", "renew"] {
        let held = bench.win(name).await;
        bench.clock.advance(LEASE * 3);
        match name {
            "complete" => bench.store.complete(&held).await.expect("completed"),
            "fail" => drop(
                bench
                    .store
                    .fail(&held, &Failure::permanent("late"))
                    .await
                    .expect("recorded"),
            ),
            _ => {
                bench.store.renew(&held).await.expect("renewed");
                assert!(matches!(
                    bench.claim(name).await,
                    ClaimOutcome::InProgress { .. }
                ));
            }
        }
    }
}

pub(super) async fn fail_twice<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let held = bench.win("a").await;
    let failure = Failure::transient("caf\u{e9} \0 closed", Duration::from_secs(5));
    let at = bench.clock.now() + Duration::from_secs(5);
    assert_eq!(
        bench.store.fail(&held, &failure).await.expect("recorded"),
        Failed::Retry { at }
    );
    let row = bench.row("a").await;
    assert_eq!((row.state, row.attempts, row.fence), (State::Failed, 1, 1));
    assert_eq!(row.last_error.as_deref(), Some("caf\u{e9} \u{fffd} closed"));
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(
        bench
            .store
            .fail(&held, &failure)
            .await
            .expect("recorded before"),
        Failed::Retry { at }
    );
    assert_lost(bench.store.complete(&held).await);
    assert_lost(bench.store.release(&held, Duration::ZERO).await);
    assert_lost(bench.store.renew(&held).await);
    assert_eq!(bench.row("a").await, row);
}

pub(super) async fn last_attempt<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let failure = Failure::panic("again", Duration::ZERO);
    for attempt in 1..=3 {
        let held = bench.win("a").await;
        assert_eq!(held.attempt, attempt);
        let failed = bench.store.fail(&held, &failure).await.expect("recorded");
        assert_eq!(
            failed == Failed::Dead,
            attempt == 3,
            "attempt {attempt}: {failed:?}"
        );
        if attempt == 3 {
            assert_eq!(
                bench
                    .store
                    .fail(&held, &failure)
                    .await
                    .expect("recorded before"),
                Failed::Dead
            );
        }
    }
    let row = bench.row("a").await;
    assert_eq!(
        (row.state, row.attempts, row.error_class),
        (State::Dead, 3, Some(ErrorClass::Panic))
    );
}

pub(super) async fn release<St: DeliveryStore>(bench: &Bench<'_, St>) {
    for round in 1..=5 {
        let held = bench.win("a").await;
        assert_eq!(
            (held.attempt, held.fence),
            (1, round),
            "handed back as often as one likes"
        );
        if round > 1 {
            assert_eq!(held.kind, ClaimKind::Retry);
        }
        bench
            .store
            .release(&held, Duration::ZERO)
            .await
            .expect("released");
        bench
            .store
            .release(&held, Duration::ZERO)
            .await
            .expect("released before");
        assert_lost(bench.store.complete(&held).await);
        let row = bench.row("a").await;
        assert_eq!(
            (row.state, row.attempts, row.fence),
            (State::Failed, 0, round)
        );
        assert_eq!(row.error_class, Some(ErrorClass::Released));
    }
}

pub(super) async fn renew<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let claim = bench.ask("a");
    let policy = bench.policy().max_hold(LEASE * 2);
    let claim = crate::Claim { policy, ..claim };
    let held = bench
        .store
        .claim(claim)
        .await
        .expect("decided")
        .won()
        .expect("won");
    bench.clock.advance(Duration::from_secs(20));
    let renewal = bench.store.renew(&held).await.expect("renewed");
    assert_eq!(renewal, Renewal::Renewed { lease_left: LEASE });
    bench.clock.advance(Duration::from_secs(25));
    assert!(matches!(
        bench.claim("a").await,
        ClaimOutcome::InProgress { .. }
    ));
    let renewal = bench.store.renew(&held).await.expect("renewed");
    assert_eq!(
        renewal,
        Renewal::Renewed {
            lease_left: Duration::from_secs(15)
        },
        "60 s in all"
    );
    let before = bench.row("a").await;
    assert_eq!((before.attempts, before.fence), (1, 1));
    bench.clock.advance(Duration::from_secs(15));
    assert_eq!(bench.win("a").await.kind, ClaimKind::Takeover);
    assert_lost(bench.store.renew(&held).await);
}

pub(super) async fn wrong_token<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let held = bench.win("a").await;
    let row = bench.row("a").await;
    let mut stranger = held.clone();
    for token in [ClaimToken::random(), ClaimToken::from_bytes([0; 16])] {
        stranger.token = token;
        assert_lost(bench.store.complete(&stranger).await);
        assert_lost(bench.store.fail(&stranger, &Failure::permanent("no")).await);
        assert_lost(bench.store.release(&stranger, Duration::ZERO).await);
        assert_lost(bench.store.renew(&stranger).await);
    }
    assert_eq!(bench.row("a").await, row);
    stranger.key = bench.key("never-claimed");
    assert_lost(bench.store.complete(&stranger).await);
    assert_eq!(
        bench.store.inspect(&stranger.key).await.expect("read"),
        None
    );
}
