//! Time tracking by issue comment: what a comment says, and who may say it.
//!
//! Pure functions from a signed payload to what is to be booked. Nothing here touches a database.

pub mod authorize;
pub mod command;
pub mod duration;
pub mod payload;
