//! The layer and its settings.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use hookclaim::{
    Backoff, BusinessKey, Delivery, DurableStore, EventName, KeyError, LeasePolicy, Scope, Secrets,
    Source,
};
use tower_layer::Layer;

use crate::backlog::BacklogLimit;
use crate::budget::Budget;
use crate::drain::Drain;
use crate::engine::Engine;
use crate::mode::{Durable, Inline};
use crate::observe::{Event, Observer};
use crate::service::GithubWebhook;
use crate::worker::Worker;

type KeyFn = dyn Fn(&Delivery) -> Result<BusinessKey, KeyError> + Send + Sync;
type OrderFn = dyn Fn(&Delivery) -> Option<String> + Send + Sync;

/// Lets only verified deliveries through to the inner service, and each of them once.
///
/// The [crate's page](crate) has an example and the guarantees. Clones share their settings.
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct GithubWebhookLayer<St, M = Inline> {
    settings: Arc<Settings<St>>,
    mode: PhantomData<fn() -> M>,
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
                engine: Arc::new(Engine::new(store)),
                secrets: secrets.into(),
                source: Source::default(),
                scope: Scope::default(),
                key: None,
                events: None,
                body_limit: Self::DEFAULT_BODY_LIMIT,
                body_timeout: Duration::from_secs(10),
                ack_after: Some(Duration::from_secs(8)),
                budget: None,
                ordering: None,
                backlog: None,
            }),
            mode: PhantomData,
        }
    }
}

impl<St: DurableStore> GithubWebhookLayer<St> {
    /// Stores deliveries instead of running them: a sender is answered 202 once its delivery is in the store with its
    /// payload, and a [`Worker`] runs it from there, again and again until it completes or is dead.
    ///
    /// Without a worker nothing runs: see [`worker`](GithubWebhookLayer::worker). The service that the layer is applied
    /// to is not called by requests; it is what the worker is made with.
    ///
    /// ```
    /// use hookclaim::{SecretSet, SqliteStore};
    /// use tower_hookclaim::GithubWebhookLayer;
    ///
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// let store = SqliteStore::open("hooks.db").await?;
    /// let secrets = SecretSet::single("It's a Secret to Everybody")?;
    /// let layer = GithubWebhookLayer::new(secrets, store).durable();
    /// # Ok(())
    /// # }
    /// ```
    pub fn durable(self) -> GithubWebhookLayer<St, Durable> {
        GithubWebhookLayer {
            settings: self.settings,
            mode: PhantomData,
        }
    }
}

impl<St: DurableStore> GithubWebhookLayer<St, Durable> {
    /// Gives deliveries an ordering key: those with the same one start in the order of their arrival, one at a time.
    ///
    /// It is a convenience for handlers that would otherwise wait for each other. Nothing that has to be right may rely
    /// on it: GitHub itself promises no order.
    pub fn ordering_key<F>(self, key: F) -> Self
    where
        F: Fn(&Delivery) -> Option<String> + Send + Sync + 'static,
    {
        self.with(|settings| settings.ordering = Some(Arc::new(key)))
    }

    /// Answers 503 while at least so many deliveries wait for a worker. Without this there is no such bound.
    ///
    /// The number is counted once a second; what this layer stores in between is added to it.
    pub fn backlog_limit(self, waiting: u64) -> Self {
        self.with(|settings| settings.backlog = Some(Arc::new(BacklogLimit::new(waiting))))
    }
}

impl<St: DurableStore, M> GithubWebhookLayer<St, M> {
    /// A worker with the layer's settings that drives `inner`: store, source, scope, lease, backoff, observer, and
    /// drain.
    ///
    /// It belongs beside a [`durable`](GithubWebhookLayer::durable) layer. An inline one has use for it too: an attempt
    /// that was answered before it ended ([`ack_after`](Self::ack_after)) has its payload in the store, and a worker
    /// takes it over if the process dies.
    pub fn worker<S>(&self, inner: S) -> Worker<S, St> {
        let settings = &self.settings;
        let engine = Engine::clone(&settings.engine);
        Worker::with_engine(engine, inner)
            .source(settings.source.clone())
            .scope(settings.scope)
    }
}

