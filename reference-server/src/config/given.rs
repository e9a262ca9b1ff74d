//! Secret text that is given itself, or as a file.

use std::path::{Path, PathBuf};

use super::settings::{Setting, Settings};

/// What was given.
pub(super) struct Given {
    /// Where.
    pub(super) origin: String,
    /// What, as it stands there.
    pub(super) text: String,
    /// The file that it stands in, if it is one.
    pub(super) path: Option<PathBuf>,
}

/// The text of one option or the content of the file of the other, whichever was given in the better place. What is
/// wrong becomes a problem of the settings, without the text.
pub(super) fn read(settings: &mut Settings, name: &str, file: &str, what: &str) -> Option<Given> {
    let (text, file) = (settings.take(name), settings.take(file));
    if let (Some(text), Some(file)) = (&text, &file)
        && text.origin.rank() == file.origin.rank()
    {
        settings.problems.push(format!(
            "{} and {} are both set; unset one of them",
            text.origin, file.origin
        ));
        return None;
    }
    let rank = |setting: &Setting| setting.origin.rank();
    let file = match (text, file) {
        (Some(text), file) if file.as_ref().is_none_or(|file| rank(&text) < rank(file)) => {
            return Some(Given {
                origin: text.origin.to_string(),
                text: text.value,
                path: None,
            });
        }
        (_, file) => file?,
    };
    let (origin, path) = (file.origin.to_string(), PathBuf::from(file.value));
    let text = content(settings, &origin, &path, what)?;
    Some(Given {
        origin,
        text,
        path: Some(path),
    })
}

/// The content of a file.
pub(super) fn content(
    settings: &mut Settings,
    origin: &str,
    path: &Path,
    what: &str,
) -> Option<String> {
    match std::fs::read_to_string(path) {
        Ok(text) => Some(text),
        Err(error) => {
            settings.problems.push(format!(
                "{origin}: cannot read {what} from {}: {error}",
                path.display()
            ));
            None
        }
    }
}
