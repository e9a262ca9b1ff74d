//! Keeping a lease while the inner service works.

use std::time::Duration;

use hookclaim::{Attempt, CancelAttempt, DeliveryStore, Fate, Held, Lease, Renewal, State};
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::layer::Settings;
use crate::observe::{Event, Operation};

/// Renews the lease of one attempt, and tells the attempt when that no longer works.
pub(super) struct Renewer<'a, St> {
    settings: &'a Settings<St>,
    lease: &'a Lease<St>,
    attempt: &'a Attempt,
    cancel: CancelAttempt,
    deadline: Instant,
    lost: bool,
}

impl<'a, St: DeliveryStore> Renewer<'a, St> {
    pub(super) fn new(
        settings: &'a Settings<St>,
        lease: &'a Lease<St>,
        attempt: &'a Attempt,
        cancel: CancelAttempt,
    ) -> Self {
        Self {
            settings,
            lease,
            attempt,
            cancel,
            deadline: local(lease.held()),
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

    /// Renews every third of the lease. Ready when there is nothing left to renew: the lease was lost, or has reached
    /// its longest hold.
    ///
    /// A store that does not answer, or answers with an error, is asked again; the attempt is told shortly before the
    /// lease runs out, so that it can stop before another one begins. A row that is locked, as by the handler's own
    /// transaction, cannot be taken over by anybody: the attempt goes on.
    pub(super) async fn renew(&mut self) {
        let held = self.lease.held();
        let every = held.policy.renew_every();
        let again = every / 4;
        let margin = held.policy.lease_length() / 10;
        let mut next = Instant::now() + every;
        let mut warn = before(self.deadline, margin);
        let mut told = false;
        loop {
            sleep_until(if told { next } else { next.min(warn) }).await;
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
            let patience = if told { sent + every } else { warn };
            let renewal = self.settings.stored(
                Operation::Renew,
                &held.delivery_id,
                self.settings.store.renew(held),
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
                    Instant::now() + again
                }
                Ok(Err(error)) if error.is_lease_lost() => {
                    // A handler that has completed its attempt and still works has lost nothing.
                    if self.is_completed().await {
                        return;
                    }
                    self.lost = true;
                    self.cancel.cancel();
                    self.settings.emit(&Event::LeaseLost {
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
                let row = self.settings.store.inspect(&held.key);
                let row = self
                    .settings
                    .stored(Operation::Inspect, &held.delivery_id, row);
                row.await.is_ok_and(|row| {
                    row.is_some_and(|row| row.token == held.token && row.state == State::Completed)
                })
            }
        }
    }

    fn tell(&self) {
        self.cancel.cancel();
        self.settings.emit(&Event::LeaseExpiring {
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
