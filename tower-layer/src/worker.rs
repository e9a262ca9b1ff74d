//! Running what is stored.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hookclaim::{
    Acquire, Acquired, Acquisition, Attempt, Backoff, Changes, ClaimKind, DurableStore, Failure,
    Lane, LeasePolicy, Order, Scope, Source, StoreError,
};
use http::{Method, Request, Response, Uri, request};
use http_body_util::Full;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, sleep_until};
use tower_service::Service;

use crate::budget::Reservation;
use crate::drain::Drain;
use crate::engine::Engine;
use crate::observe::{Event, Observer, Operation};
use crate::receive::Won;
use crate::run::{self, Patience};

/// Deliveries that are taken in one step.
const MAX_STEP: usize = 100;

/// How long a delivery that was never tried counts as fresh, and waits for a place that is kept for it.
const FRESH: Duration = Duration::from_secs(1);

/// More fresh deliveries than this many for each place are a queue like any other.
const FLOOD: usize = 4;

/// Drives the inner service with what a [`durable`](crate::GithubWebhookLayer::durable) layer stored.
///
/// Each attempt gets a clone of the service, and the request as it was received: `POST`, the path, the headers that say
/// what the delivery is, the body's bytes, and in the extensions the [`Delivery`](hookclaim::Delivery), the
/// [`Attempt`] and the [`Lease<St>`](hookclaim::Lease). How it ends is judged as for a request: 2xx completes, 400 and
/// 422 are permanent, everything else, errors and panics are tried again after the [backoff](Backoff) or the response's
/// `Retry-After`, until the attempts of the [`LeasePolicy`] are used up; a [`Verdict`](crate::Verdict) overrides.
///
/// Any number of workers, in any number of processes, may share a store.
///
/// ```
/// use std::convert::Infallible;
/// use bytes::Bytes;
/// use hookclaim::{Delivery, SecretSet, SqliteStore};
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use tower::{Layer, service_fn};
/// use tower_hookclaim::GithubWebhookLayer;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let handler = service_fn(|request: Request<Full<Bytes>>| async move {
///     let delivery: &Delivery = request.extensions().get().expect("it is there");
///     println!("{}", delivery.event());
///     Ok::<_, Infallible>(Response::new(Full::<Bytes>::default()))
/// });
/// let store = SqliteStore::open("hooks.db").await?;
/// store.migrate().await?;
/// let secrets = SecretSet::single("It's a Secret to Everybody")?;
/// let layer = GithubWebhookLayer::new(secrets, store).durable();
/// tokio::spawn(layer.worker(handler.clone()).concurrency(8).run());
/// let service = layer.layer(handler);
/// // … serve `service`
/// # drop(service);
/// # Ok(())
/// # }
/// ```
#[must_use = "a worker does nothing until it is run"]
pub struct Worker<S, St> {
    engine: Engine<St>,
    inner: S,
    source: Source,
    scope: Scope,
    order: Order,
    concurrency: usize,
    reserved: Option<usize>,
    poll_interval: Duration,
}

impl<S, St: DurableStore> Worker<S, St> {
    /// A worker that drives `inner` with the deliveries of the source `github`. Beside a layer,
    /// [`GithubWebhookLayer::worker`](crate::GithubWebhookLayer::worker) makes one with the layer's settings.
    pub fn new(store: St, inner: S) -> Self {
        Self::with_engine(Engine::new(store), inner)
    }

    pub(crate) fn with_engine(engine: Engine<St>, inner: S) -> Self {
        Self {
            engine,
            inner,
            source: Source::default(),
            scope: Scope::default(),
            order: Order::default(),
            concurrency: 16,
            reserved: None,
            poll_interval: Duration::from_secs(1),
        }
    }

    /// Sets whose deliveries it runs. Those of other sources it leaves alone.
    pub fn source(mut self, source: Source) -> Self {
        self.source = source;
        self
    }

    /// Sets the scope that the layer has.
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Sets how long a claim holds and how often a delivery is tried.
    pub fn lease(mut self, policy: LeasePolicy) -> Self {
        self.engine.lease = policy;
        self
    }

    /// Sets when a failed attempt is due again.
    pub fn backoff(mut self, backoff: Backoff) -> Self {
        self.engine.backoff = backoff;
        self
    }

