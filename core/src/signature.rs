//! `X-Hub-Signature-256`: parsing it, and checking a body against it.

use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::secret::SecretSet;

/// The length of an HMAC-SHA256 in bytes.
const MAC_LEN: usize = 32;

/// How many bytes of a length hint are believed before the bytes themselves have arrived.
const HINT_LIMIT: usize = 2 * 1024 * 1024;

/// A well-formed value of the `X-Hub-Signature-256` header.
///
/// GitHub sends `sha256=` and 64 hexadecimal digits
/// ([validating webhook deliveries](https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries)).
/// The prefix has to be exactly that; digits of either case are accepted. `Debug` does not show the digits.
#[derive(Clone)]
pub struct Signature([u8; MAC_LEN]);

impl Signature {
    /// Parses a header value.
    ///
    /// ```
    /// use hookclaim::{Signature, SignatureErrorKind};
    ///
    /// let digits = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
    /// assert!(Signature::parse(format!("sha256={digits}").as_bytes()).is_ok());
    /// let refused = Signature::parse(digits.as_bytes()).unwrap_err();
    /// assert_eq!(refused.kind(), SignatureErrorKind::Malformed);
    /// ```
    ///
    /// # Errors
    ///
    /// [`SignatureErrorKind::Missing`] for a blank value, [`SignatureErrorKind::Malformed`] for everything else that
    /// is not a signature.
    pub fn parse(value: &[u8]) -> Result<Self, SignatureError> {
        if value.iter().all(u8::is_ascii_whitespace) {
            return Err(SignatureErrorKind::Missing.into());
        }
        let digits = value
            .strip_prefix(b"sha256=")
            .ok_or(SignatureErrorKind::Malformed)?;
        let digits: &[u8; 2 * MAC_LEN] = digits
            .try_into()
            .map_err(|_| SignatureErrorKind::Malformed)?;
        let mut mac = [0; MAC_LEN];
        for (byte, pair) in mac.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Ok(Self(mac))
    }
}

fn nibble(digit: u8) -> Result<u8, SignatureErrorKind> {
    match digit {
        b'0'..=b'9' => Ok(digit - b'0'),
        b'a'..=b'f' => Ok(digit - b'a' + 10),
        b'A'..=b'F' => Ok(digit - b'A' + 10),
        _ => Err(SignatureErrorKind::Malformed),
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signature(..)")
    }
}

/// Checks one body, piece by piece, while it arrives.
///
/// Hashing each piece as it comes keeps every step short and needs no memory; see [`BodyVerifier`] for the same with
/// the pieces gathered.
pub struct Verifier {
    set: Arc<SecretSet>,
    first: Hmac<Sha256>,
    others: Vec<Hmac<Sha256>>,
}

impl Verifier {
    pub(crate) fn new(set: Arc<SecretSet>) -> Self {
        let first = set.first.mac();
        let others = set.others.iter().map(crate::Secret::mac).collect();
        Self { set, first, others }
    }

    /// Takes the next piece of the body.
    pub fn update(&mut self, piece: &[u8]) {
        self.first.update(piece);
        for other in &mut self.others {
            other.update(piece);
        }
    }

    /// Compares what arrived with `signature`, in constant time, under every secret of the set.
    ///
    /// # Errors
    ///
    /// [`SignatureErrorKind::Mismatch`] if no secret of the set made this signature for these bytes.
    pub fn verify(self, signature: &Signature) -> Result<Verified, SignatureError> {
        let first: [u8; MAC_LEN] = self.first.finalize().into_bytes().into();
        let mut found = first.ct_eq(&signature.0);
        let mut index = 0_u32;
        for (other, position) in self.others.into_iter().zip(1..) {
            let mac: [u8; MAC_LEN] = other.finalize().into_bytes().into();
            let hit: Choice = mac.ct_eq(&signature.0);
            index.conditional_assign(&position, hit & !found);
            found |= hit;
        }
        if !bool::from(found) {
            return Err(SignatureErrorKind::Mismatch.into());
        }
        Ok(Verified {
            fingerprint: Fingerprint::new(&self.set, index, signature),
            secret: Some((self.set, index)),
        })
    }
}

impl fmt::Debug for Verifier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Verifier")
            .field("secrets", &self.set)
            .finish_non_exhaustive()
    }
}

