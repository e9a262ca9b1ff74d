//! A store without transactions has nothing to commit in.

use hookclaim::{Lease, MemoryStore};

async fn handle(lease: Lease<MemoryStore>) {
    let _ = lease.commit(()).await;
}

fn main() {}
