//! Histories of stores that keep deliveries for workers.

use std::time::{Duration, Instant};

use super::Game;
use crate::claim::LeasePolicy;
use crate::durable::DurableStore;
use crate::inbox::{Acquire, Enqueue, Lane, Order};
use crate::key::{ClaimKey, Scope};
use crate::machine;
use crate::memory::{candidates, turn};
use crate::operator::Retry;
use crate::record::{ClaimToken, Record, State};
use crate::request::StoredRequest;
use crate::store::Retention;
use crate::testing::ManualClock;
use crate::time::Clock;

/// As [`play`](super::play), with the steps of a store that keeps deliveries for workers. One history plays on a store
/// at a time: its prunings would meet what others are at.
///
/// # Panics
///
/// As [`play`](super::play).
pub async fn play_durable<St: DurableStore>(
    store: &St,
    clock: &ManualClock,
    seed: u64,
    steps: u32,
) {
    let mut game = Game::new(store, clock, seed);
    // What histories before this one left behind is not in its model.
    let everything = retention([Duration::ZERO; 3]);
    clock.advance(Duration::from_secs(1));
    while store
        .prune(&everything, 500)
        .await
        .expect("pruned")
        .may_be_more(500)
    {}
    for step in 0..steps {
        let what = match game.random.below(16) {
            0..=2 => game.enqueue().await,
            3..=5 => game.acquire().await,
            6 => game.keep().await,
            7 => game.retry().await,
            8 => game.prune().await,
            _ => game.plain_step().await,
        };
        game.compare_records(step, &what).await;
        game.compare_requests(step, &what).await;
    }
}

fn retention([completed, dead, payload]: [Duration; 3]) -> Retention {
    Retention::default()
        .completed_and_run_again_after(completed)
        .dead(dead)
        .payload(payload)
}

