//! Claims: of any number of deliveries of one event one runs, whatever else happens.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::Bytes;
use tokio::sync::{Notify, Semaphore};
use tokio::task::JoinSet;

use hookclaim::{
    BusinessKey, Claim, ClaimOutcome, DeliveryStore, ErrorClass, EventName, Failure, LeasePolicy,
    PostgresStore, Retention, Scope, Source, State, header,
};
use hookclaim_tests::eventually;
use hookclaim_tests::http::guid;
use hookclaim_tests::postgres::{PgCluster, PgOptions};
use hookclaim_tests::process::Claimant;
use tower_hookclaim::{Claimed, Event, Observer};

use crate::stores::{Bench, Reopen, claim, key, on_stores, record};
use crate::support::{App, Handler, Stack, delivery, layer, reply};

on_stores! {
    of_concurrent_identical_deliveries_one_runs: memory sqlite postgres;
    a_failed_run_is_followed_by_another: memory sqlite postgres;
    a_duplicate_of_a_running_delivery_is_in_progress_and_never_ok: memory sqlite postgres;
    a_forged_delivery_does_not_block_the_genuine_one: memory sqlite postgres;
    hooks_share_a_delivery_unless_they_are_told_apart: memory sqlite postgres;
    another_body_under_the_same_id_is_counted_and_changes_nothing: memory sqlite postgres;
    what_identifies_a_delivery_never_changes: memory sqlite postgres;
    a_completed_delivery_stays_a_duplicate: sqlite postgres;
    business_keys_that_look_alike_are_distinct: memory sqlite postgres;
}

// D1
async fn of_concurrent_identical_deliveries_one_runs<St: DeliveryStore>(bench: Bench<St>) {
    for stack in [Stack::AxumLayer, Stack::Tonic] {
        let app = App::with(stack, bench.store.clone(), Handler::done()).await;
        let sent = delivery("push", &guid(), "{}");
        let mut senders = JoinSet::new();
        for _ in 0..200 {
            let (client, url, sent) = (app.client.clone(), app.webhook(), sent.clone());
            senders.spawn(async move { client.deliver(&url, &sent).await });
        }
        let answers = senders.join_all().await;
        let of = |is| answers.iter().filter(|answer| answer.is() == is).count();
        assert_eq!(of((200, "completed")), 1, "{stack:?}");
        let others = of((202, "in-progress")) + of((200, "duplicate"));
        assert_eq!(others, 199, "{stack:?}: {answers:?}");
        assert_eq!(app.runs().len(), 1, "{stack:?}");
    }
}

// D1
#[tokio::test(flavor = "multi_thread")]
async fn of_claims_by_several_processes_one_wins() {
    let sqlite = crate::stores::real::sqlite().await;
    let postgres = crate::stores::real::postgres().await;
    for (url, processes) in [(&sqlite.url, 2), (&postgres.url, 3)] {
        let lease = Duration::from_secs(60);
        let mut claimants: Vec<_> = (0..processes)
            .map(|_| Claimant::start(url, lease))
            .collect();
        for round in 0..5 {
            let each = 200 / processes;
            for claimant in &mut claimants {
                claimant.order(&format!("race {each} round-{round}"));
            }
            let answers: Vec<_> = claimants.iter().map(Claimant::answer).collect();
            let sum =
                |name: &str| -> usize { answers.iter().map(|answer| count(answer, name)).sum() };
            assert_eq!(sum("won"), 1, "{url}: {answers:?}");
            assert_eq!(
                sum("in-progress"),
                processes * each - 1,
                "{url}: {answers:?}"
            );
            let winner = answers
                .iter()
                .position(|answer| count(answer, "won") == 1)
                .unwrap();
            assert_eq!(
                claimants[winner].ask(&format!("complete round-{round}")),
                "ok"
            );
            for claimant in &mut claimants {
                let answer = claimant.ask(&format!("race 10 round-{round}"));
                assert_eq!(count(&answer, "completed"), 10, "{url}: {answer}");
            }
        }
    }
}

fn count(answer: &str, name: &str) -> usize {
    let field = answer
        .split(' ')
        .find_map(|field| field.strip_prefix(name)?.strip_prefix('='));
    field
        .and_then(|number| number.parse().ok())
        .unwrap_or_else(|| panic!("{name} in {answer}"))
}

