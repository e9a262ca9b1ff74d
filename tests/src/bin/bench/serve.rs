//! P4: a server that verifies against one that only reads, on one core each in turn.

use std::io::BufRead as _;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use axum::Router;
use axum::routing::post;
use bytes::Bytes;
use hookclaim::testing::signed_headers;
use hookclaim::{MemoryStore, SecretSet};
use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper_util::rt::TokioIo;
use tokio::net::{TcpListener, TcpStream};
use tower_hookclaim::GithubWebhookLayer;

use super::layer::{SECRET, payload};
use super::method::{Report, pairs, process_cpu};

const CONNECTIONS: usize = 32;
const WINDOW: Duration = Duration::from_secs(2);

/// The server's side: this very program, as a process of its own.
pub(crate) fn server(kind: &str) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let handler = post(|_: Bytes| async { "ok" }).layer(axum::extract::DefaultBodyLimit::disable());
    let layer = GithubWebhookLayer::new(
        SecretSet::single(SECRET).expect("a secret"),
        MemoryStore::new(),
    );
    let app = match kind {
        "bare" => Router::new().route("/webhook", handler),
        // No event is on the list: verified, and answered then.
        "verifying" => Router::new().route("/webhook", handler.layer(layer.events(["none"]))),
        _ => Router::new().route("/webhook", handler.layer(layer)),
    };
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("an address"));
        axum::serve(listener, app).await.expect("serving");
    });
}

struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(kind: &str) -> Self {
        let program = std::env::current_exe().expect("this has a path");
        let mut child = Command::new("taskset")
            .args(["-c", "0"])
            .arg(program)
            .args(["serve", kind])
            .stdout(Stdio::piped())
            .spawn()
            .expect("taskset can be run");
        let mut address = String::new();
        let stdout = child.stdout.as_mut().expect("it is piped");
        std::io::BufReader::new(stdout)
            .read_line(&mut address)
            .expect("it says its address");
        Self {
            child,
            address: address.trim().to_owned(),
        }
    }

    /// Requests per second, and the server's CPU time for each in µs.
    fn load(&self, body: &Bytes) -> (f64, f64) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let done = Arc::new(AtomicU64::new(0));
        let headers = signed_headers(SECRET, "issue_comment", "template", body);
        let before = process_cpu(self.child.id());
        let begin = Instant::now();
        runtime.block_on(async {
            let end = begin + WINDOW;
            let callers: Vec<_> = (0..CONNECTIONS)
                .map(|_| {
                    tokio::spawn(call(
                        self.address.clone(),
                        headers.clone(),
                        body.clone(),
                        Arc::clone(&done),
                        end,
                    ))
                })
                .collect();
            for caller in callers {
                caller.await.expect("no panic");
            }
        });
        let took = begin.elapsed().as_secs_f64();
        let requests = done.load(Ordering::Relaxed) as f64;
        (
            requests / took,
            (process_cpu(self.child.id()) - before) * 1e6 / requests,
        )
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(super) async fn call(
    address: String,
    headers: HeaderMap,
    body: Bytes,
    done: Arc<AtomicU64>,
    end: Instant,
) {
    let stream = TcpStream::connect(&address)
        .await
        .expect("the server listens");
    stream.set_nodelay(true).expect("a socket");
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream))
            .await
            .expect("HTTP");
    tokio::spawn(connection);
    while Instant::now() < end {
        let mut request = Request::post("/webhook")
            .body(Full::new(body.clone()))
            .expect("a request");
        *request.headers_mut() = headers.clone();
        request
            .headers_mut()
            .insert("host", "localhost".parse().expect("a header"));
        let id = hookclaim_tests::http::guid();
        request
            .headers_mut()
            .insert("x-github-delivery", id.parse().expect("a header"));
        let response = sender.send_request(request).await.expect("an answer");
        assert!(response.status().is_success());
        response.into_body().collect().await.expect("a body");
        done.fetch_add(1, Ordering::Relaxed);
    }
}

pub(crate) fn throughput(report: &mut Report) {
    let body = payload(8 * 1024);
    for (kind, id, what, goal) in [
        (
            "verifying",
            "P4",
            "requests/s, verifying server / bare axum, 8 KiB, one core",
            "≥ 0.72",
        ),
        (
            "claiming",
            "",
            "  the same, claimed in the memory store and handled",
            "",
        ),
    ] {
        let bare = Server::start("bare");
        let server = Server::start(kind);
        let mut cpu = (Vec::new(), Vec::new());
        let measured = pairs(
            "requests/s",
            || {
                let (rate, each) = bare.load(&body);
                cpu.0.push(each);
                rate
            },
            || {
                let (rate, each) = server.load(&body);
                cpu.1.push(each);
                rate
            },
        );
        report.ratio(id, what, goal, &measured);
        let (base, each) = (super::method::median(cpu.0), super::method::median(cpu.1));
        report.add(
            "",
            "  CPU per request, bare / that",
            format!("{:.3}", base / each),
            "",
            format!("{base:.1} → {each:.1} µs"),
        );
    }
}
