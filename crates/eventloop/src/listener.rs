//! Listening sockets, with a queue that is long enough for a thousand clients that connect at once.
use crate::endpoint::Endpoint;
use rustix::fd::OwnedFd;
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::fs::Permissions;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

/// Maximum number of connections that wait to be accepted. The kernel lowers it to
/// `net.core.somaxconn` if that is smaller.
const BACKLOG: i32 = 4096;

/// Creates a TCP socket that listens at `address`. For port 0, the kernel chooses a port. `[::]` means all addresses of
/// this host, including the IPv4 addresses, whatever the sysctl net.ipv6.bindv6only says. On a host without IPv6,
/// `[::]` means the IPv4 addresses.
///
/// # Errors
/// Returns the errors of `socket`, `bind` and `listen`.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let everywhere = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), address.port());
    match listen_once(address) {
        Err(error) if address == everywhere && lacks_ipv6(&error) => {
            listen_once(SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port()))
        }
        listener => listener,
    }
}

/// Returns true if the error means that the kernel has no IPv6, or that the host has no IPv6 address.
fn lacks_ipv6(error: &io::Error) -> bool {
    let codes = [Errno::AFNOSUPPORT, Errno::ADDRNOTAVAIL];
    codes.iter().any(|code| error.raw_os_error() == Some(code.raw_os_error()))
}

fn listen_once(address: SocketAddr) -> io::Result<TcpListener> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.ip() == IpAddr::from(Ipv6Addr::UNSPECIFIED) {
        sockopt::set_ipv6_v6only(&socket, false)?;
    }
    // Set TCP_NODELAY here, because accepted sockets inherit it. Without TCP_NODELAY, replies would
    // often wait 40 ms for a delayed ACK, which would falsify results.
    sockopt::set_tcp_nodelay(&socket, true)?;
    net::bind(&socket, &address)?;
    net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Listens at a TCP address or a unix-domain socket. Returns the socket and its actual endpoint.
///
/// # Errors
/// Returns the errors of [`listen`]. Also fails if the path exists, unless it is a socket at which
/// nobody listens any more. Such a socket is replaced.
pub fn listen_at(endpoint: &Endpoint) -> io::Result<(OwnedFd, Endpoint)> {
    match endpoint {
        Endpoint::Tcp(address) => {
            let listener = listen(*address)?;
            let address = listener.local_addr()?;
            Ok((listener.into(), address.into()))
        }
        Endpoint::Unix(path) => Ok((listen_unix(path)?, endpoint.clone())),
    }
}

/// Prepares a listening socket that another process, such as systemd, has opened. Sets the same
/// options as [`listen`].
///
/// # Errors
/// Returns the errors of `ioctl`, `setsockopt` and `listen`.
pub fn adopt(socket: &OwnedFd, endpoint: &Endpoint) -> io::Result<()> {
    ioctl_fionbio(socket, true)?;
    if matches!(endpoint, Endpoint::Tcp(_)) {
        sockopt::set_tcp_nodelay(socket, true)?;
    }
    // If the socket already listens, listen(2) only changes the length of its queue.
    net::listen(socket, BACKLOG)?;
    Ok(())
}

/// Mode of a socket in the file system. A client needs write permission to connect, which the umask
/// usually takes from all users but the owner. This mode admits all users of this host, as TCP
/// does. To exclude some of them, put the socket into a directory that they cannot enter.
const SOCKET_MODE: u32 = 0o666;

fn listen_unix(path: &Path) -> io::Result<OwnedFd> {
    // A killed server leaves its socket behind. Remove this socket, which refuses connections. Other
    // files also refuse connections, so check first that the file is a socket.
    let is_socket = std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.file_type().is_socket());
    if is_socket && try_connect(path) == Err(Errno::CONNREFUSED) {
        std::fs::remove_file(path)?;
    }
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    std::fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE))?;
    net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// Connects to a socket in the file system, and closes the connection. This does not wait: if the
/// server's queue is full, the error is `AGAIN`.
///
/// # Errors
/// Fails with the error of the system call `socket` or `connect`. `CONNREFUSED` means that no process listens at the
/// socket.
pub fn try_connect(path: &Path) -> Result<(), Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&socket, &SocketAddrUnix::new(path)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpStream;

    #[test]
    fn every_address_is_served_by_one_listener() {
        let listener = listen(SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok());
        let has_ipv6 = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok();
        assert_eq!(TcpStream::connect((Ipv6Addr::LOCALHOST, port)).is_ok(), has_ipv6);
    }

    #[test]
    fn a_dead_socket_is_replaced_and_a_file_is_left_alone() {
        let place = std::env::temp_dir().join(format!("mailrun-listener-{}", std::process::id()));
        std::fs::create_dir_all(&place).unwrap();
        let file = place.join("file");
        let socket = place.join("socket");
        std::fs::write(&file, "content").unwrap();
        assert!(listen_unix(&file).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"content");
        drop(listen_unix(&socket).unwrap());
        let living = listen_unix(&socket).unwrap();
        let mode = std::fs::metadata(&socket).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, SOCKET_MODE, "other users can connect, whatever the umask is");
        assert_eq!(listen_unix(&socket).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        // This server never accepts a connection, so its short queue fills up.
        net::listen(&living, 1).unwrap();
        let connect = || {
            let client =
                net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK, None).unwrap();
            net::connect(&client, &SocketAddrUnix::new(&socket).unwrap()).map(|()| client)
        };
        let _waiting: Vec<_> = std::iter::from_fn(|| connect().ok()).collect();
        assert_eq!(listen_unix(&socket).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        drop(living);
        std::fs::remove_dir_all(&place).unwrap();
    }
}