impl<St: Clone, M> GithubWebhookLayer<St, M> {
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
    /// A store that can keep payloads keeps this one first, so that a [`worker`](Self::worker) can take the delivery
    /// over; if it does not do so within a second, the answer is 503, and the attempt goes on all the same.
    ///
    /// A store that has not decided on the claim by then, or within a second if the body took most of that time, is
    /// taken for unavailable. That holds for a [`durable`](GithubWebhookLayer::durable) layer too, which has no other
    /// use for this.
    pub fn ack_after(self, after: impl Into<Option<Duration>>) -> Self {
        let after = after.into();
        self.with(|settings| settings.ack_after = after)
    }

    /// Sets how long a claim holds and how often a delivery is tried.
    pub fn lease(self, policy: LeasePolicy) -> Self {
        self.with_engine(|engine| engine.lease = policy)
    }

    /// Sets when a failed attempt is due again.
    ///
    /// Inline there is no worker that would begin it: the time is recorded, and a redelivery is taken at any time.
    /// A durable layer's worker begins it then, and a redelivery has to wait.
    pub fn backoff(self, backoff: Backoff) -> Self {
        self.with_engine(|engine| engine.backoff = backoff)
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
        self.with_engine(|engine| engine.observer = Some(Arc::new(observer)))
    }

    /// Makes `drain` stop this layer.
    pub fn drain(self, drain: &Drain) -> Self {
        self.with_engine(|engine| engine.drain = drain.clone())
    }

    fn with(mut self, change: impl FnOnce(&mut Settings<St>)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }

    fn with_engine(self, change: impl FnOnce(&mut Engine<St>)) -> Self {
        self.with(|settings| change(Arc::make_mut(&mut settings.engine)))
    }
}

impl<St, M> Clone for GithubWebhookLayer<St, M> {
    fn clone(&self) -> Self {
        Self {
            settings: Arc::clone(&self.settings),
            mode: PhantomData,
        }
    }
}

impl<St, M> fmt::Debug for GithubWebhookLayer<St, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.settings
            .fields(&mut f.debug_struct("GithubWebhookLayer"))
    }
}

impl<S, St, M> Layer<S> for GithubWebhookLayer<St, M> {
    type Service = GithubWebhook<S, St, M>;

    fn layer(&self, inner: S) -> Self::Service {
        GithubWebhook::new(inner, Arc::clone(&self.settings))
    }
}

/// What a layer was told, shared by the services made from it.
pub(crate) struct Settings<St> {
    pub(crate) engine: Arc<Engine<St>>,
    pub(crate) secrets: Secrets,
    pub(crate) source: Source,
    pub(crate) scope: Scope,
    pub(crate) key: Option<Arc<KeyFn>>,
    pub(crate) events: Option<Arc<[Box<str>]>>,
    pub(crate) body_limit: u64,
    pub(crate) body_timeout: Duration,
    pub(crate) ack_after: Option<Duration>,
    pub(crate) budget: Option<Arc<Budget>>,
    pub(crate) ordering: Option<Arc<OrderFn>>,
    pub(crate) backlog: Option<Arc<BacklogLimit>>,
}

impl<St> Settings<St> {
    pub(crate) fn emit(&self, event: &Event<'_>) {
        self.engine.emit(event);
    }

    pub(crate) fn is_observed(&self) -> bool {
        self.engine.observer.is_some()
    }

    pub(crate) fn is_full(&self) -> bool {
        self.budget.as_ref().is_some_and(|budget| budget.is_full())
    }

    pub(crate) fn lets_through(&self, event: &EventName) -> bool {
        self.events
            .as_ref()
            .is_none_or(|events| events.iter().any(|name| **name == *event.as_str()))
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
            .field("lease", &self.engine.lease)
            .field("backoff", &self.engine.backoff)
            .field("memory_budget", &self.budget.as_ref().map(|b| b.limit()))
            .field("drain", &self.engine.drain)
            .finish_non_exhaustive()
    }
}

// Not derived: a store need not be cloned along with the engine that is shared.
impl<St> Clone for Settings<St> {
    fn clone(&self) -> Self {
        Self {
            engine: Arc::clone(&self.engine),
            secrets: self.secrets.clone(),
            source: self.source.clone(),
            scope: self.scope,
            key: self.key.clone(),
            events: self.events.clone(),
            body_limit: self.body_limit,
            body_timeout: self.body_timeout,
            ack_after: self.ack_after,
            budget: self.budget.clone(),
            ordering: self.ordering.clone(),
            backlog: self.backlog.clone(),
        }
    }
}
