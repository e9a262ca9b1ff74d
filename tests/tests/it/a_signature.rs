//! Signature and raw body: what is signed is believed, byte for byte, and nothing else is.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Request};
use http_body::{Body, Frame};
use http_body_util::Full;
use proptest::prelude::*;
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt};

use hookclaim::testing::sign;
use hookclaim::{MemoryStore, Secret, SecretError, SecretSet, Secrets, Signature, State, header};
use hookclaim_tests::capture::Capture;
use hookclaim_tests::http::{RawConnection, Signed, guid, signed};
use hookclaim_tests::{DEADLINE, eventually};
use tower_hookclaim::{Drain, Event, GithubWebhookLayer, Observer, TracingObserver};

use crate::support::{App, Handler, Stack, delivery, layer, reply};

/// Bodies that a receiver changes when it parses first and signs what it prints again.
const ODD: [(&str, &[u8]); 13] = [
    ("odd spacing", b"{ \"b\" :1,\n\t\"a\": [ ] }  "),
    ("key order", br#"{"z":1,"a":2,"z":3}"#),
    ("escaped slash", br#"{"url":"https:\/\/example.com\/"}"#),
    ("markup", br#"{"body":"<script>&amp;\u003c"}"#),
    ("floats", br#"{"a":1.0,"b":1e400,"c":0.1000,"d":-0}"#),
    ("large integer", br#"{"id":9223372036854775808}"#),
    ("UTF-8 of every length", "{\"body\":\"é€𝄞\"}".as_bytes()),
    (
        "line separator",
        "{\"body\":\"a\u{2028}b\u{2029}c\"}".as_bytes(),
    ),
    ("combining marks", "{\"body\":\"e\u{301} é\"}".as_bytes()),
    ("byte order mark", b"\xef\xbb\xbf{\"action\":\"created\"}"),
    ("invalid UTF-8", b"{\"body\":\"\xff\xc3\x28\"}"),
    ("not JSON", b"\0\r\n--boundary"),
    ("empty", b""),
];

// A1, A2, A3, B6
#[tokio::test(flavor = "multi_thread")]
async fn the_handler_gets_the_bytes_of_the_wire() {
    for stack in Stack::ALL {
        let app = App::plain(stack).await;
        for (at, (case, body)) in ODD.into_iter().enumerate() {
            let answer = app.deliver(&delivery("issues", &guid(), body)).await;
            assert_eq!(
                answer.is(),
                (200, "completed"),
                "{stack:?}, {case}: {answer:?}"
            );
            let run = &app.runs()[at];
            assert_eq!(run.body, body, "{stack:?}, {case}");
            assert_eq!(run.delivery.raw(), body, "{stack:?}, {case}");
            assert_eq!(run.delivery.json(), body, "{stack:?}, {case}");
        }
    }
}

// A1
#[test]
fn any_signed_bytes_reach_the_handler_and_any_change_to_them_is_refused() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let app = runtime.block_on(App::plain(Stack::Http1));
    let bodies = (
        proptest::collection::vec(any::<u8>(), 0..2000),
        any::<prop::sample::Index>(),
        1..=255_u8,
    );
    proptest!(ProptestConfig::with_cases(128), |((body, at, flip) in bodies)| {
        let genuine = delivery("issues", &guid(), body.clone());
        let mut changed = body.clone();
        if body.is_empty() {
            changed.push(flip);
        } else {
            changed[at.index(body.len())] ^= flip;
        }
        let answer = runtime.block_on(app.deliver(&genuine.clone().forged_body(changed)));
        prop_assert_eq!(answer.is(), (401, "rejected"));
        let answer = runtime.block_on(app.deliver(&genuine));
        prop_assert_eq!(answer.is(), (200, "completed"));
        let runs = app.runs();
        let run = runs.last().unwrap();
        prop_assert_eq!(&run.body, &body);
        prop_assert_eq!(run.delivery.id().as_str(), genuine.headers()[header::DELIVERY].to_str().unwrap());
    });
}

// A3
#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_parsed_is_the_handlers_verdict() {
    let store = MemoryStore::new();
    let handler = Handler::new(|run, _| async move {
        match serde_json::from_slice::<serde_json::Value>(run.delivery.json()) {
            Ok(_) => reply(200, "done"),
            Err(_) => reply(422, "not JSON"),
        }
    });
    let app = App::with(Stack::Http1, store, handler).await;
    let id = guid();
    let sent = delivery("issues", &id, &b"\xef\xbb\xbf{\"a\":\"\xff\"}"[..]);
    assert_eq!(app.deliver(&sent).await.is(), (422, "failed"));
    assert_eq!(app.record(&id).await.unwrap().state, State::Dead);
    assert_eq!(app.deliver(&sent).await.is(), (202, "dead"));
    assert_eq!(app.runs().len(), 1);
}

/// Single bytes, then trailers; counts how often it is asked.
struct Bits {
    left: Bytes,
    trailers: bool,
    polls: Arc<AtomicUsize>,
}

impl Body for Bits {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        if !self.left.is_empty() {
            return Poll::Ready(Some(Ok(Frame::data(self.left.split_to(1)))));
        }
        if std::mem::take(&mut self.trailers) {
            let mut trailers = HeaderMap::new();
            trailers.insert(header::DELIVERY, "from-the-trailers".parse().unwrap());
            return Poll::Ready(Some(Ok(Frame::trailers(trailers))));
        }
        Poll::Ready(None)
    }
}

// A4
#[tokio::test]
async fn a_body_in_single_bytes_with_trailers_is_read_once_and_no_more() {
    let body = Bytes::from("{\"action\":\"created\"}".repeat(100));
    let sent = delivery("issues", &guid(), body.clone());
    let polls = Arc::new(AtomicUsize::new(0));
    let bits = Bits {
        left: body.clone(),
        trailers: true,
        polls: Arc::clone(&polls),
    };
    let handler = Handler::<MemoryStore>::done();
    let store = MemoryStore::new();
    let service = layer(&store).layer(handler.clone().into_service());
    let response = service
        .oneshot(sent.request("/webhook", bits))
        .await
        .unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(handler.runs()[0].body, body);
    // Each byte, the trailers, and the end; a look more is no spin.
    assert!(polls.load(Ordering::Relaxed) <= body.len() + 3);
}

// A4
#[tokio::test(flavor = "multi_thread")]
async fn single_byte_chunks_with_trailers_arrive_over_http_1() {
    let app = App::plain(Stack::Http1).await;
    let id = guid();
    let body = "{\"action\":\"created\",\"é\":1}";
    let sent = delivery("issues", &id, body);
    let mut wire = sent.raw_head("/webhook").into_bytes();
    wire.extend(b"transfer-encoding: chunked\r\ntrailer: x-github-delivery\r\n\r\n");
    for byte in body.as_bytes() {
        wire.extend([b'1', b'\r', b'\n', *byte, b'\r', b'\n']);
    }
    wire.extend(b"0\r\nx-github-delivery: from-the-trailers\r\n\r\n");
    let mut connection = RawConnection::open(app.url()).await;
    for piece in wire.chunks(7) {
        connection.write(piece).await.unwrap();
    }
    let answer = connection.answer().await.expect("an answer");
    assert_eq!(answer.is(), (200, "completed"));
    assert_eq!(app.runs()[0].body, body);
    assert_eq!(app.runs()[0].delivery.id().as_str(), id);
}

// A4
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_without_a_length_arrives_on_every_stack() {
    for stack in Stack::ALL {
        let app = App::plain(stack).await;
        let body = Bytes::from(vec![b'7'; 3000]);
        let sent = delivery("issues", &guid(), body.clone());
        let pieces: Vec<_> = body.chunks(11).map(Bytes::copy_from_slice).collect();
        let stream = Channel::of(pieces);
        let answer = app.client.send(sent.request(&app.webhook(), stream)).await;
        assert_eq!(answer.is(), (200, "completed"), "{stack:?}");
        assert_eq!(app.runs()[0].body, body, "{stack:?}");
    }
}

/// A body without a size.
struct Channel(std::vec::IntoIter<Bytes>);

impl Channel {
    fn of(pieces: Vec<Bytes>) -> Self {
        Self(pieces.into_iter())
    }
}

impl Body for Channel {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.next().map(|piece| Ok(Frame::data(piece))))
    }
}

