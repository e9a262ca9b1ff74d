//! P9, P10, P12, P14: deliveries that are stored and worked off, over HTTP and by the stores.

use std::convert::Infallible;
use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::{any_service, post};
use bytes::Bytes;
use hookclaim::testing::signed_headers;
use hookclaim::{
    Acquire, ClaimKey, DeliveryId, DeliveryStore, DurableStore, Enqueue, EventName, LeasePolicy,
    PostgresStore, SecretSet, Source, SqliteStore, StoredRequest,
};
use http::{Request, Response};
use http_body_util::Full;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection, Row as _};
use tokio::net::TcpListener;
use tower::{Layer as _, service_fn};
use tower_hookclaim::{Drain, GithubWebhookLayer, Worker};

use super::claims::{Postgres, claim, runtime};
use super::layer::{SECRET, payload};
use super::method::{Report, median, pairs, process_cpu};
use super::serve::call;

const WINDOW: Duration = Duration::from_secs(2);

/// Windows of each server in the table.
const ROUNDS: usize = 3;

/// The server's side, as a process of its own: it reads, or works on deliveries inline or stored.
pub(crate) fn server(kind: &str, url: &str) {
    runtime().block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("an address"));
        let app = if kind == "bare" {
            let read = post(|_: Bytes| async { "ok" });
            Router::new().route("/webhook", read)
        } else if let Some(file) = url.strip_prefix("sqlite:") {
            {
                let store = SqliteStore::open(file).await.expect("it opens");
                store.migrate().await.expect("migrated");
                app(kind, store)
            }
        } else {
            {
                let store = PostgresStore::connect(url).await.expect("it answers");
                store.migrate().await.expect("migrated");
                app(kind, store)
            }
        };
        axum::serve(listener, app).await.expect("serving");
    });
}

async fn done(_: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::default()))
}

fn app<St: DurableStore>(kind: &str, store: St) -> Router {
    let secrets = SecretSet::single(SECRET).expect("a secret");
    let layer = GithubWebhookLayer::new(secrets, store);
    let handler = service_fn(done);
    if kind == "inline" {
        return Router::new().route("/webhook", any_service(layer.layer(handler)));
    }
    tokio::spawn(layer.worker(handler).run());
    Router::new().route("/webhook", any_service(layer.durable().layer(handler)))
}

struct Server {
    child: Child,
    address: String,
    name: &'static str,
}

impl Server {
    fn start(name: &'static str, kind: &str, url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("this has a path"))
            .args(["serve", kind, url])
            .stdout(Stdio::piped())
            .spawn()
            .expect("it can be run");
        let mut address = String::new();
        let stdout = child.stdout.as_mut().expect("it is piped");
        std::io::BufReader::new(stdout)
            .read_line(&mut address)
            .expect("it says its address");
        Self {
            child,
            address: address.trim().to_owned(),
            name,
        }
    }

