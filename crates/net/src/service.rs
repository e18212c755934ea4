//! The service that creates a handler for each session of a worker.
use crate::handler::{Handler, Peer};
use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// State that one worker serves with: made on the worker's own thread, so it needs no lock.
pub trait Service: 'static {
    /// Handler of one session.
    type Handler: Handler;
    /// Makes the handler for a client that has connected.
    fn session(&self, peer: Peer) -> Self::Handler;
    /// Reports whether a client has no limits ([`Server::client_limits`](crate::Server::client_limits)) and may have the last quarter of the
    /// sessions; called once per connection. By default this is true of this host's own clients.
    fn is_exempt(&self, client: IpAddr) -> bool {
        client.to_canonical().is_loopback()
    }
    /// A client could not be accepted, because descriptors have run out ([`crate::ResourceExhausted`]) or because it
    /// has already disconnected.
    fn accept_failed(&self, why: &io::Error) {
        let _ = why;
    }
    /// Called a few times a second, and once more when the worker ends.
    fn tick(&self, now: Duration) {
        let _ = now;
    }
    /// Final work of the worker, after its last session; its tasks still run meanwhile.
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
