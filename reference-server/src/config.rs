//! The configuration: options as the program uses them.

mod secret;
mod settings;
mod values;

use std::net::SocketAddr;
use std::time::Duration;

use hookclaim::LeasePolicy;
use jiff::tz::TimeZone;

pub use self::secret::WebhookSecrets;
pub(crate) use self::settings::Settings;
use crate::database::Database;
use crate::error::Error;
use crate::telemetry::{LogFilter, LogFormat};
use crate::timetracking::authorize::LocalTrust;

/// Everything that was configured, checked.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Config {
    /// Where to listen.
    pub listen: SocketAddr,
    /// Where deliveries and entries are kept.
    pub database: Database,
    /// The webhook's secrets; empty for commands that need none.
    pub secrets: WebhookSecrets,
    /// The zone whose days entries are booked on.
    pub time_zone: TimeZone,
    /// Who may book.
    pub trust: LocalTrust,
    /// How long and how often a delivery is worked on.
    pub lease: LeasePolicy,
    /// When work that is still going on is answered with 202.
    pub ack_after: Duration,
    /// How long running work may take at shutdown.
    pub drain: Duration,
    /// The longest payload, in bytes.
    pub body_limit: u64,
    /// How long a payload may take to arrive.
    pub body_timeout: Duration,
    /// How long the head of a request may take to arrive.
    pub header_timeout: Duration,
    /// Memory for payloads in flight, in bytes.
    pub memory_budget: u64,
    /// Connections served at the same time.
    pub max_connections: u32,
    /// Another address for the metrics.
    pub metrics_listen: Option<SocketAddr>,
    /// What to log.
    pub log: LogFilter,
    /// How to log.
    pub log_format: LogFormat,
    /// What the operator should know and need not mend.
    pub warnings: Vec<String>,
}

const MIB: u64 = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);

impl Config {
    /// Reads the options. What is wrong with any of them is told at once.
    pub(crate) fn resolve(mut settings: Settings, needs_secret: bool) -> Result<Self, Error> {
        let s = &mut settings;
        let database = s.read("database-url", None, |url| Database::parse(url).map(Some));
        let database = match database {
            None if s.problems.is_empty() => Some(Database::default()),
            database => database,
        };
        let secrets = if needs_secret {
            WebhookSecrets::resolve(s, database.as_ref())
        } else {
            for name in SECRETS {
                s.take(name);
            }
            WebhookSecrets::default()
        };
        let listen = s.read("listen", ([127, 0, 0, 1], 3000).into(), values::address);
        let metrics_listen = s.read("metrics-listen", None, |text| {
            values::address(text).map(Some)
        });
        s.read("mode", (), mode);
        let time_zone = s.read("timezone", None, |name| zone(name).map(Some));
        let lease = s.read(
            "lease",
            Duration::from_secs(30),
            values::duration_from(LeasePolicy::MIN_LEASE),
        );
        let attempts = s.read("max-attempts", 8, values::count(1000));
        let config = Self {
            listen,
            metrics_listen,
            database: database.unwrap_or_default(),
            secrets,
            time_zone: time_zone.unwrap_or_else(|| TimeZone::try_system().unwrap_or(TimeZone::UTC)),
            trust: LocalTrust {
                collaborators: s.read("trust-collaborators", false, values::boolean),
            },
            lease: LeasePolicy::default()
                .lease(lease)
                .max_hold(lease.max(Duration::from_secs(15 * 60)))
                .max_attempts(attempts),
            ack_after: s.read(
                "ack-after",
                8 * SECOND,
                values::duration_from(Duration::from_millis(1)),
            ),
            drain: s.read("drain", 25 * SECOND, values::duration),
            body_limit: s.read("body-limit", 25 * MIB, values::size),
            body_timeout: s.read(
                "body-timeout",
                10 * SECOND,
                values::duration_from(Duration::from_millis(1)),
            ),
            header_timeout: s.read(
                "header-timeout",
                10 * SECOND,
                values::duration_from(Duration::from_millis(1)),
            ),
            memory_budget: s.read("memory-budget", 256 * MIB, values::size),
            max_connections: s.read("max-connections", 512, values::count(1_000_000)),
            log: s.read("log", LogFilter::default(), str::parse),
            log_format: s.read("log-format", LogFormat::default(), str::parse),
            warnings: Vec::new(),
        };
        config.finish(settings)
    }

