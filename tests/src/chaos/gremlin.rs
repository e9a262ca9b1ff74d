//! What is done to the servers and to the database.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::ground::Ground;
use super::post::Doors;
use super::{Dice, LEASE};
use crate::process::{Lines, Server};

/// How long a server may take to end that was asked to: its drain, and what it grants itself beyond it.
const LEAVE: Duration = Duration::from_secs(20);

/// How long a server may take to come back once its database is there.
const RETURN: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    /// SIGKILL, and a restart a moment later.
    Kill,
    /// SIGKILL of all of them at once.
    KillAll,
    /// SIGSTOP for longer than the lease.
    Stop,
    /// SIGSTOP for less than the lease.
    Blink,
    /// SIGTERM, and a restart.
    Term,
    /// The database is shut down and comes back.
    Restart,
    /// The database crashes and comes back.
    Crash,
}

/// Each comes this often before all have come again, in an order of their own each time.
const BAG: [Deed; 10] = [
    Deed::Kill,
    Deed::Kill,
    Deed::Kill,
    Deed::KillAll,
    Deed::Stop,
    Deed::Stop,
    Deed::Blink,
    Deed::Term,
    Deed::Restart,
    Deed::Crash,
];

#[derive(Debug)]
enum Standing {
    Up,
    Stopped { until: Instant },
    Leaving { since: Instant },
    Down { until: Instant, since: Instant },
}

#[derive(Debug)]
struct Slot {
    server: Option<Server>,
    standing: Standing,
}

#[derive(Debug)]
pub(super) struct Gremlin {
    ground: Arc<Ground>,
    slots: Vec<Slot>,
    doors: Doors,
    dice: Dice,
    bag: Vec<Deed>,
    database: Option<JoinHandle<()>>,
    begun: Instant,
    pub(super) logs: Vec<Lines>,
    pub(super) counts: BTreeMap<&'static str, u64>,
    pub(super) journal: Vec<String>,
    pub(super) violations: Vec<String>,
}

impl Gremlin {
    pub(super) fn new(ground: Arc<Ground>, processes: usize, seed: u64, begun: Instant) -> Self {
        let mut gremlin = Self {
            ground,
            slots: Vec::new(),
            doors: Doors::default(),
            dice: Dice(seed.rotate_left(32)),
            bag: Vec::new(),
            database: None,
            begun,
            logs: Vec::new(),
            counts: BTreeMap::new(),
            journal: Vec::new(),
            violations: Vec::new(),
        };
        for _ in 0..processes {
            let mut server = gremlin.ground.serve().start();
            gremlin.logs.push(server.process().stderr.clone());
            gremlin.doors().lock().expect("new").push(server.webhook());
            gremlin.slots.push(Slot {
                server: Some(server),
                standing: Standing::Up,
            });
        }
        gremlin
    }

    pub(super) fn doors(&self) -> Doors {
        Arc::clone(&self.doors)
    }

