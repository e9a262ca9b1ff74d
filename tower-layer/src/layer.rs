//! The layer and its settings.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hookclaim::{
    Backoff, BusinessKey, Delivery, DeliveryId, EventName, KeyError, LeasePolicy, Scope, Secrets,
    Source, StoreError,
};
use tower_layer::Layer;

use crate::budget::Budget;
use crate::drain::Drain;
use crate::observe::{Event, Observer, Operation};
use crate::service::GithubWebhook;

type KeyFn = dyn Fn(&Delivery) -> Result<BusinessKey, KeyError> + Send + Sync;

/// Lets only verified deliveries through to the inner service, and each of them once.
///
/// The [crate's page](crate) has an example and the guarantees. Clones share their settings.
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct GithubWebhookLayer<St> {
    settings: Arc<Settings<St>>,
}

impl<St> GithubWebhookLayer<St> {
    /// The default body limit, in bytes: GitHub's own
    /// ([payload cap](https://docs.github.com/en/webhooks/webhook-events-and-payloads#payload-cap)).
    pub const DEFAULT_BODY_LIMIT: u64 = 25 * 1024 * 1024;

    /// A layer that believes what is signed with one of `secrets` and remembers deliveries in `store`.
    ///
    /// Keep a [`Secrets`] to replace them later; a [`SecretSet`](hookclaim::SecretSet) does where they never change.
    pub fn new(secrets: impl Into<Secrets>, store: St) -> Self {
        Self {
            settings: Arc::new(Settings {
                secrets: secrets.into(),
                store,
                source: Source::default(),
                scope: Scope::default(),
                key: None,
                events: None,
                body_limit: Self::DEFAULT_BODY_LIMIT,
                body_timeout: Duration::from_secs(10),
                ack_after: Some(Duration::from_secs(8)),
                lease: LeasePolicy::default(),
                backoff: Backoff::default(),
                budget: None,
                observer: None,
                drain: Drain::new(),
            }),
        }
    }
}

impl<St: Clone> GithubWebhookLayer<St> {
    /// Names the endpoint: `github` by default. Deliveries of different sources never meet, even with one store.
    pub fn source(self, source: Source) -> Self {
        self.with(|settings| settings.source = source)
    }

    /// Sets whether an event that several hooks deliver runs once, which is the default, or once per hook.
    pub fn scope(self, scope: Scope) -> Self {
        self.with(|settings| settings.scope = scope)
    }

    /// Claims deliveries by what they are about instead of by their id: those with equal keys are one piece of work.
    ///
    /// A delivery whose key cannot be made is answered 400. The text of [`KeyError::Refused`] is not shown to the
    /// sender.
    ///
    /// ```
    /// use hookclaim::{BusinessKey, KeyError, MemoryStore, SecretSet};
    /// use tower_hookclaim::GithubWebhookLayer;
    ///
    /// # fn main() -> Result<(), hookclaim::SecretError> {
    /// let secrets = SecretSet::single("It's a Secret to Everybody")?;
    /// let layer = GithubWebhookLayer::new(secrets, MemoryStore::new()).key(|delivery| {
    ///     let repository = delivery.target_id().ok_or(KeyError::Refused("no repository".into()))?;
    ///     Ok(BusinessKey::new().int(repository as i64).text(delivery.event().as_str()))
    /// });
    /// # Ok(())
    /// # }
    /// ```
    pub fn key<F>(self, key: F) -> Self
    where
        F: Fn(&Delivery) -> Result<BusinessKey, KeyError> + Send + Sync + 'static,
    {
        self.with(|settings| settings.key = Some(Arc::new(key)))
    }

    /// Lets only these events through. Others are verified, answered 204 and not remembered. Without this, every event
    /// goes through.
    ///
    /// `ping` never reaches the inner service.
    pub fn events(self, events: impl IntoIterator<Item = impl Into<Box<str>>>) -> Self {
        let events = events.into_iter().map(Into::into).collect();
        self.with(|settings| settings.events = Some(events))
    }

    /// Refuses bodies over this many bytes with 413: [`DEFAULT_BODY_LIMIT`](Self::DEFAULT_BODY_LIMIT) by default.
    pub fn body_limit(self, bytes: u64) -> Self {
        self.with(|settings| settings.body_limit = bytes)
    }

    /// Refuses bodies that take longer than this to arrive as a whole with 408: 10 s by default, which is when GitHub
    /// gives up.
    pub fn body_timeout(self, timeout: Duration) -> Self {
        self.with(|settings| settings.body_timeout = timeout)
    }

    /// Answers 202 once this time has passed since the request's head was there, and lets the attempt go on in a task
    /// of its own: 8 s by default, as GitHub hangs up after 10 s. `None` never does.
    ///
    /// A store that has not decided on the claim by then, or within a second if the body took most of that time, is
    /// taken for unavailable.
    pub fn ack_after(self, after: impl Into<Option<Duration>>) -> Self {
        let after = after.into();
        self.with(|settings| settings.ack_after = after)
    }

