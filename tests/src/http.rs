//! Signed requests, a client, and raw bytes on a socket.

use std::convert::Infallible;
use std::time::Duration;

use bytes::Bytes;
use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::{Method, Request, StatusCode};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use hookclaim::testing::signed_headers;

use crate::DEADLINE;

/// The error of a body in a test.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The body of a test's request.
pub type Body = BoxBody<Bytes, BoxError>;

/// A delivery as GitHub would send it, to be changed and sent.
#[derive(Clone, Debug)]
pub struct Signed {
    method: Method,
    headers: HeaderMap,
    body: Bytes,
}

/// A delivery with the headers that GitHub sends, signed with `secret`.
#[must_use]
pub fn signed(secret: impl AsRef<[u8]>, event: &str, guid: &str, body: impl Into<Bytes>) -> Signed {
    let body = body.into();
    Signed {
        method: Method::POST,
        headers: signed_headers(secret.as_ref(), event, guid, &body),
        body,
    }
}

/// A delivery id that nobody used before.
#[must_use]
pub fn guid() -> String {
    uuid::Uuid::new_v4().to_string()
}

impl Signed {
    /// Sets a header, in the place of any that are there.
    ///
    /// # Panics
    ///
    /// If it cannot be a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<HeaderName>, value: impl AsRef<[u8]>) -> Self {
        self.headers.insert(name.into(), header_value(value));
        self
    }

    /// Adds a header beside any that are there.
    ///
    /// # Panics
    ///
    /// If it cannot be a header.
    #[must_use]
    pub fn and_header(mut self, name: impl Into<HeaderName>, value: impl AsRef<[u8]>) -> Self {
        self.headers.append(name.into(), header_value(value));
        self
    }

    /// Removes a header.
    #[must_use]
    pub fn without(mut self, name: impl Into<HeaderName>) -> Self {
        self.headers.remove(name.into());
        self
    }

    /// Sets the method.
    #[must_use]
    pub fn method(mut self, method: Method) -> Self {
        self.method = method;
        self
    }

    /// Sets the body after it was signed.
    #[must_use]
    pub fn forged_body(mut self, body: impl Into<Bytes>) -> Self {
        self.body = body.into();
        self
    }

    /// The headers.
    #[must_use]
    pub fn headers(&self) -> &HeaderMap {
        &self.headers
    }

    /// The body.
    #[must_use]
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The request to `uri`, whose body is of the type that the test wants.
    ///
    /// # Panics
    ///
    /// If `uri` is none.
    #[must_use]
    pub fn request<B>(&self, uri: &str, body: B) -> Request<B> {
        let mut request = Request::new(body);
        *request.method_mut() = self.method.clone();
        *request.uri_mut() = uri.parse().expect("a URI");
        *request.headers_mut() = self.headers.clone();
        request
    }

    /// The request to `uri` with its whole body.
    #[must_use]
    pub fn to(&self, uri: &str) -> Request<Full<Bytes>> {
        self.request(uri, Full::new(self.body.clone()))
    }

    /// The request line and headers as text, without the empty line at the end and without anything that tells the
    /// body's length, so that a test can lie about it.
    ///
    /// # Panics
    ///
    /// If a header is not text.
    #[must_use]
    pub fn raw_head(&self, path: &str) -> String {
        let mut head = format!("{} {path} HTTP/1.1\r\nhost: localhost\r\n", self.method);
        for (name, value) in &self.headers {
            head.push_str(name.as_str());
            head.push_str(": ");
            head.push_str(value.to_str().expect("the header is text"));
            head.push_str("\r\n");
        }
        head
    }
}

fn header_value(value: impl AsRef<[u8]>) -> HeaderValue {
    HeaderValue::from_bytes(value.as_ref()).expect("a header value")
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The status.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The body.
    pub text: String,
}

