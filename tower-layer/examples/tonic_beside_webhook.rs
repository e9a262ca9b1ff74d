//! A tonic server that takes webhooks on one path; every other request, streams included, passes untouched.
//!
//! Try it, without any configuration (it sends itself one delivery twice, and asks the gRPC health service):
//!
//! ```text
//! cargo run -p tower-hookclaim --example tonic_beside_webhook -- try
//! ```
//!
//! Serve on 127.0.0.1:3003 until stopped; it prints what to send:
//!
//! ```text
//! HOOKCLAIM_WEBHOOK_SECRET=choose-something-long cargo run -p tower-hookclaim --example tonic_beside_webhook
//! ```

mod support;

use std::convert::Infallible;

use bytes::Bytes;
use hookclaim::{Delivery, MemoryStore, SecretSet};
use http::{Request, Response};
use http_body_util::Full;
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Endpoint, Server};
use tonic_health::ServingStatus;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;
use tower::{Layer as _, service_fn};
use tower_hookclaim::{GithubWebhookLayer, WebhookRoute};

use support::Demo;

async fn on_delivery(request: Request<Full<Bytes>>) -> Result<Response<Full<Bytes>>, Infallible> {
    let delivery: &Delivery = request.extensions().get().expect("the layer puts it there");
    let text = format!("{} in {} bytes", delivery.event(), delivery.raw().len());
    Ok(Response::new(Full::from(text)))
}

#[tokio::main]
async fn main() -> support::Result {
    let (demo, listener) = Demo::start(3003).await?;
    let address = listener.local_addr()?;

    let (reporter, health) = tonic_health::server::health_reporter();
    reporter
        .set_service_status("pairing", ServingStatus::Serving)
        .await;
    let webhook = GithubWebhookLayer::new(SecretSet::single(&demo.secret)?, MemoryStore::new())
        .layer(service_fn(on_delivery));
    let server = Server::builder()
        // gRPC is HTTP/2 alone, and so is tonic unless told otherwise; webhooks come over HTTP/1.1 as well.
        .accept_http1(true)
        .layer(WebhookRoute::layer("/webhook", webhook))
        .add_service(health)
        .serve_with_incoming(TcpIncoming::from(listener));
    let server = tokio::spawn(server);
    demo.run(async { support::Result::Ok(server.await??) })
        .await?;

    let channel = Endpoint::new(format!("http://{address}"))?
        .connect()
        .await?;
    let mut client = HealthClient::new(channel);
    let request = HealthCheckRequest {
        service: "pairing".to_owned(),
    };
    let answer = client.check(request).await?;
    println!("gRPC: {:?}", answer.into_inner().status());
    Ok(())
}
