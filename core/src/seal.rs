//! Payloads at rest, sealed with AES-256-GCM.
//!
//! A sealed payload is a random nonce of 12 bytes, the ciphertext, and a tag of 16 bytes. Source and key of its row
//! are authenticated along with it: a payload that is moved to another row does not open.

use bytes::Bytes;

use crate::inbox::Unreadable;
use crate::key::ClaimKey;

#[cfg(feature = "seal")]
pub use self::keys::{SealKeyError, SealKeys};

/// What a store seals payloads with, if with anything.
#[derive(Clone, Debug, Default)]
pub(crate) struct Sealer {
    #[cfg(feature = "seal")]
    keys: Option<SealKeys>,
}

impl Sealer {
    #[cfg(feature = "seal")]
    pub(crate) fn new(keys: SealKeys) -> Self {
        Self { keys: Some(keys) }
    }

    /// A body as it is stored, and the name of the key that sealed it.
    #[cfg_attr(
        not(feature = "seal"),
        expect(clippy::unused_self, reason = "nothing seals")
    )]
    pub(crate) fn seal(&self, key: &ClaimKey, body: &Bytes) -> (Bytes, Option<&str>) {
        #[cfg(feature = "seal")]
        if let Some(keys) = &self.keys {
            return (keys.seal(key, body), Some(keys.name()));
        }
        let _ = key;
        (body.clone(), None)
    }

    /// The body of what is stored.
    #[cfg_attr(
        not(feature = "seal"),
        expect(clippy::unused_self, reason = "nothing seals")
    )]
    pub(crate) fn open(
        &self,
        key: &ClaimKey,
        payload: Vec<u8>,
        sealed_with: Option<&str>,
    ) -> Result<Bytes, Unreadable> {
        let Some(name) = sealed_with else {
            return Ok(payload.into());
        };
        #[cfg(feature = "seal")]
        if let Some(keys) = &self.keys {
            return keys.open(key, payload, name);
        }
        let _ = key;
        Err(Unreadable::KeyMissing(name.to_owned()))
    }
}

#[cfg(feature = "seal")]
mod keys {
    use std::fmt;
    use std::sync::Arc;

    use bytes::Bytes;
    use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
    use sha2::{Digest, Sha256};

    use crate::inbox::Unreadable;
    use crate::key::ClaimKey;

    /// The keys that payloads are sealed with at rest: the first seals, all of them open.
    ///
    /// To replace a key, put the new one first and keep the old one for as long as payloads are that it sealed.
    ///
    /// ```
    /// use hookclaim::SealKeys;
    ///
    /// # fn main() -> Result<(), hookclaim::SealKeyError> {
    /// let new = "8f0b6dc2a7e1f4930c5d7a86b2e4f019d3c6a5b8e7f2091c4d6b8a3e5f7c9012";
    /// let old = "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff";
    /// let keys = SealKeys::parse(new)?.previous(old)?;
    /// assert_eq!(format!("{keys:?}").contains("8f0b6d"), false);
    /// # Ok(())
    /// # }
    /// ```
    #[derive(Clone)]
    pub struct SealKeys(Arc<[Named]>);

    #[derive(Clone)]
    struct Named {
        name: String,
        key: Arc<LessSafeKey>,
    }

