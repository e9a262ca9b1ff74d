//! Connections that break, and notifications that do not come.

use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use sqlx::{Connection, PgConnection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use hookclaim::{
    Changes, DeliveryStore, DurableStore, EnqueueOutcome, PostgresStore, State, StoredRequest,
    TransactionalDurableStore, TransactionalStore,
};
use hookclaim_tests::postgres::PgCluster;

use super::{ask, count, stock_due, stores, work};

/// A way to the cluster on which one answer can be lost, together with its connection, and on which the connections
/// that are there can fall silent without an end.
struct Wire {
    port: u16,
    cut: Arc<AtomicBool>,
    silence: watch::Sender<()>,
}

impl Wire {
    async fn lay(to: u16) -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = Arc::new(AtomicBool::new(false));
        let cutting = Arc::clone(&cut);
        let silence = watch::Sender::new(());
        let silencing = silence.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let server = TcpStream::connect(("127.0.0.1", to)).await.unwrap();
                let cut = Arc::clone(&cutting);
                let mut silenced = silencing.subscribe();
                tokio::spawn(async move {
                    let (mut from_client, mut to_client) = client.into_split();
                    let (mut from_server, mut to_server) = server.into_split();
                    let mut buffer = vec![0; 64 * 1024];
                    let asking = tokio::io::copy(&mut from_client, &mut to_server);
                    let answering = async {
                        while let Ok(read) = from_server.read(&mut buffer).await {
                            if read == 0 || cut.swap(false, Ordering::SeqCst) {
                                break;
                            }
                            if to_client.write_all(&buffer[..read]).await.is_err() {
                                break;
                            }
                        }
                    };
                    tokio::select! {
                        _ = asking => {}
                        () = answering => {}
                        // Nothing is carried any more, and nobody is told.
                        _ = silenced.changed() => std::future::pending().await,
                    }
                });
            }
        });
        Self { port, cut, silence }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_taken_or_stored_when_the_answer_was_lost_is_neither_lost_nor_done_twice() {
    let (url, _stores) = stores(1).await;
    let wire = Wire::lay(PgCluster::shared().port()).await;
    let options = PgConnectOptions::from_str(&url).unwrap().port(wire.port);
    let pool = PgPoolOptions::new().connect_with(options).await.unwrap();
    let store = PostgresStore::new(pool).without_notifications();
    // The statements are prepared, so that each is one question and one answer from here on.
    let stored = store.enqueue(work("first", StoredRequest::new("{}"))).await;
    assert_eq!(stored.unwrap(), EnqueueOutcome::Accepted);
    stock_due(&url, 6, "github").await;
    assert_eq!(store.acquire(ask(1)).await.unwrap().started.len(), 1);

    wire.cut.store(true, Ordering::SeqCst);
    let taken = store.acquire(ask(3)).await.unwrap().started;
    assert!(!wire.cut.load(Ordering::SeqCst), "the answer was lost");
    assert_eq!(taken.len(), 3);
    for one in &taken {
        assert_eq!((one.held.attempt, one.held.fence), (1, 2));
        assert!(one.delivery.is_ok());
        store.complete(&one.held).await.unwrap();
    }
    assert_eq!(count(&url, State::Processing).await, 1);
    assert_eq!(count(&url, State::Received).await, 3);

    // Of two connections for claims one is used in turn; whichever answers is cut.
    wire.cut.store(true, Ordering::SeqCst);
    let stored = store
        .enqueue(work("second", StoredRequest::new("{}")))
        .await;
    assert_eq!(stored.unwrap(), EnqueueOutcome::Accepted);
    assert!(!wire.cut.load(Ordering::SeqCst), "the answer was lost");
    assert_eq!(count(&url, State::Received).await, 4);
}

async fn heard(changes: &mut Changes, what: &str) {
    tokio::time::timeout(hookclaim_tests::DEADLINE, changes.changed())
        .await
        .unwrap_or_else(|_| panic!("not heard: {what}"));
}