// A5; the server's own test measures the memory.
#[tokio::test(flavor = "multi_thread")]
async fn an_absurd_content_length_is_refused_before_the_body() {
    for stack in [Stack::AxumLayer, Stack::AxumRouteLayer, Stack::Http1] {
        let app = App::plain(stack).await;
        let sent = delivery("issues", &guid(), "{}");
        for (length, statuses) in [
            ("1099511627776", &[413][..]),
            ("1152921504606846976", &[413]),
            ("18446744073709551613", &[413]),
            // From here on hyper does not take it for a number, and answers by itself.
            ("18446744073709551615", &[413, 400, 431]),
            ("18446744073709551616", &[413, 400]),
            ("99999999999999999999999999", &[413, 400]),
        ] {
            let head = sent.raw_head("/webhook");
            let wire = format!("{head}content-length: {length}\r\n\r\n{{}}");
            let answer = hookclaim_tests::http::raw(app.url(), wire).await;
            let status = answer.expect("an answer").status.as_u16();
            assert!(statuses.contains(&status), "{stack:?}, {length}: {status}");
        }
        app.assert_untouched("absurd lengths").await;
    }
}

// A5
#[tokio::test]
async fn a_content_length_that_no_integer_holds_is_too_large_for_the_layer() {
    for length in [
        "1099511627776",
        "18446744073709551616",
        "99999999999999999999999999",
    ] {
        let sent = delivery("issues", &guid(), "{}").header(http::header::CONTENT_LENGTH, length);
        let inner = tower::service_fn(|_: Request<Full<Bytes>>| async {
            Err::<http::Response<Full<Bytes>>, _>("it must not run")
        });
        let service = layer(&MemoryStore::new()).layer(inner);
        let response = service.oneshot(sent.to("/webhook")).await.unwrap();
        assert_eq!(response.status(), 413, "{length}");
    }
}

