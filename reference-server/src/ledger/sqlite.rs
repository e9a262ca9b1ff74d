use hookclaim::{Migrations, SqliteStore, StoreError};
use sqlx::{Sqlite, Transaction};

use super::{Entry, EntryFilter, ISSUE_COMMENT, Ledger, MIGRATIONS_TABLE, NewEntry, labels_json};
use crate::timetracking::payload::SourceComment;

const MIGRATIONS: Migrations =
    Migrations::new(MIGRATIONS_TABLE, &[include_str!("sqlite/schema_1.sql")]);

impl Ledger for SqliteStore {
    async fn migrate_all(&self) -> Result<usize, StoreError> {
        let steps = self.migrate().await?;
        Ok(steps + MIGRATIONS.run_sqlite(self).await?)
    }

    async fn book(
        &self,
        tx: &mut Transaction<'static, Sqlite>,
        comment: &SourceComment,
        entry: &NewEntry,
    ) -> Result<bool, sqlx::Error> {
        let done = sqlx::query(include_str!("sqlite/book.sql"))
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
        let rows = sqlx::query(include_str!("sqlite/list.sql"))
            .bind(filter.repository.as_deref())
            .bind(filter.username.as_deref())
            .bind(filter.from.map(|date| date.to_string()))
            .bind(filter.to.map(|date| date.to_string()))
            .fetch_all(self.readers())
            .await?;
        rows.iter().map(super::entry).collect()
    }

    async fn ping(&self) -> Result<(), sqlx::Error> {
        sqlx::query("select 1")
            .execute(self.readers())
            .await
            .map(drop)
    }
}
