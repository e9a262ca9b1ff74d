//! Deliveries that are stored first and run afterwards, on SQLite: what is answered 202 runs until it is done, whatever
//! dies in between.
//!
//! Try it, without any configuration. It sends itself one delivery, whose handler fails the first time; the worker runs
//! it again:
//!
//! ```text
//! cargo run -p tower-hookclaim --example durable_sqlite -- try
//! ```
//!
//! Serve on 127.0.0.1:3006 until stopped; it prints what to send:
//!
//! ```text
//! HOOKCLAIM_WEBHOOK_SECRET=choose-something-long cargo run -p tower-hookclaim --example durable_sqlite
//! ```
//!
//! The file is `hookclaim.db` in a directory of its own, which is removed in the end, or the one that `DATABASE_FILE`
//! names: then what was stored when the program was stopped runs at its next start.

mod support;

use std::convert::Infallible;

use axum::Router;
use axum::routing::any_service;
use bytes::Bytes;
use hookclaim::{
    Attempt, Delivery, Lease, SecretError, SecretSet, SqliteStore, StoreError,
    TransactionalStore as _,
};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use tokio::task::JoinHandle;
use tower::{Layer as _, service_fn};
use tower_hookclaim::{Drain, GithubWebhookLayer};

use support::Demo;

/// Called by the worker, with what was received.
async fn on_delivery(request: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    let mut response = Response::new(Full::default());
    if let Err(error) = write(request.extensions()).await {
        eprintln!("the attempt failed: {error}");
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    }
    Ok(response)
}

async fn write(
    extensions: &http::Extensions,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let missing = "the layer puts it there";
    let delivery: &Delivery = extensions.get().ok_or(missing)?;
    let attempt: &Attempt = extensions.get().ok_or(missing)?;
    let lease: &Lease<SqliteStore> = extensions.get().ok_or(missing)?;
    if attempt.number() == 1 {
        return Err("so that there is something to try again".into());
    }
    let mut tx = lease.begin().await?;
    sqlx::query("insert into example_issues (delivery, event) values (?, ?)")
        .bind(delivery.id().as_str())
        .bind(delivery.event().as_str())
        .execute(&mut *tx)
        .await?;
    // The row is written and the delivery is completed, or neither.
    lease.commit(tx).await?;
    Ok(())
}

async fn open(scratch: &std::path::Path) -> Result<SqliteStore, StoreError> {
    let file =
        std::env::var_os("DATABASE_FILE").map_or_else(|| scratch.join("hookclaim.db"), Into::into);
    let store = SqliteStore::open(file).await?;
    store.migrate().await?;
    Ok(store)
}

// [app]
/// Receives deliveries and stores them, and works on what is stored.
fn app(
    secret: &str,
    store: SqliteStore,
    drain: &Drain,
) -> Result<(Router, JoinHandle<()>), SecretError> {
    let layer = GithubWebhookLayer::new(SecretSet::single(secret)?, store)
        .drain(drain)
        .durable();
    // The same handler twice: the layer never calls it, the worker does.
    let handler = service_fn(on_delivery);
    let worker = tokio::spawn(layer.worker(handler).concurrency(8).run());
    let app = Router::new().route("/webhook", any_service(layer.layer(handler)));
    Ok((app, worker))
}
// [app]

#[tokio::main]
async fn main() -> support::Result {
    let (demo, listener) = Demo::start(3006).await?;
    let scratch = tempfile::tempdir()?;
    let store = open(scratch.path()).await?;
    let mut tx = store.begin().await?;
    sqlx::query(
        "create table if not exists example_issues (delivery text not null, event text not null)",
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;

    let drain = Drain::new();
    let (app, worker) = app(&demo.secret, store.clone(), &drain)?;
    demo.run_durable(async { axum::serve(listener, app).await })
        .await?;

    // What runs is finished before the program ends; what only waits is left for its next start.
    drain.begin();
    worker.await?;
    let written: i64 = sqlx::query_scalar("select count(*) from example_issues where delivery = ?")
        .bind(&demo.delivery)
        .fetch_one(store.readers())
        .await?;
    println!("written {written} time");
    if written == 1 {
        Ok(())
    } else {
        Err("it should have been written once".into())
    }
}
