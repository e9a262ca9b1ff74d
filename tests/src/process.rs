//! Processes: the real server, its commands, and a helper that claims on command.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::DEADLINE;

/// The server's binary. It is built when it is first asked for, in the profile of this process.
///
/// # Panics
///
/// If it cannot be built.
pub fn hookclaim() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        let profile_dir = profile_dir();
        let profile = match profile_dir.file_name().and_then(|name| name.to_str()) {
            Some("debug") => "dev",
            Some(name) => name,
            None => unreachable!("the directory of a profile has a name"),
        };
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
        let mut build = Command::new(cargo);
        build
            .args([
                "build",
                "--quiet",
                "--profile",
                profile,
                "--bin",
                "hookclaim",
            ])
            // This package is named as well so that both use the same builds of their dependencies.
            .args(["-p", "hookclaim-server", "-p", "hookclaim-tests"])
            .arg("--manifest-path")
            .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml"))
            .arg("--target-dir")
            .arg(profile_dir.parent().expect("it is in the target directory"));
        // What cargo tells this process about its package makes it build again what looks at it, such as ring.
        for (name, _) in std::env::vars_os() {
            let of_package = [
                "CARGO_PKG_",
                "CARGO_MANIFEST_",
                "CARGO_CRATE_",
                "CARGO_BIN_",
            ];
            if of_package
                .iter()
                .any(|prefix| name.to_string_lossy().starts_with(prefix))
            {
                build.env_remove(name);
            }
        }
        let build = build.output().expect("cargo can be run");
        assert!(
            build.status.success(),
            "the server does not build:\n{}",
            String::from_utf8_lossy(&build.stderr)
        );
        profile_dir.join("hookclaim")
    })
}

/// `target/debug`, or what it is called in this profile.
fn profile_dir() -> PathBuf {
    let mut path = std::env::current_exe().expect("this process has a path");
    path.pop();
    if path.ends_with("deps") || path.ends_with("examples") {
        path.pop();
    }
    path
}

/// One of the server's commands, with an environment of its own: nothing of `HOOKCLAIM_…` is inherited, and it runs
/// in the directory given.
#[derive(Debug)]
pub struct Hookclaim {
    command: Command,
}

impl Hookclaim {
    /// A command to be run in `directory`.
    #[must_use]
    pub fn new(directory: impl AsRef<Path>, arguments: &[&str]) -> Self {
        let mut command = Command::new(hookclaim());
        command
            .args(arguments)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("HOOKCLAIM_") {
                command.env_remove(name);
            }
        }
        Self { command }
    }

    /// `hookclaim serve` on a free port.
    #[must_use]
    pub fn serve(directory: impl AsRef<Path>) -> Self {
        Self::new(directory, &["serve"]).env("LISTEN", "127.0.0.1:0")
    }

    /// Sets `HOOKCLAIM_<name>`.
    #[must_use]
    pub fn env(mut self, name: &str, value: impl Into<OsString>) -> Self {
        self.command.env(format!("HOOKCLAIM_{name}"), value.into());
        self
    }

    /// Runs it to its end.
    ///
    /// # Panics
    ///
    /// If it does not end within [`DEADLINE`].
    #[must_use]
    pub fn run(self) -> Finished {
        let mut process = Process::spawn(self.command);
        let status = process.wait();
        // Its streams end with it.
        for reader in process.readers.drain(..) {
            reader.join().expect("reading a pipe does not panic");
        }
        Finished {
            code: status.code(),
            stdout: process.stdout.text(),
            stderr: process.stderr.text(),
        }
    }

    /// Starts it and waits until it listens.
    ///
    /// # Panics
    ///
    /// If it ends instead, or does not listen within [`DEADLINE`].
    #[must_use]
    pub fn start(self) -> Server {
        self.try_start()
            .unwrap_or_else(|said| panic!("the server does not listen:\n{said}"))
    }

    /// Starts it and waits until it listens, as it may not while its database is away.
    ///
    /// # Errors
    ///
    /// What it said, if it ends instead, or does not listen within [`DEADLINE`].
    pub fn try_start(self) -> Result<Server, String> {
        let mut process = Process::spawn(self.command);
        let line = process
            .stdout
            .wait_for("listening on http://", || process.child.try_wait());
        let Some(line) = line else {
            return Err(process.stdout.text() + &process.stderr.text());
        };
        let at = line.find("http://").expect("the line has it");
        let url = line[at..].split_whitespace().next().unwrap_or_default();
        Ok(Server {
            url: url.trim_end_matches('/').to_owned(),
            process,
        })
    }
}

