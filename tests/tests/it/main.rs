//! Hookclaim over real sockets, processes and databases, a module per kind of promise.

mod a_signature;
mod b_http;
mod c_events;
mod frameworks;
mod harness;
mod support;
