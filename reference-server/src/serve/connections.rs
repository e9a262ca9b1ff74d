//! Connections: how many, for how long, and how they end.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, warn};

use crate::telemetry;

/// What every HTTP/2 connection begins with.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// The most that an HTTP/1.1 connection reads ahead, its head included. hyper's own limit is 400 KiB: with as many
/// connections as there may be, several times the memory that is set aside for payloads.
const READ_BUFFER: usize = 64 * 1024;

/// Serves HTTP/1.1 and HTTP/2 without TLS.
pub(super) struct Connections {
    builder: auto::Builder<TokioExecutor>,
    open: Arc<Semaphore>,
    graceful: GracefulShutdown,
    header_timeout: Duration,
}

impl Connections {
    /// At most `most` at a time; others wait in the system's queue.
    pub(super) fn new(header_timeout: Duration, most: u32) -> Self {
        let mut builder = auto::Builder::new(TokioExecutor::new());
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(header_timeout)
            .max_buf_size(READ_BUFFER);
        builder
            .http2()
            .timer(TokioTimer::new())
            .keep_alive_interval(Duration::from_secs(20))
            .keep_alive_timeout(Duration::from_secs(20));
        Self {
            builder,
            open: Arc::new(Semaphore::new(most as usize)),
            graceful: GracefulShutdown::new(),
            header_timeout,
        }
    }

    /// Accepts connections for ever.
    pub(super) async fn serve(&self, listener: &TcpListener, router: &Router) {
        loop {
            let permit = Arc::clone(&self.open).acquire_owned().await;
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Out of file descriptors, most likely: those that are open have to end first.
                    if !is_of_the_peer(&error) {
                        warn!(error = %error, "cannot accept a connection");
                        sleep(Duration::from_millis(100)).await;
                    }
                    continue;
                }
            };
            let _ = stream.set_nodelay(true);
            let (builder, router) = (self.builder.clone(), router.clone());
            let (watcher, patience) = (self.graceful.watcher(), self.header_timeout);
            tokio::spawn(async move {
                let _permit = permit;
                let _open = Open::new();
                // hyper's own timer starts once the version is known, and a peer may never tell.
                if !matches!(timeout(patience, tells_version(&stream)).await, Ok(Ok(()))) {
                    return;
                }
                let service = TowerToHyperService::new(router);
                let connection = builder.serve_connection(TokioIo::new(stream), service);
                if let Err(error) = pin!(watcher.watch(connection)).await {
                    debug!(error, "connection ended");
                }
            });
        }
    }

    /// Asks connections to end with what they are at, and waits until `end`.
    pub(super) async fn close(self, end: Instant) {
        if timeout_at(end, self.graceful.shutdown()).await.is_err() {
            warn!("some connections did not end in time");
        }
    }
}

/// Waits for as much of the first bytes as tells HTTP/1 from HTTP/2, and leaves them where they are.
async fn tells_version(stream: &TcpStream) -> io::Result<()> {
    let mut first = [0; PREFACE.len()];
    loop {
        let seen = stream.peek(&mut first).await?;
        if seen == 0 || seen == PREFACE.len() || first[..seen] != PREFACE[..seen] {
            return Ok(());
        }
        // A peek is ready at once while anything is there to see: ask again a little later.
        sleep(Duration::from_millis(10)).await;
    }
}

fn is_of_the_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
    )
}

/// Counts a connection for as long as it lives.
struct Open(());

impl Open {
    fn new() -> Self {
        metrics::gauge!(telemetry::CONNECTIONS).increment(1.0);
        Self(())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        metrics::gauge!(telemetry::CONNECTIONS).decrement(1.0);
    }
}
