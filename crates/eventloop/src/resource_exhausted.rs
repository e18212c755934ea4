//! Resources that a process or its host may run out of while it connects or accepts, as opposed to other errors.
use rustix::io::Errno;
use std::io;

/// A resource that has run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResourceExhausted {
    /// Descriptors of the process: EMFILE, `ulimit -n`.
    Descriptors,
    /// Descriptors of the host: ENFILE, `fs.file-max`.
    HostDescriptors,
    /// Local ports: EADDRNOTAVAIL where the kernel chooses the address, EADDRINUSE where the address is given and the
    /// kernel chooses the port.
    Ports,
}

impl ResourceExhausted {
    /// Returns the resource that an error of making or accepting a connection shows to be exhausted. `from_own_address`
    /// says that the connection was bound to an address. An address that is not this host's gives EADDRNOTAVAIL too,
    /// and is no shortage. Nor is it a shortage if a host has no address of that family at all: connections that were
    /// established before tell the two apart.
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
