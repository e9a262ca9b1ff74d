//! Bodies that are too large, too slow, broken or too many.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::Frame;
use http_body_util::Full;
use tokio::sync::Notify;
use tokio::time::Instant;
use tower::Layer;
use tower_hookclaim::{Drain, Rejection};

use crate::support::*;

/// The signed request with its body in the form of `chunks`.
fn carrying(chunks: Chunks) -> Request<Chunks> {
    signed(ID).map(|_| chunks)
}

#[tokio::test]
async fn a_body_may_come_byte_by_byte_with_trailers() {
    let (store, runs) = (memory(), Runs::default());
    let service = ok_service(&store, &runs);
    let mut body = Chunks::of(BODY, 1);
    body.push(Ok(Frame::trailers(HeaderMap::new())));
    send(&service, carrying(body)).await.is(200, "completed");
}

#[tokio::test]
async fn a_body_may_be_as_long_as_the_limit_and_no_longer() {
    let runs = Runs::default();
    let service = layer(&memory())
        .body_limit(1000)
        .layer(answering(&runs, 200));
    for (len, status) in [(999, 200), (1000, 200), (1001, 413)] {
        let request = signed_with(SECRET, "issues", &format!("whole-{len}"), "x".repeat(len));
        let whole = send(&service, request).await;
        assert_eq!(whole.status, status, "{whole:?}");
        // Without an announcement the body itself tells.
        let request = signed_with(SECRET, "issues", &format!("chunks-{len}"), "x".repeat(len));
        let chunks = Chunks::of(&"x".repeat(len), 64);
        let chunked = send(&service, request.map(|_| chunks)).await;
        assert_eq!(chunked.status, status, "{chunked:?}");
    }
}

