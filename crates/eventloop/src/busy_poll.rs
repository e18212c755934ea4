//! Busy polling: a worker that has just had an event looks for the next one for a while before it sleeps.
//!
//! An idle processor takes 20 to 70 µs to wake. With one session that is most of a round trip; with many sessions there is
//! always an event, and a worker never sleeps. Looking costs a processor, which others may need: `Auto` looks only as long
//! as it finds something, and as nobody else waits for the processor.
use crate::clock;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use std::cell::{Cell, RefCell};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Times for which a worker looks for events before it sleeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BusyPoll {
    /// None: it sleeps at once.
    #[default]
    Off,
    /// Up to 50 µs, where that finds events, few descriptors are watched, and no other thread waits for the processor.
    Auto,
    /// That time after each event, whatever it costs others.
    For(Duration),
}

/// Longest time of [`BusyPoll::For`]: a second without an event is no load.
const MAX_LOOK: Duration = Duration::from_secs(1);

impl FromStr for BusyPoll {
    type Err = String;

    /// Reads `off`, `auto`, or a whole number of us or ms.
    fn from_str(text: &str) -> Result<Self, String> {
        let microseconds = match text {
            "off" => return Ok(Self::Off),
            "auto" => return Ok(Self::Auto),
            _ => match (text.strip_suffix("us"), text.strip_suffix("ms")) {
                (Some(number), _) => number.parse().ok(),
                (_, Some(number)) => number.parse::<u64>().ok().and_then(|number| number.checked_mul(1_000)),
                _ => None,
            },
        };
        let time = microseconds.filter(|time| *time > 0).map(Duration::from_micros);
        let time = time.filter(|time| *time <= MAX_LOOK);
        time.map(Self::For).ok_or_else(|| format!("{text}: use off, auto, or a time up to 1000ms, such as 50us"))
    }
}

impl fmt::Display for BusyPoll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::Auto => f.write_str("auto"),
            Self::For(time) => write!(f, "{}us", time.as_micros()),
        }
    }
}

/// Longest look of [`BusyPoll::Auto`].
const AUTO_LOOK: Duration = Duration::from_micros(50);
/// Watched descriptors up to which it looks: with more there are always events, and larger batches cost less.
const AUTO_DESCRIPTORS: usize = 16;
/// Looks after which those that found something are counted.
const AUTO_LOOKS: u32 = 64;
/// Share of looks that must find something: one in so many.
const AUTO_FOUND: u32 = 4;
/// Interval of asking the kernel whether others want the processor: a tick of 250 Hz.
const CONTENTION_INTERVAL: Duration = Duration::from_millis(4);
/// Share of an interval for which this thread may have waited for its processor: one in so many.
const CONTENTION_SHARE: u32 = 20;
/// First pause after looks that were of no use; doubled each time, up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause; also that after the processor was wanted by others.
const LONGEST_PAUSE: Duration = Duration::from_millis(160);

/// Time that the workers of this process have looked in vain or until an event came, in nanoseconds.
static LOOKED_NS: AtomicU64 = AtomicU64::new(0);

/// Time that the workers of this process have spent in looking for events.
pub(crate) fn looked() -> Duration {
    Duration::from_nanos(LOOKED_NS.load(Ordering::Relaxed))
}

/// The looks of a worker.
pub(crate) struct BusyPolling {
    mode: BusyPoll,
    looks: Cell<u32>,
    found: Cell<u32>,
    paused_until: Cell<Duration>,
    pause: Cell<Duration>,
    contention: Contention,
}

impl BusyPolling {
    pub(crate) fn new(mode: BusyPoll) -> Self {
        let has_processors = std::thread::available_parallelism().is_ok_and(|processors| processors.get() > 1);
        Self {
            // On one processor it would keep the peer from answering.
            mode: if mode == BusyPoll::Auto && !has_processors { BusyPoll::Off } else { mode },
            looks: Cell::default(),
            found: Cell::default(),
            paused_until: Cell::default(),
            pause: Cell::new(FIRST_PAUSE),
            contention: Contention::default(),
        }
    }

    /// Time for which to look now; `None` for none.
    pub(crate) fn limit(&self, descriptors: usize) -> Option<Duration> {
        match self.mode {
            BusyPoll::Off => None,
            BusyPoll::For(limit) => Some(limit),
            BusyPoll::Auto if descriptors > AUTO_DESCRIPTORS => None,
            BusyPoll::Auto => {
                let paused_until = self.paused_until.get();
                (paused_until.is_zero() || clock::now() >= paused_until).then_some(AUTO_LOOK)
            }
        }
    }

    /// Notes a look of at most `limit`. If it took longer, the thread was without a processor meanwhile, and that is no cost.
    pub(crate) fn note(&self, began: Duration, ended: Duration, limit: Duration, has_found: bool) {
        LOOKED_NS.fetch_add((ended - began).min(limit).as_nanos() as u64, Ordering::Relaxed);
        if self.mode == BusyPoll::Auto {
            self.adapt(ended, has_found);
        }
    }

