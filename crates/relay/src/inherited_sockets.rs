//! Uses listening sockets that a service manager has opened, as in systemd's socket activation
//! (sd_listen_fds(3)).
//!
//! The configuration alone decides on which addresses the relay listens, and with which protocols. A listener whose
//! address matches an inherited socket uses that socket instead of opening its own. A relay started by hand therefore
//! listens on the same addresses, and a relay without the right to open ports below 1024 gets these ports from the
//! manager.
use anyhow::{Context, Result, bail};
use listenfd::ListenFd;
use mailrun_net::Endpoint;
use rustix::fd::OwnedFd;
use rustix::process::{Resource, getrlimit};
use std::os::unix::net::UnixListener;

/// Sockets from the service manager that no listener has taken yet.
#[derive(Default)]
pub(super) struct InheritedSockets(Vec<(Endpoint, OwnedFd)>);

impl InheritedSockets {
    /// Takes the sockets that the variables `LISTEN_FDS` and `LISTEN_PID` announce. Without a
    /// service manager, there are no sockets.
    ///
    /// # Errors
    /// Fails if one of the sockets does not listen, or has no address.
    pub(super) fn from_environment() -> Result<Self> {
        // Refuse a number above the limit of open files. Such a number is certainly wrong, and the
        // library would allocate memory for that many sockets.
        let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        if let Ok(count) = std::env::var("LISTEN_FDS")
            && count.parse::<u64>().is_ok_and(|count| count > limit)
        {
            bail!("LISTEN_FDS={count} is more than the limit of open files, {limit}; correct it, or unset it");
        }
        let mut descriptors = ListenFd::from_env();
        let sockets = (0..descriptors.len()).map(|number| take(&mut descriptors, number));
        sockets.collect::<Result<Vec<_>>>().map(Self)
    }

    pub(super) fn take(&mut self, endpoint: &Endpoint) -> Option<OwnedFd> {
        let place = self.0.iter().position(|(address, _)| address == endpoint)?;
        Some(self.0.swap_remove(place).1)
    }

    /// Refuses to start if a socket is left that no listener has taken, because clients of that
    /// socket would wait forever.
    pub(super) fn refuse_unused(&self) -> Result<()> {
        let Some((endpoint, _)) = self.0.first() else { return Ok(()) };
        bail!(
            "the service manager has opened {endpoint}, at which the configuration does not listen; add it to listen, \
             listen_tls or listen_lmtp, or remove it from the manager's socket unit"
        )
    }
}

fn take(descriptors: &mut ListenFd, number: usize) -> Result<(Endpoint, OwnedFd)> {
    let description = || format!("socket {number} of the service manager");
    if let Ok(Some(listener)) = descriptors.take_tcp_listener(number) {
        let address = listener.local_addr().with_context(description)?;
        return Ok((address.into(), listener.into()));
    }
    match descriptors.take_unix_listener(number) {
        Ok(Some(listener)) => Ok((Endpoint::Unix(path(&listener).with_context(description)?), listener.into())),
        Ok(None) => bail!("{} is missing", description()),
        Err(_) => bail!("{} is no listening stream socket of TCP or of the file system", description()),
    }
}

fn path(listener: &UnixListener) -> Result<std::path::PathBuf> {
    let address = listener.local_addr()?;
    address.as_pathname().map(Into::into).context("it has no path")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn sockets(addresses: &[&str]) -> InheritedSockets {
        let open = |address: &&str| {
            let listener = TcpListener::bind(address).unwrap();
            (Endpoint::Tcp(listener.local_addr().unwrap()), listener.into())
        };
        InheritedSockets(addresses.iter().map(open).collect())
    }

    #[test]
    fn a_socket_goes_to_the_listener_of_its_address_once() {
        let mut inherited = sockets(&["127.0.0.1:0", "127.0.0.1:0"]);
        let [first, second] = [0, 1].map(|place| inherited.0[place].0.clone());
        assert!(inherited.take(&second).is_some() && inherited.take(&second).is_none());
        let error = inherited.refuse_unused().unwrap_err().to_string();
        assert!(error.contains(&first.to_string()) && error.contains("listen"), "{error}");
        assert!(inherited.take(&first).is_some());
        inherited.refuse_unused().unwrap();
        assert!(inherited.take(&Endpoint::Unix("/run/x".into())).is_none());
    }
}
