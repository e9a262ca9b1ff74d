//! Leases: who holds a delivery, for how long, and what becomes of it when somebody goes away.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use sqlx::{Connection, Executor};
use tokio::sync::Notify;
use tower::{Layer, ServiceExt};

use hookclaim::{
    ClaimOutcome, ClaimToken, DeliveryStore, Failure, Held, LeasePolicy, Renewal, State,
    StoreErrorKind, TransactionalStore,
};
use hookclaim_tests::booking::BookingStore;
use hookclaim_tests::http::{RawConnection, guid};
use hookclaim_tests::process::Claimant;
use hookclaim_tests::{DEADLINE, eventually};
use tower_hookclaim::Drain;

use crate::stores::{Bench, claim, on_stores, record};
use crate::support::{App, Handler, Stack, delivery, layer, reply};

on_stores! { real
    a_handler_of_three_leases_runs_once: memory sqlite postgres;
    a_paused_owner_settles_and_books_nothing_after_a_takeover: sqlite postgres;
    a_sender_that_hangs_up_does_not_stop_the_run: memory sqlite postgres;
    a_slow_run_is_accepted_and_its_end_recorded: memory sqlite postgres;
    a_request_that_is_dropped_at_any_point_leaves_nothing_stuck: memory sqlite postgres;
}

on_stores! {
    no_write_counts_under_a_token_that_does_not_hold: memory sqlite postgres;
    a_clock_that_jumps_back_leaves_nothing_stuck: memory sqlite postgres;
}

// E1
async fn a_handler_of_three_leases_runs_once<St: DeliveryStore>(bench: Bench<St>) {
    let lease = Duration::from_secs(1);
    let begun = Arc::new(Notify::new());
    let handler = Handler::new({
        let begun = Arc::clone(&begun);
        move |_, _| {
            begun.notify_one();
            async move {
                tokio::time::sleep(3 * lease).await;
                reply(200, "done")
            }
        }
    });
    let layer = layer(&bench.store).lease(LeasePolicy::default().lease(lease));
    let app = App::start(Stack::Http1, layer, bench.store.clone(), handler).await;
    let id = guid();
    let sent = delivery("push", &id, "{}");
    let first = tokio::spawn({
        let (client, url, sent) = (app.client.clone(), app.webhook(), sent.clone());
        async move { client.deliver(&url, &sent).await }
    });
    begun.notified().await;
    let mut others = Vec::new();
    while !first.is_finished() {
        others.push(app.deliver(&sent).await);
        tokio::time::sleep(lease / 20).await;
    }
    assert_eq!(first.await.unwrap().is(), (200, "completed"));
    // The last of them may have come when it was done.
    for answer in &others[..others.len() - 1] {
        assert_eq!(answer.is(), (202, "in-progress"));
    }
    assert_eq!(app.runs().len(), 1);
    let record = record(&app.store, &id).await;
    assert_eq!((record.attempts, record.fence), (1, 1));
}

