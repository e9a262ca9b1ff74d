//! The contract of a store, clause by clause.
//!
//! ```
//! use std::sync::Arc;
//! use hookclaim::MemoryStore;
//! use hookclaim::testing::{ManualClock, conformance};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() {
//! let clock = ManualClock::new();
//! conformance::check(&MemoryStore::with_clock(Arc::new(clock.clone())), &clock).await;
//! # }
//! ```

mod claims;
mod keeping;
mod lasting;
mod listing;
mod queue;
mod settling;
mod taking;
mod transactions;

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use super::ManualClock;
use crate::claim::{Claim, ClaimOutcome, Held, LeasePolicy};
use crate::delivery::{DeliveryId, EventName};
use crate::durable::{DurableStore, TransactionalDurableStore};
use crate::error::StoreError;
use crate::key::{ClaimKey, Source};
use crate::record::Record;
use crate::store::{DeliveryStore, TransactionalStore};

/// The lease that the clauses work with.
const LEASE: Duration = Duration::from_secs(30);

type Run<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;
type Clause<St> = (&'static str, for<'a> fn(&'a Bench<'a, St>) -> Run<'a>);

/// Boxes clauses with their names.
macro_rules! clauses {
    ($($name:literal => $clause:path,)*) => {
        [$(($name, |bench| Box::pin($clause(bench)))),*]
    };
}

/// Checks every clause on an empty store that reads `clock`. Each clause has keys of its own.
///
/// # Panics
///
/// If the store breaks a clause. The clause's number and sentence are printed before it is checked.
pub async fn check<St: DeliveryStore>(store: &St, clock: &ManualClock) {
    let list: [Clause<St>; 23] = clauses! {
        "C1 a new key is won, as attempt 1 with fence 1" => claims::new_key,
        "C2 a leased key is in progress, and its row stays as it is" => claims::leased,
        "C3 a claim that is sent again wins again and changes nothing" => claims::resent,
        "C4 a completed key stays completed" => claims::completed,
        "C5 a lease that is over is taken over, and the old token settles nothing any more" => claims::takeover,
        "C6 a failed key is won at once through the open gate, and when due through the other" => claims::gate,
        "C7 a dead key stays dead" => claims::dead,
        "C8 a key whose attempts are used up by crashes is dead at the next claim" => claims::crash_loop,
        "C9 the same delivery id with other bytes wins nothing and changes nothing" => claims::other_body,
        "C10 sources are apart, and keys are compared byte by byte" => claims::apart,
        "C11 of claims made together each has its own outcome, in order, and a key is won once" => claims::together,
        "C12 of many racing claims one wins" => claims::race,
        "C13 a claim whose caller has gone does not block its key" => claims::abandoned,
        "C14 a clock that is set back blocks nothing" => claims::clock_set_back,
        "S1 completing twice is completing once" => settling::complete_twice,
        "S2 an owner whose lease is over may still settle while nobody took over" => settling::late_owner,
        "S3 a transient failure waits for its delay; told twice, it is the same" => settling::fail_twice,
        "S4 failing on the last attempt is dead" => settling::last_attempt,
        "S5 a release takes its attempt back, and never the fence" => settling::release,
        "S6 a renewal begins the lease anew, up to the longest hold" => settling::renew,
        "S7 nothing is settled under a token that does not hold the key" => settling::wrong_token,
        "K1 terminal rows past their retention are pruned, in bounded steps, and no others" => keeping::prune,
        "K2 rows are listed newest first, by filter, and counted by state" => keeping::list,
    };
    run(store, clock, &list).await;
}

/// Checks the clauses of transactions, after those of [`check`].
///
/// # Panics
///
/// As [`check`].
pub async fn check_transactional<St: TransactionalStore>(store: &St, clock: &ManualClock) {
    let list: [Clause<St>; 7] = clauses! {
        "T1 a completion within a transaction counts once that commits" => transactions::commit,
        "T2 a completion within a transaction that is rolled back never happened" => transactions::rollback,
        "T3 a lost lease rolls the handler's transaction back" => transactions::lost,
        "T4 a lost lease that is overlooked commits nothing" => transactions::overlooked,
        "T5 a delivery that is locked by its handler's transaction is not taken over" => transactions::locked,
        "T6 a caller who goes away while beginning leaves nothing open" => transactions::abandoned_begin,
        "T7 an attempt that was completed writes nothing more" => transactions::once,
    };
    check(store, clock).await;
    run(store, clock, &list).await;
}

/// Checks the clauses of stores that keep deliveries for workers, after those of [`check`].
///
/// # Panics
///
/// As [`check`].
pub async fn check_durable<St: DurableStore>(store: &St, clock: &ManualClock) {
    check(store, clock).await;
    check_queue(store, clock).await;
}

/// Checks the clauses of stores that do both, after those of [`check_transactional`] and [`check_durable`].
///
/// # Panics
///
/// As [`check`].
pub async fn check_transactional_durable<St: TransactionalDurableStore>(
    store: &St,
    clock: &ManualClock,
) {
    let list: [Clause<St>; 6] = clauses! {
        "W1 work that is stored in a transaction is there once that commits" => transactions::enqueue_commits,
        "W2 work that is stored in a transaction that is rolled back never was" => transactions::enqueue_rolls_back,
        "W3 work whose key is there is told how it stands, and the transaction goes on" => transactions::enqueue_told,
        "W4 a commit with work in it is announced" => transactions::enqueue_announces,
        "W5 a completion within a transaction drops the payload unless it is to be kept" => transactions::payload,
        "W6 a delivery that is locked by its handler's transaction is not acquired" => transactions::not_taken,
    };
    check_transactional(store, clock).await;
    check_queue(store, clock).await;
    run(store, clock, &list).await;
}

async fn check_queue<St: DurableStore>(store: &St, clock: &ManualClock) {
    // The first counts everything that waits, and needs a store in which nothing does.
    let list: [Clause<St>; 25] = clauses! {
        "Q1 what waits and what is leased is counted" => queue::counted,
        "Q2 a new key is received, and its request can be read back as it came" => queue::new_key,
        "Q3 a delivery that is stored again changes nothing" => queue::twice,
        "Q4 whoever stores a delivery again is told how it stands" => queue::standing,
        "Q5 a delivery that failed without its payload, or whose lease is over, gets it" => queue::late_payload,
        "Q6 a change is told to everybody, and not lost" => queue::announced,
        "Q7 what has been due for longest is taken first, and no more than was asked for" => taking::oldest_first,
        "Q8 what is taken counts as an attempt and raises the fence" => taking::counted,
        "Q9 nothing is taken before it is due" => taking::when_due,
        "Q10 nothing is taken without its payload, nor of another source" => taking::nobody_elses,
        "Q11 what is leased is taken over once its lease is over, if that is asked for" => taking::expired,
        "Q12 what has used up its attempts is dead, and what stands behind it starts" => taking::used_up,
        "Q13 the fresh lane has what just came, the newest first, unless it is a queue" => taking::fresh_lane,
        "Q14 deliveries with one ordering key start as they arrived, one at a time" => taking::in_order,
        "Q15 a failed delivery steps aside, or holds up those behind it" => taking::failing_head,
        "Q16 of many racing workers one gets each delivery" => taking::race,
        "Q17 what is taken for a caller who has gone is released" => taking::abandoned,
        "Q18 a payload is dropped at the completion unless it is to be kept" => lasting::payload,
        "Q19 a payload is attached to a claim that is held, once" => lasting::keep,
        "Q20 an operator's retry makes a delivery due, and is written down" => lasting::retry,
        "Q21 nothing is settled under a token from before a retry" => lasting::old_token,
        "Q22 a delivery that another covers is listed with it, and forgotten with it" => listing::covered,
        "Q23 payloads that were kept are dropped before their records, in bounded steps" => lasting::prune,
        "Q24 pages of a list have every row once, by error too" => listing::list,
        "Q25 what runs is the delivery whose body was stored" => lasting::whose_body,
    };
    run(store, clock, &list).await;
}

async fn run<St: DeliveryStore>(store: &St, clock: &ManualClock, clauses: &[Clause<St>]) {
    for (name, clause) in clauses {
        eprintln!("{name}");
        clause(&Bench {
            store,
            clock,
            clause: name.split(' ').next().unwrap_or(name),
        })
        .await;
    }
}

/// What a clause works with.
struct Bench<'a, St> {
    store: &'a St,
    clock: &'a ManualClock,
    clause: &'static str,
}

