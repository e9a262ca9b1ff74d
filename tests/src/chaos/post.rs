//! What is sent, and what was answered.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::ground::SECRET;
use super::{Chaos, Dice};
use crate::fixtures::{self, IssueComment};
use crate::http::{Client, Signed, signed};

/// GitHub hangs up after this long.
const GITHUB_WAITS: Duration = Duration::from_secs(10);

/// Deliveries that come at once.
const BURST: usize = 40;

/// Where the servers listen; one that is down is where it was.
pub(super) type Doors = Arc<Mutex<Vec<String>>>;

/// What a delivery is, and so what has to become of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// A comment that books so many minutes.
    Hours { comment: i64, minutes: i64 },
    /// A comment that books nothing.
    Chatter,
    /// Not JSON: it has to die.
    Broken,
    /// Answered and not stored.
    Ping,
    /// Of an event that nobody asked for.
    Ignored,
}

impl What {
    pub(super) fn is_stored(self) -> bool {
        !matches!(self, Self::Ping | Self::Ignored)
    }
}

#[derive(Debug)]
pub(super) struct Letter {
    pub(super) id: String,
    pub(super) what: What,
    signed: Signed,
}

/// What was answered about a delivery.
#[derive(Clone, Debug, Default)]
pub(super) struct Fate {
    /// Whether anything was answered with 2xx: from then on it must not be lost.
    pub(super) received: bool,
    /// How often it was answered with `accepted`.
    pub(super) accepted: u32,
    /// By status and outcome; 0 is no answer at all.
    pub(super) answers: BTreeMap<(u16, String), u32>,
    /// The answer of the last round.
    pub(super) last: Option<(u16, String)>,
}

#[derive(Debug)]
pub(super) struct Post {
    chaos: Chaos,
    client: Client,
    doors: Doors,
    pub(super) letters: Vec<Letter>,
    fates: Mutex<Vec<Fate>>,
}

impl Post {
    pub(super) fn new(chaos: Chaos, doors: Doors) -> Self {
        let mut dice = Dice(chaos.seed);
        let letters: Vec<_> = (0..chaos.deliveries)
            .map(|number| letter(chaos.seed, number, &mut dice))
            .collect();
        Self {
            chaos,
            client: Client::http1(),
            doors,
            fates: Mutex::new(vec![Fate::default(); letters.len()]),
            letters,
        }
    }

    pub(super) fn fates(&self) -> Vec<Fate> {
        self.locked().clone()
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Vec<Fate>> {
        self.fates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends everything over the turmoil, in bursts that keep all workers busy, with duplicates and redeliveries.
    pub(super) async fn send_all(self: &Arc<Self>) {
        let begun = Instant::now();
        let over = begun + self.chaos.turmoil;
        let mut people = JoinSet::new();
        for number in 0..self.letters.len() {
            let share = (number / BURST * BURST) as f64 / self.letters.len() as f64;
            sleep_until(begun + self.chaos.turmoil.mul_f64(share)).await;
            let post = Arc::clone(self);
            people.spawn(async move { post.send_one(number, over).await });
        }
        while let Some(sent) = people.join_next().await {
            sent.expect("sending does not panic");
        }
        sleep_until(over).await;
    }

    /// One delivery, and what a person does about it.
    async fn send_one(&self, number: usize, over: Instant) {
        let mut dice = Dice(self.chaos.seed ^ (number as u64) << 20);
        if dice.percent(10) {
            // Two hooks, or an impatient person: at once, to several processes.
            let door = dice.below(self.doors());
            tokio::join!(
                self.send(number, door),
                self.send(number, door + 1),
                self.send(number, door + 2)
            );
        } else {
            self.send(number, dice.below(self.doors())).await;
        }
        loop {
            let received = self.locked()[number].received;
            let pause = if received {
                if !dice.percent(15) {
                    return;
                }
                dice.millis(20, 4000)
            } else {
                dice.millis(300, 2500)
            };
            if Instant::now() + pause > over {
                return;
            }
            sleep(pause).await;
            self.send(number, dice.below(self.doors())).await;
        }
    }

    /// Sends what has had no 2xx yet until it has.
    pub(super) async fn deliver_the_rest(self: &Arc<Self>, patience: Duration) {
        let begun = Instant::now();
        loop {
            let left: Vec<usize> = {
                let fates = self.locked();
                (0..fates.len())
                    .filter(|number| !fates[*number].received)
                    .collect()
            };
            if left.is_empty() || begun.elapsed() > patience {
                return;
            }
            self.deliver(left, patience).await;
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Sends everything once more, and remembers only that round's answers as the last ones.
    pub(super) async fn deliver_all_again(self: &Arc<Self>, patience: Duration) {
        for fate in self.locked().iter_mut() {
            fate.last = None;
        }
        self.deliver((0..self.letters.len()).collect(), patience)
            .await;
    }

    async fn deliver(self: &Arc<Self>, numbers: Vec<usize>, patience: Duration) {
        let places = Arc::new(Semaphore::new(16));
        let over = Instant::now() + patience;
        let mut sending = JoinSet::new();
        for number in numbers {
            let (post, places) = (Arc::clone(self), Arc::clone(&places));
            sending.spawn(async move {
                let _place = places.acquire().await.expect("it is never closed");
                if Instant::now() < over {
                    post.send(number, number).await;
                }
            });
        }
        while let Some(sent) = sending.join_next().await {
            sent.expect("sending does not panic");
        }
    }

    fn doors(&self) -> usize {
        let doors = self.doors.lock();
        doors.unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Sends one to whichever process is behind a door, and notes the answer.
    async fn send(&self, number: usize, door: usize) {
        let letter = &self.letters[number];
        let url = {
            let doors = self.doors.lock().unwrap_or_else(PoisonError::into_inner);
            doors[door % doors.len()].clone()
        };
        let answer = timeout(GITHUB_WAITS, self.client.try_send(letter.signed.to(&url))).await;
        let answer = match answer {
            Ok(Ok(answer)) => {
                let (status, outcome) = answer.is();
                (status, outcome.to_owned())
            }
            Ok(Err(_)) => (0, "broken off".to_owned()),
            Err(_) => (0, "too late".to_owned()),
        };
        let fate = &mut self.locked()[number];
        fate.received |= (200..300).contains(&answer.0);
        fate.accepted += u32::from(answer.1 == "accepted");
        *fate.answers.entry(answer.clone()).or_default() += 1;
        fate.last = Some(answer);
    }
}

fn letter(seed: u64, number: usize, dice: &mut Dice) -> Letter {
    let id = format!("{:08x}-0000-4000-8000-{number:012x}", seed as u32);
    let comment = 1_000_000 + number as i64;
    let comment_of = |text: String| {
        IssueComment::new(text)
            .comment(1_000_000 + number as u64)
            .issue(1 + number as u64 % 50)
            .payload()
    };
    let (what, event, body) = match dice.below(100) {
        0..3 => (
            What::Broken,
            "issue_comment",
            format!("{{\"number\":{number},"),
        ),
        3..6 => (
            What::Chatter,
            "issue_comment",
            comment_of("thanks!".to_owned()),
        ),
        6..7 => (What::Ping, "ping", fixtures::ping()),
        7..8 => (What::Ignored, "star", "{}".to_owned()),
        _ => {
            let minutes = 1 + dice.below(600) as i64;
            let text = format!("/log {minutes}m of work");
            (
                What::Hours { comment, minutes },
                "issue_comment",
                comment_of(text),
            )
        }
    };
    let signed = signed(SECRET, event, &id, body);
    Letter { id, what, signed }
}
