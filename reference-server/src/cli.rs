//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use hookclaim::State;
use secrecy::SecretString;

use crate::config::{Config, Settings};
use crate::error::Error;

/// Time tracking by GitHub issue comment, each webhook delivery exactly once.
#[derive(Debug, Parser)]
#[command(name = "hookclaim", version, arg_required_else_help = true, after_help = EXIT_CODES)]
struct Cli {
    #[command(flatten)]
    options: Options,
    #[command(subcommand)]
    action: Action,
}

const EXIT_CODES: &str = "\
Every option is also an environment variable, and a key of the TOML file under its long name (`database-url`).
A flag goes before the environment, the environment before the file.

Exit codes: 0 done; 1 failed, not found, or answered with an error; 2 usage or configuration.";

/// What the program is asked to do.
#[derive(Clone, Debug, Subcommand)]
#[non_exhaustive]
pub enum Action {
    /// Receive webhooks until told to stop
    Serve,
    /// Bring the database up to date; `serve` does so by itself
    Migrate,
    /// Sign a payload as GitHub would and send it
    Send(Send),
    /// Look at what was received
    #[command(subcommand)]
    Deliveries(Deliveries),
    /// Show the time that was booked
    Report(Report),
}

/// `send`
#[derive(Args, Clone, Debug)]
pub struct Send {
    /// The payload, as JSON; `-` reads it from standard input
    pub file: PathBuf,
    /// Its event, if the payload does not tell
    #[arg(long)]
    pub event: Option<String>,
    /// Its delivery id; a random one if not given
    #[arg(long, value_name = "GUID")]
    pub delivery: Option<String>,
    /// Where to; /webhook on the configured address if not given
    #[arg(long)]
    pub url: Option<String>,
}

/// `deliveries`
#[derive(Clone, Debug, Subcommand)]
#[non_exhaustive]
pub enum Deliveries {
    /// List deliveries, newest first
    List(DeliveryFilter),
    /// Show one delivery
    Show {
        /// Its key or its delivery id
        key: String,
        /// The source it came from, if several know the key
        #[arg(long)]
        source: Option<String>,
        /// Print a JSON array
        #[arg(long)]
        json: bool,
    },
}

/// `deliveries list`
#[derive(Args, Clone, Debug)]
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
    /// At most so many
    #[arg(long, default_value_t = 50)]
    pub limit: u32,
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// `report`
#[derive(Args, Clone, Debug, Default)]
pub struct Report {
    /// Only this repository, as owner/name
    #[arg(long)]
    pub repo: Option<String>,
    /// Only this person, by login
    #[arg(long)]
    pub user: Option<String>,
    /// Only from this day on, as 2026-11-27
    #[arg(long, value_name = "DATE")]
    pub from: Option<jiff::civil::Date>,
    /// Only up to this day, as 2026-11-27
    #[arg(long, value_name = "DATE")]
    pub to: Option<jiff::civil::Date>,
    /// Print a JSON array of the entries
    #[arg(long)]
    pub json: bool,
}

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
    /// How deliveries are worked on: inline, within the request [default: inline]
    #[arg(
        long,
        env = "HOOKCLAIM_MODE",
        value_name = "MODE",
        global = true,
        hide_env_values = true,
        hide_short_help = true
    )]
    mode: Option<String>,
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

/// A command line that was understood.
#[derive(Debug)]
pub struct Invocation {
    /// What to do.
    pub action: Action,
    settings: Settings,
}

impl Invocation {
    /// Understands a command line; the first argument is the program's name.
    ///
    /// # Errors
    ///
    /// What clap has to say: a usage error, or the help or version that was asked for.
    pub fn parse(
        args: impl IntoIterator<Item = impl Into<OsString> + Clone>,
    ) -> Result<Self, clap::Error> {
        let matches = Cli::command().try_get_matches_from(args)?;
        let settings = Settings::of(&matches, &Options::augment_args(clap::Command::new("")));
        let action = Cli::from_arg_matches(&matches)?.action;
        Ok(Self { action, settings })
    }

    /// The configuration for it, from the flags, the environment and the file.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] with everything that is wrong.
    pub fn config(&self) -> Result<Config, Error> {
        let needs_secret = matches!(self.action, Action::Serve | Action::Send(_));
        let mut settings = self.settings.clone();
        settings.read_file();
        Config::resolve(settings, needs_secret)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_option_has_its_environment_variable() {
        for arg in Options::augment_args(clap::Command::new("")).get_arguments() {
            let long = arg.get_long().unwrap();
            let expected = format!("HOOKCLAIM_{}", long.to_uppercase().replace('-', "_"));
            assert_eq!(arg.get_env().unwrap(), expected.as_str());
            assert!(arg.is_hide_env_values_set(), "{long}");
        }
    }

    #[test]
    fn usage_errors_exit_with_2_and_the_version_is_no_error() {
        let code = |args: &[&str]| Invocation::parse(args).unwrap_err().exit_code();
        assert_eq!(code(&["hookclaim"]), 2);
        assert_eq!(code(&["hookclaim", "dance"]), 2);
        assert_eq!(
            code(&["hookclaim", "deliveries", "list", "--state", "gone"]),
            2
        );
        assert_eq!(code(&["hookclaim", "report", "--from", "soon"]), 2);
        assert_eq!(code(&["hookclaim", "--version"]), 0);
    }
}