impl Answer {
    /// `x-webhook-outcome`, or nothing.
    ///
    /// # Panics
    ///
    /// If it is there more than once.
    #[must_use]
    pub fn outcome(&self) -> &str {
        let mut values = self.headers.get_all("x-webhook-outcome").iter();
        let first = values.next();
        assert!(values.next().is_none(), "one outcome: {self:?}");
        first.and_then(|value| value.to_str().ok()).unwrap_or("")
    }

    /// Status and outcome, to be compared in one go.
    #[must_use]
    pub fn is(&self) -> (u16, &str) {
        (self.status.as_u16(), self.outcome())
    }
}

/// An HTTP client.
#[derive(Clone, Debug)]
pub struct Client(legacy::Client<HttpConnector, Body>);

impl Client {
    /// One that speaks HTTP/1.1.
    #[must_use]
    pub fn http1() -> Self {
        Self(legacy::Client::builder(TokioExecutor::new()).build_http())
    }

    /// One that speaks HTTP/2 without an upgrade.
    #[must_use]
    pub fn http2() -> Self {
        Self(
            legacy::Client::builder(TokioExecutor::new())
                .http2_only(true)
                .build_http(),
        )
    }

    /// Sends a request and reads the whole answer.
    ///
    /// # Errors
    ///
    /// If there is no answer, or it breaks off.
    ///
    /// # Panics
    ///
    /// If it takes longer than [`DEADLINE`].
    pub async fn try_send<B>(&self, request: Request<B>) -> Result<Answer, BoxError>
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Sync + 'static,
    {
        let request = request.map(|body| body.map_err(Into::into).boxed());
        let exchange = async {
            let (head, body) = self.0.request(request).await?.into_parts();
            let body = body.collect().await?.to_bytes();
            Ok(Answer {
                status: head.status,
                headers: head.headers,
                text: String::from_utf8_lossy(&body).into_owned(),
            })
        };
        tokio::time::timeout(DEADLINE, exchange)
            .await
            .expect("the server answers at all")
    }

    /// Sends a request that is answered.
    ///
    /// # Panics
    ///
    /// If it is not.
    pub async fn send<B>(&self, request: Request<B>) -> Answer
    where
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Sync + 'static,
    {
        self.try_send(request).await.expect("the server answers")
    }

    /// Sends a delivery.
    ///
    /// # Panics
    ///
    /// If it is not answered.
    pub async fn deliver(&self, uri: &str, delivery: &Signed) -> Answer {
        self.send(delivery.to(uri)).await
    }

    /// Gets a page.
    ///
    /// # Panics
    ///
    /// If it is not answered.
    pub async fn get(&self, uri: &str) -> Answer {
        let request = Request::get(uri).body(Full::<Bytes>::default());
        self.send(request.expect("a URI")).await
    }
}

/// A connection on which a test writes exactly the bytes that it wants.
#[derive(Debug)]
pub struct RawConnection(TcpStream);

impl RawConnection {
    /// Connects to the host and port of `url`.
    ///
    /// # Panics
    ///
    /// If nobody listens there.
    pub async fn open(url: &str) -> Self {
        let authority = url
            .strip_prefix("http://")
            .unwrap_or(url)
            .split('/')
            .next()
            .unwrap_or_default();
        let stream = TcpStream::connect(authority).await.expect("it listens");
        stream.set_nodelay(true).expect("a socket");
        Self(stream)
    }

    /// Writes bytes.
    ///
    /// # Errors
    ///
    /// If the server has closed the connection.
    pub async fn write(&mut self, bytes: impl AsRef<[u8]>) -> std::io::Result<()> {
        self.0.write_all(bytes.as_ref()).await?;
        self.0.flush().await
    }

    /// Reads until there is a whole answer with a `content-length`, or until the server closes the connection.
    /// Nothing means that it closed it without a word.
    ///
    /// # Panics
    ///
    /// If neither happens within [`DEADLINE`].
    pub async fn answer(&mut self) -> Option<Answer> {
        read_answer(&mut self.0).await
    }

