//! When a delivery runs.

/// A delivery runs within its request: the mode of [`GithubWebhookLayer::new`](crate::GithubWebhookLayer::new).
#[derive(Clone, Copy, Debug)]
pub struct Inline(());

/// A delivery is stored, answered, and run by a [`Worker`](crate::Worker): the mode of
/// [`GithubWebhookLayer::durable`](crate::GithubWebhookLayer::durable).
#[derive(Clone, Copy, Debug)]
pub struct Durable(());
