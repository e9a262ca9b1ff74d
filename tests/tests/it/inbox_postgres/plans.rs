//! How the database goes about the statements: by index, also where it planned them while the tables were empty.

use sqlx::{AssertSqlSafe, Connection, Executor, PgConnection, Row as _};

use hookclaim::{DeliveryStore, DurableStore, PostgresStore, Renewal, StoredRequest};

use super::{ask, stock_due, work};
use crate::stores::real;

/// The plan that is made once, whatever the values.
async fn plan(connection: &mut PgConnection, statement: &str) -> String {
    let parameters = (1..30)
        .rev()
        .find(|number| statement.contains(&format!("${number}")))
        .unwrap_or(0);
    let prepare = format!("prepare planned as {statement}");
    connection.execute(AssertSqlSafe(prepare)).await.unwrap();
    let values = vec!["null"; parameters].join(", ");
    let execute = if parameters == 0 {
        "explain execute planned".to_owned()
    } else {
        format!("explain execute planned ({values})")
    };
    let rows = connection.fetch_all(AssertSqlSafe(execute)).await.unwrap();
    connection.execute("deallocate planned").await.unwrap();
    rows.iter()
        .map(|row| row.get::<String, _>(0) + "\n")
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn no_statement_reads_a_whole_table_but_those_that_list_and_count() {
    let bench = real::postgres().await;
    let mut connection = PgConnection::connect(&bench.url).await.unwrap();
    let settings = "set enable_seqscan = off; set enable_bitmapscan = off; set plan_cache_mode = force_generic_plan";
    sqlx::raw_sql(settings)
        .execute(&mut connection)
        .await
        .unwrap();
    for filled in [false, true] {
        if filled {
            stock_due(&bench.url, 5000, "github").await;
            stock_due(&bench.url, 5000, "other").await;
            connection.execute("analyze").await.unwrap();
        }
        for statement in PostgresStore::statements() {
            let lists =
                statement.contains("with listed as") || statement.contains("group by state");
            let plan = plan(&mut connection, statement).await;
            assert!(
                lists || !plan.contains("Seq Scan on hookclaim"),
                "{plan}\n{statement}"
            );
            // What is due is read in the order in which it is taken, and no further than that.
            if statement.contains("due as materialized")
                || statement.contains("fresh as materialized")
            {
                for index in ["due", "order", "running"] {
                    let index = format!("hookclaim_deliveries_{index} on");
                    assert!(plan.contains(&index), "{index}\n{plan}");
                }
                assert!(!plan.contains("Sort"), "{plan}");
                assert!(!plan.contains("Bitmap"), "{plan}");
                assert!(!plan.contains("Hash"), "{plan}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renewal_writes_no_index_and_no_payload() {
    let bench = real::postgres().await;
    let large = StoredRequest::new(vec![b'x'; 300_000]);
    bench.store.enqueue(work("large", large)).await.unwrap();
    let held = bench.store.acquire(ask(1)).await.unwrap().started[0]
        .held
        .clone();
    let payloads = "select pg_relation_size(reltoastrelid) from pg_class where relname = 'hookclaim_deliveries'";
    let before: i64 = sqlx::query_scalar(payloads)
        .fetch_one(bench.store.pool())
        .await
        .unwrap();
    for _ in 0..5 {
        let renewed = bench.store.renew(&held).await.unwrap();
        assert!(matches!(renewed, Renewal::Renewed { .. }));
    }
    let after: i64 = sqlx::query_scalar(payloads)
        .fetch_one(bench.store.pool())
        .await
        .unwrap();
    assert_eq!(before, after);
    // Counted with a delay: one update is the taking, the others are the renewals.
    let heap_only = hookclaim_tests::eventually("the updates are counted", || async {
        let (updates, heap_only): (i64, i64) = sqlx::query_as(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where relname = 'hookclaim_deliveries'",
        )
        .fetch_one(bench.store.pool())
        .await
        .unwrap();
        (updates == 6).then_some(heap_only)
    })
    .await;
    assert_eq!(heap_only, 5);
}