impl<St: DurableStore> Game<'_, St> {
    async fn enqueue(&mut self) -> String {
        let enqueue = if !self.sent.is_empty() && self.random.below(4) == 0 {
            let at = self.random.index(self.sent.len());
            self.sent[at].clone()
        } else {
            let claim = self.request();
            let body = format!("{:?} {}", claim.key, self.random.next());
            let request = StoredRequest::new(body).path_of("/of the model");
            let mut enqueue = Enqueue::work(claim.key, claim.delivery_id, claim.event, request)
                .policy(claim.policy);
            enqueue.claim.fingerprint = claim.fingerprint;
            match self.random.below(4) {
                0 => {}
                1 => enqueue = enqueue.ordering_key("other"),
                _ => enqueue = enqueue.ordering_key("one"),
            }
            let delay = self.random.below(2) * self.random.below(20_000_000);
            enqueue.delay(Duration::from_micros(delay))
        };
        let key = enqueue.key().clone();
        let now = self.clock.now();
        if let Some(record) = machine::enqueue(self.records.get(&key), &enqueue, now) {
            if record.has_payload {
                self.requests.insert(key.clone(), enqueue.request().clone());
            }
            self.remember(Some(record));
        }
        let expected = machine::enqueued((&self.records[&key]).into(), &enqueue, false, now);
        let found = self
            .store
            .enqueue(enqueue.clone())
            .await
            .expect("the store decides");
        self.sent.push(enqueue);
        let what = format!("enqueue {key:?} → expected {expected:?}, found {found:?}");
        assert_eq!(expected, found, "seed {}: {what}", self.seed);
        what
    }

    async fn acquire(&mut self) -> String {
        let policy = LeasePolicy::default()
            .lease(Duration::from_secs(30))
            .max_hold(Duration::from_secs(70))
            .max_attempts(if self.random.below(4) == 0 { 2 } else { 4 })
            .keep_payload(self.random.below(3) == 0);
        let limit = [0, 1, 2, 9][self.random.index(4)];
        let mut acquire =
            Acquire::new(self.source(), limit, policy).expired(self.random.below(3) > 0);
        if self.random.below(4) == 0 {
            acquire = acquire.scope(Scope::HookId);
        }
        if self.random.below(3) == 0 {
            acquire = acquire.order(Order::Strict);
        }
        if self.random.below(3) == 0 {
            acquire = acquire.lane(Lane::Fresh {
                window: Duration::from_secs(5 + 20 * self.random.below(2)),
                flood: [1, 2, 9][self.random.index(3)],
            });
        }
        let now = self.clock.now();
        let sent = Instant::now();
        let every = Acquire {
            limit: u32::MAX,
            ..acquire.clone()
        };
        let expected = candidates(&self.records, &every, now);
        let found = self
            .store
            .acquire(acquire.clone())
            .await
            .expect("the store decides");
        let started = found.started.iter().map(|acquired| &acquired.held.key);
        let retired = found.retired.iter().map(|retired| &retired.key);
        let what = format!(
            "{acquire:?} → expected some of {expected:?}, found {:?} and retired {:?}",
            started.clone().collect::<Vec<_>>(),
            retired.clone().collect::<Vec<_>>()
        );
        let at = format!("seed {}: {what}", self.seed);

        // Of those whose turn comes at the same time, any may come first.
        let turns = |keys: &[ClaimKey]| -> Vec<_> {
            keys.iter().map(|key| turn(&self.records[key])).collect()
        };
        let all: Vec<ClaimKey> = started.clone().chain(retired).cloned().collect();
        assert!(all.iter().all(|key| expected.contains(key)), "{at}");
        let mut distinct = all.clone();
        distinct.sort();
        distinct.dedup();
        assert_eq!(distinct.len(), all.len(), "{at}");
        assert_eq!(all.len(), expected.len().min(limit as usize), "{at}");
        let in_turn = |mut turns: Vec<_>| {
            turns.sort();
            if acquire.lane != Lane::Due {
                turns.reverse();
            }
            turns
        };
        assert_eq!(in_turn(turns(&all)), turns(&expected)[..all.len()], "{at}");
        let order = turns(&started.cloned().collect::<Vec<_>>());
        assert_eq!(in_turn(order.clone()), order, "{at}");

        for acquired in found.started {
            let held = acquired.held;
            let record = &self.records[&held.key];
            let next = machine::acquire(record, held.token, &policy, now).expect("it is to be had");
            assert_eq!(next.state, State::Processing, "{at}");
            assert_ne!(held.token, record.token, "{at}");
            let (key, id) = (held.key.clone(), next.delivery_id.clone());
            let expected = machine::held((&next).into(), key, id, policy, now, sent);
            assert_eq!(
                (
                    expected.fence,
                    expected.attempt,
                    expected.kind,
                    &expected.delivery_id
                ),
                (held.fence, held.attempt, held.kind, &held.delivery_id),
                "{at}"
            );
            assert_eq!(held.policy, policy, "{at}");
            assert_eq!(acquired.age, now.since(record.received_at), "{at}");
            let delivery = acquired.delivery.expect("it can be read");
            assert_eq!(delivery.raw(), self.requests[&held.key].body(), "{at}");
            assert_eq!(acquired.path, "/of the model", "{at}");
            self.remember(Some(next));
            self.held.push(held);
        }
        for retired in found.retired {
            let record = &self.records[&retired.key];
            let next =
                machine::acquire(record, record.token, &policy, now).expect("it is to be had");
            assert_eq!(next.state, State::Dead, "{at}");
            assert_eq!(
                (next.attempts, &next.delivery_id, &next.event),
                (retired.attempts, &retired.delivery_id, &retired.event),
                "{at}"
            );
            self.remember(Some(next));
        }
        what
    }

    async fn keep(&mut self) -> String {
        if self.held.is_empty() {
            return self.plain_step().await;
        }
        let held = self.any_held();
        let body = format!("kept {}", self.random.next());
        let request = StoredRequest::new(body).path_of("/of the model");
        let expected = machine::keep(self.records.get(&held.key), held.token).map(|record| {
            if record.is_some() {
                self.requests.insert(held.key.clone(), request.clone());
            }
            self.remember(record);
            true
        });
        let found = self.store.keep(&held, request).await;
        self.expect(&format!("keep {:?}", held.key), expected, found)
    }

    async fn retry(&mut self) -> String {
        let key = self.request().key;
        let force = self.random.below(2) == 0;
        let order = Retry::by("the model").force(force);
        let now = self.clock.now();
        let found = self
            .store
            .retry(&key, &order)
            .await
            .expect("the store decides");
        let row = self.store.inspect(&key).await.expect("it can be read");
        let before = self.records.get(&key);
        let token = row.map_or_else(ClaimToken::random, |row| row.token);
        let (expected, next) = machine::retry(before, token, force, now);
        let what = format!("retry {key:?} {force} → expected {expected:?}, found {found:?}");
        assert_eq!(expected, found, "seed {}: {what}", self.seed);
        if next.is_some() {
            assert!(before.is_none_or(|before| before.token != token), "{what}");
        }
        self.remember(next);
        what
    }

    async fn prune(&mut self) -> String {
        let mut any = || Duration::from_secs(self.random.below(400));
        let retention = retention([any(), any(), any()]);
        let [completed, dead, payload] = retention.cutoffs(self.clock.now());
        let is_past = |record: &Record| match record.state {
            State::Completed => record.finished_at < Some(completed),
            State::Dead => record.finished_at < Some(dead),
            State::Received | State::Processing | State::Failed => false,
        };
        let before = self.records.len();
        self.records.retain(|_, record| !is_past(record));
        let records = (before - self.records.len()) as u64;
        let mut payloads = 0;
        for record in self.records.values_mut() {
            let is_kept = record.has_payload && record.state == State::Completed;
            if is_kept && record.finished_at < Some(payload) {
                record.has_payload = false;
                payloads += 1;
            }
        }
        let found = self.store.prune(&retention, 500).await.expect("pruned");
        let what = format!("{retention:?} → expected {records} and {payloads}, found {found:?}");
        assert_eq!(
            (found.records, found.payloads),
            (records, payloads),
            "seed {}: {what}",
            self.seed
        );
        what
    }

    /// What the store has of each request.
    async fn compare_requests(&self, step: u32, what: &str) {
        for key in self.requests.keys() {
            let is_there = self
                .records
                .get(key)
                .is_some_and(|record| record.has_payload);
            let expected = is_there.then(|| &self.requests[key]);
            let found = self.store.stored(key).await.expect("it can be read");
            assert_eq!(
                found.as_ref(),
                expected,
                "seed {}, step {step}: {what}",
                self.seed
            );
        }
    }
}