#[tokio::test]
async fn a_body_that_breaks_off_is_refused_though_its_beginning_is_signed() {
    let (store, runs) = (memory(), Runs::default());
    let service = ok_service(&store, &runs);
    let mut body = Chunks::of(BODY, 7);
    body.push(Err(std::io::ErrorKind::ConnectionReset.into()));
    let seen = send(&service, carrying(body)).await;
    seen.is(400, "rejected");
    assert_eq!(seen.extensions.get(), Some(&Rejection::Body));
    assert!(record(&store, ID).await.is_none());
    assert_eq!(runs.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_body_that_never_ends_is_given_up_in_time() {
    let (store, runs) = (memory(), Runs::default());
    let service = ok_service(&store, &runs);
    let begin = Instant::now();
    let seen = send(&service, carrying(Chunks::of(BODY, 7).stalling())).await;
    seen.is(408, "rejected");
    assert_eq!(begin.elapsed().as_secs(), 10);
    assert!(record(&store, ID).await.is_none());
}

#[tokio::test(start_paused = true)]
async fn what_is_left_of_a_refused_body_is_read_for_a_while() {
    struct Left(Chunks, Arc<Notify>);
    impl Drop for Left {
        fn drop(&mut self) {
            self.1.notify_one();
        }
    }
    impl http_body::Body for Left {
        type Data = Bytes;
        type Error = std::io::Error;
        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            cx: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
            std::pin::Pin::new(&mut self.0).poll_frame(cx)
        }
    }
    let (store, runs) = (memory(), Runs::default());
    let service = layer(&store).body_limit(10).layer(answering(&runs, 200));
    for announced in [true, false] {
        for (chunks, seconds) in [
            (Chunks::of(BODY, 7), 0),
            (Chunks::of(BODY, 7).stalling(), 10),
        ] {
            let gone = Arc::new(Notify::new());
            let mut request = signed(ID).map(|_| Left(chunks, Arc::clone(&gone)));
            if announced {
                request
                    .headers_mut()
                    .insert("content-length", BODY.len().into());
            }
            let begin = Instant::now();
            // The answer does not wait for it.
            send(&service, request).await.is(413, "rejected");
            assert_eq!(begin.elapsed(), Duration::ZERO);
            gone.notified().await;
            assert_eq!(begin.elapsed().as_secs(), seconds);
        }
    }
}

#[tokio::test]
async fn an_announced_length_allocates_nothing() {
    let (store, runs) = (memory(), Runs::default());
    let service = ok_service(&store, &runs);
    for announced in [
        "1099511627776",
        "1152921504606846976",
        "18446744073709551616",
    ] {
        let mut request = signed(ID);
        request
            .headers_mut()
            .insert("content-length", announced.parse().unwrap());
        send(&service, request).await.is(413, "rejected");
    }
}

#[tokio::test]
async fn bodies_over_the_memory_budget_are_turned_away_until_there_is_room() {
    let (runs, go) = (Runs::default(), Arc::new(Notify::new()));
    let work = {
        let go = Arc::clone(&go);
        handler(&runs, move |run, _| {
            let go = Arc::clone(&go);
            async move {
                if run == 1 {
                    go.notified().await;
                }
                reply(200)
            }
        })
    };
    let service = layer(&memory()).memory_budget(100).layer(work);
    let sized = |id: &str| signed_with(SECRET, "issues", id, "x".repeat(60));
    let first = tokio::spawn({
        let (service, request) = (service.clone(), sized("first"));
        async move { send(&service, request).await }
    });
    while runs.count() == 0 {
        tokio::task::yield_now().await;
    }
    let second = send(&service, sized("second")).await;
    second.is(503, "unavailable");
    assert_eq!(second.extensions.get(), Some(&Rejection::Memory));
    assert!(second.headers.contains_key("retry-after"));
    go.notify_one();
    first.await.unwrap().is(200, "completed");
    send(&service, sized("second")).await.is(200, "completed");
}

#[tokio::test]
async fn a_draining_layer_takes_nothing_and_says_when_it_is_idle() {
    let (runs, go, drain) = (Runs::default(), Arc::new(Notify::new()), Drain::new());
    let work = {
        let go = Arc::clone(&go);
        handler(&runs, move |_, _| {
            let go = Arc::clone(&go);
            async move {
                go.notified().await;
                reply(200)
            }
        })
    };
    let service = layer(&memory()).drain(&drain).layer(work);
    let first = tokio::spawn({
        let service = service.clone();
        async move { send(&service, signed("first")).await }
    });
    while runs.count() == 0 {
        tokio::task::yield_now().await;
    }
    drain.begin();
    let second = send(&service, signed("second")).await;
    second.is(503, "unavailable");
    assert_eq!(second.extensions.get(), Some(&Rejection::Draining));
    let idle = tokio::spawn({
        let drain = drain.clone();
        async move { drain.idle().await }
    });
    tokio::task::yield_now().await;
    assert!(!idle.is_finished() && drain.running() == 1);
    go.notify_one();
    idle.await.unwrap();
    first.await.unwrap().is(200, "completed");
}

#[test]
fn a_refusal_needs_no_runtime() {
    let (store, runs) = (memory(), Runs::default());
    let service = ok_service(&store, &runs);
    let mut request: Request<Full<Bytes>> = signed(ID);
    request.headers_mut().clear();
    let mut future = Box::pin(send(&service, request));
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    let std::task::Poll::Ready(seen) = future.as_mut().poll(&mut cx) else {
        panic!("a refusal is there at once")
    };
    seen.is(400, "rejected");
}

#[tokio::test]
async fn a_long_body_lets_other_tasks_have_their_turn() {
    /// Frames that are all there at once.
    struct Rush(usize);
    impl http_body::Body for Rush {
        type Data = Bytes;
        type Error = std::convert::Infallible;
        fn poll_frame(
            mut self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
            let left = self.0.checked_sub(1);
            self.0 = left.unwrap_or(0);
            let frame = left.map(|_| Ok(Frame::data(Bytes::from_static(&[b'x'; 16 * 1024]))));
            std::task::Poll::Ready(frame)
        }
    }
    let (store, runs) = (memory(), Runs::default());
    let service = ok_service(&store, &runs);
    let request = signed_with(SECRET, "issues", ID, "x".repeat(320 * 16 * 1024));
    let mut sending = tokio_test::task::spawn(send(&service, request.map(|_| Rush(320))));
    let mut polls = 1;
    while sending.poll().is_pending() {
        polls += 1;
        assert!(sending.is_woken());
    }
    // Five MiB, one after the other.
    assert!((5..=7).contains(&polls), "{polls}");
}
