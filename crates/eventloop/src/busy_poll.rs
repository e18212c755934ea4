//! Busy polling: a worker that has just had an event looks for the next one for a while before it sleeps.
//!
//! An idle processor takes 20 to 70 µs to wake. With one session that is most of a round trip; with many sessions there is
//! always an event, and a worker never sleeps. Looking costs a processor, which others may need: `Auto` looks only as long
//! as it finds something, and as nobody else waits for the processor.
use crate::clock;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::thread::sched_getaffinity;
use std::cell::{Cell, RefCell};
use std::ffi::CStr;
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
    /// Up to 100 µs, where that finds events, few descriptors are watched, and no other thread waits for the processor.
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

/// Longest look of [`BusyPoll::Auto`]: longer than a peer takes that sleeps first, whose processor has to wake. A shorter one ends in
/// vain as soon as the peer pauses; then this end pauses too, and both miss each other for as long as they run.
const AUTO_LOOK: Duration = Duration::from_micros(100);
/// Watched descriptors up to which it looks: with more there are always events, and larger batches cost less.
const AUTO_DESCRIPTORS: usize = 16;
/// Looks after which those that found something are counted.
const AUTO_LOOKS: u32 = 64;
/// Share of looks that must find something: one in so many.
const AUTO_FOUND: u32 = 8;
/// Interval of asking the kernel whether others want the processor: a tick of 250 Hz.
const CONTENTION_INTERVAL: Duration = Duration::from_millis(4);
/// Share of an interval for which this thread may have waited for its processor: one in so many.
const CONTENTION_SHARE: u32 = 20;
/// First pause after looks that were of no use; doubled each time, up to `LONGEST_PAUSE`.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
/// Longest pause after looks that were of no use.
const LONGEST_PAUSE: Duration = Duration::from_millis(160);
/// First pause after the processor was wanted by others; doubled as long as it is.
const FIRST_YIELD: Duration = Duration::from_millis(40);
/// Longest pause after the processor was wanted by others.
const LONGEST_YIELD: Duration = Duration::from_millis(640);

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
    /// Length of the next pause after looks in vain.
    pause: Cell<Duration>,
    /// Length of the next pause for others.
    yielding: Cell<Duration>,
    /// The last pause was for others: they are looked for before it ends.
    has_yielded: Cell<bool>,
    contention: Contention,
}

impl BusyPolling {
    pub(crate) fn new(mode: BusyPoll) -> Self {
        let contention = Contention::new();
        Self {
            // On one processor it would keep the peer from answering.
            mode: if mode == BusyPoll::Auto && !contention.has_processors { BusyPoll::Off } else { mode },
            looks: Cell::default(),
            found: Cell::default(),
            paused_until: Cell::default(),
            pause: Cell::new(FIRST_PAUSE),
            yielding: Cell::new(FIRST_YIELD),
            has_yielded: Cell::default(),
            contention,
        }
    }

    /// Time for which to look now; `None` for none.
    pub(crate) fn limit(&self, descriptors: usize) -> Option<Duration> {
        match self.mode {
            BusyPoll::Off => None,
            BusyPoll::For(limit) => Some(limit),
            BusyPoll::Auto if descriptors > AUTO_DESCRIPTORS => None,
            BusyPoll::Auto if self.paused_until.get().is_zero() => Some(AUTO_LOOK),
            BusyPoll::Auto => self.may_resume(clock::now()).then_some(AUTO_LOOK),
        }
    }

    /// Reports whether the pause is over. One for others is longer if they are still there: a look would cost them, and this
    /// thread its place before them.
    fn may_resume(&self, now: Duration) -> bool {
        if now < self.paused_until.get() {
            return false;
        }
        if self.has_yielded.get() && self.contention.are_processors_wanted() {
            self.yield_to_others(now);
            return false;
        }
        self.paused_until.set(Duration::ZERO);
        self.has_yielded.set(false);
        true
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
            self.yield_to_others(now);
            return;
        }
        self.looks.set(self.looks.get() + 1);
        self.found.set(self.found.get() + u32::from(has_found));
        if self.looks.get() < AUTO_LOOKS {
            return;
        }
        if self.found.get() * AUTO_FOUND >= self.looks.get() {
            self.pause.set(FIRST_PAUSE);
            self.yielding.set(FIRST_YIELD);
        } else {
            self.pause_for(now, self.pause.get());
            self.pause.set((self.pause.get() * 2).min(LONGEST_PAUSE));
        }
        self.looks.set(0);
        self.found.set(0);
    }

    fn yield_to_others(&self, now: Duration) {
        self.pause_for(now, self.yielding.get());
        self.yielding.set((self.yielding.get() * 2).min(LONGEST_YIELD));
        self.has_yielded.set(true);
        self.looks.set(0);
        self.found.set(0);
    }

    fn pause_for(&self, now: Duration, length: Duration) {
        self.paused_until.set(now + length);
        self.contention.forget();
    }
}

/// Other threads' wish for the processor of this one.
///
/// The time that this thread has waited for a processor (`schedstat` of proc(5)) is not enough: the two ends of a connection
/// wait for each other on one processor while another is idle, until the scheduler has moved one of them; a pause would only bring
/// them back together. They may look as long as no more threads are runnable than there are processors (`loadavg` of proc(5)).
struct Contention {
    /// There is a processor for the peer.
    has_processors: bool,
    /// Number of the host's processors; `None` if this thread may not use all of them, and others' threads elsewhere say nothing.
    processors: Option<usize>,
    schedstat: ProcFile,
    loadavg: ProcFile,
    asked: Cell<Option<Sample>>,
}

