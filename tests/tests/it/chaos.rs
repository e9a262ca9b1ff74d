//! A short run of what `cargo run -p hookclaim-tests --bin chaos` does for minutes.

use std::time::Duration;

use hookclaim_tests::chaos::{Chaos, On};

/// The numbers that tell a run from one in which nothing happened.
async fn run(chaos: Chaos, happened: &[&str]) {
    let report = chaos.run().await;
    assert!(report.is_clean(), "{report}");
    for name in happened {
        assert!(report.fact(name) > 0, "{name}: {report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_processes_on_a_postgres_that_restarts_lose_and_double_nothing() {
    let chaos = Chaos {
        on: On::Postgres { fsync: false },
        deliveries: 300,
        processes: 2,
        seed: 20,
        turmoil: Duration::from_secs(8),
    };
    let happened = [
        "answers: accepted",
        "answers: duplicate",
        "deliveries completed",
        "deliveries dead, permanent",
        "minutes booked",
        "processes killed",
        "processes started again",
    ];
    run(chaos, &happened).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_process_on_sqlite_that_is_killed_and_stopped_loses_and_doubles_nothing() {
    let chaos = Chaos {
        on: On::Sqlite,
        deliveries: 300,
        processes: 1,
        seed: 21,
        turmoil: Duration::from_secs(7),
    };
    let happened = [
        "answers: accepted",
        "answers: duplicate",
        "deliveries completed",
        "deliveries dead, permanent",
        "minutes booked",
        "processes killed",
        "processes started again",
    ];
    run(chaos, &happened).await;
}
