//! The account in the end: what has to be true of every delivery.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use super::gremlin::Gremlin;
use super::ground::{Ground, MAX_ATTEMPTS, Row};
use super::post::{Post, What};

/// Of so many deliveries the history is shown.
const SUSPECTS: usize = 5;

const COMPLETED: i64 = 2;
const DEAD: i64 = 4;

#[derive(Debug, Default)]
pub(super) struct Findings {
    pub(super) facts: BTreeMap<&'static str, u64>,
    pub(super) violations: Vec<String>,
    pub(super) journal: Vec<String>,
    /// Deliveries whose whole history somebody wants to read.
    suspects: HashSet<String>,
    pub(super) histories: Vec<String>,
}

impl Findings {
    fn add(&mut self, fact: &'static str, count: u64) {
        *self.facts.entry(fact).or_default() += count;
    }

    fn wrong(&mut self, what: String) {
        self.violations.push(what);
    }

    /// Something is wrong with a delivery.
    fn suspect(&mut self, id: &str, what: String) {
        self.violations.push(what);
        if self.suspects.len() < SUSPECTS {
            self.suspects.insert(id.to_owned());
        }
    }
}

/// Every delivery that got a 2xx is completed or dead for a reason, and did what it had to exactly once.
pub(super) async fn deliveries(ground: &Ground, post: &Post, found: &mut Findings) {
    let all_rows = ground.rows().await;
    let effects: HashMap<i64, i64> = ground.effects().await.into_iter().collect();
    let entries: HashMap<i64, (i64, i64)> = ground
        .entries()
        .await
        .into_iter()
        .map(|(comment, count, minutes)| (comment, (count, minutes)))
        .collect();
    let mut ends: HashMap<String, Vec<i64>> = HashMap::new();
    for (id, state) in ground.ends().await {
        ends.entry(id).or_default().push(state);
    }
    let rows: HashMap<&str, &Row> = all_rows
        .iter()
        .map(|row| (row.delivery_id.as_str(), row))
        .collect();
    for (letter, fate) in post.letters.iter().zip(post.fates()) {
        let row = rows.get(letter.id.as_str()).copied();
        let told = format!("{} {:?} {:?} {row:?}", letter.id, letter.what, fate.answers);
        if !fate.received {
            found.suspect(&letter.id, format!("never received: {told}"));
        }
        let Some(row) = row else {
            if letter.what.is_stored() && fate.received {
                found.suspect(&letter.id, format!("LOST: {told}"));
            }
            continue;
        };
        if ends.get(&letter.id).map(Vec::as_slice) != Some(&[row.state]) {
            let ends = ends.get(&letter.id);
            found.suspect(&letter.id, format!("settled not once but {ends:?}: {told}"));
        }
        // Its lease can run out once for every attempt.
        let for_a_reason = match row.error_class.as_deref() {
            Some("permanent") => letter.what == What::Broken,
            Some("transient" | "lease_expired") => row.attempts >= MAX_ATTEMPTS,
            _ => false,
        };
        match row.state {
            COMPLETED if letter.what == What::Broken => {
                found.suspect(&letter.id, format!("completed: {told}"));
            }
            COMPLETED => {}
            DEAD if for_a_reason => {}
            DEAD => found.suspect(&letter.id, format!("dead for no reason: {told}")),
            _ => found.suspect(&letter.id, format!("stuck: {told}")),
        }
        if let What::Hours { comment, minutes } = letter.what {
            let expected = (row.state == COMPLETED).then_some(1);
            let (entry, effect) = (entries.get(&comment), effects.get(&comment).copied());
            if entry.copied() != expected.map(|count| (count, minutes)) {
                found.suspect(
                    &letter.id,
                    format!("booked {entry:?} of {minutes} minutes: {told}"),
                );
            }
            if effect != expected {
                found.suspect(&letter.id, format!("effect {effect:?} times: {told}"));
            }
        }
    }
    let sent: HashSet<&str> = post.letters.iter().map(|letter| &*letter.id).collect();
    for row in &all_rows {
        if !sent.contains(row.delivery_id.as_str()) {
            found.wrong(format!("nobody sent this: {row:?}"));
        }
    }
    let hours = post.letters.iter().filter_map(|letter| match letter.what {
        What::Hours { comment, .. } => Some(comment),
        _ => None,
    });
    let hours: HashSet<i64> = hours.collect();
    for comment in entries.keys().chain(effects.keys()) {
        if !hours.contains(comment) {
            found.wrong(format!("nobody wrote comment {comment}"));
        }
    }
    count(&all_rows, found);
}

