//! `hookclaim serve`

mod app;
mod connections;
mod upkeep;

use std::future::Future;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tower_hookclaim::Drain;
use tracing::{info, warn};

pub use self::app::{App, app};
use self::connections::Connections;
use crate::config::Config;
use crate::database::Store;
use crate::error::{Context as _, Error};
use crate::ledger::Ledger;
use crate::output::print;
use crate::telemetry::{self, Metrics};

/// Receives webhooks on `listener` until `shutdown` is ready, and finishes what is being worked on.
///
/// Makes and updates the tables first, and a webhook secret if none is configured and the database is a file. Prints
/// the address to standard output once it is ready.
///
/// # Errors
///
/// [`Error`] if the database or the metrics' address cannot be opened, or if no secret can be had.
pub async fn run(
    config: Config,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    match config.open().await? {
        Store::Sqlite(store) => run_on(config, store, listener, shutdown).await,
        Store::Postgres(store) => run_on(config, store, listener, shutdown).await,
    }
}

async fn run_on<St: Ledger>(
    mut config: Config,
    store: St,
    listener: TcpListener,
    shutdown: impl Future<Output = ()>,
) -> Result<(), Error> {
    store
        .migrate_all()
        .await
        .context("cannot bring the database up to date")?;
    let (secrets, kept) = config.secrets.verifying()?;
    let kept = kept.map_or_else(String::new, |path| {
        format!("webhook secret kept in {}\n", path.display())
    });
    let address = listener
        .local_addr()
        .context("cannot tell the address listened on")?;
    let metrics = Metrics::install();
    metrics::gauge!(
        telemetry::INFO,
        "version" => env!("CARGO_PKG_VERSION"), "mode" => config.mode.as_str()
    )
    .set(1.0);
    let drain = Drain::new();
    let on_main = address.ip().is_loopback().then(|| metrics.clone());
    let App { router, worker } = app(&config, secrets, store.clone(), &drain, on_main);
    let mut tasks = JoinSet::new();
    if let Some(address) = config.metrics_listen {
        let listener = TcpListener::bind(address)
            .await
            .context(format!("cannot listen on {address} for metrics"))?;
        let router = app::metrics_only(metrics.clone());
        let connections = Connections::new(config.header_timeout, METRICS_CONNECTIONS);
        tasks.spawn(async move { connections.serve(&listener, &router).await });
    }
    tasks.spawn(upkeep::samples(metrics));
    let mut upkeep = upkeep::start(&config, &store);
    let mut workers = JoinSet::new();
    workers.spawn(worker);

    print(&format!(
        "database {}\n{kept}listening on http://{address}\n",
        config.database
    ))?;
    info!(address = %address, database = %config.database, mode = config.mode.as_str(), "listening");
    let connections = Connections::new(config.header_timeout, config.max_connections);
    let broke = tokio::select! {
        () = shutdown => false,
        () = connections.serve(&listener, &router) => false,
        _ = workers.join_next() => true,
    };
    drop(listener);
    upkeep.stop();
    tokio::join!(
        finish(&config, connections, &drain, &mut workers),
        upkeep.join(Instant::now() + HAND_BACK),
    );
    if broke {
        // To go on accepting what nobody runs would look like health.
        return Err(Error::failed(
            "the worker ended by itself, which is a bug; what is stored runs at the next start",
        ));
    }
    Ok(())
}

/// Scrapers are few.
const METRICS_CONNECTIONS: u32 = 16;

/// How long connections may take to say goodbye. What is left then has sent half a request, or does not read.
const GOODBYE: Duration = Duration::from_secs(2);

/// How long the database may take to note what is handed back.
const HAND_BACK: Duration = Duration::from_secs(3);

/// Answers 503 to what comes over connections that are still open, waits for what runs, and closes them.
async fn finish(
    config: &Config,
    connections: Connections,
    drain: &Drain,
    workers: &mut JoinSet<()>,
) {
    drain.begin();
    let running = drain.running();
    info!(
        running,
        drain_ms = config.drain.as_millis(),
        "shutting down"
    );
    if timeout(config.drain, idle(drain, workers)).await.is_err() {
        warn!(
            running = drain.running(),
            "work did not finish in time: it is handed back, to be taken at the next start"
        );
        drain.hand_back();
        if timeout(HAND_BACK, idle(drain, workers)).await.is_err() {
            warn!(
                running = drain.running(),
                "work could not be handed back: it is taken once its lease has run out"
            );
        }
    }
    connections.close(Instant::now() + GOODBYE).await;
    info!("shut down");
}

async fn idle(drain: &Drain, workers: &mut JoinSet<()>) {
    drain.idle().await;
    while workers.join_next().await.is_some() {}
}
