//! The HTTP server of the relay and the sink. It runs on one thread, limits the number and duration of connections, and
//! checks the host name in each request.
//!
//! An attacker who can reach the port could open connections, send nothing, and so use up all file descriptors. There
//! are therefore at most [`CONNECTION_LIMIT`] connections, and a further connection closes the oldest. A new client can
//! always connect, but loses its connection if the attacker then opens [`CONNECTION_LIMIT`] further connections.
//!
//! A web page in a browser can make its own domain name point to this host (DNS rebinding) and then read the answers of
//! this server. The requests of such a page name the page's domain as their host. The server therefore answers only
//! requests for an IP address, for `localhost`, for this host's own name or for its configured names.
use anyhow::{Context, Result};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::uri::Authority;
use axum::http::{StatusCode, Version, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// Maximum number of concurrent connections. A further connection displaces the oldest.
pub const CONNECTION_LIMIT: usize = 64;
/// Time limit for receiving a request's header, and for the pause between two requests.
const HEADER_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit for receiving a request's body and computing the answer.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// A client that has read nothing of an answer for this long is disconnected.
const UNREAD_TIMEOUT: Duration = Duration::from_secs(30);
/// Pause before the next try if a connection could not be accepted because there are no free file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
const MAX_HEADER_BYTES: usize = 64 << 10;
/// Maximum number of threads for the blocking work of requests. Further work waits until one of them is free.
const MAX_BLOCKING_THREADS: usize = 4;

/// Names that requests may use for this server. IP addresses are always allowed.
#[derive(Clone, Debug, Default)]
pub struct HostNames(Vec<String>);

impl HostNames {
    /// Allows requests to use `names`, this host's own name and `localhost`.
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> Self {
        let own = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let names = names.into_iter().map(normalized).chain([normalized(&own), "localhost".to_owned()]);
        Self(names.filter(|name| !name.is_empty()).collect())
    }

    /// Returns true if a request's authority is an IP address or one of this server's names.
    fn contain(&self, authority: &Authority) -> bool {
        address(authority).is_some() || self.0.contains(&normalized(authority.host()))
    }

    /// Checks that a request is meant for this server. A request with HTTP/1.0 may lack `Host`. This is safe, because
    /// browsers do not use that version.
    ///
    /// # Errors
    /// Returns 400 if `Host` is missing, repeated or malformed (RFC 9112, section 3.2), and 421 if
    /// it names another server.
    fn check(&self, request: &Request) -> Result<(), StatusCode> {
        let hosts: Vec<_> = request.headers().get_all(header::HOST).iter().collect();
        let host = match hosts[..] {
            [host] => Some(host.to_str().ok().and_then(valid_authority).ok_or(StatusCode::BAD_REQUEST)?),
            [] if request.version() < Version::HTTP_11 => None,
            _ => return Err(StatusCode::BAD_REQUEST),
        };
        let target = match request.uri().authority() {
            Some(target) => Some(valid_authority(target.as_str()).ok_or(StatusCode::BAD_REQUEST)?),
            None => None,
        };
        match host.iter().chain(&target).all(|authority| self.contain(authority)) {
            true => Ok(()),
            false => Err(StatusCode::MISDIRECTED_REQUEST),
        }
    }
}

/// Parses the value of `Host`: a name or an address, optionally followed by a port.
fn valid_authority(text: &str) -> Option<Authority> {
    let authority: Authority = text.parse().ok()?;
    let (host, port) = (authority.host(), text.strip_prefix(authority.host())?);
    let is_host = !host.is_empty() && (!host.starts_with('[') || address(&authority).is_some());
    let is_port = port.is_empty()
        || port.strip_prefix(':').is_some_and(|digits| digits.bytes().all(|digit| digit.is_ascii_digit()));
    (is_host && is_port).then_some(authority)
}

fn address(authority: &Authority) -> Option<IpAddr> {
    let host = authority.host();
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(host) => host.parse().ok().map(IpAddr::V6),
        None => host.parse().ok(),
    }
}

/// Prepares a name for comparison: converts it to lower case and removes the trailing dot.
fn normalized(name: &str) -> String {
    name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase()
}

#[derive(Debug, Default)]
pub struct HttpCounters {
    /// Connections that were closed to make room for newer ones.
    pub displaced: AtomicU64,
    /// Requests that were refused because they named another server.
    pub misdirected: AtomicU64,
}

