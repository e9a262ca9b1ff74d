//! The configuration: options as the program uses them.

mod given;
mod inbox;
mod secret;
mod settings;
mod values;

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::Duration;

use hookclaim::{LeasePolicy, Retention, SealKeys};
use jiff::tz::TimeZone;

pub use self::inbox::Mode;
pub use self::secret::WebhookSecrets;
pub(crate) use self::settings::Settings;
pub(crate) use self::values::duration;
use crate::database::{Database, Store};
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
    /// How deliveries are worked on.
    pub mode: Mode,
    /// Deliveries that this process's workers run at a time.
    pub workers: u32,
    /// How often workers ask for what nobody announced.
    pub poll_interval: Duration,
    /// Waiting deliveries beyond which new ones are turned away.
    pub backlog_limit: Option<NonZeroU64>,
    /// How long and how often a delivery is worked on.
    pub lease: LeasePolicy,
    /// How long finished deliveries are remembered.
    pub retention: Retention,
    /// How often the server forgets what is past that, if it does.
    pub prune_every: Option<Duration>,
    /// What stored payloads are sealed with.
    pub seal: Option<SealKeys>,
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

/// What a command cannot do without. The rest of the secrets is left alone: who looks at a report need not be able to
/// read them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Needs {
    pub(crate) secrets: bool,
    pub(crate) seal: bool,
}

const MIB: u64 = 1 << 20;
const SECOND: Duration = Duration::from_secs(1);