/// A command that has ended.
#[derive(Clone, Debug)]
pub struct Finished {
    /// Its exit code, unless a signal ended it.
    pub code: Option<i32>,
    /// What it printed.
    pub stdout: String,
    /// What it complained about.
    pub stderr: String,
}

/// A server that runs as a process of its own. It is killed when this is dropped.
#[derive(Debug)]
pub struct Server {
    url: String,
    process: Process,
}

impl Server {
    /// Where it listens, without a slash at the end.
    #[must_use]
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where deliveries go.
    #[must_use]
    pub fn webhook(&self) -> String {
        format!("{}/webhook", self.url)
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}

/// A child process whose output is kept. It is killed when this is dropped.
#[derive(Debug)]
pub struct Process {
    child: Child,
    /// What it printed so far.
    pub stdout: Lines,
    /// What it logged so far.
    pub stderr: Lines,
    readers: Vec<JoinHandle<()>>,
}

impl Process {
    fn spawn(mut command: Command) -> Self {
        let mut child = command.spawn().expect("the binary can be run");
        let (stdout, stderr) = (Lines::default(), Lines::default());
        let readers = vec![
            stdout.follow(child.stdout.take().expect("it is piped")),
            stderr.follow(child.stderr.take().expect("it is piped")),
        ];
        Self {
            child,
            stdout,
            stderr,
            readers,
        }
    }

    /// Kills it with SIGKILL, and waits until it is gone.
    ///
    /// # Panics
    ///
    /// If it cannot be killed.
    pub fn kill9(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it was a child");
    }

    /// Asks it to end, with SIGTERM.
    ///
    /// # Panics
    ///
    /// If the signal cannot be sent.
    pub fn sigterm(&self) {
        self.signal("TERM");
    }

    /// Stops it in its tracks, with SIGSTOP.
    ///
    /// # Panics
    ///
    /// If the signal cannot be sent.
    pub fn sigstop(&self) {
        self.signal("STOP");
    }

    /// Lets it go on after [`sigstop`](Self::sigstop).
    ///
    /// # Panics
    ///
    /// If the signal cannot be sent.
    pub fn sigcont(&self) {
        self.signal("CONT");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill")
            .args(["-s", signal, &self.child.id().to_string()])
            .status()
            .expect("`kill` can be run");
        assert!(sent.success(), "SIG{signal} reaches the process");
    }

    /// Whether it has not ended.
    ///
    /// # Panics
    ///
    /// If that cannot be found out.
    pub fn is_running(&mut self) -> bool {
        self.child.try_wait().expect("it was a child").is_none()
    }

    /// Waits for its end.
    ///
    /// # Panics
    ///
    /// If it does not end within [`DEADLINE`].
    pub fn wait(&mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("it was a child") {
                return status;
            }
            assert!(
                begun.elapsed() < DEADLINE,
                "the process does not end:\n{}",
                self.stderr.text()
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The processor time that it has taken.
    ///
    /// # Panics
    ///
    /// If it has ended, or this is not Linux.
    #[must_use]
    pub fn cpu(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id()))
            .expect("a running process has it");
        // After the name, which may hold anything, up to its closing bracket.
        let (_, fields) = stat.rsplit_once(')').expect("the name is in brackets");
        let fields: Vec<&str> = fields.split_whitespace().collect();
        let ticks = |at: usize| fields[at].parse::<u64>().expect("a number");
        // In hundredths of a second on every Linux there is.
        Duration::from_millis((ticks(11) + ticks(12)) * 10)
    }

