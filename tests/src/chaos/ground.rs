//! Where it happens: a directory and a database, which writes down what is done to it.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use sqlx::postgres::PgRow;
use sqlx::sqlite::{SqliteConnectOptions, SqliteRow};
use sqlx::{Connection, FromRow, PgConnection, SqliteConnection};
use tempfile::TempDir;

use super::{LEASE, On};
use crate::postgres::{PgCluster, PgOptions};
use crate::process::Hookclaim;

pub(super) const SECRET: &str = "a secret of 32 bytes, or more...";

/// Attempts before a delivery is dead.
pub(super) const MAX_ATTEMPTS: i64 = 8;

/// The ledger refuses a second entry of a comment, and so would hide that it was tried. Hence what is written here, in
/// the same transaction and before it is refused. The sleep leaves time to be killed within the transaction.
const WATCH_POSTGRES: &str = "
create table chaos_effects (comment_id bigint not null);
create function chaos_effect() returns trigger language plpgsql as $$
begin
  insert into chaos_effects values (new.comment_id);
  perform pg_sleep(0.3 * random());
  return new;
end $$;
create trigger chaos_effect before insert on hookclaim_entries for each row execute function chaos_effect();
create table chaos_ends (delivery_id text not null, state bigint not null);
create function chaos_end() returns trigger language plpgsql as $$
begin
  insert into chaos_ends values (new.delivery_id, new.state);
  return null;
end $$;
create trigger chaos_end after update on hookclaim_deliveries for each row
  when ((old.state in (2, 4)) <> (new.state in (2, 4))) execute function chaos_end();
";

const WATCH_SQLITE: &str = "
create table chaos_effects (comment_id integer not null);
create trigger chaos_effect before insert on hookclaim_entries begin
  insert into chaos_effects values (new.comment_id);
end;
create table chaos_ends (delivery_id text not null, state integer not null);
create trigger chaos_end after update on hookclaim_deliveries
  when (old.state in (2, 4)) <> (new.state in (2, 4)) begin
  insert into chaos_ends values (new.delivery_id, new.state);
end;
";

/// A delivery's row. Some of it is there to be shown.
#[derive(Clone, Debug)]
#[allow(dead_code)]
pub(super) struct Row {
    pub(super) delivery_id: String,
    pub(super) state: i64,
    pub(super) attempts: i64,
    pub(super) fence: i64,
    pub(super) error_class: Option<String>,
    pub(super) last_error: Option<String>,
    pub(super) received_at: i64,
    pub(super) claimed_at: Option<i64>,
    pub(super) lease_until: Option<i64>,
    pub(super) retry_at: Option<i64>,
    pub(super) finished_at: Option<i64>,
}

type Columns = (
    String,
    i64,
    i64,
    i64,
    Option<String>,
    Option<String>,
    i64,
    Option<i64>,
    Option<i64>,
    Option<i64>,
    Option<i64>,
);

const ROWS: &str = "
select delivery_id, cast(state as bigint), cast(attempts as bigint), fence, error_class, last_error, received_at,
  claimed_at, lease_until, retry_at, finished_at
from hookclaim_deliveries order by received_at";

const OPEN: &str = "select count(*) from hookclaim_deliveries where state not in (2, 4)";

#[derive(Debug)]
pub(super) struct Ground {
    directory: TempDir,
    /// The cluster, and the URL of the database in it.
    postgres: Option<(PgCluster, String)>,
}

impl Ground {
    pub(super) async fn new(on: On) -> Self {
        let postgres = match on {
            On::Sqlite => None,
            On::Postgres { fsync } => {
                let cluster = PgCluster::start(PgOptions { fsync });
                let url = cluster.fresh_database().await;
                Some((cluster, url))
            }
        };
        let directory = tempfile::tempdir().expect("a directory");
        let ground = Self {
            directory,
            postgres,
        };
        let migrated = ground.command(&["migrate"]).run();
        assert_eq!(migrated.code, Some(0), "{migrated:?}");
        if let Some((_, url)) = &ground.postgres {
            let mut connection = PgConnection::connect(url).await.expect("it answers");
            sqlx::raw_sql(WATCH_POSTGRES)
                .execute(&mut connection)
                .await
                .expect("the triggers are made");
        } else {
            let options = SqliteConnectOptions::new().filename(ground.file());
            let mut connection = SqliteConnection::connect_with(&options)
                .await
                .expect("it opens");
            sqlx::raw_sql(WATCH_SQLITE)
                .execute(&mut connection)
                .await
                .expect("the triggers are made");
            connection.close().await.expect("it closes");
        }
        ground
    }

