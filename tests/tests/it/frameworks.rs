//! The same layer in axum, hyper and tonic, and everything beside it untouched.

use std::time::Duration;

use hookclaim::MemoryStore;
use hookclaim_tests::DEADLINE;
use hookclaim_tests::http::{Client, guid};
use tokio::sync::mpsc;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::support::{App, Handler, Stack, delivery, reply};

#[tokio::test(flavor = "multi_thread")]
async fn a_delivery_runs_once_and_its_redelivery_is_a_duplicate() {
    for stack in Stack::ALL {
        let app = App::plain(stack).await;
        let sent = delivery("issues", &guid(), "{\"action\":\"opened\"}");
        let answer = app.deliver(&sent).await;
        assert_eq!(
            (answer.is(), &*answer.text),
            ((200, "completed"), "done"),
            "{stack:?}"
        );
        let answer = app.deliver(&sent).await;
        assert_eq!(answer.is(), (200, "duplicate"), "{stack:?}");
        assert_eq!(app.runs().len(), 1, "{stack:?}");
        assert_eq!(app.runs()[0].attempt, 1, "{stack:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_handler_answers_is_passed_on() {
    for stack in Stack::ALL {
        let handler = Handler::new(|_, _| async {
            let mut reply = reply(201, "made");
            reply
                .headers_mut()
                .insert("x-made-by", "the handler".parse().unwrap());
            reply
        });
        let app = App::with(stack, MemoryStore::new(), handler).await;
        let answer = app.deliver(&delivery("issues", &guid(), "{}")).await;
        assert_eq!(
            (answer.is(), &*answer.text),
            ((201, "completed"), "made"),
            "{stack:?}"
        );
        assert_eq!(answer.headers["x-made-by"], "the handler", "{stack:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn other_routes_of_an_axum_app_are_untouched() {
    for stack in [Stack::AxumLayer, Stack::AxumRouteLayer] {
        let app = App::plain(stack).await;
        let page = app.client.get(&format!("{}/", app.url())).await;
        assert_eq!((page.is(), &*page.text), ((200, ""), "page"), "{stack:?}");
    }
    // `Router::layer` goes around the router's fallback as well; `Router::route_layer` does not.
    let app = App::plain(Stack::AxumRouteLayer).await;
    let nowhere = app.client.get(&format!("{}/nowhere", app.url())).await;
    assert_eq!(nowhere.is(), (404, ""));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_deliveries_share_one_http_2_connection() {
    for stack in [Stack::Http2, Stack::Tonic] {
        let app = App::plain(stack).await;
        let mut senders = tokio::task::JoinSet::new();
        for _ in 0..200 {
            let (client, url) = (app.client.clone(), app.webhook());
            senders.spawn(async move {
                client
                    .deliver(&url, &delivery("issues", &guid(), "{}"))
                    .await
                    .status
            });
        }
        for status in senders.join_all().await {
            assert_eq!(status, 200, "{stack:?}");
        }
        assert_eq!(app.runs().len(), 200, "{stack:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_calls_and_streams_pass_beside_the_webhook() {
    let app = App::plain(Stack::Tonic).await;
    let channel = tonic::transport::Endpoint::new(app.url().to_owned())
        .unwrap()
        .connect()
        .await
        .unwrap();
    let mut health = HealthClient::new(channel);
    let request = || HealthCheckRequest {
        service: "pairing".to_owned(),
    };

    // A stream that stays open while deliveries come and go.
    let mut watch = health.watch(request()).await.unwrap().into_inner();
    let first = watch.message().await.unwrap().unwrap();
    assert_eq!(first.status(), ServingStatus::Serving);

    let sent = delivery("issues", &guid(), "{}");
    assert_eq!(app.deliver(&sent).await.is(), (200, "completed"));
    assert_eq!(app.deliver(&sent).await.is(), (200, "duplicate"));
    let forged = delivery("issues", &guid(), "{}").forged_body("[]");
    assert_eq!(app.deliver(&forged).await.is(), (401, "rejected"));

    let check = health.check(request()).await.unwrap();
    assert!(check.metadata().get("x-webhook-outcome").is_none());
    assert_eq!(check.into_inner().status(), ServingStatus::Serving);
    let unknown = HealthCheckRequest {
        service: "nobody".to_owned(),
    };
    let status = health.check(unknown).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::NotFound);
    // It is still open: nothing comes, and it does not end.
    let more = tokio::time::timeout(Duration::from_millis(100), watch.message()).await;
    assert!(more.is_err(), "{more:?}");
    assert_eq!(app.records().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_webhook_does_not_hold_up_grpc() {
    let (entered, mut was_entered) = mpsc::unbounded_channel();
    let handler = Handler::new(move |_, _| {
        let entered = entered.clone();
        async move {
            let _ = entered.send(());
            std::future::pending().await
        }
    });
    let app = App::with(Stack::Tonic, MemoryStore::new(), handler).await;
    for _ in 0..20 {
        let (client, url) = (app.client.clone(), app.webhook());
        tokio::spawn(async move {
            let _ = client
                .try_send(delivery("issues", &guid(), "{}").to(&url))
                .await;
        });
    }
    for _ in 0..20 {
        was_entered.recv().await.unwrap();
    }
    let endpoint = tonic::transport::Endpoint::new(app.url().to_owned()).unwrap();
    let mut health = HealthClient::new(endpoint.connect().await.unwrap());
    let request = HealthCheckRequest {
        service: String::new(),
    };
    let check = tokio::time::timeout(DEADLINE, health.check(request))
        .await
        .unwrap();
    assert_eq!(check.unwrap().into_inner().status(), ServingStatus::Serving);
}

#[tokio::test(flavor = "multi_thread")]
async fn axum_and_hyper_servers_speak_http_2_to_the_layer() {
    for stack in [Stack::AxumLayer, Stack::AxumRouteLayer, Stack::Http1] {
        let app = App::plain(stack).await;
        let sent = delivery("issues", &guid(), vec![b' '; 1024 * 1024]);
        let answer = Client::http2().deliver(&app.webhook(), &sent).await;
        assert_eq!(answer.is(), (200, "completed"), "{stack:?}");
    }
}