impl Config {
    /// Reads the options. What is wrong with any of them is told at once.
    pub(crate) fn resolve(mut settings: Settings, needs: Needs) -> Result<Self, Error> {
        let s = &mut settings;
        let database = s.read("database-url", None, |url| Database::parse(url).map(Some));
        let database = match database {
            None if s.problems.is_empty() => Some(Database::default()),
            database => database,
        };
        let secrets = if needs.secrets {
            WebhookSecrets::resolve(s, database.as_ref())
        } else {
            s.skip(&SECRETS);
            WebhookSecrets::default()
        };
        let seal = if needs.seal {
            inbox::seal(s)
        } else {
            s.skip(&SEAL_KEYS);
            None
        };
        let listen = s.read("listen", ([127, 0, 0, 1], 3000).into(), values::address);
        let metrics_listen = s.read("metrics-listen", None, |text| {
            values::address(text).map(Some)
        });
        let time_zone = s.read("timezone", None, |name| zone(name).map(Some));
        let lease = s.read(
            "lease",
            Duration::from_secs(30),
            values::duration_from(LeasePolicy::MIN_LEASE),
        );
        let attempts = s.read("max-attempts", 8, values::count(1000));
        let (retention, keep_payload) = inbox::retention(s);
        let prune_every = s.read("prune-every", 600 * SECOND, values::zero_or_from(SECOND));
        let config = Self {
            listen,
            metrics_listen,
            database: database.unwrap_or_default(),
            secrets,
            time_zone: time_zone.unwrap_or_else(|| TimeZone::try_system().unwrap_or(TimeZone::UTC)),
            trust: LocalTrust {
                collaborators: s.read("trust-collaborators", false, values::boolean),
            },
            mode: s.read("mode", Mode::default(), str::parse),
            workers: s.read("workers", 16, values::count(10_000)),
            poll_interval: s.read(
                "poll-interval",
                SECOND,
                values::duration_from(Duration::from_millis(10)),
            ),
            backlog_limit: NonZeroU64::new(s.read("backlog-limit", 0, values::number)),
            lease: LeasePolicy::default()
                .lease(lease)
                .max_hold(lease.max(Duration::from_secs(15 * 60)))
                .max_attempts(attempts)
                .keep_payload(keep_payload),
            retention,
            prune_every: Some(prune_every).filter(|every| !every.is_zero()),
            seal,
            ack_after: s.read(
                "ack-after",
                8 * SECOND,
                values::duration_from(Duration::from_millis(1)),
            ),
            drain: s.read("drain", 25 * SECOND, duration),
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

    /// The store, with what it seals payloads with.
    pub(crate) async fn open(&self) -> Result<Store, Error> {
        Ok(self.database.open().await?.sealed(self.seal.clone()))
    }

    /// The same, of a database that is there already.
    pub(crate) async fn open_existing(&self) -> Result<Store, Error> {
        let store = self.database.open_existing().await?;
        Ok(store.sealed(self.seal.clone()))
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

const SEAL_KEYS: [&str; 4] = [
    "seal-key",
    "seal-key-file",
    "seal-key-previous",
    "seal-key-previous-file",
];

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

    const NOTHING: Needs = Needs {
        secrets: false,
        seal: false,
    };
    const EVERYTHING: Needs = Needs {
        secrets: true,
        seal: true,
    };

    fn config(flags: &[(&str, &str)], env: &[(&str, &str)], file: &str) -> Result<Config, Error> {
        Config::resolve(Settings::for_tests(flags, env, file), NOTHING)
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
            "max-attempts = 3\ntrust-collaborators = true\nbody-limit = 1024\nworkers = 4\nbacklog-limit = 10",
        )
        .unwrap();
        assert_eq!(config.workers, 4);
        assert_eq!(config.backlog_limit, NonZeroU64::new(10));
        assert_eq!(config.lease.attempts(), 3);
        assert!(config.trust.collaborators);
        assert_eq!(config.body_limit, 1024);
    }

    #[test]
    fn every_problem_is_named_at_once_with_its_place() {
        let env = [
            ("listen", "somewhere"),
            ("timezone", "Mars/Olympus"),
            ("mode", "sometimes"),
            ("database-url", "mysql://x"),
        ];
        let problems = problems(
            &env,
            "lease = '30'\nlog-format = []\nsecret = 'x'\nurl = 'y'\nworkers = 0\nretention = '1d'\n\
             backlog-limit = -1\nprune-every = '10ms'\npoll-interval = '1ms'",
        );
        let begins = [
            "`log-format` in hookclaim.toml: give a string",
            "hookclaim.toml: no such option: `secret`, `url`",
            "HOOKCLAIM_DATABASE_URL: ",
            "HOOKCLAIM_LISTEN: `somewhere` is not an address",
            "HOOKCLAIM_MODE: `sometimes` is not a mode; write durable or inline",
            "HOOKCLAIM_TIMEZONE: `Mars/Olympus`",
            "`lease` in hookclaim.toml: `30` is not a duration",
            "`workers` in hookclaim.toml: `0` is not a whole number from 1",
            "`retention` in hookclaim.toml: `1d` is too short",
            "`backlog-limit` in hookclaim.toml: `-1` is not a whole number",
            "`prune-every` in hookclaim.toml: `10ms` is too short",
            "`poll-interval` in hookclaim.toml: `1ms` is too short",
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
            let looked_at = name == "config" || Config::resolve(settings, EVERYTHING).is_err();
            assert!(looked_at, "{name}");
        }
    }

    #[test]
    fn what_nobody_set_has_a_default() {
        let config = config(&[], &[], "").unwrap();
        assert_eq!((config.mode, config.workers), (Mode::Durable, 16));
        assert_eq!(config.retention, Retention::default());
        assert_eq!(config.prune_every, Some(600 * SECOND));
        assert_eq!((config.poll_interval, config.backlog_limit), (SECOND, None));
        assert!(config.seal.is_none() && config.warnings.is_empty());
    }

    #[test]
    fn pruning_can_be_left_to_others_and_unused_secrets_are_not_read() {
        let env = [("prune-every", "0s"), ("seal-key-file", "/nowhere")];
        assert_eq!(config(&[], &env, "").unwrap().prune_every, None);
        let settings = Settings::for_tests(&[], &env, "");
        assert!(Config::resolve(settings, EVERYTHING).is_err());
    }

    #[test]
    fn debug_output_hides_secrets() {
        let key = "ab".repeat(32);
        let env = [("webhook-secret", "hunter2hunter2"), ("seal-key", &key)];
        let settings = Settings::for_tests(&[], &env, "");
        assert!(!format!("{settings:?}").contains("hunter2"));
        let config = Config::resolve(settings, EVERYTHING).unwrap();
        assert!(!format!("{config:?}").contains("hunter2"));
        assert!(!format!("{config:?}").contains("abab"));
    }
}
