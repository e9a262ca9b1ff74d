//! What goes on in the background: counting what waits, and forgetting what is past its retention.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use hookclaim::{Backlog, DeliveryStore, DurableStore, Pruned, Retention};
use metrics::{counter, gauge, histogram};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout, timeout_at};
use tracing::{info, warn};

use crate::config::Config;
use crate::error::with_causes;
use crate::telemetry::{self, Metrics};

/// How often what waits is counted: a scrape sees numbers that are at most so old.
const COUNT_EVERY: Duration = Duration::from_secs(15);

/// A database that takes longer to count has other worries.
const COUNT_TIMEOUT: Duration = Duration::from_secs(10);

/// The tasks in the background.
pub(super) struct Upkeep {
    stop: watch::Sender<bool>,
    tasks: JoinSet<()>,
}

/// Starts them.
pub(super) fn start<St: DurableStore>(config: &Config, store: &St) -> Upkeep {
    let (stop, stopping) = watch::channel(false);
    let mut tasks = JoinSet::new();
    tasks.spawn(count(store.clone(), Pace(stopping.clone())));
    if let Some(every) = config.prune_every {
        let (store, retention) = (store.clone(), config.retention);
        tasks.spawn(prune(store, retention, every, Pace(stopping)));
    }
    Upkeep { stop, tasks }
}

impl Upkeep {
    /// Begins nothing more.
    pub(super) fn stop(&self) {
        self.stop.send_replace(true);
    }

    /// Waits for what is under way, until `end`.
    pub(super) async fn join(&mut self, end: tokio::time::Instant) {
        let all = async { while self.tasks.join_next().await.is_some() {} };
        // A step that is cut off has happened as a whole or not at all.
        let _ = timeout_at(end, all).await;
    }
}

/// When to go on.
struct Pace(watch::Receiver<bool>);

impl Pace {
    /// Waits for this long, and breaks off as soon as there is to be nothing more.
    async fn pause(&mut self, length: Duration) -> ControlFlow<()> {
        tokio::select! {
            () = sleep(length) => ControlFlow::Continue(()),
            _ = self.0.wait_for(|stop| *stop) => ControlFlow::Break(()),
        }
    }

    fn is_over(&self) -> bool {
        *self.0.borrow()
    }
}

async fn count(store: impl DurableStore, mut pace: Pace) {
    let mut answered = true;
    loop {
        let problem = match timeout(COUNT_TIMEOUT, store.backlog()).await {
            Ok(Ok(backlog)) => {
                show(&backlog);
                None
            }
            Ok(Err(error)) => Some(with_causes(&error)),
            Err(_) => Some(format!("no answer within {COUNT_TIMEOUT:?}")),
        };
        if let Some(problem) = &problem {
            counter!(telemetry::UPKEEP_ERRORS, "task" => "backlog").increment(1);
            // An outage is told once, not four times a minute.
            if answered {
                warn!(error = problem, "cannot count the deliveries that wait");
            }
        }
        answered = problem.is_none();
        if pace.pause(COUNT_EVERY).await.is_break() {
            return;
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "nobody has 2^52 deliveries")]
fn show(backlog: &Backlog) {
    gauge!(telemetry::BACKLOG_WAITING).set(backlog.waiting as f64);
    gauge!(telemetry::BACKLOG_OLDEST).set(backlog.oldest_due.as_secs_f64());
    gauge!(telemetry::BACKLOG_LEASED).set(backlog.leased as f64);
    gauge!(telemetry::BACKLOG_OVERDUE).set(backlog.overdue as f64);
}

async fn prune(store: impl DeliveryStore, retention: Retention, every: Duration, mut pace: Pace) {
    // Anywhere within the first interval, so that processes that start together do not prune together.
    let mut wait = every.mul_f64(random());
    while pace.pause(wait).await.is_continue() {
        wait = every.mul_f64(0.75 + random() / 2.0);
        let begun = Instant::now();
        let mut all = Pruned::default();
        let swept = crate::retention::sweep(&store, &retention, |step| {
            counter!(telemetry::PRUNED, "what" => "records").increment(step.records);
            counter!(telemetry::PRUNED, "what" => "payloads").increment(step.payloads);
            all.records += step.records;
            all.payloads += step.payloads;
            !pace.is_over()
        })
        .await;
        histogram!(telemetry::PRUNE_SECONDS).record(begun.elapsed());
        if all != Pruned::default() {
            info!(
                records = all.records,
                payloads = all.payloads,
                took_ms = begun.elapsed().as_millis(),
                "forgot what was past its retention"
            );
        }
        if let Err(error) = swept {
            counter!(telemetry::UPKEEP_ERRORS, "task" => "prune").increment(1);
            warn!(
                error = with_causes(&error),
                again_in_s = wait.as_secs(),
                "cannot forget what is past its retention"
            );
        }
    }
}

/// From 0 to 1. Without randomness it is in the middle: this only spreads work out.
fn random() -> f64 {
    getrandom::u32().map_or(0.5, |number| f64::from(number) / f64::from(u32::MAX))
}

/// Tidies up the samples of metrics, which nobody else does.
pub(super) async fn samples(metrics: Metrics) {
    let mut ticks = tokio::time::interval(Duration::from_secs(5));
    loop {
        ticks.tick().await;
        metrics.upkeep();
    }
}
