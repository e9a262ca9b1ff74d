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
mod settling;
mod transactions;

use std::future::Future;
use std::pin::{Pin, pin};
use std::task::Poll;
use std::time::Duration;

use super::ManualClock;
use crate::claim::{Claim, ClaimOutcome, Held, LeasePolicy};
use crate::delivery::{DeliveryId, EventName};
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
    let list: [Clause<St>; 6] = clauses! {
        "T1 a completion within a transaction counts once that commits" => transactions::commit,
        "T2 a completion within a transaction that is rolled back never happened" => transactions::rollback,
        "T3 a lost lease rolls the handler's transaction back" => transactions::lost,
        "T4 a lost lease that is overlooked commits nothing" => transactions::overlooked,
        "T5 a delivery that is locked by its handler's transaction is not taken over" => transactions::locked,
        "T6 a caller who goes away while beginning leaves nothing open" => transactions::abandoned_begin,
    };
    check(store, clock).await;
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
