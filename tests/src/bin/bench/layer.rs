//! P1 to P3: the layer against the HMAC that it cannot do without.

use std::convert::Infallible;
use std::process::Command;
use std::time::Duration;

use bytes::Bytes;
use hookclaim::testing::signed_headers;
use hookclaim::{MemoryStore, SecretSet};
use http::{Request, Response};
use http_body::Body;
use http_body_util::{Empty, Full, StreamBody};
use tower::{Layer, Service, service_fn};
use tower_hookclaim::GithubWebhookLayer;

use super::method::{Report, pairs, thread_cpu};

pub(crate) const SECRET: &[u8] = b"a secret of thirty-two bytes, so";

/// A payload of this many bytes.
pub(crate) fn payload(len: usize) -> Bytes {
    let mut text =
        String::from(r#"{"action":"created","comment":{"body":"/log 1h30m pairing"},"filler":""#);
    let filler = "Lorem ipsum dolor sit amet, consetetur sadipscing elitr. ";
    while text.len() + 2 < len {
        text.push_str(&filler[..filler.len().min(len - 2 - text.len())]);
    }
    text.push_str("\"}");
    text.into()
}

/// CPU time per body of hashing alone: the same library, the same frames.
fn raw(body: &Bytes, frame: usize, bodies: usize) -> f64 {
    use hmac::{Hmac, KeyInit, Mac};
    let keyed = Hmac::<sha2::Sha256>::new_from_slice(SECRET).expect("any length");
    let begin = thread_cpu();
    for _ in 0..bodies {
        let mut mac = keyed.clone();
        for piece in body.chunks(frame) {
            mac.update(piece);
        }
        std::hint::black_box(mac.finalize());
    }
    per(begin, bodies)
}

fn per(begin: Duration, bodies: usize) -> f64 {
    (thread_cpu() - begin).as_secs_f64() * 1e6 / bodies as f64
}

/// CPU time per request of the layer around a handler that does nothing.
fn layered<B>(event: &str, body: &Bytes, bodies: usize, wrap: impl Fn(&Bytes) -> B) -> f64
where
    B: Body<Data = Bytes> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let inner = service_fn(|_: Request<Full<Bytes>>| async {
        Ok::<_, Infallible>(Response::new(Empty::<Bytes>::new()))
    });
    let secrets = SecretSet::single(SECRET).expect("a secret");
    let mut service = GithubWebhookLayer::new(secrets, MemoryStore::new()).layer(inner);
    let headers = signed_headers(SECRET, event, "template", body);
    let requests: Vec<Request<B>> = (0..bodies)
        .map(|number| {
            let mut request = Request::post("/webhook")
                .body(wrap(body))
                .expect("a request");
            *request.headers_mut() = headers.clone();
            let id = format!("{number:08x}-cc78-11e3-81ab-4c9367dc0958");
            request
                .headers_mut()
                .insert("x-github-delivery", id.parse().expect("a header"));
            request
        })
        .collect();
    runtime.block_on(async {
        let begin = thread_cpu();
        for request in requests {
            let response = service.call(request).await.expect("infallible");
            assert!(response.status().is_success());
        }
        per(begin, bodies)
    })
}

fn frames(body: &Bytes) -> impl Body<Data = Bytes, Error = Infallible> + Send + use<> {
    let body = body.clone();
    let pieces = (0..body.len()).step_by(FRAME).map(move |at| {
        let end = (at + FRAME).min(body.len());
        Ok(http_body::Frame::data(body.slice(at..end)))
    });
    StreamBody::new(Iter(pieces))
}

const FRAME: usize = 16 * 1024;

/// A stream that is always ready.
struct Iter<I>(I);

impl<I: Iterator + Unpin> futures_core::Stream for Iter<I> {
    type Item = I::Item;

    fn poll_next(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<I::Item>> {
        std::task::Poll::Ready(self.0.next())
    }
}

pub(crate) fn cost(report: &mut Report) {
    let small = payload(8 * 1024);
    let one = |event| {
        pairs(
            "µs/delivery",
            || raw(&small, usize::MAX, 4000),
            || layered(event, &small, 4000, |body| Full::new(body.clone())),
        )
    };
    report.ratio(
        "P1",
        "layer's CPU / HMAC, 8 KiB in one frame, verified",
        "≤ 1.05",
        &one("ping"),
    );
    report.ratio(
        "",
        "  the same, claimed in the memory store and handled",
        "",
        &one("issue_comment"),
    );
    let large = payload(1024 * 1024);
    let many = |event| {
        pairs(
            "µs/delivery",
            || raw(&large, FRAME, 60),
            || layered(event, &large, 60, frames),
        )
    };
    report.ratio(
        "P2",
        "layer's CPU / HMAC, 1 MiB in frames of 16 KiB, verified",
        "≤ 1.08",
        &many("ping"),
    );
    report.ratio(
        "",
        "  the same, claimed in the memory store and handled",
        "",
        &many("issue_comment"),
    );
}

pub(crate) fn allocations(report: &mut Report) {
    let counter = std::env::current_exe()
        .expect("this has a path")
        .with_file_name("allocations");
    let output = Command::new(&counter).output();
    let Ok(output) = output else {
        eprintln!(
            "bench: build the counter first: cargo build --release -p hookclaim-tests --bin allocations"
        );
        return;
    };
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let (what, count) = line.rsplit_once(' ').unwrap_or((line, "?"));
        report.add("P3", what, count.to_owned(), "", String::new());
    }
}