/// The fact that a body carried a right signature.
#[derive(Clone, Debug)]
pub struct Verified {
    /// The set and which of it; none for what a store has kept since.
    secret: Option<(Arc<SecretSet>, u32)>,
    fingerprint: Fingerprint,
}

impl Verified {
    /// What a store has kept since it was verified, or since the application made it.
    pub(crate) fn stored(fingerprint: Option<Fingerprint>) -> Self {
        Self {
            secret: None,
            fingerprint: fingerprint.unwrap_or(Fingerprint([0; 16])),
        }
    }

    /// The name of the secret that signed; `stored` for a delivery that a worker got from the store, where that is no
    /// longer known.
    #[must_use]
    pub fn secret_name(&self) -> &str {
        let Some((set, index)) = &self.secret else {
            return "stored";
        };
        match (*index as usize).checked_sub(1) {
            None => set.first.name(),
            Some(other) => set.others[other].name(),
        }
    }

    /// Tells this body from others; see [`Fingerprint`].
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }
}

/// Checks a body while it arrives, and keeps it.
///
/// A body that comes in one piece is handed on as it is, without a copy. Several pieces are gathered once.
///
/// ```
/// use std::sync::Arc;
/// use hookclaim::{BodyVerifier, SecretSet, Signature};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let secrets = Arc::new(SecretSet::single("It's a Secret to Everybody")?);
/// let signature =
///     Signature::parse(b"sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17")?;
///
/// let mut body = BodyVerifier::new(&secrets, None);
/// body.push("Hello, ".into());
/// body.push("World!".into());
/// let body = body.finish(&signature)?;
/// assert_eq!(body.bytes(), "Hello, World!");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct BodyVerifier {
    verifier: Verifier,
    single: Bytes,
    gathered: BytesMut,
    hint: usize,
}

impl BodyVerifier {
    /// Starts a body. `expected` is the length that the sender announced, if any: it sizes the buffer, and because
    /// anybody may announce anything, only up to a bound.
    #[must_use]
    pub fn new(secrets: &Arc<SecretSet>, expected: Option<u64>) -> Self {
        let hint = expected.map_or(0, |len| {
            usize::try_from(len).unwrap_or(HINT_LIMIT).min(HINT_LIMIT)
        });
        Self {
            verifier: secrets.verifier(),
            single: Bytes::new(),
            gathered: BytesMut::new(),
            hint,
        }
    }

    /// Takes the next piece.
    pub fn push(&mut self, piece: Bytes) {
        self.verifier.update(&piece);
        if self.gathered.is_empty() {
            if self.single.is_empty() {
                self.single = piece;
                return;
            }
            self.gathered
                .reserve(self.hint.max(self.single.len() + piece.len()));
            self.gathered
                .extend_from_slice(&std::mem::take(&mut self.single));
        }
        self.gathered.extend_from_slice(&piece);
    }

    /// The number of bytes so far.
    #[must_use]
    pub fn len(&self) -> usize {
        self.single.len() + self.gathered.len()
    }

    /// Whether nothing has arrived.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Ends the body and checks it.
    ///
    /// # Errors
    ///
    /// [`SignatureErrorKind::Mismatch`] as for [`Verifier::verify`]. The bytes are gone then: nothing unverified
    /// leaves this type.
    pub fn finish(self, signature: &Signature) -> Result<SignedBody, SignatureError> {
        let verified = self.verifier.verify(signature)?;
        let bytes = if self.gathered.is_empty() {
            self.single
        } else {
            self.gathered.freeze()
        };
        Ok(SignedBody { bytes, verified })
    }
}

/// The raw bytes of a body whose signature was checked.
///
/// The only ways to one are [`BodyVerifier::finish`] and [`SignedBody::verify`], and a
/// [`Delivery`](crate::Delivery) is made from one: no path accepts unsigned input.
#[derive(Clone)]
pub struct SignedBody {
    bytes: Bytes,
    verified: Verified,
}

impl SignedBody {
    /// Checks a body that is complete.
    ///
    /// # Errors
    ///
    /// [`SignatureErrorKind::Mismatch`] as for [`Verifier::verify`].
    pub fn verify(
        bytes: Bytes,
        signature: &Signature,
        secrets: &Arc<SecretSet>,
    ) -> Result<Self, SignatureError> {
        let mut verifier = BodyVerifier::new(secrets, None);
        verifier.push(bytes);
        verifier.finish(signature)
    }

