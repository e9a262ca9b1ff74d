//! The part of an `issue_comment` payload that time tracking looks at.
//!
//! GitHub adds fields and actions at any time, and leaves out or nulls others (a deleted account's comment has no
//! user). Everything is optional here, and what cannot be used is said as a reason: a delivery that cannot be booked
//! is done, not tried again.

use serde::Deserialize;

/// An `issue_comment` payload, as far as it can be read.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct IssueComment {
    /// What happened to the comment.
    pub action: Option<String>,
    /// The comment.
    pub comment: Option<Comment>,
    /// Its issue, or pull request.
    pub issue: Option<Issue>,
    /// Its repository.
    pub repository: Option<Repository>,
}

/// A comment.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Comment {
    /// Its id.
    pub id: Option<i64>,
    /// Where people read it.
    pub html_url: Option<String>,
    /// Its Markdown.
    pub body: Option<String>,
    /// Who wrote it; nobody if the account is gone.
    pub user: Option<User>,
    /// When, in RFC 3339.
    pub created_at: Option<String>,
    /// What its author is to the repository.
    pub author_association: Option<String>,
}

/// An account.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct User {
    /// Its id, which stays when the login changes.
    pub id: Option<i64>,
    /// Its login.
    pub login: Option<String>,
    /// `User`, `Bot`, `Organization` or what may come.
    #[serde(rename = "type")]
    pub kind: Option<String>,
}

/// An issue or a pull request.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Issue {
    /// Its id.
    pub id: Option<i64>,
    /// Its number in the repository.
    pub number: Option<i64>,
    /// Its labels.
    pub labels: Option<Vec<Label>>,
}

/// A label.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Label {
    /// Its name.
    pub name: Option<String>,
}

/// A repository.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Repository {
    /// Its id.
    pub id: Option<i64>,
    /// `owner/name`.
    pub full_name: Option<String>,
}

/// Why a payload cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PayloadError {
    /// It is not JSON. GitHub sends none such; it is for an operator to look at.
    #[error("the payload is not JSON")]
    NotJson(#[source] serde_json::Error),
    /// It is JSON of another shape.
    #[error("the payload is not that of an issue comment")]
    Shape(#[source] serde_json::Error),
}

impl IssueComment {
    /// Reads a payload.
    ///
    /// # Errors
    ///
    /// [`PayloadError`] if it is not JSON, or if a field that is read has another type than GitHub documents.
    pub fn parse(json: &[u8]) -> Result<Self, PayloadError> {
        serde_json::from_slice(json).map_err(|error| match error.classify() {
            serde_json::error::Category::Data => PayloadError::Shape(error),
            serde_json::error::Category::Io
            | serde_json::error::Category::Syntax
            | serde_json::error::Category::Eof => PayloadError::NotJson(error),
        })
    }
}

/// A comment with all that an entry needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SourceComment {
    /// Its id.
    pub id: i64,
    /// Where people read it.
    pub url: String,
    /// When it was written.
    pub created_at: jiff::Timestamp,
    /// Who wrote it.
    pub user_id: i64,
    /// Their login at that time.
    pub user_login: String,
    /// The repository's id.
    pub repository_id: i64,
    /// The repository's name at that time.
    pub repository: String,
    /// The issue's id.
    pub issue_id: i64,
    /// The issue's number.
    pub issue_number: i64,
    /// The issue's labels at that time.
    pub labels: Vec<String>,
}

impl SourceComment {
    /// What an entry needs, or the name of the field that is missing.
    ///
    /// # Errors
    ///
    /// The path of the first field without which nothing can be booked.
    pub fn of(payload: &IssueComment) -> Result<Self, &'static str> {
        let comment = payload.comment.as_ref().ok_or("comment")?;
        let user = comment.user.as_ref().ok_or("comment.user")?;
        let issue = payload.issue.as_ref().ok_or("issue")?;
        let repository = payload.repository.as_ref().ok_or("repository")?;
        let created_at = comment.created_at.as_ref().ok_or("comment.created_at")?;
        let labels = issue.labels.iter().flatten();
        Ok(Self {
            id: comment.id.ok_or("comment.id")?,
            url: storable(comment.html_url.as_deref().unwrap_or_default()),
            created_at: created_at.parse().map_err(|_| "comment.created_at")?,
            user_id: user.id.ok_or("comment.user.id")?,
            user_login: storable(user.login.as_deref().ok_or("comment.user.login")?),
            repository_id: repository.id.ok_or("repository.id")?,
            repository: storable(
                repository
                    .full_name
                    .as_deref()
                    .ok_or("repository.full_name")?,
            ),
            issue_id: issue.id.ok_or("issue.id")?,
            issue_number: issue.number.ok_or("issue.number")?,
            labels: labels
                .filter_map(|label| label.name.as_deref().map(storable))
                .collect(),
        })
    }
}

/// Text that every database takes: JSON may hold a NUL, Postgres has none.
#[must_use]
pub fn storable(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIXTURE: &[u8] = include_bytes!("../../fixtures/issue_comment.created.json");

    #[test]
    fn a_payload_as_github_sends_it_has_all_that_an_entry_needs() {
        let payload = IssueComment::parse(FIXTURE).unwrap();
        let source = SourceComment::of(&payload).unwrap();
        assert_eq!(source.repository, "octo-org/atelier");
        assert_eq!(source.user_login, "mirela-k");
        assert_eq!(source.labels, ["client: northwind", "backend"]);
    }

    #[test]
    fn missing_and_null_fields_are_named_and_never_a_panic() {
        let rows = [
            ("{}", "comment"),
            (r#"{"comment":null,"issue":null}"#, "comment"),
            (r#"{"comment":{"id":1,"user":null}}"#, "comment.user"),
            (r#"{"comment":{"id":1,"user":{}}}"#, "issue"),
            (
                r#"{"comment":{"user":{},"created_at":"soon"},"issue":{},"repository":{}}"#,
                "comment.id",
            ),
            (
                r#"{"comment":{"id":1,"user":{},"created_at":"soon"},"issue":{},"repository":{}}"#,
                "comment.created_at",
            ),
        ];
        for (json, field) in rows {
            let payload = IssueComment::parse(json.as_bytes()).unwrap();
            assert_eq!(SourceComment::of(&payload), Err(field), "{json}");
        }
    }

    #[test]
    fn ids_have_64_bits_and_unknown_fields_are_no_obstacle() {
        let json = r#"{"action":"new","comment":{"id":9223372036854775807,"x":[1]},"y":{}}"#;
        let payload = IssueComment::parse(json.as_bytes()).unwrap();
        assert_eq!(payload.comment.unwrap().id, Some(i64::MAX));
    }

    #[test]
    fn what_is_not_json_is_told_from_json_of_another_shape() {
        let not_json: [&[u8]; 4] = [b"", b"{", b"\xef\xbb\xbf{}", b"\xff"];
        for body in not_json {
            let error = IssueComment::parse(body).unwrap_err();
            assert!(matches!(error, PayloadError::NotJson(_)), "{body:?}");
        }
        for body in [
            "[]",
            "null",
            r#"{"comment":{"id":"1"}}"#,
            r#"{"issue":[1]}"#,
        ] {
            let error = IssueComment::parse(body.as_bytes()).map(drop);
            assert!(!matches!(error, Err(PayloadError::NotJson(_))), "{body}");
        }
    }

    #[test]
    fn text_that_postgres_refuses_is_replaced() {
        assert_eq!(storable("a\0b"), "a\u{fffd}b");
    }
}
