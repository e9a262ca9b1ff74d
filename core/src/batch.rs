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
use crate::inbox::{Acquire, Acquisition, EnqueueOutcome};
use crate::key::ClaimKey;
use crate::machine::{self, Standing};
use crate::record::ClaimToken;
use crate::request::StoredRequest;
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
    Enqueue(Asked, Reply<EnqueueOutcome>),
    Acquire(Taking, Reply<Acquisition>),
    Keep(Keep, Reply<()>),
    Settle(Settle, Reply<Settled>),
}

/// A request for due deliveries, and an instant before it was sent.
pub(crate) struct Taking {
    pub(crate) acquire: Acquire,
    pub(crate) sent: Instant,
}

/// A payload on its way to the claim that it belongs to.
pub(crate) struct Keep {
    pub(crate) key: ClaimKey,
    pub(crate) token: ClaimToken,
    pub(crate) request: StoredRequest,
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

    /// Stores a claim for later; it has what is kept of its request.
    pub(crate) async fn enqueue(&self, claim: Claim) -> Result<EnqueueOutcome, StoreError> {
        let asked = Asked::now(claim);
        self.ask(|reply| Job::Enqueue(asked, reply)).await
    }

    pub(crate) async fn acquire(&self, acquire: Acquire) -> Result<Acquisition, StoreError> {
        let sent = Instant::now();
        self.ask(|reply| Job::Acquire(Taking { acquire, sent }, reply))
            .await
    }

    pub(crate) async fn keep(&self, held: &Held, request: StoredRequest) -> Result<(), StoreError> {
        let keep = Keep {
            key: held.key.clone(),
            token: held.token,
            request,
        };
        self.ask(|reply| Job::Keep(keep, reply)).await
    }

    pub(crate) async fn settle(&self, settle: Settle) -> Result<Settled, StoreError> {
        self.ask(|reply| Job::Settle(settle, reply)).await
    }

    async fn ask<T: Answer>(&self, job: impl FnOnce(Reply<T>) -> Job) -> Result<T, StoreError> {
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
        let mut waiting = Waiting {
            queue: self,
            answer,
        };
        (&mut waiting.answer)
            .await
            .unwrap_or_else(|_| Err(stopped()))
    }

    /// Hands a claim back of whom nobody learned. If that fails, its lease runs out.
    fn release(&self, held: &Held) {
        let (reply, _) = oneshot::channel();
        let _ = self
            .0
            .try_send(Job::Settle(Settle::release(held, Duration::ZERO), reply));
    }
}

/// A caller who waits for an answer.
///
/// One who goes away between the sending of the answer and its reading has a claim that nobody knows of: the sender
/// has seen it delivered. It is handed back here.
struct Waiting<'a, T: Answer> {
    queue: &'a Queue,
    answer: oneshot::Receiver<Result<T, StoreError>>,
}

impl<T: Answer> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        self.answer.close();
        if let Ok(Ok(unheard)) = self.answer.try_recv() {
            for held in unheard.won() {
                self.queue.release(&held);
            }
        }
    }
}

/// What a caller may be told.
trait Answer {
    /// The claims that come with it.
    fn won(self) -> Vec<Held>;
}

impl Answer for ClaimOutcome {
    fn won(self) -> Vec<Held> {
        Self::won(self).into_iter().collect()
    }
}

impl Answer for Vec<ClaimOutcome> {
    fn won(self) -> Vec<Held> {
        self.into_iter().filter_map(ClaimOutcome::won).collect()
    }
}

impl Answer for Acquisition {
    fn won(self) -> Vec<Held> {
        let started = self.started.into_iter();
        started.map(|acquired| acquired.held).collect()
    }
}

