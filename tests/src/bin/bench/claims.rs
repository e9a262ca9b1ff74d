//! P5 to P8: claims through the stores' API against statements one by one.

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hookclaim::{
    Claim, ClaimKey, ClaimToken, DeliveryId, DeliveryStore, EventName, Fingerprint, LeasePolicy,
    PostgresStore, Source, SqliteStore,
};
use hookclaim_tests::postgres::{PgCluster, PgOptions};
use sqlx::{Connection as _, PgConnection, PgPool};
use tokio::runtime::Runtime;
use tokio::sync::Mutex;

use super::method::{Report, median, pairs};

const WINDOW: Duration = Duration::from_secs(3);

pub(super) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}

/// A claim as the layer makes it.
pub(super) fn claim() -> Claim {
    let id = DeliveryId::new(hookclaim_tests::http::guid()).expect("visible ASCII");
    let event = EventName::new("issue_comment").expect("a name");
    Claim::bare(
        ClaimKey::delivery(Source::default(), &id),
        id,
        event,
        LeasePolicy::default(),
    )
    .action(Some("created"))
    .fingerprint(Some(Fingerprint::from_bytes(
        ClaimToken::random().to_bytes(),
    )))
}

/// Claims per second of so many callers, each of whom waits for its answer.
async fn claims<St: DeliveryStore>(store: &St, callers: usize) -> f64 {
    let begin = Instant::now();
    let end = begin + WINDOW;
    let tasks: Vec<_> = (0..callers)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut won = 0_u64;
                while Instant::now() < end {
                    store
                        .claim(claim())
                        .await
                        .expect("decided")
                        .won()
                        .expect("a new key is won");
                    won += 1;
                }
                won
            })
        })
        .collect();
    let mut won = 0;
    for task in tasks {
        won += task.await.expect("no panic");
    }
    won as f64 / begin.elapsed().as_secs_f64()
}

pub(super) struct Postgres {
    pub(super) runtime: Runtime,
    cluster: PgCluster,
    pub(super) store: PostgresStore,
    pub(super) url: String,
}

impl Postgres {
    pub(super) fn start() -> Self {
        let runtime = runtime();
        let cluster = PgCluster::start(PgOptions { fsync: true });
        let (url, store) = runtime.block_on(async {
            let url = cluster.fresh_database().await;
            let pool = PgPool::connect(&url).await.expect("the cluster answers");
            sqlx::raw_sql("create table plain (id text primary key, event text, at timestamptz default now())")
                .execute(&pool)
                .await
                .expect("a table");
            let store = PostgresStore::new(pool);
            store.migrate().await.expect("migrated");
            (url, store)
        });
        Self {
            runtime,
            cluster,
            store,
            url,
        }
    }

    pub(super) fn empty(&self) {
        self.runtime.block_on(async {
            let empty = "truncate hookclaim_deliveries, hookclaim_covered, plain";
            sqlx::raw_sql(empty)
                .execute(self.store.pool())
                .await
                .expect("emptied");
        });
    }

    /// Transactions per second of one insert each.
    pub(super) fn pgbench(&self, clients: usize) -> f64 {
        let directory = tempfile::tempdir().expect("a directory");
        let script = directory.path().join("insert.sql");
        let insert = "\\set r random(1, 9000000000000000000)\n\
             insert into plain (id, event) values ('72d3162e-cc78-' || :r, 'push') on conflict do nothing;\n";
        std::fs::write(&script, insert).expect("written");
        let output = Command::new(self.cluster.pgbench())
            .args(["--no-vacuum", "--protocol", "prepared", "--jobs", "2"])
            .args([
                "--client",
                &clients.to_string(),
                "--time",
                &WINDOW.as_secs().to_string(),
            ])
            .args(["--file".as_ref(), script.as_os_str()])
            .arg(&self.url)
            .output()
            .expect("pgbench runs");
        let text = String::from_utf8_lossy(&output.stdout);
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("tps = "))
            .expect("pgbench says its rate");
        line.split(' ')
            .next()
            .and_then(|rate| rate.parse().ok())
            .expect("a number")
    }
}

pub(crate) fn postgres_throughput(report: &mut Report) {
    let postgres = Postgres::start();
    let rates: Vec<(f64, usize)> = [8, 16, 32, 64]
        .map(|clients| (postgres.pgbench(clients), clients))
        .into();
    let best = rates
        .iter()
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map_or(32, |rate| rate.1);
    for (id, callers, goal) in [("P5", 64, "≥ 4"), ("P6", 256, "≥ 5")] {
        let measured = pairs(
            "/s",
            || {
                postgres.empty();
                postgres.pgbench(best)
            },
            || {
                postgres.empty();
                postgres.runtime.block_on(claims(&postgres.store, callers))
            },
        );
        let what = format!("claims/s of {callers} callers / pgbench inserts/s ({best} clients)");
        report.ratio(id, &what, goal, &measured);
    }
}

