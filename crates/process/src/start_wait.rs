//! Waits for a server that does not listen yet, for example because the previous line of a script
//! has only just started it.
use std::io;
use std::time::{Duration, Instant};

const PAUSE: Duration = Duration::from_millis(50);

/// Time for which a command keeps trying to connect to a server that refuses connections. The time
/// starts when this value is created, so that a command waits only once even if it tries several
/// addresses.
#[derive(Clone, Copy, Debug)]
pub struct StartWait {
    until: Option<Instant>,
}

impl StartWait {
    /// Time after which a command stops trying to connect. It is long enough for a server that was
    /// started together with the command, and short enough for a user who mistyped the port.
    pub const LIMIT: Duration = Duration::from_secs(2);

    pub fn begin() -> Self {
        Self { until: Some(Instant::now() + Self::LIMIT) }
    }

    /// Returns a wait of zero length, with which the caller gives up after the first refused connection.
    pub fn none() -> Self {
        Self { until: None }
    }

    /// Sleeps before another attempt to connect. If the time for attempts is over, returns false without sleeping.
    pub fn pause(&self) -> bool {
        self.next_pause().inspect(|pause| std::thread::sleep(*pause)).is_some()
    }

    /// Returns how long to wait before another attempt to connect, or `None` if the time for attempts is over.
    pub fn next_pause(&self) -> Option<Duration> {
        self.until.is_some_and(|until| Instant::now() < until).then_some(PAUSE)
    }
}

/// Returns true if a connection failed because nothing listens at the address, or because the file of the Unix-domain
/// socket does not exist. Either can happen while the server is still starting.
pub fn is_not_listening(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_gets_time_to_start_unless_none_was_given() {
        let wait = StartWait::begin();
        assert!(wait.pause() && wait.pause());
        assert!(!StartWait::none().pause());
        assert!(!StartWait { until: Some(Instant::now()) }.pause(), "the time is over");
    }
}
