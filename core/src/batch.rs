//! Writes that travel together.
//!
//! Callers put single writes into a queue. A pipeline that is free takes whatever waits there, carries it in one
//! statement or commit, and hands out the answers. There is no timer: with one caller a batch is that caller's write,
//! and under load it is what arrived while the batch before it was under way.

use std::collections::HashSet;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Mutex, mpsc, oneshot};

use crate::claim::{Claim, ClaimOutcome, Held, LeasePolicy, RetryGate};
use crate::error::{StoreError, StoreErrorKind};
use crate::key::ClaimKey;
use crate::machine::{self, Standing};
use crate::settle::{Settle, Settled};
use crate::time::Timestamp;

/// Writes that may wait before callers are turned away.
const CAPACITY: usize = 8192;

/// Jobs that one batch takes.
const MAX_BATCH: usize = 500;

pub(crate) type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// One write on its way, and who waits for it.
pub(crate) enum Job {
    Claim(Asked, Reply<ClaimOutcome>),
    ClaimMany(Vec<Asked>, Reply<Vec<ClaimOutcome>>),
    Settle(Settle, Reply<Settled>),
}

/// A claim, and an instant before it was sent.
pub(crate) struct Asked {
    pub(crate) claim: Claim,
    pub(crate) sent: Instant,
}

impl Asked {
    pub(crate) fn now(claim: Claim) -> Self {
        Self {
            claim,
            sent: Instant::now(),
        }
    }
}

/// The sending side of a store's writes.
#[derive(Clone, Debug)]
pub(crate) struct Queue(mpsc::Sender<Job>);

impl Queue {
    /// Starts pipelines that share one queue. They end when the last clone of the queue is gone and its writes are
    /// done.
    pub(crate) fn start<P: Pipeline>(pipelines: impl IntoIterator<Item = P>) -> Self {
        let (sender, receiver) = mpsc::channel(CAPACITY);
        let receiver = Arc::new(Mutex::new(receiver));
        for pipeline in pipelines {
            tokio::spawn(drive(pipeline, Arc::clone(&receiver)));
        }
        Self(sender)
    }

    pub(crate) async fn claim(&self, claim: Claim) -> Result<ClaimOutcome, StoreError> {
        let asked = Asked::now(claim);
        self.ask(|reply| Job::Claim(asked, reply)).await
    }

    pub(crate) async fn claim_many(
        &self,
        claims: Vec<Claim>,
    ) -> Result<Vec<ClaimOutcome>, StoreError> {
        let asked = claims.into_iter().map(Asked::now).collect();
        self.ask(|reply| Job::ClaimMany(asked, reply)).await
    }

    pub(crate) async fn settle(&self, settle: Settle) -> Result<Settled, StoreError> {
        self.ask(|reply| Job::Settle(settle, reply)).await
    }

    async fn ask<T>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        self.0
            .try_send(job(reply))
            .map_err(|refused| match refused {
                mpsc::error::TrySendError::Full(_) => StoreError::new(
                    StoreErrorKind::Overloaded,
                    format!("{CAPACITY} writes wait for the store already"),
                ),
                mpsc::error::TrySendError::Closed(_) => stopped(),
            })?;
        answer.await.unwrap_or_else(|_| Err(stopped()))
    }
}

fn stopped() -> StoreError {
    StoreError::new(
        StoreErrorKind::Unavailable,
        "the store's writer has stopped with its runtime",
    )
}

/// Carries batches to a database.
pub(crate) trait Pipeline: Send + 'static {
    /// Carries one batch and answers every job of it.
    fn carry(&mut self, batch: Batch) -> impl Future<Output = ()> + Send;
}

async fn drive<P: Pipeline>(mut pipeline: P, queue: Arc<Mutex<mpsc::Receiver<Job>>>) {
    let mut jobs = Vec::new();
    loop {
        // Whoever holds the lock waits for the first job and takes what is there by then; the others are at work, or
        // wait for the lock.
        if queue.lock().await.recv_many(&mut jobs, MAX_BATCH).await == 0 {
            return;
        }
        pipeline.carry(Batch::new(jobs.drain(..))).await;
    }
}

/// Jobs by kind.
#[derive(Default)]
pub(crate) struct Batch {
    claims: Vec<Asked>,
    claimers: Vec<Claimer>,
    settles: Vec<Settle>,
    settlers: Vec<Reply<Settled>>,
}

enum Claimer {
    One(Reply<ClaimOutcome>),
    Many(usize, Reply<Vec<ClaimOutcome>>),
}

impl Batch {
    fn new(jobs: impl Iterator<Item = Job>) -> Self {
        let mut batch = Self::default();
        for job in jobs {
            match job {
                Job::Claim(asked, reply) => {
                    batch.claims.push(asked);
                    batch.claimers.push(Claimer::One(reply));
                }
                Job::ClaimMany(asked, reply) => {
                    batch.claimers.push(Claimer::Many(asked.len(), reply));
                    batch.claims.extend(asked);
                }
                Job::Settle(settle, reply) => {
                    batch.settles.push(settle);
                    batch.settlers.push(reply);
                }
            }
        }
        batch
    }

    pub(crate) fn claims(&self) -> &[Asked] {
        &self.claims
    }

