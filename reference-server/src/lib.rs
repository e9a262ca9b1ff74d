//! Time tracking by GitHub issue comment, each webhook delivery exactly once.
//!
//! The program `hookclaim` is this library and a `main` that calls it: [`Invocation::parse`] understands a command
//! line, [`execute`] does what it asks for. [`run`] serves on a listener until told to stop, and [`app`] is the router
//! that it serves, for whoever wants to call it without a socket.
//!
//! # How a comment is booked
//!
//! A [`GithubWebhookLayer`](tower_hookclaim::GithubWebhookLayer) verifies and claims the delivery. What is behind it
//! reads the comment ([`timetracking`]), and writes its entries ([`ledger`]) in the very transaction that completes
//! the delivery: both happen, or neither.

mod booking;
mod cli;
mod config;
mod database;
mod deliveries;
mod error;
pub mod ledger;
mod output;
mod program;
mod progress;
mod report;
mod retention;
mod send;
mod serve;
mod telemetry;
pub mod timetracking;

pub use crate::cli::{
    Action, Deliveries, DeliveryFilter, Invocation, ListDeliveries, PruneDeliveries, Report,
    RetryDeliveries, Send, ShowDelivery,
};
pub use crate::config::{Config, Mode, WebhookSecrets};
pub use crate::database::Database;
pub use crate::error::Error;
pub use crate::program::execute;
pub use crate::serve::{App, app, run};
pub use crate::telemetry::{LogFilter, LogFormat, Metrics, init_logging};

/// Lower-case hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}
