//! Receive GitHub webhooks, believe only what is signed, and do each of them once.
//!
//! This crate is the part that knows no HTTP framework: it checks signatures, decides who works on a delivery, and
//! remembers what came of it. `tower-hookclaim` puts it in front of a handler.
//!
//! ```
//! use std::sync::Arc;
//! use hookclaim::{
//!     Claim, ClaimKey, ClaimOutcome, Delivery, DeliveryHead, DeliveryStore, LeasePolicy, MemoryStore, SecretSet,
//!     SignedBody, Source, header,
//! };
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // What an HTTP server has in its hands.
//! let body = "Hello, World!";
//! let mut headers = http::HeaderMap::new();
//! headers.insert(header::DELIVERY, "72d3162e-cc78-11e3-81ab-4c9367dc0958".parse()?);
//! headers.insert(header::EVENT, "push".parse()?);
//! headers.insert("content-type", "application/json".parse()?);
//! let digits = "757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17";
//! headers.insert(header::SIGNATURE, format!("sha256={digits}").parse()?);
//!
//! // Believe it only if the secret's owner signed it.
//! let secrets = Arc::new(SecretSet::single("It's a Secret to Everybody")?);
//! let (head, signature) = DeliveryHead::parse(&headers)?;
//! let body = SignedBody::verify(body.into(), &signature, &secrets)?;
//! let delivery = Delivery::new(head, body, Source::default())?;
//!
//! // Work on it only if nobody else does or did.
//! let store = MemoryStore::new();
//! let claim = Claim::new(&delivery, ClaimKey::of(&delivery), LeasePolicy::default());
//! match store.claim(claim).await? {
//!     ClaimOutcome::Won(held) => {
//!         // … do the work, then:
//!         store.complete(&held).await?;
//!     }
//!     _someone_else_has_it_or_had_it => {}
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # The types and how they fit
//!
//! - [`SecretSet`] verifies; a [`SignedBody`] is the proof, and a [`Delivery`] cannot be made without one.
//! - [`ClaimKey`] says what makes two deliveries the same: the id, or a [`BusinessKey`].
//! - [`DeliveryStore`] decides: [`claim`](DeliveryStore::claim), then [`complete`](DeliveryStore::complete),
//!   [`fail`](DeliveryStore::fail) or [`release`](DeliveryStore::release). The [`machine`] has the chart.
//! - [`DurableStore`] keeps deliveries with their payloads: [`enqueue`](DurableStore::enqueue) stores one, and
//!   [`acquire`](DurableStore::acquire) takes what is due, under a lease each.
//! - [`Lease`] is the handler's side of a won claim. With a [`TransactionalStore`] it completes the attempt in the same
//!   transaction as the handler's own writes.
//!
//! # What is guaranteed
//!
//! - Nothing unsigned becomes a [`Delivery`].
//! - Of any number of racing claims of one key, one is won at a time.
//! - An attempt whose lease has passed on can no longer settle the delivery, nor commit its transaction.
//! - What a [`DurableStore`] accepted is on disk, and is there to be acquired until it is completed or dead.
//! - What a handler writes in [`Lease::commit`]'s transaction happens exactly once, follow-up work
//!   ([`Lease::enqueue_in`]) included.
//!
//! # What is not
//!
//! - Effects outside that transaction happen at least once. [`Attempt::idempotency_key`] and [`Attempt::fence`] are for
//!   the systems that receive them.
//! - A handler that runs past its lease is not stopped; it is told ([`Attempt::cancelled`]).
//! - A delivery is remembered for its [`Retention`]. The same id after that is new.
//!
//! # Features
//!
//! | feature | adds |
//! |---|---|
//! | `sqlite` | `SqliteStore`: one file, bundled SQLite |
//! | `postgres` | `PostgresStore`: any number of processes on one database |
//! | `seal` | `SealKeys`: stored payloads are sealed at rest |
//! | `test-util` | a manual clock, the conformance suite and the model test for stores |
//!
//! No feature is on by default, and none changes what the others get.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod action;
mod backoff;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod batch;
mod claim;
mod delivery;
mod durable;
mod error;
mod form;
mod head;
mod inbox;
mod key;
mod lease;
pub mod machine;
mod memory;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod migrate;
mod operator;
#[cfg(feature = "postgres")]
mod postgres;
mod record;
mod request;
#[cfg(any(feature = "seal", feature = "sqlite", feature = "postgres"))]
mod seal;
mod secret;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
mod settle;
mod signature;
#[cfg(feature = "sqlite")]
mod sqlite;
mod store;
#[cfg(feature = "test-util")]
pub mod testing;
mod time;

pub use crate::backoff::Backoff;
pub use crate::claim::{
    Claim, ClaimKind, ClaimOutcome, Failed, Failure, Held, LeasePolicy, Renewal, RetryGate,
};
pub use crate::delivery::{Delivery, DeliveryId, EventName, InvalidName};
pub use crate::durable::{DurableStore, TransactionalDurableStore};
pub use crate::error::{StoreError, StoreErrorKind};
pub use crate::form::FormError;
pub use crate::head::{BodyFormat, DeliveryHead, HeadError, header};
pub use crate::inbox::{
    Acquire, Acquired, Acquisition, Announcer, Backlog, Changes, Enqueue, EnqueueOutcome, Lane,
    Order, Retired, Unreadable,
};
pub use crate::key::{BusinessKey, ClaimKey, KeyError, Scope, Source};
pub use crate::lease::{Attempt, CancelAttempt, Fate, Lease};
pub use crate::machine::LeaseLost;
pub use crate::memory::MemoryStore;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use crate::migrate::Migrations;
pub use crate::operator::{AuditEntry, Retried, Retry};
#[cfg(feature = "postgres")]
pub use crate::postgres::PostgresStore;
pub use crate::record::{ClaimToken, ErrorClass, Record, State, UnknownState};
pub use crate::request::StoredRequest;
#[cfg(feature = "seal")]
pub use crate::seal::{SealKeyError, SealKeys};
pub use crate::secret::{Secret, SecretError, SecretSet, Secrets};
pub use crate::signature::{
    BodyVerifier, Fingerprint, Signature, SignatureError, SignatureErrorKind, SignedBody, Verified,
    Verifier,
};
#[cfg(feature = "sqlite")]
pub use crate::sqlite::SqliteStore;
pub use crate::store::{
    DeliveryStore, ListFilter, Position, Pruned, Retention, RetentionTooShort, Stats,
    TransactionalStore,
};
pub use crate::time::{Clock, SystemClock, Timestamp};

/// The README's snippets are compiled.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
