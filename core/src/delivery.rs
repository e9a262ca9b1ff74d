//! A verified delivery and the values that name it.

use std::borrow::Cow;
use std::fmt;
use std::sync::{Arc, OnceLock};

use bytes::Bytes;
use http::HeaderMap;

use crate::action;
use crate::form::{self, FormError};
use crate::head::{BodyFormat, DeliveryHead};
use crate::key::Source;
use crate::request;
use crate::signature::{Fingerprint, SignedBody, Verified};

/// The value of `X-GitHub-Delivery`: opaque, 1 to 128 visible ASCII characters.
///
/// It names the *event*, not the attempt to deliver it: a redelivery repeats it, and every hook that subscribes to the
/// event sends the same one
/// ([delivery headers](https://docs.github.com/en/webhooks/webhook-events-and-payloads#delivery-headers)).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeliveryId(pub(crate) Arc<str>);

impl DeliveryId {
    /// The longest id that is taken.
    pub const MAX_LEN: usize = 128;

    /// Checks and takes an id.
    ///
    /// ```
    /// # use hookclaim::DeliveryId;
    /// assert!(DeliveryId::new("72d3162e-cc78-11e3-81ab-4c9367dc0958").is_ok());
    /// assert!(DeliveryId::new(" ").is_err());
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidName`] if it is blank, too long, or has other characters.
    pub fn new(id: impl AsRef<str>) -> Result<Self, InvalidName> {
        let id = id.as_ref();
        InvalidName::check(id, Self::MAX_LEN)?;
        Ok(Self(id.into()))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "DeliveryId({})", self.0)
    }
}

impl fmt::Display for DeliveryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The value of `X-GitHub-Event`: 1 to 64 visible ASCII characters, such as `issue_comment`.
///
/// GitHub adds events at any time, so any name is taken; [`EventName::label`] bounds what metrics see.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EventName(Cow<'static, str>);

impl EventName {
    /// The longest name that is taken.
    pub const MAX_LEN: usize = 64;

    /// Checks and takes a name.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] if it is blank, too long, or has other characters.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidName> {
        let name = name.as_ref();
        if let Some(known) = known_event(name) {
            return Ok(Self(Cow::Borrowed(known)));
        }
        InvalidName::check(name, Self::MAX_LEN)?;
        Ok(Self(Cow::Owned(name.to_owned())))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The name if it is one that GitHub documents, otherwise `other`: a metric label that stays bounded.
    #[must_use]
    pub fn label(&self) -> &'static str {
        match &self.0 {
            Cow::Borrowed(known) => known,
            Cow::Owned(_) => "other",
        }
    }
}

impl fmt::Debug for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "EventName({})", self.0)
    }
}

impl fmt::Display for EventName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PartialEq<str> for EventName {
    fn eq(&self, other: &str) -> bool {
        self.0 == other
    }
}

impl PartialEq<&str> for EventName {
    fn eq(&self, other: &&str) -> bool {
        self.0 == *other
    }
}

/// A name that is blank, too long, or not made of visible ASCII characters.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a name must have 1 to {max} visible ASCII characters, this one has {found}")]
pub struct InvalidName {
    max: usize,
    found: &'static str,
}

impl InvalidName {
    pub(crate) fn check(name: &str, max: usize) -> Result<(), Self> {
        let found = if name.trim().is_empty() {
            "none"
        } else if name.len() > max {
            "more"
        } else if !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            "others"
        } else {
            return Ok(());
        };
        Err(Self { max, found })
    }
}

/// One verified delivery.
///
/// A cheap clone of shared, immutable data. `Debug` shows what names the delivery, never its payload.
#[derive(Clone)]
pub struct Delivery(Arc<Inner>);

struct Inner {
    head: DeliveryHead,
    source: Source,
    raw: Bytes,
    json: Bytes,
    verified: Verified,
    action: OnceLock<Option<Box<str>>>,
}

impl Delivery {
    /// Joins parsed headers with the body that they came with.
    ///
    /// # Errors
    ///
    /// [`FormError`] if the headers announce a form and the body has no single `payload` field.
    pub fn new(head: DeliveryHead, body: SignedBody, source: Source) -> Result<Self, FormError> {
        let verified = body.verified().clone();
        Self::build(head, body.into_bytes(), verified, source)
    }

    /// The delivery of a request that a store has kept: it was verified before it got there, or the application made
    /// it.
    pub(crate) fn stored(
        head: DeliveryHead,
        raw: Bytes,
        fingerprint: Option<Fingerprint>,
        source: Source,
    ) -> Result<Self, FormError> {
        Self::build(head, raw, Verified::stored(fingerprint), source)
    }

    fn build(
        head: DeliveryHead,
        raw: Bytes,
        verified: Verified,
        source: Source,
    ) -> Result<Self, FormError> {
        let json = match head.format() {
            BodyFormat::Json => raw.clone(),
            BodyFormat::Form => form::payload(&raw)?,
        };
        Ok(Self(Arc::new(Inner {
            head,
            source,
            raw,
            json,
            verified,
            action: OnceLock::new(),
        })))
    }

    /// `X-GitHub-Delivery`.
    #[must_use]
    pub fn id(&self) -> &DeliveryId {
        self.0.head.id()
    }

    /// `X-GitHub-Event`.
    #[must_use]
    pub fn event(&self) -> &EventName {
        self.0.head.event()
    }

    /// How the body spells the payload.
    #[must_use]
    pub fn format(&self) -> BodyFormat {
        self.0.head.format()
    }

    /// The headers that say what it is, made anew: those that are kept where a delivery is stored.
    #[must_use]
    pub fn headers(&self) -> HeaderMap {
        request::headers(self)
    }

    /// The `action` of the payload's top level, such as `created`; `None` if the payload names none or is not JSON.
    ///
    /// Looked up at the first call. GitHub puts it first, so that this usually reads a few bytes.
    #[must_use]
    pub fn action(&self) -> Option<&str> {
        self.0
            .action
            .get_or_init(|| action::find(&self.0.json))
            .as_deref()
    }

    /// `X-GitHub-Hook-ID`: the hook that sent this, if the header was there. Like every header it is not signed.
    #[must_use]
    pub fn hook_id(&self) -> Option<u64> {
        self.0.head.hook_id()
    }

    /// `X-GitHub-Hook-Installation-Target-Type`: `repository`, `organization`, `integration` and so on. Not signed.
    #[must_use]
    pub fn target_type(&self) -> Option<&str> {
        self.0.head.target_type()
    }

    /// `X-GitHub-Hook-Installation-Target-ID`: the repository, organisation or App. Not signed.
    #[must_use]
    pub fn target_id(&self) -> Option<u64> {
        self.0.head.target_id()
    }

    /// The endpoint it came in by; part of the claim key.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.0.source
    }

    /// The bytes as they came over the wire: what was signed.
    #[must_use]
    pub fn raw(&self) -> &Bytes {
        &self.0.raw
    }

    /// The payload: the same as [`raw`](Self::raw) for JSON hooks, the decoded `payload` field for form hooks.
    ///
    /// It is not checked to be JSON: what cannot be parsed is the handler's to judge.
    #[must_use]
    pub fn json(&self) -> &Bytes {
        &self.0.json
    }

    /// What the signature check found.
    #[must_use]
    pub fn verified(&self) -> &Verified {
        &self.0.verified
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.id().as_str())
            .field("event", &self.event().as_str())
            .field("source", &self.source().as_str())
            .field("hook_id", &self.hook_id())
            .field("len", &self.raw().len())
            .finish_non_exhaustive()
    }
}

/// The events that GitHub documents
/// ([webhook events and payloads](https://docs.github.com/en/webhooks/webhook-events-and-payloads)), sorted.
static KNOWN_EVENTS: &[&str] = &[
    "branch_protection_configuration",
    "branch_protection_rule",
    "check_run",
    "check_suite",
    "code_scanning_alert",
    "commit_comment",
    "create",
    "custom_property",
    "custom_property_values",
    "delete",
    "dependabot_alert",
    "deploy_key",
    "deployment",
    "deployment_protection_rule",
    "deployment_review",
    "deployment_status",
    "discussion",
    "discussion_comment",
    "fork",
    "github_app_authorization",
    "gollum",
    "installation",
    "installation_repositories",
    "installation_target",
    "issue_comment",
    "issue_dependencies",
    "issues",
    "label",
    "marketplace_purchase",
    "member",
    "membership",
    "merge_group",
    "meta",
    "milestone",
    "org_block",
    "organization",
    "package",
    "page_build",
    "personal_access_token_request",
    "ping",
    "project",
    "project_card",
    "project_column",
    "projects_v2",
    "projects_v2_item",
    "projects_v2_status_update",
    "public",
    "pull_request",
    "pull_request_review",
    "pull_request_review_comment",
    "pull_request_review_thread",
    "push",
    "registry_package",
    "release",
    "repository",
    "repository_advisory",
    "repository_dispatch",
    "repository_import",
    "repository_ruleset",
    "repository_vulnerability_alert",
    "secret_scanning_alert",
    "secret_scanning_alert_location",
    "secret_scanning_scan",
    "security_advisory",
    "security_and_analysis",
    "sponsorship",
    "star",
    "status",
    "sub_issues",
    "team",
    "team_add",
    "watch",
    "workflow_dispatch",
    "workflow_job",
    "workflow_run",
];

fn known_event(name: &str) -> Option<&'static str> {
    KNOWN_EVENTS
        .binary_search(&name)
        .ok()
        .map(|at| KNOWN_EVENTS[at])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_and_events_are_visible_ascii_within_their_length() {
        assert!(DeliveryId::new("a".repeat(128)).is_ok());
        for bad in [
            String::new(),
            " ".into(),
            "a".repeat(129),
            "a b".into(),
            "ä".into(),
            "a\n".into(),
            "a\0".into(),
        ] {
            assert!(DeliveryId::new(&bad).is_err(), "{bad:?}");
        }
        assert!(EventName::new("brand_new_event").is_ok());
        assert!(EventName::new("a".repeat(65)).is_err());
    }

    #[test]
    fn known_events_are_sorted_and_unknown_ones_share_a_label() {
        assert!(KNOWN_EVENTS.is_sorted());
        assert_eq!(
            EventName::new("issue_comment").unwrap().label(),
            "issue_comment"
        );
        assert_eq!(EventName::new("made_up").unwrap().label(), "other");
    }
}
