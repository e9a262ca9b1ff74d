//! From a request to a won claim or a stored delivery, or to an answer.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hookclaim::{
    BodyVerifier, Claim, ClaimKey, ClaimOutcome, Delivery, DeliveryHead, DeliveryStore,
    DurableStore, Enqueue, EnqueueOutcome, Held, KeyError, Signature, SignedBody, State,
};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, Method, request};
use http_body::Body;

use crate::budget::Reservation;
use crate::layer::Settings;
use crate::observe::{Claimed, Event, Operation};
use crate::outcome::Answer;
use crate::rejection::Rejection;

/// Bytes that are hashed before other tasks get their turn.
const TURN: usize = 1024 * 1024;

/// What a frame counts for at least, so that many tiny ones end a turn too.
const FRAME_COST: usize = 1024;

/// Checks all that can be checked before the body: the cheapest first, nothing that waits.
pub(crate) fn check_head<St>(
    settings: &Settings<St>,
    method: &Method,
    headers: &HeaderMap,
) -> Result<(DeliveryHead, Signature), Answer> {
    if method != Method::POST {
        let text = "a delivery comes by POST";
        return Err(Answer::refused(Rejection::Method, text));
    }
    if settings.engine.drain.is_draining() {
        return Err(Answer::unavailable(Rejection::Draining));
    }
    let (head, signature) = DeliveryHead::parse(headers)
        .map_err(|error| Answer::refused(Rejection::from(&error), error.to_string()))?;
    Ok((head, signature))
}

/// What the sender says that the body's length is. A number that no integer holds is too much in any case.
pub(crate) fn announced_len(headers: &HeaderMap, body: &impl Body) -> Option<u64> {
    let hint = body.size_hint();
    let Some(value) = headers.get(CONTENT_LENGTH) else {
        return hint.exact();
    };
    let digits = value.as_bytes().trim_ascii();
    let is_number = !digits.is_empty() && digits.iter().all(u8::is_ascii_digit);
    is_number.then(|| {
        digits.iter().fold(0_u64, |number, digit| {
            number
                .saturating_mul(10)
                .saturating_add(u64::from(digit - b'0'))
        })
    })
}

pub(crate) fn too_large(limit: u64) -> Answer {
    Answer::refused(
        Rejection::TooLarge,
        format!("the body is over the limit of {limit} bytes"),
    )
}

pub(crate) fn too_slow() -> Answer {
    Answer::refused(Rejection::Timeout, "the body did not arrive in time")
}

/// Takes a body in as it arrives: limited, counted and hashed.
pub(crate) struct Reader {
    verifier: BodyVerifier,
    limit: u64,
    reservation: Reservation,
}

/// Why a body was not taken.
pub(crate) struct Unread {
    pub(crate) answer: Answer,
    /// Whether there is something left to read, so that the answer arrives.
    pub(crate) rest: bool,
}

impl Reader {
    pub(crate) fn new<St>(settings: &Settings<St>, announced: Option<u64>) -> Self {
        Self {
            verifier: BodyVerifier::new(&settings.secrets.current(), announced),
            limit: settings.body_limit,
            reservation: Reservation::new(settings.budget.clone()),
        }
    }

