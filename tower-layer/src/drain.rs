//! Shutting down without losing what runs.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use tokio::sync::Notify;

/// Stops a layer and its worker from taking deliveries, and waits for those that they work on.
///
/// Attempts that outlive their request (see [`ack_after`](crate::GithubWebhookLayer::ack_after)) run in tasks of their
/// own, which the HTTP server's graceful shutdown knows nothing about: wait for [`idle`](Self::idle) before the
/// process ends. One handle may be shared by several layers.
///
/// ```
/// use hookclaim::{MemoryStore, SecretSet};
/// use tower_hookclaim::{Drain, GithubWebhookLayer};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let drain = Drain::new();
/// let secrets = SecretSet::single("It's a Secret to Everybody")?;
/// let layer = GithubWebhookLayer::new(secrets, MemoryStore::new()).drain(&drain);
/// // … serve, and at the signal to stop:
/// drain.begin();
/// drain.idle().await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Drain(Arc<State>);

#[derive(Default)]
struct State {
    draining: AtomicBool,
    begun: Notify,
    running: AtomicUsize,
    idle: Notify,
    handing_back: AtomicBool,
    hand_back: Notify,
}

impl Drain {
    /// A handle whose layers take deliveries.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on deliveries are answered 503 before their body is read, and a worker takes no more. There is no way
    /// back.
    pub fn begin(&self) {
        self.0.draining.store(true, Ordering::SeqCst);
        self.0.begun.notify_waiters();
    }

    /// Waits for [`begin`](Self::begin).
    pub(crate) async fn begun(&self) {
        let mut notified = std::pin::pin!(self.0.begun.notified());
        notified.as_mut().enable();
        if !self.is_draining() {
            notified.await;
        }
    }

    /// Whether [`begin`](Self::begin) was called.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.0.draining.load(Ordering::SeqCst)
    }

    /// The number of requests whose body is being read, claimed or worked on, detached attempts included.
    #[must_use]
    pub fn running(&self) -> usize {
        self.0.running.load(Ordering::SeqCst)
    }

    /// Waits until [`running`](Self::running) is zero.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn idle(&self) {
        loop {
            // Registered before the number is read, so that its last change is not missed.
            let mut notified = std::pin::pin!(self.0.idle.notified());
            notified.as_mut().enable();
            if self.running() == 0 {
                return;
            }
            notified.await;
        }
    }

    /// Ends what still runs: handlers are dropped where they wait, and their deliveries are released, to be claimed again
    /// at once and without counting as an attempt. Begins to drain as well, if that was not done.
    ///
    /// It is for the end of a grace period: wait for [`idle`](Self::idle) afterwards. A handler that completed its
    /// attempt in a transaction of its own keeps that.
    pub fn hand_back(&self) {
        self.begin();
        self.0.handing_back.store(true, Ordering::SeqCst);
        self.0.hand_back.notify_waiters();
    }

    /// Waits for [`hand_back`](Self::hand_back).
    pub(crate) async fn handed_back(&self) {
        let mut notified = std::pin::pin!(self.0.hand_back.notified());
        notified.as_mut().enable();
        if !self.0.handing_back.load(Ordering::SeqCst) {
            notified.await;
        }
    }

    pub(crate) fn enter(&self) -> Running {
        self.0.running.fetch_add(1, Ordering::SeqCst);
        Running(self.clone())
    }
}

impl fmt::Debug for Drain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Drain")
            .field("draining", &self.is_draining())
            .field("running", &self.running())
            .finish()
    }
}

/// Counts one request for as long as it lives.
pub(crate) struct Running(Drain);

impl Drop for Running {
    fn drop(&mut self) {
        let state = &self.0.0;
        if state.running.fetch_sub(1, Ordering::SeqCst) == 1 {
            state.idle.notify_waiters();
        }
    }
}