    fn adapt(&self, now: Duration, has_found: bool) {
        if self.contention.is_found(now) {
            self.pause_for(now, LONGEST_PAUSE);
            return;
        }
        self.looks.set(self.looks.get() + 1);
        self.found.set(self.found.get() + u32::from(has_found));
        if self.looks.get() < AUTO_LOOKS {
            return;
        }
        if self.found.get() * AUTO_FOUND >= self.looks.get() {
            self.pause.set(FIRST_PAUSE);
        } else {
            self.pause_for(now, self.pause.get());
            self.pause.set((self.pause.get() * 2).min(LONGEST_PAUSE));
        }
        self.looks.set(0);
        self.found.set(0);
    }

    fn pause_for(&self, now: Duration, length: Duration) {
        self.paused_until.set(now + length);
        self.contention.forget();
    }
}

/// Other threads' wish for the processor of this one: the time that this thread has waited for it, by `schedstat` of proc(5).
#[derive(Default)]
struct Contention {
    file: RefCell<Option<OwnedFd>>,
    asked: Cell<Option<Sample>>,
}

#[derive(Clone, Copy)]
struct Sample {
    at: Duration,
    waited: Duration,
}

impl Contention {
    /// Reports whether this thread waited for its processor for more than a small share of the last interval. Without
    /// `schedstat` it never did: whoever has no such kernel has `BusyPoll::Off`.
    fn is_found(&self, now: Duration) -> bool {
        let Some(last) = self.asked.get() else {
            self.asked.set(self.sample(now));
            return false;
        };
        let since = now.saturating_sub(last.at);
        if since < CONTENTION_INTERVAL {
            return false;
        }
        let next = self.sample(now);
        self.asked.set(next);
        next.is_some_and(|next| next.waited.saturating_sub(last.waited) * CONTENTION_SHARE > since)
    }

    /// Begins anew after a pause, whose waits say nothing.
    fn forget(&self) {
        self.asked.set(None);
    }

    fn sample(&self, at: Duration) -> Option<Sample> {
        let mut file = self.file.borrow_mut();
        if file.is_none() {
            let path = c"/proc/thread-self/schedstat";
            *file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        }
        let mut room = [0; 64];
        let count = rustix::io::pread(file.as_ref()?, &mut room, 0).ok()?;
        let text = std::str::from_utf8(room.get(..count)?).ok()?;
        // Time on the processor, time of waiting for it, time slices.
        let waited = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
        Some(Sample { at, waited: Duration::from_nanos(waited) })
    }
}

#[cfg(test)]
mod tests {
    use super::{AUTO_DESCRIPTORS, AUTO_LOOK, AUTO_LOOKS, BusyPoll, BusyPolling, FIRST_PAUSE};
    use crate::clock;
    use std::time::Duration;

    fn look(polling: &BusyPolling, has_found: bool) {
        let now = clock::now();
        polling.note(now, now, AUTO_LOOK, has_found);
    }

    #[test]
    fn auto_looks_for_as_long_as_it_finds_something() {
        let polling = BusyPolling { mode: BusyPoll::Auto, ..BusyPolling::new(BusyPoll::Off) };
        assert_eq!(polling.limit(2), Some(AUTO_LOOK));
        assert_eq!(polling.limit(AUTO_DESCRIPTORS + 1), None);
        // Pauses are for others' threads too: only those after looks in vain are looked at here.
        (0..AUTO_LOOKS).for_each(|number| look(&polling, number % 2 == 0));
        assert_eq!(polling.pause.get(), FIRST_PAUSE);
        (0..AUTO_LOOKS).for_each(|_| look(&polling, false));
        assert!(polling.paused_until.get() > Duration::ZERO && polling.pause.get() >= FIRST_PAUSE);
        polling.paused_until.set(clock::now() - Duration::from_nanos(1));
        assert_eq!(polling.limit(2), Some(AUTO_LOOK), "after the pause it looks again");
    }

    #[test]
    fn a_time_of_the_users_own_never_pauses() {
        let polling = BusyPolling::new(BusyPoll::For(Duration::from_millis(1)));
        (0..10 * AUTO_LOOKS).for_each(|_| look(&polling, false));
        assert_eq!(polling.limit(1_000), Some(Duration::from_millis(1)));
        assert_eq!(BusyPolling::new(BusyPoll::Off).limit(0), None);
    }

    #[test]
    fn each_mode_is_read_as_it_is_written() {
        for text in ["off", "auto", "1us", "50us", "1000000us"] {
            assert_eq!(text.parse::<BusyPoll>().expect(text).to_string(), text);
        }
        assert_eq!("2ms".parse(), Ok(BusyPoll::For(Duration::from_millis(2))));
        for text in
            ["", "on", "0us", "5", "1s", "1001ms", "-1us", "99999999999999999999us", "18446744073709551615ms", "½us"]
        {
            assert!(text.parse::<BusyPoll>().is_err_and(|why| why.starts_with(text)), "{text}");
        }
    }

    #[test]
    fn the_kernel_tells_waiting_times() {
        let polling = BusyPolling::new(BusyPoll::Auto);
        let sample = polling.contention.sample(clock::now());
        let has_file = std::path::Path::new("/proc/thread-self/schedstat").exists();
        assert_eq!(sample.is_some(), has_file);
    }
}
