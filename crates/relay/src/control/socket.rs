//! The file of the control socket, which only its owner may use. A relay takes the socket over from
//! a dead relay, but never from a running one.
use mailrun_net::listener;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{self as sockets, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::fs::{self, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

const MAX_PATH_BYTES: usize = 107;
const LISTEN_BACKLOG: i32 = 16;

/// A path that is short enough for the address of a Unix socket, which can hold 107 bytes. A longer path is replaced by
/// a path through `/proc/self/fd`, which is valid only while `_directory` is open.
struct SocketPath {
    path: PathBuf,
    _directory: Option<File>,
}

fn short_path(path: &Path) -> io::Result<SocketPath> {
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "it is not a file name"))?;
    if path.as_os_str().as_bytes().len() <= MAX_PATH_BYTES {
        return Ok(SocketPath { path: path.to_owned(), _directory: None });
    }
    let directory = File::open(path.parent().unwrap_or(Path::new(".")))?;
    let path = Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string()).join(name);
    Ok(SocketPath { path, _directory: Some(directory) })
}

/// Listens on the control socket at this path. The socket of a dead relay is removed first.
///
/// # Errors
/// Fails if another process listens there, if the path is not a socket, or if the socket cannot be
/// created.
pub(crate) fn listen(path: &Path) -> io::Result<UnixListener> {
    let way = short_path(path)?;
    remove_stale(&way.path)?;
    let socket = sockets::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockets::bind(&socket, &SocketAddrUnix::new(&way.path)?)?;
    // `bind` may have given the socket wider permissions, depending on the umask. Nobody can use
    // them, because clients can connect only after `listen`.
    fs::set_permissions(&way.path, Permissions::from_mode(0o600))?;
    sockets::listen(&socket, LISTEN_BACKLOG)?;
    Ok(socket.into())
}

fn remove_stale(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        // Connecting to a regular file also fails with ECONNREFUSED, so without this check the file
        // would be removed like the socket of a dead relay.
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(io::Error::new(io::ErrorKind::AlreadyExists, "a file that is not a socket exists there"))
        }
        Ok(_) => match listener::try_connect(path) {
            // EAGAIN means that a relay listens but hangs, so that its accept queue is full.
            Ok(()) | Err(Errno::AGAIN) => {
                Err(io::Error::new(io::ErrorKind::AddrInUse, "another relay is already listening there"))
            }
            Err(Errno::CONNREFUSED) => fs::remove_file(path),
            Err(error) => Err(error.into()),
        },
    }
}

/// Connects to a relay's control socket. `timeout` applies to connecting and to each read and
/// write.
///
/// # Errors
/// Fails if no relay listens there, or if the relay does not accept the connection in time.
pub(crate) fn connect(path: &Path, timeout: Duration) -> io::Result<UnixStream> {
    let way = short_path(path)?;
    let socket = sockets::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    // The send time-out also limits how long `connect` waits for a hanging relay with a full queue.
    sockopt::set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(timeout))?;
    sockets::connect(&socket, &SocketAddrUnix::new(&way.path)?)?;
    Ok(socket.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAIT: Duration = Duration::from_millis(100);

    #[test]
    fn a_relay_that_hangs_blocks_neither_another_nor_its_operator() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let _hanging = listen(&path).unwrap();
        let _waiting: Vec<_> = std::iter::from_fn(|| connect(&path, WAIT).ok()).collect();
        assert_eq!(connect(&path, WAIT).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn it_is_for_its_owner_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let listener = listen(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        connect(&path, WAIT).unwrap();
        listener.accept().unwrap();
    }

    #[test]
    fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        let first = listen(&path).unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        connect(&path, WAIT).unwrap();
        drop(first);
        assert_eq!(connect(&path, WAIT).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        let _second = listen(&path).unwrap();
        connect(&path, WAIT).unwrap();
    }

    #[test]
    fn what_is_no_socket_stays() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("control.sock");
        fs::write(&path, "dear").unwrap();
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read_to_string(&path).unwrap(), "dear");
    }

    #[test]
    fn a_path_may_be_longer_than_an_address() {
        let place = tempfile::tempdir().unwrap();
        let directory = place.path().join("x".repeat(100)).join("y".repeat(100));
        fs::create_dir_all(&directory).unwrap();
        let path = directory.join("control.sock");
        let _listener = listen(&path).unwrap();
        connect(&path, WAIT).unwrap();
        assert!(fs::metadata(&path).unwrap().file_type().is_socket());
        assert_eq!(listen(&path).unwrap_err().kind(), io::ErrorKind::AddrInUse);
    }
}
