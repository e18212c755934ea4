//! The HTTP client with which a bench asks a mailrun sink or relay for its state, and announces its
//! run to a sink.
use crate::reason::reason;
use crate::start_wait::is_not_listening;
use anyhow::{Context, Result, anyhow, bail};
use axum::http::header::HOST;
use axum::http::uri::Authority;
use axum::http::{Method, Request};
use http_body_util::{BodyExt, Empty, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use std::error::Error;
use std::time::Duration;
use std::{fmt, io};
use tokio::net::TcpStream;
use tokio::runtime;
use tokio::time::timeout;

pub use axum::body::Bytes;
pub use axum::http::StatusCode;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_PORT: u16 = 80;

/// Client of one HTTP server. Ignores proxies in the environment, because the server is nearby.
#[derive(Clone, Debug)]
pub struct HttpClient {
    authority: Authority,
    /// Prefix of the paths of all requests, without a trailing slash.
    prefix: String,
    response_timeout: Duration,
    max_response_bytes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpAnswer {
    pub status: StatusCode,
    pub body: Bytes,
}

impl HttpClient {
    /// Creates a client for `HOST:PORT` or `http://HOST:PORT[/PREFIX]`. Does not connect yet.
    ///
    /// # Errors
    /// Fails if `base` has another scheme than `http`, or no valid host.
    pub fn new(base: &str, response_timeout: Duration, max_response_bytes: usize) -> Result<Self> {
        let rest = match base.split_once("://") {
            Some(("http", rest)) => rest,
            Some(_) => bail!("{base} is not an http:// address"),
            None => base,
        };
        let rest = rest.trim_end_matches('/');
        let (authority, prefix) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let authority = authority.parse().map_err(|_| anyhow!("{base} is not HOST:PORT"))?;
        Ok(Self { authority, prefix: prefix.to_owned(), response_timeout, max_response_bytes })
    }

    #[must_use]
    pub fn authority(&self) -> &str {
        self.authority.as_str()
    }

    /// Sends a GET request for `path` and waits for the whole answer. Returns an answer of any
    /// status, so the caller must check for errors such as 404.
    ///
    /// # Errors
    /// Returns an error if the server cannot be reached, takes too long, sends too much, or sends
    /// something other than HTTP.
    pub fn get(&self, path: &str) -> Result<HttpAnswer> {
        self.request(Method::GET, path)
    }

    /// Sends a PUT request without a body for `path` and waits for the whole answer.
    ///
    /// # Errors
    /// Fails under the same conditions as [`Self::get`].
    pub fn put(&self, path: &str) -> Result<HttpAnswer> {
        self.request(Method::PUT, path)
    }

    fn request(&self, method: Method, path: &str) -> Result<HttpAnswer> {
        let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let answer = runtime.block_on(async { timeout(self.response_timeout, self.exchange(method, path)).await });
        answer.with_context(|| format!("no answer within {:?}", self.response_timeout))?
    }

    /// Sends `count` requests for `path` one after another on one connection. Calls `begin` just before each request,
    /// for example to read a clock. When the answer arrives, calls `take` with the result of `begin` and the answer.
    ///
    /// # Errors
    /// Fails as [`Self::get`] does. The time limit covers all requests together.
    pub fn get_repeatedly<T>(
        &self,
        path: &str,
        count: u32,
        begin: impl Fn() -> T,
        mut take: impl FnMut(T, HttpAnswer),
    ) -> Result<()> {
        let runtime = runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
        let requests = async {
            let mut sender = self.handshake().await?;
            for _ in 0..count {
                let start = begin();
                take(start, self.ask(&mut sender, Method::GET, path).await?);
            }
            Ok(())
        };
        let outcome = runtime.block_on(async { timeout(self.response_timeout, requests).await });
        outcome.with_context(|| format!("no answer within {:?}", self.response_timeout))?
    }

    async fn exchange(&self, method: Method, path: &str) -> Result<HttpAnswer> {
        let mut sender = self.handshake().await?;
        self.ask(&mut sender, method, path).await
    }

    async fn handshake(&self) -> Result<SendRequest<Empty<Bytes>>> {
        let (sender, connection) = http1::handshake(TokioIo::new(self.connect().await?)).await?;
        // Ignore the task's result, because an error of the connection also fails the request.
        tokio::spawn(connection);
        Ok(sender)
    }

    async fn ask(&self, sender: &mut SendRequest<Empty<Bytes>>, method: Method, path: &str) -> Result<HttpAnswer> {
        let request = Request::builder().method(method).uri(format!("{}{path}", self.prefix));
        let request = request.header(HOST, self.authority.as_str());
        sender.ready().await?;
        let answer = sender.send_request(request.body(Empty::<Bytes>::new())?).await?;
        let status = answer.status();
        let body = Limited::new(answer.into_body(), self.max_response_bytes).collect().await;
        let body = body.map_err(|error| anyhow!("the answer cannot be read: {error}"))?;
        Ok(HttpAnswer { status, body: body.to_bytes() })
    }

    async fn connect(&self) -> Result<TcpStream> {
        let host = self.authority.host().trim_start_matches('[').trim_end_matches(']');
        let port = self.authority.port_u16().unwrap_or(DEFAULT_PORT);
        let stream = timeout(CONNECT_TIMEOUT, TcpStream::connect((host, port))).await;
        let stream = stream.with_context(|| format!("no connection within {CONNECT_TIMEOUT:?}"))?;
        stream.map_err(|error| ConnectError(error).into())
    }
}

/// The client could not connect to the server. The text of this error is the system's own, such as `Connection
/// refused`.
#[derive(Debug)]
struct ConnectError(io::Error);

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&reason(&self.0))
    }
}

