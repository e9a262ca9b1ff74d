//! Deliveries as people and scripts read them.

use hookclaim::{Record, Timestamp};
use serde::Serialize;

use crate::output::printable;

/// A delivery as scripts read it.
#[derive(Debug, Serialize)]
pub(super) struct Row<'a> {
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
    pub(super) fn of(record: &'a Record) -> Self {
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
            covered_by: record
                .covered_by
                .as_ref()
                .map(hookclaim::DeliveryId::as_str),
        }
    }

    pub(super) fn cells(&self) -> Vec<String> {
        vec![
            seconds(self.received_at),
            self.state.to_owned(),
            self.event.to_owned(),
            self.action.unwrap_or_default().to_owned(),
            self.attempts.to_string(),
            self.delivery_id.to_owned(),
            self.covered_by.unwrap_or_default().to_owned(),
            self.last_error.unwrap_or_default().to_owned(),
        ]
    }

    /// One field a line; those without a value are left out.
    pub(super) fn lines(&self) -> String {
        let fields = [
            ("source", self.source.to_owned()),
            ("key", self.key.to_owned()),
            ("delivery id", self.delivery_id.to_owned()),
            ("covered by", self.covered_by.unwrap_or_default().to_owned()),
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
        lines(&fields)
    }
}

/// One field a line; those without a value are left out.
pub(super) fn lines(fields: &[(&str, String)]) -> String {
    let given = fields.iter().filter(|(_, value)| !value.is_empty());
    given.fold(String::new(), |text, (name, value)| {
        format!("{text}{name:<12} {}\n", printable(value))
    })
}

/// `None` for an instant beyond the calendar, which only a damaged row can hold.
pub(super) fn time(at: Timestamp) -> Option<jiff::Timestamp> {
    jiff::Timestamp::from_microsecond(at.as_micros()).ok()
}

pub(super) fn seconds(at: Option<jiff::Timestamp>) -> String {
    at.map_or_else(String::new, |at| format!("{at:.0}"))
}
