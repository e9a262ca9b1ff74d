//! What a delivery is claimed under.

use hookclaim::{BusinessKey, ClaimKey, DeliveryStore, KeyError, Scope, Source, header};
use http::HeaderValue;
use tower::Layer;
use tower_hookclaim::Rejection;

use crate::support::*;

fn form(id: &str, body: &'static str) -> http::Request<http_body_util::Full<bytes::Bytes>> {
    let mut request = signed_with(SECRET, "issues", id, body);
    let form = HeaderValue::from_static("application/x-www-form-urlencoded");
    request.headers_mut().insert("content-type", form);
    request
}

#[tokio::test]
async fn a_form_is_verified_as_it_came_and_read_as_it_was_meant() {
    let runs = Runs::default();
    let service = layer(&memory()).layer(handler(&runs, |_, request| async move {
        let delivery: &hookclaim::Delivery = request.extensions().get().unwrap();
        assert_eq!(delivery.json(), r#"{"a":"x+y z"}"#);
        assert_eq!(delivery.raw(), "payload=%7B%22a%22%3A%22x%2By+z%22%7D");
        reply(200)
    }));
    let good = form(ID, "payload=%7B%22a%22%3A%22x%2By+z%22%7D");
    send(&service, good).await.is(200, "completed");
}

#[tokio::test]
async fn a_form_without_one_payload_is_refused_after_its_signature() {
    let (store, runs) = (memory(), Runs::default());
    let service = ok_service(&store, &runs);
    for body in ["a=1", "payload=1&payload=2", "payload=%7"] {
        let seen = send(&service, form(ID, body)).await;
        seen.is(400, "rejected");
        assert_eq!(seen.extensions.get(), Some(&Rejection::Form));
        let mut forged = form(ID, body);
        let other = signed_with("another secret", "issues", ID, body);
        let signature = other.headers()[header::SIGNATURE].clone();
        forged.headers_mut().insert(header::SIGNATURE, signature);
        send(&service, forged).await.is(401, "rejected");
    }
    assert!(record(&store, ID).await.is_none());
    assert_eq!(runs.count(), 0);
}

#[tokio::test]
async fn two_hooks_share_an_event_unless_they_are_told_apart() {
    let from_hook = |hook: &'static str| {
        let mut request = signed(ID);
        let hook = HeaderValue::from_static(hook);
        request.headers_mut().insert(header::HOOK_ID, hook);
        request
    };
    let runs = Runs::default();
    let shared = layer(&memory()).layer(answering(&runs, 200));
    send(&shared, from_hook("1")).await.is(200, "completed");
    send(&shared, from_hook("2")).await.is(200, "duplicate");

    let apart = layer(&memory())
        .scope(Scope::HookId)
        .layer(answering(&runs, 200));
    send(&apart, from_hook("1")).await.is(200, "completed");
    send(&apart, from_hook("2")).await.is(200, "completed");
    send(&apart, from_hook("2")).await.is(200, "duplicate");
    let nameless = send(&apart, from_hook("many")).await;
    nameless.is(400, "rejected");
    assert!(nameless.text.contains("X-GitHub-Hook-ID"), "{nameless:?}");
}

#[tokio::test]
async fn two_sources_on_one_store_never_meet() {
    let (store, runs) = (memory(), Runs::default());
    for source in ["one", "two"] {
        let source = Source::new(source).unwrap();
        let service = layer(&store).source(source).layer(answering(&runs, 200));
        send(&service, signed(ID)).await.is(200, "completed");
        send(&service, signed(ID)).await.is(200, "duplicate");
    }
}

#[tokio::test]
async fn deliveries_about_the_same_thing_are_one_piece_of_work() {
    let (store, runs) = (memory(), Runs::default());
    let service = layer(&store)
        .key(|delivery| match delivery.json().first() {
            Some(b'{') => Ok(BusinessKey::new().text(delivery.event().as_str())),
            _ => Err(KeyError::Refused("an internal reason".into())),
        })
        .layer(answering(&runs, 200));
    send(&service, signed("one")).await.is(200, "completed");
    let other_body = signed_with(SECRET, "issues", "two", r#"{"other":1}"#);
    send(&service, other_body).await.is(200, "duplicate");
    let key = ClaimKey::business(Source::default(), &BusinessKey::new().text("issues"));
    let row = store.inspect(&key).await.unwrap().unwrap();
    assert_eq!(row.delivery_id.as_str(), "one");

    let refused = send(&service, signed_with(SECRET, "issues", "three", "[]")).await;
    refused.is(400, "rejected");
    assert_eq!(refused.extensions.get(), Some(&Rejection::Key));
    assert!(!refused.text.contains("internal"), "{refused:?}");
    assert_eq!(runs.count(), 1);
}
