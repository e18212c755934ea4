//! The service that creates a handler for each session of a worker.
use crate::handler::{Handler, Peer};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// State of one worker. It is made on the worker's own thread, so it needs no locks.
pub trait Service: 'static {
    /// Type of the handler that decides about one session.
    type Handler: Handler;
    /// Makes the handler for a client that has connected.
    fn session(&self, peer: Peer) -> Self::Handler;
    /// Returns true if a client has no limits
    /// ([`Server::client_limits`](crate::Server::client_limits)) and may use the last quarter of
    /// the sessions. It is called once per connection. By default, clients on this host are exempt.
    fn is_exempt(&self, client: IpAddr) -> bool {
        client.to_canonical().is_loopback()
    }
    /// Reports that a client could not be accepted, because there are no more file descriptors
    /// ([`crate::ResourceExhausted`]) or because the client has already disconnected.
    fn accept_failed(&self, error: &io::Error) {
        let _ = error;
    }
    /// Does periodic work. It is called a few times a second, and once more when the worker ends.
    fn tick(&self, now: Duration) {
        let _ = now;
    }
    /// Does the worker's final work after its last session. The worker's tasks still run meanwhile.
    fn drain(&self) -> impl Future<Output = ()> {
        std::future::ready(())
    }
}

impl<H: Handler, F: Fn(Peer) -> H + 'static> Service for F {
    type Handler = H;
    fn session(&self, peer: Peer) -> H {
        self(peer)
    }
}
