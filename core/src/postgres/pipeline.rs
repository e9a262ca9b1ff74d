//! What carries batches over a connection of the store's own.

use std::sync::Arc;
use std::time::Duration;

use super::bell::Bell;
use super::link::Link;
use super::marks::Marks;
use crate::batch::{Answers, Batch, Pipeline};
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
        if !orphans.is_empty() {
            let releases: Vec<Settle> = orphans
                .iter()
                .map(|held| Settle::release(held, Duration::ZERO))
                .collect();
            // If this fails too, the lease of the claim runs out.
            if self.settles(&releases).await.is_ok() {
                self.bell.ring();
            }
        }
    }
}
