//! How it is measured: in pairs, in quiet windows, by medians.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

/// Pairs of windows that a ratio is the median of.
pub(crate) const PAIRS: usize = 5;

/// Windows that may be repeated for want of quiet, for each ratio.
const REPEATS: usize = 10;

/// Share of the machine that others may take within a window.
const FOREIGN: f64 = 0.05;

/// Share of the machine that its host may take within a window.
const STEAL: f64 = 0.03;

/// What is printed in the end.
#[derive(Debug, Default)]
pub(crate) struct Report(Vec<Line>);

#[derive(Debug)]
struct Line {
    id: &'static str,
    what: String,
    value: String,
    goal: &'static str,
    detail: String,
}

impl Report {
    /// Adds a ratio.
    pub(crate) fn ratio(
        &mut self,
        id: &'static str,
        what: &str,
        goal: &'static str,
        pairs: &Pairs,
    ) {
        let value = format!("{:.3}", pairs.ratio());
        self.add(id, what, value, goal, pairs.detail());
    }

    /// Adds anything else.
    pub(crate) fn add(
        &mut self,
        id: &'static str,
        what: &str,
        value: String,
        goal: &'static str,
        detail: String,
    ) {
        eprintln!("{id:4} {what}: {value}   {detail}");
        self.0.push(Line {
            id,
            what: what.to_owned(),
            value,
            goal,
            detail,
        });
    }

    /// Prints the table.
    pub(crate) fn print(&self) {
        println!(
            "{:4} {:62} {:>9} {:>9}  baseline → measured",
            "", "ratio", "here", "goal"
        );
        for Line {
            id,
            what,
            value,
            goal,
            detail,
        } in &self.0
        {
            println!("{id:4} {what:62} {value:>9} {goal:>9}  {detail}");
        }
    }
}

/// What pairs of windows gave.
#[derive(Debug)]
pub(crate) struct Pairs {
    baseline: Vec<f64>,
    measured: Vec<f64>,
    unit: &'static str,
    noisy: usize,
}

impl Pairs {
    /// The median of the pairs' ratios.
    pub(crate) fn ratio(&self) -> f64 {
        median(
            self.baseline
                .iter()
                .zip(&self.measured)
                .map(|(base, measured)| measured / base)
                .collect(),
        )
    }

    fn detail(&self) -> String {
        let noisy = match self.noisy {
            0 => String::new(),
            noisy => format!(" (noisy: {noisy} of {} windows)", 2 * self.baseline.len()),
        };
        let (base, measured) = (median(self.baseline.clone()), median(self.measured.clone()));
        format!("{base:.3} → {measured:.3} {}{noisy}", self.unit)
    }
}

/// Runs both in turn, five times.
pub(crate) fn pairs(
    unit: &'static str,
    mut baseline: impl FnMut() -> f64,
    mut measured: impl FnMut() -> f64,
) -> Pairs {
    let mut pairs = Pairs {
        baseline: Vec::new(),
        measured: Vec::new(),
        unit,
        noisy: 0,
    };
    let mut repeats = REPEATS;
    // Warm both.
    baseline();
    measured();
    for _ in 0..PAIRS {
        let window = |run: &mut dyn FnMut() -> f64, pairs: &mut Pairs, repeats: &mut usize| loop {
            let before = Machine::now();
            let value = run();
            if before.was_quiet() {
                break value;
            }
            if *repeats == 0 {
                pairs.noisy += 1;
                break value;
            }
            *repeats -= 1;
        };
        let value = window(&mut baseline, &mut pairs, &mut repeats);
        pairs.baseline.push(value);
        let value = window(&mut measured, &mut pairs, &mut repeats);
        pairs.measured.push(value);
    }
    pairs
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// CPU time of this thread.
pub(crate) fn thread_cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    Duration::new(seconds, u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// CPU time of a process, in seconds.
pub(crate) fn process_cpu(pid: u32) -> f64 {
    Process::read(pid).map_or(0.0, |process| process.ticks as f64 / TICKS)
}

/// `/proc` counts in hundredths of a second on every Linux.
const TICKS: f64 = 100.0;

struct Machine {
    at: Instant,
    busy: u64,
    steal: u64,
    ours: u64,
}

impl Machine {
    fn now() -> Self {
        let stat = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let fields: Vec<u64> = stat
            .lines()
            .next()
            .unwrap_or_default()
            .split_whitespace()
            .skip(1)
            .filter_map(|field| field.parse().ok())
            .collect();
        let field = |at: usize| fields.get(at).copied().unwrap_or(0);
        // user, nice, system; interrupts belong to whoever caused them, which is mostly us.
        Self {
            at: Instant::now(),
            busy: field(0) + field(1) + field(2),
            steal: field(7),
            ours: family(),
        }
    }

    fn was_quiet(&self) -> bool {
        let now = Self::now();
        let cores = std::thread::available_parallelism().map_or(1, usize::from) as f64;
        let all = (now.at - self.at).as_secs_f64() * TICKS * cores;
        let busy = now.busy.saturating_sub(self.busy);
        let ours = now.ours.saturating_sub(self.ours);
        let foreign = busy.saturating_sub(ours) as f64 / all;
        let steal = now.steal.saturating_sub(self.steal) as f64 / all;
        foreign <= FOREIGN && steal <= STEAL
    }
}

struct Process {
    parent: u32,
    /// With those of children that have ended and were waited for.
    ticks: u64,
}

impl Process {
    fn read(pid: u32) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
        Some(Self {
            parent: u32::try_from(number(1)?).ok()?,
            ticks: number(11)? + number(12)? + number(13)? + number(14)?,
        })
    }
}

/// CPU time of this process and all that descend from it.
fn family() -> u64 {
    let processes: HashMap<u32, Process> = std::fs::read_dir("/proc")
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .filter_map(|pid| Some((pid, Process::read(pid)?)))
        .collect();
    let this = std::process::id();
    let is_ours = |mut pid: u32| {
        while pid != this {
            match processes.get(&pid) {
                Some(process) if process.parent > 1 => pid = process.parent,
                _ => return false,
            }
        }
        true
    };
    processes
        .iter()
        .filter(|(pid, _)| is_ours(**pid))
        .map(|(_, process)| process.ticks)
        .sum()
}
