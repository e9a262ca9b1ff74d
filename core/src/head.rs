//! The headers of a delivery, parsed once into types that cannot be wrong.

use http::header::{HeaderMap, HeaderName, HeaderValue};

use crate::delivery::{DeliveryId, EventName};
use crate::request::StoredRequest;
use crate::signature::{Signature, SignatureError, SignatureErrorKind};

/// The headers that GitHub sends with a delivery.
///
/// <https://docs.github.com/en/webhooks/webhook-events-and-payloads#delivery-headers>
pub mod header {
    use http::header::HeaderName;

    /// HMAC-SHA256 of the body.
    pub const SIGNATURE: HeaderName = HeaderName::from_static("x-hub-signature-256");
    /// HMAC-SHA1 of the body; not accepted.
    pub const SIGNATURE_SHA1: HeaderName = HeaderName::from_static("x-hub-signature");
    /// The id of the event.
    pub const DELIVERY: HeaderName = HeaderName::from_static("x-github-delivery");
    /// The name of the event.
    pub const EVENT: HeaderName = HeaderName::from_static("x-github-event");
    /// The id of the hook.
    pub const HOOK_ID: HeaderName = HeaderName::from_static("x-github-hook-id");
    /// The kind of thing that the hook is installed on.
    pub const TARGET_TYPE: HeaderName =
        HeaderName::from_static("x-github-hook-installation-target-type");
    /// The id of the thing that the hook is installed on.
    pub const TARGET_ID: HeaderName =
        HeaderName::from_static("x-github-hook-installation-target-id");
}

/// The headers that decide whether and as what a delivery is believed. None of them may come twice: two readers of one
/// request must not see two different requests.
#[derive(Default)]
struct Singular<'a> {
    signature: Option<&'a HeaderValue>,
    signature_sha1: Option<&'a HeaderValue>,
    delivery: Option<&'a HeaderValue>,
    event: Option<&'a HeaderValue>,
    hook_id: Option<&'a HeaderValue>,
    target_type: Option<&'a HeaderValue>,
    target_id: Option<&'a HeaderValue>,
    content_type: Option<&'a HeaderValue>,
}

impl<'a> Singular<'a> {
    /// Finds them all in one pass.
    fn find(headers: &'a HeaderMap) -> Result<Self, HeadError> {
        let mut found = Self::default();
        for (name, value) in headers {
            let slot = match name.as_str() {
                "x-hub-signature-256" => &mut found.signature,
                "x-hub-signature" => &mut found.signature_sha1,
                "x-github-delivery" => &mut found.delivery,
                "x-github-event" => &mut found.event,
                "x-github-hook-id" => &mut found.hook_id,
                "x-github-hook-installation-target-type" => &mut found.target_type,
                "x-github-hook-installation-target-id" => &mut found.target_id,
                "content-type" => &mut found.content_type,
                _ => continue,
            };
            if slot.replace(value).is_some() {
                return Err(HeadError::Repeated(name.clone()));
            }
        }
        Ok(found)
    }
}

/// How the body spells the payload: the hook's "content type" setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFormat {
    /// `application/json`: the body is the payload.
    Json,
    /// `application/x-www-form-urlencoded`: the body is `payload=` and the encoded payload.
    Form,
}

/// The headers of one delivery, parsed.
///
/// ```
/// use hookclaim::{DeliveryHead, header};
/// use http::HeaderMap;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut headers = HeaderMap::new();
/// headers.insert(header::DELIVERY, "72d3162e-cc78-11e3-81ab-4c9367dc0958".parse()?);
/// headers.insert(header::EVENT, "issue_comment".parse()?);
/// headers.insert(header::SIGNATURE, format!("sha256={}", "0".repeat(64)).parse()?);
/// headers.insert("content-type", "application/json".parse()?);
/// let (head, _signature) = DeliveryHead::parse(&headers)?;
/// assert_eq!(head.event(), &"issue_comment");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct DeliveryHead {
    id: DeliveryId,
    event: EventName,
    format: BodyFormat,
    hook_id: Option<u64>,
    target_type: Option<HeaderValue>,
    target_id: Option<u64>,
}

