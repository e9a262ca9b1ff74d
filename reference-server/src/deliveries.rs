//! `hookclaim deliveries`

mod list;
mod prune;
mod retry;
mod row;
mod show;

use std::time::SystemTime;

use hookclaim::{
    ClaimKey, DeliveryStore, DurableStore, ListFilter, Record, Retention, Source, Timestamp,
};

use crate::cli::{Deliveries, DeliveryFilter};
use crate::config::Config;
use crate::database::Store;
use crate::error::{Context as _, Error};

pub(crate) async fn run(config: &Config, command: &Deliveries) -> Result<(), Error> {
    let retention = &config.retention;
    match config.open_existing().await? {
        Store::Sqlite(store) => run_on(&store, retention, command).await,
        Store::Postgres(store) => run_on(&store, retention, command).await,
    }
}

async fn run_on(
    store: &impl DurableStore,
    retention: &Retention,
    command: &Deliveries,
) -> Result<(), Error> {
    match command {
        Deliveries::List(options) => list::run(store, options).await,
        Deliveries::Show(options) => show::run(store, options).await,
        Deliveries::Retry(options) => retry::run(store, options).await,
        Deliveries::Prune(options) => prune::run(store, retention, options).await,
    }
}

const CANNOT_READ: &str =
    "cannot read the deliveries; if the database is new, `hookclaim migrate` makes its tables";

/// Rows that are read at a time.
const PAGE: u32 = 500;

/// A list, page by page.
struct Pages<'a, St> {
    store: &'a St,
    filter: ListFilter,
    /// How many are still wanted, if not all.
    left: Option<u64>,
    over: bool,
}

impl<'a, St: DeliveryStore> Pages<'a, St> {
    fn new(store: &'a St, filter: ListFilter, limit: Option<u64>) -> Self {
        Self {
            store,
            filter,
            left: limit,
            over: false,
        }
    }

    /// The next ones; an empty page is the last.
    async fn next(&mut self) -> Result<Vec<Record>, Error> {
        let wanted = self
            .left
            .map_or(PAGE, |left| u32::try_from(left).unwrap_or(PAGE).min(PAGE));
        if self.over || wanted == 0 {
            return Ok(Vec::new());
        }
        self.filter.limit = wanted;
        let records = self.store.list(&self.filter).await.context(CANNOT_READ)?;
        self.over = records.len() < wanted as usize;
        if let Some(last) = records.last() {
            self.filter.after = Some(last.into());
        }
        if let Some(left) = &mut self.left {
            *left = left.saturating_sub(records.len() as u64);
        }
        Ok(records)
    }

    /// Whether the limit has left any out.
    async fn are_more(&mut self) -> Result<bool, Error> {
        if self.over {
            return Ok(false);
        }
        self.filter.limit = 1;
        let one = self.store.list(&self.filter).await.context(CANNOT_READ)?;
        Ok(!one.is_empty())
    }
}

/// What the options ask for, as seen at this moment.
fn filter(options: &DeliveryFilter) -> Result<ListFilter, Error> {
    let now = Timestamp::from(SystemTime::now());
    let mut filter = ListFilter::default();
    filter.states.clone_from(&options.state);
    filter.event.clone_from(&options.event);
    filter.delivery_id.clone_from(&options.delivery);
    filter.error.clone_from(&options.error);
    filter.source = options.source.as_deref().map(source).transpose()?;
    filter.until = options.older_than.map(|age| now - age);
    filter.since = options.newer_than.map(|age| now - age);
    if let (Some(since), Some(until)) = (filter.since, filter.until)
        && since >= until
    {
        return Err(Error::config(
            "--older-than and --newer-than leave nothing between them; --older-than has to be the shorter one",
        ));
    }
    Ok(filter)
}

fn source(name: &str) -> Result<Source, Error> {
    Source::new(name).map_err(|error| Error::config(format!("--source: {error}")))
}

/// By key, or else by delivery id: the newest, should several keys or sources know it.
async fn find(
    store: &impl DeliveryStore,
    key: &str,
    source: Option<&Source>,
) -> Result<Option<Record>, Error> {
    let by_key = ClaimKey::parse(source.cloned().unwrap_or_default(), key);
    if let Ok(by_key) = by_key
        && let Some(record) = store.inspect(&by_key).await.context(CANNOT_READ)?
    {
        return Ok(Some(record));
    }
    let mut filter = ListFilter::newest(2).delivery_id(key);
    filter.source = source.cloned();
    let mut found = store.list(&filter).await.context(CANNOT_READ)?.into_iter();
    let newest = found.next();
    if let (Some(newest), Some(other)) = (&newest, found.next()) {
        eprintln!(
            "note: more than one delivery has this id; this is the newest, of source {}. Another is of source {}: \
             `deliveries list --delivery` shows all",
            newest.key.source(),
            other.key.source()
        );
    }
    Ok(newest)
}

/// What to say where there is none.
fn not_found(key: &str, source: Option<&Source>) -> Error {
    Error::failed(match source {
        Some(source) => format!("there is no delivery `{key}` of source {source}"),
        None => format!(
            "there is no delivery `{key}`; if it is the key of work from elsewhere than github, name it with --source"
        ),
    })
}