/// The median time of one caller's claims, one after another, in µs.
async fn latency(mut one: impl AsyncFnMut(Claim)) -> f64 {
    let mut times = Vec::new();
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(2) {
        let claim = claim();
        let sent = Instant::now();
        one(claim).await;
        times.push(sent.elapsed().as_secs_f64() * 1e6);
    }
    median(times)
}

pub(crate) fn postgres_latency(report: &mut Report) {
    let postgres = Postgres::start();
    let direct = postgres.runtime.block_on(async {
        let mut connection = PgConnection::connect(&postgres.url)
            .await
            .expect("the cluster answers");
        let settings =
            "set enable_seqscan = off; set plan_cache_mode = force_generic_plan; set jit = off";
        sqlx::raw_sql(settings)
            .execute(&mut connection)
            .await
            .expect("set");
        Mutex::new(connection)
    });
    let measured = pairs(
        "µs",
        || {
            postgres.runtime.block_on(async {
                let mut connection = direct.lock().await;
                latency(async |claim| {
                    let id = claim.key().key().to_owned();
                    let rows = sqlx::query(PostgresStore::statements()[0])
                        .bind(vec!["github"])
                        .bind(vec![id.clone()])
                        .bind(vec![id])
                        .bind(vec!["issue_comment"])
                        .bind(vec![Some("created")])
                        .bind(vec![uuid::Uuid::new_v4()])
                        .bind(vec![Some(ClaimToken::random().to_bytes())])
                        .bind(30_000_000_i64)
                        .bind(8_i32)
                        .bind(true)
                        .bind(None::<i64>)
                        .bind("expired")
                        .fetch_all(&mut *connection)
                        .await
                        .expect("decided");
                    assert_eq!(rows.len(), 1);
                })
                .await
            })
        },
        || {
            postgres.runtime.block_on(latency(async |claim| {
                postgres
                    .store
                    .claim(claim)
                    .await
                    .expect("decided")
                    .won()
                    .expect("won");
            }))
        },
    );
    report.ratio(
        "P7",
        "claim p50 of one caller, batched / the statement directly",
        "≤ 1.05",
        &measured,
    );
}

pub(crate) fn sqlite_throughput(report: &mut Report) {
    let runtime = runtime();
    let directory = tempfile::tempdir().expect("a directory");
    let open = async |name: &str| {
        let store = SqliteStore::open(directory.path().join(name))
            .await
            .expect("opened");
        store.migrate().await.expect("migrated");
        store
    };
    let (one_by_one, batched) =
        runtime.block_on(async { (open("one.db").await, open("batched.db").await) });
    let measured = pairs(
        "/s",
        || runtime.block_on(commits(&one_by_one)),
        || runtime.block_on(claims(&batched, 64)),
    );
    report.ratio(
        "P8",
        "SQLite claims/s of 64 callers, group commit / commit per claim",
        "≥ 10",
        &measured,
    );
}

/// Claims per second of 64 callers, each claim a commit of its own on the same write connection.
async fn commits(store: &SqliteStore) -> f64 {
    use hookclaim::TransactionalStore as _;
    let turn = Arc::new(Mutex::new(()));
    let begin = Instant::now();
    let end = begin + WINDOW;
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let (store, turn) = (store.clone(), Arc::clone(&turn));
            tokio::spawn(async move {
                let mut won = 0_u64;
                while Instant::now() < end {
                    let id = hookclaim_tests::http::guid();
                    let token = hookclaim_tests::http::guid().replace('-', "");
                    let wanted =
                        format!(r#"[["github","{id}","{id}","issue_comment","created","{token}","{token}"]]"#);
                    let _turn = turn.lock().await;
                    let mut tx = store.begin().await.expect("begun");
                    let rows = sqlx::query(SqliteStore::statements()[0])
                        .bind(wanted)
                        .bind(30_000_000_i64)
                        .bind(8_i64)
                        .bind(true)
                        .bind(1_800_000_000_000_000_i64)
                        .bind("expired")
                        .fetch_all(&mut *tx)
                        .await
                        .expect("decided");
                    assert_eq!(rows.len(), 1);
                    tx.commit().await.expect("committed");
                    won += 1;
                }
                won
            })
        })
        .collect();
    let mut won = 0;
    for task in tasks {
        won += task.await.expect("no panic");
    }
    won as f64 / begin.elapsed().as_secs_f64()
}
