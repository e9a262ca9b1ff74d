//! What is served where.

use std::time::Duration;

use axum::Router;
use axum::routing::{any_service, get};
use hookclaim::SecretSet;
use http::StatusCode;
use http::header::CONTENT_TYPE;
use tower::{Layer as _, service_fn};
use tower_hookclaim::{Drain, GithubWebhookLayer, MetricsObserver, TracingObserver};

use crate::booking::{self, Rules};
use crate::config::Config;
use crate::ledger::Ledger;
use crate::telemetry::Metrics;

/// The events that are handled here; others are answered 204.
const EVENTS: [&str; 1] = ["issue_comment"];

/// How long the database may take to answer for `/readyz`.
const READY_TIMEOUT: Duration = Duration::from_secs(2);

/// Everything that the server answers: `/webhook`, `/healthz`, `/readyz`, and `/metrics` if given.
pub fn app<St: Ledger>(
    config: &Config,
    secrets: SecretSet,
    store: St,
    drain: &Drain,
    metrics: Option<Metrics>,
) -> Router {
    let rules = Rules::of(config);
    let webhook = GithubWebhookLayer::new(secrets, store.clone())
        .events(EVENTS)
        .body_limit(config.body_limit)
        .body_timeout(config.body_timeout)
        .ack_after(config.ack_after)
        .lease(config.lease)
        .memory_budget(config.memory_budget)
        .observer((TracingObserver::new(), MetricsObserver::new()))
        .drain(drain)
        .layer(service_fn(move |request| {
            booking::receive::<St>(rules.clone(), request)
        }));
    let drain = drain.clone();
    let router = Router::new()
        // Methods other than POST are the layer's to refuse, like everything else about a delivery.
        .route("/webhook", any_service(webhook.clone()))
        .route("/webhook/", any_service(webhook))
        .route("/healthz", get(|| async { "ok\n" }))
        .route("/readyz", get(move || ready(store.clone(), drain.clone())));
    match metrics {
        Some(metrics) => router.merge(metrics_only(metrics)),
        None => router,
    }
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
    use http::Request;
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
    async fn each_path_answers_and_readiness_ends_with_the_drain() {
        let dir = tempfile::tempdir().unwrap();
        let config = Invocation::parse(["hookclaim", "report"]).unwrap();
        let config = config.config().unwrap();
        let database = Database::Sqlite(dir.path().join("x.db"));
        let Store::Sqlite(store) = database.open().await.unwrap() else {
            panic!("a file is SQLite")
        };
        store.migrate_all().await.unwrap();
        let secrets = SecretSet::single("It's a Secret to Everybody").unwrap();
        let drain = Drain::new();
        let router = app(&config, secrets.clone(), store.clone(), &drain, None);
        for (path, expected) in [
            ("/healthz", 200),
            ("/readyz", 200),
            ("/webhook", 405),
            ("/webhook/", 405),
            ("/metrics", 404),
            ("/", 404),
        ] {
            assert_eq!(status(&router, path).await, expected, "{path}");
        }
        let loopback = app(&config, secrets, store, &drain, Some(Metrics::install()));
        assert_eq!(status(&loopback, "/metrics").await, 200);

        drain.begin();
        assert_eq!(status(&router, "/healthz").await, 200);
        assert_eq!(status(&router, "/readyz").await, 503);
    }
}
