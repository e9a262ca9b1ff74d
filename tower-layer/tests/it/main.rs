//! The layer as its users see it: a service in, requests through, answers and records out.

mod checks;
mod keys;
mod lease;
mod limits;
mod outlive;
mod readiness;
mod route;
mod settle;
mod store;
mod support;
mod transaction;
