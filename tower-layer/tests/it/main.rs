//! The layer as its users see it: a service in, requests through, answers and records out.

mod checks;
mod support;
