//! Storing a delivery for later, and taking what is due.

use std::fmt;
use std::time::Duration;

use tokio::sync::watch;

use crate::claim::{Claim, Held, LeasePolicy};
use crate::delivery::{Delivery, DeliveryId, EventName};
use crate::key::{ClaimKey, Scope, Source};
use crate::record::State;
use crate::request::StoredRequest;
use crate::time::{LONGEST, Timestamp};

/// A request to store a delivery, so that a worker runs it.
///
/// ```
/// use hookclaim::{BusinessKey, ClaimKey, DeliveryId, Enqueue, EventName, LeasePolicy, Source, StoredRequest};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // Work of the application's own, once per commit.
/// let key = BusinessKey::new().text("octocat/hello-world").text("6dcb09b5b57875f3");
/// let deploy = Enqueue::work(
///     ClaimKey::business(Source::new("deploy")?, &key),
///     DeliveryId::new("deploy-6dcb09b5b57875f3")?,
///     EventName::new("deploy")?,
///     StoredRequest::new("{\"ref\":\"main\"}"),
/// )
/// .ordering_key("octocat/hello-world");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Enqueue {
    pub(crate) claim: Claim,
}

impl Enqueue {
    /// Stores a verified delivery that came to `path`, under `key`.
    #[must_use]
    pub fn new(delivery: &Delivery, key: ClaimKey, path: &str) -> Self {
        let mut claim = Claim::new(delivery, key, LeasePolicy::default());
        claim.kept = Some(Box::new(Kept::new(StoredRequest::of(delivery, path))));
        Self { claim }
    }

    /// Stores work of the application's own.
    ///
    /// Nobody has signed it: whoever calls this vouches for it.
    #[must_use]
    pub fn work(
        key: ClaimKey,
        delivery_id: DeliveryId,
        event: EventName,
        request: StoredRequest,
    ) -> Self {
        let request = request.named(&delivery_id, &event);
        let mut claim = Claim::bare(key, delivery_id, event, LeasePolicy::default());
        claim.kept = Some(Box::new(Kept::new(request)));
        Self { claim }
    }

    /// Sets the action.
    #[must_use]
    pub fn action(mut self, action: Option<&str>) -> Self {
        self.claim = self.claim.action(action);
        self
    }

    /// Deliveries of one source with the same ordering key start in the order of their arrival, one at a time: at most
    /// 255 bytes; of a longer one the first 255 count.
    #[must_use]
    pub fn ordering_key(mut self, key: impl Into<String>) -> Self {
        let mut key: String = key.into();
        key.truncate(key.floor_char_boundary(255));
        // Postgres has no NUL in text.
        let key = key.replace('\0', "\u{fffd}");
        self.kept().ordering_key = Some(key);
        self
    }

    /// Makes it due only after `delay`: at once by default, a year at most.
    #[must_use]
    pub fn delay(mut self, delay: Duration) -> Self {
        self.kept().delay = delay.min(LONGEST);
        self
    }

    /// Sets how many attempts count as used up, where a delivery that failed before gets its payload now.
    #[must_use]
    pub fn policy(mut self, policy: LeasePolicy) -> Self {
        self.claim.policy = policy;
        self
    }

    /// What it is claimed under.
    #[must_use]
    pub fn key(&self) -> &ClaimKey {
        &self.claim.key
    }

    /// What is kept of the request.
    #[must_use]
    pub fn request(&self) -> &StoredRequest {
        &self
            .claim
            .kept
            .as_ref()
            .expect("both constructors put it there")
            .request
    }

    fn kept(&mut self) -> &mut Kept {
        self.claim
            .kept
            .as_mut()
            .expect("both constructors put it there")
    }
}

/// What a claim that is stored for later takes along.
#[derive(Clone, Debug)]
pub(crate) struct Kept {
    pub(crate) request: StoredRequest,
    pub(crate) ordering_key: Option<String>,
    pub(crate) delay: Duration,
}

impl Kept {
    fn new(request: StoredRequest) -> Self {
        Self {
            request,
            ordering_key: None,
            delay: Duration::ZERO,
        }
    }
}