    /// Sets how long a claim holds and how often a delivery is tried.
    pub fn lease(self, policy: LeasePolicy) -> Self {
        self.with(|settings| settings.lease = policy)
    }

    /// Sets when a failed attempt is due again.
    ///
    /// Inline there is no worker that would begin it: the time is recorded, and a redelivery is taken at any time.
    pub fn backoff(self, backoff: Backoff) -> Self {
        self.with(|settings| settings.backoff = backoff)
    }

    /// Holds at most so many bytes of bodies at a time, over all clones of the layer; what does not fit is answered
    /// 503. Without this there is no such bound.
    ///
    /// Bytes count once they have arrived, and until the attempt ends. The budget has to be larger than the body
    /// limit, or the largest deliveries never fit.
    pub fn memory_budget(self, bytes: u64) -> Self {
        self.with(|settings| settings.budget = Some(Arc::new(Budget::new(bytes))))
    }

    /// Tells `observer` what happens. Two observers go in as a tuple.
    pub fn observer(self, observer: impl Observer) -> Self {
        self.with(|settings| settings.observer = Some(Arc::new(observer)))
    }

    /// Makes `drain` stop this layer.
    pub fn drain(self, drain: &Drain) -> Self {
        self.with(|settings| settings.drain = drain.clone())
    }

    fn with(mut self, change: impl FnOnce(&mut Settings<St>)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<St> Clone for GithubWebhookLayer<St> {
    fn clone(&self) -> Self {
        Self {
            settings: Arc::clone(&self.settings),
        }
    }
}

impl<St> fmt::Debug for GithubWebhookLayer<St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings
            .fields(&mut f.debug_struct("GithubWebhookLayer"))
    }
}

impl<S, St> Layer<S> for GithubWebhookLayer<St> {
    type Service = GithubWebhook<S, St>;

    fn layer(&self, inner: S) -> Self::Service {
        GithubWebhook::new(inner, Arc::clone(&self.settings))
    }
}

/// What a layer was told, shared by the services made from it.
pub(crate) struct Settings<St> {
    pub(crate) secrets: Secrets,
    pub(crate) store: St,
    pub(crate) source: Source,
    pub(crate) scope: Scope,
    pub(crate) key: Option<Arc<KeyFn>>,
    pub(crate) events: Option<Arc<[Box<str>]>>,
    pub(crate) body_limit: u64,
    pub(crate) body_timeout: Duration,
    pub(crate) ack_after: Option<Duration>,
    pub(crate) lease: LeasePolicy,
    pub(crate) backoff: Backoff,
    pub(crate) budget: Option<Arc<Budget>>,
    pub(crate) observer: Option<Arc<dyn Observer>>,
    pub(crate) drain: Drain,
}

impl<St> Settings<St> {
    pub(crate) fn emit(&self, event: &Event<'_>) {
        if let Some(observer) = &self.observer {
            observer.on(event);
        }
    }

    pub(crate) fn is_observed(&self) -> bool {
        self.observer.is_some()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.budget.as_ref().is_some_and(|budget| budget.is_full())
    }

    pub(crate) fn lets_through(&self, event: &EventName) -> bool {
        self.events
            .as_ref()
            .is_none_or(|events| events.iter().any(|name| **name == *event.as_str()))
    }

    /// Runs an operation of the store and tells the observer how it went.
    pub(crate) async fn stored<T>(
        &self,
        operation: Operation,
        id: &DeliveryId,
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

    /// Shows what was set; closures and secrets stay hidden, and a store's `Debug` is not asked for.
    pub(crate) fn fields(&self, f: &mut fmt::DebugStruct<'_, '_>) -> fmt::Result {
        f.field("secrets", &self.secrets)
            .field("source", &self.source)
            .field("scope", &self.scope)
            .field("events", &self.events)
            .field("body_limit", &self.body_limit)
            .field("body_timeout", &self.body_timeout)
            .field("ack_after", &self.ack_after)
            .field("lease", &self.lease)
            .field("backoff", &self.backoff)
            .field("memory_budget", &self.budget.as_ref().map(|b| b.limit()))
            .field("drain", &self.drain)
            .finish_non_exhaustive()
    }
}

impl<St: Clone> Clone for Settings<St> {
    fn clone(&self) -> Self {
        Self {
            secrets: self.secrets.clone(),
            store: self.store.clone(),
            source: self.source.clone(),
            scope: self.scope,
            key: self.key.clone(),
            events: self.events.clone(),
            body_limit: self.body_limit,
            body_timeout: self.body_timeout,
            ack_after: self.ack_after,
            lease: self.lease,
            backoff: self.backoff,
            budget: self.budget.clone(),
            observer: self.observer.clone(),
            drain: self.drain.clone(),
        }
    }
}
