//! What an observer is told.

use std::sync::{Arc, Mutex};

use hookclaim::testing::sign;
use tower::Layer;
use tower_hookclaim::{Event, MetricsObserver, Observer, TracingObserver};

use crate::support::*;

/// Writes every event down.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Observer for Diary {
    fn on(&self, event: &Event<'_>) {
        self.0.lock().unwrap().push(format!("{event:?}"));
    }
}

impl Diary {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }

    /// The names of the events, with what makes them differ.
    fn names(&self) -> Vec<String> {
        let first = |text: &String| text.split([' ', '{']).next().unwrap_or_default().to_owned();
        self.take().iter().map(first).collect()
    }
}

#[tokio::test]
async fn the_life_of_a_delivery_is_told_in_order() {
    let (diary, runs) = (Diary::default(), Runs::default());
    let both = (
        diary.clone(),
        (TracingObserver::new(), MetricsObserver::new()),
    );
    let service = layer(&memory()).observer(both).layer(answering(&runs, 200));
    send(&service, signed(ID)).await.is(200, "completed");
    let life = [
        "Verified", "Stored", "Claimed", "Stored", "Settled", "Answered",
    ];
    assert_eq!(diary.names(), life);
    send(&service, signed(ID)).await.is(200, "duplicate");
    assert_eq!(diary.names(), ["Verified", "Stored", "Claimed", "Answered"]);
    send(
        &service,
        http::Request::default().map(|()| http_body_util::Full::default()),
    )
    .await;
    assert_eq!(diary.names(), ["Answered"]);
}

#[tokio::test]
async fn a_panic_and_its_record_are_told() {
    let (diary, runs) = (Diary::default(), Runs::default());
    let service = layer(&memory())
        .observer(diary.clone())
        .layer(handler(&runs, |_, _| async { panic!("oh no") }));
    let task = tokio::spawn(async move { send(&service, signed(ID)).await });
    assert!(task.await.unwrap_err().is_panic());
    let told = diary.take().join("\n");
    assert!(
        told.contains("Panicked") && told.contains("oh no"),
        "{told}"
    );
    assert!(told.contains("class: Panic"), "{told}");
}

#[tokio::test]
async fn no_event_tells_a_secret_a_signature_or_a_payload() {
    let (diary, runs) = (Diary::default(), Runs::default());
    let service = layer(&memory())
        .observer(diary.clone())
        .layer(handler(&runs, |run, _| {
            std::future::ready(reply([200, 500, 422][run % 3]))
        }));
    for number in 0..6 {
        send(&service, signed(&format!("id-{}", number / 2))).await;
    }
    let forged = signed_with("another secret", "issues", ID, BODY);
    send(&service, forged).await.is(401, "rejected");
    let mac = sign(SECRET.as_bytes(), BODY.as_bytes());
    let told = diary.take().join("\n");
    for hidden in [
        SECRET,
        &mac["sha256=".len()..],
        "SXQncyBhIFNlY3Jl",
        "opened",
    ] {
        assert!(!told.contains(hidden), "{told}");
    }
}
