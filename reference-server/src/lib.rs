//! Time tracking by GitHub issue comment.
pub mod timetracking;
