//! Waiting for a server that has not begun to listen, for example because it was started by the
//! line before in a script.
use std::io;
use std::time::{Duration, Instant};

/// Time between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(50);

/// The patience of a command whose server refuses connections. The time counts from the creation of
/// this value, so that a command waits only once even if it tries several addresses.
#[derive(Clone, Copy, Debug)]
pub struct StartWait {
    until: Option<Instant>,
}

impl StartWait {
    /// A server that was started together with the command listens within this time. A mistyped
    /// port costs the user no more.
    pub const LIMIT: Duration = Duration::from_secs(2);

    pub fn begin() -> Self {
        Self { until: Some(Instant::now() + Self::LIMIT) }
    }

    /// Makes every refused connection final.
    pub fn none() -> Self {
        Self { until: None }
    }

    /// Blocks the thread for a moment. Returns false if there is no time for another attempt.
    pub fn pause(&self) -> bool {
        let may_retry = self.until.is_some_and(|until| Instant::now() < until);
        if may_retry {
            std::thread::sleep(PAUSE);
        }
        may_retry
    }
}

/// True if nothing listens at an address, or if the socket of a path does not exist. A server that
/// starts may be in this state.
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