// D2
async fn a_failed_run_is_followed_by_another<St: DeliveryStore>(bench: Bench<St>) {
    for (case, first, class) in [
        ("500", (500, "failed"), ErrorClass::Transient),
        ("panic", (0, ""), ErrorClass::Panic),
        ("timeout", (504, "failed"), ErrorClass::Transient),
    ] {
        let handler = Handler::new(move |run, _| async move {
            match (run.attempt, case) {
                (1, "500") => reply(500, "broken"),
                (1, "panic") => panic!("as told"),
                (1, _) => reply(504, "timed out"),
                _ => reply(200, "done"),
            }
        });
        let app = App::with(Stack::Http1, bench.store.clone(), handler).await;
        let id = guid();
        let sent = delivery("push", &id, "{}");
        match app.client.try_send(sent.to(&app.webhook())).await {
            Ok(answer) => assert_eq!(answer.is(), first, "{case}"),
            // A panic is handed on, and takes the connection with it.
            Err(_) => assert_eq!(case, "panic"),
        }
        let failed = record(&app.store, &id).await;
        assert_eq!(
            (failed.state, failed.attempts),
            (State::Failed, 1),
            "{case}"
        );
        assert_eq!(failed.error_class, Some(class), "{case}");

        assert_eq!(app.deliver(&sent).await.is(), (200, "completed"), "{case}");
        let completed = record(&app.store, &id).await;
        assert_eq!(
            (completed.state, completed.attempts),
            (State::Completed, 2),
            "{case}"
        );
        let attempts: Vec<_> = app.runs().iter().map(|run| run.attempt).collect();
        assert_eq!(attempts, [1, 2], "{case}");
        assert_eq!(app.deliver(&sent).await.is(), (200, "duplicate"), "{case}");
    }
}

// D3
#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_process_held_is_taken_over_once_its_lease_is_over() {
    let sqlite = crate::stores::real::sqlite().await;
    let postgres = crate::stores::real::postgres().await;
    let lease = Duration::from_secs(2);
    for url in [&sqlite.url, &postgres.url] {
        let mut victim = Claimant::start(url, lease);
        let mut other = Claimant::start(url, lease);
        let claimed = Instant::now();
        assert_eq!(victim.ask("claim k"), "won 1 1 fresh", "{url}");
        victim.process().kill9();
        let answer = other.ask("claim k");
        if claimed.elapsed() < lease {
            assert_eq!(answer, "in-progress", "{url}");
        }
        let won = wait_for(&mut other, "claim k", |answer| answer != "in-progress");
        assert_eq!(won, "won 2 2 takeover", "{url}");
        assert!(claimed.elapsed() >= lease, "{url}: taken over too early");
        assert_eq!(other.ask("complete k"), "ok", "{url}");
    }
}

