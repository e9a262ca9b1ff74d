//! A throw-away Postgres cluster.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection};

/// Runs the cluster and outlives the test process by as long as it takes to clean up: when the pipe to its standard
/// input closes, for whatever reason, it stops the cluster and removes the directory.
///
/// Arguments: binaries, directory, port, value of `fsync`, then the command that changes to the cluster's user.
const SUPERVISOR: &str = r#"
bin=$1 dir=$2 port=$3 fsync=$4
shift 4
pg=
trap '' HUP INT
trap 'exit 1' TERM
stop() {
    if [ -n "$pg" ]; then
        kill -"$1" "$pg"
        wait "$pg"
        pg=
    fi 2>/dev/null
}
trap 'stop QUIT; rm -rf "$dir"' EXIT
start() {
    "$@" "$bin/postgres" -D "$dir/data" -p "$port" -k "$dir" -c listen_addresses=127.0.0.1 -c max_connections=200 \
        -c fsync="$fsync" </dev/null >>"$dir/log" 2>&1 &
    pg=$!
    until grep -q '^ready' "$dir/data/postmaster.pid" 2>/dev/null; do
        kill -0 "$pg" 2>/dev/null || { pg=; return 1; }
        sleep 0.05
    done
}
while read -r order; do
    case $order in
    start) start "$@" ;;
    stop) stop INT ;;
    crash) stop QUIT ;;
    esac
    echo "$order $?"
done
"#;

/// How a cluster is set up.
#[derive(Clone, Copy, Debug)]
pub struct PgOptions {
    /// Whether commits wait for the disk. A test that kills processes, not machines, does not need it.
    pub fsync: bool,
}

/// On, as in production.
impl Default for PgOptions {
    fn default() -> Self {
        Self { fsync: true }
    }
}

/// A Postgres cluster in a temporary directory, on a port of its own.
///
/// It is gone once it is dropped or the process ends, killed or not.
pub struct PgCluster {
    binaries: PathBuf,
    directory: PathBuf,
    port: u16,
    supervisor: Mutex<Supervisor>,
}

struct Supervisor {
    // Closing it is what ends the supervisor.
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    child: Child,
}

impl PgCluster {
    /// The cluster that the tests of this process share, without `fsync`. It starts when it is first asked for.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<PgCluster> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(PgOptions { fsync: false }))
    }

    /// Starts a cluster.
    ///
    /// # Panics
    ///
    /// If Postgres is not installed, or does not start.
    #[must_use]
    pub fn start(options: PgOptions) -> Self {
        let binaries = binaries();
        let directory = tempfile::Builder::new()
            .prefix("hookclaim-pg-")
            .tempdir()
            .expect("a temporary directory can be made")
            .keep();
        let as_user = cluster_user(&directory);
        let init = command(&as_user)
            .arg(binaries.join("initdb"))
            .args([
                "--auth=trust",
                "--no-sync",
                "-E",
                "UTF8",
                "--locale=C",
                "-U",
                "postgres",
                "-D",
            ])
            .arg(directory.join("data"))
            .current_dir(&directory)
            .output()
            .expect("initdb can be run");
        assert!(
            init.status.success(),
            "initdb failed: {}",
            String::from_utf8_lossy(&init.stderr)
        );
        // Somebody else may take the port between here and there.
        for _ in 0..5 {
            let port = free_port();
            let supervisor = Supervisor::spawn(&binaries, &directory, port, options, &as_user);
            let mut cluster = Self {
                binaries: binaries.clone(),
                directory: directory.clone(),
                port,
                supervisor: Mutex::new(supervisor),
            };
            if cluster.order("start") {
                return cluster;
            }
            let log = std::fs::read_to_string(directory.join("log")).unwrap_or_default();
            assert!(
                log.contains("could not bind"),
                "the cluster does not start:\n{log}"
            );
            // The next attempt needs the directory that this one would remove.
            cluster.abandon();
        }
        panic!("no free port for a cluster was found");
    }

    /// Stops the cluster, breaking its connections, and starts it again.
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn restart(&self) {
        self.stop();
        self.resume();
    }

    /// Stops the cluster, breaking its connections.
    ///
    /// # Panics
    ///
    /// If it does not stop.
    pub fn stop(&self) {
        self.order("stop");
    }

    /// Stops the cluster as a crash would.
    ///
    /// # Panics
    ///
    /// If it does not stop.
    pub fn crash(&self) {
        self.order("crash");
    }

    /// Starts the cluster after [`stop`](Self::stop) or [`crash`](Self::crash).
    ///
    /// # Panics
    ///
    /// If it does not start.
    pub fn resume(&self) {
        assert!(self.order("start"), "the cluster does not start again");
    }

    /// Creates an empty database, and returns its URL.
    ///
    /// # Panics
    ///
    /// If the cluster does not answer.
    pub async fn fresh_database(&self) -> String {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let name = format!("test_{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let mut connection = PgConnection::connect(&self.url("postgres"))
            .await
            .expect("the cluster answers");
        connection
            .execute(AssertSqlSafe(format!("create database {name}")))
            .await
            .expect("a database can be created");
        self.url(&name)
    }

    /// The URL of a database.
    #[must_use]
    pub fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    /// The port on 127.0.0.1.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The directory of the Unix socket.
    #[must_use]
    pub fn socket_directory(&self) -> &Path {
        &self.directory
    }

    /// The path of `pgbench`, of the cluster's version.
    ///
    /// # Panics
    ///
    /// If it is not installed.
    #[must_use]
    pub fn pgbench(&self) -> PathBuf {
        let path = self.binaries.join("pgbench");
        assert!(path.exists(), "pgbench is not installed: {INSTALL}");
        path
    }

    fn order(&self, order: &str) -> bool {
        let mut supervisor = self
            .supervisor
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let orders = supervisor.orders.as_mut().expect("the cluster is in use");
        writeln!(orders, "{order}").expect("the supervisor listens");
        let mut answer = String::new();
        supervisor
            .answers
            .read_line(&mut answer)
            .expect("the supervisor answers");
        answer.trim_end() == format!("{order} 0")
    }

    fn abandon(&mut self) {
        let supervisor = self
            .supervisor
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // Nothing runs, and `kill` leaves the directory alone.
        let _ = supervisor.child.kill();
        let _ = supervisor.child.wait();
    }
}