    pub(super) fn cluster(&self) -> Option<&PgCluster> {
        self.postgres.as_ref().map(|(cluster, _)| cluster)
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("hookclaim.db")
    }

    pub(super) fn command(&self, arguments: &[&str]) -> Hookclaim {
        let command = Hookclaim::new(self.directory.path(), arguments)
            .env("TIMEZONE", "UTC")
            .env("WEBHOOK_SECRET", SECRET);
        match &self.postgres {
            Some((_, url)) => command.env("DATABASE_URL", url),
            None => command,
        }
    }

    pub(super) fn serve(&self) -> Hookclaim {
        self.command(&["serve"])
            .env("LISTEN", "127.0.0.1:0")
            .env("MODE", "durable")
            .env("LEASE", format!("{}ms", LEASE.as_millis()))
            .env("MAX_ATTEMPTS", MAX_ATTEMPTS.to_string())
            .env("WORKERS", "8")
            .env("POLL_INTERVAL", "200ms")
            .env("DRAIN", "3s")
            .env("LOG", "info,tower_hookclaim=debug")
            .env("LOG_FORMAT", "json")
    }

    /// The answer to a question, on whichever database.
    async fn ask<T>(&self, question: &'static str) -> Result<Vec<T>, sqlx::Error>
    where
        T: for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> + Send + Unpin,
    {
        if let Some((_, url)) = &self.postgres {
            let mut connection = PgConnection::connect(url).await?;
            sqlx::query_as(question).fetch_all(&mut connection).await
        } else {
            let options = SqliteConnectOptions::new()
                .filename(self.file())
                .read_only(true);
            let mut connection = SqliteConnection::connect_with(&options).await?;
            sqlx::query_as(question).fetch_all(&mut connection).await
        }
    }

    async fn answer<T>(&self, question: &'static str) -> Vec<T>
    where
        T: for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> + Send + Unpin,
    {
        let answer = self.ask(question).await;
        answer.unwrap_or_else(|error| panic!("the database does not answer: {error}\n{question}"))
    }

    pub(super) async fn rows(&self) -> Vec<Row> {
        let rows: Vec<Columns> = self.answer(ROWS).await;
        rows.into_iter()
            .map(|columns| Row {
                delivery_id: columns.0,
                state: columns.1,
                attempts: columns.2,
                fence: columns.3,
                error_class: columns.4,
                last_error: columns.5,
                received_at: columns.6,
                claimed_at: columns.7,
                lease_until: columns.8,
                retry_at: columns.9,
                finished_at: columns.10,
            })
            .collect()
    }

    /// How often a transaction that committed had written an entry of a comment, or had tried to.
    pub(super) async fn effects(&self) -> Vec<(i64, i64)> {
        self.answer("select comment_id, count(*) from chaos_effects group by 1")
            .await
    }

    /// How many entries a comment has, and their minutes.
    pub(super) async fn entries(&self) -> Vec<(i64, i64, i64)> {
        let sum = "select comment_id, count(*), cast(sum(minutes) as bigint) from hookclaim_entries group by 1";
        self.answer(sum).await
    }

    /// Every time that a delivery became completed or dead, or ceased to be.
    pub(super) async fn ends(&self) -> Vec<(String, i64)> {
        self.answer("select delivery_id, state from chaos_ends")
            .await
    }

    /// Numbers that a redelivery of what is completed or dead must not change.
    pub(super) async fn tally(&self) -> (i64, i64, i64, i64, i64) {
        let counts = "
            select (select count(*) from chaos_effects), (select count(*) from chaos_ends),
              (select count(*) from hookclaim_deliveries),
              (select coalesce(cast(sum(fence) as bigint), 0) from hookclaim_deliveries),
              (select coalesce(cast(sum(minutes) as bigint), 0) from hookclaim_entries)";
        self.answer(counts).await[0]
    }

    /// Waits until every delivery is completed or dead, and names those that are not.
    pub(super) async fn settled_within(&self, patience: Duration) -> Vec<String> {
        let begun = Instant::now();
        loop {
            let open: Vec<(i64,)> = self.answer(OPEN).await;
            if open[0].0 == 0 {
                return Vec::new();
            }
            if begun.elapsed() > patience {
                let rows = self.rows().await;
                let open = rows.iter().filter(|row| !matches!(row.state, 2 | 4));
                return open.map(|row| format!("stuck: {row:?}")).collect();
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }
}