impl<St: DeliveryStore> Bench<'_, St> {
    fn id(&self, name: &str) -> DeliveryId {
        DeliveryId::new(format!("{}-{name}", self.clause)).expect("visible ASCII")
    }

    fn key(&self, name: &str) -> ClaimKey {
        ClaimKey::delivery(Source::default(), &self.id(name))
    }

    fn policy(&self) -> LeasePolicy {
        LeasePolicy::default().lease(LEASE).max_attempts(3)
    }

    fn ask(&self, name: &str) -> Claim {
        let event = EventName::new("issue_comment").expect("a name");
        Claim::bare(self.key(name), self.id(name), event, self.policy())
    }

    async fn claim(&self, name: &str) -> ClaimOutcome {
        self.store
            .claim(self.ask(name))
            .await
            .expect("the store decides")
    }

    async fn win(&self, name: &str) -> Held {
        let outcome = self.claim(name).await;
        outcome
            .clone()
            .won()
            .unwrap_or_else(|| panic!("{} is not won: {outcome:?}", self.key(name).key()))
    }

    async fn row(&self, name: &str) -> Record {
        self.store
            .inspect(&self.key(name))
            .await
            .expect("the store can be read")
            .expect("there is a row")
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the call is the argument")]
fn assert_lost<T: std::fmt::Debug>(result: Result<T, StoreError>) {
    assert!(
        matches!(&result, Err(error) if error.is_lease_lost()),
        "not lost: {result:?}"
    );
}

/// Polls a future once and drops it.
async fn begin_and_drop<F: Future>(future: F) {
    let mut future = Some(pin!(future));
    std::future::poll_fn(|context| {
        if let Some(future) = future.as_mut() {
            let _ = future.as_mut().poll(context);
        }
        future = None;
        Poll::Ready(())
    })
    .await;
}
