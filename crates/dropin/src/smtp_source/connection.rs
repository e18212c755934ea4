//! Connecting: the original's socket options and number of attempts, one connection at a time.
use super::errors::FatalError;
use super::run_state::SmtpSourceRun;
use crate::host_port::EndpointAddress;
use mailrun_net::{Socket, clock};
use mailrun_party::reason::reason;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io;
use std::time::Duration;

/// Pause before the next attempt.
const CONNECT_RETRY_DELAY: Duration = Duration::from_micros(10);
/// Pause before the next attempt if a unix-domain server's queue was full.
const QUEUE_FULL_DELAY: Duration = Duration::from_millis(1);

/// Connects. `attempts` counts for the whole life of a session, as in the original.
pub(super) async fn open(run: &SmtpSourceRun, attempts: &mut u32) -> Result<Socket, FatalError> {
    let _pass = run.connect_semaphore.acquire().await;
    let patient_until = clock::now() + run.options.timeout;
    loop {
        let descriptor = new_socket(run).map_err(|error| FatalError(format!("socket: {}", reason(&error.into()))))?;
        let error = match connect(&run.target, descriptor).await {
            Ok(socket) => return Ok(socket),
            Err(error) => error,
        };
        if error.kind() == io::ErrorKind::WouldBlock && clock::now() < patient_until {
            mailrun_net::sleep(QUEUE_FULL_DELAY).await;
            continue;
        }
        let text = format!("connect: {}", reason(&error));
        if *attempts == 1 {
            return Err(FatalError(text));
        }
        *attempts -= 1;
        run.stderr.warn(&text);
        mailrun_net::sleep(CONNECT_RETRY_DELAY).await;
    }
}

/// Creates a socket that resets the connection when it is closed, so that no port is left in TIME_WAIT.
fn new_socket(run: &SmtpSourceRun) -> rustix::io::Result<OwnedFd> {
    let family = match &run.target {
        EndpointAddress::Inet(address) if address.is_ipv4() => AddressFamily::INET,
        EndpointAddress::Inet(_) => AddressFamily::INET6,
        EndpointAddress::Unix(_) => AddressFamily::UNIX,
    };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let descriptor = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
    sockopt::set_socket_linger(&descriptor, Some(Duration::ZERO))?;
    if family != AddressFamily::UNIX {
        // The last segment of a long message must not wait for a delayed acknowledgement.
        sockopt::set_tcp_nodelay(&descriptor, true)?;
    }
    if let Some(bytes) = run.options.window {
        sockopt::set_socket_send_buffer_size(&descriptor, bytes as usize)?;
        sockopt::set_socket_recv_buffer_size(&descriptor, bytes as usize)?;
    }
    Ok(descriptor)
}

async fn connect(target: &EndpointAddress, descriptor: OwnedFd) -> io::Result<Socket> {
    let outcome = match target {
        EndpointAddress::Inet(address) => rustix::net::connect(&descriptor, address),
        EndpointAddress::Unix(path) => rustix::net::connect(&descriptor, &unix_address(path)?),
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
