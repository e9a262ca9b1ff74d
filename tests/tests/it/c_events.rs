//! Headers and events: what names the delivery has to be there, and no event is too new.

use axum::routing::post;
use axum::{Json, Router};
use bytes::Bytes;
use http_body_util::{BodyExt, Full};
use tokio::net::TcpListener;

use hookclaim::{EventName, MemoryStore, State, header};
use hookclaim_tests::fixtures;
use hookclaim_tests::http::{Client, RawConnection, guid};

use crate::support::{App, Handler, Stack, delivery, layer};

// C1
#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_without_a_usable_id_is_a_bad_request() {
    let long = "a".repeat(129);
    for stack in Stack::ALL {
        let app = App::plain(stack).await;
        for (case, value) in [
            ("empty", ""),
            ("blank", "  "),
            ("a space within", "a b"),
            ("not ASCII", "é"),
            ("129 characters", &*long),
        ] {
            let sent = delivery("issues", &guid(), "{}").header(header::DELIVERY, value);
            assert_eq!(
                app.deliver(&sent).await.is(),
                (400, "rejected"),
                "{stack:?}, {case}"
            );
        }
        let none = delivery("issues", &guid(), "{}").without(header::DELIVERY);
        let answer = app.deliver(&none).await;
        assert_eq!(answer.is(), (400, "rejected"), "{stack:?}");
        assert!(
            answer.text.contains("x-github-delivery"),
            "{stack:?}: {}",
            answer.text
        );
        app.assert_untouched(&format!("{stack:?}")).await;
    }
}

// C2
#[tokio::test(flavor = "multi_thread")]
async fn a_ping_is_answered_and_not_claimed() {
    for stack in Stack::ALL {
        let app = App::plain(stack).await;
        let ping = delivery("ping", &guid(), fixtures::ping());
        for _ in 0..2 {
            assert_eq!(app.deliver(&ping).await.is(), (200, "pong"), "{stack:?}");
        }
        app.assert_untouched(&format!("{stack:?}")).await;
        let forged = ping.forged_body("{}");
        assert_eq!(
            app.deliver(&forged).await.is(),
            (401, "rejected"),
            "{stack:?}"
        );
    }
}

