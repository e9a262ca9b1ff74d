//! Why a request did not get to the inner service.

use std::fmt;

use hookclaim::{FormError, HeadError, KeyError, SignatureErrorKind};
use http::StatusCode;

/// Why a request was refused before it could be claimed, or why it could not be claimed or settled.
///
/// It stands in the extensions of a response whose outcome is [`Rejected`](crate::Outcome::Rejected) or
/// [`Unavailable`](crate::Outcome::Unavailable), for middleware outside the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Rejection {
    /// The method is not `POST`.
    Method,
    /// A header that decides whether a delivery is believed came twice.
    RepeatedHeader,
    /// The delivery id or the event is missing or blank.
    MissingHeader,
    /// The delivery id or the event is malformed.
    MalformedHeader,
    /// There is no signature, or a blank one.
    SignatureMissing,
    /// There is only the outdated SHA-1 signature.
    SignatureSha1,
    /// The signature is not one.
    SignatureMalformed,
    /// No configured secret signed this body.
    SignatureMismatch,
    /// The content type is not one that GitHub sends.
    ContentType,
    /// The body is over the limit.
    TooLarge,
    /// The body did not arrive in time.
    Timeout,
    /// The body broke off.
    Body,
    /// The form has no single `payload`.
    Form,
    /// No claim key can be made of the delivery.
    Key,
    /// The server is shutting down.
    Draining,
    /// The bodies in flight take all the memory that is set aside for them.
    Memory,
    /// As many deliveries wait for a worker as may.
    Backlog,
    /// The store cannot be reached, or did not answer.
    Store,
}

impl Rejection {
    /// A short name in lower case, such as `signature_mismatch`: a metric label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Method => "method",
            Self::RepeatedHeader => "repeated_header",
            Self::MissingHeader => "missing_header",
            Self::MalformedHeader => "malformed_header",
            Self::SignatureMissing => "signature_missing",
            Self::SignatureSha1 => "signature_sha1",
            Self::SignatureMalformed => "signature_malformed",
            Self::SignatureMismatch => "signature_mismatch",
            Self::ContentType => "content_type",
            Self::TooLarge => "too_large",
            Self::Timeout => "timeout",
            Self::Body => "body",
            Self::Form => "form",
            Self::Key => "key",
            Self::Draining => "draining",
            Self::Memory => "memory",
            Self::Backlog => "backlog",
            Self::Store => "store",
        }
    }

    /// The status that it is answered with.
    #[must_use]
    pub const fn status(self) -> StatusCode {
        match self {
            Self::Method => StatusCode::METHOD_NOT_ALLOWED,
            Self::RepeatedHeader
            | Self::MissingHeader
            | Self::MalformedHeader
            | Self::Body
            | Self::Form
            | Self::Key => StatusCode::BAD_REQUEST,
            Self::SignatureMissing
            | Self::SignatureSha1
            | Self::SignatureMalformed
            | Self::SignatureMismatch => StatusCode::UNAUTHORIZED,
            Self::ContentType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Timeout => StatusCode::REQUEST_TIMEOUT,
            Self::Draining | Self::Memory | Self::Backlog | Self::Store => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }

    pub(crate) const fn is_unavailable(self) -> bool {
        matches!(
            self,
            Self::Draining | Self::Memory | Self::Backlog | Self::Store
        )
    }
}

impl fmt::Display for Rejection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl From<&HeadError> for Rejection {
    fn from(error: &HeadError) -> Self {
        match error {
            HeadError::Repeated(_) => Self::RepeatedHeader,
            HeadError::Missing(_) => Self::MissingHeader,
            HeadError::Signature(error) => error.kind().into(),
            HeadError::ContentType => Self::ContentType,
            // `HeadError` may grow; whatever comes is something wrong with a header.
            _ => Self::MalformedHeader,
        }
    }
}

impl From<SignatureErrorKind> for Rejection {
    fn from(kind: SignatureErrorKind) -> Self {
        match kind {
            SignatureErrorKind::Missing => Self::SignatureMissing,
            SignatureErrorKind::Sha1Only => Self::SignatureSha1,
            SignatureErrorKind::Malformed => Self::SignatureMalformed,
            // `SignatureErrorKind` may grow; whatever comes is a signature that was not accepted.
            _ => Self::SignatureMismatch,
        }
    }
}

impl From<&FormError> for Rejection {
    fn from(_: &FormError) -> Self {
        Self::Form
    }
}

impl From<&KeyError> for Rejection {
    fn from(_: &KeyError) -> Self {
        Self::Key
    }
}
