//! One attempt: the inner service, the lease that is kept meanwhile, and what is recorded in the end.

mod catch;
mod renew;
mod settle;

use std::any::Any;
use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hookclaim::{Attempt, Delivery, DeliveryStore, Failure, Held, Lease, StoredRequest};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::Full;
use tokio::time::{Instant, sleep, timeout};
use tower_service::Service;

use self::catch::CatchUnwind;
use self::renew::Renewer;
pub(crate) use self::settle::Settled;
use self::settle::{End, Settler};
use crate::body::ResponseBody;
use crate::engine::Engine;
use crate::flight::CLAIM_TIME;
use crate::observe::{Event, Operation};
use crate::outcome::{Answer, Outcome};
use crate::receive::Won;
use crate::rejection::Rejection;
use crate::verdict::judge;

/// The first pause before a locked row is asked again; each further one is twice as long.
const KEEP_AGAIN: Duration = Duration::from_millis(20);

/// What the operator reads of a handler that did not end in time.
const STOPPED: &str = "the handler was stopped: it was still running when its lease was over";

/// How a request ended.
pub(crate) enum Ended<B, E> {
    Response(Response<ResponseBody<B>>),
    Error(E),
    /// The inner service's own panic, to be handed on while somebody waits.
    Panic(Box<dyn Any + Send>),
}

/// What is done before an attempt is answered early; made only then.
pub(crate) type Keeping = Pin<Box<dyn Future<Output = Answer> + Send>>;

/// Begins the attempt of a request: the future that runs it, and what is done before an early answer.
pub(crate) fn begin<S, St, B>(
    engine: Arc<Engine<St>>,
    mut inner: S,
    won: Won,
) -> (
    impl Future<Output = Ended<B, S::Error>> + Send + 'static,
    impl FnOnce() -> Keeping + Send + 'static,
)
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>> + Send + 'static,
    S::Future: Send + 'static,
    S::Error: Send + 'static,
    St: DeliveryStore,
    B: Send + 'static,
{
    let to_keep = {
        let (engine, delivery) = (Arc::clone(&engine), won.delivery.clone());
        let (held, uri) = (won.held.clone(), won.parts.uri.clone());
        move || Box::pin(async move { keep(&engine, &held, &delivery, &uri).await }) as Keeping
    };
    // The call itself may panic as well as its future, and does so in here.
    let work = move |request| async move { inner.call(request).await };
    let run = async move {
        let (ended, settled) = run(&engine, work, won, Patience::Endless).await;
        answer(ended, settled)
    };
    (run, to_keep)
}

/// An attempt that there never is.
type Never<B, E> = std::future::Pending<Ended<B, E>>;

/// For a request that begins no attempt.
pub(crate) fn never<B, E>(never: Infallible) -> (Never<B, E>, fn() -> Keeping) {
    match never {}
}

/// Stores the payload of an attempt that is about to be answered, and says what the answer is.
///
/// A store that keeps no payloads leaves the attempt to itself: should it fail, a redelivery is needed.
async fn keep<St: DeliveryStore>(
    engine: &Engine<St>,
    held: &Held,
    delivery: &Delivery,
    uri: &Uri,
) -> Answer {
    let request = StoredRequest::of(delivery, uri.path());
    let mut pause = KEEP_AGAIN;
    let keep = async {
        loop {
            let kept = engine.store.keep(held, request.clone());
            let kept = engine.stored(Operation::Keep, Some(delivery.id()), kept);
            match kept.await {
                // Locked, as by the handler's own transaction, which may be over in a moment.
                Err(error) if error.is_busy() => sleep(pause).await,
                kept => return kept,
            }
            pause *= 2;
        }
    };
    match timeout(CLAIM_TIME, keep).await {
        Ok(Ok(_)) => Answer::running(),
        Ok(Err(error)) if error.is_lease_lost() => {
            let row = engine.store.inspect(&held.key);
            let row = timeout(
                CLAIM_TIME,
                engine.stored(Operation::Inspect, Some(delivery.id()), row),
            );
            match row.await {
                // The handler has committed, and goes on with something else.
                Ok(Ok(Some(row))) if row.token == held.token => Answer::running(),
                _ => Answer::in_progress(),
            }
        }
        Ok(Err(_)) | Err(_) => Answer::unavailable(Rejection::Store),
    }
}

/// How long a handler may go on whose lease cannot be kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Patience {
    /// As long as it likes: it was told, and it can no longer complete the delivery.
    Endless,
    /// Until its lease is over: then another attempt may begin, and this one's place is needed.
    Lease,
}

/// Why a handler was dropped before it was done.
enum Dropped {
    HandedBack,
    Stopped,
}

