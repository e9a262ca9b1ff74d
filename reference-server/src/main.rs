//! The `hookclaim` program.
fn main() {}
