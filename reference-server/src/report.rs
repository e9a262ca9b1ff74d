//! `hookclaim report`

use std::collections::BTreeMap;

use crate::cli::Report;
use crate::config::Config;
use crate::database::Store;
use crate::error::{Context as _, Error};
use crate::ledger::{Entry, EntryFilter, Ledger};
use crate::output::{print, print_json, table};
use crate::timetracking::duration::Total;

pub(crate) async fn run(config: &Config, options: &Report) -> Result<(), Error> {
    let filter = EntryFilter {
        repository: options.repo.clone(),
        username: options.user.clone(),
        from: options.from,
        to: options.to,
    };
    let entries = match config.database.open_existing().await? {
        Store::Sqlite(store) => store.entries(&filter).await,
        Store::Postgres(store) => store.entries(&filter).await,
    };
    let entries = entries.context(
        "cannot read the entries; if the database is new, `hookclaim migrate` makes its tables",
    )?;
    if options.json {
        print_json(&entries)
    } else {
        print(&summary(&entries))
    }
}

/// Totals by person and issue.
fn summary(entries: &[Entry]) -> String {
    if entries.is_empty() {
        return "no time was booked\n".to_owned();
    }
    let mut people: BTreeMap<i64, Person<'_>> = BTreeMap::new();
    for entry in entries {
        let person = people.entry(entry.github_user_id).or_default();
        // Entries come by day: the newest login is the one that stays.
        person.login = &entry.github_username;
        let issue = (entry.repository.as_str(), entry.issue_number);
        person.issues.entry(issue).or_default().add(entry);
        person.all.add(entry);
    }
    let mut people: Vec<_> = people.into_values().collect();
    people.sort_by_key(|person| person.login.to_lowercase());
    let mut rows = Vec::new();
    let mut all = Sum::default();
    for person in &people {
        for ((repository, number), sum) in &person.issues {
            rows.push(row(person.login, format!("{repository}#{number}"), *sum));
        }
        if person.issues.len() > 1 {
            rows.push(row(person.login, "total".to_owned(), person.all));
        }
        all.entries += person.all.entries;
        all.minutes += person.all.minutes;
    }
    if people.len() > 1 {
        rows.push(row("everybody", "total".to_owned(), all));
    }
    table(&["PERSON", "ISSUE", "ENTRIES", "TIME"], &rows)
}

fn row(person: &str, issue: String, sum: Sum) -> Vec<String> {
    vec![
        person.to_owned(),
        issue,
        sum.entries.to_string(),
        Total(sum.minutes).to_string(),
    ]
}

#[derive(Default)]
struct Person<'a> {
    login: &'a str,
    issues: BTreeMap<(&'a str, i64), Sum>,
    all: Sum,
}

#[derive(Clone, Copy, Default)]
struct Sum {
    entries: u64,
    minutes: u64,
}

impl Sum {
    fn add(&mut self, entry: &Entry) {
        self.entries += 1;
        self.minutes += u64::from(entry.duration_minutes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(user: (i64, &str), issue: i64, minutes: u16) -> Entry {
        Entry {
            id: 1,
            date: "2026-11-13".to_owned(),
            created_at: jiff::Timestamp::UNIX_EPOCH,
            github_user_id: user.0,
            github_username: user.1.to_owned(),
            repository: "octo-org/atelier".to_owned(),
            issue_number: issue,
            duration_minutes: minutes,
            description: String::new(),
            client_id: None,
            labels: vec!["backend".to_owned()],
            status: "active",
            superseded_by: None,
            source_comment_url: "https://github.com/octo-org/atelier/issues/42".to_owned(),
        }
    }

    #[test]
    fn totals_are_by_person_and_issue_and_a_renamed_person_stays_one() {
        let entries = [
            entry((1, "mirela"), 42, 60),
            entry((1, "mirela-k"), 42, 30),
            entry((1, "mirela-k"), 7, 45),
            entry((2, "Amir"), 42, 1440),
        ];
        assert_eq!(
            summary(&entries),
            "PERSON     ISSUE                ENTRIES  TIME\n\
             Amir       octo-org/atelier#42  1        24h\n\
             mirela-k   octo-org/atelier#7   1        45m\n\
             mirela-k   octo-org/atelier#42  2        1h30m\n\
             mirela-k   total                3        2h15m\n\
             everybody  total                4        26h15m\n"
        );
        assert_eq!(summary(&[]), "no time was booked\n");
    }

    #[test]
    fn a_json_entry_has_the_fields_that_scripts_rely_on() {
        let json = serde_json::to_value(entry((1, "mirela-k"), 42, 90)).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "id": 1,
                "date": "2026-11-13",
                "created_at": "1970-01-01T00:00:00Z",
                "github_user_id": 1,
                "github_username": "mirela-k",
                "repository": "octo-org/atelier",
                "issue_number": 42,
                "duration_minutes": 90,
                "description": "",
                "client_id": null,
                "labels": ["backend"],
                "status": "active",
                "superseded_by": null,
                "source_comment_url": "https://github.com/octo-org/atelier/issues/42",
            })
        );
    }
}
