//! Telling workers, of this process and of others, that there may be something to take.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use sqlx::Executor;
use sqlx::postgres::{PgConnectOptions, PgListener, PgNotification, PgPoolOptions};
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::link::{CONNECT_TIMEOUT, Link, SETTINGS, SILENCE, timed_out};
use crate::batch::pause;
use crate::inbox::{Announcer, Changes};
use crate::record::ClaimToken;

pub(super) const NOTIFY: &str = "select pg_notify('hookclaim', $1)";

/// The channel.
const CHANNEL: &str = "hookclaim";

/// The shortest time from one notification to the next. Each takes a lock that is one for the whole cluster.
const COALESCE: Duration = Duration::from_millis(50);

/// After how much silence a listener asks whether it is still heard.
const PING: Duration = Duration::from_secs(10);

/// What the payloads of such questions begin with.
const PINGS: &str = "ping ";

/// For how long after work was stored in a transaction a commit counts as that transaction's. Later ones are found by
/// polling.
const FOLLOW_UP: Duration = Duration::from_secs(60);

/// Announces within the process at once, and to other processes by NOTIFY: never in a statement that anybody waits
/// for.
#[derive(Clone)]
pub(super) struct Bell(Arc<Tower>);

struct Tower {
    announcer: Announcer,
    options: Arc<PgConnectOptions>,
    runtime: Handle,
    /// Tells notifications of this store from others'.
    name: String,
    across: bool,
    ringer: OnceLock<mpsc::Sender<()>>,
    listener: OnceLock<Listener>,
    follow_up: Mutex<Option<Instant>>,
}

/// The listening task, which ends with its store.
struct Listener(AbortHandle);

impl Drop for Listener {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Bell {
    /// # Panics
    ///
    /// Outside of a tokio runtime.
    pub(super) fn new(options: Arc<PgConnectOptions>, across: bool) -> Self {
        Self(Arc::new(Tower {
            announcer: Announcer::new(),
            options,
            runtime: Handle::current(),
            name: uuid::Uuid::from_bytes(ClaimToken::random().to_bytes()).to_string(),
            across,
            ringer: OnceLock::new(),
            listener: OnceLock::new(),
            follow_up: Mutex::new(None),
        }))
    }

    /// Whether other processes are told.
    #[cfg(feature = "seal")]
    pub(super) fn is_across(&self) -> bool {
        self.0.across
    }

    /// Tells everybody. It does not wait.
    pub(super) fn ring(&self) {
        self.0.announcer.announce();
        if !self.0.across {
            return;
        }
        let ringer = self.0.ringer.get_or_init(|| {
            let (sender, rung) = mpsc::channel(1);
            let link = Link::new(Arc::clone(&self.0.options));
            let notify = notify(link, self.0.name.clone(), rung);
            self.0.runtime.spawn(notify);
            sender
        });
        // If one waits to be sent already, it says this too.
        let _ = ringer.try_send(());
    }

    /// What is told from now on. Other processes are listened to from the first call on.
    pub(super) fn changes(&self) -> Changes {
        if self.0.across {
            self.0.listener.get_or_init(|| {
                let (options, name) = (Arc::clone(&self.0.options), self.0.name.clone());
                let listen = listen(options, self.0.announcer.clone(), name);
                Listener(self.0.runtime.spawn(listen).abort_handle())
            });
        }
        self.0.announcer.changes()
    }

    /// Work was stored in a transaction: there is something to tell once it commits.
    pub(super) fn follow_up(&self) {
        *self.follow_up_until() = Some(Instant::now() + FOLLOW_UP);
    }

    /// A transaction committed. Which one stored work is not known, so any of a while tells.
    pub(super) fn committed(&self) {
        let until = *self.follow_up_until();
        if until.is_some_and(|until| Instant::now() < until) {
            self.ring();
        }
    }

    fn follow_up_until(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.0
            .follow_up
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends a notification for whatever was rung since the last one. It ends when the store has.
async fn notify(mut link: Link, name: String, mut rung: mpsc::Receiver<()>) {
    while rung.recv().await.is_some() {
        // One that is lost is made good by polling.
        let _ = link.run(|| sqlx::query(NOTIFY).bind(name.clone())).await;
        tokio::time::sleep(COALESCE).await;
    }
}

async fn listen(options: Arc<PgConnectOptions>, announcer: Announcer, name: String) {
    let ping = format!("{PINGS}{name}");
    let mut failures = 0;
    loop {
        let begun = Instant::now();
        // Whatever ends it: the next connection begins with an announcement.
        let _ = hear(&options, &announcer, &name, &ping).await;
        failures = if begun.elapsed() > PING {
            1
        } else {
            failures + 1
        };
        tokio::time::sleep(pause(failures)).await;
    }
}

/// Listens on one connection until it is lost, or does not carry any more what it should.
async fn hear(
    options: &PgConnectOptions,
    announcer: &Announcer,
    name: &str,
    ping: &str,
) -> Result<(), sqlx::Error> {
    let pool = PgPoolOptions::new()
        .max_connections(1)
        .acquire_timeout(CONNECT_TIMEOUT)
        .idle_timeout(None)
        .max_lifetime(None)
        .after_connect(|connection, _| {
            Box::pin(async move { connection.execute(SETTINGS).await.map(drop) })
        })
        .connect_lazy_with(options.clone());
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.ignore_pool_close_event(true);
    listener.eager_reconnect(false);
    within(SILENCE, listener.listen(CHANNEL)).await?;
    // What was told before this was not heard.
    announcer.announce();
    let mut asked = false;
    loop {
        let patience = if asked { SILENCE } else { PING };
        match tokio::time::timeout(patience, listener.try_recv()).await {
            Ok(Ok(Some(note))) => {
                asked = false;
                if is_change(&note, name) {
                    announcer.announce();
                }
            }
            Ok(Ok(None)) => return Ok(()),
            Ok(Err(error)) => return Err(error),
            Err(_) if asked => return Err(timed_out()),
            Err(_) => {
                let question = sqlx::query(NOTIFY).bind(ping).execute(&mut listener);
                within(SILENCE, question).await?;
                asked = true;
            }
        }
    }
}

/// Whether others have something to tell, where this store has told its own already.
fn is_change(note: &PgNotification, name: &str) -> bool {
    let said = note.payload();
    said != name && !said.starts_with(PINGS)
}

async fn within<T>(
    time: Duration,
    future: impl Future<Output = Result<T, sqlx::Error>>,
) -> Result<T, sqlx::Error> {
    tokio::time::timeout(time, future)
        .await
        .unwrap_or_else(|_| Err(timed_out()))
}
