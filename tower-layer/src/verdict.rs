//! How a handler's response is judged.

use std::time::Duration;

use hookclaim::{Backoff, Failure};
use http::header::RETRY_AFTER;
use http::{Response, StatusCode};

/// The longest wait that a `Retry-After` header is believed.
const MAX_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// What a handler says about its own attempt, where its status does not say it.
///
/// Put it into the response's extensions. Without one the status decides: 2xx completes the delivery, 400 and 422 fail
/// it for good, and everything else is tried again.
///
/// ```
/// use http::Response;
/// use tower_hookclaim::Verdict;
///
/// let mut response = Response::new("no such account");
/// response.extensions_mut().insert(Verdict::permanent("the account was closed"));
/// ```
///
/// The messages are for operators: the store keeps them, the sender does not see them. They must hold no secret and no
/// payload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The delivery is completed, whatever the status. The sender gets a 200 if the status is not 2xx.
    Complete,
    /// The delivery failed and may be tried again. The sender gets a 500 if the status is 2xx.
    #[non_exhaustive]
    Transient {
        /// When to try again; by the layer's backoff if not said.
        retry_after: Option<Duration>,
        /// What the operator reads.
        message: String,
    },
    /// The delivery failed for good. The sender gets a 500 if the status is 2xx.
    #[non_exhaustive]
    Permanent {
        /// What the operator reads.
        message: String,
    },
}

impl Verdict {
    /// A failure that may not happen again.
    #[must_use]
    pub fn transient(message: impl Into<String>) -> Self {
        Self::Transient {
            retry_after: None,
            message: message.into(),
        }
    }

    /// A failure that may not happen again once `wait` is over.
    #[must_use]
    pub fn retry_after(wait: Duration, message: impl Into<String>) -> Self {
        Self::Transient {
            retry_after: Some(wait),
            message: message.into(),
        }
    }

    /// A failure that will happen again however often it is tried.
    #[must_use]
    pub fn permanent(message: impl Into<String>) -> Self {
        Self::Permanent {
            message: message.into(),
        }
    }
}

/// Judges a response; `None` means that the delivery is completed. Takes the verdict out of it.
pub(crate) fn judge<B>(
    response: &mut Response<B>,
    backoff: &Backoff,
    attempt: u32,
) -> Option<Failure> {
    match response.extensions_mut().remove::<Verdict>() {
        Some(Verdict::Complete) => None,
        Some(Verdict::Transient {
            retry_after,
            message,
        }) => {
            let delay = retry_after
                .or_else(|| asked_wait(response))
                .unwrap_or_else(|| backoff.delay(attempt));
            Some(Failure::transient(message, delay))
        }
        Some(Verdict::Permanent { message }) => Some(Failure::permanent(message)),
        None if response.status().is_success() => None,
        None => Some(by_status(response, backoff, attempt)),
    }
}

fn by_status<B>(response: &Response<B>, backoff: &Backoff, attempt: u32) -> Failure {
    let status = response.status();
    let message = format!("the handler answered {status}");
    if matches!(
        status,
        StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY
    ) {
        return Failure::permanent(message);
    }
    let delay = asked_wait(response).unwrap_or_else(|| backoff.delay(attempt));
    Failure::transient(message, delay)
}

/// The seconds of the response's `Retry-After`; the form with a date is not read.
fn asked_wait<B>(response: &Response<B>) -> Option<Duration> {
    let seconds = response
        .headers()
        .get(RETRY_AFTER)?
        .to_str()
        .ok()?
        .trim()
        .parse()
        .ok()?;
    Some(Duration::from_secs(seconds).min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use hookclaim::ErrorClass;

    use super::*;

    fn judged(response: http::response::Builder) -> Option<Failure> {
        judge(
            &mut response.body(()).unwrap(),
            &Backoff::new(Duration::ZERO, Duration::ZERO),
            1,
        )
    }

    #[test]
    fn the_status_decides_where_no_verdict_does() {
        use ErrorClass::{Permanent, Transient};
        for (status, class) in [
            (200, None),
            (204, None),
            (302, Some(Transient)),
            (400, Some(Permanent)),
            (401, Some(Transient)),
            (404, Some(Transient)),
            (409, Some(Transient)),
            (422, Some(Permanent)),
            (429, Some(Transient)),
            (500, Some(Transient)),
            (503, Some(Transient)),
        ] {
            let found = judged(Response::builder().status(status));
            assert_eq!(
                found.as_ref().map(Failure::class),
                class,
                "{status}: {found:?}"
            );
        }
    }

    #[test]
    fn a_verdict_beats_the_status() {
        for (status, verdict, class) in [
            (500, Verdict::Complete, None),
            (
                200,
                Verdict::transient("later"),
                Some(ErrorClass::Transient),
            ),
            (
                422,
                Verdict::transient("later"),
                Some(ErrorClass::Transient),
            ),
            (
                200,
                Verdict::permanent("never"),
                Some(ErrorClass::Permanent),
            ),
        ] {
            let found = judged(Response::builder().status(status).extension(verdict));
            assert_eq!(found.map(|failure| failure.class()), class, "{status}");
        }
    }

    #[test]
    fn a_wait_that_the_handler_asks_for_is_kept_up_to_an_hour() {
        for (value, seconds) in [
            ("7", 7),
            (" 7 ", 7),
            ("86400", 3600),
            ("-1", 0),
            ("soon", 0),
        ] {
            let found = judged(Response::builder().status(503).header("retry-after", value));
            assert_eq!(
                found.unwrap().delay(),
                Duration::from_secs(seconds),
                "{value}"
            );
        }
        let verdict = Verdict::retry_after(Duration::from_secs(90), "closed");
        let found = judged(
            Response::builder()
                .header("retry-after", "7")
                .extension(verdict),
        );
        assert_eq!(found.unwrap().delay(), Duration::from_secs(90));
    }
}