    /// A text that is no key.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
    #[error(
        "a key is 64 hexadecimal digits (32 random bytes), as `openssl rand -hex 32` prints them"
    )]
    pub struct SealKeyError;

    impl SealKeys {
        /// One key: 64 hexadecimal digits. White space around them is left out.
        ///
        /// # Errors
        ///
        /// [`SealKeyError`] for anything else.
        pub fn parse(text: &str) -> Result<Self, SealKeyError> {
            Ok(Self(Arc::new([Named::parse(text)?])))
        }

        /// Opens with this key too.
        ///
        /// # Errors
        ///
        /// [`SealKeyError`] if it is none.
        pub fn previous(self, text: &str) -> Result<Self, SealKeyError> {
            let mut keys = self.0.to_vec();
            keys.push(Named::parse(text)?);
            Ok(Self(keys.into()))
        }

        /// The name of the key that seals: a digest of it, safe to show.
        #[must_use]
        pub fn name(&self) -> &str {
            &self.0[0].name
        }

        /// # Panics
        ///
        /// If the operating system has no randomness to give.
        pub(super) fn seal(&self, key: &ClaimKey, body: &Bytes) -> Bytes {
            let mut nonce = [0; NONCE_LEN];
            getrandom::fill(&mut nonce).expect("the operating system has randomness");
            let mut sealed = Vec::with_capacity(NONCE_LEN + body.len() + AES_256_GCM.tag_len());
            sealed.extend_from_slice(&nonce);
            sealed.extend_from_slice(body);
            let nonce = Nonce::assume_unique_for_key(nonce);
            let tag = self.0[0]
                .key
                .seal_in_place_separate_tag(nonce, row(key), &mut sealed[NONCE_LEN..])
                .expect("no body is as long as AES-GCM's limit");
            sealed.extend_from_slice(tag.as_ref());
            sealed.into()
        }

        pub(super) fn open(
            &self,
            key: &ClaimKey,
            mut payload: Vec<u8>,
            name: &str,
        ) -> Result<Bytes, Unreadable> {
            let named = self.0.iter().find(|named| named.name == name);
            let named = named.ok_or_else(|| Unreadable::KeyMissing(name.to_owned()))?;
            let broken = || Unreadable::SealBroken;
            let (nonce, sealed) = payload.split_first_chunk_mut().ok_or_else(broken)?;
            let nonce = Nonce::assume_unique_for_key(*nonce);
            let opened = named.key.open_in_place(nonce, row(key), sealed);
            let len = opened.map_err(|_| broken())?.len();
            Ok(Bytes::from(payload).slice(NONCE_LEN..NONCE_LEN + len))
        }
    }

    impl Named {
        fn parse(text: &str) -> Result<Self, SealKeyError> {
            let digits = text.trim().as_bytes();
            let mut bytes = [0; 32];
            if digits.len() != 2 * bytes.len() {
                return Err(SealKeyError);
            }
            for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
                let digit = |at: usize| char::from(pair[at]).to_digit(16).ok_or(SealKeyError);
                *byte = u8::try_from(16 * digit(0)? + digit(1)?).map_err(|_| SealKeyError)?;
            }
            let digest = Sha256::new()
                .chain_update(b"hookclaim seal key\0")
                .chain_update(bytes)
                .finalize();
            let name = digest[..4].iter().fold(String::new(), |mut name, byte| {
                use fmt::Write;
                let _ = write!(name, "{byte:02x}");
                name
            });
            let key = UnboundKey::new(&AES_256_GCM, &bytes).map_err(|_| SealKeyError)?;
            Ok(Self {
                name,
                key: Arc::new(LessSafeKey::new(key)),
            })
        }
    }

    /// What is authenticated along with a payload.
    fn row(key: &ClaimKey) -> Aad<Vec<u8>> {
        let mut row = key.source().as_str().as_bytes().to_vec();
        row.push(0);
        row.extend_from_slice(key.key().as_bytes());
        Aad::from(row)
    }

    impl fmt::Debug for SealKeys {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_list()
                .entries(self.0.iter().map(|named| &named.name))
                .finish()
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;
        use crate::{DeliveryId, Source};

        fn key(id: &str) -> ClaimKey {
            ClaimKey::delivery(Source::default(), &DeliveryId::new(id).unwrap())
        }

        fn keys(digit: char) -> SealKeys {
            SealKeys::parse(&digit.to_string().repeat(64)).unwrap()
        }

        #[test]
        fn what_is_sealed_opens_in_its_own_row_with_its_own_key_and_nowhere_else() {
            let body = Bytes::from_static(b"{\"action\":\"created\"}");
            let (old, new) = (keys('1'), keys('2'));
            let sealed = old.seal(&key("a"), &body);
            assert_ne!(sealed, old.seal(&key("a"), &body), "a nonce is used once");
            assert!(!sealed.windows(6).any(|part| part == b"action"));
            let open = |keys: &SealKeys, row: &str, bytes: &[u8], name: &str| {
                keys.open(&key(row), bytes.to_vec(), name)
            };
            assert_eq!(open(&old, "a", &sealed, old.name()), Ok(body.clone()));
            let rotated = new.clone().previous(&"1".repeat(64)).unwrap();
            assert_eq!(open(&rotated, "a", &sealed, old.name()), Ok(body));
            let broken = Err(Unreadable::SealBroken);
            assert_eq!(open(&old, "b", &sealed, old.name()), broken);
            assert_eq!(open(&old, "a", &sealed[1..], old.name()), broken);
            for short in 0..NONCE_LEN {
                assert_eq!(open(&old, "a", &sealed[..short], old.name()), broken);
            }
            let missing = Err(Unreadable::KeyMissing(old.name().to_owned()));
            assert_eq!(open(&new, "a", &sealed, old.name()), missing);
        }

        #[test]
        fn only_64_hexadecimal_digits_are_a_key_and_none_shows() {
            let digits = "ab".repeat(32);
            assert!(SealKeys::parse(&format!(" {digits}\n")).is_ok());
            for wrong in ["", "ab", &"x".repeat(64), &"ab".repeat(33), &"é".repeat(32)] {
                assert_eq!(SealKeys::parse(wrong).unwrap_err(), SealKeyError);
            }
            assert!(!format!("{:?}", SealKeys::parse(&digits)).contains("abab"));
        }
    }
}