    /// Reads on; ready once the body has ended.
    pub(crate) fn poll_read<B: Body<Data = Bytes>>(
        &mut self,
        mut body: Pin<&mut B>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), Unread>> {
        let mut turn = TURN;
        loop {
            let frame = match ready!(body.as_mut().poll_frame(cx)) {
                None => return Poll::Ready(Ok(())),
                Some(Ok(frame)) => frame,
                // What came before is no body, whatever its signature.
                Some(Err(_)) => {
                    let answer = Answer::refused(Rejection::Body, "the body broke off");
                    return Poll::Ready(Err(Unread {
                        answer,
                        rest: false,
                    }));
                }
            };
            // Trailers say nothing that is signed.
            let piece = frame.into_data().unwrap_or_default();
            let len = piece.len();
            let more = len as u64;
            if more > self.limit - self.verifier.len() as u64 {
                let answer = too_large(self.limit);
                return Poll::Ready(Err(Unread { answer, rest: true }));
            }
            if !self.reservation.grow(more) {
                let answer = Answer::unavailable(Rejection::Memory);
                return Poll::Ready(Err(Unread { answer, rest: true }));
            }
            self.verifier.push(piece);
            turn = turn.saturating_sub(len.max(FRAME_COST));
            if turn == 0 {
                // A body that is always ready would keep the thread for as long as it takes to hash all of it.
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
        }
    }

    /// Checks the signature of what was read.
    pub(crate) fn finish(self, signature: &Signature) -> Result<(SignedBody, Reservation), Answer> {
        match self.verifier.finish(signature) {
            Ok(body) => Ok((body, self.reservation)),
            Err(error) => Err(Answer::refused(error.kind().into(), error.to_string())),
        }
    }
}

/// Reads what is left of a body and forgets it, so that the client gets to read its answer.
///
/// A server that closes a connection with unread bytes resets it, and the answer may be lost with that
/// ([RFC 9112, section 9.6](https://www.rfc-editor.org/rfc/rfc9112#section-9.6)).
pub(crate) struct Discard {
    left: u64,
}

impl Discard {
    /// How long it may take.
    pub(crate) const TIME: std::time::Duration = std::time::Duration::from_secs(10);

    pub(crate) const fn new() -> Self {
        Self {
            left: 32 * 1024 * 1024,
        }
    }