// A6
#[tokio::test]
async fn a_body_that_breaks_off_is_refused_though_its_beginning_is_signed() {
    let beginning = Bytes::from("{\"action\":\"created\"}");
    let sent = delivery("issues", &guid(), beginning.clone());
    let frames = [Ok(Frame::data(beginning)), Err("the cable was cut")];
    let body = Frames(frames.into());
    let store = MemoryStore::new();
    let handler = Handler::<MemoryStore>::done();
    let response = layer(&store)
        .layer(handler.clone().into_service())
        .oneshot(sent.request("/webhook", body))
        .await
        .unwrap();
    assert_eq!(response.status(), 400);
    assert!(handler.runs().is_empty());
    let all = hookclaim::ListFilter::newest(10);
    assert_eq!(
        hookclaim::DeliveryStore::list(&store, &all).await.unwrap(),
        []
    );
}

/// A body of frames, the last of which may be an error.
struct Frames(std::collections::VecDeque<Result<Frame<Bytes>, &'static str>>);

impl Body for Frames {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(self.0.pop_front())
    }
}

// A6
#[tokio::test(flavor = "multi_thread")]
async fn a_sender_that_hangs_up_within_the_body_leaves_no_claim() {
    for (case, reset) in [("a farewell", false), ("a reset", true)] {
        let store = MemoryStore::new();
        let drain = Drain::new();
        let layer = layer(&store).drain(&drain);
        let app = App::start(Stack::Http1, layer, store, Handler::done()).await;
        let id = guid();
        let sent = delivery("issues", &id, "{\"action\":\"created\"}");
        let head = sent.raw_head("/webhook");
        let mut connection = RawConnection::open(app.url()).await;
        // All of the signed bytes, of a body that was to be longer.
        connection
            .write(format!("{head}content-length: 100\r\n\r\n"))
            .await
            .unwrap();
        connection.write(sent.body()).await.unwrap();
        eventually("the request is under way", || async {
            (drain.running() == 1).then_some(())
        })
        .await;
        if reset {
            connection.hang_up();
        } else {
            drop(connection);
        }
        drain.idle().await;
        app.assert_untouched(case).await;
        assert_eq!(app.deliver(&sent).await.is(), (200, "completed"), "{case}");
    }
}

