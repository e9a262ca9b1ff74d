//! The service that was ready is the one that is called, whatever is inside or outside.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use tower::buffer::BufferLayer;
use tower::limit::ConcurrencyLimitLayer;
use tower::load_shed::LoadShedLayer;
use tower::timeout::TimeoutLayer;
use tower::{BoxError, Layer, Service, ServiceExt};
use tower_test::mock;

use crate::support::*;

const MANY: usize = 1000;

/// Sends many deliveries at once and counts those that completed.
async fn rush<S, B>(service: S) -> usize
where
    S: Service<Request<Full<Bytes>>, Response = http::Response<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: std::fmt::Debug + Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: std::fmt::Debug,
{
    let tasks: Vec<_> = (0..MANY)
        .map(|number| tokio::spawn(service.clone().oneshot(signed(&format!("id-{number}")))))
        .collect();
    let mut completed = 0;
    for task in tasks {
        if let Ok(response) = task.await.expect("nothing panics") {
            assert_eq!(response.status(), 200);
            completed += 1;
        }
    }
    completed
}

#[tokio::test]
async fn a_thousand_deliveries_at_once_fit_any_inner_service() {
    let (store, runs) = (memory(), Runs::default());
    let busy = handler(&runs, |_, _| async {
        tokio::task::yield_now().await;
        reply(200)
    });
    let fallible = busy
        .clone()
        .map_err(|never: Infallible| -> BoxError { match never {} });
    let one = ConcurrencyLimitLayer::new(1).layer(busy.clone());
    assert_eq!(rush(layer(&store).layer(one)).await, MANY);
    let buffered = BufferLayer::new(8).layer(ConcurrencyLimitLayer::new(1).layer(fallible.clone()));
    let layered = layer(&memory()).layer(buffered);
    assert_eq!(rush(layered).await, MANY);
    let shedding = LoadShedLayer::new().layer(ConcurrencyLimitLayer::new(1).layer(busy));
    let completed = rush(layer(&memory()).layer(shedding)).await;
    assert!((1..=MANY).contains(&completed));
}

#[tokio::test]
async fn timeouts_and_limits_fit_inside_and_outside() {
    let (store, runs) = (memory(), Runs::default());
    let timeout = TimeoutLayer::new(Duration::from_secs(5));
    let limit = ConcurrencyLimitLayer::new(2);
    let inside = layer(&store).layer(timeout.layer(limit.layer(answering(&runs, 200))));
    let outside = timeout.layer(limit.layer(layer(&memory()).layer(answering(&runs, 200))));
    assert_eq!(rush(inside).await, MANY);
    assert_eq!(rush(outside).await, MANY);
}

#[tokio::test(start_paused = true)]
async fn an_outer_timeout_leaves_the_attempt_running() {
    let (store, runs) = (timed_memory(), Runs::default());
    let slow = layer(&store).layer(handler(&runs, |_, _| async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        reply(200)
    }));
    let service = TimeoutLayer::new(Duration::from_secs(1)).layer(slow);
    assert!(service.oneshot(signed(ID)).await.is_err());
    tokio::time::sleep(Duration::from_secs(3)).await;
    send(&ok_service(&store, &runs), signed(ID))
        .await
        .is(200, "duplicate");
}

#[tokio::test]
async fn the_readiness_of_the_inner_service_is_passed_on_and_used_once() {
    let (inner, mut handle) = mock::pair::<Request<Full<Bytes>>, Reply>();
    let mut service = layer(&memory()).layer(inner);
    handle.allow(0);
    let mut ready =
        tokio_test::task::spawn(ServiceExt::<Request<Full<Bytes>>>::ready(&mut service));
    assert!(ready.poll().is_pending());
    handle.allow(1);
    assert!(ready.is_woken() && ready.poll().is_ready());
    drop(ready);

    let mut first = tokio_test::task::spawn(service.call(signed("first")));
    assert!(first.poll().is_pending());
    let (_, respond) = handle.next_request().await.unwrap();
    let mut again =
        tokio_test::task::spawn(ServiceExt::<Request<Full<Bytes>>>::ready(&mut service));
    assert!(
        again.poll().is_pending(),
        "the one permit went along with the first call"
    );
    respond.send_response(reply(200));
    assert_eq!(first.await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_refusal_leaves_the_ready_service_for_the_next_call() {
    let (inner, mut handle) = mock::pair::<Request<Full<Bytes>>, Reply>();
    let mut service = layer(&memory()).layer(inner);
    handle.allow(1);
    ServiceExt::<Request<Full<Bytes>>>::ready(&mut service)
        .await
        .unwrap();
    let refused = service
        .call(Request::new(Full::<Bytes>::default()))
        .await
        .unwrap();
    assert_eq!(refused.status(), 405);
    let call = tokio::spawn(service.call(signed(ID)));
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response(reply(200));
    assert_eq!(call.await.unwrap().unwrap().status(), 200);
}

#[test]
fn layers_services_and_futures_go_where_servers_want_them() {
    fn shared<T: Clone + Send + Sync + 'static>(_: &T) {}
    fn sent<T: Send + 'static>(_: &T) {}

    let (store, runs) = (memory(), Runs::default());
    let layer = layer(&store).key(|_| Ok(hookclaim::BusinessKey::new()));
    shared(&layer);
    // As for axum's `Router::layer`, whose services are shared between threads.
    shared(&layer.layer(runs.clone()));
    let route = tower_hookclaim::WebhookRoute::layer("/hook", ok_service(&store, &runs));
    let mut service = route.layer(answering(&runs, 200));
    sent(&service);
    sent(&service.call(signed(ID)));
}
