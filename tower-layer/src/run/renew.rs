//! Keeping a lease while the inner service works.

use std::time::Duration;

use hookclaim::{Attempt, CancelAttempt, DeliveryStore, Fate, Held, Lease, Renewal, State};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};

use crate::engine::Engine;
use crate::observe::{Event, Operation};

/// Renews the lease of one attempt, and tells the attempt when that no longer works.
pub(super) struct Renewer<'a, St> {
    engine: &'a Engine<St>,
    lease: &'a Lease<St>,
    attempt: &'a Attempt,
    cancel: CancelAttempt,
    deadline: Instant,
    /// When the longest hold is over, whatever the row says.
    hold_until: Instant,
    lost: bool,
}

impl<'a, St: DeliveryStore> Renewer<'a, St> {
    pub(super) fn new(
        engine: &'a Engine<St>,
        lease: &'a Lease<St>,
        attempt: &'a Attempt,
        cancel: CancelAttempt,
    ) -> Self {
        Self {
            engine,
            lease,
            attempt,
            cancel,
            deadline: local(lease.held()),
            hold_until: Instant::now() + lease.held().policy.longest_hold(),
            lost: false,
        }
    }

    /// Until when the lease surely holds.
    pub(super) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// Whether another attempt was found to hold the delivery.
    pub(super) fn lost(&self) -> bool {
        self.lost
    }

    /// Renews the lease until the attempt has to be stopped: when another one may have begun. Never ready otherwise.
    pub(super) async fn renew_or_stop(&mut self) {
        self.renew(true).await;
        if self.lost {
            // Told a moment ago: it gets as long to stop as it does before a lease that runs out.
            sleep(self.margin()).await;
        } else if self.lease.fate() == Fate::Committed {
            // There is nothing left that another attempt could do.
            std::future::pending::<()>().await;
        } else {
            sleep_until(self.deadline).await;
        }
    }

    fn margin(&self) -> Duration {
        self.lease.held().policy.lease_length() / 10
    }

    /// Renews every third of the lease. Ready when there is nothing left to renew: the lease was lost, or has reached
    /// its longest hold.
    ///
    /// A store that does not answer, or answers with an error, is asked again; the attempt is told shortly before the
    /// lease runs out, so that it can stop before another one begins. A row that is locked, as by the handler's own
    /// transaction, cannot be taken over by anybody: the attempt goes on.
    ///
    /// With `give_up` it is ready as well once the lease is over without an answer, and the longest hold even so.
    pub(super) async fn renew(&mut self, give_up: bool) {
        let held = self.lease.held();
        let every = held.policy.renew_every();
        let again = every / 4;
        let margin = self.margin();
        let mut next = Instant::now() + every;
        let mut warn = before(self.deadline, margin);
        let mut told = false;
        loop {
            let over = give_up.then(|| self.deadline.max(warn).min(self.hold_until));
            let wake = if told { over } else { Some(warn) };
            sleep_until(wake.map_or(next, |wake| next.min(wake))).await;
            if told && over.is_some_and(|over| Instant::now() >= over) {
                return;
            }
            if self.lease.fate() == Fate::Committed {
                return;
            }
            let sent = Instant::now();
            if !told && sent >= warn {
                self.tell();
                told = true;
                continue;
            }
            // A renewal that hangs must not keep the warning back.
            let patience = if told {
                over.unwrap_or(sent + every)
            } else {
                warn
            };
            let renewal = self.engine.stored(
                Operation::Renew,
                Some(&held.delivery_id),
                self.engine.store.renew(held),
            );
            next = match timeout_at(patience, renewal).await {
                Ok(Ok(Renewal::Renewed { lease_left })) => {
                    // Counted from before the renewal was sent, so that it errs on the safe side.
                    self.deadline = sent + lease_left;
                    warn = before(self.deadline, margin);
                    if lease_left <= margin {
                        if !told {
                            self.tell();
                        }
                        return;
                    }
                    sent + every
                }
                Ok(Ok(Renewal::Busy)) => {
                    warn = warn.max(Instant::now() + 2 * again);
                    if give_up && Instant::now() + margin >= self.hold_until && !told {
                        self.tell();
                        told = true;
                    }
                    Instant::now() + again
                }
                Ok(Err(error)) if error.is_lease_lost() => {
                    // A handler that has completed its attempt and still works has lost nothing.
                    if self.is_completed().await {
                        return;
                    }
                    self.lost = true;
                    self.cancel.cancel();
                    self.engine.emit(&Event::LeaseLost {
                        attempt: self.attempt,
                    });
                    return;
                }
                Ok(Err(_)) | Err(_) => Instant::now() + again,
            };
        }
    }

    /// Whether the handler completed the attempt in a transaction of its own, and that was committed.
    async fn is_completed(&self) -> bool {
        let held = self.lease.held();
        match self.lease.fate() {
            Fate::Untouched => false,
            Fate::Committed => true,
            Fate::InStore => {
                let row = self.engine.store.inspect(&held.key);
                let row = self
                    .engine
                    .stored(Operation::Inspect, Some(&held.delivery_id), row);
                row.await.is_ok_and(|row| {
                    row.is_some_and(|row| row.token == held.token && row.state == State::Completed)
                })
            }
        }
    }

    fn tell(&self) {
        self.cancel.cancel();
        self.engine.emit(&Event::LeaseExpiring {
            attempt: self.attempt,
        });
    }
}

/// The claim's deadline on the runtime's clock, which tests can pause.
fn local(held: &Held) -> Instant {
    let left = held
        .deadline
        .saturating_duration_since(std::time::Instant::now());
    Instant::now() + left
}

fn before(deadline: Instant, margin: Duration) -> Instant {
    deadline.checked_sub(margin).unwrap_or(deadline)
}
