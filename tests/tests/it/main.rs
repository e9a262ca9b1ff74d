//! Hookclaim over real sockets, processes and databases, a module per kind of promise.

mod a_signature;
mod b_http;
mod c_events;
mod chaos;
mod d_claim;
mod deliveries;
mod docs;
mod e_lease;
mod f_stores;
mod frameworks;
mod harness;
mod held_up;
mod inbox_postgres;
mod inbox_sqlite;
mod place;
mod server;
mod statements;
mod stores;
mod support;
mod ui;
mod worked_off;
