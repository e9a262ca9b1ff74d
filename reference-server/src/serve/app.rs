//! What is served where.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::time::Duration;

use axum::Router;
use axum::extract::Request;
use axum::response::IntoResponse;
use axum::routing::{any_service, get};
use hookclaim::SecretSet;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use tower::{Layer as _, Service, service_fn};
use tower_hookclaim::{Drain, GithubWebhookLayer, MetricsObserver, TracingObserver};

use crate::booking::{self, Rules};
use crate::config::{Config, Mode};
use crate::ledger::Ledger;
use crate::telemetry::Metrics;

/// The events that are handled here; others are answered 204.
const EVENTS: [&str; 1] = ["issue_comment"];

/// How long the database may take to answer for `/readyz`.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// What serves, and what works beside it.
#[must_use = "deliveries that are stored wait for the worker"]
pub struct App {
    /// Everything that the server answers.
    pub router: Router,
    /// Runs what is stored, until the drain has begun and what it runs has ended. In inline mode that is what was
    /// answered before it had ended, and whatever was stored while the mode was another.
    pub worker: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl fmt::Debug for App {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("App")
            .field("router", &self.router)
            .finish_non_exhaustive()
    }
}

/// Answers `/webhook`, `/healthz`, `/readyz`, and `/metrics` if given, with the worker beside it.
pub fn app<St: Ledger>(
    config: &Config,
    secrets: SecretSet,
    store: St,
    drain: &Drain,
    metrics: Option<Metrics>,
) -> App {
    let rules = Rules::of(config);
    let handler = service_fn(move |request| booking::receive::<St>(rules.clone(), request));
    let layer = GithubWebhookLayer::new(secrets, store.clone())
        .events(EVENTS)
        .body_limit(config.body_limit)
        .body_timeout(config.body_timeout)
        .ack_after(config.ack_after)
        .lease(config.lease)
        .memory_budget(config.memory_budget)
        .observer((TracingObserver::new(), MetricsObserver::new()))
        .drain(drain);
    let worker = layer
        .worker(handler.clone())
        .concurrency(config.workers as usize)
        .poll_interval(config.poll_interval);
    let webhook = match config.mode {
        Mode::Inline => webhook(layer.layer(handler)),
        Mode::Durable => {
            let layer = layer.durable();
            let layer = match config.backlog_limit {
                Some(waiting) => layer.backlog_limit(waiting.get()),
                None => layer,
            };
            webhook(layer.layer(handler))
        }
    };
    let drain = drain.clone();
    let router = webhook
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || ready(store.clone(), drain.clone())));
    App {
        router: match metrics {
            Some(metrics) => router.merge(metrics_only(metrics)),
            None => router,
        },
        worker: Box::pin(worker.run()),
    }
}

/// Methods other than POST are the layer's to refuse, like everything else about a delivery.
fn webhook<S>(service: S) -> Router
where
    S: Service<Request, Response: IntoResponse, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send + 'static,
{
    Router::new()
        .route("/webhook", any_service(service.clone()))
        .route("/webhook/", any_service(service))
}

/// `/metrics` alone, for an address of its own.
pub(super) fn metrics_only(metrics: Metrics) -> Router {
    let render = move || {
        let text = metrics.render();
        async move {
            (
                [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
                text,
            )
        }
    };
    Router::new().route("/metrics", get(render))
}

async fn ready<St: Ledger>(store: St, drain: Drain) -> (StatusCode, &'static str) {
    if drain.is_draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "shutting down\n");
    }
    match tokio::time::timeout(READY_TIMEOUT, store.ping()).await {
        Ok(Ok(())) => (StatusCode::OK, "ready\n"),
        Ok(Err(_)) | Err(_) => (
            StatusCode::SERVICE_UNAVAILABLE,
            "the database does not answer\n",
        ),
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use tower::ServiceExt as _;

    use super::*;
    use crate::cli::Invocation;
    use crate::database::{Database, Store};

    async fn status(router: &Router, path: &str) -> u16 {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = router.clone().oneshot(request).await.unwrap();
        response.status().as_u16()
    }

    #[tokio::test]
    async fn each_path_answers_in_both_modes_and_readiness_ends_with_the_drain() {
        for mode in ["durable", "inline"] {
            let dir = tempfile::tempdir().unwrap();
            let config = Invocation::parse(["hookclaim", "report", "--mode", mode]).unwrap();
            let config = config.config().unwrap();
            let database = Database::Sqlite(dir.path().join("x.db"));
            let Store::Sqlite(store) = database.open().await.unwrap() else {
                panic!("a file is SQLite")
            };
            store.migrate_all().await.unwrap();
            let secrets = SecretSet::single("It's a Secret to Everybody").unwrap();
            let drain = Drain::new();
            let app = |metrics| app(&config, secrets.clone(), store.clone(), &drain, metrics);
            let App { router, worker } = app(None);
            for (path, expected) in [
                ("/healthz", 200),
                ("/readyz", 200),
                ("/webhook", 405),
                ("/webhook/", 405),
                ("/metrics", 404),
                ("/", 404),
            ] {
                assert_eq!(status(&router, path).await, expected, "{mode} {path}");
            }
            let loopback = app(Some(Metrics::install())).router;
            assert_eq!(status(&loopback, "/metrics").await, 200);

            drain.begin();
            assert_eq!(status(&router, "/healthz").await, 200);
            assert_eq!(status(&router, "/readyz").await, 503);
            worker.await;
        }
    }
}
