use std::fmt::Write;

use hmac::{Hmac, KeyInit, Mac};
use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderValue};
use sha2::Sha256;

use crate::head::header;

/// The value of `X-Hub-Signature-256` that GitHub would send for this body.
///
/// # Panics
///
/// Never: HMAC takes keys of any length.
#[must_use]
pub fn sign(secret: &[u8], body: &[u8]) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(secret)
        .expect("HMAC takes a key of any length")
        .chain_update(body);
    mac.finalize()
        .into_bytes()
        .iter()
        .fold(String::from("sha256="), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}

/// The headers that GitHub would send with a JSON body.
///
/// # Panics
///
/// If `event` or `delivery_id` cannot be header values.
#[must_use]
pub fn signed_headers(secret: &[u8], event: &str, delivery_id: &str, body: &[u8]) -> HeaderMap {
    let value = |text: &str| HeaderValue::from_str(text).expect("the text is a header value");
    HeaderMap::from_iter([
        (CONTENT_TYPE, HeaderValue::from_static("application/json")),
        (header::EVENT, value(event)),
        (header::DELIVERY, value(delivery_id)),
        (header::HOOK_ID, HeaderValue::from_static("292430182")),
        (header::TARGET_TYPE, HeaderValue::from_static("repository")),
        (header::TARGET_ID, HeaderValue::from_static("79929171")),
        (header::SIGNATURE, value(&sign(secret, body))),
    ])
}
