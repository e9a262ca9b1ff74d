//! Counts what the layer allocates per request, stage by stage. It has a binary of its own, so that counting costs
//! the other benchmarks nothing.

use std::alloc::System;
use std::convert::Infallible;

use bytes::Bytes;
use hookclaim::testing::signed_headers;
use hookclaim::{MemoryStore, SecretSet};
use http::{Request, Response};
use http_body_util::{Empty, Full};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use tower::{Layer, Service, service_fn};
use tower_hookclaim::GithubWebhookLayer;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const SECRET: &[u8] = b"a secret of thirty-two bytes, so";

fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let inner = service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    let layer = GithubWebhookLayer::new(
        SecretSet::single(SECRET).expect("a secret"),
        MemoryStore::new(),
    );
    let mut service = layer.layer(inner);
    let body = Bytes::from(vec![b' '; 8192]);
    let request = |event: &str, id: &str| {
        let mut request = Request::post("/webhook")
            .body(Full::new(body.clone()))
            .expect("a request");
        *request.headers_mut() = signed_headers(SECRET, event, id, &body);
        request
    };
    runtime.block_on(async {
        // The store's map grows now and then; it has room after this.
        for number in 0..3 {
            service
                .call(request("push", &format!("warm-{number}")))
                .await
                .expect("infallible");
        }
        let rows = [
            ("ping", "a", "verified (ping)"),
            ("push", "b", "won and handled, memory store"),
            ("push", "b", "duplicate"),
        ];
        for (event, id, what) in rows {
            let request = request(event, id);
            let region = Region::new(ALLOCATOR);
            let future = service.call(request);
            let called = region.change().allocations;
            let response = future.await.expect("infallible");
            let all = region.change().allocations;
            drop(response);
            println!("allocations per delivery, {what}: up to the future {called}");
            println!("allocations per delivery, {what}: in all {all}");
        }
    });
}
