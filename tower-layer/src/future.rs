//! The future of a response.

use std::fmt;
use std::panic::resume_unwind;
use std::pin::Pin;
use std::task::{Context, Poll};

use http::Response;

use crate::body::ResponseBody;
use crate::flight::{Fly, Landed};
use crate::run::Ended;

/// The response of [`GithubWebhook`](crate::GithubWebhook).
///
/// # Panics
///
/// If the inner service panics: the attempt is recorded as failed, and the panic handed on. Outside a Tokio runtime
/// with its timer, unless everything is ready at once.
///
/// # Cancel safety
///
/// Dropping it before the delivery is claimed leaves nothing behind. Dropping it while the claim is under way leaves
/// that to the store, which releases a claim that nobody learned of. Dropping it while the inner service runs moves the
/// attempt to a task of its own, and how it ends is still recorded; if there is no Tokio runtime any more, the lease
/// runs out and the delivery can be claimed again.
#[must_use = "futures do nothing unless polled"]
pub struct ResponseFuture<B, E> {
    state: State<B, E>,
}

type Flying<B, E> = Pin<Box<dyn Fly<B, E>>>;

enum State<B, E> {
    Answered(Option<Response<ResponseBody<B>>>),
    Flying(Option<Flying<B, E>>),
}

impl<B, E> ResponseFuture<B, E> {
    pub(crate) fn answered(response: Response<ResponseBody<B>>) -> Self {
        Self {
            state: State::Answered(Some(response)),
        }
    }

    pub(crate) fn flying(flight: Flying<B, E>) -> Self {
        Self {
            state: State::Flying(Some(flight)),
        }
    }
}

/// Nothing in it is pinned in place: what waits is pinned in its own allocation.
impl<B, E> Unpin for ResponseFuture<B, E> {}

impl<B, E> Future for ResponseFuture<B, E> {
    type Output = Result<Response<ResponseBody<B>>, E>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        const AFTER_END: &str = "`ResponseFuture` polled after completion";
        let slot = match &mut self.state {
            State::Answered(response) => return Poll::Ready(Ok(response.take().expect(AFTER_END))),
            State::Flying(slot) => slot,
        };
        let flight = slot.as_mut().expect(AFTER_END);
        let Poll::Ready(Landed { ended, more }) = flight.as_mut().poll_fly(cx) else {
            return Poll::Pending;
        };
        let flight = slot.take();
        if more && let Some(flight) = flight {
            flight.go_on();
        }
        match ended {
            Ended::Response(response) => Poll::Ready(Ok(response)),
            Ended::Error(error) => Poll::Ready(Err(error)),
            Ended::Panic(panic) => resume_unwind(panic),
        }
    }
}

impl<B, E> Drop for ResponseFuture<B, E> {
    fn drop(&mut self) {
        if let State::Flying(slot) = &mut self.state
            && let Some(mut flight) = slot.take()
            && flight.as_mut().hang_up()
        {
            flight.go_on();
        }
    }
}

impl<B, E> fmt::Debug for ResponseFuture<B, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