// C2
#[tokio::test(flavor = "multi_thread")]
async fn events_and_actions_that_nobody_knows_reach_the_handler_raw() {
    for stack in Stack::ALL {
        let app = App::plain(stack).await;
        for (at, (case, event, body, action)) in [
            (
                "unknown event",
                "quantum_entanglement",
                r#"{"action":"collapsed"}"#,
                Some("collapsed"),
            ),
            (
                "new action",
                "issues",
                r#"{"action":"sublimated"}"#,
                Some("sublimated"),
            ),
            (
                "new fields",
                "issues",
                r#"{"brand_new":{"deep":[1]},"action":"opened"}"#,
                Some("opened"),
            ),
            ("missing fields", "issue_comment", "{}", None),
            ("null action", "issues", r#"{"action":null}"#, None),
            ("an array", "push", "[]", None),
        ]
        .into_iter()
        .enumerate()
        {
            let answer = app.deliver(&delivery(event, &guid(), body)).await;
            assert_eq!(answer.is(), (200, "completed"), "{stack:?}, {case}");
            let run = &app.runs()[at];
            assert_eq!(run.body, body, "{stack:?}, {case}");
            assert_eq!(run.delivery.event(), &event, "{stack:?}, {case}");
            assert_eq!(run.delivery.action(), action, "{stack:?}, {case}");
        }
    }
}

// C2
#[tokio::test(flavor = "multi_thread")]
async fn an_allow_list_lets_its_events_through_and_ignores_others() {
    let store = MemoryStore::new();
    let layer = layer(&store).events(["issue_comment", "push"]);
    let app = App::start(Stack::Http1, layer, store, Handler::done()).await;
    for (event, answer) in [
        ("issue_comment", (200, "completed")),
        ("push", (200, "completed")),
        ("issues", (204, "ignored")),
        ("Push", (204, "ignored")),
        ("ping", (200, "pong")),
    ] {
        assert_eq!(
            app.deliver(&delivery(event, &guid(), "{}")).await.is(),
            answer,
            "{event}"
        );
    }
    assert_eq!(app.records().await.len(), 2);
    let forged = delivery("issues", &guid(), "{}").forged_body("[]");
    assert_eq!(app.deliver(&forged).await.is(), (401, "rejected"));
}

// C2
#[tokio::test(flavor = "multi_thread")]
async fn a_payload_that_a_typed_handler_does_not_understand_is_dead_and_not_tried_for_ever() {
    let store = MemoryStore::new();
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}/webhook", listener.local_addr().unwrap());
    let typed = |Json(fields): Json<std::collections::BTreeMap<String, u32>>| async move {
        fields.len().to_string()
    };
    let app = Router::new()
        .route("/webhook", post(typed))
        .layer(layer(&store));
    tokio::spawn(async { axum::serve(listener, app).await });
    let client = Client::http1();
    for (case, body, status) in [
        ("another type", r#"{"a":"text"}"#, 422),
        ("no JSON", "{", 400),
    ] {
        let sent = delivery("issues", &guid(), body);
        assert_eq!(
            client.deliver(&url, &sent).await.is(),
            (status, "failed"),
            "{case}"
        );
        assert_eq!(
            client.deliver(&url, &sent).await.is(),
            (202, "dead"),
            "{case}"
        );
    }
    let sent = delivery("issues", &guid(), r#"{"a":1}"#);
    assert_eq!(client.deliver(&url, &sent).await.is(), (200, "completed"));
    let dead = hookclaim::ListFilter::newest(10).state(State::Dead);
    assert_eq!(
        hookclaim::DeliveryStore::list(&store, &dead)
            .await
            .unwrap()
            .len(),
        2
    );
}

// C3, A11
#[tokio::test(flavor = "multi_thread")]
async fn what_is_wrong_with_the_head_is_answered_before_the_body_is_there() {
    for stack in [Stack::AxumLayer, Stack::AxumRouteLayer, Stack::Http1] {
        let app = App::plain(stack).await;
        let sent = || delivery("issues", &guid(), "{}");
        for (case, sent, status) in [
            ("no event", sent().without(header::EVENT), 400),
            ("blank event", sent().header(header::EVENT, " "), 400),
            (
                "long event",
                sent().header(header::EVENT, "e".repeat(65)),
                400,
            ),
            ("no signature", sent().without(header::SIGNATURE), 401),
            (
                "content type",
                sent().header(http::header::CONTENT_TYPE, "text/plain"),
                415,
            ),
        ] {
            let mut connection = RawConnection::open(app.url()).await;
            let head = sent.raw_head("/webhook");
            connection
                .write(format!("{head}content-length: 1000\r\n\r\n"))
                .await
                .unwrap();
            // Not a byte of the body is sent.
            let answer = connection.answer().await.expect("an answer");
            assert_eq!(answer.is(), (status, "rejected"), "{stack:?}, {case}");
        }
        app.assert_untouched(&format!("{stack:?}")).await;
    }
}

// C3, in the order of the layer's checks
#[tokio::test(flavor = "multi_thread")]
async fn of_several_faults_the_first_in_order_is_named() {
    let app = App::plain(Stack::Http1).await;
    // Each row mends one fault of the row before it.
    let worst = || {
        delivery("issues", &guid(), "{}")
            .and_header(header::DELIVERY, "twice")
            .header(http::header::CONTENT_TYPE, "text/plain")
            .without(header::SIGNATURE)
    };
    let once = || worst().header(header::DELIVERY, guid());
    let zeros = format!("sha256={}", "0".repeat(64));
    let signed = || once().header(header::SIGNATURE, &zeros);
    let json = || signed().header(http::header::CONTENT_TYPE, "application/json");
    for (case, sent, status) in [
        ("method", worst().method(http::Method::PUT), 405),
        ("repeated", worst(), 400),
        ("missing id", once().without(header::DELIVERY), 400),
        ("signature", once(), 401),
        ("content type", signed(), 415),
        ("mismatch", json(), 401),
    ] {
        assert_eq!(
            app.deliver(&sent).await.is(),
            (status, "rejected"),
            "{case}"
        );
    }
    app.assert_untouched("faults").await;
}

// C3; the server's own test looks at `/metrics`.
#[test]
fn events_that_nobody_knows_share_one_label() {
    for (name, label) in [
        ("issue_comment", "issue_comment"),
        ("quantum_entanglement", "other"),
        ("Issue_Comment", "other"),
        ("pin", "other"),
    ] {
        assert_eq!(EventName::new(name).unwrap().label(), label, "{name}");
    }
}

// C2: the raw body is the inner service's body too.
#[tokio::test]
async fn the_inner_service_reads_the_raw_bytes_again() {
    use tower::{Layer, ServiceExt};
    let inner = tower::service_fn(|request: http::Request<Full<Bytes>>| async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        Ok::<_, std::convert::Infallible>(http::Response::new(Full::new(body)))
    });
    let service = layer(&MemoryStore::new()).layer(inner);
    let sent = delivery("quantum_entanglement", &guid(), "\u{feff}[ ]");
    let response = service.oneshot(sent.to("/webhook")).await.unwrap();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    assert_eq!(body, "\u{feff}[ ]");
}
