//! Shape, size and HTTP: what GitHub sends is taken in whole, and what nobody should send does no harm.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::routing::post;
use bytes::Bytes;
use http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use http::{Method, Request, Response};
use http_body_util::{BodyExt, Full};
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tower::buffer::Buffer;
use tower::limit::ConcurrencyLimit;
use tower::load_shed::LoadShed;
use tower::timeout::Timeout;
use tower::{BoxError, Layer, Service, ServiceBuilder, ServiceExt, service_fn};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::limit::RequestBodyLimitLayer;
use tower_http::timeout::TimeoutLayer;

use hookclaim::{MemoryStore, State, header};
use hookclaim_tests::http::{Client, RawConnection, Signed, guid, raw, trickle};
use hookclaim_tests::{DEADLINE, eventually, fixtures};
use tower_hookclaim::{Drain, GithubWebhookLayer};

use crate::support::{App, Handler, Stack, delivery, layer, reply, serve_hyper};

const FORM: &str = "application/x-www-form-urlencoded";
const MIB: usize = 1024 * 1024;

fn form(guid: &str, body: impl Into<Bytes>) -> Signed {
    delivery("issues", guid, body).header(CONTENT_TYPE, FORM)
}

// B1
#[tokio::test(flavor = "multi_thread")]
async fn a_forms_payload_is_decoded_and_its_raw_bytes_are_kept() {
    for stack in Stack::ALL {
        let app = App::plain(stack).await;
        for (at, (case, raw, json)) in [
            (
                "escapes",
                "payload=%7B%22a%22%3A%221%2B1+%3D+2%22%7D",
                r#"{"a":"1+1 = 2"}"#,
            ),
            (
                "UTF-8",
                "payload=%7B%22a%22%3A%22%C3%A9%E2%82%AC%22%7D",
                "{\"a\":\"é€\"}",
            ),
            (
                "lower digits",
                "payload=%7b%22a%22%3a%22%26%22%7d",
                r#"{"a":"&"}"#,
            ),
            ("another field", "a=1&payload=%7B%7D&b=2", "{}"),
            ("bare", "payload={}", "{}"),
        ]
        .into_iter()
        .enumerate()
        {
            let answer = app.deliver(&form(&guid(), raw)).await;
            assert_eq!(
                answer.is(),
                (200, "completed"),
                "{stack:?}, {case}: {answer:?}"
            );
            let run = &app.runs()[at];
            assert_eq!(run.delivery.json(), json.as_bytes(), "{stack:?}, {case}");
            assert_eq!(run.delivery.raw(), raw.as_bytes(), "{stack:?}, {case}");
            assert_eq!(run.body, raw, "{stack:?}, {case}");
        }
        let charset = form(&guid(), "payload=%7B%22action%22%3A%22opened%22%7D")
            .header(CONTENT_TYPE, format!("{FORM}; charset=utf-8"));
        assert_eq!(
            app.deliver(&charset).await.is(),
            (200, "completed"),
            "{stack:?}"
        );
        assert_eq!(app.runs().pop().unwrap().delivery.action(), Some("opened"));
    }
}

