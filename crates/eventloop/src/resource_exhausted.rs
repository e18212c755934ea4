//! Resources that a process or its host can run out of while it connects or accepts, as opposed to
//! other errors.
use rustix::io::Errno;
use std::io;

/// A resource whose lack made a connection fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceExhausted {
    /// File descriptors of the process (EMFILE, `ulimit -n`).
    Descriptors,
    /// File descriptors of the host (ENFILE, `fs.file-max`).
    HostDescriptors,
    /// Local ports. The error is EADDRNOTAVAIL if the kernel chooses the local address, and
    /// EADDRINUSE if the address is given and the kernel chooses only the port.
    Ports,
}

impl ResourceExhausted {
    /// Returns the resource that is exhausted according to an error of making or accepting a
    /// connection. `from_own_address` must be set if the connection was bound to an address.
    ///
    /// EADDRNOTAVAIL is not a shortage if the given address does not belong to this host. It is not
    /// a shortage either if the host has no address of that family at all. The caller can recognise
    /// that case because no connection has been established before.
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
