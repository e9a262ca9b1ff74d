//! A request under way: everything that waits, in one allocation.

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use hookclaim::{DeliveryHead, DeliveryId, EventName, Signature, SignedBody};
use http_body::Body;
use pin_project_lite::pin_project;
use tokio::runtime::Handle;
use tokio::time::{Instant, Sleep, sleep_until};

use crate::budget::Reservation;
use crate::drain::Running;
use crate::layer::Settings;
use crate::observe::{Detached, Event};
use crate::outcome::{Answer, Outcome};
use crate::receive::{Discard, Reader, Unread, too_slow};
use crate::rejection::Rejection;
use crate::run::Ended;

/// How long a claim may take at least, however long the body took.
pub(crate) const CLAIM_TIME: Duration = Duration::from_secs(1);

/// A request under way, with its types forgotten.
pub(crate) trait Fly<B, E>: Send {
    /// Goes on until there is an answer. May be polled on after that if there is more to do.
    fn poll_fly(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Landed<B, E>>;

    /// The caller has gone away. True if an attempt runs that has to be brought to its end.
    fn hang_up(self: Pin<&mut Self>) -> bool;

    /// Moves into a task of its own, to be brought to its end.
    fn go_on(self: Pin<Box<Self>>);
}

/// An answer.
pub(crate) struct Landed<B, E> {
    pub(crate) ended: Ended<B, E>,
    /// Whether something is left to be done that the caller does not wait for.
    pub(crate) more: bool,
}

impl<B, E> Landed<B, E> {
    fn answer(answer: Answer, more: bool) -> Self {
        Self {
            ended: Ended::Response(answer.into_response()),
            more,
        }
    }
}

/// What a flight begins with.
pub(crate) struct Arrival<St, ReqB> {
    pub(crate) settings: Arc<Settings<St>>,
    pub(crate) body: ReqB,
    pub(crate) reader: Reader,
    pub(crate) signature: Signature,
    pub(crate) about: Option<About>,
    pub(crate) begin: Instant,
    pub(crate) running: Running,
}

/// What the observer is told of the request; only kept if there is an observer.
pub(crate) struct About {
    id: DeliveryId,
    event: EventName,
}

impl About {
    pub(crate) fn new(head: &DeliveryHead) -> Self {
        Self {
            id: head.id().clone(),
            event: head.event().clone(),
        }
    }
}

pin_project! {
    /// The way of a request: its body is read, its claim is made, its attempt is run; each stage is made from the one
    /// before. It is polled by the caller's future, and once the caller is answered or gone, by a task.
    ///
    /// A claim `C` leads to an answer, or to an attempt: its run `R`, and what is done before an early answer, `K`.
    pub(crate) struct Flight<St, ReqB, ToClaim, C, ToRun, R, ToKeep, K> {
        settings: Arc<Settings<St>>,
        #[pin]
        body: Option<ReqB>,
        #[pin]
        stage: Stage<C, R, ToKeep, K>,
        // Made when something is waited for the first time, so that what is ready needs no timer.
        #[pin]
        timer: Option<Sleep>,
        to_claim: Option<ToClaim>,
        to_run: Option<ToRun>,
        about: Option<About>,
        begin: Instant,
        answered: bool,
        running: Option<Running>,
    }
}

pin_project! {
    #[project = StageProj]
    enum Stage<C, R, ToKeep, K> {
        Reading { read: Option<(Reader, Signature)> },
        Claiming { #[pin] claim: C, until: Option<Instant> },
        Running { #[pin] run: R, to_keep: Option<ToKeep>, #[pin] keep: Option<K> },
        Discarding { discard: Discard, until: Instant },
        Over,
    }
}

impl<St, ReqB, ToClaim, C, ToRun, R, ToKeep, K> Flight<St, ReqB, ToClaim, C, ToRun, R, ToKeep, K> {
    pub(crate) fn new(arrival: Arrival<St, ReqB>, to_claim: ToClaim, to_run: ToRun) -> Self {
        Self {
            settings: arrival.settings,
            body: Some(arrival.body),
            stage: Stage::Reading {
                read: Some((arrival.reader, arrival.signature)),
            },
            timer: None,
            to_claim: Some(to_claim),
            to_run: Some(to_run),
            about: arrival.about,
            begin: arrival.begin,
            answered: false,
            running: Some(arrival.running),
        }
    }
}

impl<St, ReqB, ToClaim, C, W, ToRun, R, ToKeep, K, B, E> Fly<B, E>
    for Flight<St, ReqB, ToClaim, C, ToRun, R, ToKeep, K>
where
    St: Send + Sync + 'static,
    ReqB: Body<Data = Bytes> + Send + 'static,
    ToClaim: FnOnce((SignedBody, Reservation)) -> C + Send + 'static,
    C: Future<Output = Result<W, Answer>> + Send + 'static,
    ToRun: FnOnce(W) -> (R, ToKeep) + Send + 'static,
    R: Future<Output = Ended<B, E>> + Send + 'static,
    ToKeep: FnOnce() -> K + Send + 'static,
    K: Future<Output = Answer> + Send + 'static,
{
    fn poll_fly(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Landed<B, E>> {
        let landed = ready!(self.as_mut().advance(cx));
        self.tell(&landed);
        *self.project().answered = true;
        Poll::Ready(landed)
    }

    fn hang_up(self: Pin<&mut Self>) -> bool {
        let this = self.project();
        *this.answered = true;
        let runs = matches!(this.stage.project(), StageProj::Running { .. });
        if runs && let Some(about) = this.about {
            this.settings.emit(&Event::Detached {
                id: &about.id,
                cause: Detached::HungUp,
            });
        }
        runs
    }

    fn go_on(mut self: Pin<Box<Self>>) {
        // Without a runtime there is nobody to do it. The lease runs out then.
        if let Ok(runtime) = Handle::try_current() {
            // The answer is nobody's. A panic was recorded and reported, and ends here.
            runtime.spawn(async move {
                poll_fn(|cx| self.as_mut().poll_fly(cx).map(drop)).await;
            });
        }
    }
}

impl<St, ReqB, ToClaim, C, ToRun, R, ToKeep, K> Flight<St, ReqB, ToClaim, C, ToRun, R, ToKeep, K> {
    fn advance<W, B, E>(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Landed<B, E>>
    where
        ReqB: Body<Data = Bytes>,
        ToClaim: FnOnce((SignedBody, Reservation)) -> C,
        C: Future<Output = Result<W, Answer>>,
        ToRun: FnOnce(W) -> (R, ToKeep),
        R: Future<Output = Ended<B, E>>,
        ToKeep: FnOnce() -> K,
        K: Future<Output = Answer>,
    {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProj::Reading { read } => {
                    let Some(body) = this.body.as_mut().as_pin_mut() else {
                        unreachable!("the body is there until it was read")
                    };
                    let reader = &mut read.as_mut().expect("the reader is there until it ends").0;
                    let polled = match reader.poll_read(body, cx) {
                        Poll::Ready(result) => result,
                        Poll::Pending => {
                            let until = *this.begin + this.settings.body_timeout;
                            ready!(poll_timer(this.timer.as_mut(), Some(until), cx));
                            let answer = too_slow();
                            Err(Unread {
                                answer,
                                rest: false,
                            })
                        }
                    };
                    this.timer.set(None);
                    let (reader, signature) = read.take().expect("the reader ends once");
                    let taken = polled.and_then(|()| {
                        reader.finish(&signature).map_err(|answer| Unread {
                            answer,
                            rest: false,
                        })
                    });
                    match taken {
                        Ok(signed) => {
                            this.body.set(None);
                            let to_claim = this.to_claim.take().expect("there is one claim");
                            let claim = to_claim(signed);
                            let until = this.settings.ack_after.map(|after| {
                                (*this.begin + after).max(Instant::now() + CLAIM_TIME)
                            });
                            this.stage.set(Stage::Claiming { claim, until });
                        }
                        Err(Unread { answer, rest }) => {
                            if rest {
                                // What is left holds up neither the inner service nor a shutdown.
                                *this.to_claim = None;
                                *this.to_run = None;
                                *this.running = None;
                                this.stage.set(Stage::Discarding {
                                    discard: Discard::new(),
                                    until: Instant::now() + Discard::TIME,
                                });
                            } else {
                                this.body.set(None);
                                this.stage.set(Stage::Over);
                            }
                            return Poll::Ready(Landed::answer(answer, rest));
                        }
                    }
                }
                StageProj::Claiming { claim, until } => {
                    let won = match claim.poll(cx) {
                        Poll::Ready(won) => won,
                        Poll::Pending => {
                            ready!(poll_timer(this.timer.as_mut(), *until, cx));
                            Err(Answer::unavailable(Rejection::Store))
                        }
                    };
                    this.timer.set(None);
                    match won {
                        Ok(won) => {
                            let to_run = this.to_run.take().expect("there is one attempt");
                            let (run, to_keep) = to_run(won);
                            this.stage.set(Stage::Running {
                                run,
                                to_keep: Some(to_keep),
                                keep: None,
                            });
                        }
                        Err(answer) => {
                            this.stage.set(Stage::Over);
                            return Poll::Ready(Landed::answer(answer, false));
                        }
                    }
                }
                StageProj::Running {
                    run,
                    to_keep,
                    mut keep,
                } => {
                    if let Poll::Ready(ended) = run.poll(cx) {
                        this.stage.set(Stage::Over);
                        return Poll::Ready(Landed { ended, more: false });
                    }
                    if *this.answered {
                        return Poll::Pending;
                    }
                    if keep.is_none() {
                        let until = this.settings.ack_after.map(|after| *this.begin + after);
                        ready!(poll_timer(this.timer.as_mut(), until, cx));
                        this.timer.set(None);
                        let to_keep = to_keep.take().expect("there is one early answer");
                        keep.set(Some(to_keep()));
                    }
                    let polled = keep.as_mut().as_pin_mut().map(|keep| keep.poll(cx));
                    let answer = ready!(polled.unwrap_or(Poll::Pending));
                    keep.set(None);
                    return Poll::Ready(Landed::answer(answer, true));
                }
                StageProj::Discarding { discard, until } => {
                    if let Some(body) = this.body.as_mut().as_pin_mut()
                        && discard.poll_discard(body, cx).is_pending()
                    {
                        ready!(poll_timer(this.timer.as_mut(), Some(*until), cx));
                    }
                    this.body.set(None);
                    this.stage.set(Stage::Over);
                    // Nobody reads this: whoever waited has been answered.
                    return Poll::Ready(Landed::answer(Answer::ignored(), false));
                }
                StageProj::Over => panic!("`ResponseFuture` polled after completion"),
            }
        }
    }
}

impl<St, ReqB, ToClaim, C, ToRun, R, ToKeep, K> Flight<St, ReqB, ToClaim, C, ToRun, R, ToKeep, K> {
    fn is_running(&self) -> bool {
        matches!(self.stage, Stage::Running { .. })
    }

    /// Tells the observer what the caller is answered.
    fn tell<B, E>(&self, landed: &Landed<B, E>) {
        let (Some(about), Ended::Response(response), false) =
            (&self.about, &landed.ended, self.answered)
        else {
            return;
        };
        let extensions = response.extensions();
        let outcome = extensions.get::<Outcome>().copied();
        if landed.more && self.is_running() {
            self.settings.emit(&Event::Detached {
                id: &about.id,
                cause: Detached::AckAfter,
            });
        }
        self.settings.emit(&Event::Answered {
            id: Some(&about.id),
            event: Some(&about.event),
            outcome: outcome.unwrap_or(Outcome::Failed),
            rejection: extensions.get().copied(),
            status: response.status(),
            took: self.begin.elapsed(),
        });
    }
}

/// Ready once `until` has come; never if there is no such time.
fn poll_timer(
    mut timer: Pin<&mut Option<Sleep>>,
    until: Option<Instant>,
    cx: &mut Context<'_>,
) -> Poll<()> {
    let Some(until) = until else {
        return Poll::Pending;
    };
    if timer.is_none() {
        timer.set(Some(sleep_until(until)));
    }
    match timer.as_pin_mut() {
        Some(timer) => timer.poll(cx),
        None => Poll::Pending,
    }
}
