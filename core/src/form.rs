//! The `payload` field of a webhook that is set to `application/x-www-form-urlencoded`.

use bytes::Bytes;

/// Why a form body was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FormError {
    /// There is no field `payload`.
    #[error("the form body has no `payload` field")]
    PayloadMissing,
    /// The field `payload` is there more than once, so that it is not clear which one is meant.
    #[error("the form body has more than one `payload` field")]
    PayloadRepeated,
    /// A `%` is not followed by two hexadecimal digits.
    #[error("the form body has a `%` without two hexadecimal digits behind it")]
    BadEscape,
}

/// Decodes the only `payload` field of a form body.
///
/// The result is bytes, as a form may spell any byte: text that is not UTF-8 is the handler's to judge.
pub(crate) fn payload(form: &[u8]) -> Result<Bytes, FormError> {
    let mut found = None;
    for field in form.split(|&byte| byte == b'&') {
        let at = field
            .iter()
            .position(|&byte| byte == b'=')
            .unwrap_or(field.len());
        let (name, value) = field.split_at(at);
        if decode(name)? != b"payload" {
            continue;
        }
        if found.replace(value.get(1..).unwrap_or_default()).is_some() {
            return Err(FormError::PayloadRepeated);
        }
    }
    decode(found.ok_or(FormError::PayloadMissing)?).map(Bytes::from)
}

fn decode(text: &[u8]) -> Result<Vec<u8>, FormError> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [] => return Ok(decoded),
            [b'+', rest @ ..] => {
                decoded.push(b' ');
                rest
            }
            [b'%', high, low, rest @ ..] => {
                decoded.push(digit(*high)? << 4 | digit(*low)?);
                rest
            }
            [b'%', ..] => return Err(FormError::BadEscape),
            [byte, rest @ ..] => {
                decoded.push(*byte);
                rest
            }
        }
    }
}

fn digit(byte: u8) -> Result<u8, FormError> {
    char::from(byte)
        .to_digit(16)
        .and_then(|digit| u8::try_from(digit).ok())
        .ok_or(FormError::BadEscape)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_payload_is_decoded_exactly() {
        type Row = (
            &'static str,
            &'static [u8],
            Result<&'static [u8], FormError>,
        );
        let rows: [Row; 9] = [
            (
                "as GitHub sends it",
                b"payload=%7B%22a%22%3A%22x%2By+z%22%7D",
                Ok(br#"{"a":"x+y z"}"#),
            ),
            ("among others", b"a=1&payload=%7B%7D&b=2", Ok(b"{}")),
            ("empty", b"payload=", Ok(b"")),
            ("without a sign", b"payload", Ok(b"")),
            ("not UTF-8", b"payload=%ff", Ok(b"\xff")),
            ("missing", b"payloads=1", Err(FormError::PayloadMissing)),
            ("empty body", b"", Err(FormError::PayloadMissing)),
            (
                "twice",
                b"payload=1&payl%6Fad=1",
                Err(FormError::PayloadRepeated),
            ),
            ("cut escape", b"payload=%7", Err(FormError::BadEscape)),
        ];
        for (name, form, expected) in rows {
            assert_eq!(payload(form).as_deref(), expected.as_deref(), "{name}");
        }
    }

    proptest! {
        #[test]
        fn whatever_was_encoded_is_decoded(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut form = b"payload=".to_vec();
            for byte in &bytes {
                form.extend(format!("%{byte:02X}").bytes());
            }
            let decoded = payload(&form).unwrap();
            prop_assert_eq!(&decoded[..], &bytes[..]);
        }

        #[test]
        fn decoding_never_panics(form in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = payload(&form);
        }
    }
}
