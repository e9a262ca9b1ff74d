//! A request as a store keeps it.

use std::fmt;

use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};
use serde::{Deserialize, Serialize};

use crate::delivery::{Delivery, DeliveryId, EventName};
use crate::head::{BodyFormat, header};

/// What a store keeps of a delivery so that it can run later: the body as it came, the path it came to, and of the
/// headers those that say what it is.
///
/// That is an allow-list: delivery id, event, hook id, target type and id, and the content type. A signature is not kept, nor anything else that a sender may have put into a header: GitHub itself has sent
/// secrets in one. A query string is not kept either.
///
/// `Debug` shows no body.
#[derive(Clone, PartialEq, Eq)]
pub struct StoredRequest {
    pub(crate) envelope: Envelope,
    pub(crate) body: Bytes,
}

/// The part of a request that stands beside its body, readable for operators.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Envelope {
    path: String,
    /// Whose body it is. Under a business key it may be another delivery's than the one that the row is named after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    delivery: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    event: Option<String>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    form: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    hook_id: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_type: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    target_id: Option<u64>,
}

impl StoredRequest {
    /// What is kept of a verified delivery that came to `path`.
    #[must_use]
    pub fn of(delivery: &Delivery, path: impl Into<String>) -> Self {
        Self {
            envelope: Envelope {
                path: path.into(),
                delivery: Some(delivery.id().as_str().to_owned()),
                event: Some(delivery.event().as_str().to_owned()),
                form: delivery.format() == BodyFormat::Form,
                hook_id: delivery.hook_id(),
                target_type: delivery.target_type().map(ToOwned::to_owned),
                target_id: delivery.target_id(),
            },
            body: delivery.raw().clone(),
        }
    }

    /// Work of the application's own, with a body that the application made. Its path is `/`.
    #[must_use]
    pub fn new(body: impl Into<Bytes>) -> Self {
        Self {
            envelope: Envelope {
                path: "/".to_owned(),
                delivery: None,
                event: None,
                form: false,
                hook_id: None,
                target_type: None,
                target_id: None,
            },
            body: body.into(),
        }
    }

    /// Sets the path that the handler sees.
    #[must_use]
    pub fn path_of(mut self, path: impl Into<String>) -> Self {
        self.envelope.path = path.into();
        self
    }

    /// The body, as it came.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The path that it came to.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.envelope.path
    }

    /// How the body spells the payload.
    #[must_use]
    pub fn format(&self) -> BodyFormat {
        if self.envelope.form {
            BodyFormat::Form
        } else {
            BodyFormat::Json
        }
    }

    /// The hook that delivered it.
    #[must_use]
    pub fn hook_id(&self) -> Option<u64> {
        self.envelope.hook_id
    }

    /// Says whose body it is.
    pub(crate) fn named(mut self, delivery: &DeliveryId, event: &EventName) -> Self {
        self.envelope.delivery = Some(delivery.as_str().to_owned());
        self.envelope.event = Some(event.as_str().to_owned());
        self
    }

    /// The delivery whose body it is, if that is known.
    pub(crate) fn delivery_id(&self) -> Option<DeliveryId> {
        DeliveryId::new(self.envelope.delivery.as_deref()?).ok()
    }

    /// That delivery's event.
    pub(crate) fn event(&self) -> Option<EventName> {
        EventName::new(self.envelope.event.as_deref()?).ok()
    }

    pub(crate) fn target_type(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(self.envelope.target_type.as_deref()?).ok()
    }

    pub(crate) fn target_id(&self) -> Option<u64> {
        self.envelope.target_id
    }

    /// The envelope as a store writes it.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn envelope_json(&self) -> String {
        serde_json::to_string(&self.envelope).expect("an envelope has only text and numbers")
    }

    /// From what a store has.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn from_parts(envelope: &str, body: Bytes) -> Option<Self> {
        let envelope = serde_json::from_str(envelope).ok()?;
        Some(Self { envelope, body })
    }
}

impl fmt::Debug for StoredRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredRequest")
            .field("envelope", &self.envelope)
            .field("len", &self.body.len())
            .finish_non_exhaustive()
    }
}

/// The headers that a delivery's own fields say again.
pub(crate) fn headers(delivery: &Delivery) -> HeaderMap {
    let mut headers = HeaderMap::with_capacity(8);
    let mut put = |name: &HeaderName, value: Option<HeaderValue>| {
        if let Some(value) = value {
            headers.insert(name.clone(), value);
        }
    };
    let content_type = match delivery.format() {
        BodyFormat::Json => "application/json",
        BodyFormat::Form => "application/x-www-form-urlencoded",
    };
    put(&CONTENT_TYPE, Some(HeaderValue::from_static(content_type)));
    put(
        &header::DELIVERY,
        HeaderValue::from_str(delivery.id().as_str()).ok(),
    );
    put(
        &header::EVENT,
        HeaderValue::from_str(delivery.event().as_str()).ok(),
    );
    put(&header::HOOK_ID, delivery.hook_id().map(HeaderValue::from));
    put(
        &header::TARGET_TYPE,
        delivery
            .target_type()
            .and_then(|text| HeaderValue::from_str(text).ok()),
    );
    put(
        &header::TARGET_ID,
        delivery.target_id().map(HeaderValue::from),
    );
    headers
}
