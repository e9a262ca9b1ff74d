//! What carries batches over a connection of the store's own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::bell::Bell;
use super::link::{Link, RESENDS};
use super::marks::Marks;
use crate::batch::{Answers, Batch, Pipeline, pause};
use crate::claim::Held;
use crate::error::{StoreError, StoreErrorKind};
use crate::seal::Sealer;
use crate::settle::Settle;
use crate::time::Clock;

/// Two: while one batch waits for its commit, the next is computed. More make batches smaller and gain nothing.
pub(super) const CLAIM_PIPELINES: usize = 2;

pub(super) struct PgPipeline {
    pub(super) link: Link,
    pub(super) clock: Option<Arc<dyn Clock>>,
    pub(super) sealer: Sealer,
    pub(super) bell: Bell,
    pub(super) marks: Marks,
    pub(super) lost: Lost,
}

/// For how long a look that was given up may still take something: the database ends a statement earlier than that, and
/// a transaction in which none follows.
const LOST_FOR: Duration = Duration::from_secs(15);

/// Tokens that are remembered of such looks at most.
const MOST_LOST: usize = 4000;

/// Tokens of looks that were given up and may still take something, until none can any more.
#[derive(Default)]
pub(super) struct Lost {
    pub(super) tokens: Vec<uuid::Uuid>,
    pub(super) until: Option<Instant>,
}

impl Lost {
    pub(super) fn remember(&mut self, tokens: &[uuid::Uuid]) {
        self.tokens.extend(tokens);
        let oldest = self.tokens.len().saturating_sub(MOST_LOST);
        self.tokens.drain(..oldest);
        self.until = Some(Instant::now() + LOST_FOR);
    }
}

impl PgPipeline {
    pub(super) fn new(
        link: Link,
        clock: Option<Arc<dyn Clock>>,
        sealer: Sealer,
        bell: Bell,
    ) -> Self {
        Self {
            link,
            clock,
            sealer,
            bell,
            marks: Marks::default(),
            lost: Lost::default(),
        }
    }

    /// The time, unless the database tells it.
    pub(super) fn now(&self) -> Option<i64> {
        self.clock.as_ref().map(|clock| clock.now().as_micros())
    }
}

impl Pipeline for PgPipeline {
    async fn carry(&mut self, batch: Batch) {
        let unanswered = StoreError::new(
            StoreErrorKind::Corrupt,
            "the store gave no answer to a write",
        );
        let mut answers = Answers::failed(&batch, &unanswered);
        if !batch.claims().is_empty() {
            answers.claims = self.claims(batch.claims()).await;
        }
        if !batch.acquires().is_empty() {
            answers.acquires.clear();
            for taking in batch.acquires() {
                answers.acquires.push(self.acquire(taking).await);
            }
        }
        // A payload comes before the end of its attempt, which it is kept for.
        if !batch.keeps().is_empty() {
            answers.keeps = self.keeps(batch.keeps()).await;
        }
        if !batch.settles().is_empty() {
            answers.settles = match self.settles(batch.settles()).await {
                Ok(settles) => settles,
                Err(error) => batch.settles().iter().map(|_| Err(error.clone())).collect(),
            };
        }
        let orphans = batch.answer(answers);
        self.release(&orphans).await;
    }
}

impl PgPipeline {
    /// Hands claims back that nobody learned of. Those whose rows are locked are tried again for a moment; if that
    /// fails too, their leases run out.
    pub(super) async fn release(&mut self, orphans: &[Held]) {
        let mut releases: Vec<Settle> = orphans
            .iter()
            .map(|held| Settle::release(held, Duration::ZERO))
            .collect();
        for round in 1..=RESENDS {
            if releases.is_empty() {
                break;
            }
            if let Ok(answers) = self.settles(&releases).await {
                let mut answers = answers.into_iter();
                releases.retain(|_| {
                    answers
                        .next()
                        .is_some_and(|answer| answer.is_err_and(|error| error.is_busy()))
                });
                self.bell.ring();
            }
            if !releases.is_empty() {
                tokio::time::sleep(pause(round)).await;
            }
        }
    }
}