impl Error for ConnectError {}

/// Returns true if nothing listens at the address of the server, for example because the server is
/// still starting.
pub fn is_refused(error: &anyhow::Error) -> bool {
    error.downcast_ref::<ConnectError>().is_some_and(|error| is_not_listening(&error.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener};
    use std::thread;

    /// Starts a server that sends these bytes to its first client after the client's request.
    fn answering(bytes: &'static [u8]) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        thread::spawn(move || {
            let (mut stream, _) = listener.accept().expect("a client");
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(bytes);
        });
        address
    }

    fn client(base: &str) -> HttpClient {
        HttpClient::new(base, Duration::from_secs(60), 8).expect("a base address")
    }

    #[test]
    fn status_and_body_are_those_of_the_server() {
        let address = answering(b"HTTP/1.1 404 No\r\nContent-Length: 3\r\n\r\nnot");
        let answer = client(&format!("http://{address}/")).get("/x").expect("an answer");
        assert_eq!((answer.status.as_u16(), &answer.body[..]), (404, &b"not"[..]));
    }

    #[test]
    fn too_long_cut_off_or_foreign_answers_are_errors() {
        for bytes in [
            &b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n123456789"[..],
            b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\n12",
            b"220 mail.example ESMTP\r\n",
            b"",
        ] {
            let answer = client(&answering(bytes).to_string()).get("/");
            assert!(answer.is_err(), "{answer:?}");
        }
    }

    #[test]
    fn a_server_that_says_nothing_is_given_up() {
        let silent = TcpListener::bind("127.0.0.1:0").expect("a port");
        let base = silent.local_addr().expect("an address").to_string();
        let client = HttpClient::new(&base, Duration::from_millis(50), 8).expect("a base address");
        let error = client.get("/").expect_err("it says nothing");
        assert!(error.to_string().starts_with("no answer within"), "{error}");
    }

    #[test]
    fn a_closed_port_is_named_in_the_words_of_the_system() {
        let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("an address");
        let error = client(&port.to_string()).get("/").expect_err("closed");
        assert_eq!((error.to_string().as_str(), is_refused(&error)), ("Connection refused", true));
    }

    #[test]
    fn only_http_addresses_are_taken() {
        let is_taken = |base| HttpClient::new(base, Duration::ZERO, 0).is_ok();
        assert!(is_taken("h:1") && is_taken("http://[::1]:8025/a/") && is_taken("http://h"));
        assert!(!is_taken("https://h") && !is_taken("http://") && !is_taken("") && !is_taken("a b"));
    }
}