// A7; the server's own test shows the warning.
#[test]
fn a_secret_file_is_taken_without_its_one_line_end() {
    let directory = tempfile::tempdir().unwrap();
    for (case, content, secret, trimmed) in [
        ("as it is", "a secret", "a secret", false),
        ("line feed", "a secret\n", "a secret", true),
        ("carriage return", "a secret\r\n", "a secret", true),
        ("two line ends", "a secret\n\n", "a secret\n", true),
        ("spaces", " a  secret \n", " a  secret ", true),
        ("a line end within", "a\nsecret", "a\nsecret", false),
    ] {
        let path = directory.path().join("secret");
        std::fs::write(&path, content).unwrap();
        let (read, was_trimmed) = Secret::from_file("file", &path).unwrap();
        assert_eq!(was_trimmed, trimmed, "{case}");
        let set = Arc::new(SecretSet::new(read));
        let signature = Signature::parse(sign(secret.as_bytes(), b"{}").as_bytes()).unwrap();
        let verified = hookclaim::SignedBody::verify(Bytes::from("{}"), &signature, &set);
        assert!(verified.is_ok(), "{case}");
    }
}

// A8; the server's own test shows its exit code.
#[test]
fn a_secret_that_is_none_is_refused_at_construction() {
    for (case, secret) in [("empty", ""), ("blank", " \t"), ("line ends", "\r\n\n")] {
        let error = SecretSet::single(secret).unwrap_err();
        assert!(
            matches!(error, SecretError::Blank { .. }),
            "{case}: {error:?}"
        );
    }
    assert!(SecretSet::from_secrets([]).is_err());
}

// A9, A11, A12
#[tokio::test(flavor = "multi_thread")]
async fn a_signature_header_that_is_none_is_unauthorized() {
    let good = "0123456789abcdef".repeat(4);
    let rows: Vec<(&str, Vec<u8>)> = [
        ("prefix alone", "sha256=".to_owned()),
        ("1 digit", "sha256=a".to_owned()),
        ("63 digits", format!("sha256={}", &good[1..])),
        ("65 digits", format!("sha256={good}0")),
        ("128 digits", format!("sha256={good}{good}")),
        ("no digits", format!("sha256={}", "z".repeat(64))),
        ("no prefix", good.clone()),
        ("upper prefix", format!("SHA256={good}")),
        ("other prefix", format!("sha1={good}")),
        ("md5", format!("md5={good}")),
        ("seven characters", format!("1234567{good}")),
        ("two prefixes", format!("sha256=sha256={good}")),
        ("a space after the prefix", format!("sha256= {good}")),
        (
            "a space within",
            format!("sha256={} {}", &good[..32], &good[33..]),
        ),
        ("0x", format!("sha256=0x{}", &good[2..])),
        ("a list", format!("sha256={good},sha256={good}")),
        ("empty", String::new()),
        ("blank", " \t ".to_owned()),
        ("right shape, wrong digits", format!("sha256={good}")),
    ]
    .map(|(case, value)| (case, value.into_bytes()))
    .into_iter()
    .chain([(
        "not ASCII",
        [b"sha256=\xff\xfe".as_slice(), good.as_bytes()].concat(),
    )])
    .collect();
    for stack in Stack::ALL {
        let app = App::plain(stack).await;
        for (case, value) in &rows {
            let sent = delivery("issues", &guid(), "{}").header(header::SIGNATURE, value);
            let answer = app.deliver(&sent).await;
            assert_eq!(
                answer.is(),
                (401, "rejected"),
                "{stack:?}, {case}: {answer:?}"
            );
        }
        // A11
        let unsigned = delivery("issues", &guid(), "{}").without(header::SIGNATURE);
        assert_eq!(
            app.deliver(&unsigned).await.is(),
            (401, "rejected"),
            "{stack:?}"
        );
        // A12
        let outdated = unsigned.header(
            header::SIGNATURE_SHA1,
            "sha1=7d38cdd689735b008b3c702edd92eea23791c5f6",
        );
        let answer = app.deliver(&outdated).await;
        assert_eq!(answer.is(), (401, "rejected"), "{stack:?}");
        let text = answer.text.to_ascii_lowercase();
        assert!(
            text.contains("sha-1") || text.contains("sha1"),
            "{stack:?}: {text}"
        );
        app.assert_untouched(&format!("{stack:?}")).await;
    }
}

