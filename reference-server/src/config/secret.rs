//! Where the webhook's secret comes from.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use hookclaim::{Secret, SecretSet};
use secrecy::{ExposeSecret, SecretString};

use super::given;
use super::settings::Settings;
use crate::database::Database;
use crate::error::{Context as _, Error};

/// The file that a secret of our own making is kept in, beside the database.
const FILE_NAME: &str = "hookclaim.secret";

const WHAT: &str = "the webhook secret";

/// The secrets that were configured.
#[derive(Clone, Debug, Default)]
pub struct WebhookSecrets {
    current: Option<SecretString>,
    previous: Option<SecretString>,
    generated: Option<PathBuf>,
}

impl WebhookSecrets {
    /// Exactly this secret.
    #[must_use]
    pub fn of(secret: SecretString) -> Self {
        Self {
            current: Some(secret),
            ..Self::default()
        }
    }

    /// Reads what is configured; what is wrong with it becomes a problem of the settings.
    pub(super) fn resolve(settings: &mut Settings, database: Option<&Database>) -> Self {
        let before = settings.problems.len();
        let mut current = read(settings, "webhook-secret", "webhook-secret-file");
        let previous = read(
            settings,
            "webhook-secret-previous",
            "webhook-secret-previous-file",
        );
        let failed = settings.problems.len() > before;
        let mut generated = None;
        match database {
            _ if current.is_some() || failed => {}
            _ if previous.is_some() => settings.problems.push(
                "HOOKCLAIM_WEBHOOK_SECRET_PREVIOUS is set and HOOKCLAIM_WEBHOOK_SECRET is not; set both, or only \
                 the latter"
                    .to_owned(),
            ),
            Some(Database::Sqlite(path)) => {
                let path = path.with_file_name(FILE_NAME);
                current = read_generated(settings, &path);
                generated = Some(path);
            }
            Some(Database::Postgres(_)) => settings.problems.push(
                "no webhook secret is set; set HOOKCLAIM_WEBHOOK_SECRET or HOOKCLAIM_WEBHOOK_SECRET_FILE to the \
                 secret entered in the webhook's settings"
                    .to_owned(),
            ),
            None => {}
        }
        Self {
            current,
            previous,
            generated,
        }
    }

    /// The secret to sign with.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if there is none yet.
    pub fn signing(&self) -> Result<&SecretString, Error> {
        self.current.as_ref().ok_or_else(|| {
            let path = self.generated.as_deref().unwrap_or(Path::new(FILE_NAME));
            Error::config(format!(
                "there is no webhook secret to sign with: HOOKCLAIM_WEBHOOK_SECRET is not set and {} does not exist; \
                 set it, or start `hookclaim serve` first, which makes one",
                path.display()
            ))
        })
    }

    /// The secrets to verify with. If none was configured and the database is a file, one is made and kept beside it;
    /// the path tells where it is kept.
    ///
    /// # Errors
    ///
    /// [`Error`] if there is none and none can be made.
    pub fn verifying(&mut self) -> Result<(SecretSet, Option<&Path>), Error> {
        if let (None, Some(path)) = (&self.current, &self.generated) {
            self.current = Some(make(path)?);
        }
        let current = named("current", self.signing()?)?;
        let set = match &self.previous {
            Some(previous) => SecretSet::new(current).and(named("previous", previous)?),
            None => SecretSet::new(current),
        };
        Ok((set, self.generated.as_deref()))
    }
}

fn named(name: &'static str, secret: &SecretString) -> Result<Secret, Error> {
    Secret::new(name, secret.expose_secret()).map_err(|error| Error::config(error.to_string()))
}

/// A secret given as text or as a file, whichever was given in the better place.
fn read(settings: &mut Settings, name: &str, file: &str) -> Option<SecretString> {
    let given = given::read(settings, name, file, WHAT)?;
    let secret = match &given.path {
        Some(path) => without_line_end(settings, path, given.text),
        None => given.text,
    };
    not_blank(settings, &given.origin, secret)
}

fn not_blank(settings: &mut Settings, origin: &str, secret: String) -> Option<SecretString> {
    if secret.trim().is_empty() {
        settings.problems.push(format!(
            "{origin}: the webhook secret is empty or blank, and anybody could sign with it; set it to the secret \
             entered in the webhook's settings, or unset it"
        ));
        return None;
    }
    Some(secret.into())
}

/// The content of a file, without the line end that editors and `echo` leave behind.
fn without_line_end(settings: &mut Settings, path: &Path, mut secret: String) -> String {
    if secret.ends_with('\n') {
        secret.pop();
        if secret.ends_with('\r') {
            secret.pop();
        }
        settings.warnings.push(format!(
            "{} ends in a line end, which is not taken as part of the secret",
            path.display()
        ));
    }
    secret
}

