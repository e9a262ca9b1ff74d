//! The order of checks, and what each answer looks like.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use hookclaim::testing::sign;
use hookclaim::{Secret, SecretSet, Secrets, State, header};
use http::{HeaderValue, Method, Request};
use http_body_util::Full;
use tower::Layer;
use tower_hookclaim::{GithubWebhookLayer, Rejection};

use crate::store::Rigged;
use crate::support::*;

type Fault = fn(&mut Request<Full<Bytes>>);

fn set(request: &mut Request<Full<Bytes>>, name: &'static str, value: &'static str) {
    request
        .headers_mut()
        .insert(name, HeaderValue::from_static(value));
}

fn unset(request: &mut Request<Full<Bytes>>, name: &'static str) {
    request.headers_mut().remove(name);
}

/// One fault of each kind that can be had together with the others, in the order in which they are looked for.
const IN_ORDER: [(&str, Fault, u16, Rejection); 8] = [
    (
        "method",
        |r| *r.method_mut() = Method::GET,
        405,
        Rejection::Method,
    ),
    (
        "a header twice",
        |r| {
            let hook = r.headers()[header::HOOK_ID].clone();
            r.headers_mut().append(header::HOOK_ID, hook);
        },
        400,
        Rejection::RepeatedHeader,
    ),
    (
        "no id",
        |r| unset(r, "x-github-delivery"),
        400,
        Rejection::MissingHeader,
    ),
    (
        "odd event",
        |r| set(r, "x-github-event", "two words"),
        400,
        Rejection::MalformedHeader,
    ),
    (
        "no signature",
        |r| unset(r, "x-hub-signature-256"),
        401,
        Rejection::SignatureMissing,
    ),
    (
        "content type",
        |r| set(r, "content-type", "text/plain"),
        415,
        Rejection::ContentType,
    ),
    (
        "announced length",
        |r| set(r, "content-length", "1152921504606846976"),
        413,
        Rejection::TooLarge,
    ),
    (
        "another body",
        |r| *r.body_mut() = Full::from("another body"),
        401,
        Rejection::SignatureMismatch,
    ),
];

#[track_caller]
fn is_refused(name: &str, seen: &Seen, status: u16, rejection: Rejection) {
    assert_eq!(seen.status.as_u16(), status, "{name}: {seen:?}");
    assert_eq!(seen.extensions.get(), Some(&rejection), "{name}: {seen:?}");
    seen.is(status, "rejected");
    assert!(!seen.text.is_empty(), "{name}");
    assert_eq!(seen.headers["content-type"], "text/plain; charset=utf-8");
    tells_no_secret(name, seen);
}

fn tells_no_secret(name: &str, seen: &Seen) {
    let mac = sign(SECRET.as_bytes(), BODY.as_bytes());
    let mac = mac.trim_start_matches("sha256=");
    let all = format!("{seen:?}").to_lowercase();
    for hidden in [SECRET, "SXQncyBhIFNlY3JldCB0byBFdmVyeWJvZHk", mac] {
        assert!(!all.contains(&hidden.to_lowercase()), "{name}: {all}");
    }
}

