//! `hookclaim deliveries show`

use hookclaim::{AuditEntry, DurableStore, ListFilter, Record, StoredRequest};
use serde::Serialize;

use super::row::{Row, lines, seconds, time};
use super::{CANNOT_READ, Pages, find, not_found, source};
use crate::cli::ShowDelivery;
use crate::error::{Context as _, Error, with_causes};
use crate::output::{print, print_bytes, print_json};

pub(super) async fn run(store: &impl DurableStore, options: &ShowDelivery) -> Result<(), Error> {
    let source = options.source.as_deref().map(source).transpose()?;
    let record = find(store, &options.key, source.as_ref()).await?;
    let record = record.ok_or_else(|| not_found(&options.key, source.as_ref()))?;
    let stored = store.stored(&record.key).await;
    if options.payload && !options.json {
        return print_bytes(payload(&options.key, stored)?.body());
    }
    let about = About::read(store, &record, stored.as_ref().ok()).await?;
    if !options.json {
        let problem = stored.as_ref().err();
        return print(&about.text(problem.map(|error| with_causes(error)).as_deref()));
    }
    let mut row = about.row();
    let request;
    if options.payload {
        request = payload(&options.key, stored)?;
        row.payload = Some(std::str::from_utf8(request.body()).map_err(|_| {
            Error::failed("the payload is not UTF-8 and cannot stand in JSON; leave out --json to get its bytes")
        })?);
    }
    print_json(&[row])
}

fn payload<E: std::error::Error + Send + Sync + 'static>(
    key: &str,
    stored: Result<Option<StoredRequest>, E>,
) -> Result<StoredRequest, Error> {
    stored
        .context(format!("cannot read the payload of `{key}`"))?
        .ok_or_else(|| {
            Error::failed(format!(
                "no payload of `{key}` is stored: it was dropped when the delivery was completed or its retention \
                 ended, or the delivery was worked on within its request"
            ))
        })
}

/// A delivery and what belongs to it.
struct About<'a> {
    record: &'a Record,
    /// The work that covers it, if it is covered.
    work: Option<Record>,
    /// The deliveries that it covers.
    covers: Vec<Record>,
    audit: Vec<AuditEntry>,
    bytes: Option<usize>,
}

impl<'a> About<'a> {
    async fn read(
        store: &impl DurableStore,
        record: &'a Record,
        stored: Option<&Option<StoredRequest>>,
    ) -> Result<Self, Error> {
        let work = match record.covered_by {
            Some(_) => store.inspect(&record.key).await.context(CANNOT_READ)?,
            None => None,
        };
        let covers = match record.covered_by {
            None if record.key.is_business() => covered(store, record).await?,
            _ => Vec::new(),
        };
        let audit = store.audit(&record.key).await.context(CANNOT_READ)?;
        let request = stored.and_then(Option::as_ref);
        Ok(Self {
            record,
            work,
            covers,
            audit,
            bytes: request.map(|request| request.body().len()),
        })
    }

    /// For people. `problem` says why the payload cannot be read.
    fn text(&self, problem: Option<&str>) -> String {
        let payload = match (self.bytes, problem) {
            (Some(bytes), _) => format!("stored, {bytes} bytes"),
            (None, Some(problem)) => format!("stored, and cannot be read: {problem}"),
            (None, None) => "not stored".to_owned(),
        };
        let mut text = Row::of(self.record).lines();
        let mut more = vec![
            (
                "ordering key",
                self.record.ordering_key.clone().unwrap_or_default(),
            ),
            ("fence", self.record.fence.to_string()),
            ("payload", payload),
        ];
        for covered in &self.covers {
            let at = seconds(time(covered.received_at));
            more.push(("covers", format!("{}, received {at}", covered.delivery_id)));
        }
        for entry in &self.audit {
            let reason = entry.reason.as_deref();
            let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
            let at = seconds(time(entry.at));
            let what = format!("{at} {} by {}{reason}", entry.action, entry.actor);
            more.push(("audit", what));
        }
        text.push_str(&lines(&more));
        if let Some(work) = &self.work {
            text.push_str("\nIts work is done by this delivery, of the same key:\n\n");
            text.push_str(&Row::of(work).lines());
        }
        text
    }

    fn row(&self) -> Details<'_> {
        Details {
            row: Row::of(self.record),
            ordering_key: self.record.ordering_key.as_deref(),
            fence: self.record.fence,
            payload_stored: self.record.has_payload,
            payload_bytes: self.bytes,
            payload: None,
            covered_by_work: self.work.as_ref().map(Row::of),
            covers: self.covers.iter().map(Row::of).collect(),
            audit: self.audit.iter().map(Line::of).collect(),
        }
    }
}

/// The deliveries that came later than `work`, under its key.
async fn covered(store: &impl DurableStore, work: &Record) -> Result<Vec<Record>, Error> {
    let filter = ListFilter::default()
        .source(work.key.source().clone())
        .since(work.received_at);
    let mut pages = Pages::new(store, filter, None);
    let mut covered = Vec::new();
    loop {
        let page = pages.next().await?;
        if page.is_empty() {
            covered.reverse();
            return Ok(covered);
        }
        let of_work = |record: &Record| record.covered_by.is_some() && record.key == work.key;
        covered.extend(page.into_iter().filter(of_work));
    }
}

/// Everything about a delivery, as scripts read it: the fields of a list, and more.
#[derive(Debug, Serialize)]
struct Details<'a> {
    #[serde(flatten)]
    row: Row<'a>,
    ordering_key: Option<&'a str>,
    fence: u64,
    payload_stored: bool,
    payload_bytes: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a str>,
    covered_by_work: Option<Row<'a>>,
    covers: Vec<Row<'a>>,
    audit: Vec<Line<'a>>,
}

/// What an operator did.
#[derive(Debug, Serialize)]
struct Line<'a> {
    at: Option<jiff::Timestamp>,
    actor: &'a str,
    action: &'a str,
    reason: Option<&'a str>,
}

impl<'a> Line<'a> {
    fn of(entry: &'a AuditEntry) -> Self {
        Self {
            at: time(entry.at),
            actor: &entry.actor,
            action: &entry.action,
            reason: entry.reason.as_deref(),
        }
    }
}
