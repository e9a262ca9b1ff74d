//! A [Tower](tower_layer) layer that lets only verified GitHub webhook deliveries through, and each of them once.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod body;
mod budget;
mod drain;
mod flight;
mod future;
mod layer;
mod observe;
mod outcome;
mod receive;
mod rejection;
mod route;
mod run;
mod service;
mod verdict;

pub use crate::body::ResponseBody;
pub use crate::drain::Drain;
pub use crate::future::ResponseFuture;
pub use crate::layer::GithubWebhookLayer;
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
