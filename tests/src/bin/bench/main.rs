//! Benchmarks: each prints a ratio against a baseline that runs beside it.
//!
//! `cargo run --release -p hookclaim-tests --bin bench -- [P1 P2 … work]`, all of them without a name. Absolute figures are
//! those of this machine; only the ratios mean something elsewhere. `core/docs/performance.md` has the method.

mod binary;
mod claims;
mod durable;
mod layer;
mod method;
mod serve;

use method::Report;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Some(("serve", kind)) = arguments.first().map(String::as_str).zip(arguments.get(1)) {
        return match arguments.get(2) {
            Some(url) => durable::server(kind, url),
            None => serve::server(kind),
        };
    }
    if let ["load", address, server, connections] =
        arguments.iter().map(String::as_str).collect::<Vec<_>>()[..]
    {
        return durable::show_load(address, server, connections);
    }
    if cfg!(debug_assertions) {
        eprintln!("bench: this is a debug build; add --release");
        std::process::exit(2);
    }
    let wanted = |id: &str| arguments.is_empty() || arguments.iter().any(|name| name == id);
    let mut report = Report::default();
    if wanted("P1") || wanted("P2") {
        layer::cost(&mut report);
    }
    if wanted("P3") {
        layer::allocations(&mut report);
    }
    if wanted("P4") {
        serve::throughput(&mut report);
    }
    if wanted("P5") || wanted("P6") {
        claims::postgres_throughput(&mut report);
    }
    if wanted("P7") {
        claims::postgres_latency(&mut report);
    }
    if wanted("P8") {
        claims::sqlite_throughput(&mut report);
    }
    if wanted("P9") || wanted("P10") {
        durable::over_http(&mut report);
    }
    if wanted("work") {
        durable::work_rate(&mut report);
    }
    if wanted("P12") {
        durable::memory(&mut report);
    }
    if wanted("P14") {
        durable::large_table(&mut report);
    }
    if wanted("P13") {
        binary::size_and_start(&mut report);
    }
    report.print();
}
