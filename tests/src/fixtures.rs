//! Payloads as GitHub sends them: its fields in its order, byte for byte the same at every call.

use std::fmt;

/// An `issue_comment` event of action `created`.
///
/// ```
/// use hookclaim_tests::fixtures::IssueComment;
///
/// let payload = IssueComment::new("/log 1h30m pairing").payload();
/// assert!(payload.starts_with(r#"{"action":"created","issue":{"#));
/// ```
#[derive(Clone, Debug)]
pub struct IssueComment {
    body: String,
    association: &'static str,
    comment: u64,
    issue: u64,
    user: (u64, String),
    created_at: String,
}

impl IssueComment {
    /// A comment by the repository's owner on its issue 12.
    #[must_use]
    pub fn new(body: impl Into<String>) -> Self {
        Self {
            body: body.into(),
            association: "OWNER",
            comment: 2_964_817_309,
            issue: 12,
            user: (583_231, "mira".to_owned()),
            created_at: "2026-03-14T15:09:26Z".to_owned(),
        }
    }

    /// Sets `author_association`.
    #[must_use]
    pub fn association(mut self, association: &'static str) -> Self {
        self.association = association;
        self
    }

    /// Sets the comment's id.
    #[must_use]
    pub fn comment(mut self, id: u64) -> Self {
        self.comment = id;
        self
    }

    /// Sets the issue's number.
    #[must_use]
    pub fn issue(mut self, number: u64) -> Self {
        self.issue = number;
        self
    }

    /// Sets who wrote it.
    #[must_use]
    pub fn user(mut self, id: u64, login: impl Into<String>) -> Self {
        self.user = (id, login.into());
        self
    }

    /// Sets when it was written, in RFC 3339.
    #[must_use]
    pub fn created_at(mut self, instant: impl Into<String>) -> Self {
        self.created_at = instant.into();
        self
    }

    /// The request's body.
    #[must_use]
    pub fn payload(&self) -> String {
        let Self {
            body,
            association,
            comment,
            issue,
            user: (user_id, login),
            created_at,
        } = self;
        let body = Json(body);
        let user = User(*user_id, login);
        let repository = REPOSITORY;
        let api = "https://api.github.com/repos/octo-org/pairing";
        let web = "https://github.com/octo-org/pairing";
        format!(
            r#"{{"action":"created","issue":{{"url":"{api}/issues/{issue}","repository_url":"{api}","labels_url":"{api}/issues/{issue}/labels{{/name}}","comments_url":"{api}/issues/{issue}/comments","events_url":"{api}/issues/{issue}/events","html_url":"{web}/issues/{issue}","id":29{issue:08},"node_id":"I_kwDOAbc{issue:05}","number":{issue},"title":"Invoices round the wrong way","user":{user},"labels":[{{"id":6181203511,"node_id":"LA_kwDOAbc","url":"{api}/labels/client:%20acme","name":"client: acme","color":"0e8a16","default":false,"description":null}}],"state":"open","locked":false,"assignee":null,"assignees":[],"milestone":null,"comments":1,"created_at":"2026-03-02T08:00:00Z","updated_at":"{created_at}","closed_at":null,"author_association":"OWNER","active_lock_reason":null,"body":"Half a cent is lost.","reactions":{{"url":"{api}/issues/{issue}/reactions","total_count":0,"+1":0,"-1":0,"laugh":0,"hooray":0,"confused":0,"heart":0,"rocket":0,"eyes":0}},"timeline_url":"{api}/issues/{issue}/timeline","performed_via_github_app":null,"state_reason":null}},"comment":{{"url":"{api}/issues/comments/{comment}","html_url":"{web}/issues/{issue}#issuecomment-{comment}","issue_url":"{api}/issues/{issue}","id":{comment},"node_id":"IC_kwDOAbc{comment}","user":{user},"created_at":"{created_at}","updated_at":"{created_at}","author_association":"{association}","body":{body},"reactions":{{"url":"{api}/issues/comments/{comment}/reactions","total_count":0,"+1":0,"-1":0,"laugh":0,"hooray":0,"confused":0,"heart":0,"rocket":0,"eyes":0}},"performed_via_github_app":null}},"repository":{repository},"organization":{ORGANIZATION},"sender":{user}}}"#
        )
    }
}

