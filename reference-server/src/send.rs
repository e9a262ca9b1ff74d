//! `hookclaim send`: a delivery as GitHub would send it.

use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use hmac::{Hmac, KeyInit as _, Mac as _};
use http::header::{CONTENT_TYPE, USER_AGENT};
use http::{HeaderValue, Request, Uri};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use secrecy::ExposeSecret as _;
use sha2::Sha256;

use crate::cli::Send;
use crate::config::Config;
use crate::error::{Context as _, Error};
use crate::output::{print, printable};

/// Longer than the server takes in any mode; GitHub itself waits 10 s.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The most of an answer that is shown.
const MAX_ANSWER: usize = 64 * 1024;

pub(crate) async fn run(config: &Config, options: &Send) -> Result<(), Error> {
    let secret = config.secrets.signing()?.expose_secret().as_bytes();
    let url = target(options.url.as_deref(), config.listen)?;
    let body = read(&options.file)?;
    let event = match &options.event {
        Some(event) => event.clone(),
        None => guess_event(&body).ok_or_else(|| {
            Error::config("the payload does not tell its event; name it with --event")
        })?,
    };
    let delivery = match &options.delivery {
        Some(delivery) => delivery.clone(),
        None => uuid::Uuid::new_v4().to_string(),
    };
    let value = |text: &str, option| {
        HeaderValue::from_str(text)
            .map_err(|_| Error::config(format!("{option} has characters that no header can hold")))
    };
    let request = Request::post(&url)
        .header(USER_AGENT, concat!("hookclaim/", env!("CARGO_PKG_VERSION")))
        .header(CONTENT_TYPE, "application/json")
        .header(hookclaim::header::EVENT, value(&event, "--event")?)
        .header(hookclaim::header::DELIVERY, value(&delivery, "--delivery")?)
        .header(hookclaim::header::SIGNATURE, sign(secret, &body))
        .body(Full::new(body))
        .context("cannot build the request")?;
    eprintln!(
        "sending {} as delivery {}",
        printable(&event),
        printable(&delivery)
    );
    post(&url, request).await
}

async fn post(url: &Uri, request: Request<Full<Bytes>>) -> Result<(), Error> {
    let unreachable = || {
        format!("cannot reach {url}; is `hookclaim serve` running there? --url names another place")
    };
    let client = Client::builder(TokioExecutor::new()).build_http();
    let answer = async {
        let response = client.request(request).await.context(unreachable())?;
        let (head, body) = response.into_parts();
        // An answer that breaks off is shown as far as its status goes.
        let text = Limited::new(body, MAX_ANSWER).collect().await;
        Ok::<_, Error>((
            head,
            text.map(http_body_util::Collected::to_bytes)
                .unwrap_or_default(),
        ))
    };
    let (head, text) = tokio::time::timeout(TIMEOUT, answer)
        .await
        .map_err(|_| Error::failed(format!("{url} did not answer within {TIMEOUT:?}")))??;
    let outcome = head.headers.get("x-webhook-outcome");
    let outcome = outcome.and_then(|value| value.to_str().ok()).unwrap_or("-");
    let status = head.status.as_u16();
    let text = String::from_utf8_lossy(&text);
    let lines = text.lines().map(printable);
    print(&lines.fold(format!("{status} {outcome}\n"), |all, line| {
        format!("{all}{line}\n")
    }))?;
    if head.status.is_success() {
        Ok(())
    } else {
        Err(Error::failed(format!("{url} answered {status}")))
    }
}

fn read(file: &Path) -> Result<Bytes, Error> {
    if file == Path::new("-") {
        let mut body = Vec::new();
        std::io::stdin()
            .read_to_end(&mut body)
            .context("cannot read the payload from standard input")?;
        return Ok(body.into());
    }
    let body =
        std::fs::read(file).context(format!("cannot read the payload from {}", file.display()))?;
    Ok(body.into())
}