impl DeliveryHead {
    /// Parses the headers of a request, and returns the signature apart: it is of no use once the body is checked.
    ///
    /// The checks run in this order: repeated headers, delivery id and event, signature, content type.
    ///
    /// # Errors
    ///
    /// [`HeadError`] with the first thing that is wrong.
    pub fn parse(headers: &HeaderMap) -> Result<(Self, Signature), HeadError> {
        let found = Singular::find(headers)?;
        let id = named(found.delivery, &header::DELIVERY, |text| {
            DeliveryId::new(text).ok()
        })?;
        let event = named(found.event, &header::EVENT, |text| {
            EventName::new(text).ok()
        })?;
        let signature = match (found.signature, found.signature_sha1) {
            (Some(value), _) => Signature::parse(value.as_bytes())?,
            (None, Some(_)) => {
                return Err(SignatureError::from(SignatureErrorKind::Sha1Only).into());
            }
            (None, None) => return Err(SignatureError::from(SignatureErrorKind::Missing).into()),
        };
        let number = |value: Option<&HeaderValue>| value?.to_str().ok()?.trim().parse().ok();
        let head = Self {
            id,
            event,
            format: format(found.content_type)?,
            hook_id: number(found.hook_id),
            target_type: found.target_type.cloned(),
            target_id: number(found.target_id),
        };
        Ok((head, signature))
    }

    /// The head of a request that a store has kept.
    pub(crate) fn stored(id: DeliveryId, event: EventName, request: &StoredRequest) -> Self {
        Self {
            id,
            event,
            format: request.format(),
            hook_id: request.hook_id(),
            target_type: request.target_type(),
            target_id: request.target_id(),
        }
    }

    /// `X-GitHub-Delivery`.
    #[must_use]
    pub fn id(&self) -> &DeliveryId {
        &self.id
    }

    /// `X-GitHub-Event`.
    #[must_use]
    pub fn event(&self) -> &EventName {
        &self.event
    }

    /// How the body spells the payload.
    #[must_use]
    pub fn format(&self) -> BodyFormat {
        self.format
    }

    /// `X-GitHub-Hook-ID`, if it is a number.
    #[must_use]
    pub fn hook_id(&self) -> Option<u64> {
        self.hook_id
    }

    /// `X-GitHub-Hook-Installation-Target-Type`, if it is text.
    #[must_use]
    pub fn target_type(&self) -> Option<&str> {
        self.target_type.as_ref()?.to_str().ok()
    }

    /// `X-GitHub-Hook-Installation-Target-ID`, if it is a number.
    #[must_use]
    pub fn target_id(&self) -> Option<u64> {
        self.target_id
    }
}

fn named<T>(
    value: Option<&HeaderValue>,
    name: &HeaderName,
    parse: impl Fn(&str) -> Option<T>,
) -> Result<T, HeadError> {
    let value = value.filter(|value| !value.as_bytes().iter().all(u8::is_ascii_whitespace));
    let value = value.ok_or_else(|| HeadError::Missing(name.clone()))?;
    value
        .to_str()
        .ok()
        .and_then(parse)
        .ok_or_else(|| HeadError::Malformed(name.clone()))
}

fn format(content_type: Option<&HeaderValue>) -> Result<BodyFormat, HeadError> {
    let value = content_type.map_or(&b""[..], HeaderValue::as_bytes);
    let essence = value
        .split(|&byte| byte == b';')
        .next()
        .unwrap_or_default()
        .trim_ascii();
    if essence.eq_ignore_ascii_case(b"application/json") {
        Ok(BodyFormat::Json)
    } else if essence.eq_ignore_ascii_case(b"application/x-www-form-urlencoded") {
        Ok(BodyFormat::Form)
    } else {
        Err(HeadError::ContentType)
    }
}