// B1
#[tokio::test(flavor = "multi_thread")]
async fn a_form_without_one_payload_is_a_bad_request_once_it_is_verified() {
    let app = App::plain(Stack::Http1).await;
    for (case, raw) in [
        ("none", "a=1&b=2"),
        ("empty", ""),
        ("twice", "payload=%7B%7D&payload=%7B%7D"),
        ("another case", "Payload=%7B%7D"),
        ("JSON", r#"{"action":"opened"}"#),
    ] {
        let sent = form(&guid(), raw);
        assert_eq!(app.deliver(&sent).await.is(), (400, "rejected"), "{case}");
        let forged = sent.header(header::SIGNATURE, format!("sha256={}", "0".repeat(64)));
        assert_eq!(app.deliver(&forged).await.is(), (401, "rejected"), "{case}");
    }
    app.assert_untouched("no payload").await;
}

// B2
#[tokio::test(flavor = "multi_thread")]
async fn only_the_content_types_of_github_are_taken() {
    for stack in Stack::ALL {
        let app = App::plain(stack).await;
        for value in [
            "application/json",
            "application/json; charset=utf-8",
            " Application/JSON ;charset=\"UTF-8\"",
            "application/json;",
        ] {
            let sent = delivery("issues", &guid(), "{}").header(CONTENT_TYPE, value);
            assert_eq!(
                app.deliver(&sent).await.is(),
                (200, "completed"),
                "{stack:?}, {value}"
            );
        }
        let none = delivery("issues", &guid(), "{}").without(CONTENT_TYPE);
        let others = [
            "text/plain",
            "application/jsonp",
            "application/json2",
            "json",
            "multipart/form-data",
            "",
        ]
        .map(|value| none.clone().header(CONTENT_TYPE, value));
        for sent in others.into_iter().chain([none]) {
            let answer = app.deliver(&sent).await;
            assert_eq!(answer.is(), (415, "rejected"), "{stack:?}, {sent:?}");
            assert!(
                answer.text.to_lowercase().contains("content type"),
                "it says which setting to change: {}",
                answer.text
            );
        }
        assert_eq!(app.runs().len(), 4);
    }
}

// B3. Hashing takes its time without optimization: each size is signed once, and on few stacks.
#[tokio::test(flavor = "multi_thread")]
async fn payloads_up_to_githubs_cap_are_taken_and_one_byte_more_is_refused_readably() {
    let zeros = format!("sha256={}", "0".repeat(64));
    let signed = [21 * MIB / 10, 25 * MIB].map(|len| delivery("push", "", vec![b' '; len]));
    let over = delivery("push", "", "")
        .forged_body(vec![b' '; 25 * MIB + 1])
        .header(header::SIGNATURE, zeros);
    for stack in [Stack::AxumLayer, Stack::Tonic] {
        let app = App::plain(stack).await;
        let rows = signed.iter().map(|sent| (sent, (200, "completed")));
        for (sent, answer) in rows.chain([(&over, (413, "rejected"))]) {
            let len = sent.body().len();
            let sent = sent.clone().header(header::DELIVERY, guid());
            // Without a length the limit is only found on the way, and the answer has to arrive all the same.
            let pieces = sent.body().chunks(64 * 1024);
            let body = Unsized(pieces.map(|piece| sent.body().slice_ref(piece)).collect());
            let request = sent.request(&app.webhook(), body);
            assert_eq!(
                app.client.send(request).await.is(),
                answer,
                "{stack:?}, {len} in pieces"
            );
            if answer.0 == 413 {
                assert_eq!(app.deliver(&sent).await.is(), answer, "{stack:?}, {len}");
            }
        }
        assert_eq!(app.runs().len(), 2, "{stack:?}");
        assert_eq!(app.records().await.len(), 2, "{stack:?}");
    }
}

/// A body without a size.
struct Unsized(std::collections::VecDeque<Bytes>);

impl http_body::Body for Unsized {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(
            self.0
                .pop_front()
                .map(|piece| Ok(http_body::Frame::data(piece))),
        )
    }
}

// B3: the limit is the layer's alone, also for handlers that let axum collect the body.
#[tokio::test(flavor = "multi_thread")]
async fn an_axum_handler_takes_large_payloads_as_bytes() {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/webhook", listener.local_addr().unwrap());
    let handler = |body: Bytes| async move { body.len().to_string() };
    let app = Router::new()
        .route("/webhook", post(handler))
        .layer(DefaultBodyLimit::disable())
        .layer(layer(&MemoryStore::new()));
    tokio::spawn(async { axum::serve(listener, app).await });
    let sent = delivery("push", &guid(), vec![b' '; 8 * MIB]);
    let answer = Client::http1().deliver(&url, &sent).await;
    assert_eq!(
        (answer.is(), &*answer.text),
        ((200, "completed"), "8388608")
    );
}

// B4: bodies are held back by the budget before anybody has proved anything. The server's own test measures memory.
#[tokio::test(flavor = "multi_thread")]
async fn bodies_in_flight_stay_within_the_budget_and_the_rest_is_turned_away() {
    const BODIES: usize = 40;
    const BUDGET: usize = 8 * MIB;
    let store = MemoryStore::new();
    let drain = Drain::new();
    let layer = layer(&store).memory_budget(BUDGET as u64).drain(&drain);
    let app = App::start(Stack::Http1, layer, store, Handler::done()).await;
    let sent = delivery("push", &guid(), "{}");
    let head = sent.raw_head("/webhook");
    let (answered, mut answers) = mpsc::unbounded_channel();
    let mut senders = JoinSet::new();
    for _ in 0..BODIES {
        let mut connection = RawConnection::open(app.url()).await;
        let head = format!("{head}content-length: {}\r\n\r\n", 2 * MIB);
        let answered = answered.clone();
        senders.spawn(async move {
            // Half of the body, and no more: who is not turned away is held.
            let _ = connection.write(head).await;
            let _ = connection.write(vec![b' '; MIB]).await;
            let _ = answered.send(connection.try_answer().await);
        });
    }
    for _ in 0..BODIES - BUDGET / MIB {
        let answer = tokio::time::timeout(DEADLINE, answers.recv()).await;
        let answer = answer
            .expect("no more are held")
            .flatten()
            .expect("an answer");
        assert_eq!(answer.is(), (503, "unavailable"));
        assert!(answer.headers.contains_key("retry-after"));
    }
    assert!(
        drain.running() > 0,
        "those within the budget are not turned away"
    );
    // The senders go, and their share is free again.
    senders.shutdown().await;
    drain.idle().await;
    let whole = delivery("push", &guid(), vec![b' '; 7 * MIB]);
    assert_eq!(app.deliver(&whole).await.is(), (200, "completed"));
}

