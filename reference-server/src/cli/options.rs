//! The options that all commands share.

use clap::Args;
use secrecy::SecretString;

/// The options that all commands share.
///
/// This is the one list of them: [`Settings`] takes the names of flags, variables and file keys from here. Values stay
/// text until [`Config`] reads them, so that whatever is wrong with any of them is told at once.
#[derive(Args, Debug)]
#[command(next_help_heading = "Options of every command")]
pub(crate) struct Options {
    /// A TOML file with more options; hookclaim.toml in the working directory is read if it is there
    #[arg(
        long,
        env = "HOOKCLAIM_CONFIG",
        value_name = "FILE",
        global = true,
        hide_env_values = true
    )]
    config: Option<String>,
    /// Where deliveries are remembered: sqlite:FILE or postgres://… [default: sqlite:hookclaim.db]
    #[arg(
        long,
        env = "HOOKCLAIM_DATABASE_URL",
        value_name = "URL",
        global = true,
        hide_env_values = true
    )]
    database_url: Option<SecretString>,
    /// The address to listen on [default: 127.0.0.1:3000]
    #[arg(
        long,
        env = "HOOKCLAIM_LISTEN",
        value_name = "ADDRESS",
        global = true,
        hide_env_values = true
    )]
    listen: Option<String>,
    /// The secret of the webhook; on SQLite one is made and kept beside the database if not given
    #[arg(
        long,
        env = "HOOKCLAIM_WEBHOOK_SECRET",
        value_name = "SECRET",
        global = true,
        hide_env_values = true
    )]
    webhook_secret: Option<SecretString>,
    /// A file with the secret of the webhook
    #[arg(
        long,
        env = "HOOKCLAIM_WEBHOOK_SECRET_FILE",
        value_name = "FILE",
        global = true,
        hide_env_values = true
    )]
    webhook_secret_file: Option<String>,
    /// The secret before this one, accepted as well while it is being replaced
    #[arg(
        long,
        env = "HOOKCLAIM_WEBHOOK_SECRET_PREVIOUS",
        value_name = "SECRET",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    webhook_secret_previous: Option<SecretString>,
    /// A file with the secret before this one
    #[arg(
        long,
        env = "HOOKCLAIM_WEBHOOK_SECRET_PREVIOUS_FILE",
        value_name = "FILE",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    webhook_secret_previous_file: Option<String>,
    /// How deliveries are worked on: durable, stored at once and run by workers, or inline, within the request
    /// [default: durable]
    #[arg(
        long,
        env = "HOOKCLAIM_MODE",
        value_name = "MODE",
        global = true,
        hide_env_values = true
    )]
    mode: Option<String>,
    /// Deliveries that are worked on at a time by this process's workers [default: 16]
    #[arg(
        long,
        env = "HOOKCLAIM_WORKERS",
        value_name = "NUMBER",
        global = true,
        hide_env_values = true
    )]
    workers: Option<String>,
    /// How often workers ask for work that nobody announced [default: 1s]
    #[arg(
        long,
        env = "HOOKCLAIM_POLL_INTERVAL",
        value_name = "DURATION",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    poll_interval: Option<String>,
    /// Waiting deliveries beyond which new ones are answered 503; 0 sets no limit [default: 0]
    #[arg(
        long,
        env = "HOOKCLAIM_BACKLOG_LIMIT",
        value_name = "NUMBER",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    backlog_limit: Option<String>,
    /// The time zone whose days entries are booked on, as Europe/Berlin [default: the system's]
    #[arg(
        long,
        env = "HOOKCLAIM_TIMEZONE",
        value_name = "ZONE",
        global = true,
        hide_env_values = true
    )]
    timezone: Option<String>,
    /// Let outside collaborators of a repository book as well [default: false]
    #[arg(long, env = "HOOKCLAIM_TRUST_COLLABORATORS", value_name = "BOOL", global = true, hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    trust_collaborators: Option<String>,
    /// How long a delivery is held without a sign of life [default: 30s]
    #[arg(
        long,
        env = "HOOKCLAIM_LEASE",
        value_name = "DURATION",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    lease: Option<String>,
    /// How often a delivery is tried before it is dead [default: 8]
    #[arg(
        long,
        env = "HOOKCLAIM_MAX_ATTEMPTS",
        value_name = "NUMBER",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    max_attempts: Option<String>,
    /// When to answer 202 for work that is still going on; GitHub waits 10s [default: 8s]
    #[arg(
        long,
        env = "HOOKCLAIM_ACK_AFTER",
        value_name = "DURATION",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    ack_after: Option<String>,
    /// How long running work may take to finish at shutdown [default: 25s]
    #[arg(
        long,
        env = "HOOKCLAIM_DRAIN",
        value_name = "DURATION",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    drain: Option<String>,
    /// The longest payload [default: 25MiB, GitHub's own limit]
    #[arg(
        long,
        env = "HOOKCLAIM_BODY_LIMIT",
        value_name = "SIZE",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    body_limit: Option<String>,
    /// How long a payload may take to arrive [default: 10s]
    #[arg(
        long,
        env = "HOOKCLAIM_BODY_TIMEOUT",
        value_name = "DURATION",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    body_timeout: Option<String>,
    /// How long the head of a request may take to arrive [default: 10s]
    #[arg(
        long,
        env = "HOOKCLAIM_HEADER_TIMEOUT",
        value_name = "DURATION",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    header_timeout: Option<String>,
    /// Memory for payloads in flight; beyond it deliveries are answered 503 [default: 256MiB]
    #[arg(
        long,
        env = "HOOKCLAIM_MEMORY_BUDGET",
        value_name = "SIZE",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    memory_budget: Option<String>,
    /// Connections served at the same time; others wait [default: 512]
    #[arg(
        long,
        env = "HOOKCLAIM_MAX_CONNECTIONS",
        value_name = "NUMBER",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    max_connections: Option<String>,
    /// How long completed deliveries are remembered; one that is sent again later runs again [default: 30d]
    #[arg(
        long,
        env = "HOOKCLAIM_RETENTION",
        value_name = "DURATION",
        global = true,
        hide_env_values = true
    )]
    retention: Option<String>,
    /// DANGEROUS: allow a retention under 7d. GitHub lets people redeliver for 3 days, and a hook that was down may send
    /// late: what was forgotten by then is DONE A SECOND TIME, silently [default: false]
    #[arg(long, env = "HOOKCLAIM_DANGEROUSLY_SHORT_RETENTION", value_name = "BOOL", global = true, hide_env_values = true, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_short_help = true)]
    dangerously_short_retention: Option<String>,
    /// How long dead deliveries are remembered, with their payloads [default: 30d]
    #[arg(
        long,
        env = "HOOKCLAIM_RETENTION_DEAD",
        value_name = "DURATION",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    retention_dead: Option<String>,
    /// How long payloads of completed deliveries are kept, so that `deliveries retry --force` can run one again; 0s drops
    /// them at completion [default: 3d]
    #[arg(
        long,
        env = "HOOKCLAIM_RETENTION_PAYLOAD",
        value_name = "DURATION",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    retention_payload: Option<String>,
    /// How often `serve` forgets what is past its retention; 0s leaves that to `deliveries prune` [default: 10m]
    #[arg(
        long,
        env = "HOOKCLAIM_PRUNE_EVERY",
        value_name = "DURATION",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    prune_every: Option<String>,
    /// The key that stored payloads are sealed with (AES-256-GCM): 64 hexadecimal digits, as from `openssl rand -hex 32`
    #[arg(
        long,
        env = "HOOKCLAIM_SEAL_KEY",
        value_name = "KEY",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    seal_key: Option<SecretString>,
    /// A file with that key
    #[arg(
        long,
        env = "HOOKCLAIM_SEAL_KEY_FILE",
        value_name = "FILE",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    seal_key_file: Option<String>,
    /// The key before this one: it opens what it sealed, and seals no more
    #[arg(
        long,
        env = "HOOKCLAIM_SEAL_KEY_PREVIOUS",
        value_name = "KEY",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    seal_key_previous: Option<SecretString>,
    /// A file with the key before this one
    #[arg(
        long,
        env = "HOOKCLAIM_SEAL_KEY_PREVIOUS_FILE",
        value_name = "FILE",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    seal_key_previous_file: Option<String>,
    /// Another address for /metrics, which the main one serves on loopback only
    #[arg(
        long,
        env = "HOOKCLAIM_METRICS_LISTEN",
        value_name = "ADDRESS",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    metrics_listen: Option<String>,
    /// What to log: error, warn, info, debug, or a filter such as hookclaim=debug [default: info]
    #[arg(
        long,
        env = "HOOKCLAIM_LOG",
        value_name = "FILTER",
        global = true,
        hide_env_values = true
    )]
    log: Option<String>,
    /// How to log, to standard error: text or json [default: text]
    #[arg(
        long,
        env = "HOOKCLAIM_LOG_FORMAT",
        value_name = "FORMAT",
        global = true,
        hide_env_values = true
    )]
    log_format: Option<String>,
}
