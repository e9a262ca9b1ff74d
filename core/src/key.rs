//! What makes two deliveries the same: the claim key.

use std::fmt;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::delivery::{Delivery, DeliveryId, InvalidName};

/// The longest key in bytes.
const MAX_KEY: usize = 255;

/// The endpoint that a delivery came in by: 1 to 128 visible ASCII characters, `github` by default.
///
/// Deliveries of different sources never meet: one GUID that two sources receive runs once in each.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(Arc<str>);

impl Source {
    /// The longest source that is taken.
    pub const MAX_LEN: usize = 128;

    /// Checks and takes a name.
    ///
    /// # Errors
    ///
    /// [`InvalidName`] if it is blank, too long, or has other characters.
    pub fn new(name: impl AsRef<str>) -> Result<Self, InvalidName> {
        let name = name.as_ref();
        InvalidName::check(name, Self::MAX_LEN)?;
        Ok(Self(name.into()))
    }

    /// The name as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for Source {
    fn default() -> Self {
        Self("github".into())
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Source({})", self.0)
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Which hooks share their deliveries.
///
/// Every hook that subscribes to an event is sent the same delivery id
/// ([github/docs#32822](https://github.com/github/docs/issues/32822)).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scope {
    /// An event runs once per source, however many hooks deliver it.
    #[default]
    Endpoint,
    /// An event runs once per hook: `X-GitHub-Hook-ID` becomes part of the source.
    ///
    /// That header is not signed. It can only split what is one, and only for somebody who holds a signed body.
    HookId,
}

impl Scope {
    /// The source of a delivery that came to `endpoint` with this hook id.
    ///
    /// # Errors
    ///
    /// [`KeyError::NoHookId`] if the scope is the hook and the delivery names none.
    pub fn source(self, endpoint: &Source, hook_id: Option<u64>) -> Result<Source, KeyError> {
        match (self, hook_id) {
            (Self::Endpoint, _) => Ok(endpoint.clone()),
            (Self::HookId, Some(hook)) => {
                Source::new(format!("{endpoint}/hook/{hook}")).map_err(|_| KeyError::SourceTooLong)
            }
            (Self::HookId, None) => Err(KeyError::NoHookId),
        }
    }
}

/// What is claimed: a source and a key within it. Two deliveries with one claim key are one piece of work.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClaimKey {
    source: Source,
    key: Arc<str>,
    business: bool,
}

impl ClaimKey {
    /// The key of a delivery by its id: a redelivery is the same work, everything else is not.
    #[must_use]
    pub fn delivery(source: Source, id: &DeliveryId) -> Self {
        Self {
            source,
            key: Arc::clone(&id.0),
            business: false,
        }
    }

    /// The key of a delivery by what it is about.
    #[must_use]
    pub fn business(source: Source, key: &BusinessKey) -> Self {
        Self {
            source,
            key: key.0.as_str().into(),
            business: true,
        }
    }

    /// The default key of a verified delivery.
    #[must_use]
    pub fn of(delivery: &Delivery) -> Self {
        Self::delivery(delivery.source().clone(), delivery.id())
    }

    /// A key as a store has it.
    ///
    /// # Errors
    ///
    /// [`KeyError::NotAKey`] if no claim can have this key.
    pub fn parse(source: Source, key: &str) -> Result<Self, KeyError> {
        let business = key.starts_with(BusinessKey::PREFIX);
        if !business {
            DeliveryId::new(key).map_err(|_| KeyError::NotAKey)?;
        } else if key.len() > MAX_KEY || key.contains('\0') {
            return Err(KeyError::NotAKey);
        }
        Ok(Self {
            source,
            key: key.into(),
            business,
        })
    }

    /// The source.
    #[must_use]
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The key within the source: a delivery id, or an encoded [`BusinessKey`].
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Whether the key says what the delivery is about. Bodies are not compared under such a key.
    #[must_use]
    pub fn is_business(&self) -> bool {
        self.business
    }
}

impl fmt::Debug for ClaimKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimKey({} {})", self.source, self.key)
    }
}

/// A key made of what a delivery is about, so that two events that mean the same are one piece of work.
///
/// Parts are typed and carry their length. `["a", "bc"]` and `["ab", "c"]` differ, and so do `null`, `"null"` and a
/// part that is missing, or `1` and `"1"`. The encoding is readable where it is short and plain, and a digest of it
/// where it is not; no delivery id looks like one.
///
/// ```
/// use hookclaim::BusinessKey;
///
/// let deploy = BusinessKey::new().int(79929171).text("refs/heads/main").text("6dcb09b5b57875f3");
/// assert_eq!(deploy.as_str(), "key i8:79929171 s15:refs/heads/main s16:6dcb09b5b57875f3");
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct BusinessKey(String);

impl BusinessKey {
    /// What an encoded key begins with. It has a space, which no delivery id has.
    const PREFIX: &str = "key ";

    /// A key without parts; add them in a fixed order.
    #[must_use]
    pub fn new() -> Self {
        Self(String::from(Self::PREFIX))
    }