// A9
#[tokio::test(flavor = "multi_thread")]
async fn a_signature_header_that_http_does_not_carry_is_refused() {
    let app = App::plain(Stack::Http1).await;
    let sent = delivery("issues", &guid(), "{}").without(header::SIGNATURE);
    let head = sent.raw_head("/webhook");
    let megabyte = "a".repeat(1024 * 1024);
    for (case, value, statuses) in [
        ("NUL", "sha256=\0", &[400, 401][..]),
        ("1 MiB", megabyte.as_str(), &[401, 431]),
    ] {
        let wire = format!("{head}x-hub-signature-256: {value}\r\ncontent-length: 2\r\n\r\n{{}}");
        let answer = hookclaim_tests::http::raw(app.url(), wire).await;
        // A server that closes with unread bytes may lose its answer; it must not have taken the request.
        if let Some(answer) = answer {
            assert!(
                statuses.contains(&answer.status.as_u16()),
                "{case}: {answer:?}"
            );
        }
    }
    app.assert_untouched("refused by HTTP").await;
    assert_eq!(
        app.deliver(&delivery("issues", &guid(), "{}")).await.is().0,
        200
    );
}

// A10
#[tokio::test(flavor = "multi_thread")]
async fn a_security_header_that_comes_twice_is_a_bad_request() {
    let bad = format!("sha256={}", "0".repeat(64));
    for stack in Stack::ALL {
        let app = App::plain(stack).await;
        let sent = || delivery("issues", "the-one-id", "{}");
        let good = sent().headers()[header::SIGNATURE].as_bytes().to_vec();
        for (case, request) in [
            ("good, bad", sent().and_header(header::SIGNATURE, &bad)),
            (
                "bad, good",
                sent()
                    .header(header::SIGNATURE, &bad)
                    .and_header(header::SIGNATURE, &good),
            ),
            ("same twice", sent().and_header(header::SIGNATURE, &good)),
            ("two ids", sent().and_header(header::DELIVERY, "another-id")),
            (
                "one id twice",
                sent().and_header(header::DELIVERY, "the-one-id"),
            ),
            ("two events", sent().and_header(header::EVENT, "push")),
            (
                "one event twice",
                sent().and_header(header::EVENT, "issues"),
            ),
        ] {
            let answer = app.deliver(&request).await;
            assert_eq!(answer.is(), (400, "rejected"), "{stack:?}, {case}");
        }
        app.assert_untouched(&format!("{stack:?}")).await;
    }
}

/// Remembers which secrets signed.
#[derive(Clone, Default)]
struct Signers(Arc<Mutex<Vec<String>>>);

impl Observer for Signers {
    fn on(&self, event: &Event<'_>) {
        if let Event::Verified { secret, .. } = event {
            self.0.lock().unwrap().push((*secret).to_owned());
        }
    }
}

// A13
#[tokio::test(flavor = "multi_thread")]
async fn while_a_secret_is_rotated_both_sign_and_it_shows_which() {
    let store = MemoryStore::new();
    let secrets = SecretSet::new(Secret::new("current", "the new one").unwrap())
        .and(Secret::new("previous", "the old one").unwrap());
    let signers = Signers::default();
    let layer = GithubWebhookLayer::new(secrets, store.clone()).observer(signers.clone());
    let app = App::start(Stack::Http1, layer, store, Handler::done()).await;
    for (secret, answer) in [
        ("the new one", (200, "completed")),
        ("the old one", (200, "completed")),
        ("a third one", (401, "rejected")),
    ] {
        let sent = signed(secret, "issues", &guid(), "{}");
        assert_eq!(app.deliver(&sent).await.is(), answer, "{secret}");
    }
    assert_eq!(*signers.0.lock().unwrap(), ["current", "previous"]);
}

// A13
#[tokio::test(flavor = "multi_thread")]
async fn replacing_the_secrets_while_requests_run_refuses_no_genuine_one() {
    let new = || Secret::new("current", "the new one").unwrap();
    let old = || Secret::new("previous", "the old one").unwrap();
    let store = MemoryStore::new();
    let secrets = Secrets::new(SecretSet::new(old()));
    let layer = GithubWebhookLayer::new(secrets.clone(), store.clone());
    let app = App::start(Stack::Http1, layer, store, Handler::done()).await;
    let over = Arc::new(AtomicBool::new(false));
    let rotation = std::thread::spawn({
        let over = Arc::clone(&over);
        move || {
            let mut turns = 0_u64;
            while !over.load(Ordering::Relaxed) {
                secrets.replace(SecretSet::new(new()).and(old()));
                secrets.replace(SecretSet::new(old()));
                turns += 1;
            }
            turns
        }
    });
    let mut senders = JoinSet::new();
    for _ in 0..20 {
        let (client, url) = (app.client.clone(), app.webhook());
        senders.spawn(async move {
            for _ in 0..50 {
                let sent = signed("the old one", "issues", &guid(), "{}");
                assert_eq!(client.deliver(&url, &sent).await.is(), (200, "completed"));
            }
        });
    }
    senders.join_all().await;
    over.store(true, Ordering::Relaxed);
    assert!(rotation.join().unwrap() > 0);
    assert_eq!(app.runs().len(), 1000);
}

