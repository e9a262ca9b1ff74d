//! Several servers on one database, all of which are killed, stopped and restarted at random moments, while deliveries,
//! redeliveries and duplicates come in; and in the end an account of every one of them.
//!
//! The seed decides what is sent and what is done to whom. When exactly it hits is up to the machine, so a seed repeats
//! the kind of a run and not the run.

mod gremlin;
mod ground;
mod judge;
mod post;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use self::gremlin::Gremlin;
use self::ground::Ground;
use self::post::Post;

/// How long a delivery is held without a sign of life. Short, so that leases run out all the time.
const LEASE: Duration = Duration::from_secs(2);

/// What is waited for in the end has at least this long, however short the run: only a hang takes it.
const LEAST_PATIENCE: Duration = Duration::from_secs(90);

/// On what the servers keep their deliveries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On {
    /// A throw-away cluster, which is restarted as well.
    Postgres {
        /// Whether commits wait for the disk.
        fsync: bool,
    },
    /// A file, for one process.
    Sqlite,
}

/// A run.
#[derive(Clone, Copy, Debug)]
pub struct Chaos {
    /// On what.
    pub on: On,
    /// How many deliveries are sent; redeliveries and duplicates come on top.
    pub deliveries: usize,
    /// How many processes receive and work. SQLite has one.
    pub processes: usize,
    /// Decides what is sent and what is done.
    pub seed: u64,
    /// How long deliveries come in and things are done to the servers.
    pub turmoil: Duration,
}

impl Chaos {
    /// Runs it, and says what came of it. It takes the turmoil, and whatever is left to do after it: in three steps that
    /// are bounded each by the length of the turmoil, or 90 s if that is longer.
    ///
    /// # Panics
    ///
    /// If the run cannot even begin.
    pub async fn run(self) -> Report {
        let begun = Instant::now();
        let ground = Arc::new(Ground::new(self.on).await);
        let processes = match self.on {
            On::Postgres { .. } => self.processes.max(1),
            On::Sqlite => 1,
        };
        let mut gremlin = Gremlin::new(Arc::clone(&ground), processes, self.seed, begun);
        let post = Arc::new(Post::new(self, gremlin.doors()));

        let over = Arc::new(AtomicBool::new(false));
        let mischief = {
            let over = Arc::clone(&over);
            std::thread::spawn(move || {
                gremlin.rage(&over);
                gremlin.heal();
                gremlin
            })
        };
        post.send_all().await;
        over.store(true, Ordering::Relaxed);
        let gremlin = tokio::task::spawn_blocking(|| mischief.join())
            .await
            .expect("waiting does not panic")
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic));

        let patience = self.turmoil.max(LEAST_PATIENCE);
        post.deliver_the_rest(patience).await;
        let settling = Instant::now();
        let stuck = ground.settled_within(patience).await;
        let settling = settling.elapsed();
        let mut found = judge::Findings::default();
        found.violations.extend(stuck);
        judge::deliveries(&ground, &post, &mut found).await;
        let before = ground.tally().await;
        // A person who sends everything once more must not change anything.
        post.deliver_all_again(patience).await;
        if ground.tally().await != before {
            let message = "redelivering everything changed what was done".to_owned();
            found.violations.push(message);
        }
        judge::answers(&post, &mut found);
        judge::report(&ground, &post, &mut found);
        judge::servers(gremlin, &mut found);
        found
            .facts
            .insert("settled after (ms)", settling.as_millis() as u64);
        Report {
            chaos: self,
            took: begun.elapsed(),
            facts: found.facts,
            violations: found.violations,
            journal: found.journal,
            histories: found.histories,
        }
    }
}

/// What came of a run.
#[derive(Debug)]
pub struct Report {
    chaos: Chaos,
    took: Duration,
    facts: BTreeMap<&'static str, u64>,
    violations: Vec<String>,
    journal: Vec<String>,
    histories: Vec<String>,
}

/// More violations than these are the same one again.
const SHOWN: usize = 40;

impl Report {
    /// Whether every promise was kept.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.violations.is_empty()
    }

    /// Something that was counted, by its name in the summary.
    #[must_use]
    pub fn fact(&self, name: &str) -> u64 {
        self.facts.get(name).copied().unwrap_or_default()
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            chaos,
            took,
            facts,
            violations,
            journal,
            histories,
        } = self;
        writeln!(
            f,
            "{:?}, seed {}: {} deliveries in {:.1} s",
            chaos.on,
            chaos.seed,
            chaos.deliveries,
            took.as_secs_f64()
        )?;
        for (name, count) in facts {
            writeln!(f, "  {name:<40} {count:>8}")?;
        }
        for line in histories {
            writeln!(f, "  {line}")?;
        }
        if violations.is_empty() {
            return writeln!(f, "  every promise was kept");
        }
        writeln!(f, "what was done:")?;
        for line in journal {
            writeln!(f, "  {line}")?;
        }
        writeln!(f, "{} VIOLATIONS:", violations.len())?;
        for violation in violations.iter().take(SHOWN) {
            writeln!(f, "  {violation}")?;
        }
        if violations.len() > SHOWN {
            writeln!(f, "  … and {} more", violations.len() - SHOWN)?;
        }
        Ok(())
    }
}

/// Numbers that are the same for the same seed: [SplitMix64](https://prng.di.unimi.it/splitmix64.c).
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        (self.roll() % bound as u64) as usize
    }

    fn percent(&mut self, share: usize) -> bool {
        self.below(100) < share
    }

    fn millis(&mut self, from: usize, to: usize) -> Duration {
        Duration::from_millis((from + self.below(to - from)) as u64)
    }
}
