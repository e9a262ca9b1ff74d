//! The harness keeps its own promises.

use std::process::Command;
use std::time::Duration;

use sqlx::{Connection, Executor, PgConnection};

use hookclaim_tests::DEADLINE;
use hookclaim_tests::postgres::{PgCluster, PgOptions};
use hookclaim_tests::process::Claimant;

#[tokio::test]
async fn a_fresh_database_is_empty_and_separate() {
    let cluster = PgCluster::shared();
    let (a, b) = (
        cluster.fresh_database().await,
        cluster.fresh_database().await,
    );
    assert_ne!(a, b);
    let mut connection = PgConnection::connect(&a).await.unwrap();
    connection
        .execute("create table only_here ()")
        .await
        .unwrap();
    let mut connection = PgConnection::connect(&b).await.unwrap();
    let error = connection.execute("select * from only_here").await;
    assert!(error.unwrap_err().to_string().contains("only_here"));
}

#[tokio::test]
async fn a_cluster_restarts_with_its_data_and_leaves_nothing_behind() {
    let cluster = PgCluster::start(PgOptions { fsync: false });
    let url = cluster.fresh_database().await;
    let mut connection = PgConnection::connect(&url).await.unwrap();
    connection.execute("create table kept ()").await.unwrap();
    cluster.restart();
    assert!(connection.ping().await.is_err());
    cluster.crash();
    assert!(PgConnection::connect(&url).await.is_err());
    cluster.resume();
    let mut connection = PgConnection::connect(&url).await.unwrap();
    connection.execute("select * from kept").await.unwrap();
    drop(connection);

    let directory = cluster.socket_directory().to_owned();
    assert!(directory.exists());
    drop(cluster);
    assert!(!directory.exists());
}

#[test]
fn a_claimant_answers_orders_and_can_be_killed() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("hooks.db").display());
    let mut claimant = Claimant::start(&url, Duration::from_secs(30));
    assert_eq!(claimant.ask("claim k"), "won 1 1 fresh");
    assert_eq!(
        claimant.ask("race 3 k"),
        "won=0 in-progress=3 completed=0 other=0 errors=0"
    );
    assert_eq!(claimant.ask("complete k"), "ok");
    assert_eq!(claimant.ask("claim k"), "completed");
    claimant.process().kill9();
    assert!(!claimant.process().is_running());
}

/// Runs only in the process that the test below starts: holds a cluster and waits to be killed.
#[test]
#[ignore = "it is the victim of the next test"]
fn victim() {
    if std::env::var_os("HOOKCLAIM_TESTS_VICTIM").is_none() {
        return;
    }
    let cluster = PgCluster::start(PgOptions { fsync: false });
    println!("directory={}", cluster.socket_directory().display());
    std::thread::sleep(DEADLINE);
}

#[test]
fn a_cluster_dies_with_a_test_process_that_is_killed() {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "harness::victim", "--nocapture"])
        .env("HOOKCLAIM_TESTS_VICTIM", "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let directory = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok)
        .find_map(|line| Some(line.split_once("directory=")?.1.to_owned()))
        .expect("the victim has a cluster");
    let pid = std::fs::read_to_string(format!("{directory}/data/postmaster.pid")).unwrap();
    let pid = pid.lines().next().unwrap().to_owned();
    child.kill().unwrap();
    child.wait().unwrap();
    let begun = std::time::Instant::now();
    while std::path::Path::new(&directory).exists()
        || Command::new("kill")
            .args(["-0", &pid])
            .output()
            .unwrap()
            .status
            .success()
    {
        assert!(begun.elapsed() < DEADLINE, "the cluster outlives its test");
        std::thread::sleep(Duration::from_millis(20));
    }
}
