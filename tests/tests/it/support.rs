//! Receivers of every kind, each on a socket, with one handler that can be looked into.

use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::routing::{get, post};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tower::{Layer, Service, service_fn};

use hookclaim::{
    Attempt, ClaimKey, Delivery, DeliveryId, DeliveryStore, Lease, ListFilter, MemoryStore, Record,
    SecretSet, Source,
};
use hookclaim_tests::DEADLINE;
use hookclaim_tests::http::{Answer, Client, Signed, signed};
use tower_hookclaim::{GithubWebhookLayer, WebhookRoute};

pub(crate) const SECRET: &str = "It's a Secret to Everybody";

/// A layer with [`SECRET`] around `store`, patient: hashing without optimization is slow on a busy machine.
pub(crate) fn layer<St: Clone>(store: &St) -> GithubWebhookLayer<St> {
    let secrets = SecretSet::single(SECRET).expect("the secret is one");
    GithubWebhookLayer::new(secrets, store.clone())
        .body_timeout(DEADLINE)
        .ack_after(DEADLINE)
}

/// A delivery signed with [`SECRET`].
pub(crate) fn delivery(event: &str, guid: &str, body: impl Into<Bytes>) -> Signed {
    signed(SECRET, event, guid, body)
}

/// The ways in which people put the layer in front of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stack {
    /// axum, `Router::layer`.
    AxumLayer,
    /// axum, `Router::route_layer`.
    AxumRouteLayer,
    /// hyper, spoken to in HTTP/1.1.
    Http1,
    /// hyper, spoken to in HTTP/2.
    Http2,
    /// A tonic server with the webhook beside its services, spoken to in HTTP/2.
    Tonic,
}

impl Stack {
    pub(crate) const ALL: [Self; 5] = [
        Self::AxumLayer,
        Self::AxumRouteLayer,
        Self::Http1,
        Self::Http2,
        Self::Tonic,
    ];

    fn client(self) -> Client {
        match self {
            Self::AxumLayer | Self::AxumRouteLayer | Self::Http1 => Client::http1(),
            Self::Http2 | Self::Tonic => Client::http2(),
        }
    }
}

/// What the handler was given.
#[derive(Clone, Debug)]
pub(crate) struct Run {
    pub(crate) delivery: Delivery,
    pub(crate) attempt: u32,
    /// The bytes of the request's body.
    pub(crate) body: Bytes,
}

/// The handler's answer.
pub(crate) type Reply = Response<Full<Bytes>>;

type Behaviour<St> =
    dyn Fn(Run, Lease<St>) -> Pin<Box<dyn Future<Output = Reply> + Send>> + Send + Sync;

/// A handler that remembers what it was given.
pub(crate) struct Handler<St> {
    runs: Arc<Mutex<Vec<Run>>>,
    behaviour: Arc<Behaviour<St>>,
}

impl<St: Send + Sync + 'static> Handler<St> {
    /// One that behaves as told.
    pub(crate) fn new<F>(behaviour: impl Fn(Run, Lease<St>) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Reply> + Send + 'static,
    {
        Self {
            runs: Arc::default(),
            behaviour: Arc::new(move |run, lease| Box::pin(behaviour(run, lease))),
        }
    }

    /// One that answers 200.
    pub(crate) fn done() -> Self {
        Self::new(|_, _| async { reply(200, "done") })
    }

    /// What it was given so far.
    pub(crate) fn runs(&self) -> Vec<Run> {
        self.runs.lock().expect("no panic in between").clone()
    }

    /// The handler as the layer's inner service.
    pub(crate) fn into_service(
        self,
    ) -> impl Service<
        Request<Full<Bytes>>,
        Response = Reply,
        Error = Infallible,
        Future = impl Future<Output = Result<Reply, Infallible>> + Send + use<St>,
    > + Clone
    + Send
    + use<St> {
        service_fn(move |request: Request<Full<Bytes>>| {
            let handler = self.clone();
            async move { Ok(handler.handle(request).await) }
        })
    }

    pub(crate) async fn handle<B>(self, request: Request<B>) -> Reply
    where
        B: http_body::Body<Data = Bytes, Error: fmt::Debug>,
    {
        let (head, body) = request.into_parts();
        let get = "the layer puts it there";
        let run = Run {
            delivery: head.extensions.get().cloned().expect(get),
            attempt: head.extensions.get::<Attempt>().expect(get).number(),
            body: body.collect().await.expect("it is all there").to_bytes(),
        };
        let lease = head.extensions.get::<Lease<St>>().cloned().expect(get);
        self.runs
            .lock()
            .expect("no panic in between")
            .push(run.clone());
        (self.behaviour)(run, lease).await
    }
}

impl<St> Clone for Handler<St> {
    fn clone(&self) -> Self {
        Self {
            runs: Arc::clone(&self.runs),
            behaviour: Arc::clone(&self.behaviour),
        }
    }
}

