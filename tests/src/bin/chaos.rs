//! Servers that are killed, stopped and restarted, and a database that is as well, while deliveries come in; then the
//! account of every delivery. Exit code 1 if a promise was broken, with all that is wrong.
//!
//! `chaos [--store postgres|sqlite|both] [--deliveries 5000] [--processes 3] [--seed N] [--seconds 240]`
//!
//! `--seconds` is about how long it takes on each store: two thirds of it are turmoil. The seed is printed.

use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use hookclaim_tests::chaos::{Chaos, On};

const USAGE: &str = "usage: chaos [--store postgres|sqlite|both] [--deliveries 5000] [--processes 3] [--seed N] \
                     [--seconds 240]";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(runs) = runs(&arguments) else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let mut clean = true;
    for chaos in runs {
        eprintln!("{chaos:?}");
        let report = chaos.run().await;
        println!("{report}");
        clean &= report.is_clean();
    }
    if clean {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn runs(arguments: &[String]) -> Option<Vec<Chaos>> {
    let mut stores = vec![On::Postgres { fsync: true }, On::Sqlite];
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let mut chaos = Chaos {
        on: On::Sqlite,
        deliveries: 5000,
        processes: 3,
        seed: u64::from(now.subsec_nanos()),
        turmoil: Duration::ZERO,
    };
    let mut seconds = 240;
    for pair in arguments.chunks(2) {
        let [name, value] = pair else { return None };
        match name.as_str() {
            "--store" => match value.as_str() {
                "postgres" => stores.truncate(1),
                "sqlite" => drop(stores.remove(0)),
                "both" => {}
                _ => return None,
            },
            "--deliveries" => chaos.deliveries = value.parse().ok()?,
            "--processes" => chaos.processes = value.parse().ok()?,
            "--seed" => chaos.seed = value.parse().ok()?,
            "--seconds" => seconds = value.parse().ok()?,
            _ => return None,
        }
    }
    chaos.turmoil = Duration::from_secs(seconds) * 2 / 3;
    Some(stores.into_iter().map(|on| Chaos { on, ..chaos }).collect())
}
