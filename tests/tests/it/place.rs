//! The server as a user has it: a directory, perhaps a database, and the real binary.

use std::path::{Path, PathBuf};

use tempfile::TempDir;

use hookclaim_tests::fixtures::IssueComment;
use hookclaim_tests::http::{Signed, signed};
use hookclaim_tests::postgres::PgCluster;
use hookclaim_tests::process::{Finished, Hookclaim};

pub(crate) const SECRET: &str = "a secret of 32 bytes, or more...";

/// What a user has: a directory, and perhaps a database.
pub(crate) struct Place {
    pub(crate) directory: TempDir,
    pub(crate) database: Option<String>,
}

impl Place {
    pub(crate) fn sqlite() -> Self {
        Self {
            directory: tempfile::tempdir().expect("a directory"),
            database: None,
        }
    }

    pub(crate) async fn postgres() -> Self {
        Self {
            database: Some(PgCluster::shared().fresh_database().await),
            ..Self::sqlite()
        }
    }

    /// One on each database.
    pub(crate) async fn each() -> [Self; 2] {
        [Self::sqlite(), Self::postgres().await]
    }

    pub(crate) fn name(&self) -> &'static str {
        self.database.as_ref().map_or("SQLite", |_| "Postgres")
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// A command; on Postgres with the two options that it cannot do without.
    pub(crate) fn command(&self, arguments: &[&str]) -> Hookclaim {
        let command = Hookclaim::new(self.path(), arguments).env("TIMEZONE", "UTC");
        match &self.database {
            Some(url) => command
                .env("DATABASE_URL", url)
                .env("WEBHOOK_SECRET", SECRET),
            None => command,
        }
    }

    /// `hookclaim serve` in inline mode, where the answer tells what came of a delivery.
    pub(crate) fn serve(&self) -> Hookclaim {
        self.serve_durable().env("MODE", "inline")
    }

    /// `hookclaim serve` as it is by itself.
    pub(crate) fn serve_durable(&self) -> Hookclaim {
        self.command(&["serve"]).env("LISTEN", "127.0.0.1:0")
    }

    /// The secret that the server verifies with.
    pub(crate) fn secret(&self) -> String {
        match self.database {
            Some(_) => SECRET.to_owned(),
            None => {
                std::fs::read_to_string(self.path().join("hookclaim.secret")).expect("it was made")
            }
        }
    }

    pub(crate) fn report(&self) -> Vec<serde_json::Value> {
        let report = ok(self.command(&["report", "--json"]).run());
        serde_json::from_str(&report.stdout).expect("an array")
    }
}

pub(crate) fn ok(finished: Finished) -> Finished {
    assert_eq!(finished.code, Some(0), "{finished:?}");
    finished
}

/// A file of the server's repository.
pub(crate) fn fixture(name: &str) -> PathBuf {
    let server = Path::new(env!("CARGO_MANIFEST_DIR")).with_file_name("reference-server");
    server.join("fixtures").join(name)
}

pub(crate) fn log_comment(secret: &str, id: &str, comment: u64) -> Signed {
    let payload = IssueComment::new("/log 1m of work")
        .comment(comment)
        .payload();
    signed(secret, "issue_comment", id, payload)
}
