//! Hookclaim over real sockets, processes and databases, a module per kind of promise.

mod a_signature;
mod harness;
mod support;