impl Supervisor {
    fn spawn(
        binaries: &Path,
        directory: &Path,
        port: u16,
        options: PgOptions,
        as_user: &[String],
    ) -> Self {
        let mut child = Command::new("sh")
            .args(["-c", SUPERVISOR, "hookclaim-pg"])
            .arg(binaries)
            .arg(directory)
            .arg(port.to_string())
            .arg(if options.fsync { "on" } else { "off" })
            .args(as_user)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // What ends the tests by a signal to their group must not end this, before it has cleaned up.
            .process_group(0)
            .spawn()
            .expect("a shell can be run");
        Self {
            orders: child.stdin.take(),
            answers: BufReader::new(child.stdout.take().expect("it is piped")),
            child,
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

impl fmt::Debug for PgCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PgCluster")
            .field("binaries", &self.binaries)
            .field("directory", &self.directory)
            .field("port", &self.port)
            .finish_non_exhaustive()
    }
}

const INSTALL: &str = "install PostgreSQL's server, version 13 or later (Debian and Ubuntu: `apt-get install \
                       postgresql`; Fedora: `dnf install postgresql-server postgresql-contrib`; macOS: `brew install \
                       postgresql@17`), or put its binaries on PATH";

/// The directory of the server's binaries: on `PATH`, where `pg_config` says, or the newest that Debian has.
fn binaries() -> PathBuf {
    let whole = |directory: &PathBuf| {
        directory.join("initdb").is_file() && directory.join("postgres").is_file()
    };
    let on_path = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
        .unwrap_or_default()
        .into_iter()
        .filter(whole)
        // A link names where the other binaries are, such as pgbench.
        .filter_map(|directory| {
            let postgres = directory.join("postgres").canonicalize().ok()?;
            Some(postgres.parent()?.to_owned())
        });
    let configured = Command::new("pg_config")
        .arg("--bindir")
        .output()
        .ok()
        .map(|output| PathBuf::from(String::from_utf8_lossy(&output.stdout).trim()));
    let mut installed: Vec<_> = std::fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .map(|version| version.path().join("bin"))
        .collect();
    let version = |directory: &PathBuf| -> u32 {
        let name = directory.parent().and_then(Path::file_name);
        name.and_then(|name| name.to_str()?.parse().ok())
            .unwrap_or(0)
    };
    installed.sort_by_key(|directory| std::cmp::Reverse(version(directory)));
    on_path
        .chain(configured)
        .chain(installed)
        .find(whole)
        .unwrap_or_else(|| panic!("PostgreSQL was not found, and these tests need it: {INSTALL}"))
}

/// Postgres refuses to run as root. The command that becomes `postgres` first, if this is root; the directory is
/// given to that user.
fn cluster_user(directory: &Path) -> Vec<String> {
    let id = Command::new("id")
        .arg("-u")
        .output()
        .expect("`id` can be run");
    if id.stdout.trim_ascii() != b"0" {
        return vec!["env".to_owned()];
    }
    let chown = Command::new("chown")
        .arg("postgres")
        .arg(directory)
        .status()
        .expect("`chown` can be run");
    assert!(
        chown.success(),
        "Postgres cannot run as root, and there is no user `postgres`: {INSTALL}"
    );
    [
        "setpriv",
        "--reuid=postgres",
        "--regid=postgres",
        "--init-groups",
    ]
    .map(str::to_owned)
    .to_vec()
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port is free");
    listener.local_addr().expect("it is bound").port()
}
