//! The layer on plain hyper, over HTTP/1.1 and HTTP/2 without TLS, and a shutdown that loses nothing.
//!
//! Try it, without any configuration (it sends itself one delivery twice):
//!
//! ```text
//! cargo run -p tower-hookclaim --example inline_hyper -- try
//! ```
//!
//! Serve on 127.0.0.1:3002 until Ctrl-C; it prints what to send:
//!
//! ```text
//! HOOKCLAIM_WEBHOOK_SECRET=choose-something-long cargo run -p tower-hookclaim --example inline_hyper
//! ```

mod support;

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use hookclaim::{Attempt, Delivery, MemoryStore, SecretSet};
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};
use tower::{Layer as _, service_fn};
use tower_hookclaim::{Drain, GithubWebhookLayer, WebhookRoute};

use support::Demo;

/// How long what runs may take to finish at the end.
const GRACE: Duration = Duration::from_secs(25);

type Answer = Result<Response<Full<Bytes>>, Infallible>;

async fn on_delivery(request: Request<Full<Bytes>>) -> Answer {
    let there = "the layer puts it there";
    let delivery: &Delivery = request.extensions().get().expect(there);
    let attempt: &Attempt = request.extensions().get().expect(there);
    let text = format!("{}, attempt {}", delivery.event(), attempt.number());
    Ok(Response::new(Full::from(text)))
}

async fn everything_else(_: Request<Incoming>) -> Answer {
    let mut answer = Response::new(Full::from("there is nothing here"));
    *answer.status_mut() = StatusCode::NOT_FOUND;
    Ok(answer)
}

async fn serve(listener: TcpListener, secrets: SecretSet) -> support::Result {
    let drain = Drain::new();
    let webhook = GithubWebhookLayer::new(secrets, MemoryStore::new())
        .drain(&drain)
        .layer(service_fn(on_delivery));
    let service = WebhookRoute::new("/webhook", webhook, service_fn(everything_else));

    let mut http = auto::Builder::new(TokioExecutor::new());
    // With a timer hyper bounds how long the head of a request may take, which no layer can.
    http.http1().timer(TokioTimer::new());
    http.http2().timer(TokioTimer::new());
    let connections = GracefulShutdown::new();
    let mut stop = std::pin::pin!(tokio::signal::ctrl_c());
    loop {
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    // Too many open files, most likely: that passes.
                    eprintln!("cannot accept a connection: {error}");
                    sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            stopped = &mut stop => break stopped?,
        };
        let service = TowerToHyperService::new(service.clone());
        let connection = http.serve_connection(TokioIo::new(stream), service);
        let connection = connections.watch(connection.into_owned());
        // A connection that breaks is the client's affair.
        tokio::spawn(async move { connection.await.ok() });
    }

    drop(listener);
    drain.begin();
    // Attempts may outlive their connections, hence two things to wait for.
    let finished = async { tokio::join!(connections.shutdown(), drain.idle()) };
    if timeout(GRACE, finished).await.is_err() {
        drain.hand_back();
        drain.idle().await;
    }
    Ok(())
}

#[tokio::main]
async fn main() -> support::Result {
    let (demo, listener) = Demo::start(3002).await?;
    let secrets = SecretSet::single(&demo.secret)?;
    demo.run(serve(listener, secrets)).await
}