    fn finish(mut self, mut settings: Settings) -> Result<Self, Error> {
        if self.memory_budget < self.body_limit {
            settings.problems.push(format!(
                "memory-budget ({} bytes) is smaller than body-limit ({} bytes), and the longest payload would \
                 never be received; raise the one or lower the other",
                self.memory_budget, self.body_limit
            ));
        }
        if self.ack_after >= 10 * SECOND {
            settings.warnings.push(format!(
                "ack-after is {:?}, and GitHub gives up after 10s",
                self.ack_after
            ));
        }
        self.warnings = settings.warnings;
        match settings.problems {
            problems if problems.is_empty() => Ok(self),
            problems => Err(Error::Config(problems)),
        }
    }
}

const SECRETS: [&str; 4] = [
    "webhook-secret",
    "webhook-secret-file",
    "webhook-secret-previous",
    "webhook-secret-previous-file",
];

fn mode(name: &str) -> Result<(), String> {
    match name {
        "inline" => Ok(()),
        "durable" => Err("`durable` is not there yet; write inline".to_owned()),
        _ => Err(format!("`{name}` is not a mode; write inline")),
    }
}

fn zone(name: &str) -> Result<TimeZone, String> {
    TimeZone::get(name).map_err(|_| {
        format!(
            "`{name}` is not a time zone that is known here; write one such as Europe/Berlin or UTC"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(flags: &[(&str, &str)], env: &[(&str, &str)], file: &str) -> Result<Config, Error> {
        Config::resolve(Settings::for_tests(flags, env, file), false)
    }

    fn problems(env: &[(&str, &str)], file: &str) -> Vec<String> {
        match config(&[], env, file) {
            Err(Error::Config(problems)) => problems,
            other => panic!("no problems: {other:?}"),
        }
    }

    #[test]
    fn a_flag_goes_before_the_environment_and_that_before_the_file() {
        let flag = [("lease", "1s")];
        let env = [("lease", "2s")];
        let file = "lease = '3s'";
        let lease = |config: Result<Config, Error>| config.unwrap().lease.lease_length().as_secs();
        assert_eq!(lease(config(&flag, &env, file)), 1);
        assert_eq!(lease(config(&[], &env, file)), 2);
        assert_eq!(lease(config(&[], &[], file)), 3);
        assert_eq!(lease(config(&[], &[], "")), 30);
    }

    #[test]
    fn a_file_has_numbers_and_booleans_too() {
        let config = config(
            &[],
            &[],
            "max-attempts = 3\ntrust-collaborators = true\nbody-limit = 1024",
        )
        .unwrap();
        assert_eq!(config.lease.attempts(), 3);
        assert!(config.trust.collaborators);
        assert_eq!(config.body_limit, 1024);
    }

    #[test]
    fn every_problem_is_named_at_once_with_its_place() {
        let env = [
            ("listen", "somewhere"),
            ("timezone", "Mars/Olympus"),
            ("mode", "durable"),
            ("database-url", "mysql://x"),
        ];
        let problems = problems(
            &env,
            "lease = '30'\nlog-format = []\nsecret = 'x'\nurl = 'y'",
        );
        let begins = [
            "`log-format` in hookclaim.toml: give a string",
            "hookclaim.toml: no such option: `secret`, `url`",
            "HOOKCLAIM_DATABASE_URL: ",
            "HOOKCLAIM_LISTEN: `somewhere` is not an address",
            "HOOKCLAIM_MODE: `durable` is not there yet",
            "HOOKCLAIM_TIMEZONE: `Mars/Olympus`",
            "`lease` in hookclaim.toml: `30` is not a duration",
        ];
        assert_eq!(problems.len(), begins.len(), "{problems:#?}");
        for begin in begins {
            let found = problems.iter().any(|problem| problem.starts_with(begin));
            assert!(found, "{begin}: {problems:#?}");
        }
    }

    #[test]
    fn a_file_that_is_not_toml_is_told_by_line_and_not_quoted() {
        let problems = problems(&[], "lease = '3s'\nwebhook-secret = hunter2\n");
        assert_eq!(problems.len(), 1, "{problems:?}");
        assert!(problems[0].starts_with("hookclaim.toml: line 2 is not TOML"));
        assert!(!problems[0].contains("hunter2"), "{problems:?}");
    }

    #[test]
    fn every_option_is_used() {
        for arg in <crate::cli::Options as clap::Args>::augment_args(clap::Command::new(""))
            .get_arguments()
        {
            let name = arg.get_long().unwrap();
            // No option takes an empty value: a problem shows that somebody looked at it.
            let settings = Settings::for_tests(&[(name, "")], &[], "");
            let looked_at = name == "config" || Config::resolve(settings, true).is_err();
            assert!(looked_at, "{name}");
        }
    }

    #[test]
    fn debug_output_hides_secrets() {
        let settings = Settings::for_tests(&[], &[("webhook-secret", "hunter2hunter2")], "");
        assert!(!format!("{settings:?}").contains("hunter2"));
        let config = Config::resolve(settings, true).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
    }
}
