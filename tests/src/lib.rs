//! The harness of Hookclaim's tests across crates, processes and databases.
//!
//! - [`postgres`]: a throw-away Postgres cluster from the installed binaries.
//! - [`process`]: the real server, and a helper that claims on command, as processes that can be stopped and killed.
//! - [`http`]: signed requests, a client for HTTP/1.1 and HTTP/2, and raw bytes on a socket.
//! - [`fixtures`]: payloads, byte for byte.
//! - [`booking`]: a table of the application's, to be written in the transaction that completes a delivery.
//! - [`capture`]: what is logged, to search it for what must not be.
//! - [`chaos`]: servers and databases that are killed, stopped and restarted while deliveries come in.

pub mod booking;
pub mod capture;
pub mod chaos;
pub mod fixtures;
pub mod http;
pub mod postgres;
pub mod process;

use std::future::Future;
use std::time::{Duration, Instant};

/// A deadline that only a hang misses.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits for something that can be observed, and panics if it does not come within [`DEADLINE`].
///
/// # Panics
///
/// If `look` has not returned something by then; `what` is in the message.
pub async fn eventually<T, F>(what: &str, mut look: impl FnMut() -> F) -> T
where
    F: Future<Output = Option<T>>,
{
    let begun = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begun.elapsed() < DEADLINE, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The README's snippets are compiled.
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
struct Readme;
