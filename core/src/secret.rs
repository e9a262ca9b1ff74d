//! The secrets that deliveries are signed with.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use crate::signature::Verifier;

/// Bytes below which a secret is called short by [`Secret::is_short`].
const RECOMMENDED_LEN: usize = 32;

/// One named webhook secret: the key of the HMAC that GitHub sends along.
///
/// The key itself is not kept: only the HMAC state that it leads to. `Debug` prints the name alone.
#[derive(Clone)]
pub struct Secret {
    name: Cow<'static, str>,
    mac: Hmac<Sha256>,
    key_id: [u8; 4],
    short: bool,
}

impl Secret {
    /// A secret called `name`, from its bytes, taken whole.
    ///
    /// The name shows up in metrics and logs, so that a rotation can be followed; it must not be secret.
    ///
    /// # Errors
    ///
    /// [`SecretError::Blank`] if the secret is empty or white space only: it would let anybody sign.
    pub fn new(
        name: impl Into<Cow<'static, str>>,
        secret: impl AsRef<[u8]>,
    ) -> Result<Self, SecretError> {
        let name = name.into();
        let secret = secret.as_ref();
        if secret.iter().all(u8::is_ascii_whitespace) {
            return Err(SecretError::Blank {
                name: name.into_owned(),
            });
        }
        let mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a key of any length");
        let id = mac
            .clone()
            .chain_update(b"hookclaim key id")
            .finalize()
            .into_bytes();
        let key_id = [id[0], id[1], id[2], id[3]];
        Ok(Self {
            name,
            mac,
            key_id,
            short: secret.len() < RECOMMENDED_LEN,
        })
    }

    /// A secret called `name`, from a file such as a mounted container secret.
    ///
    /// Editors and `echo` leave a line end behind: exactly one trailing `\n` or `\r\n` is removed, and the second
    /// value tells whether it was, so that the caller can warn. Everything else, inner and outer spaces included, is
    /// part of the secret.
    ///
    /// # Errors
    ///
    /// [`SecretError::Unreadable`] if the file cannot be read, [`SecretError::Blank`] as for [`Secret::new`].
    pub fn from_file(
        name: impl Into<Cow<'static, str>>,
        path: impl AsRef<Path>,
    ) -> Result<(Self, bool), SecretError> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|source| SecretError::Unreadable {
            path: path.to_path_buf(),
            source,
        })?;
        let (secret, trimmed) = without_line_end(&bytes);
        Ok((Self::new(name, secret)?, trimmed))
    }

    /// The name given at construction.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether the secret has fewer than the 32 bytes that make guessing hopeless.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.short
    }

    pub(crate) fn mac(&self) -> Hmac<Sha256> {
        self.mac.clone()
    }

    pub(crate) fn key_id(&self) -> [u8; 4] {
        self.key_id
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secret")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

fn without_line_end(bytes: &[u8]) -> (&[u8], bool) {
    match bytes {
        [secret @ .., b'\r', b'\n'] | [secret @ .., b'\n'] => (secret, true),
        secret => (secret, false),
    }
}

/// The secrets that are accepted at the moment: one, or more while a secret is being rotated.
///
/// A delivery is believed if any of them signed it. All are always tried and the choice is made in constant time, so
/// that timing tells nothing about which one matched. There is no empty set: an unsigned delivery is never accepted.
///
/// ```
/// use hookclaim::{Secret, SecretSet};
///
/// # fn main() -> Result<(), hookclaim::SecretError> {
/// let rotating = SecretSet::new(Secret::new("current", "the new secret, 32 bytes or more.")?)
///     .and(Secret::new("previous", "the old secret, 32 bytes or more.")?);
/// assert_eq!(rotating.names().collect::<Vec<_>>(), ["current", "previous"]);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct SecretSet {
    pub(crate) first: Secret,
    pub(crate) others: Vec<Secret>,
}

impl SecretSet {
    /// A set of one secret.
    #[must_use]
    pub fn new(secret: Secret) -> Self {
        Self {
            first: secret,
            others: Vec::new(),
        }
    }

    /// Accepts `secret` as well.
    #[must_use]
    pub fn and(mut self, secret: Secret) -> Self {
        self.others.push(secret);
        self
    }

