//! A process that claims as it is told, for races and murders.
//!
//! `claimant <store URL> <lease in ms>` opens the store, prints `ready`, and answers every line on its standard input
//! by one on its standard output:
//!
//! | order | answer |
//! |---|---|
//! | `claim KEY` | `won <attempt> <fence> <kind>`, or the name of the outcome |
//! | `complete KEY`, `fail KEY`, `release KEY`, `renew KEY` | `ok`, or the kind of the error |
//! | `book KEY` | writes a row and completes in one transaction: `ok`, or the kind of the error |
//! | `race N KEY` | `won=… in-progress=… completed=… other=… errors=…` of N claims at once; the winner is kept |
//! | `write MS N` | `written=… errors=… first-error` of N writers that claim and complete fresh keys for so long |
//! | `work-and-abort` | none: works on what is stored, and its handler ends the process |
//!
//! It ends with its standard input.

use std::collections::HashMap;
use std::convert::Infallible;
use std::io::BufRead;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hookclaim::{
    Claim, ClaimKey, ClaimKind, ClaimOutcome, DeliveryId, DurableStore, EventName, Failure, Held,
    Lease, LeasePolicy, PostgresStore, Source, SqliteStore, StoreError,
};
use hookclaim_tests::booking::BookingStore;
use http::Response;
use tokio::sync::Barrier;
use tokio::task::JoinSet;
use tower::service_fn;
use tower_hookclaim::Worker;

#[tokio::main]
async fn main() {
    let mut arguments = std::env::args().skip(1);
    let url = arguments.next().expect("a store's URL");
    let lease = arguments.next().and_then(|ms| ms.parse().ok());
    let policy = LeasePolicy::default().lease(Duration::from_millis(
        lease.expect("the lease in milliseconds"),
    ));
    match url.strip_prefix("sqlite:") {
        Some(path) => {
            let store = SqliteStore::open(path).await.expect("the file opens");
            store.migrate().await.expect("the tables are made");
            obey(store, policy).await;
        }
        None => {
            let store = PostgresStore::connect(&url)
                .await
                .expect("the database answers");
            store.migrate().await.expect("the tables are made");
            obey(store, policy).await;
        }
    }
}

async fn obey<St: BookingStore + DurableStore>(store: St, policy: LeasePolicy) {
    let mut held: HashMap<String, Held> = HashMap::new();
    println!("ready");
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("orders are text");
        let words: Vec<&str> = line.split_whitespace().collect();
        let answer = match words[..] {
            ["claim", key] => match store.claim(claim(key, policy)).await {
                Ok(ClaimOutcome::Won(won)) => {
                    let kind = match won.kind {
                        ClaimKind::Fresh => "fresh",
                        ClaimKind::Retry => "retry",
                        ClaimKind::Takeover => "takeover",
                    };
                    let answer = format!("won {} {} {kind}", won.attempt, won.fence);
                    held.insert(key.to_owned(), won);
                    answer
                }
                Ok(outcome) => name(&outcome).to_owned(),
                Err(error) => kind(&error),
            },
            ["complete", key] => said(store.complete(&held[key]).await),
            ["fail", key] => {
                let failure = Failure::transient("as told", Duration::ZERO);
                said(store.fail(&held[key], &failure).await)
            }
            ["release", key] => said(store.release(&held[key], Duration::ZERO).await),
            ["renew", key] => said(store.renew(&held[key]).await),
            ["book", key] => said(book(&store, &held[key]).await),
            ["race", racers, key] => {
                let (answer, winner) = race(&store, policy, number(racers), key).await;
                held.extend(winner.map(|winner| (key.to_owned(), winner)));
                answer
            }
            ["write", ms, writers] => {
                let span = Duration::from_millis(number(ms) as u64);
                write(&store, policy, span, number(writers)).await
            }
            ["work-and-abort"] => {
                let handler = service_fn(async |_| -> Result<Response<()>, Infallible> {
                    std::process::abort()
                });
                Worker::new(store.clone(), handler)
                    .lease(policy)
                    .poll_interval(Duration::from_millis(20))
                    .run()
                    .await;
                unreachable!("nobody drains it")
            }
            _ => panic!("no such order: {line}"),
        };
        println!("{answer}");
    }
}

