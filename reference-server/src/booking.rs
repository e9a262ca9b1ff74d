//! From a verified delivery to entries in the ledger.

use std::convert::Infallible;

use bytes::Bytes;
use hookclaim::{Delivery, Lease};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use jiff::tz::TimeZone;
use metrics::counter;
use tower_hookclaim::Verdict;
use tracing::{info, warn};

use crate::config::Config;
use crate::ledger::{Ledger, NewEntry};
use crate::telemetry;
use crate::timetracking::authorize::LocalTrust;
use crate::timetracking::command;
use crate::timetracking::duration::Total;
use crate::timetracking::payload::{IssueComment, PayloadError, SourceComment, storable};

/// By what rules comments are booked.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    trust: LocalTrust,
    time_zone: TimeZone,
}

impl Rules {
    pub(crate) fn of(config: &Config) -> Self {
        Self {
            trust: config.trust,
            time_zone: config.time_zone.clone(),
        }
    }
}

/// What is to be done about a payload.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    /// These entries, all or none.
    Book(SourceComment, Vec<NewEntry>),
    /// Nothing, ever. The delivery is done.
    Nothing { label: &'static str, reason: String },
    /// It is not JSON: for an operator to look at, and no use to try again.
    Broken(String),
}

/// Books what a delivery says. The service behind the webhook layer.
pub(crate) async fn receive<St: Ledger>(
    rules: Rules,
    request: Request<Full<Bytes>>,
) -> Result<Response<Full<Bytes>>, Infallible> {
    let extensions = request.extensions();
    let (Some(delivery), Some(lease)) =
        (extensions.get::<Delivery>(), extensions.get::<Lease<St>>())
    else {
        // Only a router that leaves the layer out comes here.
        return Ok(answer(
            StatusCode::INTERNAL_SERVER_ERROR,
            "not a verified delivery",
        ));
    };
    Ok(match decide(delivery.json(), &rules) {
        Decision::Book(comment, entries) => book(delivery, lease, &comment, &entries).await,
        Decision::Nothing { label, reason } => {
            counter!(telemetry::COMMENTS, "result" => label).increment(1);
            info!(delivery.id = %delivery.id(), result = label, "nothing booked");
            answer(StatusCode::OK, format!("nothing booked: {reason}"))
        }
        Decision::Broken(reason) => {
            counter!(telemetry::COMMENTS, "result" => "unreadable").increment(1);
            warn!(delivery.id = %delivery.id(), "the payload of a signed delivery cannot be read");
            let mut response = answer(StatusCode::UNPROCESSABLE_ENTITY, reason.clone());
            response.extensions_mut().insert(Verdict::permanent(reason));
            response
        }
    })
}

fn decide(json: &[u8], rules: &Rules) -> Decision {
    let nothing = |label, reason: String| Decision::Nothing { label, reason };
    let payload = match IssueComment::parse(json) {
        Ok(payload) => payload,
        Err(error @ PayloadError::NotJson(_)) => return Decision::Broken(error.to_string()),
        Err(error @ PayloadError::Shape(_)) => return nothing("unreadable", error.to_string()),
    };
    if payload.action.as_deref() != Some("created") {
        return nothing("nothing", "only new comments are read".to_owned());
    }
    let Some(comment) = &payload.comment else {
        return nothing("unreadable", "the payload has no comment".to_owned());
    };
    let logs = match command::parse(comment.body.as_deref().unwrap_or_default()) {
        Ok(logs) if logs.is_empty() => {
            return nothing("nothing", "the comment has no command".to_owned());
        }
        logs => logs,
    };
    if let Err(reason) = rules.trust.check(comment) {
        return nothing("not_heard", reason.to_string());
    }
    let logs = match logs {
        Ok(logs) => logs,
        Err(error) => return nothing("invalid", error.to_string()),
    };
    let source = match SourceComment::of(&payload) {
        Ok(source) => source,
        Err(field) => return nothing("unreadable", format!("the payload lacks {field}")),
    };
    // The day of the comment where its author works, whenever it arrives here.
    let date = source.created_at.to_zoned(rules.time_zone.clone()).date();
    let entries = (0..).zip(logs).map(|(position, log)| NewEntry {
        position,
        date,
        minutes: log.minutes,
        description: storable(&log.description),
    });
    Decision::Book(source, entries.collect())
}

/// Writes the entries and completes the delivery, in one transaction.
async fn book<St: Ledger>(
    delivery: &Delivery,
    lease: &Lease<St>,
    comment: &SourceComment,
    entries: &[NewEntry],
) -> Response<Full<Bytes>> {
    match commit(lease, comment, entries).await {
        Ok(0) => {
            counter!(telemetry::COMMENTS, "result" => "duplicate").increment(1);
            info!(delivery.id = %delivery.id(), comment.id = comment.id, "comment was booked before");
            answer(
                StatusCode::OK,
                "nothing booked: this comment was booked before",
            )
        }
        Ok(booked) => {
            counter!(telemetry::COMMENTS, "result" => "booked").increment(1);
            counter!(telemetry::ENTRIES).increment(booked);
            info!(delivery.id = %delivery.id(), comment.id = comment.id, entries = booked, "comment booked");
            let minutes = entries.iter().map(|entry| u64::from(entry.minutes.get()));
            let text = format!(
                "booked {} on {}#{} for {}",
                Total(minutes.sum()),
                comment.repository,
                comment.issue_number,
                comment.user_login
            );
            answer(StatusCode::OK, text)
        }
        Err(message) => {
            // Told by the layer's observer, with the message that the store keeps.
            let mut response = answer(
                StatusCode::SERVICE_UNAVAILABLE,
                "nothing booked: the ledger cannot be written at the moment",
            );
            response
                .extensions_mut()
                .insert(Verdict::transient(message));
            response
        }
    }
}

