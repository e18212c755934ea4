//! Busy polling: a worker looks for the next event for a while before it sleeps.
//!
//! If processors may sleep when they are idle, waking a processor takes 20 to 70 µs. With a single session, that is
//! most of a round trip. With many sessions, there is always an event, so a worker never sleeps and busy polling gains
//! nothing. A worker that polls occupies a processor that other processes may need.
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Time for which a worker looks for events before it sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BusyPoll {
    /// The worker sleeps as soon as there are no events, instead of polling for the next event.
    #[default]
    Off,
    /// After each event, the worker looks for the next one for this long, even if other threads
    /// need the processor.
    For(Duration),
}

/// Maximum time that a user can choose for [`BusyPoll::For`]. Polling for longer is useless, because a worker that gets
/// no event for a second has no load.
const MAX_LOOK: Duration = Duration::from_secs(1);

impl BusyPoll {
    /// Returns how long to look for events before sleeping, or `None` to sleep at once.
    pub(crate) fn limit(self) -> Option<Duration> {
        match self {
            Self::Off => None,
            Self::For(limit) => Some(limit),
        }
    }
}

impl FromStr for BusyPoll {
    type Err = String;

    /// Parses `off`, or a whole number with the unit us or ms.
    fn from_str(text: &str) -> Result<Self, String> {
        let microseconds = match text {
            "off" => return Ok(Self::Off),
            _ => match (text.strip_suffix("us"), text.strip_suffix("ms")) {
                (Some(number), _) => number.parse().ok(),
                (_, Some(number)) => number.parse::<u64>().ok().and_then(|number| number.checked_mul(1_000)),
                _ => None,
            },
        };
        let time = microseconds.filter(|time| *time > 0).map(Duration::from_micros);
        let time = time.filter(|time| *time <= MAX_LOOK);
        time.map(Self::For).ok_or_else(|| format!("{text}: use off, or a time up to 1000ms, such as 50us"))
    }
}

impl fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::For(time) => write!(f, "{}us", time.as_micros()),
        }
    }
}

/// Total time in nanoseconds for which the workers of this process have polled for events without sleeping, whether or
/// not an event came.
static LOOKED_NS: AtomicU64 = AtomicU64::new(0);

pub(crate) fn looked() -> Duration {
    Duration::from_nanos(LOOKED_NS.load(Ordering::Relaxed))
}

/// Adds the time for which a worker has just polled for events without sleeping, but at most `limit`. If more time has
/// passed, other threads used the processor during the rest, so the rest is not a cost of polling.
pub(crate) fn add_look(length: Duration, limit: Duration) {
    LOOKED_NS.fetch_add(length.min(limit).as_nanos() as u64, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::BusyPoll;

    use std::time::Duration;

    #[test]
    fn each_mode_is_read_as_it_is_written() {
        for text in ["off", "1us", "50us", "1000000us"] {
            assert_eq!(text.parse::<BusyPoll>().expect(text).to_string(), text);
        }
        assert_eq!("2ms".parse(), Ok(BusyPoll::For(Duration::from_millis(2))));
        for text in [
            "",
            "on",
            "auto",
            "0us",
            "5",
            "1s",
            "1001ms",
            "-1us",
            "99999999999999999999us",
            "18446744073709551615ms",
            "½us",
        ] {
            assert!(text.parse::<BusyPoll>().is_err_and(|error| error.starts_with(text)), "{text}");
        }
    }
}
