//! What can go wrong between here and a store.

use std::borrow::Cow;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::machine::LeaseLost;

/// An operation of a store failed.
///
/// `Display` and [`source`](StdError::source) are for operators. They hold no secret and no payload.
#[derive(Clone)]
pub struct StoreError {
    kind: StoreErrorKind,
    context: Cow<'static, str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
}

/// The kinds of [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// The store cannot be reached, or did not answer. Whether a write took effect may be unknown; each may be sent
    /// again under the same token.
    Unavailable,
    /// More is waiting for the store than it is allowed to queue.
    Overloaded,
    /// The write names a claim that no longer holds the delivery.
    LeaseLost,
    /// The row is locked, as by the handler's own transaction. Not lost: try again.
    Busy,
    /// The database refused for a reason that repeating will not mend, such as a missing privilege.
    Refused,
    /// The store holds something that this version cannot read.
    Corrupt,
}

impl StoreError {
    /// An error of this kind. `context` says what was being done, in lower case.
    #[must_use]
    pub fn new(kind: StoreErrorKind, context: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            context: context.into(),
            source: None,
        }
    }

    /// Adds what caused it.
    #[must_use]
    pub fn with_source(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.source = Some(Arc::new(source));
        self
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.kind
    }

    /// Whether the write names a claim that no longer holds the delivery.
    #[must_use]
    pub fn is_lease_lost(&self) -> bool {
        self.kind == StoreErrorKind::LeaseLost
    }

    /// Whether the row was locked.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.kind == StoreErrorKind::Busy
    }

    pub(crate) fn lease_lost() -> Self {
        Self::new(StoreErrorKind::LeaseLost, LeaseLost.to_string())
    }

    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn busy() -> Self {
        Self::new(
            StoreErrorKind::Busy,
            "the delivery is locked by a transaction that is still open",
        )
    }
}

impl From<LeaseLost> for StoreError {
    fn from(_: LeaseLost) -> Self {
        Self::lease_lost()
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.context)
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreError")
            .field("kind", &self.kind)
            .field("context", &self.context)
            .field("source", &self.source)
            .finish()
    }
}

impl StdError for StoreError {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_deref().map(|source| source as _)
    }
}