    /// A set of one secret named `webhook`.
    ///
    /// # Errors
    ///
    /// [`SecretError::Blank`] if the secret is empty or white space only.
    pub fn single(secret: impl AsRef<[u8]>) -> Result<Self, SecretError> {
        Secret::new("webhook", secret).map(Self::new)
    }

    /// The set of these secrets, in this order.
    ///
    /// # Errors
    ///
    /// [`SecretError::Empty`] if there is none: a receiver without a secret would believe anybody.
    pub fn from_secrets(secrets: impl IntoIterator<Item = Secret>) -> Result<Self, SecretError> {
        let mut secrets = secrets.into_iter();
        let first = secrets.next().ok_or(SecretError::Empty)?;
        Ok(Self {
            first,
            others: secrets.collect(),
        })
    }

    /// The names of the secrets, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.iter().map(Secret::name)
    }

    /// The secrets, in order.
    pub fn iter(&self) -> impl Iterator<Item = &Secret> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// Starts the verification of one body.
    #[must_use]
    pub fn verifier(self: &Arc<Self>) -> Verifier {
        Verifier::new(Arc::clone(self))
    }
}

/// A [`SecretSet`] that can be replaced while requests are running.
///
/// A request is judged wholly by the set that was current when its verification began.
///
/// ```
/// use hookclaim::{SecretSet, Secrets};
///
/// # fn main() -> Result<(), hookclaim::SecretError> {
/// let secrets = Secrets::new(SecretSet::single("the secret of this month, quite long")?);
/// let same = secrets.clone();
/// same.replace(SecretSet::single("the secret of next month, quite long")?);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Secrets(Arc<RwLock<Arc<SecretSet>>>);

impl Secrets {
    /// Starts with this set.
    #[must_use]
    pub fn new(set: SecretSet) -> Self {
        Self(Arc::new(RwLock::new(Arc::new(set))))
    }

    /// Replaces the set for every clone of this handle. Verifications that have begun finish with the old one.
    pub fn replace(&self, set: SecretSet) {
        *self
            .0
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(set);
    }

    /// The current set.
    #[must_use]
    pub fn current(&self) -> Arc<SecretSet> {
        Arc::clone(
            &self
                .0
                .read()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        )
    }
}

impl From<SecretSet> for Secrets {
    fn from(set: SecretSet) -> Self {
        Self::new(set)
    }
}

/// Why a secret was refused. No variant carries the secret.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SecretError {
    /// The secret is empty or consists of white space.
    #[error(
        "the webhook secret `{name}` is empty or blank; set it to the secret entered in the webhook's settings"
    )]
    Blank {
        /// The name of the secret.
        name: String,
    },
    /// No secret was given at all.
    #[error("no webhook secret was given; unsigned deliveries are never accepted")]
    Empty,
    /// The file that should hold the secret cannot be read.
    #[error("cannot read the webhook secret from {}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blank_secrets_are_refused_at_construction() {
        for blank in ["", " ", "\n", "\r\n", "\t  \n"] {
            assert!(
                matches!(Secret::new("s", blank), Err(SecretError::Blank { .. })),
                "{blank:?}"
            );
            assert!(SecretSet::single(blank).is_err(), "{blank:?}");
        }
        assert!(matches!(
            SecretSet::from_secrets([]),
            Err(SecretError::Empty)
        ));
    }

    #[test]
    fn a_secret_file_loses_exactly_one_line_end() {
        let rows: [(&[u8], &[u8], bool); 6] = [
            (b"abc\n", b"abc", true),
            (b"abc\r\n", b"abc", true),
            (b"abc\n\n", b"abc\n", true),
            (b"abc", b"abc", false),
            (b" a b \n", b" a b ", true),
            (b"abc\r", b"abc\r", false),
        ];
        for (file, secret, trimmed) in rows {
            assert_eq!(without_line_end(file), (secret, trimmed), "{file:?}");
        }
    }

    #[test]
    fn debug_shows_names_and_no_secret() {
        let set = SecretSet::single("hunter2hunter2").unwrap();
        let text = format!("{set:?} {:?}", Secrets::new(set.clone()));
        assert!(
            text.contains("webhook") && !text.contains("hunter2"),
            "{text}"
        );
    }
}
