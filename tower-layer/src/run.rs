//! One attempt: the inner service, the lease that is kept meanwhile, and what is recorded in the end.

mod catch;
mod renew;
mod settle;

use std::any::Any;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use hookclaim::{Attempt, DeliveryStore, Failure, Lease};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::time::Instant;
use tower_service::Service;

use self::catch::CatchUnwind;
use self::renew::Renewer;
use self::settle::{End, Settled, Settler};
use crate::body::ResponseBody;
use crate::layer::Settings;
use crate::observe::Event;
use crate::outcome::{Answer, Outcome};
use crate::receive::Won;
use crate::rejection::Rejection;
use crate::verdict::judge;

/// How a request ended.
pub(crate) enum Ended<B, E> {
    Response(Response<ResponseBody<B>>),
    Error(E),
    /// The inner service's own panic, to be handed on while somebody waits.
    Panic(Box<dyn Any + Send>),
}

/// Runs the attempt. It is driven to its end whether somebody waits for the answer or not: the request's future and,
/// after it, a task of its own take turns.
pub(crate) async fn run<S, St, B>(
    settings: Arc<Settings<St>>,
    mut inner: S,
    won: Won,
) -> Ended<B, S::Error>
where
    S: Service<Request<Full<Bytes>>, Response = Response<B>>,
    St: DeliveryStore,
{
    let Won {
        parts,
        delivery,
        held,
        reservation: _reservation,
    } = won;
    let begin = Instant::now();
    let (attempt, cancel) = Attempt::new(&held);
    let lease = Lease::new(settings.store.clone(), held);

    let mut request = Request::from_parts(parts, Full::new(delivery.raw().clone()));
    let extensions = request.extensions_mut();
    extensions.insert(delivery.clone());
    extensions.insert(attempt.clone());
    extensions.insert(lease.clone());

    let mut renewer = Renewer::new(&settings, &lease, &attempt, cancel);
    let result = {
        // The call itself may panic as well as its future.
        let mut work = pin!(CatchUnwind::new(async move { inner.call(request).await }));
        let mut renewals = pin!(renewer.renew());
        let mut handed_back = pin!(settings.drain.handed_back());
        let mut renewing = true;
        let mut begun = false;
        poll_fn(|cx| {
            // A shutdown that has run out of patience begins nothing new.
            if !std::mem::replace(&mut begun, true) && handed_back.as_mut().poll(cx).is_ready() {
                return Poll::Ready(None);
            }
            if let Poll::Ready(result) = work.as_mut().poll(cx) {
                return Poll::Ready(Some(result));
            }
            // The lease and a shutdown are of no concern to a handler that is done.
            if renewing {
                renewing = renewals.as_mut().poll(cx).is_pending();
            }
            handed_back.as_mut().poll(cx).map(|()| None)
        })
        .await
    };
    let ran = begin.elapsed();

    let backoff = || settings.backoff.delay(attempt.number());
    let (result, end) = match result {
        None => {
            let answer = Answer::unavailable(Rejection::Draining);
            (Ended::Response(answer.into_response()), End::Release)
        }
        Some(Ok(Ok(mut response))) => {
            let failure = judge(&mut response, &settings.backoff, attempt.number());
            let end = failure.map_or(End::Complete, End::Fail);
            (Ended::Response(response.map(ResponseBody::inner)), end)
        }
        Some(Ok(Err(error))) => {
            let failure = Failure::transient("the handler's service returned an error", backoff());
            (Ended::Error(error), End::Fail(failure))
        }
        Some(Err(panic)) => {
            let message = catch::message(&*panic);
            settings.emit(&Event::Panicked {
                attempt: &attempt,
                message,
            });
            let failure = Failure::panic(message, backoff());
            (Ended::Panic(panic), End::Fail(failure))
        }
    };
    let settled = Settler {
        settings: &settings,
        lease: &lease,
        delivery: &delivery,
        attempt: &attempt,
        deadline: renewer.deadline(),
        lost: renewer.lost(),
        ran,
    }
    .settle(end)
    .await;
    answer(result, settled)
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
