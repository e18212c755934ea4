//! Opens the listening socket, with the same socket options as Postfix's smtp-sink.
use super::options::Settings;
use crate::host_port::{EndpointAddress, OptionalPart};
use crate::stderr::StderrWriter;
use mailrun_process::reason::reason;
use rustix::fd::OwnedFd;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::fs::{self, Permissions};
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;

const SOCKET_MODE: u32 = 0o666;

pub(super) fn open(settings: &Settings, stderr: &StderrWriter) -> Result<OwnedFd, String> {
    match EndpointAddress::parse(&settings.address, OptionalPart::Host, settings.family)? {
        EndpointAddress::Unix(path) => open_unix(&path, settings.backlog),
        EndpointAddress::Inet(address) => {
            if settings.verbosity > 0 {
                stderr.print(format!("trying... [{}]:{}", address.ip(), address.port()));
            }
            open_inet(address, settings)
        }
    }
}

fn open_inet(address: SocketAddr, settings: &Settings) -> Result<OwnedFd, String> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket(family)?;
    prepare(&socket, address, settings.window_bytes).map_err(|error| format!("setsockopt: {}", reason(&error)))?;
    net::bind(&socket, &address)
        .map_err(|error| format!("bind {} port {}: {}", address.ip(), address.port(), reason(&error.into())))?;
    listen(socket, settings.backlog)
}

fn prepare(socket: &OwnedFd, address: SocketAddr, window_bytes: Option<i32>) -> io::Result<()> {
    if address.is_ipv6() {
        sockopt::set_ipv6_v6only(socket, true)?;
    }
    sockopt::set_socket_reuseaddr(socket, true)?;
    // Allow several sinks to listen on one port. The kernel then distributes the connections among them.
    sockopt::set_socket_reuseport(socket, true)?;
    // Set these options on the listening socket, because accepted sockets inherit them.
    sockopt::set_tcp_nodelay(socket, true)?;
    if let Some(bytes) = window_bytes {
        sockopt::set_socket_send_buffer_size(socket, bytes as usize)?;
        sockopt::set_socket_recv_buffer_size(socket, bytes as usize)?;
    }
    Ok(())
}

fn open_unix(path: &str, backlog: i32) -> Result<OwnedFd, String> {
    let fail = |act: &str, error: io::Error| format!("{act}{path}: {}", reason(&error));
    let socket = socket(AddressFamily::UNIX)?;
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(fail("remove ", error)),
        _ => {}
    }
    if !path.is_empty() {
        let address = SocketAddrUnix::new(path).map_err(|error| fail("bind: ", error.into()))?;
        net::bind(&socket, &address).map_err(|error| fail("bind: ", error.into()))?;
    }
    fs::set_permissions(path, Permissions::from_mode(SOCKET_MODE)).map_err(|error| fail("chmod socket ", error))?;
    listen(socket, backlog)
}

fn socket(family: AddressFamily) -> Result<OwnedFd, String> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(family, SocketType::STREAM, flags, None);
    socket.map_err(|error| format!("socket: {}", reason(&error.into())))
}

fn listen(socket: OwnedFd, backlog: i32) -> Result<OwnedFd, String> {
    net::listen(&socket, backlog).map_err(|error| format!("listen: {}", reason(&error.into())))?;
    Ok(socket)
}
