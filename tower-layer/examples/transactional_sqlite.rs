//! A handler that writes to SQLite in the transaction that completes its delivery: exactly once.
//!
//! Try it, without any configuration (it sends itself one delivery twice and counts what was written):
//!
//! ```text
//! cargo run -p tower-hookclaim --example transactional_sqlite -- try
//! ```
//!
//! Serve on 127.0.0.1:3005 until stopped; it prints what to send:
//!
//! ```text
//! HOOKCLAIM_WEBHOOK_SECRET=choose-something-long cargo run -p tower-hookclaim --example transactional_sqlite
//! ```
//!
//! The file is `hookclaim.db` in a directory of its own, which is removed in the end, or the one that `DATABASE_FILE`
//! names.

mod support;

use axum::{Router, extract::Extension, http::StatusCode, routing::post};
use hookclaim::{Delivery, Lease, SecretSet, SqliteStore, TransactionalStore as _};
use tower_hookclaim::GithubWebhookLayer;

use support::Demo;

async fn on_delivery(
    Extension(delivery): Extension<Delivery>,
    Extension(lease): Extension<Lease<SqliteStore>>,
) -> Result<&'static str, StatusCode> {
    // A file has one writer. From here to the commit it is this handler: do not wait for other systems in between.
    let mut tx = lease.begin().await.map_err(failed)?;
    sqlx::query("insert into example_issues (delivery, event) values (?, ?)")
        .bind(delivery.id().as_str())
        .bind(delivery.event().as_str())
        .execute(&mut *tx)
        .await
        .map_err(failed)?;
    // Both happen, or neither: the row is written and the delivery is completed. What happens from here on, a crash
    // included, cannot make it run again.
    lease.commit(tx).await.map_err(failed)?;
    Ok("written")
}

/// 500: the delivery has failed for now, and may be sent again.
fn failed(error: impl std::error::Error) -> StatusCode {
    eprintln!("the delivery failed: {error}");
    StatusCode::INTERNAL_SERVER_ERROR
}

#[tokio::main]
async fn main() -> support::Result {
    let (demo, listener) = Demo::start(3005).await?;
    let scratch = tempfile::tempdir()?;
    let file = std::env::var_os("DATABASE_FILE")
        .map_or_else(|| scratch.path().join("hookclaim.db"), Into::into);
    let store = SqliteStore::open(file).await?;
    store.migrate().await?;
    // Writes of the application take their turn with those of the store.
    let mut tx = store.begin().await?;
    sqlx::query(
        "create table if not exists example_issues (delivery text not null, event text not null)",
    )
    .execute(&mut *tx)
    .await?;
    tx.commit().await?;

    let app = Router::new()
        .route("/webhook", post(on_delivery))
        .route_layer(GithubWebhookLayer::new(
            SecretSet::single(&demo.secret)?,
            store.clone(),
        ));
    demo.run(async { axum::serve(listener, app).await }).await?;

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