// E1
async fn a_paused_owner_settles_and_books_nothing_after_a_takeover<St: BookingStore>(
    bench: Bench<St>,
) {
    bench.store.make_bookings().await;
    let lease = Duration::from_secs(1);
    let mut owner = Claimant::start(&bench.url, lease);
    let mut heir = Claimant::start(&bench.url, lease);
    assert_eq!(owner.ask("claim k"), "won 1 1 fresh");
    owner.process().sigstop();
    let begun = Instant::now();
    let won = loop {
        match heir.ask("claim k") {
            answer if answer == "in-progress" => {}
            answer => break answer,
        }
        assert!(begun.elapsed() < DEADLINE, "nobody takes over");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    assert_eq!(won, "won 2 2 takeover");

    owner.process().sigcont();
    let assert_lost = |owner: &mut Claimant, when: &str| {
        for order in ["renew k", "book k", "complete k", "fail k", "release k"] {
            assert_eq!(owner.ask(order), "LeaseLost", "{order} {when}");
        }
    };
    assert_lost(&mut owner, "while the heir holds it");
    assert_eq!(bench.store.booked("k").await, 0);
    assert_eq!(heir.ask("book k"), "ok");
    assert_lost(&mut owner, "once it is completed");
    assert_eq!(bench.store.booked("k").await, 1, "the heir's and no other");
    let record = record(&bench.store, "k").await;
    assert_eq!((record.state, record.attempts), (State::Completed, 2));
}

// E2
async fn no_write_counts_under_a_token_that_does_not_hold<St: DeliveryStore>(bench: Bench<St>) {
    let store = &bench.store;
    let policy = LeasePolicy::default();
    let old = store
        .claim(claim("k", policy))
        .await
        .unwrap()
        .won()
        .unwrap();
    bench.clock.advance(2 * policy.lease_length());
    let held = store
        .claim(claim("k", policy))
        .await
        .unwrap()
        .won()
        .expect("a takeover");
    let with = |token: ClaimToken| {
        let mut forged = held.clone();
        forged.token = token;
        forged
    };
    let wrong = [
        ("old", old),
        ("wrong", with(ClaimToken::random())),
        ("empty", with(ClaimToken::from_bytes([0; 16]))),
    ];
    let transient = Failure::transient("no", Duration::ZERO);
    let permanent = Failure::permanent("never");
    // In every state that the delivery comes to.
    let assert_refused = async |state: State| {
        let before = record(store, "k").await;
        assert_eq!(before.state, state);
        for (case, held) in &wrong {
            for (write, result) in writes(store, held, &transient, &permanent).await {
                assert_eq!(
                    result.map_err(|error| error.kind()),
                    Err(StoreErrorKind::LeaseLost),
                    "{write} with a token that is {case}, while {state}"
                );
            }
        }
        assert_eq!(record(store, "k").await, before);
    };
    assert_refused(State::Processing).await;
    store.fail(&held, &transient).await.unwrap();
    assert_refused(State::Failed).await;
    let held = store
        .claim(claim("k", policy))
        .await
        .unwrap()
        .won()
        .expect("a retry");
    assert_refused(State::Processing).await;
    store.complete(&held).await.unwrap();
    assert_refused(State::Completed).await;
}

async fn writes(
    store: &impl DeliveryStore,
    held: &Held,
    transient: &Failure,
    permanent: &Failure,
) -> Vec<(&'static str, Result<(), hookclaim::StoreError>)> {
    vec![
        ("complete", store.complete(held).await),
        ("fail", store.fail(held, transient).await.map(drop)),
        ("fail for good", store.fail(held, permanent).await.map(drop)),
        ("renew", store.renew(held).await.map(drop)),
        ("release", store.release(held, Duration::ZERO).await),
    ]
}

// E3
async fn a_clock_that_jumps_back_leaves_nothing_stuck<St: DeliveryStore>(bench: Bench<St>) {
    let (store, policy) = (&bench.store, LeasePolicy::default());
    let hour = Duration::from_secs(3600);
    let _lost = store
        .claim(claim("crashed", policy))
        .await
        .unwrap()
        .won()
        .unwrap();
    let alive = store
        .claim(claim("alive", policy))
        .await
        .unwrap()
        .won()
        .unwrap();
    let failed = store
        .claim(claim("failed", policy))
        .await
        .unwrap()
        .won()
        .unwrap();
    store
        .fail(&failed, &Failure::transient("no", Duration::ZERO))
        .await
        .unwrap();
    bench.clock.set_back(hour);
    // An owner who is alive renews before anybody comes.
    store.renew(&alive).await.unwrap();
    let outcome = store.claim(claim("alive", policy)).await.unwrap();
    assert!(
        matches!(outcome, ClaimOutcome::InProgress { .. }),
        "{outcome:?}"
    );
    store.complete(&alive).await.unwrap();
    for name in ["crashed", "failed", "new"] {
        let outcome = store.claim(claim(name, policy)).await.unwrap();
        let held = outcome.won().unwrap_or_else(|| panic!("{name} is stuck"));
        store.complete(&held).await.unwrap();
    }
}

// E1: only the handler's own transaction is a reason not to renew; waiting for another process is none.
#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_that_waits_for_another_process_is_not_taken_for_busy() {
    let bench = crate::stores::real::sqlite().await;
    let held = bench
        .store
        .claim(claim("k", LeasePolicy::default()))
        .await
        .unwrap();
    let held = held.won().unwrap();
    let options: sqlx::sqlite::SqliteConnectOptions = bench.url.parse().unwrap();
    let mut other = sqlx::SqliteConnection::connect_with(&options)
        .await
        .unwrap();
    other.execute("begin immediate").await.unwrap();
    let renewal = tokio::spawn({
        let (store, held) = (bench.store.clone(), held.clone());
        async move { store.renew(&held).await }
    });
    // Long enough to be taken for somebody's transaction, if it ever is.
    tokio::time::sleep(Duration::from_millis(500)).await;
    other.execute("rollback").await.unwrap();
    let renewal = renewal.await.unwrap().unwrap();
    assert!(matches!(renewal, Renewal::Renewed { .. }), "{renewal:?}");

    // The handler's own is.
    let tx = bench.store.begin().await.unwrap();
    assert_eq!(bench.store.renew(&held).await.unwrap(), Renewal::Busy);
    bench.store.rollback(tx).await;
    // The connection is handed back in the background.
    eventually("it is renewed again", || async {
        let renewal = bench.store.renew(&held).await.unwrap();
        matches!(renewal, Renewal::Renewed { .. }).then_some(())
    })
    .await;
}