/// Answers with which no claim comes.
macro_rules! wins_nothing {
    ($($answer:ty),*) => {
        $(impl Answer for $answer {
            fn won(self) -> Vec<Held> {
                Vec::new()
            }
        })*
    };
}
wins_nothing!(Settled, EnqueueOutcome, ());

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
    let mut crowded = false;
    loop {
        {
            // Whoever holds the lock waits for the first job and takes what is there by then; the others are at work,
            // or wait for the lock.
            let mut queue = queue.lock().await;
            if crowded {
                // The callers who were just answered are about to run, and to ask again.
                tokio::task::yield_now().await;
            }
            if queue.recv_many(&mut jobs, MAX_BATCH).await == 0 {
                return;
            }
        }
        crowded = jobs.len() > 1;
        pipeline.carry(Batch::new(jobs.drain(..))).await;
    }
}

/// Jobs by kind.
#[derive(Default)]
pub(crate) struct Batch {
    claims: Vec<Asked>,
    claimers: Vec<Claimer>,
    acquires: Vec<Taking>,
    acquirers: Vec<Reply<Acquisition>>,
    keeps: Vec<Keep>,
    keepers: Vec<Reply<()>>,
    settles: Vec<Settle>,
    settlers: Vec<Reply<Settled>>,
}

enum Claimer {
    One(Reply<ClaimOutcome>),
    Many(usize, Reply<Vec<ClaimOutcome>>),
    Store(Reply<EnqueueOutcome>),
}

/// The answers to a batch, each kind in the order of its jobs. A kind that failed as a whole has one error.
pub(crate) struct Answers {
    pub(crate) claims: Outcomes,
    pub(crate) acquires: Vec<Result<Acquisition, StoreError>>,
    pub(crate) keeps: Vec<Result<(), StoreError>>,
    pub(crate) settles: Vec<Result<Settled, StoreError>>,
}

impl Answers {
    /// Nothing of the batch was done.
    pub(crate) fn failed(batch: &Batch, error: &StoreError) -> Self {
        fn each<T, A>(jobs: &[T], error: &StoreError) -> Vec<Result<A, StoreError>> {
            jobs.iter().map(|_| Err(error.clone())).collect()
        }
        Self {
            claims: each(&batch.claims, error),
            acquires: each(&batch.acquires, error),
            keeps: each(&batch.keeps, error),
            settles: each(&batch.settles, error),
        }
    }
}

