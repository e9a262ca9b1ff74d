//! Storing deliveries, and what the clauses of durable stores share.

use std::sync::Arc;
use std::time::Duration;

use super::Bench;
use crate::claim::{Claim, ClaimOutcome, Failure};
use crate::delivery::{Delivery, EventName};
use crate::durable::DurableStore;
use crate::head::DeliveryHead;
use crate::inbox::{Acquire, Acquired, Acquisition, Enqueue, EnqueueOutcome};
use crate::key::{ClaimKey, Source};
use crate::record::{ErrorClass, Record, State};
use crate::request::StoredRequest;
use crate::secret::SecretSet;
use crate::signature::{Fingerprint, SignedBody};
use crate::testing::signed_headers;
use crate::time::Clock;

/// Long enough for whatever is awaited, and only seen where it never comes.
const DEADLINE: Duration = Duration::from_secs(30);

/// Each clause has a source of its own, so that it takes nothing of the others.
impl<St: DurableStore> Bench<'_, St> {
    pub(super) fn source(&self) -> Source {
        Source::new(self.clause).expect("visible ASCII")
    }

    pub(super) fn place(&self, name: &str) -> ClaimKey {
        ClaimKey::delivery(self.source(), &self.id(name))
    }

    pub(super) fn work(&self, name: &str) -> Enqueue {
        let event = EventName::new("push").expect("a name");
        let request = StoredRequest::new(format!("{{\"name\":\"{name}\"}}"));
        Enqueue::work(self.place(name), self.id(name), event, request).policy(self.policy())
    }

    /// A claim of what [`work`](Self::work) stores.
    pub(super) fn inline(&self, name: &str) -> Claim {
        let event = EventName::new("push").expect("a name");
        Claim::bare(self.place(name), self.id(name), event, self.policy())
    }

    pub(super) async fn enqueue(&self, enqueue: Enqueue) -> EnqueueOutcome {
        self.store
            .enqueue(enqueue)
            .await
            .expect("the store decides")
    }

    /// Stores one after the other, each a moment later.
    pub(super) async fn put(&self, names: &[&str]) {
        for name in names {
            let outcome = self.enqueue(self.work(name)).await;
            assert_eq!(outcome, EnqueueOutcome::Accepted, "{name}");
            self.clock.advance(Duration::from_micros(1));
        }
    }

    pub(super) fn asking(&self, limit: u32) -> Acquire {
        Acquire::new(self.source(), limit, self.policy())
    }

    pub(super) async fn acquire(&self, acquire: Acquire) -> Acquisition {
        self.store
            .acquire(acquire)
            .await
            .expect("the store decides")
    }

    /// Takes what is due and nothing else, which must not be more than `limit`.
    pub(super) async fn take(&self, limit: u32) -> Vec<Acquired> {
        let acquisition = self.acquire(self.asking(limit)).await;
        assert_eq!(acquisition.retired, []);
        assert!(acquisition.started.len() <= limit as usize);
        acquisition.started
    }

    /// Takes the one that is due.
    pub(super) async fn take_one(&self) -> Acquired {
        let mut started = self.take(2).await;
        assert_eq!(started.len(), 1, "{started:?}");
        started.remove(0)
    }

    pub(super) async fn placed(&self, name: &str) -> Record {
        let found = self.store.inspect(&self.place(name)).await;
        found.expect("the store can be read").expect("it is there")
    }

    pub(super) async fn stored(&self, name: &str) -> Option<StoredRequest> {
        let found = self.store.stored(&self.place(name)).await;
        found.expect("the store can be read")
    }

    pub(super) fn names(&self, started: &[Acquired]) -> Vec<String> {
        let prefix = format!("{}-", self.clause);
        let name =
            |acquired: &Acquired| acquired.held.delivery_id.as_str().replacen(&prefix, "", 1);
        started.iter().map(name).collect()
    }

    /// Waits until a change is told.
    pub(super) async fn told(&self, changes: &mut crate::Changes, what: &str) {
        let told = tokio::time::timeout(DEADLINE, changes.changed()).await;
        assert!(told.is_ok(), "nothing is told: {what}");
    }
}