// B5: the head's time limit is the server's, and its own test shows it.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_trickles_in_is_given_up_while_others_are_served() {
    for stack in [Stack::AxumLayer, Stack::Http1] {
        let store = MemoryStore::new();
        let layer = layer(&store).body_timeout(Duration::from_millis(400));
        let app = App::start(stack, layer, store, Handler::done()).await;
        let slow = delivery("issues", &guid(), " ".repeat(100_000));
        let head = slow.raw_head("/webhook") + "content-length: 100000\r\n\r\n";
        let pieces =
            std::iter::once(head.into_bytes()).chain(std::iter::repeat_n(vec![b' '], 100_000));
        let (url, healthy) = (app.url().to_owned(), delivery("issues", &guid(), "{}"));
        let trickled =
            tokio::spawn(async move { trickle(&url, pieces, Duration::from_millis(20)).await });
        assert_eq!(
            app.deliver(&healthy).await.is(),
            (200, "completed"),
            "{stack:?}"
        );
        let answer = trickled.await.unwrap().expect("an answer");
        assert_eq!(answer.is(), (408, "rejected"), "{stack:?}");
        assert_eq!(app.runs().len(), 1, "{stack:?}");
    }
}

// B7
#[tokio::test(flavor = "multi_thread")]
async fn exactly_what_github_sends_is_taken_in_any_case() {
    let payload = fixtures::IssueComment::new("/log 1h30m pairing").payload();
    for stack in [Stack::AxumLayer, Stack::AxumRouteLayer, Stack::Http1] {
        let app = App::plain(stack).await;
        for (case, respell) in [
            ("as sent", str::to_owned as fn(&str) -> String),
            ("lower", str::to_lowercase),
            ("upper", str::to_uppercase),
        ] {
            let signature =
                hookclaim::testing::sign(crate::support::SECRET.as_bytes(), payload.as_bytes());
            let id = guid();
            let lines = [
                ("Host", "hooks.example.com"),
                ("User-Agent", "GitHub-Hookshot/044aadd"),
                ("Content-Length", &payload.len().to_string()),
                ("Accept", "*/*"),
                ("Content-Type", "application/json"),
                ("Expect", ""),
                ("X-GitHub-Delivery", &id),
                ("X-GitHub-Event", "issue_comment"),
                ("X-GitHub-Hook-ID", "292430182"),
                ("X-GitHub-Hook-Installation-Target-ID", "79929171"),
                ("X-GitHub-Hook-Installation-Target-Type", "repository"),
                (
                    "X-Hub-Signature",
                    "sha1=7d38cdd689735b008b3c702edd92eea23791c5f6",
                ),
                ("X-Hub-Signature-256", &signature),
                ("Connection", "close"),
            ];
            let head: String = lines
                .iter()
                .map(|(name, value)| format!("{}: {value}\r\n", respell(name)))
                .collect();
            let wire = format!("POST /webhook HTTP/1.1\r\n{head}\r\n{payload}");
            let answer = raw(app.url(), wire).await.expect("an answer");
            assert_eq!(answer.is(), (200, "completed"), "{stack:?}, {case}");
            let delivery = app.runs().pop().unwrap().delivery;
            assert_eq!(delivery.id().as_str(), id);
            assert_eq!(delivery.event(), &"issue_comment");
            assert_eq!(delivery.action(), Some("created"));
            assert_eq!(delivery.hook_id(), Some(292_430_182));
            assert_eq!(delivery.target_type(), Some("repository"));
            assert_eq!(delivery.target_id(), Some(79_929_171));
        }
    }
}

// B7
#[tokio::test(flavor = "multi_thread")]
async fn only_post_delivers() {
    for stack in Stack::ALL {
        let app = App::plain(stack).await;
        for method in [Method::PUT, Method::PATCH, Method::DELETE] {
            let sent = delivery("issues", &guid(), "{}").method(method);
            let answer = app.deliver(&sent).await;
            assert_eq!(answer.status, 405, "{stack:?}");
            assert_eq!(answer.headers["allow"], "POST", "{stack:?}");
        }
        app.assert_untouched(&format!("{stack:?}")).await;
    }
}

