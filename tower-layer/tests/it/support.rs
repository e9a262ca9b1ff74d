//! Signed requests, handlers that count, and stores that watch, wait or fail.

use std::convert::Infallible;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use hookclaim::testing::signed_headers;
use hookclaim::{ClaimKey, DeliveryId, DeliveryStore, MemoryStore, Record, SecretSet, Source};
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_hookclaim::{GithubWebhook, GithubWebhookLayer, OUTCOME_HEADER, Outcome};

pub(crate) const SECRET: &str = "It's a Secret to Everybody";
pub(crate) const BODY: &str = r#"{"action":"opened","number":1}"#;
pub(crate) const ID: &str = "72d3162e-cc78-11e3-81ab-4c9367dc0958";

pub(crate) fn secrets() -> SecretSet {
    SecretSet::single(SECRET).unwrap()
}

pub(crate) fn layer<St: DeliveryStore>(store: &St) -> GithubWebhookLayer<St> {
    GithubWebhookLayer::new(secrets(), store.clone())
}

/// A delivery as GitHub sends it.
pub(crate) fn signed(id: &str) -> Request<Full<Bytes>> {
    signed_with(SECRET, "issues", id, BODY)
}

pub(crate) fn signed_with(
    secret: &str,
    event: &str,
    id: &str,
    body: impl Into<Bytes>,
) -> Request<Full<Bytes>> {
    let body = body.into();
    let mut request = Request::new(Full::new(body.clone()));
    *request.method_mut() = Method::POST;
    *request.headers_mut() = signed_headers(secret.as_bytes(), event, id, &body);
    request
}

/// What a sender sees.
#[derive(Debug)]
pub(crate) struct Seen {
    pub(crate) status: StatusCode,
    pub(crate) outcome: String,
    pub(crate) text: String,
    pub(crate) headers: HeaderMap,
    pub(crate) extensions: http::Extensions,
}

impl Seen {
    #[track_caller]
    pub(crate) fn is(&self, status: u16, outcome: &str) {
        assert_eq!(
            (self.status.as_u16(), self.outcome.as_str()),
            (status, outcome),
            "{self:?}"
        );
        let outcome = self.extensions.get::<Outcome>().expect("an outcome");
        assert_eq!(outcome.as_str(), self.outcome);
    }
}

pub(crate) async fn seen<B>(response: Response<B>) -> Seen
where
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    let (parts, body) = response.into_parts();
    let text = body.collect().await.unwrap().to_bytes();
    Seen {
        status: parts.status,
        outcome: parts
            .headers
            .get(OUTCOME_HEADER)
            .map_or("", |value| value.to_str().unwrap())
            .to_owned(),
        text: String::from_utf8(text.to_vec()).unwrap(),
        headers: parts.headers,
        extensions: parts.extensions,
    }
}

pub(crate) async fn send<S, R, B>(service: &S, request: Request<R>) -> Seen
where
    S: Service<Request<R>, Response = Response<B>> + Clone,
    S::Error: std::fmt::Debug,
    B: http_body::Body<Data = Bytes>,
    B::Error: std::fmt::Debug,
{
    seen(service.clone().oneshot(request).await.unwrap()).await
}

/// Counts how often a handler ran.
#[derive(Clone, Debug, Default)]
pub(crate) struct Runs(Arc<AtomicUsize>);

impl Runs {
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn add(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

pub(crate) type Reply = Response<Full<Bytes>>;

pub(crate) fn reply(status: u16) -> Reply {
    let mut response = Response::new(Full::from("handled"));
    *response.status_mut() = StatusCode::from_u16(status).unwrap();
    response
}

/// A handler that counts its runs and answers as `work` says; `work` gets the number of the run.
pub(crate) fn handler<F, Fut>(
    runs: &Runs,
    work: F,
) -> impl Service<Request<Full<Bytes>>, Response = Reply, Error = Infallible, Future: Send>
+ Clone
+ Send
+ 'static
+ use<F, Fut>
where
    F: Fn(usize, Request<Full<Bytes>>) -> Fut + Clone + Send + 'static,
    Fut: Future<Output = Reply> + Send + 'static,
{
    let runs = runs.clone();
    service_fn(move |request| {
        let work = work(runs.add(), request);
        async move { Ok(work.await) }
    })
}

/// A handler that answers with this status.
pub(crate) fn answering(
    runs: &Runs,
    status: u16,
) -> impl Service<Request<Full<Bytes>>, Response = Reply, Error = Infallible, Future: Send>
+ Clone
+ Send
+ 'static
+ use<> {
    handler(runs, move |_, _| std::future::ready(reply(status)))
}

/// The layer with its defaults around a handler that answers 200.
pub(crate) fn ok_service<St: DeliveryStore>(
    store: &St,
    runs: &Runs,
) -> GithubWebhook<
    impl Service<Request<Full<Bytes>>, Response = Reply, Error = Infallible, Future: Send>
    + Clone
    + Send
    + 'static
    + use<St>,
    St,
> {
    layer(store).layer(answering(runs, 200))
}

pub(crate) async fn record<St: DeliveryStore>(store: &St, id: &str) -> Option<Record> {
    let key = ClaimKey::delivery(Source::default(), &DeliveryId::new(id).unwrap());
    store.inspect(&key).await.unwrap()
}

pub(crate) fn memory() -> MemoryStore {
    MemoryStore::new()
}

/// A clock that follows the runtime's, so that both can be paused.
#[derive(Debug)]
pub(crate) struct RuntimeClock(tokio::time::Instant);

impl hookclaim::Clock for RuntimeClock {
    fn now(&self) -> hookclaim::Timestamp {
        hookclaim::Timestamp::from_micros(1_767_225_600_000_000) + self.0.elapsed()
    }
}

pub(crate) fn timed_memory() -> MemoryStore {
    MemoryStore::with_clock(Arc::new(RuntimeClock(tokio::time::Instant::now())))
}

/// A body whose frames come one by one, each a moment after it was asked for.
#[derive(Debug)]
pub(crate) struct Chunks {
    frames: std::collections::VecDeque<Result<http_body::Frame<Bytes>, std::io::Error>>,
    late: bool,
    stalls: bool,
}

impl Chunks {
    pub(crate) fn new(
        frames: impl IntoIterator<Item = Result<http_body::Frame<Bytes>, std::io::Error>>,
    ) -> Self {
        Self {
            frames: frames.into_iter().collect(),
            late: false,
            stalls: false,
        }
    }

    pub(crate) fn of(body: &str, len: usize) -> Self {
        let pieces = body.as_bytes().chunks(len);
        Self::new(pieces.map(|piece| Ok(http_body::Frame::data(Bytes::copy_from_slice(piece)))))
    }

    /// Never ends.
    pub(crate) fn stalling(mut self) -> Self {
        self.stalls = true;
        self
    }

    pub(crate) fn push(&mut self, frame: Result<http_body::Frame<Bytes>, std::io::Error>) {
        self.frames.push_back(frame);
    }
}

impl http_body::Body for Chunks {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, std::io::Error>>> {
        self.late = !self.late;
        if self.late {
            cx.waker().wake_by_ref();
            return std::task::Poll::Pending;
        }
        let frame = self.frames.pop_front();
        if frame.is_none() && self.stalls {
            return std::task::Poll::Pending;
        }
        std::task::Poll::Ready(frame)
    }
}