/// Serves `routes` on `address` until the process ends. Returns the address with the port that the
/// kernel has chosen if the given port is 0.
///
/// # Errors
/// Fails if the server cannot listen on `address`, or if its thread cannot be started.
pub fn serve(
    address: SocketAddr,
    names: HostNames,
    counters: &Arc<HttpCounters>,
    routes: Router,
) -> Result<SocketAddr> {
    let listener = mailrun_net::listener::listen(address)?;
    let address = listener.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(MAX_BLOCKING_THREADS)
        .build()
        .context("cannot serve HTTP")?;
    let guard = RequestGuard { names, counters: Arc::clone(counters) };
    let routes = routes.layer(middleware::from_fn_with_state(Arc::new(guard), answer));
    let counters = Arc::clone(counters);
    std::thread::Builder::new()
        .name("http".to_owned())
        .spawn(move || runtime.block_on(accept(listener, &routes, &counters)))?;
    Ok(address)
}

struct RequestGuard {
    names: HostNames,
    counters: Arc<HttpCounters>,
}

async fn answer(State(guard): State<Arc<RequestGuard>>, request: Request, next: Next) -> Response {
    if let Err(status) = guard.names.check(&request) {
        if status != StatusCode::MISDIRECTED_REQUEST {
            return (status, "a request must have one Host field, with a name or an address\n").into_response();
        }
        guard.counters.misdirected.fetch_add(1, Ordering::Relaxed);
        let reason = "unknown host name; use the address of this server, localhost, or its configured name\n";
        return (status, reason).into_response();
    }
    match tokio::time::timeout(REQUEST_TIMEOUT, next.run(request)).await {
        Ok(response) => response,
        Err(_) => StatusCode::REQUEST_TIMEOUT.into_response(),
    }
}

async fn accept(listener: TcpListener, routes: &Router, counters: &HttpCounters) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    // Keep the connections in the order in which they were opened, because the oldest is displaced first.
    let mut open: VecDeque<AbortHandle> = VecDeque::with_capacity(CONNECTION_LIMIT);
    loop {
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(ACCEPT_RETRY_DELAY).await;
            continue;
        };
        open.retain(|connection| !connection.is_finished());
        if open.len() >= CONNECTION_LIMIT
            && let Some(oldest) = open.pop_front()
        {
            oldest.abort();
            counters.displaced.fetch_add(1, Ordering::Relaxed);
            // The aborted task closes its connection only when the runtime runs the task again. Yield, so that this
            // happens before the next connection is accepted.
            tokio::task::yield_now().await;
        }
        open.push_back(tokio::spawn(serve_connection(stream, routes.clone())).abort_handle());
    }
}