/// Serves what a stack of layers made.
async fn serve<S>(service: S) -> String
where
    S: Service<Request<hyper::body::Incoming>, Response: IntoBody, Error: Into<BoxError>>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/webhook", listener.local_addr().unwrap());
    // An error of a service is a closed connection in hyper, and that is what a user gets to see.
    let service = service.map_response(IntoBody::into_body);
    tokio::spawn(serve_hyper(listener, service));
    url
}

type Plain = Response<http_body_util::combinators::UnsyncBoxBody<Bytes, BoxError>>;

/// Responses of whatever body.
trait IntoBody: Send + 'static {
    fn into_body(self) -> Plain;
}

impl<B> IntoBody for Response<B>
where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + 'static,
{
    fn into_body(self) -> Plain {
        self.map(|body| body.map_err(Into::into).boxed_unsync())
    }
}

fn done() -> impl Service<
    Request<Full<Bytes>>,
    Response = Response<Full<Bytes>>,
    Error = Infallible,
    Future = impl Future<Output = Result<Response<Full<Bytes>>, Infallible>> + Send,
> + Clone
+ Send {
    service_fn(|_: Request<Full<Bytes>>| async { Ok(reply(200, "done")) })
}

/// Sends `count` deliveries at once and counts the statuses.
async fn flood(url: &str, count: usize) -> std::collections::BTreeMap<u16, usize> {
    let client = Client::http1();
    let slots = Arc::new(Semaphore::new(200));
    let mut senders = JoinSet::new();
    for _ in 0..count {
        let (client, url, slots) = (client.clone(), url.to_owned(), Arc::clone(&slots));
        senders.spawn(async move {
            let _slot = slots.acquire().await;
            client
                .deliver(&url, &delivery("issues", &guid(), "{}"))
                .await
                .status
                .as_u16()
        });
    }
    let mut statuses = std::collections::BTreeMap::new();
    for status in senders.join_all().await {
        *statuses.entry(status).or_default() += 1;
    }
    statuses
}

// B8
#[tokio::test(flavor = "multi_thread")]
async fn inner_services_that_have_to_be_ready_are_called_ready() {
    let all = |status| std::collections::BTreeMap::from([(status, 1000)]);
    let layer = || layer(&MemoryStore::new());

    let url = serve(layer().layer(ConcurrencyLimit::new(done(), 1))).await;
    assert_eq!(flood(&url, 1000).await, all(200), "ConcurrencyLimit(1)");

    let url = serve(layer().layer(Buffer::new(done(), 1))).await;
    assert_eq!(flood(&url, 1000).await, all(200), "Buffer(1)");

    // What is shed is an error of the inner service: the caller sees it, and the delivery can be sent again.
    let shed = LoadShed::new(ConcurrencyLimit::new(done(), 1000));
    let url = serve(layer().layer(shed)).await;
    assert_eq!(flood(&url, 1000).await, all(200), "LoadShed");
}

// B8
#[tokio::test(flavor = "multi_thread")]
async fn what_the_inner_service_sheds_is_recorded_and_runs_when_sent_again() {
    let store = MemoryStore::new();
    let (entered, gate) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let slow = {
        let (entered, gate) = (Arc::clone(&entered), Arc::clone(&gate));
        service_fn(move |_: Request<Full<Bytes>>| {
            let (entered, gate) = (Arc::clone(&entered), Arc::clone(&gate));
            async move {
                entered.add_permits(1);
                let _pass = gate.acquire().await;
                Ok::<_, Infallible>(reply(200, "done"))
            }
        })
    };
    let shed = LoadShed::new(ConcurrencyLimit::new(slow, 1));
    let url = serve(layer(&store).layer(shed)).await;
    let client = Client::http1();
    let first = tokio::spawn({
        let (client, url) = (client.clone(), url.clone());
        async move {
            client
                .deliver(&url, &delivery("issues", &guid(), "{}"))
                .await
        }
    });
    let _ = entered.acquire().await.unwrap();
    let second = delivery("issues", &guid(), "{}");
    let shed = client.try_send(second.to(&url)).await;
    assert!(shed.is_err() || shed.is_ok_and(|answer| answer.status.is_server_error()));
    gate.add_permits(100);
    assert_eq!(first.await.unwrap().is(), (200, "completed"));
    assert_eq!(client.deliver(&url, &second).await.is(), (200, "completed"));
    let id = second.headers()[header::DELIVERY]
        .to_str()
        .unwrap()
        .to_owned();
    let all = hookclaim::ListFilter::newest(10).delivery_id(id);
    let records = hookclaim::DeliveryStore::list(&store, &all).await.unwrap();
    assert_eq!(
        (records[0].state, records[0].attempts),
        (State::Completed, 2)
    );
}