    /// Tells `observer` what happens.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.engine.observer = Some(Arc::new(observer));
        self
    }

    /// Makes `drain` stop this worker.
    pub fn drain(mut self, drain: &Drain) -> Self {
        self.engine.drain = drain.clone();
        self
    }

    /// Runs at most so many attempts at a time: 16 by default, 1 at least.
    pub fn concurrency(mut self, attempts: usize) -> Self {
        self.concurrency = attempts.clamp(1, Semaphore::MAX_PERMITS / 2);
        self
    }

    /// Keeps so many of the places for fresh deliveries: a quarter by default. While a long queue takes all others, a
    /// delivery that has just come in starts at once in one of these. One place is always left for the queue.
    pub fn reserve(mut self, places: usize) -> Self {
        self.reserved = Some(places);
        self
    }

    /// Sets what a failed delivery means to those that arrived after it with the same ordering key: by default it steps
    /// aside until its retry is due.
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Asks the store at least so often, whether it announced something or not: every second by default, 10 ms at
    /// least. The times vary by up to a half, so that workers do not ask together.
    pub fn poll_interval(mut self, interval: Duration) -> Self {
        self.poll_interval = interval.clamp(Duration::from_millis(10), Duration::from_secs(3600));
        self
    }

    /// Runs what is due, until its [`Drain`] begins and all attempts have ended.
    ///
    /// An attempt that is still running when its lease is over is told ([`Attempt::cancelled`]) and then dropped: another
    /// one may have begun.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime with its timer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future begins no more attempts. Those that run go on in tasks of their own.
    pub async fn run<B>(self)
    where
        S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + 'static,
        S::Future: Send + 'static,
        S::Error: Send + 'static,
        B: Send + 'static,
    {
        let reserved = self.reserved.unwrap_or(self.concurrency / 4);
        let reserved = reserved.min(self.concurrency - 1);
        let places = Places {
            queue: Arc::new(Semaphore::new(self.concurrency - reserved)),
            fresh: Arc::new(Semaphore::new(reserved)),
            left: Arc::new(Notify::new()),
        };
        let mut changes = self.engine.store.changes();
        let drain = self.engine.drain.clone();
        let shift = Shift {
            engine: Arc::new(self.engine),
            inner: self.inner,
            source: self.source,
            scope: self.scope,
            order: self.order,
            flood: u32::try_from(FLOOD * self.concurrency).unwrap_or(u32::MAX),
            places,
            poll_interval: self.poll_interval,
        };
        shift.work(&mut changes, &drain).await;
        shift.places.empty(self.concurrency, reserved).await;
    }
}

impl<S, St> fmt::Debug for Worker<S, St> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Worker")
            .field("source", &self.source)
            .field("scope", &self.scope)
            .field("lease", &self.engine.lease)
            .field("backoff", &self.engine.backoff)
            .field("order", &self.order)
            .field("concurrency", &self.concurrency)
            .field("poll_interval", &self.poll_interval)
            .finish_non_exhaustive()
    }
}

/// Where attempts run.
struct Places {
    /// For whatever is due.
    queue: Arc<Semaphore>,
    /// For fresh deliveries, while the others are taken.
    fresh: Arc<Semaphore>,
    /// Told when an attempt has ended.
    left: Arc<Notify>,
}

impl Places {
    /// Waits until no attempt runs any more.
    async fn empty(&self, concurrency: usize, reserved: usize) {
        for (places, count) in [
            (&self.queue, concurrency - reserved),
            (&self.fresh, reserved),
        ] {
            let count = u32::try_from(count).unwrap_or(u32::MAX);
            // Nobody closes it, and its permits come back even if an attempt's task panics.
            let _ = places.acquire_many(count).await;
        }
    }
}

/// A place that an attempt has, until it has ended.
struct Taken {
    permit: Option<OwnedSemaphorePermit>,
    left: Arc<Notify>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        // The place first: whoever is told looks for it.
        self.permit = None;
        self.left.notify_one();
    }
}

/// A worker at work.
struct Shift<S, St> {
    engine: Arc<Engine<St>>,
    inner: S,
    source: Source,
    scope: Scope,
    order: Order,
    flood: u32,
    places: Places,
    poll_interval: Duration,
}

