//! One path for webhooks, and everything else untouched.

use std::error::Error as StdError;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use http::{Request, Response};
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

type BoxError = Box<dyn StdError + Send + Sync>;

/// Sends one path to a webhook service and every other request, streaming gRPC included, to another service.
///
/// It is for servers without a router of their own, such as a tonic server or plain hyper. Axum has one: use
/// `Router::route_layer` there.
///
/// ```
/// use std::convert::Infallible;
/// use bytes::Bytes;
/// use hookclaim::{MemoryStore, SecretSet};
/// use http::{Request, Response};
/// use http_body_util::Full;
/// use tower::{Layer, ServiceExt, service_fn};
/// use tower_hookclaim::{GithubWebhookLayer, WebhookRoute};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let webhook = GithubWebhookLayer::new(SecretSet::single("It's a Secret to Everybody")?, MemoryStore::new())
///     .layer(service_fn(|_delivery: Request<Full<Bytes>>| async {
///         Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
///     }));
/// let other = service_fn(|_request: Request<Full<Bytes>>| async {
///     Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("another page")))
/// });
///
/// // As a layer it goes around a whole server: `tonic::transport::Server::builder().layer(…)`.
/// let service = WebhookRoute::layer("/webhook", webhook).layer(other);
///
/// let page = service.clone().oneshot(Request::get("/").body(Full::default())?).await?;
/// assert_eq!(page.status(), 200);
/// let unsigned = service.oneshot(Request::post("/webhook").body(Full::default())?).await?;
/// assert_eq!(unsigned.status(), 400);
/// # Ok(())
/// # }
/// ```
///
/// The path is compared as a whole, with and without one trailing slash. Every method on it goes to the webhook
/// service, which refuses all but `POST`.
///
/// The webhook service is made ready when a request for it is there, within that request's future: however busy it is,
/// it never holds up the other service. Errors of the webhook service are turned into those of the other one; services
/// that cannot fail ([`Infallible`](std::convert::Infallible)) fit as they are.
#[derive(Clone)]
pub struct WebhookRoute<W, O> {
    path: Arc<str>,
    webhook: W,
    other: O,
}

impl<W, O> WebhookRoute<W, O> {
    /// Sends `path` to `webhook` and everything else to `other`.
    ///
    /// # Panics
    ///
    /// If `path` does not begin with `/`: no request would ever match it.
    pub fn new(path: impl AsRef<str>, webhook: W, other: O) -> Self {
        Self {
            path: checked(path.as_ref()),
            webhook,
            other,
        }
    }
}

impl<W> WebhookRoute<W, ()> {
    /// The same as a layer around the other service.
    ///
    /// # Panics
    ///
    /// As for [`new`](WebhookRoute::new).
    pub fn layer(path: impl AsRef<str>, webhook: W) -> WebhookRouteLayer<W> {
        WebhookRouteLayer {
            path: checked(path.as_ref()),
            webhook,
        }
    }
}

fn checked(path: &str) -> Arc<str> {
    assert!(
        path.starts_with('/'),
        "the path of a webhook must begin with `/`: {path:?}"
    );
    trimmed(path).into()
}

fn trimmed(path: &str) -> &str {
    path.strip_suffix('/').unwrap_or(path)
}

impl<W, O> fmt::Debug for WebhookRoute<W, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookRoute")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

/// Makes a [`WebhookRoute`] around a service; from [`WebhookRoute::layer`].
#[derive(Clone)]
#[must_use = "a layer does nothing until it is applied to a service"]
pub struct WebhookRouteLayer<W> {
    path: Arc<str>,
    webhook: W,
}

impl<W> fmt::Debug for WebhookRouteLayer<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookRouteLayer")
            .field("path", &self.path)
            .finish_non_exhaustive()
    }
}

impl<W: Clone, O> Layer<O> for WebhookRouteLayer<W> {
    type Service = WebhookRoute<W, O>;

    fn layer(&self, other: O) -> Self::Service {
        WebhookRoute {
            path: Arc::clone(&self.path),
            webhook: self.webhook.clone(),
            other,
        }
    }
}