/// What came of storing a delivery.
///
/// Exhaustive on purpose: whoever answers a sender has to answer each of these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnqueueOutcome {
    /// It is stored, and a worker will run it until it completes or is dead.
    Accepted,
    /// It was done before.
    Completed,
    /// Somebody works on it, or it was stored before and waits for a worker.
    InProgress,
    /// It failed and another attempt is due at this instant.
    NotDue {
        /// When.
        retry_at: Timestamp,
    },
    /// It failed for good.
    Dead,
    /// The same delivery id came with other bytes before. Nothing was changed and nothing was stored.
    BodyMismatch {
        /// Where the delivery with the other body stands.
        state: State,
    },
}

/// A request for deliveries that are due.
#[derive(Clone, Debug)]
pub struct Acquire {
    pub(crate) source: Source,
    pub(crate) scope: Scope,
    pub(crate) policy: LeasePolicy,
    pub(crate) limit: u32,
    pub(crate) lane: Lane,
    pub(crate) order: Order,
    pub(crate) expired: bool,
}

impl Acquire {
    /// Asks for at most `limit` deliveries of a source, each of them under a lease of its own.
    #[must_use]
    pub fn new(source: Source, limit: u32, policy: LeasePolicy) -> Self {
        Self {
            source,
            scope: Scope::Endpoint,
            policy,
            limit,
            lane: Lane::Due,
            order: Order::StepAside,
            expired: true,
        }
    }

    /// With [`Scope::HookId`], asks for those of all hooks of the source.
    #[must_use]
    pub fn scope(mut self, scope: Scope) -> Self {
        self.scope = scope;
        self
    }

    /// Sets which come first.
    #[must_use]
    pub fn lane(mut self, lane: Lane) -> Self {
        self.lane = lane;
        self
    }

    /// Sets what a failed delivery means to those that arrived after it with the same ordering key.
    #[must_use]
    pub fn order(mut self, order: Order) -> Self {
        self.order = order;
        self
    }

    /// Sets whether deliveries are looked for whose lease has run out: they are by default, and come first. That reads
    /// every delivery that is leased, so a worker that asks often asks for them now and then.
    #[must_use]
    pub fn expired(mut self, expired: bool) -> Self {
        self.expired = expired;
        self
    }

    /// At most so many are asked for.
    #[must_use]
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// The policy that they are taken under.
    #[must_use]
    pub fn policy(&self) -> LeasePolicy {
        self.policy
    }

    /// Whether deliveries of `source` are asked for.
    #[must_use]
    pub fn takes(&self, source: &Source) -> bool {
        match self.scope {
            Scope::Endpoint => *source == self.source,
            Scope::HookId => source
                .as_str()
                .strip_prefix(self.source.as_str())
                .is_some_and(|rest| rest.starts_with("/hook/")),
        }
    }
}

/// Which deliveries come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lane {
    /// Those whose lease has run out, if they are looked for, and then those that have been due for longest.
    #[default]
    Due,
    /// Only those that were never tried and have been due for less than `window`, the newest first; none at all if
    /// there are more than `flood` of them, those included whose order keeps them from starting.
    ///
    /// A worker that keeps a few of its places for these starts a fresh delivery at once, however long the queue.
    Fresh {
        /// How long a delivery counts as fresh.
        window: Duration,
        /// More than so many are not a fresh delivery but a queue.
        flood: u32,
    },
}

/// What a failed delivery means to those that arrived after it with the same ordering key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Order {
    /// It steps aside until its retry is due, and the others start.
    #[default]
    StepAside,
    /// The others wait until it is completed or dead.
    Strict,
}

/// What was taken.
#[derive(Debug, Default)]
#[must_use = "a delivery that was taken and that nobody settles is blocked until its lease runs out"]
pub struct Acquisition {
    /// Deliveries to work on.
    pub started: Vec<Acquired>,
    /// Deliveries whose attempts were found to be used up: they are dead now.
    pub retired: Vec<Retired>,
}

impl Acquisition {
    /// Whether there was nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.started.is_empty() && self.retired.is_empty()
    }
}