impl<S, St, B> Shift<S, St>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    St: DurableStore,
    B: Send + 'static,
{
    /// Takes and starts deliveries until the drain begins.
    async fn work(&self, changes: &mut Changes, drain: &Drain) {
        // Looking for expired leases reads every lease, so it is not done at every step.
        let expired_every = self.engine.lease.lease_length() / 4;
        let mut next_expired = Instant::now();
        let mut failures = 0_u32;
        // Whether the queue may hold more than there were places for.
        let mut crowded = false;
        while !drain.is_draining() {
            let expired = Instant::now() >= next_expired;
            let step = async { self.step(expired).await };
            // A step that hangs must not keep a shutdown waiting. What was taken for it is released.
            let step = tokio::select! {
                step = step => step,
                () = drain.begun() => return,
            };
            let pause = match step {
                Ok(step) => {
                    failures = 0;
                    // Where one was taken over there may be more than there were places for.
                    if expired && step.asked_all && !step.took_over {
                        next_expired = Instant::now() + expired_every;
                    }
                    if step.more {
                        continue;
                    }
                    crowded = step.crowded;
                    let wait = self.jittered();
                    if crowded {
                        wait
                    } else {
                        let expired = next_expired.saturating_duration_since(Instant::now());
                        wait.min(expired.max(Duration::from_millis(1)))
                    }
                }
                Err(_) => {
                    failures = failures.saturating_add(1);
                    let longest = self.poll_interval.max(Duration::from_secs(1));
                    Backoff::new(Duration::from_millis(100), longest).bound(failures)
                }
            };
            let wake = Instant::now() + pause;
            if failures > 0 {
                tokio::select! {
                    () = sleep_until(wake) => {}
                    () = drain.begun() => {}
                }
                continue;
            }
            tokio::select! {
                () = changes.changed() => {}
                () = self.places.left.notified(), if crowded => {}
                () = sleep_until(wake) => {}
                () = drain.begun() => {}
            }
        }
    }

    /// Fills the places that are free.
    async fn step(&self, expired: bool) -> Result<Step, StoreError> {
        let free = self.places.queue.available_permits().min(MAX_STEP);
        let mut step = Step {
            asked_all: free > 0,
            more: false,
            crowded: true,
            took_over: false,
        };
        if free > 0 {
            let taken = self.acquire(free, Lane::Due, expired).await?;
            // There is more where everything that was asked for was found, if there are places left for it.
            step.more = !taken.is_empty() && taken.started.len() + taken.retired.len() >= free;
            let full = taken.started.len() >= free;
            let mut kinds = taken.started.iter().map(|acquired| acquired.held.kind);
            step.took_over = kinds.any(|kind| kind == ClaimKind::Takeover);
            self.start_all(taken, &self.places.queue);
            if !full {
                step.crowded = false;
                return Ok(step);
            }
            step.more &= self.places.queue.available_permits() > 0;
        }
        let free = self.places.fresh.available_permits().min(MAX_STEP);
        if free > 0 {
            let window = FRESH;
            let flood = self.flood;
            let taken = self
                .acquire(free, Lane::Fresh { window, flood }, false)
                .await?;
            self.start_all(taken, &self.places.fresh);
        }
        Ok(step)
    }

    async fn acquire(
        &self,
        free: usize,
        lane: Lane,
        expired: bool,
    ) -> Result<Acquisition, StoreError> {
        let limit = u32::try_from(free).unwrap_or(u32::MAX);
        let acquire = Acquire::new(self.source.clone(), limit, self.engine.lease)
            .scope(self.scope)
            .order(self.order)
            .lane(lane)
            .expired(expired);
        let acquire = self.engine.store.acquire(acquire);
        self.engine.stored(Operation::Acquire, None, acquire).await
    }

    fn start_all(&self, taken: Acquisition, places: &Arc<Semaphore>) {
        for retired in &taken.retired {
            self.engine.emit(&Event::Retired { retired });
        }
        for acquired in taken.started {
            // There is one: this task alone takes places, and counted them before.
            let permit = Arc::clone(places).try_acquire_owned().ok();
            let place = Taken {
                permit,
                left: Arc::clone(&self.places.left),
            };
            let running = self.engine.drain.enter();
            let engine = Arc::clone(&self.engine);
            let inner = self.inner.clone();
            tokio::spawn(async move {
                attempt(&engine, inner, acquired).await;
                drop((place, running));
            });
        }
    }

    /// The poll interval, shortened by up to a half.
    fn jittered(&self) -> Duration {
        let half = self.poll_interval / 2;
        half + Backoff::new(half, half).delay(1)
    }
}

/// What came of filling the places.
struct Step {
    /// Whether whatever is due was asked for.
    asked_all: bool,
    /// Whether it is worth asking again at once.
    more: bool,
    /// Whether more may be due than there were places for.
    crowded: bool,
    /// Whether a lease had run out.
    took_over: bool,
}

/// One attempt, from the row to its record.
async fn attempt<S, St, B>(engine: &Engine<St>, mut inner: S, acquired: Acquired)
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>>,
    St: DurableStore,
{
    let Acquired {
        held,
        delivery,
        path,
        age,
        ..
    } = acquired;
    let delivery = match delivery {
        Ok(delivery) => delivery,
        Err(error) => {
            let id = &held.delivery_id;
            engine.emit(&Event::Unreadable { id, error: &error });
            let delay = engine.backoff.delay(held.attempt);
            let failure = Failure::transient(error.to_string(), delay);
            let failed = engine.store.fail(&held, &failure);
            // If this cannot be recorded either, the lease runs out.
            let _ = engine.stored(Operation::Fail, Some(id), failed).await;
            return;
        }
    };
    engine.emit(&Event::Acquired {
        attempt: &Attempt::new(&held).0,
        delivery: &delivery,
        kind: held.kind,
        age,
    });
    let won = Won {
        parts: parts(&path, &delivery),
        delivery,
        held,
        reservation: Reservation::new(None),
    };
    let work = move |request| async move {
        std::future::poll_fn(|cx| inner.poll_ready(cx)).await?;
        inner.call(request).await
    };
    // A panic was recorded and reported, and ends here.
    let _ = run::run(engine, work, won, Patience::Lease).await;
}

/// The head of the request that was stored.
fn parts(path: &str, delivery: &hookclaim::Delivery) -> request::Parts {
    let (mut parts, ()) = Request::new(()).into_parts();
    parts.method = Method::POST;
    parts.uri = path.parse().unwrap_or_else(|_| Uri::from_static("/"));
    parts.headers = delivery.headers();
    parts
}
