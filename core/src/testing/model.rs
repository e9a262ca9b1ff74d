//! Random histories: a store against the pure machine.

mod durable;

pub use durable::play_durable;

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::ManualClock;
use crate::claim::{Claim, ClaimOutcome, Failure, Held, LeasePolicy, Renewal, RetryGate};
use crate::delivery::{DeliveryId, EventName};
use crate::error::StoreError;
use crate::inbox::Enqueue;
use crate::key::{BusinessKey, ClaimKey, Scope, Source};
use crate::machine::{self, LeaseLost};
use crate::record::Record;
use crate::request::StoredRequest;
use crate::signature::Fingerprint;
use crate::store::DeliveryStore;
use crate::time::Clock;

/// Keys that a history plays with. Few, so that its steps meet.
const KEYS: u64 = 5;

/// Plays a random history of `steps` steps on an empty store that reads `clock`, and on the machine beside it.
///
/// The same seed plays the same history. Its keys are its own: several histories may share a store.
///
/// # Panics
///
/// If the store answers otherwise than the machine, or remembers something else; the message has the seed and the
/// step.
pub async fn play<St: DeliveryStore>(store: &St, clock: &ManualClock, seed: u64, steps: u32) {
    let mut game = Game::new(store, clock, seed);
    for step in 0..steps {
        let what = game.plain_step().await;
        game.compare_records(step, &what).await;
    }
}

/// xorshift64*: small, and the same everywhere.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }
}

struct Game<'a, St> {
    store: &'a St,
    clock: &'a ManualClock,
    random: Random,
    seed: u64,
    records: HashMap<ClaimKey, Record>,
    held: Vec<Held>,
    /// What the store was given to keep; a request stays here when its record lets go of it.
    requests: HashMap<ClaimKey, StoredRequest>,
    /// What was stored for later so far.
    sent: Vec<Enqueue>,
}

