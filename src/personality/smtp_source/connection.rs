//! Connecting: the original's socket options and number of attempts, one connection at a time.
use super::complaints::Fatal;
use super::course::Course;
use crate::personality::host_port::Place;
use crate::reason::reason;
use net::{Socket, clock};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io;
use std::time::Duration;

/// Pause before the next attempt.
const BREATH: Duration = Duration::from_micros(10);
/// Pause before the next attempt if a unix-domain server's queue was full.
const QUEUE_BREATH: Duration = Duration::from_millis(1);

/// Connects. `attempts` counts for the whole life of a session, as in the original.
pub(super) async fn open(course: &Course, attempts: &mut u32) -> Result<Socket, Fatal> {
    let _pass = course.gate.enter().await;
    let patient_until = clock::now() + course.options.patience;
    loop {
        let descriptor = socket(course).map_err(|error| Fatal(format!("socket: {}", reason(&error.into()))))?;
        let error = match connect(&course.target, descriptor).await {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        if error.kind() == io::ErrorKind::WouldBlock && clock::now() < patient_until {
            net::sleep(QUEUE_BREATH).await;
            continue;
        }
        let text = format!("connect: {}", reason(&error));
        if *attempts == 1 {
            return Err(Fatal(text));
        }
        *attempts -= 1;
        course.voice.warn(&text);
        net::sleep(BREATH).await;
    }
}

/// Creates a socket that resets the connection when it is closed, so that no port is left in TIME_WAIT.
fn socket(course: &Course) -> rustix::io::Result<OwnedFd> {
    let family = match &course.target {
        Place::Inet(address) if address.is_ipv4() => AddressFamily::INET,
        Place::Inet(_) => AddressFamily::INET6,
        Place::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let descriptor = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_linger(&descriptor, Some(Duration::ZERO))?;
    if family != AddressFamily::UNIX {
        // The last segment of a long message must not wait for a delayed acknowledgement.
        sockopt::set_tcp_nodelay(&descriptor, true)?;
    }
    if let Some(bytes) = course.options.window {
        sockopt::set_socket_send_buffer_size(&descriptor, bytes as usize)?;
        sockopt::set_socket_recv_buffer_size(&descriptor, bytes as usize)?;
    }
    Ok(descriptor)
}

async fn connect(target: &Place, descriptor: OwnedFd) -> io::Result<Socket> {
    let outcome = match target {
        Place::Inet(address) => rustix::net::connect(&descriptor, address),
        Place::Unix(path) => rustix::net::connect(&descriptor, &unix_address(path)?),
    };
    match outcome {
        Ok(()) | Err(Errno::INPROGRESS) => Socket::from_connecting(descriptor).await,
        Err(error) => Err(error.into()),
    }
}

/// An empty path is the abstract name of zero bytes, as in the original: no server listens there.
fn unix_address(path: &str) -> rustix::io::Result<SocketAddrUnix> {
    if path.is_empty() { SocketAddrUnix::new_abstract_name(&[0; 107]) } else { SocketAddrUnix::new(path) }
}
