//! Raises the limit of open files (`ulimit -n`) of this process, because ten thousand sessions need
//! ten thousand descriptors. Also tells which resource ran out when a connection fails.
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// Raises the limit of open files to `wanted`, or as close to it as the process is permitted. Returns
/// the limit that now holds.
pub fn raise(wanted: u64) -> u64 {
    let before = getrlimit(Resource::Nofile);
    let hard = before.maximum.unwrap_or(u64::MAX);
    if hard < wanted && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum: Some(wanted) }).is_ok() {
        return wanted;
    }
    let soft = wanted.min(hard).max(before.current.unwrap_or(u64::MAX).min(hard));
    match setrlimit(Resource::Nofile, Rlimit { current: Some(soft), maximum: before.maximum }) {
        Ok(()) => soft,
        Err(_) => before.current.unwrap_or(u64::MAX),
    }
}

/// A resource of the host or the process that can run out, so that connections fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceExhausted {
    /// File descriptors of the process (EMFILE, `ulimit -n`).
    Descriptors,
    /// File descriptors of the host (ENFILE, `fs.file-max`).
    HostDescriptors,
    /// Local ports, of which each outgoing connection needs one. The error is EADDRNOTAVAIL if the
    /// kernel chooses the local address, and EADDRINUSE if the address is given and the kernel
    /// chooses only the port.
    Ports,
}

impl ResourceExhausted {
    /// Returns the resource that ran out, if this caused `error` when a connection was made or accepted. Returns `None`
    /// if the error has another cause. Set `from_own_address` if the caller chose the local address of the connection,
    /// because this changes the meaning of EADDRNOTAVAIL.
    ///
    /// With a chosen address, EADDRNOTAVAIL means that the address does not belong to this host, which is not a
    /// shortage. Without a chosen address, the kernel returns EADDRNOTAVAIL not only if ports ran out, but also if the
    /// host has no address of the server's family (IPv4 or IPv6). Callers can recognise the second case, because then
    /// no connection has ever been established.
    pub fn from_error(error: &io::Error, from_own_address: bool) -> Option<Self> {
        match Errno::from_io_error(error)? {
            Errno::MFILE => Some(Self::Descriptors),
            Errno::NFILE => Some(Self::HostDescriptors),
            Errno::ADDRNOTAVAIL if !from_own_address => Some(Self::Ports),
            Errno::ADDRINUSE if from_own_address => Some(Self::Ports),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortages_are_told_from_other_errors() {
        for (errno, unbound, bound) in [
            (Errno::MFILE, Some(ResourceExhausted::Descriptors), Some(ResourceExhausted::Descriptors)),
            (Errno::NFILE, Some(ResourceExhausted::HostDescriptors), Some(ResourceExhausted::HostDescriptors)),
            (Errno::ADDRNOTAVAIL, Some(ResourceExhausted::Ports), None),
            (Errno::ADDRINUSE, None, Some(ResourceExhausted::Ports)),
            (Errno::CONNREFUSED, None, None),
            (Errno::CONNABORTED, None, None),
            (Errno::NOBUFS, None, None),
        ] {
            let error = io::Error::from(errno);
            assert_eq!(
                (ResourceExhausted::from_error(&error, false), ResourceExhausted::from_error(&error, true)),
                (unbound, bound),
                "{errno:?}"
            );
        }
        assert_eq!(ResourceExhausted::from_error(&io::Error::other("not a number"), false), None);
    }
}
