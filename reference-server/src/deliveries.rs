//! `hookclaim deliveries`

use hookclaim::{ClaimKey, DeliveryStore, ListFilter, Record, Source, Timestamp};
use serde::Serialize;

use crate::cli::{Deliveries, DeliveryFilter};
use crate::config::Config;
use crate::database::Store;
use crate::error::{Context as _, Error};
use crate::output::{print, print_json, printable, table};

pub(crate) async fn run(config: &Config, command: &Deliveries) -> Result<(), Error> {
    match config.database.open_existing().await? {
        Store::Sqlite(store) => run_on(&store, command).await,
        Store::Postgres(store) => run_on(&store, command).await,
    }
}

async fn run_on(store: &impl DeliveryStore, command: &Deliveries) -> Result<(), Error> {
    match command {
        Deliveries::List(filter) => list(store, filter).await,
        Deliveries::Show { key, source, json } => show(store, key, source.as_deref(), *json).await,
    }
}

async fn list(store: &impl DeliveryStore, options: &DeliveryFilter) -> Result<(), Error> {
    let mut filter = ListFilter::newest(options.limit);
    for state in &options.state {
        filter = filter.state(*state);
    }
    if let Some(event) = &options.event {
        filter = filter.event(event);
    }
    if let Some(name) = &options.source {
        filter = filter.source(source(name)?);
    }
    let records = store.list(&filter).await.context(CANNOT_READ)?;
    let rows: Vec<_> = records.iter().map(Row::of).collect();
    if options.json {
        return print_json(&rows);
    }
    let head = [
        "RECEIVED", "STATE", "EVENT", "ACTION", "ATTEMPTS", "DELIVERY", "ERROR",
    ];
    let cells: Vec<_> = rows.iter().map(Row::cells).collect();
    print(&table(&head, &cells))
}

async fn show(
    store: &impl DeliveryStore,
    key: &str,
    source_name: Option<&str>,
    json: bool,
) -> Result<(), Error> {
    let source_name = source_name.map(source).transpose()?;
    let record = find(store, key, source_name).await?;
    let record = record.ok_or_else(|| Error::failed(format!("there is no delivery `{key}`")))?;
    let row = Row::of(&record);
    if json {
        return print_json(&[row]);
    }
    print(&row.lines())
}

/// By key, or else by delivery id: the newest, should several sources know it.
async fn find(
    store: &impl DeliveryStore,
    key: &str,
    source: Option<Source>,
) -> Result<Option<Record>, Error> {
    let by_key = ClaimKey::parse(source.clone().unwrap_or_default(), key);
    if let Ok(by_key) = by_key
        && let Some(record) = store.inspect(&by_key).await.context(CANNOT_READ)?
    {
        return Ok(Some(record));
    }
    let mut filter = ListFilter::newest(1).delivery_id(key);
    if let Some(source) = source {
        filter = filter.source(source);
    }
    let found = store.list(&filter).await.context(CANNOT_READ)?;
    Ok(found.into_iter().next())
}

const CANNOT_READ: &str =
    "cannot read the deliveries; if the database is new, `hookclaim migrate` makes its tables";

fn source(name: &str) -> Result<Source, Error> {
    Source::new(name).map_err(|error| Error::config(format!("--source: {error}")))
}

/// A delivery as scripts read it.
#[derive(Debug, Serialize)]
struct Row<'a> {
    source: &'a str,
    key: &'a str,
    delivery_id: &'a str,
    event: &'a str,
    action: Option<&'a str>,
    state: &'static str,
    attempts: u32,
    received_at: Option<jiff::Timestamp>,
    claimed_at: Option<jiff::Timestamp>,
    lease_until: Option<jiff::Timestamp>,
    retry_at: Option<jiff::Timestamp>,
    finished_at: Option<jiff::Timestamp>,
    error_class: Option<&'static str>,
    last_error: Option<&'a str>,
    covered_by: Option<&'a str>,
}

impl<'a> Row<'a> {
    fn of(record: &'a Record) -> Self {
        Self {
            source: record.key.source().as_str(),
            key: record.key.key(),
            delivery_id: record.delivery_id.as_str(),
            event: record.event.as_str(),
            action: record.action.as_deref(),
            state: record.state.as_str(),
            attempts: record.attempts,
            received_at: time(record.received_at),
            claimed_at: record.claimed_at.and_then(time),
            lease_until: record.lease_until.and_then(time),
            retry_at: record.retry_at.and_then(time),
            finished_at: record.finished_at.and_then(time),
            error_class: record.error_class.map(hookclaim::ErrorClass::as_str),
            last_error: record.last_error.as_deref(),
            covered_by: None,
        }
    }

    fn cells(&self) -> Vec<String> {
        vec![
            seconds(self.received_at),
            self.state.to_owned(),
            self.event.to_owned(),
            self.action.unwrap_or_default().to_owned(),
            self.attempts.to_string(),
            self.delivery_id.to_owned(),
            self.last_error.unwrap_or_default().to_owned(),
        ]
    }

    /// One field a line; those without a value are left out.
    fn lines(&self) -> String {
        let fields = [
            ("source", self.source.to_owned()),
            ("key", self.key.to_owned()),
            ("delivery id", self.delivery_id.to_owned()),
            ("event", self.event.to_owned()),
            ("action", self.action.unwrap_or_default().to_owned()),
            ("state", self.state.to_owned()),
            ("attempts", self.attempts.to_string()),
            ("received", seconds(self.received_at)),
            ("claimed", seconds(self.claimed_at)),
            ("lease until", seconds(self.lease_until)),
            ("retry", seconds(self.retry_at)),
            ("finished", seconds(self.finished_at)),
            (
                "error class",
                self.error_class.unwrap_or_default().to_owned(),
            ),
            ("error", self.last_error.unwrap_or_default().to_owned()),
        ];
        let given = fields.into_iter().filter(|(_, value)| !value.is_empty());
        given.fold(String::new(), |text, (name, value)| {
            format!("{text}{name:<12} {}\n", printable(&value))
        })
    }
}

/// `None` for an instant beyond the calendar, which only a damaged row can hold.
fn time(at: Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_microsecond(at.as_micros()).ok()
}

fn seconds(at: Option<jiff::Timestamp>) -> String {
    at.map_or_else(String::new, |at| format!("{at:.0}"))
}