/// The backend that listens, other than `before`.
async fn listener(url: &str, before: Option<i32>) -> i32 {
    hookclaim_tests::eventually("somebody listens", || async {
        let mut connection = PgConnection::connect(url).await.unwrap();
        let listens: Vec<i32> = sqlx::query_scalar(
            "select pid from pg_stat_activity where datname = current_database() and query ilike 'listen %'",
        )
        .fetch_all(&mut connection)
        .await
        .unwrap();
        listens.into_iter().find(|pid| Some(*pid) != before)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn other_processes_are_told_also_after_the_listener_was_lost() {
    let (url, stores) = stores(2).await;
    let [sender, hearer] = &stores[..] else {
        unreachable!("there are two")
    };
    let mut changes = hearer.changes();
    // Whoever begins to listen has missed something, perhaps.
    heard(&mut changes, "the beginning").await;
    let pid = listener(&url, None).await;
    sender
        .enqueue(work("first", StoredRequest::new("{}")))
        .await
        .unwrap();
    heard(&mut changes, "the first").await;

    let mut connection = PgConnection::connect(&url).await.unwrap();
    sqlx::query("select pg_terminate_backend($1)")
        .bind(pid)
        .execute(&mut connection)
        .await
        .unwrap();
    heard(&mut changes, "the new beginning").await;
    assert_ne!(listener(&url, Some(pid)).await, pid);
    sender
        .enqueue(work("second", StoredRequest::new("{}")))
        .await
        .unwrap();
    heard(&mut changes, "the second").await;

    // Work that is stored in a transaction is told of once that commits.
    let mut tx = sender.begin().await.unwrap();
    let stored = sender
        .enqueue_in(&mut tx, work("third", StoredRequest::new("{}")))
        .await;
    assert_eq!(stored.unwrap(), EnqueueOutcome::Accepted);
    sender.commit(tx).await.unwrap();
    heard(&mut changes, "the third").await;
    assert_eq!(hearer.acquire(ask(10)).await.unwrap().started.len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_listener_whose_connection_fell_silent_finds_out_and_begins_again() {
    let (url, stores) = stores(1).await;
    let wire = Wire::lay(PgCluster::shared().port()).await;
    let options = PgConnectOptions::from_str(&url).unwrap().port(wire.port);
    let pool = PgPoolOptions::new().connect_with(options).await.unwrap();
    let hearer = PostgresStore::new(pool);
    let mut changes = hearer.changes();
    heard(&mut changes, "the beginning").await;
    let pid = listener(&url, None).await;
    wire.silence.send_replace(());
    // The database goes on to believe that somebody listens.
    heard(&mut changes, "the new beginning").await;
    assert_ne!(listener(&url, Some(pid)).await, pid);
    let request = StoredRequest::new("{}");
    stores[0].enqueue(work("first", request)).await.unwrap();
    heard(&mut changes, "the first").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_notifications_there_is_nobody_to_hear_and_everything_is_found() {
    let (url, mut stores) = stores(2).await;
    let sender = stores.remove(0).without_notifications();
    let taker = stores.remove(0).without_notifications();
    let mut changes = sender.changes();
    sender
        .enqueue(work("first", StoredRequest::new("{}")))
        .await
        .unwrap();
    changes.changed().await;
    let _elsewhere = taker.changes();
    assert_eq!(taker.acquire(ask(10)).await.unwrap().started.len(), 1);
    let mut connection = PgConnection::connect(&url).await.unwrap();
    let listens: i64 = sqlx::query_scalar(
        "select count(*) from pg_stat_activity where datname = current_database() \
         and (query ilike 'listen %' or query like '%pg_notify%') and pid <> pg_backend_pid()",
    )
    .fetch_one(&mut connection)
    .await
    .unwrap();
    assert_eq!(listens, 0);
}