    /// The memory that it has in use, and the most that it ever had, in bytes.
    ///
    /// # Panics
    ///
    /// If it has ended, or this is not Linux.
    #[must_use]
    pub fn memory(&self) -> (u64, u64) {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))
            .expect("a running process has a status");
        let of = |name: &str| -> u64 {
            let line = status.lines().find(|line| line.starts_with(name));
            let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
            kib.expect("the status has it") * 1024
        };
        (of("VmRSS:"), of("VmHWM:"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of an output, as they come.
#[derive(Clone, Debug, Default)]
pub struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn follow(&self, stream: impl Read + Send + 'static) -> JoinHandle<()> {
        let lines = self.clone();
        std::thread::spawn(move || {
            for line in BufReader::new(stream).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned();
                lines.lock().push(line);
            }
        })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them so far.
    #[must_use]
    pub fn text(&self) -> String {
        self.lock().iter().fold(String::new(), |mut text, line| {
            text.push_str(line);
            text.push('\n');
            text
        })
    }

    /// The first line that holds `needle`, once there is one.
    ///
    /// # Panics
    ///
    /// If none comes within [`DEADLINE`].
    #[must_use]
    pub fn having(&self, needle: &str) -> String {
        self.wait_for(needle, || Ok(None))
            .unwrap_or_else(|| panic!("no line has {needle:?}:\n{}", self.text()))
    }

    fn wait_for(
        &self,
        needle: &str,
        mut ended: impl FnMut() -> std::io::Result<Option<ExitStatus>>,
    ) -> Option<String> {
        let begun = Instant::now();
        loop {
            let over = ended().expect("it was a child").is_some() || begun.elapsed() > DEADLINE;
            let found = self
                .lock()
                .iter()
                .find(|line| line.contains(needle))
                .cloned();
            if found.is_some() || over {
                return found;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A process with a store that claims, settles and races as it is told: see `src/bin/claimant.rs` for the orders.
///
/// It is killed when this is dropped, and ends by itself when the test's process does.
#[derive(Debug)]
pub struct Claimant {
    orders: Option<ChildStdin>,
    answers: Receiver<String>,
    process: Process,
}

impl Claimant {
    /// Starts one on the store at `url`.
    ///
    /// # Panics
    ///
    /// If the store cannot be opened.
    #[must_use]
    pub fn start(url: &str, lease: Duration) -> Self {
        let mut child = Command::new(profile_dir().join("claimant"))
            .arg(url)
            .arg(lease.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the claimant was built beside this test");
        let orders = child.stdin.take();
        let (sender, answers) = channel();
        let lines = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let stderr = Lines::default();
        let readers = vec![stderr.follow(child.stderr.take().expect("it is piped"))];
        let claimant = Self {
            orders,
            answers,
            process: Process {
                child,
                stdout: Lines::default(),
                stderr,
                readers,
            },
        };
        assert_eq!(claimant.answer(), "ready");
        claimant
    }

    /// Gives an order without waiting for its answer, so that several processes race.
    ///
    /// # Panics
    ///
    /// If the process has ended.
    pub fn order(&mut self, order: &str) {
        let orders = self.orders.as_mut().expect("it is open until the drop");
        writeln!(orders, "{order}").expect("the claimant listens");
    }

    /// The next answer.
    ///
    /// # Panics
    ///
    /// If there is none within two times [`DEADLINE`]: some orders take long on purpose.
    #[must_use]
    pub fn answer(&self) -> String {
        self.answers
            .recv_timeout(2 * DEADLINE)
            .unwrap_or_else(|error| panic!("no answer ({error}):\n{}", self.process.stderr.text()))
    }

    /// Gives an order and returns its answer.
    ///
    /// # Panics
    ///
    /// As for [`order`](Self::order) and [`answer`](Self::answer).
    pub fn ask(&mut self, order: &str) -> String {
        self.order(order);
        self.answer()
    }

    /// The process.
    pub fn process(&mut self) -> &mut Process {
        &mut self.process
    }
}
