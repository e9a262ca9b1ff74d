//! What is listed, and what is remembered of deliveries that others cover.

use std::time::Duration;

use super::Bench;
use crate::claim::{Claim, ClaimOutcome, Failure};
use crate::delivery::EventName;
use crate::durable::DurableStore;
use crate::inbox::{Enqueue, EnqueueOutcome};
use crate::key::{BusinessKey, ClaimKey};
use crate::record::State;
use crate::request::StoredRequest;
use crate::store::{ListFilter, Retention};
use crate::time::Clock;

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
