//! One path for webhooks beside another service.

use std::convert::Infallible;
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body_util::Full;
use tower::{Layer, Service, ServiceExt, service_fn};
use tower_hookclaim::WebhookRoute;
use tower_test::mock;

use crate::support::*;

fn other() -> impl Service<Request<Full<Bytes>>, Response = Reply, Error = Infallible> + Clone + Send
{
    service_fn(|request: Request<Full<Bytes>>| async move {
        assert_eq!(
            request.headers()["te"],
            "trailers",
            "the request is untouched"
        );
        Ok(Response::new(Full::from("other")))
    })
}

#[tokio::test]
async fn only_its_own_path_goes_to_the_webhook() {
    let (store, runs) = (memory(), Runs::default());
    let route = WebhookRoute::layer("/hook/", ok_service(&store, &runs)).layer(other());
    for (method, path, text) in [
        (Method::POST, "/hook", "handled"),
        (Method::POST, "/hook/", "handled"),
        (Method::POST, "/hook?x=/other", "handled"),
        (Method::GET, "/hook", "a delivery comes by POST"),
        (Method::POST, "/", "other"),
        (Method::POST, "/hook/more", "other"),
        (Method::POST, "/hook//", "other"),
        (Method::POST, "/hooks", "other"),
        (Method::POST, "/Hook", "other"),
        (Method::POST, "/grpc.health.v1.Health/Watch", "other"),
        (Method::GET, "/x?/hook", "other"),
    ] {
        let mut request = signed(&format!("id-{}", runs.count()));
        *request.method_mut() = method;
        *request.uri_mut() = path.parse().unwrap();
        request
            .headers_mut()
            .insert("te", "trailers".parse().unwrap());
        assert_eq!(send(&route, request).await.text, text, "{path}");
    }
    assert_eq!(runs.count(), 3);
}

#[test]
#[should_panic(expected = "must begin with `/`")]
fn a_path_that_could_never_match_is_refused() {
    let _ = WebhookRoute::new("hook", (), ());
}

#[tokio::test]
async fn the_root_may_be_the_path() {
    let (store, runs) = (memory(), Runs::default());
    let route = WebhookRoute::new("/", ok_service(&store, &runs), other());
    let mut request = signed(ID);
    *request.uri_mut() = "/".parse().unwrap();
    send(&route, request).await.is(200, "completed");
}

#[tokio::test]
async fn a_busy_webhook_does_not_hold_up_the_other_service() {
    let (inner, mut handle) = mock::pair::<Request<Full<Bytes>>, Reply>();
    handle.allow(0);
    let webhook = layer(&memory()).layer(inner);
    let other = service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, tower::BoxError>(Response::new(Full::<Bytes>::from("other")))
    });
    let mut route = WebhookRoute::new("/hook", webhook, other);
    let mut request = signed(ID);
    *request.uri_mut() = "/hook".parse().unwrap();
    let mut delivery = tokio_test::task::spawn(route.ready().await.unwrap().call(request));
    assert!(delivery.poll().is_pending());

    let page = route
        .ready()
        .await
        .unwrap()
        .call(Request::default())
        .await
        .unwrap();
    assert_eq!(page.status(), 200);
    handle.allow(1);
    assert!(delivery.is_woken() && delivery.poll().is_pending());
    let (_, respond) = handle.next_request().await.unwrap();
    respond.send_response(reply(204));
    assert_eq!(delivery.await.unwrap().status(), 204);
}

#[tokio::test]
async fn the_other_service_decides_on_readiness() {
    let (store, runs) = (memory(), Runs::default());
    let (other, mut handle) = mock::pair::<Request<Full<Bytes>>, Reply>();
    handle.allow(0);
    let webhook = ServiceExt::<Request<Full<Bytes>>>::map_err(
        ok_service(&store, &runs),
        |never| -> tower::BoxError { match never {} },
    );
    let mut route = WebhookRoute::new("/hook", webhook, other);
    let mut cx = Context::from_waker(std::task::Waker::noop());
    let ready: Poll<Result<(), tower::BoxError>> =
        Service::<Request<Full<Bytes>>>::poll_ready(&mut route, &mut cx);
    assert!(ready.is_pending());
}
