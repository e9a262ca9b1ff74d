use std::time::Duration;

use super::Bench;
use crate::claim::{Claim, Failure};
use crate::key::{ClaimKey, Source};
use crate::record::State;
use crate::store::{DeliveryStore, ListFilter, Retention};
use crate::time::Clock;

pub(super) async fn prune<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let day = Duration::from_secs(24 * 3600);
    // Whatever the clauses before this one left behind.
    let everything = Retention::default()
        .completed_and_run_again_after(Duration::ZERO)
        .dead(Duration::ZERO);
    bench.clock.advance(day);
    while bench
        .store
        .prune(&everything, 500)
        .await
        .expect("pruned")
        .may_be_more(500)
    {}

    for number in 0..5 {
        let held = bench.win(&format!("completed-{number}")).await;
        bench.store.complete(&held).await.expect("completed");
    }
    let held = bench.win("dead").await;
    bench
        .store
        .fail(&held, &Failure::permanent("x"))
        .await
        .expect("recorded");
    bench.clock.advance(day * 20);
    let held = bench.win("young").await;
    bench.store.complete(&held).await.expect("completed");
    let held = bench.win("failed").await;
    bench
        .store
        .fail(&held, &Failure::transient("x", Duration::ZERO))
        .await
        .expect("recorded");
    bench.win("processing").await;

    let retention = Retention::default()
        .completed(day * 10)
        .expect("long enough")
        .dead(day * 30);
    let mut steps = Vec::new();
    for _ in 0..4 {
        let step = bench.store.prune(&retention, 2).await.expect("pruned");
        steps.push(step.records);
    }
    assert_eq!(steps, [2, 2, 1, 0]);
    for name in ["dead", "young", "failed", "processing"] {
        bench.row(name).await;
    }
    bench.clock.advance(day * 400);
    let rest = bench.store.prune(&retention, 500).await.expect("pruned");
    assert_eq!(rest.records, 2);
    for name in ["failed", "processing"] {
        bench.row(name).await;
    }
    assert!(
        bench.claim("completed-0").await.won().is_some(),
        "what is forgotten is new"
    );
}

pub(super) async fn list<St: DeliveryStore>(bench: &Bench<'_, St>) {
    let source = Source::new("listed").expect("a name");
    let before = bench.store.stats().await.expect("counted");
    let start = bench.clock.now();
    for number in 0..6 {
        let id = bench.id(&number.to_string());
        let event = if number % 2 == 0 { "push" } else { "issues" };
        let key = ClaimKey::delivery(source.clone(), &id);
        let claim = Claim::bare(
            key,
            id,
            crate::EventName::new(event).expect("a name"),
            bench.policy(),
        );
        let held = bench
            .store
            .claim(claim)
            .await
            .expect("decided")
            .won()
            .expect("won");
        if number < 3 {
            bench.store.complete(&held).await.expect("completed");
        }
        bench.clock.advance(Duration::from_secs(1));
    }
    let names = async |filter: ListFilter| -> Vec<String> {
        let found = bench
            .store
            .list(&filter.source(source.clone()))
            .await
            .expect("listed");
        found
            .iter()
            .map(|record| record.delivery_id.as_str().replacen("K2-", "", 1))
            .collect()
    };
    assert_eq!(
        names(ListFilter::newest(100)).await,
        ["5", "4", "3", "2", "1", "0"]
    );
    assert_eq!(names(ListFilter::newest(2)).await, ["5", "4"]);
    assert_eq!(
        names(ListFilter::newest(9).state(State::Completed)).await,
        ["2", "1", "0"]
    );
    assert_eq!(
        names(ListFilter::newest(9).state(State::Completed).event("push")).await,
        ["2", "0"]
    );
    assert_eq!(
        names(
            ListFilter::newest(9)
                .state(State::Dead)
                .state(State::Processing)
        )
        .await,
        ["5", "4", "3"]
    );
    assert_eq!(
        names(ListFilter::newest(9).delivery_id("K2-4")).await,
        ["4"]
    );
    let mut between = ListFilter::newest(9);
    between.since = Some(start + Duration::from_secs(1));
    between.until = Some(start + Duration::from_secs(3));
    assert_eq!(names(between).await, ["2", "1"]);

    let after = bench.store.stats().await.expect("counted");
    assert_eq!(
        after.count(State::Completed) - before.count(State::Completed),
        3
    );
    assert_eq!(
        after.count(State::Processing) - before.count(State::Processing),
        3
    );
    assert_eq!(after.total() - before.total(), 6);
}