    /// The same without a deadline, for connections that are meant to wait.
    pub async fn try_answer(&mut self) -> Option<Answer> {
        read_to_answer(&mut self.0).await
    }

    /// Waits until the server closes the connection, and throws away what it says until then.
    ///
    /// # Panics
    ///
    /// If that takes longer than [`DEADLINE`].
    pub async fn closed(&mut self) {
        let read = async {
            let mut piece = [0; 4096];
            while matches!(self.0.read(&mut piece).await, Ok(1..)) {}
        };
        tokio::time::timeout(DEADLINE, read)
            .await
            .expect("the server hangs up");
    }

    /// Hangs up with a reset rather than a farewell, as a machine that loses power.
    ///
    /// # Panics
    ///
    /// If the socket is none.
    pub fn hang_up(self) {
        self.0.set_zero_linger().expect("a socket");
    }
}

/// The answer to bytes that a test wrote, on a connection of its own.
///
/// # Panics
///
/// As for [`RawConnection`].
pub async fn raw(url: &str, bytes: impl AsRef<[u8]>) -> Option<Answer> {
    let mut connection = RawConnection::open(url).await;
    // The server may have answered and hung up before all of it was written.
    let _ = connection.write(bytes).await;
    connection.answer().await
}

/// Writes `pieces` with `pause` between them until the server answers or hangs up.
///
/// # Panics
///
/// As for [`RawConnection`].
pub async fn trickle(
    url: &str,
    pieces: impl IntoIterator<Item = impl AsRef<[u8]>>,
    pause: Duration,
) -> Option<Answer> {
    let stream = RawConnection::open(url).await.0;
    let (mut reader, mut writer) = stream.into_split();
    let write = async {
        for piece in pieces {
            if writer.write_all(piece.as_ref()).await.is_err() {
                break;
            }
            tokio::time::sleep(pause).await;
        }
        std::future::pending::<Infallible>().await
    };
    tokio::select! {
        answer = read_answer(&mut reader) => answer,
        never = write => match never {},
    }
}

async fn read_answer(stream: &mut (impl AsyncRead + Unpin)) -> Option<Answer> {
    tokio::time::timeout(DEADLINE, read_to_answer(stream))
        .await
        .expect("the server answers or hangs up")
}

async fn read_to_answer(stream: &mut (impl AsyncRead + Unpin)) -> Option<Answer> {
    let mut bytes = Vec::new();
    loop {
        if let Some(answer) = parse(&bytes, false) {
            return Some(answer);
        }
        let mut piece = [0; 4096];
        match stream.read(&mut piece).await {
            Ok(0) | Err(_) => return parse(&bytes, true),
            Ok(len) => bytes.extend_from_slice(&piece[..len]),
        }
    }
}

fn parse(bytes: &[u8], closed: bool) -> Option<Answer> {
    let end = bytes.windows(4).position(|window| window == b"\r\n\r\n")?;
    let head = std::str::from_utf8(&bytes[..end]).expect("an answer's head is text");
    let body = &bytes[end + 4..];
    let mut lines = head.split("\r\n");
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    if status == StatusCode::CONTINUE {
        return parse(body, closed);
    }
    let mut headers = HeaderMap::new();
    for line in lines {
        let (name, value) = line.split_once(':').expect("a header has a colon");
        headers.append(
            HeaderName::from_bytes(name.as_bytes()).expect("a header name"),
            header_value(value.trim()),
        );
    }
    let len = headers
        .get("content-length")
        .and_then(|len| len.to_str().ok()?.parse::<usize>().ok());
    let bodiless = status == StatusCode::NO_CONTENT;
    if !closed && !bodiless && len.is_none_or(|len| body.len() < len) {
        return None;
    }
    Some(Answer {
        status,
        headers,
        text: String::from_utf8_lossy(body).into_owned(),
    })
}
