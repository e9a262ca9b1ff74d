//! A handler that writes to Postgres in the transaction that completes its delivery: exactly once.
//!
//! Try it (it sends itself one delivery twice and counts what was written):
//!
//! ```text
//! DATABASE_URL=postgres://postgres@localhost/postgres \
//!     cargo run -p tower-hookclaim --example transactional_postgres -- try
//! ```
//!
//! Without a Postgres at hand, on a throw-away one from the programs that are installed:
//!
//! ```text
//! cargo run -p hookclaim-tests --bin with-postgres -- \
//!     cargo run -p tower-hookclaim --example transactional_postgres -- try
//! ```
//!
//! Serve on 127.0.0.1:3004 until stopped; it prints what to send:
//!
//! ```text
//! DATABASE_URL=postgres://postgres@localhost/postgres HOOKCLAIM_WEBHOOK_SECRET=choose-something-long \
//!     cargo run -p tower-hookclaim --example transactional_postgres
//! ```
//!
//! The database gets the tables `example_issues` and `hookclaim_…`. For one that wants TLS, enable one of sqlx's
//! `tls-…` features.

mod support;

use axum::{Router, extract::Extension, http::StatusCode, routing::post};
use hookclaim::{Delivery, Lease, PostgresStore, SecretSet};
use sqlx::PgPool;
use tower_hookclaim::GithubWebhookLayer;

use support::Demo;

async fn on_delivery(
    Extension(delivery): Extension<Delivery>,
    Extension(lease): Extension<Lease<PostgresStore>>,
) -> Result<&'static str, StatusCode> {
    // Locks the delivery: nobody takes it over while the transaction is open.
    let mut tx = lease.begin().await.map_err(failed)?;
    sqlx::query("insert into example_issues (delivery, event) values ($1, $2)")
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
    let (demo, listener) = Demo::start(3004).await?;
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://postgres@localhost/postgres")?;
    let pool = PgPool::connect(&url).await?;
    sqlx::query(
        "create table if not exists example_issues (delivery text not null, event text not null)",
    )
    .execute(&pool)
    .await?;
    let store = PostgresStore::new(pool.clone());
    store.migrate().await?;

    let app = Router::new()
        .route("/webhook", post(on_delivery))
        .route_layer(GithubWebhookLayer::new(
            SecretSet::single(&demo.secret)?,
            store,
        ));
    demo.run(async { axum::serve(listener, app).await }).await?;

    let written: i64 =
        sqlx::query_scalar("select count(*) from example_issues where delivery = $1")
            .bind(&demo.delivery)
            .fetch_one(&pool)
            .await?;
    println!("written {written} time");
    if written == 1 {
        Ok(())
    } else {
        Err("it should have been written once".into())
    }
}
