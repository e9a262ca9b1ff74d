//! What an attempt needs, whether a request or a worker began it.

use std::sync::Arc;
use std::time::Instant;

use hookclaim::{Backoff, DeliveryId, LeasePolicy, StoreError};

use crate::drain::Drain;
use crate::observe::{Event, Observer, Operation};

/// The settings of attempts, shared by a layer and its worker.
pub(crate) struct Engine<St> {
    pub(crate) store: St,
    pub(crate) lease: LeasePolicy,
    pub(crate) backoff: Backoff,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) drain: Drain,
}

impl<St> Engine<St> {
    pub(crate) fn new(store: St) -> Self {
        Self {
            store,
            lease: LeasePolicy::default(),
            backoff: Backoff::default(),
            observer: None,
            drain: Drain::new(),
        }
    }

    pub(crate) fn emit(&self, event: &Event<'_>) {
        if let Some(observer) = &self.observer {
            observer.on(event);
        }
    }

    /// Runs an operation of the store and tells the observer how it went.
    pub(crate) async fn stored<T>(
        &self,
        operation: Operation,
        id: Option<&DeliveryId>,
        work: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let Some(observer) = &self.observer else {
            return work.await;
        };
        let begin = Instant::now();
        let result = work.await;
        observer.on(&Event::Stored {
            id,
            operation,
            took: begin.elapsed(),
            error: result.as_ref().err(),
        });
        result
    }
}

impl<St: Clone> Clone for Engine<St> {
    fn clone(&self) -> Self {
        Self {
            store: self.store.clone(),
            lease: self.lease,
            backoff: self.backoff,
            observer: self.observer.clone(),
            drain: self.drain.clone(),
        }
    }
}
