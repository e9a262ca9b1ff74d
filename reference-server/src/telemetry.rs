//! Logs and metrics.

use std::fmt;
use std::str::FromStr;
use std::sync::OnceLock;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing::level_filters::LevelFilter;
use tracing::{Level, Metadata};
use tracing_subscriber::filter::{EnvFilter, filter_fn};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

/// What to log: a level, or directives such as `hookclaim=debug`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogFilter(String);

impl Default for LogFilter {
    fn default() -> Self {
        Self("info".to_owned())
    }
}

impl FromStr for LogFilter {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let valid = !text.is_empty() && EnvFilter::try_new(text).is_ok();
        valid.then(|| Self(text.to_owned())).ok_or_else(|| {
            format!("`{text}` is not a log filter; write error, warn, info, debug, or one such as hookclaim=debug")
        })
    }
}

/// How to log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

impl FromStr for LogFormat {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("`{text}` is not a log format; write text or json")),
        }
    }
}

/// Starts logging to standard error. Once a process: a second call changes nothing.
pub fn init_logging(filter: &LogFilter, format: LogFormat) {
    let filter = EnvFilter::builder()
        .with_default_directive(LevelFilter::INFO.into())
        .parse_lossy(&filter.0);
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let lines = match format {
        LogFormat::Text => {
            use std::io::IsTerminal as _;
            lines.with_ansi(std::io::stderr().is_terminal()).boxed()
        }
        LogFormat::Json => lines.json().boxed(),
    };
    let lines = lines
        .with_filter(filter)
        .with_filter(filter_fn(keeps_secrets));
    // An error means that the program that embeds us logs already.
    let _ = tracing_subscriber::registry().with(lines).try_init();
}

/// Below `info`, HTTP libraries log header values and database libraries statements: signatures and tokens among them.
fn keeps_secrets(event: &Metadata<'_>) -> bool {
    const WIRE: [&str; 6] = ["h2", "hyper", "hyper_util", "rustls", "sqlx", "tower"];
    let library = event.target().split("::").next().unwrap_or_default();
    *event.level() <= Level::INFO || !WIRE.contains(&library)
}

/// The metrics of this process, as Prometheus reads them.
#[derive(Clone)]
pub struct Metrics(PrometheusHandle);

impl Metrics {
    /// Starts measuring, or joins what was started before.
    ///
    /// Where another recorder was installed already, the metrics go there and [`render`](Self::render) stays empty.
    #[must_use]
    pub fn install() -> Self {
        static INSTALLED: OnceLock<PrometheusHandle> = OnceLock::new();
        let handle = INSTALLED.get_or_init(|| {
            let recorder = PrometheusBuilder::new()
                .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), BUCKETS)
                .expect("there are buckets")
                .build_recorder();
            let handle = recorder.handle();
            let _ = metrics::set_global_recorder(recorder);
            describe();
            handle
        });
        Self(handle.clone())
    }

    /// The text that Prometheus scrapes.
    #[must_use]
    pub fn render(&self) -> String {
        self.0.render()
    }

    /// Tidies up samples; to be called every few seconds.
    pub fn upkeep(&self) {
        self.0.run_upkeep();
    }
}

impl fmt::Debug for Metrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// From a claim on a local file to GitHub's patience.
const BUCKETS: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0,
];

/// Comments by what came of them: `booked`, `duplicate`, `nothing`, `invalid`, `not_heard`, `unreadable`.
pub(crate) const COMMENTS: &str = "hookclaim_comments_total";
/// Entries booked.
pub(crate) const ENTRIES: &str = "hookclaim_entries_booked_total";
/// Connections that are open.
pub(crate) const CONNECTIONS: &str = "hookclaim_connections_open";

/// Deliveries that are stored and that nobody works on.
pub(crate) const BACKLOG_WAITING: &str = "hookclaim_backlog_waiting";
/// How long the one that is due for longest has been due.
pub(crate) const BACKLOG_OLDEST: &str = "hookclaim_backlog_oldest_due_seconds";
/// Stored deliveries that are being worked on.
pub(crate) const BACKLOG_LEASED: &str = "hookclaim_backlog_leased";
/// Those whose lease has run out and that nobody has taken over.
pub(crate) const BACKLOG_OVERDUE: &str = "hookclaim_backlog_overdue";
/// What was forgotten: `records`, `payloads`.
pub(crate) const PRUNED: &str = "hookclaim_pruned_total";
/// How long a round of forgetting took.
pub(crate) const PRUNE_SECONDS: &str = "hookclaim_prune_seconds";
/// Rounds in the background that failed, by `task`: `backlog`, `prune`.
pub(crate) const UPKEEP_ERRORS: &str = "hookclaim_upkeep_errors_total";
/// Always 1; its labels tell the version and the mode.
pub(crate) const INFO: &str = "hookclaim_info";

fn describe() {
    metrics::describe_counter!(
        COMMENTS,
        "Comments that were received, by what came of them."
    );
    metrics::describe_counter!(ENTRIES, "Time entries that were booked.");
    for (name, text) in [
        (CONNECTIONS, "Connections that are open."),
        (
            BACKLOG_WAITING,
            "Deliveries that are stored and that nobody works on.",
        ),
        (
            BACKLOG_OLDEST,
            "How long the delivery that is due for longest has been due.",
        ),
        (BACKLOG_LEASED, "Stored deliveries that are worked on."),
        (
            BACKLOG_OVERDUE,
            "Stored deliveries whose lease has run out and that nobody has taken over.",
        ),
        (INFO, "Always 1; its labels tell the version and the mode."),
    ] {
        metrics::describe_gauge!(name, text);
    }
    metrics::describe_counter!(PRUNED, "Records and payloads that were forgotten.");
    metrics::describe_counter!(
        UPKEEP_ERRORS,
        "Rounds of work in the background that failed."
    );
    metrics::describe_histogram!(
        PRUNE_SECONDS,
        metrics::Unit::Seconds,
        "How long a round of forgetting took."
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_and_formats_are_checked() {
        for filter in [
            "info",
            "debug",
            "hookclaim=debug",
            "warn,hookclaim_server=trace",
        ] {
            assert!(filter.parse::<LogFilter>().is_ok(), "{filter}");
        }
        for filter in ["", "hookclaim=loud"] {
            assert!(filter.parse::<LogFilter>().is_err(), "{filter}");
        }
        assert!("yaml".parse::<LogFormat>().is_err());
    }

    #[test]
    fn metrics_are_rendered_once_installed_and_installing_again_is_no_error() {
        let metrics = Metrics::install();
        let again = Metrics::install();
        metrics::counter!(ENTRIES).increment(2);
        assert!(again.render().contains("hookclaim_entries_booked_total"));
        metrics.upkeep();
    }
}