/// A `ping` of an organisation's hook: there is no repository in it.
#[must_use]
pub fn ping() -> String {
    format!(
        r#"{{"zen":"Half measures are as bad as nothing at all.","hook_id":292430182,"hook":{{"type":"Organization","id":292430182,"name":"web","active":true,"events":["issue_comment","push"],"config":{{"content_type":"json","insecure_ssl":"0","secret":"********","url":"https://hooks.example.com/webhook"}},"updated_at":"2026-03-01T10:00:00Z","created_at":"2026-03-01T10:00:00Z","url":"https://api.github.com/orgs/octo-org/hooks/292430182","ping_url":"https://api.github.com/orgs/octo-org/hooks/292430182/pings","deliveries_url":"https://api.github.com/orgs/octo-org/hooks/292430182/deliveries"}},"organization":{ORGANIZATION},"sender":{}}}"#,
        User(583_231, "mira")
    )
}

/// A `push` of one commit to `reference`, such as `refs/heads/main`.
#[must_use]
pub fn push(reference: &str, sha: &str) -> String {
    let reference = Json(reference);
    format!(
        r#"{{"ref":{reference},"before":"6113728f27ae82c7b1a177c8d03f9e96e0adf246","after":"{sha}","repository":{REPOSITORY},"pusher":{{"name":"mira","email":"mira@example.com"}},"organization":{ORGANIZATION},"sender":{user},"created":false,"deleted":false,"forced":false,"base_ref":null,"compare":"https://github.com/octo-org/pairing/compare/6113728f27ae...{sha}","commits":[{{"id":"{sha}","tree_id":"f9d2a07e9488b91af2641b26b9407fe22a451433","distinct":true,"message":"Round half up","timestamp":"2026-03-14T16:00:00+01:00","url":"https://github.com/octo-org/pairing/commit/{sha}","author":{{"name":"Mira","email":"mira@example.com","username":"mira"}},"committer":{{"name":"Mira","email":"mira@example.com","username":"mira"}},"added":[],"removed":[],"modified":["invoice.rs"]}}],"head_commit":null}}"#,
        user = User(583_231, "mira"),
    )
}

const REPOSITORY: &str = r#"{"id":79929171,"node_id":"R_kgDOBMOXUw","name":"pairing","full_name":"octo-org/pairing","private":true,"owner":{"login":"octo-org","id":6811672,"node_id":"O_kgDOAGfwWA","avatar_url":"https://avatars.githubusercontent.com/u/6811672?v=4","type":"Organization","site_admin":false},"html_url":"https://github.com/octo-org/pairing","description":null,"fork":false,"url":"https://api.github.com/repos/octo-org/pairing","created_at":"2025-01-24T10:14:23Z","updated_at":"2026-03-14T12:00:00Z","pushed_at":"2026-03-14T12:00:00Z","homepage":null,"size":108,"language":"Rust","has_issues":true,"archived":false,"disabled":false,"license":null,"topics":[],"visibility":"private","forks":0,"open_issues":3,"watchers":0,"default_branch":"main"}"#;

const ORGANIZATION: &str = r#"{"login":"octo-org","id":6811672,"node_id":"O_kgDOAGfwWA","url":"https://api.github.com/orgs/octo-org","avatar_url":"https://avatars.githubusercontent.com/u/6811672?v=4","description":null}"#;

struct User<'a>(u64, &'a str);

impl fmt::Display for User<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(id, login) = self;
        write!(
            f,
            r#"{{"login":"{login}","id":{id},"node_id":"U_{id}","avatar_url":"https://avatars.githubusercontent.com/u/{id}?v=4","url":"https://api.github.com/users/{login}","html_url":"https://github.com/{login}","type":"User","site_admin":false}}"#
        )
    }
}

/// A JSON string.
struct Json<'a>(&'a str);

impl fmt::Display for Json<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&serde_json::Value::from(self.0).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_json() {
        let comment = IssueComment::new("/log 1h \"quoted\"\r\n<\u{2028}>");
        for payload in [comment.payload(), ping(), push("refs/heads/main", "0a1b2c")] {
            serde_json::from_str::<serde_json::Value>(&payload).expect("it parses");
        }
        let value: serde_json::Value = serde_json::from_str(&comment.payload()).unwrap();
        assert_eq!(value["comment"]["body"], comment.body);
        assert_eq!(value["repository"]["id"], 79_929_171);
    }
}
