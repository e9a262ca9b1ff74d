//! `hookclaim deliveries retry`

use std::collections::HashSet;

use hookclaim::{ClaimKey, DeliveryStore, Record, Retried, Retry, State};
use serde::Serialize;

use super::{Pages, filter, find, source};
use crate::cli::{DeliveryFilter, RetryDeliveries};
use crate::error::{Context as _, Error};
use crate::output::{print, print_json, printable};
use crate::progress;

pub(super) async fn run(
    store: &impl DeliveryStore,
    options: &RetryDeliveries,
) -> Result<(), Error> {
    let mut order = Retry::by(actor(options.actor.as_deref())?).force(options.force);
    if let Some(reason) = &options.reason {
        order = order.because(reason);
    }
    let wanted = if options.keys.is_empty() {
        matching(store, &options.filter).await?
    } else {
        named(store, options).await?
    };
    let bar = progress::bar(wanted.len(), "deliveries");
    let mut told = Vec::with_capacity(wanted.len());
    let mut failed = None;
    for wanted in wanted {
        match wanted.retry(store, &order).await {
            Ok(outcome) => {
                let line = outcome.line();
                told.push(outcome);
                if !options.json {
                    bar.suspend(|| print(&line))?;
                }
            }
            Err(error) => {
                failed = Some(error);
                break;
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    if options.json {
        print_json(&told)?;
    } else if told.is_empty() && failed.is_none() {
        print("no delivery passes these filters\n")?;
    }
    let refused = told.iter().filter(|outcome| !outcome.is_done()).count();
    match (failed, refused) {
        (Some(error), _) => Err(error),
        (None, 0) => Ok(()),
        (None, refused) => Err(Error::failed(format!(
            "{refused} of {} could not be retried",
            told.len()
        ))),
    }
}

/// Who says so. An audit that names nobody is none.
fn actor(given: Option<&str>) -> Result<String, Error> {
    let nameless = || {
        Error::config(
            "the user of the operating system has no name to write down; say who you are with --actor",
        )
    };
    match given {
        Some(name) if name.trim().is_empty() => Err(Error::config(
            "--actor is blank; give a name that tells people apart",
        )),
        Some(name) => Ok(name.trim().to_owned()),
        None => whoami::username()
            .ok()
            .filter(|name| !name.trim().is_empty())
            .ok_or_else(nameless),
    }
}

/// A delivery that is to be retried.
enum Wanted {
    Known {
        key: ClaimKey,
        delivery_id: String,
        /// The delivery that was asked for, where this is the one that does its work.
        covers: Option<String>,
    },
    Unknown(String),
}

/// Those that were named, each once.
async fn named(
    store: &impl DeliveryStore,
    options: &RetryDeliveries,
) -> Result<Vec<Wanted>, Error> {
    let source = options.filter.source.as_deref().map(source).transpose()?;
    let mut seen = HashSet::new();
    let mut wanted = Vec::new();
    for name in &options.keys {
        match find(store, name, source.as_ref()).await? {
            None => wanted.push(Wanted::Unknown(name.clone())),
            Some(record) if seen.insert(record.key.clone()) => wanted.push(Wanted::of(record)),
            Some(_) => {}
        }
    }
    Ok(wanted)
}

/// Those that pass the filters. Which they are is settled before the first is touched.
async fn matching(
    store: &impl DeliveryStore,
    options: &DeliveryFilter,
) -> Result<Vec<Wanted>, Error> {
    if *options == DeliveryFilter::default() {
        return Err(Error::config(
            "say which deliveries: name their ids, or filter them, such as with --state dead",
        ));
    }
    let mut filter = filter(options)?;
    if filter.states.is_empty() {
        // What waits, runs or is done needs no second thought unless somebody asks for it.
        filter.states = vec![State::Failed, State::Dead];
    }
    let mut pages = Pages::new(store, filter, None);
    let mut seen = HashSet::new();
    let mut wanted = Vec::new();
    loop {
        let page = pages.next().await?;
        if page.is_empty() {
            return Ok(wanted);
        }
        let fresh = page
            .into_iter()
            .filter(|record| seen.insert(record.key.clone()));
        wanted.extend(fresh.map(Wanted::of));
    }
}

impl Wanted {
    fn of(record: Record) -> Self {
        let asked = record.delivery_id.as_str().to_owned();
        let (delivery_id, covers) = match record.covered_by {
            Some(work) => (work.as_str().to_owned(), Some(asked)),
            None => (asked, None),
        };
        Self::Known {
            key: record.key,
            delivery_id,
            covers,
        }
    }

    async fn retry(self, store: &impl DeliveryStore, order: &Retry) -> Result<Outcome, Error> {
        let (key, delivery_id, covers) = match self {
            Self::Known {
                key,
                delivery_id,
                covers,
            } => (key, delivery_id, covers),
            Self::Unknown(name) => {
                return Ok(Outcome::new(
                    None,
                    name.clone(),
                    name,
                    None,
                    Retried::Unknown,
                ));
            }
        };
        let retried = store
            .retry(&key, order)
            .await
            .context(format!("cannot retry {delivery_id}"))?;
        let source = Some(key.source().as_str().to_owned());
        let key = key.key().to_owned();
        Ok(Outcome::new(source, key, delivery_id, covers, retried))
    }
}

/// What came of one, as scripts read it.
#[derive(Debug, Serialize)]
struct Outcome {
    source: Option<String>,
    key: String,
    delivery_id: String,
    covers: Option<String>,
    result: &'static str,
    message: &'static str,
}

impl Outcome {
    fn new(
        source: Option<String>,
        key: String,
        delivery_id: String,
        covers: Option<String>,
        retried: Retried,
    ) -> Self {
        let (result, message) = match retried {
            Retried::Due => ("due", "it is due, and a worker runs it"),
            Retried::AwaitsRedelivery => (
                "awaits_redelivery",
                "no payload is stored; redeliver it from GitHub",
            ),
            Retried::InProgress => ("in_progress", "it is being worked on; nothing was changed"),
            Retried::Completed => (
                "completed",
                "it is completed; use --force to run it again all the same",
            ),
            Retried::Unknown => ("unknown", "there is no such delivery"),
        };
        Self {
            source,
            key,
            delivery_id,
            covers,
            result,
            message,
        }
    }

    /// Whether the order changed anything.
    fn is_done(&self) -> bool {
        matches!(self.result, "due" | "awaits_redelivery")
    }

    fn line(&self) -> String {
        let id = printable(&self.delivery_id);
        match &self.covers {
            Some(asked) => format!("{id}: {} (it covers {})\n", self.message, printable(asked)),
            None => format!("{id}: {}\n", self.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_record_names_somebody() {
        assert_eq!(actor(Some(" mirela ")).unwrap(), "mirela");
        assert_eq!(actor(Some(" ")).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn only_an_order_that_changed_nothing_has_failed() {
        let done = |retried| {
            let (key, id) = (String::new(), String::new());
            Outcome::new(None, key, id, None, retried).is_done()
        };
        assert!(done(Retried::Due) && done(Retried::AwaitsRedelivery));
        assert!(!done(Retried::InProgress) && !done(Retried::Completed) && !done(Retried::Unknown));
    }
}
