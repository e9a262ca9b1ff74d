//! What the examples share: where they listen, their secret, and one delivery to try them with.
#![allow(dead_code, reason = "each example uses a part of it")]

use std::fmt;
use std::future::Future;

use bytes::Bytes;
use hookclaim::testing::signed_headers;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use tokio::net::TcpListener;
use tower_hookclaim::OUTCOME_HEADER;
use uuid::Uuid;

pub(crate) type Result<T = ()> = std::result::Result<T, Problem>;

/// Published in GitHub's documentation, so everybody knows it: it is good for trying things out and for nothing else.
const DEMO_SECRET: &str = "It's a Secret to Everybody";
const BODY: &str = r#"{"action":"opened","issue":{"number":7,"title":"It works"}}"#;

/// One run of an example: it serves until it is stopped, or with the argument `try`, sends itself one delivery twice.
pub(crate) struct Demo {
    pub(crate) secret: String,
    /// The id of the delivery that `try` sends.
    pub(crate) delivery: String,
    trying: bool,
    url: String,
}

impl Demo {
    /// Reads the secret from `HOOKCLAIM_WEBHOOK_SECRET` and listens on `port`; with `try`, on a free one.
    pub(crate) async fn start(port: u16) -> Result<(Self, TcpListener)> {
        let trying = std::env::args().nth(1).is_some_and(|arg| arg == "try");
        let secret = match std::env::var("HOOKCLAIM_WEBHOOK_SECRET") {
            Ok(secret) => secret,
            Err(_) if trying => DEMO_SECRET.to_owned(),
            Err(_) => return Err("set HOOKCLAIM_WEBHOOK_SECRET, or append `-- try`".into()),
        };
        let listener = TcpListener::bind(("127.0.0.1", if trying { 0 } else { port })).await?;
        let demo = Self {
            secret,
            delivery: Uuid::new_v4().to_string(),
            trying,
            url: format!("http://{}", listener.local_addr()?),
        };
        Ok((demo, listener))
    }

    /// Lets `server` serve: to its end, or until the delivery was sent twice.
    pub(crate) async fn run<E>(
        &self,
        server: impl Future<Output = std::result::Result<(), E>>,
    ) -> Result
    where
        Problem: From<E>,
    {
        if !self.trying {
            self.say_what_to_try();
            return Ok(server.await?);
        }
        tokio::select! {
            ended = server => {
                ended?;
                Err("the server ended before it was tried".into())
            }
            tried = self.send_twice() => tried,
        }
    }

    /// Lets `server` store deliveries for a worker: to its end, or until one was sent and is done.
    pub(crate) async fn run_durable<E>(
        &self,
        server: impl Future<Output = std::result::Result<(), E>>,
    ) -> Result
    where
        Problem: From<E>,
    {
        if !self.trying {
            self.say_what_to_try();
            return Ok(server.await?);
        }
        tokio::select! {
            ended = server => {
                ended?;
                Err("the server ended before it was tried".into())
            }
            tried = self.send_until_done() => tried,
        }
    }

    pub(crate) fn is_trying(&self) -> bool {
        self.trying
    }

    /// Where this process listens.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// The first time over HTTP/1.1, the second over HTTP/2.
    async fn send_twice(&self) -> Result {
        for (http2, expected) in [(false, "completed"), (true, "duplicate")] {
            let outcome = self.send_to(&self.url, &self.delivery, http2).await?;
            if outcome != expected {
                return Err(format!("expected {expected}, not {outcome}").into());
            }
        }
        Ok(())
    }

    /// It is accepted at once, and a duplicate once it is done.
    async fn send_until_done(&self) -> Result {
        let mut outcome = self.send_to(&self.url, &self.delivery, false).await?;
        if outcome != "accepted" {
            return Err(format!("expected accepted, not {outcome}").into());
        }
        for _ in 0..60 {
            tokio::time::sleep(std::time::Duration::from_millis(500)).await;
            outcome = self.send_to(&self.url, &self.delivery, false).await?;
            if outcome == "duplicate" {
                return Ok(());
            }
        }
        Err(format!("it should be done by now, and is {outcome}").into())
    }

    /// Sends one delivery, signed, and says what came of it.
    pub(crate) async fn send_to(&self, url: &str, delivery: &str, http2: bool) -> Result<String> {
        let mut request = Request::post(format!("{url}/webhook")).body(Full::from(BODY))?;
        *request.headers_mut() =
            signed_headers(self.secret.as_bytes(), "issues", delivery, BODY.as_bytes());
        let client = Client::builder(TokioExecutor::new())
            .http2_only(http2)
            .build_http::<Full<Bytes>>();
        let (head, body) = client.request(request).await?.into_parts();
        let text = body.collect().await?.to_bytes();
        let outcome = head.headers.get(OUTCOME_HEADER);
        let outcome = outcome.ok_or("the answer carries no outcome")?.to_str()?;
        println!(
            "{:?}: {}, {outcome}: {}",
            head.version,
            head.status,
            String::from_utf8_lossy(&text)
        );
        Ok(outcome.to_owned())
    }

    fn say_what_to_try(&self) {
        let url = &self.url;
        println!(
            r#"listening on {url}/webhook. In a shell that has HOOKCLAIM_WEBHOOK_SECRET too, once or more often:

  body='{BODY}'
  digits=$(printf %s "$body" | openssl dgst -sha256 -hmac "$HOOKCLAIM_WEBHOOK_SECRET" -r | cut -d' ' -f1)
  curl -i {url}/webhook -H 'content-type: application/json' -H 'x-github-event: issues' \
    -H 'x-github-delivery: {}' -H "x-hub-signature-256: sha256=$digits" -d "$body"
"#,
            self.delivery
        );
    }
}

/// What stopped an example. `main` prints it by `Debug`, so that is what people read.
pub(crate) struct Problem(String);

impl fmt::Debug for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<E: Into<Box<dyn std::error::Error + Send + Sync>>> From<E> for Problem {
    fn from(error: E) -> Self {
        let error = error.into();
        let mut text = error.to_string();
        let mut cause = error.source();
        while let Some(error) = cause {
            text = format!("{text}: {error}");
            cause = error.source();
        }
        Self(text)
    }
}