    pub(crate) fn settles(&self) -> &[Settle] {
        &self.settles
    }

    /// Hands out the answers, and returns the claims that were won for callers who have gone.
    #[must_use]
    pub(crate) fn answer(
        self,
        claims: Result<Vec<ClaimOutcome>, StoreError>,
        settles: Result<Vec<Result<Settled, StoreError>>, StoreError>,
    ) -> Vec<Held> {
        let mut orphans = Vec::new();
        let mut outcomes = claims.map(Vec::into_iter);
        for claimer in self.claimers {
            match claimer {
                Claimer::One(reply) => {
                    let answer = match &mut outcomes {
                        Ok(outcomes) => outcomes.next().ok_or_else(stopped),
                        Err(error) => Err(error.clone()),
                    };
                    if let Err(Ok(unheard)) = reply.send(answer) {
                        orphans.extend(unheard.won());
                    }
                }
                Claimer::Many(len, reply) => {
                    let answer = match &mut outcomes {
                        Ok(outcomes) => Ok(outcomes.take(len).collect()),
                        Err(error) => Err(error.clone()),
                    };
                    if let Err(Ok(unheard)) = reply.send(answer) {
                        let unheard: Vec<ClaimOutcome> = unheard;
                        orphans.extend(unheard.into_iter().filter_map(ClaimOutcome::won));
                    }
                }
            }
        }
        let mut settles = settles.map(Vec::into_iter);
        for reply in self.settlers {
            let answer = match &mut settles {
                Ok(settles) => settles.next().unwrap_or_else(|| Err(stopped())),
                Err(error) => Err(error.clone()),
            };
            // Nobody waits for a renewal whose handler is done.
            let _ = reply.send(answer);
        }
        orphans
    }
}

/// What a statement says of one requested key after it.
pub(crate) struct Row {
    pub(crate) standing: Standing,
    pub(crate) busy: bool,
    pub(crate) now: Timestamp,
}

/// Which claims of a batch go to the database, and how the others are answered: a statement takes each key once.
///
/// Claims are put in the order of their keys, the same in every batch, so that batches that overlap never wait for
/// each other in a circle.
pub(crate) struct Plan {
    /// Positions of the claims that go, by key.
    leaders: Vec<usize>,
}

/// What claims must share to travel in one statement. All claims of a layer do.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Terms {
    pub(crate) policy: LeasePolicy,
    pub(crate) gate: RetryGate,
}

impl Plan {
    pub(crate) fn new(claims: &[Asked]) -> Self {
        let mut leaders: Vec<usize> = (0..claims.len()).collect();
        leaders.sort_by(|&a, &b| (&claims[a].claim.key, a).cmp(&(&claims[b].claim.key, b)));
        leaders.dedup_by(|next, first| claims[*next].claim.key == claims[*first].claim.key);
        Self { leaders }
    }

    /// The keys that go.
    pub(crate) fn keys<'a>(&self, claims: &'a [Asked]) -> impl Iterator<Item = &'a ClaimKey> {
        self.leaders.iter().map(|&at| &claims[at].claim.key)
    }

    /// The claims that go, by what they share.
    pub(crate) fn by_terms<'a>(&self, claims: &'a [Asked]) -> Vec<(Terms, Vec<&'a Claim>)> {
        let mut groups: Vec<(Terms, Vec<&Claim>)> = Vec::with_capacity(1);
        for &leader in &self.leaders {
            let claim = &claims[leader].claim;
            let terms = Terms {
                policy: claim.policy,
                gate: claim.gate,
            };
            match groups.iter_mut().find(|(other, _)| *other == terms) {
                Some((_, group)) => group.push(claim),
                None => groups.push((terms, vec![claim])),
            }
        }
        groups
    }

    /// The outcomes in the order of the claims. `row` finds what the statement said of a key.
    pub(crate) fn outcomes<'a>(
        claims: &[Asked],
        row: impl Fn(&ClaimKey) -> Option<&'a Row>,
    ) -> Result<Vec<ClaimOutcome>, StoreError> {
        let outcome = |asked: &Asked| {
            let row = row(&asked.claim.key).ok_or_else(|| {
                StoreError::new(
                    StoreErrorKind::Corrupt,
                    "the store gave no verdict on a claim",
                )
            })?;
            Ok(machine::outcome(
                row.standing,
                &asked.claim,
                row.busy,
                row.now,
                asked.sent,
            ))
        };
        claims.iter().map(outcome).collect()
    }
}

/// Splits settlements into rounds in which no key is twice: two writes of one row in one statement would be one.
pub(crate) fn rounds(settles: &[Settle]) -> Vec<Vec<usize>> {
    let mut rounds = Vec::new();
    let mut rest: Vec<usize> = (0..settles.len()).collect();
    while !rest.is_empty() {
        let mut seen = HashSet::with_capacity(rest.len());
        let (round, later) = rest
            .into_iter()
            .partition(|&at| seen.insert(&settles[at].key));
        rounds.push(round);
        rest = later;
    }
    rounds
}

/// Waits between attempts to reach a database that refused for a passing reason.
pub(crate) fn pause(attempt: u32) -> Duration {
    crate::Backoff::new(Duration::from_millis(10), Duration::from_millis(200)).delay(attempt)
}