// E3: leases are judged by the database alone, so that a replica's own clock cannot matter.
#[tokio::test(flavor = "multi_thread")]
async fn postgres_tells_the_time_of_leases_by_itself() {
    let bench = crate::stores::real::postgres().await;
    let now = async || -> i64 {
        sqlx::query_scalar("select (extract(epoch from clock_timestamp()) * 1000000)::bigint")
            .fetch_one(bench.store.pool())
            .await
            .unwrap()
    };
    let policy = LeasePolicy::default();
    let before = now().await;
    let held = bench
        .store
        .claim(claim("k", policy))
        .await
        .unwrap()
        .won()
        .unwrap();
    let record = record(&bench.store, "k").await;
    let after = now().await;
    let claimed = record.claimed_at.unwrap().as_micros();
    assert!((before..=after).contains(&claimed));
    let lease = record.lease_until.unwrap().as_micros() - claimed;
    assert_eq!(
        lease,
        i64::try_from(policy.lease_length().as_micros()).unwrap()
    );
    bench.store.complete(&held).await.unwrap();
}

// E7
async fn a_sender_that_hangs_up_does_not_stop_the_run<St: DeliveryStore>(bench: Bench<St>) {
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = Handler::new({
        let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
        move |_, _| {
            let (begun, go) = (Arc::clone(&begun), Arc::clone(&go));
            async move {
                begun.notify_one();
                go.notified().await;
                reply(200, "done")
            }
        }
    });
    let drain = Drain::new();
    let layer = layer(&bench.store).drain(&drain);
    let app = App::start(Stack::Http1, layer, bench.store.clone(), handler).await;
    let id = guid();
    let sent = delivery("push", &id, "{}");
    let mut connection = RawConnection::open(app.url()).await;
    let head = sent.raw_head("/webhook");
    connection
        .write(format!("{head}content-length: 2\r\n\r\n{{}}"))
        .await
        .unwrap();
    begun.notified().await;
    connection.hang_up();
    assert_eq!(app.deliver(&sent).await.is(), (202, "in-progress"));
    go.notify_one();
    drain.idle().await;
    assert_eq!(record(&app.store, &id).await.state, State::Completed);
    assert_eq!(app.deliver(&sent).await.is(), (200, "duplicate"));
    assert_eq!(app.runs().len(), 1);
}

// E8
async fn a_slow_run_is_accepted_and_its_end_recorded<St: DeliveryStore>(bench: Bench<St>) {
    let go = Arc::new(Notify::new());
    let handler = Handler::new({
        let go = Arc::clone(&go);
        move |_, _| {
            let go = Arc::clone(&go);
            async move {
                go.notified().await;
                reply(200, "done")
            }
        }
    });
    let drain = Drain::new();
    let layer = layer(&bench.store)
        .drain(&drain)
        .ack_after(Duration::from_millis(300));
    for stack in [Stack::AxumLayer, Stack::Tonic] {
        let app = App::start(stack, layer.clone(), bench.store.clone(), handler.clone()).await;
        let id = guid();
        let sent = delivery("push", &id, "{}");
        assert_eq!(
            app.deliver(&sent).await.is(),
            (202, "accepted"),
            "{stack:?}"
        );
        assert_eq!(
            record(&app.store, &id).await.state,
            State::Processing,
            "{stack:?}"
        );
        assert_eq!(
            app.deliver(&sent).await.is(),
            (202, "in-progress"),
            "{stack:?}"
        );
        go.notify_one();
        drain.idle().await;
        assert_eq!(
            record(&app.store, &id).await.state,
            State::Completed,
            "{stack:?}"
        );
        assert_eq!(
            app.deliver(&sent).await.is(),
            (200, "duplicate"),
            "{stack:?}"
        );
    }
    assert_eq!(handler.runs().len(), 2);
}

/// Polls a future so many times and no more.
struct Polls<F> {
    future: Pin<Box<F>>,
    left: usize,
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        match self.future.as_mut().poll(cx) {
            Poll::Ready(output) => Poll::Ready(Some(output)),
            Poll::Pending if self.left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    }
}

// E7
async fn a_request_that_is_dropped_at_any_point_leaves_nothing_stuck<St: DeliveryStore>(
    bench: Bench<St>,
) {
    let handler = Handler::<St>::new(|_, _| async {
        for _ in 0..5 {
            tokio::task::yield_now().await;
        }
        reply(200, "done")
    });
    let drain = Drain::new();
    let service = layer(&bench.store)
        .drain(&drain)
        .layer(handler.clone().into_service());
    let mut completed_at = None;
    for polls in 0..60 {
        let sent = delivery("push", &guid(), "{}");
        let request = service.clone().oneshot(sent.to("/webhook"));
        let cut = Polls {
            future: Box::pin(request),
            left: polls,
        };
        if cut.await.is_some() {
            completed_at.get_or_insert(polls);
        }
        drain.idle().await;
        // A lease of 30 s would be in the way for longer than this waits.
        let begun = Instant::now();
        eventually("the delivery completes", || async {
            assert!(
                begun.elapsed() < Duration::from_secs(15),
                "stuck after {polls} polls"
            );
            let answer = service.clone().oneshot(sent.to("/webhook")).await.unwrap();
            (answer.status() == 200).then_some(())
        })
        .await;
    }
    let at = completed_at.expect("60 polls are enough");
    assert!(at > 5, "it was cut short at {at} points");
}