pub(crate) fn reply(status: u16, text: impl Into<Bytes>) -> Reply {
    let mut reply = Response::new(Full::new(text.into()));
    *reply.status_mut() = StatusCode::from_u16(status).expect("a status");
    reply
}

/// A receiver on a socket. It is gone when this is dropped.
pub(crate) struct App<St> {
    pub(crate) store: St,
    pub(crate) client: Client,
    handler: Handler<St>,
    url: String,
    server: JoinHandle<()>,
}

impl App<MemoryStore> {
    /// One with a memory store and a handler that answers 200.
    pub(crate) async fn plain(stack: Stack) -> Self {
        let store = MemoryStore::new();
        Self::start(stack, layer(&store), store, Handler::done()).await
    }
}

impl<St: DeliveryStore> App<St> {
    /// One around `store`, with default settings.
    pub(crate) async fn with(stack: Stack, store: St, handler: Handler<St>) -> Self {
        Self::start(stack, layer(&store), store, handler).await
    }

    pub(crate) async fn start(
        stack: Stack,
        layer: GithubWebhookLayer<St>,
        store: St,
        handler: Handler<St>,
    ) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("it is bound"));
        let server = serve(stack, listener, layer, handler.clone());
        Self {
            store,
            client: stack.client(),
            handler,
            url,
            server,
        }
    }

    /// Where deliveries go.
    pub(crate) fn webhook(&self) -> String {
        format!("{}/webhook", self.url)
    }

    /// Where the server listens.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Sends a delivery.
    pub(crate) async fn deliver(&self, delivery: &Signed) -> Answer {
        self.client.deliver(&self.webhook(), delivery).await
    }

    /// What the handler was given so far.
    pub(crate) fn runs(&self) -> Vec<Run> {
        self.handler.runs()
    }

    /// All that the store has.
    pub(crate) async fn records(&self) -> Vec<Record> {
        let all = ListFilter::newest(10_000);
        self.store.list(&all).await.expect("it can be read")
    }

    /// What the store has of a delivery under the default source.
    pub(crate) async fn record(&self, guid: &str) -> Option<Record> {
        let id = DeliveryId::new(guid).expect("a delivery id");
        let key = ClaimKey::delivery(Source::default(), &id);
        self.store.inspect(&key).await.expect("it can be read")
    }

    /// Fails unless nothing was claimed and nothing ran.
    pub(crate) async fn assert_untouched(&self, case: &str) {
        assert_eq!(self.records().await, [], "{case}: nothing is claimed");
        assert!(self.runs().is_empty(), "{case}: nothing runs");
    }
}

impl<St> Drop for App<St> {
    fn drop(&mut self) {
        self.server.abort();
    }
}

fn serve<St: DeliveryStore>(
    stack: Stack,
    listener: TcpListener,
    layer: GithubWebhookLayer<St>,
    handler: Handler<St>,
) -> JoinHandle<()> {
    let for_axum = {
        let handler = handler.clone();
        post(move |request: axum::extract::Request| handler.clone().handle(request))
    };
    let for_hyper = handler.into_service();
    match stack {
        Stack::AxumLayer => {
            let webhook = Router::new().route("/webhook", for_axum).layer(layer);
            let app = Router::new()
                .merge(webhook)
                .route("/", get(|| async { "page" }));
            tokio::spawn(async { axum::serve(listener, app).await.expect("it serves") })
        }
        Stack::AxumRouteLayer => {
            let app = Router::new()
                .route("/webhook", for_axum)
                .route_layer(layer)
                .route("/", get(|| async { "page" }));
            tokio::spawn(async { axum::serve(listener, app).await.expect("it serves") })
        }
        Stack::Http1 | Stack::Http2 => tokio::spawn(serve_hyper(listener, layer.layer(for_hyper))),
        Stack::Tonic => {
            let incoming = tonic::transport::server::TcpIncoming::from(listener);
            let (reporter, health) = tonic_health::server::health_reporter();
            tokio::spawn(async move {
                reporter
                    .set_service_status("pairing", tonic_health::ServingStatus::Serving)
                    .await;
                tonic::transport::Server::builder()
                    .layer(WebhookRoute::layer("/webhook", layer.layer(for_hyper)))
                    .add_service(health)
                    .serve_with_incoming(incoming)
                    .await
                    .expect("it serves");
            })
        }
    }
}

/// Serves a Tower service on hyper alone, HTTP/1.1 and HTTP/2.
pub(crate) async fn serve_hyper<S, B>(listener: TcpListener, service: S)
where
    S: Service<Request<hyper::body::Incoming>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    loop {
        let (stream, _) = listener.accept().await.expect("it listens");
        let service = TowerToHyperService::new(service.clone());
        tokio::spawn(async move {
            // A connection that breaks is the client's affair.
            let _ = auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        });
    }
}