    /// The bytes as they came over the wire.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// What the check found.
    #[must_use]
    pub fn verified(&self) -> &Verified {
        &self.verified
    }

    pub(crate) fn into_bytes(self) -> Bytes {
        self.bytes
    }
}

impl fmt::Debug for SignedBody {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SignedBody")
            .field("len", &self.bytes.len())
            .field("verified", &self.verified)
            .finish()
    }
}

/// Tells two bodies of one delivery apart, without keeping either.
///
/// It is a digest of the signature, marked with the secret that made it, and costs no second pass over the body. It
/// does not lead back to the signature. Fingerprints under different secrets say nothing about each other, and count
/// as alike.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Fingerprint([u8; 16]);

impl Fingerprint {
    fn new(set: &SecretSet, index: u32, signature: &Signature) -> Self {
        let secret = (index as usize)
            .checked_sub(1)
            .map_or(&set.first, |other| &set.others[other]);
        let digest = Sha256::digest(signature.0);
        let mut bytes = [0; 16];
        bytes[..4].copy_from_slice(&secret.key_id());
        bytes[4..].copy_from_slice(&digest[..12]);
        Self(bytes)
    }

    /// Whether the two are known to belong to different bodies.
    #[must_use]
    pub fn differs_from(self, other: Self) -> bool {
        self.0[..4] == other.0[..4] && self.0 != other.0
    }

    /// As a store keeps it.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }

    /// From what a store kept.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }
}

/// Why a signature was not accepted.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", kind.text())]
pub struct SignatureError {
    kind: SignatureErrorKind,
}

impl SignatureError {
    /// The kind of refusal.
    #[must_use]
    pub fn kind(&self) -> SignatureErrorKind {
        self.kind
    }
}

impl From<SignatureErrorKind> for SignatureError {
    fn from(kind: SignatureErrorKind) -> Self {
        Self { kind }
    }
}

/// The kinds of [`SignatureError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SignatureErrorKind {
    /// There is no signature, or a blank one.
    Missing,
    /// Only the outdated `X-Hub-Signature` (SHA-1) was sent.
    Sha1Only,
    /// The value is not `sha256=` and 64 hexadecimal digits.
    Malformed,
    /// No configured secret made this signature for this body.
    Mismatch,
}

