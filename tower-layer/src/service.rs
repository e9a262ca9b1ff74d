//! The service.

use std::fmt;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hookclaim::{DeliveryHead, DeliveryStore, DurableStore};
use http::{Request, Response, request};
use http_body::Body;
use http_body_util::Full;
use tokio::runtime::Handle;
use tokio::time::{Instant, timeout};
use tower_service::Service;

use crate::body::ResponseBody;
use crate::flight::{About, Arrival, Flight};
use crate::future::ResponseFuture;
use crate::layer::Settings;
use crate::mode::{Durable, Inline};
use crate::observe::Event;
use crate::outcome::{Answer, Outcome};
use crate::receive::{self, Discard, Reader, Won};
use crate::rejection::Rejection;
use crate::run;

/// Lets only verified deliveries through to the inner service, and each of them once.
///
/// Made by [`GithubWebhookLayer`](crate::GithubWebhookLayer). The inner service gets the verified bytes as they came
/// over the wire; method, URI, headers and extensions of the request are kept, and the extensions hold the
/// [`Delivery`](hookclaim::Delivery), the [`Attempt`](hookclaim::Attempt) and the [`Lease<St>`](hookclaim::Lease)
/// besides.
///
/// In the mode [`Durable`] it only stores deliveries, and the inner service is not called: a
/// [`Worker`](crate::Worker) has one of its own.
pub struct GithubWebhook<S, St, M = Inline> {
    inner: S,
    settings: Arc<Settings<St>>,
    mode: PhantomData<fn() -> M>,
}

impl<S, St, M> GithubWebhook<S, St, M> {
    pub(crate) fn new(inner: S, settings: Arc<Settings<St>>) -> Self {
        Self {
            inner,
            settings,
            mode: PhantomData,
        }
    }

    /// The inner service.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// The inner service, alone.
    pub fn into_inner(self) -> S {
        self.inner
    }
}

impl<S: Clone, St, M> Clone for GithubWebhook<S, St, M> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            settings: Arc::clone(&self.settings),
            mode: PhantomData,
        }
    }
}

impl<S: fmt::Debug, St, M> fmt::Debug for GithubWebhook<S, St, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("GithubWebhook");
        f.field("inner", &self.inner);
        self.settings.fields(&mut f)
    }
}

impl<S, St, ReqB, B> Service<Request<ReqB>> for GithubWebhook<S, St>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    St: DeliveryStore,
    ReqB: Body<Data = Bytes> + Send + 'static,
    B: Send + 'static,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<B, S::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let begin = Instant::now();
        let landing = match self.land(request, begin) {
            Ok(landing) => landing,
            Err(answer) => return self.refuse(answer, begin),
        };
        // The service in `self` was polled ready. It goes along; a fresh clone stays.
        let fresh = self.inner.clone();
        let inner = std::mem::replace(&mut self.inner, fresh);
        let settings = Arc::clone(&self.settings);
        let engine = Arc::clone(&self.settings.engine);
        let Landing {
            arrival,
            parts,
            head,
        } = landing;
        let to_claim = move |signed| receive::claim(settings, parts, head, signed);
        let to_run = move |won: Won| run::begin(engine, inner, won);
        ResponseFuture::flying(Box::pin(Flight::new(arrival, to_claim, to_run)))
    }
}

impl<S, St, ReqB, B> Service<Request<ReqB>> for GithubWebhook<S, St, Durable>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>>,
    S::Error: Send + 'static,
    St: DurableStore,
    ReqB: Body<Data = Bytes> + Send + 'static,
    B: Send + 'static,
{
    type Response = Response<ResponseBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<B, S::Error>;

    /// Always ready: the inner service has no part in it.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let begin = Instant::now();
        let landing = match self.land(request, begin) {
            Ok(landing) => landing,
            Err(answer) => return self.refuse(answer, begin),
        };
        let settings = Arc::clone(&self.settings);
        let Landing {
            arrival,
            parts,
            head,
        } = landing;
        let to_store = move |signed| receive::store(settings, parts, head, signed);
        ResponseFuture::flying(Box::pin(Flight::new(
            arrival,
            to_store,
            run::never::<B, S::Error>,
        )))
    }
}

/// A request whose head is in order.
struct Landing<St, ReqB> {
    arrival: Arrival<St, ReqB>,
    parts: request::Parts,
    head: DeliveryHead,
}

impl<S, St, M> GithubWebhook<S, St, M> {
    /// Checks what can be checked before the body.
    fn land<ReqB>(
        &self,
        request: Request<ReqB>,
        begin: Instant,
    ) -> Result<Landing<St, ReqB>, Answer>
    where
        ReqB: Body<Data = Bytes> + Send + 'static,
    {
        let running = self.settings.engine.drain.enter();
        let (parts, body) = request.into_parts();
        let checked = receive::check_head(&self.settings, &parts.method, &parts.headers);
        let announced = receive::announced_len(&parts.headers, &body);
        let limit = self.settings.body_limit;
        let checked = match (checked, announced) {
            (Ok(_), Some(len)) if len > limit => Err(receive::too_large(limit)),
            (Ok(_), _) if self.settings.is_full() => Err(Answer::unavailable(Rejection::Memory)),
            (checked, _) => checked,
        };
        let (head, signature) = match checked {
            Ok(checked) => checked,
            Err(answer) => {
                discard(body);
                return Err(answer);
            }
        };
        let settings = Arc::clone(&self.settings);
        let arrival = Arrival {
            body,
            reader: Reader::new(&settings, announced),
            signature,
            about: settings.is_observed().then(|| About::new(&head)),
            begin,
            running,
            settings,
        };
        Ok(Landing {
            arrival,
            parts,
            head,
        })
    }

    /// Answers a request before its body.
    fn refuse<B, E>(&self, answer: Answer, begin: Instant) -> ResponseFuture<B, E> {
        let response = answer.into_response();
        self.settings.emit(&Event::Answered {
            id: None,
            event: None,
            outcome: response
                .extensions()
                .get()
                .copied()
                .unwrap_or(Outcome::Rejected),
            rejection: response.extensions().get().copied(),
            status: response.status(),
            took: begin.elapsed(),
        });
        ResponseFuture::answered(response)
    }
}

/// Reads on in the background while the answer is under way.
fn discard<B: Body<Data = Bytes> + Send + 'static>(body: B) {
    if body.is_end_stream() {
        return;
    }
    // Without a runtime the body is dropped, and the server closes the connection.
    if let Ok(runtime) = Handle::try_current() {
        runtime.spawn(async move {
            let mut body = pin!(body);
            let mut discard = Discard::new();
            let done = std::future::poll_fn(|cx| discard.poll_discard(body.as_mut(), cx));
            // Whether it was all read or not: enough was done.
            let _ = timeout(Discard::TIME, done).await;
        });
    }
}
