//! Finds the `action` of a payload without parsing the rest of it.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

/// The longest action that is taken; GitHub's are below 40 characters.
const MAX_LEN: usize = 64;

/// The string under the top-level key `action`, if there is one that could be an action.
///
/// Stops at the first such key. GitHub writes it first, and payloads may have 25 MB.
pub(crate) fn find(json: &[u8]) -> Option<Box<str>> {
    let mut found = None;
    // The visitor leaves by an error as soon as it knows; what it found is beside it.
    let _ = serde_json::Deserializer::from_slice(json).deserialize_map(Payload(&mut found));
    found
}

struct Payload<'a>(&'a mut Option<Box<str>>);

impl<'de> Visitor<'de> for Payload<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(is_action) = map.next_key_seed(IsAction)? {
            if is_action {
                *self.0 = map.next_value_seed(Action)?;
                return Err(A::Error::custom("found"));
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

struct IsAction;

impl<'de> DeserializeSeed<'de> for IsAction {
    type Value = bool;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<bool, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for IsAction {
    type Value = bool;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<bool, E> {
        Ok(key == "action")
    }
}

struct Action;

impl<'de> DeserializeSeed<'de> for Action {
    type Value = Option<Box<str>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl Visitor<'_> for Action {
    type Value = Option<Box<str>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_str<E>(self, action: &str) -> Result<Self::Value, E> {
        let plausible = !action.is_empty()
            && action.len() <= MAX_LEN
            && action.bytes().all(|b| b.is_ascii_graphic());
        Ok(plausible.then(|| action.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_top_level_string_is_an_action() {
        let deep = format!(
            "{{\"a\":{}1{},\"action\":\"late\"}}",
            "[".repeat(100_000),
            "]".repeat(100_000)
        );
        let rows: [(&[u8], Option<&str>); 12] = [
            (br#"{"action":"created","issue":{}}"#, Some("created")),
            (
                br#" { "issue" : {"action":"no"}, "action" : "opened" } "#,
                Some("opened"),
            ),
            (br#"{"\u0061ction":"created"}"#, Some("created")),
            (br#"{"action":"created", then not JSON"#, Some("created")),
            (br#"{"action":null}"#, None),
            (br#"{"action":7}"#, None),
            (br#"{"action":"two words"}"#, None),
            (br#"{"ref":"refs/heads/main"}"#, None),
            (br#"["action","created"]"#, None),
            (b"", None),
            (b"\xef\xbb\xbf{}", None),
            (deep.as_bytes(), Some("late")),
        ];
        for (json, action) in rows {
            assert_eq!(
                find(json).as_deref(),
                action,
                "{}",
                String::from_utf8_lossy(&json[..json.len().min(60)])
            );
        }
    }
}