/// Runs an attempt and records how it ends. It has to be driven to its end.
pub(crate) async fn run<St, B, E, W>(
    engine: &Engine<St>,
    work: impl FnOnce(Request<Full<Bytes>>) -> W,
    won: Won,
    patience: Patience,
) -> (Ended<B, E>, Settled)
where
    St: DeliveryStore,
    W: Future<Output = Result<Response<B>, E>>,
{
    let Won {
        parts,
        delivery,
        held,
        reservation: _reservation,
    } = won;
    let begin = Instant::now();
    let (attempt, cancel) = Attempt::new(&held);
    let lease = Lease::new(engine.store.clone(), held);

    let mut request = Request::from_parts(parts, Full::new(delivery.raw().clone()));
    let extensions = request.extensions_mut();
    extensions.insert(delivery.clone());
    extensions.insert(attempt.clone());
    extensions.insert(lease.clone());

    let mut renewer = Renewer::new(engine, &lease, &attempt, cancel);
    let result = {
        let mut work = pin!(CatchUnwind::new(async move { work(request).await }));
        let mut renewals = pin!(async {
            match patience {
                Patience::Endless => {
                    renewer.renew(false).await;
                    std::future::pending::<()>().await;
                }
                Patience::Lease => renewer.renew_or_stop().await,
            }
        });
        let mut handed_back = pin!(engine.drain.handed_back());
        let mut begun = false;
        poll_fn(|cx| {
            // A shutdown that has run out of patience begins nothing new.
            if !std::mem::replace(&mut begun, true) && handed_back.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(Dropped::HandedBack));
            }
            if let Poll::Ready(result) = work.as_mut().poll(cx) {
                return Poll::Ready(Ok(result));
            }
            // The lease and a shutdown are of no concern to a handler that is done.
            if renewals.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(Dropped::Stopped));
            }
            handed_back
                .as_mut()
                .poll(cx)
                .map(|()| Err(Dropped::HandedBack))
        })
        .await
    };
    let ran = begin.elapsed();

    let backoff = || engine.backoff.delay(attempt.number());
    let (ended, end) = match result {
        Err(Dropped::HandedBack) => {
            let answer = Answer::unavailable(Rejection::Draining);
            (Ended::Response(answer.into_response()), End::Release)
        }
        Err(Dropped::Stopped) => {
            engine.emit(&Event::Stopped { attempt: &attempt });
            let failure = Failure::transient(STOPPED, backoff());
            let answer = Answer::in_progress();
            (Ended::Response(answer.into_response()), End::Fail(failure))
        }
        Ok(Ok(Ok(mut response))) => {
            let failure = judge(&mut response, &engine.backoff, attempt.number());
            let end = failure.map_or(End::Complete, End::Fail);
            (Ended::Response(response.map(ResponseBody::inner)), end)
        }
        Ok(Ok(Err(error))) => {
            let failure = Failure::transient("the handler's service returned an error", backoff());
            (Ended::Error(error), End::Fail(failure))
        }
        Ok(Err(panic)) => {
            let message = catch::message(&*panic);
            engine.emit(&Event::Panicked {
                attempt: &attempt,
                message,
            });
            let failure = Failure::panic(message, backoff());
            (Ended::Panic(panic), End::Fail(failure))
        }
    };
    let settled = Settler {
        engine,
        lease: &lease,
        delivery: &delivery,
        attempt: &attempt,
        deadline: renewer.deadline(),
        lost: renewer.lost(),
        ran,
    }
    .settle(end)
    .await;
    (ended, settled)
}

/// What the sender gets to see: the row decides, and the response where it agrees.
fn answer<B, E>(result: Ended<B, E>, settled: Settled) -> Ended<B, E> {
    match (result, settled) {
        (Ended::Panic(panic), _) => Ended::Panic(panic),
        (Ended::Response(mut response), Settled::Completed) if response.status().is_success() => {
            Outcome::Completed.mark(&mut response);
            Ended::Response(response)
        }
        (_, Settled::Completed) => Ended::Response(Answer::completed().into_response()),
        // It says so already.
        (Ended::Response(response), Settled::Released) => Ended::Response(response),
        (Ended::Error(error), _) => Ended::Error(error),
        (Ended::Response(mut response), Settled::Failed) => {
            if response.status().is_success() {
                *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            }
            Outcome::Failed.mark(&mut response);
            Ended::Response(response)
        }
        (Ended::Response(_), Settled::LeaseLost) => {
            Ended::Response(Answer::in_progress().into_response())
        }
        (Ended::Response(_), Settled::Unknown) => {
            Ended::Response(Answer::unavailable(Rejection::Store).into_response())
        }
    }
}