impl<W, O, ReqB, WB, OB> Service<Request<ReqB>> for WebhookRoute<W, O>
where
    W: Service<Request<ReqB>, Response = Response<WB>> + Clone,
    W::Error: Into<O::Error>,
    O: Service<Request<ReqB>, Response = Response<OB>>,
{
    type Response = Response<RouteBody<WB, OB>>;
    type Error = O::Error;
    type Future
        = RouteFuture<W, O::Future, ReqB>
    where
        W: Service<Request<ReqB>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), O::Error>> {
        self.other.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let kind = if trimmed(request.uri().path()) == &*self.path {
            Kind::Waiting {
                webhook: self.webhook.clone(),
                request: Some(request),
            }
        } else {
            Kind::Other {
                future: self.other.call(request),
            }
        };
        RouteFuture { kind }
    }
}

pin_project! {
    /// The response of a [`WebhookRoute`].
    ///
    /// # Cancel safety
    ///
    /// As for the future of the service that the request went to.
    pub struct RouteFuture<W, F, ReqB>
    where
        W: Service<Request<ReqB>>,
    {
        #[pin]
        kind: Kind<W, W::Future, F, ReqB>,
    }
}

pin_project! {
    #[project = KindProj]
    enum Kind<W, WF, F, ReqB> {
        Waiting { webhook: W, request: Option<Request<ReqB>> },
        Webhook { #[pin] future: WF },
        Other { #[pin] future: F },
    }
}

impl<W, F, ReqB> fmt::Debug for RouteFuture<W, F, ReqB>
where
    W: Service<Request<ReqB>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RouteFuture").finish_non_exhaustive()
    }
}

impl<W, F, ReqB, WB, OB, E> Future for RouteFuture<W, F, ReqB>
where
    W: Service<Request<ReqB>, Response = Response<WB>>,
    W::Error: Into<E>,
    F: Future<Output = Result<Response<OB>, E>>,
{
    type Output = Result<Response<RouteBody<WB, OB>>, E>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let mut kind = self.project().kind;
        loop {
            let future = match kind.as_mut().project() {
                KindProj::Waiting { webhook, request } => {
                    ready!(webhook.poll_ready(cx)).map_err(Into::into)?;
                    let request = request.take().expect("a service is called once");
                    webhook.call(request)
                }
                KindProj::Webhook { future } => {
                    let response = ready!(future.poll(cx)).map_err(Into::into)?;
                    return Poll::Ready(Ok(response.map(RouteBody::webhook)));
                }
                KindProj::Other { future } => {
                    let response = ready!(future.poll(cx))?;
                    return Poll::Ready(Ok(response.map(RouteBody::other)));
                }
            };
            kind.set(Kind::Webhook { future });
        }
    }
}

pin_project! {
    /// The body of a response of a [`WebhookRoute`]: that of the one service or of the other.
    #[derive(Debug)]
    pub struct RouteBody<W, O> {
        #[pin]
        arm: Arm<W, O>,
    }
}

pin_project! {
    #[project = ArmProj]
    #[derive(Debug)]
    enum Arm<W, O> {
        Webhook { #[pin] body: W },
        Other { #[pin] body: O },
    }
}

impl<W, O> RouteBody<W, O> {
    fn webhook(body: W) -> Self {
        Self {
            arm: Arm::Webhook { body },
        }
    }

    fn other(body: O) -> Self {
        Self {
            arm: Arm::Other { body },
        }
    }
}

impl<W, O> Body for RouteBody<W, O>
where
    W: Body,
    W::Error: Into<BoxError>,
    O: Body<Data = W::Data>,
    O::Error: Into<BoxError>,
{
    type Data = W::Data;
    type Error = BoxError;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<W::Data>, BoxError>>> {
        match self.project().arm.project() {
            ArmProj::Webhook { body } => body
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(Into::into))),
            ArmProj::Other { body } => body
                .poll_frame(cx)
                .map(|frame| frame.map(|frame| frame.map_err(Into::into))),
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.arm {
            Arm::Webhook { body } => body.is_end_stream(),
            Arm::Other { body } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.arm {
            Arm::Webhook { body } => body.size_hint(),
            Arm::Other { body } => body.size_hint(),
        }
    }
}
