//! `hookclaim deliveries`

use std::time::Duration;

use clap::{Args, Subcommand};
use hookclaim::State;

use crate::config::duration;

/// `deliveries`
#[derive(Clone, Debug, Subcommand)]
#[non_exhaustive]
pub enum Deliveries {
    /// List deliveries, newest first
    List(ListDeliveries),
    /// Show one delivery, with what operators did to it
    Show(ShowDelivery),
    /// Let dead or failed deliveries run again at once
    Retry(RetryDeliveries),
    /// Forget what is past its retention; `serve` does so by itself
    Prune(PruneDeliveries),
}

/// Which deliveries.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryFilter {
    /// Only those in this state (received, processing, completed, failed, dead); may be repeated
    #[arg(long)]
    pub state: Vec<State>,
    /// Only those of this event
    #[arg(long)]
    pub event: Option<String>,
    /// Only those of this source
    #[arg(long)]
    pub source: Option<String>,
    /// Only those with this delivery id
    #[arg(long, value_name = "ID")]
    pub delivery: Option<String>,
    /// Only those received longer ago than this, as 2h or 7d
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub older_than: Option<Duration>,
    /// Only those received within this time, as 2h or 7d
    #[arg(long, value_name = "DURATION", value_parser = duration)]
    pub newer_than: Option<Duration>,
    /// Only those whose last error is of this class (transient, permanent, panic, lease_expired, released) or has this
    /// in its text
    #[arg(long, value_name = "TEXT")]
    pub error: Option<String>,
}

/// `deliveries list`
#[derive(Args, Clone, Debug, Default)]
pub struct ListDeliveries {
    /// Which
    #[command(flatten)]
    pub filter: DeliveryFilter,
    /// At most so many; 0 for all of them [default: 50 in a table, all as JSON]
    #[arg(long, value_name = "NUMBER")]
    pub limit: Option<u64>,
    /// All of them
    #[arg(long, conflicts_with = "limit")]
    pub all: bool,
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// `deliveries show`
#[derive(Args, Clone, Debug)]
pub struct ShowDelivery {
    /// Its key or its delivery id
    pub key: String,
    /// The source it came from, if several know the key
    #[arg(long)]
    pub source: Option<String>,
    /// Print its stored payload and nothing else, byte for byte; with --json as a field of that name
    #[arg(long)]
    pub payload: bool,
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// `deliveries retry`
#[derive(Args, Clone, Debug, Default)]
pub struct RetryDeliveries {
    /// Keys or delivery ids; without any, all that pass the filters, of which there has to be one at least. Without
    /// --state that is what is dead or failed
    #[arg(
        value_name = "KEY",
        conflicts_with_all = ["state", "event", "delivery", "older_than", "newer_than", "error"]
    )]
    pub keys: Vec<String>,
    /// Which
    #[command(flatten)]
    pub filter: DeliveryFilter,
    /// Run completed ones too: what they did is done again, unless their handler knows better
    #[arg(long)]
    pub force: bool,
    /// Why, for the record
    #[arg(long, value_name = "TEXT")]
    pub reason: Option<String>,
    /// Who says so, for the record [default: the user of the operating system]
    #[arg(long, value_name = "NAME")]
    pub actor: Option<String>,
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// `deliveries prune`
#[derive(Args, Clone, Debug, Default)]
pub struct PruneDeliveries {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}