impl SignatureErrorKind {
    fn text(self) -> &'static str {
        match self {
            Self::Missing => {
                "the X-Hub-Signature-256 header is missing or blank; set a secret on the webhook"
            }
            Self::Sha1Only => {
                "only the sha1 header X-Hub-Signature was sent; send X-Hub-Signature-256, which GitHub does whenever \
                 the webhook has a secret"
            }
            Self::Malformed => {
                "the X-Hub-Signature-256 header is not `sha256=` followed by 64 hexadecimal digits"
            }
            Self::Mismatch => {
                "the signature does not match the body; check that both sides have the same secret and that nothing \
                 in between rewrites the body"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Secret;

    const OFFICIAL: &str = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";

    fn official() -> Arc<SecretSet> {
        Arc::new(SecretSet::single("It's a Secret to Everybody").unwrap())
    }

    fn signed(secret: &str, body: &[u8]) -> Signature {
        let set = Secret::new("s", secret).unwrap();
        Signature(set.mac().chain_update(body).finalize().into_bytes().into())
    }

    #[test]
    fn the_official_vector_verifies_in_either_case() {
        for digits in [OFFICIAL.to_owned(), OFFICIAL.to_uppercase()] {
            let signature = Signature::parse(format!("sha256={digits}").as_bytes()).unwrap();
            let body = SignedBody::verify("Hello, World!".into(), &signature, &official()).unwrap();
            assert_eq!(body.verified().secret_name(), "webhook");
            let other =
                SignedBody::verify("Hello, World?".into(), &signature, &official()).unwrap_err();
            assert_eq!(other.kind(), SignatureErrorKind::Mismatch);
        }
    }

    #[test]
    fn malformed_signatures_are_told_apart_from_missing_ones() {
        let rows: &[(&str, &[u8], SignatureErrorKind)] = &[
            ("empty", b"", SignatureErrorKind::Missing),
            ("spaces", b"   ", SignatureErrorKind::Missing),
            ("prefix alone", b"sha256=", SignatureErrorKind::Malformed),
            ("one digit", b"sha256=7", SignatureErrorKind::Malformed),
            (
                "no prefix",
                OFFICIAL.as_bytes(),
                SignatureErrorKind::Malformed,
            ),
        ];
        for (name, value, kind) in rows {
            assert_eq!(Signature::parse(value).unwrap_err().kind(), *kind, "{name}");
        }
        let digits = OFFICIAL;
        for value in [
            format!("sha256={}", &digits[1..]),
            format!("sha256={digits}0"),
            format!("sha256={digits}{digits}"),
            format!("SHA256={digits}"),
            format!("sha1={digits}"),
            format!("md5={}", &digits[..32]),
            format!("1234567{digits}"),
            format!("sha256= {}", &digits[1..]),
            format!("sha256={}zz", &digits[2..]),
            format!("sha256={}\0", &digits[1..]),
            format!(" sha256={digits}"),
            format!("sha256={digits} "),
            "a".repeat(1 << 20),
        ] {
            let error = Signature::parse(value.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), SignatureErrorKind::Malformed, "{value:.80}");
        }
    }

    #[test]
    fn every_secret_of_a_rotation_is_accepted_and_named() {
        let set = Arc::new(
            SecretSet::new(Secret::new("current", "new").unwrap())
                .and(Secret::new("previous", "old").unwrap()),
        );
        for (secret, name) in [("new", "current"), ("old", "previous")] {
            let body = SignedBody::verify("x".into(), &signed(secret, b"x"), &set).unwrap();
            assert_eq!(body.verified().secret_name(), name);
        }
        assert!(SignedBody::verify("x".into(), &signed("third", b"x"), &set).is_err());
    }

    #[test]
    fn fingerprints_differ_only_where_they_can_be_compared() {
        let set = Arc::new(
            SecretSet::new(Secret::new("current", "new").unwrap())
                .and(Secret::new("previous", "old").unwrap()),
        );
        let print = |secret: &str, body: &'static str| {
            let body =
                SignedBody::verify(body.into(), &signed(secret, body.as_bytes()), &set).unwrap();
            body.verified().fingerprint()
        };
        assert!(!print("new", "a").differs_from(print("new", "a")));
        assert!(print("new", "a").differs_from(print("new", "b")));
        assert!(
            !print("new", "a").differs_from(print("old", "b")),
            "different secrets say nothing"
        );
    }

    #[test]
    fn debug_output_holds_no_signature() {
        let signature = Signature::parse(format!("sha256={OFFICIAL}").as_bytes()).unwrap();
        let body = SignedBody::verify("Hello, World!".into(), &signature, &official()).unwrap();
        let text = format!("{signature:?} {body:?} {:?}", official().verifier());
        assert!(
            !text.contains("757107") && !text.contains("Hello") && !text.contains("Everybody"),
            "{text}"
        );
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_verify_and_come_out_as_they_went_in(
            body in proptest::collection::vec(any::<u8>(), 0..2000),
            cuts in proptest::collection::vec(0_usize..2000, 0..8),
            hint in proptest::option::of(any::<u64>()),
        ) {
            let set = Arc::new(SecretSet::single("key").unwrap());
            let signature = signed("key", &body);
            let mut verifier = BodyVerifier::new(&set, hint);
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(body.len())).collect();
            cuts.sort_unstable();
            let mut from = 0;
            for to in cuts.into_iter().chain([body.len()]) {
                verifier.push(Bytes::copy_from_slice(&body[from..to]));
                from = to;
            }
            prop_assert_eq!(verifier.len(), body.len());
            let signed = verifier.finish(&signature).unwrap();
            prop_assert_eq!(&signed.bytes()[..], &body[..]);
        }

        #[test]
        fn parsing_never_panics(value in proptest::collection::vec(any::<u8>(), 0..100)) {
            let _ = Signature::parse(&value);
        }

        #[test]
        fn one_changed_byte_is_noticed(mut body in proptest::collection::vec(any::<u8>(), 1..200), at in any::<prop::sample::Index>()) {
            let set = Arc::new(SecretSet::single("key").unwrap());
            let signature = signed("key", &body);
            let at = at.index(body.len());
            body[at] ^= 1;
            prop_assert!(SignedBody::verify(body.into(), &signature, &set).is_err());
        }
    }
}
