//! How deliveries are kept and worked on.

use std::str::FromStr;
use std::time::Duration;

use hookclaim::{Retention, SealKeys};

use super::settings::Settings;
use super::{given, values};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// How deliveries are worked on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// They are stored and answered at once, and workers run them until they complete or are dead.
    #[default]
    Durable,
    /// They run within the request, and a redelivery is the only retry.
    Inline,
}

impl Mode {
    /// Its name, as it is configured.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Durable => "durable",
            Self::Inline => "inline",
        }
    }
}

impl FromStr for Mode {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        match name {
            "durable" => Ok(Self::Durable),
            "inline" => Ok(Self::Inline),
            _ => Err(format!("`{name}` is not a mode; write durable or inline")),
        }
    }
}

/// How long finished deliveries are remembered, and whether payloads of completed ones are kept at all.
pub(super) fn retention(settings: &mut Settings) -> (Retention, bool) {
    let short = settings.read("dangerously-short-retention", false, values::boolean);
    let completed = settings.read("retention", 30 * DAY, |text| {
        let keep = values::long_duration(text)?;
        if keep < Retention::FLOOR && !short {
            return Err(format!(
                "`{text}` is too short: completed deliveries are remembered for 7d at least, since people can \
                 redeliver on GitHub for 3 days, and what was forgotten by then is done a second time; write 7d or \
                 more, or set dangerously-short-retention if that may happen"
            ));
        }
        Ok(keep)
    });
    if completed < Retention::FLOOR {
        settings.warnings.push(format!(
            "completed deliveries are forgotten after {completed:?}: one that is sent again later is done again"
        ));
    }
    let dead = settings.read("retention-dead", 30 * DAY, values::long_duration);
    let payload = settings.read("retention-payload", 3 * DAY, values::long_duration);
    let retention = Retention::default()
        .completed_and_run_again_after(completed)
        .dead(dead)
        .payload(payload);
    (retention, payload > Duration::ZERO)
}

/// What payloads are sealed with.
pub(super) fn seal(settings: &mut Settings) -> Option<SealKeys> {
    let before = settings.problems.len();
    let current = given::read(settings, "seal-key", "seal-key-file", KEY);
    let previous = given::read(settings, "seal-key-previous", "seal-key-previous-file", KEY);
    let failed = settings.problems.len() > before;
    let keys =
        current.and_then(|given| understood(settings, &given.origin, SealKeys::parse(&given.text)));
    match (keys, previous) {
        (Some(keys), Some(given)) => {
            let both = keys.previous(&given.text);
            understood(settings, &given.origin, both)
        }
        (None, Some(given)) => {
            // A key alone that only opens would leave everything new unsealed, which nobody should get by mistake.
            if understood(settings, &given.origin, SealKeys::parse(&given.text)).is_some()
                && !failed
                && settings.problems.len() == before
            {
                settings.problems.push(format!(
                    "{} is set and there is no key to seal with; set HOOKCLAIM_SEAL_KEY or HOOKCLAIM_SEAL_KEY_FILE \
                     as well",
                    given.origin
                ));
            }
            None
        }
        (keys, None) => keys,
    }
}

const KEY: &str = "the key that payloads are sealed with";

fn understood<E: std::fmt::Display>(
    settings: &mut Settings,
    origin: &str,
    keys: Result<SealKeys, E>,
) -> Option<SealKeys> {
    keys.map_err(|error| settings.problems.push(format!("{origin}: {error}")))
        .ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(env: &[(&str, &str)]) -> Vec<String> {
        let mut settings = Settings::for_tests(&[], env, "");
        retention(&mut settings);
        seal(&mut settings);
        settings.problems
    }

    #[test]
    fn a_retention_that_lets_redeliveries_run_again_has_to_be_meant() {
        let found = problems(&[("retention", "6d23h")]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].starts_with("HOOKCLAIM_RETENTION: `6d23h` is too short"));
        assert!(
            found[0].contains("dangerously-short-retention"),
            "{found:?}"
        );
        assert_eq!(problems(&[("retention", "7d")]), [""; 0]);

        let env = [("retention", "1h"), ("dangerously-short-retention", "true")];
        let mut settings = Settings::for_tests(&[], &env, "");
        let (short, keep) = retention(&mut settings);
        assert_eq!(settings.problems, [""; 0]);
        assert_eq!(settings.warnings.len(), 1);
        let hour = Duration::from_secs(3600);
        assert_eq!(
            short,
            Retention::default().completed_and_run_again_after(hour)
        );
        assert!(keep);
    }

    #[test]
    fn retention_has_three_windows_and_no_payload_is_kept_for_0s() {
        let env = [
            ("retention", "400d"),
            ("retention-dead", "90d"),
            ("retention-payload", "0s"),
        ];
        let mut settings = Settings::for_tests(&[], &env, "");
        let (read, keep) = retention(&mut settings);
        assert_eq!((&settings.problems, keep), (&Vec::new(), false));
        let expected = Retention::default()
            .completed(400 * DAY)
            .unwrap()
            .dead(90 * DAY)
            .payload(Duration::ZERO);
        assert_eq!(read, expected);
        let (read, keep) = retention(&mut Settings::for_tests(&[], &[], ""));
        assert_eq!((read, keep), (Retention::default(), true));
    }

    #[test]
    fn keys_are_checked_and_never_quoted() {
        let (key, other) = ("ab".repeat(32), "cd".repeat(32));
        let rows: [(&[(&str, &str)], usize); 8] = [
            (&[], 0),
            (&[("seal-key", &key)], 0),
            (&[("seal-key", &key), ("seal-key-previous", &other)], 0),
            (&[("seal-key", "")], 1),
            (&[("seal-key", "hunter2hunter2")], 1),
            (
                &[("seal-key", "hunter2"), ("seal-key-previous", "hunter2")],
                2,
            ),
            (&[("seal-key-previous", &key)], 1),
            (&[("seal-key", &key), ("seal-key-file", "/nowhere")], 1),
        ];
        for (env, count) in rows {
            let found = problems(env);
            assert_eq!(found.len(), count, "{env:?}: {found:?}");
            let told = found.concat();
            assert!(!told.contains("hunter2") && !told.contains(&key), "{told}");
        }
        let found = problems(&[("seal-key-file", "/nowhere/key")]);
        assert!(found[0].contains("/nowhere/key"), "{found:?}");
    }

    #[test]
    fn a_key_file_may_end_in_a_line_end_and_the_current_key_seals() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("key");
        std::fs::write(&file, "ab".repeat(32) + "\n").unwrap();
        let env = [
            ("seal-key-file", file.to_str().unwrap()),
            ("seal-key-previous", &"cd".repeat(32)),
        ];
        let mut settings = Settings::for_tests(&[], &env, "");
        let keys = seal(&mut settings).unwrap();
        assert_eq!((settings.problems.len(), settings.warnings.len()), (0, 0));
        let current = SealKeys::parse(&"ab".repeat(32)).unwrap();
        assert_eq!(keys.name(), current.name());
    }
}