/// Where to send: the configured address, as seen from this machine, unless a URL is given.
fn target(url: Option<&str>, listen: SocketAddr) -> Result<Uri, Error> {
    let Some(url) = url else {
        if listen.port() == 0 {
            return Err(Error::config(
                "the server listens on a port of the system's choice; name it with --url",
            ));
        }
        let ip = match listen.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
            ip => ip,
        };
        let address = SocketAddr::new(ip, listen.port());
        return format!("http://{address}/webhook")
            .parse()
            .context("cannot build the server's URL");
    };
    let parsed: Uri = url.parse().map_err(|_| {
        Error::config(format!(
            "--url: `{url}` is not a URL; write one such as http://127.0.0.1:3000/webhook"
        ))
    })?;
    match parsed.scheme_str() {
        Some("http") if parsed.host().is_some() => Ok(parsed),
        Some("https") => Err(Error::config(
            "--url: https is not spoken here yet; send to the server's own address over http",
        )),
        _ => Err(Error::config(format!(
            "--url: `{url}` is not a whole URL; write one such as http://127.0.0.1:3000/webhook"
        ))),
    }
}

/// The event that a payload looks like.
fn guess_event(body: &[u8]) -> Option<String> {
    let payload: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(body).ok()?;
    let has = |names: &[&str]| names.iter().all(|name| payload.contains_key(*name));
    // From the special to the general: a comment's payload has its issue as well.
    let event = if has(&["zen", "hook"]) {
        "ping"
    } else if has(&["comment", "issue"]) {
        "issue_comment"
    } else if has(&["review", "pull_request"]) {
        "pull_request_review"
    } else if has(&["comment", "pull_request"]) {
        "pull_request_review_comment"
    } else if has(&["pull_request", "number"]) {
        "pull_request"
    } else if has(&["issue", "action"]) {
        "issues"
    } else if has(&["pusher", "after"]) {
        "push"
    } else if has(&["registry_package"]) {
        "registry_package"
    } else {
        return None;
    };
    Some(event.to_owned())
}

/// The value of `X-Hub-Signature-256`.
fn sign(secret: &[u8], body: &[u8]) -> String {
    let mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes a key of any length");
    let mac = mac.chain_update(body).finalize().into_bytes();
    format!("sha256={}", crate::hex(&mac))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signature_is_that_of_githubs_own_example() {
        assert_eq!(
            sign(b"It's a Secret to Everybody", b"Hello, World!"),
            "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
        );
    }

    #[test]
    fn the_event_is_read_off_the_payload_where_that_is_safe() {
        let rows: [(&[u8], Option<&str>); 6] = [
            (
                include_bytes!("../fixtures/issue_comment.created.json"),
                Some("issue_comment"),
            ),
            (include_bytes!("../fixtures/ping.json"), Some("ping")),
            (include_bytes!("../fixtures/push.json"), Some("push")),
            (b"{\"action\":\"opened\",\"issue\":{}}", Some("issues")),
            (b"{}", None),
            (b"not json", None),
        ];
        for (body, event) in rows {
            assert_eq!(guess_event(body).as_deref(), event);
        }
    }

    #[test]
    fn the_target_is_the_configured_address_as_seen_from_here() {
        let rows = [
            ("127.0.0.1:3000", "http://127.0.0.1:3000/webhook"),
            ("0.0.0.0:80", "http://127.0.0.1:80/webhook"),
            ("[::]:3000", "http://[::1]:3000/webhook"),
        ];
        for (listen, url) in rows {
            let target = target(None, listen.parse().unwrap()).unwrap();
            assert_eq!(target.to_string(), url);
        }
        let listen: SocketAddr = "127.0.0.1:0".parse().unwrap();
        assert!(target(None, listen).is_err());
        for url in ["https://x/webhook", "/webhook", "x", "ftp://x/", ""] {
            assert_eq!(
                target(Some(url), listen).unwrap_err().exit_code(),
                2,
                "{url}"
            );
        }
        assert!(target(Some("http://x:1/hook"), listen).is_ok());
    }
}
