use hookclaim::{Migrations, PostgresStore, StoreError};
use sqlx::{Postgres, Transaction};

use super::{Entry, EntryFilter, ISSUE_COMMENT, Ledger, MIGRATIONS_TABLE, NewEntry, labels_json};
use crate::timetracking::payload::SourceComment;

const MIGRATIONS: Migrations =
    Migrations::new(MIGRATIONS_TABLE, &[include_str!("postgres/schema_1.sql")]);

impl Ledger for PostgresStore {
    async fn migrate_all(&self) -> Result<usize, StoreError> {
        let steps = self.migrate().await?;
        Ok(steps + MIGRATIONS.run_postgres(self.pool()).await?)
    }

    async fn book(
        &self,
        tx: &mut Transaction<'static, Postgres>,
        comment: &SourceComment,
        entry: &NewEntry,
    ) -> Result<bool, sqlx::Error> {
        let done = sqlx::query(include_str!("postgres/book.sql"))
            .bind(ISSUE_COMMENT)
            .bind(comment.id)
            .bind(i64::from(entry.position))
            .bind(comment.repository_id)
            .bind(&comment.repository)
            .bind(comment.issue_id)
            .bind(comment.issue_number)
            .bind(comment.user_id)
            .bind(&comment.user_login)
            .bind(entry.date.to_string())
            .bind(i64::from(entry.minutes.get()))
            .bind(&entry.description)
            .bind(labels_json(&comment.labels))
            .bind(&comment.url)
            .bind(comment.created_at.as_microsecond())
            .execute(&mut **tx)
            .await?;
        Ok(done.rows_affected() == 1)
    }

    async fn entries(&self, filter: &EntryFilter) -> Result<Vec<Entry>, sqlx::Error> {
        let rows = sqlx::query(include_str!("postgres/list.sql"))
            .bind(filter.repository.as_deref())
            .bind(filter.username.as_deref())
            .bind(filter.from.map(|date| date.to_string()))
            .bind(filter.to.map(|date| date.to_string()))
            .fetch_all(self.pool())
            .await?;
        rows.iter().map(super::entry).collect()
    }

    async fn ping(&self) -> Result<(), sqlx::Error> {
        sqlx::query("select 1").execute(self.pool()).await.map(drop)
    }
}
