//! Several processes on one Postgres, each of which receives and works: any of them may die at any time.
//!
//! Try it: it starts a second process of itself, sends deliveries to both, kills that process in the middle of its work,
//! and counts what was written in the end.
//!
//! ```text
//! DATABASE_URL=postgres://postgres@localhost/postgres \
//!     cargo run -p tower-hookclaim --example durable_postgres -- try
//! ```
//!
//! Without a Postgres at hand, on a throw-away one from the programs that are installed:
//!
//! ```text
//! cargo run -p hookclaim-tests --bin with-postgres -- \
//!     cargo run -p tower-hookclaim --example durable_postgres -- try
//! ```
//!
//! Serve on 127.0.0.1:3007 until stopped, and with another `PORT` as often as you like; it prints what to send:
//!
//! ```text
//! DATABASE_URL=postgres://postgres@localhost/postgres HOOKCLAIM_WEBHOOK_SECRET=choose-something-long \
//!     cargo run -p tower-hookclaim --example durable_postgres
//! ```
//!
//! The database gets the tables `example_issues` and `hookclaim_…`.

mod support;

use std::convert::Infallible;
use std::io::{BufRead as _, BufReader};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use axum::Router;
use axum::routing::any_service;
use bytes::Bytes;
use hookclaim::{Delivery, Lease, LeasePolicy, PostgresStore, SecretSet};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use sqlx::PgPool;
use tokio::time::{sleep, timeout};
use tower::{Layer as _, service_fn};
use tower_hookclaim::{Drain, GithubWebhookLayer};

use support::Demo;

/// Deliveries that `try` sends.
const DELIVERIES: usize = 20;

/// Called by a worker, in whatever process.
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
    let lease: &Lease<PostgresStore> = extensions.get().ok_or(missing)?;
    // Work that takes a while, so that there is something to kill.
    sleep(Duration::from_millis(200)).await;
    let mut tx = lease.begin().await?;
    sqlx::query("insert into example_issues (delivery, event) values ($1, $2)")
        .bind(delivery.id().as_str())
        .bind(delivery.event().as_str())
        .execute(&mut *tx)
        .await?;
    lease.commit(tx).await?;
    Ok(())
}

#[tokio::main]
async fn main() -> support::Result {
    let port = std::env::var("PORT")
        .ok()
        .and_then(|port| port.parse().ok());
    let (demo, listener) = Demo::start(port.unwrap_or(3007)).await?;
    let url = std::env::var("DATABASE_URL")
        .map_err(|_| "set DATABASE_URL, such as postgres://postgres@localhost/postgres")?;
    let pool = PgPool::connect(&url).await?;
    let store = PostgresStore::new(pool.clone());
    store.migrate().await?;
    sqlx::query(
        "create table if not exists example_issues (delivery text not null, event text not null)",
    )
    .execute(&pool)
    .await?;

    let drain = Drain::new();
    let layer = GithubWebhookLayer::new(SecretSet::single(&demo.secret)?, store)
        // How long a delivery waits whose process died.
        .lease(LeasePolicy::default().lease(Duration::from_secs(3)))
        .drain(&drain)
        .durable();
    let handler = service_fn(on_delivery);
    let worker = tokio::spawn(layer.worker(handler).concurrency(4).run());
    let app = Router::new().route("/webhook", any_service(layer.layer(handler)));
    let serve = async { axum::serve(listener, app).await };
    if !demo.is_trying() {
        return demo.run_durable(serve).await;
    }
    tokio::select! {
        ended = serve => {
            ended?;
            Err("the server ended before it was tried".into())
        }
        tried = try_two(&demo, &pool) => {
            tried?;
            drain.begin();
            Ok(worker.await?)
        }
    }
}

/// Sends deliveries to this process and to another one, and kills that in the middle.
async fn try_two(demo: &Demo, pool: &PgPool) -> support::Result {
    let mut other = Other::start(demo)?;
    let mut sent = Vec::new();
    for number in 0..DELIVERIES {
        let url = if number % 2 == 0 {
            demo.url()
        } else {
            &other.url
        };
        let delivery = format!("{}-{number}", demo.delivery);
        let outcome = demo.send_to(url, &delivery, false).await?;
        if outcome != "accepted" {
            return Err(format!("expected accepted, not {outcome}").into());
        }
        sent.push(delivery);
    }
    // On Unix this is SIGKILL: it has no time to hand anything back.
    other.process.kill()?;
    println!("the other process is dead");

    let written = async {
        loop {
            let counted: (i64, i64) = sqlx::query_as(
                "select count(*), count(distinct delivery) from example_issues where delivery = any ($1)",
            )
            .bind(&sent)
            .fetch_one(pool)
            .await?;
            if counted.1 == sent.len() as i64 {
                return Ok::<_, support::Problem>(counted.0);
            }
            sleep(Duration::from_millis(100)).await;
        }
    };
    let written = timeout(Duration::from_secs(60), written)
        .await
        .map_err(|_| "not everything that was accepted was written within a minute")??;
    println!("{DELIVERIES} accepted, {written} written");
    if written == DELIVERIES as i64 {
        Ok(())
    } else {
        Err("each should have been written once".into())
    }
}

/// A second process of this program.
struct Other {
    process: Child,
    url: String,
    /// Open for as long as it prints.
    _output: BufReader<ChildStdout>,
}

impl Other {
    fn start(demo: &Demo) -> support::Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .env("HOOKCLAIM_WEBHOOK_SECRET", &demo.secret)
            .env("PORT", "0")
            .stdout(Stdio::piped())
            .spawn()?;
        let stdout = process.stdout.take().ok_or("it has no output")?;
        let mut output = BufReader::new(stdout);
        let mut line = String::new();
        output.read_line(&mut line)?;
        // "listening on http://127.0.0.1:12345/webhook. …"
        let url = line
            .split_once("listening on ")
            .and_then(|(_, rest)| rest.split_once("/webhook"))
            .ok_or("it did not say where it listens")?
            .0
            .to_owned();
        Ok(Self {
            process,
            url,
            _output: output,
        })
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