pub(super) async fn new_key<St: DurableStore>(bench: &Bench<'_, St>) {
    let secrets = Arc::new(SecretSet::single("It's a Secret to Everybody").expect("a secret"));
    // Bytes that no text holds, and an escape that a parser would undo.
    let body = b"{\"action\":\"created\",\"text\":\"\\u00fc\", \"odd\":\"\xff\x00\xfe\"}";
    let mut headers = signed_headers(
        b"It's a Secret to Everybody",
        "issue_comment",
        bench.id("a").as_str(),
        body,
    );
    headers.insert("x-secret", http::HeaderValue::from_static("not kept"));
    let (head, signature) = DeliveryHead::parse(&headers).expect("headers");
    let signed = SignedBody::verify(body.as_slice().into(), &signature, &secrets).expect("signed");
    let delivery = Delivery::new(head, signed, bench.source()).expect("JSON");
    let now = bench.clock.now();
    let enqueue = Enqueue::new(&delivery, bench.place("a"), "/hooks/github")
        .ordering_key("octocat/hello-world")
        .policy(bench.policy());
    let request = enqueue.request().clone();
    assert_eq!(bench.enqueue(enqueue).await, EnqueueOutcome::Accepted);

    let row = bench.placed("a").await;
    assert_eq!(
        (row.state, row.attempts, row.fence),
        (State::Received, 0, 0)
    );
    assert_eq!((row.received_at, row.retry_at), (now, Some(now)));
    assert_eq!(
        (row.claimed_at, row.renewed_at, row.lease_until),
        (None, None, None)
    );
    assert_eq!(
        (row.finished_at, row.error_class, row.last_error),
        (None, None, None)
    );
    assert_eq!(
        (row.event.as_str(), row.action.as_deref()),
        ("issue_comment", Some("created"))
    );
    assert_eq!(row.ordering_key.as_deref(), Some("octocat/hello-world"));
    assert_eq!(row.fingerprint, Some(delivery.verified().fingerprint()));
    assert!(row.has_payload && row.covered_by.is_none());
    assert_eq!(bench.stored("a").await, Some(request.clone()));
    assert_eq!(
        (request.body().as_ref(), request.path()),
        (body.as_slice(), "/hooks/github")
    );

    bench.clock.advance(Duration::from_secs(5));
    let taken = bench.take_one().await;
    assert_eq!(
        (taken.path.as_str(), taken.age),
        ("/hooks/github", Duration::from_secs(5))
    );
    let again = taken.delivery.expect("it can be read");
    assert_eq!(again.raw().as_ref(), body);
    assert_eq!(
        (again.id(), again.event()),
        (delivery.id(), delivery.event())
    );
    assert_eq!(
        (again.source(), again.format()),
        (delivery.source(), delivery.format())
    );
    assert_eq!(
        (again.hook_id(), again.target_type(), again.target_id()),
        (Some(292_430_182), Some("repository"), Some(79_929_171))
    );
    assert_eq!(
        again.verified().fingerprint(),
        delivery.verified().fingerprint()
    );
    assert!(!again.headers().contains_key("x-secret"));

    // An empty body, and work that is due later.
    let event = EventName::new("deploy").expect("a name");
    let empty = Enqueue::work(
        bench.place("b"),
        bench.id("b"),
        event,
        StoredRequest::new(""),
    )
    .action(Some("ö \u{1f4a5}"))
    .delay(Duration::from_secs(60));
    assert_eq!(bench.enqueue(empty).await, EnqueueOutcome::Accepted);
    let row = bench.placed("b").await;
    assert_eq!(
        row.retry_at,
        Some(bench.clock.now() + Duration::from_secs(60))
    );
    assert_eq!(row.action.as_deref(), Some("ö \u{1f4a5}"));
    let stored = bench.stored("b").await.expect("stored");
    assert_eq!((stored.body().len(), stored.path()), (0, "/"));
    assert_eq!(bench.stored("never-stored").await, None);
}

