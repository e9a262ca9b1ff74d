//! The layer as its users see it: a service in, requests through, answers and records out.

mod checks;
mod durable;
mod keys;
mod lease;
mod limits;
#[cfg(all(feature = "tracing", feature = "metrics"))]
mod observe;
mod outlive;
mod readiness;
mod route;
mod settle;
mod store;
mod support;
mod transaction;
mod worker;
