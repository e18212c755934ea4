//! Connects to the server, with the socket options of the imitated programs.
use crate::host_port::EndpointAddress;
use mailrun_net::Socket;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io;
use std::time::Duration;

/// The name of a system call that failed, and its error.
pub(crate) type CallError = (&'static str, io::Error);

/// Connects to `target`, with the kernel's default size of the socket buffers if `buffer_bytes` is `None`.
pub(crate) async fn connect(target: &EndpointAddress, buffer_bytes: Option<u32>) -> Result<Socket, CallError> {
    let descriptor = new_socket(target, buffer_bytes).map_err(|error| ("socket", error.into()))?;
    let outcome = match target {
        EndpointAddress::Inet(address) => rustix::net::connect(&descriptor, address),
        EndpointAddress::Unix(path) => {
            unix_address(path).and_then(|address| rustix::net::connect(&descriptor, &address))
        }
    };
    let socket = match outcome {
        Ok(()) | Err(Errno::INPROGRESS) => Socket::from_connecting(descriptor).await,
        Err(error) => Err(error.into()),
    };
    socket.map_err(|error| ("connect", error))
}

/// Creates a socket that resets its connection when it is closed. No port is then left in TIME_WAIT, so a run with many
/// connections cannot run out of ports.
fn new_socket(target: &EndpointAddress, buffer_bytes: Option<u32>) -> rustix::io::Result<OwnedFd> {
    let family = match target {
        EndpointAddress::Inet(address) if address.is_ipv4() => AddressFamily::INET,
        EndpointAddress::Inet(_) => AddressFamily::INET6,
        EndpointAddress::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let descriptor = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_linger(&descriptor, Some(Duration::ZERO))?;
    if family != AddressFamily::UNIX {
        // Without TCP_NODELAY, the last segment of a long message would wait for a delayed acknowledgement.
        sockopt::set_tcp_nodelay(&descriptor, true)?;
    }
    if let Some(bytes) = buffer_bytes {
        sockopt::set_socket_send_buffer_size(&descriptor, bytes as usize)?;
        sockopt::set_socket_recv_buffer_size(&descriptor, bytes as usize)?;
    }
    Ok(descriptor)
}

/// Creates the address of a unix-domain socket. As in Postfix, an empty path becomes an abstract name that consists of
/// zero bytes. The connection then fails, because no server listens on that name.
fn unix_address(path: &str) -> rustix::io::Result<SocketAddrUnix> {
    if path.is_empty() { SocketAddrUnix::new_abstract_name(&[0; 107]) } else { SocketAddrUnix::new(path) }
}
