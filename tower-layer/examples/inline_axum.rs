//! The layer on one route of an axum app.
//!
//! Try it, without any configuration (it sends itself one delivery twice):
//!
//! ```text
//! cargo run -p tower-hookclaim --example inline_axum -- try
//! ```
//!
//! Serve on 127.0.0.1:3001 until stopped; it prints what to send:
//!
//! ```text
//! HOOKCLAIM_WEBHOOK_SECRET=choose-something-long cargo run -p tower-hookclaim --example inline_axum
//! ```

mod support;

use axum::{
    Router,
    extract::Extension,
    routing::{get, post},
};
use hookclaim::{Delivery, MemoryStore, SecretError, SecretSet};
use tower_hookclaim::GithubWebhookLayer;

use support::Demo;

// README.md shows what is between these two lines.
// [app]
/// Runs once per delivery, and only for what was signed with the secret.
async fn on_delivery(Extension(delivery): Extension<Delivery>) -> String {
    let action = delivery.action().unwrap_or("nothing in particular");
    format!("{}: {action}", delivery.event())
}

fn app(secret: &str) -> Result<Router, SecretError> {
    let layer = GithubWebhookLayer::new(SecretSet::single(secret)?, MemoryStore::new());
    Ok(Router::new()
        .route("/webhook", post(on_delivery))
        .route_layer(layer)
        // Routes that are added after the layer are none of its business.
        .route("/", get(|| async { "a page like any other" })))
}
// [app]

#[tokio::main]
async fn main() -> support::Result {
    let (demo, listener) = Demo::start(3001).await?;
    let app = app(&demo.secret)?;
    demo.run(async { axum::serve(listener, app).await }).await
}
