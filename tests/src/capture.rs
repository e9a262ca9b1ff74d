//! What the program logs, down to TRACE.

use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};

use tracing::subscriber::set_global_default;
use tracing_subscriber::filter::dynamic_filter_fn;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::layer::{Layer, SubscriberExt};

static ACTIVE: AtomicUsize = AtomicUsize::new(0);
static BUFFERS: Mutex<Vec<Weak<Mutex<Vec<u8>>>>> = Mutex::new(Vec::new());

/// Everything that this process logs while it lives: of every thread, and so of other tests as well. Search it for
/// values that only the one test has.
#[derive(Debug)]
pub struct Capture(Arc<Mutex<Vec<u8>>>);

impl Capture {
    /// Begins to capture.
    ///
    /// # Panics
    ///
    /// If this process has another subscriber.
    #[must_use]
    pub fn begin() -> Self {
        static INSTALL: Once = Once::new();
        INSTALL.call_once(|| {
            let lines = tracing_subscriber::fmt::layer()
                .with_ansi(false)
                .with_writer(ToBuffers)
                .with_filter(dynamic_filter_fn(|_, _| ACTIVE.load(Ordering::Relaxed) > 0));
            set_global_default(tracing_subscriber::registry().with(lines))
                .expect("no other subscriber is installed");
        });
        let buffer = Arc::default();
        lock(&BUFFERS).push(Arc::downgrade(&buffer));
        ACTIVE.fetch_add(1, Ordering::Relaxed);
        Self(buffer)
    }

    /// The text so far.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&lock(&self.0)).into_owned()
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        ACTIVE.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Clone, Copy)]
struct ToBuffers;

impl<'a> MakeWriter<'a> for ToBuffers {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        *self
    }
}

impl Write for ToBuffers {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        lock(&BUFFERS).retain(|buffer| match buffer.upgrade() {
            Some(buffer) => {
                lock(&buffer).extend_from_slice(bytes);
                true
            }
            None => false,
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_any_thread_logs_at_trace_is_captured() {
        let capture = Capture::begin();
        std::thread::spawn(|| tracing::trace!(needle = "6f1c2a", "in a haystack"))
            .join()
            .unwrap();
        assert!(capture.text().contains("6f1c2a"));
        assert!(!Capture::begin().text().contains("6f1c2a"));
    }
}
