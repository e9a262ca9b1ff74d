//! A store in memory would accept what it loses when the process ends.

use hookclaim::{DurableStore, MemoryStore};

fn accepts_for_later(_: impl DurableStore) {}

fn main() {
    accepts_for_later(MemoryStore::new());
}
