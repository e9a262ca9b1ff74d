//! What an attempt writes after its claim, as the database stores carry it.

use std::time::Duration;

use crate::claim::{Failed, Failure, Held, Renewal};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::ClaimKey;
use crate::machine::{self, LeaseLost};
use crate::record::{ClaimToken, ErrorClass, Record, State};
use crate::time::{LONGEST, Timestamp, micros};

/// One write of an attempt.
#[derive(Clone, Debug)]
pub(crate) struct Settle {
    pub(crate) key: ClaimKey,
    pub(crate) token: ClaimToken,
    operation: Operation,
}

#[derive(Clone, Debug)]
enum Operation {
    Complete { keep_payload: bool },
    Fail { failure: Failure, max_attempts: u32 },
    Release { delay: Duration },
    Renew { lease: Duration, max_hold: Duration },
}

/// What became of it.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Settled {
    Done,
    Failed(Failed),
    Renewed { lease_left: Duration },
}

impl Settle {
    pub(crate) fn complete(held: &Held) -> Self {
        let keep_payload = held.policy.keep_payload;
        Self::new(held, Operation::Complete { keep_payload })
    }

    pub(crate) fn fail(held: &Held, failure: &Failure) -> Self {
        let max_attempts = held.policy.max_attempts;
        Self::new(
            held,
            Operation::Fail {
                failure: failure.clone(),
                max_attempts,
            },
        )
    }

    pub(crate) fn release(held: &Held, delay: Duration) -> Self {
        let delay = delay.min(LONGEST);
        Self::new(held, Operation::Release { delay })
    }

    pub(crate) fn renew(held: &Held) -> Self {
        let policy = held.policy;
        Self::new(
            held,
            Operation::Renew {
                lease: policy.lease,
                max_hold: policy.max_hold,
            },
        )
    }

    fn new(held: &Held, operation: Operation) -> Self {
        Self {
            key: held.key.clone(),
            token: held.token,
            operation,
        }
    }

    /// The operation's number in the statements.
    pub(crate) fn code(&self) -> i16 {
        match self.operation {
            Operation::Complete { .. } => 1,
            Operation::Fail { .. } => 2,
            Operation::Release { .. } => 3,
            Operation::Renew { .. } => 4,
        }
    }

    /// Delay or lease, in microseconds.
    pub(crate) fn span(&self) -> i64 {
        match &self.operation {
            Operation::Complete { .. } => 0,
            Operation::Fail { failure, .. } => micros(failure.delay()),
            Operation::Release { delay } => micros(*delay),
            Operation::Renew { lease, .. } => micros(*lease),
        }
    }

    /// Most attempts, or the longest hold in microseconds, or whether a payload stays.
    pub(crate) fn bound(&self) -> i64 {
        match &self.operation {
            Operation::Complete { keep_payload } => i64::from(*keep_payload),
            Operation::Release { .. } => 0,
            Operation::Fail { max_attempts, .. } => i64::from(*max_attempts),
            Operation::Renew { max_hold, .. } => micros(*max_hold),
        }
    }

    pub(crate) fn class(&self) -> Option<&'static str> {
        match &self.operation {
            Operation::Complete { .. } | Operation::Renew { .. } => None,
            Operation::Fail { failure, .. } => Some(failure.class().as_str()),
            Operation::Release { .. } => Some(ErrorClass::Released.as_str()),
        }
    }

    pub(crate) fn message(&self) -> Option<&str> {
        match &self.operation {
            Operation::Fail { failure, .. } => Some(failure.message()),
            Operation::Complete { .. } | Operation::Release { .. } | Operation::Renew { .. } => {
                None
            }
        }
    }

    /// The answer if the statement changed the row, which looks like this now.
    pub(crate) fn changed(
        &self,
        state: State,
        lease_until: Option<Timestamp>,
        retry_at: Option<Timestamp>,
        now: Timestamp,
    ) -> Settled {
        match (&self.operation, state) {
            (Operation::Fail { .. }, State::Dead) => Settled::Failed(Failed::Dead),
            (Operation::Fail { .. }, _) => Settled::Failed(Failed::Retry {
                at: retry_at.unwrap_or(now),
            }),
            (Operation::Renew { .. }, _) => Settled::Renewed {
                lease_left: lease_until.map_or(Duration::ZERO, |until| until.since(now)),
            },
            (Operation::Complete { .. } | Operation::Release { .. }, _) => Settled::Done,
        }
    }

    /// The answer if the statement did not change the row, which looks like this: settled before by the same claim,
    /// locked, or lost.
    pub(crate) fn unchanged(&self, record: Option<&Record>) -> Result<Settled, StoreError> {
        let Some(record) = record.filter(|record| record.token == self.token) else {
            return Err(StoreError::lease_lost());
        };
        if record.state == State::Processing {
            return Err(StoreError::busy());
        }
        // What is settled already does not depend on the time.
        let now = record.finished_at.unwrap_or(record.received_at);
        let settled: Result<Settled, LeaseLost> = match &self.operation {
            Operation::Complete { keep_payload } => {
                machine::complete(Some(record), self.token, *keep_payload, now)
                    .map(|_| Settled::Done)
            }
            Operation::Release { delay } => {
                machine::release(Some(record), self.token, *delay, now).map(|_| Settled::Done)
            }
            Operation::Fail {
                failure,
                max_attempts,
            } => machine::fail(Some(record), self.token, failure, *max_attempts, now)
                .map(|(failed, _)| Settled::Failed(failed)),
            Operation::Renew { .. } => Err(LeaseLost),
        };
        Ok(settled?)
    }
}

impl Settled {
    pub(crate) fn failed(self) -> Result<Failed, StoreError> {
        match self {
            Self::Failed(failed) => Ok(failed),
            Self::Done | Self::Renewed { .. } => Err(mixed_up()),
        }
    }

    pub(crate) fn renewal(self) -> Result<Renewal, StoreError> {
        match self {
            Self::Renewed { lease_left } => Ok(Renewal::Renewed { lease_left }),
            Self::Done | Self::Failed(_) => Err(mixed_up()),
        }
    }
}

fn mixed_up() -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "the store answered another operation than was asked",
    )
}