fn read_generated(settings: &mut Settings, path: &Path) -> Option<SecretString> {
    if matches!(path.try_exists(), Ok(false)) {
        return None;
    }
    let secret = given::content(settings, "the secret made at the first start", path, WHAT)?;
    let secret = without_line_end(settings, path, secret);
    not_blank(settings, &path.display().to_string(), secret)
}

/// Makes a secret and keeps it, or takes the one that another process has just kept.
///
/// The file appears with its whole content and never replaces another: it is written under a name of its own first,
/// and linked to its place, which fails if there is one already.
fn make(path: &Path) -> Result<SecretString, Error> {
    let mut random = [0; 32];
    getrandom::fill(&mut random).context("the operating system has no randomness")?;
    let secret = crate::hex(&random);
    let draft = path.with_file_name(format!(".{FILE_NAME}.{}", uuid::Uuid::new_v4()));
    let cannot = || format!("cannot keep a webhook secret in {}", path.display());
    let written = write_private(&draft, &secret).and_then(|()| std::fs::hard_link(&draft, path));
    let removed = std::fs::remove_file(&draft);
    match written {
        Ok(()) => {
            removed.context(cannot())?;
            Ok(secret.into())
        }
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
            let kept = std::fs::read_to_string(path).context(cannot())?;
            Ok(kept.trim_end_matches(['\r', '\n']).into())
        }
        Err(error) => Err(error).context(cannot()),
    }
}

fn write_private(path: &Path, secret: &str) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(secret.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolve(env: &[(&str, &str)], database: &Database) -> (WebhookSecrets, Settings) {
        let mut settings = Settings::for_tests(&[], env, "");
        let secrets = WebhookSecrets::resolve(&mut settings, Some(database));
        (secrets, settings)
    }

    fn sqlite(dir: &tempfile::TempDir) -> Database {
        Database::Sqlite(dir.path().join("hookclaim.db"))
    }

    #[test]
    fn a_secret_is_taken_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (secrets, settings) = resolve(&[("webhook-secret", " a,b ")], &sqlite(&dir));
        assert_eq!(settings.problems, [""; 0]);
        assert_eq!(secrets.signing().unwrap().expose_secret(), " a,b ");
    }

    #[test]
    fn a_secret_file_loses_one_line_end_with_a_warning() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        for (content, warnings) in [("a b\r\n", 1), ("a b\n", 1), ("a b", 0)] {
            std::fs::write(&file, content).unwrap();
            let env = [("webhook-secret-file", file.to_str().unwrap())];
            let (secrets, settings) = resolve(&env, &sqlite(&dir));
            assert_eq!(secrets.signing().unwrap().expose_secret(), "a b");
            assert_eq!(settings.warnings.len(), warnings, "{content:?}");
        }
    }

    #[test]
    fn blank_missing_and_doubled_secrets_are_problems() {
        let dir = tempfile::tempdir().unwrap();
        let postgres = Database::Postgres("postgres://localhost/x".into());
        let rows: [(&[(&str, &str)], &Database); 6] = [
            (&[("webhook-secret", "")], &sqlite(&dir)),
            (&[("webhook-secret", " \t")], &sqlite(&dir)),
            (
                &[("webhook-secret", "a"), ("webhook-secret-previous", " ")],
                &sqlite(&dir),
            ),
            (&[("webhook-secret-previous", "a")], &sqlite(&dir)),
            (
                &[("webhook-secret", "a"), ("webhook-secret-file", "b")],
                &sqlite(&dir),
            ),
            (&[], &postgres),
        ];
        for (env, database) in rows {
            let (_, settings) = resolve(env, database);
            assert_eq!(
                settings.problems.len(),
                1,
                "{env:?}: {:?}",
                settings.problems
            );
        }
    }

    #[test]
    fn an_unset_secret_is_made_once_and_kept_for_the_owner_alone() {
        let dir = tempfile::tempdir().unwrap();
        let (mut secrets, _) = resolve(&[], &sqlite(&dir));
        assert!(secrets.signing().is_err());
        let (_, path) = secrets.verifying().unwrap();
        let path = path.unwrap().to_path_buf();
        assert_eq!(path, dir.path().join("hookclaim.secret"));
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            let mode = std::fs::metadata(&path).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);

        let made = secrets.signing().unwrap().expose_secret().to_owned();
        assert_eq!(made.len(), 64);
        assert_eq!(make(&path).unwrap().expose_secret(), made);
        let (again, _) = resolve(&[], &sqlite(&dir));
        assert_eq!(again.signing().unwrap().expose_secret(), made);
    }
}