    pub(crate) fn poll_discard<B: Body<Data = Bytes>>(
        &mut self,
        mut body: Pin<&mut B>,
        cx: &mut Context<'_>,
    ) -> Poll<()> {
        for _ in 0..TURN / FRAME_COST {
            let Some(Ok(frame)) = ready!(body.as_mut().poll_frame(cx)) else {
                return Poll::Ready(());
            };
            let len = frame.data_ref().map_or(0, Bytes::len) as u64;
            self.left = match self.left.checked_sub(len.max(1)) {
                Some(left) => left,
                None => return Poll::Ready(()),
            };
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

/// A request whose claim was won, ready for the inner service.
pub(crate) struct Won {
    pub(crate) parts: request::Parts,
    pub(crate) delivery: Delivery,
    pub(crate) held: Held,
    pub(crate) reservation: Reservation,
}

/// From a signed body to a won claim. The first use of the store is in here: nothing unsigned gets that far.
///
/// Dropping the future while the claim is under way is safe: the store's contract releases what nobody learned of.
pub(crate) async fn claim<St: DeliveryStore>(
    settings: Arc<Settings<St>>,
    parts: request::Parts,
    head: DeliveryHead,
    (body, reservation): (SignedBody, Reservation),
) -> Result<Won, Answer> {
    let (delivery, key) = identify(&settings, head, body)?;
    let engine = &settings.engine;
    let claim = engine.store.claim(Claim::new(&delivery, key, engine.lease));
    let outcome = engine
        .stored(Operation::Claim, Some(delivery.id()), claim)
        .await
        .map_err(|_| Answer::unavailable(Rejection::Store))?;
    let (verdict, held) = match outcome {
        ClaimOutcome::Won(held) => (
            Claimed::Won {
                kind: held.kind,
                attempt: held.attempt,
            },
            Ok(held),
        ),
        ClaimOutcome::Completed => standing(State::Completed),
        ClaimOutcome::InProgress { .. } => standing(State::Processing),
        ClaimOutcome::NotDue { .. } => standing(State::Failed),
        ClaimOutcome::Dead => standing(State::Dead),
        ClaimOutcome::BodyMismatch { state } => (Claimed::BodyMismatch(state), Err(state)),
    };
    settings.emit(&Event::Claimed {
        delivery: &delivery,
        verdict,
    });
    Ok(Won {
        held: held.map_err(Answer::standing)?,
        parts,
        delivery,
        reservation,
    })
}

fn standing(state: State) -> (Claimed, Result<Held, State>) {
    (Claimed::Standing(state), Err(state))
}

/// From a signed body to a stored delivery; there is always an answer.
///
/// Dropping the future while the delivery is being stored leaves it stored or not, as if the answer had been lost.
pub(crate) async fn store<St: DurableStore>(
    settings: Arc<Settings<St>>,
    parts: request::Parts,
    head: DeliveryHead,
    (body, _reservation): (SignedBody, Reservation),
) -> Result<Infallible, Answer> {
    let (delivery, key) = identify(&settings, head, body)?;
    let engine = &settings.engine;
    if let Some(backlog) = &settings.backlog
        && !backlog.has_room(&engine.store).await
    {
        return Err(Answer::unavailable(Rejection::Backlog));
    }
    let mut enqueue = Enqueue::new(&delivery, key, parts.uri.path()).policy(engine.lease);
    if let Some(ordering) = &settings.ordering
        && let Some(key) = ordering(&delivery)
    {
        enqueue = enqueue.ordering_key(key);
    }
    let enqueue = engine.store.enqueue(enqueue);
    let outcome = engine
        .stored(Operation::Enqueue, Some(delivery.id()), enqueue)
        .await
        .map_err(|_| Answer::unavailable(Rejection::Store))?;
    let (verdict, answer) = match outcome {
        EnqueueOutcome::Accepted => {
            if let Some(backlog) = &settings.backlog {
                backlog.add();
            }
            (Claimed::Accepted, Answer::accepted())
        }
        EnqueueOutcome::Completed => stands(State::Completed),
        EnqueueOutcome::InProgress => stands(State::Processing),
        EnqueueOutcome::NotDue { .. } => stands(State::Failed),
        EnqueueOutcome::Dead => stands(State::Dead),
        EnqueueOutcome::BodyMismatch { state } => {
            (Claimed::BodyMismatch(state), Answer::standing(state))
        }
    };
    settings.emit(&Event::Claimed {
        delivery: &delivery,
        verdict,
    });
    Err(answer)
}

fn stands(state: State) -> (Claimed, Answer) {
    (Claimed::Standing(state), Answer::standing(state))
}

/// The delivery, and what it is claimed under, if it is one that is taken.
fn identify<St>(
    settings: &Settings<St>,
    head: DeliveryHead,
    body: SignedBody,
) -> Result<(Delivery, ClaimKey), Answer> {
    settings.emit(&Event::Verified {
        id: head.id(),
        event: head.event(),
        secret: body.verified().secret_name(),
    });
    if *head.event() == "ping" {
        return Err(Answer::pong());
    }
    if !settings.lets_through(head.event()) {
        return Err(Answer::ignored());
    }
    let scoped = settings.scope.source(&settings.source, head.hook_id());
    let source = scoped.as_ref().unwrap_or(&settings.source).clone();
    let delivery = Delivery::new(head, body, source)
        .map_err(|error| Answer::refused(Rejection::from(&error), error.to_string()))?;
    let source = scoped.map_err(|error| no_key(&error))?;
    let key = match &settings.key {
        None => ClaimKey::delivery(source, delivery.id()),
        Some(key) => {
            let key = key(&delivery).map_err(|error| no_key(&error))?;
            ClaimKey::business(source, &key)
        }
    };
    Ok((delivery, key))
}

fn no_key(error: &KeyError) -> Answer {
    let rejection = Rejection::from(error);
    match error {
        // This text is the application's, and may say more than a sender should know.
        KeyError::Refused(_) => {
            Answer::refused(rejection, "the delivery is not one that is taken here")
        }
        error => Answer::refused(rejection, error.to_string()),
    }
}