fn count(rows: &[Row], found: &mut Findings) {
    for row in rows {
        found.add(
            match (row.state, row.error_class.as_deref()) {
                (COMPLETED, _) => "deliveries completed",
                (DEAD, Some("permanent")) => "deliveries dead, permanent",
                (DEAD, Some("lease_expired")) => "deliveries dead, lease_expired",
                (DEAD, _) => "deliveries dead, otherwise",
                _ => "deliveries open",
            },
            1,
        );
        found.add(
            "deliveries of more than one attempt",
            u64::from(row.attempts > 1),
        );
        for (fact, value) in [
            ("most attempts of one", row.attempts),
            ("most claims of one", row.fence),
        ] {
            let most = found.facts.entry(fact).or_default();
            *most = (*most).max(value.unsigned_abs());
        }
    }
    let recovery = |row: &&Row| {
        let took = row.finished_at.unwrap_or_default() - row.received_at;
        if row.fence > 1 { took } else { 0 }
    };
    if let Some(slowest) = rows.iter().max_by_key(recovery) {
        let took = recovery(&slowest).unsigned_abs() / 1000;
        found.facts.insert("longest recovery (ms)", took);
        found.suspects.insert(slowest.delivery_id.clone());
        found
            .histories
            .push(format!("the longest recovery: {slowest:?}"));
    }
}

/// Every answer is one that a sender may get, and the last round was told what was there.
pub(super) fn answers(post: &Post, found: &mut Findings) {
    for (letter, fate) in post.letters.iter().zip(post.fates()) {
        let told = format!("{} {:?} {:?}", letter.id, letter.what, fate.answers);
        if fate.accepted > 1 {
            found.wrong(format!("accepted {} times: {told}", fate.accepted));
        }
        for ((status, outcome), count) in &fate.answers {
            let allowed = match (status, outcome.as_str()) {
                (0, _) | (503, "unavailable") => true,
                (200, "duplicate") | (202, "accepted" | "in-progress" | "retry-later" | "dead") => {
                    letter.what.is_stored()
                }
                (200, "pong") => letter.what == What::Ping,
                (204, "ignored") => letter.what == What::Ignored,
                _ => false,
            };
            if !allowed {
                found.wrong(format!("answered {status} {outcome}: {told}"));
            }
            let fact = match (status, outcome.as_str()) {
                (0, "too late") => "answers: none within 10 s",
                (0, _) => "answers: broken off",
                (200, "duplicate") => "answers: duplicate",
                (202, "accepted") => "answers: accepted",
                (202, "dead") => "answers: dead",
                (202, _) => "answers: in-progress or retry-later",
                (503, _) => "answers: unavailable",
                _ => "answers: pong or ignored",
            };
            found.add(fact, u64::from(*count));
        }
        let last = fate
            .last
            .as_ref()
            .map(|(status, outcome)| (*status, &**outcome));
        let right = match letter.what {
            What::Ping => last == Some((200, "pong")),
            What::Ignored => last == Some((204, "ignored")),
            _ => matches!(last, Some((200, "duplicate") | (202, "dead"))),
        };
        if !right {
            found.wrong(format!("in the end answered {last:?}: {told}"));
        }
    }
}