    fn load(&self, connections: usize, body: &Bytes) -> Load {
        load(&self.address, self.child.id(), connections, body)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a window gave.
struct Load {
    /// Requests per second.
    rate: f64,
    /// The server's CPU time for each, in µs.
    each: f64,
    /// The client's share of the machine.
    client: f64,
}

fn load(address: &str, server: u32, connections: usize, body: &Bytes) -> Load {
    let headers = signed_headers(SECRET, "issue_comment", "template", body);
    let done = Arc::new(AtomicU64::new(0));
    let (ours, theirs) = (process_cpu(std::process::id()), process_cpu(server));
    let begin = Instant::now();
    let client = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    client.block_on(async {
        let callers: Vec<_> = (0..connections)
            .map(|_| {
                let call = call(
                    address.to_owned(),
                    headers.clone(),
                    body.clone(),
                    Arc::clone(&done),
                    begin + WINDOW,
                );
                tokio::spawn(call)
            })
            .collect();
        for caller in callers {
            caller.await.expect("no panic");
        }
    });
    let took = begin.elapsed().as_secs_f64();
    let requests = done.load(Ordering::Relaxed) as f64;
    let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
    Load {
        rate: requests / took,
        each: (process_cpu(server) - theirs) * 1e6 / requests,
        client: (process_cpu(std::process::id()) - ours) / took / cores,
    }
}

/// One window of load on a server that runs already, to look at it meanwhile.
pub(crate) fn show_load(address: &str, server: &str, connections: &str) {
    let (server, connections) = server
        .parse()
        .ok()
        .zip(connections.parse().ok())
        .expect("numbers");
    let load = load(address, server, connections, &payload(8 * 1024));
    println!(
        "{:.0} requests/s, {:.0} µs CPU of the server each, client {:.0} %",
        load.rate,
        load.each,
        load.client * 100.0
    );
}

/// P9 and P10, and the table beside them.
pub(crate) fn over_http(report: &mut Report) {
    let postgres = Postgres::start();
    let directory = tempfile::tempdir().expect("a directory");
    let file = |name: &str| format!("sqlite:{}", directory.path().join(name).display());
    let servers = [
        Server::start("bare axum", "bare", ""),
        Server::start("inline, SQLite", "inline", &file("inline.db")),
        Server::start("durable, SQLite", "durable", &file("durable.db")),
        Server::start("inline, Postgres", "inline", &postgres.url),
        Server::start("durable, Postgres", "durable", &postgres.url),
    ];
    let body = payload(8 * 1024);
    for connections in [64, 256] {
        let mut loads: Vec<Vec<Load>> = servers.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (server, loads) in servers.iter().zip(&mut loads) {
                loads.push(server.load(connections, &body));
            }
        }
        let of = |loads: &[Load], what: fn(&Load) -> f64| median(loads.iter().map(what).collect());
        let bare = of(&loads[0], |load| load.rate);
        for (server, loads) in servers.iter().zip(&loads) {
            let rate = of(loads, |load| load.rate);
            let what = format!("requests/s at {connections}, {} / bare axum", server.name);
            let client = of(loads, |load| load.client);
            let bound = if client > 0.45 { ", client-bound" } else { "" };
            let detail = format!(
                "{rate:.0} requests/s, {:.0} µs CPU of the server each, client {:.0} %{bound}",
                of(loads, |load| load.each),
                client * 100.0
            );
            report.add("", &what, format!("{:.3}", rate / bare), "", detail);
        }
    }
    let [bare, .., durable] = &servers;
    let measured = pairs(
        "/s",
        || postgres.pgbench(256),
        || durable.load(256, &body).rate,
    );
    let what = "accepted/s, durable Postgres server at 256 / pgbench insert";
    report.ratio("P9", what, "≥ 2.3", &measured);
    let measured = pairs(
        "/s",
        || bare.load(256, &body).rate,
        || durable.load(256, &body).rate,
    );
    let what = "requests/s at 256, durable Postgres server / bare axum";
    report.ratio("P10", what, "≥ 0.50", &measured);
}

/// P12: the product itself, on SQLite.
pub(crate) fn memory(report: &mut Report) {
    let directory = tempfile::tempdir().expect("a directory");
    let mut child = Command::new(hookclaim_tests::process::hookclaim())
        .args(["serve", "--listen", "127.0.0.1:0"])
        .env(
            "HOOKCLAIM_WEBHOOK_SECRET",
            String::from_utf8_lossy(SECRET).as_ref(),
        )
        .current_dir(directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("the server can be run");
    let stdout = child.stdout.take().expect("it is piped");
    let address = std::io::BufReader::new(stdout)
        .lines()
        .map_while(Result::ok)
        .find_map(|line| {
            line.strip_prefix("listening on http://")
                .map(ToOwned::to_owned)
        })
        .expect("it says its address");
    for _ in 0..3 {
        load(&address, child.id(), 256, &payload(8 * 1024));
    }
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).expect("it lives");
    child
        .kill()
        .and_then(|()| child.wait())
        .expect("it can be stopped");
    let peak: f64 = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix(" kB"))
        .and_then(|kib| kib.trim().parse().ok())
        .expect("Linux tells it");
    report.add(
        "P12",
        "peak memory of the durable server, 256 connections of 8 KiB, MiB",
        format!("{:.1}", peak / 1024.0),
        "≤ 32",
        "SQLite, worker included".to_owned(),
    );
}