    /// Does one thing after the other until it is over.
    pub(super) fn rage(&mut self, over: &AtomicBool) {
        let mut next = Instant::now() + self.dice.millis(200, 900);
        while !over.load(Ordering::Relaxed) {
            if Instant::now() >= next {
                self.strike();
                next = Instant::now() + self.dice.millis(150, 1300);
            }
            self.tend();
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Brings everything back, for good.
    pub(super) fn heal(&mut self) {
        self.note("healing");
        if let Some(database) = self.database.take()
            && database.join().is_err()
        {
            self.violations
                .push("the database does not start again".to_owned());
        }
        let now = Instant::now();
        for slot in &mut self.slots {
            match &mut slot.standing {
                Standing::Stopped { until } | Standing::Down { until, .. } => *until = now,
                Standing::Up | Standing::Leaving { .. } => {}
            }
        }
        let all_up = |slots: &[Slot]| {
            slots
                .iter()
                .all(|slot| matches!(slot.standing, Standing::Up))
        };
        while !all_up(&self.slots) && now.elapsed() < LEAVE + RETURN {
            self.tend();
            std::thread::sleep(Duration::from_millis(10));
        }
        if !all_up(&self.slots) {
            let message = format!("not all servers are back: {:?}", self.slots);
            self.violations.push(message);
        }
    }

    /// Ends the servers as an operator would, and looks whether they do.
    pub(super) fn dismiss(&mut self) {
        for at in 0..self.slots.len() {
            if let Some(server) = &mut self.slots[at].server {
                server.process().sigterm();
                self.slots[at].standing = Standing::Leaving {
                    since: Instant::now(),
                };
            }
        }
        while self.slots.iter().any(|slot| slot.server.is_some()) {
            for at in 0..self.slots.len() {
                if matches!(self.slots[at].standing, Standing::Leaving { .. }) {
                    self.tend_one(at);
                }
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn note(&mut self, what: impl Into<String>) {
        let at = self.begun.elapsed().as_secs_f64();
        self.journal.push(format!("{at:8.3} s  {}", what.into()));
    }

    fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    fn strike(&mut self) {
        if self.bag.is_empty() {
            self.bag = BAG.to_vec();
            if self.ground.cluster().is_none() {
                self.bag
                    .retain(|deed| !matches!(deed, Deed::Restart | Deed::Crash));
            }
        }
        let at = self.dice.below(self.bag.len());
        let deed = self.bag.swap_remove(at);
        let up: Vec<usize> = (0..self.slots.len())
            .filter(|at| matches!(self.slots[*at].standing, Standing::Up))
            .collect();
        if matches!(deed, Deed::Restart | Deed::Crash) {
            self.strike_database(deed);
            return;
        }
        if up.is_empty() {
            // There will be somebody to do it to.
            self.bag.push(deed);
            return;
        }
        let at = up[self.dice.below(up.len())];
        match deed {
            Deed::Kill => self.kill(at),
            Deed::KillAll => up.into_iter().for_each(|at| self.kill(at)),
            Deed::Stop => {
                // Some of them so long that Postgres ends the transactions that stand still.
                let longer = self.dice.millis(300, 5000);
                self.stop(at, LEASE + longer);
                self.count("processes stopped past the lease");
            }
            Deed::Blink => {
                let short = self.dice.millis(50, 1800);
                self.stop(at, short);
                self.count("processes stopped for less");
            }
            Deed::Term => {
                self.note(format!("SIGTERM to {at}"));
                self.count("processes terminated");
                self.process(at).sigterm();
                self.slots[at].standing = Standing::Leaving {
                    since: Instant::now(),
                };
            }
            Deed::Restart | Deed::Crash => unreachable!("done before"),
        }
    }

    fn process(&mut self, at: usize) -> &mut crate::process::Process {
        let server = self.slots[at].server.as_mut();
        server.expect("it is not down").process()
    }

    fn kill(&mut self, at: usize) {
        self.note(format!("SIGKILL to {at}"));
        self.count("processes killed");
        self.process(at).kill9();
        self.slots[at].server = None;
        let now = Instant::now();
        let until = now + self.dice.millis(20, 1500);
        self.slots[at].standing = Standing::Down { until, since: now };
    }

    fn stop(&mut self, at: usize, time: Duration) {
        self.note(format!("SIGSTOP to {at} for {} ms", time.as_millis()));
        self.process(at).sigstop();
        let until = Instant::now() + time;
        self.slots[at].standing = Standing::Stopped { until };
    }

    /// In a thread of its own: servers have to be woken meanwhile.
    fn strike_database(&mut self, deed: Deed) {
        if self.database.as_ref().is_some_and(|at| !at.is_finished()) {
            self.bag.push(deed);
            return;
        }
        if let Some(before) = self.database.take()
            && before.join().is_err()
        {
            self.violations
                .push("the database does not start again".to_owned());
        }
        self.note(format!("{deed:?} of the database"));
        self.count(match deed {
            Deed::Crash => "database crashes",
            _ => "database restarts",
        });
        let away = self.dice.millis(0, 1200);
        let ground = Arc::clone(&self.ground);
        self.database = Some(std::thread::spawn(move || {
            let cluster = ground.cluster().expect("only Postgres is restarted");
            if deed == Deed::Crash {
                cluster.crash();
            } else {
                cluster.stop();
            }
            std::thread::sleep(away);
            cluster.resume();
        }));
    }

    /// Wakes who has slept enough, and starts who is down for long enough.
    fn tend(&mut self) {
        for at in 0..self.slots.len() {
            self.tend_one(at);
        }
    }

    fn tend_one(&mut self, at: usize) {
        let now = Instant::now();
        match self.slots[at].standing {
            Standing::Up => {
                if !self.process(at).is_running() {
                    let log = self.process(at).stderr.text();
                    let last: Vec<_> = log.lines().rev().take(5).collect();
                    let message = format!("server {at} ended by itself: {last:?}");
                    self.violations.push(message);
                    self.slots[at].server = None;
                    self.slots[at].standing = Standing::Down {
                        until: now,
                        since: now,
                    };
                }
            }
            Standing::Stopped { until } if now >= until => {
                self.process(at).sigcont();
                self.slots[at].standing = Standing::Up;
                self.note(format!("SIGCONT to {at}"));
            }
            Standing::Leaving { since } => {
                if !self.process(at).is_running() {
                    let status = self.process(at).wait();
                    if !status.success() {
                        let log = self.process(at).stderr.text();
                        let last: Vec<_> = log.lines().rev().take(5).collect();
                        let message = format!("server {at} ended with {status}: {last:?}");
                        self.violations.push(message);
                    }
                } else if since.elapsed() > LEAVE {
                    let message = format!("server {at} does not end after SIGTERM");
                    self.violations.push(message);
                } else {
                    return;
                }
                self.slots[at].server = None;
                let until = now + self.dice.millis(20, 800);
                self.slots[at].standing = Standing::Down { until, since: now };
            }
            Standing::Down { until, since } if now >= until => self.start(at, since),
            Standing::Stopped { .. } | Standing::Down { .. } => {}
        }
    }

    fn start(&mut self, at: usize, since: Instant) {
        match self.ground.serve().try_start() {
            Ok(mut server) => {
                self.logs.push(server.process().stderr.clone());
                let mut doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
                doors[at] = server.webhook();
                drop(doors);
                self.slots[at] = Slot {
                    server: Some(server),
                    standing: Standing::Up,
                };
                self.count("processes started again");
                self.note(format!("{at} is back"));
            }
            Err(said) => {
                // Its database is away, and whoever supervises it tries again. It must not last.
                self.count("starts refused without the database");
                if since.elapsed() > RETURN {
                    let message = format!("server {at} does not start: {said}");
                    self.violations.push(message);
                }
                let until = Instant::now() + Duration::from_millis(300);
                self.slots[at].standing = Standing::Down { until, since };
            }
        }
    }
}
