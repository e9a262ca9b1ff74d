//! A [Tower](https://docs.rs/tower) layer that lets only verified GitHub webhook deliveries through to a handler, and
//! each of them once.
//!
//! ```
//! use std::convert::Infallible;
//! use bytes::Bytes;
//! use hookclaim::{Delivery, MemoryStore, SecretSet};
//! use http::{Request, Response};
//! use http_body_util::Full;
//! use tower::{Layer, ServiceExt, service_fn};
//! use tower_hookclaim::{GithubWebhookLayer, OUTCOME_HEADER};
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // The handler sees signed deliveries only, and never the same one twice.
//! let handler = service_fn(|request: Request<Full<Bytes>>| async move {
//!     let delivery: &Delivery = request.extensions().get().expect("the layer puts it there");
//!     println!("{} {:?}", delivery.event(), delivery.action());
//!     Ok::<_, Infallible>(Response::new(Full::<Bytes>::from("done")))
//! });
//! let secrets = SecretSet::single("It's a Secret to Everybody")?;
//! let service = GithubWebhookLayer::new(secrets, MemoryStore::new()).layer(handler);
//!
//! // What GitHub sends, twice.
//! let digits = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
//! let delivery = || {
//!     Request::post("/webhook")
//!         .header("x-github-delivery", "72d3162e-cc78-11e3-81ab-4c9367dc0958")
//!         .header("x-github-event", "push")
//!         .header("content-type", "application/json")
//!         .header("x-hub-signature-256", format!("sha256={digits}"))
//!         .body(Full::<Bytes>::from("Hello, World!"))
//! };
//! let first = service.clone().oneshot(delivery()?).await?;
//! assert_eq!(first.headers()[OUTCOME_HEADER], "completed");
//! let again = service.oneshot(delivery()?).await?;
//! assert_eq!(again.headers()[OUTCOME_HEADER], "duplicate");
//! # Ok(())
//! # }
//! ```
//!
//! With axum it is `Router::new().route("/webhook", post(handler)).route_layer(layer)`. A tonic server, or a plain
//! hyper one, carries a webhook on one path with [`WebhookRoute`].
//!
//! # The types and how they fit
//!
//! - [`GithubWebhookLayer::durable`] makes it store deliveries instead of running them: the sender is answered at once, and
//!   a [`Worker`] drives the same handler, again and again until the delivery is completed or dead.
//! - [`GithubWebhookLayer`] has the settings and makes a [`GithubWebhook`] of a service that takes
//!   `Request<Full<Bytes>>`: the verified bytes as they came over the wire.
//! - The handler finds a [`Delivery`](hookclaim::Delivery), an [`Attempt`](hookclaim::Attempt) and a
//!   [`Lease`](hookclaim::Lease) in the request's extensions. With a transactional store, `lease.commit(tx)` completes
//!   the delivery together with what the handler wrote.
//! - The response's status decides what is recorded, unless the handler puts a [`Verdict`] into its extensions.
//! - Every response carries an [`Outcome`], in the header `x-webhook-outcome` and in its extensions, and where a
//!   request was not let through, a [`Rejection`] in its extensions.
//! - An [`Observer`] is told everything else; a [`Drain`] ends it all in good order.
//!
//! # What is checked, in this order
//!
//! | check | answer | outcome |
//! |---|---|---|
//! | the method is `POST` | 405 | `rejected` |
//! | the layer is not [draining](Drain) | 503 | `unavailable` |
//! | no header that matters comes twice | 400 | `rejected` |
//! | delivery id and event are there and well-formed | 400 | `rejected` |
//! | the signature is there and well-formed, and not SHA-1 only | 401 | `rejected` |
//! | the content type is one of GitHub's two | 415 | `rejected` |
//! | the announced length is within the limit | 413 | `rejected` |
//! | there is [memory](GithubWebhookLayer::memory_budget) for it | 503 | `unavailable` |
//! | the body arrives: within the limit, in time, as a whole | 413, 408, 400 | `rejected` |
//! | the signature is right | 401 | `rejected` |
//! | it is not a `ping` | 200 | `pong` |
//! | the event is on the allow-list, if there is one | 204 | `ignored` |
//! | a claim key can be made of it | 400 | `rejected` |
//! | the store can be asked | 503 | `unavailable` |
//! | it was not completed before | 200 | `duplicate` |
//! | nobody else works on it | 202 | `in-progress` |
//! | it does not wait for a later attempt | 202 | `retry-later` |
//! | it did not fail for good | 202 | `dead` |
//!
//! What passes all of them runs. The outcome is then `completed`, or `failed` with the handler's status, or `accepted`
//! (202) if the handler takes longer than [`ack_after`](GithubWebhookLayer::ack_after). A durable layer stores it, and the
//! outcome is `accepted`; before that it asks whether there is [room](GithubWebhookLayer::backlog_limit) (503).
//!
//! A delivery that is in progress is answered 202 and not 200: nobody knows yet whether it will be done.
//!
//! # What is guaranteed
//!
//! - Nothing unsigned reaches the store or the handler. Nothing that is answered tells a secret or a right signature.
//! - Of any number of racing deliveries of one event, one runs. Its lease is renewed for as long as it runs, up to the
//!   longest hold of its [`LeasePolicy`](hookclaim::LeasePolicy).
//! - An attempt whose lease has passed on can no longer complete the delivery, and is told
//!   ([`Attempt::cancelled`](hookclaim::Attempt::cancelled)).
//! - A caller that hangs up, at whatever moment, leaves no claim stuck: the attempt goes on in a task of its own and
//!   its end is recorded, or nothing was claimed.
//! - What a durable layer answered `accepted` is in the store with its payload, and runs until it is completed or dead,
//!   whatever process dies in between, as long as some process has a [`Worker`].
//! - The handler of a request is never aborted, but for [`Drain::hand_back`]. A worker's handler is dropped as well once
//!   its lease is over, after it was told. A panic is recorded, and handed on while somebody waits.
//!
//! # What is not
//!
//! - A handler runs at least once, not exactly once: a process that dies in the middle leaves a lease that runs out.
//!   What it writes in the transaction of [`Lease::commit`](hookclaim::Lease::commit) happens exactly once.
//! - Inline, an attempt that failed does not begin again by itself. It runs again when the delivery is sent again, and
//!   GitHub sends again only when somebody asks it to
//!   ([redelivering webhooks](https://docs.github.com/en/webhooks/testing-and-troubleshooting-webhooks/redelivering-webhooks)).
//!   One that was answered `accepted` is the exception where the store keeps payloads and a worker runs beside the layer.
//! - How long the head of a request may take is the HTTP server's to bound.
//!
//! # Runtime
//!
//! The layer needs a Tokio runtime with its timer.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `tracing` | `TracingObserver`: log lines |
//! | `metrics` | `MetricsObserver`: counters and histograms |
//!
//! No feature is on by default, and none changes what the others get.
//!
//! # Testing
//!
//! `hookclaim`'s feature `test-util` has `testing::signed_headers`: with it, `tower::ServiceExt::oneshot` and a
//! [`MemoryStore`](hookclaim::MemoryStore), a handler is tested without a socket.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backlog;
mod body;
mod budget;
mod drain;
mod engine;
mod flight;
mod future;
mod layer;
mod mode;
mod observe;
mod outcome;
mod receive;
mod rejection;
mod route;
mod run;
mod service;
mod verdict;
mod worker;

pub use crate::body::ResponseBody;
pub use crate::drain::Drain;
pub use crate::future::ResponseFuture;
pub use crate::layer::GithubWebhookLayer;
pub use crate::mode::{Durable, Inline};
#[cfg(feature = "metrics")]
pub use crate::observe::MetricsObserver;
#[cfg(feature = "tracing")]
pub use crate::observe::TracingObserver;
pub use crate::observe::{Claimed, Detached, Event, Observer, Operation, Settlement};
pub use crate::outcome::{OUTCOME_HEADER, Outcome};
pub use crate::rejection::Rejection;
pub use crate::route::{RouteBody, RouteFuture, WebhookRoute, WebhookRouteLayer};
pub use crate::service::GithubWebhook;
pub use crate::verdict::Verdict;
pub use crate::worker::Worker;

/// The README's snippets are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
