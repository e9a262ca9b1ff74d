//! The commands of the program.

use std::future::Future;

use tokio::net::TcpListener;
use tracing::warn;

use crate::cli::{Action, Invocation};
use crate::config::Config;
use crate::database::Store;
use crate::error::{Context as _, Error};
use crate::ledger::Ledger as _;
use crate::output::print;
use crate::{deliveries, report, send, serve, telemetry};

/// Does what the command line asks for.
///
/// # Errors
///
/// [`Error`], whose [`exit_code`](Error::exit_code) is the program's.
pub async fn execute(invocation: Invocation) -> Result<(), Error> {
    let config = invocation.config()?;
    telemetry::init_logging(&config.log, config.log_format);
    for warning in &config.warnings {
        warn!("{warning}");
    }
    match invocation.action {
        Action::Serve => {
            let shutdown = signal().context("cannot listen for signals")?;
            let listener = TcpListener::bind(config.listen)
                .await
                .context(format!("cannot listen on {}", config.listen))?;
            serve::run(config, listener, shutdown).await
        }
        Action::Migrate => migrate(&config).await,
        Action::Send(options) => send::run(&config, &options).await,
        Action::Deliveries(command) => deliveries::run(&config, &command).await,
        Action::Report(options) => report::run(&config, &options).await,
    }
}

async fn migrate(config: &Config) -> Result<(), Error> {
    let steps = match config.database.open().await? {
        Store::Sqlite(store) => store.migrate_all().await,
        Store::Postgres(store) => store.migrate_all().await,
    };
    let steps = steps.context("cannot bring the database up to date")?;
    let done = match steps {
        0 => "was up to date".to_owned(),
        1 => "is up to date: 1 step was applied".to_owned(),
        steps => format!("is up to date: {steps} steps were applied"),
    };
    print(&format!("database {} {done}\n", config.database))
}

/// Ready at the first signal to stop. A second one ends the process at once.
#[cfg(unix)]
fn signal() -> std::io::Result<impl Future<Output = ()>> {
    use tokio::signal::unix::{SignalKind, signal};
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    Ok(async move {
        tokio::select! {
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            warn!("stopping at once at a second signal");
            std::process::exit(1);
        });
    })
}

/// Ready at the first signal to stop.
#[cfg(not(unix))]
fn signal() -> std::io::Result<impl Future<Output = ()>> {
    Ok(async {
        let _ = tokio::signal::ctrl_c().await;
    })
}