// A14
#[tokio::test(flavor = "multi_thread")]
async fn no_refusal_tells_the_secret_or_the_right_signature() {
    let secret = format!("s3cret-{}", guid());
    let capture = Capture::begin();
    let store = MemoryStore::new();
    let set = SecretSet::single(&secret).unwrap();
    let debug_of_set = format!("{set:?}");
    let layer = GithubWebhookLayer::new(set, store.clone())
        .observer(TracingObserver::new())
        .body_limit(1000);
    let debug_of_layer = format!("{layer:?}");
    let app = App::start(Stack::Http1, layer, store, Handler::done()).await;
    let sent = |id: &str| signed(&secret, "issues", id, "{\"action\":\"opened\"}");
    let mac = sign(secret.as_bytes(), b"{\"action\":\"opened\"}");
    let mac = mac.trim_start_matches("sha256=");
    let zeros = format!("sha256={}", "0".repeat(64));
    let id = guid();
    let requests: Vec<(&str, Signed)> = vec![
        ("method", sent(&id).method(http::Method::PUT)),
        ("repeated", sent(&id).and_header(header::DELIVERY, "x")),
        ("no id", sent(&id).without(header::DELIVERY)),
        ("no event", sent(&id).without(header::EVENT)),
        ("no signature", sent(&id).without(header::SIGNATURE)),
        (
            "sha1",
            sent(&id)
                .without(header::SIGNATURE)
                .header(header::SIGNATURE_SHA1, "sha1=00"),
        ),
        (
            "malformed",
            sent(&id).header(header::SIGNATURE, "sha256=00"),
        ),
        ("mismatch", sent(&id).header(header::SIGNATURE, &zeros)),
        (
            "changed",
            sent(&id)
                .forged_body("{\"action\":\"closed\"}")
                .header(header::SIGNATURE, &zeros),
        ),
        (
            "content type",
            sent(&id)
                .header(http::header::CONTENT_TYPE, "text/plain")
                .header(header::SIGNATURE, &zeros),
        ),
        (
            "too large",
            sent(&id)
                .forged_body(vec![b' '; 1001])
                .header(header::SIGNATURE, &zeros),
        ),
        (
            "form",
            signed(&secret, "issues", &id, "a=b").header(
                http::header::CONTENT_TYPE,
                "application/x-www-form-urlencoded",
            ),
        ),
    ];
    let mut said = vec![debug_of_set, debug_of_layer];
    for (case, request) in &requests {
        let answer = app.deliver(request).await;
        assert_eq!(answer.outcome(), "rejected", "{case}");
        said.push(format!("{case}: {:?} {}", answer.headers, answer.text));
    }
    assert_eq!(app.deliver(&sent(&id)).await.is(), (200, "completed"));
    let run = app.runs().remove(0);
    said.push(format!(
        "{run:?} {:?} {:?}",
        run.delivery.verified(),
        app.records().await
    ));
    let parsed = Signature::parse(format!("sha256={mac}").as_bytes()).unwrap();
    let body = hookclaim::SignedBody::verify(
        Bytes::from("{\"action\":\"opened\"}"),
        &parsed,
        &Arc::new(SecretSet::single(&secret).unwrap()),
    )
    .unwrap();
    let bare = Secret::new("bare", &secret).unwrap();
    said.push(format!(
        "{parsed:?} {body:?} {bare:?} {:?}",
        Secrets::new(SecretSet::new(bare.clone()))
    ));
    let verifier = Arc::new(SecretSet::single(&secret).unwrap()).verifier();
    said.push(format!("{verifier:?}"));
    let logged = capture.text();
    assert!(
        logged.contains(&id),
        "what is searched is the log of these requests"
    );
    // The client's own log of what it sends is not the receiver's.
    let logged: String = logged
        .lines()
        .filter(|line| !line.contains("hyper_util::client") && !line.contains("hyper::proto"))
        .collect();
    said.push(logged);
    let raw_mac: Vec<String> = mac
        .as_bytes()
        .chunks(2)
        .map(|pair| {
            u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16)
                .unwrap()
                .to_string()
        })
        .collect();
    for needle in [
        &secret,
        &base64(secret.as_bytes()),
        mac,
        &raw_mac.join(", "),
    ] {
        for text in &said {
            assert!(!text.contains(needle), "{needle} is told by {text}");
        }
    }
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    // Without the last group, whose digits depend on what follows.
    bytes
        .chunks_exact(3)
        .flat_map(|group| {
            let bits = u32::from_be_bytes([0, group[0], group[1], group[2]]);
            [18, 12, 6, 0].map(|shift| char::from(DIGITS[(bits >> shift & 63) as usize]))
        })
        .collect()
}

