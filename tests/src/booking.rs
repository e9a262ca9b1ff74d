//! A table of the application's, in the same database as the deliveries.

use std::future::Future;

use hookclaim::{PostgresStore, SqliteStore, TransactionalStore};

/// A store whose handlers write a row per delivery.
pub trait BookingStore: TransactionalStore {
    /// Makes the table.
    fn make_bookings(&self) -> impl Future<Output = ()> + Send;

    /// Writes a row.
    fn book(tx: &mut Self::Tx, name: &str) -> impl Future<Output = ()> + Send;

    /// How many rows of that name are committed.
    fn booked(&self, name: &str) -> impl Future<Output = i64> + Send;
}

const TABLE: &str = "create table bookings (name text not null)";
const BOOK: &str = "insert into bookings (name) values ($1)";
const BOOKED: &str = "select count(*) from bookings where name = $1";

impl BookingStore for SqliteStore {
    async fn make_bookings(&self) {
        let mut tx = self.begin().await.expect("a transaction begins");
        sqlx::query(TABLE)
            .execute(&mut *tx)
            .await
            .expect("the table is made");
        self.commit(tx).await.expect("it commits");
    }

    async fn book(tx: &mut Self::Tx, name: &str) {
        sqlx::query(BOOK)
            .bind(name.to_owned())
            .execute(&mut **tx)
            .await
            .expect("a row is written");
    }

    async fn booked(&self, name: &str) -> i64 {
        sqlx::query_scalar(BOOKED)
            .bind(name.to_owned())
            .fetch_one(self.readers())
            .await
            .expect("rows are counted")
    }
}

impl BookingStore for PostgresStore {
    async fn make_bookings(&self) {
        sqlx::query(TABLE)
            .execute(self.pool())
            .await
            .expect("the table is made");
    }

    async fn book(tx: &mut Self::Tx, name: &str) {
        sqlx::query(BOOK)
            .bind(name.to_owned())
            .execute(&mut **tx)
            .await
            .expect("a row is written");
    }

    async fn booked(&self, name: &str) -> i64 {
        sqlx::query_scalar(BOOKED)
            .bind(name.to_owned())
            .fetch_one(self.pool())
            .await
            .expect("rows are counted")
    }
}