    /// Adds a text.
    #[must_use]
    pub fn text(self, text: impl AsRef<str>) -> Self {
        self.part('s', text.as_ref())
    }

    /// Adds a whole number, such as one of GitHub's ids.
    #[must_use]
    pub fn int(self, int: i64) -> Self {
        self.part('i', &int.to_string())
    }

    /// Adds a truth value.
    #[must_use]
    pub fn bool(self, value: bool) -> Self {
        self.part('b', if value { "1" } else { "0" })
    }

    /// Adds a part that is there and has no value.
    #[must_use]
    pub fn null(self) -> Self {
        self.part('n', "")
    }

    /// Adds a part that is not there.
    #[must_use]
    pub fn missing(self) -> Self {
        self.part('m', "")
    }

    /// Adds a text that may be missing.
    #[must_use]
    pub fn optional(self, text: Option<impl AsRef<str>>) -> Self {
        match text {
            Some(text) => self.text(text),
            None => self.missing(),
        }
    }

    /// The key as it is stored.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn part(mut self, kind: char, value: &str) -> Self {
        use fmt::Write;
        let gap = if self.0 == Self::PREFIX { "" } else { " " };
        let _ = write!(self.0, "{gap}{kind}{}:{value}", value.len());
        if self.0.len() > MAX_KEY || self.0.contains(char::is_control) {
            // The digest takes the place of all parts so far. It is marked, so that nobody can spell it as a part.
            let digest = Sha256::digest(&self.0);
            self.0 = String::from("key d64:");
            for byte in digest {
                let _ = write!(self.0, "{byte:02x}");
            }
        }
        self
    }
}

impl Default for BusinessKey {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for BusinessKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BusinessKey({})", self.0)
    }
}

/// Why a claim key could not be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The scope is the hook and the delivery names none.
    #[error(
        "the X-GitHub-Hook-ID header is missing or not a number, and deliveries are told apart by hook"
    )]
    NoHookId,
    /// The endpoint's name leaves no room for the hook id.
    #[error("the source is too long to be told apart by hook")]
    SourceTooLong,
    /// The text is not a key that a claim can have.
    #[error("this is not a claim key: neither a delivery id nor an encoded business key")]
    NotAKey,
    /// A key function of the application refused the delivery.
    #[error("{0}")]
    Refused(String),
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn parts_that_look_alike_make_different_keys() {
        let keys = [
            BusinessKey::new(),
            BusinessKey::new().text("a").text("bc"),
            BusinessKey::new().text("ab").text("c"),
            BusinessKey::new().text("abc"),
            BusinessKey::new().null(),
            BusinessKey::new().text("null"),
            BusinessKey::new().missing(),
            BusinessKey::new().text(""),
            BusinessKey::new().int(1),
            BusinessKey::new().text("1"),
            BusinessKey::new().bool(true),
            BusinessKey::new().text("a s2:bc"),
            BusinessKey::new().text("a").missing(),
            BusinessKey::new().text("a").null(),
        ];
        for (at, key) in keys.iter().enumerate() {
            assert!(!keys[..at].contains(key), "{key:?}");
        }
    }

    #[test]
    fn long_and_unprintable_parts_are_digested_and_stay_apart() {
        let long = BusinessKey::new().text("x".repeat(300));
        let longer = BusinessKey::new().text("x".repeat(301));
        let nul = BusinessKey::new().text("a\0b");
        assert!(long.as_str().len() <= MAX_KEY && !nul.as_str().contains('\0'));
        assert_ne!(long, longer);
        let forged = BusinessKey::new().text(long.as_str());
        assert_ne!(long, forged);
        assert_ne!(long.clone().text("tail"), longer.text("tail"));
    }

    #[test]
    fn a_business_key_is_never_a_delivery_id() {
        let key = BusinessKey::new().text("a");
        assert!(DeliveryId::new(key.as_str()).is_err());
        let parsed = ClaimKey::parse(Source::default(), key.as_str()).unwrap();
        assert_eq!(parsed, ClaimKey::business(Source::default(), &key));
    }

    #[test]
    fn the_hook_scope_splits_and_demands_the_hook_id() {
        let endpoint = Source::default();
        assert_eq!(
            Scope::Endpoint.source(&endpoint, Some(7)).unwrap(),
            endpoint
        );
        assert_eq!(
            Scope::HookId.source(&endpoint, Some(7)).unwrap().as_str(),
            "github/hook/7"
        );
        assert_eq!(
            Scope::HookId.source(&endpoint, None),
            Err(KeyError::NoHookId)
        );
    }

    proptest! {
        #[test]
        fn different_lists_make_different_keys(
            a in proptest::collection::vec(".{0,90}", 0..5),
            b in proptest::collection::vec(".{0,90}", 0..5),
        ) {
            let key = |parts: &[String]| parts.iter().fold(BusinessKey::new(), BusinessKey::text);
            prop_assert_eq!(a == b, key(&a) == key(&b));
            prop_assert!(key(&a).as_str().len() <= MAX_KEY);
        }
    }
}
