//! Which database.

use std::fmt;
use std::path::{Path, PathBuf};

use hookclaim::{PostgresStore, SealKeys, SqliteStore};
use secrecy::{ExposeSecret, SecretString};
use sqlx::postgres::PgConnectOptions;

use crate::error::{Context as _, Error};

/// Where deliveries and entries are kept.
#[derive(Clone, Debug)]
pub enum Database {
    /// A file, by its absolute path.
    Sqlite(PathBuf),
    /// A Postgres, by its URL, which may hold a password.
    Postgres(SecretString),
}

impl Database {
    /// Understands a database URL.
    ///
    /// # Errors
    ///
    /// What is wrong with it, without quoting it: a URL may hold a password.
    pub fn parse(url: &str) -> Result<Self, String> {
        if let Some(rest) = url.strip_prefix("sqlite:") {
            let path = rest.strip_prefix("//").unwrap_or(rest);
            return match path {
                "" => Err("the file is missing; write one such as sqlite:hookclaim.db".to_owned()),
                ":memory:" => Err(
                    "a database in memory would forget what was received; write a file such as sqlite:hookclaim.db"
                        .to_owned(),
                ),
                path if path.contains('?') => {
                    Err("parameters are not supported for SQLite; write sqlite: and the file alone".to_owned())
                }
                path => absolute(Path::new(path)).map(Self::Sqlite),
            };
        }
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return match url.parse::<PgConnectOptions>() {
                Ok(_) => Ok(Self::Postgres(url.into())),
                Err(_) => Err(
                    "this Postgres URL cannot be read; write postgres://user:password@host:5432/database, and encode \
                     what is not a letter or a digit in the password, such as %40 for @"
                        .to_owned(),
                ),
            };
        }
        Err(
            "this is not a database URL; write sqlite:FILE, or postgres://user:password@host/database"
                .to_owned(),
        )
    }
}

/// A database that is open.
#[derive(Clone, Debug)]
pub(crate) enum Store {
    Sqlite(SqliteStore),
    Postgres(PostgresStore),
}

impl Database {
    /// Opens it; a file that is not there is created.
    pub(crate) async fn open(&self) -> Result<Store, Error> {
        match self {
            Self::Sqlite(path) => SqliteStore::open(path)
                .await
                .map(Store::Sqlite)
                .context(format!("cannot open {self}")),
            Self::Postgres(url) => PostgresStore::connect(url.expose_secret())
                .await
                .map(Store::Postgres)
                .context("cannot open the Postgres database of HOOKCLAIM_DATABASE_URL"),
        }
    }

    /// Opens it to look at it: a file that is not there is an error, not an empty database.
    pub(crate) async fn open_existing(&self) -> Result<Store, Error> {
        if let Self::Sqlite(path) = self
            && !path.exists()
        {
            return Err(Error::failed(format!(
                "there is no database at {}; start `hookclaim serve` first, or set HOOKCLAIM_DATABASE_URL to the \
                 database it uses",
                path.display()
            )));
        }
        self.open().await
    }
}

impl Store {
    /// The same with its payloads sealed, if there are keys.
    pub(crate) fn sealed(self, keys: Option<SealKeys>) -> Self {
        match (self, keys) {
            (store, None) => store,
            (Self::Sqlite(store), Some(keys)) => Self::Sqlite(store.seal(keys)),
            (Self::Postgres(store), Some(keys)) => Self::Postgres(store.seal(keys)),
        }
    }
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// `hookclaim.db` in the working directory.
impl Default for Database {
    fn default() -> Self {
        let path = PathBuf::from("hookclaim.db");
        Self::Sqlite(std::path::absolute(&path).unwrap_or(path))
    }
}

/// What may be shown of it: the path, or no more than that it is Postgres.
impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sqlite(path) => write!(f, "sqlite:{}", path.display()),
            Self::Postgres(_) => f.write_str("postgres"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sqlite_paths_become_absolute() {
        let here = std::env::current_dir().unwrap();
        let rows = [
            ("sqlite:x.db", here.join("x.db")),
            ("sqlite://x.db", here.join("x.db")),
            ("sqlite:/data/x.db", PathBuf::from("/data/x.db")),
            ("sqlite:///data/x.db", PathBuf::from("/data/x.db")),
        ];
        for (url, expected) in rows {
            match Database::parse(url) {
                Ok(Database::Sqlite(path)) => assert_eq!(path, expected, "{url}"),
                other => panic!("{url}: {other:?}"),
            }
        }
    }

    #[test]
    fn what_is_not_a_database_url_is_refused_without_quoting_it() {
        let urls = [
            "",
            "x.db",
            "sqlite:",
            "sqlite::memory:",
            "sqlite:x?mode=ro",
            "mysql://u:hunter2@h",
            "postgres://u:hunter2@h:port/d",
        ];
        for url in urls {
            let problem = Database::parse(url).unwrap_err();
            assert!(!problem.contains("hunter2"), "{problem}");
        }
        let postgres = Database::parse("postgres://u:hunter2@h/d").unwrap();
        assert!(!format!("{postgres} {postgres:?}").contains("hunter2"));
    }
}