async fn serve_connection(stream: TcpStream, routes: Router) {
    let timeout_ms = u32::try_from(UNREAD_TIMEOUT.as_millis()).unwrap_or(u32::MAX);
    // Ignore an error. Even without this time-out, newer connections displace a stalled connection.
    let _ = rustix::net::sockopt::set_tcp_user_timeout(&stream, timeout_ms);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEADER_TIMEOUT)
        .max_buf_size(MAX_HEADER_BYTES)
        .serve_connection(TokioIo::new(stream), TowerToHyperService::new(routes));
    // Ignore errors, because they concern only this client.
    let _ = connection.await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;
    use axum::routing::get;
    use proptest::prelude::*;
    use std::io::{Read, Write};
    use std::net::TcpStream as Plain;

    fn served() -> (SocketAddr, Arc<HttpCounters>) {
        let counters = Arc::<HttpCounters>::default();
        let routes = Router::new().route("/", get(async || "here\n"));
        let names = HostNames::new(["Relay.example"]);
        (serve("127.0.0.1:0".parse().unwrap(), names, &counters, routes).unwrap(), counters)
    }

    /// Sends `bytes` and returns everything that the server sends until it closes the connection.
    fn said(address: SocketAddr, bytes: &str) -> String {
        let mut stream = Plain::connect(address).unwrap();
        stream.write_all(bytes.as_bytes()).unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    }

    #[test]
    fn only_its_own_names_are_answered() {
        let (address, counters) = served();
        let mut refused = 0;
        for (request, status) in [
            ("GET / HTTP/1.1\r\nHost: 127.0.0.1:8025", 200),
            ("GET / HTTP/1.1\r\nHost: [::1]:8025", 200),
            ("GET / HTTP/1.1\r\nHost: 192.0.2.7", 200),
            ("GET / HTTP/1.1\r\nHost: LocalHost:1", 200),
            ("GET / HTTP/1.1\r\nHost: relay.EXAMPLE.", 200),
            ("GET http://relay.example/ HTTP/1.1\r\nHost: relay.example", 200),
            ("GET / HTTP/1.1\r\nHost: localhost:", 200),
            ("GET / HTTP/1.0", 200),
            ("GET / HTTP/1.1\r\nHost: evil.example", 421),
            ("GET / HTTP/1.1\r\nHost: relay.example.evil.example", 421),
            ("GET / HTTP/1.1\r\nHost: evil.example:8025", 421),
            ("GET / HTTP/1.1\r\nHost: relay.example@evil.example", 400),
            ("GET / HTTP/1.1\r\nHost: localhost:http", 400),
            ("GET / HTTP/1.1\r\nHost: localhost, localhost", 400),
            ("GET / HTTP/1.1\r\nHost: local host", 400),
            ("GET / HTTP/1.1\r\nHost: [localhost]", 400),
            ("GET / HTTP/1.1\r\nHost: ::1", 400),
            ("GET / HTTP/1.1\r\nHost: http://localhost", 400),
            ("GET / HTTP/1.1\r\nHost: local\u{e4}host", 400),
            ("GET / HTTP/1.1\r\nHost: 127.0.0.1.evil.example:8025", 421),
            ("GET / HTTP/1.1\r\nHost: ", 400),
            ("GET / HTTP/1.0\r\nHost: evil.example", 421),
            ("GET / HTTP/1.1\r\nX-No: host", 400),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil.example", 400),
            ("GET / HTTP/1.1\r\nHost: localhost\r\nHost: localhost", 400),
            ("GET / HTTP/1.0\r\nHost: localhost\r\nHost: localhost", 400),
            ("GET http://localhost/ HTTP/1.1\r\nX-No: host", 400),
            ("GET http://evil.example/ HTTP/1.1\r\nHost: localhost", 421),
        ] {
            let text = said(address, &format!("{request}\r\nConnection: close\r\n\r\n"));
            assert!(text.split(' ').nth(1) == Some(&status.to_string()), "{request}: {text}");
            refused += u64::from(status == 421);
            assert_eq!(counters.misdirected.load(Ordering::Relaxed), refused, "{request}");
        }
    }

    #[test]
    fn idle_connections_keep_nobody_out_and_are_bounded() {
        let (address, counters) = served();
        let idle: Vec<Plain> = (0..CONNECTION_LIMIT * 3).map(|_| Plain::connect(address).unwrap()).collect();
        let text = said(address, "GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("here\n"), "{text}");
        let displaced = counters.displaced.load(Ordering::Relaxed) as usize;
        assert!((CONNECTION_LIMIT * 2..=CONNECTION_LIMIT * 2 + 1).contains(&displaced), "{displaced}");
        // The server must close the oldest connections and keep the newest open.
        let mut first = &idle[0];
        assert_eq!(first.read(&mut [0; 1]).unwrap_or_default(), 0);
        let newest = idle.last().unwrap();
        newest.set_nonblocking(true).unwrap();
        assert!({ newest }.read(&mut [0; 1]).is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock));
    }

    #[test]
    fn a_header_without_end_is_refused() {
        let (address, _) = served();
        let text = said(address, &format!("GET / HTTP/1.1\r\nHost: localhost\r\nX: {}", "x".repeat(MAX_HEADER_BYTES)));
        assert!(text.starts_with("HTTP/1.1 431"), "{text}");
    }

    proptest! {
        /// The server must never accept a host name that ends in somebody else's domain.
        #[test]
        fn nobody_else_is_meant(before in "[ -~]{0,24}", after in "(\\.?|:[0-9]{0,5})") {
            let names = HostNames::new(["relay.example"]);
            let host = format!("{before}evil.test{after}");
            let request = Request::builder().header(header::HOST, &host).body(Body::empty()).unwrap();
            prop_assert!(names.check(&request).is_err(), "{}", host);
        }
    }
}
