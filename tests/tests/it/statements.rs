//! Every statement of the stores is one that its database understands.

use hookclaim::{PostgresStore, SqliteStore};
use sqlx::{Executor, SqlSafeStr};

use crate::stores::{postgres, sqlite};

#[tokio::test]
async fn each_statement_can_be_prepared_on_postgres() {
    let bench = postgres().await;
    let mut connection = bench.store.pool().acquire().await.expect("a connection");
    for statement in PostgresStore::statements() {
        let prepared = connection.prepare(statement.into_sql_str()).await;
        assert!(prepared.is_ok(), "{prepared:?}\n{statement}");
    }
}

#[tokio::test]
async fn each_statement_can_be_prepared_on_sqlite() {
    let bench = sqlite().await;
    let mut connection = bench.store.readers().acquire().await.expect("a connection");
    for statement in SqliteStore::statements() {
        let prepared = connection.prepare(statement.into_sql_str()).await;
        assert!(prepared.is_ok(), "{prepared:?}\n{statement}");
    }
}
