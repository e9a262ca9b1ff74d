//! Recording how an attempt ended.

use std::time::Duration;

use hookclaim::{
    Attempt, Delivery, DeliveryStore, ErrorClass, Failed, Failure, Fate, Lease, State, StoreError,
    StoreErrorKind,
};
use tokio::time::{Instant, sleep, timeout_at};

use crate::engine::Engine;
use crate::observe::{Event, Operation, Settlement};

/// How often a store that does not answer is asked.
const TRIES: u32 = 5;

/// The first pause between two tries; each further one is twice as long, up to [`LONGEST_PAUSE`].
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// How long one try may take at least, however little is left of the lease.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the operator reads of a handler whose transaction did not commit.
const NOT_COMMITTED: &str = "the handler's transaction was rolled back or never committed";

/// How an attempt is to be recorded.
pub(super) enum End {
    Complete,
    Fail(Failure),
    /// Handed back at a shutdown.
    Release,
}

/// How an attempt was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    Completed,
    Failed,
    Released,
    LeaseLost,
    Unknown,
}

/// Records how one attempt ended.
pub(super) struct Settler<'a, St> {
    pub(super) engine: &'a Engine<St>,
    pub(super) lease: &'a Lease<St>,
    pub(super) delivery: &'a Delivery,
    pub(super) attempt: &'a Attempt,
    /// Until when the lease surely holds: as long, and no longer, it is worth to wait for the store.
    pub(super) deadline: Instant,
    /// Whether the loss of the lease has been reported.
    pub(super) lost: bool,
    pub(super) ran: Duration,
}

impl<St: DeliveryStore> Settler<'_, St> {
    /// Records the end, unless the handler left the decision to the store's row.
    pub(super) async fn settle(self, end: End) -> Settled {
        let (result, end) = match self.lease.fate() {
            Fate::Committed => (Ok(Recorded::Completed), end),
            Fate::Untouched => (self.record(&end).await, end),
            Fate::InStore => {
                let end = self.not_committed(end);
                (self.read_off(&end).await, end)
            }
        };
        let (settlement, settled) = match (&result, &end) {
            (Ok(Recorded::Failed(next)), End::Fail(failure)) => {
                let settlement = Settlement::Failed {
                    class: failure.class(),
                    message: failure.message(),
                    next: *next,
                };
                (settlement, Settled::Failed)
            }
            (Ok(Recorded::Released), _) => (Settlement::Released, Settled::Released),
            (Ok(_), _) => (Settlement::Completed, Settled::Completed),
            (Err(error), _) if error.is_lease_lost() => (Settlement::LeaseLost, Settled::LeaseLost),
            (Err(_), _) => (Settlement::Unknown, Settled::Unknown),
        };
        if settled == Settled::LeaseLost && !self.lost {
            self.engine.emit(&Event::LeaseLost {
                attempt: self.attempt,
            });
        }
        self.engine.emit(&Event::Settled {
            attempt: self.attempt,
            delivery: self.delivery,
            settlement,
            ran: self.ran,
        });
        settled
    }

    /// The end of an attempt whose transaction came to nothing: it may commit next time, whatever the status said. The
    /// handler's own failure tells more than that, where there is one.
    fn not_committed(&self, end: End) -> End {
        let delay = || self.engine.backoff.delay(self.attempt.number());
        match end {
            End::Complete => End::Fail(Failure::transient(NOT_COMMITTED, delay())),
            End::Fail(failure) if failure.class() == ErrorClass::Permanent => {
                End::Fail(Failure::transient(failure.message(), delay()))
            }
            end => end,
        }
    }

    /// Writes the end of the attempt.
    async fn record(&self, end: &End) -> Result<Recorded, StoreError> {
        let mut pauses = Pauses::new(self.deadline);
        loop {
            match self.write(end).await {
                Err(error) if pauses.after(&error).await => {}
                result => return result,
            }
        }
    }

    /// Reads off the row what became of the handler's transaction, and records `end` if it came to nothing.
    async fn read_off(&self, end: &End) -> Result<Recorded, StoreError> {
        let mut pauses = Pauses::new(self.deadline);
        let mut contradicted = false;
        loop {
            let error = match self.standing().await {
                Ok(Some(State::Completed)) => return Ok(Recorded::Completed),
                Ok(Some(State::Processing)) => match self.write(end).await {
                    // It may have committed since the row was read: that is told by reading it again, once.
                    Err(error) if error.is_lease_lost() && !contradicted => {
                        contradicted = true;
                        continue;
                    }
                    Err(error) => error,
                    recorded => return recorded,
                },
                Ok(_) => {
                    return Err(StoreError::new(
                        StoreErrorKind::LeaseLost,
                        "the delivery was settled by somebody else",
                    ));
                }
                Err(error) => error,
            };
            if !pauses.after(&error).await {
                return Err(error);
            }
        }
    }

    /// Where the delivery stands, if it still is this attempt's.
    async fn standing(&self) -> Result<Option<State>, StoreError> {
        let held = self.lease.held();
        let record = self
            .patiently(Operation::Inspect, self.engine.store.inspect(&held.key))
            .await?;
        Ok(record
            .filter(|record| record.token == held.token)
            .map(|record| record.state))
    }

    async fn write(&self, end: &End) -> Result<Recorded, StoreError> {
        let (store, held) = (&self.engine.store, self.lease.held());
        match end {
            End::Complete => self
                .patiently(Operation::Complete, store.complete(held))
                .await
                .map(|()| Recorded::Completed),
            End::Fail(failure) => self
                .patiently(Operation::Fail, store.fail(held, failure))
                .await
                .map(Recorded::Failed),
            End::Release => self
                .patiently(Operation::Release, store.release(held, Duration::ZERO))
                .await
                .map(|()| Recorded::Released),
        }
    }

    async fn patiently<T>(
        &self,
        operation: Operation,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = self.deadline.max(Instant::now() + PATIENCE);
        let work = async {
            timeout_at(limit, work).await.unwrap_or_else(|_| {
                Err(StoreError::new(
                    StoreErrorKind::Unavailable,
                    "the store did not answer in time",
                ))
            })
        };
        self.engine
            .stored(operation, Some(self.delivery.id()), work)
            .await
    }
}

/// What the store has of the attempt's end.
enum Recorded {
    Completed,
    Failed(Failed),
    Released,
}

/// When to ask a store again that could not do as it was told.
struct Pauses {
    deadline: Instant,
    pause: Duration,
    tries: u32,
}

impl Pauses {
    fn new(deadline: Instant) -> Self {
        Self {
            deadline,
            pause: PAUSE,
            tries: 1,
        }
    }

    /// Waits before another try after this error; false if there is to be none.
    async fn after(&mut self, error: &StoreError) -> bool {
        let hopeful = match error.kind() {
            // An open transaction keeps everybody else away too.
            StoreErrorKind::Busy => true,
            StoreErrorKind::Unavailable | StoreErrorKind::Overloaded => self.tries < TRIES,
            _ => false,
        };
        if !hopeful || Instant::now() + self.pause >= self.deadline {
            return false;
        }
        sleep(self.pause).await;
        self.tries += 1;
        self.pause = (2 * self.pause).min(LONGEST_PAUSE);
        true
    }
}