// A15
#[tokio::test(flavor = "multi_thread")]
async fn deep_json_is_hashed_and_never_parsed() {
    let deep = Bytes::from("[".repeat(20 * 1024 * 1024));
    let app = App::plain(Stack::Http1).await;
    let genuine = delivery("issues", &guid(), deep.clone());
    let forged = genuine
        .clone()
        .header(header::SIGNATURE, format!("sha256={}", "0".repeat(64)));
    let answer = tokio::time::timeout(DEADLINE, app.deliver(&forged))
        .await
        .unwrap();
    assert_eq!(answer.is(), (401, "rejected"));
    app.assert_untouched("unsigned").await;
    assert_eq!(app.deliver(&genuine).await.is(), (200, "completed"));
}

// A16
#[tokio::test(flavor = "multi_thread")]
async fn a_compressed_body_is_verified_and_passed_on_as_it_is() {
    // `{}` as gzip writes it.
    let gzip: &[u8] =
        b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\xab\xae\x05\x00\x43\xbf\xa6\xa3\x02\x00\x00\x00";
    for stack in Stack::ALL {
        let app = App::plain(stack).await;
        let sent = delivery("issues", &guid(), gzip).header(http::header::CONTENT_ENCODING, "gzip");
        assert_eq!(
            app.deliver(&sent).await.is(),
            (200, "completed"),
            "{stack:?}"
        );
        assert_eq!(app.runs()[0].body, gzip, "{stack:?}");
    }
}

// The vector of https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
#[tokio::test(flavor = "multi_thread")]
async fn the_official_signature_vector_verifies() {
    let app = App::plain(Stack::Http1).await;
    for digits in [
        "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17",
        "757107EA0EB2509FC211221CCE984B8A37570B6D7586C22C46F4379C8B043E17",
    ] {
        let sent = delivery("push", &guid(), "Hello, World!")
            .header(header::SIGNATURE, format!("sha256={digits}"));
        assert_eq!(
            app.deliver(&sent).await.is(),
            (200, "completed"),
            "{digits}"
        );
    }
}

// A13: a body is judged by the secrets at its beginning or its end, never by neither.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_under_way_survives_the_addition_of_a_secret() {
    let store = MemoryStore::new();
    let secrets = Secrets::new(SecretSet::single("the old one").unwrap());
    let drain = Drain::new();
    let layer = GithubWebhookLayer::new(secrets.clone(), store.clone()).drain(&drain);
    let app = App::start(Stack::Http1, layer, store, Handler::done()).await;
    let sent = signed("the old one", "issues", &guid(), "{}");
    let mut connection = RawConnection::open(app.url()).await;
    let head = sent.raw_head("/webhook");
    connection
        .write(format!("{head}content-length: 2\r\n\r\n{{"))
        .await
        .unwrap();
    eventually("the request is under way", || async {
        (drain.running() == 1).then_some(())
    })
    .await;
    secrets.replace(
        SecretSet::new(Secret::new("current", "the new one").unwrap())
            .and(Secret::new("previous", "the old one").unwrap()),
    );
    connection.write("}").await.unwrap();
    let answer = tokio::time::timeout(Duration::from_secs(30), connection.answer())
        .await
        .unwrap();
    assert_eq!(answer.unwrap().is(), (200, "completed"));
}
