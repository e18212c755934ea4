//! Listening sockets, with a queue long enough for a thousand clients that come at once.
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use std::io;
use std::net::{SocketAddr, TcpListener};

/// Clients that may wait to be accepted; the kernel takes the smaller of this and `net.core.somaxconn`.
const BACKLOG: i32 = 4096;

/// Listens on `address`; port 0 lets the kernel choose.
///
/// # Errors
/// Those of `socket`, `bind` and `listen`.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    // Accepted sockets inherit it: a 40 ms wait for a delayed ACK is the classic false result of this field.
    sockopt::set_tcp_nodelay(&socket, true)?;
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}