#[tokio::test]
async fn the_first_thing_wrong_is_answered_and_the_store_hears_of_nothing() {
    let (store, runs) = (Rigged::new(memory()), Runs::default());
    let service = ok_service(&store, &runs);
    for (at, (name, fault, status, rejection)) in IN_ORDER.iter().enumerate() {
        for (_, later, ..) in &IN_ORDER[at..] {
            let mut request = signed(ID);
            later(&mut request);
            fault(&mut request);
            is_refused(name, &send(&service, request).await, *status, *rejection);
        }
    }
    assert_eq!(store.rig.calls.load(Ordering::SeqCst), 0);
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn every_malformed_head_has_its_own_reason() {
    let rows: [(&str, Fault, u16, Rejection); 14] = [
        (
            "blank id",
            |r| set(r, "x-github-delivery", " "),
            400,
            Rejection::MissingHeader,
        ),
        (
            "odd id",
            |r| set(r, "x-github-delivery", "a b"),
            400,
            Rejection::MalformedHeader,
        ),
        (
            "no event",
            |r| unset(r, "x-github-event"),
            400,
            Rejection::MissingHeader,
        ),
        (
            "blank event",
            |r| set(r, "x-github-event", ""),
            400,
            Rejection::MissingHeader,
        ),
        (
            "blank signature",
            |r| set(r, "x-hub-signature-256", " "),
            401,
            Rejection::SignatureMissing,
        ),
        (
            "sha1 only",
            |r| {
                unset(r, "x-hub-signature-256");
                set(
                    r,
                    "x-hub-signature",
                    "sha1=7d38cdd689735b008b3c702edd92eea23791c5f6",
                );
            },
            401,
            Rejection::SignatureSha1,
        ),
        (
            "prefix alone",
            |r| set(r, "x-hub-signature-256", "sha256="),
            401,
            Rejection::SignatureMalformed,
        ),
        (
            "no hex",
            |r| set(r, "x-hub-signature-256", "sha256=zz"),
            401,
            Rejection::SignatureMalformed,
        ),
        (
            "no content type",
            |r| unset(r, "content-type"),
            415,
            Rejection::ContentType,
        ),
        (
            "PUT",
            |r| *r.method_mut() = Method::PUT,
            405,
            Rejection::Method,
        ),
        (
            "more than any integer",
            |r| set(r, "content-length", "99999999999999999999999"),
            413,
            Rejection::TooLarge,
        ),
        (
            "signature twice",
            |r| {
                let good = r.headers()[header::SIGNATURE].clone();
                r.headers_mut().append(header::SIGNATURE, good);
            },
            400,
            Rejection::RepeatedHeader,
        ),
        (
            "a bad signature before the good one",
            |r| {
                let good = r.headers()[header::SIGNATURE].clone();
                set(r, "x-hub-signature-256", "sha256=0");
                r.headers_mut().append(header::SIGNATURE, good);
            },
            400,
            Rejection::RepeatedHeader,
        ),
        (
            "event twice",
            |r| {
                r.headers_mut()
                    .append(header::EVENT, HeaderValue::from_static("push"));
            },
            400,
            Rejection::RepeatedHeader,
        ),
    ];
    let (store, runs) = (Rigged::new(memory()), Runs::default());
    let service = ok_service(&store, &runs);
    for (name, fault, status, rejection) in rows {
        let mut request = signed(ID);
        fault(&mut request);
        let seen = send(&service, request).await;
        is_refused(name, &seen, status, rejection);
        let allow = seen
            .headers
            .get("allow")
            .map(|value| value.to_str().unwrap());
        assert_eq!(allow, (status == 405).then_some("POST"), "{name}");
    }
    assert_eq!(store.rig.calls.load(Ordering::SeqCst), 0);
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn a_delivery_runs_once_and_is_a_duplicate_afterwards() {
    let (store, runs) = (memory(), Runs::default());
    let service = ok_service(&store, &runs);
    let first = send(&service, signed(ID)).await;
    first.is(200, "completed");
    assert_eq!(first.text, "handled");
    send(&service, signed(ID)).await.is(200, "duplicate");
    assert_eq!(runs.count(), 1);
    assert_eq!(record(&store, ID).await.unwrap().state, State::Completed);
}

#[tokio::test]
async fn a_forged_delivery_leaves_the_genuine_one_free_to_run() {
    let (store, runs) = (memory(), Runs::default());
    let service = ok_service(&store, &runs);
    let forged = signed_with("another secret", "issues", ID, BODY);
    send(&service, forged).await.is(401, "rejected");
    assert!(record(&store, ID).await.is_none());
    send(&service, signed(ID)).await.is(200, "completed");
}

#[tokio::test]
async fn the_handler_gets_the_bytes_of_the_wire_and_what_it_may_want_to_know() {
    use hookclaim::{Attempt, Delivery, Lease, MemoryStore};
    use http_body_util::BodyExt;

    let runs = Runs::default();
    let service = layer(&memory()).layer(handler(&runs, |_, request| async {
        let (parts, body) = request.into_parts();
        let extensions = &parts.extensions;
        let delivery: &Delivery = extensions.get().unwrap();
        let attempt: &Attempt = extensions.get().unwrap();
        let lease: &Lease<MemoryStore> = extensions.get().unwrap();
        assert_eq!((delivery.id().as_str(), attempt.number()), (ID, 1));
        assert_eq!(lease.held().fence, attempt.fence());
        assert_eq!(delivery.action(), Some("opened"));
        assert_eq!(extensions.get(), Some(&"from outside"));
        assert_eq!((parts.method, parts.uri.path()), (Method::POST, "/hooks/7"));
        assert_eq!(parts.headers["x-custom"], "kept");
        assert_eq!(body.collect().await.unwrap().to_bytes(), BODY);
        reply(204)
    }));
    let mut request = signed(ID);
    *request.uri_mut() = "/hooks/7?x=1".parse().unwrap();
    request.extensions_mut().insert("from outside");
    set(&mut request, "x-custom", "kept");
    send(&service, request).await.is(204, "completed");
}

#[tokio::test]
async fn any_signed_bytes_are_taken_as_they_are() {
    let (store, runs) = (memory(), Runs::default());
    let service = ok_service(&store, &runs);
    let bodies: [&[u8]; 5] = [
        b"",
        b"\xef\xbb\xbf{}",
        b"\xff\xfe not text",
        "{ \"a\" :1.50,\"\\/\":\"\u{2028}e\u{301}\u{1f980}\" }".as_bytes(),
        b"[[[[",
    ];
    for (number, body) in bodies.into_iter().enumerate() {
        let request = signed_with(SECRET, "new_event", &format!("id-{number}"), body);
        send(&service, request).await.is(200, "completed");
    }
    assert_eq!(runs.count(), bodies.len());
}

#[tokio::test]
async fn a_ping_is_answered_and_not_remembered() {
    let (store, runs) = (Rigged::new(memory()), Runs::default());
    let service = ok_service(&store, &runs);
    let ping = signed_with(
        SECRET,
        "ping",
        ID,
        r#"{"zen":"Keep it logically awesome."}"#,
    );
    send(&service, ping).await.is(200, "pong");
    let forged = signed_with("another secret", "ping", ID, "{}");
    send(&service, forged).await.is(401, "rejected");
    assert_eq!(store.rig.calls.load(Ordering::SeqCst), 0);
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn events_that_are_not_listed_are_ignored_and_not_remembered() {
    let (store, runs) = (Rigged::new(memory()), Runs::default());
    let service = layer(&store)
        .events(["push", "issues"])
        .layer(answering(&runs, 200));
    let ignored = send(&service, signed_with(SECRET, "star", ID, BODY)).await;
    ignored.is(204, "ignored");
    assert_eq!(ignored.text, "");
    assert_eq!(store.rig.calls.load(Ordering::SeqCst), 0);
    send(&service, signed(ID)).await.is(200, "completed");
    send(&service, signed_with(SECRET, "ping", "p", "{}"))
        .await
        .is(200, "pong");
}

#[tokio::test]
async fn another_body_under_the_same_id_changes_nothing() {
    let (store, runs) = (memory(), Runs::default());
    let service = ok_service(&store, &runs);
    send(&service, signed(ID)).await.is(200, "completed");
    let before = record(&store, ID).await;
    let other = signed_with(SECRET, "push", ID, "another body");
    send(&service, other).await.is(200, "duplicate");
    assert_eq!(record(&store, ID).await, before);
}

#[tokio::test]
async fn secrets_can_be_replaced_while_requests_run() {
    let secret = |name: &'static str| Secret::new(name, name).unwrap();
    let forth = SecretSet::new(secret("new")).and(secret("old"));
    let back = SecretSet::new(secret("old")).and(secret("new"));
    let secrets = Secrets::new(forth.clone());
    let (store, runs) = (memory(), Runs::default());
    let layer = GithubWebhookLayer::new(secrets.clone(), store);
    let service = Arc::new(layer.layer(answering(&runs, 200)));
    let tasks: Vec<_> = (0..1000)
        .map(|number| {
            let service = Arc::clone(&service);
            tokio::spawn(async move {
                let secret = ["new", "old"][number % 2];
                let request = signed_with(secret, "issues", &format!("id-{number}"), BODY);
                let (parts, _) = request.into_parts();
                let request = Request::from_parts(parts, Chunks::of(BODY, 7));
                send(&*service, request).await
            })
        })
        .collect();
    for (number, task) in tasks.into_iter().enumerate() {
        secrets.replace([&back, &forth][number % 2].clone());
        task.await.unwrap().is(200, "completed");
    }
    let third = signed_with("third", "issues", "third", BODY);
    send(&*service, third).await.is(401, "rejected");
}

#[test]
fn debug_shows_settings_and_no_secret() {
    let (store, runs) = (memory(), Runs::default());
    let layer = layer(&store).key(|_| Ok(hookclaim::BusinessKey::new()));
    let service = layer.layer(Runs::clone(&runs));
    let text = format!("{layer:?} {service:?}");
    assert!(text.contains("body_limit: 26214400"), "{text}");
    assert!(
        !text.contains(SECRET) && !text.contains("Everybody"),
        "{text}"
    );
}