impl<'a, St: DeliveryStore> Game<'a, St> {
    fn new(store: &'a St, clock: &'a ManualClock, seed: u64) -> Self {
        Self {
            store,
            clock,
            random: Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1),
            seed,
            records: HashMap::new(),
            held: Vec::new(),
            requests: HashMap::new(),
            sent: Vec::new(),
        }
    }

    /// A step that every store can take.
    async fn plain_step(&mut self) -> String {
        match self.random.below(12) {
            0..=3 => self.claim().await,
            4 => self.claim_many().await,
            5 => self.pass_time(),
            6 if self.random.below(8) == 0 => self.set_back(),
            _ if self.held.is_empty() => self.claim().await,
            6 | 7 => self.complete().await,
            8 => self.fail().await,
            9 => self.release().await,
            _ => self.renew().await,
        }
    }

    /// What the store remembers of each key.
    async fn compare_records(&self, step: u32, what: &str) {
        let at = format!("seed {}, step {step}: {what}", self.seed);
        for (key, expected) in &self.records {
            let found = self
                .store
                .inspect(key)
                .await
                .expect("the store can be read");
            assert_eq!(found.as_ref(), Some(expected), "{at}");
        }
    }

    fn source(&self) -> Source {
        Source::new(format!("model-{}", self.seed)).expect("visible ASCII")
    }

    fn request(&mut self) -> Claim {
        let number = self.random.below(KEYS);
        let id = DeliveryId::new(format!("model-{}-{number}", self.seed)).expect("visible ASCII");
        let source = self.source();
        let key = match number {
            0 => ClaimKey::business(source, &BusinessKey::new().text(id.as_str()).text("ö")),
            1 => {
                let hook = Scope::HookId.source(&source, Some(7));
                ClaimKey::delivery(hook.expect("it is short"), &id)
            }
            _ => ClaimKey::delivery(source, &id),
        };
        let policy = LeasePolicy::default()
            .lease(Duration::from_secs(30))
            .max_hold(Duration::from_secs(70))
            .max_attempts(if self.random.below(4) == 0 { 2 } else { 4 });
        let gate = if self.random.below(2) == 0 {
            RetryGate::Open
        } else {
            RetryGate::WhenDue
        };
        let print = match self.random.below(8) {
            0 => None,
            1 => Some(Fingerprint::from_bytes(*b"key1another body")),
            2 => Some(Fingerprint::from_bytes(*b"key2in incompara")),
            _ => Some(Fingerprint::from_bytes(*b"key1the same one")),
        };
        Claim::bare(key, id, EventName::new("push").expect("a name"), policy)
            .gate(gate)
            .fingerprint(print)
            .action(Some("created"))
    }

    fn model_claim(&mut self, claim: &Claim) -> ClaimOutcome {
        let now = self.clock.now();
        if let Some(record) = machine::claim(self.records.get(&claim.key), claim, now) {
            self.records.insert(claim.key.clone(), record);
        }
        machine::outcome(
            (&self.records[&claim.key]).into(),
            claim,
            false,
            now,
            Instant::now(),
        )
    }

    async fn claim(&mut self) -> String {
        let claim = self.request();
        let expected = self.model_claim(&claim);
        let found = self
            .store
            .claim(claim.clone())
            .await
            .expect("the store decides");
        self.compare(&claim, &expected, found)
    }

    async fn claim_many(&mut self) -> String {
        let claims: Vec<Claim> = (0..self.random.below(6)).map(|_| self.request()).collect();
        let mut expected: Vec<ClaimOutcome> = Vec::new();
        for (at, claim) in claims.iter().enumerate() {
            // Of several claims of one key in one call, the first is asked; the others are told how it stands then.
            if claims[..at].iter().any(|other| other.key == claim.key) {
                let record = &self.records[&claim.key];
                expected.push(machine::outcome(
                    record.into(),
                    claim,
                    false,
                    self.clock.now(),
                    Instant::now(),
                ));
            } else {
                expected.push(self.model_claim(claim));
            }
        }
        let found = self
            .store
            .claim_many(claims.clone())
            .await
            .expect("the store decides");
        assert_eq!(found.len(), claims.len(), "seed {}", self.seed);
        let mut what = String::from("claim_many");
        for ((claim, expected), found) in claims.iter().zip(&expected).zip(found) {
            what += " | ";
            what += &self.compare(claim, expected, found);
        }
        what
    }

    fn compare(&mut self, claim: &Claim, expected: &ClaimOutcome, found: ClaimOutcome) -> String {
        let what = format!(
            "claim {:?} {:?} → expected {expected:?}, found {found:?}",
            claim.key, claim.gate
        );
        match (expected, &found) {
            (ClaimOutcome::Won(expected), ClaimOutcome::Won(found)) => {
                let view = |held: &Held| {
                    (
                        held.token,
                        held.fence,
                        held.attempt,
                        held.kind,
                        held.key.clone(),
                    )
                };
                assert_eq!(view(expected), view(found), "seed {}: {what}", self.seed);
            }
            _ => assert_eq!(
                format!("{expected:?}"),
                format!("{found:?}"),
                "seed {}: {what}",
                self.seed
            ),
        }
        self.held.extend(found.won());
        what
    }

    fn pass_time(&mut self) -> String {
        let by = Duration::from_millis(self.random.below(50_000));
        self.clock.advance(by);
        format!("{by:?} pass")
    }

    fn set_back(&mut self) -> String {
        let by = Duration::from_secs(self.random.below(3600));
        self.clock.set_back(by);
        format!("the clock is set back by {by:?}")
    }

    fn any_held(&mut self) -> Held {
        let at = self.random.index(self.held.len());
        self.held[at].clone()
    }

    fn expect<T: std::fmt::Debug + PartialEq>(
        &self,
        what: &str,
        expected: Result<T, LeaseLost>,
        found: Result<T, StoreError>,
    ) -> String {
        let what = format!("{what} → expected {expected:?}, found {found:?}");
        match (expected, found) {
            (Ok(expected), Ok(found)) => assert_eq!(expected, found, "seed {}: {what}", self.seed),
            (Err(LeaseLost), Err(error)) if error.is_lease_lost() => {}
            _ => panic!("seed {}: {what}", self.seed),
        }
        what
    }

    fn remember(&mut self, record: Option<Record>) {
        if let Some(record) = record {
            self.records.insert(record.key.clone(), record);
        }
    }

    async fn complete(&mut self) -> String {
        let held = self.any_held();
        let expected = machine::complete(
            self.records.get(&held.key),
            held.token,
            held.policy.keep_payload,
            self.clock.now(),
        )
        .map(|record| self.remember(record));
        let found = self.store.complete(&held).await;
        self.expect(
            &format!("complete {:?} fence {}", held.key, held.fence),
            expected,
            found,
        )
    }

    async fn fail(&mut self) -> String {
        let held = self.any_held();
        let delay = Duration::from_millis(self.random.below(20_000));
        let failure = match self.random.below(6) {
            0 => Failure::permanent("it can't work: \u{1f4a5}"),
            1 => Failure::panic("it panicked", delay),
            _ => Failure::transient("it did not work", delay),
        };
        let attempts = held.policy.attempts();
        let expected = machine::fail(
            self.records.get(&held.key),
            held.token,
            &failure,
            attempts,
            self.clock.now(),
        )
        .map(|(failed, record)| {
            self.remember(record);
            failed
        });
        let found = self.store.fail(&held, &failure).await;
        self.expect(&format!("fail {:?} {failure:?}", held.key), expected, found)
    }

    async fn release(&mut self) -> String {
        let held = self.any_held();
        let delay = Duration::from_millis(self.random.below(2) * 5_000);
        let expected = machine::release(
            self.records.get(&held.key),
            held.token,
            delay,
            self.clock.now(),
        )
        .map(|record| self.remember(record));
        let found = self.store.release(&held, delay).await;
        self.expect(&format!("release {:?}", held.key), expected, found)
    }

    async fn renew(&mut self) -> String {
        let held = self.any_held();
        let now = self.clock.now();
        let (lease, cap) = (held.policy.lease, held.policy.max_hold);
        let expected = machine::renew(self.records.get(&held.key), held.token, lease, cap, now)
            .map(|record| {
                let lease_left = record
                    .lease_until
                    .map_or(Duration::ZERO, |until| until.since(now));
                self.remember(Some(record));
                Renewal::Renewed { lease_left }
            });
        let found = self.store.renew(&held).await;
        self.expect(&format!("renew {:?}", held.key), expected, found)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::MemoryStore;

    #[tokio::test]
    async fn the_memory_store_plays_like_the_machine() {
        for seed in 0..200 {
            let clock = ManualClock::new();
            play(
                &MemoryStore::with_clock(Arc::new(clock.clone())),
                &clock,
                seed,
                60,
            )
            .await;
        }
    }

    #[tokio::test]
    async fn the_memory_store_plays_like_the_machine_for_workers_too() {
        for seed in 0..200 {
            let clock = ManualClock::new();
            play_durable(
                &MemoryStore::with_clock(Arc::new(clock.clone())),
                &clock,
                seed,
                100,
            )
            .await;
        }
    }
}