// B8
#[tokio::test(flavor = "multi_thread")]
async fn timeouts_limits_and_panic_catchers_fit_inside_and_outside() {
    let store = MemoryStore::new();
    let behaves = service_fn(|request: Request<Full<Bytes>>| async move {
        let body = request
            .into_body()
            .collect()
            .await
            .expect("it is there")
            .to_bytes();
        match &body[..] {
            b"\"panic\"" => panic!("as told"),
            b"\"hang\"" => std::future::pending().await,
            _ => Ok::<_, Infallible>(reply(200, "done")),
        }
    });
    let long = Duration::from_secs(30);
    let short = Duration::from_millis(200);
    let inside = ServiceBuilder::new()
        .layer(CatchPanicLayer::new())
        .layer(TimeoutLayer::with_status_code(
            http::StatusCode::GATEWAY_TIMEOUT,
            short,
        ))
        .service(behaves);
    let inside = serve(layer(&store).layer(inside)).await;
    let outside = ServiceBuilder::new()
        .layer(CatchPanicLayer::new())
        .layer(TimeoutLayer::with_status_code(
            http::StatusCode::GATEWAY_TIMEOUT,
            long,
        ))
        .layer(RequestBodyLimitLayer::new(100))
        .layer(layer(&store))
        .service(Timeout::new(behaves, short));
    let outside = serve(outside).await;
    let client = Client::http1();
    for (case, url, body, answer) in [
        ("done inside", &inside, "{}", (200, "completed")),
        ("done outside", &outside, "{}", (200, "completed")),
        ("panic inside", &inside, "\"panic\"", (500, "failed")),
        ("panic outside", &outside, "\"panic\"", (500, "")),
        ("timeout inside", &inside, "\"hang\"", (504, "failed")),
    ] {
        let sent = delivery("issues", &guid(), body);
        assert_eq!(client.deliver(url, &sent).await.is(), answer, "{case}");
        let id = sent.headers()[header::DELIVERY].to_str().unwrap();
        let of = hookclaim::ListFilter::newest(1).delivery_id(id);
        let records = hookclaim::DeliveryStore::list(&store, &of).await.unwrap();
        let state = if body == "{}" {
            State::Completed
        } else {
            State::Failed
        };
        assert_eq!(records[0].state, state, "{case}");
    }
    // The limit outside is the one that is met first.
    let sent = delivery("issues", &guid(), vec![b' '; 101]);
    assert_eq!(client.deliver(&outside, &sent).await.status, 413);
}

// B5, A4: a body that ends where its length says is answered although the sender keeps the connection.
#[tokio::test(flavor = "multi_thread")]
async fn one_connection_carries_refusals_and_deliveries_in_turn() {
    let app = App::plain(Stack::Http1).await;
    let mut connection = RawConnection::open(app.url()).await;
    for (case, sent, answer) in [
        (
            "genuine",
            delivery("issues", &guid(), "{}"),
            (200, "completed"),
        ),
        (
            "forged",
            delivery("issues", &guid(), "{}").forged_body("[]"),
            (401, "rejected"),
        ),
        (
            "no event",
            delivery("issues", &guid(), "{}").without(header::EVENT),
            (400, "rejected"),
        ),
        (
            "large",
            delivery("issues", &guid(), "{}")
                .forged_body(vec![b' '; MIB])
                .without(header::SIGNATURE),
            (401, "rejected"),
        ),
        (
            "genuine again",
            delivery("issues", &guid(), "{}"),
            (200, "completed"),
        ),
    ] {
        let head = sent.raw_head("/webhook");
        let head = format!("{head}{CONTENT_LENGTH}: {}\r\n\r\n", sent.body().len());
        connection.write(head).await.unwrap();
        connection.write(sent.body()).await.unwrap();
        assert_eq!(
            connection.answer().await.expect("an answer").is(),
            answer,
            "{case}"
        );
    }
    eventually("both are recorded", || async {
        (app.records().await.len() == 2).then_some(())
    })
    .await;
}

// B8
#[test]
fn the_layer_can_be_kept_in_a_struct_and_sent_between_threads() {
    fn is_service<T: Clone + Send + Sync + 'static>(_: &T) {}
    let layer: GithubWebhookLayer<MemoryStore> = layer(&MemoryStore::new());
    is_service(&layer);
    is_service(&layer.layer(Router::<()>::new()));
}