pub(super) async fn twice<St: DurableStore>(bench: &Bench<'_, St>) {
    let first = bench.work("a");
    assert_eq!(bench.enqueue(first.clone()).await, EnqueueOutcome::Accepted);
    let (row, request) = (bench.placed("a").await, bench.stored("a").await);
    bench.clock.advance(Duration::from_secs(1));
    assert_eq!(
        bench.enqueue(first.clone()).await,
        EnqueueOutcome::Accepted,
        "sent again"
    );
    let other = bench
        .work("a")
        .ordering_key("x")
        .delay(Duration::from_secs(9));
    assert_eq!(
        bench.enqueue(other).await,
        EnqueueOutcome::InProgress,
        "it waits already"
    );
    assert_eq!(bench.placed("a").await, row);
    assert_eq!(bench.stored("a").await, request);
    // Once a worker has it, the first sender is a stranger too.
    let taken = bench.take_one().await;
    let row = bench.placed("a").await;
    assert_eq!(bench.enqueue(first).await, EnqueueOutcome::InProgress);
    assert_eq!(bench.placed("a").await, row);
    bench.store.complete(&taken.held).await.expect("completed");

    // Of those that come together one is stored.
    let mut senders = Vec::new();
    for _ in 0..16 {
        let (store, enqueue) = (bench.store.clone(), bench.work("b"));
        senders.push(tokio::spawn(async move { store.enqueue(enqueue).await }));
    }
    let mut accepted = 0;
    for sender in senders {
        match sender.await.expect("no panic").expect("decided") {
            EnqueueOutcome::Accepted => accepted += 1,
            outcome => assert_eq!(outcome, EnqueueOutcome::InProgress),
        }
    }
    assert_eq!(accepted, 1);
    assert_eq!(bench.take_one().await.held.fence, 1);
}

pub(super) async fn standing<St: DurableStore>(bench: &Bench<'_, St>) {
    bench
        .put(&["completed", "in-progress", "failed", "dead"])
        .await;
    let delay = Duration::from_secs(60);
    for acquired in bench.take(4).await {
        let (store, held) = (bench.store, &acquired.held);
        match bench.names(std::slice::from_ref(&acquired))[0].as_str() {
            "completed" => store.complete(held).await.expect("completed"),
            "failed" => {
                let failure = Failure::transient("later", delay);
                store
                    .fail(held, &failure)
                    .await
                    .map(drop)
                    .expect("recorded");
            }
            "dead" => {
                let failure = Failure::permanent("never");
                store
                    .fail(held, &failure)
                    .await
                    .map(drop)
                    .expect("recorded");
            }
            _ => {}
        }
    }
    let retry_at = bench.clock.now() + delay;
    for (name, expected) in [
        ("completed", EnqueueOutcome::Completed),
        ("in-progress", EnqueueOutcome::InProgress),
        ("failed", EnqueueOutcome::NotDue { retry_at }),
        ("dead", EnqueueOutcome::Dead),
    ] {
        let row = bench.placed(name).await;
        assert_eq!(bench.enqueue(bench.work(name)).await, expected, "{name}");
        assert_eq!(bench.placed(name).await, row, "{name}");
    }

    // The same id with other bytes.
    let print = |bytes| Some(Fingerprint::from_bytes(bytes));
    let printed = |name: &str, bytes| {
        let mut enqueue = bench.work(name);
        enqueue.claim.fingerprint = print(bytes);
        enqueue
    };
    let outcome = bench.enqueue(printed("bytes", *b"key1the one body")).await;
    assert_eq!(outcome, EnqueueOutcome::Accepted);
    let row = bench.placed("bytes").await;
    assert_eq!(row.fingerprint, print(*b"key1the one body"));
    let outcome = bench.enqueue(printed("bytes", *b"key1another body")).await;
    let state = State::Received;
    assert_eq!(outcome, EnqueueOutcome::BodyMismatch { state });
    assert_eq!(bench.placed("bytes").await, row);
    let outcome = bench
        .store
        .claim(
            bench
                .inline("bytes")
                .fingerprint(print(*b"key1another body")),
        )
        .await
        .expect("decided");
    assert!(
        matches!(
            outcome,
            ClaimOutcome::BodyMismatch {
                state: State::Received
            }
        ),
        "{outcome:?}"
    );
}