async fn race<St: BookingStore>(
    store: &St,
    policy: LeasePolicy,
    racers: usize,
    key: &str,
) -> (String, Option<Held>) {
    let line = Arc::new(Barrier::new(racers));
    let mut claims = JoinSet::new();
    for _ in 0..racers {
        let (store, line, claim) = (store.clone(), Arc::clone(&line), claim(key, policy));
        claims.spawn(async move {
            line.wait().await;
            store.claim(claim).await
        });
    }
    let (mut won, mut in_progress, mut completed, mut other, mut errors) = (0, 0, 0, 0, 0);
    let mut winner = None;
    for outcome in claims.join_all().await {
        match outcome.as_ref().map(name) {
            Ok("won") => {
                won += 1;
                winner = outcome.ok().and_then(ClaimOutcome::won);
            }
            Ok("in-progress") => in_progress += 1,
            Ok("completed") => completed += 1,
            Ok(_) => other += 1,
            Err(error) => {
                eprintln!("{error:?}");
                errors += 1;
            }
        }
    }
    let answer = format!(
        "won={won} in-progress={in_progress} completed={completed} other={other} errors={errors}"
    );
    (answer, winner)
}

/// Without the fence that [`Lease::begin`] puts first, so that the commit is what finds out.
async fn book<St: BookingStore>(store: &St, held: &Held) -> Result<(), StoreError> {
    let mut tx = store.begin().await?;
    St::book(&mut tx, held.key.key()).await;
    Lease::new(store.clone(), held.clone()).commit(tx).await
}

async fn write<St: BookingStore>(
    store: &St,
    policy: LeasePolicy,
    span: Duration,
    writers: usize,
) -> String {
    let begun = Instant::now();
    let mut tasks = JoinSet::new();
    for writer in 0..writers {
        let store = store.clone();
        tasks.spawn(async move {
            let (mut written, mut errors) = (0, Vec::new());
            for at in 0.. {
                if begun.elapsed() > span {
                    break;
                }
                let key = format!("{}-{writer}-{at}", std::process::id());
                match once(&store, claim(&key, policy)).await {
                    Ok(()) => written += 1,
                    Err(error) => errors.push(error),
                }
            }
            (written, errors)
        });
    }
    let (mut written, mut errors) = (0, Vec::new());
    for (more, failed) in tasks.join_all().await {
        written += more;
        errors.extend(failed);
    }
    let first = errors.first().map(|error| format!("{error:?}"));
    format!(
        "written={written} errors={} {}",
        errors.len(),
        first.unwrap_or_default()
    )
}

async fn once<St: BookingStore>(store: &St, claim: Claim) -> Result<(), StoreError> {
    let outcome = store.claim(claim).await?;
    let held = outcome.won().expect("nobody else has this key");
    store.complete(&held).await
}

fn claim(key: &str, policy: LeasePolicy) -> Claim {
    let id = DeliveryId::new(key).expect("a delivery id");
    Claim::bare(
        ClaimKey::delivery(Source::default(), &id),
        id,
        EventName::new("push").expect("an event"),
        policy,
    )
}

fn name(outcome: &ClaimOutcome) -> &'static str {
    match outcome {
        ClaimOutcome::Won(_) => "won",
        ClaimOutcome::Completed => "completed",
        ClaimOutcome::InProgress { .. } => "in-progress",
        _ => "other",
    }
}

fn said<T>(result: Result<T, StoreError>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => kind(&error),
    }
}

fn kind(error: &StoreError) -> String {
    eprintln!("{error:?}");
    format!("{:?}", error.kind())
}

fn number(word: &str) -> usize {
    word.parse().expect("a number")
}