fn work() -> Enqueue {
    let id = DeliveryId::new(hookclaim_tests::http::guid()).expect("visible ASCII");
    let event = EventName::new("issue_comment").expect("a name");
    let key = ClaimKey::delivery(Source::default(), &id);
    Enqueue::work(key, id, event, StoredRequest::new(payload(8 * 1024)))
}

async fn stock<St: DurableStore>(store: &St, count: usize) {
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let store = store.clone();
            tokio::spawn(async move {
                for _ in 0..count / 64 {
                    store.enqueue(work()).await.expect("stored");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.expect("no panic");
    }
}

/// Deliveries worked off per second: one by one, and by a worker.
pub(crate) fn work_rate(report: &mut Report) {
    let postgres = Postgres::start();
    let runtime = runtime();
    let directory = tempfile::tempdir().expect("a directory");
    let sqlite = runtime.block_on(async {
        let store = SqliteStore::open(directory.path().join("work.db"))
            .await
            .expect("it opens");
        store.migrate().await.expect("migrated");
        store
    });
    rate_of(report, &runtime, &postgres.store, "Postgres");
    rate_of(report, &runtime, &sqlite, "SQLite");
}

fn rate_of<St: DurableStore>(
    report: &mut Report,
    runtime: &tokio::runtime::Runtime,
    store: &St,
    name: &str,
) {
    const COUNT: usize = 6400;
    let measured = pairs(
        "deliveries/s",
        || {
            runtime.block_on(async {
                stock(store, 1280).await;
                let begin = Instant::now();
                let mut worked = 0_u32;
                loop {
                    let acquire = Acquire::new(Source::default(), 1, LeasePolicy::default());
                    let taken = store.acquire(acquire.expired(false)).await.expect("asked");
                    let Some(one) = taken.started.first() else {
                        break f64::from(worked) / begin.elapsed().as_secs_f64();
                    };
                    store.complete(&one.held).await.expect("done");
                    worked += 1;
                }
            })
        },
        || {
            runtime.block_on(async {
                stock(store, COUNT).await;
                let drain = Drain::new();
                let (sender, mut worked) = tokio::sync::watch::channel(0_usize);
                let handler = service_fn(move |request| {
                    sender.send_modify(|count| *count += 1);
                    done(request)
                });
                let begin = Instant::now();
                let worker = Worker::new(store.clone(), handler)
                    .concurrency(64)
                    .drain(&drain);
                let worker = tokio::spawn(worker.run());
                worked
                    .wait_for(|worked| *worked >= COUNT)
                    .await
                    .expect("the worker lives");
                drain.begin();
                worker.await.expect("it ends");
                COUNT as f64 / begin.elapsed().as_secs_f64()
            })
        },
    );
    let what = format!("acquire → complete /s, {name}: a worker of 64 / one by one");
    report.ratio("", &what, "", &measured);
}

/// P14: what claims, stores and looks cost on a large table, and how they are planned there.
pub(crate) fn large_table(report: &mut Report) {
    let postgres = Postgres::start();
    let mut costs: Vec<[f64; 3]> = Vec::new();
    for rows in [10_000_i64, 1_000_000] {
        postgres.empty();
        let cost = postgres.runtime.block_on(async {
            fill(&postgres.url, rows).await;
            // Connections of its own, so that its plans are made on this table.
            let store = PostgresStore::connect(&postgres.url)
                .await
                .expect("it answers");
            cost(&store).await
        });
        costs.push(cost);
    }
    for (at, name) in ["claim", "enqueue of 8 KiB", "acquire and complete"]
        .into_iter()
        .enumerate()
    {
        let (small, large) = (costs[0][at], costs[1][at]);
        report.add(
            "P14",
            &format!("median of one {name}, 1 M rows / 10 k rows"),
            format!("{:.3}", large / small),
            "≤ 1.2",
            format!("{small:.0} → {large:.0} µs"),
        );
    }
    postgres.runtime.block_on(show_plans(&postgres.url));
}

/// Nine in ten are completed; of the rest some wait, some are leased, some are dead.
async fn fill(url: &str, rows: i64) {
    let mut connection = PgConnection::connect(url).await.expect("it answers");
    let fill = format!(
        "insert into hookclaim_deliveries (source, key, delivery_id, event, state, attempts, fence, claim_token, \
           received_at, claimed_at, renewed_at, lease_until, retry_at, finished_at, request, payload) \
         select 'github', md5(n::text), md5(n::text), 'push', s, 1, 1, gen_random_uuid(), n, n, \
           case when s = 1 then t end, case when s = 1 then t + 3600000000 end, \
           case when s = 3 then t + 86400000000 end, case when s in (2, 4) then n end, \
           case when s in (1, 3) then '{{\"path\":\"/\"}}' end, case when s in (1, 3) then '\\x7b7d'::bytea end \
         from generate_series(1, {rows}) n \
         cross join lateral (select case n % 40 when 0 then 4 when 1 then 3 else 2 end as s0) a \
         cross join lateral (select case when n <= 100 then 1 else s0 end as s) b \
         cross join (select (extract(epoch from now()) * 1000000)::bigint as t) c"
    );
    sqlx::raw_sql(AssertSqlSafe(fill))
        .execute(&mut connection)
        .await
        .expect("filled");
    sqlx::raw_sql("vacuum analyze hookclaim_deliveries")
        .execute(&mut connection)
        .await
        .expect("analysed");
}

/// Medians in µs of one caller's claim, enqueue, and acquire with complete.
async fn cost(store: &PostgresStore) -> [f64; 3] {
    const TIMES: usize = 400;
    let mut times: [Vec<f64>; 3] = Default::default();
    for round in 0..TIMES + 20 {
        let begin = Instant::now();
        let _ = store.claim(claim()).await.expect("decided");
        let claimed = begin.elapsed();
        let begin = Instant::now();
        store.enqueue(work()).await.expect("stored");
        let stored = begin.elapsed();
        let begin = Instant::now();
        let acquire = Acquire::new(Source::default(), 1, LeasePolicy::default());
        let taken = store.acquire(acquire.expired(false)).await.expect("asked");
        store.complete(&taken.started[0].held).await.expect("done");
        let worked = begin.elapsed();
        if round >= 20 {
            for (times, took) in times.iter_mut().zip([claimed, stored, worked]) {
                times.push(took.as_secs_f64() * 1e6);
            }
        }
    }
    times.map(median)
}

async fn show_plans(url: &str) {
    let mut connection = PgConnection::connect(url).await.expect("it answers");
    sqlx::raw_sql("set enable_seqscan = off; set enable_bitmapscan = off; set plan_cache_mode = force_generic_plan")
        .execute(&mut connection)
        .await
        .expect("set");
    for (name, begins) in [
        ("claim", "-- Claims, each for itself."),
        ("enqueue", "-- Stores deliveries for workers"),
        ("acquire", "-- Takes deliveries that are due"),
    ] {
        let statement = PostgresStore::statements()
            .iter()
            .find(|statement| statement.starts_with(begins))
            .expect("it is one of the store's");
        let parameters = (1..40)
            .rev()
            .find(|number| statement.contains(&format!("${number}")))
            .unwrap_or(0);
        let nulls = vec!["null"; parameters].join(", ");
        let prepare = format!("deallocate all; prepare shown as {statement}");
        sqlx::raw_sql(AssertSqlSafe(prepare))
            .execute(&mut connection)
            .await
            .expect("prepared");
        let lines = sqlx::raw_sql(AssertSqlSafe(format!("explain execute shown ({nulls})")))
            .fetch_all(&mut connection)
            .await
            .expect("planned");
        println!("\nplan of {name} on the large table:");
        for line in lines {
            println!("  {}", line.get::<String, _>(0));
        }
    }
}