pub(super) async fn late_payload<St: DurableStore>(bench: &Bench<'_, St>) {
    for name in ["failed", "expired", "used-up"] {
        let claim = bench.inline(name);
        let held = bench.store.claim(claim).await.expect("decided").won();
        let held = held.expect("won");
        if name != "expired" {
            let failure = Failure::transient("inline", Duration::from_secs(600));
            bench.store.fail(&held, &failure).await.expect("recorded");
        }
        assert!(!bench.placed(name).await.has_payload);
        assert_eq!(bench.stored(name).await, None);
    }
    let outcome = bench.enqueue(bench.work("expired")).await;
    assert_eq!(outcome, EnqueueOutcome::InProgress, "it is leased");
    assert_eq!(bench.stored("expired").await, None);
    bench.clock.advance(super::LEASE);
    let now = bench.clock.now();
    for (name, class, error) in [
        ("failed", ErrorClass::Transient, "inline"),
        (
            "expired",
            ErrorClass::LeaseExpired,
            crate::machine::LEASE_EXPIRED,
        ),
    ] {
        let before = bench.placed(name).await;
        let outcome = bench.enqueue(bench.work(name).ordering_key("k")).await;
        assert_eq!(outcome, EnqueueOutcome::Accepted, "{name}");
        let row = bench.placed(name).await;
        assert_eq!(
            (row.state, row.attempts, row.fence),
            (State::Received, 1, 1)
        );
        assert_eq!(
            (row.retry_at, row.lease_until, row.renewed_at),
            (Some(now), None, None)
        );
        assert_eq!(
            (row.received_at, row.claimed_at),
            (before.received_at, before.claimed_at)
        );
        assert_eq!(
            (row.error_class, row.last_error.as_deref()),
            (Some(class), Some(error))
        );
        assert!(row.has_payload && row.ordering_key.as_deref() == Some("k"));
        assert_eq!(
            bench.stored(name).await.as_ref(),
            Some(bench.work(name).request())
        );
    }
    let few = bench.policy().max_attempts(1);
    let outcome = bench.enqueue(bench.work("used-up").policy(few)).await;
    assert_eq!(outcome, EnqueueOutcome::Dead);
    let row = bench.placed("used-up").await;
    assert_eq!((row.state, row.has_payload), (State::Dead, false));
    assert_eq!(bench.stored("used-up").await, None);
    let first = bench.take_one().await;
    assert_eq!((first.held.attempt, first.held.fence), (2, 2));
}

pub(super) async fn counted<St: DurableStore>(bench: &Bench<'_, St>) {
    let count = async || bench.store.backlog().await.expect("counted");
    let empty = count().await;
    assert_eq!(
        empty,
        crate::Backlog::default(),
        "nothing was stored before"
    );
    bench.put(&["a", "b", "c"]).await;
    let later = bench.work("later").delay(Duration::from_secs(3600));
    assert_eq!(bench.enqueue(later).await, EnqueueOutcome::Accepted);
    let inline = bench.store.claim(bench.inline("inline")).await;
    assert!(inline.expect("decided").won().is_some());
    bench.clock.advance(Duration::from_secs(10));
    let backlog = count().await;
    assert_eq!(
        (backlog.waiting, backlog.leased, backlog.overdue),
        (4, 0, 0)
    );
    assert_eq!(backlog.oldest_due, Duration::from_micros(10_000_003));
    let taken = bench.take(2).await;
    bench.clock.advance(super::LEASE);
    bench.store.renew(&taken[0].held).await.expect("renewed");
    let backlog = count().await;
    assert_eq!(
        (backlog.waiting, backlog.leased, backlog.overdue),
        (2, 2, 1)
    );
    for acquired in taken {
        bench
            .store
            .complete(&acquired.held)
            .await
            .expect("completed");
    }
    let last = bench.take_one().await;
    bench.store.complete(&last.held).await.expect("completed");
    let backlog = count().await;
    assert_eq!((backlog.waiting, backlog.oldest_due), (1, Duration::ZERO));
    bench.clock.advance(Duration::from_secs(3600));
    let last = bench.take_one().await;
    bench.store.complete(&last.held).await.expect("completed");
    assert_eq!(count().await, empty);
}

pub(super) async fn announced<St: DurableStore>(bench: &Bench<'_, St>) {
    let mut changes = bench.store.changes();
    let mut another = bench.store.changes();
    bench.put(&["a"]).await;
    // It is not lost though nobody waited when it came.
    bench.told(&mut changes, "a delivery was stored").await;
    bench.told(&mut another, "everybody is told").await;
    let (store, work) = (bench.store.clone(), bench.work("b"));
    let later = tokio::spawn(async move {
        tokio::task::yield_now().await;
        store.enqueue(work).await
    });
    bench.told(&mut changes, "one is stored meanwhile").await;
    later.await.expect("no panic").expect("decided");
    for acquired in bench.take(2).await {
        let failure = Failure::permanent("never");
        bench
            .store
            .fail(&acquired.held, &failure)
            .await
            .expect("recorded");
    }
    let mut changes = bench.store.changes();
    let retry = crate::Retry::by("someone");
    bench
        .store
        .retry(&bench.place("a"), &retry)
        .await
        .expect("decided");
    bench.told(&mut changes, "an operator's retry").await;
}
