//! The command line.

mod deliveries;
mod options;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

pub use self::deliveries::{
    Deliveries, DeliveryFilter, ListDeliveries, PruneDeliveries, RetryDeliveries, ShowDelivery,
};
pub(crate) use self::options::Options;
use crate::config::{Config, Needs, Settings};
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
    /// Look at what was received, run it again, forget it
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
        let needs = Needs {
            secrets: matches!(self.action, Action::Serve | Action::Send(_)),
            seal: matches!(
                self.action,
                Action::Serve | Action::Deliveries(Deliveries::Show(_))
            ),
        };
        let mut settings = self.settings.clone();
        settings.read_file();
        Config::resolve(settings, needs)
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