#[derive(Clone, Copy)]
struct Sample {
    at: Duration,
    waited: Duration,
}

impl Contention {
    fn new() -> Self {
        let allowed = sched_getaffinity(None).map_or(1, |set| set.count() as usize);
        let online = ProcFile::new(c"/sys/devices/system/cpu/online").read(count_of_list).unwrap_or(allowed);
        let usable = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            // Placed on one of several, the peer is on another.
            has_processors: usable > 1 || (allowed == 1 && online > 1),
            processors: (allowed == online).then_some(online),
            schedstat: ProcFile::new(c"/proc/thread-self/schedstat"),
            loadavg: ProcFile::new(c"/proc/loadavg"),
            asked: Cell::default(),
        }
    }

    /// Reports whether this thread waited for its processor for more than a small share of the last interval, and others want
    /// it. Without `schedstat` it never did: whoever has no such kernel has `BusyPoll::Off`.
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
        let has_waited = next.is_some_and(|next| next.waited.saturating_sub(last.waited) * CONTENTION_SHARE > since);
        has_waited && (self.processors.is_none() || self.are_processors_wanted())
    }

    /// Reports whether more threads of the host are runnable than it has processors.
    fn are_processors_wanted(&self) -> bool {
        let runnable = self.loadavg.read(runnable_threads);
        self.processors.zip(runnable).is_some_and(|(processors, runnable)| runnable > processors)
    }

    /// Begins anew after a pause, whose waits say nothing.
    fn forget(&self) {
        self.asked.set(None);
    }

    fn sample(&self, at: Duration) -> Option<Sample> {
        // Time on the processor, time of waiting for it, time slices.
        let waited = self.schedstat.read(|text| text.split_ascii_whitespace().nth(1)?.parse().ok())?;
        Some(Sample { at, waited: Duration::from_nanos(waited) })
    }
}

/// Number of processors in a list of the kernel: `0-3,6`.
fn count_of_list(text: &str) -> Option<usize> {
    let count = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let first: usize = first.parse().ok()?;
        let last: usize = last.parse().ok()?;
        last.checked_sub(first)?.checked_add(1)
    };
    text.trim().split(',').map(count).sum()
}

/// Number of runnable threads, this one included: the fourth field of loadavg is `runnable/all`.
fn runnable_threads(text: &str) -> Option<usize> {
    text.split_ascii_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

/// A file of the kernel that is opened once, on the thread that reads it, and read from its start each time.
struct ProcFile {
    path: &'static CStr,
    file: RefCell<Option<OwnedFd>>,
}

impl ProcFile {
    fn new(path: &'static CStr) -> Self {
        Self { path, file: RefCell::default() }
    }

    fn read<T>(&self, parse: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let mut file = self.file.borrow_mut();
        if file.is_none() {
            *file = rustix::fs::open(self.path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok();
        }
        let mut room = [0; 128];
        let count = rustix::io::pread(file.as_ref()?, &mut room, 0).ok()?;
        parse(std::str::from_utf8(room.get(..count)?).ok()?)
    }
}

#[cfg(test)]
mod tests {
    use super::{
        AUTO_DESCRIPTORS, AUTO_LOOK, AUTO_LOOKS, BusyPoll, BusyPolling, FIRST_PAUSE, FIRST_YIELD, LONGEST_YIELD,
        count_of_list, runnable_threads,
    };
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
    fn others_are_given_way_for_as_long_as_they_want_the_processors() {
        let mut polling = BusyPolling { mode: BusyPoll::Auto, ..BusyPolling::new(BusyPoll::Off) };
        // A host without a processor has too many runnable threads: this one.
        polling.contention.processors = Some(0);
        let mut now = clock::now();
        polling.yield_to_others(now);
        assert_eq!(polling.paused_until.get(), now + FIRST_YIELD);
        assert!(!polling.may_resume(now + FIRST_YIELD / 2));
        for length in [FIRST_YIELD * 2, FIRST_YIELD * 4, FIRST_YIELD * 8, LONGEST_YIELD, LONGEST_YIELD] {
            now = polling.paused_until.get();
            let has_file = std::path::Path::new("/proc/loadavg").exists();
            assert_eq!(polling.may_resume(now), !has_file);
            assert!(!has_file || polling.paused_until.get() == now + length, "{length:?}");
        }
        // And one with very many has none too many.
        polling.contention.processors = Some(usize::MAX);
        assert!(polling.may_resume(now + LONGEST_YIELD));
        (0..AUTO_LOOKS).for_each(|_| look(&polling, true));
        assert_eq!(
            (polling.limit(2), polling.yielding.get()),
            (Some(AUTO_LOOK), FIRST_YIELD),
            "all is as in the beginning"
        );
    }

    #[test]
    fn files_of_the_kernel_are_read() {
        assert_eq!([count_of_list("0-3\n"), count_of_list("0,2-3"), count_of_list("5")], [Some(4), Some(3), Some(1)]);
        assert_eq!([count_of_list(""), count_of_list("3-1"), count_of_list("a-b")], [None; 3]);
        assert_eq!(runnable_threads("0.20 0.18 0.12 3/312 11206\n"), Some(3));
        assert_eq!([runnable_threads(""), runnable_threads("0.20 0.18 0.12 312 11206")], [None; 2]);
    }

    #[test]
    fn the_kernel_tells_waiting_times() {
        let polling = BusyPolling::new(BusyPoll::Auto);
        let sample = polling.contention.sample(clock::now());
        let has_file = std::path::Path::new("/proc/thread-self/schedstat").exists();
        assert_eq!(sample.is_some(), has_file);
    }
}