/// A delivery that was taken to be worked on.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Acquired {
    /// The claim.
    pub held: Held,
    /// The delivery, or why it cannot be read. Under a business key its id and event may be others than the claim's:
    /// those of the delivery whose body was stored.
    pub delivery: Result<Delivery, Unreadable>,
    /// The path that it came to.
    pub path: String,
    /// The time since it was first seen.
    pub age: Duration,
    /// Whether it has an ordering key: when it ends, the next one of the same key may start.
    pub ordered: bool,
}

/// A stored payload cannot be read back.
///
/// Its text is for operators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unreadable {
    /// It is sealed with a key that is not configured.
    #[error(
        "the payload is sealed with the key {0}, which is not configured; configure it, as a previous key if it was replaced"
    )]
    KeyMissing(String),
    /// It is sealed, and its seal is broken: the row was changed by somebody else.
    #[error("the seal of the payload is broken: the row or the database was tampered with")]
    SealBroken,
    /// The row holds what this version cannot read.
    #[error("the stored request holds what this version cannot read")]
    Malformed,
}

/// A delivery that is dead because its attempts are used up.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Retired {
    /// What was claimed.
    pub key: ClaimKey,
    /// The delivery.
    pub delivery_id: DeliveryId,
    /// Its event.
    pub event: EventName,
    /// The attempts that it had.
    pub attempts: u32,
}

impl Acquired {
    /// Puts together what a store read.
    #[must_use]
    pub fn new(
        held: Held,
        event: EventName,
        fingerprint: Option<crate::signature::Fingerprint>,
        request: Result<StoredRequest, Unreadable>,
        age: Duration,
        ordered: bool,
    ) -> Self {
        let path = request
            .as_ref()
            .map_or_else(|_| "/".to_owned(), |request| request.path().to_owned());
        let delivery = request.and_then(|request| {
            let id = request.delivery_id();
            let id = id.unwrap_or_else(|| held.delivery_id.clone());
            let event = request.event().unwrap_or(event);
            let head = crate::head::DeliveryHead::stored(id, event, &request);
            let source = held.key.source().clone();
            Delivery::stored(head, request.body, fingerprint, source)
                .map_err(|_| Unreadable::Malformed)
        });
        Self {
            held,
            delivery,
            path,
            age,
            ordered,
        }
    }
}

/// What waits for workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Backlog {
    /// Stored deliveries that nobody works on, those included that wait for their retry.
    pub waiting: u64,
    /// How long the one that is due for longest has been due.
    pub oldest_due: Duration,
    /// Stored deliveries that are leased.
    pub leased: u64,
    /// Leased ones whose lease has run out: somebody should have taken them over.
    pub overdue: u64,
}

impl Backlog {
    /// Puts together what a store counted.
    #[must_use]
    pub fn new(waiting: u64, oldest_due: Duration, leased: u64, overdue: u64) -> Self {
        Self {
            waiting,
            oldest_due,
            leased,
            overdue,
        }
    }
}

/// Tells when there may be something new to take.
///
/// It may be told for nothing, and it may be told late or not at all: polling alone has to do.
#[derive(Clone)]
pub struct Changes(watch::Receiver<u64>);

impl Changes {
    /// Waits until something changed since the last call.
    ///
    /// # Cancel safety
    ///
    /// A change is not lost by dropping the future.
    pub async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // The store is gone, and nothing will change.
            std::future::pending::<()>().await;
        }
    }
}

impl fmt::Debug for Changes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Changes").finish_non_exhaustive()
    }
}

/// The sending side of [`Changes`].
#[derive(Clone, Debug)]
pub struct Announcer(watch::Sender<u64>);

impl Announcer {
    /// One that nobody listens to yet.
    #[must_use]
    pub fn new() -> Self {
        Self(watch::Sender::new(0))
    }

    /// Tells everybody.
    pub fn announce(&self) {
        self.0.send_modify(|count| *count = count.wrapping_add(1));
    }

    /// What is announced from now on.
    #[must_use]
    pub fn changes(&self) -> Changes {
        Changes(self.0.subscribe())
    }
}

impl Default for Announcer {
    fn default() -> Self {
        Self::new()
    }
}
