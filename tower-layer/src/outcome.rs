//! What a sender is told.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use hookclaim::State;
use http::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};

use crate::body::ResponseBody;
use crate::rejection::Rejection;

/// The response header that carries the [`Outcome`]: `x-webhook-outcome`.
pub const OUTCOME_HEADER: HeaderName = HeaderName::from_static("x-webhook-outcome");

/// How long a sender that tries again by itself is asked to wait. GitHub does not, others do.
const RETRY_AFTER_UNAVAILABLE: HeaderValue = HeaderValue::from_static("5");

/// What came of a request.
///
/// Every response carries it twice: as the header [`OUTCOME_HEADER`], and as an extension for middleware outside the
/// layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// The inner service ran and the delivery is completed. 2xx.
    Completed,
    /// The inner service ran and failed; its status is the answer.
    Failed,
    /// The delivery is stored and a worker will run it, or the inner service is still running and its result will be
    /// recorded. 202.
    Accepted,
    /// The delivery was completed before. 200.
    Duplicate,
    /// An attempt works on the delivery, or it is stored and about to run. 202.
    InProgress,
    /// The delivery failed and waits for its next attempt. 202.
    RetryLater,
    /// The delivery failed for good. 202.
    Dead,
    /// A `ping`. 200.
    Pong,
    /// An event that is not on the allow-list. 204.
    Ignored,
    /// The request was refused. 4xx.
    Rejected,
    /// The request could not be decided on; nothing was lost that the sender cannot send again. 503.
    Unavailable,
}

impl Outcome {
    /// The value of the header.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Accepted => "accepted",
            Self::Duplicate => "duplicate",
            Self::InProgress => "in-progress",
            Self::RetryLater => "retry-later",
            Self::Dead => "dead",
            Self::Pong => "pong",
            Self::Ignored => "ignored",
            Self::Rejected => "rejected",
            Self::Unavailable => "unavailable",
        }
    }

    /// Marks a response with this outcome.
    pub(crate) fn mark<B>(self, response: &mut Response<B>) {
        response
            .headers_mut()
            .insert(OUTCOME_HEADER, HeaderValue::from_static(self.as_str()));
        response.extensions_mut().insert(self);
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An answer of the layer's own.
#[derive(Debug)]
pub(crate) struct Answer {
    outcome: Outcome,
    status: StatusCode,
    rejection: Option<Rejection>,
    text: Cow<'static, str>,
}

impl Answer {
    const fn new(outcome: Outcome, status: StatusCode, text: &'static str) -> Self {
        Self {
            outcome,
            status,
            rejection: None,
            text: Cow::Borrowed(text),
        }
    }

    /// The text reaches whoever sent the request, signed or not: it must not hold more than they know.
    pub(crate) fn refused(rejection: Rejection, text: impl Into<Cow<'static, str>>) -> Self {
        Self {
            outcome: if rejection.is_unavailable() {
                Outcome::Unavailable
            } else {
                Outcome::Rejected
            },
            status: rejection.status(),
            rejection: Some(rejection),
            text: text.into(),
        }
    }

    pub(crate) fn unavailable(rejection: Rejection) -> Self {
        let text = match rejection {
            Rejection::Draining => "the receiver is shutting down; redeliver in a moment",
            Rejection::Backlog => {
                "the receiver holds as many deliveries as it was told to; redeliver later"
            }
            Rejection::Memory => {
                "the receiver holds as many deliveries as it has memory for; redeliver in a moment"
            }
            _ => "the receiver cannot record deliveries at the moment; redeliver later",
        };
        Self::refused(rejection, text)
    }

    pub(crate) const fn pong() -> Self {
        Self::new(Outcome::Pong, StatusCode::OK, "pong")
    }

    pub(crate) const fn ignored() -> Self {
        Self::new(Outcome::Ignored, StatusCode::NO_CONTENT, "")
    }

    /// For an attempt that goes on without its request.
    pub(crate) const fn running() -> Self {
        Self::new(
            Outcome::Accepted,
            StatusCode::ACCEPTED,
            "the delivery is still being worked on; its result will be recorded",
        )
    }

    /// For a delivery that a worker will run.
    pub(crate) const fn accepted() -> Self {
        Self::new(
            Outcome::Accepted,
            StatusCode::ACCEPTED,
            "the delivery is stored and will be worked on",
        )
    }

    /// For a delivery that was completed although its handler's response does not say so.
    pub(crate) const fn completed() -> Self {
        Self::new(
            Outcome::Completed,
            StatusCode::OK,
            "the delivery was completed",
        )
    }

    pub(crate) const fn in_progress() -> Self {
        Self::standing(State::Processing)
    }

    /// The answer to a delivery that stands there already.
    pub(crate) const fn standing(state: State) -> Self {
        match state {
            State::Completed => Self::new(
                Outcome::Duplicate,
                StatusCode::OK,
                "the delivery was completed before",
            ),
            State::Received | State::Processing => Self::new(
                Outcome::InProgress,
                StatusCode::ACCEPTED,
                "the delivery is being worked on, or is about to be",
            ),
            State::Failed => Self::new(
                Outcome::RetryLater,
                StatusCode::ACCEPTED,
                "the delivery waits for its next attempt",
            ),
            State::Dead => Self::new(
                Outcome::Dead,
                StatusCode::ACCEPTED,
                "the delivery failed for good; only an operator can retry it",
            ),
        }
    }

    pub(crate) fn into_response<B>(self) -> Response<ResponseBody<B>> {
        let text = match self.text {
            Cow::Borrowed(text) => Bytes::from_static(text.as_bytes()),
            Cow::Owned(text) => Bytes::from(text),
        };
        let is_empty = text.is_empty();
        let mut response = Response::new(ResponseBody::text(text));
        *response.status_mut() = self.status;
        self.outcome.mark(&mut response);
        let headers = response.headers_mut();
        if !is_empty {
            headers.insert(
                CONTENT_TYPE,
                HeaderValue::from_static("text/plain; charset=utf-8"),
            );
        }
        if self.rejection == Some(Rejection::Method) {
            headers.insert(ALLOW, HeaderValue::from_static("POST"));
        }
        if self.outcome == Outcome::Unavailable {
            headers.insert(RETRY_AFTER, RETRY_AFTER_UNAVAILABLE);
        }
        if let Some(rejection) = self.rejection {
            response.extensions_mut().insert(rejection);
        }
        response
    }
}
