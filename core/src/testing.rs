//! Tools for whoever writes or uses a store: a manual clock, a signer, the conformance suite and the model test.

mod clock;
pub mod conformance;
pub mod model;
mod sign;

pub use clock::ManualClock;
pub use sign::{sign, signed_headers};