async fn commit<St: Ledger>(
    lease: &Lease<St>,
    comment: &SourceComment,
    entries: &[NewEntry],
) -> Result<u64, String> {
    let mut tx = lease
        .begin()
        .await
        .map_err(|error| with_causes("no transaction for the entries", &error))?;
    let mut booked = 0;
    for entry in entries {
        match lease.store().book(&mut tx, comment, entry).await {
            Ok(true) => booked += 1,
            Ok(false) => {}
            Err(error) => {
                lease.store().rollback(tx).await;
                return Err(with_causes("an entry was refused", &error));
            }
        }
    }
    lease
        .commit(tx)
        .await
        .map_err(|error| with_causes("the entries were not committed", &error))?;
    Ok(booked)
}

/// For the operator; database errors name constraints and columns, not values.
fn with_causes(what: &str, error: &dyn std::error::Error) -> String {
    let mut text = format!("{what}: {error}");
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn answer(status: StatusCode, text: impl Into<String>) -> Response<Full<Bytes>> {
    let mut text: String = text.into();
    text.push('\n');
    let mut response = Response::new(Full::from(text));
    *response.status_mut() = status;
    response.headers_mut().insert(
        http::header::CONTENT_TYPE,
        http::HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const FIXTURE: &str = include_str!("../fixtures/issue_comment.created.json");

    fn rules(zone: &str) -> Rules {
        Rules {
            trust: LocalTrust::default(),
            time_zone: TimeZone::get(zone).unwrap(),
        }
    }

    fn decided(change: impl FnOnce(&mut Value)) -> Decision {
        let mut payload: Value = serde_json::from_str(FIXTURE).unwrap();
        change(&mut payload);
        decide(payload.to_string().as_bytes(), &rules("UTC"))
    }

    fn label(decision: &Decision) -> &'static str {
        match decision {
            Decision::Book(..) => "book",
            Decision::Nothing { label, .. } => label,
            Decision::Broken(_) => "broken",
        }
    }

    #[test]
    fn a_log_command_of_a_member_is_booked() {
        let Decision::Book(comment, entries) = decided(|_| {}) else {
            panic!("not booked")
        };
        assert_eq!(comment.issue_number, 42);
        assert_eq!(entries.len(), 1);
        assert_eq!(entries[0].minutes.get(), 90);
        assert_eq!(entries[0].description, "pairing");
        assert_eq!(entries[0].date.to_string(), "2026-11-13");
    }

    #[test]
    fn the_day_is_that_of_the_comment_in_the_configured_zone() {
        let mut payload: Value = serde_json::from_str(FIXTURE).unwrap();
        payload["comment"]["created_at"] = json!("2026-11-14T22:30:00Z");
        let day = |zone| match decide(payload.to_string().as_bytes(), &rules(zone)) {
            Decision::Book(_, entries) => entries[0].date.to_string(),
            other => panic!("{other:?}"),
        };
        assert_eq!(day("UTC"), "2026-11-14");
        assert_eq!(day("Europe/Kyiv"), "2026-11-15");
    }

    #[test]
    fn what_cannot_be_booked_is_done_and_not_tried_again() {
        type Change = fn(&mut Value);
        let rows: [(&str, Change); 9] = [
            ("nothing", |p| p["action"] = json!("edited")),
            ("nothing", |p| p["action"] = json!("levitated")),
            ("nothing", |p| p["comment"]["body"] = json!("thanks")),
            ("nothing", |p| p["comment"]["body"] = Value::Null),
            ("invalid", |p| {
                p["comment"]["body"] = json!("/log 45\n/log 1h");
            }),
            ("not_heard", |p| {
                p["comment"]["author_association"] = json!("NONE");
            }),
            ("not_heard", |p| p["comment"]["user"]["type"] = json!("Bot")),
            ("unreadable", |p| p["comment"]["id"] = Value::Null),
            ("unreadable", |p| p["comment"]["id"] = json!("seven")),
        ];
        for (expected, change) in rows {
            let decision = decided(change);
            assert_eq!(label(&decision), expected, "{decision:?}");
        }
        for body in ["", "{", "\u{feff}{}"] {
            assert_eq!(label(&decide(body.as_bytes(), &rules("UTC"))), "broken");
        }
    }

    #[test]
    fn several_commands_are_one_batch() {
        let decision = decided(|p| p["comment"]["body"] = json!("/log 1h a\r\n/log 30m b"));
        let Decision::Book(_, entries) = decision else {
            panic!("{decision:?}")
        };
        let positions: Vec<_> = entries.iter().map(|entry| entry.position).collect();
        assert_eq!(positions, [0, 1]);
    }
}
