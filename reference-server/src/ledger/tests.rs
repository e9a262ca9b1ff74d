use hookclaim::{SqliteStore, TransactionalStore as _};

use super::*;

async fn fresh_store() -> (tempfile::TempDir, SqliteStore) {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(dir.path().join("x.db")).await.unwrap();
    store.migrate_all().await.unwrap();
    (dir, store)
}

fn comment(id: i64) -> SourceComment {
    SourceComment {
        id,
        url: format!("https://github.com/octo-org/atelier/issues/42#issuecomment-{id}"),
        created_at: jiff::Timestamp::UNIX_EPOCH,
        user_id: i64::MAX,
        user_login: "mirela-k".to_owned(),
        repository_id: 792_991_714,
        repository: "octo-org/atelier".to_owned(),
        issue_id: 3_612_048_857,
        issue_number: 42,
        labels: vec!["client: northwind".to_owned()],
    }
}

fn new_entry(position: u16, date: &str) -> NewEntry {
    NewEntry {
        position,
        date: date.parse().unwrap(),
        minutes: Minutes::new(90).unwrap(),
        description: "pairing".to_owned(),
    }
}

async fn book(store: &SqliteStore, comment: &SourceComment, entries: &[NewEntry]) -> Vec<bool> {
    let mut tx = store.begin().await.unwrap();
    let mut booked = Vec::new();
    for entry in entries {
        booked.push(store.book(&mut tx, comment, entry).await.unwrap());
    }
    store.commit(tx).await.unwrap();
    booked
}

#[tokio::test]
async fn a_comment_books_each_of_its_places_once() {
    let (_dir, store) = fresh_store().await;
    let two = [new_entry(0, "2026-11-13"), new_entry(1, "2026-11-13")];
    assert_eq!(book(&store, &comment(1), &two).await, [true, true]);
    assert_eq!(book(&store, &comment(1), &two).await, [false, false]);
    assert_eq!(book(&store, &comment(2), &two[..1]).await, [true]);

    let entries = store.entries(&EntryFilter::default()).await.unwrap();
    assert_eq!(entries.len(), 3);
    assert_eq!(entries[0].github_user_id, i64::MAX);
    assert_eq!(entries[0].labels, ["client: northwind"]);
    assert_eq!(entries[0].duration_minutes, 90);
}

#[tokio::test]
async fn entries_are_found_by_day_person_and_repository() {
    let (_dir, store) = fresh_store().await;
    let days = ["2026-11-14", "2026-11-12", "2026-11-13"];
    for (id, day) in (1..).zip(days) {
        book(&store, &comment(id), &[new_entry(0, day)]).await;
    }
    let found = async |filter: EntryFilter| -> Vec<String> {
        let entries = store.entries(&filter).await.unwrap();
        entries.into_iter().map(|entry| entry.date).collect()
    };
    let all = EntryFilter::default();
    assert_eq!(
        found(all.clone()).await,
        ["2026-11-12", "2026-11-13", "2026-11-14"]
    );
    let from_to = EntryFilter {
        from: Some("2026-11-13".parse().unwrap()),
        to: Some("2026-11-13".parse().unwrap()),
        ..all.clone()
    };
    assert_eq!(found(from_to).await, ["2026-11-13"]);
    let named = EntryFilter {
        repository: Some("Octo-Org/Atelier".to_owned()),
        username: Some("MIRELA-K".to_owned()),
        ..all.clone()
    };
    assert_eq!(found(named).await.len(), 3);
    let nobody = EntryFilter {
        username: Some("somebody-else".to_owned()),
        ..all
    };
    assert_eq!(found(nobody).await.len(), 0);
}

#[tokio::test]
async fn tables_are_made_once() {
    let (_dir, store) = fresh_store().await;
    assert_eq!(store.migrate_all().await.unwrap(), 0);
    store.ping().await.unwrap();
}
