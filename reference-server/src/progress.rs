//! Progress of long work, on standard error and on a terminal only.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// A bar for so many pieces.
pub(crate) fn bar(pieces: usize, what: &'static str) -> ProgressBar {
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {eta}")
        .expect("the template is one");
    ProgressBar::new(pieces as u64)
        .with_style(style)
        .with_message(what)
}

/// For work whose amount nobody knows.
pub(crate) fn spinner() -> ProgressBar {
    let style =
        ProgressStyle::with_template("{spinner} {msg} {elapsed}").expect("the template is one");
    let spinner = ProgressBar::new_spinner().with_style(style);
    // A step that waits for a lock shows that it is alive.
    spinner.enable_steady_tick(Duration::from_millis(200));
    spinner
}