/// What is wrong with the headers of a request.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HeadError {
    /// A header that may come once came more than once.
    #[error("the header {0} is there more than once")]
    Repeated(HeaderName),
    /// A header that must be there is missing or blank.
    #[error("the header {0} is missing or blank")]
    Missing(HeaderName),
    /// A header has a value that it cannot have.
    #[error("the header {0} is malformed: 1 to {max} visible ASCII characters are expected", max = if *.0 == header::EVENT { EventName::MAX_LEN } else { DeliveryId::MAX_LEN })]
    Malformed(HeaderName),
    /// The signature is missing or cannot be one.
    #[error(transparent)]
    Signature(#[from] SignatureError),
    /// The body is neither JSON nor a form.
    #[error(
        "the content type is not one that GitHub sends; set the webhook's \"Content type\" to application/json or \
         application/x-www-form-urlencoded"
    )]
    ContentType,
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;

    use super::*;

    const SINGULAR: [HeaderName; 8] = [
        header::SIGNATURE,
        header::SIGNATURE_SHA1,
        header::DELIVERY,
        header::EVENT,
        header::HOOK_ID,
        header::TARGET_TYPE,
        header::TARGET_ID,
        CONTENT_TYPE,
    ];

    fn genuine() -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("accept", "*/*"),
            ("content-type", "application/json"),
            ("expect", ""),
            ("user-agent", "GitHub-Hookshot/044aadd"),
            ("x-github-delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958"),
            ("x-github-event", "issues"),
            ("x-github-hook-id", "292430182"),
            ("x-github-hook-installation-target-id", "79929171"),
            ("x-github-hook-installation-target-type", "repository"),
            (
                "x-hub-signature",
                "sha1=7d38cdd689735b008b3c702edd92eea23791c5f6",
            ),
            (
                "x-hub-signature-256",
                "sha256=d57c68ca6f92289e6987922ff26938930f6e66a2d161ef06abdf1859230aa23c",
            ),
        ] {
            headers.insert(name, value.parse().unwrap());
        }
        headers
    }

    #[test]
    fn what_github_sends_is_taken() {
        let (head, _) = DeliveryHead::parse(&genuine()).unwrap();
        assert_eq!(head.id().as_str(), "72d3162e-cc78-11e3-81ab-4c9367dc0958");
        assert_eq!(head.hook_id(), Some(292_430_182));
        assert_eq!(
            (head.target_type(), head.target_id()),
            (Some("repository"), Some(79_929_171))
        );
        assert_eq!(head.format(), BodyFormat::Json);
    }

    #[test]
    fn a_repeated_header_is_refused_whatever_its_values() {
        for name in SINGULAR {
            let mut headers = genuine();
            let value = headers[&name].clone();
            headers.append(&name, value);
            let error = DeliveryHead::parse(&headers).unwrap_err();
            assert!(
                matches!(&error, HeadError::Repeated(found) if *found == name),
                "{error}"
            );
        }
    }

    #[test]
    fn the_first_thing_wrong_is_named() {
        type Change = fn(&mut HeaderMap);
        let rows: [(&str, Change, &str); 10] = [
            (
                "no id",
                |h| drop(h.remove("x-github-delivery")),
                "x-github-delivery is missing",
            ),
            (
                "blank id",
                |h| drop(h.insert("x-github-delivery", HeaderValue::from_static(" "))),
                "x-github-delivery is missing",
            ),
            (
                "odd id",
                |h| drop(h.insert("x-github-delivery", HeaderValue::from_static("a b"))),
                "x-github-delivery is malformed",
            ),
            (
                "no event",
                |h| drop(h.remove("x-github-event")),
                "x-github-event is missing",
            ),
            (
                "no signature",
                |h| h.remove_all(),
                "missing or blank; set a secret",
            ),
            (
                "sha1",
                |h| drop(h.remove("x-hub-signature-256")),
                "only the sha1 header",
            ),
            (
                "bad signature",
                |h| drop(h.insert("x-hub-signature-256", HeaderValue::from_static("sha256=1"))),
                "is not `sha256=`",
            ),
            (
                "text",
                |h| drop(h.insert("content-type", HeaderValue::from_static("text/plain"))),
                "\"Content type\"",
            ),
            (
                "no type",
                |h| drop(h.remove("content-type")),
                "\"Content type\"",
            ),
            (
                "near miss",
                |h| {
                    drop(h.insert(
                        "content-type",
                        HeaderValue::from_static("application/jsonp"),
                    ));
                },
                "\"Content type\"",
            ),
        ];
        for (name, change, text) in rows {
            let mut headers = genuine();
            change(&mut headers);
            let error = DeliveryHead::parse(&headers).unwrap_err().to_string();
            assert!(error.contains(text), "{name}: {error}");
        }
    }

    trait RemoveAll {
        fn remove_all(&mut self);
    }

    impl RemoveAll for HeaderMap {
        fn remove_all(&mut self) {
            self.remove("x-hub-signature");
            self.remove("x-hub-signature-256");
        }
    }

    #[test]
    fn content_types_may_have_parameters_and_any_case() {
        for (value, format) in [
            ("application/json; charset=utf-8", BodyFormat::Json),
            (" Application/JSON ;charset=\"UTF-8\"", BodyFormat::Json),
            ("application/x-www-form-urlencoded", BodyFormat::Form),
        ] {
            let mut headers = genuine();
            headers.insert("content-type", value.parse().unwrap());
            assert_eq!(
                DeliveryHead::parse(&headers).unwrap().0.format(),
                format,
                "{value}"
            );
        }
    }

    #[test]
    fn odd_hook_ids_are_ignored_not_refused() {
        let mut headers = genuine();
        headers.insert("x-github-hook-id", HeaderValue::from_static("many"));
        assert_eq!(DeliveryHead::parse(&headers).unwrap().0.hook_id(), None);
    }
}