/// Asks until the answer is the one that is waited for.
fn wait_for(claimant: &mut Claimant, order: &str, done: impl Fn(&str) -> bool) -> String {
    let begun = Instant::now();
    loop {
        let answer = claimant.ask(order);
        if done(&answer) {
            return answer;
        }
        assert!(
            begun.elapsed() < hookclaim_tests::DEADLINE,
            "waited in vain: {answer}"
        );
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A handler that says when it has begun, and ends when it is let.
struct Gate {
    entered: Arc<Semaphore>,
    leave: Arc<Notify>,
}

impl Gate {
    fn handler<St: DeliveryStore>(status: u16) -> (Self, Handler<St>) {
        let gate = Self {
            entered: Arc::new(Semaphore::new(0)),
            leave: Arc::new(Notify::new()),
        };
        let (entered, leave) = (Arc::clone(&gate.entered), Arc::clone(&gate.leave));
        let handler = Handler::new(move |run: crate::support::Run, _| {
            let (entered, leave) = (Arc::clone(&entered), Arc::clone(&leave));
            async move {
                if run.attempt > 1 {
                    return reply(200, "done");
                }
                entered.add_permits(1);
                leave.notified().await;
                reply(status, "let go")
            }
        });
        (gate, handler)
    }

    async fn entered(&self) {
        self.entered.acquire().await.expect("it is open").forget();
    }
}

// D4, the 202; that a worker runs it again comes with the durable inbox.
async fn a_duplicate_of_a_running_delivery_is_in_progress_and_never_ok<St: DeliveryStore>(
    bench: Bench<St>,
) {
    let (gate, handler) = Gate::handler(500);
    let app = App::with(Stack::Http1, bench.store.clone(), handler).await;
    let sent = delivery("push", &guid(), "{}");
    let first = tokio::spawn({
        let (client, url, sent) = (app.client.clone(), app.webhook(), sent.clone());
        async move { client.deliver(&url, &sent).await }
    });
    gate.entered().await;
    for _ in 0..3 {
        assert_eq!(app.deliver(&sent).await.is(), (202, "in-progress"));
    }
    gate.leave.notify_one();
    assert_eq!(first.await.unwrap().is(), (500, "failed"));
    assert_eq!(app.deliver(&sent).await.is(), (200, "completed"));
    assert_eq!(app.runs().len(), 2);
}

// D5
async fn a_forged_delivery_does_not_block_the_genuine_one<St: DeliveryStore>(bench: Bench<St>) {
    let app = App::with(Stack::Http1, bench.store.clone(), Handler::done()).await;
    let genuine = delivery("push", &guid(), "{}");
    for forged in [
        genuine.clone().forged_body("[]"),
        genuine.clone().forged_body(""),
        genuine
            .clone()
            .header(header::SIGNATURE, format!("sha256={}", "0".repeat(64))),
        genuine.clone().without(header::SIGNATURE),
    ] {
        assert_eq!(app.deliver(&forged).await.is(), (401, "rejected"));
    }
    app.assert_untouched("forged").await;
    assert_eq!(app.deliver(&genuine).await.is(), (200, "completed"));
    let before = app.records().await;
    assert_eq!(
        app.deliver(&genuine.clone().forged_body("[]")).await.is(),
        (401, "rejected")
    );
    assert_eq!(
        app.records().await,
        before,
        "a forged one changes nothing afterwards either"
    );
}

// D6
async fn hooks_share_a_delivery_unless_they_are_told_apart<St: DeliveryStore>(bench: Bench<St>) {
    let from_hook = |id: &str, hook: &str| delivery("push", id, "{}").header(header::HOOK_ID, hook);
    let plain = || layer(&bench.store);
    let other = Source::new("another-endpoint").unwrap();
    for (case, first, second, outcome) in [
        ("one source", plain(), plain(), "duplicate"),
        (
            "hook scope",
            plain().scope(Scope::HookId),
            plain().scope(Scope::HookId),
            "completed",
        ),
        ("two sources", plain(), plain().source(other), "completed"),
    ] {
        let id = guid();
        let first = App::start(Stack::Http1, first, bench.store.clone(), Handler::done()).await;
        let second = App::start(Stack::Http1, second, bench.store.clone(), Handler::done()).await;
        assert_eq!(
            first.deliver(&from_hook(&id, "1")).await.outcome(),
            "completed",
            "{case}"
        );
        assert_eq!(
            second.deliver(&from_hook(&id, "2")).await.outcome(),
            outcome,
            "{case}"
        );
        // Whoever comes again is a duplicate in any case.
        assert_eq!(
            first.deliver(&from_hook(&id, "1")).await.outcome(),
            "duplicate",
            "{case}"
        );
        assert_eq!(
            second.deliver(&from_hook(&id, "2")).await.outcome(),
            "duplicate",
            "{case}"
        );
    }
}

/// Counts bodies that differ from those that came before.
#[derive(Clone, Default)]
struct Mismatches(Arc<AtomicU32>);

impl Observer for Mismatches {
    fn on(&self, event: &Event<'_>) {
        if let Event::Claimed {
            verdict: Claimed::BodyMismatch(_),
            ..
        } = event
        {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// D7
async fn another_body_under_the_same_id_is_counted_and_changes_nothing<St: DeliveryStore>(
    bench: Bench<St>,
) {
    let (gate, handler) = Gate::handler(200);
    let mismatches = Mismatches::default();
    let layer = layer(&bench.store).observer(mismatches.clone());
    let app = App::start(Stack::Http1, layer, bench.store.clone(), handler).await;
    let id = guid();
    let genuine = delivery("push", &id, "{\"a\":1}");
    let other = delivery("push", &id, "{\"a\":2}");
    let first = tokio::spawn({
        let (client, url, sent) = (app.client.clone(), app.webhook(), genuine.clone());
        async move { client.deliver(&url, &sent).await }
    });
    gate.entered().await;
    let running = record(&app.store, &id).await;
    assert_eq!(app.deliver(&other).await.is(), (202, "in-progress"));
    assert_eq!(record(&app.store, &id).await, running);
    gate.leave.notify_one();
    assert_eq!(first.await.unwrap().is(), (200, "completed"));

    let completed = record(&app.store, &id).await;
    assert_eq!(app.deliver(&other).await.is(), (200, "duplicate"));
    assert_eq!(record(&app.store, &id).await, completed);
    assert_eq!(mismatches.0.load(Ordering::Relaxed), 2);
    assert_eq!(app.deliver(&genuine).await.is(), (200, "duplicate"));
    assert_eq!(mismatches.0.load(Ordering::Relaxed), 2);
    assert_eq!(app.runs().len(), 1);
}

// D8
async fn what_identifies_a_delivery_never_changes<St: DeliveryStore>(bench: Bench<St>) {
    let store = &bench.store;
    let lease = Duration::from_secs(30);
    let policy = LeasePolicy::default().lease(lease);
    let first = claim("k", policy).action(Some("opened"));
    let held = store.claim(first).await.unwrap().won().unwrap();
    let fresh = record(store, "k").await;
    let identity = |record: &hookclaim::Record| {
        let record = record.clone();
        (
            record.key,
            record.delivery_id,
            record.event,
            record.action,
            record.fingerprint,
            record.received_at,
        )
    };
    // Every later claim comes under the same key and claims to be something else.
    let otherwise = || {
        let id = hookclaim::DeliveryId::new("another-id").unwrap();
        let event = EventName::new("issues").unwrap();
        Claim::bare(key("k"), id, event, policy).action(Some("closed"))
    };
    let assert_same = async |case: &str| {
        let now = record(store, "k").await;
        assert_eq!(identity(&now), identity(&fresh), "{case}");
        assert_eq!(
            hookclaim::DeliveryId::new("k").unwrap(),
            now.delivery_id,
            "{case}"
        );
    };
    let _ = store.claim(otherwise()).await.unwrap();
    assert_same("a duplicate").await;
    store.renew(&held).await.unwrap();
    assert_same("renewed").await;
    store
        .fail(&held, &Failure::transient("no", Duration::ZERO))
        .await
        .unwrap();
    assert_same("failed").await;
    bench.clock.advance(Duration::from_secs(1));
    store
        .claim(otherwise())
        .await
        .unwrap()
        .won()
        .expect("a retry");
    assert_same("retried").await;
    bench.clock.advance(2 * lease);
    let held = store
        .claim(otherwise())
        .await
        .unwrap()
        .won()
        .expect("a takeover");
    assert_same("taken over").await;
    store.release(&held, Duration::ZERO).await.unwrap();
    assert_same("released").await;
    let held = store
        .claim(otherwise())
        .await
        .unwrap()
        .won()
        .expect("a retry");
    store.complete(&held).await.unwrap();
    assert_same("completed").await;
    assert!(matches!(
        store.claim(otherwise()).await.unwrap(),
        ClaimOutcome::Completed
    ));
    assert_same("a duplicate of what is completed").await;
}

// D9
async fn a_completed_delivery_stays_a_duplicate<St: Reopen>(bench: Bench<St>) {
    let id = guid();
    let sent = delivery("push", &id, "{}");
    let app = App::with(Stack::Http1, bench.store.clone(), Handler::done()).await;
    assert_eq!(app.deliver(&sent).await.is(), (200, "completed"));

    let replica = App::with(Stack::Http1, St::reopen(&bench).await, Handler::done()).await;
    assert_eq!(
        replica.deliver(&sent).await.is(),
        (200, "duplicate"),
        "a second replica"
    );
    drop(app);
    let Bench { clock, .. } = &bench;
    clock.advance(Duration::from_secs(71 * 3600));
    let pruned = bench
        .store
        .prune(&Retention::default(), 1000)
        .await
        .unwrap();
    assert_eq!(pruned.records, 0, "after 71 hours");
    let restarted = App::with(Stack::Http1, St::reopen(&bench).await, Handler::done()).await;
    assert_eq!(
        restarted.deliver(&sent).await.is(),
        (200, "duplicate"),
        "after a restart"
    );
    assert!(replica.runs().is_empty() && restarted.runs().is_empty());
}

// D11
#[tokio::test(flavor = "multi_thread")]
async fn a_database_that_is_down_runs_nothing_and_forgets_nothing() {
    let cluster = Arc::new(PgCluster::start(PgOptions { fsync: false }));
    let url = cluster.fresh_database().await;
    let store = PostgresStore::connect(&url).await.unwrap();
    store.migrate().await.unwrap();
    // The handler of the first attempt takes the database down when it is told.
    let stop_within = Arc::new(Mutex::new(false));
    let handler = Handler::new({
        let (cluster, stop_within) = (Arc::clone(&cluster), Arc::clone(&stop_within));
        move |_, _| {
            let (cluster, stop_within) = (Arc::clone(&cluster), Arc::clone(&stop_within));
            async move {
                if std::mem::take(&mut *stop_within.lock().unwrap()) {
                    cluster.crash();
                }
                reply(200, "done")
            }
        }
    });
    let lease = Duration::from_secs(2);
    let layer = layer(&store).lease(LeasePolicy::default().lease(lease));
    let app = App::start(Stack::Http1, layer, store, handler).await;

    // Down at the claim.
    cluster.crash();
    let sent = delivery("push", &guid(), "{}");
    let answer = app.deliver(&sent).await;
    assert_eq!(answer.is(), (503, "unavailable"));
    assert!(answer.headers.contains_key("retry-after"));
    assert!(app.runs().is_empty());
    cluster.resume();
    eventually("the store finds the database again", || async {
        (app.deliver(&sent).await.is() == (200, "completed")).then_some(())
    })
    .await;
    assert_eq!(app.runs().len(), 1);

    // Down at the completion.
    let id = guid();
    let sent = delivery("push", &id, "{}");
    *stop_within.lock().unwrap() = true;
    let answer = app.deliver(&sent).await;
    assert_eq!(
        answer.is(),
        (503, "unavailable"),
        "what is not recorded is not done"
    );
    cluster.resume();
    eventually("the lease is over, and the delivery runs again", || async {
        (app.deliver(&sent).await.is() == (200, "completed")).then_some(())
    })
    .await;
    let record = record(&app.store, &id).await;
    assert_eq!((record.state, record.attempts), (State::Completed, 2));
    assert_eq!(app.runs().len(), 3);
    assert_eq!(app.deliver(&sent).await.is(), (200, "duplicate"));
}

// D13
async fn business_keys_that_look_alike_are_distinct<St: DeliveryStore>(bench: Bench<St>) {
    // The payload's member `parts` is the key.
    let layer = layer(&bench.store).key(|delivery| {
        let payload: serde_json::Value = serde_json::from_slice(delivery.json()).unwrap();
        let parts = payload
            .get("parts")
            .and_then(|parts| parts.as_array())
            .cloned();
        Ok(parts
            .unwrap_or_default()
            .iter()
            .fold(BusinessKey::new(), |key, part| match part {
                serde_json::Value::Null => key.null(),
                serde_json::Value::Bool(part) => key.bool(*part),
                serde_json::Value::Number(part) => key.int(part.as_i64().unwrap()),
                serde_json::Value::String(part) if part == "(missing)" => key.missing(),
                serde_json::Value::String(part) => key.text(part),
                part => panic!("no such part: {part}"),
            }))
    });
    let app = App::start(Stack::Http1, layer, bench.store.clone(), Handler::done()).await;
    let rows = [
        r#"["a","bc"]"#,
        r#"["ab","c"]"#,
        r#"["abc"]"#,
        r#"["abc",""]"#,
        "[null]",
        r#"["null"]"#,
        r#"["(missing)"]"#,
        r#"[""]"#,
        "[]",
        "[1]",
        r#"["1"]"#,
        "[true]",
        r#"["true"]"#,
        r#"["a s2:bc"]"#,
        r#"["A","bc"]"#,
        r#"["é"]"#,
        "[\"e\u{301}\"]",
    ];
    let send = async |row: &str| {
        let sent = delivery("push", &guid(), Bytes::from(format!("{{\"parts\":{row}}}")));
        app.deliver(&sent).await.outcome().to_owned()
    };
    for row in rows {
        assert_eq!(send(row).await, "completed", "{row}");
    }
    for row in rows {
        assert_eq!(send(row).await, "duplicate", "{row}");
    }
    assert_eq!(app.runs().len(), rows.len());
}