impl Batch {
    fn new(jobs: impl Iterator<Item = Job>) -> Self {
        let mut batch = Self::default();
        for job in jobs {
            match job {
                // Whoever has gone while waiting wants nothing any more, and must not stand before those who do.
                Job::Claim(_, reply) if reply.is_closed() => {}
                Job::ClaimMany(_, reply) if reply.is_closed() => {}
                Job::Enqueue(_, reply) if reply.is_closed() => {}
                Job::Acquire(_, reply) if reply.is_closed() => {}
                Job::Claim(asked, reply) => {
                    batch.claims.push(asked);
                    batch.claimers.push(Claimer::One(reply));
                }
                Job::ClaimMany(asked, reply) => {
                    batch.claimers.push(Claimer::Many(asked.len(), reply));
                    batch.claims.extend(asked);
                }
                Job::Enqueue(asked, reply) => {
                    batch.claims.push(asked);
                    batch.claimers.push(Claimer::Store(reply));
                }
                Job::Acquire(taking, reply) => {
                    batch.acquires.push(taking);
                    batch.acquirers.push(reply);
                }
                Job::Keep(keep, reply) => {
                    batch.keeps.push(keep);
                    batch.keepers.push(reply);
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

    pub(crate) fn acquires(&self) -> &[Taking] {
        &self.acquires
    }

    pub(crate) fn keeps(&self) -> &[Keep] {
        &self.keeps
    }

    pub(crate) fn settles(&self) -> &[Settle] {
        &self.settles
    }

    /// Hands out the answers, and returns the claims that were won for callers who cannot be told.
    #[must_use]
    pub(crate) fn answer(self, answers: Answers) -> Vec<Held> {
        let mut orphans = Vec::new();
        let mut outcomes = answers.claims.into_iter();
        for claimer in self.claimers {
            match claimer {
                Claimer::One(reply) => {
                    let answer = outcomes.next().unwrap_or_else(|| Err(stopped()));
                    let answer = answer.and_then(Decided::claimed);
                    if let Err(Ok(unheard)) = reply.send(answer) {
                        orphans.extend(Answer::won(unheard));
                    }
                }
                Claimer::Store(reply) => {
                    let answer = outcomes.next().unwrap_or_else(|| Err(stopped()));
                    // Whoever has gone leaves a delivery that is stored: it runs.
                    let _ = reply.send(answer.and_then(Decided::stored));
                }
                Claimer::Many(len, reply) => {
                    let mut told = Vec::with_capacity(len);
                    let mut failed = None;
                    for outcome in outcomes.by_ref().take(len) {
                        match outcome.and_then(Decided::claimed) {
                            Ok(outcome) => told.push(outcome),
                            Err(error) => failed = Some(error),
                        }
                    }
                    let answer = match failed {
                        None => Ok(told),
                        // All or nothing is told, so that what was won is handed back.
                        Some(error) => {
                            orphans.extend(told.won());
                            Err(error)
                        }
                    };
                    if let Err(Ok(unheard)) = reply.send(answer) {
                        orphans.extend(unheard.won());
                    }
                }
            }
        }
        for (reply, answer) in self.acquirers.into_iter().zip(answers.acquires) {
            if let Err(Ok(unheard)) = reply.send(answer) {
                orphans.extend(unheard.won());
            }
        }
        for (reply, answer) in self.keepers.into_iter().zip(answers.keeps) {
            let _ = reply.send(answer);
        }
        for (reply, answer) in self.settlers.into_iter().zip(answers.settles) {
            // Nobody waits for a renewal whose handler is done.
            let _ = reply.send(answer);
        }
        orphans
    }
}

/// What was decided on a claim.
#[derive(Debug)]
pub(crate) enum Decided {
    /// One that was to begin.
    Claimed(ClaimOutcome),
    /// One that was to be stored for later.
    Stored(EnqueueOutcome),
}

impl Decided {
    fn claimed(self) -> Result<ClaimOutcome, StoreError> {
        match self {
            Self::Claimed(outcome) => Ok(outcome),
            Self::Stored(_) => Err(mixed_up()),
        }
    }

    pub(crate) fn stored(self) -> Result<EnqueueOutcome, StoreError> {
        match self {
            Self::Stored(outcome) => Ok(outcome),
            Self::Claimed(_) => Err(mixed_up()),
        }
    }
}

fn mixed_up() -> StoreError {
    StoreError::new(
        StoreErrorKind::Corrupt,
        "the store answered another operation than was asked",
    )
}

/// The outcomes of claims, in their order. One that failed fails no other.
pub(crate) type Outcomes = Vec<Result<Decided, StoreError>>;

/// What was found of each claim that went to the database.
pub(crate) type Verdicts = Vec<Option<Result<Verdict, StoreError>>>;

/// What a statement says of one requested key after it.
#[derive(Clone, Copy)]
#[cfg_attr(
    not(feature = "postgres"),
    expect(
        dead_code,
        reason = "SQLite has nobody to race with within a statement"
    )
)]
pub(crate) enum Verdict {
    /// The row as the claim left it.
    Row {
        standing: Standing,
        busy: bool,
        now: Timestamp,
    },
    /// A new key, won. Its row is as the claim asked.
    Fresh,
    /// A new key that somebody else took within the same moment.
    Outrun,
}

impl Verdict {
    fn outcome(&self, asked: &Asked, leader: &Claim) -> Decided {
        let claim = &asked.claim;
        let (standing, busy, now) = match *self {
            Self::Row {
                standing,
                busy,
                now,
            } => (standing, busy, now),
            Self::Fresh => {
                let now = Timestamp::from_micros(0);
                (Standing::fresh(leader, now), false, now)
            }
            Self::Outrun if claim.kept.is_some() => {
                return Decided::Stored(EnqueueOutcome::InProgress);
            }
            Self::Outrun => {
                let lease_left = leader.policy.lease;
                return Decided::Claimed(ClaimOutcome::InProgress { lease_left });
            }
        };
        if claim.kept.is_some() {
            Decided::Stored(machine::stored(standing, claim, busy, now))
        } else {
            Decided::Claimed(machine::outcome(standing, claim, busy, now, asked.sent))
        }
    }
}

/// Which claims of a batch go to the database, and how the others are answered: a statement takes each key once.
///
/// Claims are put in the order of their keys, the same in every batch, so that batches that overlap never wait for
/// each other in a circle.
pub(crate) struct Plan {
    /// Positions of the claims that go, by key.
    leaders: Vec<usize>,
    /// Of each claim, the position of the one that goes for its key.
    leader_of: Vec<usize>,
}

/// What claims must share to travel in one statement. All claims of a layer do.
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Terms {
    pub(crate) policy: LeasePolicy,
    pub(crate) gate: RetryGate,
    /// Whether they are stored for later.
    pub(crate) stored: bool,
}

/// Bytes of payloads that travel in one statement: one that is longer travels alone.
pub(crate) const MAX_PAYLOADS: usize = 4 * 1024 * 1024;

impl Plan {
    pub(crate) fn new(claims: &[Asked]) -> Self {
        let mut order: Vec<usize> = (0..claims.len()).collect();
        let name = |at: usize| {
            (
                claims[at].claim.key.key(),
                claims[at].claim.key.source().as_str(),
            )
        };
        order.sort_unstable_by(|&a, &b| (name(a), a).cmp(&(name(b), b)));
        let mut leaders: Vec<usize> = Vec::with_capacity(order.len());
        let mut leader_of = vec![0; claims.len()];
        for at in order {
            match leaders.last() {
                Some(&leader) if name(leader) == name(at) => leader_of[at] = leader,
                _ => {
                    leader_of[at] = at;
                    leaders.push(at);
                }
            }
        }
        Self { leaders, leader_of }
    }

    /// The positions of the claims that go, by what they share, in statements of bounded size.
    pub(crate) fn by_terms(&self, claims: &[Asked]) -> Vec<(Terms, Vec<usize>)> {
        let mut groups: Vec<(Terms, Vec<usize>)> = Vec::with_capacity(1);
        let mut sizes: Vec<usize> = Vec::with_capacity(1);
        for &leader in &self.leaders {
            let claim = &claims[leader].claim;
            let kept = claim.kept.as_ref();
            let size = kept.map_or(0, |kept| kept.request.body().len());
            let terms = Terms {
                policy: claim.policy,
                gate: claim.gate,
                stored: kept.is_some(),
            };
            let open = groups.iter().zip(&sizes).position(|((other, _), &taken)| {
                *other == terms && taken.saturating_add(size) <= MAX_PAYLOADS
            });
            if let Some(at) = open {
                groups[at].1.push(leader);
                sizes[at] += size;
            } else {
                groups.push((terms, vec![leader]));
                sizes.push(size);
            }
        }
        groups
    }

    /// The positions of the claims whose delivery may be covered by another's work: those under a business key that
    /// did not just make it.
    pub(crate) fn maybe_covered(&self, claims: &[Asked], verdicts: &Verdicts) -> Vec<usize> {
        let is_covered = |&at: &usize| {
            let leader = self.leader_of[at];
            let made_it = leader == at && matches!(verdicts[at], Some(Ok(Verdict::Fresh)));
            claims[at].claim.key.is_business() && !made_it
        };
        (0..claims.len()).filter(is_covered).collect()
    }

    /// The outcomes in the order of the claims, from the verdicts at the positions of those that went.
    pub(crate) fn outcomes(&self, claims: &[Asked], verdicts: &Verdicts) -> Outcomes {
        let outcome = |(asked, &leader): (&Asked, &usize)| match &verdicts[leader] {
            Some(Ok(verdict)) => Ok(verdict.outcome(asked, &claims[leader].claim)),
            Some(Err(error)) => Err(error.clone()),
            None => Err(StoreError::new(
                StoreErrorKind::Corrupt,
                "the store gave no verdict on a claim",
            )),
        };
        claims.iter().zip(&self.leader_of).map(outcome).collect()
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