/// The report that people read says the same as the ledger.
pub(super) fn report(ground: &Ground, post: &Post, found: &mut Findings) {
    let report = ground.command(&["report", "--json"]).run();
    let entries: Vec<Value> = serde_json::from_str(&report.stdout).unwrap_or_default();
    let booked = entries
        .iter()
        .filter_map(|entry| entry["duration_minutes"].as_i64());
    let booked: i64 = booked.sum();
    let fates = post.fates();
    let hours = post
        .letters
        .iter()
        .zip(&fates)
        .filter_map(|(letter, fate)| {
            let dead = fate
                .last
                .as_ref()
                .is_some_and(|(_, outcome)| outcome == "dead");
            match letter.what {
                What::Hours { minutes, .. } if !dead => Some(minutes),
                _ => None,
            }
        });
    let hours: Vec<i64> = hours.collect();
    let sent: i64 = hours.iter().sum();
    if (booked, entries.len()) != (sent, hours.len()) {
        found.wrong(format!(
            "the report has {booked} minutes in {} entries instead of {sent} in {}, code {:?} {}",
            entries.len(),
            hours.len(),
            report.code,
            report.stderr
        ));
    }
    found.add("minutes booked", booked.unsigned_abs());
}

/// What the servers said while they lived.
pub(super) fn servers(mut gremlin: Gremlin, found: &mut Findings) {
    gremlin.dismiss();
    let mut lost: HashSet<(String, u64)> = HashSet::new();
    let mut completed: HashMap<(String, u64), u32> = HashMap::new();
    let mut booked: HashMap<String, u32> = HashMap::new();
    let lines = gremlin.logs.iter().enumerate().flat_map(|(server, log)| {
        let text = log.text();
        let lines: Vec<_> = text.lines().map(|line| (server, line.to_owned())).collect();
        lines
    });
    let mut histories = Vec::new();
    for (server, line) in lines {
        // The last line of who was killed may be half a line.
        let Ok(line) = serde_json::from_str::<Value>(&line) else {
            if line.contains("panicked at") {
                found.wrong(format!("a server panicked: {line}"));
            }
            continue;
        };
        let fields = &line["fields"];
        let id = fields["delivery.id"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        if found.suspects.contains(&id) {
            let at = line["timestamp"].as_str().unwrap_or_default();
            histories.push(format!("{at} life {server}: {fields}"));
        }
        let attempt = fields["attempt"].as_u64().unwrap_or_default();
        let message = fields["message"].as_str().unwrap_or_default();
        match message {
            "delivery taken" => {
                let kind = fields["claim"].as_str().unwrap_or_default();
                found.add("takeovers", u64::from(kind == "Takeover"));
            }
            "lease lost to another attempt" => {
                found.add("leases lost to another attempt", 1);
                lost.insert((id, attempt));
            }
            "delivery completed" => *completed.entry((id, attempt)).or_default() += 1,
            "comment booked" => *booked.entry(id).or_default() += 1,
            "delivery handed back" => found.add("deliveries handed back", 1),
            "handler stopped: it was still running when its lease was over" => {
                found.add("handlers stopped", 1);
            }
            "comment was booked before" => found.wrong(format!("booked a second time: {line}")),
            "handler panicked" => found.wrong(format!("a handler panicked: {line}")),
            _ if message.contains("bug") => found.wrong(format!("a server complains: {line}")),
            _ => {}
        }
    }
    histories.sort();
    found.histories.append(&mut histories);
    for attempt in &lost {
        if completed.contains_key(attempt) {
            found.wrong(format!("completed with a lease that was lost: {attempt:?}"));
        }
    }
    let twice = completed.iter().filter(|(_, count)| **count > 1);
    found
        .violations
        .extend(twice.map(|end| format!("completed twice: {end:?}")));
    let twice = booked.iter().filter(|(_, count)| **count > 1);
    found
        .violations
        .extend(twice.map(|end| format!("booked twice: {end:?}")));
    found.violations.append(&mut gremlin.violations);
    found.journal.append(&mut gremlin.journal);
    found.facts.append(&mut gremlin.counts);
}
